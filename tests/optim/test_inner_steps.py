"""SparseLoCo: inner steps against a plain loop, undo after errors, and equal replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aftermath.model.segments import level_hash, view
from aftermath.optim.codec import decode_level
from aftermath.optim.engine import Engine
from aftermath.optim.gradient_clip import NonFiniteGradient, clip_gradients
from aftermath.optim.inner_optimizer import BETAS
from aftermath.optim.interfaces import BadState, PseudoGradient
from aftermath.optim.lattice import SMALLEST, quantise
from aftermath.optim.layout import level_layout
from aftermath.optim.level_votes import DenseVotes
from aftermath.optim.muon import Muon, MuonSettings
from aftermath.optim.schema import Schema
from optim.optim_oracle import RAGGED, cut_blocks, toy_inner
from optim.optim_replica import bits, encode, gradients, replica, tensors

SEQUENCES = torch.arange(7 * 2).view(7, 2)
Grads = Callable[[Tensor], dict[str, Tensor]]


class Boom(Exception):
    """An error that cancels a share."""


def pull(schema: Schema, tier: int, params: dict[str, Tensor]) -> Callable[[Tensor], float]:
    """Return a backward whose gradient depends on the weights and on the trained sequences."""

    def backward(part: Tensor) -> float:
        own = gradients(schema, tier, int(part[0, 0]))
        for name, tensor in params.items():
            tensor.grad = 0.3 * tensor.detach() + own[name]
        return float(part[0, 0])

    return backward


def plain(
    schema: Schema,
    tier: int,
    params: dict[str, Tensor],
    rounds: list[tuple[list[Tensor], float]],
    inner: str,
) -> list[dict[str, Tensor]]:
    """Return start - end of every round, by torch's AdamW or by Muon, from the same weights."""
    optimizer: torch.optim.Optimizer = (
        Muon(params, 0.0, MuonSettings(weight_decay=0.1, betas=BETAS))
        if inner == "muon"
        else torch.optim.AdamW(params.values(), lr=0.0, betas=BETAS, weight_decay=0.1, fused=True)
    )
    changes = []
    for parts, lr in rounds:
        start = {name: tensor.clone() for name, tensor in params.items()}
        for group in optimizer.param_groups:
            group["lr"] = lr
        for part in parts:
            pull(schema, tier, params)(part)
            clip_gradients({name: t.grad for name, t in params.items() if t.grad is not None}, 2.0)
            optimizer.step()
        changes.append({name: start[name] - tensor for name, tensor in params.items()})
        for name, tensor in start.items():
            params[name].copy_(tensor)
    return changes


@pytest.mark.parametrize("inner", ["adamw", "muon"])
def test_pseudo_gradient_is_the_inner_optimizers_change(inner: str) -> None:
    """Train seven sequences in three parts, then two in two. Moments last over rounds."""
    schema = toy_inner(inner_steps=3, inner_optimizer=inner, clip=2.0, weight_decay=0.1)
    params, engine = replica(schema, 1)
    before = bits(params)
    changes = []
    for sequences, lr in ((SEQUENCES, 0.01), (SEQUENCES[:2], 0.02)):
        gradient = engine._step.make(sequences, pull(schema, 1, params), lr, 0.5, travelling=False)
        assert bits(params) == before
        assert gradient.factor == 1.0
        changes.append(gradient.tensors)
    assert gradient.loss == pytest.approx((0 + 2) / 2)
    rounds = [
        ([SEQUENCES[:3], SEQUENCES[3:5], SEQUENCES[5:]], 0.01),
        ([SEQUENCES[:1], SEQUENCES[1:2]], 0.02),
    ]
    expected = plain(schema, 1, tensors(schema, 1, 0), rounds, inner)
    assert [bits(dict(one)) for one in changes] == [bits(one) for one in expected]


