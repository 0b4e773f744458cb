"""Test compiled kernels before their first use, by comparing them with torch.

Each machine compiles its own kernels, and a wrong one makes its replica diverge. If a kernel's
result differs or it raises, torch replaces all kernels, and the reason is logged once. Only
residuals and sent values may differ, by rounding errors of the DCT (`kernels.sparse_encode`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from aftermath.kernels.runtime import run_parallel, unavailable_reason
from aftermath.model.segments import view
from aftermath.optim import compiled_dense, compiled_sparse, digits, packed_dense
from aftermath.optim.codec import decode_level, encode_groups
from aftermath.optim.dense_votes import means
from aftermath.optim.error_feedback import take_back
from aftermath.optim.exact_signs import MEAN_BITS, signs
from aftermath.optim.integer_polar import polar_by_torch, polar_compiled
from aftermath.optim.lattice import LARGEST, LEAST, MOST, SMALLEST, quantise
from aftermath.optim.layout import LevelLayout, level_layout
from aftermath.optim.level_kernels import LevelTensors, tensors_of
from aftermath.optim.level_votes import DenseVotes, Votes
from aftermath.optim.result_format import ResultFormat, Transform
from aftermath.optim.schema import build_schema
from aftermath.optim.sparseloco_apply import changes, placed
from aftermath.optim.transform import ZERO_BELOW, cells, forward, padding, strongest, subtract
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo

_MODEL = {
    "model_type": "llama",
    "vocab_size": 41,
    "hidden_size": 20,
    "intermediate_size": 68,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
}
"""A block edge of 8 does not divide these sizes, so blocks have padding."""
_VOTES = Distro(
    topk=4, topk_embeddings=6, chunk=8, quantize_1bit=True, decay=0.9, weight_decay=0.0, clip=None
)
_SPARSE = SparseLoCo(topk=4, topk_embeddings=6, chunk=8)
_ALL = SparseLoCo(topk=64, topk_embeddings=64, chunk=8)
_MEMBERS = 3
_ROUNDS = 2
_DECAY = 0.875
_FACTOR = 0.5
_RATE = 0.25
_KEEP = 0.75

_Params = dict[str, Tensor]
_Sent = list[tuple[Tensor, Tensor]]


@lru_cache(maxsize=1)
def unfit() -> str | None:
    """Compile and compare the kernels. Return why they are not used, or None."""
    return unavailable_reason() or differing()


def differing() -> str | None:
    """Return a sentence that names a kernel that differs from torch or fails, or None."""
    kinds: dict[str, Callable[[], bool]] = {
        "they choose signs": lambda: _chooses(_VOTES),
        "they choose values": lambda: _chooses(_SPARSE),
        "they apply signs": _signs,
        "they apply values": _means,
        "they choose all values": lambda: _chooses(_ALL),
        "they apply all values": lambda: all(_dense_means(bits) for bits in (1, 2)),
        "they compute polar factors": _polar_factors,
    }
    for what, same in kinds.items():
        try:
            if not same():
                return f"compiled kernels differ from torch when {what}"
        except Exception as error:  # a kernel may raise anything; torch does the same work
            return f"compiled kernels fail when {what}: {error!r}"
    return None


def _case(settings: Optimizer) -> tuple[ResultFormat, LevelLayout, _Params]:
    """Return the format and layout of the only level, and fixed parameters."""
    schema = build_schema(_MODEL, 1, settings)
    random = np.random.default_rng(7)
    whole = {
        name: torch.from_numpy(random.normal(size=tuple(shape)).astype(np.float32))
        for name, shape in _shapes().items()
    }
    return schema.results, level_layout(schema.results, 0), whole


def _shapes() -> dict[str, tuple[int, ...]]:
    from aftermath.model.architectures import config_of

    return dict(config_of(_MODEL).parameter_shapes(0))


def _rounds(settings: Optimizer) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (kernel's tensor, torch's tensor) for every tensor that choosing a result changes."""
    results, layout, params = _case(settings)
    bits = results.values.lattice_bits
    transformed = results.transform is Transform.DCT
    smallest = SMALLEST if bits else ZERO_BELOW
    theirs = [torch.zeros(g.blocks, g.height, g.width) for g in layout.groups]
    ours = [torch.zeros(g.blocks, g.height, g.width) for g in layout.groups]
    chosen: _Sent | None = None
    expected: _Sent | None = None
    for number in range(_ROUNDS):
        changes = {name: tensor.roll(number) for name, tensor in params.items()}
        encoding = None
        if results.is_dense(0):
            encoding = compiled_dense.Encoding(
                layout, theirs, changes, _FACTOR, _DECAY, chosen, bits
            )
            chosen = encoding.chosen
            tasks = encoding.tasks
        else:
            chosen, tasks = compiled_sparse.encode(
                layout, theirs, changes, _FACTOR, _DECAY, chosen, transformed, smallest, bits
            )
        run_parallel(tasks)
        for index, residual in enumerate(ours):
            if expected is not None:
                take_back(residual, *expected[index], transformed=transformed)
            residual.mul_(_DECAY)
        for part in layout.parts:
            blocks = part.of(ours[part.group])
            for beyond in padding(blocks, part.blocks):
                beyond.zero_()
            for padded, place in cells(view(changes, part.segment), blocks, part.blocks):
                place.add_(padded, alpha=_FACTOR)
        expected = []
        for group, residual in zip(layout.groups, ours, strict=True):
            flat = (forward(residual) if transformed else residual).flatten(1)
            indices, values = strongest(flat, group.topk, smallest)
            expected.append((indices, quantise(values, bits) if bits else values))
        yield from zip(theirs, ours, strict=True)
        for actual, other in zip(chosen, expected, strict=True):
            yield from zip(actual, other, strict=True)
        if encoding is not None:
            payloads = (encoding.payload(), encode_groups(results, 0, expected))
            kernel, reference = (np.frombuffer(data, np.uint8).copy() for data in payloads)
            yield torch.from_numpy(kernel), torch.from_numpy(reference)


