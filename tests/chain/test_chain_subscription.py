"""Tests of following a run while nodes and sockets fail: no change is missed for long, and no state
goes back.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.chain import newest_run, node_client, run_watcher
from aftermath.chain.account_socket import AccountSocket
from aftermath.chain.accounts import fetch
from aftermath.chain.addresses import CLOCK, run_addresses
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.clock import ChainClock
from aftermath.chain.endpoints import Endpoint, endpoint
from aftermath.chain.node_client import AccountData
from aftermath.chain.rpc import RpcPool
from aftermath.chain.run_watcher import RunWatcher
from aftermath.chain.views import run_account
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import CoordinatorError, NoSuchRun, Unavailable
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from chain.faults import FaultyNode, Proxy, account_json, faulty_websocket, proxy
from chain.funded_network import FundedNetwork

PATIENCE_S = 60.0
"""A deadline for broken code on a busy validator, not an expectation."""


def watcher_of(funded: FundedNetwork, pool: RpcPool, **options: float) -> RunWatcher:
    program = funded.coordinator.program_id
    return RunWatcher(pool, run_addresses(program, funded.run_id).run, program, **options)


@asynccontextmanager
async def watching(
    funded: FundedNetwork, pool: RpcPool | None = None, **options: float
) -> AsyncIterator[RunWatcher]:
    watcher = watcher_of(funded, pool or funded.pool, **options)
    await watcher.start()
    try:
        yield watcher
    finally:
        await watcher.close()


async def change(funded: FundedNetwork, rate: int) -> int:
    """Change the run and return its new seq."""
    coordinator = funded.coordinator
    await coordinator.set_future_epoch_rates(funded.run_id, earning=rate, slashing=None)
    return (await coordinator.run(funded.run_id)).seq


async def wait_for_seq(watcher: RunWatcher, seq: int, within: float) -> Run:
    async with asyncio.timeout(within):
        async for run in watcher.updates():
            if run.seq >= seq:
                return run
    raise AssertionError


async def test_updates_start_with_current_state_and_follow_changes(funded: FundedNetwork) -> None:
    coordinator = await funded.configured_run()
    _, clock = await fetch(funded.pool, CLOCK)
    assert clock is not None
    now = asyncio.get_running_loop().time
    began = now()
    earlier = ChainClock(now)
    earlier.observe_sysvar(clock.data)
    chain_time = earlier.now()
    async with watching(funded, silence=60) as watcher:
        updates = watcher.updates()
        first = await anext(updates)
        assert first == await coordinator.run(funded.run_id)
        for rate in (5, 6):
            await change(funded, rate)
            async with asyncio.timeout(PATIENCE_S):
                run = await anext(updates)
            assert run.future_earning_rate == rate
        assert watcher.push_bytes_max <= 2048
        assert chain_time <= watcher.clock.now() <= chain_time + (now() - began) + 5


async def test_slow_reader_gets_newest_state(embedded: FundedNetwork) -> None:
    await embedded.configured_run()
    async with watching(embedded) as watcher:
        updates = watcher.updates()
        await anext(updates)
        for rate in range(1, 6):
            newest = await change(embedded, rate)
        await wait_for_seq(watcher, newest, 5)
        assert (await anext(updates)).seq == newest
        assert (await anext(watcher.updates())).seq == newest


async def test_silent_websocket_is_replaced_by_polling(
    embedded: FundedNetwork,
) -> None:
    await embedded.configured_run()
    now = asyncio.get_running_loop().time
    async with (
        faulty_websocket() as mute,
        RpcPool([Endpoint(embedded.network.rpc_url, mute.url)]) as pool,
        watching(embedded, pool) as watcher,
    ):
        for rate in range(1, 4):
            newest = await change(embedded, rate)
            started = now()
            await wait_for_seq(watcher, newest, 10)
            assert now() - started < run_watcher.SILENCE_SECONDS + 0.7
        # a mute socket is dropped and opened again
        await asyncio.wait_for(_until(lambda: mute.subscriptions >= 2), 10)


async def test_lost_websocket_and_its_return_are_logged(
    embedded: FundedNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    await embedded.configured_run()
    url = embedded.network.rpc_url
    ws = embedded.network.ws_url
    async with proxy(int(ws.rpartition(":")[2])) as way:
        await way.close()
        async with (
            RpcPool([Endpoint(url, f"ws://127.0.0.1:{way.port}")]) as pool,
            watching(embedded, pool) as watcher,
        ):
            await asyncio.wait_for(_until(lambda: "polling the run instead" in caplog.text), 20)
            await wait_for_seq(watcher, await change(embedded, 1), 5)
            await way.open()
            await asyncio.wait_for(_until(lambda: "the websocket is back" in caplog.text), 20)
    assert caplog.text.count("polling the run instead") == 1


@pytest.mark.parametrize("hangs", [False, True], ids=["refused", "hangs"])
async def test_outages_are_reported_within_five_seconds(
    embedded: FundedNetwork, hangs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await embedded.configured_run()
    now = asyncio.get_running_loop().time

    async def wait_for_log(words: str, times: int) -> None:
        async with asyncio.timeout(60):
            while sum(words in message for message in caplog.messages) < times:
                await asyncio.sleep(0.25)

    async with (
        proxied(embedded) as (http, ws, where),
        RpcPool([where]) as pool,
        watching(embedded, pool),
    ):
        for number in (1, 2, 3):
            began = now()
            for way in (http, ws):
                way.black_hole() if hangs else await way.close()
            await wait_for_log("does not answer", number)
            assert now() - began < 5.0
            await asyncio.sleep(10)
            for way in (http, ws):
                await way.open()
            await wait_for_log("answers again", number)
            await asyncio.sleep(5)
            assert (
                caplog.text.count("does not answer") == caplog.text.count("answers again") == number
            )


async def test_mute_websocket_is_left_for_next_endpoint(embedded: FundedNetwork) -> None:
    await embedded.configured_run()
    url = embedded.network.rpc_url
    ws = embedded.network.ws_url
    async with (
        faulty_websocket() as mute,
        RpcPool([Endpoint(url, mute.url), Endpoint(url, ws)]) as pool,
        watching(embedded, pool, silence=0.2) as watcher,
        asyncio.timeout(20),
    ):
        rate = 0
        while watcher.push_bytes_max == 0:
            rate += 1
            await wait_for_seq(watcher, await change(embedded, rate), 5)


NONSENSE = {
    "not JSON": "{",
    "too deep": "[" * 100_000,
    "an error too deep": '{"id": 1, "error": ' + "[" * 900 + "]" * 900 + "}",
    "no object": "7",
    "an answer to another request": '{"id": 7, "result": 4}',
}


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_websocket_with_bad_data_is_left_for_next_endpoint(
    embedded: FundedNetwork, nonsense: str
) -> None:
    await embedded.configured_run()
    async with faulty_websocket(NONSENSE[nonsense]) as faulty:
        await _left_for_the_next(embedded, faulty)


@pytest.mark.slow
async def test_subscription_is_confirmed_only_by_its_reply(embedded: FundedNetwork) -> None:
    await embedded.configured_run()
    for confirmation in (
        {"id": 2},
        {"id": "1"},
        {"id": None},
        {"id": True},
        {"result": True},
        {"result": "3"},
    ):
        async with faulty_websocket(**confirmation) as faulty:
            await _left_for_the_next(embedded, faulty, str(confirmation))


async def _left_for_the_next(funded: FundedNetwork, faulty: FaultyNode, case: str = "") -> None:
    url = funded.network.rpc_url
    ws = funded.network.ws_url
    async with (
        RpcPool([Endpoint(url, faulty.url), Endpoint(url, ws)]) as pool,
        watching(funded, pool, silence=60) as watcher,
        asyncio.timeout(20),
    ):
        # until the second websocket is open, because changes before that are not pushed
        rate = (await funded.coordinator.run(funded.run_id)).future_earning_rate
        while watcher.push_bytes_max == 0:
            rate += 1
            newest = await change(funded, rate)
            await watcher.refresh()
            await wait_for_seq(watcher, newest, 5)
        assert faulty.subscriptions == 1, case


async def test_unexpected_read_error_does_not_end_watch(
    embedded: FundedNetwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await embedded.configured_run()
    read = newest_run.parse_run
    trips = 0

    def trip(data: bytes) -> Run:
        nonlocal trips
        trips += 1
        raise RecursionError("as a parser might")

    async with watching(embedded, silence=0.05) as watcher:
        monkeypatch.setattr(newest_run, "parse_run", trip)
        newest = await change(embedded, 3)
        await asyncio.wait_for(_until(lambda: trips > 3), 10)
        monkeypatch.setattr(newest_run, "parse_run", read)
        await wait_for_seq(watcher, newest, 10)
    assert caplog.text.count("cannot be read") <= 2, "said when it begins, by poll and by push"


@asynccontextmanager
async def proxied(funded: FundedNetwork) -> AsyncIterator[tuple[Proxy, Proxy, Endpoint]]:
    async with proxy(funded.rpc_port) as http, proxy(funded.ws_port) as ws:
        yield http, ws, Endpoint(f"http://127.0.0.1:{http.port}", f"ws://127.0.0.1:{ws.port}")


@pytest.mark.parametrize("fault", ["cut", "black hole"])
async def test_watch_survives_node_outage_in_mid_run(funded: FundedNetwork, fault: str) -> None:
    await funded.configured_run()
    async with (
        proxied(funded) as (http, ws, where),
        RpcPool([where]) as pool,
        watching(funded, pool, silence=0.3) as watcher,
    ):
        for one in (http, ws):
            if fault == "cut":
                await one.close()
            else:
                one.black_hole()
        newest = await change(funded, 9)
        with pytest.raises(TimeoutError):
            await wait_for_seq(watcher, newest, 1.5)
        for one in (http, ws):
            await one.open()
        assert (await wait_for_seq(watcher, newest, 60)).future_earning_rate == 9
        newest = await change(funded, 10)
        await wait_for_seq(watcher, newest, 10)


async def test_fallback_takes_over_and_pushes_continue(funded: FundedNetwork) -> None:
    await funded.configured_run()
    async with proxied(funded) as (http, ws, where):
        fallback = endpoint(funded.network.rpc_url, funded.network.ws_url)
        async with (
            RpcPool([where, fallback]) as pool,
            watching(funded, pool, silence=60) as watcher,
        ):
            await http.close()
            await ws.close()
            await asyncio.wait_for(_until(lambda: not watcher._socket.ready.is_set()), 5)
            await asyncio.wait_for(watcher._socket.ready.wait(), 5)
            newest = await change(funded, 4)
            await wait_for_seq(watcher, newest, 5)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def test_watch_without_node_at_start_is_an_error(embedded: FundedNetwork) -> None:
    await embedded.configured_run()
    async with proxied(embedded) as (http, ws, where), RpcPool([where]) as pool:
        await http.close()
        await ws.close()
        with pytest.raises(Unavailable, match=f"http://127.0.0.1:{http.port}"):
            await watcher_of(embedded, pool).start()


async def test_cancelled_watch_start_leaves_no_tasks(embedded: FundedNetwork) -> None:
    await embedded.configured_run()
    async with proxied(embedded) as (_, ws, where), RpcPool([where]) as pool:
        ws.black_hole()
        starting = asyncio.create_task(watcher_of(embedded, pool).start())
        await asyncio.wait_for(_until(lambda: _following() > 0), 5)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert _following() == 0


def _following() -> int:
    return sum("AccountSocket" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_permanent_outage_ends_updates_with_reason(embedded: FundedNetwork) -> None:
    await embedded.configured_run()
    async with (
        proxied(embedded) as (http, ws, where),
        RpcPool([where]) as pool,
        watching(embedded, pool, silence=0.2, give_up=20.0) as watcher,
    ):
        await http.close()
        await ws.close()
        with pytest.raises(Unavailable, match="no Solana RPC endpoint answered"):
            await wait_for_seq(watcher, 1 << 60, 120)


async def test_closed_run_ends_updates(funded: FundedNetwork) -> None:
    coordinator = await funded.configured_run()
    async with watching(funded) as watcher:
        await coordinator.close_run(funded.run_id)
        with pytest.raises(NoSuchRun, match="the run was closed"):
            await wait_for_seq(watcher, 1 << 60, PATIENCE_S)


async def test_recreated_run_ends_updates(funded: FundedNetwork) -> None:
    """It may belong to another owner, to which its members never agreed."""
    coordinator = await funded.configured_run()
    another = CoordinatorClient(funded.pool, Wallet(Keypair()))
    await another.create_run("before")  # which funds the wallet
    async with watching(funded) as watcher:
        first = watcher.latest
        await coordinator.close_run(funded.run_id)
        await another.create_run(funded.run_id)
        for rate in range(1, first.seq + 2):  # a higher `seq` does not make it the first run
            await another.set_future_epoch_rates(funded.run_id, earning=rate, slashing=None)
        assert (await another.run(funded.run_id)).seq > first.seq
        with pytest.raises(NoSuchRun, match="the run was closed"):
            await wait_for_seq(watcher, 1 << 60, 10)
        assert watcher.latest.main_authority == bytes(funded.wallet.pubkey)


async def test_missing_run_is_reported_at_start(embedded: FundedNetwork) -> None:
    with pytest.raises(CoordinatorError, match="list-runs"):
        await watcher_of(embedded, embedded.pool).start()


async def test_older_state_never_replaces_newer(funded: FundedNetwork) -> None:
    await funded.configured_run()
    async with watching(funded, silence=60) as watcher:
        old = watcher.latest
        newest = await change(funded, 3)
        await wait_for_seq(watcher, newest, 5)
        watcher.newest.take(old, watcher.newest.slot + 100)
        assert watcher.latest.seq == newest


def _notification(program: Pubkey, data: bytes, slot: int = 1) -> str:
    """Return a push for the subscription that `faulty_websocket` confirms."""
    result = {"context": {"slot": slot}, "value": account_json(data, owner=str(program))}
    params = {"subscription": 3, "result": result}
    return json.dumps({"jsonrpc": "2.0", "method": "accountNotification", "params": params})


async def _state(funded: FundedNetwork, run_id: str | None = None, **later: int) -> bytes:
    """Return the run's account after this number of changes."""
    _, account = await fetch(
        funded.pool, run_addresses(funded.coordinator.program_id, run_id or funded.run_id).run
    )
    assert account is not None
    data = bytearray(account.data)
    for field, more in later.items():
        at = run_account().offset({"changes": "seq"}.get(field, field))
        struct.pack_into("<Q", data, at, struct.unpack_from("<Q", data, at)[0] + more)
    return bytes(data)


