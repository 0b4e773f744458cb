"""Test that a misbehaving member affects only its own connection, and fills no log or memory."""

import asyncio
import contextlib
import logging
import os
import sys
import time
from pathlib import Path

import iroh
import psutil
import pytest
from blake3 import blake3

from aftermath.p2p import announce, connection_table, incoming_connections, limits, peer_connection
from aftermath.p2p.announce import Announcer
from aftermath.p2p.peer_connection import Link, close_reason
from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.transport import PeerUnreachable, TransportError
from aftermath.p2p.wire import (
    ALPN,
    BlobRequest,
    CallRequest,
    Code,
    Reply,
    ReplyStatus,
    frame_of,
    read_message,
)
from p2p.nodes import identity, join, until


class FlakyEndpoint:
    """An endpoint whose dials never complete, and whose every second accept fails."""

    def __init__(self, endpoint) -> None:
        self._endpoint = endpoint
        self._failed = False

    async def connect(self, address, alpn):
        await asyncio.Event().wait()

    async def accept_next(self):
        self._failed = not self._failed
        if self._failed:
            raise RuntimeError("as a stranger might cause")
        return await self._endpoint.accept_next()


async def test_failing_accept_does_not_lock_out_others(opened):
    node, *others = [await opened(seed) for seed in (1, 2, 3, 4)]
    node._links._endpoint = node._links._incoming._endpoint = FlakyEndpoint(node._endpoint)
    join([node, *others])
    await until(lambda: len(node.reachable()) == 3, 30)


async def test_failing_link_does_not_end_watch_over_others(mesh, monkeypatch):
    pulses: list[bytes] = []
    bad = identity(2)
    good = identity(3)

    def pulse(self: Link) -> bool:
        pulses.append(self.peer)
        if self.peer == bad:
            raise RuntimeError("as a dying connection might")
        return True

    monkeypatch.setattr(connection_table, "PROBE_S", 0.02)
    monkeypatch.setattr(Link, "pulse", pulse)
    await mesh(1, 2, 3)
    await until(lambda: pulses.count(bad) > 2 and pulses.count(good) > 2)


def test_close_reason_of_peer_is_escaped():
    class Closed:
        def close_reason(self) -> str:
            return "closed by peer: \x1b[31m red\n" + "long" * 100

    text = close_reason(Closed())
    assert "x1b[31m red" in text
    assert text.isprintable()
    assert len(text) <= 200


async def test_close_ends_running_fetch(opened):
    node = await opened(1)
    node.set_members([identity(9)])
    task = asyncio.create_task(node.fetch(blake3(b"never").digest(), 5, [identity(9)], 600))
    await asyncio.sleep(0)
    began = time.monotonic()
    await node.close()
    with pytest.raises(TransportError, match="closed"):
        await task
    assert time.monotonic() - began < 60


def test_remembered_senders_are_bounded(monkeypatch):
    monkeypatch.setattr(announce, "REMEMBERED_PEERS", 2)
    announcer = Announcer(PeerMeasurements(time.monotonic))
    assert announcer._is_new(b"one", b"x")
    assert announcer._is_new(b"two", b"x")
    assert not announcer._is_new(b"one", b"x")
    assert announcer._is_new(b"three", b"x")
    assert not announcer._is_new(b"one", b"x"), "who spoke last is remembered"
    assert announcer._is_new(b"two", b"x")


async def test_second_announcement_stream_ends_connection(opened, rogue):
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    connection = await cheat.dial(node)
    streams = [await connection.open_uni() for _ in range(2)]
    for stream in streams:
        await stream.write_all(b"\0")
    await until(lambda: node.stats().violations == 1 and not node.reachable())


async def test_unread_bytes_of_waiting_streams_are_bounded(opened, rogue, monkeypatch):
    """A hundred streams are full and sixteen are served.

    The unread bytes of the others are counted.
    """
    monkeypatch.setattr(peer_connection, "MOST_UNREAD", 8 << 20)
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    node.handle("slow", _never)
    connection = await cheat.dial(node)
    before = psutil.Process().memory_info().rss
    pouring = [asyncio.create_task(_pour(connection, b"x" * (1 << 16))) for _ in range(100)]
    await until(lambda: node.stats().violations == 1 and not node.reachable(), 60)
    assert psutil.Process().memory_info().rss - before < 400 << 20, (
        "of both sides, which are this one process"
    )
    await asyncio.gather(*pouring)


async def _never(peer: bytes, body: bytes) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


async def _pour(connection: iroh.Connection, more: bytes) -> None:
    with contextlib.suppress(iroh.IrohError):
        stream = (await connection.open_bi()).send()
        await stream.write_all(frame_of(CallRequest("slow", 0, 9, 60_000)))
        while True:
            await stream.write_all(more)


async def test_undecodable_announcements_ban_longer_each_time(opened, rogue):
    node = await opened(1)
    cheat = await rogue(2)
    now = 0.0
    node._links._bans._clock = lambda: now
    node.set_members([cheat.node_id])
    await cheat.dial(node)
    for times in (1, 2, 3):
        node.bar(cheat.node_id, "nonsense")
        await until(lambda times=times: node.stats().violations == times and not node.reachable())
        seconds = limits.FIRST_S * 2 ** (times - 1)
        now += 0.99 * seconds
        with pytest.raises(PeerUnreachable, match="is banned"):
            await node.request(cheat.node_id, "any", b"", 10, 5)
        with pytest.raises(PeerUnreachable, match="banned"):
            await cheat.dial(node)
        now += 0.02 * seconds
        await cheat.dial(node)


