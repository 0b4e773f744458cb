"""Unusual rounds, and what each epoch starts with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from aftermath.chain.member import SolanaMember
from aftermath.replica.replica import Replica
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.short_runs import SHORT


def _replica(sim_member: SimMember) -> Replica:
    replica = sim_member.member._replica  # type: ignore[union-attr]
    assert replica is not None
    return replica


def _momentum(sim_member: SimMember) -> float:
    """Return how much a member has learnt but not sent yet."""
    state = _replica(sim_member).optimizer.state()
    return sum(float(tensor.abs().sum()) for name, tensor in state.items() if "residual" in name)


@pytest.mark.slow
def test_members_after_pause_learn_without_momentum(tmp_path: Path) -> None:
    """After a cold start, the residual is zero but the rate is not, so the first round changes the
    model.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        sim.pause(True)
        await sim.until(lambda run: run.state is RunState.PAUSED)
        assert min(map(_momentum, sim_members)) > 0
        sim.pause(False)
        await sim.until_round(0, epoch=1)
        assert [_momentum(sim_member) for sim_member in sim_members] == [0, 0, 0]
        await sim.until_finished()

    sim = play(tmp_path, scenario, cold_start_warmup_steps=2, **SHORT)
    assert sim.check() == 27
    for sim_member in sim.sim_members:
        end = sim_member.saw("cooldown", epoch=0)[0]["hashes"]
        first, second, *_ = sim_member.saw("applied", epoch=1)
        assert first["height"] == 0
        assert len({str(hashes) for hashes in (end, first["hashes"], second["hashes"])}) == 3, (
            sim_member.name
        )
        assert (
            sim_member.saw("applied", epoch=2)[0]["hashes"]
            != sim_member.saw("cooldown", epoch=1)[0]["hashes"]
        )


