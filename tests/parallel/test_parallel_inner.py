"""Test that inner steps with sharded moments give the bits of one rank."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from math import prod

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from aftermath.kernels.runtime import unavailable_reason
from aftermath.model.architectures import config_of
from aftermath.model.levels import is_hidden_matrix
from aftermath.optim.gradient_clip import NonFiniteGradient
from aftermath.optim.interfaces import BadState
from aftermath.optim.schema import build_schema
from aftermath.optim.state_merkle import BLOCK
from aftermath.parallel.group import Ranks
from aftermath.parallel.sharded_inner import inner_shapes, split_moments
from aftermath.replica.replica import Cancelled
from parallel.rank_processes import (
    MODELS,
    RATE,
    WIDE,
    apply,
    bits,
    inner_settings,
    replica_pair,
    same_inner_rounds,
    sharded_inner,
    share,
    train_share,
)

INNER = ["adamw", "muon"]

pytestmark = pytest.mark.skipif(
    unavailable_reason() is not None, reason="torch's transforms round otherwise in other batches"
)


@pytest.mark.slow
def test_inner_rounds_payloads_moments_weights_equal_one_rank(ranks: Ranks) -> None:
    same_inner_rounds(ranks, "uneven", 2, "muon")


@pytest.mark.slow
@pytest.mark.parametrize(("model", "inner"), [("deepseek", "adamw"), ("whole nanogpt", "muon")])
def test_inner_rounds_of_other_models_equal_one_rank(ranks: Ranks, model: str, inner: str) -> None:
    same_inner_rounds(ranks, model, 0, inner)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "why", "first"),
    [
        ("muon", "given up", True),
        ("adamw", "not finite", False),
    ],
)
def test_share_failing_between_steps_leaves_moments_unchanged(
    ranks: Ranks, inner: str, why: str, first: bool
) -> None:
    alone, led = replica_pair(ranks, "llama", 0, 1, inner_settings(inner))
    if not first:
        for replica in (alone, led):
            train_share(replica, 0)
    before = bits(alone.optimizer.state())
    count = 0

    def backward(part: Tensor) -> float:
        nonlocal count
        count += 1
        if count == 3 and why == "given up":
            raise Cancelled
        loss = led._backward(led.passes, part, threading.Event())
        for tensor in led.params.values() if count == 3 else ():
            tensor.grad = torch.full_like(tensor, torch.nan)
        return loss

    with pytest.raises(Cancelled if why == "given up" else NonFiniteGradient):
        led.optimizer.train(share(4), backward, RATE, RATE)
    assert count == 3, "two steps were made"
    assert bits(led.optimizer.state()) == before
    assert train_share(led, 1).payloads == train_share(alone, 1).payloads
    assert bits(led.optimizer.state()) == bits(alone.optimizer.state())


@pytest.mark.slow
@pytest.mark.parametrize("inner", INNER)
def test_inner_step_sends_one_command(
    ranks: Ranks, inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks have the weights and gradients from the pass, and send back their part
    once.
    """
    _, led = replica_pair(ranks, "llama", 0, 1, inner_settings(inner))
    sharded = sharded_inner(led)
    posted = list[Mapping[str, Tensor]]()
    expected = list[Tensor]()
    step = sharded.step
    send = ranks.send
    irecv = dist.irecv

    def sending(tensors: Mapping[str, Tensor], rank: int) -> None:
        posted.append(tensors)
        send(tensors, rank)

    def expecting(into: Tensor, rank: int) -> dist.Work | None:
        expected.append(into)
        return irecv(into, rank)

    def watched(lr: float, factors: Sequence[float]) -> None:
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(ranks, "send", sending)
            meanwhile.setattr(dist, "irecv", expecting)
            step(lr, factors)

    monkeypatch.setattr(sharded, "step", watched)
    train_share(led, 0)
    assert not posted
    others = [led.params[name].data_ptr() for own in sharded._plan.owned[1:] for name in own]
    assert [into.data_ptr() for into in expected] == others * 3, "in place, in each of three steps"


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["adamw", "muon"])
def test_saved_moments_continue_on_other_ranks(ranks: Ranks, inner: str) -> None:
    """The private state's file does not depend on the number of ranks."""
    alone, led = replica_pair(ranks, "llama", 0, 1, inner_settings(inner))
    for number in range(2):
        for replica in (alone, led):
            apply(replica, train_share(replica, number).payloads)
    state = led.optimizer.state()
    assert any(name.startswith("private.") for name in state)
    expected = train_share(alone, 2).payloads
    weights = {name: tensor.detach().clone() for name, tensor in led.params.items()}
    with torch.no_grad():
        _, later = replica_pair(ranks, "llama", 0, 1, inner_settings(inner))
        for name, tensor in weights.items():
            later.params[name].copy_(tensor)
    later.optimizer.restore(state)
    assert bits(later.optimizer.state()) == bits(state)
    assert train_share(later, 2).payloads == expected
    later.optimizer.reset()
    assert not any(name.startswith("private.") for name in later.optimizer.state())


