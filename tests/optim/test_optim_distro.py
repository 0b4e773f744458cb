"""DisTrO: its state against a plain transcription of the formulas, its safety, and replicas that stay equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from aftermath.model.llama import Llama
from aftermath.model.schema import Schema, SchemaError
from aftermath.model.segments import SegmentError, level_hash, view
from aftermath.optim.clip import NonFiniteGradient
from aftermath.optim.codec import decode_level
from aftermath.optim.distro import Distro
from optim.optim_oracle import RAGGED, cut_blocks, joined, oracle_signs, real_basis, toy_schema


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def full_tensors(schema: Schema, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    model = Llama(schema.config, 0)
    return {name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}


def sliced(schema: Schema, tier: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tier's own copy: every elastic tensor cut to its width."""
    own = {}
    for segment in schema.of_level(schema.levels - 1):
        tensor = tensors[segment.name]
        if segment.dim is not None:
            tensor = tensor.narrow(segment.dim, 0, schema.widths[tier])
        own[segment.name] = tensor.clone()
    return own


def replica(schema: Schema, tier: int, seed: int = 0) -> tuple[dict[str, Tensor], Distro]:
    params = sliced(schema, tier, full_tensors(schema, seed))
    return params, Distro(schema, tier, params)


def gradients(schema: Schema, tier: int, seed: int) -> dict[str, Tensor]:
    return sliced(schema, tier, full_tensors(schema, 1000 + seed))


