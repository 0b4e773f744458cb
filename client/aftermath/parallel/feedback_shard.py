"""One rank's part of the error feedback: it alone holds these blocks and selects from them.

The part is on the rank's device and computed as on a single rank. Tensor names are those of
`optim.remembered`; the rows are a subset. Both sides know the sizes of what they exchange (`Held`),
and it passes through the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from aftermath.optim.feedback import ErrorFeedback
from aftermath.optim.layout import level_layout
from aftermath.optim.moments import Kind
from aftermath.optim.parts import PseudoGradient
from aftermath.optim.private_blocks import BlockSpan, block_of, told_of, told_size
from aftermath.optim.schema import Schema
from aftermath.parallel.commands import (
    Choose,
    Copy,
    Digests,
    Directions,
    Forget,
    OfState,
    Read,
    Restore,
    Weigh,
)
from aftermath.parallel.feedback_split import Rows, dealt
from aftermath.parallel.group import Ranks, octets


class Plan:
    """What each rank holds of a tier's state, and what an order makes it take and tell."""

    def __init__(self, schema: Schema, tier: int, ranks: int) -> None:
        self._results = schema.results
        self.levels = range(tier, schema.results.levels)
        self.held = dealt(schema.results, tier, ranks)

    def takes(self, order: OfState, rank: int) -> list[Kind]:
        """What comes to a rank."""
        match order:
            case Choose():
                return [
                    (piece.blocks.segment.shape, torch.float32) for piece in self.held[rank].pieces
                ]
            case Restore(sent):
                return list(self.state(rank, sent).values())
        return []

    def tells(self, order: OfState, rank: int) -> list[Kind]:
        """What comes from a rank."""
        held = self.held[rank]
        match order:
            case Directions():
                return [
                    ((p.blocks.count, *_edges(p.blocks.edges)), torch.int8) for p in held.pieces
                ]
            case Choose():
                entries = [held.results.entries(level) for level in self.levels]
                return [
                    ((count,), kind) for count in entries for kind in (torch.int16, torch.float32)
                ]
            case Weigh():
                return [((len(self.levels), 2), torch.float64)]
            case Digests(sent):
                size = sum(told_size(*self.span(rank, name)) for name in self.state(rank, sent))
                return [((size,), torch.uint8)]
            case Read(name, start, stop):
                first, last = self.overlap(rank, name, start, stop)
                return [((last - first,), torch.uint8)]
            case Copy(sent):
                return list(self.state(rank, sent).values())
        return []

    def state(self, rank: int, sent: bool) -> dict[str, Kind]:
        """The tensors of a rank's state, in the order of their names."""
        found: dict[str, Kind] = {}
        for (level, group), rows in self.held[rank].rows.items():
            of = level_layout(self._results, level).groups[group]
            found[f"residual.{level}.{group}"] = (rows.count, of.height, of.width), torch.float32
            if sent:
                found[f"indices.{level}.{group}"] = (rows.count, of.topk), torch.int64
                found[f"values.{level}.{group}"] = (rows.count, of.topk), torch.float32
        return dict(sorted(found.items()))

    def rows(self, rank: int, name: str) -> Rows | None:
        """Which blocks of a tensor are a rank's, if any."""
        level, group = map(int, name.split(".")[1:])
        return self.held[rank].rows.get((level, group))

    def span(self, rank: int, name: str) -> tuple[int, int, int]:
        """From where to where a rank holds a tensor's bytes, and how many it has."""
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
        """Which of these bytes of a tensor a rank holds."""
        own, end, _ = self.span(rank, name)
        first = max(own, start)
        return first, max(first, min(end, stop))


class Shard:
    """What this rank holds, and what it does with it."""

    def __init__(self, ranks: Ranks, schema: Schema, tier: int) -> None:
        ranks.reserved = 0  # what another replica had is gone
        self.plan = Plan(schema, tier, ranks.size)
        self._rank, self._device, self._held = ranks.rank, ranks.device, self.plan.held[ranks.rank]
        blank = {
            piece.blocks.segment.name: torch.empty(piece.blocks.segment.shape, device=ranks.device)
            for piece in self._held.pieces
        }
        whole = schema.state.config.balances
        balanced = {p.blocks.segment.name for p in self._held.pieces if whole(p.part.segment.name)}
        decay = schema.optimizer.decay
        self._sent = False
        """Whether something was sent, so that it is remembered."""
        self._feedback = ErrorFeedback(
            self._held.results, tier, blank, decay, balanced.__contains__
        )

    def perform(self, order: OfState, given: Sequence[Tensor]) -> list[Tensor]:
        """Do what is said with what came; what is told, of the shapes that the plan has."""
        feedback = self._feedback
        match order:
            case Directions():
                return [signs.to(torch.int8) for _, signs in feedback.directions()]
            case Choose(factor):
                own = zip(self._held.pieces, given, strict=True)
                tensors = {
                    piece.blocks.segment.name: tensor.to(self._device) for piece, tensor in own
                }
                feedback.choose(PseudoGradient(tensors, factor, 0.0))
                self._sent = True
                return [tensor for level in self.plan.levels for tensor in self._entries(level)]
            case Weigh():
                found = [
                    feedback.energies(level) if self._held.results.of_level(level) else (0.0, 0.0)
                    for level in self.plan.levels
                ]
                return [torch.tensor(found, dtype=torch.float64)]
            case Digests():
                told = (
                    told_of(tensor, *self._span(name))
                    for name, tensor in self._remembered().items()
                )
                return [octets(b"".join(told))]
            case Read(name, start, stop):
                first, last = self.plan.overlap(self._rank, name, start, stop)
                at = self.plan.span(self._rank, name)[0]
                if first == last:
                    return [octets(b"")]
                return [
                    octets(block_of(self._remembered(), BlockSpan(name, first - at, last - at)))
                ]
            case Copy():
                return list(self._remembered().values())
            case Restore(sent):
                names = self.plan.state(self._rank, sent)
                feedback.restore(
                    {self._own(name): tensor for name, tensor in zip(names, given, strict=True)}
                )
                self._sent = sent
            case Forget():
                feedback.reset()
                self._sent = False
        return []

    def remembers(self, name: str) -> bool:
        """Whether all ranks together hold this tensor now."""
        return self._sent or name.startswith("residual.")

    def _entries(self, level: int) -> tuple[Tensor, Tensor]:
        """Index, as the int16 of the same bits, and value of every entry of a level."""
        if not self._held.results.of_level(level):
            return torch.empty(0, dtype=torch.int16), torch.empty(0)
        indices, values = self._feedback.entries(level)
        return torch.from_numpy(indices.view(np.int16)), torch.from_numpy(values)

    def _remembered(self) -> dict[str, Tensor]:
        """The state, in the order of the names where one rank holds all."""
        own = self._feedback.remembered()
        return {name: own[self._own(name)] for name in self.plan.state(self._rank, self._sent)}

    def _own(self, name: str) -> str:
        """What a tensor is called by the part of the state that is this rank's."""
        kind, level, _ = name.split(".")
        rows = self.plan.rows(self._rank, name)
        assert rows is not None
        return f"{kind}.{level}.{rows.own}"

    def _span(self, name: str) -> tuple[int, int]:
        start, _, size = self.plan.span(self._rank, name)
        return start, size


def _edges(edges: tuple[int, ...]) -> tuple[int, int]:
    height, width = (1, *edges)[-2:]
    return height, width
