"""One rank's part of the error feedback: only this rank holds these blocks and selects from them.

The part is on the rank's device and computed as on a single rank. Tensor names are those of
`optim.state_checks`; the rows are a subset. Both sides know the sizes of the tensors that they
exchange (`RankBlocks`). Exchanges pass through the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.layout import level_layout
from aftermath.optim.moments import Kind
from aftermath.optim.schema import Schema
from aftermath.optim.state_merkle import BlockSpan, block_of, told_of, told_size
from aftermath.parallel.commands import (
    Compress,
    CopyState,
    Directions,
    ForgetState,
    MeasureEnergies,
    ReadState,
    RestoreState,
    StateCommand,
    StateDigests,
)
from aftermath.parallel.feedback_split import Rows, split_blocks
from aftermath.parallel.group import Ranks, as_byte_tensor


class FeedbackPlan:
    """The part of a tier's state that each rank holds, and what commands transfer."""

    def __init__(self, schema: Schema, tier: int, ranks: int) -> None:
        self._results = schema.results
        self.levels = range(tier, schema.results.levels)
        self.held = split_blocks(schema.results, tier, ranks)

    def takes(self, command: StateCommand, rank: int) -> list[Kind]:
        """Return the shapes and types of the tensors that a command sends to a rank."""
        match command:
            case Compress():
                return [
                    (piece.blocks.segment.shape, torch.float32) for piece in self.held[rank].pieces
                ]
            case RestoreState(sent):
                return list(self.state(rank, sent).values())
        return []

    def tells(self, command: StateCommand, rank: int) -> list[Kind]:
        """Return the shapes and types of the tensors that a rank sends back."""
        held = self.held[rank]
        match command:
            case Directions():
                return [
                    ((p.blocks.count, *_edges(p.blocks.edges)), torch.int8) for p in held.pieces
                ]
            case Compress():
                entries = [held.results.entries(level) for level in self.levels]
                return [
                    ((count,), kind) for count in entries for kind in (torch.int16, torch.float32)
                ]
            case MeasureEnergies():
                return [((len(self.levels), 2), torch.float64)]
            case StateDigests(sent):
                size = sum(told_size(*self.span(rank, name)) for name in self.state(rank, sent))
                return [((size,), torch.uint8)]
            case ReadState(name, start, stop):
                first, last = self.overlap(rank, name, start, stop)
                return [((last - first,), torch.uint8)]
            case CopyState(sent):
                return list(self.state(rank, sent).values())
        return []

    def state(self, rank: int, sent: bool) -> dict[str, Kind]:
        """Return the shapes and types of a rank's state, ordered by name."""
        found: dict[str, Kind] = {}
        for (level, group), rows in self.held[rank].rows.items():
            of = level_layout(self._results, level).groups[group]
            found[f"residual.{level}.{group}"] = (rows.count, of.height, of.width), torch.float32
            if sent:
                found[f"indices.{level}.{group}"] = (rows.count, of.topk), torch.int64
                found[f"values.{level}.{group}"] = (rows.count, of.topk), torch.float32
        return dict(sorted(found.items()))

    def rows(self, rank: int, name: str) -> Rows | None:
        """Return which blocks of a tensor a rank holds, if any."""
        level, group = map(int, name.split(".")[1:])
        return self.held[rank].rows.get((level, group))

    def span(self, rank: int, name: str) -> tuple[int, int, int]:
        """Return the first and last byte of a tensor that a rank holds, and the tensor's size."""
        kind, level, group = name.split(".")
        of = level_layout(self._results, int(level)).groups[int(group)]
        row = {
            "residual": of.block * torch.float32.itemsize,
            "indices": of.topk * torch.int64.itemsize,
            "values": of.topk * torch.float32.itemsize,
        }[kind]
        rows = self.rows(rank, name) or Rows(0, 0, 0)
        return rows.first * row, (rows.first + rows.count) * row, of.blocks * row

    def overlap(self, rank: int, name: str, start: int, stop: int) -> tuple[int, int]:
        """Return which of the bytes `start` to `stop` of a tensor a rank holds."""
        own, end, _ = self.span(rank, name)
        first = max(own, start)
        return first, max(first, min(end, stop))


