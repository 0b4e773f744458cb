"""The data server: it serves sequences of local token files over TCP.

`data.toml` sets the folder, the token size, the sequence length and the seed of the order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from aftermath.base.bounded import Malformed, toml_value
from aftermath.base.concurrency import ThreadWorker, Worker, cancel
from aftermath.base.rate_limit import busiest_address, peer_network
from aftermath.data.local import open_tokens
from aftermath.data.messages import (
    LENGTH_BYTES,
    MAX_REQUEST_BYTES,
    DescribeRequest,
    Description,
    ErrorReply,
    Reply,
    TokensReply,
    decode_request,
    encode_message,
)
from aftermath.data.source import DataError
from aftermath.data.tokens import TokenFiles

# Above this number, the address with the most clients loses an idle one, which can reconnect.
MAX_CLIENTS = 256
"""Maximum number of clients. Twice as many may connect while all of them wait for replies."""
MAX_UNREAD_BYTES = 256 << 20
"""Bytes of replies that clients have not received. One reply may be larger."""
_IDLE = 300.0  # seconds without a request
_STALLED = 60.0  # seconds in which a client must receive a reply
_log = logging.getLogger(__name__)
_Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]
T = TypeVar("T")

FRESH_SECONDS = 1.0
"""Seconds in which a client may send its next request before it can lose its slot."""


@dataclass(eq=False)
class DataClient:
    """One connection, served by `task`, from `address`."""

    task: asyncio.Task[None]
    address: str
    awaits_reply: bool = False
    """Whether the client waits for a reply."""
    unread: int = 0
    """Bytes of the reply that is being sent."""
    last_request: float = 0.0
    """The time of its connection or last request, in seconds."""


class ClientSlots:
    """The connected clients: at most `slots`, and twice as many while all of them wait.

    A client that waits for a reply keeps its slot while another client of its address is idle.
    Otherwise a client that opens connections quickly would disconnect waiting members.
    `max_unread`: bytes of unreceived replies of all clients together; one reply may be larger.
    `clock` returns seconds.
    """

    def __init__(self, slots: int, max_unread: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slots = slots
        self._max_unread = max_unread
        self._clients: dict[DataClient, None] = {}
        """Clients in the order of their last request. The values are unused."""

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks that serve the clients."""
        return [client.task for client in self._clients]

    def enter(self, client: DataClient) -> bool:
        """Add a client. Return False if its own address fills all slots with waiting clients."""
        client.last_request = self._clock()
        self._shrink(self._slots - 1, FRESH_SECONDS)
        self._shrink(2 * self._slots - 1, 0.0)
        if (
            len(self._clients) >= 2 * self._slots
        ):  # all clients of the busiest address wait for replies
            most = busiest_address(other.address for other in self._clients)
            if most == client.address:
                return False
            self._cut(next(other for other in reversed(self._clients) if other.address == most))
        self._clients[client] = None
        return True

    def request_received(self, client: DataClient) -> None:
        """Record a request: the client now waits for a reply."""
        client.awaits_reply = True
        client.last_request = self._clock()
        self._clients[client] = self._clients.pop(client, None)

    def reply_started(self, client: DataClient, size: int) -> None:
        """Record that a reply of `size` bytes is being sent. Disconnect slow clients to
        make room.
        """
        client.awaits_reply = False
        while (
            unread := Counter({other: other.unread for other in self._clients if other.unread})
        ) and (unread.total() + size > self._max_unread):
            by_address: Counter[str] = Counter()
            for other, bytes_ in unread.items():
                by_address[other.address] += bytes_
            most = by_address.most_common(1)[0][0]
            self._cut(next(other for other in unread if other.address == most))
        client.unread = size

    def reply_sent(self, client: DataClient) -> None:
        """Record that the client received its whole reply."""
        client.unread = 0
        self._shrink(self._slots, FRESH_SECONDS)

    def leave(self, client: DataClient) -> None:
        """Remove a client whose connection closed."""
        self._clients.pop(client, None)

    def _shrink(self, most: int, fresh: float) -> None:
        """Disconnect idle clients of the busiest address until at most `most` remain.

        A client that connected or sent a request less than `fresh` seconds ago stays.
        """
        while len(self._clients) > most:
            crowded = busiest_address(other.address for other in self._clients)
            oldest = next(
                (
                    other
                    for other in self._clients
                    if other.address == crowded and not other.awaits_reply
                ),
                None,
            )
            if oldest is None or self._clock() - oldest.last_request < fresh:
                return
            self._cut(oldest)

    def _cut(self, client: DataClient) -> None:
        del self._clients[client]
        client.task.cancel()


