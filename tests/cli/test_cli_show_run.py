"""Tests of `show-run` and `watch` on a real network."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aftermath.chain.wallet import create_wallet, load_wallet
from aftermath.cli.connection import sign_in
from aftermath.cli.options import SigningOptions
from cli.cli_lone_member import one_epoch, quick_config
from cli.cli_runs import CONSOLE, Shell, invoke, invoke_during, press_ctrl_c
from ui.terminal.tui_terminal import Terminal

EVIL = "a[/b]\x1b[2J\u202egpj.exe"


def begin(owner: Shell, run_id: str, run_dir: Path, place: Path) -> None:
    """Create a run that starts with one member and that nobody has joined yet."""
    config = quick_config(run_dir, place)
    for command, *arguments in (
        ("create-run", "--name", EVIL, "--description", "for a test"),
        ("update-config", "--config-path", config),
        ("set-paused", "resume"),
    ):
        assert owner(command, "--run-id", run_id, *arguments).code == 0


@pytest.fixture
def run(owner: Shell, run_id: str, run_dir: Path, tmp_path: Path) -> str:
    begin(owner, run_id, run_dir, tmp_path)
    return run_id


def an_epoch(owner: Shell, run: str, in_round: Callable[[], None] = lambda: None) -> None:
    hashes = {level: bytes([level + 1]) * 32 for level in range(3)}
    asyncio.run(one_epoch(owner.rpc, owner.wallet, run, hashes, in_round))


def watching(owner: Shell, run: str) -> subprocess.Popen[str]:
    command = [CONSOLE, "watch", "--rpc", owner.rpc, "--run-id", run]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line
    return line


@dataclass(frozen=True)
class Watched:
    """The output of commands about a run before, during and after its first epoch."""

    wallet: str
    before: dict[str, Any]
    after: dict[str, Any]
    text: str
    lines: list[str]
    json_lines: list[dict[str, Any]]


@pytest.fixture(scope="module")
def watched(rpc: str, run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    place = tmp_path_factory.mktemp("watched")
    create_wallet(place / "owner.json")
    owner = Shell(rpc, place / "owner.json")
    begin(owner, "watched", run_dir, place)
    before = owner("show-run", "--run-id", "watched").data

    def one_epoch_and_ctrl_c(shows: Callable[[str], None]) -> None:
        shows("waiting_for_members")
        # a state that ends before the command has drawn it would not be shown
        an_epoch(owner, "watched", lambda: shows('"round_train"'))
        shows("checkpoint of this epoch")
        press_ctrl_c()

    with watching(owner, "watched") as people:
        lines = [line_of(people)]
        script = invoke_during(
            one_epoch_and_ctrl_c, "watch", "--rpc", rpc, "--run-id", "watched", "--json"
        )
        while "checkpoint of this epoch" not in lines[-1]:
            lines.append(line_of(people))
        people.send_signal(signal.SIGINT)
        assert people.wait(30) == 0
        assert people.stderr is not None
        assert people.stderr.read() == ""
    assert (script.code, script.err) == (0, "")
    after = owner("show-run", "--run-id", "watched").data
    outcome = invoke("show-run", "--rpc", rpc, "--run-id", "watched")
    wallet = str(load_wallet(owner.wallet).pubkey)
    json_lines = [json.loads(line) for line in script.out.splitlines()]
    return Watched(wallet, before, after, outcome.out, lines, json_lines)


@pytest.mark.slow
def test_watch_shows_run_from_start_to_epoch_end(watched: Watched) -> None:
    before = watched.before
    after = watched.after
    assert (before["state"], before["epoch"], before["step"], before["deadline"]) == (
        "waiting_for_members",
        0,
        0,
        None,
    )
    assert before["waits"] == ["members: 0 of 1"]
    assert before["members"] == []
    assert (after["state"], after["name"]) == ("cooldown", EVIL)
    assert 0 < after["deadline"] <= 120
    assert after["waits"] == ["a tier-0 member to save a checkpoint of this epoch"]
    (member,) = after["members"]
    assert member["signer"] == watched.wallet
    assert (member["seat"], member["tier"], member["standing"], member["weight"]) == (
        0,
        0,
        "takes part",
        1,
    )
    assert member["seen"].startswith("epoch 0, round ")
    assert (
        "no recorded checkpoint has the last 2 steps, but a member's --checkpoint-dir may"
        in watched.text
    )
    for text in (
        "in cooldown (epoch 0, round ",
        "a[/b]�[2J�gpj.exe",
        "step ",
        member["signer"],
        "takes part",
    ):
        assert text in watched.text
    assert "\x1b" not in watched.text


def test_watch_without_terminal_prints_changes_as_lines(watched: Watched) -> None:
    assert len(watched.lines) == len(set(watched.lines))
    assert "waiting for members (epoch 0); step 0 of" in watched.lines[0]
    assert "in cooldown (epoch 0, round" in watched.lines[-1]
    lines = [json.dumps(line) for line in watched.json_lines]
    assert len(lines) == len(set(lines))
    states = [line["state"] for line in watched.json_lines]
    assert states[0] == "waiting_for_members"
    assert states[-1] == "cooldown"
    assert "round_train" in states
    steps = [line["step"] for line in watched.json_lines]
    assert steps == sorted(steps)


def test_watch_of_missing_run_is_refused(owner: Shell) -> None:
    for command in ("show-run", "watch"):
        outcome = invoke(command, "--rpc", owner.rpc, "--run-id", "nowhere", "--json")
        assert "there is no run 'nowhere'" in outcome.error["error"]
        assert outcome.error["code"] == "no-such-run"
        assert "list-runs" in outcome.error["fix"]


@pytest.mark.slow
def test_watch_on_terminal_has_tabs_and_q_closes(owner: Shell, run: str) -> None:
    command = [CONSOLE, "watch", "--rpc", owner.rpc, "--run-id", run]
    with Terminal(command, {}) as terminal:
        terminal.shows("members: 0 of 1")
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
    assert "\x1b[2Jgpj" not in terminal.output


@pytest.mark.slow
def test_watch_on_dumb_terminal_prints_lines(owner: Shell, run: str) -> None:
    command = [CONSOLE, "watch", "--rpc", owner.rpc, "--run-id", run]
    with Terminal(command, {"TERM": "dumb"}) as terminal:
        terminal.shows("waits for members: 0 of 1")
        terminal.press("\x03")
        assert terminal.ended() == 0
    assert "\x1b" not in terminal.output


def test_watch_ends_when_run_is_closed(owner: Shell, run: str) -> None:
    async def close() -> None:
        async with sign_in(
            SigningOptions(rpc=owner.rpc, wallet_private_key_path=owner.wallet)
        ) as chain:
            await chain.coordinator.set_paused(run, True)
            await chain.coordinator.close_run(run)

    def close_when_shown(shows: Callable[[str], None]) -> None:
        shows("waiting_for_members")
        asyncio.run(close())

    result = invoke_during(
        close_when_shown, "watch", "--rpc", owner.rpc, "--run-id", run, "--json"
    ).error
    assert "the run was closed" in result["error"]
    assert result["code"] == "no-such-run"
    assert "list-runs" in result["fix"]
