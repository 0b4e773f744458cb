"""Writing checkpoints: all or nothing, and a full disk or a crash loses no earlier one."""

import errno
import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from aftermath.base.outputs import MARK
from aftermath.model import save_checkpoint
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.checkpoint import load, load_config
from aftermath.model.export import export_tiers
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import MOMENTUM_FILE, CheckpointError
from aftermath.model.levels import MOMENTUM
from aftermath.model.momentum_file import read_momentum
from aftermath.model.save_checkpoint import (
    publish,
    read_companions,
    save,
    scratch,
    sweep,
    write_checkpoint,
)
from aftermath.model.saved_checkpoints import saved_steps

torch.set_num_threads(1)

CONFIG = LlamaConfig.from_hf(
    {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "eos_token_id": 7,
    }
)


def keep(directory: Path, step: int, *, run_id: str = "run", seed: int = 0) -> Path:
    params = init_weights(CONFIG, seed)
    companions = {"tokenizer.json": b"{}", "evil.py": b"boom"}
    return save(directory, params, CONFIG, run_id=run_id, step=step, companions=companions).place


def test_saved_checkpoint_loads_bit_for_bit(tmp_path: Path) -> None:
    place = keep(tmp_path / "new" / "place", 12, seed=3)
    assert place == tmp_path / "new" / "place" / "run-step12"
    assert sorted(path.name for path in place.iterdir()) == [
        MARK,
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert all(
        torch.equal(load(place, 0)[name], tensor)
        for name, tensor in init_weights(CONFIG, 3).items()
    )
    assert load_config(place) == CONFIG
    assert read_companions(place) == {"tokenizer.json": b"{}"}
    document = json.loads((place / "config.json").read_text())
    assert (document["matformer_tier"], document["matformer_base_intermediate_size"]) == (0, 16)
    assert document["architectures"] == ["LlamaForCausalLM"]


def test_saved_momentum_is_read_by_tiers_and_not_exported(tmp_path: Path) -> None:
    params = init_weights(CONFIG, 3)
    draws = torch.Generator().manual_seed(1)
    whole = {
        MOMENTUM + name: torch.randint(-1 << 52, 1 << 52, tensor.shape, generator=draws)
        for name, tensor in params.items()
    }
    shared = {"run_id": "run", "step": 3, "companions": dict[str, bytes](), "momentum": whole}
    place = save(tmp_path, params, CONFIG, **shared).place  # type: ignore[arg-type]
    assert save(tmp_path, params, CONFIG, **shared).place == place  # type: ignore[arg-type]
    for tier in (0, 1):
        shapes = {MOMENTUM + name: s for name, s in CONFIG.parameter_shapes(tier).items()}
        momentum = read_momentum(place, CONFIG, shapes)
        assert momentum.keys() == whole.keys()
        for name, tensor in momentum.items():
            assert torch.equal(tensor, whole[name][tuple(map(slice, tensor.shape))])
    assert load(place, 0).keys() == params.keys()
    export_tiers(place, [1], tmp_path / "out" / "m")
    assert list((tmp_path / "out").rglob("model.safetensors"))
    assert not list((tmp_path / "out").rglob(MOMENTUM_FILE))
    whole[next(iter(whole))].view(-1)[0] += 1
    with pytest.raises(CheckpointError, match="which holds another model"):
        save(tmp_path, params, CONFIG, **shared)  # type: ignore[arg-type]


def test_save_of_same_step_again_changes_nothing(tmp_path: Path) -> None:
    place = keep(tmp_path, 5, seed=1)
    (place / "matformer_manifest.json").write_text("made by an export since")
    before = _contents(place)
    assert keep(tmp_path, 5, seed=1) == place
    assert _contents(place) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run-step5"]


@pytest.mark.parametrize("missing", [None, "model.safetensors", "config.json"])
def test_save_of_another_model_for_step_is_refused(tmp_path: Path, missing: str | None) -> None:
    """The caller does not know that nothing needs it. So its contents stay, complete or not."""
    place = keep(tmp_path, 5, seed=1)
    if missing is not None:
        (place / missing).unlink()
    before = _contents(place)
    with pytest.raises(
        CheckpointError,
        match=r"run-step5, which holds another model\nMove",
    ):
        keep(tmp_path, 5, seed=2)
    assert _contents(place) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run-step5"]


def _contents(place: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in place.iterdir()}


@pytest.mark.parametrize("run_id", ["../../evil", "a/b", "..", "\0x", "ü"])
def test_run_id_path_stays_inside_directory(tmp_path: Path, run_id: str) -> None:
    place = keep(tmp_path / "in", 1, run_id=run_id)
    assert place.parent == tmp_path / "in"
    assert saved_steps(tmp_path / "in", run_id) == [place]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_save_of_partial_replica_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="do not fit tier 0"):
        save(tmp_path, init_weights(CONFIG, 0, 1), CONFIG, run_id="run", step=1, companions={})
    assert list(tmp_path.iterdir()) == []


