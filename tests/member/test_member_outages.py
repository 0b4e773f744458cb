"""Outages in virtual time: of the chain, of connections, and of slow or silent members."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from aftermath.coordinator.errors import Unavailable
from aftermath.rules.committee import quorum, witnesses
from aftermath.rules.state import RunState
from aftermath.sim.faulty_rpc import FaultyRpc
from aftermath.sim.simulation import SimulatedRun, play
from member.short_runs import SHORT


@pytest.mark.slow
def test_member_without_rpc_for_20_s_returns_next_epoch(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        assert sim_members[2].chain is not None
        sim_members[2].chain.down = True
        await asyncio.sleep(20)
        sim_members[2].chain.down = False
        await sim.until_finished()

    sim = play(tmp_path, scenario, rounds_per_epoch=4, total_steps=8)
    assert sim.check(dropped=[sim.sim_members[2]]) > 0
    assert sim.run.lost_sequences == 0
    assert [e["epoch"] for e in sim.sim_members[2].saw("cooldown")][-1:] == [1]


@pytest.mark.slow
def test_rpc_down_for_all_in_round_and_cooldowns_loses_nothing(tmp_path: Path) -> None:
    """Outages may outlast cooldowns. In a round, one of 14 seconds may already drop a member."""

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_round(2)
        await _outage(sim, 10)
        for epoch in (0, 1):
            await sim.until(
                lambda run, epoch=epoch: run.epoch == epoch and run.state is RunState.COOLDOWN
            )
            await _outage(sim)
            run = await sim.until(lambda run, epoch=epoch: run.epoch == epoch + 1)
            assert run.attested_step == run.step
        await sim.until_finished()

    sim = play(tmp_path, scenario, cooldown_time=10, rounds_per_epoch=3, total_steps=9)
    assert sim.run.attested_step == 10
    for sim_member in sim.sim_members:
        assert {e["source"] for e in sim_member.saw("model")[1:]} == {"its own replica"}, (
            sim_member.name
        )
        assert len(sim_member.saw("applied")) == 9
    assert sim.check() == 36


async def _outage(sim: SimulatedRun, seconds: float = 20) -> None:
    sim.chain.down = True
    await asyncio.sleep(seconds)
    sim.chain.down = False


@pytest.mark.parametrize(
    "outages",
    [
        pytest.param(((0, 14), (3, 11)), marks=pytest.mark.slow),
        pytest.param(((1, 22), (2, 20)), marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_rpc_outage_at_cooldown_end_leaves_model_attested(
    tmp_path: Path, outages: tuple[tuple[int, int], ...]
) -> None:
    """The first member that reaches the chain must not end the cooldown before the others
    attest.
    """

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        for epoch, (after, seconds) in enumerate(outages):
            await sim.until(
                lambda run, epoch=epoch: run.epoch == epoch and run.state is RunState.COOLDOWN
            )
            await asyncio.sleep(after)
            await _outage(sim, seconds)
            run = await sim.until(lambda run, epoch=epoch: run.epoch == epoch + 1)
            assert run.attested_step == run.step
        await sim.until_finished()

    sim = play(tmp_path, scenario, cooldown_time=10, rounds_per_epoch=2, total_steps=6)
    assert sim.check() == 27


@pytest.mark.slow
def test_node_write_outage_costs_little_more_than_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes still answer reads while a warm-up waits for dead members, so members see no outage to
    wait out.
    """
    deaf = [False]
    answer = FaultyRpc.handle_async_request

    async def handled(self: FaultyRpc, request: httpx.Request) -> httpx.Response:
        if deaf[0] and b'"sendTransaction"' in await request.aread():
            return httpx.Response(500, content=b"no")
        return await answer(self, request)

    monkeypatch.setattr(FaultyRpc, "handle_async_request", handled)
    took = []

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 0, 1, 2)]
        await sim.until(
            lambda run: run.state is RunState.WAITING_FOR_MEMBERS and sim.members.pending == 0b1111
        )
        for sim_member in sim_members[2:]:
            await sim.kill(sim_member)
        await sim.until(lambda run: run.state is RunState.WARMUP)
        await asyncio.sleep(50)
        assert sim.run.state is RunState.WARMUP
        deaf[0] = True
        await asyncio.sleep(30)
        deaf[0] = False
        healed = sim.now
        await sim.until(lambda run: run.state.training)
        took.append(sim.now - healed)
        await sim.until(lambda run: run.epoch == 1)

    sim = play(
        tmp_path, scenario, warmup_time=60, min_clients=2, init_min_clients=4, rounds_per_epoch=3
    )
    assert took[0] < 15
    sim.check(dropped=sim.sim_members[2:])


