"""The contents of each level at the start of an epoch, and what is lost if the last members leave.

The answers follow from the chain alone, so every member gets the same ones. Messages of members
are not used, because a member may tell each peer something different. While a level is not
attested, the program accepts no checkpoint, so the durable one stays the same until the epoch ends.
"""

from __future__ import annotations

from collections.abc import Set

from aftermath.rules import bitmap
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Run, steps_before
from aftermath.rules.state import MemberState, ModelSource, RunState

UNATTESTED = b"\xff" * 32
"""Hash of a level that was trained and on which its committee did not agree."""
_NO_HASH = bytes(32)


def attested(run: Run) -> dict[int, bytes]:
    """Return the hashes of the levels that are attested on chain."""
    hashes = enumerate(run.level_hashes)
    return {
        level: digest
        for level, digest in hashes
        if run.levels_attested >> level & 1 and digest != _NO_HASH
    }


def expected(run: Run, model: Model, level: int) -> bytes | None:
    """Return the hash of the contents that the epoch begins with, if the chain has it.

    The first checkpoint of a run may have no hash.
    """
    durable = model.checkpoint_hashes[level]
    return attested(run).get(level, durable if durable != _NO_HASH else None)


def begins_from_checkpoint(run: Run, model: Model) -> bool:
    """Return whether the epoch begins with the durable checkpoint's contents at every level."""
    durable = model.checkpoint_hashes
    return all(expected(run, model, level) in (None, durable[level]) for level in range(run.levels))


def unsaved_levels(run: Run, model: Model) -> int:
    """Return the levels that would be lost without their holders, as a bitmap.

    They are attested, and not in the checkpoint. All members begin an unattested level from the
    checkpoint, even if one holds a newer copy.
    """
    return bitmap.from_seats(
        level
        for level in range(run.levels)
        if run.levels_attested >> level & 1
        and run.level_hashes[level] != model.checkpoint_hashes[level]
    )


def unattested(run: Run) -> list[int]:
    """Return the levels that were trained but not attested, and begin with older contents."""
    if run.model_source is not ModelSource.PEERS:
        return []
    known = attested(run)
    return [
        level
        for level, digest in enumerate(run.level_hashes)
        if digest == UNATTESTED and level not in known
    ]


def lost_levels(run: Run) -> list[int]:
    """Return the levels that begin the epoch from the checkpoint although others continue."""
    if run.model_source is not ModelSource.PEERS:
        return []
    older = {level for level in range(run.levels) if run.levels_lost >> level & 1}
    return sorted(older.union(unattested(run)))


def unsaved_steps(run: Run, model: Model) -> int:
    """Return how many of the run's trained steps are not in the checkpoint that the chain names."""
    return max(0, run.trained_steps - steps_before(model.checkpoint_step))


def steps_at_risk(run: Run, model: Model) -> int:
    """Return how many trained steps are in no checkpoint and, as far as the chain shows, not lost.

    An epoch that began from the checkpoint lost all steps between the checkpoint and its start.
    """
    saved = steps_before(model.checkpoint_step)
    if run.model_source is ModelSource.CHECKPOINT and _in_epoch(run):
        saved = max(saved, steps_before(run.start_step))
    return max(0, run.trained_steps - saved)


def levels_without_holder(run: Run, members: Members) -> list[int]:
    """Return the levels whose holders have all left the running epoch, which they began with.

    Empty outside an epoch.
    """
    if not _in_epoch(run):
        return []
    remaining = [members.seats[seat].tier for seat in bitmap.seats(members.healthy)]
    began = [members.seats[seat].tier for seat in bitmap.seats(run.began)]
    return list(range(min(began, default=run.levels), min(remaining, default=run.levels)))


def holders(run: Run, members: Members) -> int:
    """Return the members that can hold the newest contents of their levels, as a bitmap."""
    return members.mask(MemberState.HEALTHY) if _in_epoch(run) else run.finishers


def _in_epoch(run: Run) -> bool:
    return run.state is RunState.WARMUP or run.active


def never_saved(run: Run, model: Model) -> bool:
    """Return whether an epoch has ended and the chain names no checkpoint with trained steps."""
    if not run.trained_steps:  # after a rewind to step 0
        return False
    return steps_before(run.start_step) > 0 and steps_before(model.checkpoint_step) == 0


def sole_levels(run: Run, members: Members, seat: int, reachable: Set[bytes]) -> list[int]:
    """Return the levels whose newest contents only the member of `seat` has.

    `reachable` are the p2p keys of peers that answer: a member that was killed stays healthy on
    chain for a while.
    """
    others = [
        members.seats[other].tier
        for other in bitmap.seats(holders(run, members))
        if other != seat and members.seats[other].p2p in reachable
    ]
    return list(range(members.seats[seat].tier, min(others, default=run.levels)))


def claimed_by_no_other(run: Run, members: Members, seat: int) -> bool:
    """Return whether only the member of `seat` can hold some level of a finished run.

    Other members that finished the last epoch may hold it, reachable or not.
    """
    took_part = bitmap.contains(run.finishers | members.established, seat)
    return took_part and bool(sole_levels(run, members, seat, {one.p2p for one in members.seats}))
