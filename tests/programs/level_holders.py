"""Epochs in which some members lack, or deny, a level of others' results, for tests of level
holders.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

from aftermath.rules import bitmap
from aftermath.rules.state import RunState
from programs.harness import Snapshot, World
from programs.scenario import Scenario

TIERS = (0, 1, 1, 2, 2, 2, 1)
LIARS = (7, 8)


def begin(run: Scenario, tiers: Mapping[int, int]) -> None:
    """Start an epoch of members of these tiers.

    Stop in the round whose first attestation judges round 0.
    """
    run.train_of(tiers)
    for _ in range(2):
        one_round(run, {})


def established(
    world: World, tiers: tuple[int, ...] = TIERS, rounds: int = 8
) -> tuple[Scenario, dict[int, int]]:
    """Return a run after an epoch in which all members delivered everything."""
    world.load(_established(tiers, rounds))
    return Scenario(world), dict(enumerate(tiers))


@cache
def _established(tiers: tuple[int, ...], rounds: int) -> Snapshot:
    run = Scenario(World()).start(init_min_clients=3, rounds_per_epoch=rounds)
    honest = dict(enumerate(tiers))
    begin(run, honest)
    end(run)
    assert bitmap.from_seats(honest) == run.members.established
    return run.world.snapshot()


def one_round(
    run: Scenario, lacks: Mapping[int, Collection[int]], silent: Collection[int] = ()
) -> None:
    """Let all members that are not silent attest everything except what they lack."""
    height = run.run.current.height
    judged = run.run.round(height - 1)
    roster = judged.roster if judged else 0
    for index in run.elected():
        if index not in silent:
            run.witness(index, roster & ~bitmap.from_seats(lacks.get(index, ()))).ok()
    for seconds in (21, 6):
        if run.run.current.height == height and run.run.state.training:
            run.world.advance(seconds)
            run.tick(1).ok()
    assert run.run.current.height == height + 1 or not run.run.state.training


def end(
    run: Scenario, lacks: Mapping[int, Collection[int]] | None = None, silent: Collection[int] = ()
) -> None:
    """Play the remaining rounds, and a cooldown in which nobody attests."""
    while run.run.state.training:
        one_round(run, lacks or {}, silent)
    run.world.advance(31)
    run.tick(1).ok()
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
