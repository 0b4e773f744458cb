"""Exported tiers: the strips merge back to the full model, and the scripts work and refuse as commands."""

import importlib.util
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from aftermath.model.checkpoint import load, load_config
from aftermath.model.config import WidthNotDivisible
from aftermath.model.documents import CheckpointError
from aftermath.model.export import export_tiers
from aftermath.model.manifest import MANIFEST_FILE
from aftermath.model.schema import build_schema
from aftermath.model.segments import segment_bytes, write_segment

torch.set_num_threads(1)

SCRIPTS = Path(__file__).parents[2] / "scripts"
INIT = ["--hidden", "32", "--layers", "2", "--heads", "2", "--kv-heads", "1", "--intermediate", "64", "--json"]


def run(script: str, *arguments: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a script, called as its command line would."""
    spec = importlib.util.spec_from_file_location("script", SCRIPTS / script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = module.main(arguments)
    return status, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "m"
    status, output, errors = run("init-model.py", "--out", str(out), *INIT)
    assert status == 0, errors
    report = json.loads(output)
    assert report["vocab"] == 320
    assert report["parameters"] == sum(tensor.numel() for tensor in load(out, 0).values()) == report["tiers"]["0"]
    status, output, errors = run("export-tiers.py", "--src", str(out), "--tiers", "1", "2")
    assert status == 0, errors
    assert str(out.with_name("m-tier2")) in output
    return out


def test_a_new_model_carries_a_tokenizer_and_its_end_token(made: Path) -> None:
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    assert tokenizer.encode("hé").ids == list("hé".encode())
    assert tokenizer.token_to_id("<|endoftext|>") == load_config(made).eos_token_id == 256
    assert (made.with_name("m-tier1") / "tokenizer.json").is_file()


def test_exported_levels_merge_back_to_the_full_model(made: Path) -> None:
    full = load(made, 0)
    document = json.loads((made / "config.json").read_text())
    schema = build_schema(
        document, tiers=3, topk=1, chunk=8, quantize_1bit=True, decay=0.9, weight_decay=0.0, clip=None
    )
    merged = {name: torch.zeros_like(tensor) for name, tensor in full.items()}
    for level in range(3):
        holder = load(made.with_name(f"m-tier{level}"), level) if level else full
        for segment in schema.of_level(level):
            write_segment(merged, segment, segment_bytes(holder, segment))
    assert all(torch.equal(merged[name], tensor) for name, tensor in full.items())


def test_the_manifest_is_version_1_with_relative_paths(made: Path) -> None:
    manifest = json.loads((made / MANIFEST_FILE).read_text())
    assert (manifest["schema_version"], manifest["matformer_base_intermediate_size"]) == (1, 64)
    assert [(entry["tier"], entry["intermediate_size"]) for entry in manifest["tiers"]] == [(0, 64), (1, 32), (2, 16)]
    assert manifest["tiers"][1]["files"] == ["../m-tier1/config.json", "../m-tier1/model.safetensors"]
    assert manifest["common_files"] == ["tokenizer.json", "tokenizer_config.json"]
    listed = {name for entry in manifest["tiers"] for name in entry["files"]} | set(manifest["common_files"])
    assert manifest["sha256"].keys() == listed


def test_a_slice_is_not_exported_again(made: Path) -> None:
    with pytest.raises(CheckpointError, match="itself a slice of tier 1"):
        export_tiers(made.with_name("m-tier1"), [2])


@pytest.mark.parametrize("tiers", [[], [0, 1], [-1]])
def test_only_smaller_tiers_are_exported(made: Path, tiers: list[int]) -> None:
    with pytest.raises(CheckpointError, match="start at 1"):
        export_tiers(made, tiers)


def test_a_width_that_does_not_divide_is_refused_before_writing(made: Path) -> None:
    with pytest.raises(WidthNotDivisible, match="nearest"):
        export_tiers(made, [7])
    assert not made.with_name("m-tier7").exists()


@pytest.mark.parametrize(
    ("script", "arguments", "says"),
    [
        ("init-model.py", ["--intermediate", "510"], "nearest widths that are: 508 or 512"),
        ("init-model.py", ["--vocab", "100"], "less than the 257 tokens"),
        ("init-model.py", ["--heads", "3"], "not a multiple"),
        ("init-model.py", ["--tokenizer", "/nowhere"], "cannot read /nowhere"),
        ("export-tiers.py", [], "no checkpoint"),
    ],
)
def test_the_scripts_turn_errors_into_sentences(tmp_path: Path, script: str, arguments: list[str], says: str) -> None:
    place = ["--out", str(tmp_path / "x")] if script == "init-model.py" else ["--src", str(tmp_path), "--tiers", "1"]
    status, _, errors = run(script, *place, *arguments)
    assert status == 1
    assert says in errors


def test_init_does_not_overwrite(made: Path) -> None:
    status, _, errors = run("init-model.py", "--out", str(made), *INIT)
    assert status == 1
    assert "already holds a checkpoint" in errors