@pytest.mark.slow
@pytest.mark.parametrize("inner", INNER)
def test_misshapen_inner_state_changes_nothing(ranks: Ranks, inner: str) -> None:
    _, led = replica_pair(ranks, "llama", 1, 1, inner_settings(inner))
    train_share(led, 0)
    before = led.optimizer.state()
    of_another_rank = tuple(sharded_inner(led)._plan.owned[1])
    first, second, *_, last = [
        n for n in before if n.startswith("private.") and n.endswith(of_another_rank)
    ]
    without_first = {name: tensor for name, tensor in before.items() if name != first}
    for wrong in (without_first, {second: before[second][None]}, {last: before[last].double()}):
        with pytest.raises(BadState):
            led.optimizer.restore(wrong if wrong is without_first else before | wrong)
    spoilt = next(name for name in before if name.startswith("result.residual"))
    with pytest.raises(BadState):
        led.optimizer.restore(before | {spoilt: torch.full_like(before[spoilt], torch.nan)})
    assert bits(led.optimizer.state()) == bits(before)


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["adamw", "muon"])
def test_large_moments_have_one_root_over_all_ranks(
    ranks: Ranks, inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "wide", WIDE)
    alone, led = replica_pair(ranks, "wide", 0, 1, inner_settings(inner))
    for replica in (alone, led):
        train_share(replica, 0)
    assert led.optimizer.sizes() == alone.optimizer.sizes()
    assert led.optimizer.tree().root == alone.optimizer.tree().root
    state = alone.optimizer.state()
    moments = [tensor for name, tensor in state.items() if name.startswith("private.")]
    assert max(tensor.nbytes for tensor in moments) > BLOCK
    assert bits(led.optimizer.state()) == bits(state)


@pytest.mark.slow
def test_ranks_hold_only_last_replicas_moments(ranks: Ranks) -> None:
    _, led = replica_pair(ranks, "llama", 0, 1, inner_settings("muon"))
    train_share(led, 0)
    _, next_one = replica_pair(ranks, "llama", 0, 1, inner_settings("muon"))
    for read in (led.optimizer.tree, led.optimizer.state):
        with pytest.raises(RuntimeError, match="the state of another replica"):
            read()
    train_share(next_one, 0)


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["adamw", "muon"])
def test_rank_holds_only_its_share_of_moments(
    ranks: Ranks, inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "wide", WIDE | {"num_hidden_layers": 8, "vocab_size": 100})
    _, led = replica_pair(ranks, "wide", 0, 1, inner_settings(inner))
    train_share(led, 0)
    whole = sum(size for name, size in led.optimizer.sizes().items() if name.startswith("private."))
    sharded = sharded_inner(led)
    first = sum(tensor.nbytes for tensor in sharded.moments().values())
    assert first * ranks.size == pytest.approx(whole, rel=0.1)
    assert not sharded._before, "the copies of a share that is trained are dropped"
    assert ranks.reserved == 2 * first, "which is kept free when passes are measured"


@pytest.mark.slow
def test_replica_without_inner_steps_reserves_no_memory(ranks: Ranks) -> None:
    replica_pair(ranks, "llama", 0, 1, inner_settings("adamw"))
    assert ranks.reserved > 0
    replica_pair(ranks, "llama", 0, 1)
    assert ranks.reserved == 0


@pytest.mark.slow
def test_ranks_after_failure_train_next_replica(ranks: Ranks) -> None:
    """A pending undo is not applied to the next replica."""
    _, led = replica_pair(ranks, "llama", 0, 1, inner_settings("adamw"))

    def fail(part: Tensor) -> float:
        raise Cancelled

    with pytest.raises(Cancelled):
        led.optimizer.train(share(4), fail, RATE, RATE)
    alone, later = replica_pair(ranks, "llama", 0, 1, inner_settings("adamw"))
    for number in range(2):
        assert train_share(later, number).payloads == train_share(alone, number).payloads


NAMES = st.sampled_from(
    ["model.layers.{}.mlp.up_proj.weight", "model.layers.{}.input_layernorm.weight"]
)
EDGES = st.integers(1, 300)
SHAPES = st.dictionaries(
    st.builds(lambda name, number: name.format(number), NAMES, st.integers(0, 30)),
    st.lists(EDGES, min_size=1, max_size=3).map(tuple),
)


@given(SHAPES, st.booleans(), st.integers(1, 9))
def test_tensors_are_assigned_once_and_evenly(
    shapes: dict[str, tuple[int, ...]], orthogonal: bool, ranks: int
) -> None:
    owned = split_moments(shapes, orthogonal, ranks)
    assert sorted(name for own in owned for name in own) == sorted(shapes)
    assert owned == split_moments(dict(reversed(shapes.items())), orthogonal, ranks), (
        "in whatever order they come"
    )
    hidden = {
        name for name, shape in shapes.items() if orthogonal and is_hidden_matrix(name, shape)
    }
    work = {name: prod(shapes[name]) * min(shapes[name][-2:]) for name in hidden}
    each = [sum(work[name] for name in own if name in hidden) for own in owned]
    assert max(each) - min(each) <= max(work.values(), default=0)
    if not hidden:
        numbers = [sum(prod(shapes[name]) for name in own) for own in owned]
        assert max(numbers) - min(numbers) <= max(map(prod, shapes.values()), default=0)


def test_matrix_weight_equals_its_orthogonalisation_cost() -> None:
    """A long matrix has twice the elements of a square one, and half the cost."""
    shapes = {"model.layers.0.long.weight": (2, 64)} | {
        f"model.layers.{n}.square.weight": (8, 8) for n in range(3)
    }
    long, *square = shapes
    assert split_moments(shapes, True, 2) == [[square[0], square[2]], [square[1], long]]


@pytest.mark.parametrize("inner", ["adamw", "muon"])
def test_assigned_moments_equal_trained_parameters(inner: str) -> None:
    for model in MODELS:
        config = config_of(MODELS[model])
        schema = build_schema(config.to_hf(), 3, inner_settings(inner))
        for tier in range(3):
            shapes, orthogonal = inner_shapes(schema, tier)
            learnt = {
                n: s for n, s in config.parameter_shapes(tier).items() if not config.balances(n)
            }
            assert shapes == learnt, (model, tier)
            assert orthogonal == (inner == "muon")
