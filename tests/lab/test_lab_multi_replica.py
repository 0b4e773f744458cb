"""Test that the lab's replicas compute what members of a simulated run compute, bit by bit."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from aftermath.data.local import open_tokens
from aftermath.lab.multi_replica import MultiReplicaTrainer, ReplicasDiffer
from aftermath.member.round_plan import RoundPlan, plan_round
from aftermath.member.rounds import epoch
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import CheckpointError
from aftermath.model.levels import LARGEST_MOMENTUM
from aftermath.optim.codec import decode_level
from aftermath.optim.inner_steps import InnerSteps
from aftermath.optim.moments import steps_of
from aftermath.optim.schema import Schema
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica
from aftermath.rules.schedules import round_learning_rate
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.sim.setup import CONFIG
from aftermath.sim.simulation import SimulatedRun, play
from member.result_inbox import SCHEMA

CPU = torch.device("cpu")
STEPS = 6  # of a simulated run
INNER = {
    "SparseLoCo": {
        "inner_steps": 2,
        "inner_optimizer": "muon",
        "divisor": "all",
        "orthogonal_lr": 1.5,
    }
}
SEQUENCES = torch.arange(9 * 16).mul(7).remainder(64).view(9, 16)


def replica(tier: int, schema: Any = SCHEMA) -> Replica:
    return Replica(
        schema,
        CONFIG,
        tier,
        init_weights(CONFIG, 0, tier),
        device=CPU,
        pass_size=PassSize(4, "off"),
        stopwatch=lambda: 0.0,
    )


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param({"cold_start_warmup_steps": 4}, id="sign"),
        pytest.param(
            {"optimizer": INNER, "overlap": 0}, id="inner steps at once", marks=pytest.mark.slow
        ),
        pytest.param({"quantize": False}, id="values", marks=pytest.mark.slow),
        pytest.param({"overlap": 0}, id="at once", marks=pytest.mark.slow),
        pytest.param({"optimizer": INNER}, id="inner steps", marks=pytest.mark.slow),
    ],
)
def test_together_equals_members_of_simulated_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: dict[str, Any]
) -> None:
    """Train the sequences that members of a simulated run trained. All levels must be equal after
    every step.
    """
    plans: dict[int, RoundPlan] = {}

    def noted(*args: Any) -> RoundPlan:
        plan = plan_round(*args)
        return plans.setdefault(plan.header.step, plan)

    monkeypatch.setattr(epoch, "plan_round", noted)

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until(lambda run: run.trained_steps > 0)
        began.append(sim.run)
        await sim.until_finished()

    began: list[Any] = []
    sim = play(tmp_path, scenario, rounds_per_epoch=STEPS, total_steps=STEPS, **rules)
    hashes = {event["step"]: event["hashes"] for event in sim.sim_members[0].saw("applied")}
    assert sorted(hashes) == list(range(1, STEPS + 1))

    seats = {seat.tier: number for number, seat in enumerate(plans[1].seats) if number < 3}
    data = open_tokens(tmp_path / "data", 2, 16, vocab_size=CONFIG.vocab_size)
    overlap = sim.run.config.overlap
    together = MultiReplicaTrainer(
        [replica(tier, sim.schema) for tier in (0, 1, 2)],
        lambda step: round_learning_rate(began[0], sim.model, step),
        overlap,
    )
    for step in range(1, STEPS + 1):
        indices = [
            [i for span in plans[step].ranges(seats[tier]) for i in span] for tier in (0, 1, 2)
        ]
        assert all(len(own) == 3 for own in indices)
        together.step(step, [torch.from_numpy(data.read(own)) for own in indices], [True] * 3)
        if step > overlap:
            assert {str(k): v.hex() for k, v in together.hashes().items()} == hashes[
                step - overlap
            ], step
    together.settle()
    assert {str(k): v.hex() for k, v in together.hashes().items()} == hashes[STEPS]


@pytest.mark.parametrize("overlap", [0, 1])
def test_results_wait_for_as_many_rounds_as_overlap(overlap: int) -> None:
    """Compare with a sequence of the optimizer's own calls."""
    together = MultiReplicaTrainer([replica(0), replica(1)], lambda step: 0.01, overlap)
    plain = [replica(0), replica(1)]
    waiting = []
    for step in range(1, 6):
        shares = [SEQUENCES[step % 3 : step % 3 + 3], SEQUENCES[4:8]]
        accepted = [True, step != 2]
        sent_payloads = [
            r.train(s, 0.01, 0.01, threading.Event()).payloads
            for r, s in zip(plain, shares, strict=True)
        ]
        waiting.append(
            [payloads for payloads, counts in zip(sent_payloads, accepted, strict=True) if counts]
        )
        if len(waiting) > overlap:
            results = waiting.pop(0)
            for own in plain:
                own.apply(
                    {
                        k: [decode_level(p[k], SCHEMA.results, k) for p in results if k in p]
                        for k in own.levels
                    },
                    0.01,
                )
        result = together.step(step, shares, accepted)
        assert result.bytes == sum(
            len(data) for payloads in sent_payloads for data in payloads.values()
        )
        assert together.hashes() == plain[0].hashes()
    before = together.hashes()
    together.settle()
    assert (together.hashes() != before) == bool(overlap)


