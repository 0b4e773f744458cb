"""Tests of runs on the real programs over real sockets: creation, changes, listing, and
refusals.
"""

from __future__ import annotations

import asyncio

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer

from aftermath.base.errors import UsageError
from aftermath.chain.accounts import balance
from aftermath.chain.addresses import run_addresses
from aftermath.chain.authorizer import Authorizer
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.endpoints import Endpoint, endpoint
from aftermath.chain.funding import ensure_funds, percentile
from aftermath.chain.rpc import RpcPool
from aftermath.chain.sender import pack, transaction_size
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import CoordinatorError, NoSuchRun, Refused
from aftermath.rules.state import RunState
from chain.funded_network import FundedNetwork, config_table, model_table
from programs.scenario import SPEC


async def listed(funded: FundedNetwork) -> set[str]:
    """Return the ids of this wallet's runs."""
    runs = await funded.coordinator.list_runs()
    return {run.run_id for run, *_ in runs if run.main_authority == funded.wallet.public}


async def test_run_is_created_configured_started_and_closed(funded: FundedNetwork) -> None:
    coordinator = await funded.open_run("first")
    run, model, members = await coordinator.snapshot("first")
    assert run.state is RunState.WAITING_FOR_MEMBERS
    assert (run.run_id, run.config.rounds_per_epoch, run.levels) == ("first", 3, 2)
    assert run.main_authority == funded.wallet.public
    assert (model.metadata.name, model.checkpoint.repo, model.tier_widths) == (
        "first",
        "/tmp/model",
        (64, 32),
    )
    assert len(members.seats) == 256
    assert "first" in await listed(funded)
    await coordinator.set_paused("first", True)
    before = await balance(funded.pool, funded.wallet.pubkey)
    await coordinator.close_run("first")
    assert await balance(funded.pool, funded.wallet.pubkey) > before + 500_000_000
    assert "first" not in await listed(funded)
    with pytest.raises(NoSuchRun, match="there is no run 'first'"):
        await coordinator.run("first")


async def test_refusals_have_program_name_and_sentence(funded: FundedNetwork) -> None:
    coordinator = await funded.configured_run("strict")
    spent = coordinator.sender.spend.transactions
    with pytest.raises(Refused, match="Nothing is due yet") as caught:
        await coordinator.tick("strict")
    assert caught.value.name == "NothingToTick"
    with pytest.raises(Refused) as caught:
        await coordinator.set_paused("strict", True)
    assert caught.value.name == "AlreadyHalted"
    with pytest.raises(Refused) as caught:
        await coordinator.update("strict", config=config_table(min_clients=0))
    assert caught.value.name == "MinClientsZero"
    with pytest.raises(Refused) as caught:
        await coordinator.transact(
            coordinator.ix.leave_run("strict", (await coordinator.run("strict")).round_id)
        )
    assert caught.value.name == "NotAMember"
    assert coordinator.sender.spend.transactions == spent, (
        "a refused transaction is not sent and costs nothing"
    )


async def test_stranger_may_not_change_run(funded: FundedNetwork) -> None:
    await funded.configured_run("mine")
    stranger = Wallet(Keypair())
    await ensure_funds(funded.pool, stranger.pubkey, 1_000_000_000)
    with pytest.raises(Refused, match="run mine belongs to another wallet") as caught:
        await CoordinatorClient(funded.pool, stranger).set_paused("mine", False)
    assert caught.value.name == "NotMainAuthority"


async def test_run_cannot_be_created_twice(funded: FundedNetwork) -> None:
    await funded.coordinator.create_run("twice")
    with pytest.raises(Refused):
        await funded.coordinator.create_run("twice")


async def test_partly_created_run_is_listed_without_members(
    embedded: FundedNetwork,
) -> None:
    coordinator = embedded.coordinator
    await coordinator.create_run("whole")
    await coordinator.sender.send(coordinator.creation("half")[:1])
    members_by_run = {run.run_id: members for run, _, members in await coordinator.list_runs()}
    assert members_by_run["half"] is None
    assert len(members_by_run["whole"].seats) == 256


