"""Tests that the legacy IDLs match the programs, and that stock anchorpy reads a run with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anchorpy import Idl, Program, Provider
from anchorpy import Wallet as AnchorWallet
from solana.rpc.async_api import AsyncClient
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.chain.addresses import (
    EVERYONE,
    authorization_address,
    membership_address,
    run_addresses,
)
from aftermath.chain.idl import convert
from aftermath.chain.member import SolanaMember
from aftermath.programs import AUTHORIZER_ID, AUTHORIZER_IDL, COORDINATOR_ID, COORDINATOR_IDL
from chain.funded_network import SCHEMA_HASH, FundedNetwork

LEGACY = Path(__file__).parents[2] / "idl" / "legacy"


def stock(name: str, client: AsyncClient) -> Program:
    """Load the program as a user of anchorpy would, without this package."""
    raw = (LEGACY / f"{name}.json").read_text(encoding="utf-8")
    address = Pubkey.from_string(json.loads(raw)["metadata"]["address"])
    return Program(Idl.from_json(raw), address, Provider(client, AnchorWallet(Keypair())))


@pytest.mark.parametrize(
    "idl", [COORDINATOR_IDL, AUTHORIZER_IDL], ids=["coordinator", "authorizer"]
)
def test_legacy_idl_equals_program(idl: Path) -> None:
    expected = convert(json.loads(idl.read_text(encoding="utf-8")), zero_copy=True)
    committed = json.loads((LEGACY / idl.name).read_text(encoding="utf-8"))
    fix = "python scripts/legacy_idl.py"
    assert committed == expected.legacy | {"metadata": {"address": str(expected.address)}}, fix


async def test_stock_anchorpy_decodes_every_account_of_live_run(embedded: FundedNetwork) -> None:
    coordinator = await embedded.open_run()
    wallet = embedded.wallet.pubkey
    async with SolanaMember(
        embedded.pool, embedded.wallet, embedded.run_id, client_version=""
    ) as member:
        await member.join(
            p2p=member.wallet, tier=0, weight=10, schema_hash=SCHEMA_HASH, stateless=False
        )
    run, model, members = await coordinator.snapshot(embedded.run_id)
    at = run_addresses(coordinator.program_id, embedded.run_id)
    membership = membership_address(coordinator.program_id, at.run, run.created, wallet)
    authorization = authorization_address(Pubkey.from_string(AUTHORIZER_ID), wallet, EVERYONE)
    places = {"Run": at.run, "Model": at.model, "Members": at.members, "Witnesses": at.witnesses}
    async with AsyncClient(embedded.network.rpc_url) as client:
        program = stock("coordinator", client)
        assert str(program.program_id) == COORDINATOR_ID
        places["Membership"] = membership
        accounts: dict[str, Any] = {
            name: await program.account[name].fetch(place) for name, place in places.items()
        }
        authorizer = stock("authorizer", client)
        authorized = await authorizer.account["Authorization"].fetch(authorization)
    assert accounts.keys() == program.account.keys(), "every account that the program has"
    assert authorizer.account.keys() == {"Authorization"}
    assert (accounts["Run"].seq, accounts["Run"].state) == (run.seq, run.state)
    assert accounts["Run"].config.total_steps == run.config.total_steps
    spec = bytes(accounts["Model"].spec[: accounts["Model"].spec_len])
    assert json.loads(spec)["optimizer"]["Distro"]["compression_topk"] == model.optimizer.topk
    seat = members.find(bytes(wallet))
    assert seat is not None
    assert accounts["Members"].seats[seat].signer == wallet
    assert accounts["Membership"].wallet == wallet
    assert (authorized.grantor, authorized.grantee, authorized.active) == (wallet, EVERYONE, True)