@pytest.mark.parametrize("rates", [{}, {"divisor": "all", "outer_lr": 4.0, "orthogonal_lr": 1.5}])
def test_lookahead_applies_the_travelling_result(rates: dict[str, Any]) -> None:
    """A member whose result travels trains like a replica that applied only this result."""
    schema = toy_inner(inner_optimizer="muon", **rates)
    late, ahead = replica(schema, 1)
    others, at_once = replica(schema, 1)
    for own, each in ((late, ahead), (others, at_once)):
        each.train(SEQUENCES, pull(schema, 1, own), 0.02, 0.01)
    shared = bits(late)
    sent = at_once._result.sent()
    at_once.apply(
        {level: [decode_level(data, schema.results, level)] for level, data in sent.items()}, 0.03
    )
    result = ahead.train(SEQUENCES + 1, pull(schema, 1, late), 0.02, 0.03, travelling=True)
    expected = at_once.train(SEQUENCES + 1, pull(schema, 1, others), 0.02, 0.03)
    assert result.payloads == expected.payloads
    assert bits(ahead.state()) == bits(at_once.state())
    assert bits(late) == shared != bits(others)


def test_cancelled_lookahead_restores_the_weights() -> None:
    schema = toy_inner(orthogonal_lr=1.5)
    params, engine = replica(schema, 0)
    engine.train(SEQUENCES, pull(schema, 0, params), 0.02, 0.01)
    before = bits(params)
    learnt = bits(engine.state())
    weights = []

    def backward(_: Tensor) -> float:
        weights.append(bits(params))
        raise Boom

    with pytest.raises(Boom):
        engine.train(SEQUENCES, backward, 0.02, 0.03, travelling=True)
    assert weights[0] != before == bits(params)
    assert bits(engine.state()) == learnt


def test_replica_without_a_result_has_no_lookahead() -> None:
    """`travelling` has no effect before the first result."""
    schema = toy_inner()
    params, engine = replica(schema, 2)
    others, fresh = replica(schema, 2)
    ahead = engine.train(SEQUENCES, pull(schema, 2, params), 0.02, 0.03, travelling=True)
    assert ahead.payloads == fresh.train(SEQUENCES, pull(schema, 2, others), 0.02, 0.03).payloads


def test_loss_is_the_mean_over_the_sequences() -> None:
    schema = toy_inner(inner_steps=3)
    params, engine = replica(schema, 2)
    trained = engine.train(SEQUENCES, pull(schema, 2, params), 0.01, 0.01)
    assert trained.loss == pytest.approx((3 * 0 + 2 * 6 + 2 * 10) / 7)
    assert trained.losses == pytest.approx((0, 6, 10))
    assert trained.tokens == 14
    assert all(tensor.grad is None for tensor in params.values())


@pytest.mark.parametrize("inner", ["adamw", "muon"])
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("why", ["given up", "not finite", "too far"])
def test_failed_share_restores_weights_and_moments(inner: str, step: int, why: str) -> None:
    schema = toy_inner(inner_steps=3, inner_optimizer=inner, clip=None)
    params, engine = replica(schema, 0)
    others, untouched = replica(schema, 0)
    for own, each in ((params, engine), (others, untouched)):
        each.train(SEQUENCES, pull(schema, 0, own), 0.01, 0.01)
    before = bits(params)
    learnt = bits(engine.state())
    count = 0

    def backward(part: Tensor) -> float:
        nonlocal count
        count += 1
        loss = pull(schema, 0, params)(part)
        if count == step:
            if why == "given up":
                raise Boom
            gradient = params["model.norm.weight"].grad
            assert gradient is not None
            gradient[3] = float("nan") if why == "not finite" else 1.0
        return loss

    lr = 1e38 if why == "too far" else 0.01
    with pytest.raises(Boom if why == "given up" else NonFiniteGradient):
        engine.train(SEQUENCES, backward, lr, 0.01)
    assert bits(params) == before
    assert bits(engine.state()) == learnt
    again = [each.train(SEQUENCES, pull(schema, 0, own), 0.01, 0.01).payloads
             for own, each in ((params, engine), (others, untouched))]  # fmt: skip
    assert again[0] == again[1]


