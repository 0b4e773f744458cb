"""Tests of the `model` commands: preset sizes, export and merge, and errors for damaged files."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from aftermath.data.bytelevel import byte_tokenizer
from aftermath.model.architectures import config_of
from aftermath.model.checkpoint import load
from aftermath.model.presets import PRESETS
from cli.cli_runs import invoke

SHAPE = ("--hidden", "32", "--layers", "2", "--heads", "2", "--intermediate", "64")


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """Return a small checkpoint with two exported tiers."""
    place = tmp_path / "m"
    assert invoke("model", "init", "--out", str(place), *SHAPE).code == 0
    assert invoke("model", "export", "--src", str(place), "--tiers", "1,2").code == 0
    return place


@pytest.mark.parametrize("name", PRESETS)
def test_preset_name_equals_parameter_count(name: str) -> None:
    count = sum(map(math.prod, config_of(PRESETS[name]).parameter_shapes().values()))
    size = name.rsplit("-", 1)[1]
    unit = {"m": 1e6, "b": 1e9}[size[-1]]
    assert f"{count / unit:.{1 if '.' in size else 0}f}{size[-1]}" == size
    assert config_of(PRESETS[name]).width(3)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("deepseek")])
def test_deepseek_preset_predicts_in_each_tier(name: str, tmp_path: Path) -> None:
    small = ("--layers", "2", "--vocab", "257", "--tiers", "4")
    outcome = invoke(
        "model", "init", "--preset", name, *small, "--out", str(tmp_path / "m"), "--json"
    )
    assert outcome.code == 0
    assert list(json.loads(outcome.out)["tiers"]) == ["0", "1", "2", "3"]
    config = config_of(json.loads((tmp_path / "m" / "config.json").read_text()))
    for tier in (0, 3):
        net = config.build(tier, load(tmp_path / "m", tier))
        assert net.loss(torch.arange(24)[None]).item() == pytest.approx(math.log(257), rel=0.1)


def test_preset_accepts_shape_options(tmp_path: Path) -> None:
    outcome = invoke(
        "model",
        "init",
        "--preset",
        "llama-1m",
        "--layers",
        "1",
        "--out",
        str(tmp_path / "m"),
        "--json",
    )
    assert outcome.code == 0
    assert json.loads(outcome.out)["tiers"].keys() == {"0", "1", "2"}
    data = json.loads(invoke("model", "inspect", "--model", str(tmp_path / "m"), "--json").out)
    assert (data["architecture"], data["vocab"], data["stored_tier"]) == ("llama", 257, 0)
    assert data["tiers"]["0"] * 4 == data["state_bytes"]["0"] < data["weight_bytes"]
    for arguments, says in (
        (("--preset", "llama-2m"), "Choose one of llama-1m"),
        (("--preset", "llama-1m", "--architecture", "nanogpt"), "contradicts the preset"),
    ):
        result = invoke("model", "init", *arguments, "--out", str(tmp_path / "n"))
        assert result.code == 2
        assert says in result.err


def test_inspect_of_slice_lists_only_its_tiers(model_dir: Path) -> None:
    full, part = (
        json.loads(invoke("model", "inspect", "--model", str(place), "--json").out)
        for place in (model_dir, model_dir.with_name("m-tier1"))
    )
    assert part["stored_tier"] == 1
    assert part["tiers"] == {tier: count for tier, count in full["tiers"].items() if tier != "0"}


def test_merge_of_slice_keeps_equal_bits_and_takes_trained_ones(
    model_dir: Path,
) -> None:
    part = model_dir.with_name("m-tier1")
    for name in ("same", "changed"):
        if name == "changed":
            weights = load_file(part / "model.safetensors")
            save_file(
                {key: value + 1 for key, value in weights.items()}, part / "model.safetensors"
            )
        out = model_dir.with_name(name)
        outcome = invoke(
            "model", "merge", "--into", str(model_dir), "--slice", str(part), "--out", str(out)
        )
        assert (outcome.code, "differ from" in outcome.err) == (0, name == "changed")
    full, same, changed = (
        load_file(model_dir.with_name(name) / "model.safetensors")
        for name in ("m", "same", "changed")
    )
    assert all(torch.equal(full[key], same[key]) for key in full)
    gate = "model.layers.0.mlp.gate_proj.weight"
    assert torch.equal(changed[gate][:32], full[gate][:32] + 1)
    assert torch.equal(changed[gate][32:], full[gate][32:])
    again = invoke(
        "model", "merge", "--into", str(model_dir), "--slice", str(part), "--out", str(model_dir)
    )
    assert (again.code, "is an input of this command" in again.err) == (1, True)


def test_export_of_named_tiers_works_for_odd_width(tmp_path: Path) -> None:
    (tmp_path / "tiers.json").write_text('[{"layers": [0]}]')
    shape = [*SHAPE[:-1], "63", "--matformer-tiers", str(tmp_path / "tiers.json")]
    assert invoke("model", "init", "--out", str(tmp_path / "m"), *shape).code == 0
    assert invoke("model", "export", "--src", str(tmp_path / "m"), "--tiers", "1").code == 0
    result = invoke("model", "export", "--src", str(tmp_path / "m"), "--tiers", "2")
    assert (result.code, "has only 1 tier besides the full model" in result.err) == (2, True)


def test_merge_of_foreign_slice_is_refused(model_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert invoke("model", "init", "--out", str(other), *SHAPE[:-1], "128").code == 0
    part = str(model_dir.with_name("m-tier1"))
    out = str(tmp_path / "x")
    result = invoke("model", "merge", "--into", str(other), "--slice", part, "--out", out)
    assert (result.code, "describe different models" in result.err) == (1, True)


def _changed(path: Path, change: Any) -> None:
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def _not_finite(weights: dict[str, torch.Tensor]) -> None:
    weights["model.norm.weight"][3] = float("nan")


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("m/model.safetensors", _not_finite, "model.norm.weight has a value that is not finite"),
        (
            "m-tier2/model.safetensors",
            lambda weights: weights["model.norm.weight"].add_(1),
            "SHA-256 differs",
        ),
        (
            "m/model.safetensors",
            lambda weights: weights.pop("model.norm.weight"),
            "model.norm.weight",
        ),
    ],
)
def test_verify_of_damaged_model_is_refused(
    model_dir: Path, file: str, change: Any, says: str
) -> None:
    whole = invoke("model", "verify", "--model", str(model_dir), "--json")
    assert json.loads(whole.out)["tiers"] == [1, 2]
    _changed(model_dir.parent / file, change)
    result = invoke("model", "verify", "--model", str(model_dir))
    assert result.code == 1
    assert says in result.err


def test_verify_of_foreign_slice_is_refused(model_dir: Path) -> None:
    (model_dir / "matformer_manifest.json").unlink()
    assert (
        json.loads(invoke("model", "verify", "--model", str(model_dir), "--json").out)["tiers"]
        == []
    )
    part = model_dir.with_name("m-tier1") / "model.safetensors"
    _changed(part, lambda weights: weights["model.norm.weight"].add_(1))
    slice_alone = invoke(
        "model", "verify", "--model", str(model_dir.with_name("m-tier1")), "--json"
    ).data
    assert (slice_alone["slice_of"], slice_alone["files"], slice_alone["tiers"]) == (1, 0, [])


def test_model_verify_of_slice_checks_tensors_and_digests(model_dir: Path) -> None:
    part = model_dir.with_name("m-tier1")
    result = invoke("model", "verify", "--model", str(part))
    assert result.code == 0
    assert "tensors of tier 1 complete and finite, 2 files matching the manifest" in result.out
    _changed(part / "model.safetensors", lambda weights: weights["model.norm.weight"].add_(1))
    assert "SHA-256 differs" in invoke("model", "verify", "--model", str(part)).err
    renamed = part.rename(part.with_name("elsewhere"))
    assert invoke("model", "verify", "--model", str(renamed)).code == 0
    _changed(renamed / "model.safetensors", _not_finite)
    assert "is not finite" in invoke("model", "verify", "--model", str(renamed)).err


def test_merge_of_slice_of_another_training_warns_with_distance(
    model_dir: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    assert invoke("model", "init", "--out", str(other), "--seed", "7", *SHAPE).code == 0
    part = str(model_dir.with_name("m-tier1"))
    out = str(tmp_path / "x")
    result = invoke("model", "merge", "--into", str(other), "--slice", part, "--out", out)
    assert result.code == 0
    match = re.search(
        r"warning: \d+ tensors of .* differ from .* by (\d+)\.\d%", result.err.replace("\n", " ")
    )
    assert match
    assert int(match[1]) > 10


OTHER_FILES = (
    "chat_template.jinja",
    "added_tokens.json",
    "tokenizer.model",
    "merges.txt",
    "LICENSE",
    "README.md",
)


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_export_to_another_directory_has_all_files_and_dtype(
    model_dir: Path, tmp_path: Path, dtype: str
) -> None:
    for name in OTHER_FILES:
        (model_dir / name).write_text("{}")
    out = tmp_path / "out"
    outcome = invoke(
        "model", "export", "--src", model_dir, "--tiers", "1,2", "--out", out, "--dtype", dtype
    )
    assert outcome.code == 0, outcome.err
    assert f"  {out / 'm'}, a copy of the whole model\n" in outcome.out
    torch_dtype = torch.bfloat16 if dtype == "bf16" else torch.float32
    for tier, name in enumerate(("m", "m-tier1", "m-tier2")):
        assert {path.name for path in (out / name).iterdir()} >= {
            *OTHER_FILES,
            "tokenizer.json",
            "tokenizer_config.json",
        }
        assert {
            tensor.dtype for tensor in load_file(out / name / "model.safetensors").values()
        } == {torch_dtype}
        assert (
            json.loads((out / name / "config.json").read_text())["torch_dtype"]
            == str(torch_dtype).split(".")[1]
        )
        expected = load(model_dir, tier, "universal")
        tensors = load(out / name, tier)
        assert all(
            torch.equal(tensors[key], tensor.to(torch_dtype).float())
            for key, tensor in expected.items()
        )
    assert invoke("model", "verify", "--model", out / "m", "--json").data["tiers"] == [1, 2]


def test_lossy_bf16_export_needs_another_directory(model_dir: Path) -> None:
    before = (model_dir.with_name("m-tier1") / "model.safetensors").read_bytes()
    result = invoke("model", "export", "--src", model_dir, "--tiers", "1", "--dtype", "bfloat16")
    assert (result.code, "--out DIRECTORY" in result.err) == (1, True)
    assert (model_dir.with_name("m-tier1") / "model.safetensors").read_bytes() == before
    weights = load_file(model_dir / "model.safetensors")
    save_file(
        {key: tensor.bfloat16() for key, tensor in weights.items()}, model_dir / "model.safetensors"
    )
    assert (
        invoke("model", "export", "--src", model_dir, "--tiers", "1", "--dtype", "bfloat16").code
        == 0
    )
    assert invoke("model", "verify", "--model", model_dir, "--json").data["tiers"] == [1]
    assert (
        invoke("model", "export", "--src", model_dir, "--tiers", "1", "--dtype", "int8").code == 2
    )


def test_model_push_without_repository_or_token_is_refused(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    result = invoke("model", "push", "--model", str(model_dir), "--repo", "nobody")
    assert (result.code, "Use OWNER/NAME" in result.err) == (2, True)
    result = invoke("model", "push", "--model", str(model_dir), "--repo", "me/tiny")
    assert (result.code, "Set HF_TOKEN" in result.err) == (1, True)


def _tokenizer(place: Path, **files: dict[str, Any]) -> Path:
    """Write a tokenizer of 260 ids whose files name its special tokens."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<s>", "</x>", "<pad>"])
    tokenizer.enable_truncation(8)
    tokenizer.save(str(place / "tokenizer.json"))
    for name, document in files.items():
        (place / f"{name}.json").write_text(json.dumps(document))
    return place / "tokenizer.json"


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (("--preset", "llama-1m"), 260),  # widened
        (("--preset", "llama-1m", "--vocab", "300"), 300),
        (("--preset", "llama-20m", *SHAPE, "--kv-heads", "2"), 32_000),
        (SHAPE, 260),
    ],
)
def test_model_init_takes_vocabulary_and_end_of_tokenizer(
    options: tuple[str, ...], size: int, tmp_path: Path
) -> None:
    special_tokens = {"bos_token": "<s>", "eos_token": {"content": "</x>"}}
    tokenizer = _tokenizer(tmp_path, tokenizer_config=special_tokens)
    outcome = invoke(
        "model",
        "init",
        *options,
        "--tokenizer",
        tokenizer.parent,
        "--out",
        tmp_path / "m",
        "--json",
    )
    assert outcome.data["vocab"] == size
    config = config_of(json.loads((tmp_path / "m" / "config.json").read_text()))
    assert (config.vocab_size, config.bos_token_id, config.eos_token_id) == (size, 257, 258)
    carried = json.loads((tmp_path / "m" / "tokenizer.json").read_text())
    assert carried["truncation"] is None
    assert json.loads((tmp_path / "m" / "tokenizer_config.json").read_text()) == special_tokens


