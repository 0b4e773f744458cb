"""Tests of funding: a local network refills a drained wallet. On other clusters one error names a
sufficient sum before anything is sent.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import TransferParams, transfer

from aftermath.chain.accounts import balance, fetch, rent
from aftermath.chain.addresses import EVERYONE, run_addresses
from aftermath.chain.authorizer import Authorizer
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.deploy import deploy_program, deployment_cost
from aftermath.chain.endpoints import Endpoint
from aftermath.chain.funding import ensure_funds, transaction_fee
from aftermath.chain.member import SolanaMember
from aftermath.chain.options import open_pool
from aftermath.chain.rpc import RpcPool
from aftermath.chain.sender import MAX_UNITS, Sender
from aftermath.chain.wallet import Wallet
from aftermath.cli.options import ClusterOptions
from aftermath.coordinator.errors import Refused
from aftermath.programs import AUTHORIZER_SO
from chain.faults import answer
from chain.funded_network import SCHEMA_HASH, FundedNetwork
from chain.scripted_node import Node, cluster, serving

FEE = 5_000


async def give(funded: FundedNetwork, wallet: Wallet, lamports: int) -> None:
    before = await balance(funded.pool, wallet.pubkey)
    await funded.pool.call(lambda node: node.request_airdrop(wallet.pubkey, lamports))
    while await balance(funded.pool, wallet.pubkey) == before:
        await asyncio.sleep(0.05)


async def drain(funded: FundedNetwork, wallet: Wallet) -> None:
    """Leave the wallet with too little for one more fee."""
    spare = await balance(funded.pool, wallet.pubkey) - await rent(funded.pool, 0) - FEE
    gift = TransferParams(from_pubkey=wallet.pubkey, to_pubkey=Pubkey.new_unique(), lamports=spare)
    await Sender(funded.pool, wallet, errors={}).send([transfer(gift)])
    assert await balance(funded.pool, wallet.pubkey) == await rent(funded.pool, 0)


async def test_equal_transfers_of_two_processes_both_land(
    embedded: FundedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes send the same transfer with the same blockhash. For example, a run that is
    paused, resumed and paused within a slot is paused.
    """
    recent = await Sender(embedded.pool, embedded.wallet, errors={}).blockhash()
    taker = Pubkey.new_unique()

    async def same(_: Sender) -> tuple[Hash, int]:
        return recent

    monkeypatch.setattr(Sender, "blockhash", same)
    gift = TransferParams(from_pubkey=embedded.wallet.pubkey, to_pubkey=taker, lamports=10**6)
    for number in (1, 2):
        async with open_pool(
            ClusterOptions(rpc=embedded.pool.endpoints[0].http), patience=20
        ) as pool:
            await Sender(pool, embedded.wallet, errors={}).send([transfer(gift)])
        assert await balance(embedded.pool, taker) == number * 10**6


async def lamports_to_request(sender: Sender, error: Refused) -> int:
    """Return the lamports that the error requests."""
    assert error.name == "InsufficientFunds"
    assert str(sender.wallet.pubkey) in error.message
    return round(float(error.message.split("needs ")[1].split(" SOL")[0]) * 10**9)


async def test_drained_member_is_refilled_by_local_network(funded: FundedNetwork) -> None:
    """The wallet can pay at the start of `train`, but not when it has to send."""
    await funded.open_run("drained")
    wallet = Wallet(Keypair())
    await give(funded, wallet, 1_000_000_000)
    async with SolanaMember(funded.pool, wallet, "drained", client_version="") as member:
        await drain(funded, wallet)
        await member.join(
            p2p=member.wallet, tier=0, weight=1, schema_hash=SCHEMA_HASH, stateless=True
        )
        assert (await member.view()).members.find(member.wallet) is not None
        await drain(funded, wallet)
        await member.leave()


async def test_airdrop_requests_never_repeat_a_sum() -> None:
    """A faucet answers equal requests only once, so each sum depends on the wallet's balance."""
    asked_for: list[int] = []
    lamports = 3 * FEE

    async def faucet(body: dict[str, Any]) -> web.Response:
        nonlocal lamports
        if body["method"] == "requestAirdrop":
            asked_for.append(body["params"][1])
            lamports += body["params"][1]
            return answer(body, str(Signature.default()))
        if body["method"] == "getBalance":
            return answer(body, {"context": {"slot": 7}, "value": lamports})
        return answer(body, cluster("the one"))

    node = Node()
    wallet = Pubkey.new_unique()
    node.always = faucet
    async with serving(node) as endpoints, RpcPool(endpoints) as pool:
        await ensure_funds(pool, wallet, 1_000_000)
        lamports = 2 * FEE
        await ensure_funds(pool, wallet, 1_000_000)
    assert len(asked_for) == len(set(asked_for)) == 2


async def test_several_transfers_are_refilled_for_each(funded: FundedNetwork) -> None:
    poor = Wallet(Keypair())
    gifts = [
        transfer(
            TransferParams(
                from_pubkey=poor.pubkey, to_pubkey=Pubkey.new_unique(), lamports=15 * 10**9
            )
        )
        for _ in range(2)
    ]
    await Sender(funded.pool, poor, errors={}).send(gifts)


