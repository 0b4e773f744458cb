"""The last holder of a level stops while members of smaller tiers continue."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aftermath.member.stake import Stake
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.short_runs import ALONE

_RUN = ALONE | {"rounds_per_epoch": 20, "total_steps": 40}
_GOES_BACK = "of the model go back to the initial model in the next epoch"


def _warned(sim_member: SimMember, levels: str = "levels 0, 1") -> bool:
    text = f"{levels} {_GOES_BACK}"
    return any(text in event["message"] for event in sim_member.saw("warning"))


async def _stop(sim: SimulatedRun, sim_member: SimMember, stakes: list[Stake]) -> None:
    """Stop a member, and add what the run loses with it."""
    lost = await sim.stop(sim_member)
    if lost is not None:
        stakes.append(lost)


@pytest.mark.parametrize(
    ("count", "levels", "names"), [(1, [0, 1], "levels 0, 1"), (2, [0, 1, 2], "levels 0, 1, 2")]
)
def test_stopped_holders_lose_levels_despite_copy(
    tmp_path: Path, count: int, levels: list[int], names: str
) -> None:
    """With two holders, both stop at once. The one that leaves last loses the levels, and level 2
    too: one of its three holders stays.
    """

    async def story(sim: SimulatedRun) -> None:
        large = [sim.add(0) for _ in range(count)]
        small = sim.add(2)
        await sim.until_round(3)
        assert not _warned(small, names)
        stakes: list[Stake] = []
        await asyncio.gather(*(_stop(sim, one, stakes) for one in large))
        assert stakes
        for stake in stakes:
            assert (stake.goes_back, stake.others_continue, stake.levels) == (True, True, levels)
            assert stake.copy is not None
            assert f"{names} {_GOES_BACK}" in stake.lost().message
        await sim.until(lambda _: _warned(small, names))

    play(tmp_path, story, **_RUN | {"init_min_clients": count + 1})


def test_last_holder_saves_only_copy_while_others_stay(tmp_path: Path) -> None:
    async def story(sim: SimulatedRun) -> None:
        large = sim.add(0)
        small = sim.add(2)
        await sim.until_round(3)
        assert large.member is not None
        stake = large.member.stake()
        assert stake is not None
        assert stake.saves_if_it_stays
        await sim.stop(small)
        await sim.until(lambda _: sim.members.healthy.bit_count() == 1)
        await asyncio.sleep(1)
        stake = large.member.stake()
        assert stake is not None
        assert not stake.saves_if_it_stays, "it keeps its seat"

    play(tmp_path, story, **_RUN | {"init_min_clients": 2})


_ALL = "levels 0, 1, 2"
_FEW = "only 1 of 3 holders are left"


async def _three_train(sim: SimulatedRun) -> list[SimMember]:
    members = [sim.add(0) for _ in range(3)]
    await sim.until_round(3)
    return members


def test_second_of_three_is_warned_before_it_leaves(tmp_path: Path) -> None:
    """The last of three holders attests nothing alone, so the second one ends the epoch's steps."""

    async def story(sim: SimulatedRun) -> None:
        first, second, last = await _three_train(sim)
        assert first.member is not None
        assert first.member.stake() is None
        assert await sim.stop(first) is None
        await sim.until(lambda _: sim.members.healthy.bit_count() == 2)
        await asyncio.sleep(1)
        assert second.member is not None
        stake = second.member.stake()
        assert stake is not None
        assert (stake.costs_others, stake.levels) == (True, [0, 1, 2])
        assert f"If this member leaves, {_ALL} {_GOES_BACK}: {_FEW}" in stake.sentence()
        assert not _warned(last, _ALL)
        lost = await sim.stop(second)
        assert lost is not None
        assert lost.copy is not None
        await sim.until(lambda _: _warned(last, _ALL))
        trained = sim.run.trained_steps
        stake = last.member.stake() if last.member is not None else None
        assert stake is not None, "it has the only copy now"
        for sim_member in (first, second):
            sim.start(sim_member)
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.WARMUP)
        assert sim.run.trained_steps >= trained
        assert sim.model.checkpoint_step == 0, "the warning was true"
        await sim.until(lambda _: any("too few members" in one for one in _messages(last)))
        assert not any("no member has the model" in one for one in _messages(last))

    play(tmp_path, story, **_RUN | {"init_min_clients": 3, "min_clients": 1})


