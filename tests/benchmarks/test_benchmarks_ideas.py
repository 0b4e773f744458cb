"""Test that each idea replaces the intended part of a member's code and nothing else."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aftermath.lab.multi_replica import MultiReplicaTrainer
from aftermath.model.initial_weights import init_weights
from aftermath.model.levels import prefix
from aftermath.optim import sparseloco_apply
from aftermath.optim.codec import decode_level
from aftermath.optim.engine import Engine
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.outer_muon import OuterMuon
from aftermath.optim.sparseloco_apply import MeanApply, changes, most_of
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.sim.setup import CONFIG
from benchmarks.test_benchmarks_worth import BENCHMARKS, arms, module
from lab.lab_place import INNER, prepare, training_loop
from optim.optim_oracle import toy_inner
from optim.optim_replica import gradients, tensors
from optim.test_sparseloco_apply import random_votes

module("worth"), module("heterogeneity")
idea_methods = module("idea_methods")
ideas = module("ideas")
SAID = INNER | {"orthogonal_lr": 1.5, "mean": "all", "steps": 4}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("place"))


def _trained(place: Path, idea: dict[str, Any] | None = None, **settings: Any) -> dict[str, Tensor]:
    """Return every member's weights after some rounds, without an idea if None."""
    if idea is None:
        one = training_loop(place, **settings)
        one.run()
    else:
        with idea_methods.with_idea(idea, settings):
            one = training_loop(place, **settings)
            one.run()
    trainer = one._begun.trainer
    assert isinstance(trainer, MultiReplicaTrainer)
    return {
        f"{n}/{name}": t.detach().clone()
        for n, own in enumerate(trainer.replicas)
        for name, t in own.params.items()
    }


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(tensor, other[name]) for name, tensor in one.items()
    )


NOTHING = {
    "as_smaller": [0, 0],
    "momentum": 0.0,
    "level_rates": [1.0, 1.0, 1.0],
    "weights": [1, 1, 1],
    "topk_by_level": [32, 32, 32],
    "forget": 100,
}


@pytest.fixture(scope="module")
def plain(place: Path) -> dict[str, Tensor]:
    """Return the weights of a training without an idea."""
    return _trained(place, None, **SAID)


# The ideas that replace most of a member's code; the slow tier trains the others.
FAST_IDEAS = {None, "momentum", "whole_forward", "dct"}


def ideas_of(*names: str | None) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=() if name in FAST_IDEAS else pytest.mark.slow)
            for name in names
        ],
    )


@ideas_of(None, *NOTHING)
def test_neutral_ideas_leave_every_bit_unchanged(
    place: Path, plain: dict[str, Tensor], name: str | None
) -> None:
    assert _equal(_trained(place, {name: NOTHING[name]} if name else {}, **SAID), plain)


SOMETHING = {
    "momentum": 0.6,
    "level_rates": [0.5, 1.0, 1.0],
    "weights": [2, 1, 1],
    "topk_by_level": [8, 8, 40],
    "whole_forward": True,
    "as_smaller": [0, 2],
    "low_rank": 2,
    "dct": True,
    "uncut": True,
    "step_of": 2,
    "forget": 3,
}


@ideas_of(*SOMETHING)
def test_idea_changes_training_and_is_removed_afterwards(
    place: Path, plain: dict[str, Tensor], name: str
) -> None:
    before = {
        (owner, name): getattr(owner, name)
        for owner in (OuterMuon, MeanApply)
        for name in ("_move", "apply")
    }
    tried = _trained(place, {name: SOMETHING[name]}, **SAID)
    assert not _equal(tried, plain)
    for own, begun in init_weights(CONFIG, 0).items():
        assert not torch.equal(tried[f"0/{own}"], begun), "everything learns"
    assert all(getattr(owner, name) is was for (owner, name), was in before.items())


@pytest.mark.slow
def test_training_after_all_ideas_is_plain_again(place: Path, plain: dict[str, Tensor]) -> None:
    for name, chosen in SOMETHING.items():
        with idea_methods.with_idea({name: chosen}, SAID):
            pass
    assert _equal(_trained(place, None, **SAID), plain)


def test_equal_gradient_sizes_change_distro(place: Path) -> None:
    options = {"optimizer": "distro", "members": 3, "tiers": "0", "total_batch": 6, "steps": 4}
    assert not _equal(_trained(place, {"rms": True}, **options), _trained(place, {}, **options))


@pytest.mark.parametrize("idea", [{"uncut": True}, {"uncut": True, "dct": True}])
def test_results_arrive_with_and_without_dct(idea: dict[str, Any]) -> None:
    """With 2 bits for every value, the result is the change, rounded to the lattice."""
    schema = toy_inner(divisor="all", topk=64, topk_embeddings=64)
    params = tensors(schema, 0, 0)
    gradient_tensors = gradients(schema, 0, 1)
    before = {name: tensor.clone() for name, tensor in params.items()}
    with idea_methods.with_idea(idea, {}):
        sent = ErrorFeedback(schema.results, 0, params, 1.0).compress(
            PseudoGradient(gradient_tensors, 1.0, 0.0)
        )
        votes = {level: [decode_level(own, schema.results, level)] for level, own in sent.items()}
        Engine(schema, 0, params).apply(votes, 1.0)
    for name, tensor in params.items():
        left = before[name] - tensor - gradient_tensors[name]
        assert left.norm() < 0.6 * gradient_tensors[name].norm(), name


def test_unknown_idea_is_refused() -> None:
    with pytest.raises(KeyError, match="extras"), idea_methods.with_idea({"extras": 1}, {}):
        pass


