"""Test that stacked members learn what members learn one after another, and fail alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aftermath.lab.multi_replica import MultiReplicaTrainer
from aftermath.lab.stacked_members import StackedMembers
from aftermath.lab.trainer import Rates
from aftermath.lab.training_loop import CHECKPOINT
from aftermath.model import network
from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.moments import steps_of
from aftermath.optim.schema import build_schema
from aftermath.optim.stacked_inner import StackedSteps
from aftermath.replica.options import PLAIN, Arithmetic
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo
from lab.lab_place import CPU, INNER, prepare, training_loop
from replica.simulated_gpu import gpu_at_hand
from replica.whole_round import MODELS

STEPS = 4
SEQUENCES = torch.randint(0, 48, (26, 16), generator=torch.Generator().manual_seed(4))
# Members send all numbers. Otherwise a rounding could choose another of two equal numbers.
ADAMW = SparseLoCo(inner_steps=2, topk=49, topk_embeddings=49, chunk=7, clip=0.5)
MUON = replace(ADAMW, inner_optimizer="muon")
MOMENTUM = replace(ADAMW, outer_momentum=0.6)
NEAR = 1e-3
"""Largest difference of losses of about 4. A polar factor enlarges what is rounded differently.
`tests/optim/test_optim_stacked_inner.py` has narrower bounds.
"""


def together(
    model: str = "llama",
    settings: Optimizer = MUON,
    *,
    tiers: Sequence[int] = (0, 0, 0),
    stacked: bool = True,
    overlap: int = 1,
    arithmetic: Arithmetic = PLAIN,
    device: torch.device = CPU,
) -> MultiReplicaTrainer:
    """Return members that share the tensors of their tier, with passes of at most two sequences."""
    config = config_of(MODELS[model])
    schema = build_schema(config.to_hf(), 3, settings)
    of_tier: dict[int, Replica] = {}
    replicas = []
    for tier in tiers:
        if tier in of_tier:
            replicas.append(of_tier[tier].another())
            continue
        of_tier[tier] = Replica(
            schema,
            config,
            tier,
            init_weights(config, 3, tier),
            device=device,
            pass_size=PassSize(2, "off"),
            stopwatch=lambda: 0.0,
            arithmetic=arithmetic,
        )
        replicas.append(of_tier[tier])
    at_once = StackedMembers(replicas) if stacked else None
    return MultiReplicaTrainer(replicas, lambda step: 0.02 / (step + 1), overlap, at_once)


def shares(step: int, sizes: Sequence[int]) -> list[Tensor]:
    return list(SEQUENCES.roll(5 * step, 0)[: sum(sizes)].split(list(sizes)))


def learnt(
    members: MultiReplicaTrainer, sizes: Sequence[int] = (5, 5, 5)
) -> list[list[float | None]]:
    """Train, with a rejected result. Return the losses of each step."""
    losses = []
    for step in range(1, STEPS + 1):
        accepted = [(step + member) % 4 > 0 for member in range(len(sizes))]
        result = members.step(step, shares(step, sizes), accepted)
        assert not result.left_out
        losses.append(result.losses)
        members.check()
    return losses


def members_in_stacks(members: MultiReplicaTrainer) -> list[tuple[int, ...]]:
    assert members._stacked is not None
    return list(members._stacked._stacks)


@pytest.mark.parametrize(
    ("model", "settings", "overlap"),
    [
        pytest.param("llama", MUON, 1, id="llama-muon"),
        pytest.param("qwen3", ADAMW, 0, id="qwen3-adamw"),
        pytest.param("nanogpt", MUON, 0, id="nanogpt-muon", marks=pytest.mark.slow),
        pytest.param("nanogpt", MOMENTUM, 1, id="nanogpt-momentum", marks=pytest.mark.slow),
    ],
)
def test_stacked_members_learn_like_single_ones(
    model: str, settings: SparseLoCo, overlap: int
) -> None:
    stacked = together(model, settings, overlap=overlap)
    single = together(model, settings, overlap=overlap, stacked=False)
    losses = [torch.tensor(learnt(members)) for members in (stacked, single)]
    assert members_in_stacks(stacked) == [(0, 1, 2)]
    assert (losses[0] - losses[1]).abs().max() < NEAR
    states = [members.state() for members in (stacked, single)]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert tensor.shape == states[1][name].shape
        assert tensor.dtype == states[1][name].dtype


def test_members_of_other_tiers_and_shares_are_stacked_apart() -> None:
    tiers = (0, 1, 0, 1, 1, 2)
    sizes = (5, 4, 5, 3, 4, 5)
    stacked = together(tiers=tiers)
    losses = torch.tensor(learnt(stacked, sizes))
    assert members_in_stacks(stacked) == [(0, 2), (1, 4)]
    single = torch.tensor(learnt(together(tiers=tiers, stacked=False), sizes))
    assert (losses - single).abs().max() < NEAR


def test_stacked_change_encodes_like_single_member_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Encode the changes of a stack with another compressor. The payloads must be equal."""
    members = together()
    changes: list[PseudoGradient] = []
    make = StackedSteps.make

    def noted(*args: Any) -> Any:
        changes.extend(change := make(*args))
        return change

    monkeypatch.setattr(StackedSteps, "make", noted)
    assert members._stacked is not None
    results_by_member = members._stacked.train(shares(1, (5, 5, 5)), Rates(0.01, 0.01), [False] * 3)
    assert len(changes) == len(results_by_member) == 3
    for replica, change, result in zip(
        members.replicas, changes, results_by_member.values(), strict=True
    ):
        results = replica.schema.results
        compressor = ErrorFeedback(results, 0, replica.params, replica.schema.optimizer.decay)
        assert result == (compressor.compress(change), change.loss)


