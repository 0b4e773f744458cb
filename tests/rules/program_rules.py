"""Rules that only the program follows, reimplemented to compare with it. Members do not need
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from aftermath.rules import bitmap
from aftermath.rules.committee import WITNESS, order
from aftermath.rules.consensus import consensus
from aftermath.rules.run import MAX_WITNESSES, Attestation, Round

Result = TypeVar("Result")


def elected_count(witness_nodes: int, clients: int) -> int:
    """Return how many of `clients` members witness. 0 witness nodes: as many as possible."""
    return min(witness_nodes or clients, clients, MAX_WITNESSES)


def witness_positions(header: Round) -> list[int]:
    """Return the position in the order of the witnesses of each member that began the epoch, by
    rank.
    """
    positions = [0] * header.began.bit_count()
    for position, rank in enumerate(order(header.seed, WITNESS, len(positions))):
        positions[rank] = position
    return positions


def attested_mask(
    attesting: Round, attestations: Iterable[Attestation], judged: Round, idle: int
) -> int:
    """Return what the program writes to `attesting.attested` when that round closes.

    `judged` is the round that it judges. `idle` is the bitmap of members with an empty share: they
    owe nothing and always count.
    """
    everything = replace(attesting, attested=judged.roster)
    return (
        bitmap.from_seats(consensus(everything, attestations, judged.roster)) | idle & judged.roster
    )


def leading(results: Iterable[Result | None]) -> Result | None:
    """Return the leader of the majority vote (Boyer and Moore) over attestations in this order.

    If most attestations agree, it is their result. Otherwise it depends on the order. None means no
    result.
    """
    leads: Result | None = None
    margin = 0
    for result in results:
        leads = leads if margin else result
        margin += 1 if result == leads else -1
    return leads
