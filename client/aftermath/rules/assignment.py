"""Assignment: the sequences that each trainer takes in a round.

The batch is cut by declared weight in the seeded "data" order. Shares always partition the batch,
and each differs from the exact proportion by less than one sequence. The round header and the
Members account determine them.
"""

from __future__ import annotations

from typing import NamedTuple

from aftermath.rules import bitmap, committee
from aftermath.rules.members import Members
from aftermath.rules.run import Config, Round
from aftermath.rules.state import EstablishedOnly


class PositionInterval(NamedTuple):
    """Positions `start` up to but not including `stop` of a round's batch. May be empty."""

    start: int
    stop: int

    @property
    def len(self) -> int:
        return self.stop - self.start


def assign(header: Round, members: Members) -> dict[int, PositionInterval]:
    """Return the share of every seat of the roster, in shuffle order.

    Very small weights get an empty share. So do newcomers while established members train alone.
    """
    in_order = committee.ordered(header, committee.DATA)
    ordered = [seat for seat in in_order if bitmap.contains(header.roster, seat)]
    # While many sequences wait to be trained again, only established members train. Otherwise
    # newcomers that leave their shares undone could fill the backlog, and a round that needs more
    # room in it does not count.
    trainers = members.judges if header.established is EstablishedOnly.TRAIN else header.roster
    weights = [
        members.seats[seat].weight if bitmap.contains(trainers, seat) else 0 for seat in ordered
    ]
    return dict(zip(ordered, cut(header.batch, weights), strict=True))


def cut(batch: int, weights: list[int]) -> list[PositionInterval]:
    """Cut [0, batch) in proportion to the weights.

    Share p ends at floor(batch * (w_0 + ... + w_p) / total).
    """
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
    """Return an interval's sequence indices as ascending ranges, fresh ones last."""
    ranges: list[range] = []
    first = 0
    for piece in header.pieces:
        start = max(interval.start, first)
        stop = min(interval.stop, first + piece.len)
        if start < stop:
            ranges.append(range(piece.start + start - first, piece.start + stop - first))
        first += piece.len
    return ranges


def batch_size(config: Config, data_index: int) -> int:
    """Return the sequences per round after `data_index` fresh ones.

    Linear in tokens from start to end; halves round up.
    """
    start = config.global_batch_size_start
    end = config.global_batch_size_end
    warmup_tokens = config.global_batch_size_warmup_tokens
    tokens = data_index * config.max_seq_len
    if tokens >= warmup_tokens:
        return end
    return start + ((end - start) * tokens * 2 + warmup_tokens) // (2 * warmup_tokens)
