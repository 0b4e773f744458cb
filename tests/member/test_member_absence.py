"""Members that leave at a bad moment, such as a round's witness or a holder in cooldown."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from aftermath.chain.refusals import refusal
from aftermath.member.round_plan import RoundPlan
from aftermath.member.rounds.announce import Announcing
from aftermath.optim.engine import Trained
from aftermath.rules.committee import witnesses
from aftermath.rules.run import Run
from aftermath.rules.state import ExitReason, ModelSource, RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from aftermath.sim.virtual_time import hold_up
from member.short_runs import ALONE, EITHER_OVERLAP


def _witness(sim: SimulatedRun) -> SimMember:
    """Return the only witness of the running round."""
    (seat,) = witnesses(sim.run.current, sim.members)
    wallet = sim.members.seats[seat].signer
    return next(
        sim_member for sim_member in sim.sim_members if bytes(sim_member.key.pubkey()) == wallet
    )


@pytest.mark.parametrize("leavers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_leaving_witness_does_not_delay_round(tmp_path: Path, leavers: int) -> None:
    """The next in line attests at once, not when the round's time is up."""

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 0, 1, 2):
            sim.add(tier)
        await sim.until_round(2)
        for _ in range(leavers):
            await sim.stop(_witness(sim))
        left = sim.now
        run = await sim.until(lambda run: run.current.height == 3)
        assert sim.now - left < 15
        assert run.round(2).attestations == 1  # type: ignore[union-attr]
        run = await sim.until(lambda run: run.state is RunState.COOLDOWN)
        assert run.exit_reason is ExitReason.ROUNDS_PER_EPOCH

    sim = play(
        tmp_path,
        scenario,
        witness_nodes=1,
        max_round_train_time=100,
        init_min_clients=4,
        rounds_per_epoch=4,
    )
    assert sim.compare(sim.sim_members) > 0
    assert not sim.record.dropped


def test_leaving_witness_in_warm_up_delays_nobody(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 0, 1, 2):
            sim.add(tier)
        await sim.until(lambda run: run.state is RunState.WARMUP)
        began = sim.now
        await sim.stop(_witness(sim))
        await sim.until_round(1)
        assert sim.now - began < 40

    play(tmp_path, scenario, witness_nodes=1, warmup_time=100, init_min_clients=4)


def test_death_in_warm_up_drops_member_after_first_round(tmp_path: Path) -> None:
    """The first round shows it on chain. The other members train its sequences again."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 0, 1, 2)]
        await sim.until(lambda run: run.state is RunState.WARMUP)
        began = sim.now
        await sim.kill(sim_members[1])
        await sim.until_round(0)
        assert sim.now - began < 30, "the others do not wait for it all through the warm-up"
        await sim.until_round(3)
        assert [epoch for epoch, _ in sim.record.dropped] == [0]
        await sim.until(lambda run: run.epoch == 1)

    sim = play(tmp_path, scenario, warmup_time=100, init_min_clients=4, rounds_per_epoch=4)
    assert sim.check(dropped=[sim.sim_members[1]]) > 0
    assert sim.run.lost_sequences == 0


def test_refused_attestation_is_retried_with_backoff(tmp_path: Path) -> None:
    """The wallet cannot pay. A round takes 20 seconds and a warm-up 60."""

    async def refused(*_: object, **__: object) -> None:
        raise refusal("InsufficientFunds", "the wallet is empty")

    async def scenario(sim: SimulatedRun) -> None:
        poor, *_ = [sim.add(tier) for tier in (0, 1, 2)]
        assert poor.chain is not None
        poor.chain.witness = poor.chain.warmup_witness = refused  # type: ignore[method-assign]
        await sim.until(lambda run: run.epoch == 1)

    sim = play(
        tmp_path,
        scenario,
        min_clients=3,
        max_round_train_time=20,
        round_witness_time=10,
        warmup_time=60,
        rounds_per_epoch=3,
    )
    message_counts = Counter(
        event["message"]
        for event in sim.sim_members[0].saw("warning")
        if "was refused" in event["message"]
    )
    assert len(message_counts) == 5, "of the warm-up and of four rounds"
    assert max(message_counts.values()) <= 6


@pytest.mark.slow
def test_holder_dying_in_cooldown_leaves_model_attested(tmp_path: Path) -> None:
    """The other holder of level 0 attests it, so no level returns to the checkpoint."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 0, 1, 2)]
        await sim.until(lambda run: run.state is RunState.COOLDOWN)
        await sim.kill(sim_members[1])
        run = await sim.until(lambda run: run.epoch == 1)
        assert (run.model_source, run.levels_attested, run.attested_step) == (
            ModelSource.PEERS,
            0b111,
            run.step,
        )
        await sim.until(lambda run: run.epoch == 2)
        assert sim.model.checkpoint_step == sim.run.step

    sim = play(tmp_path, scenario, init_min_clients=3, rounds_per_epoch=3, total_steps=100)
    for sim_member in (sim.sim_members[0], *sim.sim_members[2:]):
        assert [event["source"] for event in sim_member.saw("model")] == [
            "the checkpoint",
            "its own replica",
        ], sim_member.name
    assert sim.check(dropped=[sim.sim_members[1]]) > 0


