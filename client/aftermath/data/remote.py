"""The sequences of a data server (`server`).

Decided
- One connection is kept; when it breaks, one new one is tried before the server counts as away.
- An answer has a time for all of it, by its length: one that comes byte by byte is given up.
- What the server describes must be what the run says, and must stay the same while it is in use.
- Tokens are checked against the vocabulary here: a server knows of no model.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence

import numpy as np

from aftermath.base.bounded import Malformed
from aftermath.base.run_access import Permits, any_address, connected
from aftermath.data import PORT
from aftermath.data.messages import (
    LENGTH,
    MOST_DESCRIBED,
    MOST_SEQUENCES,
    Answer,
    Asked,
    Describe,
    Description,
    ErrorReply,
    Read,
    Tokens,
    answered,
    packed,
)
from aftermath.data.source import SLOWEST, DataError, FileRecord, Sequences, SourceAway, check_sequences, check_shape

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@\s]+)(?::(\d{1,5}))?")


def host_and_port(address: str) -> tuple[str, int]:
    """Where a data server is. Raises DataError for what is no address of one."""
    found = _ADDRESS.fullmatch(address)
    host = found[1].strip("[]") if found is not None else ""
    try:
        host.encode("idna")  # as the resolver does: it has no word for a label that is empty or too long
    except UnicodeError:
        found = None
    if found is None or int(found[2] or PORT) > 65535:
        raise DataError(f"{address!r} is no address of a data server", "Write HOST:PORT")
    return host, int(found[2] or PORT)


class RemoteTokens:
    """What a server at `address` (HOST:PORT) serves, for a model with this vocabulary."""

    def __init__(
        self, address: str, seq_len: int, vocab_size: int, *, timeout: float = 20.0, permits: Permits = any_address
    ) -> None:
        """`permits` says which IP addresses may be connected to. Raises SourceAway, DataError, Unsuitable."""
        self._permits = permits
        self._address, self._where = address, host_and_port(address)
        self._timeout, self._vocab_size = timeout, vocab_size
        self._socket: socket.socket | None = None
        self._serves = self._describe()
        check_shape(self._serves.token_bytes, self._serves.seq_len)
        if self._serves.seq_len != seq_len:
            raise DataError(
                f"the data server {address} serves sequences of {self._serves.seq_len} tokens, and the run's have "
                f"{seq_len}",
                "Set seq_len in its data.toml to the run's max_seq_len",
            )
        if self._serves.sequences < 1:
            raise DataError(f"the data server {address} serves no sequences")

    @property
    def sequences(self) -> int:
        """Sequences of one pass."""
        return self._serves.sequences

    @property
    def seq_len(self) -> int:
        """Tokens of each."""
        return self._serves.seq_len

    def read(self, indices: Sequence[int]) -> Sequences:
        """Tokens [n, seq_len]. Raises SourceAway, DataError."""
        check_sequences(indices)
        parts = [indices[at : at + MOST_SEQUENCES] for at in range(0, len(indices), MOST_SEQUENCES)]
        raw = b"".join(self._part(part) for part in parts)
        out = np.frombuffer(raw, f"<u{self._serves.token_bytes}").astype(np.int64).reshape(len(indices), self.seq_len)
        if len(out) and out.max() >= self._vocab_size:
            raise DataError(
                f"the data server {self._address} sent a token {out.max()}, outside the vocabulary of "
                f"{self._vocab_size}",
                "Tokenise its data with the model's own tokenizer.json, and check its token_size",
            )
        return out

    def record(self) -> tuple[FileRecord, ...]:
        """What the server says marks its files."""
        return tuple(self._serves.records)

    def _part(self, indices: Sequence[int]) -> bytes:
        size = len(indices) * self.seq_len * self._serves.token_bytes
        answer = self._ask(Read(list(indices)), max(size + 64, MOST_DESCRIBED))
        if not isinstance(answer, Tokens) or len(answer.data) != size:
            raise self._strange("an answer of another length")
        return answer.data

    def _describe(self) -> Description:
        answer = self._exchange(Describe(), MOST_DESCRIBED)
        if not isinstance(answer, Description):
            raise self._strange("no description")
        return answer

    def _ask(self, message: Asked, most: int) -> Answer:
        """Ask, by a new connection if the one kept is broken: then it is looked at whether all is as it was."""
        if self._socket is not None:
            try:
                return self._exchange(message, most)
            except SourceAway:
                pass
        if self._describe() != self._serves:
            raise DataError(
                f"the data server {self._address} serves something else than before",
                "Ask its operator to restore the files",
            )
        return self._exchange(message, most)

    def _exchange(self, message: Asked, most: int) -> Answer:
        try:
            if self._socket is None:
                self._socket = connected(*self._where, self._timeout, self._permits)
            self._socket.settimeout(self._timeout)
            self._socket.sendall(packed(message))
            length = int.from_bytes(self._exactly(LENGTH), "big")
            if length > most:
                raise self._strange(f"an answer of {length} bytes")
            answer = answered(self._exactly(length))
        except (OSError, EOFError) as error:
            self._close()
            why = getattr(error, "strerror", None) or str(error) or "no answer in time"
            raise SourceAway(
                f"the data server {self._address} cannot be reached: {why}",
                "Start it, or ask the run's owner to: aftermath-solana data serve --config data.toml",
            ) from None
        except Malformed as error:
            raise self._strange(f"what is no message: {error}") from None
        if isinstance(answer, ErrorReply):
            self._close()
            raise SourceAway(f"the data server {self._address} refused: {answer.why[:200]}")
        return answer

    def _exactly(self, length: int) -> bytes:
        assert self._socket is not None
        held, until = bytearray(), time.monotonic() + self._timeout + length / SLOWEST
        while len(held) < length:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError
            self._socket.settimeout(min(left, self._timeout))
            if not (chunk := self._socket.recv(min(length - len(held), 1 << 20))):
                raise EOFError("it hung up")
            held += chunk
        return bytes(held)

    def _strange(self, what: str) -> DataError:
        self._close()
        return DataError(f"the data server {self._address} sent {what}", "Check that it is a data server")

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
