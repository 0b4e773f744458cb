"""What a member can do to us by misbehaving: nothing that outlives its own connection, or fills a log or memory."""

import asyncio
import logging
import time

import pytest
from blake3 import blake3

from aftermath.p2p import announce, links, requests
from aftermath.p2p.announce import Announcer
from aftermath.p2p.link import Link, close_reason
from aftermath.p2p.pace import Pace
from aftermath.p2p.transport import PeerUnreachable, TransportError
from aftermath.p2p.wire import BlobRequest, Reply, Status, frame_of, read_message
from p2p.nodes import identity, join, until


class FlakyEndpoint:
    """Never gets through when it dials; fails before each connection it accepts."""

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


async def test_a_failing_accept_does_not_lock_others_out(opened):
    node, *others = [await opened(seed) for seed in (1, 2, 3, 4)]
    node._links._endpoint = FlakyEndpoint(node._endpoint)
    join([node, *others])
    await until(lambda: len(node.reachable()) == 3, 30)


async def test_one_bad_link_does_not_end_the_watch_over_others(mesh, monkeypatch):
    pulses: list[bytes] = []
    bad, good = identity(2), identity(3)

    def pulse(self: Link) -> bool:
        pulses.append(self.peer)
        if self.peer == bad:
            raise RuntimeError("as a dying connection might")
        return True

    monkeypatch.setattr(links, "PROBE_S", 0.02)
    monkeypatch.setattr(Link, "pulse", pulse)
    await mesh(1, 2, 3)
    await until(lambda: pulses.count(bad) > 2 and pulses.count(good) > 2)


def test_the_words_of_a_closing_peer_are_escaped():
    class Closed:
        def close_reason(self) -> str:
            return "closed by peer: \x1b[31m red\n" + "long" * 100

    text = close_reason(Closed())
    assert "x1b[31m red" in text
    assert text.isprintable()
    assert len(text) <= 200


async def test_closing_ends_a_fetch_that_is_under_way(opened):
    node = await opened(1)
    node.set_members([identity(9)])
    task = asyncio.create_task(node.fetch(blake3(b"never").digest(), 5, [identity(9)], 600))
    await asyncio.sleep(0)
    began = time.monotonic()
    await node.close()
    with pytest.raises(TransportError, match="closed"):
        await task
    assert time.monotonic() - began < 60


def test_what_is_remembered_of_senders_is_bounded(monkeypatch):
    monkeypatch.setattr(announce, "REMEMBERED_SENDERS", 2)
    announcer = Announcer(Pace(time.monotonic))
    assert announcer._is_new(b"one", b"x")
    assert announcer._is_new(b"two", b"x")
    assert not announcer._is_new(b"one", b"x")
    assert announcer._is_new(b"three", b"x")
    assert not announcer._is_new(b"one", b"x"), "who spoke last is remembered"
    assert announcer._is_new(b"two", b"x")


async def test_empty_streams_are_taken_no_faster_than_messages(opened, rogue, monkeypatch):
    monkeypatch.setattr(announce, "BURST", 5.0)
    node, cheat = await opened(1), await rogue(2)
    node.set_members([cheat.node_id])
    connection = await cheat.dial(node)
    for _ in range(50):
        await (await connection.open_uni()).finish()
    await until(lambda: node.stats().throttled > 0)


async def test_requests_are_answered_no_faster_than_allowed(opened, rogue, monkeypatch):
    monkeypatch.setattr(requests, "RATE", 50.0)
    monkeypatch.setattr(requests, "BURST", 5.0)
    node, cheat = await opened(1), await rogue(2)
    node.set_members([cheat.node_id])
    connection = await cheat.dial(node)
    began = time.monotonic()
    streams = [await connection.open_bi() for _ in range(30)]
    for stream in streams:
        await stream.send().write_all(frame_of(BlobRequest(bytes(32), 0, 1)))
    for stream in streams:
        assert (await read_message(stream.recv(), Reply)).status == Status.MISSING
    assert time.monotonic() - began >= 25 / 50 * 0.9
    assert node.stats().throttled > 0


async def test_who_breaks_the_protocol_again_and_again_is_spoken_of_once(opened, rogue, monkeypatch, caplog):
    monkeypatch.setattr(links, "BARRED_S", 0.0)
    node, cheat = await opened(1), await rogue(2)
    node.set_members([cheat.node_id])
    for times in (1, 2, 3):
        connection = await cheat.dial(node)
        await (await connection.open_bi()).send().write_all(b"\xff\xff\xff\xff")
        await until(lambda times=times: node.stats().violations == times)
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(told) == 1
    assert "broke the protocol: a frame of 4294967295 bytes" in told[0]


async def test_a_member_that_connects_again_and_again_is_refused_after_a_while(opened, rogue, monkeypatch):
    monkeypatch.setattr(links, "ARRIVALS_RATE", 1e-3)
    monkeypatch.setattr(links, "ARRIVALS_BURST", 3.0)
    node, cheat = await opened(1), await rogue(2)
    node.set_members([cheat.node_id])
    for _ in range(3):
        await cheat.dial(node)
    with pytest.raises(PeerUnreachable, match="connecting too often"):
        await cheat.dial(node)
    assert node.stats().refused == 1
