"""Members in virtual time join, train, leave and pause. Replicas stay equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.rules.state import RunState
from aftermath.sim.simulation import SimulatedRun, play
from member.short_runs import SHORT


def test_three_tiers_train_to_the_end(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_finished()

    sim = play(tmp_path, scenario)
    assert sim.run.lost_sequences == 0
    assert not sim.run.backlog
    assert sim.check() == 42
    first = sim.sim_members[0].saw("trained")[0]
    last = sim.sim_members[0].saw("trained")[-1]
    assert last["loss"] < first["loss"]
    assert sim.sim_members[0].saw("checkpoint")
    for sim_member in sim.sim_members:
        assert len(sim_member.saw("applied")) == 12, sim_member.name
        assert not sim_member.saw("warning"), sim_member.name
        assert sim_member.saw("finished")


def test_late_joiner_loads_model_from_peers(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_round(1)
        sim.add(0)
        await sim.until_finished()

    sim = play(tmp_path, scenario, **SHORT)
    late = sim.sim_members[3]
    assert [event["source"] for event in late.saw("model")] == ["peers"]
    assert len(late.saw("applied")) == 3
    assert sim.check() == 36


def test_killed_member_is_dropped_and_its_share_redone(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        await sim.kill(sim_members[1])
        await sim.until(lambda run: run.state is RunState.COOLDOWN)
        sim.start(sim_members[1])
        await sim.until_finished()

    sim = play(tmp_path, scenario, **SHORT)
    assert any(sim_member.saw("dropped") for sim_member in sim.sim_members)
    assert "peers" in [event["source"] for event in sim.sim_members[1].saw("model")]
    assert sim.run.lost_sequences == 0
    assert sim.check(dropped=[sim.sim_members[1]]) == 16


def test_pause_and_resume_keeps_replicas(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_round(1)
        sim.pause(True)
        paused = await sim.until(lambda run: run.state is RunState.PAUSED)
        assert paused.epoch == 1
        for sim_member in sim.sim_members:
            await sim.until(
                lambda _, p=sim_member: any(
                    "is paused" in event["message"] for event in p.saw("warning")
                )
            )
        sim.pause(False)
        await sim.until_finished()

    sim = play(tmp_path, scenario, **SHORT)
    for sim_member in sim.sim_members:
        assert [e["source"] for e in sim_member.saw("model")][1:] == ["its own replica"] * 2, (
            sim_member.name
        )
    assert sim.check() == 27


@pytest.mark.slow
def test_pause_in_warm_up_keeps_replicas(tmp_path: Path) -> None:
    """The second epoch's warm-up is paused and repeated. The run must not return to the
    checkpoint.
    """

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.WARMUP)
        sim.pause(True)
        assert sim.run.state is RunState.PAUSED
        sim.pause(False)
        await sim.until_finished()

    sim = play(tmp_path, scenario, **SHORT)
    for sim_member in sim.sim_members:
        assert {e["source"] for e in sim_member.saw("model")[1:]} == {"its own replica"}, (
            sim_member.name
        )
    assert sim.check() == 24


@pytest.mark.slow
def test_all_members_leaving_in_warm_up_can_return(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until(lambda run: run.state is RunState.WARMUP)
        for sim_member in sim_members:
            await sim.stop(sim_member)
        await sim.until(lambda run: run.state is RunState.WAITING_FOR_MEMBERS, limit=5)
        for sim_member in sim_members:
            sim.start(sim_member)
        await sim.until_finished()

    sim = play(tmp_path, scenario, **SHORT)
    assert sim.check() == 24
    assert sim.run.lost_sequences == 0


@pytest.mark.slow
def test_leaving_in_warm_up_costs_no_other_replica(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.WARMUP)
        await sim.stop(sim_members[2])
        await sim.until(lambda run: run.state is RunState.WAITING_FOR_MEMBERS, limit=5)
        sim.start(sim_members[2])
        await sim.until_finished()

    sim = play(tmp_path, scenario, min_clients=3, **SHORT)
    for sim_member in sim.sim_members[:2]:
        assert {e["source"] for e in sim_member.saw("model")[1:]} == {"its own replica"}, (
            sim_member.name
        )
    assert sim.sim_members[2].saw("model")[-1]["source"] == "peers"
    assert sim.check() == 24


def test_all_members_killed_resume_from_durable_checkpoint(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1, epoch=1)
        for sim_member in sim_members:
            await sim.kill(sim_member)
        for sim_member in sim_members:
            sim.start(sim_member)
        await sim.until_round(0, epoch=2)
        for sim_member in sim_members:
            assert sim_member.saw("model")[-1]["source"] == "the checkpoint"
        durable = sim.model
        assert durable.checkpoint_step == 4
        assert durable.checkpoint.repo == str(sim.place / "kept" / "m0" / "sim-step3")
        assert durable.checkpoint_hashes == sim.run.level_hashes
        assert (
            durable.checkpoint_hashes[0].hex() == sim_members[0].saw("cooldown")[0]["hashes"]["0"]
        )
        await sim.until_finished()

    sim = play(tmp_path, scenario, **SHORT)
    assert sim.run.lost_sequences == 0
    sim.check()


def test_member_leaves_and_others_continue(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        await sim.stop(sim_members[0])
        await sim.until(lambda run: run.state is RunState.COOLDOWN)
        sim.start(sim_members[0])
        await sim.until_finished()

    sim = play(tmp_path, scenario, **SHORT)
    assert sim.sim_members[0].saw("left")
    assert not sim.record.dropped
    sim.check()
    assert sim.run.lost_sequences == 0
