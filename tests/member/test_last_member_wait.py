"""Members outside an epoch leave its end to its last member, so that its saved steps are kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aftermath.member import ticker
from aftermath.member.unfinished_epoch import unfinished_path
from aftermath.rules import bitmap, deadlines
from aftermath.rules.state import MemberState, RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.disk import Disk
from member.short_runs import ALONE
from rules.builders import run

_PAIR = ALONE | {"rounds_per_epoch": 20, "total_steps": 12, "init_min_clients": 2}
_NAMES_WAIT = "the last member of epoch 0"


async def _stop_in_turn(sim: SimulatedRun, *, kill: bool = False) -> tuple[SimMember, SimMember]:
    """Stop two members one after the other in epoch 0. Return the first and the last one."""
    first = sim.add(0)
    last = sim.add(0)
    await sim.until_round(2)
    await sim.stop(first)
    trained = sim.run.trained_steps
    await sim.until(lambda run: run.trained_steps > trained)
    await asyncio.sleep(0.5)
    if kill:
        await sim.kill(last)
    else:
        await sim.stop(last)
        assert last.saw("stopped")[0]["continues"]
    return first, last


def _waits(sim_member: SimMember) -> list[str]:
    messages = [event["message"] for event in sim_member.saw("warning")]
    return [message for message in messages if _NAMES_WAIT in message]


def _has_attested(sim: SimulatedRun, sim_member: SimMember) -> bool:
    seat = sim.members.find(sim_member.wallet)
    return seat is not None and bitmap.contains(sim.run.current.attested, seat)


@pytest.mark.parametrize("overlap", [0, 1])
def test_first_member_back_leaves_epoch_to_last_one(tmp_path: Path, overlap: int) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        first, last = await _stop_in_turn(sim)
        saved = last.saw("stopped")[0]["step"]
        sim.start(first)
        await sim.until(lambda _: bool(_waits(first)))
        await asyncio.sleep(300)
        assert (sim.run.epoch, sim.run.trained_steps) == (0, saved)
        sim.start(last)
        await sim.until(lambda run: run.epoch == 1)
        assert (sim.run.trained_steps, sim.run.levels_attested) == (saved, 0b111)
        await sim.until_finished()
        assert len(_waits(first)) == 1
        assert not _waits(last)

    sim = play(tmp_path, scenario, **_PAIR | {"overlap": overlap})
    warnings = [e["message"] for member in sim.sim_members for e in member.saw("warning")]
    assert not [message for message in warnings if "only a copy" in message]
    assert sim.compare(sim.sim_members)
    sim.record.check_coverage(sim.backlog)


def test_first_member_back_stays_when_attested_round_closes(tmp_path: Path) -> None:
    """That round makes a step after the first member came back, and no other round does."""

    async def scenario(sim: SimulatedRun) -> None:
        first = sim.add(0)
        last = sim.add(0)
        await sim.until_round(2)
        await sim.stop(first)
        closed = sim.run.current.height
        await sim.until(lambda run: run.current.height > closed and run.current.attestations == 1)
        await sim.stop(last)
        (stopped,) = last.saw("stopped")
        assert stopped["step"] == sim.run.trained_steps + 1
        sim.start(first)
        await sim.until(lambda _: bool(first.saw("waiting", epoch=1)))
        assert stopped["step"] == sim.run.trained_steps + 1
        sim.start(last)
        await sim.until_finished()
        assert first.saw("finished")
        assert not any(event.get("leaves") for event in first.saw("waiting"))

    play(tmp_path, scenario, **_PAIR | {"min_round_time": 10})


@pytest.mark.parametrize("overlap", [0, 1])
def test_last_member_saves_results_of_member_that_left(tmp_path: Path, overlap: int) -> None:
    """The running round, in which the last member has attested, counts a result of the first."""

    async def scenario(sim: SimulatedRun) -> None:
        first = sim.add(0)
        last = sim.add(0)
        await sim.until_round(3)
        judged = sim.run.current.height
        await sim.until(lambda _: bool(first.saw("trained", height=judged)))
        if overlap:
            await sim.until_round(judged + 1)
        await sim.stop(first)
        running = judged + overlap
        await sim.until(lambda run: run.current.height > running or _has_attested(sim, last))
        assert sim.run.current.height == running
        await sim.stop(last)
        sim.start(first)
        sim.start(last)
        await sim.until(lambda run: run.epoch == 1)
        (applied,) = last.saw("applied", height=judged)
        assert applied["sequences"] == sim.record.settled[0, judged]
        assert applied["results"] == 2
        await sim.until_finished()

    sim = play(tmp_path, scenario, **_PAIR | {"overlap": overlap, "min_round_time": 10})
    assert sim.compare(sim.sim_members)


def test_last_of_three_saves_only_a_copy(tmp_path: Path) -> None:
    """Two members that left still count in the committee, so the last one attests nothing."""

    async def scenario(sim: SimulatedRun) -> None:
        first, second, last = [sim.add(0) for _ in range(3)]
        await sim.until_round(2)
        for sim_member in (first, second):
            trained = sim.run.trained_steps
            await sim.stop(sim_member)
            await sim.until(lambda run, trained=trained: run.trained_steps > trained)
        await sim.stop(last)
        (stopped,) = last.saw("stopped")
        assert not stopped["continues"]
        sim.start(first)
        await sim.until(lambda run: run.epoch == 1, limit=300)
        assert not _waits(first)

    play(tmp_path, scenario, **_PAIR | {"init_min_clients": 3})


@pytest.mark.parametrize(
    ("overlap", "later"),
    [
        (1, 1.0),
        *(
            pytest.param(overlap, later, marks=pytest.mark.slow)
            for overlap, later in ((0, 0.0), (0, 1.0), (0, 2.0), (1, 0.0), (1, 2.0))
        ),
    ],
)
def test_members_stopped_in_same_moment_lose_no_step(
    tmp_path: Path, overlap: int, later: float
) -> None:
    """The member of the highest seat waits for the other one to leave. `later`: after a round
    began, in seconds.
    """

    async def scenario(sim: SimulatedRun) -> None:
        pair = [sim.add(0), sim.add(0)]
        await sim.until_round(3)
        await asyncio.sleep(later)
        await asyncio.gather(*(sim.stop(sim_member) for sim_member in pair))
        stops = [stopped for sim_member in pair for stopped in sim_member.saw("stopped")]
        (stopped,) = [stopped for stopped in stops if stopped["continues"]]
        assert stopped["step"] >= 2
        assert [bool(sim_member.saw("left")) for sim_member in pair].count(True) == 1
        for sim_member in pair:
            sim.start(sim_member)
        await sim.until(lambda run: run.epoch == 1)
        assert (sim.run.trained_steps, sim.run.levels_attested) == (stopped["step"], 0b111)
        await sim.until_finished()

    sim = play(tmp_path, scenario, **_PAIR | {"overlap": overlap, "min_round_time": 3})
    warnings = [e["message"] for member in sim.sim_members for e in member.saw("warning")]
    assert not [message for message in warnings if "lost" in message]
    assert sim.compare(sim.sim_members)


def test_three_members_stopped_in_same_moment_save_copies(tmp_path: Path) -> None:
    """One of three cannot attest alone, so none of them waits for the others."""

    async def scenario(sim: SimulatedRun) -> None:
        members = [sim.add(0) for _ in range(3)]
        await sim.until_round(3)
        await asyncio.gather(*(sim.stop(sim_member) for sim_member in members))
        assert all(sim_member.saw("left") for sim_member in members)
        stops = [stopped for one in members for stopped in one.saw("stopped")]
        assert stops
        for stopped in stops:
            assert not stopped["continues"]
            assert Path(stopped["path"]).is_dir()  # noqa: ASYNC240  # the clock is virtual

    play(tmp_path, scenario, **_PAIR | {"init_min_clients": 3})


def test_members_stopped_while_chain_is_away_lose_no_step(tmp_path: Path) -> None:
    """Neither can leave, so both still have their seats when the chain answers again."""

    async def scenario(sim: SimulatedRun) -> None:
        first = sim.add(0)
        last = sim.add(0)
        await sim.until(lambda _: bool(first.saw("applied", height=1)))
        await sim.until(lambda _: bool(last.saw("applied", height=1)))
        sim.chain.down = True
        await sim.stop(first)
        await asyncio.sleep(1)
        await sim.stop(last)
        (stopped,) = last.saw("stopped")
        assert stopped["continues"]
        assert not first.saw("left")
        sim.chain.down = False
        sim.start(last)
        await sim.until(lambda run: run.epoch == 1)
        assert (sim.run.trained_steps, sim.run.levels_attested) == (stopped["step"], 0b111)
        sim.start(first)
        await sim.until_finished()
        warnings = [event["message"] for event in (*first.saw("warning"), *last.saw("warning"))]
        assert not [message for message in warnings if "lost" in message]

    play(tmp_path, scenario, **_PAIR | {"overlap": 0, "init_min_clients": 1})


def test_copy_saved_while_chain_is_away_counts_as_loss(tmp_path: Path) -> None:
    """The last results cannot be applied, because the chain has the attestations of them."""

    async def scenario(sim: SimulatedRun) -> None:
        first = sim.add(0)
        last = sim.add(0)
        await sim.until_round(3)
        sim.chain.down = True
        await sim.stop(first)
        await asyncio.sleep(1)
        await sim.stop(last)
        (stopped,) = last.saw("stopped")
        assert not stopped["continues"]
        assert last.member is not None
        stake = last.member.stake()
        assert stake is not None
        assert stake.goes_back

    play(tmp_path, scenario, **_PAIR | {"min_round_time": 3})


def test_members_that_share_directory_have_own_marks(tmp_path: Path) -> None:
    unfinished = run(RunState.ROUND_TRAIN)
    paths = {unfinished_path(tmp_path, unfinished, bytes([wallet]) * 32) for wallet in range(3)}
    assert len(paths) == 3


def test_newcomers_do_not_end_epoch_by_joining(tmp_path: Path) -> None:
    """Every join also makes the program perform a due transition."""

    async def scenario(sim: SimulatedRun) -> None:
        first, last = await _stop_in_turn(sim)
        saved = last.saw("stopped")[0]["step"]
        sim.start(first)
        for _ in range(3):
            await asyncio.sleep(100)
            newcomer = sim.add(1)
            await sim.until(lambda _, newcomer=newcomer: bool(_waits(newcomer)))
        assert (sim.run.epoch, sim.run.state.training) == (0, True)
        sim.start(last)
        await sim.until(lambda run: run.epoch == 1)
        assert (sim.run.trained_steps, sim.run.levels_attested) == (saved, 0b111)
        await sim.until_finished()

    play(tmp_path, scenario, **_PAIR)


def test_overdue_cooldown_waits_for_resumed_member(tmp_path: Path) -> None:
    """Someone's tick has begun the cooldown when the last member is back."""

    async def scenario(sim: SimulatedRun) -> None:
        first, last = await _stop_in_turn(sim)
        saved = last.saw("stopped")[0]["step"]
        sim.start(first)
        await sim.until(lambda _: bool(_waits(first)))
        await sim.tick_until(RunState.COOLDOWN)
        await asyncio.sleep(100)
        sim.start(last)
        await sim.until(lambda run: run.epoch == 1)
        assert (sim.run.trained_steps, sim.run.levels_attested) == (saved, 0b111)
        await sim.until_finished()

    play(tmp_path, scenario, **_PAIR)


