"""Compute the aggregates in arbitrary precision with Python integers and fractions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal, getcontext
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from aftermath.optim.blocks import Blocks
from aftermath.optim.dct_basis import integer_basis
from aftermath.optim.layout import LevelLayout, level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.result_format import ResultFormat
from aftermath.optim.schema import Schema, build_schema
from aftermath.rules.distro import Distro
from aftermath.rules.sparseloco import SparseLoCo

CONFIG = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}


# No edge of 8 divides any of these: vectors of 20 = 7 + 7 + 6, strips of 17 = 6 + 6 + 5 and 34 = 4
# x 7 + 6, 41 rows.
RAGGED = {"vocab_size": 41, "hidden_size": 20, "intermediate_size": 68}


def toy_schema(**changes: Any) -> Schema:
    """Return the schema of a small DisTrO run with three tiers. Keywords change settings or the
    model.
    """
    model = CONFIG | {key: changes.pop(key) for key in list(changes) if key in CONFIG}
    tiers = changes.pop("tiers", 3)
    settings: dict[str, Any] = {
        "topk": 4,
        "chunk": 8,
        "quantize_1bit": True,
        "decay": 0.9,
    } | changes
    settings = {"weight_decay": 0.0, "clip": None} | settings
    return build_schema(model, tiers, Distro(**{"topk_embeddings": settings["topk"]} | settings))


def toy_inner(**changes: Any) -> Schema:
    """Return the schema of a small SparseLoCo run with three tiers. Keywords change settings or the
    model.
    """
    model = CONFIG | {key: changes.pop(key) for key in list(changes) if key in CONFIG}
    tiers = changes.pop("tiers", 3)
    settings: dict[str, Any] = {"topk": 4, "chunk": 8} | changes
    return build_schema(
        model, tiers, SparseLoCo(**{"topk_embeddings": settings["topk"]} | settings)
    )


def cut_blocks(tensor: np.ndarray, cut: Blocks) -> np.ndarray:
    """Return the blocks [n, h, w] of a segment's tensor, padded with zeros. Stacks are cut matrix
    by matrix.
    """
    if tensor.ndim > 2:
        return np.concatenate(
            [cut_blocks(one, cut) for one in tensor.reshape(-1, *tensor.shape[-2:])]
        )
    matrix = np.atleast_2d(tensor)
    height, width = (1, *cut.edges)[-2:]
    tall = -(-matrix.shape[0] // height)
    wide = -(-matrix.shape[1] // width)
    blocks = np.zeros((tall * wide, height, width), matrix.dtype)
    for row, column in np.ndindex(matrix.shape):
        blocks[row // height * wide + column // width, row % height, column % width] = matrix[
            row, column
        ]
    return blocks


def joined(blocks: np.ndarray, cut: Blocks) -> np.ndarray:
    """Return the tensor of a segment's blocks [n, h, w], without the padding."""
    segment = cut.segment
    places = cut_blocks(np.arange(1, segment.numel + 1).reshape(segment.shape), cut)
    out = np.empty(segment.numel, blocks.dtype)
    out[places[places > 0] - 1] = blocks[places > 0]
    return out.reshape(segment.shape)


def real_basis(edge: int) -> list[list[Decimal]]:
    """Return B[i][x] of the orthonormal DCT-II to 60 digits, by its formula and Taylor series."""
    getcontext().prec = 70
    pi = Decimal("3.141592653589793238462643383279502884197169399375105820974944592307816406286209")

    @cache
    def cosine(place: int) -> Decimal:
        """Return the cosine of `angle` parts of a circle that has 4 * edge parts."""
        angle = 2 * pi * place / (4 * edge)
        term = total = Decimal(1)
        for k in range(2, 120, 2):
            term *= -angle * angle / (k * (k - 1))
            total += term
        return total

    return [
        [
            (Decimal(2 if i else 1) / edge).sqrt() * cosine((2 * x + 1) * i % (4 * edge))
            for x in range(edge)
        ]
        for i in range(edge)
    ]


def _away(value: Fraction) -> int:
    """Return the nearest integer, halves away from zero."""
    return int(math.copysign(math.floor(abs(value) + Fraction(1, 2)), value)) if value else 0


def oracle_means(votes: Sequence[Votes], low: int, high: int) -> dict[int, int]:
    """Return the mean m of every coefficient in [low, high) with a vote."""
    values_by_place: dict[int, list[Fraction]] = defaultdict(list)
    for vote in votes:
        for position, value in zip(vote.positions.tolist(), vote.values.tolist(), strict=True):
            if low <= position < high:
                values_by_place[position - low].append(Fraction(value))
    if not values_by_place:
        return {}
    scale = Fraction(2) ** 26
    if votes[0].values.is_floating_point():
        largest = max(abs(value) for values in values_by_place.values() for value in values)
        scale = Fraction(2) ** (25 - math.frexp(float(largest))[1] + 1)
        values_by_place = {
            place: [Fraction(round(scale * v)) for v in values]
            for place, values in values_by_place.items()
        }
        scale = Fraction(1)
    return {
        place: _away(scale * sum(values) / len(values)) for place, values in values_by_place.items()
    }


def oracle_signs(votes: Sequence[Votes], results: ResultFormat, level: int) -> list[np.ndarray]:
    """Return the signs of a level's aggregate per segment, int8 [blocks, h, w], in unbounded
    integers.
    """
    layout = level_layout(results, level)
    signs = []
    for part in layout.parts:
        group = layout.groups[part.group]
        tall, wide = (
            np.array(integer_basis(edge), dtype=object) for edge in (group.height, group.width)
        )
        blocks = []
        for block in range(part.first, part.first + part.blocks.count):
            low = group.base + block * group.block
            mean = np.zeros(group.block, dtype=object)
            for place, value in oracle_means(votes, low, low + group.block).items():
                mean[place] = value
            rows = mean.reshape(group.height, group.width).dot(wide)
            if group.height > 1:
                rows = np.vectorize(lambda t: round(Fraction(t, 1 << 27)), otypes=[object])(rows)
                rows = tall.T.dot(rows)
            blocks.append(np.sign(rows).astype(np.int8))
        signs.append(np.stack(blocks))
    return signs


def entry_bases(layout: LevelLayout) -> np.ndarray:
    """Return the position of the first coefficient of each entry's block, in canonical order."""
    return np.concatenate(
        [
            np.repeat(
                group.base + (part.first + np.arange(part.blocks.count)) * group.block, group.topk
            )
            for part in layout.parts
            for group in [layout.groups[part.group]]
        ]
    )
