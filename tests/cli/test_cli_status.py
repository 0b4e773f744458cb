"""Tests of `status`, which shows a wallet's SOL, runs and seats."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from solders.pubkey import Pubkey

from aftermath.chain.addresses import run_addresses
from aftermath.chain.dump import plain
from aftermath.chain.endpoints import shown
from aftermath.chain.wallet import create_wallet, load_wallet
from aftermath.cli.wallet import _page
from aftermath.programs import COORDINATOR_ID
from aftermath.rules.state import RunState
from cli.cli_lone_member import join, leave
from cli.cli_runs import Shell, invoke
from cli.test_cli_bond import BOND


def status(shell: Shell) -> Any:
    return invoke("status", "--rpc", shell.rpc, "-w", shell.wallet, "--json").data


def test_status_shows_runs_and_seats_of_wallet(
    owner: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    text = (
        (run_dir / "config.toml")
        .read_text()
        .replace("init_min_clients = 1", "init_min_clients = 2")
    )
    (tmp_path / "config.toml").write_text(
        text.replace("[config]", f"[config]\njoin_bond = {BOND}", 1)
    )
    run_option = ("--run-id", run_id)
    assert owner("create-run", *run_option).code == 0
    assert owner("update-config", *run_option, "--config-path", tmp_path / "config.toml").code == 0
    assert owner("set-paused", *run_option, "resume").code == 0
    asyncio.run(join(owner, run_id, BOND))

    data = status(owner)
    assert data["wallet"] == str(load_wallet(owner.wallet).pubkey)
    assert data["rpc"] == shown(owner.rpc)
    assert data["lamports"] > 0
    (run,) = data["runs"]
    assert (run["run_id"], run["state"], run["members"]) == (run_id, "waiting_for_members", 1)
    assert run["roles"] == ["owner", "join authority"]
    (seat,) = data["seats"]
    assert (seat["seat"], seat["tier"], seat["bond_lamports"]) == (0, 0, BOND)
    assert seat["member"] == "joins the next epoch"

    page = invoke("status", "--rpc", owner.rpc, "-w", owner.wallet)
    assert "owner, join authority" in page.out
    assert "0.02 SOL" in page.out

    asyncio.run(leave(owner, run_id))
    assert owner("set-paused", *run_option, "pause").code == 0
    assert owner("close-run", *run_option, "--yes").code == 0
    closed = status(owner)
    assert closed["runs"] == []
    (seat,) = closed["seats"]
    assert (seat["state"], seat["member"], seat["bond_lamports"]) == ("closed", "no seat", BOND)
    assert seat["withdraw"] == f"aftermath-solana withdraw --run-id {seat['run_id']}"
    page = invoke("status", "--rpc", owner.rpc, "-w", owner.wallet)
    (command,) = re.findall(r"get back bond and rent: aftermath-solana (withdraw .*)", page.err)
    # by its address, because the chain has no name of a closed run
    outcome = invoke(*shlex.split(command), "--json")
    assert outcome.data["lamports_returned"] > BOND
    assert status(owner)["seats"] == []


def test_withdraw_by_address_of_existing_run_names_run_option(
    owner: Shell, run_id: str, run_dir: Path
) -> None:
    run_option = ("--run-id", run_id)
    assert owner("create-run", *run_option).code == 0
    assert owner("update-config", *run_option, "--config-path", run_dir / "config.toml").code == 0
    assert owner("set-paused", *run_option, "resume").code == 0
    asyncio.run(join(owner, run_id, 0))
    (seat,) = status(owner)["seats"]
    assert seat["withdraw"] is None
    run = str(run_addresses(Pubkey.from_string(COORDINATOR_ID), run_id).run)
    assert "waits for the next one" in owner("withdraw", "--run-id", run).error["error"]
    wrong = owner("withdraw", "--run-id", run[:-1] + "!").mistake
    assert "is not a valid run id" in wrong["error"]


def test_status_page_names_states_as_show_run_does() -> None:
    run = {"run_id": "demo", "state": plain(RunState.ROUND_TRAIN), "roles": ["owner"]}
    console = Console(width=100)
    with console.capture() as page:
        console.print(_page({}, [run], []))
    assert "training" in page.get()
    assert "round train" not in page.get()


def test_status_of_new_wallet_says_empty(rpc: str, tmp_path: Path) -> None:
    create_wallet(tmp_path / "new.json")
    page = invoke("status", "--rpc", rpc, "-w", tmp_path / "new.json")
    assert page.code == 0
    assert "0 SOL" in page.out
    assert "this wallet owns no runs" in page.out
    assert "this wallet has no seats" in page.out


def test_status_without_wallet_prints_fix(rpc: str) -> None:
    wrong = invoke("status", "--rpc", rpc)
    assert wrong.code == 1
    assert "no wallet was given" in wrong.err
    assert "show-identity --create -w FILE" in wrong.err
