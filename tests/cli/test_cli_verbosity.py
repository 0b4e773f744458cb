"""Tests of `help COMMAND`, and of -q and -v before or after a command."""

from __future__ import annotations

import io
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from aftermath.base.stdio import VERBOSITY, Verbosity, one_output, say
from aftermath.chain.wallet import create_wallet
from aftermath.cli.present import note
from aftermath.cli.update_config import announce
from aftermath.events.console import ConsoleLines, LogLines, show_debug_logs
from aftermath.events.event_types import Leaving, Warning
from aftermath.lab.lab_events import Finished
from aftermath.lab.step_lines import StepLines
from aftermath.owner.change import Difference
from aftermath.server.index import CENTRALIZED
from cli.cli_runs import invoke

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize("words", ["tick", "model init", "model", "config set", ""])
def test_help_command_equals_help_option(words: str) -> None:
    outcome = invoke("help", *words.split())
    assert outcome == invoke(*words.split(), "--help")
    assert outcome.code == 0


def test_help_of_unknown_command_suggests_one() -> None:
    wrong = invoke("help", "model", "innit")
    assert wrong.code == 2
    assert "Did you mean model init?" in wrong.err


def test_help_of_another_script_shows_its_commands() -> None:
    outcome = invoke("help", "watch", script=CENTRALIZED.app)
    assert "Usage: aftermath-centralized watch" in outcome.out


@pytest.mark.parametrize("place", ["before", "behind"])
@pytest.mark.parametrize("flag", ["-q", "--quiet"])
def test_quiet_command_prints_result_without_advice(tmp_path: Path, place: str, flag: str) -> None:
    words = ["show-identity", "--create", "-w", str(tmp_path / "wallet.json")]
    outcome = invoke(flag, *words) if place == "before" else invoke(*words, flag)
    assert outcome.code == 0
    assert "wallet" in outcome.out
    assert outcome.err == ""


def test_quiet_command_prints_warnings_and_errors(tmp_path: Path) -> None:
    outcome = invoke("config", "set", "-q", "wallet", tmp_path / "none.json")
    assert "warning: there is no key file" in outcome.err
    wrong = invoke("-q", "show-identity", "-w", tmp_path / "none.json")
    assert wrong.err.startswith("error: there is no key file")


def test_verbose_command_logs_module_messages(rpc: str, caplog: pytest.LogCaptureFixture) -> None:
    def has_log(*flags: str) -> bool:
        caplog.clear()
        assert invoke(*flags, "list-runs", "--rpc", NOBODY, "--rpc-2", rpc).code == 0
        return any(record.levelno == logging.DEBUG for record in caplog.records)

    assert has_log("-v")
    assert not has_log()


def test_verbose_status_logs_each_answer(
    rpc: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_wallet(tmp_path / "wallet.json")
    outcome = invoke("status", "-v", "--rpc", rpc, "-w", tmp_path / "wallet.json")
    assert outcome.code == 0, outcome.err
    assert any(f"{rpc} answered GetBalance" in record.message for record in caplog.records)


@pytest.mark.parametrize("level", Verbosity)
def test_quiet_update_prints_no_table_of_changes(
    level: Verbosity, capsys: pytest.CaptureFixture[str]
) -> None:
    token = VERBOSITY.set(level)
    try:
        announce("demo", [Difference("base_lr", "1", "2")], None, as_json=False)
    finally:
        VERBOSITY.reset(token)
    assert ("base_lr" in capsys.readouterr().err) is (level is not Verbosity.WARNING)


def test_no_color_writes_no_escape_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert "\x1b[1" in invoke("config", "explain", "nothing").err
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in invoke("config", "explain", "nothing").err


def test_quiet_with_verbose_is_refused() -> None:
    wrong = invoke("config", "show", "-q", "--verbose")
    assert wrong.code == 2
    assert "contradict each other" in wrong.err


def test_quiet_training_prints_only_warnings() -> None:
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    lines = ConsoleLines(console, lambda: datetime(2026, 11, 21, tzinfo=UTC), quiet=True)
    steps = StepLines(console, quiet=True)
    for event in (Leaving(), Warning(message="few peers")):
        lines(event)
    for event in (
        Finished(step=1, tokens=2, held_out_by_tier={}, checkpoint=None),
        Warning(message="lost"),
    ):
        steps(event)
    assert printed.getvalue().splitlines() == [
        "2026-11-21T00:00:00.000Z WARNING few peers",
        "warning: lost",
    ]


def test_logged_lines_name_level_and_escape_terminal_codes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = logging.Logger("aftermath.test")
    logger.addHandler(LogLines())
    logger.warning("peer %s", "\x1b[2J\u202e")
    logger.debug("sent %d", 3)
    assert capsys.readouterr().err == "warning: peer �[2J�\ndebug: aftermath.test: sent 3\n"


@pytest.mark.parametrize("level", Verbosity)
def test_verbose_training_prints_debug_logs(
    level: Verbosity, capsys: pytest.CaptureFixture[str]
) -> None:
    token = VERBOSITY.set(level)
    try:
        logger = logging.Logger("aftermath")
        show_debug_logs(logger)
        logger.debug("sent")
        say("loading")
        note("warning: slow")
    finally:
        VERBOSITY.reset(token)
    printed = [] if level is Verbosity.WARNING else ["loading"]
    if level is Verbosity.DEBUG:
        printed = ["debug: aftermath: sent", "loading"]
    assert capsys.readouterr().err.splitlines() == [*printed, "warning: slow"]


@pytest.mark.parametrize("together", [True, False])
def test_same_output_of_stdout_and_stderr_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    with (
        (tmp_path / "out").open("w") as out,
        (tmp_path / ("out" if together else "err")).open("w") as err,
    ):
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        assert one_output() == together