async def test_one_address_cannot_hold_all_handshakes(opened, monkeypatch):
    monkeypatch.setattr(incoming_connections, "MAX_HANDSHAKES_OF_ADDRESS", 3)
    node = await opened(1)
    where = []

    async def stuck(self, incoming, begun, port):
        where.append(begun.where)
        await asyncio.Event().wait()

    monkeypatch.setattr(incoming_connections.IncomingConnections, "_welcome", stuck)
    strangers = [await opened(seed) for seed in range(2, 8)]
    for one in strangers:
        one.set_members([node.node_id])
    await until(lambda: node.stats().refused >= 3)
    assert where == ["127.0.0.1"] * 3


async def test_member_sharing_address_with_flood_reconnects(mesh, rogue, monkeypatch):
    """Connections from the address are dropped, except those from the port of the member's last
    connection.
    """
    monkeypatch.setattr(incoming_connections, "ADDRESS_RATE", 1e-3)
    monkeypatch.setattr(incoming_connections, "LOOKED_AT_RATE", 1e-3)
    nodes = await mesh(1, 2)
    for node in nodes:
        used_up = node._links._incoming.limits
        while used_up.looks.try_take() or used_up._rate("127.0.0.1").try_take():
            pass
    lost = nodes[0]._links._peers[nodes[1].node_id].link
    lost.close(Code.STALLED, "lost")
    await until(lost.closed.is_set)
    await until(lambda: all(node.reachable() for node in nodes))
    newcomer = await rogue(3)
    join(nodes, newcomer.node_id)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await newcomer.endpoint.connect(nodes[0]._endpoint.addr(), ALPN)


def test_last_port_is_admitted_within_connection_rate():
    now = 0.0
    one = incoming_connections.AcceptLimits(lambda: now)
    one.remember(b"a", "192.0.2.7:1")
    one.remember(b"b", "192.0.2.7:2")
    for _ in range(int(limits.CONNECTION_BURST)):
        assert one.invites("192.0.2.7:1")
        begun = one.enter("192.0.2.7:1")
        assert begun is not None
        one.leave(begun)
    assert not one.invites("192.0.2.7:1")
    one.remember(b"a", "192.0.2.7:3")
    assert [one.invites(f"192.0.2.7:{port}") for port in (1, 2, 3)] == [False, True, False]
    now = 1 / limits.CONNECTION_RATE
    assert [one.invites(f"192.0.2.7:{port}") for port in (1, 2, 3)] == [False, True, True]
    for number in range(limits.REMEMBERED_PEERS - 1):
        one.remember(number.to_bytes(4, "big"), f"[2001:db8::{number:x}]:1")
    assert [one.invites(f"192.0.2.7:{port}") for port in (2, 3)] == [False, True]


def test_relay_limits_are_per_member_key():
    keys = [iroh.SecretKey.from_bytes(bytes([seed]) * 32).public() for seed in (1, 1, 2, 3, 4)]
    members = {bytes(key.to_bytes()) for key in keys[:3]}
    relayed = [
        incoming_connections.place_of(
            iroh.IncomingAddr.RELAY("https://relay.example./", key), members
        )
        for key in keys
    ]
    assert relayed[0] == relayed[1] != relayed[2]
    assert incoming_connections.RELAYED not in relayed[:3]
    assert relayed[3:] == [incoming_connections.RELAYED] * 2
    places = [
        "[2001:db8::1]:1",
        "[2001:db8::2:1]:2",
        "[2001:db8:0:1::1]:1",
        "[::ffff:192.0.2.7]:1",
        "192.0.2.7:1",
    ]
    direct = [
        incoming_connections.place_of(iroh.IncomingAddr.IP(place), members) for place in places
    ]
    assert direct[0] == direct[1] == "2001:db8::/64" != direct[2]
    assert direct[3] != direct[2]
    assert direct[4] == "192.0.2.7"


async def test_requests_are_answered_at_allowed_rate(opened, rogue, monkeypatch):
    monkeypatch.setattr(limits, "REQUEST_RATE", 50.0)
    monkeypatch.setattr(limits, "REQUEST_BURST", 5.0)
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    connection = await cheat.dial(node)
    began = time.monotonic()
    streams = [await connection.open_bi() for _ in range(30)]
    for stream in streams:
        await stream.send().write_all(frame_of(BlobRequest(bytes(32), 0, 1)))
    for stream in streams:
        assert (await read_message(stream.recv(), Reply)).status == ReplyStatus.MISSING
    assert time.monotonic() - began >= 25 / 50 * 0.9
    assert node.stats().throttled > 0


async def test_repeated_violations_are_logged_once(opened, rogue, monkeypatch, caplog):
    monkeypatch.setattr(limits, "FIRST_S", 0.0)
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    for times in (1, 2, 3):
        connection = await cheat.dial(node)
        await (await connection.open_bi()).send().write_all(b"\xff\xff\xff\xff")
        await until(lambda times=times: node.stats().violations == times)
    messages = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(messages) == 1
    assert "broke the protocol: a frame of 4294967295 bytes" in messages[0]


async def test_frequent_reconnects_are_refused(opened, rogue, monkeypatch):
    monkeypatch.setattr(limits, "CONNECTION_RATE", 1e-3)
    monkeypatch.setattr(limits, "CONNECTION_BURST", 3.0)
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    for _ in range(3):
        await cheat.dial(node)
    with pytest.raises(PeerUnreachable, match="connecting too often"):
        await cheat.dial(node)
    assert node.stats().refused == 1


async def test_failed_handshake_makes_no_backtrace(tmp_path):
    """Rust's libraries read RUST_BACKTRACE when they make an error with a backtrace."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("abandoned_handshakes.py")),
        str(tmp_path / "run"),
    ]
    environment = {**os.environ, "RUST_BACKTRACE": "1"}
    environment.pop("RUST_LIB_BACKTRACE", None)
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert float(output) < 20
