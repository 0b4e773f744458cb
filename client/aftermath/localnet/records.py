"""What the ledger stores, as msgspec arrays: landed transactions with their effects, slot marks, and a snapshot's
parts.

Decided: effects (the accounts a transaction left) are stored and not re-computed, so that recovery does not depend
on re-execution giving the same result under a newer runtime.
"""

from __future__ import annotations

from typing import Any

import msgspec
from solders.signature import Signature

FORMAT = 1


class Landed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=1):
    """A transaction that was charged. `meta` is LiteSVM's TransactionMetadata in bincode; `error` is None or JSON."""

    slot: int
    time: int
    wire: bytes
    error: Any
    fee: int
    pre: list[int]
    post: list[int]
    meta: bytes
    loaded_writable: list[bytes]
    loaded_readonly: list[bytes]

    @property
    def signature(self) -> Signature:
        """The first signature; a transaction's wire form starts with their count (one byte below 128), then they
        follow.
        """
        return Signature.from_bytes(self.wire[1:65])


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=2):
    """A journal entry: the transaction and (key, bincode account or None when gone) of every account it could write."""

    landed: Landed
    writes: list[tuple[bytes, bytes | None]]


class Mark(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=3):
    """The chain reached `slot`; lets slots never run backwards after an idle stretch."""

    slot: int


class Chain(msgspec.Struct, array_like=True, tag=4):
    """First record of a snapshot. `eras` are (first slot, unix time) pairs; `journal` is the first journal after it."""

    format: int
    genesis: bytes
    eras: list[tuple[int, float]]
    slot: int
    transactions: int


class Stored(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=5):
    """One account of a snapshot."""

    key: bytes
    account: bytes


class End(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """Last record of a snapshot: how many accounts it must hold."""

    accounts: int


Record = Landed | Entry | Mark | Chain | Stored | End

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Record).decode