async def test_finish_reported_only_by_websocket_is_ignored(embedded: FundedNetwork) -> None:
    """A member that accepted it would end."""
    coordinator = await embedded.configured_run()
    data = bytearray(await _state(embedded, changes=1))
    data[run_account().offset("state")] = RunState.FINISHED
    lie = _notification(coordinator.program_id, bytes(data))
    url = embedded.network.rpc_url
    ws = embedded.network.ws_url
    async with (
        faulty_websocket(lie, every=0.1) as faulty,
        RpcPool([Endpoint(url, faulty.url), Endpoint(url, ws)]) as pool,
        watching(embedded, pool, silence=0.05) as watcher,
        asyncio.timeout(20),
    ):
        await _until(lambda: watcher.push_bytes_max > 0)
        await asyncio.sleep(1)
        assert watcher.latest.state is not RunState.FINISHED
        await wait_for_seq(watcher, await change(embedded, 3), 5)


async def test_run_state_change_is_pushed(embedded: FundedNetwork) -> None:
    coordinator = await embedded.configured_run()
    async with watching(embedded, silence=60) as watcher:
        await coordinator.set_paused(embedded.run_id, False)
        newest = await coordinator.run(embedded.run_id)
        assert (await wait_for_seq(watcher, newest.seq, 5)).state is newest.state


