"""One node of several neither keeps a member's transactions from the chain nor makes it spend much."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, web
from solders.keypair import Keypair
from solders.transaction import VersionedTransaction

from aftermath.base.wait import cancel
from aftermath.chain import confirm, sender
from aftermath.chain.addresses import JOIN_SCOPE
from aftermath.chain.authorizer import Authorizer
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.endpoints import Endpoint
from aftermath.chain.failures import MAX_LINES, TransactionFailed
from aftermath.chain.member import SolanaMember
from aftermath.chain.rpc import RpcPool
from aftermath.cli.connection import SignedCluster
from aftermath.coordinator.errors import Refusal, Refused, Unavailable
from aftermath.rules import bitmap
from aftermath.rules.run import RoundId
from aftermath.rules.state import RunState
from chain.faults import answer, answer_error, meddling
from chain.networks import Place
from chain.test_chain_member import join, member_of, until

REFUSED = {"InstructionError": [2, {"Custom": 6000 + 99}]}
"""Of no error that the program has, so that it is final."""
CONTEXT = {"context": {"slot": 1}}
TOO_LATE = {"lastValidBlockHeight": 0}
Lie = Callable[[dict[str, Any]], Awaitable[web.StreamResponse | None]]


async def simulations_fail(body: dict[str, Any]) -> web.StreamResponse | None:
    if body["method"] != "simulateTransaction":
        return None
    return answer(body, CONTEXT | {"value": {"err": REFUSED, "logs": [], "unitsConsumed": 1}})


async def transactions_fail(body: dict[str, Any]) -> web.StreamResponse | None:
    if body["method"] != "getSignatureStatuses":
        return None
    status = {"slot": 1, "confirmations": 1, "err": REFUSED, "confirmationStatus": "confirmed"}
    return answer(body, CONTEXT | {"value": [status for _ in body["params"][0]]})


def refusing(error: Any, *logs: str) -> Lie:
    """Whatever a simulation may say."""

    async def lie(body: dict[str, Any]) -> web.StreamResponse | None:
        if body["method"] != "simulateTransaction":
            return None
        return answer(body, CONTEXT | {"value": {"err": error, "logs": list(logs), "unitsConsumed": 1}})

    return lie


def custom(code: int) -> Any:
    return {"InstructionError": [2, {"Custom": code}]}


async def honest(body: dict[str, Any]) -> None:
    """Nothing is said in the place of what is so."""


async def swallowing(body: dict[str, Any]) -> web.StreamResponse | None:
    """A transaction is taken, and goes nowhere."""
    if body["method"] != "sendTransaction":
        return None
    signed = VersionedTransaction.from_bytes(base64.b64decode(body["params"][0]))
    return answer(body, str(signed.signatures[0]))


async def swallowing_and_landed(body: dict[str, Any]) -> web.StreamResponse | None:
    """And is said to have landed."""
    if body["method"] != "getSignatureStatuses":
        return await swallowing(body)
    status = {"slot": 1 << 62, "confirmations": 1, "err": None, "confirmationStatus": "confirmed"}
    return answer(body, CONTEXT | {"value": [status for _ in body["params"][0]]})


async def hiding(body: dict[str, Any]) -> web.StreamResponse | None:
    """What has landed is not told, and seems to be too late."""
    if body["method"] == "getBlockHeight":
        return answer(body, (1 << 64) - 1)
    if body["method"] != "getSignatureStatuses":
        return None
    return answer(body, CONTEXT | {"value": [None for _ in body["params"][0]]})


async def no_blockhash(body: dict[str, Any]) -> web.StreamResponse | None:
    """One that no node knows, of which nothing can land."""
    if body["method"] != "getLatestBlockhash":
        return None
    return answer(body, CONTEXT | {"value": {"blockhash": "4uQeVj5tqViQh7yWWGStvkEG1Zmhx6uasJtWCJziofM", **TOO_LATE}})


async def of_another_cluster(body: dict[str, Any]) -> web.StreamResponse | None:
    if body["method"] == "getGenesisHash":
        return answer(body, "11111111111111111111111111111112")
    return answer_error(body, -32000)


def standing_still(place: Place, *methods: str) -> Lie:
    """What it is asked by these methods it answers as it did first, unless something newer is asked for."""
    shown: dict[str, Any] = {}

    async def lie(body: dict[str, Any]) -> web.StreamResponse | None:
        if body["method"] not in methods:
            return None
        if body["params"][1].get("minContextSlot"):
            return answer_error(body, -32016)
        async with ClientSession() as session, session.post(place.network.rpc_url, json=body) as response:
            return answer(body, shown.setdefault(str(body["params"][0]), (await response.json())["result"]))

    return lie


@asynccontextmanager
async def member_by(place: Place, *lies: Lie) -> AsyncIterator[SolanaMember]:
    """Of a run that there is then, by nodes that lie like this, and an honest one."""
    await place.open_run()
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(meddling(place.network.rpc_url, lie)) for lie in lies]
        nodes = [Endpoint(url, place.network.ws_url) for url in (*urls, place.network.rpc_url)]
        pool = await stack.enter_async_context(RpcPool(nodes))
        yield await stack.enter_async_context(member_of(place, pool))


async def _waits(place: Place, member: SolanaMember) -> bool:
    """Whether the chain has it that this member waits for the next epoch."""
    members = await place.coordinator.members(place.run_id)
    return bitmap.contains(members.pending, members.find(member.wallet) or 0)


JOIN_LIES = {
    "StaleHeight": refusing(custom(6090)),
    "MembersFull": refusing(custom(6075)),
    "RunHalted": refusing(custom(6009)),
    "no units left": refusing({"InstructionError": [2, "ComputationalBudgetExceeded"]}),
    "no funds": refusing(custom(1), f"Transfer: insufficient lamports 0, need {10**17}"),
    "swallowed": swallowing,
    "swallowed and landed": swallowing_and_landed,
    "hidden": hiding,
    "no blockhash": no_blockhash,
}


@pytest.mark.parametrize("lie", JOIN_LIES)
async def test_no_node_alone_keeps_a_member_from_its_place(embedded: Place, lie: str) -> None:
    """Refusals that are not final ended a member too."""
    async with member_by(embedded, JOIN_LIES[lie]) as member:
        async with asyncio.timeout(120):
            await join(member)
        assert await _waits(embedded, member)


@pytest.mark.parametrize("knows", [True, False])
async def test_what_is_slow_to_land_is_no_failure(
    embedded: Place, monkeypatch: pytest.MonkeyPatch, *, knows: bool
) -> None:
    """The cluster is congested; what was signed anew landed twice, or was said never to. A fallback that is behind does
    not know the blockhash.
    """
    monkeypatch.setattr(confirm, "UNKNOWN_AFTER", 6.0)
    taken: dict[str, asyncio.Task[None]] = {}

    async def later(body: dict[str, Any]) -> None:
        await asyncio.sleep(confirm.UNKNOWN_AFTER + 8)
        async with ClientSession() as session, session.post(embedded.network.rpc_url, json=body) as response:
            response.raise_for_status()

    async def slow(body: dict[str, Any]) -> web.StreamResponse | None:
        if body["method"] != "sendTransaction":
            return None
        signed = VersionedTransaction.from_bytes(base64.b64decode(body["params"][0]))
        signature = str(signed.signatures[0])
        if signature not in taken:
            taken[signature] = asyncio.create_task(later(body))
        return answer(body, signature)

    async def behind(body: dict[str, Any]) -> web.StreamResponse | None:
        if knows or body["method"] != "simulateTransaction" or body["params"][1].get("replaceRecentBlockhash"):
            return await slow(body)
        return answer(body, CONTEXT | {"value": {"err": "BlockhashNotFound", "logs": [], "unitsConsumed": 0}})

    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(meddling(embedded.network.rpc_url, one)) for one in (slow, behind)]
        pool = await stack.enter_async_context(RpcPool([Endpoint(url, embedded.network.ws_url) for url in urls]))
        async with asyncio.timeout(120):
            signatures = await CoordinatorClient(pool, embedded.wallet).create_run(embedded.run_id)
        await cancel(taken.values())
    assert len(taken) == 1 if knows else len(taken) > 1
    assert str(signatures[-1]) == next(iter(taken)), "the first that was signed is what landed"


async def test_a_first_node_that_is_behind_does_not_show_what_was_before(embedded: Place) -> None:
    """It said that a run that had just been paused was new."""
    await embedded.open_run()
    async with meddling(embedded.network.rpc_url, standing_still(embedded, "getAccountInfo")) as url:
        nodes = [Endpoint(one, embedded.network.ws_url) for one in (url, embedded.network.rpc_url)]
        async with RpcPool(nodes) as pool:
            coordinator = CoordinatorClient(pool, embedded.wallet)
            before = (await coordinator.run(embedded.run_id)).state
            await coordinator.set_paused(embedded.run_id, True)
            assert before is not RunState.PAUSED
            assert (await coordinator.run(embedded.run_id)).state is RunState.PAUSED


async def test_a_command_tells_what_it_has_done_where_the_first_node_is_behind(embedded: Place) -> None:
    """It said that there was no permission that it had just given, and that a new run had cost nothing."""
    grantee, wallet = Keypair().pubkey(), embedded.wallet
    lie = standing_still(embedded, "getMultipleAccounts", "getBalance")
    async with meddling(embedded.network.rpc_url, lie) as url:
        nodes = [Endpoint(one, embedded.network.ws_url) for one in (url, embedded.network.rpc_url)]
        async with RpcPool(nodes) as pool:
            chain = SignedCluster(pool, CoordinatorClient(pool, wallet), Authorizer(pool), wallet)
            before = await chain.balance(wallet.pubkey)
            assert await chain.authorization(wallet.pubkey, grantee, JOIN_SCOPE) is None
            await chain.sender.send_packed([chain.authorizer.ix(wallet.pubkey).create(grantee)])
            assert await chain.authorization(wallet.pubkey, grantee, JOIN_SCOPE) is not None
            assert await chain.balance(wallet.pubkey) < before


async def test_a_fallback_that_hangs_is_told_of_what_landed_no_more(embedded: Place) -> None:
    """It cost each transaction two seconds for as long as it hung."""
    await embedded.open_run()
    asked: list[str] = []

    async def hangs(body: dict[str, Any]) -> web.StreamResponse | None:
        if body["method"] == "getGenesisHash":
            return None
        asked.append(body["method"])
        await asyncio.sleep(3600)
        return None

    async with meddling(embedded.network.rpc_url, hangs) as url:
        nodes = [Endpoint(one, embedded.network.ws_url) for one in (embedded.network.rpc_url, url)]
        async with RpcPool(nodes) as pool, asyncio.timeout(60):
            coordinator = CoordinatorClient(pool, embedded.wallet)
            for paused in (True, False) * 3:
                await coordinator.set_paused(embedded.run_id, paused)
    assert asked == ["getSignatureStatuses"] * 2


@asynccontextmanager
async def _voter(place: Place) -> AsyncIterator[tuple[SolanaMember, int, RoundId, list[Lie]]]:
    """A member that may say that it is ready, its seat, and the round; its first node lies as the list says."""
    lies: list[Lie] = [honest]

    async def lie(body: dict[str, Any]) -> web.StreamResponse | None:
        return await lies[0](body)

    async with member_by(place, lie) as member, member_of(place) as other:
        await join(other)
        await join(member)
        run = await until(other, lambda run: run.state is RunState.WARMUP and run.seed_is_drawn)
        seat = (await member.view(fresh=True)).members.find(member.wallet)
        assert seat is not None
        yield member, seat, run.round_id, lies


@pytest.mark.parametrize("code", [6090, 6092], ids=["late", "done"])
async def test_no_node_alone_keeps_a_member_from_voting(embedded: Place, code: int) -> None:
    """If it did so to more than a third of the members, there was no quorum, and nobody's work counted."""
    async with _voter(embedded) as (member, seat, at, lies):
        lies[0] = refusing(custom(code))
        await member.warmup_witness(seat, at)
        lies[0] = honest
        with pytest.raises(Refused) as caught:
            await member.warmup_witness(seat, at)
        assert caught.value.reason is Refusal.ALREADY_DONE


