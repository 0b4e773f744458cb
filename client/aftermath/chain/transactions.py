"""Read a run's transactions from the chain: their costs, and the figures that witnesses report.

The newest are read first. The first look goes back a few pages only, so that a run of years costs
no more than one of days. A transaction that a node no longer knows is left out. Loss and speed in
an attestation are for display: neither the program nor this package decides anything by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from solders.transaction_status import EncodedConfirmedTransactionWithStatusMeta

from aftermath.base.bounded import U32_MAX
from aftermath.chain.failures import BadReply
from aftermath.chain.layout import InstructionArguments, coordinator_instruction
from aftermath.chain.node_client import NodeClient
from aftermath.chain.rpc import RpcPool

PAGE = 1000
"""Maximum number of transactions that a node lists at once."""
PAGES_BACK = 5
"""Pages that the first look goes back."""
_METADATA = ("step", "loss_milli", "tokens_per_sec", "bytes_per_sec")


@dataclass(frozen=True, slots=True)
class WitnessFigures:
    """The figures that a witness reports about its own share in an attestation."""

    epoch: int
    step: int
    loss: float | None
    """Nats per token; None if it trained nothing, or the value is not a number."""
    tokens_per_second: int
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that named the run's account. The fee is in lamports."""

    slot: int
    fee: int
    payer: Pubkey
    stated: tuple[WitnessFigures, ...]


class RunTransactions:
    """Reads the transactions of one run account."""

    def __init__(self, pool: RpcPool, run: Pubkey, program: Pubkey, *, page: int = PAGE) -> None:
        self._pool = pool
        self._run = run
        self._program = program
        self._page = page
        self._newest: Signature | None = None
        self._unread: list[Signature] = []
        self._older = False
        """Whether there are transactions that were not listed."""

    @property
    def complete(self) -> bool:
        """Whether all transactions have been read."""
        return not self._unread and not self._older

    async def read(self, limit: int) -> list[Transaction]:
        """Return up to `limit` transactions that were not read yet, the newest first. Raises like
        `RpcPool.call`.
        """
        await self._look()
        transactions = []
        for _ in range(min(limit, len(self._unread))):
            transaction = await self._transaction(self._unread[-1])
            self._unread.pop()
            if transaction is not None:
                transactions.append(transaction)
        return transactions

    async def _look(self) -> None:
        """List the transactions since the last look."""
        signatures: list[Signature] = []
        for _ in range(PAGES_BACK):
            page = await self._signatures(signatures[-1] if signatures else None)
            signatures += page
            if len(page) < self._page:
                break
        else:
            self._older = True
        if signatures:
            self._newest = signatures[0]
            self._unread.extend(reversed(signatures))

    async def _signatures(self, before: Signature | None) -> list[Signature]:
        async def ask(node: NodeClient) -> list[Signature]:
            entries = (
                await node.get_signatures_for_address(self._run, before, self._newest, self._page)
            ).value
            if len(entries) > self._page:
                raise BadReply("the RPC node listed more transactions than were asked for")
            return [entry.signature for entry in entries]

        return await self._pool.call(ask)

    async def _transaction(self, signature: Signature) -> Transaction | None:
        async def ask(node: NodeClient) -> Transaction | None:
            reply = await node.get_transaction(
                signature, "base64", max_supported_transaction_version=0
            )
            return None if reply.value is None else self._read(reply.value)

        return await self._pool.call(ask)

    def _read(self, reply: EncodedConfirmedTransactionWithStatusMeta) -> Transaction:
        transaction = reply.transaction.transaction
        meta = reply.transaction.meta
        if not isinstance(transaction, VersionedTransaction) or meta is None:
            raise BadReply("the RPC node sent a malformed transaction")
        message = transaction.message
        stated = tuple(self._witness_figures(message)) if meta.err is None else ()
        return Transaction(reply.slot, meta.fee, message.account_keys[0], stated)

    def _witness_figures(self, message: Message | MessageV0) -> Iterator[WitnessFigures]:
        keys = message.account_keys
        for one in message.instructions:
            ours = one.program_id_index < len(keys) and keys[one.program_id_index] == self._program
            arguments = _witness().read(one.data) if ours else None
            if arguments is not None:
                yield _witness_figures(arguments)


def _witness_figures(arguments: np.void) -> WitnessFigures:
    step, loss, tokens, traffic = (int(arguments["metadata"][name]) for name in _METADATA)
    return WitnessFigures(
        int(arguments["at"]["epoch"]),
        step,
        None if loss in (0, U32_MAX) else loss / 1000,
        tokens,
        traffic,
    )


@cache
def _witness() -> InstructionArguments:
    return coordinator_instruction("witness")
