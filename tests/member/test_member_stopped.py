"""The last member of a run is stopped in mid-epoch. It saves the model, and the run resumes
from it.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from aftermath.base.outputs import is_protected
from aftermath.chain.refusals import refusal
from aftermath.member.stake import SAVE_SECONDS
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.disk import Disk
from member.short_runs import ALONE


@pytest.mark.parametrize(
    ("overlap", "later"),
    [
        (1, 1.5),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, 0.0), (0, 1.5), (1, 2.5))),
    ],
)
def test_lone_member_stopped_in_mid_epoch_loses_no_step(
    tmp_path: Path, overlap: int, later: float
) -> None:
    """`later` is the seconds after a round began: before and after the member attested in it."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until_round(2)
        await asyncio.sleep(later)
        await sim.stop(sim_member)
        (stopped,) = sim_member.saw("stopped")
        assert stopped["continues"]
        assert stopped["step"] >= 1
        sim.start(sim_member)
        await sim.until(lambda _: bool(sim_member.saw("waiting")))
        began = sim.now
        (waiting,) = sim_member.saw("waiting", epoch=1)
        await sim.until(lambda run: run.state is RunState.COOLDOWN)
        assert waiting["ends_in"] - 5 < sim.now - began < waiting["ends_in"] + 5
        await sim.until(lambda run: run.epoch == 1)
        assert sim.run.trained_steps == stopped["step"] == sim.model.checkpoint_step - 1
        assert sim.run.state is not RunState.FINISHED
        await sim.until_finished()

    sim = play(
        tmp_path, scenario, **ALONE | {"rounds_per_epoch": 20, "total_steps": 5, "overlap": overlap}
    )
    (sim_member,) = sim.sim_members
    assert not [event for event in sim_member.saw("warning") if "lost" in event["message"]]
    steps = [event["step"] for event in sim_member.saw("applied")]
    assert len(steps) == len(set(steps)), "no step was trained twice"
    sim.record.check_coverage(sim.backlog)


@pytest.mark.parametrize("overlap", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_attestation_on_its_way_at_stop_loses_no_step(tmp_path: Path, overlap: int) -> None:
    """Otherwise it arrives later, and the epoch ends with a step that the saved model lacks."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until_round(2)
        assert sim_member.chain is not None
        rpc = sim_member.chain.rpc
        rpc.send_seconds = 1.0
        await sim.until(lambda _: bool(sim_member.saw("trained", height=2)) and rpc.is_sending)
        assert not sim.run.current.attested
        await sim.stop(sim_member)
        (stopped,) = sim_member.saw("stopped")
        attested = sim.run.round(2)
        assert attested is not None
        assert attested.attested == 1
        sim.start(sim_member)
        await sim.until(lambda run: run.epoch == 1)
        assert sim.run.trained_steps == stopped["step"] == sim.model.checkpoint_step - 1
        assert not sim_member.saw("warning")

    play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 20, "overlap": overlap})


@pytest.mark.parametrize("later", [0.0, 1.5])
def test_wait_resumed_after_deadline_names_its_end(tmp_path: Path, later: float) -> None:
    """Nobody ticked meanwhile. `later`: before and after the member attested in its last round."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until_round(2)
        await asyncio.sleep(later)
        await sim.stop(sim_member)
        await asyncio.sleep(100)
        sim.start(sim_member)
        await sim.until(lambda _: bool(sim_member.saw("waiting")))
        began = sim.now
        (waiting,) = sim_member.saw("waiting", epoch=1)
        assert waiting["ends_in"] > 5
        await sim.until(lambda run: run.state is RunState.COOLDOWN)
        assert waiting["ends_in"] - 5 < sim.now - began < waiting["ends_in"] + 5

    play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 20, "round_witness_time": 20})


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_resumed_member_stopped_before_epoch_ends_loses_no_step(tmp_path: Path, how: str) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until_round(2)
        await sim.stop(sim_member)
        for again in range(2):
            sim.start(sim_member)
            await sim.until(lambda _, past=again: len(sim_member.saw("waiting", epoch=1)) > past)
            if how == "stop":
                await sim.stop(sim_member)
            else:
                await sim.kill(sim_member)
        sim.start(sim_member)
        await sim.until(lambda run: run.epoch == 1)
        stops = sim_member.saw("stopped")
        assert len(stops) == (3 if how == "stop" else 1)
        assert all(stopped["continues"] for stopped in stops)
        assert sim.run.trained_steps == stops[0]["step"] == sim.model.checkpoint_step - 1
        await sim.until_finished()

    sim = play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 20, "total_steps": 5})
    (sim_member,) = sim.sim_members
    assert not [event for event in sim_member.saw("warning") if "lost" in event["message"]]


