"""What the ledger stores, as msgspec arrays: landed transactions with their effects, slot marks, and a snapshot's
parts.

Decided: effects (how a transaction left its accounts) are stored and not re-computed, so that recovery does not depend
on re-execution giving the same result under a newer runtime.
"""

from __future__ import annotations

from typing import Any

import msgspec
from solders.signature import Signature

from aftermath.localnet.delta import Change

FORMAT = 2


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
    """A journal entry: the transaction and (key, change) of every account that it changed."""

    landed: Landed
    changes: list[tuple[bytes, Change]]


class Mark(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=3):
    """The chain reached `slot`; lets slots never run backwards after an idle stretch."""

    slot: int


class Era(msgspec.Struct, array_like=True, frozen=True):
    """A stretch of slots of one length, between two starts of the server: its first slot, and when that began."""

    first: int
    time: float
    slot_ms: int = 0


class Chain(msgspec.Struct, array_like=True, tag=4):
    """First record of a snapshot: the chain's identity, and where it is."""

    format: int
    genesis: bytes
    eras: list[Era]
    slot: int
    transactions: int


class Stored(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=5):
    """One account of a snapshot."""

    key: bytes
    account: bytes


class End(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """Last record of a snapshot: how many accounts it must hold."""

    accounts: int


class Head(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """First record of a journal: the chain it belongs to, and the snapshot it goes on from."""

    genesis: bytes
    number: int


Record = Landed | Entry | Mark | Chain | Stored | End | Head

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Record).decode
