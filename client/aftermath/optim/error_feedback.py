"""Choose results with error feedback: the part that is not sent stays in the residual.

Per trained round: residual <- (residual - previous result) * decay + pseudo-gradient. The `topk`
strongest coefficients of every block are the result. The residual starts at zero and covers the
held segments only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aftermath.kernels.runtime import run_parallel
from aftermath.model.segments import view
from aftermath.optim import compiled_dense, compiled_sparse, gpu_choice, level_kernels
from aftermath.optim.blocks import UNUSED
from aftermath.optim.codec import encode_groups
from aftermath.optim.gradient_clip import LARGEST_RESIDUAL, refuse_beyond
from aftermath.optim.interfaces import Measured, PseudoGradient
from aftermath.optim.lattice import SMALLEST, quantise
from aftermath.optim.layout import LevelLayout, Part, level_layout
from aftermath.optim.moe_bias import Balances, nothing_balances
from aftermath.optim.result_format import ResultFormat, Transform
from aftermath.optim.state_checks import check_state, state_sizes
from aftermath.optim.state_merkle import digests_of
from aftermath.optim.transform import (
    ZERO_BELOW,
    cells,
    forward,
    inverse,
    padding,
    strongest,
    subtract,
)

_BATCH = {"cpu": 1 << 18, "cuda": 1 << 25}
"""Coefficients per transform: what fits a core's cache, or keeps a GPU busy."""
Entries = tuple[NDArray[np.uint16], NDArray[np.float32]]
"""Index and value of every entry of a level, in wire order."""


