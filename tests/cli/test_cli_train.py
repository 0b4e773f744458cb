"""`train` from the outside: its settings, and what it says when it cannot take part."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aftermath.cli.train import build_settings, settings_options
from aftermath.train.settings import TrainSettings
from cli.cli_runs import Shell, train


def test_defaults_are_those_of_the_settings() -> None:
    given = {option.name: option.default for option in settings_options()} | {"run_id": "demo"}
    assert build_settings(**given) == TrainSettings(run_id="demo")


def test_the_hub_token_comes_from_the_environment_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    settings = build_settings(run_id="demo")
    assert settings.hub_token is not None
    assert settings.hub_token.get_secret_value() == "hf_secret"
    assert "hf_secret" not in repr(settings)


SWALLOWS = """
import os, signal, sys
from aftermath.cli.main import main

class Library:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass

sys.meta_path.insert(0, Library())
main()
"""


@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_is_not_lost_while_libraries_are_imported(ignored: bool, tmp_path: Path) -> None:
    """One that swallows it stands for the parts of torch that do; who had it ignored, as with `nohup`, still has."""
    line = [sys.executable, "-c", SWALLOWS, "train", "--run-id", "x", "-w", str(tmp_path / "none.json")]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        ended = subprocess.run(line, capture_output=True, text=True, timeout=120)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (ended.returncode, ended.stdout) == (1 if ignored else 130, "")
    assert ("there is no key file" if ignored else "interrupted\n") in ended.stderr


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