@pytest.mark.slow
def test_level_lost_before_checkpoint_does_not_block_run(
    tmp_path: Path,
) -> None:
    """A new holder starts from the checkpoint, because no member has the newest weights of
    level 0.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim.upload_seconds = 1e6
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until(lambda run: run.state is RunState.COOLDOWN and run.levels_attested == 0b111)
        assert sim_members[0].chain is not None

        async def refused(*_: object) -> None:
            raise refusal("CheckpointPlaceRefused", "no")

        sim_members[0].chain.checkpoint = refused  # type: ignore[method-assign]
        await sim.stop(sim_members[0])
        late = sim.add(0)
        await sim.until(lambda run: bool(late.saw("applied")), limit=600)
        assert [event["source"] for event in late.saw("model")] == ["peers and the checkpoint"]
        assert sim.model.checkpoint_step == 0 < sim.run.step
        await sim.until_finished()

    assert (
        play(tmp_path, scenario, init_min_clients=2, rounds_per_epoch=3, total_steps=9).check() > 0
    )


@pytest.mark.slow
def test_newcomer_reports_wait_for_absent_holder_once(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        first = sim.add(0)
        await sim.until_round(1, epoch=1)
        await sim.kill(first)
        second = sim.add(0)

        def waits() -> list[str]:
            messages = [event["message"] for event in second.saw("warning")]
            return [message for message in messages if message.startswith("the run waits for ")]

        await sim.until(lambda run: bool(waits()))
        await asyncio.sleep(600)
        (message,) = waits()
        assert "an absent member that trained before (after 24 hours, any member)" in message
        assert "aftermath-solana rewind --run-id" in message

    play(tmp_path, scenario, **{**ALONE, "total_steps": 60})


@pytest.mark.slow
def test_stall_of_all_members_drops_nobody(tmp_path: Path) -> None:
    """A member without a share must not have the others dropped: it would be alone, without the
    model.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2, 2)]
        idle = sim_members[3].member
        assert idle is not None
        idle._joining.weight = 1
        for height in range(1, 12):
            await sim.until_round(height)
            await asyncio.sleep(0.1)
            plan = idle._results.plan(height)
            if plan is not None and idle.seat not in plan.owing:
                break
        _all_take(sim_members, 16.0)
        stalled = await sim.until_round(height + 1)
        _all_take(sim_members, 1.0)
        await sim.until(lambda run: run.epoch > 0 or run.step >= stalled.step + 3)
        assert (sim.run.epoch, sim.run.lost_sequences) == (0, 0)
        assert all(
            sim_member.saw("witnessed", height=height, held=0, sent=True)
            for sim_member in sim_members
        )
        await sim.until_finished()

    batch = {"global_batch_size_start": 10, "global_batch_size_end": 10}
    sim = play(
        tmp_path,
        scenario,
        overlap=0,
        max_round_train_time=15,
        init_min_clients=4,
        rounds_per_epoch=12,
        **batch,
    )
    assert not sim.record.dropped
    assert sim.check() > 0


@pytest.mark.slow
def test_member_attesting_its_withheld_share_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this member owes a result in a round of one sequence. The first time, that looks like a
    stall of all.
    """
    announce = Announcing.announce
    withheld: list[int] = []

    async def scenario(sim: SimulatedRun) -> None:
        _, _, _, sly = [sim.add(tier) for tier in (0, 1, 2, 2)]

        async def announced_by_others(
            announcing: Announcing, plan: RoundPlan, trained: Trained
        ) -> None:
            if sly.member is not None and announcing.epoch.start.seat == sly.member.seat:
                withheld.append(plan.header.height)
            else:
                await announce(announcing, plan, trained)

        monkeypatch.setattr(Announcing, "announce", announced_by_others)
        await sim.until(lambda run: run.epoch == 1)

    long = {"global_batch_size_start": 1, "global_batch_size_end": 1, "total_steps": 100}
    sim = play(
        tmp_path,
        scenario,
        overlap=0,
        max_round_train_time=15,
        init_min_clients=4,
        rounds_per_epoch=24,
        **long,
    )
    assert len(withheld) == 2, "excused once, dropped the next time"
    assert len(sim.record.dropped) == 1
    assert sim.check(dropped=[sim.sim_members[3]]) > 0


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
def test_round_finishes_when_all_suspended_members_resume(tmp_path: Path, overlap: int) -> None:
    """Only the sole holder of level 0 has not delivered yet. It gets its time and is not
    dropped.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim.detects_stalls = True
        slow, *quick = [sim.add(tier, seconds) for tier, seconds in ((0, 1.0), (1, 0.2), (2, 0.2))]
        for stopped in (30.0, 11.0, 13.0, 90.0):
            height = (await sim.until(lambda run: _waits_for(run, slow, quick))).current.height
            hold_up(stopped)
            await sim.until(lambda run, height=height: run.current.height > height)
            assert slow.saw("trained", height=height)
        run = await sim.until(lambda run: run.epoch > 0)
        assert (run.lost_sequences, run.levels_lost, run.backlog) == (0, 0, 0)

    batch = {"global_batch_size_start": 12, "global_batch_size_end": 12}
    sim = play(
        tmp_path,
        scenario,
        overlap=overlap,
        max_round_train_time=12,
        rounds_per_epoch=24,
        total_steps=100,
        **batch,
    )
    assert not sim.record.dropped
    assert not [
        event for event in sim.sim_members[0].saw("warning") if "too slow" in event["message"]
    ]
    assert sim.check() > 0


def _waits_for(run: Run, slow: SimMember, quick: Sequence[SimMember]) -> bool:
    """Return whether the round waits only for `slow`, because the `quick` have trained."""
    assert slow.member is not None
    height = run.current.height
    plan = slow.member._results.plan(height) if run.state is RunState.ROUND_TRAIN else None
    trained = [bool(sim_member.saw("trained", height=height)) for sim_member in (slow, *quick)]
    return plan is not None and slow.member.seat in plan.owing and trained == [False, True, True]


def _all_take(sim_members: Sequence[SimMember], seconds: float) -> None:
    """Set the time that each job of a member takes."""
    for sim_member in sim_members:
        assert sim_member.compute is not None
        sim_member.compute._seconds = seconds
