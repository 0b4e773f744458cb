"""Following a run while nodes and sockets fail: nothing is missed for long, nothing goes backwards, nothing dies."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from solders.pubkey import Pubkey

from aftermath.chain import nodes, subscription
from aftermath.chain.accounts import fetch
from aftermath.chain.addresses import CLOCK, run_addresses
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.clock import ChainClock
from aftermath.chain.endpoints import Endpoint, endpoint
from aftermath.chain.reader import RunReader
from aftermath.chain.rpc import RpcPool
from aftermath.chain.subscription import LEAD, RunWatcher
from aftermath.chain.views import run_account
from aftermath.coordinator.errors import CoordinatorError, NoSuchRun, Unavailable
from aftermath.coordinator.view import View
from aftermath.member.feed import RunFeed
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from chain.faults import FaultyNode, Proxy, account_json, faulty_websocket, proxy
from chain.networks import Place

RUN = "followed"


def watcher_of(pool: RpcPool, coordinator: CoordinatorClient, **options: float) -> RunWatcher:
    return RunWatcher(pool, run_addresses(coordinator.program_id, RUN).run, coordinator.program_id, **options)


@asynccontextmanager
async def watching(pool: RpcPool, coordinator: CoordinatorClient, **options: float) -> AsyncIterator[RunWatcher]:
    watcher = watcher_of(pool, coordinator, **options)
    await watcher.start()
    try:
        yield watcher
    finally:
        await watcher.close()


async def change(coordinator: CoordinatorClient, rate: int) -> int:
    """Change the run; returns its new seq."""
    await coordinator.set_future_epoch_rates(RUN, earning=rate, slashing=None)
    return (await coordinator.run(RUN)).seq


async def seen(watcher: RunWatcher, seq: int, within: float) -> Run:
    async with asyncio.timeout(within):
        async for run in watcher.updates():
            if run.seq >= seq:
                return run
    raise AssertionError


async def test_updates_start_with_the_present_and_follow_every_change(place: Place) -> None:
    coordinator = await place.configured_run(RUN)
    _, clock = await fetch(place.pool, CLOCK)
    assert clock is not None
    earlier = ChainClock(time.monotonic)
    earlier.observe_sysvar(clock.data)
    chain_time = earlier.now()
    async with watching(place.pool, coordinator, silence=60) as watcher:
        updates = watcher.updates()
        first = await anext(updates)
        assert first == await coordinator.run(RUN)
        for rate in (5, 6):
            await change(coordinator, rate)
            async with asyncio.timeout(5):
                run = await anext(updates)
            assert run.future_earning_rate == rate
        assert watcher.push_bytes_max <= 2048
        # A validator of a busy machine lags behind the wall, never ahead of it.
        assert chain_time <= watcher.clock.now() <= time.time() + 5


async def test_a_slow_reader_gets_the_newest_state(embedded: Place) -> None:
    coordinator = await embedded.configured_run(RUN)
    async with watching(embedded.pool, coordinator) as watcher:
        updates = watcher.updates()
        await anext(updates)
        for rate in range(1, 6):
            newest = await change(coordinator, rate)
        await seen(watcher, newest, 5)
        assert (await anext(updates)).seq == newest
        assert (await anext(watcher.updates())).seq == newest


async def test_a_silent_websocket_is_replaced_by_polling_within_two_seconds(embedded: Place) -> None:
    coordinator = await embedded.configured_run(RUN)
    async with (
        faulty_websocket() as mute,
        RpcPool([Endpoint(embedded.network.rpc_url, mute.url)]) as pool,
        watching(pool, coordinator) as watcher,
    ):
        for rate in range(1, 4):
            newest = await change(coordinator, rate)
            started = time.monotonic()
            await seen(watcher, newest, 10)
            assert time.monotonic() - started < subscription.SILENCE_SECONDS + 0.7
        await asyncio.wait_for(_until(lambda: mute.subscriptions >= 2), 10)
        assert mute.subscriptions >= 2, "a mute socket is dropped and made anew"


async def test_a_websocket_that_cannot_be_had_is_told_of_and_so_is_its_return(
    embedded: Place, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = await embedded.configured_run(RUN)
    url, ws = embedded.network.rpc_url, embedded.network.ws_url
    async with proxy(int(ws.rpartition(":")[2])) as way:
        await way.close()
        async with (
            RpcPool([Endpoint(url, f"ws://127.0.0.1:{way.port}")]) as pool,
            watching(pool, coordinator) as watcher,
        ):
            await asyncio.wait_for(_until(lambda: "the run is polled meanwhile" in caplog.text), 20)
            await seen(watcher, await change(coordinator, 1), 5)
            await way.open()
            await asyncio.wait_for(_until(lambda: "the websocket is back" in caplog.text), 20)
    assert caplog.text.count("the run is polled meanwhile") == 1


async def test_a_mute_socket_is_left_for_the_next_endpoint(embedded: Place) -> None:
    coordinator = await embedded.configured_run(RUN)
    url, ws = embedded.network.rpc_url, embedded.network.ws_url
    async with (
        faulty_websocket() as mute,
        RpcPool([Endpoint(url, mute.url), Endpoint(url, ws)]) as pool,
        watching(pool, coordinator, silence=0.2) as watcher,
        asyncio.timeout(20),
    ):
        rate = 0
        while watcher.push_bytes_max == 0:
            rate += 1
            await seen(watcher, await change(coordinator, rate), 5)


NONSENSE = ["[" * 100_000, '{"id": 1, "error": ' + "[" * 900 + "]" * 900 + "}", "{", "7", '{"id": 1}']


@pytest.mark.parametrize("nonsense", [*NONSENSE, '{"id": 1, "result": 4}', '{"id": 7, "result": 4}'])
async def test_a_websocket_that_sends_nonsense_is_left_for_the_next_endpoint(embedded: Place, nonsense: str) -> None:
    async with faulty_websocket(nonsense) as faulty:
        await _left_for_the_next(embedded, faulty)


@pytest.mark.parametrize(
    "confirmation", [{"id": 0}, {"id": 2}, {"id": "1"}, {"id": None}, {"id": True}, {"result": True}, {"result": "3"}]
)
async def test_a_subscription_is_confirmed_by_the_reply_to_it_alone(
    embedded: Place, confirmation: dict[str, Any]
) -> None:
    async with faulty_websocket(**confirmation) as faulty:
        await _left_for_the_next(embedded, faulty)


async def _left_for_the_next(place: Place, faulty: FaultyNode) -> None:
    coordinator = await place.configured_run(RUN)
    url, ws = place.network.rpc_url, place.network.ws_url
    async with (
        RpcPool([Endpoint(url, faulty.url), Endpoint(url, ws)]) as pool,
        watching(pool, coordinator, silence=60) as watcher,
        asyncio.timeout(20),
    ):
        rate = 0
        while watcher.push_bytes_max == 0:
            rate += 1
            newest = await change(coordinator, rate)
            await watcher.refresh()
            await seen(watcher, newest, 5)
        assert faulty.subscriptions == 1


async def test_a_fault_of_ours_in_reading_a_run_does_not_end_the_watch(
    embedded: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = await embedded.configured_run(RUN)
    read, trips = subscription.parse_run, 0

    def trip(data: bytes) -> Run:
        nonlocal trips
        trips += 1
        raise RecursionError("as a parser might")

    async with watching(embedded.pool, coordinator, silence=0.05) as watcher:
        monkeypatch.setattr(subscription, "parse_run", trip)
        newest = await change(coordinator, 3)
        await asyncio.wait_for(_until(lambda: trips > 3), 10)
        monkeypatch.setattr(subscription, "parse_run", read)
        await seen(watcher, newest, 10)
    assert caplog.text.count("cannot be read") <= 2, "said when it begins, by poll and by push"


@asynccontextmanager
async def proxied(place: Place) -> AsyncIterator[tuple[Proxy, Proxy, Endpoint]]:
    async with proxy(place.rpc_port) as http, proxy(place.ws_port) as ws:
        yield http, ws, Endpoint(f"http://127.0.0.1:{http.port}", f"ws://127.0.0.1:{ws.port}")


@pytest.mark.parametrize("fault", ["cut", "black hole"])
async def test_the_node_goes_away_for_some_seconds_in_mid_run(place: Place, fault: str) -> None:
    coordinator = await place.configured_run(RUN)
    async with (
        proxied(place) as (http, ws, where),
        RpcPool([where], attempt=0.5) as pool,
        watching(pool, coordinator, silence=0.3) as watcher,
    ):
        for one in (http, ws):
            if fault == "cut":
                await one.close()
            else:
                one.black_hole()
        newest = await change(coordinator, 9)
        with pytest.raises(TimeoutError):
            await seen(watcher, newest, 1.5)
        for one in (http, ws):
            await one.open()
        assert (await seen(watcher, newest, 10)).future_earning_rate == 9
        newest = await change(coordinator, 10)
        await seen(watcher, newest, 10)


async def test_the_fallback_takes_over_and_pushes_go_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LEAVE_SECONDS", 0.5)
    coordinator = await place.configured_run(RUN)
    async with proxied(place) as (http, ws, where):
        fallback = endpoint(place.network.rpc_url, place.network.ws_url)
        async with RpcPool([where, fallback]) as pool, watching(pool, coordinator, silence=60) as watcher:
            await http.close()
            await ws.close()
            await asyncio.wait_for(_until(lambda: not watcher._socket.ready.is_set()), 5)
            await asyncio.wait_for(watcher._socket.ready.wait(), 5)
            newest = await change(coordinator, 4)
            await seen(watcher, newest, 5)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def test_down_at_the_start_says_so(embedded: Place) -> None:
    coordinator = await embedded.configured_run(RUN)
    async with proxied(embedded) as (http, ws, where), RpcPool([where], patience=0.5) as pool:
        await http.close()
        await ws.close()
        with pytest.raises(Unavailable, match=f"http://127.0.0.1:{http.port}"):
            await watcher_of(pool, coordinator).start()


async def test_a_start_that_is_cancelled_leaves_nothing_behind(embedded: Place) -> None:
    coordinator = await embedded.configured_run(RUN)
    async with proxied(embedded) as (_, ws, where), RpcPool([where]) as pool:
        ws.black_hole()
        starting = asyncio.create_task(watcher_of(pool, coordinator).start())
        await asyncio.wait_for(_until(lambda: _following() > 0), 5)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert _following() == 0


def _following() -> int:
    return sum("AccountSocket" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_down_for_good_ends_the_updates_with_the_reason(embedded: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "POLL_PATIENCE", 0.3)
    coordinator = await embedded.configured_run(RUN)
    async with (
        proxied(embedded) as (http, ws, where),
        RpcPool([where]) as pool,
        watching(pool, coordinator, silence=0.2, give_up=0.5) as watcher,
    ):
        await http.close()
        await ws.close()
        with pytest.raises(Unavailable, match="no Solana RPC endpoint answered"):
            await seen(watcher, 1 << 60, 10)


async def test_a_closed_run_ends_the_updates(place: Place) -> None:
    coordinator = await place.configured_run(RUN)
    async with watching(place.pool, coordinator) as watcher:
        await coordinator.close_run(RUN)
        with pytest.raises(NoSuchRun, match="the run has been closed"):
            await seen(watcher, 1 << 60, 10)


async def test_a_run_that_never_was_is_told_at_the_start(embedded: Place) -> None:
    with pytest.raises(CoordinatorError, match="list-runs"):
        await watcher_of(embedded.pool, embedded.coordinator).start()


async def test_an_older_state_never_replaces_a_newer_one(place: Place) -> None:
    coordinator = await place.configured_run(RUN)
    async with watching(place.pool, coordinator, silence=60) as watcher:
        _, old = await subscription.fetch_many(place.pool, [run_addresses(coordinator.program_id, RUN).run])
        newest = await change(coordinator, 3)
        await seen(watcher, newest, 5)
        assert old[0] is not None
        watcher.saw(watcher.slot + 100, old[0])
        assert watcher.latest.seq == newest


def _notification(program: Pubkey, data: bytes, slot: int = 1) -> str:
    """A push to the subscription that `faulty_websocket` confirms."""
    result = {"context": {"slot": slot}, "value": account_json(data, owner=str(program))}
    params = {"subscription": 3, "result": result}
    return json.dumps({"jsonrpc": "2.0", "method": "accountNotification", "params": params})


async def _state(place: Place, run_id: str, **later: int) -> bytes:
    """The run's account, as if it had so many more changes behind it."""
    _, account = await fetch(place.pool, run_addresses(place.coordinator.program_id, run_id).run)
    assert account is not None
    data = bytearray(account.data)
    for field, more in later.items():
        at = run_account().offset({"changes": "seq"}.get(field, field))
        struct.pack_into("<Q", data, at, struct.unpack_from("<Q", data, at)[0] + more)
    return bytes(data)


