"""`train` from the outside: its settings, and what it says when it cannot take part."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aftermath.cli.train import build_settings, settings_options
from aftermath.train.settings import TrainSettings
from cli.cli_runs import LOCAL, Shell, train


def test_defaults_are_those_of_the_settings() -> None:
    given = {option.name: option.default for option in settings_options()} | {"run_id": "demo"}
    assert build_settings(**given) == TrainSettings(run_id="demo")


def test_the_hub_token_comes_from_the_environment_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    settings = build_settings(run_id="demo")
    assert settings.hub_token == "hf_secret"
    assert "hf_secret" not in repr(settings)


WITHOUT_TORCH = """
import os, signal, sys

class Library:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Library())
from aftermath.__main__ import main
main()
"""
"""Ends with Ctrl-C when torch is asked for."""


def until_torch(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A command, as far as it goes without torch."""
    line = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


def without_torch(shell: Shell, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`train`, as far as it goes without torch."""
    wallet = () if "-w" in arguments else ("-w", shell.wallet)
    return until_torch("train", "--rpc", shell.rpc, *LOCAL, *arguments, *wallet)


def test_what_needs_no_torch_is_said_before_it_is_loaded(owner: Shell, run_id: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "below"
    for arguments, sentence in (
        (("-w", tmp_path / "none.json"), "there is no key file"),
        (("--device", "nonsense"), "--device 'nonsense' is no device"),
        (("--checkpoint-dir", below), "--checkpoint-dir"),
        (("--events-dir", below), "--events-dir"),
        (("--matformer-tier", "auto"), f"there is no run '{run_id}'"),
    ):
        done = without_torch(owner, "--run-id", run_id, *arguments)
        assert done.returncode in (1, 2), (arguments, done)
        assert done.stderr.startswith("error: "), done
        assert sentence in done.stderr
        assert "loading PyTorch" not in done.stdout + done.stderr


def test_a_run_that_would_not_let_it_in_says_so_before_torch_is_loaded(
    owner: Shell, run_id: str, material: Path
) -> None:
    assert owner("create-run", "--run-id", run_id).code == 0
    done = without_torch(owner, "--run-id", run_id)
    assert "is not configured yet" in done.stderr
    assert owner("update-config", "--run-id", run_id, "--config-path", material / "config.toml").code == 0
    done = without_torch(owner, "--run-id", run_id, "--matformer-tier", "3")
    assert done.returncode == 1
    assert "has tiers 0 to 2" in done.stderr
    only = ("--client-version", "of old")
    assert owner("update-config", "--run-id", run_id, *only).code == 0
    done = without_torch(owner, "--run-id", run_id)
    assert done.returncode == 10
    assert owner("update-config", "--run-id", run_id, "--client-version", "").code == 0
    done = without_torch(owner, "--run-id", run_id)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert done.stdout.splitlines()[-1].endswith("loading PyTorch…")


def test_can_join_says_what_the_chain_objects_to_before_torch_is_loaded(
    owner: Shell, run_id: str, material: Path
) -> None:
    def asked(*more: str) -> subprocess.CompletedProcess[str]:
        return until_torch("can-join", "--rpc", owner.rpc, "--run-id", run_id, "--address", str(owner.wallet), *more)

    done = asked("--device", "nonsense")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --device 'nonsense' is no device")
    done = asked()
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: there is no run '{run_id}'")
    assert owner("create-run", "--run-id", run_id).code == 0
    assert owner("update-config", "--run-id", run_id, "--config-path", material / "config.toml").code == 0
    assert owner("update-config", "--run-id", run_id, "--client-version", "of old").code == 0
    done = asked()
    assert done.returncode == 130
    *objections, loading, interrupted = done.stderr.splitlines()
    assert [line.partition(",")[0] for line in objections] == [
        "no: the run is new",
        f"no: run {run_id} takes clients of version of old only",
    ]
    assert (loading, interrupted) == ("loading PyTorch…", "interrupted")


def test_unknown_run(owner: Shell) -> None:
    done = train(owner, "--run-id", "nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no run 'nowhere'")
    assert "\nfix: " in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_the_length_of_a_continuation_needs_a_text(owner: Shell) -> None:
    done = train(owner, "--run-id", "nowhere", "--prompt-tokens", "8")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: --prompt-tokens is the length of a continuation, of no text\nfix: Pass --prompt"
    )


def test_the_live_picture_into_a_pipe_is_lines_from_the_start(owner: Shell, tmp_path: Path) -> None:
    done = train(owner, "--run-id", "nowhere", "--logs", "tui", "--events-dir", tmp_path / "events")
    assert done.returncode == 1
    first = done.stdout.splitlines()[0]
    assert "run nowhere, tier 0, wallet " in first
    assert f"{datetime.now(UTC):%Y-}" in first
    assert "\x1b" not in done.stdout
    [events] = (tmp_path / "events").iterdir()
    assert [json.loads(line)["kind"] for line in events.read_text().splitlines()] == ["started", "error"]


def test_json_makes_the_error_an_event_and_an_object(owner: Shell) -> None:
    done = train(owner, "--run-id", "nowhere", "--json")
    assert done.returncode == 1
    told = json.loads(done.stderr.splitlines()[-1])
    assert "there is no run 'nowhere'" in told["error"]
    assert told["fix"]
    event = json.loads(done.stdout.splitlines()[-1])
    assert event["kind"] == "error"
    assert told["error"] in event["message"]


def test_run_that_is_not_configured(owner: Shell, run_id: str) -> None:
    assert owner("create-run", "--run-id", run_id).code == 0
    done = train(owner, "--run-id", run_id)
    assert done.returncode == 1
    assert "is not configured yet" in done.stdout + done.stderr


def test_tier_that_the_run_does_not_have(owner: Shell, run_id: str, material: Path) -> None:
    assert owner("create-run", "--run-id", run_id).code == 0
    assert owner("update-config", "--run-id", run_id, "--config-path", material / "config.toml").code == 0
    done = train(owner, "--run-id", run_id, "--matformer-tier", "3")
    assert done.returncode == 1
    assert "has tiers 0 to 2" in done.stdout + done.stderr
