"""Exported tiers: they merge back into the full model, and the scripts accept and refuse like
commands.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from aftermath.base.outputs import write_mark
from aftermath.model.checkpoint import load, load_config, verified
from aftermath.model.config import WidthNotDivisible
from aftermath.model.export import export_tiers
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import CheckpointError
from aftermath.model.manifest import MANIFEST_FILE, file_sha256, parse_manifest
from aftermath.model.save_checkpoint import save
from aftermath.model.saved_checkpoints import maker_name, prune
from aftermath.model.schema import state_schema
from aftermath.model.segments import segment_bytes, write_segment
from data.script_runs import run

torch.set_num_threads(1)

INIT = [
    "--hidden",
    "32",
    "--layers",
    "2",
    "--heads",
    "2",
    "--kv-heads",
    "1",
    "--intermediate",
    "64",
    "--json",
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "m"
    status, output, errors = run("init-model.py", "--out", str(out), *INIT)
    assert status == 0, errors
    report = json.loads(output)
    assert report["vocab"] == 257
    assert (
        report["parameters"]
        == sum(tensor.numel() for tensor in load(out, 0).values())
        == report["tiers"]["0"]
    )
    status, output, errors = run(
        "export_matformer_tiers.py", "--src", str(out), "--tiers", "1", "2"
    )
    assert status == 0, errors
    assert str(out.with_name("m-tier2")) in output
    return out


def test_new_model_contains_tokenizer_and_end_token(model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    assert tokenizer.encode("hé").ids == list("hé".encode())
    assert tokenizer.token_to_id("<|endoftext|>") == load_config(model_dir).eos_token_id == 256
    assert (model_dir.with_name("m-tier1") / "tokenizer.json").is_file()


def test_exported_levels_merge_back_to_full_model(model_dir: Path) -> None:
    full = load(model_dir, 0)
    document = json.loads((model_dir / "config.json").read_text())
    schema = state_schema(document, 3)
    merged = {name: torch.zeros_like(tensor) for name, tensor in full.items()}
    for level in range(3):
        holder = load(model_dir.with_name(f"m-tier{level}"), level) if level else full
        for segment in schema.of_level(level):
            write_segment(merged, segment, segment_bytes(holder, segment))
    assert all(torch.equal(merged[name], tensor) for name, tensor in full.items())


def test_export_manifest_is_version_1_with_relative_paths(model_dir: Path) -> None:
    manifest = json.loads((model_dir / MANIFEST_FILE).read_text())
    assert (manifest["schema_version"], manifest["matformer_base_intermediate_size"]) == (1, 64)
    assert [(entry["tier"], entry["intermediate_size"]) for entry in manifest["tiers"]] == [
        (0, 64),
        (1, 32),
        (2, 16),
    ]
    assert manifest["tiers"][1]["files"] == [
        "../m-tier1/config.json",
        "../m-tier1/model.safetensors",
    ]
    assert manifest["common_files"] == ["tokenizer.json", "tokenizer_config.json"]
    listed = {name for entry in manifest["tiers"] for name in entry["files"]} | set(
        manifest["common_files"]
    )
    assert manifest["sha256"].keys() == listed


@pytest.mark.parametrize("elsewhere", [False, True])
def test_export_of_one_tier_keeps_the_others(
    model_dir: Path, tmp_path: Path, elsewhere: bool
) -> None:
    source = tmp_path / "m"
    shutil.copytree(model_dir, source)
    out = tmp_path / "out" if elsewhere else None

    def exported(*tiers: int) -> list[int]:
        manifest = export_tiers(source, tiers, out).manifest
        return [entry.tier for entry in parse_manifest(manifest.read_bytes()).tiers]

    assert exported(1, 2) == [0, 1, 2]
    assert exported(1) == [0, 1, 2]
    base = (out or tmp_path) / "m"
    assert verified(base)
    shutil.rmtree(base.with_name("m-tier2"))
    assert exported(1) == [0, 1], "its files are gone"
    assert exported(1, 2) == [0, 1, 2]
    weights = source / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights)
    assert exported(1) == [0, 1], "it is a slice of another model"


def test_slice_export_is_refused(model_dir: Path) -> None:
    with pytest.raises(CheckpointError, match="itself a slice of tier 1"):
        export_tiers(model_dir.with_name("m-tier1"), [2])


@pytest.mark.parametrize("tiers", [[], [0, 1], [-1]])
def test_tier_0_export_is_refused(model_dir: Path, tiers: list[int]) -> None:
    with pytest.raises(CheckpointError, match="must be at least 1"):
        export_tiers(model_dir, tiers)


def test_indivisible_width_export_is_refused_before_writing(model_dir: Path) -> None:
    with pytest.raises(WidthNotDivisible, match="nearest"):
        export_tiers(model_dir, [7])
    assert not model_dir.with_name("m-tier7").exists()


@pytest.fixture
def run_checkpoint(tmp_path: Path) -> Path:
    """Return a run's checkpoint, as a member of tier 0 saves it."""
    status, _, errors = run("init-model.py", "--out", str(tmp_path / "kept" / "run-step40"), *INIT)
    assert status == 0, errors
    write_mark(tmp_path / "kept" / "run-step40", maker_name(""))
    return tmp_path / "kept" / "run-step40"


