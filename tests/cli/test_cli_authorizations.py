"""Tests of authorizations: open runs, which are the default, and runs with permissions by two shell
scripts.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from solders.pubkey import Pubkey

from aftermath.chain.endpoints import endpoint
from aftermath.chain.funding import ensure_funds
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import create_wallet
from cli.cli_runs import Shell, invoke
from cli.conftest import ROOT
from cli.test_cli_bad_input import ELSEWHERE


@pytest.fixture
def people(tmp_path: Path) -> dict[str, Path]:
    """Return key files of a grantor, a grantee and two delegates."""
    paths = {
        name: tmp_path / f"{name}.json"
        for name in ("grantor", "grantee", "delegate1", "delegate2", "stranger")
    }
    for path in paths.values():
        create_wallet(path)
    return paths


def script(name: str, *arguments: str | Path, rpc: str, place: Path, **variables: str) -> None:
    """Call one of the two scripts as Psyche's book shows, and run the command that it calls in this
    process.
    """
    for file in (name, "cluster.sh"):
        shutil.copy(ROOT / "scripts" / file, place)
    stand_in = place / "aftermath-solana"
    stand_in.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    stand_in.chmod(0o755)
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    line = ["sh", place / name, "localnet", *arguments]
    environment = {**os.environ, "PATH": path, "RPC": rpc}
    called = subprocess.run(
        line, capture_output=True, text=True, env=environment, check=True
    ).stdout
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in variables.items():
            patch.setenv(variable, value)
        outcome = invoke(*called.splitlines())
    assert outcome.code == 0, outcome.err


def public(path: Path) -> str:
    return str(invoke("show-identity", "-w", path, "--json").data["wallet"])


def verdict(shell: Shell, run_id: str, address: Path, *more: str) -> list[str]:
    """Return the reasons of `can-join` why `address` may not join."""
    outcome = invoke(
        "can-join", "--rpc", shell.rpc, "--run-id", run_id, "--address", address, *more, "--json"
    )
    data = json.loads(outcome.out)
    # every refusal has one, even those of the program
    assert len(data["codes"]) == len(data["reasons"])
    assert outcome.code in ([0] if data["can_join"] else [1, 10, 11])
    return list(data["reasons"])


def reasons(shell: Shell, run_id: str, address: Path, *more: str) -> str:
    """Return the reasons of a refusal as one line of text."""
    return "; ".join(verdict(shell, run_id, address, *more))


def test_run_without_join_authority_admits_everyone(
    owner: Shell, run_id: str, people: dict[str, Path]
) -> None:
    assert owner("create-run", "--run-id", run_id).data["permissionless"] is True
    everybody = owner("join-authorization-read", "--join-authority", owner.wallet).data
    assert everybody["everybody"]
    assert everybody["active"]
    text = invoke(
        "join-authorization-read", "--join-authority", owner.wallet, "--rpc", owner.rpc
    ).out
    assert re.search(r"granted or withdrawn +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n", text)


@pytest.mark.parametrize(
    "line",
    [
        ("join-authorization-create", "--authorizer", ""),
        ("join-authorization-delete", "--authorizer", ""),
        ("join-authorization-read", "--join-authority", "", "--authorizer", ""),
        ("create-run", "--run-id", "never", "--join-authority", ""),
        ("can-join", "--run-id", "never", "--address", ""),
    ],
)
def test_empty_key_option_is_refused(owner: Shell, line: tuple[str, ...]) -> None:
    outcome = owner(*line)
    assert outcome.code == 2
    assert "the key is empty" in outcome.err
    nothing = owner("join-authorization-read", "--join-authority", owner.wallet)
    assert "has not authorized" in nothing.error["error"]


def test_can_join_refusal_names_the_reason_and_a_fix(
    owner: Shell, run_id: str, people: dict[str, Path], run_dir: Path
) -> None:
    assert owner("create-run", "--run-id", run_id).code == 0

    def refusal() -> list[str]:
        outcome = owner("can-join", "--run-id", run_id, "--address", people["stranger"])
        data = json.loads(outcome.out)
        return [data["reasons"][0], data["fixes"][0]]

    new = "the run is new, and waits for"
    assert refusal() == [
        f"{new} update-config by its owner",
        f"Wait until it is configured: aftermath-solana watch --run-id {run_id}",
    ]
    assert (
        owner("update-config", "--run-id", run_id, "--config-path", run_dir / "config.toml").code
        == 0
    )
    assert refusal() == [
        f"{new} set-paused resume by its owner",
        "You can start train now: it joins as soon as the run resumes",
    ]
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    assert not verdict(owner, run_id, people["stranger"])
    assert owner("set-paused", "--run-id", run_id, "pause").code == 0
    assert refusal()[0] == "the run is paused, and waits for set-paused resume by its owner"


def test_permissioned_run_by_seed_scripts_admits_delegates(
    owner: Shell, run_id: str, people: dict[str, Path], run_dir: Path, tmp_path: Path
) -> None:
    """The grantor admits a grantee with a script, and the grantee names delegates with a script. A
    delegate may join, a stranger may not.
    """
    grantor = people["grantor"]
    grantee = people["grantee"]
    rpc = owner.rpc
    assert (
        owner("create-run", "--run-id", run_id, "--join-authority", grantor).data["permissionless"]
        is False
    )
    assert (
        owner("update-config", "--run-id", run_id, "--config-path", run_dir / "config.toml").code
        == 0
    )
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    refusal = "is not admitted to run"
    assert refusal in reasons(owner, run_id, grantee)
    result = owner("can-join", "--run-id", run_id, "--address", grantee)
    assert "not-authorized" in json.loads(result.out)["codes"]
    (fix,) = json.loads(result.out)["fixes"]
    assert f"Ask the run's join authority {public(grantor)} for an" in fix
    assert fix.endswith("if you are a delegate, pass --authorizer GRANTEE")

    script("join-authorization-create.sh", grantor, public(grantee), rpc=rpc, place=tmp_path)
    assert refusal not in reasons(owner, run_id, grantee)
    line = ("--run-id", run_id, "--address", people["delegate1"], "--authorizer", public(grantee))
    not_yet = json.loads(owner("can-join", *line).out)
    assert refusal in not_yet["reasons"][0]
    assert (
        f"ask {public(grantee)} to delegate to it: aftermath-solana join-auth"
        in not_yet["fixes"][0]
    )

    delegates = (people["delegate1"], people["delegate2"])
    script(
        "join-authorization-set-delegates.sh",
        public(grantor),
        grantee,
        *delegates,
        rpc=rpc,
        place=tmp_path,
    )
    for delegate in delegates:
        assert refusal not in reasons(owner, run_id, delegate, "--authorizer", public(grantee))
    assert refusal in reasons(owner, run_id, people["stranger"], "--authorizer", public(grantee))

    script(
        "join-authorization-set-delegates.sh",
        public(grantor),
        grantee,
        delegates[1],
        rpc=rpc,
        place=tmp_path,
    )
    read = owner(
        "join-authorization-read", "--join-authority", grantor, "--authorizer", grantee
    ).data
    assert read["delegates"] == [public(delegates[1])]


def test_authorization_for_one_run_does_not_admit_to_others(
    owner: Shell, run_id: str, people: dict[str, Path], run_dir: Path, tmp_path: Path
) -> None:
    grantor = Shell(owner.rpc, people["grantor"])
    grantee = people["grantee"]
    other = f"{run_id}b"
    for name in (run_id, other):
        assert (
            owner("create-run", "--run-id", name, "--join-authority", people["grantor"]).code == 0
        )
        assert (
            owner("update-config", "--run-id", name, "--config-path", run_dir / "config.toml").code
            == 0
        )
        assert owner("set-paused", "--run-id", name, "resume").code == 0
    refusal = "is not admitted to run"
    one = ("--authorizer", grantee, "--run-id", run_id)
    assert "admit nobody to run" in owner("join-authorization-create", *one).err
    outcome = grantor("join-authorization-create", *one)
    assert "warning" not in outcome.err
    data = outcome.data
    assert (data["run_id"], data["all_runs"]) == (run_id, False)
    assert refusal not in reasons(owner, run_id, grantee)
    assert refusal in reasons(owner, other, grantee)
    everywhere = grantor("join-authorization-create", "--authorizer", grantee).data
    assert (everywhere["run_id"], everywhere["all_runs"]) == (None, True)
    assert refusal not in reasons(owner, other, grantee)
    assert grantor("join-authorization-delete", "--authorizer", grantee).data["closed"]
    assert refusal not in reasons(owner, run_id, grantee)
    added = (
        "--join-authority",
        people["grantor"],
        "--run-id",
        run_id,
        "--delegates-added",
        people["delegate1"],
    )
    assert (
        len(Shell(owner.rpc, grantee)("join-authorization-delegate", *added).data["delegates"]) == 1
    )
    assert refusal not in reasons(
        owner, run_id, people["delegate1"], "--authorizer", public(grantee)
    )
    read = owner("join-authorization-read", "--join-authority", people["grantor"], *one).data
    assert (read["delegates"], read["delegates_sponsor"]) == (
        [public(people["delegate1"])],
        public(grantee),
    )
    assert not grantor("join-authorization-delete", *one).data["closed"]
    assert refusal in reasons(owner, run_id, grantee)
    create = ("join-authorization-create.sh", people["grantor"], public(grantee))
    script(*create, rpc=owner.rpc, place=tmp_path, RUN_ID=other)
    assert refusal not in reasons(owner, other, grantee)
    assert refusal in reasons(owner, run_id, grantee)


def test_open_run_shows_authorization_for_all_runs(
    owner: Shell, run_id: str, people: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert owner("create-run", "--run-id", run_id).data["permissionless"] is True
    read = owner("join-authorization-read", "--join-authority", owner.wallet, "--run-id", run_id)
    assert (read.data["everybody"], read.data["active"], read.data["all_runs"]) == (True,) * 3
    key = public(Path(owner.wallet))
    missing = f"{key} has not authorized everybody for run {run_id} alone"
    assert f"{missing}, but for all its runs" in read.err
    monkeypatch.setenv("RUN_ID", run_id)
    refused = owner("join-authorization-delete").error
    assert refused["error"] == f"{missing}, but {key} authorized everybody for all its runs"
    assert "delete" in refused["fix"]
    assert refused["fix"].endswith(", without --run-id and the variable RUN_ID")
    monkeypatch.delenv("RUN_ID")

    still_open = f"everybody may join: {key} authorized everybody for all its runs"
    one = ("--authorizer", people["grantee"], "--run-id", run_id)
    assert still_open in owner("join-authorization-create", *one).err
    assert still_open in owner("join-authorization-delete", *one).err
    nobody = owner("join-authorization-read", "--join-authority", owner.wallet, *one)
    assert nobody.code == 1
    assert f"{key} authorized everybody for all its runs" in nobody.err
    assert owner("join-authorization-delete").data["closed"]
    gone = owner("join-authorization-read", "--join-authority", owner.wallet, "--run-id", run_id)
    assert gone.error["error"] == missing


def test_read_for_foreign_run_warns_about_join_authority(
    owner: Shell, run_id: str, people: dict[str, Path]
) -> None:
    assert owner("create-run", "--run-id", run_id).code == 0
    grantor = Shell(owner.rpc, people["grantor"])
    assert grantor("join-authorization-create").code == 0
    read = owner(
        "join-authorization-read", "--join-authority", people["grantor"], "--run-id", run_id
    )
    assert f"admit nobody to run {run_id}" in read.err


def test_authorization_after_withdrawal_is_inactive(owner: Shell, people: dict[str, Path]) -> None:
    grantor = Shell(owner.rpc, people["grantor"])
    assert grantor("join-authorization-create", "--authorizer", people["grantee"]).data["active"]
    again = grantor("join-authorization-create", "--authorizer", people["grantee"]).data
    assert again["signatures"] == []
    gone = grantor("join-authorization-delete", "--authorizer", people["grantee"]).data
    assert gone["closed"]
    assert gone["lamports_returned"] > 0
    missing = grantor(
        "join-authorization-read",
        "--join-authority",
        people["grantor"],
        "--authorizer",
        people["grantee"],
    )
    assert "has not authorized" in missing.error["error"]


def test_authorization_with_delegates_is_withdrawn_not_closed(
    owner: Shell, people: dict[str, Path]
) -> None:
    grantor = Shell(owner.rpc, people["grantor"])
    grantee = Shell(owner.rpc, people["grantee"])
    grantor("join-authorization-create", "--authorizer", people["grantee"])
    added = ("--join-authority", people["grantor"], "--delegates-added", people["delegate1"])
    assert len(grantee("join-authorization-delegate", *added).data["delegates"]) == 1
    assert grantee("join-authorization-delegate", *added).data["signatures"] == []
    gone = grantor("join-authorization-delete", "--authorizer", people["grantee"]).data
    assert not gone["closed"]
    read = grantor(
        "join-authorization-read",
        "--join-authority",
        people["grantor"],
        "--authorizer",
        people["grantee"],
    )
    assert read.data["active"] is False


def test_many_delegates_take_several_transactions(owner: Shell, people: dict[str, Path]) -> None:
    from solders.keypair import Keypair

    grantor = Shell(owner.rpc, people["grantor"])
    grantee = Shell(owner.rpc, people["grantee"])
    grantor("join-authorization-create", "--authorizer", people["grantee"])
    keys = [str(Keypair().pubkey()) for _ in range(45)]
    flags = [word for key in keys for word in ("--delegates-added", key)]
    added = grantee(
        "join-authorization-delegate", "--join-authority", people["grantor"], *flags
    ).data
    assert added["delegates"] == keys
    assert len(added["signatures"]) > 1


@pytest.mark.parametrize(
    "name", ["join-authorization-create.sh", "join-authorization-set-delegates.sh"]
)
def test_scripts_without_arguments_print_usage(name: str) -> None:
    completed = subprocess.run(
        ["sh", ROOT / "scripts" / name, "devnet"], capture_output=True, text=True
    )
    assert completed.returncode == 2
    sentence, fix = completed.stderr.splitlines()
    assert sentence.startswith("error: a cluster, the grantor's ")
    assert fix.startswith(f"fix: call it as: sh scripts/{name} CLUSTER GRANTOR_")
    assert f"(for example: sh scripts/{name} devnet " in fix


def test_scripts_with_missing_argument_are_refused(
    people: dict[str, Path],
) -> None:
    """An unset shell variable shifts the arguments after it to the left."""
    words = ["localnet", people["grantee"], people["delegate1"], people["delegate2"]]
    line = ["sh", ROOT / "scripts/join-authorization-set-delegates.sh", *words]
    completed = subprocess.run(line, capture_output=True, text=True, check=False)
    assert completed.returncode == 2
    sentence, fix = completed.stderr.splitlines()
    assert sentence.startswith(f"error: {people['grantee']} is a file")
    assert fix.startswith("fix: ")
    line = ["sh", ROOT / "scripts/join-authorization-create.sh", "localnet", people["grantor"], ""]
    completed = subprocess.run(line, capture_output=True, text=True, check=False)
    assert completed.returncode == 2
    assert completed.stderr.startswith(
        "error: the third word is empty: GRANTEE_PUBKEY; is its variable set?\nfix: "
    )


def test_missing_key_file_error_names_the_file(owner: Shell) -> None:
    refused = owner("join-authorization-read", "--join-authority", "nowhere/key.json")
    assert refused.code == 1
    assert f"there is no key file {Path.cwd() / 'nowhere/key.json'}" in refused.err


def test_scripts_with_unknown_cluster_are_refused(tmp_path: Path) -> None:
    line = ["sh", ROOT / "scripts/join-authorization-create.sh", "elsewhere", "grantor.json", "KEY"]
    completed = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    assert completed.returncode != 0
    assert "'elsewhere' is not a cluster" in completed.stderr


async def fund(rpc: str, key: str) -> None:
    async with RpcPool([endpoint(rpc)]) as pool:
        await ensure_funds(pool, Pubkey.from_string(key), 2 * 10**9)


def test_run_on_public_network_stays_closed_before_first_epoch(
    owner: Shell, run_id: str, run_dir: Path
) -> None:
    """The second node is on another machine, so strangers may be on that network."""
    asyncio.run(fund(owner.rpc, public(Path(owner.wallet))))  # another network gives it no funds
    far = ("--run-id", run_id, "--rpc-2", ELSEWHERE)
    outcome = owner("create-run", *far)
    assert (outcome.code, outcome.data["permissionless"]) == (0, False)
    (reason,) = verdict(owner, run_id, Path(owner.wallet))
    assert "update-config" in reason  # the owner itself may join
    refused = owner("join-authorization-create", *far)
    assert refused.code == 1
    assert "has not finished an epoch" in refused.err
    assert f"join-authorization-create --run-id {run_id} --authorizer KEY" in refused.err
    refused = owner("join-authorization-create", "--rpc-2", ELSEWHERE)
    assert "can cover only one run" in refused.err
    assert owner("join-authorization-create", "--run-id", run_id).code == 0  # on a local network
    text = (run_dir / "config.toml").read_text()
    weak = Path(owner.wallet).with_name("weak.toml")
    weak.write_text(text.replace("[config]\n", "[config]\noverlap = 0\n", 1))
    refused = owner("update-config", *far, "--config-path", weak)
    assert (refused.code, "overlap = 0" in refused.err) == (1, True)
    assert owner("join-authorization-delete", "--run-id", run_id).code == 0
    assert owner("update-config", *far, "--config-path", weak).code == 0