def test_momentum_equals_formula() -> None:
    """Two rounds with means u1 and u2, and a momentum of 0.5."""
    schema = toy_inner(divisor="all")
    assert isinstance(schema.optimizer, SparseLoCo)
    params = tensors(schema, 2, 0)
    before = {name: tensor.double() for name, tensor in params.items()}
    rounds = [random_votes(schema, 2, 3, seed=seed, density=1.0) for seed in (1, 2)]
    differences = []
    for votes in rounds:
        plain = tensors(schema, 2, 0)
        Engine(schema, 2, plain).apply({2: votes}, 1e-3)
        differences.append({name: before[name] - tensor for name, tensor in plain.items()})
    with idea_methods.with_idea({"momentum": 0.5}, {}):
        engine = Engine(schema, 2, params)
        for votes in rounds:
            engine.apply({2: votes}, 1e-3)
    for name, tensor in params.items():
        first, second = (one[name] for one in differences)
        momentum = [first / 2, first / 4 + second / 2]
        expected = (first / 2 + momentum[0] / 2) + (second / 2 + momentum[1] / 2)
        torch.testing.assert_close(before[name] - tensor, expected, atol=1e-6, rtol=1e-3)


def test_vote_of_weight_two_counts_twice() -> None:
    schema = toy_inner(divisor="all")
    settings = schema.optimizer
    assert isinstance(settings, SparseLoCo)
    one, other = random_votes(schema, 1, 2, seed=3)
    most = most_of(settings, 1.0)
    with idea_methods.with_idea({"weights": [2, 5, 1]}, {"tiers": "0,2,1"}):
        vote_changes = sparseloco_apply.changes([one, other], 1, settings, most)
    counted = changes([one, one, other], 1, settings, most)
    assert all(
        torch.equal(own, expected) for own, expected in zip(vote_changes, counted, strict=True)
    )


def test_low_rank_approximation_improves_with_rank() -> None:
    blocks = torch.randn(5, 24, 16, generator=torch.Generator().manual_seed(7))
    left = [
        float((blocks - idea_methods._of_rank(blocks, rank, 2)).norm() / blocks.norm())
        for rank in (1, 4, 8)
    ]
    assert left == sorted(left, reverse=True)
    assert left[-1] < 0.6
    signs = torch.ones(1, 16, 16)
    torch.testing.assert_close(idea_methods._of_rank(signs, 1, 2), signs, atol=0.02, rtol=0)


def test_small_member_learns_its_part_of_whole_gradient(place: Path) -> None:
    options = SAID | {"inner_steps": 1}
    with idea_methods.with_idea({"whole_forward": True}, options):
        trainer = training_loop(place, **options)._begun.trainer
        assert isinstance(trainer, MultiReplicaTrainer)
        whole, _, small = trainer.replicas
        before = {name: tensor.detach().clone() for name, tensor in whole.params.items()}
        tokens = torch.arange(32).view(2, 16) % 7
        ended = threading.Event()
        whole._backward(whole.passes, tokens, ended)
        whole.model.zero_grad(set_to_none=True)
        small._backward(small.passes, tokens, ended)
        whole._backward(whole.passes, tokens, ended)
    for name, tensor in small.params.items():
        assert tensor.grad is not None
        gradient = whole.params[name].grad
        assert gradient is not None
        torch.testing.assert_close(tensor.grad, gradient[prefix(tensor.shape)])
    assert all(torch.equal(whole.params[name], tensor) for name, tensor in before.items())


def test_large_member_as_smaller_has_smaller_gradient(place: Path) -> None:
    options = SAID | {"inner_steps": 1}
    with idea_methods.with_idea({"as_smaller": [2]}, options):
        trainer = training_loop(place, **options)._begun.trainer
        assert isinstance(trainer, MultiReplicaTrainer)
        whole, _, small = trainer.replicas
        tokens = torch.arange(32).view(2, 16) % 7
        ended = threading.Event()
        whole._backward(whole.passes, tokens, ended)
        small._backward(small.passes, tokens, ended)
    for name, tensor in whole.params.items():
        gradient = tensor.grad
        own = small.params[name].grad
        assert gradient is not None
        assert own is not None
        torch.testing.assert_close(gradient[prefix(own.shape)], own)
        assert int((gradient != 0).sum()) == int((own != 0).sum()), "nothing beyond the prefix"


def test_every_idea_arm_is_trainable_and_has_expectation() -> None:
    for arm in arms.arms(ideas.FILE):
        assert arm.question
        assert arm.expected
        for one in arm.trainings:
            assert ideas.bytes_of(one) > 0
            assert one.said["steps"] * one.inner_steps == one.steps
            assert set(one.said.get(ideas.IDEA, {})) <= idea_methods.IDEAS.keys()


@pytest.mark.slow
def test_ideas_page_covers_all_trainings() -> None:
    written = json.loads((BENCHMARKS / "measured" / "ideas.json").read_text())["figures"]
    keys = {one.key for arm in arms.arms(ideas.FILE) for one in arm.trainings}
    assert set(arms.kept(ideas.SIZE, ideas.FILE)) <= keys
    assert json.loads(json.dumps(ideas.report())) == written, "run: benchmarks/measure.py ideas"


def test_ideas_gain_compares_same_tier_and_seeds() -> None:
    gains = ideas.gains(
        {0: {0: 2.0, 1: 2.0}, 1: {0: 1.0}}, {0: {0: 2.5, 1: 2.51, 2: 9.0}, 1: {0: 1.5}}
    )
    assert gains["0"]["gain"] == pytest.approx(0.505)
    assert (gains["0"]["seeds"], gains["0"]["clear"]) == (2, True)
    assert gains["1"] == {"gain": 0.5, "interval": None, "seeds": 1, "clear": False}
