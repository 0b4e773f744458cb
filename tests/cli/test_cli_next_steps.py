"""The line that says what usually follows: its commands exist, and people get it where scripts do not."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from aftermath.chain.wallet import create_wallet
from aftermath.cli.main import INDEX, SOLANA
from aftermath.cli.next_steps import NEXT, QUIET, line
from aftermath.cli.set_paused import case_of
from aftermath.rules.state import RunState
from aftermath.train.tier import AUTO_TIER
from cli.cli_runs import Shell, invoke
from rules import builders


@pytest.mark.parametrize(("name", "case"), NEXT)
def test_what_follows_exists_and_takes_these_options(name: str, case: str) -> None:
    """So do the options of the command before that its words in braces stand for."""
    assert name in INDEX
    own = {str(option.name) for option in SOLANA.load(name).params}
    assert set(re.findall(r"{(\w+)}", NEXT[name, case])) <= own
    words = shlex.split(NEXT[name, case])
    follows = SOLANA.called(words)
    assert follows is not None
    command = SOLANA.load(follows)
    given = [word for word in words[len(follows.split()) :] if word.startswith("-")]
    assert set(given) <= {flag for option in command.params for flag in option.opts}
    required = [option for option in command.params if option.required]
    assert {option.opts[0] for option in required if option.param_type_name == "option"} <= set(given)


def test_the_line_is_one_that_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"rpc": "http://x:1", "wallet_private_key_path": Path("my wallet.json"), "run_id": "a b"}
    assert line(NEXT["rewind", ""], given) == (
        "aftermath-solana set-paused --run-id 'a b' resume --rpc http://x:1 -w 'my wallet.json'"
    )
    assert line(NEXT["reopen", ""], given) == "aftermath-solana watch --run-id 'a b' --rpc http://x:1"
    monkeypatch.setenv("RPC", "http://x:1")
    assert line(NEXT["reopen", ""], given) == "aftermath-solana watch --run-id 'a b'"
    invited = line(NEXT["update-config", "invited"], given)
    assert invited.count(" -w ") == 1
    assert line(NEXT["join-authorization-create", ""], {"run_id": None}).endswith(
        "can-join --run-id RUN_ID --address KEY"
    )


def test_who_takes_part_is_told_what_follows_too(tmp_path: Path) -> None:
    wallet, model = tmp_path / "wallet.json", tmp_path / "model"
    made = invoke("show-identity", "--create", "-w", wallet)
    assert f"next: aftermath-solana config set wallet {wallet}\n" in made.err
    assert "next:" not in invoke("show-identity", "-w", wallet).err
    written = invoke("model", "init", "--out", model, "--hidden", 32, "--layers", 1, "--intermediate", 64)
    assert f"next: aftermath-solana model inspect --model {model}\n" in written.err
    given = {"run_id": "demo", "matformer_tier": 1, "rpc": "http://x:1"}
    for before in ("can-join", "predownload"):
        assert line(NEXT[before, ""], given) == (
            "aftermath-solana train --run-id demo --matformer-tier 1 -w FILE --rpc http://x:1"
        )


def test_people_are_told_and_scripts_are_not(
    owner: Shell, run_id: str, material: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = ("--rpc", owner.rpc, "-w", owner.wallet, "--run-id", run_id)
    where = f"--rpc {owner.rpc} -w {owner.wallet}"
    made = invoke("create-run", *named, "--join-authority", owner.wallet)
    assert f"next: aftermath-solana update-config --run-id {run_id} --config-path FILE {where}\n" in made.err
    update = ("update-config", *named, "--config-path", material / "config.toml")
    assert "next:" not in invoke(*update, "--dry-run").err
    assert f"next: aftermath-solana set-paused --run-id {run_id} resume {where}\n" in invoke(*update).err
    monkeypatch.setenv(QUIET, "1")
    assert "next:" not in invoke(*update).err
    monkeypatch.delenv(QUIET)
    assert "next:" not in owner("set-paused", "--run-id", run_id, "resume").err
    failed = invoke("set-paused", *named, "resume")
    assert failed.code == 1
    assert "next:" not in failed.err
    paused = invoke("set-paused", *named, "pause").err
    assert "next: aftermath-solana update-config" in paused


def test_who_invites_members_is_told_to_invite_them(owner: Shell, run_id: str, material: Path, tmp_path: Path) -> None:
    create_wallet(tmp_path / "grantor.json")
    named = ("--rpc", owner.rpc, "-w", owner.wallet, "--run-id", run_id)
    assert invoke("create-run", *named, "--join-authority", tmp_path / "grantor.json").code == 0
    said = invoke("update-config", *named, "--config-path", material / "config.toml").err
    assert f"next: aftermath-solana join-authorization-create --run-id {run_id} --authorizer KEY -w JOIN_AUTH" in said
    asked = {"run_id": "demo", "matformer_tier": AUTO_TIER}
    assert line(NEXT["can-join", ""], asked) == "aftermath-solana train --run-id demo --matformer-tier auto -w FILE"
    asked |= {"address": "my wallet.json"}
    assert line(NEXT["can-join", "file"], asked).endswith("--matformer-tier auto -w 'my wallet.json'")


def test_a_run_that_will_pause_is_watched_until_it_has() -> None:
    """Only a paused run can be changed."""
    assert "update-config" in NEXT["set-paused", case_of(builders.run(RunState.PAUSED))]
    for state in (RunState.WARMUP, RunState.ROUND_TRAIN, RunState.COOLDOWN):
        assert "watch" in NEXT["set-paused", case_of(builders.run(state, pending_pause=True))]
