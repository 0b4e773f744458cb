"""Test the checks of checkpoint options before a member joins."""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils import validate_repo_id

from aftermath.base.errors import AftermathError
from aftermath.base.outputs import protect, write_mark
from aftermath.member.unfinished_epoch import UnfinishedEpoch, unfinished_path, write_unfinished
from aftermath.model.save_checkpoint import RESERVE
from aftermath.model.saved_checkpoints import maker_name, step_directory
from aftermath.model.schema import StateSchema
from aftermath.rules.state import RunState
from aftermath.sim.simulation import SimulatedRun, play
from aftermath.train import checkpoint_checks
from aftermath.train.checkpoint_checks import (
    check_directories,
    check_hub,
    check_put_links,
    check_room,
    checkpoint_warning,
)
from aftermath.train.settings import TrainSettings
from rules import builders

Usage = namedtuple("Usage", "total used free")


def settings(**options: Any) -> TrainSettings:
    return TrainSettings(run_id="r", **options)


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> StateSchema:
    async def scenario(_: SimulatedRun) -> None: ...

    return play(tmp_path_factory.mktemp("schema") / "run", scenario).schema.state


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "a/b/c",
        "/model",
        "ada/",
        "-a/b",
        "a b/c",
        "https://hf.co/a/b",
        "",
        "a/b--c",
        "a/b.git",
        "a/b.",
        "a/" + "b" * 97,
    ],
)
def test_hub_repo_without_owner_and_name_is_refused(name: str) -> None:
    with pytest.raises(AftermathError, match="is not the name of a repository") as caught:
        check_hub(settings(hub_repo=name, hub_token="hf_x"))
    assert "OWNER/NAME" in caught.value.fix


def test_hub_repo_without_token_is_refused_with_fix() -> None:
    with pytest.raises(AftermathError, match="needs a token") as caught:
        check_hub(settings(hub_repo="ada/model-1.b"))
    assert "HF_TOKEN" in caught.value.fix
    for name in ("ada/model-1.b", "A_1/b_", "a/" + "b" * 93):
        check_hub(settings(hub_repo=name, hub_token="hf_x"))
        validate_repo_id(name)  # the Hub's own client agrees
    check_hub(settings())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"checkpoint_dir": Path("kept"), "hub_repo": "ada/model"}, "--hub-repo are both given"),
        ({}, "requires --checkpoint-dir"),
        (
            {"checkpoint_dir": Path("kept"), "checkpoint_put_links": "links.json"},
            "cannot read links.json",
        ),
    ],
)
def test_put_links_without_required_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(AftermathError, match=why):
        check_put_links(settings(**{"checkpoint_put_links": "https://signer.example/"} | options))
    check_put_links(settings())


def test_put_links_are_hidden_in_shown_settings() -> None:
    train_settings = settings(
        checkpoint_dir=Path("kept"), checkpoint_put_links="https://signer.example/?token=f00dcafe"
    )
    check_put_links(train_settings)
    assert "f00dcafe" not in repr(train_settings)


def test_directory_check_creates_no_directory(tmp_path: Path) -> None:
    """If a saved model's directory is gone, the start is refused and its user restores it."""
    check_directories(settings(checkpoint_dir=tmp_path / "new/er"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").mkdir()
    check_directories(settings(checkpoint_dir=tmp_path / "old"))
    assert list((tmp_path / "old").iterdir()) == []


def test_impossible_checkpoint_directory_is_named_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        AftermathError, match=f"--checkpoint-dir {tmp_path}/file/kept: Not a directory"
    ):
        check_directories(settings(checkpoint_dir=Path("file/kept")))
    with pytest.raises(
        AftermathError, match=r"--optimizer-state-dir .*/file/kept: Not a directory"
    ):
        check_directories(settings(optimizer_state_dir=Path("file/kept"), matformer_tier=1))
    with pytest.raises(AftermathError, match=f"--checkpoint-dir {tmp_path}/file: it is a file"):
        check_directories(settings(checkpoint_dir=Path("file")))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o500)
    with pytest.raises(AftermathError, match="Permission denied"):
        check_directories(settings(checkpoint_dir=tmp_path / "theirs"))


