"""The error feedback of a member, divided over its ranks (`optim.error_feedback` on one).

Each rank holds the residual of its blocks on its device and selects from it. The first rank
collects the selected indices and values and encodes a payload that is bit-identical to a single
rank's. The state itself moves only to be saved or copied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from aftermath.optim.codec import encode_groups, encode_level
from aftermath.optim.error_feedback import ErrorFeedback, check_made, follow, measured
from aftermath.optim.interfaces import Measured, PseudoGradient
from aftermath.optim.layout import Part, level_layout
from aftermath.optim.schema import Schema
from aftermath.optim.state_checks import check_state, state_sizes
from aftermath.optim.state_merkle import digests_of_summaries, summary_of
from aftermath.parallel.feedback_split import Rows, parts_of, split_blocks
from aftermath.parallel.group import Ranks, Sharded, as_byte_tensor, on_all_ranks


class ShardedFeedback(Sharded):
    """Make the results of one replica on all ranks. Only the first rank has payloads."""

    def __init__(self, ranks: Ranks, schema_json: bytes, tier: int) -> None:
        """Allocate this rank's part of the state."""
        super().__init__(ranks)
        ranks.reserved = 0  # another replica's state is gone
        schema = Schema.from_json(schema_json)
        config = schema.state.config
        self._format = schema.results
        self._names = frozenset(config.parameter_shapes(tier))
        self._balances = config.balances
        self._layouts = {
            level: level_layout(schema.results, level)
            for level in range(tier, schema.results.levels)
        }
        self._sizes = state_sizes(self._layouts)
        self._rank_blocks = split_blocks(schema.results, tier, ranks.size)
        """Blocks of every rank."""
        own = self._rank_blocks[ranks.rank]
        blank = {
            piece.blocks.segment.name: torch.empty(piece.blocks.segment.shape, device=ranks.device)
            for piece in own.pieces
        }
        balanced = {
            piece.blocks.segment.name
            for piece in own.pieces
            if self._balances(piece.part.segment.name)
        }
        self._feedback = ErrorFeedback(
            own.results, tier, blank, schema.optimizer.decay, balanced.__contains__
        )
        self._own_names = own.state_names()
        self._sent: dict[int, bytes] = {}

    def directions(self) -> Iterator[tuple[Part, Tensor]]:
        """Yield the signs of the residual of all parts."""
        pieces = chain.from_iterable(blocks.pieces for blocks in self._rank_blocks)
        signs = chain.from_iterable(own.values() for own in self._gather_directions())
        return (
            (part, blocks.to(torch.float32))
            for part, blocks in parts_of(zip(pieces, signs, strict=True))
        )

    @on_all_ranks
    def _gather_directions(self) -> list[dict[str, Tensor]]:
        return self.ranks.gather(
            {part.segment.name: signs.to(torch.int8) for part, signs in self._feedback.directions()}
        )

    def go_ahead(self, params: Mapping[str, Tensor], rate: float) -> None:
        """Add -rate times these signs to the parameters."""
        follow(self.directions(), params, rate)

    def compress(self, gradient: PseudoGradient) -> dict[int, bytes]:
        """Add a pseudo-gradient to the residual. Return the payload of each level."""
        check_made(gradient, self._names, self._layouts)
        self._sent = {}
        entries = self._choose(gradient.factor, gradient=gradient)
        for level in self._layouts:
            indices, values = (
                np.concatenate([own[f"{kind}.{level}"].numpy() for own in entries])
                for kind in ("indices", "values")
            )
            self._sent[level] = encode_level(self._format, level, indices.view(np.uint16), values)
        return self.sent()

    @on_all_ranks
    def _choose(
        self, factor: float, *, gradient: PseudoGradient | None = None
    ) -> list[dict[str, Tensor]]:
        """Add `factor` times the pseudo-gradient to the residual. Return the selected entries."""
        pieces = None
        if gradient is not None:
            pieces = [
                {piece.blocks.segment.name: piece.of(gradient) for piece in blocks.pieces}
                for blocks in self._rank_blocks
            ]
        tensors = {
            name: tensor.to(self.ranks.device)
            for name, tensor in self.ranks.scatter(pieces).items()
        }
        self._feedback.choose(PseudoGradient(tensors, factor, 0.0))
        entries: dict[str, Tensor] = {}
        for level in self._layouts:
            indices = np.empty(0, dtype=np.uint16)
            values = np.empty(0, dtype=np.float32)
            if self._holds(level):
                indices, values = self._feedback.entries(level)
            # sent as int16, because gloo does not send uint16
            entries[f"indices.{level}"] = torch.from_numpy(indices.view(np.int16))
            entries[f"values.{level}"] = torch.from_numpy(values)
        return self.ranks.gather(entries)

    def _holds(self, level: int) -> bool:
        """Return whether this rank has blocks of a level."""
        return bool(self._rank_blocks[self.ranks.rank].results.of_level(level))

    def sent(self) -> dict[int, bytes]:
        """Return the last result's payload of each level."""
        return dict(self._sent)

    def measure(self, gradient: PseudoGradient) -> dict[int, Measured]:
        """Return the measurements of each level, from the sums over all ranks."""
        energies = torch.stack([own["energies"] for own in self._gather_energies()]).sum(0).tolist()
        return {
            level: measured(layout, gradient, whole, carried, self._balances)
            for (level, layout), (whole, carried) in zip(
                self._layouts.items(), energies, strict=True
            )
        }

    @on_all_ranks
    def _gather_energies(self) -> list[dict[str, Tensor]]:
        """Gather the energies before and after selection, float64 [levels, 2]."""
        energies = [
            self._feedback.energies(level) if self._holds(level) else (0.0, 0.0)
            for level in self._layouts
        ]
        return self.ranks.gather({"energies": torch.tensor(energies, dtype=torch.float64)})

    @on_all_ranks
    def state_tensors(self) -> dict[str, Tensor]:
        """Return the whole state on the CPU."""
        parts: defaultdict[str, list[Tensor]] = defaultdict(list)
        for own in self.ranks.gather(self._remembered_part()):
            for name, tensor in own.items():
                parts[name].append(tensor)
        return {name: torch.cat(tensors) for name, tensors in parts.items()}

    def _remembered_part(self) -> dict[str, Tensor]:
        """Return this rank's part of the state under the names of the whole state."""
        part = self._feedback.state_tensors()
        return {name: part[own] for name, (own, _) in self._own_names.items() if own in part}

    def state(self) -> dict[str, Tensor]:
        """Return the whole state. It is a copy already."""
        return self.state_tensors()

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each tensor of the state."""
        return dict(self._sizes)

    @on_all_ranks
    def digests(self) -> list[bytes]:
        """Return the digests of the state's blocks. Each rank hashes the blocks that it holds."""
        summaries: dict[str, Tensor] = {}
        for name, tensor in self._remembered_part().items():
            start, _, size = self._span(self.ranks.rank, name)
            summaries[name] = as_byte_tensor(summary_of(tensor, start, size))
        runs: defaultdict[str, list[tuple[int, int, bytes]]] = defaultdict(list)
        for rank, own in enumerate(self.ranks.gather(summaries)):
            for name, data in own.items():
                start, stop, _ = self._span(rank, name)
                runs[name].append((start, stop, data.numpy().tobytes()))
        return [
            digest
            for name in sorted(runs)
            for digest in digests_of_summaries(runs[name], self._sizes[name])
        ]

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Send a result of `state` to the ranks. Raises BadState, and changes nothing, if it does
        not fit this replica exactly.
        """
        sent = check_state(self._layouts, state, self._format.values.lattice_bits)
        self._restore(state=state)
        self._sent = {}
        for level, layout in self._layouts.items() if sent else ():
            names = [f"{level}.{group}" for group in range(len(layout.groups))]
            chosen = [(state[f"indices.{name}"], state[f"values.{name}"]) for name in names]
            self._sent[level] = encode_groups(self._format, level, chosen)

    @on_all_ranks
    def _restore(self, *, state: Mapping[str, Tensor] | None = None) -> None:
        parts = None
        if state is not None:
            parts = [
                {
                    own: state[name].narrow(0, rows.first, rows.count)
                    for name, (own, rows) in blocks.state_names().items()
                    if name in state
                }
                for blocks in self._rank_blocks
            ]
        self._feedback.restore(self.ranks.scatter(parts))

    @on_all_ranks
    def reset(self) -> None:
        """Reset the state of all ranks."""
        self._feedback.reset()
        self._sent = {}

    def _span(self, rank: int, name: str) -> tuple[int, int, int]:
        """Return the first and last byte of a tensor that a rank holds, and the tensor's size."""
        _, level, group = name.split(".")
        size = self._sizes[name]
        row = size // self._layouts[int(level)].groups[int(group)].blocks
        rows = self._rank_blocks[rank].rows.get((int(level), int(group)), Rows(0, 0, 0))
        return rows.first * row, (rows.first + rows.count) * row, size
