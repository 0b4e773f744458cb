"""DisTrO with an exact apply: a replica's optimizer state, its results, and what everyone's results change.

Per trained round, as upstream: look ahead (x - lr sign(delta)), gradients, look back; then
delta <- (delta - what was sent last) * decay + lr * gradient, and the `topk` strongest DCT coefficients of every block
are the result. Per applied round: x <- x (1 - lr wd), then x <- x - lr sign(mean of the votes).

Decided
- delta starts at zero and covers the held segments only; the look-ahead returns to saved bits, also on an error.
- What is subtracted are the unquantised coefficients of the previous result, accepted or not: the sequences of a
  result that the run did not accept are trained anew, and delta must not send what was learnt from them twice. What
  they put into a block's padding reached no parameter and is forgotten.
- Weight decay happens exactly once in every applied round on every replica, whoever trained and even if a level got
  no result: it is part of `apply`, so it depends on nothing that members could see differently.
- lr and 1 - lr wd are computed in float64 and rounded to fp32 once; each parameter gets one IEEE multiplication (only
  with weight decay) and one subtraction of exactly 0 or +-lr. Separate operations, so nothing can be contracted.
- `apply` decides all signs before it changes the first parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from aftermath.model.schema import Schema
from aftermath.model.segments import view
from aftermath.optim.clip import refuse_beyond
from aftermath.optim.codec import Votes, encode_level
from aftermath.optim.exact import signs
from aftermath.optim.layout import LevelLayout, Part, level_layout
from aftermath.optim.transform import UNUSED, cells, forward, inverse, padding, strongest
from aftermath.run.errors import AftermathError

_LARGEST_GRADIENT = 1e30  # beyond it delta or its transform could overflow fp32
_BATCH = 1 << 18  # coefficients transformed at once


class BadState(AftermathError):
    """What was kept of an optimizer is not the state of this one."""


class Distro:
    """The optimizer of one replica. `params` are the replica's own fp32 tensors, changed in place by `apply`."""

    def __init__(self, schema: Schema, tier: int, params: Mapping[str, Tensor]) -> None:
        """Raises SchemaError or SegmentError if these are not the tensors of a tier-`tier` replica, UnsupportedEdge."""
        self._schema, self._params = schema, params
        self._layouts: dict[int, LevelLayout] = {}
        self._deltas: dict[int, list[Tensor]] = {}
        self._previous: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._ahead = False
        schema.of_level(tier)
        for level in range(tier, schema.levels):
            layout = self._layouts[level] = level_layout(schema, level)
            device = view(params, layout.parts[0].segment).device
            self._deltas[level] = [torch.zeros(g.blocks, g.height, g.width, device=device) for g in layout.groups]
        self.reset()

    def reset(self) -> None:
        """Forget everything learnt from past rounds: delta is zero, nothing was sent."""
        for delta in (delta for deltas in self._deltas.values() for delta in deltas):
            delta.zero_()
        self._previous = {}

    def state(self) -> dict[str, Tensor]:
        """What this replica alone knows, as named tensors on the CPU: delta, and what was sent last.

        With equal parameters `restore` continues from them bit by bit.
        """
        found = {}
        for level, deltas in self._deltas.items():
            for group, delta in enumerate(deltas):
                found[f"delta.{level}.{group}"] = delta
            for group, (indices, values) in enumerate(self._previous.get(level, ())):
                found |= {f"indices.{level}.{group}": indices, f"values.{level}.{group}": values}
        return {name: tensor.to("cpu", copy=True) for name, tensor in found.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave. Raises BadState, leaving all as it was, unless it fits this replica exactly."""
        places = [(level, group) for level in self._layouts for group in range(len(self._layouts[level].groups))]
        kinds = ("delta", "indices", "values") if any(not name.startswith("delta.") for name in state) else ("delta",)
        names = {f"{kind}.{level}.{group}" for kind in kinds for level, group in places}
        if state.keys() != names:
            raise BadState(f"an optimizer's state lacks or has too much of {sorted(state.keys() ^ names)[0]}")
        for level, group in places:
            of = self._layouts[level].groups[group]
            _check(state, f"delta.{level}.{group}", (of.blocks, of.height, of.width))
            for kind in kinds[1:]:
                _check(state, f"{kind}.{level}.{group}", (of.blocks, of.topk), of.block if kind == "indices" else None)
        self._previous = {}
        for level, deltas in self._deltas.items():
            for group, delta in enumerate(deltas):
                delta.copy_(state[f"delta.{level}.{group}"])
            if len(kinds) > 1:
                sent = (tuple(state[f"{kind}.{level}.{group}"] for kind in kinds[1:]) for group in range(len(deltas)))
                device = deltas[0].device
                self._previous[level] = [(i.to(device, copy=True), v.to(device, copy=True)) for i, v in sent]

    @contextmanager
    def lookahead(self, lr: float) -> Iterator[None]:
        """Inside, the parameters are x - lr sign(delta); afterwards, even after an error, exactly what they were."""
        rate = _rate(lr)
        saved = {name: tensor.detach().clone() for name, tensor in self._params.items()}
        self._ahead = True
        try:
            with torch.no_grad():
                for level, part in self._parts():
                    step = self._delta(level, part).sign().mul_(rate)
                    _subtract(view(self._params, part.segment), step, part)
            yield
        finally:
            with torch.no_grad():
                for name, tensor in saved.items():
                    self._params[name].detach().copy_(tensor)
            self._ahead = False

    @torch.no_grad()
    def encode(self, grads: Mapping[str, Tensor], lr: float) -> dict[int, bytes]:
        """Add lr times the gradients (named and shaped as the parameters) to delta; the result per held level.

        Raises NonFiniteGradient, naming the tensor, or SegmentError for a missing or misshapen gradient; delta is
        untouched then.
        """
        rate = _rate(lr)
        refuse_beyond({name: grads[name] for name in self._params.keys() & grads.keys()}, _LARGEST_GRADIENT)
        for _, part in self._parts():
            view(grads, part.segment)
        self._decay()
        for level, part in self._parts():
            for gradient, delta in cells(view(grads, part.segment), self._delta(level, part), part.segment):
                delta.add_(gradient, alpha=rate)
        return {level: self._result(level) for level in self._layouts}

    @torch.no_grad()
    def apply(self, results: Mapping[int, Sequence[Votes]], lr: float) -> None:
        """Apply one round: per level the votes of the peers whose results the run accepted, in any order.

        Every replica must call it once for every applied round, with the same votes for the levels it holds; a level
        without votes only decays. Raises ValueError, leaving the parameters as they were, for a level not held.
        """
        rate = _rate(lr)
        if self._ahead:
            raise RuntimeError("results cannot be applied while looking ahead")
        if not results.keys() <= self._layouts.keys():
            raise ValueError(f"results for levels {sorted(results.keys() - self._layouts.keys())}, which are not held")
        keep = _rate(1.0 - lr * self._schema.weight_decay)
        directions = {
            level: signs(votes, self._schema, level, self._deltas[level][0].device)
            for level, votes in results.items()
            if votes
        }
        for level, layout in self._layouts.items():
            for index, part in enumerate(layout.parts):
                tensor = view(self._params, part.segment)
                if keep != 1.0:
                    tensor.mul_(keep)
                if level in directions:
                    _subtract(tensor, directions[level][index].float().mul_(rate), part)

    def _parts(self) -> Iterator[tuple[int, Part]]:
        return ((level, part) for level, layout in self._layouts.items() for part in layout.parts)

    def _delta(self, level: int, part: Part) -> Tensor:
        """delta of one segment, [blocks, h, w]."""
        return self._deltas[level][part.group][part.first : part.first + part.segment.blocks]

    def _decay(self) -> None:
        """delta <- (delta - previous result) * decay. Nothing can be subtracted twice, should encoding fail later."""
        for level, deltas in self._deltas.items():
            sent = self._previous.get(level)
            for index, delta in enumerate(deltas):
                if sent is not None:
                    _take_back(delta, *sent[index])
                if self._schema.decay != 1.0:
                    delta.mul_(self._schema.decay)
        for level, part in self._parts():
            for beyond in padding(self._delta(level, part), part.segment):
                beyond.zero_()
        self._previous = {}

    def _result(self, level: int) -> bytes:
        layout = self._layouts[level]
        kept = []
        for group, delta in zip(layout.groups, self._deltas[level], strict=True):
            step = max(1, _BATCH // group.block)
            batches = (delta[first : first + step] for first in range(0, group.blocks, step))
            chosen = [strongest(forward(batch).flatten(1), group.topk) for batch in batches]
            kept.append((torch.cat([c[0] for c in chosen]), torch.cat([c[1] for c in chosen])))
        self._previous[level] = kept
        indices = layout.canonical([pair[0] for pair in kept]).cpu().numpy().astype(np.uint16)
        values = layout.canonical([pair[1] for pair in kept]).cpu().numpy()
        return encode_level(self._schema, level, indices, values)


def _subtract(tensor: Tensor, step: Tensor, part: Part) -> None:
    """tensor <- tensor - step, of which the blocks [n, h, w] are given."""
    for place, change in cells(tensor, step, part.segment):
        place.sub_(change)


def _take_back(delta: Tensor, indices: Tensor, values: Tensor) -> None:
    """delta <- delta - IDCT of the coefficients sent, [blocks, topk] each."""
    step = max(1, _BATCH // delta[0].numel())
    places = indices.masked_fill(indices == UNUSED, 0)  # unused slots add 0
    for first in range(0, len(delta), step):
        batch = delta[first : first + step]
        sent = torch.zeros_like(batch).flatten(1)
        sent.scatter_add_(1, places[first : first + step], values[first : first + step])
        batch.sub_(inverse(sent.view(batch.shape)))


def _check(state: Mapping[str, Tensor], name: str, shape: tuple[int, ...], block: int | None = None) -> None:
    """Raises BadState unless this tensor holds finite fp32 numbers, or places in a `block` of so many."""
    tensor, dtype = state[name], torch.float32 if block is None else torch.int64
    if tensor.shape != shape or tensor.dtype != dtype:
        raise BadState(f"{name} of an optimizer's state is {tensor.dtype} {tuple(tensor.shape)}, not {dtype} {shape}")
    fits = torch.isfinite(tensor) if block is None else ((tensor >= 0) & (tensor < block)) | (tensor == UNUSED)
    if not bool(fits.all()):
        raise BadState(f"{name} of an optimizer's state holds a number that cannot be there")


def _rate(number: float) -> float:
    """A learning rate or factor rounded to fp32 once. Raises ValueError unless it is finite and not negative."""
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"learning rate or weight decay factor {number!r} is not a finite number of at least 0")
    return float(np.float32(number))
