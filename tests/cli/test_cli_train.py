"""Tests of the `train` command: its settings, and its errors if it cannot take part."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aftermath.cli.train import build_settings, settings_options, take_part
from aftermath.train.settings import TrainSettings
from cli.cli_runs import LOCAL, Outcome, Shell, train
from cli.cli_torchless import Torchless, torchless_server


@pytest.fixture(scope="module")
def torchless() -> Iterator[Torchless]:
    with torchless_server() as run:
        yield run


def test_train_defaults_equal_settings() -> None:
    options = {option.name: option.default for option in settings_options()} | {"run_id": "demo"}
    assert build_settings(**options) == TrainSettings(run_id="demo")


def test_hub_token_comes_from_environment_and_is_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    settings = build_settings(run_id="demo")
    assert settings.hub_token == "hf_secret"
    assert "hf_secret" not in repr(settings)


def train_line(shell: Shell, run_id: str, *arguments: str | Path) -> tuple[str | Path, ...]:
    wallet = () if "-w" in arguments else ("-w", shell.wallet)
    return ("train", "--rpc", shell.rpc, *LOCAL, "--run-id", run_id, *arguments, *wallet)


def test_train_option_errors_come_before_torch_import(
    owner: Shell, run_id: str, tmp_path: Path, torchless: Torchless
) -> None:
    (tmp_path / "file").touch()
    taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taken.bind(("0.0.0.0", 0))
    port = str(taken.getsockname()[1])
    below = tmp_path / "file" / "below"
    for arguments, sentence in (
        (("-w", tmp_path / "none.json"), "there is no key file"),
        (("--device", "nonsense"), "--device 'nonsense' is not a valid device"),
        (("--checkpoint-dir", below), "--checkpoint-dir"),
        (("--events-dir", below), "--events-dir"),
        (("--bind-p2p-port", port), f"UDP port {port} is already in use"),
        (
            ("--bind-p2p-port", "45678", "--bind-p2p-interface", "192.0.2.1"),
            "cannot listen on UDP 192.0.2.1:45678",
        ),
        (("--matformer-tier", "auto"), f"there is no run '{run_id}'"),
    ):
        outcome = torchless(*train_line(owner, run_id, *arguments))
        assert outcome.code in (1, 2), (arguments, outcome)
        assert outcome.err.startswith("error: "), outcome
        assert sentence in outcome.err
        assert "loading PyTorch" not in outcome.out + outcome.err
    taken.close()


def test_train_is_refused_before_torch_import(
    owner: Shell, run_id: str, run_dir: Path, torchless: Torchless
) -> None:
    assert owner("create-run", "--run-id", run_id).code == 0
    outcome = torchless(*train_line(owner, run_id))
    assert "is not configured yet" in outcome.err
    assert (
        owner("update-config", "--run-id", run_id, "--config-path", run_dir / "config.toml").code
        == 0
    )
    outcome = torchless(*train_line(owner, run_id, "--matformer-tier", "3"))
    assert outcome.code == 1
    assert "has tiers 0 to 2" in outcome.err
    only = ("--client-version", "of old")
    assert owner("update-config", "--run-id", run_id, *only).code == 0
    outcome = torchless(*train_line(owner, run_id))
    assert outcome.code == 10
    assert owner("update-config", "--run-id", run_id, "--client-version", "").code == 0
    outcome = torchless(*train_line(owner, run_id))
    assert (outcome.code, outcome.err) == (130, "interrupted\n")
    assert outcome.out.splitlines()[-1].endswith("loading PyTorch…")


def test_can_join_is_refused_before_torch_import(
    owner: Shell, run_id: str, run_dir: Path, torchless: Torchless
) -> None:
    def can_join(*more: str) -> Outcome:
        return torchless(
            "can-join", "--rpc", owner.rpc, "--run-id", run_id, "--address", owner.wallet, *more
        )

    outcome = can_join("--device", "nonsense")
    assert outcome.code == 2
    assert outcome.err.startswith("error: --device 'nonsense' is not a valid device")
    outcome = can_join()
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: there is no run '{run_id}'")
    assert owner("create-run", "--run-id", run_id).code == 0
    outcome = can_join()
    assert outcome.code == 1
    assert outcome.out.startswith("not yet: the run is new, and waits for update-config")
    assert "reads" not in outcome.out
    assert "loading PyTorch" not in outcome.err
    rehearsal = ("train", "--rpc", owner.rpc, "-w", owner.wallet, "--run-id", run_id, "--dry-run")
    rehearsed = torchless(*rehearsal)
    assert rehearsed.code == 1
    assert rehearsed.err.startswith("error: the run is new, and waits for update-config")
    assert (
        owner("update-config", "--run-id", run_id, "--config-path", run_dir / "config.toml").code
        == 0
    )
    assert owner("update-config", "--run-id", run_id, "--client-version", "of old").code == 0
    outcome = can_join()
    assert outcome.code == 130
    *objections, loading, interrupted = outcome.err.splitlines()
    assert [line.partition(",")[0] for line in objections] == [
        "no: the run is new",
        f"no: run {run_id} requires client version of old",
    ]
    assert (loading, interrupted) == ("loading PyTorch…", "interrupted")
    assert (
        owner("kick", "--run-id", run_id, "--wallet", owner.wallet, "--bar").data["barred"] is True
    )
    outcome = can_join()
    assert outcome.code == 11
    assert "this wallet is barred from run" in outcome.out
    assert "loading PyTorch" not in outcome.err


def test_train_local_announces_torch_import(tmp_path: Path, torchless: Torchless) -> None:
    outcome = torchless("train-local", "--model", tmp_path, "--data-path", tmp_path)
    assert (outcome.code, outcome.err) == (130, "loading PyTorch…\ninterrupted\n")


def test_take_part_with_ignored_sigint_ends_on_sigint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that starts a member with `&` makes it ignore SIGINT, but stops it with
    `kill -INT`.
    """
    monkeypatch.setattr(os, "_exit", sys.exit)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as ended:
            take_part(
                TrainSettings(run_id="demo"),
                lambda _: signal.raise_signal(signal.SIGINT),
                as_json=False,
            )
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130