def test_save_on_full_disk_is_refused_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = keep(tmp_path, 1)
    usage = save_checkpoint.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        save_checkpoint.shutil, "disk_usage", lambda _: usage._replace(free=1_000_000)
    )
    for directory in (tmp_path, tmp_path / "new" / "er"):
        with pytest.raises(
            CheckpointError, match=r"a checkpoint needs 1\.\d MB, but only 1\.0 MB are free"
        ) as refused:
            keep(directory, 2)
        assert refused.value.fix.startswith("Free some space")
        assert list(tmp_path.iterdir()) == [first]


def test_save_of_saved_step_on_full_disk_returns_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = keep(tmp_path, 5, seed=1)
    before = _contents(place)
    usage = save_checkpoint.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(save_checkpoint.shutil, "disk_usage", lambda _: usage._replace(free=0))
    assert keep(tmp_path, 5, seed=1) == place
    assert _contents(place) == before
    for name in ("model.safetensors", "config.json"):
        (place / name).write_bytes(before[name][0][:-1])
        with pytest.raises(CheckpointError, match="not enough space"):
            keep(tmp_path, 5, seed=1)
        (place / name).write_bytes(before[name][0])
    with pytest.raises(CheckpointError, match="not enough space"):
        keep(tmp_path, 5, seed=2)


def test_save_on_disk_filling_up_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = keep(tmp_path, 1, seed=1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(save_checkpoint, "save_file", full)
    with pytest.raises(CheckpointError, match=r"the disk of .* is full"):
        keep(tmp_path, 1, seed=2)
    assert list(tmp_path.iterdir()) == [first]
    assert torch.equal(load(first, 0)["lm_head.weight"], init_weights(CONFIG, 1)["lm_head.weight"])


def test_save_to_unwritable_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="cannot write to"):
        keep(tmp_path / "file" / "in", 1)


def test_save_with_safetensors_error_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: Read-only file system (os error 30)")

    monkeypatch.setattr(save_checkpoint, "save_file", limited)
    with pytest.raises(
        CheckpointError, match=r"cannot write to .*: I/O error: Read-only file system"
    ) as caught:
        keep(tmp_path, 1)
    assert caught.value.fix == "Name a directory that you may write to"
    assert not [*tmp_path.iterdir()]


def test_killed_save_leaves_no_checkpoint_and_is_cleaned_up(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        publish(tmp_path / "run-step1", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [path.name[:9] for path in tmp_path.iterdir()] == [".partial-"]
    assert saved_steps(tmp_path, "run") == []
    place = keep(tmp_path, 2)
    assert list(tmp_path.iterdir()) == [place]


def test_save_of_living_process_is_kept(tmp_path: Path) -> None:
    other = tmp_path / f".partial-{os.getpid()}-x"
    other.mkdir()
    keep(tmp_path, 1)
    assert other.exists()


def test_sweep_removes_only_scratch_of_dead_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = os.fork()
    if child == 0:
        scratch()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(f"aftermath-checkpoint-{child}-")
    others = [
        tmp_path / name
        for name in ("aftermath-checkpoint-mine", "aftermath-round-x", f"something-{child}-x")
    ]
    for other in others:
        other.mkdir()
    own = scratch()
    sweep()
    assert sorted(tmp_path.iterdir()) == sorted([own, *others])


def test_failed_publish_keeps_older_directory(tmp_path: Path) -> None:
    publish(tmp_path / "x", lambda place: (place / "a").write_text("1"))

    def fail(place: Path) -> None:
        (place / "a").write_text("2")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        publish(tmp_path / "x", fail)
    assert (tmp_path / "x" / "a").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_slice_of_tier_names_its_tier(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "s", init_weights(CONFIG, 0, 2), CONFIG, tier=2, companions={})
    document = json.loads((tmp_path / "s" / "config.json").read_text())
    keys = ("matformer_tier", "matformer_base_intermediate_size", "intermediate_size")
    assert [document[key] for key in keys] == [2, 16, 4]
