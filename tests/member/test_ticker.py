"""Members tick in the order of the ranking, one step apart and never too early."""

from __future__ import annotations

from pathlib import Path

from aftermath.chain.refusals import refusal
from aftermath.rules.deadlines import TICK_STEP, next_deadline, tick_order
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play

_COARSE = 1.0  # seconds: chain time is whole ones


def _refuse_ticks(sim: SimulatedRun, sim_member: SimMember, tries: dict[int, float]) -> None:
    """Let all ticks of this member fail. `tries` gets the chain time of its first attempt, by
    seat.
    """
    chain = sim_member.chain
    assert chain is not None
    seat = sim.members.find(chain.wallet)
    assert seat is not None

    async def noted() -> None:
        tries.setdefault(seat, chain.now())
        raise refusal("NothingToTick", "no")

    chain.tick = noted  # type: ignore[method-assign]


def test_members_tick_in_ranking_order(tmp_path: Path) -> None:
    """No tick lands, so each member finds that those before it did not tick."""

    async def story(sim: SimulatedRun) -> None:
        for tier in (0, 0, 1, 2):
            sim.add(tier)
        run = await sim.until(
            lambda run: run.state is RunState.WAITING_FOR_MEMBERS and sim.members.pending == 0b1111
        )
        tries: dict[int, float] = {}
        for sim_member in sim.sim_members:
            _refuse_ticks(sim, sim_member, tries)
        deadline = next_deadline(run, sim.members, sim.model)
        order = tick_order(run, sim.members)
        assert deadline is not None
        assert len(order) == 4
        assert order != sorted(order)  # or the test would not tell ranks from seats
        await sim.until(lambda _: len(tries) == len(order))
        assert list(tries) == order
        for rank, seat in enumerate(order):
            assert 0 <= tries[seat] - (deadline + TICK_STEP * rank) <= _COARSE

    play(tmp_path, story, init_min_clients=4, waiting_for_members_extra_time=5)