def _chooses(settings: Optimizer) -> bool:
    return all(
        torch.allclose(kernel, reference, rtol=1e-4, atol=1e-4)
        for kernel, reference in _rounds(settings)
    )


def _votes(results: ResultFormat, layout: LevelLayout) -> list[Votes]:
    """Return the votes of some members, in the form in which they are received."""
    random = np.random.default_rng(8)
    votes = []
    for _ in range(_MEMBERS):
        whole = [
            torch.from_numpy(random.normal(size=(g.blocks, g.block)).astype(np.float32))
            for g in layout.groups
        ]
        best = [strongest(numbers, g.topk) for numbers, g in zip(whole, layout.groups, strict=True)]
        if bits := results.values.lattice_bits:
            best = [(indices, quantise(values, bits)) for indices, values in best]
        payload = encode_groups(results, 0, best)
        votes.append(decode_level(payload, results, 0))
    return votes


def _signs() -> bool:
    results, layout, params = _case(_VOTES)
    votes = _votes(results, layout)
    expected = _copies(params)
    run_parallel(
        compiled_sparse.Counted(votes, layout).sign(params, lambda part: _KEEP, _RATE, MEAN_BITS)
    )
    for part, direction in zip(
        layout.parts, signs(votes, results, 0, torch.device("cpu")), strict=True
    ):
        tensor = view(expected, part.segment).mul_(_KEEP)
        subtract(tensor, direction.float().mul_(_RATE), part.blocks)
    return _equal(params, expected)


def _means() -> bool:
    results, layout, params = _case(_SPARSE)
    votes = _votes(results, layout)
    expected = _copies(params)
    most = 1 << 41
    by = [float(count) for count in range(_MEMBERS + 1)]  # the divisor is the number of keepers
    run_parallel(
        compiled_sparse.Counted(votes, layout).mean(params, most, by, _SPARSE.outer_lr * SMALLEST)
    )
    for part, blocks in placed(layout, *changes(votes, 0, _SPARSE, most), torch.device("cpu")):
        subtract(view(expected, part.segment), blocks, part.blocks)
    return _equal(params, expected)