@pytest.mark.slow
def test_grace_after_outage_ends_with_its_state(tmp_path: Path) -> None:
    """The next epoch waits no longer than usual, although the cooldown before waited for all
    members.
    """
    took = []

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        for outage in (0.0, 10.0):
            epoch = sim.run.epoch
            await sim.until(
                lambda run, epoch=epoch: run.epoch == epoch and run.state is RunState.COOLDOWN
            )
            if outage:
                await _outage(sim, outage)
            await sim.until(lambda run: run.state is RunState.WAITING_FOR_MEMBERS)
            began = sim.now
            await sim.until(lambda run: run.state is RunState.WARMUP)
            took.append(sim.now - began)
        await sim.until_finished()

    sim = play(tmp_path, scenario, cooldown_time=40, rounds_per_epoch=2, total_steps=6)
    assert took[1] < took[0] + 5
    sim.check()


@pytest.mark.slow
def test_rpc_down_in_warm_up(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until(lambda run: run.state is RunState.WARMUP)
        await _outage(sim)
        await sim.until_finished()

    assert play(tmp_path, scenario, **SHORT).check() == 24


@pytest.mark.slow
def test_permanent_rpc_outage_ends_members_with_error(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until_round(1)
        sim.chain.down = True
        assert sim_member.task is not None
        (end,) = await asyncio.wait_for(
            asyncio.gather(sim_member.task, return_exceptions=True), 700
        )
        assert sim.now > 600
        assert isinstance(end, Unavailable)
        assert "no Solana RPC endpoint answered" in str(end)
        left_behind = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left_behind
        sim_member.task = None

    play(tmp_path, scenario, min_clients=1, init_min_clients=1)


@pytest.mark.slow
def test_lost_reply_causes_no_second_vote(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        for height in (0, 1, 2):
            await sim.until_round(height)
            for sim_member in sim_members:
                assert sim_member.chain is not None
                sim_member.chain.replies_lost = 1
        await sim.until_finished()

    sim = play(tmp_path, scenario, **SHORT)
    assert sim.check() == 24


@pytest.mark.slow
def test_slow_member_is_awaited(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim.add(0), sim.add(1), sim.add(2, seconds=3.0)
        await sim.until_finished()

    sim = play(tmp_path, scenario, global_batch_size_start=45, global_batch_size_end=45, **SHORT)
    assert sim.check() == 24
    assert len(sim.sim_members[2].saw("trained")) == 6


@pytest.mark.slow
def test_share_of_too_slow_member_is_redone(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim.add(0), sim.add(1), sim.add(2, seconds=25.0)
        await sim.until(lambda run: run.epoch == 1)

    sim = play(tmp_path, scenario, warmup_time=200, max_round_train_time=10)
    slow = sim.sim_members[2]
    assert {sim.members.seats[seat].signer for _, seat in sim.record.dropped} == {
        bytes(seat_key(slow))
    }
    assert sim.run.lost_sequences == 0
    sim.check(dropped=[slow])


def seat_key(sim_member: object) -> bytes:
    return bytes(sim_member.key.pubkey())  # type: ignore[attr-defined]


def test_member_that_never_trains_is_dropped(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until(
            lambda run: run.state is RunState.WAITING_FOR_MEMBERS and sim.members.pending == 0b111
        )
        await sim.kill(sim_members[2])
        await sim.until(lambda run: run.epoch == 1)

    sim = play(tmp_path, scenario, **SHORT)
    assert [epoch for epoch, _ in sim.record.dropped] == [0]
    assert len(sim.sim_members[0].saw("applied")) == 3
    sim.check(dropped=[sim.sim_members[2]])
    assert sim.now_at_end < 120


@pytest.mark.slow
def test_lost_announcements_are_requested_again(tmp_path: Path) -> None:
    """Every second announcement is lost. No member is dropped, and no work is done twice."""

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_round(0)
        turn = [0]

        def loses(sender: bytes, receiver: bytes) -> bool:
            turn[0] += 1
            return turn[0] % 2 == 0

        sim.network.loses = loses
        await sim.until_finished()

    sim = play(tmp_path, scenario, **SHORT)
    assert sim.check() == 24
    assert sim.now_at_end < 100, "what nobody asks for costs a round its whole time"


@pytest.mark.slow
def test_cut_between_two_members_is_bridged_by_third(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(0) for _ in range(4)]
        await sim.until_round(1)
        sim.network.cut(sim_members[0].id, sim_members[1].id)
        await sim.until_round(3)
        sim.network.heal()
        await sim.until_finished()

    sim = play(tmp_path, scenario, rounds_per_epoch=4, total_steps=4)
    assert sim.check() > 0


@pytest.mark.slow
def test_witnesses_reduced_to_quorum_still_decide(tmp_path: Path) -> None:
    """Two of three witnesses are exactly a quorum. All that they attest counts."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 0, 1, 1, 2, 2)]
        run = await sim.until_round(2)
        await asyncio.sleep(0.2)  # until the results of round 1 are revealed
        chosen = witnesses(run.current, sim.members)
        assert (len(chosen), quorum(run.current.elected)) == (3, 2)
        wallet = sim.members.seats[chosen[0]].signer
        lost = next(
            sim_member for sim_member in sim_members if bytes(sim_member.key.pubkey()) == wallet
        )
        await sim.kill(lost)
        lost.events.append({"kind": "killed"})
        await sim.until(lambda run: run.current.height == 3)
        closed = sim.run.round(2)
        assert closed is not None
        assert closed.attestations == 2
        assert closed.attested == closed.roster
        await sim.until(lambda run: run.epoch == 1)

    sim = play(
        tmp_path, scenario, witness_nodes=3, min_clients=3, init_min_clients=6, rounds_per_epoch=4
    )
    sim.check(dropped=[sim_member for sim_member in sim.sim_members if sim_member.saw("killed")])


@pytest.mark.slow
def test_too_few_witnesses_end_epoch_without_drops(tmp_path: Path) -> None:
    """Witnesses that cannot reach the chain are not evidence against other members."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(2)
        for sim_member in sim_members[:2]:
            assert sim_member.chain is not None
            sim_member.chain.down = True
        await sim.until(lambda run: run.draining)
        for sim_member in sim_members[:2]:
            assert sim_member.chain is not None
            sim_member.chain.down = False
        await sim.until_finished()

    sim = play(tmp_path, scenario, total_steps=6)
    assert not sim.record.dropped
    sim.check()
    assert sim.run.lost_sequences == 0


@pytest.mark.slow
def test_late_tier_0_member_takes_over_unheld_level(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in (1, 1, 2):
            sim.add(tier)
        await sim.until_round(1)
        sim.add(0)
        await sim.until_finished()

    sim = play(tmp_path, scenario, **SHORT)
    late = sim.sim_members[3]
    assert len(late.saw("applied")) == 3
    assert sim.model.checkpoint_step == 7
    sim.check()


@pytest.mark.slow
def test_member_absent_at_epoch_end_still_finishes_it(tmp_path: Path) -> None:
    """When it returns, the others have declared new weights. Its rounds must use the old ones."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(4)
        away = sim_members[2].chain
        assert away is not None
        await asyncio.sleep(1)
        away.down = True
        await sim.until(lambda run: {seat.declared for seat in sim.members.seats[:3]} == {60, 90})
        assert sim.run.state is RunState.WAITING_FOR_MEMBERS
        away.down = False
        await sim.until_finished()

    sim = play(tmp_path, scenario)
    late = sim.sim_members[2]
    assert not late.saw("warning")
    assert [e["height"] for e in late.saw("applied", epoch=0)] == [0, 1, 2, 3, 4, 5]
    assert late.saw("model")[1]["source"] == "its own replica"
    assert [e["epoch"] for e in late.saw("cooldown")] == [0, 1]
    assert sim.check() == 42


@pytest.mark.slow
def test_lost_results_are_not_awaited_after_epoch(tmp_path: Path) -> None:
    """The next epoch needs the waiting member, so it must stop waiting."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(4)
        away = sim_members[2]
        assert away.chain is not None
        await asyncio.sleep(1)
        away.chain.down = True
        sim.network.cut(sim_members[0].id, away.id)
        sim.network.cut(sim_members[1].id, away.id)
        await sim.until(
            lambda run: (
                run.state is RunState.WAITING_FOR_MEMBERS and sim.members.pending.bit_count() == 2
            )
        )
        for sim_member in sim_members[:2]:
            await sim.kill(sim_member)
            sim.start(sim_member)
        sim.network.heal()
        away.chain.down = False
        await sim.until_finished()

    sim = play(tmp_path, scenario)
    assert any("no peer has all results" in e["message"] for e in sim.sim_members[2].saw("warning"))
    assert sim.compare(sim.sim_members) > 0
