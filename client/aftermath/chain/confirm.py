"""Send signed transactions again and again until they land or their blockhash expires."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from solana.rpc.commitment import Processed
from solana.rpc.types import TxOpts
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from solders.transaction_status import TransactionConfirmationStatus, TransactionStatus

from aftermath.base.concurrency import every
from aftermath.chain.failures import BadReply, TransactionFailed, error_json
from aftermath.chain.node_client import NodeClient
from aftermath.chain.rpc import RpcPool

POLL_FIRST = 0.02
POLL_MAX = 0.5
RESEND_SECONDS = 2.0
GIVE_UP_SECONDS = 120.0
SENDS_AT_ONCE = 8
STATUSES_AT_ONCE = 256
LANDED = (TransactionConfirmationStatus.Confirmed, TransactionConfirmationStatus.Finalized)
# The sender has simulated the transaction, which is the same check as a node's preflight.
_SEND = TxOpts(skip_preflight=True, preflight_commitment=Processed)


class Expired(Exception):
    """The transaction's blockhash is no longer valid and it has not landed."""


async def deliver(pool: RpcPool, transaction: VersionedTransaction, last_valid_height: int) -> int:
    """Send a transaction until it is confirmed; return the slot in which it landed.

    A transaction lands at most once, so it is sent again every two seconds, through any node that
    answers. Raises TransactionFailed if it landed and failed, Expired if it can no longer land, and
    Unavailable.
    """
    now = asyncio.get_running_loop().time
    signature = transaction.signatures[0]
    start = now()
    next_send = start
    expired = False
    wait = POLL_FIRST
    while True:
        if now() >= next_send:
            expired = next_send > start and await _too_late(pool, last_valid_height)
            await _send(pool, transaction)
            next_send = now() + RESEND_SECONDS
        slot = await _landed(pool, signature)
        if slot is not None:
            return slot
        if expired or now() >= start + GIVE_UP_SECONDS:
            raise Expired
        await asyncio.sleep(wait)
        wait = min(wait * 2, POLL_MAX)


async def deliver_all(
    pool: RpcPool, transactions: Sequence[VersionedTransaction], last_valid_height: int
) -> int:
    """Send many transactions at once and wait for them; return how many landed, whether they failed
    or not.

    Ends early when the blockhash expired. For writes whose effect is checked by reading; nothing is
    sent twice.
    """
    give_up = asyncio.get_running_loop().time() + GIVE_UP_SECONDS
    limit = asyncio.Semaphore(SENDS_AT_ONCE)

    async def send(transaction: VersionedTransaction) -> None:
        async with limit:
            await _send(pool, transaction)

    await every(send(t) for t in transactions)
    waiting = [t.signatures[0] for t in transactions]
    while waiting and asyncio.get_running_loop().time() < give_up:
        expired = await _too_late(pool, last_valid_height)
        unconfirmed = []
        for start in range(0, len(waiting), STATUSES_AT_ONCE):
            batch = waiting[start : start + STATUSES_AT_ONCE]
            statuses = await _statuses(pool, batch)
            unconfirmed += [
                s for s, status in zip(batch, statuses, strict=True) if not _is_confirmed(status)
            ]
        waiting = unconfirmed
        if expired:
            break
        if waiting:
            await asyncio.sleep(POLL_MAX)
    return len(transactions) - len(waiting)


async def _send(pool: RpcPool, transaction: VersionedTransaction) -> None:
    try:
        await pool.call(lambda node: node.send_raw_transaction(bytes(transaction), _SEND))
    except TransactionFailed as failure:
        # A node that executes at once may report the failure that the status will show later. Only
        # a transaction that the node did not accept matters here.
        if failure.kind not in ("AlreadyProcessed", "BlockhashNotFound"):
            raise


async def _landed(pool: RpcPool, signature: Signature) -> int | None:
    """Return the slot of a confirmed transaction, None while it is not. Raises TransactionFailed if
    it failed.
    """
    (status,) = await _statuses(pool, [signature])
    if status is None:
        return None
    if status.err is not None:
        raise TransactionFailed(error_json(status.err))
    return status.slot if _is_confirmed(status) else None


async def _statuses(
    pool: RpcPool, signatures: Sequence[Signature]
) -> list[TransactionStatus | None]:
    async def ask(node: NodeClient) -> list[TransactionStatus | None]:
        statuses = (await node.get_signature_statuses(list(signatures))).value
        if len(statuses) != len(signatures):
            raise BadReply(
                "the RPC node answered getSignatureStatuses with the wrong number of statuses"
            )
        return list(statuses)

    return await pool.call(ask)


async def _too_late(pool: RpcPool, last_valid_height: int) -> bool:
    return (await pool.call(lambda node: node.get_block_height())).value > last_valid_height


def _is_confirmed(status: TransactionStatus | None) -> bool:
    return status is not None and status.confirmation_status in LANDED
