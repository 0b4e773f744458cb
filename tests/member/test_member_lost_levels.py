"""A level's last holder dies: the level returns to the checkpoint, and the run continues."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play

WARNING = "level 0 of the model goes back to the checkpoint of step "


async def _dies_after_attesting(sim: SimulatedRun, sim_member: SimMember, epoch: int) -> None:
    """Let the last holder die when all levels are attested and no checkpoint of that step is
    recorded.
    """
    await sim.until(
        lambda run: (
            run.epoch == epoch and run.state is RunState.COOLDOWN and run.levels_attested == 0b111
        )
    )
    await sim.kill(sim_member)
    assert sim.model.checkpoint_step < sim.run.step


@pytest.mark.slow
@pytest.mark.parametrize(("epoch", "kept_steps"), [(0, 0), (1, 3)])
def test_newcomer_loads_lost_level_from_checkpoint(
    tmp_path: Path, epoch: int, kept_steps: int
) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await _dies_after_attesting(sim, sim_members[0], epoch)
        newcomer = sim.add(0)
        await sim.until(lambda run: bool(newcomer.saw("model")), limit=300)
        # the dead member had asked for the next epoch, which counted it in
        assert sim.run.epoch <= epoch + 2
        await sim.until(lambda run: run.state is RunState.COOLDOWN)
        await sim.until(
            lambda run: run.state is RunState.WAITING_FOR_MEMBERS and run.levels_attested == 0b111
        )
        # Newcomers do not attest a level of an established member that has just left, so this may
        # take another epoch.
        await sim.until(lambda run: sim.model.checkpoint_step == run.step > 0, limit=300)

    sim = play(tmp_path, scenario, rounds_per_epoch=3, total_steps=1000)
    newcomer = sim.sim_members[3]
    assert newcomer.saw("model")[0]["source"] == "peers and the checkpoint"
    for sim_member in sim.sim_members[1:]:
        messages = [
            event["message"]
            for event in sim_member.saw("warning")
            if event["message"].startswith(WARNING)
        ]
        assert messages, sim_member.name
        assert {message[len(WARNING) :].split(":")[0].split()[0] for message in messages} == {
            str(kept_steps)
        }, sim_member.name
    assert sim.compare(sim.sim_members) > 0


@pytest.mark.nightly
def test_run_after_lost_level_keeps_its_pace(tmp_path: Path) -> None:
    """Ten minutes give more than four fifths of the steps of ten undisturbed minutes."""

    async def steps(sim: SimulatedRun, scenario: bool) -> int:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        if scenario:
            await _dies_after_attesting(sim, sim_members[0], 1)
            sim.start(sim_members[0])
        start = sim.run.step
        await asyncio.sleep(600)
        return sim.run.step - start

    counts = []
    for scenario in (False, True):

        async def count_steps(sim: SimulatedRun, scenario: bool = scenario) -> None:
            counts.append(await steps(sim, scenario))

        sim = play(tmp_path / str(scenario), count_steps, total_steps=10_000)
        assert sim.compare(sim.sim_members) > 0
    assert counts[1] > counts[0] * 4 / 5, counts


@pytest.mark.slow
def test_member_without_model_source_leaves_epoch(tmp_path: Path) -> None:
    """The member's disk lacks the rewound checkpoint. The others wait half a warm-up once, not
    every epoch.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2, 2)]
        await _dies_after_attesting(sim, sim_members[0], 1)
        shutil.rmtree(sim.place / "kept" / "m0" / "sim-step6")
        sim.start(sim_members[0])
        start = sim.now, sim.run.step
        await asyncio.sleep(300)
        assert (sim.run.step - start[1]) / (sim.now - start[0]) > 1 / 20
        assert not any(event["t"] > start[0] for event in sim_members[0].saw("model"))

    sim = play(tmp_path, scenario, total_steps=10_000)
    assert any(
        "half of the warm-up's time" in event["message"]
        for event in sim.sim_members[0].saw("warning")
    )
    assert sim.compare(sim.sim_members) > 0


@pytest.mark.slow
def test_run_waits_for_dead_level_holders(tmp_path: Path) -> None:
    """No checkpoint has the dead members' steps. The run continues only if they return or it is
    rewound.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(0), sim.add(1)]
        await sim.until(
            lambda run: (
                run.epoch == 1 and run.state is RunState.COOLDOWN and run.levels_attested == 0b111
            )
        )
        for sim_member in sim_members:
            await sim.kill(sim_member)
        sim.add(1)
        sim.start(sim_members[1])
        start = sim.run.step
        await asyncio.sleep(100)
        await sim.tick_to_end_of_epoch()
        await asyncio.sleep(500)
        assert (sim.run.step, sim.run.state) == (start, RunState.WAITING_FOR_MEMBERS)
        sim.start(sim_members[0])
        await sim.until(lambda run: run.state is RunState.ROUND_TRAIN, limit=500)

    sim = play(
        tmp_path,
        scenario,
        total_steps=10_000,
        min_clients=2,
        init_min_clients=2,
        rounds_per_epoch=3,
    )
    assert sim.compare(sim.sim_members) > 0
