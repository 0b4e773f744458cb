"""Results as files: round trips, other readers of safetensors, and checks of untrusted files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor

from aftermath.optim import result_file
from aftermath.optim.engine import Engine
from aftermath.optim.result_file import (
    BadGradientFile,
    GradientFile,
    ResultOrigin,
    read_gradient_file,
)
from aftermath.optim.schema import Schema
from aftermath.optim.vote_tensors import dense, dense_shapes
from optim.optim_oracle import RAGGED, toy_inner, toy_schema
from optim.optim_replica import SEQUENCES, encode, gradients, replica

SIGNS = toy_schema(**RAGGED)
FLOATS = toy_schema(**RAGGED, quantize_1bit=False)
LATTICE = toy_inner(**RAGGED, inner_steps=1)
ORIGIN = ResultOrigin(run_id="r", epoch=1, round=3, step=12, seat=3, tier=1, learning_rate=0.004)


def file_of(schema: Schema, tier: int = 1, lr: float = 0.1) -> GradientFile:
    _, engine = replica(schema, tier)
    payloads = encode(engine, gradients(schema, tier, 5), lr)
    return GradientFile(schema, replace(ORIGIN, tier=tier, learning_rate=lr), payloads)


def inner(schema: Schema, tier: int, lr: float) -> GradientFile:
    """Return a SparseLoCo result whose gradient has the size of the weights."""
    params, engine = replica(schema, tier)

    def backward(_: Tensor) -> float:
        for name, tensor in params.items():
            tensor.grad = gradients(schema, tier, 5)[name].clone()
        return 0.0

    for tensor in params.values():
        tensor.requires_grad_()
    payloads = engine.train(SEQUENCES, backward, lr, lr).payloads
    return GradientFile(schema, replace(ORIGIN, tier=tier, learning_rate=lr), payloads)


def at(place: Path, data: bytes) -> Path:
    path = place / "file.safetensors"
    path.write_bytes(data)
    return path


# --- there and back -------------------------------------------------------------------------------


@given(
    origin=st.builds(
        ResultOrigin,
        run_id=st.text(
            st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=32
        ),
        epoch=st.integers(0, 2**16),
        round=st.integers(0, 2**16),
        step=st.integers(0, 2**32 - 1),
        seat=st.integers(0, 255),
        tier=st.integers(0, 2),
        learning_rate=st.floats(0, 1e3),
    ),
    sent_levels=st.sets(st.integers(0, 2), min_size=1),
    filling=st.binary(min_size=1, max_size=8),
)
def test_file_round_trip_keeps_the_result(
    tmp_path_factory: pytest.TempPathFactory,
    origin: ResultOrigin,
    sent_levels: set[int],
    filling: bytes,
) -> None:
    """The reader does not check payload bytes. The decoder of levels does."""
    levels = {level for level in sent_levels if level >= origin.tier} or {2}
    sizes = {level: SIGNS.results.payload_bytes(level) for level in levels}
    payloads = {level: (filling * size)[:size] for level, size in sizes.items()}
    written = GradientFile(SIGNS, origin, payloads)
    result = read_gradient_file(at(tmp_path_factory.mktemp("file"), written.to_bytes()))
    assert (result.origin, result.payloads) == (origin, payloads)
    assert result.schema.hash() == SIGNS.hash()
    assert result.to_bytes() == written.to_bytes()


def test_file_name_has_step_and_member() -> None:
    assert file_of(SIGNS).name == "step-000012-member-3.safetensors"


def test_safetensors_can_read_the_file(tmp_path: Path) -> None:
    file = file_of(SIGNS)
    with safe_open(at(tmp_path, file.to_bytes()), framework="pt") as opened:
        facts = opened.metadata()
        assert {name: opened.get_tensor(name).numpy().tobytes() for name in opened.keys()} == {  # noqa: SIM118
            "level.1": file.payloads[1],
            "level.2": file.payloads[2],
        }
    assert facts.pop("schema").encode() == SIGNS.to_json()
    assert facts == {
        "format": "2",
        "run_id": "r",
        "epoch": "1",
        "round": "3",
        "step": "12",
        "seat": "3",
        "tier": "1",
        "learning_rate": "0.1",
        "schema_hash": SIGNS.hash().hex(),
    }


def test_equal_results_give_equal_files() -> None:
    file = file_of(SIGNS)
    turned = GradientFile(SIGNS, file.origin, dict(reversed(file.payloads.items())))
    assert turned.to_bytes() == file.to_bytes()


# --- untrusted files ------------------------------------------------------------------------------


def changed(
    file: GradientFile, facts: dict[str, str] | None = None, drop: str = "", tensor: str = ""
) -> bytes:
    """Return the file with other metadata, without one entry, or with its first tensor renamed."""
    data = file.to_bytes()
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    head["__metadata__"] = {
        k: v for k, v in (head["__metadata__"] | (facts or {})).items() if k != drop
    }
    if tensor:
        head[tensor] = head.pop("level.1")
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


@pytest.mark.parametrize(
    ("facts", "drop", "tensor", "says"),
    [
        ({"format": "1"}, "", "", "its format is '1', but this client reads 2"),
        ({}, "format", "", "its format is None"),
        ({"schema_hash": "00" * 32}, "", "", "does not match its schema_hash"),
        ({"schema": "{}"}, "", "", "not a schema"),
        ({"schema": SIGNS.to_json().decode() + " "}, "", "", "not the canonical JSON"),
        ({"tier": "3"}, "", "", "tier is 3, but the run has 3 tiers"),
        ({"tier": "2"}, "", "", "it has 'level.1', which a member of tier 2 does not send"),
        ({}, "", "level.9", "it has 'level.9', which"),
        ({}, "", "x" * 5000, "it has 'xxx"),
        ({"step": "-1"}, "", "", "its step '-1' is not a valid number"),
        ({"epoch": "4294967296"}, "", "", "its epoch '4294967296' is not a valid number"),
        ({"seat": "٣"}, "", "", "its seat '٣' is not a valid number"),
        ({"learning_rate": "nan"}, "", "", "its learning_rate 'nan' is not a valid rate"),
        ({"learning_rate": "1e308"}, "", "", "its learning_rate '1e308' is not a valid rate"),
        ({"learning_rate": "x"}, "", "", "its learning_rate 'x' is not a valid rate"),
        ({"run_id": ""}, "", "", "is not a valid run id"),
        ({"run_id": "\x1b[2J"}, "", "", "is not a valid run id"),
    ],
)
def test_inconsistent_file_is_refused_with_a_reason(
    tmp_path: Path, facts: dict[str, str], drop: str, tensor: str, says: str
) -> None:
    path = at(tmp_path, changed(file_of(SIGNS), facts, drop, tensor))
    with pytest.raises(BadGradientFile) as caught:
        read_gradient_file(path)
    assert says in caught.value.message
    assert len(caught.value.message) < 500
    assert caught.value.fix


def test_file_with_wrong_payload_size_is_refused(tmp_path: Path) -> None:
    file = file_of(SIGNS)
    short = GradientFile(SIGNS, file.origin, {1: file.payloads[1][:-1], 2: file.payloads[2]})
    with pytest.raises(BadGradientFile, match=r"level.1 must have \d+ bytes, but is U8 \[\d+\]"):
        read_gradient_file(at(tmp_path, short.to_bytes()))
    with pytest.raises(BadGradientFile, match="it has no levels"):
        read_gradient_file(at(tmp_path, GradientFile(SIGNS, file.origin, {}).to_bytes()))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is not a result of a member"),
        (b"\xff" * 8, "its header is too large"),
        ((3 << 20).to_bytes(8, "little"), "is not a result of a member"),
        (bytes(8) + bytes(100), "is not a result of a member"),
    ],
)
def test_garbage_file_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(BadGradientFile, match=says):
        read_gradient_file(at(tmp_path, data))


def test_missing_file_directory_or_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, says in (("gone", "cannot read"), (".", "is not a file"), ("pipe", "is not a file")):
        with pytest.raises(BadGradientFile, match=says):
            read_gradient_file(tmp_path / name)


def test_file_above_the_size_limit_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_file, "MAX_PAYLOAD_BYTES", 100)
    with pytest.raises(BadGradientFile, match="more than 100 bytes"):
        read_gradient_file(at(tmp_path, file_of(SIGNS).to_bytes()))


# --- dense tensors --------------------------------------------------------------------------------


def applied(file: GradientFile, lr: float) -> dict[str, Tensor]:
    """Return the change of a tier-0 replica of zeros by this one result."""
    params = {name: torch.zeros(shape) for name, shape in dense_shapes(file.schema).items()}
    Engine(file.schema, 0, params).apply(
        {level: [votes] for level, votes in file.votes().items()}, lr
    )
    return params


@pytest.mark.parametrize("schema", [SIGNS, FLOATS], ids=["signs", "floats"])
def test_dense_distro_result_has_the_applied_signs(schema: Schema) -> None:
    """Signs are compared where the fp32 sum is not within rounding of zero."""
    file = file_of(schema)
    tensors = dict(dense(schema, file.votes(), 0.1))
    expected = applied(file, 0.1)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert tensor.shape == expected[name].shape
        clear = tensor.abs() > 1e-5
        assert torch.equal(tensor.sign()[clear], -expected[name].sign()[clear]), name
        assert clear.any() or not expected[name].any(), name


@pytest.mark.parametrize("lr", [0.1, 1e-3])
def test_dense_sparseloco_result_is_the_applied_step(lr: float) -> None:
    """With outer_lr 1 and one member, the value is the whole step. It also reaches the cap."""
    file = inner(LATTICE, 1, lr)
    tensors = dict(dense(LATTICE, file.votes(), lr))
    expected = applied(file, lr)
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, -expected[name], rtol=1e-6, atol=0)
    assert any(tensor.any() for tensor in tensors.values())


def test_dense_result_is_zero_for_levels_not_sent() -> None:
    file = file_of(SIGNS, tier=2)
    width = SIGNS.state.config.width(2)
    tensors = dict(dense(SIGNS, file.votes(), 0.1))
    name = next(name for name in tensors if name.endswith("up_proj.weight"))
    assert tensors[name][:width].any()
    assert not tensors[name][width:].any()
