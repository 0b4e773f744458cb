"""Tests that forked members behave like real processes: children with an exit status, output and
signals.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from e2e import fork_server
from e2e.processes import RunningMember, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not fork_server.SUPPORTED, reason="needs prctl"),
    pytest.mark.usefixtures("xprocess"),
]
NOBODY = ["--rpc", "http://127.0.0.1:9", "--ws-rpc", "ws://127.0.0.1:9"]


def test_forked_command_returns_status_and_output(tmp_path: Path) -> None:
    wallet = tmp_path / "wallet.json"
    member = RunningMember("made", ["show-identity", "--create", "-w", wallet], tmp_path, {})
    mistaken = RunningMember("mistaken", ["train", "--run-id", "x" * 99], tmp_path, {})
    assert psutil.Process(member.pid).ppid() == os.getpid()
    assert (member.wait(), mistaken.wait()) == (0, 2)
    assert wallet.exists()
    assert "fix:" in mistaken.output


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_forked_command_ends_by_signals(tmp_path: Path, number: signal.Signals) -> None:
    running = RunningMember(
        "localnet", ["localnet", "--port", "0"], tmp_path, {"HOME": str(tmp_path)}
    )
    until(lambda: "localnet ready" in running.output, "it runs")
    if number == signal.SIGKILL:
        running.kill()
        assert running.code == -signal.SIGKILL
    else:
        running.interrupt(60)
        assert running.code == 0
