"""A run's checkpoints in a directory: how many stay, and what happens to those from before a
rewind.
"""

import filecmp
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from aftermath.base.outputs import MARK, protect
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.checkpoint import load
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import CheckpointError
from aftermath.model.save_checkpoint import Saved, save
from aftermath.model.saved_checkpoints import is_removable, prune, saved_steps, stem_of_run

torch.set_num_threads(1)

CONFIG = LlamaConfig.from_hf(
    {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
)


def keep(
    directory: Path,
    step: int,
    *,
    run_id: str = "run",
    seed: int = 0,
    identity: str = "",
    needed: Any = (),
) -> Saved:
    run = {"run_id": run_id, "identity": identity}
    return save(
        directory,
        init_weights(CONFIG, seed),
        CONFIG,
        **run,
        step=step,
        companions={},
        needed=needed,
    )


def holds(place: Path, seed: int) -> bool:
    return all(
        torch.equal(load(place, 0)[name], tensor)
        for name, tensor in init_weights(CONFIG, seed).items()
    )


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_prune_keeps_newest_and_needed_steps(tmp_path: Path) -> None:
    keep(tmp_path, 3, run_id="other")
    places = {step: keep(tmp_path, step).place for step in (2, 9, 10, 11)}
    prune(tmp_path, "run", 11, 2, {places[2]})
    assert [path.name for path in saved_steps(tmp_path, "run")] == [
        "run-step2",
        "run-step10",
        "run-step11",
    ]
    prune(tmp_path, "run", 11, 2, ())
    assert [path.name for path in saved_steps(tmp_path, "run")] == ["run-step10", "run-step11"]
    assert [path.name for path in saved_steps(tmp_path, "other")] == ["other-step3"]


def test_prune_keeps_protected_steps_besides_newest(tmp_path: Path) -> None:
    protect(keep(tmp_path, 4).place)
    aside = keep(tmp_path, 4, seed=1).replaced
    assert aside is not None
    protect(keep(tmp_path, 9).place)
    for step in (5, 6, 7, 8):
        keep(tmp_path, step)
        prune(tmp_path, "run", step, 2, ())
    assert names(tmp_path) == ["run-step4.replaced-1", "run-step7", "run-step8", "run-step9"]


def test_needed_step_by_any_path_is_kept(tmp_path: Path) -> None:
    """An owner may have named it by a link, and an untrusted member by an invalid path."""
    for step in (1, 2, 3):
        keep(tmp_path / "kept", step)
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    prune(
        tmp_path / "kept",
        "run",
        3,
        1,
        [Path("a\0b"), Path("x" * 300), tmp_path / "link" / "run-step2"],
    )
    assert names(tmp_path / "kept") == ["run-step2", "run-step3"]


def test_steps_of_rewound_past_are_pruned_first(tmp_path: Path) -> None:
    for step in (40, 80, 120, 50, 60):
        keep(tmp_path, step)
    prune(tmp_path, "run", 60, 2, ())
    assert [path.name for path in saved_steps(tmp_path, "run")] == ["run-step50", "run-step60"]


def test_unneeded_other_model_of_step_is_moved_aside(tmp_path: Path) -> None:
    other = keep(tmp_path, 6).place
    place = tmp_path / "run-step5"
    assert keep(tmp_path, 5, seed=1) == Saved(place, None)
    assert keep(tmp_path, 5, seed=1, needed=[other]) == Saved(place, None), "the same model"
    for seed in (2, 3):
        aside = tmp_path / f"run-step5.replaced-{seed - 1}"
        assert keep(tmp_path, 5, seed=seed, needed=[other]) == Saved(place, aside)
        assert holds(aside, seed - 1)
        assert holds(place, seed)
    assert [path.name for path in saved_steps(tmp_path, "run")] == ["run-step5", "run-step6"]
    assert names(tmp_path) == [
        "run-step5",
        "run-step5.replaced-1",
        "run-step5.replaced-2",
        "run-step6",
    ]
    assert all(is_removable(path) for path in tmp_path.iterdir())


@pytest.mark.parametrize("name", ["run-step5", "link/run-step5", "alias"])
def test_needed_other_model_of_step_is_kept(tmp_path: Path, name: str) -> None:
    place = keep(tmp_path, 5, seed=1).place
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "alias").symlink_to(place)
    with pytest.raises(
        CheckpointError,
        match="run-step5, which holds another model",
    ):
        keep(tmp_path, 5, seed=2, needed=[tmp_path / "nowhere", tmp_path / name])
    assert holds(place, 1)
    assert names(tmp_path) == ["alias", "link", "run-step5"]