RUN = builders.run(RunState.ROUND_TRAIN, step=3, start_step=1)
WALLET = b"w" * 32


def check_with_free(
    free: int, directory: Path, schema: StateSchema, monkeypatch: pytest.MonkeyPatch
) -> str | None:
    monkeypatch.setattr(checkpoint_checks.shutil, "disk_usage", lambda _: Usage(0, 0, free))
    return check_room(settings(checkpoint_dir=directory), schema, RUN, WALLET)


def saved_checkpoint(directory: Path, step: int) -> Path:
    path = step_directory(directory, RUN.run_id, step)
    path.mkdir(parents=True)
    write_mark(path, maker_name(RUN.identity))
    return path


def test_disk_without_room_for_two_checkpoints_is_refused(
    tmp_path: Path, schema: StateSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 8 * schema.parameters() + RESERVE
    with pytest.raises(
        AftermathError, match=f"--checkpoint-dir {tmp_path}: 2 checkpoints .* are free"
    ) as caught:
        check_with_free(needed, tmp_path, schema, monkeypatch)
    assert "Free some space" in caught.value.fix
    check_with_free(needed + 1, tmp_path, schema, monkeypatch)
    protect(saved_checkpoint(tmp_path, 1))
    with pytest.raises(AftermathError, match="2 checkpoints"):
        check_with_free(needed, tmp_path, schema, monkeypatch)


def test_saved_checkpoint_counts_as_one_of_two(
    tmp_path: Path, schema: StateSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_checkpoint(tmp_path, 2)
    needed = 4 * schema.parameters() + RESERVE
    check_with_free(needed + 1, tmp_path, schema, monkeypatch)
    with pytest.raises(AftermathError, match="1 more checkpoint of this model"):
        check_with_free(needed, tmp_path, schema, monkeypatch)


def test_start_from_saved_epoch_without_room_is_warned(
    tmp_path: Path, schema: StateSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = saved_checkpoint(tmp_path, 2)
    unfinished = UnfinishedEpoch(RUN.epoch, RUN.epoch_started_at, 2, str(copy))
    write_unfinished(unfinished_path(tmp_path, RUN, WALLET), unfinished)
    needed = 4 * schema.parameters() + RESERVE
    assert "may be lost" in (check_with_free(needed, tmp_path, schema, monkeypatch) or "")
    assert check_with_free(needed + 1, tmp_path, schema, monkeypatch) is None


def test_higher_tiers_save_nothing_and_are_warned(tmp_path: Path, schema: StateSchema) -> None:
    train_settings = settings(
        checkpoint_dir=tmp_path / "never", hub_repo="ada/model", matformer_tier=1
    )
    check_hub(train_settings)
    check_directories(train_settings)
    check_room(train_settings, schema, RUN, WALLET)
    assert not (tmp_path / "never").exists()
    assert "only members of tier 0" in (checkpoint_warning(train_settings) or "")


def test_tier_0_without_checkpoints_is_warned() -> None:
    assert "is lost with the run's members" in (checkpoint_warning(settings()) or "")
    assert checkpoint_warning(settings(checkpoint_dir="kept")) is None
    assert checkpoint_warning(settings(hub_repo="ada/model")) is None
    assert checkpoint_warning(settings(matformer_tier=1)) is None


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [True, False])
def test_members_report_steps_missing_in_older_checkpoint(tmp_path: Path, keeps: bool) -> None:
    """All members die after the first epoch. Its steps are in the checkpoint, or members report
    their loss.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim.saves_checkpoints = keeps
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until(lambda run: run.epoch == 1)
        for sim_member in sim_members:
            await sim.kill(sim_member)
        for sim_member in sim_members:
            sim_member.events.clear()
            sim.start(sim_member)
        await sim.until(lambda run: all(sim_member.saw("model") for sim_member in sim_members))

    sim = play(tmp_path, scenario, rounds_per_epoch=3)
    reached = sim.run.trained_steps
    lost = f"{reached} steps of training are lost: no member has the model"
    for sim_member in sim.sim_members:
        assert any(lost in event["message"] for event in sim_member.saw("warning")) is not keeps, (
            sim_member.saw("warning")
        )