def test_last_level_holder_saves_copy_when_stopped(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        sim.add(1)
        await sim.until_round(3)
        assert sim_member.member is not None
        stake = sim_member.member.stake()
        assert stake is not None
        assert (stake.levels, stake.saves) == ([0], True)
        await sim.stop(sim_member)
        (stopped,) = sim_member.saw("stopped")
        assert not stopped["continues"]
        assert Path(stopped["path"]).name == f"sim-step{stopped['step']}"
        assert sim_member.saw("left")

    play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 20, "init_min_clients": 2})


@pytest.mark.slow
def test_run_continued_without_saved_steps_is_reported(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until_round(2)
        await sim.stop(sim_member)
        other = sim.add(0)
        await sim.tick_to_end_of_epoch()
        sim.start(sim_member)
        await sim.until_finished()
        assert other.saw("finished")
        (message,) = [
            event["message"]
            for event in sim_member.saw("warning")
            if "only a copy of the model" in event["message"]
        ]
        copy = re.search(r"^(\S+) is a copy of step \d+ that the run does not use", message, re.M)
        assert copy is not None
        assert is_protected(Path(copy[1]))
        assert f'write path = "{copy[1]}" in [model.LLM.checkpoint.Local]' in message

    play(tmp_path, scenario, **ALONE)


@pytest.mark.parametrize("frees_space", [True, False])
def test_stopped_member_with_full_disk_stays_and_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frees_space: bool
) -> None:
    disk = Disk(monkeypatch)
    tries = list[bool]()

    def again(saved: bool) -> bool:
        tries.append(saved)
        disk.full = len(tries) < 3 or not frees_space
        return len(tries) < 4

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until_round(2)
        disk.full = True
        await sim.stop(sim_member, again)
        assert tries == [False] * 3 + [frees_space]
        assert [event["continues"] for event in sim_member.saw("stopped")] == [True] * frees_space
        assert len(sim_member.saw("warning")) == 1

    play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 20})


def test_resumed_member_with_full_disk_records_saved_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is complete already. A later save that fails names it."""
    disk = Disk(monkeypatch)

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until_round(2)
        await sim.stop(sim_member)
        (stopped,) = sim_member.saw("stopped")
        disk.full = True
        sim.start(sim_member)
        await sim.until(lambda run: run.epoch == 1)
        assert sim.model.checkpoint.repo == stopped["path"]
        assert sim.model.checkpoint_step - 1 == stopped["step"]
        assert not sim_member.saw("warning")
        await sim.until(lambda run: run.epoch == 2)
        (warning,) = sim_member.saw("warning")
        assert f"is full; the newest one is {stopped['path']}\nFree some" in warning["message"]

    play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 20})


def test_second_stop_with_full_disk_tries_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    tries = list[bool]()

    def again(saved: bool) -> bool:
        tries.append(saved)
        return True

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until_round(2)
        disk.full = True
        stopping = asyncio.ensure_future(sim.stop(sim_member, again))
        await sim.until(lambda _: len(tries) == 2)
        disk.full = False
        assert sim_member.task is not None
        sim_member.task.cancel()
        await stopping
        assert tries == [False, False, True]
        assert sim_member.saw("stopped")[0]["continues"]

    play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 20})


def test_stopped_member_without_last_results_saves_step_before(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_member, *others = [sim.add(tier) for tier in (0, 1, 1)]
        await sim.until(lambda run: len(sim_member.saw("trained")) == 2)
        for other in others:
            sim.network.cut(sim_member.id, other.id)
        await sim.until_round(3)  # in this round the member applies the results of round 1
        await asyncio.sleep(4)
        began = sim.now
        await sim.stop(sim_member)
        assert sim.now - began < SAVE_SECONDS
        assert len(sim_member.saw("applied")) == 1
        (stopped,) = sim_member.saw("stopped")
        assert stopped["step"] == 1
        place = Path(stopped["path"])
        assert place.name == "sim-step1"
        assert not list(place.parent.glob("*unfinished*")), "no mark to continue from it"
        warnings = [event["message"] for event in sim_member.saw("warning")]
        assert any(
            "cannot fetch the last results" in one and "saves step 1" in one for one in warnings
        )

    play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 20, "init_min_clients": 3})


def test_member_of_run_that_went_back_saves_only_its_own_steps(tmp_path: Path) -> None:
    """Otherwise the checkpoint's model would replace the copy of the lost steps."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until_round(3)
        await sim.kill(sim_member)
        sim.start(sim_member)
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.ROUND_TRAIN)
        lost = sim.run.trained_steps
        assert lost > 0
        assert sim_member.member is not None
        assert sim_member.member.stake() is None
        member = sim_member.member

        def has_two_steps(run: Run) -> bool:
            stake = member.stake()
            return stake is not None and stake.steps == 2

        await sim.until(has_two_steps)
        assert lost + 2 <= sim.run.trained_steps <= lost + 3
        await sim.stop(sim_member)
        names = {Path(event["path"]).name for event in sim_member.saw("stopped")}
        assert names == {f"sim-step{sim_member.saw('stopped')[-1]['step']}"}

    play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 20, "total_steps": 30})