@asynccontextmanager
async def lied_to(
    place: Place, coordinator: CoordinatorClient, lie: str
) -> AsyncIterator[tuple[FaultyNode, RpcPool, RunWatcher]]:
    """A watcher whose first websocket pushes a lie again and again, and whose second one is honest."""
    url, ws = place.network.rpc_url, place.network.ws_url
    async with (
        faulty_websocket(lie, every=0.1) as faulty,
        RpcPool([Endpoint(url, faulty.url), Endpoint(url, ws)]) as pool,
        watching(pool, coordinator, silence=0.05) as watcher,
    ):
        yield faulty, pool, watcher


async def test_a_state_that_no_node_confirms_does_not_stay(embedded: Place) -> None:
    """One push of a websocket with the highest `seq` there is would else be the last that is believed."""
    coordinator = await embedded.configured_run(RUN)
    for changes in (LEAD + 1, 1 << 62):
        lie = _notification(coordinator.program_id, await _state(embedded, RUN, changes=changes))
        async with (
            faulty_websocket(lie, every=0.1) as faulty,
            RpcPool([Endpoint(embedded.network.rpc_url, faulty.url)]) as pool,
            watching(pool, coordinator, silence=0.1) as watcher,
        ):
            await asyncio.wait_for(_until(lambda watcher=watcher: watcher.push_bytes_max > 0), 5)  # type: ignore[misc]
            await seen(watcher, newest := await change(coordinator, changes % 7), 5)
            assert watcher.latest.seq == newest


