"""Test floods by real peers of a member in its own process: its memory, its CPU time, and service
to others.

The cost of a message is compared with that of an honest message in the same process, so that no
machine is too slow for these tests.
"""

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import iroh
import psutil
import pytest

from aftermath.p2p import (
    announce,
    blobs,
    incoming_connections,
    limits,
    peer_connection,
)
from aftermath.p2p.discovery import LocalDirectory
from aftermath.p2p.iroh import IrohTransport
from aftermath.p2p.peer_connection import greet
from aftermath.p2p.transport import MAX_ANNOUNCEMENT, MAX_REQUEST, PeerUnreachable
from aftermath.p2p.wire import ALPN
from p2p.nodes import (
    ECHOED,
    LARGE_ANSWER,
    LARGE_BLOB,
    QUIC_SENDS,
    QUIC_STREAMS,
    QUIC_WINDOW,
    Rogue,
    identity,
    until,
)

VICTIM = 1
HONEST = 2
NEWCOMER = 9
ONE = (3,)
SEVERAL = (3, 4, 5)
FLOOD_S = 2.0
AGAIN_S = 1.0
POLL_S = 0.1
TRIES = 3
TRY_S = 10.0
NEWCOMER_TRIES = 200
COSTLIER = 2.0
"""How many times the processor time of an honest message one of a flood may cost: it does cost
about as much.
"""
NOISE = 0.02
"""The share of the processor by which two seconds without a flood may differ."""
SLACK = 16 << 20
"""Bytes that the interpreter, its allocator and QUIC take for whatever is done."""
REMEMBERED_BYTES = 256
"""The bytes of one remembered announcement: its hash, and its place in a table."""

Figures = dict[str, float]