async def test_no_node_alone_swallows_a_vote(embedded: Place) -> None:
    """One that said at once that it had landed was not asked about again, and the others were sent nothing."""
    async with _voter(embedded) as (member, seat, at, lies):
        lies[0] = swallowing_and_landed
        await member.warmup_witness(seat, at)
        lies[0] = honest
        member._coordinator.sender.slot = 0  # the made-up one costs the next call some seconds
        await asyncio.sleep(1.0)
        with pytest.raises(Refused) as caught:
            await member.warmup_witness(seat, at)
        assert caught.value.reason is Refusal.ALREADY_DONE


async def test_a_made_up_slot_keeps_no_other_node_from_answering(embedded: Place) -> None:
    """What is not as far as a node says does not answer what is asked as of that slot."""
    async with member_by(embedded, simulations_fail) as member:
        member._coordinator.sender.slot = 1 << 62  # as of a status that the node told
        await join(member)
        assert await _waits(embedded, member)


async def test_a_node_that_is_of_another_cluster_meanwhile_ends_nothing(embedded: Place) -> None:
    lies: list[Lie] = [simulations_fail]

    async def lie(body: dict[str, Any]) -> web.StreamResponse | None:
        said = await lies[0](body)
        if body["method"] == "simulateTransaction":
            lies[0] = of_another_cluster
            for node in member._pool._nodes.all[:1]:
                node.verified = False
        return said

    async with member_by(embedded, lie) as member:
        await join(member)
        assert await _waits(embedded, member)
        with pytest.raises(Unavailable):
            await member._watcher.refresh(0.5, of=member._pool.each()[0])


