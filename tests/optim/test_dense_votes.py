"""Dense results: their bytes, and the same steps as votes with positions."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aftermath.optim import (
    compiled_dense,
    compiled_sparse,
    dense_votes,
    digits,
    packed_dense,
    sparseloco_apply,
)
from aftermath.optim.blocks import UNUSED
from aftermath.optim.codec import BadPayload, decode_level, encode_groups, encode_level
from aftermath.optim.engine import Engine
from aftermath.optim.error_feedback import ErrorFeedback, entries_of
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.lattice import LARGEST, SMALLEST
from aftermath.optim.layout import level_layout
from aftermath.optim.level_kernels import LevelTensors
from aftermath.optim.level_votes import DenseVotes, Votes
from aftermath.optim.schema import Schema
from aftermath.optim.transform import subtract
from optim.optim_oracle import RAGGED, toy_inner
from optim.optim_replica import bits, gradients, tensors

EVERYTHING = {"topk": 4096, "topk_embeddings": 4096}
SCHEMAS = {
    "2 bits": toy_inner(**EVERYTHING),
    "1 bit, padded": toy_inner(bits=1, **EVERYTHING, **RAGGED),
    "over all": toy_inner(divisor="all", **EVERYTHING, **RAGGED),
    "over the root": toy_inner(divisor="root", outer_lr=0.7, **EVERYTHING),
    "polar": toy_inner(orthogonal_lr=1.5, **EVERYTHING, **RAGGED),
}


def results_of(schema: Schema, members: int, holes: float) -> dict[int, list[bytes]]:
    """Return payloads by level, from gradients of which this fraction is zero."""
    payloads: dict[int, list[bytes]] = {level: [] for level in range(schema.results.levels)}
    for member in range(members):
        draws = torch.Generator().manual_seed(member)
        own = ErrorFeedback(schema.results, 0, tensors(schema, 0, 0), 0.9)
        sparse_gradients = {
            name: tensor
            * (torch.rand(tensor.shape, generator=draws) >= holes)
            * 10.0 ** (3 - 2 * member)
            for name, tensor in gradients(schema, 0, member).items()
        }
        for level, data in own.compress(PseudoGradient(sparse_gradients, 0.01, 0.0)).items():
            indices, values = own.entries(level)
            assert data == encode_level(schema.results, level, indices, values)
            payloads[level].append(data)
    return payloads


@pytest.mark.parametrize("holes", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", SCHEMAS)
def test_digits_and_positions_give_the_same_step(name: str, holes: float) -> None:
    schema = SCHEMAS[name]
    sent = results_of(schema, 3, holes)
    votes = {
        level: [decode_level(data, schema.results, level) for data in of]
        for level, of in sent.items()
    }
    assert all(isinstance(vote, packed_dense.HostVotes) for of in votes.values() for vote in of)
    unpacked = {
        level: [
            DenseVotes(level, vote.digits, vote.group_shifts, level_layout(schema.results, level))
            for vote in of
        ]
        for level, of in votes.items()
    }
    placed = {
        level: [Votes(level, vote.positions, vote.values, vote.shifts) for vote in of]
        for level, of in votes.items()
    }
    applied = []
    for taken, counted in ((votes, 0), (unpacked, 1), (placed, 0)):
        params = tensors(schema, 0, 0)
        with mock.patch.object(
            sparseloco_apply.dense_votes, "means", side_effect=dense_votes.means
        ) as means:
            Engine(schema, 0, params)._apply.apply(taken, 0.01)
        assert means.call_count == counted * schema.results.levels
        applied.append(bits(params))
    assert applied[0] == applied[1] == applied[2]
    assert (applied[0] == bits(tensors(schema, 0, 0))) == (holes == 1.0)


@given(
    st.sampled_from(["2 bits", "1 bit, padded"]),
    st.integers(1, 40),
    st.integers(0, 2**32),
    st.integers(0, 43),
    st.integers(0, 43),
    st.integers(0, 42),
    st.booleans(),
)
def test_compiled_count_equals_torch(
    name: str, members: int, seed: int, one: int, other: int, most: int, alike: bool
) -> None:
    schema = SCHEMAS[name]
    layout = level_layout(schema.results, 0)
    value_bits = schema.results.values.bits
    draws = np.random.default_rng(seed)
    known = np.array([0, 1, -1, 3, -3][: 1 + (1 << value_bits)], np.int8)
    low, high = sorted((one, other))
    votes: list[DenseVotes] = []
    payloads = []
    for _ in range(members):
        chosen = [
            torch.from_numpy(draws.choice(known, (group.blocks, group.block)))
            for group in layout.groups
        ]
        group_shifts = [
            torch.from_numpy(draws.integers(low, high + 1, (group.blocks, 1), np.uint8))
            for group in layout.groups
        ]
        votes.append(DenseVotes(0, chosen, group_shifts, layout))
        codes = [
            torch.where((rows != 0).any(1, keepdim=True), by + 1, 0)
            for rows, by in zip(chosen, group_shifts, strict=True)
        ]
        exponents = packed_dense.packed_exponents(layout.canonical(codes).to(torch.uint8))
        data = exponents.numpy().tobytes()
        data += digits.to_bytes(layout.canonical(chosen).numpy(), value_bits)
        vote = decode_level(data, schema.results, 0)
        assert isinstance(vote, packed_dense.HostVotes)
        payloads.append(vote.payload)
    divisors = [2.5] * (members + 1) if alike else [0.3 * n for n in range(members + 1)]
    steps = dense_votes.means(votes, layout, 1 << most, divisors, SMALLEST, torch.device("cpu"))
    counted = [torch.randn(part.segment.shape) for part in layout.parts]
    expected = [tensor.clone() for tensor in counted]
    stores = [number % 2 == 1 for number in range(len(counted))]
    table = LevelTensors(layout, counted, stores=stores)
    compiled_dense.count(payloads, table, value_bits, 1 << most, divisors, SMALLEST)
    for part, tensor, stored in zip(layout.parts, expected, stores, strict=True):
        if stored:
            tensor.zero_().neg_()
        subtract(tensor, part.of(steps[part.group]), part.blocks)
    for tensor, expected_tensor, stored in zip(counted, expected, stores, strict=True):
        assert torch.equal(tensor, -expected_tensor if stored else expected_tensor)


@given(
    st.sampled_from(["2 bits", "1 bit, padded"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 255),
    st.booleans(),
)
def test_corrupted_payload_gives_same_verdict_as_torch(
    name: str, where: float, flipped: int, values: bool
) -> None:
    schema = SCHEMAS[name]
    data = bytearray(results_of(schema, 1, 0.9)[0][0])
    between = schema.results.value_bytes(0)
    data[int(where * between) if values else between + int(where * (len(data) - between))] ^= (
        flipped
    )
    verdicts: list[object] = []
    for works in (True, False):
        with mock.patch.object(compiled_sparse, "works", return_value=works):
            try:
                vote = decode_level(data, schema.results, 0)
            except BadPayload as error:
                verdicts.append(str(error))
            else:
                assert isinstance(vote, packed_dense.HostVotes) == works
                assert isinstance(vote, DenseVotes)
                verdicts.append([tensor.tolist() for tensor in (*vote.digits, *vote.group_shifts)])
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize("name", ["2 bits", "1 bit, padded"])
def test_compiled_encoding_equals_choice_by_index(name: str) -> None:
    schema = SCHEMAS[name]
    one, other = (ErrorFeedback(schema.results, 0, tensors(schema, 0, 0), 0.9) for _ in range(2))
    for number in range(4):  # blocks of no, some and only zeros, at different times
        draws = torch.Generator().manual_seed(number)
        sparse_gradients = {
            name: tensor
            * (torch.rand(tensor.shape, generator=draws) >= (0.0, 0.5, 1.0, 0.0)[number])
            * 10.0 ** (-6 * (number == 3))
            for name, tensor in gradients(schema, 0, number).items()
        }
        gradient = PseudoGradient(sparse_gradients, 0.01, 0.0)
        sent = one.compress(gradient)
        with mock.patch.object(type(schema.results), "is_dense", return_value=False):
            other.choose(gradient)
        assert sent == other.sent()
        state, expected = (feedback.state() for feedback in (one, other))
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in state)


@given(
    st.sampled_from(sorted(SCHEMAS)),
    st.integers(0, 2**32),
    st.integers(1, LARGEST),
    st.sampled_from([1, 3, 97]),
)
def test_dense_mean_ignores_order_and_batch_size(
    name: str, seed: int, most: int, at_once: int
) -> None:
    schema = SCHEMAS[name]
    level = 0
    layout = level_layout(schema.results, level)
    draws = np.random.default_rng(seed)
    votes: list[DenseVotes] = []
    for _ in range(4):
        digits = [
            torch.from_numpy(
                draws.choice(np.array([0, 1, -1, 3, -3], np.int8), (group.blocks, group.block))
            )
            for group in layout.groups
        ]
        group_shifts = [
            torch.from_numpy(draws.integers(0, 44, (group.blocks, 1), np.uint8))
            for group in layout.groups
        ]
        votes.append(DenseVotes(level, digits, group_shifts, layout))
    divisors = [0.0, 1.0, 1.5, 2.0, 7.0]
    cpu = torch.device("cpu")
    means = dense_votes.means(votes, layout, most, divisors, SMALLEST, cpu)
    with mock.patch.dict(dense_votes._AT_ONCE, cpu=at_once):
        again = dense_votes.means(votes[::-1], layout, most, divisors, SMALLEST, cpu)
    for number, (one, other) in enumerate(zip(means, again, strict=True)):
        assert torch.equal(one, other)
        whole_numbers = [
            (vote.digits[number].long() << vote.group_shifts[number].long()).clamp(-most, most)
            for vote in votes
        ]
        counts = sum((numbers != 0).long() for numbers in whole_numbers)
        by = torch.tensor([1.0, *divisors[1:]], dtype=torch.float64)[counts]
        expected = (sum(whole_numbers).double() / by * SMALLEST).float()
        assert torch.equal(one.flatten(1), expected)


def test_device_without_float64_counts_on_the_cpu() -> None:
    schema = SCHEMAS["2 bits"]
    layout = level_layout(schema.results, 0)
    votes = [decode_level(data, schema.results, 0) for data in results_of(schema, 2, 0.3)[0]]
    assert all(
        own.device.type == "meta"
        for own in dense_votes.means(votes, layout, 9, [0, 1, 2], 1.0, torch.device("meta"))
    )


def test_encoding_full_blocks_off_the_lattice_is_refused() -> None:
    schema = SCHEMAS["2 bits"]
    layout = level_layout(schema.results, 0)
    chosen = [
        (
            torch.arange(group.block).expand(group.blocks, -1),
            torch.full((group.blocks, group.block), 0.5),
        )
        for group in layout.groups
    ]
    good = encode_groups(schema.results, 0, chosen)
    assert good == encode_level(schema.results, 0, *entries_of(layout, *zip(*chosen, strict=True)))
    for wrong in (0.7, 0.25, 2.0**-42, 2.0**5):
        chosen[0][1][0, 1] = wrong
        with pytest.raises(ValueError, match="not on the lattice"):
            encode_groups(schema.results, 0, chosen)


def test_unused_entry_leaves_its_digit_zero() -> None:
    schema = SCHEMAS["2 bits"]
    layout = level_layout(schema.results, 0)
    chosen = []
    for group in layout.groups:
        indices = torch.full((group.blocks, group.block), UNUSED)
        values = torch.zeros(group.blocks, group.block)
        indices[0, :2] = torch.tensor([1, 3])
        values[0, :2] = torch.tensor([-1.5, 0.5])
        chosen.append((indices, values))
    data = encode_groups(schema.results, 0, chosen)
    assert data == encode_level(schema.results, 0, *entries_of(layout, *zip(*chosen, strict=True)))
    votes = decode_level(data, schema.results, 0)
    assert isinstance(votes, DenseVotes)
    for own in votes.digits:
        assert own[0].nonzero().flatten().tolist() == [1, 3]
        assert own[0, [1, 3]].tolist() == [-3, 1]
        assert not own[1:].any()


@pytest.mark.parametrize("value_bits", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 24, 120, 121, 4096])
def test_packed_digits_of_torch_equal_those_of_numpy(value_bits: int, count: int) -> None:
    """Cases have less than a code, less than a word, and whole words."""
    kinds = np.array([0, 1, -1, 3, -3][: 1 + (1 << value_bits)], np.int8)
    codes = np.random.default_rng(count).choice(kinds, count)
    packed_so = packed_dense.packed_digits(torch.from_numpy(codes), value_bits)
    assert packed_so.numpy().tobytes() == digits.to_bytes(codes, value_bits)


def test_packed_exponents_are_strings_of_six_bits() -> None:
    codes = torch.tensor([1, 44, 0, 63, 5], dtype=torch.uint8)
    number = int.from_bytes(packed_dense.packed_exponents(codes).numpy().tobytes(), "little")
    assert [number >> 6 * place & 63 for place in range(5)] == codes.tolist()
    assert number >> 30 == 0


@pytest.mark.parametrize("name", ["2 bits", "1 bit, padded"])
def test_bits_after_the_last_digit_or_exponent_are_found(name: str) -> None:
    schema = SCHEMAS[name]
    layout = level_layout(schema.results, 0)
    bits_of_values = schema.results.values.bits
    (data, *_) = results_of(schema, 1, 0.3)[0]

    def ends_well(own: bytes) -> bool:
        return packed_dense._ends_with_zeros(own, layout.blocks, layout.numbers, bits_of_values)

    assert ends_well(data)
    spare = 6 * layout.blocks % 8
    at = packed_dense.digits_at(layout.blocks) - 1
    wrong = [data[:-1] + b"\xff"]
    if spare:
        wrong.append(data[:at] + bytes([data[at] | 1 << spare]) + data[at + 1 :])
    assert not any(ends_well(own) for own in wrong)