@pytest.mark.parametrize("name", ["run-step40", "run-step40.replaced-1"])
@pytest.mark.parametrize("out", [None, "kept", "kept/NAME", "kept/NAME/tiers"])
def test_export_into_pruned_directory_is_refused(
    run_checkpoint: Path, tmp_path: Path, out: str | None, name: str
) -> None:
    run_checkpoint = run_checkpoint.rename(run_checkpoint.with_name(name))
    out = out and out.replace("NAME", name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=r"its member will remove[\s\S]*--out"):
        export_tiers(run_checkpoint, [1], None if out is None else tmp_path / out)
    (tmp_path / "link").symlink_to(run_checkpoint)
    with pytest.raises(CheckpointError, match="its member will remove"):
        export_tiers(tmp_path / "link", [1])
    (tmp_path / "link").unlink()
    assert sorted(tmp_path.rglob("*")) == before


def test_export_survives_pruning_of_its_checkpoint(run_checkpoint: Path, tmp_path: Path) -> None:
    expected = {tier: load(run_checkpoint, tier, "universal") for tier in range(3)}
    out = tmp_path / "out"
    status, output, errors = run(
        "export_matformer_tiers.py",
        "--src",
        str(run_checkpoint),
        "--tiers",
        "2",
        "1",
        "--out",
        str(out),
        "--json",
    )
    assert status == 0, errors
    assert json.loads(output)["manifest"] == str(out / "run-step40" / MANIFEST_FILE)
    assert sorted(path.name for path in run_checkpoint.parent.iterdir()) == ["run-step40"]
    assert not (run_checkpoint / MANIFEST_FILE).exists()
    config = load_config(run_checkpoint)
    for step in (41, 42):
        save(
            run_checkpoint.parent,
            init_weights(config, step),
            config,
            run_id="run",
            step=step,
            companions={},
        )
    prune(run_checkpoint.parent, "run", 42, 1, ())
    assert not run_checkpoint.exists()
    for tier, strategy in ((0, "universal"), (1, "sliced"), (2, "sliced"), (2, "universal")):
        loaded = load(out / "run-step40", tier, strategy)  # type: ignore[arg-type]
        assert all(torch.equal(tensor, expected[tier][name]) for name, tensor in loaded.items())
    manifest = json.loads((out / "run-step40" / MANIFEST_FILE).read_text())
    for name, digest in manifest["sha256"].items():
        assert file_sha256(out / "run-step40" / name) == digest


def test_export_does_not_change_linked_weights(run_checkpoint: Path, tmp_path: Path) -> None:
    weights = run_checkpoint / "model.safetensors"
    weights.chmod(0o640)
    export_tiers(run_checkpoint, [1], tmp_path / "out")
    copy = tmp_path / "out" / run_checkpoint.name / weights.name
    assert copy.samefile(weights)
    assert weights.stat().st_mode & 0o777 == 0o640


def test_export_to_own_directory_overwrites_nothing(model_dir: Path) -> None:
    """Other files in the checkpoint stay, for any spelling of its directory."""
    note = model_dir / "README.md"
    note.write_text("what the model is\n")
    exported = export_tiers(model_dir, [1], model_dir / "..")
    assert exported.manifest == model_dir / MANIFEST_FILE
    assert note.is_file()


@pytest.mark.parametrize(
    ("script", "arguments", "says"),
    [
        ("init-model.py", ["--tokenizer", "/nowhere"], "cannot read /nowhere"),
        ("export_matformer_tiers.py", [], "no checkpoint"),
        ("tokenise.py", ["--input", "/nowhere"], "there is no folder /nowhere"),
        (
            "tokenise.py",
            ["--tokenizer", "/nowhere", "--budget-bytes", "20000"],
            "cannot read /nowhere",
        ),
    ],
)
def test_scripts_print_errors_like_commands(
    tmp_path: Path, script: str, arguments: list[str], says: str
) -> None:
    place = {
        "init-model.py": ["--out", str(tmp_path / "x")],
        "export_matformer_tiers.py": ["--src", str(tmp_path), "--tiers", "1"],
        "tokenise.py": ["--output", str(tmp_path / "x")],
    }[script]
    status, output, errors = run(script, *place, *arguments)
    assert (status, output) == (1, "")
    assert errors.startswith("error: ")
    assert says in errors
    assert "\nfix: " in errors
    status, output, errors = run(script, *place, *arguments, "--json")
    assert (status, output) == (1, "")
    error = json.loads(errors)
    assert says in error["error"] + error["fix"]
    assert error["fix"]


