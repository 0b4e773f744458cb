"""Compare rounds of two members, from gradients to weights, with the formulas in numpy float64.

The formulas are those of docs/models.md, written again without `optim`. fp32 and float64 can differ
at near ties, so the float64 version raises at one. The seeds are chosen so that it only meets signs
of sums that are zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from aftermath.optim.codec import decode_level
from aftermath.optim.engine import Engine
from optim.optim_oracle import RAGGED, toy_inner, toy_schema
from optim.optim_replica import bits, replica

Array = NDArray[np.float64]
Arrays = dict[str, Array]

ROUNDS = 3
STEPS = 3
CHUNK = 8
TOPK = 4
RATE = 0.05
OUTER = 0.7
DECAY = 0.9
WEIGHT_DECAY = 0.1
PULL = 0.1
CLEAR = 1e-5
"""Minimum margin of a decision, relative to its size: above fp32's error in sums of 64 products
over three rounds.
"""
NEAR_ZERO = 1e-6
ULP = 2.0**-24


def edge(size: int) -> int:
    """Return the fewest blocks, as equal as possible."""
    return -(-size // -(-size // CHUNK))


def cut(tensor: Array) -> Array:
    """Return the blocks [n, h, w] of a tensor, padded with zeros."""
    matrix = np.atleast_2d(tensor)
    height = 1 if tensor.ndim == 1 else edge(len(matrix))
    width = edge(matrix.shape[1])
    rows = -(-len(matrix) // height)
    columns = -(-matrix.shape[1] // width)
    whole = np.zeros((rows * height, columns * width))
    whole[: len(matrix), : matrix.shape[1]] = matrix
    return whole.reshape(rows, height, columns, width).swapaxes(1, 2).reshape(-1, height, width)


def joined(blocks: Array, like: Array) -> Array:
    """Return the tensor of blocks, in the shape of `like`."""
    matrix = np.atleast_2d(like)
    _, height, width = blocks.shape
    columns = -(-matrix.shape[1] // width)
    whole = blocks.reshape(-1, columns, height, width).swapaxes(1, 2).reshape(-1, columns * width)
    return whole[: len(matrix), : matrix.shape[1]].reshape(like.shape)


def basis(size: int) -> Array:
    """Return the orthonormal DCT-II."""
    i, x = np.ogrid[:size, :size]
    matrix: Array = np.sqrt(np.where(i > 0, 2, 1) / size) * np.cos(
        np.pi * (2 * x + 1) * i / (2 * size)
    )
    return matrix


def forward(blocks: Array) -> Array:
    coefficients: Array = basis(blocks.shape[1]) @ blocks @ basis(blocks.shape[2]).T
    return coefficients


def inverse(coefficients: Array) -> Array:
    values: Array = basis(coefficients.shape[1]).T @ coefficients @ basis(coefficients.shape[2])
    return values


def strongest(blocks: Array) -> Array:
    """Return the blocks with zeros for all but the largest magnitudes of each."""
    flat = blocks.reshape(len(blocks), -1)
    order = np.sort(np.abs(flat), axis=1)[:, ::-1]
    if order.shape[1] <= TOPK:
        return blocks
    assert (order[:, TOPK - 1] - order[:, TOPK] > CLEAR * order[:, 0]).all(), (
        "which are kept is a near tie"
    )
    return np.where(np.abs(flat) >= order[:, TOPK - 1 : TOPK], flat, 0.0).reshape(blocks.shape)


def on_lattice(blocks: Array, wide: bool) -> Array:
    """Round each block's kept numbers to ±s, or also ±3 s if `wide`, for the best s = 2^k."""
    result = np.zeros_like(blocks)
    for sent, block in zip(result, blocks, strict=True):
        magnitudes = np.abs(block[block != 0])
        powers = 2.0 ** np.arange(-40, 4)[:, None]
        errors = np.where(
            wide,
            np.minimum((magnitudes - powers) ** 2, (magnitudes - 3 * powers) ** 2),
            (magnitudes - powers) ** 2,
        ).sum(1)
        first, second, *_ = np.sort(errors)
        assert second - first > CLEAR * (magnitudes**2).sum(), (
            "which power of two is best is a near tie"
        )
        power = powers[errors.argmin(), 0]
        assert not wide or (np.abs(magnitudes - 2 * power) > CLEAR * power).all(), (
            "which of two values is a near tie"
        )
        sent[:] = np.sign(block) * np.where(wide & (np.abs(block) > 2 * power), 3 * power, power)
    return result


@dataclass
class Member:
    """A member's state: the residual, the previous result, and the moments of AdamW."""

    bits: int
    """Return the exponent of a lattice value; 0 for DisTrO's signs."""
    residual: Arrays = field(default_factory=dict)
    sent: Arrays = field(default_factory=dict)
    moments: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    steps: int = 0

    def pseudo_gradient(
        self, shared: Mapping[str, Array], noises: Sequence[Arrays], targets: Arrays
    ) -> Arrays:
        """Return the rate times one gradient, or the change by some steps of AdamW."""
        own = dict(shared)
        for noise in noises:
            gradients = {name: noise[name] + PULL * (own[name] - targets[name]) for name in own}
            if not self.bits:
                return {name: RATE * gradient for name, gradient in gradients.items()}
            self.steps += 1
            for name, gradient in gradients.items():
                mean, square = self.moments.get(name, (np.zeros(1), np.zeros(1)))
                mean, square = 0.9 * mean + 0.1 * gradient, 0.95 * square + 0.05 * gradient**2
                self.moments[name] = mean, square
                size = np.sqrt(square / (1 - 0.95**self.steps)) + 1e-8
                own[name] = (
                    own[name] * (1 - RATE * WEIGHT_DECAY)
                    - RATE * mean / (1 - 0.9**self.steps) / size
                )
        return {name: shared[name] - own[name] for name in own}

    def result(self, changes: Arrays) -> Arrays:
        """Return the votes [n, h, w] of every tensor's blocks. 0 is no vote."""
        votes: Arrays = {}
        for name, tensor in changes.items():
            left = self.residual.get(name, np.zeros(1)) - self.sent.get(name, np.zeros(1))
            # drop numbers beyond an end
            left = left * (cut(np.ones(tensor.shape)) > 0) * DECAY + cut(tensor)
            if self.bits:
                votes[name] = self.sent[name] = on_lattice(strongest(left), self.bits == 2)
            else:
                coefficients = strongest(forward(left))
                votes[name] = np.sign(coefficients)
                self.sent[name] = inverse(coefficients)
            self.residual[name] = left
        return votes