@pytest.mark.parametrize(
    ("file", "options", "code", "says"),
    [
        ("tokenizer.json", ("--vocab", "257"), 2, "--vocab 257 is less than the 260 ids"),
        ("notes.txt", (), 1, "notes.txt is not a tokenizer"),
        ("object.json", (), 1, "object.json is not a tokenizer"),
        ("pointer.json", (), 1, "pointer.json is a git-lfs pointer"),
        ("missing.json", (), 1, "there is no such file"),
        ("tokenizer.model", (), 1, "is a SentencePiece model"),
    ],
)
def test_model_init_with_unfit_tokenizer_writes_nothing(
    file: str, options: tuple[str, ...], code: int, says: str, tmp_path: Path
) -> None:
    _tokenizer(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    (tmp_path / "object.json").write_text('{"model": {}}')
    (tmp_path / "pointer.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    refused = invoke(
        "model", "init", "--tokenizer", tmp_path / file, *options, "--out", tmp_path / "m"
    )
    assert (refused.code, says in refused.err, "fix:" in refused.err) == (code, True, True), (
        refused.err
    )
    assert not (tmp_path / "m").exists()


def test_model_init_without_end_token_warns(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"one": 0, "two": 1}, unk_token="one"))
    words.save(str(tmp_path / "t.json"))
    outcome = invoke(
        "model", "init", *SHAPE, "--tokenizer", tmp_path / "t.json", "--out", tmp_path / "m"
    )
    assert outcome.code == 0
    assert "no end-of-text token" in outcome.err
    assert json.loads((tmp_path / "m" / "config.json").read_text())["eos_token_id"] is None


@pytest.mark.parametrize("in_checkpoint", [True, False])
def test_model_init_copies_files_next_to_tokenizer(
    model_dir: Path, tmp_path: Path, in_checkpoint: bool
) -> None:
    place = model_dir if in_checkpoint else tmp_path / "tokens"
    place.mkdir(exist_ok=True)
    _tokenizer(place)
    for name in OTHER_FILES:
        (place / name).write_text("{}")
    outcome = invoke(
        "model",
        "init",
        "--preset",
        "llama-1m",
        "--tokenizer",
        place / "tokenizer.json",
        "--out",
        tmp_path / "n",
    )
    assert outcome.code == 0, outcome.err
    licensed = {"LICENSE"} if in_checkpoint else set()
    written = {path.name for path in (tmp_path / "n").iterdir()}
    assert written & set(OTHER_FILES) == set(OTHER_FILES) - {"LICENSE", "README.md"} | licensed