async def test_what_is_called_fine_and_fails_costs_no_more_than_some_fees(
    embedded: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node can have what is not due sent again and again."""
    monkeypatch.setattr(sender, "LOST_AT_ONCE", 3)

    async def fine(body: dict[str, Any]) -> web.StreamResponse | None:
        if body["method"] != "simulateTransaction":
            return None
        return answer(body, CONTEXT | {"value": {"err": None, "logs": [], "unitsConsumed": 50_000}})

    async with member_by(embedded, fine) as member:
        for _ in range(3):
            with pytest.raises(Refused) as caught:
                await member.tick()
            assert caught.value.name == "NothingToTick"
        for _ in range(3):
            with pytest.raises(Unavailable, match="failed too often"):
                await member.tick()
        assert member.costs()["transactions"] == 3
        await join(member)
        assert await _waits(embedded, member), "what else it has to send goes on"


@pytest.mark.parametrize("forwards", [True, False])
async def test_no_node_alone_says_that_a_transaction_failed(embedded: Place, *, forwards: bool) -> None:
    """Each such word was a transaction lost; after thirty votes that had landed a member might hardly vote."""
    await embedded.open_run()

    async def lie(body: dict[str, Any]) -> web.StreamResponse | None:
        return await transactions_fail(body) or (None if forwards else await swallowing(body))

    async with meddling(embedded.network.rpc_url, lie) as url:
        nodes = [Endpoint(one, embedded.network.ws_url) for one in (url, embedded.network.rpc_url)]
        async with RpcPool(nodes) as pool, asyncio.timeout(60):
            coordinator = CoordinatorClient(pool, embedded.wallet)
            for paused in (True, False) * 2:
                await coordinator.set_paused(embedded.run_id, paused)
    assert coordinator.sender.spend.transactions == 4
    assert all(lost.left == sender.LOST_AT_ONCE for lost in coordinator.sender._lost.values())


async def test_what_failed_is_told_although_a_node_hides_it(embedded: Place) -> None:
    """Whom one node says nothing waits no longer than for the others; then it was signed three times, for a minute."""

    async def lie(body: dict[str, Any]) -> web.StreamResponse | None:
        if body["method"] != "simulateTransaction":
            return await hiding(body)
        return answer(body, CONTEXT | {"value": {"err": None, "logs": [], "unitsConsumed": 50_000}})

    async with member_by(embedded, lie) as member, asyncio.timeout(20):
        with pytest.raises(Refused) as caught:
            await member.tick()
        assert caught.value.name == "NothingToTick"


@pytest.mark.parametrize(
    "logs",
    ["a" * 1_000_000, {"a": 1}, 7, [["a"] * 100] * 100, ["a" * 10_000] * 10_000],
    ids=["text", "object", "number", "lists", "long lines"],
)
def test_the_log_of_a_failure_is_short_whatever_a_node_sends_for_it(logs: Any) -> None:
    """A text was a line for each of its characters: minutes of a member's time for some kilobytes."""
    failure = TransactionFailed("x", logs)
    assert len(failure.logs) <= MAX_LINES
    assert all(len(line) <= 500 for line in failure.logs)


@pytest.mark.parametrize("lie", [simulations_fail, transactions_fail])
async def test_what_one_node_refuses_for_good_is_sent_by_another(embedded: Place, lie: Lie) -> None:
    await embedded.open_run()
    async with meddling(embedded.network.rpc_url, lie) as url:
        nodes = [Endpoint(one, embedded.network.ws_url) for one in (url, embedded.network.rpc_url)]
        async with RpcPool(nodes) as pool, member_of(embedded, pool) as member:
            await join(member)
            members = (await member.view(fresh=True)).members
            assert bitmap.contains(members.pending, members.find(member.wallet) or 0)


async def test_what_all_refuse_for_good_is_refused(embedded: Place) -> None:
    await embedded.open_run()
    async with (
        meddling(embedded.network.rpc_url, simulations_fail) as url,
        RpcPool([Endpoint(url, embedded.network.ws_url)] * 2) as pool,
        member_of(embedded, pool) as member,
    ):
        with pytest.raises(Refused) as caught:
            await join(member)
        assert caught.value.reason is Refusal.FINAL


async def test_another_node_may_say_that_it_is_done(embedded: Place) -> None:
    """Who has a seat already and is told by one node that it may have none is told so by the other."""
    await embedded.open_run()
    async with meddling(embedded.network.rpc_url, simulations_fail) as url:
        nodes = [Endpoint(one, embedded.network.ws_url) for one in (url, embedded.network.rpc_url)]
        async with RpcPool(nodes) as pool, member_of(embedded, pool) as member:
            with pytest.raises(Refused) as caught:
                await member.tick()
            assert caught.value.name == "NothingToTick"
