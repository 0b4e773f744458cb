"""Helpers of the peer-to-peer tests: keys, waiting for a condition, and a rogue peer."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import iroh

from aftermath.p2p.iroh import IrohTransport
from aftermath.p2p.peer_connection import greet
from aftermath.p2p.wire import (
    ALPN,
    BlobRequest,
    Reply,
    ReplyStatus,
    Request,
    frame_of,
    read_request,
)

ECHOED = 8
"""Bytes of what a flooded member is asked to say again."""
LARGE_ANSWER = 1 << 18
LARGE_BLOB = 1 << 30
"""Bytes of what else it can be asked for."""
QUIC_STREAMS = 200
QUIC_WINDOW = 1_250_000
"""What QUIC gives a peer before we have said anything: streams, a half of each kind, and bytes
unread on each.
"""
QUIC_SENDS = 10_000_000
"""Bytes that it keeps of what we send until they are acknowledged, on each connection."""
CLOSE_S = 0.5
Answer = Callable[[Request, iroh.BiStream], Awaitable[None]]


def secret(seed: int) -> bytes:
    """Return a repeatable 32-byte secret key."""
    return hashlib.sha256(f"p2p test {seed}".encode()).digest()


def identity(seed: int) -> bytes:
    """Return the 32-byte p2p id that belongs to `secret(seed)`."""
    return bytes(iroh.SecretKey.from_bytes(secret(seed)).public().to_bytes())


def content(size: int, seed: int = 1) -> bytes:
    """Return repeatable bytes without structure."""
    return hashlib.shake_128(seed.to_bytes(8, "big")).digest(size)


def join(nodes: list[IrohTransport], *others: bytes) -> None:
    """Make all nodes, and `others`, members of each other's run."""
    for node in nodes:
        node.set_members([one.node_id for one in nodes] + list(others))


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@dataclass
class Rogue:
    """A peer with a valid key that speaks the protocol by hand, so that it can break it."""

    endpoint: iroh.Endpoint
    node_id: bytes
    connection: iroh.Connection | None = None
    requests: list[Request] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @classmethod
    async def open(cls, seed: int, host: str = "127.0.0.1") -> "Rogue":
        """Bind an endpoint on loopback."""
        options = iroh.EndpointOptions(
            preset=iroh.preset_minimal(),
            secret_key=secret(seed),
            alpns=[ALPN],
            relay_mode=iroh.RelayMode.disabled(),
            bind_addr=f"{host}:0",
        )
        return cls(await iroh.Endpoint.bind(options), identity(seed))

    async def dial(
        self, node: IrohTransport, answer: Answer | None = None, *, instance: bytes | None = None
    ) -> iroh.Connection:
        """Connect to `node` as a correct peer, newly started unless an `instance` is given.

        `answer` serves its requests. Without it, nobody answers them.
        """
        address = node._endpoint.addr()
        self.connection = await self.endpoint.connect(address, ALPN)
        await greet(self.connection, instance or os.urandom(16))
        await until(lambda: self.node_id in node.reachable())
        if answer is not None:
            self.tasks.append(asyncio.create_task(self._serve(self.connection, answer)))
        return self.connection

    async def _serve(self, connection: iroh.Connection, answer: Answer) -> None:
        while True:
            stream = await connection.accept_bi()
            self.tasks.append(asyncio.create_task(self._answer(stream, answer)))

    async def _answer(self, stream: iroh.BiStream, answer: Answer) -> None:
        request = await read_request(stream.recv())
        self.requests.append(request)
        await answer(request, stream)

    async def close(self) -> None:
        """Stop serving and unbind."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError, iroh.IrohError):
            async with asyncio.timeout(CLOSE_S):  # iroh waits for unanswered dials
                await self.endpoint.close()


def blob_of(data: bytes, *, stated: int | None = None, stop_after: int | None = None) -> Answer:
    """Answer blob requests from `data`, state the size `stated`, and end after `stop_after` bytes
    of a range.
    """

    async def answer(request: Request, stream: iroh.BiStream) -> None:
        assert isinstance(request, BlobRequest)
        await stream.send().write_all(
            frame_of(Reply(ReplyStatus.OK, len(data) if stated is None else stated))
        )
        await stream.send().write_all(
            data[request.offset : request.offset + request.length][:stop_after]
        )
        await stream.send().finish()

    return answer


def stalling(data: bytes, after: int) -> Answer:
    """Answer blob requests with the first `after` bytes, then send nothing and do not end."""

    async def answer(request: Request, stream: iroh.BiStream) -> None:
        assert isinstance(request, BlobRequest)
        await stream.send().write_all(frame_of(Reply(ReplyStatus.OK, len(data))))
        await stream.send().write_all(data[request.offset : request.offset + after])
        await asyncio.Event().wait()

    return answer