def bits(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


@pytest.mark.parametrize("sizes", [{}, RAGGED], ids=["whole blocks", "padded blocks"])
@pytest.mark.parametrize("one_bit", [True, False])
def test_replicas_of_all_tiers_stay_equal(one_bit: bool, sizes: dict[str, int]) -> None:
    """Members of tiers 0, 1, 2, 1; who trains and whose result counts changes from round to round."""
    schema = toy_schema(quantize_1bit=one_bit, weight_decay=0.1, topk_embeddings=9, **sizes)
    tiers = [0, 1, 2, 1]
    members = [replica(schema, tier) for tier in tiers]
    start = bits(members[0][0])
    for step in range(25):
        accepted: dict[int, list[bytes]] = {level: [] for level in range(schema.levels)}
        for slot, (tier, (_, distro)) in enumerate(zip(tiers, members, strict=True)):
            if (step + slot) % 4 == 0:
                continue
            with distro.lookahead(1e-3):
                grads = gradients(schema, tier, 10 * step + slot)
            for level, data in distro.encode(grads, 1e-3).items():
                if step % 5 != level:
                    accepted[level].append(data)
        for slot, (tier, (_, distro)) in enumerate(zip(tiers, members, strict=True)):
            order = accepted if slot % 2 else {level: data[::-1] for level, data in accepted.items()}
            held = range(tier, schema.levels)
            distro.apply({level: [decode_level(d, schema, level) for d in order[level]] for level in held}, 1e-3)
        for level in range(schema.levels):
            hashes = {
                level_hash(params, schema, level) for t, (params, _) in zip(tiers, members, strict=True) if t <= level
            }
            assert len(hashes) == 1
    assert bits(members[0][0]) != start


@pytest.mark.parametrize("sizes", [{}, RAGGED], ids=["whole blocks", "padded blocks"])
def test_apply_is_the_formula_with_only_the_holders_of_a_level_counted(sizes: dict[str, int]) -> None:
    schema = toy_schema(weight_decay=0.01, **sizes)
    lr = 0.0123
    params, distro = replica(schema, 0)
    before = {name: tensor.clone() for name, tensor in params.items()}
    senders = [(0, 1), (1, 2), (2, 3), (2, 4)]
    results: dict[int, list] = {level: [] for level in range(3)}
    for tier, seed in senders:
        for level, data in replica(schema, tier)[1].encode(gradients(schema, tier, seed), lr).items():
            results[level].append(decode_level(data, schema, level))
    assert [len(results[level]) for level in range(3)] == [1, 2, 4]
    distro.apply(results, lr)
    for level, votes in results.items():
        for segment, sign in zip(schema.of_level(level), oracle_signs(votes, schema, level), strict=True):
            old = view(before, segment).numpy()
            kept = old * np.float32(1 - lr * 0.01)
            expected = kept - np.float32(lr) * joined(sign, segment).astype(np.float32)
            assert np.array_equal(view(params, segment).numpy(), expected)


@pytest.mark.parametrize("sizes", [{}, RAGGED], ids=["whole blocks", "padded blocks"])
def test_state_follows_the_formulas(sizes: dict[str, int]) -> None:
    """Three rounds of delta and of the kept coefficients, with plain float64 matrices; padding returns to zero."""
    schema = toy_schema(quantize_1bit=False, decay=0.9, **sizes)
    _, distro = replica(schema, 1)
    name = "model.layers.0.mlp.gate_proj.weight"
    segment = next(s for s in schema.of_level(1) if s.name == name)
    tall, wide = (torch.tensor(np.array(real_basis(edge), dtype=np.float64)) for edge in segment.chunk)
    delta = torch.zeros(segment.blocks, *segment.chunk, dtype=torch.float64)
    own = torch.tensor(cut_blocks(np.ones(segment.shape), segment))  # 0 in the padding
    sent = torch.zeros_like(delta)
    for step, lr in enumerate((0.5, 0.25, 0.125)):
        grads = gradients(schema, 1, step)
        data = distro.encode(grads, lr)[1]
        new = torch.from_numpy(cut_blocks(view(grads, segment).numpy(), segment)).double()
        delta = (delta - tall.T @ sent @ wide) * own * 0.9 + lr * new
        coefficients = (tall @ delta @ wide.T).flatten(1)
        best = coefficients.abs().topk(4, dim=1).indices
        sent = torch.zeros_like(coefficients).scatter_(1, best, coefficients.gather(1, best)).view(delta.shape)
        part = next(p for p in distro._layouts[1].parts if p.segment == segment)
        assert torch.allclose(distro._delta(1, part).double(), delta, atol=1e-5)
        base = distro._layouts[1].groups[part.group].base + part.first * segment.block
        votes = decode_level(data, schema, 1)
        got = torch.zeros_like(coefficients).flatten()
        mine = (votes.positions >= base) & (votes.positions < base + got.numel())
        got[votes.positions[mine] - base] = votes.values[mine].double()
        assert torch.allclose(got.view(sent.shape), sent, atol=1e-5)


def test_one_bit_subtracts_the_unquantised_values() -> None:
    """With the same gradients delta is the same whether signs or floats were sent."""
    states = []
    for one_bit in (True, False):
        schema = toy_schema(quantize_1bit=one_bit)
        _, distro = replica(schema, 0)
        for step in range(3):
            distro.encode(gradients(schema, 0, step), 0.1)
        states.append([delta for deltas in distro._deltas.values() for delta in deltas])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


class _Boom(Exception):
    pass


@pytest.mark.parametrize("fails", [False, True])
def test_lookahead_restores_every_bit(fails: bool) -> None:
    schema = toy_schema()
    params, distro = replica(schema, 1)
    params["model.norm.weight"][:4] = torch.tensor([-0.0, 1e-42, 3e38, 1e-30])
    distro.encode(gradients(schema, 1, 0), 0.1)
    before = bits(params)
    try:
        with distro.lookahead(0.3):
            during = {name: tensor.clone() for name, tensor in params.items()}
            if fails:
                raise _Boom
    except _Boom:
        assert fails
    assert bits(params) == before
    name = "model.layers.0.mlp.down_proj.weight"
    moved = (params[name] - during[name]).abs()
    assert torch.allclose(moved[moved > 0], torch.tensor(0.3), atol=1e-5)
    assert (moved > 0).float().mean() > 0.99


def test_fresh_state_looks_nowhere_and_reset_returns_to_it() -> None:
    schema = toy_schema()
    params, distro = replica(schema, 0)
    first = distro.encode(gradients(schema, 0, 0), 0.1)
    distro.encode(gradients(schema, 0, 1), 0.1)
    distro.reset()
    before = bits(params)
    with distro.lookahead(0.5):
        assert bits(params) == before
    assert distro.encode(gradients(schema, 0, 0), 0.1) == first


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e31])
def test_bad_gradient_is_refused_and_changes_nothing(value: float) -> None:
    schema = toy_schema()
    (_, distro), (_, untouched) = replica(schema, 0), replica(schema, 0)
    for each in (distro, untouched):
        each.encode(gradients(schema, 0, 0), 0.1)
    bad = gradients(schema, 0, 1)
    bad["model.layers.0.mlp.up_proj.weight"][7, 3] = value
    with pytest.raises(NonFiniteGradient, match=r"model\.layers\.0\.mlp\.up_proj\.weight"):
        distro.encode(bad, 0.1)
    good = gradients(schema, 0, 1)
    assert distro.encode(good, 0.1) == untouched.encode(good, 0.1)