class ErrorFeedback:
    """The results of one replica, and the residual of its pseudo-gradients."""

    def __init__(
        self,
        results: ResultFormat,
        tier: int,
        params: Mapping[str, Tensor],
        decay: float,
        balances: Balances = nothing_balances,
    ) -> None:
        """Raise SchemaError or SegmentError unless `params` are a replica of tier `tier`."""
        self._format = results
        self._decay_factor = decay
        self._names = frozenset(params)
        self._balances = balances
        self._transformed = results.transform is Transform.DCT
        self._compiled = compiled_sparse.usable(params)
        self._flat = all(
            level_kernels.works(device) for device in {tensor.device for tensor in params.values()}
        )
        self._layouts: dict[int, LevelLayout] = {}
        self._residuals: dict[int, list[Tensor]] = {}
        self._previous: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._payloads: dict[int, bytes] = {}
        """Payloads of the levels of the previous result that are already encoded."""
        self._tables: tuple[tuple[int, ...], list[level_kernels.LevelTensors]] | None = None
        """Cached tables of parameters and residuals, with the parameters' addresses."""
        results.of_level(tier)
        for level in (level for level in range(tier, results.levels) if results.of_level(level)):
            layout = self._layouts[level] = level_layout(results, level)
            device = view(params, layout.parts[0].segment).device
            self._residuals[level] = [
                torch.zeros(g.blocks, g.height, g.width, device=device) for g in layout.groups
            ]

    def residual(self) -> Iterator[tuple[Part, Tensor]]:
        """Yield the residual plus the previous result, per segment: blocks [n, h, w]."""
        for level, layout in self._layouts.items():
            for part in layout.parts:
                yield part, part.of(self._residuals[level][part.group])

    def directions(self) -> Iterator[tuple[Part, Tensor]]:
        """Yield the signs of the residual."""
        return ((part, residual.sign()) for part, residual in self.residual())

    def go_ahead(self, params: Mapping[str, Tensor], rate: float) -> None:
        """Change parameters by -rate * sign(residual)."""
        if not self._flat:
            follow(self.directions(), params, rate)
            return
        places = tuple(tensor.data_ptr() for tensor in params.values())
        if self._tables is None or self._tables[0] != places:
            tables = [
                level_kernels.LevelTensors(
                    layout, level_kernels.tensors_of(layout, params), self._residuals[level]
                )
                for level, layout in self._layouts.items()
            ]
            self._tables = places, tables
        for table in self._tables[1]:
            level_kernels.go_ahead(table, rate)

    def compress(self, gradient: PseudoGradient) -> dict[int, bytes]:
        """Add a pseudo-gradient to the residual. Return the result per held level."""
        self.choose(gradient)
        return self.sent()

    @torch.no_grad()
    def choose(self, gradient: PseudoGradient) -> None:
        """Add a pseudo-gradient to the residual, and choose the entries to send."""
        check_made(gradient, self._names, self._layouts)
        if self._compiled:
            self._choose_compiled(gradient)
        elif self._flat:
            self._choose_flat(gradient)
        else:
            self._decay()
            for part, residual in self.residual():
                for number, place in cells(
                    view(gradient.tensors, part.segment), residual, part.blocks
                ):
                    place.add_(number, alpha=gradient.factor)
            for level in self._layouts:
                self._choose(level)

    def _choose_compiled(self, gradient: PseudoGradient) -> None:
        """Do the work of `choose` with compiled kernels."""
        bits = self._format.values.lattice_bits
        smallest = SMALLEST if bits else ZERO_BELOW
        tasks = []
        chosen = {}
        # Clear the previous result first, so that it is not subtracted twice if encoding fails.
        previous = self._previous
        self._forget_previous()
        whole: dict[int, compiled_dense.Encoding] = {}
        for level, layout in self._layouts.items():
            if self._format.is_dense(level):
                whole[level] = compiled_dense.Encoding(
                    layout,
                    self._residuals[level],
                    gradient.tensors,
                    gradient.factor,
                    self._decay_factor,
                    previous.get(level),
                    bits,
                )
                chosen[level] = whole[level].chosen
                tasks += whole[level].tasks
                continue
            chosen[level], more = compiled_sparse.encode(
                layout,
                self._residuals[level],
                gradient.tensors,
                gradient.factor,
                self._decay_factor,
                previous.get(level),
                self._transformed,
                smallest,
                bits,
            )
            tasks += more
        run_parallel(tasks)
        self._payloads = {level: encoding.payload() for level, encoding in whole.items()}
        self._previous = chosen

    def _forget_previous(self) -> None:
        self._previous = {}
        self._payloads = {}

    def _choose_flat(self, gradient: PseudoGradient) -> None:
        """Do the work of `choose` with all blocks of a level in one launch."""
        self._take_back()
        for level, layout in self._layouts.items():
            table = level_kernels.LevelTensors(
                layout, level_kernels.tensors_of(layout, gradient.tensors), self._residuals[level]
            )
            level_kernels.add(table, self._decay_factor, gradient.factor)
        for level in self._layouts:
            self._choose(level)

    def _take_back(self) -> None:
        """residual <- residual - previous result."""
        # Subtract the previous result even if the run rejected it. Its sequences are trained again,
        # so the residual must not send their contribution a second time.
        # For sign votes, subtract the unquantised coefficients, since a vote has no size (as
        # upstream). For lattice values, subtract what was sent, so that the rest is sent later.
        # This happens only when the next round is trained: until then a look-ahead sees the
        # result, as upstream.
        previous = self._previous
        self._forget_previous()
        for level, sent in previous.items():
            for residual, chosen in zip(self._residuals[level], sent, strict=True):
                if self._flat and not self._transformed:
                    level_kernels.take(residual, *chosen)
                else:
                    take_back(residual, *chosen, transformed=self._transformed)

    def _decay(self) -> None:
        """residual <- (residual - previous result) * decay."""
        self._take_back()
        for residuals in self._residuals.values():
            for residual in residuals:
                if self._decay_factor != 1.0:
                    residual.mul_(self._decay_factor)
        # Clear the padding of blocks: its values never reach a parameter.
        for part, residual in self.residual():
            for beyond in padding(residual, part.blocks):
                beyond.zero_()

    def _choose(self, level: int) -> None:
        """Choose the entries of one level group by group with torch."""
        layout = self._layouts[level]
        entries = []
        for group, residual in zip(layout.groups, self._residuals[level], strict=True):
            chosen = [
                self._chosen(batch, group.topk) for batch in residual.split(_at_once(residual))
            ]
            indices, values = zip(*chosen, strict=True)
            entries.append(
                (indices[0], values[0])
                if len(chosen) == 1
                else (torch.cat(indices), torch.cat(values))
            )
        self._previous[level] = entries

    def entries(self, level: int) -> Entries:
        """Return the entries chosen last."""
        return entries_of(self._layouts[level], *zip(*self._previous[level], strict=True))

    def sent(self) -> dict[int, bytes]:
        """Return the last result per held level; empty before the first."""
        for level, chosen in self._previous.items():
            if level not in self._payloads:
                self._payloads[level] = encode_groups(self._format, level, chosen)
        return {level: self._payloads[level] for level in self._previous}

    def _chosen(self, blocks: Tensor, topk: int) -> tuple[Tensor, Tensor]:
        """Return indices and values, [n, topk], to send of blocks [n, h, w]."""
        coefficients = (forward(blocks) if self._transformed else blocks).flatten(1)
        bits = self._format.values.lattice_bits
        if gpu_choice.chooses(blocks.device, coefficients.shape[1], topk, bits):
            return gpu_choice.choose(coefficients, topk, SMALLEST if bits else ZERO_BELOW, bits)
        if not bits:
            return strongest(coefficients, topk)
        indices, values = strongest(coefficients, topk, SMALLEST)
        return indices, quantise(values, bits)

    @torch.no_grad()
    def measure(self, gradient: PseudoGradient) -> dict[int, Measured]:
        """Return, per held level, the norms of the pseudo-gradient and of the remaining residual.

        Values in the padding of blocks count as carried. Balance vectors do not count.
        """
        return {level: self._measured(level, gradient) for level in self._layouts}

    def _measured(self, level: int, gradient: PseudoGradient) -> Measured:
        return measured(self._layouts[level], gradient, *self.energies(level), self._balances)

    @torch.no_grad()
    def energies(self, level: int) -> tuple[float, float]:
        """Return the energies (squared norms) of the residual and of the part that was sent.

        The residual includes the previous result.
        """
        parts = [
            part for part in self._layouts[level].parts if not self._balances(part.segment.name)
        ]
        whole = carried = 0.0
        for group in sorted({part.group for part in parts}):
            residual = self._residuals[level][group]
            indices, values = self._previous[level][group]
            step = _at_once(residual)
            places = indices.masked_fill(indices == UNUSED, 0)  # unused entries have the value 0
            for first in range(0, len(residual), step):
                blocks = residual[first : first + step]
                sent = values[first : first + step]
                coefficients = (forward(blocks) if self._transformed else blocks).flatten(1)
                was = coefficients.gather(1, places[first : first + step])
                whole += _energy(coefficients)
                carried += _energy(was) - _energy(was - sent)
        return whole, carried

    def reset(self) -> None:
        """Forget past rounds: set the residual and the previous result to zero."""
        for residual in (
            residual for residuals in self._residuals.values() for residual in residuals
        ):
            residual.zero_()
        self._forget_previous()

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the residual and the previous result, without copies."""
        tensors = {}
        for level, residuals in self._residuals.items():
            for group, residual in enumerate(residuals):
                tensors[f"residual.{level}.{group}"] = residual
            for group, (indices, values) in enumerate(self._previous.get(level, ())):
                tensors |= {f"indices.{level}.{group}": indices, f"values.{level}.{group}": values}
        return tensors

    def state(self) -> dict[str, Tensor]:
        """Return copies of the residual and the previous result."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.state_tensors().items()}

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each state tensor."""
        return state_sizes(self._layouts)

    def digests(self) -> list[bytes]:
        """Return the digest of each block of the state."""
        return digests_of(self.state_tensors())

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. Raises BadState, and changes nothing, if it does not fit
        exactly.
        """
        sent = check_state(self._layouts, state, self._format.values.lattice_bits)
        self._forget_previous()
        for level, residuals in self._residuals.items():
            for group, residual in enumerate(residuals):
                residual.copy_(state[f"residual.{level}.{group}"])
            if sent:
                device = residuals[0].device
                groups = range(len(residuals))
                entries = (
                    (state[f"indices.{level}.{g}"], state[f"values.{level}.{g}"]) for g in groups
                )
                self._previous[level] = [
                    (i.to(device, copy=True), v.to(device, copy=True)) for i, v in entries
                ]


