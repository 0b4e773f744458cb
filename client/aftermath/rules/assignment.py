"""Which sequences each trainer takes in a round.

Decided: the batch is cut by declared weight with cumulative rounding, in the seeded "data" order. Every share is
within one sequence of exact, shares partition the batch whatever the weights, and nobody needs to know more than the
round header and the Members account. Positions are re-done sequences first, then fresh ones.

While much waits to be trained again, established members alone train, where they alone witness and others are there:
newcomers that leave shares undone could otherwise fill the room for that, and no round counts that needs more of it.
"""

from __future__ import annotations

from typing import NamedTuple

from aftermath.rules import bitmap, committee
from aftermath.rules.members import Members
from aftermath.rules.run import Config, Round
from aftermath.rules.state import Alone, Committee


class PositionInterval(NamedTuple):
    """Positions `start` up to but not including `stop` of a round's batch. May be empty."""

    start: int
    stop: int

    @property
    def len(self) -> int:
        return self.stop - self.start


def assign(header: Round, members: Members, verification_percent: int) -> dict[int, PositionInterval]:
    """The share of every seat of the roster, in shuffle order; verifiers and very small weights have an empty one, as
    newcomers have where established members train alone.
    """
    roles = committee.roles(header, verification_percent)
    ordered = [seat for seat in committee.ordered(header, committee.DATA) if seat in roles]
    trainers = members.judges if header.established is Alone.TRAIN else header.roster
    trainers &= bitmap.from_seats(seat for seat, role in roles.items() if role is Committee.TRAINER)
    weights = [members.seats[seat].weight if bitmap.contains(trainers, seat) else 0 for seat in ordered]
    return dict(zip(ordered, cut(header.batch, weights), strict=True))


def cut(batch: int, weights: list[int]) -> list[PositionInterval]:
    """Cut [0, batch) in proportion to the weights: share p ends at floor(batch * (w_0 + ... + w_p) / total)."""
    total = sum(weights)
    shares = []
    before = 0
    for weight in weights:
        after = before + weight
        start, stop = (batch * before // total, batch * after // total) if total else (0, 0)
        shares.append(PositionInterval(start, stop))
        before = after
    return shares


def sequences(header: Round, interval: PositionInterval) -> list[range]:
    """The sequence indices behind an interval of positions: ranges that ascend, the last one fresh if any is."""
    ranges, first = [], 0
    for piece in header.pieces:
        start, stop = max(interval.start, first), min(interval.stop, first + piece.len)
        if start < stop:
            ranges.append(range(piece.start + start - first, piece.start + stop - first))
        first += piece.len
    return ranges


def batch_size(config: Config, data_index: int) -> int:
    """Sequences per round after `data_index` fresh ones: linear in tokens from start to end, halves rounded up."""
    start, end = config.global_batch_size_start, config.global_batch_size_end
    warmup_tokens = config.global_batch_size_warmup_tokens
    tokens = data_index * config.max_seq_len
    if tokens >= warmup_tokens:
        return end
    return start + ((end - start) * tokens * 2 + warmup_tokens) // (2 * warmup_tokens)