@pytest.mark.parametrize("changes", [1, LEAD])
async def test_a_state_that_nodes_contradict_is_taken_back(
    embedded: Place, caplog: pytest.LogCaptureFixture, changes: int
) -> None:
    """While the run stands still nothing overtakes it."""
    coordinator = await embedded.configured_run(RUN)
    true = (await coordinator.run(RUN)).seq
    lie = _notification(coordinator.program_id, await _state(embedded, RUN, changes=changes))
    async with lied_to(embedded, coordinator, lie) as (faulty, _, watcher), asyncio.timeout(20):
        updates = watcher.updates()
        while (await anext(updates)).seq != true + changes:
            pass
        assert (await anext(updates)).seq == true
        await seen(watcher, await change(coordinator, 3), 5)
        assert watcher.latest.seq == true + 1
        assert faulty.subscriptions == 1
    assert caplog.text.count("going by what they answer") == 1


@pytest.mark.parametrize(
    "forged",
    [
        {"state": RunState.FINISHED},
        {"state": RunState.PAUSED},
        {"state": RunState.COOLDOWN},
        {"epoch_started_at": 1},
        {"rounds": 1},
        {"config": 1},
    ],
    ids=lambda forged: "-".join(map(str, forged)),
)
async def test_a_turn_of_the_run_that_a_websocket_alone_tells_is_not_believed(
    embedded: Place, forged: dict[str, int]
) -> None:
    """A member that believed it would end, give up its place and its optimizer's state, or sign a made-up round."""
    coordinator = await embedded.configured_run(RUN)
    true = await coordinator.run(RUN)
    data = bytearray(await _state(embedded, RUN, changes=1))
    for field, value in forged.items():
        data[run_account().offset(field)] = value
    lie = _notification(coordinator.program_id, bytes(data))
    async with lied_to(embedded, coordinator, lie) as (faulty, _, watcher), asyncio.timeout(20):
        watched = asyncio.create_task(_all(watcher, until=true.seq + 1))
        await _until(lambda: faulty.subscriptions == 1)
        await asyncio.sleep(1)
        assert watcher.latest == true
        assert await change(coordinator, 3) == true.seq + 1
        assert [run.seq for run in await watched] == [true.seq, true.seq + 1]
        assert watcher.latest.state is true.state