def _messages(sim_member: SimMember) -> list[str]:
    return [event["message"] for event in sim_member.saw("warning")]


def test_two_of_three_that_stop_at_once_report_loss(tmp_path: Path) -> None:
    """Each sees the other before it leaves, and sees the loss once both have left."""

    async def story(sim: SimulatedRun) -> None:
        members = await _three_train(sim)
        stakes: list[Stake] = []
        await asyncio.gather(*(_stop(sim, one, stakes) for one in members[:2]))
        assert len(stakes) == 2
        for stake in stakes:
            assert stake.others_continue
            assert stake.copy is not None
            assert f"{_ALL} {_GOES_BACK}, because {_FEW}" in stake.lost().message
        await sim.until(lambda _: _warned(members[2], _ALL))

    play(tmp_path, story, **_RUN | {"init_min_clients": 3})


@pytest.mark.parametrize("saves", [True, False])
def test_first_of_three_that_stop_in_one_second_reports_loss(tmp_path: Path, saves: bool) -> None:
    """It leaves before the loss shows, and learns of the loss before its process ends."""

    async def story(sim: SimulatedRun) -> None:
        sim.saves_checkpoints = saves
        members = [sim.add(0) for _ in range(5)]
        await sim.until_round(3)
        stakes: list[Stake] = []

        async def stop_later(sim_member: SimMember, seconds: float) -> None:
            await asyncio.sleep(seconds)
            await _stop(sim, sim_member, stakes)

        stops = enumerate(members[:3])
        await asyncio.gather(*(stop_later(one, 0.1 * order) for order, one in stops))
        assert len(stakes) == 3
        for stake in stakes:
            assert (stake.levels, stake.steps) == ([0, 1, 2], stakes[0].steps)
            assert "only 2 of 5 holders are left" in stake.lost().message
            assert (stake.copy is not None) is saves

    play(tmp_path, story, **_RUN | {"init_min_clients": 5, "min_round_time": 10})


def test_one_of_three_leaves_without_warning_or_copy(tmp_path: Path) -> None:
    async def story(sim: SimulatedRun) -> None:
        first, *others = await _three_train(sim)
        assert await sim.stop(first) is None
        assert not first.saw("stopped")
        await sim.until(lambda run: run.epoch == 1)
        assert sim.run.levels_attested == 0b111
        assert not any(_GOES_BACK in message for one in others for message in _messages(one))

    play(tmp_path, story, **_RUN | {"rounds_per_epoch": 8, "init_min_clients": 3})


def test_one_of_two_saves_copy_when_it_leaves(tmp_path: Path) -> None:
    """The other one may have been killed without the chain's notice."""

    async def story(sim: SimulatedRun) -> None:
        first, _ = [sim.add(0) for _ in range(2)]
        await sim.until_round(3)
        assert await sim.stop(first) is None
        (stopped,) = first.saw("stopped")
        assert not stopped["continues"]

    play(tmp_path, story, **_RUN | {"init_min_clients": 2})


@pytest.mark.parametrize("saves", [True, False])
def test_lost_steps_count_round_that_closes_after_stop(tmp_path: Path, saves: bool) -> None:
    """All members have attested in the running round, which makes one more step."""

    async def story(sim: SimulatedRun) -> None:
        sim.saves_checkpoints = saves
        members = [sim.add(0), *([sim.add(2)] if saves else [])]
        await sim.until_round(3)
        await sim.until(lambda run: run.current.attestations == len(members))
        trained = sim.run.trained_steps
        lost = await sim.stop(members[0])
        assert lost is not None
        assert lost.steps == trained + 1
        if saves:
            assert members[0].saw("stopped")[0]["step"] == lost.steps
            return
        await sim.tick_to_end_of_epoch()
        assert sim.run.trained_steps == lost.steps

    play(tmp_path, story, **_RUN | {"init_min_clients": 1 + saves, "min_round_time": 10})
