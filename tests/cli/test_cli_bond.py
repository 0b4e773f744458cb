"""Tests of a run with a bond: who is told about it, who pays it, and how it comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aftermath.chain.memberships import BOND_ABOVE_LIMIT
from aftermath.chain.wallet import load_wallet
from aftermath.coordinator.errors import Refused
from aftermath.localnet.runtime import minimum_balance
from cli.cli_lone_member import join, leave
from cli.cli_runs import Shell, train
from cli.test_cli_authorizations import verdict

BOND = 20_000_000
FEE = 5_000


@pytest.fixture
def bonded(owner: Shell, run_id: str, run_dir: Path, tmp_path: Path) -> Shell:
    """Return the owner of a run that requires a bond and waits for two members."""
    text = (
        (run_dir / "config.toml")
        .read_text()
        .replace("init_min_clients = 1", "init_min_clients = 2")
    )
    (tmp_path / "config.toml").write_text(
        text.replace("[config]", f"[config]\njoin_bond = {BOND}", 1)
    )
    assert owner("create-run", "--run-id", run_id).code == 0
    assert (
        owner("update-config", "--run-id", run_id, "--config-path", tmp_path / "config.toml").code
        == 0
    )
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    return owner


def test_join_with_bond_above_limit_is_refused(bonded: Shell, run_id: str) -> None:
    (reason,) = verdict(bonded, run_id, bonded.wallet)
    assert f"run {run_id} requires a bond of 0.02 SOL" in reason
    assert "--max-bond allows only 0 SOL" in reason
    refused = train(bonded, "--run-id", run_id)
    assert refused.code == 11
    assert f"error: {reason}\n" in refused.err
    assert f"--max-bond {BOND}" in refused.err
    # the answer comes before the slow checks, which take minutes
    assert "measuring" not in refused.out
    assert len(verdict(bonded, run_id, bonded.wallet, "--max-bond", str(BOND - 1))) == 1
    assert verdict(bonded, run_id, bonded.wallet, "--max-bond", str(BOND)) == []
    with pytest.raises(Refused) as caught:
        asyncio.run(join(bonded, run_id, BOND - 1))
    assert caught.value.name == BOND_ABOVE_LIMIT


@pytest.mark.parametrize("closed", [False, True])
def test_bond_and_rent_are_refunded(bonded: Shell, run_id: str, closed: bool) -> None:
    user = ("json-dump-user", "--run-id", run_id, "--address", bonded.wallet)
    ask = ("withdraw", "--run-id", run_id)
    never = bonded(*ask).error
    assert "has no membership in run" in never["error"]
    assert never["code"] == "not-enrolled"
    asyncio.run(join(bonded, run_id, BOND))
    data = bonded(*user).data
    assert data["member"]["pending"] is True
    assert (data["membership"]["bond"], data["membership"]["enrolled"]) == (BOND, True)
    assert data["membership"]["wallet"] == str(load_wallet(bonded.wallet).pubkey)
    early = bonded(*ask).error
    assert "waits for the next one" in early["error"]
    assert verdict(bonded, run_id, bonded.wallet) == []  # it has paid
    asyncio.run(leave(bonded, run_id))
    if closed:
        assert bonded("set-paused", "--run-id", run_id, "pause").code == 0
        assert bonded("close-run", "--run-id", run_id, "--yes").code == 0
    back = bonded(*ask).data
    assert back["lamports_returned"] == BOND + minimum_balance(168) - FEE
    assert "has no membership in run" in bonded(*ask).error["error"]
    if not closed:
        assert bonded(*user).code == 1