@pytest.mark.parametrize(
    ("changed", "overlap"),
    [
        ({}, 1),
        ({"bits": 1, "divisor": "all"}, 0),
        ({"inner_optimizer": "muon", "divisor": "root", "outer_lr": 0.7}, 1),
        ({"orthogonal_lr": 3.0}, 0),
        ({"outer_momentum": 0.6, "outer_lr": 0.7}, 1),
    ],
    ids=str,
)
def test_inner_step_members_have_equal_levels_after_each_step(
    changed: dict[str, Any], overlap: int
) -> None:
    """The members have different tiers and shares, and one result in five is rejected."""
    schema = Schema(
        SCHEMA.state, SparseLoCo(inner_steps=2, topk=4, topk_embeddings=9, chunk=8, **changed)
    )
    together = MultiReplicaTrainer(
        [replica(tier, schema) for tier in (0, 1, 2, 1)], lambda step: 0.01 / (step + 1), overlap
    )
    hashes = [together.hashes()]
    for step in range(1, 5):
        shares = [
            SEQUENCES[start : start + count] for start, count in ((0, 3), (3, 1), (4, 2), (6, 3))
        ]
        result = together.step(step, shares, [(step + member) % 5 > 0 for member in range(4)])
        assert result.bytes == sum(schema.results.result_bytes(tier) for tier in (0, 1, 2, 1))
        hashes.append(together.hashes())  # raises where two differ
    changes = [before != after for before, after in pairwise(hashes)]
    assert changes == [not overlap, True, True, True]
    assert result.losses[0] is not None


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize(
    "settings",
    [
        None,
        SparseLoCo(inner_steps=2, topk=4, topk_embeddings=9, chunk=8, outer_momentum=0.6),
        SparseLoCo(inner_steps=2, inner_optimizer="muon", topk=8, chunk=8, orthogonal_lr=3.0),
    ],
    ids=["distro", "momentum", "muon"],
)
def test_members_on_shared_tensors_send_the_same_results(
    settings: SparseLoCo | None, overlap: int
) -> None:
    """Train unequal shares, reject a result, and restore the state after each step."""
    schema = SCHEMA if settings is None else Schema(SCHEMA.state, settings)
    first = replica(1, schema)
    shared, apart = (
        MultiReplicaTrainer(replicas, lambda step: 0.01 / (step + 1), overlap)
        for replicas in (
            [first, replica(0, schema), first.another(), first.another()],
            [replica(tier, schema) for tier in (1, 0, 1, 1)],
        )
    )
    for step in range(1, 4):
        shares = [SEQUENCES[start:stop] for start, stop in ((0, 3), (3, 4), (4, 6), (6, 9))]
        accepted = [(step + member) % 5 > 0 for member in range(4)]
        results = [each.step(step, shares, accepted) for each in (shared, apart)]
        assert results[0] == results[1]
        assert shared.hashes() == apart.hashes()
        states = [each.state() for each in (shared, apart)]
        assert all(torch.equal(states[1][name], tensor) for name, tensor in states[0].items())
        once = {name for name in states[1] if name.startswith(("2/weights", "3/weights"))}
        assert states[1].keys() - states[0].keys() == once
        assert once
        shared.restore(states[0])


