"""One node of several does not stop a member, whether it says that the run halted or stands still."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from solders.pubkey import Pubkey
from websockets.asyncio.server import ServerConnection, serve
from websockets.protocol import Event

from aftermath.chain import halts, socket, subscription, wire
from aftermath.chain.accounts import Doubt, fetch
from aftermath.chain.addresses import run_addresses
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.endpoints import Endpoint
from aftermath.chain.failures import BadReply
from aftermath.chain.reader import RunReader
from aftermath.chain.rpc import RpcPool
from aftermath.chain.socket import AccountSocket, Push
from aftermath.chain.subscription import RunWatcher
from aftermath.chain.views import run_account
from aftermath.coordinator.errors import NoSuchRun, Unavailable
from aftermath.rules.state import RunState
from chain.faults import answer, faulty_websocket, meddling, proxy
from chain.networks import Place, config_table

Forge = Callable[[dict[str, Any]], dict[str, Any]]
"""What becomes of the JSON of an account."""


@asynccontextmanager
async def forging(place: Place, forge: Forge) -> AsyncIterator[str]:
    """A node that answers as another one does, but for what `forge` makes of every account."""
    async with aiohttp.ClientSession() as session:

        async def forged(body: dict[str, Any]) -> web.StreamResponse | None:
            if body["method"] not in ("getMultipleAccounts", "getAccountInfo"):
                return None
            async with session.post(place.network.rpc_url, json=body) as response:
                said = await response.json()
            if "result" not in said:
                return web.json_response(said)
            value = said["result"]["value"]
            every = value if isinstance(value, list) else [value]
            made = [None if account is None else forge(account) for account in every]
            return answer(body, {**said["result"], "value": made if isinstance(value, list) else made[0]})

        async with meddling(place.network.rpc_url, forged) as url:
            yield url


def _size(account: dict[str, Any]) -> int:
    return len(base64.b64decode(account["data"][0])) if account["data"][1] == "base64" else 0


def changing(edit: Callable[[bytearray], None]) -> Forge:
    """What becomes of the run's account, and of no other."""

    def forge(account: dict[str, Any]) -> dict[str, Any]:
        if _size(account) != run_account().size:
            return account
        data = bytearray(base64.b64decode(account["data"][0]))
        edit(data)
        return {**account, "data": [base64.b64encode(data).decode(), "base64"]}

    return forge


def saying(value: int, *field: str) -> Forge:
    """That the run has this in a field (its state), by a change that is newer than all others."""

    def edit(data: bytearray) -> None:
        data[run_account().offset(*(field or ("state",)))] = value
        data[run_account().offset("seq")] += 1

    return changing(edit)


@dataclass
class Switch:
    """Whether a node lies."""

    on: bool = False

    def __call__(self, forge: Forge) -> Forge:
        return lambda account: forge(account) if self.on else account


def far_newer(data: bytearray) -> None:
    data[run_account().offset("seq") + 4] += 1


def standing_still(*, but_for_the_time: bool = False) -> Forge:
    """What was there at first."""
    kept: dict[int, dict[str, Any]] = {}

    def forge(account: dict[str, Any]) -> dict[str, Any]:
        size = _size(account)
        clock = size == 40
        return account if clock and but_for_the_time else kept.setdefault(size, account)

    return forge


@asynccontextmanager
async def watched(
    place: Place, first: Forge | None, second: Forge | str | None, ws: str | None = None
) -> AsyncIterator[tuple[CoordinatorClient, RpcPool, RunWatcher]]:
    """A run and who follows it by two nodes; None is an honest one, an address is where another one is."""
    coordinator = await place.open_run()
    async with AsyncExitStack() as stack:
        urls = []
        for made in (first, second):
            if made is None:
                urls.append(place.network.rpc_url)
            else:
                urls.append(made if isinstance(made, str) else await stack.enter_async_context(forging(place, made)))
        pool = await stack.enter_async_context(RpcPool([Endpoint(url, ws or place.network.ws_url) for url in urls]))
        address = run_addresses(coordinator.program_id, place.run_id).run
        watcher = RunWatcher(pool, address, coordinator.program_id, silence=0.3)
        await watcher.start()
        try:
            yield coordinator, pool, watcher
        finally:
            await watcher.close()