def check_made(
    gradient: PseudoGradient, names: Collection[str], layouts: Mapping[int, LevelLayout]
) -> None:
    """Raise NonFiniteGradient for a tensor that is not finite or too large.

    Raises SegmentError for a missing tensor or a wrong shape.
    """
    refuse_beyond(
        {name: tensor for name, tensor in gradient.tensors.items() if name in names},
        LARGEST_RESIDUAL,
    )
    for layout in layouts.values():
        for part in layout.parts:
            view(gradient.tensors, part.segment)


def entries_of(layout: LevelLayout, indices: Sequence[Tensor], values: Sequence[Tensor]) -> Entries:
    """Return index and value of every entry of a level from its groups', [blocks, topk] each."""
    return (
        layout.canonical(indices).cpu().numpy().astype(np.uint16),
        layout.canonical(values).cpu().numpy(),
    )


def measured(
    layout: LevelLayout,
    gradient: PseudoGradient,
    whole: float,
    carried: float,
    balances: Balances = nothing_balances,
) -> Measured:
    """Return a level's metrics from the residual's energy (`whole`) and the sent part's."""
    parts = (part for part in layout.parts if not balances(part.segment.name))
    energy = sum(_energy(view(gradient.tensors, part.segment)) for part in parts)
    left = math.sqrt(max(0.0, whole - carried))
    return Measured(
        abs(gradient.factor) * math.sqrt(energy), left, carried / whole if whole else 0.0
    )


def take_back(residual: Tensor, indices: Tensor, values: Tensor, *, transformed: bool) -> None:
    """residual <- residual - (IDCT of) the coefficients sent, [blocks, topk] each."""
    step = _at_once(residual)
    places = indices.masked_fill(indices == UNUSED, 0)  # unused entries add 0
    for first in range(0, len(residual), step):
        batch = residual[first : first + step]
        sent = torch.zeros_like(batch).flatten(1)
        sent.scatter_add_(1, places[first : first + step], values[first : first + step])
        sent = sent.view(batch.shape)
        batch.sub_(inverse(sent) if transformed else sent)


def follow(
    directions: Iterable[tuple[Part, Tensor]], params: Mapping[str, Tensor], rate: float
) -> None:
    """Change parameters by -rate * signs. `directions` yields blocks [n, h, w] per segment."""
    for part, signs in directions:
        subtract(view(params, part.segment), signs.mul_(rate), part.blocks)


def _at_once(blocks: Tensor) -> int:
    """Return how many of these blocks to transform at once."""
    return max(1, _BATCH.get(blocks.device.type, _BATCH["cpu"]) // blocks[0].numel())


def _energy(numbers: Tensor) -> float:
    """Return the sum of squares."""
    return float(torch.linalg.vector_norm(numbers)) ** 2