async def test_a_turn_that_a_websocket_tells_is_asked_for_at_once(embedded: Place) -> None:
    coordinator = await embedded.configured_run(RUN)
    async with watching(embedded.pool, coordinator, silence=60) as watcher:
        await coordinator.set_paused(RUN, False)
        newest = await coordinator.run(RUN)
        assert (await seen(watcher, newest.seq, 5)).state is newest.state


async def _all(watcher: RunWatcher, until: int) -> list[Run]:
    found: list[Run] = []
    async for run in watcher.updates():
        found.append(run)
        if run.seq >= until:
            break
    return found


@pytest.mark.parametrize("forged", [{"members_seq": 1}, {"slot": 1 << 30}, {"members_seq": 1, "slot": 1 << 30}])
async def test_what_is_read_of_a_made_up_state_is_read_anew(embedded: Place, forged: dict[str, int]) -> None:
    """Members of a state that no node has, or as of a slot that none has reached, would be waited for."""
    coordinator = await embedded.configured_run(RUN)
    true, slot = (await coordinator.run(RUN)).seq, forged.pop("slot", 1)
    lie = _notification(coordinator.program_id, await _state(embedded, RUN, changes=2, **forged), slot=slot)
    async with lied_to(embedded, coordinator, lie) as (_, pool, watcher), asyncio.timeout(40):
        feed = RunFeed(await RunReader(pool, coordinator.program_id, RUN, watcher).view())
        reader = RunReader(pool, coordinator.program_id, RUN, watcher)
        await _until(lambda: watcher.latest.seq == true + 2)
        await feed.put(View(watcher.latest, feed.members, feed.model))
        passed = asyncio.create_task(feed.after(true + 2))
        while feed.run.seq != true:
            await feed.put(await reader.view())
            await asyncio.sleep(0.05)
        assert (await passed).seq == true
        newest = await change(coordinator, 3)
        await seen(watcher, newest, 5)
        await feed.put(await reader.view())
        assert feed.run.seq == newest