def test_restored_members_continue_with_their_momentum() -> None:
    settings = SparseLoCo(inner_steps=2, topk=4, topk_embeddings=9, chunk=8, outer_momentum=0.6)
    schema = Schema(SCHEMA.state, settings)
    first, second = (
        MultiReplicaTrainer([replica(0, schema), replica(1, schema)], lambda step: 0.01, 0)
        for _ in range(2)
    )
    first.step(1, [SEQUENCES[:3], SEQUENCES[3:6]], [True, True])
    state = first.state()
    second.restore(state)
    for both in (first, second):
        both.step(2, [SEQUENCES[6:8], SEQUENCES[3:6]], [True, True])
    assert second.hashes() == first.hashes()
    name = next(name for name in state if "/weights/outer_momentum." in name)
    state[name].view(-1)[0] = LARGEST_MOMENTUM + 1
    with pytest.raises(CheckpointError, match="does not fit this model: outer_momentum"):
        second.restore(state)


@pytest.mark.parametrize("inner", ["adamw", "muon"])
def test_reset_members_begin_each_round_without_moments(inner: str) -> None:
    schema = Schema(
        SCHEMA.state, SparseLoCo(inner_steps=2, topk=4, topk_embeddings=9, inner_optimizer=inner)
    )
    kept, reset = (
        MultiReplicaTrainer(
            [replica(0, schema), replica(1, schema)], lambda step: 0.01, 0, reset_inner=resets
        )
        for resets in (False, True)
    )
    shares = [SEQUENCES[:3], SEQUENCES[3:6]]
    for both in (kept, reset):
        both.step(1, shares, [True, True])
    assert reset.hashes() == kept.hashes()
    for both in (kept, reset):
        both.step(2, shares, [True, True])
    assert reset.hashes() != kept.hashes()
    steps = [[inner_step_count(one) for one in both.replicas] for both in (kept, reset)]
    assert steps == [[4, 4], [2, 2]]


def inner_step_count(member: Replica) -> float:
    """Return the number of steps that the moments of a member's inner optimizer contain."""
    step = member.optimizer.private_step
    assert isinstance(step, InnerSteps)
    return steps_of(step.inner.state_tensors())


def test_rejected_result_is_never_applied() -> None:
    together = MultiReplicaTrainer([replica(0), replica(1)], lambda step: 0.01, 0)
    before = together.hashes()
    together.step(1, [SEQUENCES[:3], SEQUENCES[3:6]], [False, False])
    assert together.hashes() == before
    together.step(2, [SEQUENCES[:3], SEQUENCES[3:6]], [False, True])
    after = together.hashes()
    assert after[0] == before[0]  # no result of tier 1 reaches the level that only tier 0 holds
    assert after[1] != before[1]


def test_nonfinite_result_is_left_out_and_reported() -> None:
    together = MultiReplicaTrainer([replica(0), replica(1)], lambda step: 0.01, 0)
    norm = together.replicas[0].params["model.norm.weight"]
    hook = norm.register_hook(lambda grad: torch.full_like(grad, float("nan")))
    result = together.step(1, [SEQUENCES[:3], SEQUENCES[3:6]], [True, True])
    hook.remove()
    assert result.losses[0] is None
    assert result.losses[1] is not None
    assert "model.norm.weight is not finite" in result.left_out[0]


def test_differing_replicas_are_found() -> None:
    together = MultiReplicaTrainer([replica(0), replica(1)], lambda step: 0.01, 0)
    together.check()
    with torch.no_grad():
        together.replicas[1].params["model.norm.weight"][0] += 1e-6
    with pytest.raises(ReplicasDiffer, match=r"member 1 .* at level 2"):
        together.check()