@dataclass
class Victim:
    """The flooded member, the honest member that we are, and the victim's address."""

    process: asyncio.subprocess.Process
    place: str
    honest: IrohTransport
    folder: Path
    cost: dict[str, float] = field(default_factory=dict)
    """Seconds of processor time: of an honest request, announcement and connection, of a second
    without any, and of saying what it takes.
    """

    async def figures(self) -> Figures:
        """Return its current usage."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        figures: Figures = json.loads(await _line(self.process))
        return figures

    async def ask(self) -> int:
        """Send a request as an honest member does.

        Return how many tries it took to get an answer.
        """
        for number in range(1, TRIES + 1):
            with contextlib.suppress(PeerUnreachable):
                body = os.urandom(ECHOED)
                assert (
                    await self.honest.request(identity(VICTIM), "echo", body, ECHOED, TRY_S) == body
                )
                return number
        raise AssertionError(f"no answer after {TRIES} tries")

    async def learn_costs(self) -> None:
        """Measure what honest members cost the victim."""
        began = await self.figures()
        await asyncio.sleep(1)
        idle = await self.figures()
        for _ in range(50):
            looked = await self.figures()
        for _ in range(200):
            await self.ask()
        after_requests = await self.figures()
        count = int(limits.ANNOUNCEMENT_BURST)
        for number in range(count):
            await self.honest.announce(number.to_bytes(4, "big") + os.urandom(MAX_ANNOUNCEMENT - 4))
            await asyncio.sleep(0.01)
        while (after_announcements := await self.figures())["heard"] < count:
            await asyncio.sleep(0.02)
        newcomer = await Rogue.open(NEWCOMER)
        for _ in range(5):
            await self.connect(newcomer)
        met = await self.figures()
        await newcomer.close()
        self.cost = {
            "second": idle["cpu"] - began["cpu"],
            "look": (looked["cpu"] - idle["cpu"]) / 50,
            "request": (after_requests["cpu"] - looked["cpu"]) / 200,
            "announcement": (after_announcements["cpu"] - after_requests["cpu"]) / count,
            "connection": (met["cpu"] - after_announcements["cpu"]) / 5,
        }

    async def connect(self, newcomer: Rogue) -> iroh.Connection:
        """Connect as an honest member that the victim cannot dial.

        Raise IrohError or PeerUnreachable if refused.
        """
        where = iroh.EndpointAddr(iroh.EndpointId.from_bytes(identity(VICTIM)), None, [self.place])
        connection = await newcomer.endpoint.connect(where, ALPN)
        await greet(connection, os.urandom(16))
        return connection

    @contextlib.asynccontextmanager
    async def flooded(self, how: str, seeds: tuple[int, ...]) -> AsyncIterator[None]:
        """Let these members flood it from another address during the block."""
        command = [
            Path(__file__).with_name("flooder.py"),
            self.place,
            VICTIM,
            how,
            ",".join(map(str, seeds)),
        ]
        flooder = await _started(command)
        try:
            assert await _line(flooder) == "flooding"
            yield
        finally:
            flooder.kill()
            await flooder.wait()

    async def all_freed(self, before: Figures) -> None:
        """Wait until the victim has freed everything that a flood took."""
        async with asyncio.timeout(60):
            while True:
                now = await self.figures()
                if now["links"] <= before["links"] and now["tasks"] <= before["tasks"] + 2:
                    return
                await asyncio.sleep(0.5)


async def _started(command: list[object]) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, *map(str, command), stdin=pipe, stdout=pipe
    )


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()


@pytest.fixture(scope="module")
def costs() -> dict[str, float]:
    """Return what honest members cost a victim.

    It is measured once, because all victims are alike.
    """
    return {}


@pytest.fixture
async def victim(opened, costs: dict[str, float], tmp_path: Path) -> AsyncIterator[Victim]:
    folder = tmp_path / "run"
    members = ",".join(map(str, (HONEST, *SEVERAL, NEWCOMER)))
    process = await _started([Path(__file__).with_name("flood_victim.py"), folder, VICTIM, members])
    try:
        assert await _line(process) == "ready"
        honest = await opened(HONEST)
        honest.set_members([identity(VICTIM)])
        await until(lambda: bool(honest.reachable()))
        entry = LocalDirectory(folder, honest.node_id).read(identity(VICTIM))
        assert entry is not None
        one = Victim(process, entry.addresses[0], honest, folder)
        if not costs:
            await one.learn_costs()
            costs |= one.cost
        one.cost = costs
        yield one
    finally:
        process.kill()
        await process.wait()


MEMORY = {
    "connections": lambda peers: (
        incoming_connections.MAX_HANDSHAKES * peer_connection.MOST_BEFORE_GREETING
    ),
    "ungreeted": lambda peers: peers * QUIC_STREAMS * QUIC_WINDOW // 8,
    "half_open": lambda peers: peers * peer_connection.STREAMS_SERVED * MAX_REQUEST,
    "resets": lambda peers: peers * peer_connection.STREAMS_SERVED * MAX_REQUEST,
    "requests": lambda peers: peers * peer_connection.STREAMS_SERVED * MAX_REQUEST,
    "announcements": lambda peers: peers * (announce.REMEMBERED * REMEMBERED_BYTES + QUIC_WINDOW),
    "unread_blobs": lambda peers: (
        peers * (peer_connection.STREAMS_SERVED * 2 * blobs.PIECE + QUIC_SENDS)
    ),
    "unread_answers": lambda peers: (
        peers * (peer_connection.STREAMS_SERVED * 2 * LARGE_ANSWER + QUIC_SENDS)
    ),
}
"""Bytes that a flood by that many peers may take, without the slack, by kind."""


ALONE = ("connections", "requests", "unread_blobs")

# Nightly: under load the second flood once took 228 MB where 216 are allowed, possibly because
# connections of the first flood still held their buffers. The cause is not proven.
# What peers pour into streams before they are cut off for not greeting costs processor time too. An
# honest newcomer's connection brings nothing of the kind, so under load this time once exceeded
# what `_check_cost` allows. The test with a newcomer below has that flood in slow.
UNSTEADY = ("unread_blobs", "ungreeted")


@pytest.mark.parametrize(
    ("how", "seeds"),
    [
        pytest.param(
            how,
            SEVERAL,
            id=f"{how}-several",
            marks=pytest.mark.nightly if how in UNSTEADY else pytest.mark.slow,
        )
        for how in MEMORY
    ]
    + [pytest.param(how, ONE, id=f"{how}-one", marks=pytest.mark.nightly) for how in ALONE],
)
async def test_flood_is_bounded_and_others_are_answered(
    victim: Victim, how: str, seeds: tuple[int, ...]
) -> None:
    before = await victim.figures()
    peaks = []
    requests = 0
    for lasts in (FLOOD_S, AGAIN_S):
        async with victim.flooded(how, seeds):
            began = time.monotonic()
            start = await victim.figures()
            peak = 0.0
            asks = 0
            while time.monotonic() - began < lasts:
                assert await victim.ask() <= TRIES
                asks += 1
                await asyncio.sleep(POLL_S)
                now = await victim.figures()
                peak = max(peak, now["memory"])
            seconds = time.monotonic() - began
        _check_cost(
            how,
            len(seeds),
            {name: now[name] - start[name] for name in now},
            asks,
            seconds,
            victim.cost,
        )
        peaks.append(peak)
        requests += asks
        await victim.all_freed(before)
    assert requests > 0
    most = before["memory"] + MEMORY[how](len(seeds)) + SLACK
    assert max(peaks) <= most, "the second flood takes no more than the first may"


def _check_cost(
    how: str, peers: int, did: Figures, asks: int, seconds: float, cost: dict[str, float]
) -> None:
    """Check that the work stayed within the peers' quotas, at the cost of honest messages."""
    streams = _most(peers, limits.REQUEST_BURST, limits.REQUEST_RATE, seconds)
    looked_at = _most(
        1, incoming_connections.LOOKED_AT_BURST, incoming_connections.LOOKED_AT_RATE, seconds
    )
    assert did["heard"] <= _most(
        peers, limits.ANNOUNCEMENT_BURST, limits.ANNOUNCEMENT_RATE, seconds
    )
    assert did["answered"] - asks <= streams
    assert did["looked_at"] <= looked_at + _most(
        1, incoming_connections.DROP_BURST, incoming_connections.DROP_RATE, seconds
    )
    if how == "requests":
        streams = did["answered"] - asks
    elif how not in ("half_open", "resets", "unread_blobs", "unread_answers"):
        streams = 0
    own = did["cpu"] - seconds * cost["second"] - asks * (cost["request"] + cost["look"])
    expected = (
        streams * cost["request"]
        + did["heard"] * cost["announcement"]
        + did["looked_at"] * cost["connection"]
    )
    assert own <= COSTLIER * expected + NOISE * seconds