async def _seen(watcher: RunWatcher, seq: int, within: float = 120.0) -> float:
    """Return the seconds until this state is there."""
    now = asyncio.get_running_loop().time
    began = now()
    async with asyncio.timeout(within):
        async for run in watcher.updates():
            if run.seq >= seq:
                break
    return now() - began


async def _changed(place: Place, rate: int) -> int:
    coordinator = place.coordinator
    await coordinator.set_future_epoch_rates(place.run_id, earning=rate, slashing=None)
    return (await coordinator.run(place.run_id)).seq


@pytest.mark.parametrize("state", [RunState.FINISHED, RunState.PAUSED], ids=["finished", "paused"])
async def test_a_halt_of_which_one_node_alone_speaks_is_not_believed(
    embedded: Place, state: RunState, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched(embedded, saying(state), None) as (coordinator, pool, watcher):
        reader = RunReader(pool, coordinator.program_id, embedded.run_id, watcher)
        assert watcher.latest.state is RunState.WAITING_FOR_MEMBERS, "not at the start either"
        for rate in (3, 4):
            await _seen(watcher, await _changed(embedded, rate))
            view = await reader.view()
            assert view.run.state is RunState.WAITING_FOR_MEMBERS
            assert view.run.future_earning_rate == rate
    assert "that nobody takes part in the run any more" in caplog.text


async def test_that_others_may_convict_a_member_is_not_believed_of_one_node_alone(embedded: Place) -> None:
    """A member takes part in no such run, and would end."""
    forge = saying(40, "config", "verification_percent")
    async with watched(embedded, forge, None) as (coordinator, pool, watcher):
        reader = RunReader(pool, coordinator.program_id, embedded.run_id, watcher)
        await _seen(watcher, await _changed(embedded, 3))
        assert (await reader.view()).run.config.verification_percent == 0


async def test_that_others_may_convict_a_member_is_believed_if_nobody_denies_it(embedded: Place) -> None:
    async with watched(embedded, None, None) as (coordinator, _, watcher):
        await coordinator.set_paused(embedded.run_id, True)
        await coordinator.update(embedded.run_id, config=config_table(verification_percent=40))
        await _seen(watcher, (await coordinator.run(embedded.run_id)).seq)
        assert watcher.latest.config.verification_percent == 40


@pytest.mark.parametrize("other", ["honest", "dead", "still", "liar"])
async def test_a_halt_is_believed_unless_another_node_goes_on_denying_it(embedded: Place, other: str) -> None:
    """And who denies it falsely keeps nobody from what comes after it."""
    async with proxy(embedded.rpc_port) as way:
        nodes = {
            "still": standing_still(),
            "dead": f"http://127.0.0.1:{way.port}",
            "liar": standing_still(but_for_the_time=True),
        }
        async with watched(embedded, None, nodes.get(other)) as (coordinator, _, watcher):
            await watcher.refresh()
            for one in watcher._pool.each():  # also of one that stands still: what is there before the halt
                await watcher.refresh(of=one)
            if other == "dead":
                await way.close()
            await coordinator.set_paused(embedded.run_id, True)
            paused = await coordinator.run(embedded.run_id)
            assert paused.state is RunState.PAUSED
            if other == "liar":
                await asyncio.sleep(halts.LAG_SECONDS + 2)
                assert watcher.latest.state is RunState.WAITING_FOR_MEMBERS
            else:
                seconds = await _seen(watcher, paused.seq)
                assert other != "honest" or seconds < halts.LAG_SECONDS
                assert watcher.latest.state is RunState.PAUSED
            await coordinator.set_paused(embedded.run_id, False)
            await _seen(watcher, (await coordinator.run(embedded.run_id)).seq)
            assert watcher.latest.state is RunState.WAITING_FOR_MEMBERS


async def test_one_node_alone_does_not_finish_a_run_that_is_paused(embedded: Place) -> None:
    """Whoever waits in it for its owner would end."""
    lies = Switch()
    async with watched(embedded, lies(saying(RunState.FINISHED)), None) as (coordinator, _, watcher):
        await coordinator.set_paused(embedded.run_id, True)
        await _seen(watcher, (await coordinator.run(embedded.run_id)).seq)
        lies.on = True
        await watcher.refresh()
        assert watcher.latest.state is RunState.PAUSED
        await coordinator.set_paused(embedded.run_id, False)
        await _seen(watcher, (await coordinator.run(embedded.run_id)).seq)
        assert watcher.latest.state is RunState.WAITING_FOR_MEMBERS


async def test_a_slow_node_denies_a_halt_too(embedded: Place) -> None:
    lies = Switch()

    async def slow(_: dict[str, Any]) -> None:
        await asyncio.sleep(1.0 if lies.on else 0)

    async with (
        meddling(embedded.network.rpc_url, slow) as url,
        watched(embedded, lies(saying(RunState.FINISHED)), url) as (_, _, watcher),
    ):
        await watcher.refresh()
        lies.on = True
        await watcher.refresh()
        assert watcher.latest.state is RunState.WAITING_FOR_MEMBERS


async def test_a_state_far_newer_than_there_is_is_taken_back(embedded: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer of one node kept what is new from a member for ever."""
    monkeypatch.setattr(subscription, "BEHIND_SECONDS", 6.0)
    lies = Switch()
    async with watched(embedded, lies(changing(far_newer)), None) as (coordinator, pool, watcher):
        reader = RunReader(pool, coordinator.program_id, embedded.run_id, watcher)
        lies.on = True
        made_up = (await watcher.refresh()).seq
        lies.on = False
        true = await _changed(embedded, 3)
        view = asyncio.create_task(reader.view())
        async with asyncio.timeout(120):
            while watcher.latest.seq != true:
                await asyncio.sleep(0.1)
            assert made_up > true == (await view).run.seq
        await _seen(watcher, await _changed(embedded, 4))


@pytest.mark.parametrize("who", ["a node", "a websocket"])
async def test_a_slot_that_is_not_there_yet_is_not_waited_for(embedded: Place, who: str) -> None:
    """Whoever named one, once, had a member wait for ten minutes."""
    far = 1 << 62
    async with watched(embedded, None, None) as (coordinator, pool, watcher):
        reader = RunReader(pool, coordinator.program_id, embedded.run_id, watcher)
        await reader.view()
        seq = await _changed(embedded, 3)
        _, account = await watcher._fetched(None, None, None)
        assert account is not None
        if who == "a node":
            watcher.saw(far, account)
        else:
            watcher._pushed(Push(far, account, 1))
        await _seen(watcher, seq)
        reader.last = None
        async with asyncio.timeout(60):
            assert (await reader.view()).run.seq == seq


async def test_a_node_that_stands_still_is_left_for_another(embedded: Place) -> None:
    """It answers well, and nothing but the time in its answers tells that they are old."""
    async with (
        faulty_websocket() as mute,
        watched(embedded, standing_still(), None, mute.url) as (_, _, watcher),
    ):
        await _seen(watcher, await _changed(embedded, 3))
        assert watcher.latest.future_earning_rate == 3


async def test_a_cluster_that_stands_still_is_waited_for(embedded: Place) -> None:
    still = standing_still()
    async with watched(embedded, still, still) as (_, _, watcher):
        known = watcher.latest
        for _ in range(3):
            await asyncio.sleep(subscription.STILL_SECONDS + 1)
            assert await watcher.refresh(10) == known


@pytest.mark.parametrize(("nodes", "doubted"), [(1, False), (2, True)])
async def test_still_time_is_doubted_only_with_a_second_node(nodes: int, doubted: bool) -> None:
    async with RpcPool([Endpoint("http://127.0.0.1:1", "ws://127.0.0.1:1")] * nodes) as pool:
        watcher = RunWatcher(pool, Pubkey.default(), Pubkey.default())
        watcher._observe(100, Doubt(pool))
        watcher._time_since -= subscription.STILL_SECONDS + 1
        with pytest.raises(BadReply, match="stands still") if doubted else nullcontext():
            watcher._observe(100, Doubt(pool))


async def test_a_node_that_answers_old_states_is_not_asked_alone(embedded: Place) -> None:
    """The websocket tells what is new, for most of which nodes have to be asked."""
    async with watched(embedded, standing_still(but_for_the_time=True), None) as (_, _, watcher):
        for rate in (3, 4):
            await _seen(watcher, await _changed(embedded, rate))
            assert watcher.latest.future_earning_rate == rate


@asynccontextmanager
async def as_far_as_asked(place: Place, forge: Forge) -> AsyncIterator[str]:
    """As `forging`, and as far as any slot that it is asked for."""
    async with forging(place, forge) as url, aiohttp.ClientSession() as session:

        async def willing(body: dict[str, Any]) -> web.StreamResponse | None:
            if body["method"] != "getMultipleAccounts" or "minContextSlot" not in body["params"][1]:
                return None
            least = body["params"][1].pop("minContextSlot")
            async with session.post(url, json=body) as response:
                said = await response.json()
            said["result"]["context"]["slot"] = max(said["result"]["context"]["slot"], least)
            return web.json_response(said)

        async with meddling(url, willing) as way:
            yield way


@pytest.mark.parametrize(("ahead", "closes"), [(0, True), (1_000_000, False)])
async def test_what_a_fallback_pushes_and_answers_is_its_word_alone(embedded: Place, ahead: int, closes: bool) -> None:
    """Its websocket is listened to once the first one was lost; the first node is there, and knows of no such epoch.

    It may name a slot that the first node is not as far as, and give its websocket up when it has told.
    """

    def another_epoch(data: bytearray) -> None:
        data[run_account().offset("epoch")] += 7
        data[run_account().offset("seq")] += 1

    coordinator = await embedded.open_run()
    address = run_addresses(coordinator.program_id, embedded.run_id).run
    async with (
        as_far_as_asked(embedded, changing(another_epoch)) as liar,
        faulty_websocket() as mute,
        RpcPool([Endpoint(embedded.network.rpc_url, "ws://127.0.0.1:9"), Endpoint(liar, mute.url)]) as pool,
    ):
        _, made_up = await fetch(pool.each()[1], address)
        assert made_up is not None
        watcher = RunWatcher(pool, address, coordinator.program_id, silence=0.3)
        await watcher.start()
        try:
            await asyncio.wait_for(watcher._socket.ready.wait(), 5)
            watcher._pushed(Push(made_up.slot + ahead, made_up, 1))
            if closes:
                await watcher._socket.drop()
            for _ in range(20):
                await asyncio.sleep(0.1)
                assert watcher.latest.epoch == 0
        finally:
            await watcher.close()


async def test_one_node_alone_says_of_no_run_that_it_is_gone(embedded: Place) -> None:
    async with watched(embedded, None, None) as (coordinator, pool, watcher):
        await coordinator.set_paused(embedded.run_id, True)
        await coordinator.close_run(embedded.run_id)
        with pytest.raises(Unavailable):
            await watcher.refresh(1, of=pool.each()[1])


async def test_a_run_is_gone_although_some_nodes_do_not_answer(embedded: Place) -> None:
    """Each call waited for them anew, and it took a minute, or ten."""
    coordinator = await embedded.open_run()
    away = Endpoint("http://127.0.0.1:9", "ws://127.0.0.1:9")
    nodes = [away, Endpoint(embedded.network.rpc_url, embedded.network.ws_url), away]
    async with RpcPool(nodes) as pool:
        watcher = RunWatcher(pool, run_addresses(coordinator.program_id, embedded.run_id).run, coordinator.program_id)
        await watcher.start()
        try:
            await coordinator.set_paused(embedded.run_id, True)
            await coordinator.close_run(embedded.run_id)
            with pytest.raises(NoSuchRun):
                await _seen(watcher, 1 << 60)
        finally:
            await watcher.close()


async def test_a_websocket_that_pushes_without_end_is_left(embedded: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = await embedded.open_run()
    heard = 0
    parse_reply = socket.parse_reply

    def counted(reply: Any) -> Any:
        nonlocal heard
        heard += 1
        return parse_reply(reply)

    monkeypatch.setattr(socket, "parse_reply", counted)
    push = (
        '{"jsonrpc":"2.0","method":"accountNotification","params":{"subscription":3,"result":'
        '{"context":{"slot":1},"value":null}}}'
    )
    async with (
        faulty_websocket(*[push] * 100, every=1e-6) as flood,
        RpcPool([Endpoint(embedded.network.rpc_url, flood.url)]) as pool,
    ):
        address = run_addresses(coordinator.program_id, embedded.run_id).run
        watcher = RunWatcher(pool, address, coordinator.program_id)
        now = asyncio.get_running_loop().time
        began = now()
        await watcher.start()
        try:
            await asyncio.sleep(3)
            lasted = now() - began
            assert flood.subscriptions <= 6, "each time after a longer pause"
            assert heard <= flood.subscriptions * socket.MOST_AT_ONCE + lasted * socket.MOST_PER_SECOND
            await _seen(watcher, await _changed(embedded, 3))
        finally:
            await watcher.close()


@pytest.mark.parametrize("frame", [b"\x89\x00", b"\x00\x00"], ids=["pings", "empty pieces of a message"])
async def test_a_websocket_that_sends_frames_without_end_is_left(frame: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes each, and 100,000 come at once: they are taken in a few at a time."""
    heard = subscriptions = 0
    process_event = wire.Paced.process_event

    def counted(connection: wire.Paced, event: Event) -> None:
        nonlocal heard
        heard += 1
        process_event(connection, event)

    async def flood(connection: ServerConnection) -> None:
        nonlocal subscriptions
        async for message in connection:
            subscriptions += 1
            await connection.send(json.dumps({"jsonrpc": "2.0", "id": json.loads(message)["id"], "result": 3}))
            connection.transport.write((b"" if frame == b"\x89\x00" else b"\x01\x00") + frame * 100_000)

    monkeypatch.setattr(wire.Paced, "process_event", counted)
    async with serve(flood, "127.0.0.1", 0) as server:
        where = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        async with RpcPool([Endpoint("http://127.0.0.1:9", where)]) as pool:
            follows = AccountSocket(pool, Pubkey.new_unique(), lambda push: None, lambda: None)
            now = asyncio.get_running_loop().time
            began = now()
            following = asyncio.create_task(follows.run())
            async with asyncio.timeout(20):
                while subscriptions < 2:  # it was left, and asked again
                    await asyncio.sleep(0.05)
            following.cancel()
            lasted = now() - began
    most = wire.MOST_FRAMES_AT_ONCE + wire._TAKEN_IN
    assert heard <= subscriptions * most + lasted * wire.MOST_FRAMES_PER_SECOND


async def test_a_websocket_whose_messages_are_longer_than_any_push_is_left() -> None:
    """Those of a MiB took 0.2 s each to read."""
    pushes: list[Push] = []
    async with (
        faulty_websocket(json.dumps({"method": "other", "pad": [[]] * wire.MAX_MESSAGE})) as long,
        RpcPool([Endpoint("http://127.0.0.1:9", long.url)]) as pool,
    ):
        follows = AccountSocket(pool, Pubkey.new_unique(), pushes.append, lambda: None)
        following = asyncio.create_task(follows.run())
        await asyncio.sleep(1)
        following.cancel()
    assert long.subscriptions > 1
    assert not pushes