class ReadTurns:
    """Runs one read at a time. Addresses take turns: many requests of one delay another by one
    read.
    """

    def __init__(self, read: Worker) -> None:
        self._read = read
        self._busy = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def __call__(self, address: str, function: Callable[[], T]) -> T:
        """Return the result of `function`, called when it is the turn of `address`."""
        if self._busy:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(address, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # the turn was granted before the cancellation
                    self._next()
                raise
        self._busy = True
        try:
            return await self._read(function)
        finally:
            self._next()

    def _next(self) -> None:
        while self._waiting:
            address, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[address] = turns  # the address goes behind the others
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False


# Files are read on one thread, never on the event loop, and addresses take turns. An invalid
# request gets an error, and its connection is closed.
class DataServerSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The settings in `data.toml`."""

    dir: str
    """Folder of token files, or one of them. A relative path starts at this file's folder."""
    seq_len: int
    token_size: Literal["TwoBytes", "FourBytes"] = "TwoBytes"
    shuffle_seed: Annotated[list[_Byte], msgspec.Meta(min_length=32, max_length=32)] | None = None

    @property
    def token_bytes(self) -> int:
        """Return the bytes per token."""
        return 2 if self.token_size == "TwoBytes" else 4


def load_server_settings(path: Path) -> DataServerSettings:
    """Return the settings in a file. Raise DataError with file and key."""
    try:
        tables: dict[str, Any] = toml_value(path.read_text(encoding="utf-8-sig"))
        settings = msgspec.convert(tables, DataServerSettings)
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}", "Pass --config data.toml"
        ) from None
    except (Malformed, UnicodeDecodeError, msgspec.ValidationError) as error:
        keys = "dir, seq_len, token_size (TwoBytes or FourBytes) and shuffle_seed (32 numbers from 0 to 255)"
        raise DataError(f"{path}: {error}", f"Use the keys {keys}") from None
    folder = (path.absolute().parent / Path(settings.dir).expanduser()).resolve()
    return msgspec.structs.replace(settings, dir=str(folder))


def open_served_files(settings: DataServerSettings) -> TokenFiles:
    """Return the sequences that the settings name. Raise DataError."""
    seed = bytes(settings.shuffle_seed) if settings.shuffle_seed else None
    largest = 1 << 8 * settings.token_bytes  # clients check against the vocabulary
    return open_tokens(
        settings.dir, settings.token_bytes, settings.seq_len, vocab_size=largest, shuffle_seed=seed
    )


class DataServer:
    """A server of one set of sequences."""

    def __init__(self, source: TokenFiles, token_bytes: int) -> None:
        self._source = source
        self._token_bytes = token_bytes
        self._slots = ClientSlots(MAX_CLIENTS, MAX_UNREAD_BYTES, time.monotonic)
        self._read = ReadTurns(ThreadWorker("data"))
        self._description: Description | None = None

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Listen until the block ends, and yield the port. Raise DataError if the port is
        not free.
        """
        try:
            server = await asyncio.start_server(
                self._serve_client, host, port, limit=MAX_REQUEST_BYTES
            )
        except OSError as error:
            raise DataError(
                f"cannot listen at {host}:{port}: {error.strerror}", "Choose another --port"
            ) from None
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            await cancel(self._slots.tasks)

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the requests of one connection until it closes."""
        task = asyncio.current_task()
        assert task is not None
        # drain() returns when the client received everything
        writer.transport.set_write_buffer_limits(0)
        client = DataClient(task, peer_network(writer.transport))
        try:
            if not self._slots.enter(client):
                return
            while (body := await self._message(reader)) is not None:
                self._slots.request_received(client)
                await self._send(
                    client, writer, encode_message(await self._reply(client.address, body))
                )
        except Malformed as error:
            with contextlib.suppress(OSError, TimeoutError):
                await self._send(client, writer, encode_message(ErrorReply(str(error))))
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # a client that disconnected may connect again
        finally:
            self._slots.leave(client)
            writer.transport.abort()  # `close` would wait forever for a client that reads nothing

    async def _message(self, reader: asyncio.StreamReader) -> bytes | None:
        async with asyncio.timeout(_IDLE):
            try:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
            except asyncio.IncompleteReadError:
                return None
            if length > MAX_REQUEST_BYTES:
                raise Malformed(f"a request of {length} bytes is longer than {MAX_REQUEST_BYTES}")
            return await reader.readexactly(length)

    async def _reply(self, address: str, body: bytes) -> Reply:
        message = decode_request(body)
        try:
            if isinstance(message, DescribeRequest):
                if self._description is None:
                    self._description = await self._read(address, self._describe)
                return self._description
            rows = await self._read(address, lambda: self._source.read(message.indices))
        except DataError as error:
            _log.warning("%s", error.message)
            return ErrorReply("the server cannot read its files")
        return TokensReply(rows.astype(f"<u{self._token_bytes}").tobytes())

    def _describe(self) -> Description:
        records = list(self._source.record())
        return Description(self._token_bytes, self._source.seq_len, self._source.sequences, records)

    async def _send(self, client: DataClient, writer: asyncio.StreamWriter, message: bytes) -> None:
        self._slots.reply_started(client, len(message))
        try:
            async with asyncio.timeout(_STALLED):
                writer.write(message)
                del message  # the transport has copied what it could not send at once
                await writer.drain()
        finally:
            self._slots.reply_sent(client)