def test_failed_member_keeps_its_moments_and_others_learn() -> None:
    stacked, single = (together(stacked=stacked) for stacked in (True, False))
    for members in (stacked, single):
        members.step(1, shares(1, (5, 5, 5)), [True] * 3)
        moments = members.replicas[1].optimizer.state_tensors()
        moments["private.second/model.norm.weight"].fill_(float("nan"))
    results = [members.step(2, shares(2, (5, 5, 5)), [True] * 3) for members in (stacked, single)]
    assert results[0].losses[1] is results[1].losses[1] is None
    assert len(results[0].left_out) == len(results[1].left_out) == 1
    for member in (0, 2):
        assert results[0].losses[member] == pytest.approx(results[1].losses[member], abs=NEAR)
    counts = [
        steps_of(replica.optimizer.private_step.state_tensors()) for replica in stacked.replicas
    ]
    assert counts == [4, 2, 4]
    stacked.step(3, shares(3, (5, 5, 5)), [True] * 3)
    assert members_in_stacks(stacked) == [(0, 2)]


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("deepseek-v3", MUON),
        ("llama", Distro(topk=4, topk_embeddings=6, chunk=7, clip=1.0, quantize_1bit=True)),
    ],
    ids=["experts", "distro"],
)
def test_members_that_cannot_be_stacked_have_equal_bits(model: str, settings: Optimizer) -> None:
    stacked, single = (together(model, settings, stacked=stacked) for stacked in (True, False))
    assert learnt(stacked) == learnt(single)
    assert stacked.hashes() == single.hashes()
    assert not members_in_stacks(stacked)


def test_failing_stack_trains_one_after_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Compute the logits in parts, which vmap cannot recompute. The bits must be those of single
    members.
    """
    monkeypatch.setattr(network, "LOGITS_AT_ONCE", 48)
    stacked, single = (together(stacked=stacked) for stacked in (True, False))
    with caplog.at_level(logging.WARNING, "aftermath"):
        assert learnt(stacked) == learnt(single)
    assert stacked.hashes() == single.hashes()
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("training members one after another: ")


def test_stack_in_bf16_learns_like_single_members() -> None:
    arithmetic = Arithmetic(bf16=True)
    stacked, single = (
        together(stacked=stacked, arithmetic=arithmetic) for stacked in (True, False)
    )
    losses = [torch.tensor(learnt(members)) for members in (stacked, single)]
    assert members_in_stacks(stacked) == [(0, 1, 2)]
    assert (losses[0] - losses[1]).abs().max() < 0.01


@pytest.mark.slow
def test_compiled_stack_learns_like_single_members(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Shares of five sequences have passes of two and one: only the first shape is compiled."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    stacked = together(arithmetic=Arithmetic(compiled=True))
    losses = [torch.tensor(learnt(members)) for members in (stacked, together(stacked=False))]
    assert members_in_stacks(stacked) == [(0, 1, 2)]
    assert not [record for record in caplog.records if record.name.startswith("aftermath")]
    assert (losses[0] - losses[1]).abs().max() < NEAR


@pytest.mark.slow
def test_stack_on_simulated_gpu_equals_cpu_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("inner_optimizer", "moments"):
        monkeypatch.setattr(f"aftermath.optim.{module}.may_fuse", lambda _: False)
    here = together()
    losses = learnt(here)
    with gpu_at_hand() as gpu:
        there = together(device=gpu)
        assert learnt(there) == losses
        assert members_in_stacks(there) == [(0, 1, 2)]
        assert there.hashes() == here.hashes()


def test_stacked_training_resumes_to_same_bits(tmp_path: Path) -> None:
    root = prepare(tmp_path)
    options = INNER | {"total_batch": 12, "tiers": "0,1,1", "overlap": "1", "steps": 3}
    training_loop(root, stack_members="on", out=root / "whole", **options).run()
    training = training_loop(root, stack_members="on", out=root / "cut", **options)
    training.stop()  # after one step
    with pytest.raises(KeyboardInterrupt):
        training.run()
    training_loop(root, stack_members="on", out=root / "cut", **options).run()
    whole, cut = (
        (root / out / CHECKPOINT / "model.safetensors").read_bytes() for out in ("whole", "cut")
    )
    assert whole == cut