@pytest.mark.parametrize("inner", ["adamw", "muon"])
def test_failed_share_is_undone_without_some_gradients(inner: str) -> None:
    schema = toy_inner(inner_steps=3, inner_optimizer=inner)
    params, engine = replica(schema, 0)
    count = 0

    def backward(part: Tensor) -> float:
        nonlocal count
        count += 1
        if count == 6:
            raise Boom
        loss = pull(schema, 0, params)(part)
        params["model.norm.weight"].grad = None
        return loss

    engine.train(SEQUENCES, backward, 0.01, 0.01)
    state = engine.state()
    assert not any(name.endswith("/model.norm.weight") for name in state)
    with pytest.raises(Boom):
        engine.train(SEQUENCES, backward, 0.01, 0.01)
    assert bits(engine.state()) == bits(state)


def test_failed_first_share_leaves_no_moments() -> None:
    _, engine = replica(toy_inner(), 2)

    def backward(_: Tensor) -> float:
        raise Boom

    fresh = bits(engine.state())
    with pytest.raises(Boom):
        engine.train(SEQUENCES, backward, 0.01, 0.01)
    assert bits(engine.state()) == fresh


@pytest.mark.parametrize("sizes", [{}, RAGGED], ids=["whole blocks", "padded blocks"])
@pytest.mark.parametrize("width", [1, 2])
def test_residual_keeps_unsent_coefficients(width: int, sizes: dict[str, int]) -> None:
    """Three rounds of residual and values in float64. Only the sent part leaves the residual."""
    schema = toy_inner(bits=width, decay=0.9, **sizes)
    _, engine = replica(schema, 1)
    name = "model.layers.0.mlp.gate_proj.weight"
    cut = next(b for b in schema.results.of_level(1) if b.segment.name == name)
    residual = torch.zeros(cut.count, cut.size, dtype=torch.float64)
    feedback = engine._result
    for step in range(3):
        changes = {name: tensor * 1e-3 for name, tensor in gradients(schema, 1, step).items()}
        data = compressed(engine, changes)[1]
        new = (
            torch.from_numpy(cut_blocks(view(changes, cut.segment).numpy(), cut))
            .double()
            .flatten(1)
        )
        residual = residual * 0.9 + new
        best = residual.abs().topk(4, dim=1).indices.sort(dim=1).values
        sent = quantise(residual.gather(1, best).float(), width).double()
        part = next(part for part, _ in feedback.residual() if part.blocks == cut)
        base = level_layout(schema.results, 1).groups[part.group].base + part.first * cut.size
        votes = decode_level(data, schema.results, 1)
        got = torch.zeros(cut.count * cut.size, dtype=torch.float64)
        mine = (votes.positions >= base) & (votes.positions < base + got.numel())
        got[votes.positions[mine] - base] = votes.multiples()[mine].double() * SMALLEST
        expected = torch.zeros_like(residual).scatter_(1, best, sent)
        assert torch.equal(got.view(residual.shape), expected)
        residual = residual - expected
        assert residual.abs().max() < 0.02


def compressed(engine: Engine, changes: dict[str, Tensor]) -> dict[int, bytes]:
    """Return the result of a private step's pseudo-gradient."""
    return engine._result.compress(PseudoGradient(changes, 1.0, 0.0))


def test_values_below_the_lattice_stay_in_the_residual() -> None:
    schema = toy_inner()
    _, engine = replica(schema, 0)
    tiny = {name: torch.full_like(t, SMALLEST / 4) for name, t in gradients(schema, 0, 0).items()}
    counts = [
        len(decode_level(compressed(engine, tiny)[0], schema.results, 0).positions)
        for _ in range(6)
    ]
    assert counts[:4] == [0, 0, 0, 0]
    assert counts[4] > 0  # a quarter each with a decay of 0.95: 5 rounds add up to a whole


