"""What a member can do to us by misbehaving: nothing that outlives its own connection, or fills a log or memory."""

import asyncio
import time

import pytest
from blake3 import blake3

from aftermath.p2p import announce, links
from aftermath.p2p.announce import Announcer
from aftermath.p2p.link import Link, close_reason
from aftermath.p2p.pace import Pace
from aftermath.p2p.transport import TransportError
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
