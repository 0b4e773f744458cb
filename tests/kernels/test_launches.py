"""Test that the launches of a round on a GPU do not grow with the number of tensors.

`test_kernels_gpu.py` runs these tests, because Triton must interpret its kernels.
"""

from __future__ import annotations

import os

import pytest
import torch

from aftermath.optim import (
    error_feedback,
    gpu_choice,
    level_kernels,
    packed_dense,
    packed_sparse,
    triton_gate,
)
from aftermath.optim.codec import decode_level
from aftermath.optim.engine import Engine
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.schema import Schema
from optim.optim_oracle import toy_inner, toy_schema
from optim.optim_replica import gradients, tensors

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="test_kernels_gpu.py runs this"
)
CPU = torch.device("cpu")
MEMBERS = 1
PROOFS = (
    (gpu_choice, "_choosing"),
    (level_kernels, "_moving"),
    (packed_dense, "_counting"),
    (packed_sparse, "_proven"),
)
"""Proofs of kernels, which `test_kernels_gpu.py` runs."""
SMALL = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 16}


def schema_of(name: str, layers: int) -> Schema:
    sizes = SMALL | {"num_hidden_layers": layers, "tiers": 1}
    if name == "signs":
        return toy_schema(weight_decay=0.1, **sizes)
    topk = 64 if name == "every number" else 4
    return toy_inner(topk=topk, topk_embeddings=topk, **sizes)


def launched(schema: Schema) -> dict[str, tuple[int, int]]:
    """Return the launches and waiting reads of a second round, by phase."""
    from kernels.launches import launches_counted

    params = tensors(schema, 0, 0)
    engine = Engine(schema, 0, params)
    engine._apply._compiled = False  # type: ignore[attr-defined]
    feedback = ErrorFeedback(schema.results, 0, params, 0.9)
    feedback._compiled = False
    counted: dict[str, tuple[int, int]] = {}
    for step in range(2):
        gradient = PseudoGradient(gradients(schema, 0, step), 0.01, 0.0)
        with launches_counted() as encoding:
            sent = feedback.compress(gradient)
        with launches_counted() as decoding:
            votes = {
                level: [decode_level(data, schema.results, level, CPU) for _ in range(MEMBERS)]
                for level, data in sent.items()
            }
        with launches_counted() as applying:
            engine.apply(votes, 0.01)
        for what, launches in zip(
            ("encode", "decode", "apply"), (encoding, decoding, applying), strict=True
        ):
            counted[what] = sum(launches.launches.values()), sum(launches.reads.values())
    return counted


@pytest.mark.parametrize("name", ["few numbers", "every number", "signs"])
def test_round_launches_do_not_grow_with_tensors(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(triton_gate, "works_on", lambda device: True)
    for module, proof in PROOFS:
        monkeypatch.setattr(module, proof, lambda *what, **which: True)
    # On the CPU this checks one tensor at a time.
    monkeypatch.setattr(error_feedback, "refuse_beyond", lambda tensors, largest: None)
    few, many = (launched(schema_of(name, layers)) for layers in (1, 2))
    levels = schema_of(name, 1).results.levels
    assert many == few
    decodings = MEMBERS * levels
    assert few["decode"] == (2 * decodings, decodings)  # one check, and one read of its outcome
    assert few["encode"][1] == few["apply"][1] == 0
    assert few["encode"][0] <= 50 * levels
    assert few["apply"][0] <= 40 * levels