ONE_BIT = {"bits": 1, "divisor": "all", "outer_lr": 0.8}
MUON = {"inner_optimizer": "muon"}


@pytest.mark.parametrize(
    ("changed", "sizes"),
    [
        pytest.param({}, {}, id="whole blocks"),
        pytest.param(ONE_BIT, RAGGED, id="one bit, padded blocks"),
        pytest.param(MUON, {}, id="muon"),
        pytest.param({}, RAGGED, id="padded blocks", marks=pytest.mark.slow),
        pytest.param(ONE_BIT, {}, id="one bit", marks=pytest.mark.slow),
        pytest.param(MUON, RAGGED, id="muon, padded blocks", marks=pytest.mark.slow),
    ],
)
def test_sparseloco_replicas_of_all_tiers_stay_equal(
    changed: dict[str, Any], sizes: dict[str, int]
) -> None:
    """Members have tiers 0, 1, 2 and 1. Trainers and accepted results change every round."""
    schema = toy_inner(topk_embeddings=9, inner_steps=2, **changed, **sizes)
    tiers = [0, 1, 2, 1]
    members = [replica(schema, tier) for tier in tiers]
    start = bits(members[0][0])
    for step in range(6):
        accepted: dict[int, list[bytes]] = {level: [] for level in range(3)}
        for seat, (tier, (params, engine)) in enumerate(zip(tiers, members, strict=True)):
            if (step + seat) % 4 == 0:
                continue
            share = SEQUENCES[seat : seat + 3] + 10 * step
            for level, data in engine.train(
                share, pull(schema, tier, params), 1e-3, 1e-3
            ).payloads.items():
                if step % 5 != level:
                    accepted[level].append(data)
        for seat, (tier, (_, engine)) in enumerate(zip(tiers, members, strict=True)):
            order = (
                accepted if seat % 2 else {level: data[::-1] for level, data in accepted.items()}
            )
            engine.apply(
                {k: [decode_level(d, schema.results, k) for d in order[k]] for k in range(tier, 3)},
                1e-3,
            )
        for level in range(3):
            hashes = {
                level_hash(p, schema.state, level)
                for t, (p, _) in zip(tiers, members, strict=True)
                if t <= level
            }
            assert len(hashes) == 1
    assert bits(members[0][0]) != start


@pytest.mark.parametrize("inner", ["adamw", "muon"])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_restored_moments_continue_bit_by_bit(inner: str, steps: int) -> None:
    schema = toy_inner(inner_steps=2, inner_optimizer=inner, **RAGGED)
    params, engine = replica(schema, 1)

    def round_of(own: dict[str, Tensor], each: Engine, step: int) -> dict[int, bytes]:
        payloads = each.train(SEQUENCES[:3] + step, pull(schema, 1, own), 1e-2, 1e-2).payloads
        each.apply(
            {
                level: [decode_level(data, schema.results, level)]
                for level, data in payloads.items()
            },
            1e-2,
        )
        return payloads

    for step in range(steps):
        round_of(params, engine, step)
    state = engine.state()
    weights = {name: tensor.clone() for name, tensor in params.items()}
    expected = [round_of(params, engine, step) for step in range(steps, steps + 3)]
    other = Engine(schema, 1, weights)
    other.restore(state)
    assert [round_of(weights, other, step) for step in range(steps, steps + 3)] == expected
    assert bits(weights) == bits(params)
    assert state.keys() >= {"result.residual.1.0"}
    assert any(name.startswith("private.") for name in state) == bool(steps)
    if steps:
        other.restore(state)
        other.reset()
        assert bits(other.state()) == bits(Engine(schema, 1, weights).state())


