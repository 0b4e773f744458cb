"""The data server: sequences of this machine's token files for any client, over TCP.

Decided
- What it serves is said by `data.toml` (`served`): folder, token size, sequence length and the seed of the order.
- Files are read on one thread, never on the event loop. A client that asks for nonsense is told so and cut off.
- Clients, the time that one may take, and the answers that were not taken yet are bounded (`crowd`). Where there
  are too many, a client of the address with most makes room that is owed nothing. A client whose connection was closed
  makes a new one.
- Addresses take turns at reading, so that one with hundreds of connections does not starve the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from aftermath.base.bounded import Malformed, toml_value
from aftermath.base.concurrency import ThreadWorker, cancel
from aftermath.base.rate_limit import place
from aftermath.data.client_slots import Client, Crowd, Turns
from aftermath.data.local import open_tokens
from aftermath.data.messages import LENGTH, MOST_ASKED, Answer, Describe, Description, ErrorReply, Tokens, asked, packed
from aftermath.data.source import DataError
from aftermath.data.tokens import TokenFiles

MOST_CLIENTS = 256
"""And as many again while they all wait for answers."""
MOST_UNTAKEN = 256 << 20
"""Bytes of answers on their way; one may be larger."""
_IDLE, _STALLED = 300.0, 60.0  # seconds without a request; seconds that an answer may take to be taken
_log = logging.getLogger(__name__)
_Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]


class Settings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`data.toml`."""

    dir: str
    """Folder of token files, or one of them. A relative path starts at this file's folder."""
    seq_len: int
    token_size: Literal["TwoBytes", "FourBytes"] = "TwoBytes"
    shuffle_seed: Annotated[list[_Byte], msgspec.Meta(min_length=32, max_length=32)] | None = None

    @property
    def token_bytes(self) -> int:
        """Bytes of a token."""
        return 2 if self.token_size == "TwoBytes" else 4


def load_settings(path: Path) -> Settings:
    """The settings in a file. Raises DataError, naming file and key."""
    try:
        tables: dict[str, Any] = toml_value(path.read_text(encoding="utf-8-sig"))
        settings = msgspec.convert(tables, Settings)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", "Pass --config, a data.toml") from None
    except (Malformed, UnicodeDecodeError, msgspec.ValidationError) as error:
        keys = "dir, seq_len, token_size (TwoBytes or FourBytes) and shuffle_seed (32 numbers from 0 to 255)"
        raise DataError(f"{path}: {error}", f"Its keys are {keys}") from None
    folder = (path.absolute().parent / Path(settings.dir).expanduser()).resolve()
    return msgspec.structs.replace(settings, dir=str(folder))


def served(settings: Settings) -> TokenFiles:
    """The sequences that these settings name. Raises DataError."""
    seed = bytes(settings.shuffle_seed) if settings.shuffle_seed else None
    largest = 1 << 8 * settings.token_bytes  # whose vocabulary it is, the clients know
    return open_tokens(settings.dir, settings.token_bytes, settings.seq_len, vocab_size=largest, shuffle_seed=seed)


class DataServer:
    """Serves one set of sequences."""

    def __init__(self, source: TokenFiles, token_bytes: int) -> None:
        self._source, self._token_bytes = source, token_bytes
        self._crowd = Crowd(MOST_CLIENTS, MOST_UNTAKEN, time.monotonic)
        self._read = Turns(ThreadWorker("data"))
        self._description: Description | None = None

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Listen until the block ends; gives the port. Raises DataError if that cannot be."""
        try:
            server = await asyncio.start_server(self._client, host, port, limit=MOST_ASKED)
        except OSError as error:
            raise DataError(f"cannot listen at {host}:{port}: {error.strerror}", "Choose another --port") from None
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            await cancel(self._crowd.tasks)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        writer.transport.set_write_buffer_limits(0)  # an answer is sent when nothing of it is held here any more
        client = Client(task, place(writer.transport))
        try:
            if not self._crowd.enter(client):
                return
            while (body := await self._message(reader)) is not None:
                self._crowd.asked(client)
                await self._send(client, writer, packed(await self._answer(client.place, body)))
        except Malformed as error:
            with contextlib.suppress(OSError, TimeoutError):
                await self._send(client, writer, packed(ErrorReply(str(error))))
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # a client that left may come back
        finally:
            self._crowd.leave(client)
            writer.transport.abort()  # `close` would wait without end for a client that reads nothing

    async def _message(self, reader: asyncio.StreamReader) -> bytes | None:
        async with asyncio.timeout(_IDLE):
            try:
                length = int.from_bytes(await reader.readexactly(LENGTH), "big")
            except asyncio.IncompleteReadError:
                return None
            if length > MOST_ASKED:
                raise Malformed(f"a request of {length} bytes is longer than {MOST_ASKED}")
            return await reader.readexactly(length)

    async def _answer(self, where: str, body: bytes) -> Answer:
        message = asked(body)
        try:
            if isinstance(message, Describe):
                if self._description is None:
                    self._description = await self._read(where, self._describe)
                return self._description
            rows = await self._read(where, lambda: self._source.read(message.indices))
        except DataError as error:
            _log.warning("%s", error.message)
            return ErrorReply("the server's files cannot be read")
        return Tokens(rows.astype(f"<u{self._token_bytes}").tobytes())

    def _describe(self) -> Description:
        records = list(self._source.record())
        return Description(self._token_bytes, self._source.seq_len, self._source.sequences, records)

    async def _send(self, client: Client, writer: asyncio.StreamWriter, message: bytes) -> None:
        self._crowd.sends(client, len(message))
        try:
            async with asyncio.timeout(_STALLED):
                writer.write(message)
                del message  # there is a copy of what was not sent at once
                await writer.drain()
        finally:
            self._crowd.sent(client)
