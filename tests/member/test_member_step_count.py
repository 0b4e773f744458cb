"""A saved model states the steps that it contains, whatever the chain counts at that moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aftermath.member.round_plan import RoundPlan
from aftermath.member.rounds.announce import Announcing
from aftermath.optim.engine import Trained
from aftermath.replica.replica import Replica
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from aftermath.sim.virtual_time import InlineWorker
from member.short_runs import ALONE

LONG = ALONE | {"rounds_per_epoch": 20, "total_steps": 50}


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Count how often each replica's parameters were changed, by the id of the replica."""
    counts = Counter[int]()
    apply = Replica.apply

    def counted(replica: Replica, votes: Any, lr: float) -> None:
        apply(replica, votes, lr)
        counts[id(replica)] += 1

    monkeypatch.setattr(Replica, "apply", counted)
    return counts


async def _stop(sim: SimulatedRun, sim_member: SimMember, steps: Callable[[], int]) -> int:
    """Stop a member and return the steps that its last line and its checkpoint state."""
    await sim.stop(sim_member)
    (stopped,) = sim_member.saw("stopped")
    assert Path(stopped["path"]).name == f"sim-step{stopped['step']}"
    assert stopped["step"] == steps()
    return int(stopped["step"])


def _steps(sim_member: SimMember) -> int:
    """Return how many rounds with results the member has applied."""
    return sum(event["results"] > 0 for event in sim_member.saw("applied"))


def test_round_without_result_is_not_counted_in_saved_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applied: Counter[int]
) -> None:
    """With overlap, the number of the next round is one too high."""
    announce = Announcing.announce

    async def withheld(announcing: Announcing, plan: RoundPlan, trained: Trained) -> None:
        if plan.header.height != 1:
            await announce(announcing, plan, trained)

    monkeypatch.setattr(Announcing, "announce", withheld)

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until_round(4)
        await sim.until(lambda _: bool(sim_member.saw("applied", height=2)))
        step = await _stop(sim, sim_member, lambda: sum(applied.values()))
        assert step == 2
        sim.start(sim_member)
        await sim.until(lambda run: run.epoch == 1)
        assert sim.run.trained_steps == step
        assert not [
            event for event in sim_member.saw("warning") if "only a copy" in event["message"]
        ]

    play(tmp_path, scenario, **LONG | {"overlap": 1, "max_round_train_time": 20})


@pytest.fixture
def _finishing_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each worker finish a job although its caller was cancelled, as a thread does."""
    call = InlineWorker.__call__

    async def finishes(worker: InlineWorker, function: Callable[[], object]) -> object:
        return await asyncio.shield(call(worker, function))

    monkeypatch.setattr(InlineWorker, "__call__", finishes)


@pytest.mark.usefixtures("_finishing_thread")
@pytest.mark.parametrize("later", [0.5, 1.5])
def test_apply_under_way_at_stop_is_reported_once(
    tmp_path: Path, applied: Counter[int], later: float
) -> None:
    """The apply of round 2 takes a second, and hashing the model takes another one."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until_round(3)
        await asyncio.sleep(later)
        assert not sim_member.saw("applied", height=2)
        step = await _stop(sim, sim_member, lambda: sum(applied.values()))
        assert [event["step"] for event in sim_member.saw("applied")] == list(range(1, step + 1))
        sim.start(sim_member)
        await sim.until(lambda _: bool(sim_member.saw("cooldown")))
        (cooldown,) = sim_member.saw("cooldown")
        last = sim_member.saw("applied")[-1]
        assert last["hashes"] == cooldown["hashes"]
        assert last["sequences"] == sim.record.settled[0, last["height"]]

    play(tmp_path, scenario, **LONG)


@pytest.mark.usefixtures("_finishing_thread")
def test_model_saved_at_common_stop_includes_pending_apply(
    tmp_path: Path, applied: Counter[int]
) -> None:
    """Both members stop while they apply a round. One of them keeps its seat and saves."""

    async def scenario(sim: SimulatedRun) -> None:
        pair = [sim.add(0, 2.0) for _ in range(2)]
        await sim.until_round(3)
        await asyncio.sleep(0.5)  # the apply takes two seconds
        await asyncio.gather(*(sim.stop(sim_member) for sim_member in pair))
        assert len(applied) == 2
        (saver,) = (one for one in pair if one.saw("stopped", continues=True))
        (stopped,) = saver.saw("stopped")
        steps = _steps(saver)
        assert Path(stopped["path"]).name == f"sim-step{steps}"
        assert stopped["step"] == steps
        assert steps in applied.values()
        assert stopped["continues"]

    play(tmp_path, scenario, **LONG | {"init_min_clients": 2})


@pytest.mark.slow
def test_undone_steps_are_named_in_saved_model(tmp_path: Path, applied: Counter[int]) -> None:
    """The judge of epoch 1 dies, and the epoch is undone. Its steps stay in the newcomer's
    model.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim.saves_checkpoints = False
        first, *others = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until(lambda run: run.epoch == 1)
        for other in others:
            await sim.stop(other)
        sim.saves_checkpoints = True
        newcomer, *_ = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(2, epoch=1)
        await sim.kill(first)
        await sim.until(lambda run: run.epoch == 2)
        assert sim.run.trained_steps == 6
        step = await _stop(sim, newcomer, lambda: 6 + _steps(newcomer))
        assert step > 6

    play(
        tmp_path,
        scenario,
        **ALONE | {"rounds_per_epoch": 6, "total_steps": 50, "init_min_clients": 3},
    )


def test_unapplied_last_round_is_not_counted_in_saved_model(
    tmp_path: Path, applied: Counter[int]
) -> None:
    """The member is cut off in the last round and cannot fetch its results."""

    async def scenario(sim: SimulatedRun) -> None:
        holder, *others = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(3)
        for other in others:
            sim.network.cut(holder.id, other.id)
        await sim.until(lambda run: run.epoch == 1)
        assert sim.run.trained_steps == 5
        step = await _stop(sim, holder, lambda: _steps(holder))
        assert step < 5

    play(
        tmp_path,
        scenario,
        **LONG | {"rounds_per_epoch": 5, "init_min_clients": 3, "min_clients": 2},
    )