def applied(
    weights: Arrays, votes: Sequence[Arrays], one_bit: bool, theirs: Mapping[str, Array]
) -> Arrays:
    """Return x (1 - rate decay) - rate sign(inverse DCT of the means) or, on the lattice, x - rate
    (sum / sqrt(keepers members)).

    A sum within rounding of zero takes its sign from `theirs`.
    """
    new_weights = {}
    for name, tensor in weights.items():
        values = np.stack([vote[name] for vote in votes])
        keepers = np.maximum((values != 0).sum(0), 1)
        if one_bit:
            decayed = tensor * (1 - RATE * WEIGHT_DECAY)
            sums = joined(inverse(values.sum(0) / keepers), tensor)
            near = (sums != 0) & (np.abs(sums) < NEAR_ZERO)
            assert near.mean() < 0.1, "most signs are decided"
            new_weights[name] = decayed - RATE * np.where(
                near, ((decayed - theirs[name]) / RATE).round().clip(-1, 1), np.sign(sums)
            )
        else:
            most = 2 * STEPS * RATE
            means = np.clip(values, -most, most).sum(0) / np.sqrt(keepers * len(votes))
            new_weights[name] = tensor - OUTER * joined(means, tensor)
    return new_weights


def drawn(like: Mapping[str, Array], seed: int) -> Arrays:
    """Draw magnitudes from 1/2 to 3/2, so that no gradient is a difference of nearly equal
    numbers.
    """
    draws = np.random.default_rng(seed)
    tensors = {}
    for name, tensor in like.items():
        signs = np.where(draws.random(tensor.shape) < 0.5, -1.0, 1.0)
        tensors[name] = (
            (signs * draws.uniform(0.5, 1.5, tensor.shape)).astype(np.float32).astype(np.float64)
        )
    return tensors


def trained(
    params: Mapping[str, Tensor], engine: Engine, noises: Sequence[Arrays], targets: Arrays
) -> bytes:
    """Return a member's result for the gradients of `Member.pseudo_gradient`."""
    left = iter(noises)

    def backward(_: Tensor) -> float:
        noise = next(left)
        for name, tensor in params.items():
            pulled = tensor.detach() - torch.from_numpy(targets[name]).float()
            tensor.grad = torch.from_numpy(noise[name]).float() + PULL * pulled
        return 0.0

    return engine.train(torch.zeros(STEPS, 2, dtype=torch.int64), backward, RATE, 0.0).payloads[0]


@pytest.mark.parametrize(
    ("lattice", "seed"), [(0, 0), (1, 1), (2, 1)], ids=["signs", "1 bit", "2 bits"]
)
def test_weights_after_three_rounds_match_float64(lattice: int, seed: int) -> None:
    agreed: dict[str, Any] = {
        "tiers": 1,
        "chunk": CHUNK,
        "topk": TOPK,
        "decay": DECAY,
        "weight_decay": WEIGHT_DECAY,
        "clip": None,
    }
    inner: dict[str, Any] = {
        "bits": lattice,
        "inner_steps": STEPS,
        "outer_lr": OUTER,
        "divisor": "root",
    }
    schema = toy_inner(**agreed, **inner, **RAGGED) if lattice else toy_schema(**agreed, **RAGGED)
    replicas = [replica(schema, 0) for _ in range(2)]
    start: Arrays = {
        name: tensor.numpy().astype(np.float64) for name, tensor in replicas[0][0].items()
    }
    weights = start
    members = [Member(lattice), Member(lattice)]
    for number in range(ROUNDS):
        payloads = []
        votes = []
        for who, (params, engine) in enumerate(replicas):
            targets = drawn(start, 10_000 * seed + 100 + who)
            noises = [
                drawn(start, 10_000 * seed + 1000 * (number + 1) + 10 * who + step)
                for step in range(STEPS)
            ]
            payloads.append(trained(params, engine, noises, targets))
            votes.append(
                members[who].result(members[who].pseudo_gradient(weights, noises, targets))
            )
        for _, engine in replicas:
            engine.apply(
                {0: [decode_level(payload, schema.results, 0) for payload in payloads]}, RATE
            )
        actual = {
            name: tensor.numpy().astype(np.float64) for name, tensor in replicas[0][0].items()
        }
        assert bits(replicas[0][0]) == bits(replicas[1][0])
        weights = applied(weights, votes, not lattice, actual)
        for name, tensor in actual.items():
            largest = max(np.abs(start[name]).max(), np.abs(weights[name]).max())
            # a product, a difference, and two factors in fp32
            bound = (number + 1) * 4 * ULP * (largest + RATE)
            assert np.abs(tensor - weights[name]).max() <= bound, (number, name)
    assert all((np.abs(weights[name] - start[name]) > RATE / 4).mean() > 0.05 for name in weights)
    assert sqrt(sum(((weights[name] - start[name]) ** 2).sum() for name in weights)) > 1
