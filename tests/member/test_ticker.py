"""Members tick in the order of the ranking, one step apart and never too early."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aftermath.chain.refusals import refusal
from aftermath.rules.committee import witnesses
from aftermath.rules.deadlines import TICK_STEP, next_deadline, tick_order
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play

_COARSE = 1.0  # seconds: the chain's clock counts whole ones


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

    async def scenario(sim: SimulatedRun) -> None:
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
        assert order != sorted(order)  # otherwise the ranking would equal the order of seats
        await sim.until(lambda _: len(tries) == len(order))
        assert list(tries) == order
        for rank, seat in enumerate(order):
            assert 0 <= tries[seat] - (deadline + TICK_STEP * rank) <= _COARSE

    play(tmp_path, scenario, init_min_clients=4, waiting_for_members_extra_time=5)


async def _begin_round_in_outage(sim: SimulatedRun, seconds: float) -> tuple[SimMember, SimMember]:
    """Cut off the member that does not witness round 2, and wait `seconds` into round 3.

    Return that member, which is still cut off from the chain, and the other one.
    """
    for _ in range(2):
        sim.add(0)
    run = await sim.until_round(2)
    (seat,) = witnesses(run.current, sim.members)
    signer = sim.members.seats[seat].signer
    away, other = sorted(sim.sim_members, key=lambda one: bytes(one.key.pubkey()) == signer)
    assert away.chain is not None
    away.chain.down = True
    await sim.until(lambda run: run.current.height == 3)
    await asyncio.sleep(seconds)
    return away, other


@pytest.mark.slow
def test_members_tick_no_audited_cooldown_early(tmp_path: Path) -> None:
    tries: dict[int, float] = {}

    async def scenario(sim: SimulatedRun) -> None:
        for _ in range(5):
            sim.add(0)
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.COOLDOWN)
        for sim_member in sim.sim_members:
            _refuse_ticks(sim, sim_member, tries)
        deadline = sim.run.state_started_at + sim.run.config.cooldown_time
        await sim.until(lambda _: bool(tries))
        assert sim.model.checkpoint_step == sim.run.step
        assert min(tries.values()) >= deadline

    rules = {"verification_percent": 100, "init_min_clients": 5, "min_clients": 3}
    rules |= {"rounds_per_epoch": 4, "total_steps": 12, "waiting_for_members_extra_time": 20}
    play(tmp_path, scenario, **rules)


_TWO = {
    "rounds_per_epoch": 6,
    "total_steps": 12,
    "init_min_clients": 2,
    "min_clients": 1,
    "witness_nodes": 1,
}


def test_grace_after_outage_ends_early_with_quorum(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        away, other = await _begin_round_in_outage(sim, 2)
        _refuse_ticks(sim, other, {})
        assert not sim.run.current.attested
        assert away.chain is not None
        away.chain.down = False
        back = sim.now
        await sim.until(lambda run: run.current.attested != 0)
        assert sim.now - back < 15
        await sim.until(lambda run: run.current.height == 4)
        assert 15 < sim.now - back < 25

    play(tmp_path, scenario, **_TWO | {"min_round_time": 20, "max_round_train_time": 60})


def test_grace_after_outage_without_quorum_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        away, other = await _begin_round_in_outage(sim, 0)
        await sim.kill(other)
        await asyncio.sleep(12)
        assert away.chain is not None

        async def refused(*_: object, **__: object) -> None:
            raise refusal("WrongState", "no")

        away.chain.witness = refused  # type: ignore[method-assign]
        away.chain.down = False
        began = sim.run.state_started_at
        await sim.until(lambda run: run.state_started_at > began)
        assert sim.run.state_started_at - began > 26

    play(tmp_path, scenario, **_TWO | {"max_round_train_time": 20})
    logged = [message for message in caplog.messages if "for their attestations" in message]
    assert len(logged) == 1
