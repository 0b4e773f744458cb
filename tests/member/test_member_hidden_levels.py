"""A holder that hides a level from the other holders neither pushes them out nor stretches rounds.

If few holders are witnesses, all witnesses fetch the level. Otherwise a quorum of the drawn holders
must have it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from aftermath.coordinator.errors import Refused
from aftermath.rules import availability
from aftermath.rules.announcements import Commitment, decode_announcement
from aftermath.rules.seal import Reveal
from aftermath.rules.state import RunState
from aftermath.sim.faulty_rpc import NodeFault
from aftermath.sim.sim_member import SimMember
from aftermath.sim.sim_transport import SimTransport
from aftermath.sim.simulation import SimulatedRun, play
from member.dishonest_members import (
    falsify_results,
    hides,
    hides_from,
    never_fetch_from,
    serves_late,
)
from member.short_runs import EITHER_OVERLAP

TIERS = (0, 0, 1, 1, 2, 2, 2)
WITNESSES = 4


def _epoch(place: Path, lie: str, overlap: int) -> SimulatedRun:
    """Run one epoch. Member 0 lies from round 1 on; member 1 also holds level 0 and sometimes
    witnesses.
    """

    async def scenario(sim: SimulatedRun) -> None:
        liar, holder, *_ = [sim.add(tier) for tier in TIERS]
        await sim.until_round(1)
        falsify_results(
            liar, hides(liar, 0) if lie == "from all" else hides_from(liar, 0, [holder])
        )
        await sim.until(lambda run: run.epoch == 1)

    rules = {
        "init_min_clients": len(TIERS),
        "min_clients": WITNESSES,
        "witness_nodes": WITNESSES,
        "overlap": overlap,
    }
    return play(place, scenario, rounds_per_epoch=6, **rules)


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
@pytest.mark.parametrize("lie", ["from the other holder", "from all"])
def test_level_hidden_from_nonwitness_holders_drops_nobody(
    tmp_path: Path, lie: str, overlap: int
) -> None:
    sim = _epoch(tmp_path, lie, overlap)
    liar, *honest = sim.sim_members
    assert sim.compare(honest) > 0
    for sim_member in honest:
        assert [e["epoch"] for e in sim_member.saw("cooldown")] == [0], sim_member.name
        assert not sim_member.saw("warning"), sim_member.name
    assert {sim.members.seats[seat].signer for _, seat in sim.record.dropped} <= {
        bytes(liar.key.pubkey())
    }
    assert sim.run.lost_sequences == 0
    heights = {e["height"] for e in honest[0].saw("applied")}
    assert len(heights) == 6, "the other holder applied all rounds"


def _over(sim: SimulatedRun, height: int) -> bool:
    return sim.run.epoch > 0 or not sim.run.state.training or sim.run.current.height >= height


def _holder_went_through(sim: SimulatedRun) -> bool:
    holder = sim.sim_members[1]
    sim.compare(sim.sim_members[1:])
    return not any("out of this epoch" in e["message"] for e in holder.saw("warning")) and bool(
        holder.saw("cooldown")
    )


@pytest.mark.slow
def test_holder_after_missed_round_fetches_from_attesters(tmp_path: Path) -> None:
    """It had no duty in that round. When it applies the round, it learns who has the level."""

    async def scenario(sim: SimulatedRun) -> None:
        liar, holder, *_ = [sim.add(tier) for tier in TIERS]
        await sim.until_round(1)
        falsify_results(liar, hides_from(liar, 0, [holder]))
        holder.set_node_faults([NodeFault.REFUSES])
        await sim.until(lambda _: _over(sim, 3))
        holder.set_node_faults([NodeFault.GOOD])
        await sim.until(lambda run: run.epoch == 1)

    rules = {
        "init_min_clients": len(TIERS),
        "min_clients": WITNESSES,
        "witness_nodes": WITNESSES,
        "overlap": 0,
    }
    sim = play(tmp_path, scenario, rounds_per_epoch=8, **rules)
    began = {e["height"] for e in sim.sim_members[1].saw("round")}
    assert len(began) < 8, "it missed rounds"
    assert _holder_went_through(sim)


@pytest.mark.slow
def test_replacement_witness_serves_fetched_levels(tmp_path: Path) -> None:
    """The drawn witnesses leave before they attest. Members ask the replacements too."""
    replaced: list[int] = []

    async def scenario(sim: SimulatedRun) -> None:
        liar, holder, *_ = [sim.add(tier) for tier in (0, 0, *[2] * 8)]
        await sim.until_round(1)
        falsify_results(liar, hides_from(liar, 0, [holder]))
        while not sim.run.epoch and sim.run.state.training:
            height = sim.run.current.height
            drawn = _names(sim, availability.drawn(sim.run.current, sim.run, sim.members))
            if height > 1 and not replaced and not drawn & {liar.name, holder.name}:
                replaced.append(height)
                for sim_member in sim.sim_members:
                    if sim_member.name in drawn:
                        await sim.stop(sim_member)
            await sim.until(lambda _, height=height: _over(sim, height + 1))
        await sim.until(lambda run: run.epoch == 1)

    rules = {"init_min_clients": 10, "min_clients": 3, "witness_nodes": 3, "overlap": 0}
    sim = play(tmp_path, scenario, rounds_per_epoch=14, **rules)
    assert replaced
    assert _holder_went_through(sim)


@pytest.mark.slow
def test_late_apply_uses_epoch_start_rules(tmp_path: Path) -> None:
    """In a round in which one of two holders is the only judge, it claims to lack the other's
    level.
    """

    async def scenario(sim: SimulatedRun) -> None:
        liar, holder, *_ = [sim.add(tier) for tier in (0, 0, 2, 2, 2, 2)]
        await sim.until_round(1)
        _denies(liar, holder, sim)
        await sim.until_round(5)
        await asyncio.sleep(1)
        assert holder.chain is not None
        holder.chain.down = True
        sim.pause(True)
        run = await sim.until(lambda run: run.state is RunState.PAUSED)
        assert _names(sim, availability.drawn(run.current, run, sim.members)) >= {liar.name}
        sim.chain.send(
            [sim.ix.update("sim", config=asdict(run.config) | {"witness_nodes": 0})], sim.owner
        )
        holder.chain.down = False
        await asyncio.sleep(30)
        assert holder.saw("cooldown")

    rules = {
        "init_min_clients": 6,
        "min_clients": 3,
        "witness_nodes": 3,
        "overlap": 1,
        "total_steps": 30,
    }
    sim = play(tmp_path, scenario, rounds_per_epoch=12, **rules)
    assert sim.compare(sim.sim_members) > 0


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["silent", "attests"])
def test_early_closed_round_drops_no_other_holder(tmp_path: Path, lie: str) -> None:
    """The liar announces just before the next second, in which it ticks.

    Holders of the level still wait for their own share then, and all other members have attested.
    """

    async def scenario(sim: SimulatedRun) -> None:
        liar, *_ = [sim.add(tier) for tier in (0, 0, 0, *[2] * 8)]
        await sim.until_round(1)
        hide = hides(liar, 0)

        async def tell(commitment: Commitment, transport: SimTransport) -> None:
            await asyncio.sleep((0.75 - sim.now) % 1.0)
            await hide(commitment, transport)

        falsify_results(liar, tell)
        if lie == "silent":
            _attests_nothing(liar)
        while not sim.run.epoch:
            await asyncio.sleep(0.02)
            if sim.run.state is RunState.ROUND_WITNESS:
                with suppress(Refused):  # the tick is too early
                    sim.chain.send([sim.ix.tick("sim")], sim.owner)

    rules = {
        "init_min_clients": 11,
        "min_clients": 2,
        "witness_nodes": 0,
        "overlap": 0,
        "round_witness_time": 1,
    }
    sim = play(
        tmp_path,
        scenario,
        rounds_per_epoch=5,
        global_batch_size_start=22,
        global_batch_size_end=22,
        **rules,
    )
    _, *honest = sim.sim_members
    assert sim.compare(honest) > 0
    for sim_member in honest:
        assert [e["epoch"] for e in sim_member.saw("cooldown")] == [0], sim_member.name
        assert not sim_member.saw("warning"), sim_member.name
    assert {sim.members.seats[seat].signer for _, seat in sim.record.dropped} <= {
        sim.sim_members[0].wallet
    }


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
def test_hidden_level_with_few_witnesses_delays_two_rounds(tmp_path: Path, overlap: int) -> None:
    """Three of eleven members witness each round. The next witnesses know whom the last ones
    missed.
    """
    took: list[float] = []

    async def scenario(sim: SimulatedRun) -> None:
        liar, *_ = [sim.add(tier) for tier in (0, 0, *[2] * 9)]
        await sim.until_round(1)
        falsify_results(liar, hides(liar, 0))
        while not sim.run.epoch and sim.run.state.training:
            began = sim.now
            height = sim.run.current.height
            await sim.until(lambda _, height=height: _over(sim, height + 1))
            took.append(sim.now - began)
        await sim.until(lambda run: run.epoch == 1)

    rules = {"init_min_clients": 11, "min_clients": 3, "witness_nodes": 3, "overlap": overlap}
    rules |= {
        "max_round_train_time": 15,
        "global_batch_size_start": 22,
        "global_batch_size_end": 22,
    }
    sim = play(tmp_path, scenario, rounds_per_epoch=8, **rules)
    assert sim.compare(sim.sim_members[1:]) > 0
    assert len(took) >= 6
    assert sum(seconds > 0.7 * 15 for seconds in took) <= 2, took


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
def test_holder_applies_all_rounds_after_other_holder_dies(tmp_path: Path, overlap: int) -> None:
    """One of three holders has decoded a result that another lacks. The third claims to have it and
    serves nothing.
    """

    async def scenario(sim: SimulatedRun) -> None:
        liar, holder, dies, *_ = [sim.add(tier) for tier in (0, 0, 0, *[2] * 8)]
        await sim.until_round(2)
        hidden = set[bytes]()
        heights = set[int]()
        ends = list[asyncio.Future[None]]()
        assert holder.transport is not None
        for other in (liar, dies):
            never_fetch_from(holder.transport, other.id, hidden)
        transport = dies.transport
        assert transport is not None
        announce = transport.announce

        async def ended() -> None:
            await asyncio.sleep(0.05)
            await sim.kill(dies)

        async def announced(data: bytes) -> None:
            announcement = decode_announcement(data)
            if isinstance(announcement, Commitment):
                hidden.add(announcement.levels[0].blake3)
                heights.add(announcement.height)
            await announce(data)
            if isinstance(announcement, Reveal) and announcement.height in heights and not ends:
                ends.append(asyncio.ensure_future(ended()))

        transport.announce = announced  # type: ignore[method-assign]
        await sim.until(lambda run: run.epoch == 1)
        assert ends

    rules = {
        "init_min_clients": 11,
        "min_clients": 2,
        "witness_nodes": 0,
        "overlap": overlap,
        "round_witness_time": 1,
    }
    rules |= {
        "max_round_train_time": 15,
        "global_batch_size_start": 22,
        "global_batch_size_end": 22,
    }
    sim = play(tmp_path, scenario, rounds_per_epoch=5, **rules)
    _, holder, dies, *_ = sim.sim_members
    assert sim.compare([sim_member for sim_member in sim.sim_members if sim_member is not dies]) > 0
    assert [e["height"] for e in holder.saw("applied", epoch=0)] == [*range(5)]
    assert dies.wallet in {sim.members.seats[seat].signer for _, seat in sim.record.dropped}


@pytest.mark.parametrize("overlap", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_level_with_one_slow_holder_delays_nobody(tmp_path: Path, overlap: int) -> None:
    """The only holder's slow connection cannot serve the level. Witnesses attest without its
    results.
    """

    async def scenario(sim: SimulatedRun) -> None:
        alone, *_ = [sim.add(tier) for tier in (0, *[2] * 6)]
        await sim.until_round(1)
        falsify_results(alone, serves_late(alone, 0, 40.0))
        await sim.until(lambda run: run.epoch == 1)

    rules = {"init_min_clients": 7, "min_clients": 3, "witness_nodes": 3, "overlap": overlap}
    rules |= {
        "max_round_train_time": 15,
        "global_batch_size_start": 14,
        "global_batch_size_end": 14,
    }
    sim = play(tmp_path, scenario, rounds_per_epoch=5, **rules)
    assert sim.compare(sim.sim_members) > 0
    assert sim.run.lost_sequences == 0
    assert {e["results"] for e in sim.sim_members[1].saw("applied", epoch=0)} == {7}


def _attests_nothing(sim_member: SimMember) -> None:
    assert sim_member.chain is not None

    async def witness(*_: object, **__: object) -> None:
        return

    sim_member.chain.witness = witness  # type: ignore[method-assign]


def _denies(liar: SimMember, victim: SimMember, sim: SimulatedRun) -> None:
    assert liar.member is not None
    results = liar.member._results
    attestable = results.attestable

    def lacking(height: int) -> dict[int, bytes]:
        return {
            seat: d
            for seat, d in attestable(height).items()
            if sim.members.seats[seat].signer != victim.wallet
        }

    results.attestable = lacking  # type: ignore[method-assign]


def _names(sim: SimulatedRun, seats: tuple[int, ...]) -> set[str]:
    wallets = {sim.members.seats[seat].signer for seat in seats}
    return {sim_member.name for sim_member in sim.sim_members if sim_member.wallet in wallets}
