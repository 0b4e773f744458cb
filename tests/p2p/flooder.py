"""Members that flood another one, in their own process, each with its own endpoint.

Arguments: the victim's address as HOST:PORT, its seed, a function below that floods, and the
flooders' seeds (comma separated). It prints "flooding" once all flood, and runs until it is killed.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import iroh
from iroh import iroh_ffi

from aftermath.p2p import fast_ffi

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aftermath.p2p.peer_connection import greet
from aftermath.p2p.transport import MAX_ANNOUNCEMENT
from aftermath.p2p.wire import ALPN, BlobRequest, CallRequest, frame, frame_of
from p2p.nodes import ECHOED, LARGE_BLOB, Rogue, identity

AT_A_TIME = 40
"""Streams that a flooder tries to have open: more than are served, and than QUIC allows after the
first.
"""


class Flooder:
    """One endpoint, and the connection to the victim if it has one."""

    def __init__(self, endpoint: iroh.Endpoint, victim: iroh.EndpointAddr) -> None:
        self.endpoint = endpoint
        self.victim = victim
        self._connection: iroh.Connection | None = None

    async def connect(self) -> iroh.Connection:
        return await self.endpoint.connect(self.victim, ALPN)

    async def greeted(self) -> iroh.Connection:
        """Yield a connection that greeted like a correct peer, as long as it lasts."""
        if self._connection is None or self._connection.close_reason() is not None:
            self._connection = connection = await self.connect()
            await greet(connection, os.urandom(16))
        return self._connection

    async def several(self, work: Callable[[iroh.Connection], Awaitable[None]]) -> None:
        """Repeat an action forever, many at once, on one connection, whatever happens to it."""

        async def again() -> None:
            while True:
                try:
                    await work(await self.greeted())
                except Exception:
                    await asyncio.sleep(0.2)

        with contextlib.suppress(Exception):
            await self.greeted()
        await asyncio.gather(*(again() for _ in range(AT_A_TIME)))


async def connections(one: Flooder) -> None:
    """Open connections as fast as possible, and keep them silent."""
    links = []

    async def again() -> None:
        while True:
            try:
                async with asyncio.timeout(5):
                    links.append(await one.connect())
            except Exception:
                await asyncio.sleep(0.01)
            del links[:-250]

    await asyncio.gather(*(again() for _ in range(AT_A_TIME)))


async def ungreeted(one: Flooder) -> None:
    """Connect and fill all available streams without ever greeting."""

    async def pour(connection: iroh.Connection, both_ways: bool) -> None:
        with contextlib.suppress(iroh.IrohError):
            stream = (
                (await connection.open_bi()).send() if both_ways else await connection.open_uni()
            )
            while True:
                await stream.write_all(bytes(1 << 16))

    while True:
        with contextlib.suppress(iroh.IrohError, TimeoutError):
            async with asyncio.timeout(5):
                connection = await one.connect()
                greeting = await connection.open_bi()
                await greeting.send().write_all(b"\0\0")
                await asyncio.gather(
                    *(pour(connection, both) for both in (True, False) for _ in range(100))
                )
        await asyncio.sleep(0.05)


async def half_open(one: Flooder) -> None:
    """Begin requests and never finish them."""

    async def begin(connection: iroh.Connection) -> None:
        stream = await connection.open_bi()
        await stream.send().write_all(b"\0\0")
        await stream.recv().read(1)

    await one.several(begin)


async def resets(one: Flooder) -> None:
    """Begin requests and reset them."""

    async def begin(connection: iroh.Connection) -> None:
        stream = await connection.open_bi()
        await stream.send().write_all(b"\0\0")
        await stream.send().reset(0)
        await stream.recv().stop(0)

    await one.several(begin)


async def requests(one: Flooder) -> None:
    """Send requests that are cheap to answer."""

    async def ask(connection: iroh.Connection) -> None:
        stream = await connection.open_bi()
        await stream.send().write_all(
            frame_of(CallRequest("echo", ECHOED, 100, 10_000)) + bytes(ECHOED)
        )
        await stream.send().finish()
        await stream.recv().read_to_end(1000)

    await one.several(ask)


async def announcements(one: Flooder) -> None:
    """Send announcements of the maximum size, each one different."""
    while True:
        with contextlib.suppress(Exception):
            stream = await (await one.greeted()).open_uni()
            while True:
                await stream.write_all(frame(os.urandom(MAX_ANNOUNCEMENT)))
        await asyncio.sleep(0.2)


async def unread_blobs(one: Flooder) -> None:
    """Request large blobs, and read none of them."""

    async def ask(connection: iroh.Connection) -> None:
        stream = await connection.open_bi()
        await stream.send().write_all(frame_of(BlobRequest(bytes(32), 0, LARGE_BLOB)))
        await asyncio.sleep(3600)

    await one.several(ask)


async def frozen(one: Flooder) -> None:
    """Request large blobs, then stop acknowledging."""
    connection = await one.greeted()
    streams = [await connection.open_bi() for _ in range(AT_A_TIME)]
    for stream in streams:
        await stream.send().write_all(frame_of(BlobRequest(bytes(32), 0, LARGE_BLOB)))
    await asyncio.sleep(1)
    os.kill(os.getpid(), signal.SIGSTOP)


async def unread_answers(one: Flooder) -> None:
    """Send requests with large answers, and read none of the answers."""

    async def ask(connection: iroh.Connection) -> None:
        stream = await connection.open_bi()
        await stream.send().write_all(frame_of(CallRequest("large", 0, 1 << 30, 60_000)))
        await stream.send().finish()
        await asyncio.sleep(3600)

    await one.several(ask)


async def main(address: str, victim: int, how: str, seeds: list[int]) -> None:
    fast_ffi.install(iroh_ffi)
    flood: Callable[[Flooder], Awaitable[None]] = globals()[how]
    where = iroh.EndpointAddr(iroh.EndpointId.from_bytes(identity(victim)), None, [address])
    flooders = [Flooder((await Rogue.open(seed, "127.0.0.2")).endpoint, where) for seed in seeds]
    print("flooding", flush=True)
    await asyncio.gather(*map(flood, flooders))


if __name__ == "__main__":
    place, of, kind, own = sys.argv[1:]
    asyncio.run(main(place, int(of), kind, [int(one) for one in own.split(",")]))