def test_step_outside_directory_is_not_moved_aside(tmp_path: Path) -> None:
    elsewhere = keep(tmp_path / "elsewhere", 5, seed=1).place
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "run-step5").symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="holds another model"):
        keep(tmp_path / "kept", 5, seed=2)
    assert names(tmp_path / "kept") == ["run-step5"]
    assert holds(elsewhere, 1)


@pytest.mark.parametrize("earlier", ["another run", "an earlier version", "a file"])
def test_save_keeps_checkpoints_of_another_run_with_same_id(tmp_path: Path, earlier: str) -> None:
    """The run id was closed and created again, with the same directory for checkpoints."""
    if earlier == "a file":
        (tmp_path / "run-step5").write_text("mine")
    else:
        for step in (5, 10):
            keep(tmp_path, step, seed=1, identity="first")
    if earlier == "an earlier version":
        for path in tmp_path.glob(f"*/{MARK}"):
            path.unlink()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    for step in (5, 6, 7):
        saved = keep(tmp_path, step, seed=2, identity="second", needed=[])
        assert saved == Saved(tmp_path / f"run-second-step{step}", None)
        prune(tmp_path, stem_of_run(tmp_path, "run", "second"), step, 1, [saved.place])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [path.name for path in saved_steps(tmp_path, "run-second")] == ["run-second-step7"]


def test_moved_aside_steps_are_pruned_first_and_bounded(tmp_path: Path) -> None:
    """The owner rewinds from 30 to 10 repeatedly. Two directories stay, from any attempt."""
    keep(tmp_path, 3, run_id="other", seed=1)
    keep(tmp_path, 3, run_id="other", seed=2)
    others = names(tmp_path)
    for past in range(4):
        for step in (20, 30):
            saved = keep(tmp_path, step, seed=past)
            assert (saved.replaced is not None) == (past > 0)
            prune(tmp_path, "run", step, 2, [saved.place])
            assert holds(saved.place, past)
        assert [name for name in names(tmp_path) if name not in others] == [
            "run-step20",
            "run-step30",
        ]
    aside = keep(tmp_path, 30, seed=9).replaced
    assert aside is not None
    prune(tmp_path, "run", 30, 1, [aside])
    assert [name for name in names(tmp_path) if name not in others] == ["run-step30", aside.name], (
        "it is named now"
    )


def test_kill_between_renames_loses_no_checkpoint(tmp_path: Path) -> None:
    place = keep(tmp_path, 5, seed=1).place
    child = os.fork()
    if child == 0:
        rename = Path.rename

        def killed(path: Path, target: Path) -> Path:
            new_path = rename(path, target)
            if path == place:
                os.kill(os.getpid(), signal.SIGKILL)
            return new_path

        Path.rename = killed  # type: ignore[method-assign, assignment]
        keep(tmp_path, 5, seed=2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert holds(tmp_path / "run-step5.replaced-1", 1)
    assert saved_steps(tmp_path, "run") == []
    assert keep(tmp_path, 5, seed=2) == Saved(place, None)
    assert holds(place, 2)
    assert names(tmp_path) == ["run-step5", "run-step5.replaced-1"]


def test_failed_second_rename_restores_older_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = keep(tmp_path, 5, seed=1).place
    rename = Path.rename

    def fails(path: Path, target: Path) -> Path:
        if path.name.startswith(".partial-") and not place.exists():
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(CheckpointError, match="Input/output error"):
        keep(tmp_path, 5, seed=2)
    assert holds(place, 1)
    assert names(tmp_path) == ["run-step5"]


def test_concurrent_move_aside_of_step_happens_once(tmp_path: Path) -> None:
    """The second process sees the directory that the first one put there, not the older one."""
    keep(tmp_path / "kept", 5, seed=1)
    child = os.fork()
    if child == 0:
        compare = filecmp.cmpfiles

        def slow(*files: Any, **how: Any) -> Any:
            result = compare(*files, **how)
            (tmp_path / "compared").touch()
            time.sleep(0.5)
            return result

        filecmp.cmpfiles = slow  # type: ignore[assignment]
        keep(tmp_path / "kept", 5, seed=2)
        os._exit(0)
    while not (tmp_path / "compared").exists():
        time.sleep(0.005)
    keep(tmp_path / "kept", 5, seed=2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert names(tmp_path / "kept") == ["run-step5", "run-step5.replaced-1"]
    assert holds(tmp_path / "kept" / "run-step5.replaced-1", 1)
