"""Dropped members still fetch the last results, and a last holder saves a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.rules.state import MemberState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.short_runs import ALONE

RULES = ALONE | {"min_clients": 2, "init_min_clients": 3, "rounds_per_epoch": 5, "total_steps": 50}


async def _drop(sim: SimulatedRun, first: int) -> SimMember:
    """Cut off a tier-0 member from round `first` on until the others have dropped it."""
    sim_member = sim.sim_members[0]
    await sim.until_round(first)
    for other in sim.sim_members[1:]:
        sim.network.cut(sim_member.id, other.id)
    seat = sim.members.find(sim_member.wallet)
    assert seat is not None
    await sim.until(lambda _: sim.members.seats[seat].state is MemberState.DROPPED, limit=300)
    return sim_member


@pytest.mark.parametrize(
    ("tiers", "saves"), [((1, 2), True), pytest.param((0, 2), False, marks=pytest.mark.slow)]
)
def test_dropped_last_holder_of_level_saves_copy(
    tmp_path: Path, tiers: tuple[int, ...], saves: bool
) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, *tiers):
            sim.add(tier)
        sim_member = await _drop(sim, first=2)
        await sim.until(lambda _: len(sim_member.saw("joined")) > 1)
        messages = [event["message"] for event in sim_member.saw("warning")]
        copies = [message for message in messages if "this member alone had" in message]
        assert len(copies) == saves, messages
        saved_steps = sorted(
            path.name for path in (tmp_path / "kept" / sim_member.name).glob("sim-step*")
        )
        step = max(event["step"] for event in sim_member.saw("applied"))
        assert saved_steps == [f"sim-step{step}"] * saves
        if saves:
            assert copies[0].startswith(
                f"this member alone had level 0 of the model, and fell out at step {step}"
            )

    play(tmp_path, scenario, **RULES | {"rounds_per_epoch": 20})


def test_dropped_member_still_receives_last_results(tmp_path: Path) -> None:
    """The others drop it in the epoch's last round. It can connect again afterwards."""

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 0, 1):
            sim.add(tier)
        sim_member = await _drop(sim, first=3)
        sim.network.heal()
        await sim.until(lambda run: run.epoch == 1)
        assert max(event["step"] for event in sim_member.saw("applied")) == 5
        assert sim_member.saw("cooldown")
        assert not sim_member.saw("warning")

    play(tmp_path, scenario, **RULES)
