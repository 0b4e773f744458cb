"""What a ledger stores: landed transactions, and where the chain is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from solders.signature import Signature


class Landed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=1):
    """A transaction that was charged.

    `meta` is LiteSVM's TransactionMetadata in bincode; `error` is None or JSON.
    """

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
        """The first signature. The wire form starts with one byte, the number of signatures."""
        return Signature.from_bytes(self.wire[1:65])


class Era(msgspec.Struct, array_like=True, frozen=True):
    """Slots of one length, between two starts of the server: the first slot, and when it began."""

    first: int
    time: float
    slot_ms: int = 0


@dataclass(frozen=True)
class Chain:
    """A chain's identity, its newest slot, and how many transactions landed since genesis."""

    genesis: bytes
    eras: list[Era]
    slot: int
    transactions: int