def test_attested_epoch_without_checkpoint_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the epoch, the member would join without a model."""
    disk = Disk(monkeypatch)

    async def scenario(sim: SimulatedRun) -> None:
        last = sim.add(0)
        await sim.until_round(2)
        disk.full = True
        await sim.until(lambda run: run.state is RunState.COOLDOWN and run.levels_attested == 0b111)
        disk.full = False
        await sim.stop(last)
        (stopped,) = last.saw("stopped")
        assert stopped["continues"]
        other = sim.add(0)
        await asyncio.sleep(100)
        assert sim.run.state is RunState.COOLDOWN
        assert _waits(other)
        sim.start(last)
        await sim.until_finished()
        for sim_member in (last, other):
            messages = [event["message"] for event in sim_member.saw("warning")]
            messages = [message for message in messages if _NAMES_WAIT not in message]
            assert not any("only a copy" in message or "lost" in message for message in messages)

    play(tmp_path, scenario, **ALONE)


def test_wait_for_last_member_ends_after_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last member was killed and never comes back."""
    limit = 400
    for module in (deadlines, ticker):
        monkeypatch.setattr(module, "HOLDERS_WAIT", limit)

    async def scenario(sim: SimulatedRun) -> None:
        first, last = await _stop_in_turn(sim, kill=True)
        stranger = sim.add(0)
        sim.start(first)
        await sim.until(lambda _: bool(_waits(first) and _waits(stranger)))
        began = sim.now
        await sim.until(lambda run: run.epoch == 1)
        assert limit - 60 < sim.now - began < limit + 60, "later states have no wait of their own"
        seat = sim.members.find(last.wallet)
        assert seat is not None
        assert sim.members.seats[seat].state is not MemberState.HEALTHY

    play(tmp_path, scenario, **_PAIR)
