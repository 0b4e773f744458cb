"""DisTrO: its state against the formulas, refusals that change nothing, and equal replicas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from aftermath.base.errors import SchemaError
from aftermath.model.segments import SegmentError, level_hash, view
from aftermath.optim.codec import decode_level
from aftermath.optim.engine import Engine
from aftermath.optim.gradient_clip import NonFiniteGradient
from aftermath.optim.layout import level_layout
from optim.optim_oracle import RAGGED, cut_blocks, joined, oracle_signs, real_basis, toy_schema
from optim.optim_replica import SEQUENCES, bits, encode, gradients, replica, tensors


@pytest.mark.parametrize("sizes", [{}, RAGGED], ids=["whole blocks", "padded blocks"])
@pytest.mark.parametrize("one_bit", [True, False])
def test_replicas_of_all_tiers_stay_equal(one_bit: bool, sizes: dict[str, int]) -> None:
    """Members have tiers 0, 1, 2 and 1. Trainers and accepted results change every round."""
    schema = toy_schema(quantize_1bit=one_bit, weight_decay=0.1, topk_embeddings=9, **sizes)
    tiers = [0, 1, 2, 1]
    members = [replica(schema, tier) for tier in tiers]
    start = bits(members[0][0])
    for step in range(10):
        accepted: dict[int, list[bytes]] = {level: [] for level in range(schema.state.levels)}
        for seat, (tier, (_, engine)) in enumerate(zip(tiers, members, strict=True)):
            if (step + seat) % 4 == 0:
                continue
            for level, data in encode(
                engine, gradients(schema, tier, 10 * step + seat), 1e-3, 1e-3
            ).items():
                if step % 5 != level:
                    accepted[level].append(data)
        for seat, (tier, (_, engine)) in enumerate(zip(tiers, members, strict=True)):
            order = (
                accepted if seat % 2 else {level: data[::-1] for level, data in accepted.items()}
            )
            levels = range(tier, schema.state.levels)
            votes = {
                level: [decode_level(d, schema.results, level) for d in order[level]]
                for level in levels
            }
            engine.apply(votes, 1e-3)
        for level in range(schema.state.levels):
            hashes = {
                level_hash(params, schema.state, level)
                for t, (params, _) in zip(tiers, members, strict=True)
                if t <= level
            }
            assert len(hashes) == 1
    assert bits(members[0][0]) != start


@pytest.mark.parametrize("sizes", [{}, RAGGED], ids=["whole blocks", "padded blocks"])
def test_apply_counts_only_holders_of_a_level(sizes: dict[str, int]) -> None:
    schema = toy_schema(weight_decay=0.01, **sizes)
    lr = 0.0123
    params, engine = replica(schema, 0)
    before = {name: tensor.clone() for name, tensor in params.items()}
    senders = [(0, 1), (1, 2), (2, 3), (2, 4)]
    results: dict[int, list] = {level: [] for level in range(3)}
    for tier, seed in senders:
        for level, data in encode(
            replica(schema, tier)[1], gradients(schema, tier, seed), lr
        ).items():
            results[level].append(decode_level(data, schema.results, level))
    assert [len(results[level]) for level in range(3)] == [1, 2, 4]
    engine.apply(results, lr)
    for level, votes in results.items():
        cut = schema.results.of_level(level)
        for blocks, sign in zip(cut, oracle_signs(votes, schema.results, level), strict=True):
            old = view(before, blocks.segment).numpy()
            decayed = old * np.float32(1 - lr * 0.01)
            expected = decayed - np.float32(lr) * joined(sign, blocks).astype(np.float32)
            assert np.array_equal(view(params, blocks.segment).numpy(), expected)


@pytest.mark.parametrize("sizes", [{}, RAGGED], ids=["whole blocks", "padded blocks"])
def test_distro_state_equals_the_float64_formulas(sizes: dict[str, int]) -> None:
    """Compare three rounds of residual and kept coefficients with float64 matrices. Padding returns
    to zero.
    """
    schema = toy_schema(quantize_1bit=False, decay=0.9, **sizes)
    _, engine = replica(schema, 1)
    name = "model.layers.0.mlp.gate_proj.weight"
    cut = next(b for b in schema.results.of_level(1) if b.segment.name == name)
    feedback = engine._result
    part = next(part for part, _ in feedback.residual() if part.blocks == cut)
    tall, wide = (torch.tensor(np.array(real_basis(edge), dtype=np.float64)) for edge in cut.edges)
    delta = torch.zeros(cut.count, *cut.edges, dtype=torch.float64)
    own = torch.tensor(cut_blocks(np.ones(cut.segment.shape), cut))  # 0 in the padding
    sent = torch.zeros_like(delta)
    for step, lr in enumerate((0.5, 0.25, 0.125)):
        grads = gradients(schema, 1, step)
        data = encode(engine, grads, lr)[1]
        new = torch.from_numpy(cut_blocks(view(grads, cut.segment).numpy(), cut)).double()
        delta = (delta - tall.T @ sent @ wide) * own * 0.9 + lr * new
        coefficients = (tall @ delta @ wide.T).flatten(1)
        best = coefficients.abs().topk(4, dim=1).indices
        sent = (
            torch.zeros_like(coefficients)
            .scatter_(1, best, coefficients.gather(1, best))
            .view(delta.shape)
        )
        actual = next(residual for part, residual in feedback.residual() if part.blocks == cut)
        assert torch.allclose(actual.double(), delta, atol=1e-5)
        base = level_layout(schema.results, 1).groups[part.group].base + part.first * cut.size
        votes = decode_level(data, schema.results, 1)
        got = torch.zeros_like(coefficients).flatten()
        mine = (votes.positions >= base) & (votes.positions < base + got.numel())
        got[votes.positions[mine] - base] = votes.values[mine].double()
        assert torch.allclose(got.view(sent.shape), sent, atol=1e-5)


def test_one_bit_subtracts_the_unquantised_values() -> None:
    """With equal gradients the residual is the same for sign and float votes."""
    states = []
    for one_bit in (True, False):
        schema = toy_schema(quantize_1bit=one_bit)
        _, engine = replica(schema, 0)
        for step in range(3):
            encode(engine, gradients(schema, 0, step), 0.1)
        states.append(
            {name: tensor for name, tensor in engine.state().items() if "residual" in name}
        )
    assert states[0]
    assert bits(states[0]) == bits(states[1])


class _Boom(Exception):
    pass


@pytest.mark.parametrize("fails", [False, True])
def test_lookahead_restores_every_bit(fails: bool) -> None:
    schema = toy_schema()
    params, engine = replica(schema, 1)
    params["model.norm.weight"][:4] = torch.tensor([-0.0, 1e-42, 3e38, 1e-30])
    encode(engine, gradients(schema, 1, 0), 0.1)
    before = bits(params)
    learnt = bits(engine.state())
    during = {}

    def backward(_: Tensor) -> float:
        during.update({name: tensor.clone() for name, tensor in params.items()})
        if fails:
            raise _Boom
        for name, gradient in gradients(schema, 1, 1).items():
            params[name].grad = gradient
        return 0.0

    try:
        engine.train(SEQUENCES, backward, 0.1, 0.3)
    except _Boom:
        assert fails
        assert bits(engine.state()) == learnt
    assert bits(params) == before
    name = "model.layers.0.mlp.down_proj.weight"
    changes = (params[name] - during[name]).abs()
    assert torch.allclose(changes[changes > 0], torch.tensor(0.3), atol=1e-5)
    assert (changes > 0).float().mean() > 0.99


def test_reset_returns_to_a_state_without_lookahead() -> None:
    schema = toy_schema()
    params, engine = replica(schema, 0)
    first = encode(engine, gradients(schema, 0, 0), 0.1)
    encode(engine, gradients(schema, 0, 1), 0.1)
    engine.reset()
    before = bits(params)

    def backward(_: Tensor) -> float:
        assert bits(params) == before
        for name, gradient in gradients(schema, 0, 0).items():
            params[name].grad = gradient
        return 0.0

    assert engine.train(SEQUENCES, backward, 0.1, 0.5).payloads == first


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e31])
def test_bad_gradient_is_refused_and_changes_nothing(value: float) -> None:
    schema = toy_schema()
    _, engine = replica(schema, 0)
    _, untouched = replica(schema, 0)
    for each in (engine, untouched):
        encode(each, gradients(schema, 0, 0), 0.1)
    bad = gradients(schema, 0, 1)
    bad["model.layers.0.mlp.up_proj.weight"][7, 3] = value
    with pytest.raises(NonFiniteGradient, match=r"model\.layers\.0\.mlp\.up_proj\.weight"):
        encode(engine, bad, 0.1)
    good = gradients(schema, 0, 1)
    assert encode(engine, good, 0.1) == encode(untouched, good, 0.1)


def test_missing_gradient_is_refused_and_changes_nothing() -> None:
    schema = toy_schema()
    _, engine = replica(schema, 0)
    _, untouched = replica(schema, 0)
    grads = gradients(schema, 0, 0)
    with pytest.raises(SegmentError, match=r"model\.norm\.weight"):
        encode(engine, {name: g for name, g in grads.items() if name != "model.norm.weight"}, 0.1)
    assert encode(engine, grads, 0.1) == encode(untouched, grads, 0.1)


def test_zero_gradients_give_no_votes() -> None:
    schema = toy_schema()
    _, engine = replica(schema, 0)
    grads = gradients(schema, 0, 0)
    for segment in schema.state.of_level(0):
        view(grads, segment).zero_()
    results = encode(engine, grads, 0.1)
    assert len(decode_level(results[0], schema.results, 0).positions) == 0
    assert len(decode_level(results[1], schema.results, 1).positions) > 0


def test_weight_decay_happens_once_per_applied_round() -> None:
    schema = toy_schema(weight_decay=0.1)
    params, engine = replica(schema, 2)
    before = {name: tensor.clone() for name, tensor in params.items()}
    engine.apply({2: []}, 0.01)
    assert all(
        torch.equal(params[name], before[name] * np.float32(1 - 0.01 * 0.1).item())
        for name in params
    )
    engine.apply({}, 0.0)
    assert all(
        torch.equal(params[name], before[name] * np.float32(1 - 0.01 * 0.1).item())
        for name in params
    )


@pytest.mark.parametrize("lr", [float("nan"), float("inf"), -0.1])
def test_nonfinite_learning_rate_is_refused(lr: float) -> None:
    params, engine = replica(toy_schema(), 2)
    before = bits(params)
    with pytest.raises(ValueError, match="finite"):
        engine.apply({}, lr)
    with pytest.raises(ValueError, match="finite"):
        encode(engine, gradients(toy_schema(), 2, 0), 0.1, lr)
    with pytest.raises(ValueError, match="finite"):
        encode(engine, gradients(toy_schema(), 2, 0), lr)
    assert bits(params) == before


def test_apply_is_refused_for_other_levels_and_during_training() -> None:
    schema = toy_schema()
    params, engine = replica(schema, 1)
    votes = decode_level(
        encode(replica(schema, 0)[1], gradients(schema, 0, 0), 0.1)[0], schema.results, 0
    )
    before = bits(params)
    with pytest.raises(ValueError, match=r"does not hold levels \[0\]"):
        engine.apply({0: [votes]}, 0.1)
    with pytest.raises(ValueError, match="level 1"):
        engine.apply({2: [], 1: [votes]}, 0.1)
    with pytest.raises(RuntimeError, match="while a share is being trained"):
        engine.train(SEQUENCES, lambda _: engine.apply({}, 0.1) or 0.0, 0.1, 0.1)
    assert bits(params) == before
    engine.apply({}, 0.1)


def test_engine_with_wrong_tensors_is_refused() -> None:
    schema = toy_schema()
    with pytest.raises(SegmentError):
        Engine(schema, 0, tensors(schema, 1, 0))
    with pytest.raises(SchemaError):
        Engine(schema, 3, tensors(schema, 0, 0))