def _most(peers: int, burst: float, rate: float, seconds: float) -> float:
    return peers * (burst + rate * (seconds + 1))


@pytest.mark.slow
async def test_unacknowledged_bytes_match_our_bound(opened, monkeypatch):
    """A peer's process is stopped. QUIC keeps this many sent bytes until the node notices."""
    monkeypatch.setattr(blobs, "LARGE_PIECES", 0)
    node = await opened(VICTIM)
    stands_still = threading.Event()

    def read(offset: int, length: int) -> bytes:
        stands_still.wait(60)
        return bytes(length)

    node.publish_source(bytes(32), LARGE_BLOB, read)
    node.set_members([identity(seed) for seed in ONE])
    command = [
        Path(__file__).with_name("flooder.py"),
        node._endpoint.bound_sockets()[0],
        VICTIM,
        "frozen",
        ONE[0],
    ]
    flooder = await _started(command)
    try:
        await until(lambda: psutil.Process(flooder.pid).status() == psutil.STATUS_STOPPED, 60)
        stands_still.set()
        await until(
            lambda: (
                node.stats().sent["blob"]
                > QUIC_SENDS - peer_connection.STREAMS_SERVED * blobs.SMALL_PIECE
            )
        )
        assert node.reachable()
        await until(lambda: not node.reachable(), 60)
        assert node.stats().sent["blob"] <= QUIC_SENDS
    finally:
        flooder.kill()
        await flooder.wait()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["connections", "ungreeted"])
async def test_newcomer_connects_during_connection_flood(victim: Victim, how: str) -> None:
    newcomer = await Rogue.open(NEWCOMER)
    async with victim.flooded(how, SEVERAL):
        await asyncio.sleep(FLOOD_S)
        for _ in range(NEWCOMER_TRIES):
            with contextlib.suppress(iroh.IrohError, PeerUnreachable, TimeoutError):
                async with asyncio.timeout(TRY_S):
                    connection = await victim.connect(newcomer)
                    break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("it was always refused")
        await asyncio.sleep(1)
        assert connection.close_reason() is None
    await newcomer.close()