async def _through_full_disk(sim: SimulatedRun, disk: Disk, state: RunState) -> SimMember:
    """Fill the disk from round 2 until epoch 1 is in a state. Return the run's only member."""
    sim_member = sim.add(0)
    await sim.until_round(2)
    disk.full = True
    await sim.until(lambda run: run.epoch == 1 and run.state is state)
    disk.full = False
    return sim_member


@pytest.mark.parametrize("state", [RunState.WAITING_FOR_MEMBERS, RunState.WARMUP])
def test_stop_between_epochs_records_unsaved_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: RunState
) -> None:
    """The disk was full in the cooldown, so no checkpoint has the epoch's steps."""
    disk = Disk(monkeypatch)

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = await _through_full_disk(sim, disk, state)
        assert sim.model.checkpoint_step == 0
        await sim.stop(sim_member)
        (stopped,) = sim_member.saw("stopped")
        assert (stopped["step"], stopped["continues"]) == (3, True)
        assert sim_member.saw("left")
        assert sim.model.checkpoint_step - 1 == 3
        assert sim_member.member is not None
        assert sim_member.member.stake() is None
        sim.start(sim_member)
        await sim.until_finished()
        assert [event["step"] for event in sim_member.saw("applied")] == [1, 2, 3, 4, 5, 6]

    play(tmp_path, scenario, **ALONE)


def test_stop_during_warm_up_hash_check_records_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full in the cooldown, and hashing the replica in warm-up takes a second."""
    disk = Disk(monkeypatch)

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = await _through_full_disk(sim, disk, RunState.WARMUP)
        await asyncio.sleep(0.5)
        assert sim_member.saw("model")[-1]["step"] == 0
        await sim.stop(sim_member)
        (stopped,) = sim_member.saw("stopped")
        assert (stopped["step"], stopped["continues"]) == (3, True)
        assert sim.model.checkpoint_step - 1 == 3

    play(tmp_path, scenario, **ALONE)


def test_stop_between_epochs_tells_if_record_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = await _through_full_disk(sim, disk, RunState.WAITING_FOR_MEMBERS)
        assert sim_member.chain is not None

        async def refused(*_: object) -> None:
            raise refusal("CheckpointPlaceRefused", "no")

        sim_member.chain.checkpoint = refused  # type: ignore[method-assign]
        await sim.stop(sim_member)
        (stopped,) = sim_member.saw("stopped")
        assert not stopped["continues"]
        assert any("does not name" in event["message"] for event in sim_member.saw("warning"))
        assert sim_member.member is not None
        stake = sim_member.member.stake()
        assert stake is not None
        assert (stake.steps, stake.goes_back) == (3, True)

    play(tmp_path, scenario, **ALONE)