async def test_insufficient_funds_error_names_missing_sum(
    funded: FundedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    poor = Wallet(Keypair())
    monkeypatch.setattr(Endpoint, "is_loopback", False)
    with pytest.raises(Refused, match=r"holds 0 SOL but needs .* is missing") as caught:
        await CoordinatorClient(funded.pool, poor).create_run("r")
    assert caught.value.name == "InsufficientFunds"
    assert str(poor.pubkey) in caught.value.fix
    monkeypatch.undo()
    await ensure_funds(funded.pool, poor.pubkey, 1)
    monkeypatch.setattr(Endpoint, "is_loopback", False)
    lamports = await balance(funded.pool, poor.pubkey)
    sender = CoordinatorClient(funded.pool, poor).sender
    gift = TransferParams(
        from_pubkey=poor.pubkey, to_pubkey=Pubkey.new_unique(), lamports=lamports * 2
    )
    with pytest.raises(Refused, match="10 SOL but needs 20"):
        await sender.send([transfer(gift)])


async def test_funds_are_requested_only_on_local_network(
    funded: FundedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    poor = Keypair().pubkey()
    monkeypatch.setattr(Endpoint, "is_loopback", False)
    with pytest.raises(Refused, match="3 SOL is missing"):
        await ensure_funds(funded.pool, poor, 3_000_000_000)
    monkeypatch.undo()
    assert await ensure_funds(funded.pool, poor, 3_000_000_000) >= 3_000_000_000


async def test_wrong_program_id_is_reported(funded: FundedNetwork) -> None:
    nowhere = Keypair().pubkey()
    coordinator = CoordinatorClient(funded.pool, funded.wallet, program_id=nowhere)
    with pytest.raises(CoordinatorError, match=f"there is no program {nowhere}"):
        await coordinator.run("r")
    with pytest.raises(Refused) as caught:
        await coordinator.tick("r")
    assert caught.value.name == "ProgramNotDeployed"
    assert await coordinator.list_runs() == []


@pytest.mark.parametrize("run_id", ["", "x" * 33, "a\0b"])
async def test_impossible_run_ids_are_refused_before_sending(
    embedded: FundedNetwork, run_id: str
) -> None:
    with pytest.raises(UsageError, match="1 to 32 bytes"):
        await embedded.coordinator.run(run_id)


async def test_reading_needs_no_wallet_and_sending_does(embedded: FundedNetwork) -> None:
    await embedded.configured_run("seen")
    reader = CoordinatorClient(embedded.pool)
    assert (await reader.run("seen")).run_id == "seen"
    with pytest.raises(CoordinatorError, match="needs a wallet"):
        await reader.tick("seen")


async def test_equal_instructions_are_two_transactions(funded: FundedNetwork) -> None:
    coordinator = await funded.configured_run("same")
    before = (await coordinator.run("same")).seq
    await asyncio.gather(
        *(coordinator.set_future_epoch_rates("same", earning=1, slashing=None) for _ in range(8))
    )
    assert (await coordinator.run("same")).seq == before + 8
    assert coordinator.sender.spend.lamports == coordinator.sender.spend.transactions * 5000


async def test_packing_keeps_order_and_fits(funded: FundedNetwork) -> None:
    coordinator = funded.coordinator
    instructions = coordinator.creation("packed") + [
        *coordinator.ix.write_spec("packed", SPEC),
        coordinator.ix.update("packed", config=config_table(), model=model_table()),
        *(
            coordinator.ix.set_future_epoch_rates("packed", earning=i, slashing=i)
            for i in range(60)
        ),
    ]
    groups = pack(funded.wallet, instructions)
    assert [i for group in groups for i in group] == instructions
    assert all(transaction_size(funded.wallet, group) <= 1232 for group in groups)
    assert len(groups) < 8
    assert len(await coordinator.sender.send_packed(instructions)) == len(groups)
    assert (await coordinator.run("packed")).future_earning_rate == 59


async def test_oversized_instruction_is_refused(embedded: FundedNetwork) -> None:
    ix = embedded.coordinator.ix
    with pytest.raises(CoordinatorError, match="the limit is 1232"):
        pack(
            embedded.wallet,
            [ix.checkpoint("long", kind=1, repo="r" * 192, revision="", hashes=[bytes(32)] * 64)],
        )


async def test_authorizations_are_created_delegated_and_closed(funded: FundedNetwork) -> None:
    authorizer = Authorizer(funded.pool)
    grantor = funded.wallet.pubkey
    sender = funded.coordinator.sender
    grantee = Wallet(Keypair())
    await ensure_funds(funded.pool, grantee.pubkey, 1_000_000_000)
    member = Keypair().pubkey()
    assert await authorizer.fetch(grantor, grantee.pubkey) is None
    run = run_addresses(funded.coordinator.program_id, "any").run
    await sender.send_packed([authorizer.ix(grantor).create(grantee.pubkey)])
    assert await authorizer.admitting(grantor, grantee.pubkey, run) is None, "it starts inactive"
    await sender.send_packed([authorizer.ix(grantor).grantor_update(grantee.pubkey, True)])
    authorization = await authorizer.admitting(grantor, grantee.pubkey, run)
    assert authorization is not None
    assert await authorizer.admitting(grantor, member, run, grantee.pubkey) is None
    others = [Keypair().pubkey() for _ in range(30)]
    delegation = authorizer.ix(grantee.pubkey).delegation(
        authorization, clear=True, added=[*others, member]
    )
    await CoordinatorClient(funded.pool, grantee).sender.send_packed(delegation)
    delegated_authorization = await authorizer.admitting(grantor, member, run, grantee.pubkey)
    assert delegated_authorization is not None
    assert delegated_authorization.delegates == (*others, member)
    with pytest.raises(Refused) as caught:
        await sender.send_packed([authorizer.ix(grantor).close(delegated_authorization)])
    assert caught.value.name == "StillActive"


def test_percentile_is_one_of_the_values_or_zero() -> None:
    assert percentile([], 50) == 0
    assert [percentile([30, 10, 20], percent) for percent in (0, 33, 34, 66, 67, 100)] == [
        10,
        10,
        20,
        20,
        30,
        30,
    ]


async def test_priority_fees_stay_within_users_limit(funded: FundedNetwork) -> None:
    run = run_addresses(funded.coordinator.program_id, "fees").run
    rich = CoordinatorClient(funded.pool, funded.wallet, max_priority_fee=1000)
    await rich.create_run("fees")
    spend = rich.sender.spend
    assert 5000 * spend.transactions <= spend.lamports <= spend.transactions * (5000 + 1400)
    assert await funded.coordinator.run("fees")
    assert run


async def test_fallback_sends_while_primary_is_down(funded: FundedNetwork) -> None:
    where = [
        endpoint("http://127.0.0.1:9"),
        endpoint(funded.network.rpc_url, funded.network.ws_url),
    ]
    async with RpcPool(where) as pool:
        coordinator = CoordinatorClient(pool, funded.wallet)
        await coordinator.create_run("through")
        assert (await coordinator.run("through")).state is RunState.UNINITIALIZED
