"""Tests of `decode-gradients`: files of results as a table, as JSON, and as tensors of the
parameters' shapes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from aftermath.cli import decode_gradients as command
from aftermath.optim.codec import encode_level
from aftermath.optim.engine import Engine
from aftermath.optim.result_file import GradientFile, ResultOrigin
from aftermath.optim.schema import Schema, build_schema
from aftermath.optim.vote_tensors import dense, dense_shapes
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.sim.setup import CONFIG
from cli.cli_runs import invoke
from member.result_inbox import SCHEMA, empty_payload

LATTICE = Schema(SCHEMA.state, SparseLoCo(inner_steps=1, topk=4, topk_embeddings=4, chunk=8))


def result_of(schema: Schema, tier: int, seat: int = 3) -> GradientFile:
    """Return the result of a member of that tier for random gradients."""
    generator = torch.Generator().manual_seed(seat)
    params = {
        name: torch.randn(s, generator=generator)
        for name, s in CONFIG.parameter_shapes(tier).items()
    }

    def backward(_: torch.Tensor) -> float:
        for tensor in params.values():
            tensor.grad = torch.randn(tensor.shape, generator=generator)
        return 0.0

    for tensor in params.values():
        tensor.requires_grad_()
    trained = Engine(schema, tier, params).train(
        torch.zeros(1, 2, dtype=torch.int64), backward, 0.1, 0.1
    )
    origin = ResultOrigin(
        run_id="demo", epoch=0, round=3, step=12, seat=seat, tier=tier, learning_rate=0.1
    )
    return GradientFile(schema, origin, trained.payloads)


def put(place: Path, file: GradientFile) -> Path:
    (place / file.name).write_bytes(file.to_bytes())
    return place / file.name


def test_decode_gradients_describes_each_level(tmp_path: Path) -> None:
    file = result_of(SCHEMA, 1)
    (described,) = invoke("decode-gradients", put(tmp_path, file), "--json").data
    levels = described.pop("levels")
    assert described == {
        "file": str(tmp_path / "step-000012-member-3.safetensors"),
        "run_id": "demo",
        "epoch": 0,
        "round": 3,
        "step": 12,
        "seat": 3,
        "tier": 1,
        "learning_rate": 0.1,
        "schema_hash": SCHEMA.hash().hex(),
    }
    assert levels.keys() == {"1", "2"}
    for level, votes in file.votes().items():
        expected = {
            "bytes": len(file.payloads[level]),
            "votes": len(votes.values),
            "least": -1.0,
            "most": 1.0,
        }
        assert levels[str(level)] == expected | {"of": SCHEMA.results.entries(level)}


def test_decode_gradients_text_has_one_line_per_level(tmp_path: Path) -> None:
    empty = GradientFile(SCHEMA, result_of(SCHEMA, 2, seat=4).origin, {2: empty_payload(2)})
    outcome = invoke("decode-gradients", put(tmp_path, result_of(SCHEMA, 1)), put(tmp_path, empty))
    assert (outcome.code, outcome.err) == (0, "")
    head, *lines = outcome.out.splitlines()
    assert head.split() == ["file", "run", "step", "member", "level", "bytes", "votes", "values"]
    assert len(lines) == 3
    assert "-1 to 1" in lines[0]
    assert lines[2].split()[-4:] == ["0", "of", f"{SCHEMA.results.entries(2):,}", "-"]


@pytest.mark.parametrize("schema", [SCHEMA, LATTICE], ids=["distro", "sparseloco"])
def test_decode_gradients_out_writes_parameter_tensors(tmp_path: Path, schema: Schema) -> None:
    files = [result_of(schema, tier=1, seat=3), result_of(schema, tier=0, seat=4)]
    paths = [put(tmp_path, file) for file in files]
    result = invoke("decode-gradients", *paths, "--out", tmp_path / "new" / "dense", "--json").data
    for file, entry in zip(files, result, strict=True):
        assert entry["out"] == str(tmp_path / "new" / "dense" / file.name)
        tensors = load_file(entry["out"])
        expected = dict(dense(schema, file.votes(), 0.1))
        assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == dense_shapes(
            schema
        )
        assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())
        assert any(tensor.any() for tensor in tensors.values())
    assert len([*(tmp_path / "new" / "dense").iterdir()]) == 2, "nothing half written is left"


def test_decode_gradients_mistakes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, result_of(SCHEMA, 1))
    (tmp_path / "other").mkdir()
    twin = put(tmp_path / "other", result_of(SCHEMA, 1))
    (tmp_path / "text.safetensors").write_text("no tensors here")
    (tmp_path / "taken").write_text("")

    def decode_error(*words: Any) -> dict[str, str]:
        return invoke("decode-gradients", *words, "--json").error

    assert "is not a result of a member" in decode_error(tmp_path / "text.safetensors")["error"]
    assert "cannot read" in decode_error(tmp_path / "gone.safetensors")["error"]
    assert "cannot write to" in decode_error(path, "--out", tmp_path / "taken")["error"]
    assert (
        "the same name"
        in invoke("decode-gradients", path, twin, "--out", tmp_path / "x", "--json").mistake[
            "error"
        ]
    )
    assert "is an input of this command" in decode_error(path, "--out", tmp_path)["error"]
    assert invoke("decode-gradients", "--json").mistake["error"] == "files is missing"
    monkeypatch.setattr(command, "LARGEST_TENSOR", 100)
    assert "more than the limit of 100" in decode_error(path, "--out", tmp_path / "x")["error"]
    assert path.read_bytes() == result_of(SCHEMA, 1).to_bytes()


def test_decode_gradients_invalid_payload_is_refused(tmp_path: Path) -> None:
    file = result_of(SCHEMA, 2)
    size = SCHEMA.results.payload_bytes(2)
    broken = GradientFile(SCHEMA, file.origin, {2: b"\xff" * size})
    result = invoke("decode-gradients", put(tmp_path, broken), "--json").error
    assert "is not a valid result: level 2" in result["error"]
    assert result["fix"]


def test_decode_gradients_too_large_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The payload describes tensors of a thousand times its size."""
    monkeypatch.setattr(command, "LARGEST_TENSOR", 1 << 26)
    huge = CONFIG.to_hf() | {"vocab_size": 1 << 18, "hidden_size": 1 << 7, "num_hidden_layers": 1}
    schema = build_schema(huge, 1, SparseLoCo(topk=1, topk_embeddings=1, chunk=255, bits=1))
    entries = schema.results.entries(0)
    payload = encode_level(
        schema.results, 0, np.full(entries, 0xFFFF, np.uint16), np.zeros(entries, np.float32)
    )
    origin = ResultOrigin(
        run_id="demo", epoch=0, round=0, step=1, seat=0, tier=0, learning_rate=0.1
    )
    path = put(tmp_path, GradientFile(schema, origin, {0: payload}))
    result = invoke("decode-gradients", path, "--out", tmp_path / "dense", "--json").error
    assert "would take" in result["error"]
    assert "more than the limit" in result["error"]
    assert not (tmp_path / "dense").exists()