def test_missing_gradient_is_refused_and_changes_nothing() -> None:
    schema = toy_schema()
    (_, distro), (_, untouched) = replica(schema, 0), replica(schema, 0)
    grads = gradients(schema, 0, 0)
    with pytest.raises(SegmentError, match=r"model\.norm\.weight"):
        distro.encode({name: g for name, g in grads.items() if name != "model.norm.weight"}, 0.1)
    assert distro.encode(grads, 0.1) == untouched.encode(grads, 0.1)


def test_zero_gradients_vote_for_nothing() -> None:
    schema = toy_schema()
    _, distro = replica(schema, 0)
    grads = gradients(schema, 0, 0)
    for segment in schema.of_level(0):
        view(grads, segment).zero_()
    results = distro.encode(grads, 0.1)
    assert len(decode_level(results[0], schema, 0).positions) == 0
    assert len(decode_level(results[1], schema, 1).positions) > 0


def test_weight_decay_happens_once_whatever_was_received() -> None:
    schema = toy_schema(weight_decay=0.1)
    params, distro = replica(schema, 2)
    before = {name: tensor.clone() for name, tensor in params.items()}
    distro.apply({2: []}, 0.01)
    assert all(torch.equal(params[name], before[name] * np.float32(1 - 0.01 * 0.1).item()) for name in params)
    distro.apply({}, 0.0)
    assert all(torch.equal(params[name], before[name] * np.float32(1 - 0.01 * 0.1).item()) for name in params)


@pytest.mark.parametrize("lr", [float("nan"), float("inf"), -0.1])
def test_bad_learning_rate(lr: float) -> None:
    params, distro = replica(toy_schema(), 2)
    before = bits(params)
    with pytest.raises(ValueError, match="finite"):
        distro.apply({}, lr)
    with pytest.raises(ValueError, match="finite"), distro.lookahead(lr):
        pass
    assert bits(params) == before


def test_apply_is_refused_for_other_levels_and_while_looking_ahead() -> None:
    schema = toy_schema()
    params, distro = replica(schema, 1)
    votes = decode_level(replica(schema, 0)[1].encode(gradients(schema, 0, 0), 0.1)[0], schema, 0)
    before = bits(params)
    with pytest.raises(ValueError, match=r"\[0\], which are not held"):
        distro.apply({0: [votes]}, 0.1)
    with pytest.raises(ValueError, match="level 1"):
        distro.apply({2: [], 1: [votes]}, 0.1)
    with distro.lookahead(0.1), pytest.raises(RuntimeError, match="looking ahead"):
        distro.apply({}, 0.1)
    assert bits(params) == before


def test_wrong_tensors_are_refused_at_once() -> None:
    schema = toy_schema()
    with pytest.raises(SegmentError):
        Distro(schema, 0, sliced(schema, 1, full_tensors(schema, 0)))
    with pytest.raises(SchemaError):
        Distro(schema, 3, full_tensors(schema, 0))
