"""The last holder of a level stops while members of smaller tiers continue."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aftermath.member.stake import Stake
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.short_runs import ALONE

_RUN = ALONE | {"rounds_per_epoch": 20, "total_steps": 40}
_GOES_BACK = "levels 0, 1 of the model go back to the initial model in the next epoch"


def _warned(sim_member: SimMember) -> bool:
    return any(_GOES_BACK in event["message"] for event in sim_member.saw("warning"))


async def _stop(sim: SimulatedRun, sim_member: SimMember, stakes: list[Stake]) -> None:
    """Stop a member, and add what the run loses although the member saved a copy."""

    def saved(is_saved: bool) -> bool:
        stake = sim_member.member.stake() if sim_member.member is not None else None
        if is_saved and stake is not None:
            stakes.append(stake)
        return False

    lost_later = await sim.stop(sim_member, saved)
    if lost_later is not None:
        stakes.append(lost_later)


@pytest.mark.parametrize("count", [1, 2])
def test_stopped_holders_lose_levels_despite_copy(tmp_path: Path, count: int) -> None:
    """With two holders, both stop at once. The one that leaves last loses the levels."""

    async def story(sim: SimulatedRun) -> None:
        large = [sim.add(0) for _ in range(count)]
        small = sim.add(2)
        await sim.until_round(3)
        assert not _warned(small)
        stakes: list[Stake] = []
        await asyncio.gather(*(_stop(sim, one, stakes) for one in large))
        assert stakes
        for stake in stakes:
            assert (stake.goes_back, stake.others_continue, stake.levels) == (True, True, [0, 1])
            assert stake.copy is not None
            assert _GOES_BACK in stake.lost().message
        await sim.until(lambda _: _warned(small))

    play(tmp_path, story, **_RUN | {"init_min_clients": count + 1})
