"""Landed transactions, the newest of them by signature and account, and where the chain is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

HISTORY_LIMIT = 100_000


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


class History:
    """The newest landed transactions, at most `limit`."""

    def __init__(self, limit: int = HISTORY_LIMIT) -> None:
        self._limit = limit
        self._by_signature: dict[Signature, Landed] = {}
        self._by_account: dict[Pubkey, deque[Landed]] = {}

    def add(self, landed: Landed, keys: Iterable[Pubkey]) -> None:
        self._by_signature[landed.signature] = landed
        for key in keys:
            self._by_account.setdefault(key, deque()).append(landed)
        if len(self._by_signature) > self._limit:
            self._forget(next(iter(self._by_signature)))

    def _forget(self, signature: Signature) -> None:
        landed = self._by_signature.pop(signature)
        for key in keys_of(landed):
            entries = self._by_account[key]
            entries.popleft()
            if not entries:
                del self._by_account[key]

    def get(self, signature: Signature) -> Landed | None:
        return self._by_signature.get(signature)

    def of_account(
        self,
        key: Pubkey,
        limit: int,
        before: Signature | None = None,
        until: Signature | None = None,
    ) -> list[Landed]:
        """Return at most `limit` transactions of `key`, newest first.

        Both `until` and `before` are exclusive.
        """
        entries: list[Landed] = []
        started = before is None
        for landed in reversed(self._by_account.get(key, ())):
            if landed.signature == until or len(entries) == limit:
                break
            if started:
                entries.append(landed)
            started = started or landed.signature == before
        return entries


def keys_of(landed: Landed) -> list[Pubkey]:
    """Return all accounts of the transaction, in the order of its balances."""
    static_keys = VersionedTransaction.from_bytes(landed.wire).message.account_keys
    return [
        *static_keys,
        *(Pubkey(key) for key in landed.loaded_writable),
        *(Pubkey(key) for key in landed.loaded_readonly),
    ]
