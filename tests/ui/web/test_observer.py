"""Tests of the observer with a real network: what it serves and pushes, requests that it refuses,
and outages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, WSMsgType, WSServerHandshakeError
from solders.keypair import Keypair

from aftermath.chain.endpoints import endpoint
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet
from aftermath.events.stream import Events, JsonLines
from aftermath.localnet import EmbeddedEngine
from aftermath.localnet.free_ports import free_ports
from aftermath.rules.state import RunState
from aftermath.ui.web import observatory, web_server
from aftermath.ui.web import observed_run as observed
from aftermath.ui.web.observatory import Observatory
from aftermath.ui.web.web_server import ObserveError, ObserverServer
from chain.funded_network import FundedNetwork, network_config
from cli.cli_runs import CONSOLE
from events.sample_events import sample_event
from ui.web.observer_client import Viewer, observing, state_is, until
from ui.web.scripted_members import ScriptedMembers, scripted_members

PAGE = Path(web_server.__file__).parent / "page"
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
RUN = "<b>&a/b"
"""A run id may be any text: of a page, a path, a script."""
AT = "%3Cb%3E%26a%2Fb"


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedMembers]:
    async with scripted_members(
        RUN, (0, 1, 2), name=EVIL, slot_ms=200, init_min_clients=3, rounds_per_epoch=4
    ) as members:
        yield members


def enough_transactions(message: Any) -> bool:
    return "now" in message and message["now"]["costs"]["transactions"] > 10


def observed_there(scripted: ScriptedMembers, **options: Any) -> Any:
    network = scripted.funded.network
    return observing(network.rpc_url, network.ws_url, **options)


async def test_observer_page_loads_only_its_own_files(scripted: ScriptedMembers) -> None:
    async with observed_there(scripted) as viewer:
        for path in (
            "/",
            f"/run/{AT}",
            "/main.js",
            "/style.css",
            "/icon.svg",
            "/api/runs",
            "/nothing",
        ):
            async with viewer.session.get(viewer.url + path) as reply:
                rules = dict(
                    rule.split(" ", 1)
                    for rule in reply.headers["Content-Security-Policy"].split("; ")
                )
                assert rules["default-src"] == "'none'"
                assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
                assert reply.headers["X-Content-Type-Options"] == "nosniff"
                assert reply.status == (404 if path == "/nothing" else 200)
        page = await viewer.text("/")
        assert await viewer.text(f"/run/{AT}") == page
        for reference in re.findall(r'(?:src|href)="(/[^"]+)"', page):
            assert await viewer.status(reference) == 200
        async with viewer.session.post(viewer.url + "/api/runs") as reply:
            assert reply.status == 405


def test_observer_page_has_no_inline_markup_or_foreign_urls() -> None:
    for path in PAGE.iterdir():
        text = path.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text
        ), path
        assert not re.search(r"\bstyle=|<style|\bon\w+=\"", text), path
        assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}, path


async def test_observer_run_equals_chain_state(scripted: ScriptedMembers) -> None:
    async with observed_there(scripted) as viewer:
        (listed,) = (await viewer.json("/api/runs"))["list"]["runs"]
        assert (listed["run_id"], listed["name"], listed["state"]) == (
            RUN,
            EVIL,
            "waiting_for_members",
        )
        await scripted.join()
        async with viewer.live(f"/live/{AT}") as socket:
            await scripted.reach(RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, height=1)
            await until(socket, state_is("round_train"))
            message = await until(
                socket,
                lambda message: "now" in message and message["now"]["costs"]["transactions"] > 10,
            )
    now = message["now"]
    moment = now["moment"]
    assert (moment["name"], moment["description"], moment["total_steps"]) == (
        EVIL,
        f"{EVIL}: scripted members",
        100,
    )
    assert moment["waits"]
    members = moment["members"]
    assert [(member["seat"], member["tier"], member["takes_part"]) for member in members] == [
        (0, 0, True),
        (1, 1, True),
        (2, 2, True),
    ]
    assert [level["holders"] for level in moment["levels"]] == [[0], [0, 1], [0, 1, 2]]
    assert now["trouble"] == ""
    assert now["silent"] is None
    assert now["costs"]["lamports"] >= 5000 * now["costs"]["transactions"]


async def test_losses_without_events_come_from_attestations(scripted: ScriptedMembers) -> None:
    async with observed_there(scripted) as viewer:
        await scripted.join()
        async with viewer.live(f"/live/{AT}") as socket:
            await scripted.reach(RunState.ROUND_TRAIN, height=2)
            message = await until(
                socket, lambda message: len(message.get("curves", {}).get("loss", {})) == 3
            )
    for tier, points in message["curves"]["loss"].items():
        assert points[0][0] == 1
        assert points[0][1] == pytest.approx(5.3, abs=0.3), tier
    assert message["curves"]["epochs"] == {"0": 1}


async def test_observer_step_beyond_run_is_not_charted(scripted: ScriptedMembers) -> None:
    async with observed_there(scripted) as viewer:
        await scripted.join()
        async with viewer.live(f"/live/{AT}") as socket:
            scripted.states_steps = (1 << 32) - 1
            await scripted.reach(RunState.ROUND_TRAIN, height=1)
            scripted.states_steps = None
            await scripted.reach(RunState.ROUND_TRAIN, height=3)
            message = await until(
                socket, lambda message: len(message.get("curves", {}).get("loss", {})) == 3
            )
    assert all(step <= 8 for points in message["curves"]["loss"].values() for step, _ in points)
    assert set(message["curves"]["epochs"].values()) <= set(range(8))


async def test_observer_transaction_is_pushed_and_kept_in_history(
    scripted: ScriptedMembers,
) -> None:
    async with observed_there(scripted) as viewer, viewer.live(f"/live/{AT}") as socket:
        before = (await until(socket, state_is("waiting_for_members")))["now"]["moment"]
        assert "members" not in before
        await scripted.funded.coordinator.set_paused(RUN, True)
        after = (await until(socket, state_is("paused")))["now"]["moment"]
        assert "set-paused resume" in after["waits"][0]
        times = (await viewer.json(f"/api/runs/{AT}"))["past"]
        assert len(times) >= 2
        then = await viewer.json(f"/api/runs/{AT}/at/{times[0]}")
        assert (then["state"], then["at"]) == ("waiting_for_members", times[0])
        assert (await viewer.json(f"/api/runs/{AT}/at/{times[-1] + 10**6}"))["state"] == "paused"


async def test_observer_run_list_is_pushed(scripted: ScriptedMembers) -> None:
    async with observed_there(scripted) as viewer, viewer.live("/live") as socket:
        assert len((await socket.receive_json(timeout=30))["list"]["runs"]) == 1
        await scripted.funded.coordinator.create_run("another")
        names = await until(socket, lambda message: len(message["list"]["runs"]) == 2)
        assert {run["run_id"] for run in names["list"]["runs"]} == {RUN, "another"}


async def test_observer_viewers_are_limited_and_other_sites_refused(
    scripted: ScriptedMembers,
) -> None:
    async with observed_there(scripted, most_viewers=2) as viewer:
        async with viewer.live("/live"), viewer.live(f"/live/{AT}"):
            with pytest.raises(WSServerHandshakeError, match="503"):
                await viewer.live("/live")
        with pytest.raises(WSServerHandshakeError, match="403"):
            await viewer.live("/live", Origin="http://elsewhere.example")
        async with viewer.live("/live", Origin=viewer.url) as socket:
            await socket.receive_json(timeout=30)
            await socket.send_str("a viewer has nothing to say")
            while (message := await socket.receive(timeout=30)).type is WSMsgType.TEXT:
                pass
            assert message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING)


@pytest.mark.parametrize(
    "asks", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 500], ids=["nothing", "500 pages"]
)
async def test_observer_idle_connections_block_nobody(
    scripted: ScriptedMembers, asks: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "MOST_OTHERS", 24)
    async with observed_there(scripted) as viewer, viewer.live("/live") as socket:
        await socket.receive_json(timeout=30)
        port = int(viewer.url.rpartition(":")[2])
        ends = [
            await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
            for _ in range(web_server.MOST_OTHERS + 3)
        ]
        for _, writer in ends:
            writer.write(asks)
        async with asyncio.timeout(10):
            for reader, _ in ends[:3]:  # the oldest connections have made room
                with contextlib.suppress(ConnectionResetError):
                    while await reader.read(1 << 16):
                        pass
        assert await viewer.status("/api/runs") == 200
        assert not socket.closed
        await scripted.funded.coordinator.create_run("another")
        assert await viewer.status(f"/api/runs/{AT}") == 200
        for _, writer in ends:
            writer.transport.abort()


async def test_observer_unknown_run_is_404(scripted: ScriptedMembers) -> None:
    async with observed_there(scripted) as viewer:
        assert await viewer.status(f"/api/runs/{'x' * 33}") == 404
        assert await viewer.status(f"/api/runs/{AT}/at/{'9' * 17}") == 404
        assert await viewer.status("/api/runs/nowhere/at/1") == 404
        status, answer = await viewer.answer("/api/runs/nowhere")
        assert (status, answer["now"]["trouble"][:25]) == (404, "there is no run 'nowhere'")
        async with viewer.live("/live/nowhere") as socket:
            message = await until(socket, lambda message: message.get("now", {}).get("trouble"))
    assert "there is no run 'nowhere'" in message["now"]["trouble"]
    assert message["now"]["moment"] is None


async def test_observer_of_dead_node_answers_503_and_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with observing("http://127.0.0.1:9") as viewer:
        status, answer = await viewer.answer("/api/runs/nowhere")
        assert status == 503
        assert "no Solana RPC endpoint answered" in answer["now"]["trouble"]
    assert any("does not answer" in record.getMessage() for record in caplog.records)


async def test_observer_followed_runs_are_limited(
    scripted: ScriptedMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observatory, "MOST_RUNS", 2)
    for name in ("second", "third"):
        await scripted.funded.coordinator.create_run(name)
    async with observed_there(scripted, run_id=RUN) as viewer:
        async with viewer.live("/live/second") as socket:
            await until(socket, state_is("uninitialized"))
            assert await viewer.status("/api/runs/third") == 503, (
                "one is named, and a visitor looks at the other"
            )
        async with viewer.live("/live/third") as socket:
            await until(socket, state_is("uninitialized"))
        assert await viewer.status(f"/api/runs/{AT}") == 200


async def test_observer_after_network_outage_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observed, "OUTAGE_SECONDS", 2.5)
    wallet = Wallet(Keypair())
    config = replace(
        network_config(wallet), rpc_port=free_ports("127.0.0.1", 2), ledger=tmp_path / "ledger"
    )
    network = await EmbeddedEngine().start(config)
    try:
        async with RpcPool([endpoint(network.rpc_url, network.ws_url)]) as pool:
            await FundedNetwork(network, pool, wallet).open_run("steady")
            async with (
                observing(network.rpc_url, network.ws_url, run_id="steady") as viewer,
                viewer.live("/live/steady") as socket,
            ):
                await until(socket, state_is("waiting_for_members"))
                await network.close()
                stale = await until(
                    socket, lambda message: message.get("now", {}).get("silent") is not None
                )
                assert stale["now"]["silent"] >= 2
                assert state_is("waiting_for_members")(stale), "the last that was known stays"
                network = await EmbeddedEngine().start(config)
                await until(
                    socket, lambda message: "now" in message and message["now"]["silent"] is None
                )
                await FundedNetwork(network, pool, wallet).coordinator.set_paused("steady", True)
                await until(socket, state_is("paused"))
    finally:
        await network.close()


async def test_observer_events_directory_may_appear_later(
    scripted: ScriptedMembers, tmp_path: Path
) -> None:
    place = tmp_path / "later"
    async with observed_there(scripted, events=[place]) as viewer:
        assert "told later" not in await viewer.text("/api/runs")
        place.mkdir()
        at = {"at": "2026-01-02T03:04:05.000+00:00", "t": 0.0}
        event = {
            "kind": "started",
            "run_id": "told later",
            "tier": 0,
            "wallet": "w",
            "version": "1",
        }
        (place / "a.jsonl").write_text(json.dumps(at | event) + "\n")
        async with asyncio.timeout(60):
            while "told later" not in await viewer.text("/api/runs"):
                await asyncio.sleep(0.5)


async def test_observer_recreated_run_hides_the_first(
    scripted: ScriptedMembers, tmp_path: Path
) -> None:
    coordinator = scripted.funded.coordinator
    await coordinator.create_run("twice")
    run = await coordinator.run("twice")
    events = Events(lambda: 1.0, [JsonLines(tmp_path / "first.jsonl", lambda: datetime.now(UTC))])
    events.emit(sample_event("started", run_id="twice", tier=0, wallet="w", version="1"))
    events.emit(
        sample_event(
            "run_found",
            owner=str(scripted.funded.wallet.pubkey),
            created=run.created,
            identity=run.identity,
        )
    )
    events.emit(sample_event("trained", step=1, loss=2.0, tokens=10))
    async with (
        observed_there(scripted, events=[tmp_path]) as viewer,
        viewer.live("/live/twice") as socket,
    ):
        await until(
            socket, lambda message: message.get("curves", {}).get("loss") == {"0": [[1, 2.0]]}
        )
        first = await until(
            socket, lambda message: "now" in message and message["now"]["costs"]["transactions"]
        )
        assert first["now"]["events"] == 2  # after the observer found the run
        await coordinator.close_run("twice")
        await until(socket, lambda message: message.get("now", {}).get("trouble"))
        await coordinator.create_run("twice")
        await until(socket, lambda message: "now" in message and message["now"]["events"] == 0)
        again = (await viewer.json("/api/runs/twice"))["now"]
    assert again["moment"]["state"] == "uninitialized"
    assert (await coordinator.run("twice")).identity != run.identity


async def test_observer_taken_port_is_refused(scripted: ScriptedMembers) -> None:
    async with observed_there(scripted) as viewer:
        port = int(viewer.url.rsplit(":", 1)[1])
        second = ObserverServer(Observatory(scripted.funded.coordinator))
        with pytest.raises(ObserveError, match="it is in use"):
            async with second.listening("127.0.0.1", port):
                pass


@pytest.mark.slow
async def test_observe_with_open_viewers_ends_on_ctrl_c(
    real_time: None, scripted: ScriptedMembers, tmp_path: Path
) -> None:
    """The command also ends if SIGINT was ignored when it started, as by a script's `&`."""
    absent = tmp_path / "absent"
    arguments = (
        "--rpc",
        scripted.funded.network.rpc_url,
        "--events",
        str(absent),
        "--port",
        "0",
        "--json",
    )
    started = (
        "sh",
        "-c",
        'trap "" INT; exec "$@"',
        "sh",
        CONSOLE,
        "observe",
        "--run-id",
        RUN,
        *arguments,
    )
    process = await asyncio.create_subprocess_exec(*started, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    line = (await process.stdout.readuntil(b"}\n")).decode()
    url, _, page = json.loads(line)["url"].partition("/run/")
    assert page == AT
    async with ClientSession() as session, Viewer(url, session).live(f"/live/{AT}") as socket:
        await until(socket, state_is("waiting_for_members"))
        process.send_signal(signal.SIGINT)
        while (await socket.receive(timeout=30)).type is WSMsgType.TEXT:
            pass
        assert await asyncio.wait_for(process.wait(), 30) == 0
    (warned,) = (await process.stderr.read()).decode().splitlines()
    assert f"{absent} does not exist yet" in warned
