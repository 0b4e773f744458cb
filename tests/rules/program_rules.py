"""Rules that the program alone follows, stated once more to compare it with; members need none of
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from aftermath.rules import bitmap
from aftermath.rules.committee import WITNESS, positions
from aftermath.rules.consensus import consensus
from aftermath.rules.run import MAX_WITNESSES, Attestation, Round

Result = TypeVar("Result")


def elected_count(witness_nodes: int, clients: int) -> int:
    """How many witnesses a round elects among `clients` members; 0 witness nodes means as many as
    fit.
    """
    return min(witness_nodes or clients, clients, MAX_WITNESSES)


def witness_positions(header: Round) -> list[int]:
    """The place in the order of the witnesses of each of those who began the epoch, by rank."""
    return positions(header.seed, WITNESS, header.began.bit_count())


def attested_mask(
    attesting: Round, attestations: Iterable[Attestation], judged: Round, idle: int
) -> int:
    """What the program writes to `attesting.attested` when that round closes.

    `judged` is the round that it judges and `idle` the bitmap of its members whose share was empty:
    they owe nothing and always count.
    """
    everything = replace(attesting, attested=judged.roster)
    return (
        bitmap.from_seats(consensus(everything, attestations, judged.roster)) | idle & judged.roster
    )


def leading(results: Iterable[Result | None]) -> Result | None:
    """What the majority vote over a round's attestations names, in their order (Boyer and Moore):
    what most of them are, if anything is; else what is left by the order. None stands for no
    result.
    """
    leads: Result | None = None
    margin = 0
    for result in results:
        leads = leads if margin else result
        margin += 1 if result == leads else -1
    return leads
