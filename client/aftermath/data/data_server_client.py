"""The sequences of a data server (`data_server`), over one connection.

The server's description must match the run and must not change. The client checks tokens against
the vocabulary, because the server does not know the model.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence

import numpy as np

from aftermath.base.allowed_locations import Permits, any_address, connected
from aftermath.base.bounded import Malformed
from aftermath.data import PORT
from aftermath.data.messages import (
    LENGTH_BYTES,
    MAX_DESCRIPTION_BYTES,
    MAX_SEQUENCES,
    DescribeRequest,
    Description,
    ErrorReply,
    ReadRequest,
    Reply,
    Request,
    TokensReply,
    decode_reply,
    encode_message,
)
from aftermath.data.source import (
    SLOWEST,
    DataError,
    FileRecord,
    Sequences,
    SourceUnavailable,
    check_sequences,
    check_shape,
)

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@\s]+)(?::(\d{1,5}))?")


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of a data server's address. Raise DataError for an invalid one."""
    match = _ADDRESS.fullmatch(address)
    host = match[1].strip("[]") if match is not None else ""
    try:
        # as the resolver does, with an error for a label that is empty or too long
        host.encode("idna")
    except UnicodeError:
        match = None
    if match is None or int(match[2] or PORT) > 65535:
        raise DataError(f"{address!r} is not a valid address of a data server", "Write HOST:PORT")
    return host, int(match[2] or PORT)


# A broken connection is replaced once before the server counts as unavailable. A reply has one
# deadline, by its length, so that a server cannot send it byte by byte.
class RemoteTokens:
    """The sequences of the server at `address` (HOST:PORT), for a model with this vocabulary."""

    def __init__(
        self,
        address: str,
        seq_len: int,
        vocab_size: int,
        *,
        timeout: float = 20.0,
        permits: Permits = any_address,
    ) -> None:
        """Connect, if `permits` allows the IP address.

        Raise SourceUnavailable, DataError or Unsuitable.
        """
        self._permits = permits
        self._address = address
        self._where = host_and_port(address)
        self._timeout = timeout
        self._vocab_size = vocab_size
        self._socket: socket.socket | None = None
        self._description = self._describe()
        check_shape(self._description.token_bytes, self._description.seq_len)
        if self._description.seq_len != seq_len:
            raise DataError(
                f"the data server {address} serves sequences of {self._description.seq_len} tokens, but "
                f"the run expects {seq_len}",
                "Set seq_len in its data.toml to the run's max_seq_len",
            )
        if self._description.sequences < 1:
            raise DataError(f"the data server {address} has no sequences")

    @property
    def sequences(self) -> int:
        """Sequences of one pass."""
        return self._description.sequences

    @property
    def seq_len(self) -> int:
        """Tokens per sequence."""
        return self._description.seq_len

    def read(self, indices: Sequence[int]) -> Sequences:
        """Return tokens [n, seq_len]. Raise SourceUnavailable or DataError."""
        check_sequences(indices)
        parts = [indices[at : at + MAX_SEQUENCES] for at in range(0, len(indices), MAX_SEQUENCES)]
        raw = b"".join(self._read_part(part) for part in parts)
        out = (
            np.frombuffer(raw, f"<u{self._description.token_bytes}")
            .astype(np.int64)
            .reshape(len(indices), self.seq_len)
        )
        if len(out) and out.max() >= self._vocab_size:
            raise DataError(
                f"the data server {self._address} sent token {out.max()}, which is outside the vocabulary of "
                f"{self._vocab_size}",
                "Tokenise its data with the model's tokenizer.json, and check its token_size",
            )
        return out

    def record(self) -> tuple[FileRecord, ...]:
        """Return the records of the files, as the server states them."""
        return tuple(self._description.records)

    def _read_part(self, indices: Sequence[int]) -> bytes:
        size = len(indices) * self.seq_len * self._description.token_bytes
        reply = self._request(ReadRequest(list(indices)), max(size + 64, MAX_DESCRIPTION_BYTES))
        if not isinstance(reply, TokensReply) or len(reply.data) != size:
            raise self._invalid("a reply of the wrong length")
        return reply.data

    def _describe(self) -> Description:
        reply = self._exchange(DescribeRequest(), MAX_DESCRIPTION_BYTES)
        if not isinstance(reply, Description):
            raise self._invalid("a reply other than its description")
        return reply

    def _request(self, message: Request, most: int) -> Reply:
        """Send a request. If the connection broke, open another and check that the description is
        equal.
        """
        if self._socket is not None:
            try:
                return self._exchange(message, most)
            except SourceUnavailable:
                pass
        if self._describe() != self._description:
            raise DataError(
                f"the data server {self._address} now serves other data than before",
                "Ask its operator to restore the files",
            )
        return self._exchange(message, most)

    def _exchange(self, message: Request, most: int) -> Reply:
        try:
            if self._socket is None:
                self._socket = connected(*self._where, self._timeout, self._permits)
            self._socket.settimeout(self._timeout)
            self._socket.sendall(encode_message(message))
            length = int.from_bytes(self._exactly(LENGTH_BYTES), "big")
            if length > most:
                raise self._invalid(f"a reply of {length} bytes")
            reply = decode_reply(self._exactly(length))
        except (OSError, EOFError) as error:
            self._close()
            why = getattr(error, "strerror", None) or str(error) or "no reply in time"
            raise SourceUnavailable(
                f"cannot reach the data server {self._address}: {why}",
                "Start it, or ask the run's owner to start it: aftermath-solana data serve --config data.toml",
            ) from None
        except Malformed as error:
            raise self._invalid(f"an invalid message: {error}") from None
        if isinstance(reply, ErrorReply):
            self._close()
            raise SourceUnavailable(
                f"the data server {self._address} refused the request: {reply.why[:200]}"
            )
        return reply

    def _exactly(self, length: int) -> bytes:
        assert self._socket is not None
        received = bytearray()
        deadline = time.monotonic() + self._timeout + length / SLOWEST
        while len(received) < length:
            if (missing := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            self._socket.settimeout(min(missing, self._timeout))
            if not (chunk := self._socket.recv(min(length - len(received), 1 << 20))):
                raise EOFError("it closed the connection")
            received += chunk
        return bytes(received)

    def _invalid(self, problem: str) -> DataError:
        self._close()
        return DataError(
            f"the data server {self._address} sent {problem}", "Check that it is a data server"
        )

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