async def test_notification_of_another_run_is_ignored(
    embedded: FundedNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = await embedded.configured_run()
    await embedded.configured_run("another")
    lie = _notification(coordinator.program_id, await _state(embedded, "another", changes=5))
    async with (
        faulty_websocket(lie, every=0.1) as faulty,
        RpcPool([Endpoint(embedded.network.rpc_url, faulty.url)]) as pool,
        watching(embedded, pool, silence=0.1) as watcher,
    ):
        await wait_for_seq(watcher, await change(embedded, 3), 5)
        assert watcher.latest.run_id == embedded.run_id
    assert caplog.text.count("sent another run") == 1


async def test_websocket_repeating_old_state_does_not_stop_polling(embedded: FundedNetwork) -> None:
    coordinator = await embedded.configured_run()
    old = _notification(coordinator.program_id, await _state(embedded))
    async with (
        faulty_websocket(old, every=0.05) as faulty,
        RpcPool([Endpoint(embedded.network.rpc_url, faulty.url)]) as pool,
        watching(embedded, pool, silence=0.2) as watcher,
    ):
        await wait_for_seq(watcher, await change(embedded, 3), 2)


async def test_websocket_garbage_flood_causes_few_logs_and_polls(
    embedded: FundedNetwork, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = await embedded.configured_run()
    polls = 0
    read = newest_run.RunSource.read

    async def counted(*args: Any, **more: Any) -> Any:
        nonlocal polls
        polls += 1
        return await read(*args, **more)

    monkeypatch.setattr(newest_run.RunSource, "read", counted)
    after = [_notification(coordinator.program_id, bytes(size)) for size in (7, 8)]
    async with (
        faulty_websocket(*after, every=0.01) as faulty,
        RpcPool([Endpoint(embedded.network.rpc_url, faulty.url)]) as pool,
        watching(embedded, pool) as watcher,
    ):
        polls = 0
        await asyncio.sleep(1.2)
        assert polls <= 1.2 / run_watcher.POLL_PAUSE + 1
        assert watcher.push_bytes_max
    assert caplog.text.count("cannot be read") <= 1


async def test_websocket_with_message_above_limit_is_left() -> None:
    pushes: list[AccountData] = []
    async with (
        faulty_websocket(
            json.dumps({"method": "other", "pad": [[]] * node_client.MAX_MESSAGE})
        ) as faulty,
        RpcPool([Endpoint("http://127.0.0.1:9", faulty.url)]) as pool,
    ):
        follows = AccountSocket(pool, Pubkey.new_unique(), pushes.append, lambda: None)
        following = asyncio.create_task(follows.run())
        await asyncio.wait_for(_until(lambda: faulty.subscriptions > 1), 5)
        following.cancel()
    assert not pushes