def filled(key: str, number: float) -> Callable[[dict[str, Tensor]], None]:
    """Return a function that fills a moment of one parameter with a number."""

    def fill(state: dict[str, Tensor]) -> None:
        state[f"private.{key}/model.norm.weight"].fill_(number)

    return fill


SPOILT: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "lacks a moment": lambda state: state.pop("private.exp_avg/model.norm.weight"),
    "has another's": lambda state: state.update(
        {"private.momentum/model.norm.weight": torch.zeros(24)}
    ),
    "shape": lambda state: state.update({"private.exp_avg/model.norm.weight": torch.zeros(3)}),
    "type": lambda state: state.update({"private.step/model.norm.weight": torch.tensor(3)}),
    "not finite": lambda state: state.update(
        {"private.step/model.norm.weight": torch.tensor(np.inf)}
    ),
    "large first moment": filled("exp_avg", 3e38),
    "first moment above its second": filled("exp_avg", 1.0),
    "negative second moment": filled("exp_avg_sq", -1.0),
    "negative count": filled("step", -1.0),
    "half a step": filled("step", 1.5),
    "count beyond float32": filled("step", 2.0**25),
    "of the result": lambda state: state.pop("result.residual.1.0"),
    "of nothing": lambda state: state.update({"other.x": torch.zeros(1)}),
}


@pytest.mark.parametrize("spoil", SPOILT)
def test_mismatched_state_is_refused_and_changes_nothing(spoil: str) -> None:
    schema = toy_inner()
    params, engine = replica(schema, 0)
    others, older = replica(schema, 0)
    for step in range(2):
        engine.train(SEQUENCES + step, pull(schema, 0, params), 1e-2, 1e-2)
    older.train(SEQUENCES, pull(schema, 0, others), 1e-2, 1e-2)
    wrong = older.state()
    before = bits(engine.state())
    SPOILT[spoil](wrong)
    with pytest.raises(BadState):
        engine.restore(wrong)
    assert bits(engine.state()) == before


@pytest.mark.parametrize(
    "fill",
    [
        filled("first", 3e38),
        filled("second", -1.0),
        filled("count", -1),
        filled("count", -(2**62)),
    ],
)
def test_impossible_muon_state_is_refused(fill: Callable[[dict[str, Tensor]], None]) -> None:
    schema = toy_inner(inner_optimizer="muon")
    params, engine = replica(schema, 0)
    engine.train(SEQUENCES, pull(schema, 0, params), 1e-2, 1e-2)
    state = engine.state()
    engine.restore(state)
    fill(state)
    with pytest.raises(BadState):
        engine.restore(state)


@pytest.mark.parametrize("inner", ["adamw", "muon"])
@pytest.mark.parametrize("size", [1e-30, 1e-18, 1.0, 9e18])
def test_moments_of_any_gradients_are_restored(inner: str, size: float) -> None:
    """Gradients that grow by b2 / b1 per step bring first^2 / second near its bound."""
    schema = toy_inner(inner_optimizer=inner, clip=None)
    params, engine = replica(schema, 0)
    for step in range(24):
        gradient = size * (0.9 / 0.95) ** (24 - step)

        def backward(part: Tensor, gradient: float = gradient) -> float:
            for tensor in params.values():
                tensor.grad = torch.full_like(tensor, gradient)
            return 1.0

        engine.train(SEQUENCES[:1], backward, 1e-3, 1e-3)
        engine.restore(engine.state())


def test_share_of_one_sequence_makes_one_step() -> None:
    schema = toy_inner(inner_steps=4, decay=0.0)
    _, engine = replica(schema, 2)
    result = encode(engine, gradients(schema, 2, 0), 0.01)
    assert decode_level(result[2], schema.results, 2).multiples().abs().max() > 0
    assert int(engine.state()["private.step/model.norm.weight"]) == 1