async def test_pushes_are_ahead_of_what_nodes_answer_for_a_while(embedded: Place) -> None:
    coordinator = await embedded.configured_run(RUN)
    async with watching(embedded.pool, coordinator, silence=60) as watcher:
        for rate in range(LEAD + 3):
            newest = await change(coordinator, rate)
        await seen(watcher, newest, 5)


async def test_another_run_is_not_taken_for_this_one(embedded: Place, caplog: pytest.LogCaptureFixture) -> None:
    coordinator = await embedded.configured_run(RUN)
    await embedded.configured_run("another")
    lie = _notification(coordinator.program_id, await _state(embedded, "another", changes=5))
    async with (
        faulty_websocket(lie, every=0.1) as faulty,
        RpcPool([Endpoint(embedded.network.rpc_url, faulty.url)]) as pool,
        watching(pool, coordinator, silence=0.1) as watcher,
    ):
        await seen(watcher, await change(coordinator, 3), 5)
        assert watcher.latest.run_id == RUN
    assert caplog.text.count("sent another run") == 1


async def test_a_websocket_that_repeats_what_was_stops_no_poll(embedded: Place) -> None:
    coordinator = await embedded.configured_run(RUN)
    old = _notification(coordinator.program_id, await _state(embedded, RUN))
    async with (
        faulty_websocket(old, every=0.05) as faulty,
        RpcPool([Endpoint(embedded.network.rpc_url, faulty.url)]) as pool,
        watching(pool, coordinator, silence=0.2) as watcher,
    ):
        await seen(watcher, await change(coordinator, 3), 2)


async def test_a_websocket_that_pours_out_what_is_no_run_costs_few_lines_and_polls(
    embedded: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = await embedded.configured_run(RUN)
    polls, fetch_many = 0, subscription.fetch_many

    async def counted(*given: Any, **more: Any) -> Any:
        nonlocal polls
        polls += 1
        return await fetch_many(*given, **more)

    monkeypatch.setattr(subscription, "fetch_many", counted)
    after = [_notification(coordinator.program_id, bytes(size)) for size in (7, 8)]
    async with (
        faulty_websocket(*after, every=0.01) as faulty,
        RpcPool([Endpoint(embedded.network.rpc_url, faulty.url)]) as pool,
        watching(pool, coordinator) as watcher,
    ):
        polls = 0
        await asyncio.sleep(1.2)
        assert polls <= 1.2 / subscription.POLL_PAUSE + 1
        assert watcher.push_bytes_max
    assert caplog.text.count("cannot be read") <= 1