@pytest.mark.slow
def test_epoch_without_pause_keeps_momentum(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(0, epoch=1)
        assert min(map(_momentum, sim_members)) > 0
        await sim.until_finished()

    assert play(tmp_path, scenario, **SHORT).check() == 24


def test_result_with_nonfinite_loss_is_not_announced(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        replica = _replica(sim_members[1])
        backward = replica._backward

        def broken(*args: Any) -> float:
            backward(*args)
            return float("inf")

        replica._backward = broken  # type: ignore[method-assign]
        await sim.until(lambda run: run.epoch == 1)

    sim = play(tmp_path, scenario, rounds_per_epoch=4)
    warned = [e["message"] for e in sim.sim_members[1].saw("warning")]
    assert any("skips step" in message and "the loss is inf" in message for message in warned)
    assert {e["height"] for e in sim.sim_members[1].saw("trained")} <= {0, 1}
    assert sim.run.lost_sequences == 0
    assert sim.check(dropped=[sim.sim_members[1]]) > 0


def _slow_down(sim_member: SimMember, seconds: float) -> None:
    """Set the time of each job, whatever speed the member has declared."""
    sim_member.compute._seconds = seconds  # type: ignore[union-attr]


@pytest.mark.slow
def test_measured_speed_is_declared_for_next_epoch(tmp_path: Path) -> None:
    """All declare 60 sequences a minute. Ten take 2 seconds for two of them and 6 for the third."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        _slow_down(sim_members[2], 3.0)
        await sim.until_finished()

    sim = play(
        tmp_path,
        scenario,
        max_round_train_time=60,
        global_batch_size_start=30,
        global_batch_size_end=30,
        **SHORT,
    )
    assert sim.check() == 24
    assert [
        [e["weight"] for e in sim_member.saw("joined")][:2] for sim_member in sim.sim_members
    ] == [
        [60, 300],
        [60, 300],
        [60, 100],
    ]
    shares = [
        [e["tokens"] / 16 for e in sim.sim_members[2].saw("trained", epoch=epoch)]
        for epoch in (0, 1)
    ]
    assert shares[0] == [10] * 3
    # 30 x 100 / 340: the others' weight is at most twice 60
    assert all(8 <= share <= 9 for share in shares[1])


def test_training_too_late_for_round_is_abandoned(tmp_path: Path) -> None:
    """A share takes 16 seconds and a round 5, so the result is useless. The epoch continues without
    the member.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        _slow_down(sim_members[2], 8.0)
        await sim.until(lambda run: run.epoch == 1)

    sim = play(tmp_path, scenario, warmup_time=200, max_round_train_time=5)
    slow = sim.sim_members[2]
    given_up, too_slow = (event["message"] for event in slow.saw("warning")[:2])
    assert given_up == "skipped round 0: too slow, the run moved on"
    assert "too slow for its share of the rounds: 3 sequences took more than 16 s" in too_slow
    assert "a round leaves at most 5 s for them" in too_slow
    assert not slow.saw("trained")
    # 3 sequences in 16 seconds are at most 11 per minute, which it declares when it joins again
    # after it was dropped.
    assert [event["weight"] for event in slow.saw("joined")][:2] == [60, 11]
    assert sim.run.lost_sequences == 0
    assert sim.check(dropped=[slow]) > 0


@pytest.mark.parametrize("witnesses", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_lone_too_slow_member_is_warned_once_per_epoch(tmp_path: Path, witnesses: int) -> None:
    """A share takes 40 seconds and a round at most 15. No result counts, and no other member can
    drop it.
    """

    async def scenario(sim: SimulatedRun) -> None:
        alone = sim.add(0)
        _slow_down(alone, 20.0)
        await sim.until(lambda run: run.epoch == 2)

    sim = play(
        tmp_path,
        scenario,
        min_clients=1,
        init_min_clients=1,
        witness_nodes=witnesses,
        warmup_time=200,
        total_steps=60,
    )
    [alone] = sim.sim_members
    warnings = [event for event in alone.saw("warning") if "sequences took" in event["message"]]
    assert len(warnings) == 2, "one for each epoch"
    for event in warnings:
        assert (
            "9 sequences took more than 40 s, but a round leaves at most 15 s for them"
            in event["message"]
        )
        for way_out in (
            "--matformer-tier",
            "--threads",
            "--micro-batch-size",
            "max_round_train_time",
        ):
            assert way_out in event["message"]


@pytest.mark.parametrize(
    ("seconds", "is_warned"), [pytest.param(3.0, False, marks=pytest.mark.slow), (7.0, True)]
)
def test_measured_speed_includes_all_round_work(
    tmp_path: Path, seconds: float, is_warned: bool
) -> None:
    """Two jobs belong to the share, and two to the apply and its hashes. A round lasts at most 15
    seconds.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(2)  # the first round with both the share and the apply
        _slow_down(sim_members[2], seconds)
        await sim.until(lambda run: run.epoch == 1)

    sim = play(tmp_path, scenario, warmup_time=200)
    slow = sim.sim_members[2]
    assert slow.saw("trained")
    messages = [
        e["message"]
        for sim_member in sim.sim_members
        for e in sim_member.saw("warning")
        if "too slow" in e["message"]
    ]
    assert bool(messages) is is_warned
    # an abandoned share took more than the measured time
    sentence = (
        r"3 sequences took (more than )?14 s and applying a round's results 14 s, "
        "but a round leaves at most 15 s"
    )
    assert not is_warned or re.search(sentence, messages[0])
    assert sim.check(dropped=[slow] if is_warned else []) > 0


@pytest.mark.slow
def test_snapshot_is_withdrawn_at_next_epochs_first_apply(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1, epoch=1)
        offered = {sim_member.name: _offered(sim_member) for sim_member in sim_members}
        assert all(offered.values())
        await sim.until_round(3, epoch=1)
        for sim_member in sim_members:
            assert sim_member.saw("applied", epoch=1)
            assert sim_member.transport is not None
            assert not _offered(sim_member)
            assert not offered[sim_member.name] & sim_member.transport._blobs.keys()
        await sim.until_finished()

    assert play(tmp_path, scenario, rounds_per_epoch=4, total_steps=8).check() == 30


def _offered(sim_member: SimMember) -> set[bytes]:
    """Return digests of the tensors that a member offers. Fail if it does not serve one."""
    manifest = sim_member.member._share.manifest  # type: ignore[union-attr]
    digests = (
        {digest for level in manifest.levels.values() for digest in level}
        if manifest is not None
        else set()
    )
    assert sim_member.transport is not None
    assert digests <= sim_member.transport._blobs.keys()
    return digests


@pytest.mark.slow
def test_attestation_contains_measured_upload_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds: list[float] = []
    original = SolanaMember.witness

    async def listening(
        self: SolanaMember, *args: Any, bytes_per_sec: float, **others: Any
    ) -> None:
        speeds.append(bytes_per_sec)
        await original(self, *args, bytes_per_sec=bytes_per_sec, **others)

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_finished()

    monkeypatch.setattr(SolanaMember, "witness", listening)
    sim = play(tmp_path, scenario, **SHORT)
    assert sim.check() == 24
    sent = [sim_member.saw("traffic")[-1]["sent"] for sim_member in sim.sim_members]
    assert min(speeds) >= 0
    assert 0 < max(speeds) < min(sent), "in one second no member sends what it sends in all rounds"