@pytest.mark.parametrize("inner", ["adamw", "muon"])
def test_gradient_whose_square_overflows_is_refused(inner: str) -> None:
    schema = toy_inner(inner_optimizer=inner, clip=None)
    params, engine = replica(schema, 0)

    def backward(part: Tensor) -> float:
        for tensor in params.values():
            tensor.grad = torch.full_like(tensor, 1e20)
        return 1.0

    with pytest.raises(NonFiniteGradient, match="exceeds 1e"):
        engine.train(SEQUENCES, backward, 0.01, 0.01)
    engine.restore(engine.state())


def test_whole_results_take_a_byte_per_number() -> None:
    """Blocks with zeros keep other positions."""
    schema = toy_inner(chunk=4, topk=16, topk_embeddings=16, orthogonal_lr=1.5)
    votes = []
    for seed in range(3):
        _, engine = replica(schema, 2)
        payloads = engine._result.compress(PseudoGradient(gradients(schema, 2, seed), 1.0, 0.0))
        votes.append(decode_level(payloads[2], schema.results, 2))
    first, second, third = votes
    for vote in votes:
        assert isinstance(vote, DenseVotes)
        assert all(own.dtype == torch.int8 for own in vote.digits)
        assert all(
            len(own) == len(of) for own, of in zip(vote.group_shifts, vote.digits, strict=True)
        )
        assert not {"positions", "values", "shifts"} & vars(vote).keys()
    assert torch.equal(first.positions, second.positions)
    assert torch.equal(first.positions, third.positions)
    _, engine = replica(schema, 2)
    holed = gradients(schema, 2, 7)
    holed["model.norm.weight"][0] = 0.0
    other = decode_level(
        engine._result.compress(PseudoGradient(holed, 1.0, 0.0))[2], schema.results, 2
    )
    assert len(other.positions) == len(first.positions) - 1
    again = decode_level(payloads[2], schema.results, 2)
    assert torch.equal(again.positions, first.positions)


@pytest.mark.parametrize("clip", [2.0, None])
def test_queued_gpu_steps_equal_synchronous_steps(
    monkeypatch: pytest.MonkeyPatch, clip: float | None
) -> None:
    schema = toy_inner(inner_steps=3, clip=clip)
    changes = []
    losses = []
    for ahead in (False, True):
        monkeypatch.setattr(
            "aftermath.optim.inner_steps.may_run_ahead", lambda _, ahead=ahead: ahead
        )
        params, engine = replica(schema, 0)
        gradient = engine._step.make(SEQUENCES, pull(schema, 0, params), 0.01, 0.0, False)
        changes.append(gradient.tensors)
        losses.append((gradient.loss, gradient.losses))
    assert losses[1] == losses[0]
    for name, tensor in changes[0].items():
        assert torch.allclose(changes[1][name], tensor, rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize(
    ("number", "loss"),
    [
        (float("nan"), 0.0),
        (float("inf"), 0.0),
        (3e30, 0.0),
        (1.0, float("nan")),
        (1.0, float("inf")),
    ],
)
def test_queued_share_with_bad_loss_is_undone(
    monkeypatch: pytest.MonkeyPatch, number: float, loss: float
) -> None:
    """Losses are checked after the share. A refusal restores weights and moments."""
    monkeypatch.setattr("aftermath.optim.inner_steps.may_run_ahead", lambda _: True)
    schema = toy_inner(inner_steps=3)
    params, engine = replica(schema, 0)
    engine.train(SEQUENCES, pull(schema, 0, params), 0.01, 0.0)
    before = bits(params)
    state = bits(engine.state())

    def backward(part: Tensor) -> float:
        pull(schema, 0, params)(part)
        if int(part[0, 0]):
            return 0.0
        next(iter(params.values())).grad.view(-1)[3] = number  # type: ignore[union-attr]
        return loss

    with pytest.raises(NonFiniteGradient, match=r"loss is|not finite or exceeds"):
        engine.train(SEQUENCES, backward, 0.01, 0.0)
    assert bits(params) == before
    assert bits(engine.state()) == state
