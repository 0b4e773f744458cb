"""Turns: which member ticks a run first, and how long each next one waits.

A seeded ranking gives the order, so one transaction usually suffices. A silent member costs
`TICK_STEP` seconds.
"""

from __future__ import annotations

from aftermath.rules import bitmap, committee
from aftermath.rules.members import Members
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState, RunState

TICK_STEP = 2.0  # seconds
_TICK_RANKS = 15


def tick_order(run: Run, members: Members) -> list[int]:
    """Return the seats that may tick, in order. Each state has a different order, to share fees."""
    if run.state is RunState.WAITING_FOR_MEMBERS:
        mask = members.pending
    else:
        mask = run.current.roster & members.mask(MemberState.HEALTHY)
    candidates = list(bitmap.seats(mask))
    purpose = b"tick" + bytes([run.state]) + run.state_started_at.to_bytes(8, "little")
    return [
        candidates[rank] for rank in committee.order(run.current.seed, purpose, len(candidates))
    ]


def tick_delay(rank: int) -> float:
    """Return the seconds after the deadline at which a rank in `tick_order` tries.

    The delay is bounded, so that one member always tries.
    """
    return TICK_STEP * min(rank, _TICK_RANKS)