@pytest.mark.parametrize(
    ("script", "arguments", "says", "fix"),
    [
        ("init-model.py", [], "--out", "--help"),
        (
            "init-model.py",
            ["--heads", "0"],
            "--heads must be a whole number from 1 to 1024",
            "--help",
        ),
        (
            "init-model.py",
            ["--heads", "3"],
            "--heads 3 does not divide --hidden 128",
            "from 1, 2, 4, 8, 16, 32, 64",
        ),
        (
            "init-model.py",
            ["--heads", "128"],
            "--heads 128 does not divide --hidden 128",
            "from 1, 2, 4, 8, 16, 32, 64",
        ),
        ("init-model.py", ["--hidden", "127"], "--hidden 127 is odd", "even"),
        (
            "init-model.py",
            ["--kv-heads", "3"],
            "--kv-heads 3 does not divide --heads 4",
            "--kv-heads from 1, 2, 4",
        ),
        (
            "init-model.py",
            ["--intermediate", "130"],
            "--intermediate 130 cannot be halved",
            "128 or 132",
        ),
        (
            "init-model.py",
            ["--layers", "many"],
            "--layers must be a whole number from 1 to 512",
            "--help",
        ),
        (
            "init-model.py",
            ["--vocab", "100"],
            "--vocab 100 is less than the 257 ids",
            "--vocab 257",
        ),
        ("init-model.py", ["--tiers", "9"], "--tiers must be a whole number from 1 to 8", "--help"),
        ("init-model.py", ["--seed", "-1"], "--seed must be a whole number from 0 to", "--help"),
        ("export_matformer_tiers.py", ["--src", "x"], "--tiers", "--help"),
        (
            "export_matformer_tiers.py",
            ["--src", "x", "--tiers", "9"],
            "--tiers must be whole numbers from 1 to 7",
            "--help",
        ),
        (
            "export_matformer_tiers.py",
            ["--src", "x", "--tiers", "0"],
            "--tiers must be whole numbers from 1 to 7",
            "--help",
        ),
        (
            "tokenise.py",
            ["--output", "x", "--token-bytes", "3"],
            "--token-bytes must be one of 2, 4",
            "--help",
        ),
        (
            "tokenise.py",
            ["--output", "x", "--budget-bytes", "0"],
            "--budget-bytes must be a whole",
            "--help",
        ),
        ("tokenise.py", ["--output", "x", "--speed", "3"], "--speed", "--help"),
    ],
)
def test_export_with_bad_arguments_names_option(
    tmp_path: Path, script: str, arguments: list[str], says: str, fix: str
) -> None:
    place = ["--out", str(tmp_path / "x")] if script == "init-model.py" and arguments else []
    status, output, errors = run(script, *place, *arguments)
    assert (status, output) == (2, "")
    sentence, way = errors.splitlines()
    assert sentence.startswith("error: ")
    assert says in sentence
    assert way.startswith("fix: ")
    assert fix in way
    assert "config.json" not in errors
    assert not (tmp_path / "x").exists()


def test_export_of_impossible_tier_names_possible_tiers(model_dir: Path) -> None:
    status, output, errors = run(
        "export_matformer_tiers.py", "--src", str(model_dir), "--tiers", "1", "7"
    )
    assert (status, output) == (2, "")
    assert "has only 6 tiers besides the full model" in errors
    assert "\nfix: Choose --tiers from 1 to 6\n" in errors


def test_tokenise_of_one_document_counts_one(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("hello")
    (tmp_path / "text" / "b.txt").write_bytes(b"\xff\xfe")
    status, output, _ = run(
        "tokenise.py", "--input", str(tmp_path / "text"), "--output", str(tmp_path / "x")
    )
    assert status == 0
    assert "6 tokens of 1 document in " in output
    assert output.endswith(" (1 file left out: 1 not UTF-8 text)\n")


def test_tokenise_to_unwritable_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    status, _, errors = run(
        "tokenise.py", "--output", str(tmp_path / "file" / "in"), "--budget-bytes", "60000"
    )
    assert status == 1
    assert errors.startswith("error: cannot write ")


def test_init_does_not_overwrite_exported_checkpoint(model_dir: Path) -> None:
    (model_dir / "README.md").unlink(missing_ok=True)  # created by another test
    (model_dir / "optimizer.bin").write_text("added since")
    status, _, errors = run("init-model.py", "--out", str(model_dir), *INIT)
    assert status == 1
    assert "optimizer.bin, which model init did not write" in errors


def test_new_model_has_tiers_of_tiers_file(tmp_path: Path) -> None:
    entries = tmp_path / "tiers.json"
    entries.write_text(json.dumps([{"layers": [1]}, {"intermediate_size": 7}]))
    options = (*INIT, "--matformer-tiers", str(entries))
    status, output, errors = run("init-model.py", "--out", str(tmp_path / "m"), *options)
    assert status == 0, errors
    config = load_config(tmp_path / "m")
    assert set(json.loads(output)["tiers"]) == {"0", "1", "2"}
    assert not [name for name in config.parameter_shapes(1) if ".layers.0." in name]
    assert config.width(2) == 7
    for text, says in (("[{", "is not JSON"), ("[]", ""), ('[{"layers": [2]}]', "names layer 2")):
        entries.write_text(text)
        status, _, errors = run("init-model.py", "--out", str(tmp_path / "n"), *options)
        assert (status != 0) == bool(says), text
        assert says in errors