def _dense_means(bits: int) -> bool:
    """Return whether kernels check and count packed digits like torch."""
    _, layout, params = _case(_ALL)
    random = np.random.default_rng(9)
    random_votes = [_dense_votes(layout, bits, random) for _ in range(_MEMBERS)]
    votes = [vote for vote, _ in random_votes]
    payloads = [compiled_dense.padded(data) for _, data in random_votes]
    at = packed_dense.digits_at(layout.blocks)
    if not all(compiled_dense.check(payload, at, layout, bits) for payload in payloads):
        return False
    data = random_votes[0][1]
    invalid_code = data[:at] + b"\xff\xff" + data[at + 2 :]
    no_exponents = bytes(at) + data[at:]
    exponent_without_votes = bytes([data[0] | 1]) + data[1:]
    for wrong in (invalid_code, no_exponents, exponent_without_votes):
        if compiled_dense.check(compiled_dense.padded(wrong), at, layout, bits):
            return False
    # divisors: equal, or one per count; votes: none clamped, or some
    for divisors, most in (([3.0] * 4, LARGEST), ([0.0, 1.0, 1.5, 2.5], 1 << 20)):
        expected = _copies(params)
        rate = 0.7 * SMALLEST
        table = LevelTensors(layout, tensors_of(layout, params))
        compiled_dense.count(payloads, table, bits, most, divisors, rate)
        steps = means(votes, layout, most, divisors, rate, torch.device("cpu"))
        for part in layout.parts:
            subtract(view(expected, part.segment), part.of(steps[part.group]), part.blocks)
        if not _equal(params, expected):
            return False
    return True


def _polar_factors() -> bool:
    random = np.random.default_rng(10)
    for rows, columns in ((33, 70), (64, 64), (2, 300)):
        made = random.normal(size=(5, rows, columns)).astype(np.float32)
        made[1] = 0
        made[2, 1:, 1:] = 0
        matrices = torch.from_numpy(made)
        factors = polar_compiled(matrices)
        if not torch.equal(factors.view(torch.int32), polar_by_torch(matrices).view(torch.int32)):
            return False
    return True


def _dense_votes(
    layout: LevelLayout, bits: int, random: np.random.Generator
) -> tuple[DenseVotes, bytes]:
    """Return dense votes and their payload. One block has no votes."""
    known = np.array([0, 1, -1, 3, -3][: 1 + (1 << bits)], np.int8)
    votes = [torch.from_numpy(random.choice(known, (g.blocks, g.block))) for g in layout.groups]
    votes[0][0] = 0
    # the shifts of most blocks are close, and those of the others are not
    shifts = [
        torch.from_numpy(
            np.where(
                random.random((g.blocks, 1)) < 0.8,
                random.integers(20, 23, (g.blocks, 1)),
                random.integers(0, MOST - LEAST + 1, (g.blocks, 1)),
            ).astype(np.uint8)
        )
        for g in layout.groups
    ]
    shifts[0][0] = 0
    codes = [
        torch.where((group_votes != 0).any(1, keepdim=True), by + 1, 0)
        for group_votes, by in zip(votes, shifts, strict=True)
    ]
    exponents = packed_dense.packed_exponents(layout.canonical(codes).to(torch.uint8))
    data = exponents.numpy().tobytes() + digits.to_bytes(layout.canonical(votes).numpy(), bits)
    return DenseVotes(0, votes, shifts, layout), data


def _copies(params: _Params) -> _Params:
    return {name: tensor.clone() for name, tensor in params.items()}


def _equal(one: _Params, other: _Params) -> bool:
    return all(
        torch.equal(one[name].view(torch.int32), other[name].view(torch.int32)) for name in one
    )