def test_train_for_unknown_run_is_refused(owner: Shell) -> None:
    outcome = train(owner, "--run-id", "nowhere")
    assert outcome.code == 1
    assert outcome.err.startswith("error: there is no run 'nowhere'")
    assert "\nfix: " in outcome.err


def test_prompt_tokens_without_prompt_is_refused(owner: Shell) -> None:
    outcome = train(owner, "--run-id", "nowhere", "--prompt-tokens", "8")
    assert outcome.code == 2
    assert outcome.err.startswith(
        "error: --prompt-tokens requires --prompt-text\nfix: Pass --prompt"
    )


def test_train_tui_into_pipe_prints_lines(owner: Shell, tmp_path: Path) -> None:
    outcome = train(
        owner, "--run-id", "nowhere", "--logs", "tui", "--events-dir", tmp_path / "events"
    )
    assert outcome.code == 1
    first = outcome.out.splitlines()[0]
    assert "run nowhere, tier 0, wallet " in first
    assert f"{datetime.now(UTC):%Y-}" in first
    assert "\x1b" not in outcome.out
    [events] = (tmp_path / "events").iterdir()
    assert [json.loads(line)["kind"] for line in events.read_text().splitlines()] == [
        "started",
        "error",
    ]


def test_train_json_error_is_event_and_object(owner: Shell) -> None:
    outcome = train(owner, "--run-id", "nowhere", "--json")
    assert outcome.code == 1
    error = json.loads(outcome.err.splitlines()[-1])
    assert "there is no run 'nowhere'" in error["error"]
    assert error["fix"]
    event = json.loads(outcome.out.splitlines()[-1])
    assert event["kind"] == "error"
    assert error["error"] in event["message"]
