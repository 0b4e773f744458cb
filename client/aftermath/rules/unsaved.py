"""Find what would be lost if a run's last members ended: unsaved steps, and levels with a single
holder.
"""

from __future__ import annotations

from collections.abc import Set

from aftermath.rules import bitmap
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Run, steps_before
from aftermath.rules.state import MemberState, RunState


def unsaved_steps(run: Run, model: Model) -> int:
    """Return how many of the run's trained steps are not in the checkpoint that the chain names."""
    return max(0, run.trained_steps - steps_before(model.checkpoint_step))


def never_saved(run: Run, model: Model) -> bool:
    """Return whether an epoch has ended and the chain names no checkpoint with trained steps."""
    return steps_before(run.start_step) > 0 and steps_before(model.checkpoint_step) == 0


def sole_levels(run: Run, members: Members, seat: int, reachable: Set[bytes]) -> list[int]:
    """Return the levels whose newest contents only the member of `seat` has.

    `reachable` are the p2p keys of peers that answer: a member that was killed stays healthy on
    chain for a while.
    """
    in_epoch = run.state is RunState.WARMUP or run.active
    holders = members.mask(MemberState.HEALTHY) if in_epoch else run.finishers
    others = [
        members.seats[other].tier
        for other in bitmap.seats(holders)
        if other != seat and members.seats[other].p2p in reachable
    ]
    return list(range(members.seats[seat].tier, min(others, default=run.levels)))


def claimed_by_no_other(run: Run, members: Members, seat: int) -> bool:
    """Return whether only the member of `seat` can hold some level of a finished run.

    Other members that finished the last epoch may hold it, reachable or not.
    """
    took_part = bitmap.contains(run.finishers | members.established, seat)
    return took_part and bool(sole_levels(run, members, seat, {one.p2p for one in members.seats}))
