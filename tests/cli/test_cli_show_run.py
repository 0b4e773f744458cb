"""`show-run` and `watch`: where a run stands on a real network, once and as it goes on."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aftermath.chain.wallet import load_wallet
from cli.cli_lone_member import one_epoch, quick_config
from cli.cli_runs import CONSOLE, Shell, invoke
from tui.tui_terminal import Terminal

EVIL = "a[/b]\x1b[2J\u202egpj.exe"


@pytest.fixture
def run(owner: Shell, run_id: str, material: Path, tmp_path: Path) -> str:
    """A run that one member may begin, which nobody has joined."""
    config = quick_config(material, tmp_path)
    for command, *arguments in (
        ("create-run", "--name", EVIL, "--description", "for a test"),
        ("update-config", "--config-path", config),
        ("set-paused", "resume"),
    ):
        assert owner(command, "--run-id", run_id, *arguments).code == 0
    return run_id


def an_epoch(owner: Shell, run: str) -> None:
    hashes = {level: bytes([level + 1]) * 32 for level in range(3)}
    asyncio.run(one_epoch(owner.rpc, owner.wallet, run, hashes))


def watching(owner: Shell, run: str, *options: str, **given: Any) -> subprocess.Popen[str]:
    command = [CONSOLE, "watch", "--rpc", owner.rpc, "--run-id", run, *options]
    return subprocess.Popen(command, text=True, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | given)


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    while line := process.stdout.readline():
        yield line


def test_a_run_is_shown_from_its_beginning_to_an_epoch_s_end(owner: Shell, run_id: str, run: str) -> None:
    before = owner("show-run", "--run-id", run).data
    assert (before["state"], before["epoch"], before["step"], before["deadline"]) == ("waiting_for_members", 0, 0, None)
    assert before["waits"] == ["members: 0 of at least 1 member have asked for a place"]
    assert before["members"] == []
    an_epoch(owner, run)
    after = owner("show-run", "--run-id", run).data
    assert (after["state"], after["name"]) == ("cooldown", EVIL)
    assert 0 < after["deadline"] <= 120
    assert after["waits"] == ["a checkpoint of this epoch, which a member of tier 0 has to keep"]
    (member,) = after["members"]
    assert member["signer"] == str(load_wallet(owner.wallet).pubkey)
    assert (member["seat"], member["tier"], member["standing"], member["weight"]) == (0, 0, "takes part", 1)
    assert member["seen"].startswith("epoch 0, round ")
    shown = invoke("show-run", "--rpc", owner.rpc, "--run-id", run)
    for text in ("in cooldown (epoch 0, round ", "a[/b]�[2J�gpj.exe", "step ", member["signer"], "takes part"):
        assert text in shown.out
    assert "\x1b" not in shown.out


def test_a_run_that_is_not_there_is_said(owner: Shell) -> None:
    for command in ("show-run", "watch"):
        done = invoke(command, "--rpc", owner.rpc, "--run-id", "nowhere", "--json")
        assert "there is no run 'nowhere'" in done.error["error"]
        assert done.error["code"] == "no-such-run"
        assert "list-runs" in done.error["fix"]


@pytest.mark.parametrize("as_json", [False, True])
def test_what_changes_is_a_line_where_nothing_can_be_drawn_over(owner: Shell, run: str, as_json: bool) -> None:
    with watching(owner, run, *(["--json"] if as_json else [])) as process:
        told = lines(process)
        first = next(told)
        an_epoch(owner, run)
        shown = [first]
        while "checkpoint of this epoch" not in shown[-1]:
            shown.append(next(told))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert len(shown) == len(set(shown))
    if as_json:
        states = [json.loads(line)["state"] for line in shown]
        assert states[0] == "waiting_for_members"
        assert states[-1] == "cooldown"
        assert "round_train" in states
        steps = [json.loads(line)["step"] for line in shown]
        assert steps == sorted(steps)
    else:
        assert "waiting for members (epoch 0); step 0 of" in shown[0]
        assert "in cooldown (epoch 0, round" in shown[-1]


def test_on_a_terminal_it_has_tabs_and_q_closes_it(owner: Shell, run: str) -> None:
    command = [CONSOLE, "watch", "--rpc", owner.rpc, "--run-id", run]
    with Terminal(command, {}) as terminal:
        terminal.shows("0 of at least 1 member have asked for a place")
        terminal.shows("a[/b]�[2J�gpj.exe")
        terminal.press("5")
        terminal.shows(owner.rpc)
        an_epoch(owner, run)
        terminal.press("1")
        terminal.shows("a checkpoint of this epoch")
        terminal.press("q")
        assert terminal.ended() == 0
        assert terminal.modes() == terminal.usual
        (last,) = terminal.after.splitlines()
        assert "in cooldown (epoch 0, round " in last
    assert "\x1b[2Jgpj" not in terminal.seen


def test_on_a_dumb_terminal_it_prints_lines(owner: Shell, run: str) -> None:
    command = [CONSOLE, "watch", "--rpc", owner.rpc, "--run-id", run]
    with Terminal(command, {"TERM": "dumb"}) as terminal:
        terminal.shows("waits for members: 0 of at least 1 member have asked for a place")
        terminal.press("\x03")
        assert terminal.ended() == 0
    assert "\x1b" not in terminal.seen


def test_watching_ends_when_the_run_is_closed(owner: Shell, run: str) -> None:
    with watching(owner, run, "--json") as process:
        next(lines(process))
        assert owner("set-paused", "--run-id", run, "pause").code == 0
        assert owner("close-run", "--run-id", run, "--yes").code == 0
        assert process.wait(60) == 1
        assert process.stderr is not None
        told = json.loads(process.stderr.read().splitlines()[-1])
        assert "the run has been closed" in told["error"]
        assert told["code"] == "no-such-run"
        assert "list-runs" in told["fix"]
