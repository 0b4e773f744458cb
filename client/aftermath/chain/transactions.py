"""The transactions that named a run, read back from the chain as they come: what they cost, and what witnesses stated.

Decided
- The newest are read first: what has just come, then back through those before. The first look goes back over a few
  pages only, so that a run of years costs no more than one of days; what is older is only known to be there.
- A transaction that a node does not know any more costs its figures and nothing else.
- Loss and speed travel in an attestation for whoever wants them; the program does not look at them, and neither is
  anything here decided by them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.rpc.config import RpcSignaturesForAddressConfig, RpcTransactionConfig
from solders.rpc.requests import GetSignaturesForAddress, GetTransaction
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from solders.transaction_status import UiTransactionEncoding

from aftermath.base.numbers import U32_MAX
from aftermath.chain.accounts import COMMITMENT, whole
from aftermath.chain.failures import BadReply
from aftermath.chain.layout import Arguments, coordinator_instruction
from aftermath.chain.rpc import RpcPool

PAGE = 1000
"""The most that a node lists at once."""
PAGES_BACK = 5
"""How far the first look goes back."""
_METADATA = ("step", "loss_milli", "tokens_per_sec", "bytes_per_sec")


@dataclass(frozen=True, slots=True)
class Stated:
    """What a witness said of its own share along with an attestation."""

    epoch: int
    step: int
    loss: float | None
    """Nats per token; None if it had trained nothing, or something that is no number."""
    tokens_per_second: int
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """One that named the run's account; `at` in unix seconds, the fee in lamports."""

    slot: int
    at: int | None
    fee: int
    payer: Pubkey
    stated: tuple[Stated, ...]


class RunTransactions:
    """Those of one run account."""

    def __init__(self, pool: RpcPool, run: Pubkey, program: Pubkey, *, page: int = PAGE) -> None:
        self._pool, self._run, self._program, self._page = pool, run, program, page
        self._newest: Signature | None = None
        self._unread: list[Signature] = []
        self._older = False
        """There are some that were not even listed."""

    @property
    def complete(self) -> bool:
        """Whether all there are have been read."""
        return not self._unread and not self._older

    async def read(self, most: int) -> list[Transaction]:
        """Up to so many that were not read yet, the newest first. Errors as `RpcPool.call`."""
        await self._look()
        found = []
        for _ in range(min(most, len(self._unread))):
            transaction = await self._transaction(self._unread[-1])
            self._unread.pop()
            if transaction is not None:
                found.append(transaction)
        return found

    async def _look(self) -> None:
        """List what has come since the last look."""
        listed: list[Signature] = []
        for _ in range(PAGES_BACK):
            part = await self._signatures(listed[-1] if listed else None)
            listed += part
            if len(part) < self._page:
                break
        else:
            self._older = True
        if listed:
            self._newest = listed[0]
            self._unread.extend(reversed(listed))

    async def _signatures(self, before: Signature | None) -> list[Signature]:
        config = RpcSignaturesForAddressConfig(before, self._newest, self._page, COMMITMENT)
        return await self._pool.call(GetSignaturesForAddress(self._run, config), _signatures)

    async def _transaction(self, signature: Signature) -> Transaction | None:
        config = RpcTransactionConfig(UiTransactionEncoding.Base64, COMMITMENT, 0)
        return await self._pool.call(GetTransaction(signature, config), self._read)

    def _read(self, reply: Any) -> Transaction | None:
        if reply is None:
            return None
        try:
            wire, encoding = reply["transaction"]
            if encoding != "base64":
                raise ValueError(f"encoding {encoding!r}")
            message = VersionedTransaction.from_bytes(base64.b64decode(wire, validate=True)).message
            meta, at = reply["meta"], reply.get("blockTime")
            stated = tuple(self._stated(message)) if meta["err"] is None else ()
            date = None if at is None else whole(at)
            return Transaction(whole(reply["slot"]), date, whole(meta["fee"]), message.account_keys[0], stated)
        except (LookupError, TypeError, ValueError) as error:
            raise BadReply(f"the RPC node sent a malformed transaction: {error}") from error

    def _stated(self, message: Message | MessageV0) -> Iterator[Stated]:
        keys = message.account_keys
        for one in message.instructions:
            ours = one.program_id_index < len(keys) and keys[one.program_id_index] == self._program
            said = _witness().read(one.data) if ours else None
            if said is not None:
                yield _stated(said)


def _stated(said: np.void) -> Stated:
    step, loss, tokens, traffic = (int(said["metadata"][name]) for name in _METADATA)
    return Stated(int(said["at"]["epoch"]), step, None if loss in (0, U32_MAX) else loss / 1000, tokens, traffic)


@cache
def _witness() -> Arguments:
    return coordinator_instruction("witness")


def _signatures(reply: Any) -> list[Signature]:
    if not isinstance(reply, list) or len(reply) > PAGE:
        raise BadReply("the RPC node answered getSignaturesForAddress with something else")
    try:
        return [Signature.from_string(entry["signature"]) for entry in reply]
    except (LookupError, TypeError, ValueError) as error:
        raise BadReply(f"the RPC node sent a malformed signature: {error}") from error
