"""Tests with real processes: a run's only member is interrupted during an epoch and started
again.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.cli_lone_member import quick_config
from cli.cli_runs import CONSOLE, LOCAL, Shell

Event = dict[str, Any]


def events_until(
    process: subprocess.Popen[str], predicate: Callable[[Event], bool]
) -> Iterator[Event]:
    """Return the events of a member up to a given one."""
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        yield event
        if predicate(event):
            return
    raise AssertionError("the member ended before that")


@pytest.fixture
def line(owner: Shell, run_id: str, run_dir: Path, tmp_path: Path) -> list[str]:
    """Return the command line of the only member of a run with long epochs. It saves checkpoints in
    `kept`.
    """
    more = {
        "rounds_per_epoch = 2": "rounds_per_epoch = 40",
        "max_round_train_time = 20": "max_round_train_time = 6",
    }
    config = quick_config(run_dir, tmp_path, more)
    for command, *arguments in (
        ("create-run", "--name", "a run"),
        ("update-config", "--config-path", config),
        ("set-paused", "resume"),
    ):
        assert owner(command, "--run-id", run_id, *arguments).code == 0
    words = [
        "train",
        "--rpc",
        owner.rpc,
        "--run-id",
        run_id,
        "-w",
        str(owner.wallet),
        "--logs",
        "json",
        *LOCAL,
    ]
    return [
        str(word)
        for word in (
            CONSOLE,
            *words,
            "--micro-batch-size",
            1,
            "--checkpoint-dir",
            tmp_path / "kept",
        )
    ]


def trained(event: Event, steps: int) -> bool:
    return bool(event["kind"] == "applied" and event["step"] >= steps)


def check_other_starts_refused(owner: Shell, run_id: str, line: list[str]) -> None:
    """Check that a start without the saved copy is refused, and that can-join names the copy."""
    directory = line[-1]
    before = owner("show-run", "--run-id", run_id).data["members"]
    for changed in (line[:-2], [*line[:-1], f"{directory}-2"], [*line, "--matformer-tier", "1"]):
        for dry in ((), ("--dry-run",)):
            start = subprocess.run([*changed, *dry], capture_output=True, text=True, check=False)
            assert start.returncode == 1, start.stdout
            assert (
                f"saved in {directory}\nfix: Add --checkpoint-dir {directory} --matformer-tier 0, or"
                in (start.stderr)
            )
            assert f"tick --run-id {run_id} --rpc {owner.rpc} -w {owner.wallet} first to" in (
                start.stderr
            )
    command = [
        *(CONSOLE, "can-join", "--rpc", owner.rpc, "--run-id", run_id),
        *("--address", owner.wallet, "--device", "cpu"),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    (following,) = [text for text in answer.stderr.splitlines() if text.startswith("next: ")]
    assert f"--matformer-tier 0 -w {owner.wallet} --checkpoint-dir {directory}" in following
    assert subprocess.run([*command, "--matformer-tier", "1"], check=False).returncode == 1
    assert owner("show-run", "--run-id", run_id).data["members"] == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_interrupted_lone_member_resumes_from_saved_steps(
    owner: Shell, run_id: str, line: list[str], number: signal.Signals
) -> None:
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as first:
        list(events_until(first, lambda event: trained(event, 4)))
        first.send_signal(number)
        stopped = list(events_until(first, lambda event: event["kind"] == "stopped"))[-1]
        assert first.wait(30) == 0
    assert stopped["continues"]
    assert Path(stopped["path"]).is_dir()
    check_other_starts_refused(owner, run_id, line)
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as waiting:
        list(events_until(waiting, lambda event: event["kind"] == "model"))
        waiting.send_signal(number)  # it waits for the end of its epoch
        stopped_event = list(events_until(waiting, lambda event: event["kind"] == "stopped"))[-1]
        assert waiting.wait(30) == 0
    assert (stopped_event["step"], stopped_event["continues"]) == (stopped["step"], True)
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as again:
        events_read = list(events_until(again, lambda event: event["kind"] == "applied"))
        again.send_signal(signal.SIGINT)
        assert again.wait(60) == 0
    assert [event["step"] for event in events_read if event["kind"] == "cooldown"] == [
        stopped["step"]
    ]
    assert events_read[-1]["step"] == stopped["step"] + 1
    data = owner("show-run", "--run-id", run_id).data
    assert data["checkpoint_step"] == stopped["step"]


@pytest.mark.slow
def test_lone_member_unable_to_save_fails_with_lost_steps(line: list[str], tmp_path: Path) -> None:
    """Nobody can press Ctrl-C a second time, because the input is not a terminal."""
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as member:
        list(events_until(member, lambda event: trained(event, 2)))
        shutil.rmtree(tmp_path / "kept", ignore_errors=True)
        (tmp_path / "kept").write_text("a file, in which no checkpoint can be")
        member.send_signal(signal.SIGTERM)
        events_read = [json.loads(text) for text in member.stdout or ()]
        assert member.wait(90) == 12
    warned = [event["message"] for event in events_read if event["kind"] == "warning"]
    assert any(
        "trained steps are lost: this member had the only copy" in message for message in warned
    )
    assert "trained steps are lost" in events_read[-1]["message"]