async def test_drained_wallet_error_names_sum_balance_and_address(
    funded: FundedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = await funded.configured_run("elsewhere")
    await drain(funded, funded.wallet)
    monkeypatch.setattr(Endpoint, "is_loopback", False)
    with pytest.raises(
        Refused, match=r"holds 0\.00089088 SOL but needs 0\.00089588 SOL: 0\.000005 SOL"
    ) as caught:
        await coordinator.set_future_epoch_rates("elsewhere", earning=1, slashing=None)
    assert (
        await lamports_to_request(coordinator.sender, caught.value)
        == await rent(funded.pool, 0) + FEE
    )


@pytest.mark.parametrize("priority", [0, 10_000])
async def test_requested_sum_pays_for_run(
    embedded: FundedNetwork, monkeypatch: pytest.MonkeyPatch, priority: int
) -> None:
    """With one lamport less nothing is sent, and with the sum everything is. The sum is little more
    than the costs.
    """
    monkeypatch.setattr(Endpoint, "is_loopback", False)
    poor = Wallet(Keypair())
    coordinator = CoordinatorClient(embedded.pool, poor, max_priority_fee=priority)
    run_id = embedded.run_id
    with pytest.raises(Refused) as caught:
        await coordinator.create_run(run_id)
    needed = await lamports_to_request(coordinator.sender, caught.value)
    await give(embedded, poor, needed - 1)
    with pytest.raises(Refused, match=r"0\.000000001 SOL is missing") as caught:
        await coordinator.create_run(run_id)
    assert await lamports_to_request(coordinator.sender, caught.value) == needed
    assert (await fetch(embedded.pool, run_addresses(coordinator.program_id, run_id).run))[
        1
    ] is None
    await give(embedded, poor, 1_000_000)
    before = await balance(embedded.pool, poor.pubkey)
    sent = await coordinator.create_run(run_id)
    highest = transaction_fee(1, MAX_UNITS, priority) * len(sent)
    spent = before - await balance(embedded.pool, poor.pubkey)
    assert 0 <= needed - await rent(embedded.pool, 0) - spent <= highest - FEE * len(sent)


async def test_interrupted_creation_requests_only_the_rest(
    embedded: FundedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = embedded.coordinator
    first, *growth = coordinator.creation("half")
    await coordinator.sender.send([first])
    monkeypatch.setattr(Endpoint, "is_loopback", False)
    poor = Wallet(Keypair())
    other = CoordinatorClient(embedded.pool, poor)
    with pytest.raises(Refused) as caught:
        await other.sender.afford(other.creation("half")[1:], other.sizes("half"))
    needed = await lamports_to_request(other.sender, caught.value)
    before = await balance(embedded.pool, embedded.wallet.pubkey)
    sent = await coordinator.sender.send_packed(growth)
    assert needed == await rent(embedded.pool, 0) + before - await balance(
        embedded.pool, embedded.wallet.pubkey
    )
    assert sent


@pytest.mark.parametrize("delegates", [0, 3])
async def test_authorization_size_equals_account(embedded: FundedNetwork, delegates: int) -> None:
    authorizer = Authorizer(embedded.pool)
    own = embedded.wallet.pubkey
    grantee = Wallet(Keypair())
    ix = authorizer.ix(own)
    await embedded.coordinator.sender.send_packed(
        [ix.create(grantee.pubkey), ix.grantor_update(grantee.pubkey, True)]
    )
    authorization = await authorizer.fetch(own, grantee.pubkey)
    assert authorization is not None
    added = [Keypair().pubkey() for _ in range(delegates)]
    await Sender(embedded.pool, grantee, errors={}).send_packed(
        authorizer.ix(grantee.pubkey).delegation(authorization, clear=False, added=added)
    )
    ((place, size),) = authorizer.size(own, grantee.pubkey, delegates).items()
    account = (await fetch(embedded.pool, place))[1]
    assert account is not None
    assert len(account.data) == size
    assert place not in authorizer.size(own, EVERYONE)


async def test_requested_sum_pays_for_deployment(
    embedded: FundedNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoint, "is_loopback", False)
    poor = Wallet(Keypair())
    key = Keypair()
    sender = Sender(embedded.pool, poor, errors={}, max_priority_fee=10_000)
    with pytest.raises(Refused) as caught:
        await deploy_program(sender, AUTHORIZER_SO, key, cache=tmp_path)
    needed = await lamports_to_request(sender, caught.value)
    assert needed == await deployment_cost(sender, AUTHORIZER_SO, key, cache=tmp_path) + await rent(
        embedded.pool, 0
    )
    await give(embedded, poor, needed)
    assert (await deploy_program(sender, AUTHORIZER_SO, key, cache=tmp_path)).action == "deployed"
    assert await deployment_cost(sender, AUTHORIZER_SO, key, cache=tmp_path) == 0