class FeedbackShard:
    """Hold this rank's part of the error feedback and run commands on it."""

    def __init__(self, ranks: Ranks, schema: Schema, tier: int) -> None:
        ranks.reserved = 0  # another replica's state is gone
        self.plan = FeedbackPlan(schema, tier, ranks.size)
        self._rank = ranks.rank
        self._device = ranks.device
        self._held = self.plan.held[ranks.rank]
        blank = {
            piece.blocks.segment.name: torch.empty(piece.blocks.segment.shape, device=ranks.device)
            for piece in self._held.pieces
        }
        whole = schema.state.config.balances
        balanced = {p.blocks.segment.name for p in self._held.pieces if whole(p.part.segment.name)}
        decay = schema.optimizer.decay
        self._sent = False
        """Whether the state includes the last result sent."""
        self._feedback = ErrorFeedback(
            self._held.results, tier, blank, decay, balanced.__contains__
        )

    def perform(self, command: StateCommand, given: Sequence[Tensor]) -> list[Tensor]:
        """Run a command with the tensors that came with it, and return those to send back."""
        feedback = self._feedback
        match command:
            case Directions():
                return [signs.to(torch.int8) for _, signs in feedback.directions()]
            case Compress(factor):
                own = zip(self._held.pieces, given, strict=True)
                tensors = {
                    piece.blocks.segment.name: tensor.to(self._device) for piece, tensor in own
                }
                feedback.choose(PseudoGradient(tensors, factor, 0.0))
                self._sent = True
                return [tensor for level in self.plan.levels for tensor in self._entries(level)]
            case MeasureEnergies():
                found = [
                    feedback.energies(level) if self._held.results.of_level(level) else (0.0, 0.0)
                    for level in self.plan.levels
                ]
                return [torch.tensor(found, dtype=torch.float64)]
            case StateDigests():
                replies = (
                    told_of(tensor, *self._span(name))
                    for name, tensor in self._remembered().items()
                )
                return [as_byte_tensor(b"".join(replies))]
            case ReadState(name, start, stop):
                first, last = self.plan.overlap(self._rank, name, start, stop)
                at = self.plan.span(self._rank, name)[0]
                if first == last:
                    return [as_byte_tensor(b"")]
                return [
                    as_byte_tensor(
                        block_of(self._remembered(), BlockSpan(name, first - at, last - at))
                    )
                ]
            case CopyState():
                return list(self._remembered().values())
            case RestoreState(sent):
                names = self.plan.state(self._rank, sent)
                feedback.restore(
                    {self._own(name): tensor for name, tensor in zip(names, given, strict=True)}
                )
                self._sent = sent
            case ForgetState():
                feedback.reset()
                self._sent = False
        return []

    def remembers(self, name: str) -> bool:
        """Return whether the ranks together hold this tensor now."""
        return self._sent or name.startswith("residual.")

    def _entries(self, level: int) -> tuple[Tensor, Tensor]:
        """Return the index (uint16 bits as int16) and the value of each entry of a level."""
        if not self._held.results.of_level(level):
            return torch.empty(0, dtype=torch.int16), torch.empty(0)
        indices, values = self._feedback.entries(level)
        return torch.from_numpy(indices.view(np.int16)), torch.from_numpy(values)

    def _remembered(self) -> dict[str, Tensor]:
        """Return this rank's part of the state under the names of the whole state."""
        own = self._feedback.remembered()
        return {name: own[self._own(name)] for name in self.plan.state(self._rank, self._sent)}

    def _own(self, name: str) -> str:
        """Return the name of a tensor in this rank's own part of the state."""
        kind, level, _ = name.split(".")
        rows = self.plan.rows(self._rank, name)
        assert rows is not None
        return f"{kind}.{level}.{rows.group}"

    def _span(self, name: str) -> tuple[int, int]:
        start, _, size = self.plan.span(self._rank, name)
        return start, size


def _edges(edges: tuple[int, ...]) -> tuple[int, int]:
    height, width = (1, *edges)[-2:]
    return height, width
