"""Delivers one signed transaction: sends, asks for its status, sends again, until it landed or its blockhash
expired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from solders.commitment_config import CommitmentLevel
from solders.rpc.config import (
    RpcContextConfig,
    RpcSendTransactionConfig,
    RpcSignatureStatusConfig,
    RpcSimulateTransactionConfig,
)
from solders.rpc.requests import (
    GetBlockHeight,
    GetSignatureStatuses,
    SendRawTransaction,
    SimulateVersionedTransaction,
)
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from aftermath.base.bounded import is_u64
from aftermath.base.wait import every, first_of
from aftermath.chain.accounts import COMMITMENT, whole
from aftermath.chain.failures import BadReply, TransactionFailed
from aftermath.chain.rpc import RpcPool
from aftermath.coordinator.errors import CoordinatorError

POLL_FIRST, POLL_MAX = 0.02, 0.5
RESEND_SECONDS = 2.0
GIVE_UP_SECONDS = 120.0
ELSEWHERE_AFTER, EXPIRED_AFTER = 4.0, 12.0
UNKNOWN_AFTER = 30.0  # what several nodes have not seen land by then may have a blockhash that is none
TELL_SECONDS = 2.0  # for a node that may not answer
SENDS_AT_ONCE = 8
STATUSES_AT_ONCE = 256
LANDED = frozenset({"confirmed", "finalized"})


class Expired(Exception):
    """The transaction's blockhash is no longer valid and it has not landed."""


class Landed(NamedTuple):
    """A transaction of those given that was confirmed, and its slot."""

    transaction: VersionedTransaction
    slot: int


async def deliver(
    pool: RpcPool,
    transaction: VersionedTransaction,
    last_valid_height: int,
    given_up: Sequence[VersionedTransaction] = (),
    *,
    last: bool = False,
) -> Landed:
    """Send until confirmed; `given_up` do the same and were signed before, by other blockhashes. The `last` one is not
    given up for what a node says of its blockhash: none comes after it.

    Sending the same signature again is harmless, so the transaction is resent every two seconds, and after some by way
    of every node by itself, each of which may say what became of it: one alone may swallow it, or hide that. Nor does
    one alone say that it failed: the others are asked at once, and have as long to say that it has not. Nor that a
    blockhash is none: what was given up for that may land yet, and then counts. What landed is sent to those who have
    not heard of it. Raises TransactionFailed when it landed and failed, Expired when it can no longer land, or
    Unavailable.
    """
    if len(pool.endpoints) == 1:
        return Landed(transaction, await _deliver(pool, transaction, last_valid_height))
    after_all = [_after_all(pool, given_up)] if given_up else []
    landed = await first_of(_by_way_of_all(pool, transaction, last_valid_height, given_up, last), *after_all)
    await every(_tell(node, landed.transaction) for node in [node for node in pool.each() if node.answers][1:])
    return landed


async def _by_way_of_all(
    pool: RpcPool,
    transaction: VersionedTransaction,
    last_valid_height: int,
    given_up: Sequence[VersionedTransaction],
    last: bool,
) -> Landed:
    elsewhere = _Elsewhere(transaction)
    mine = elsewhere.unless_denied(_deliver(pool, transaction, last_valid_height, least=EXPIRED_AFTER))
    others = [elsewhere.by_way_of(node) for node in pool.each()]
    if not last:
        others.append(_unknown(pool, transaction))
    try:
        return Landed(transaction, await first_of(mine, *others))
    except (TransactionFailed, Expired):
        if given_up:  # one may be on its way, and this one have failed for that
            with suppress(TimeoutError):
                async with asyncio.timeout(ELSEWHERE_AFTER):
                    return await _after_all(pool, given_up)
        raise


async def _after_all(pool: RpcPool, given_up: Sequence[VersionedTransaction]) -> Landed:
    """That which lands of what was given up and does not fail, as any node says; never if none does."""

    async def of(node: RpcPool) -> Landed:
        while True:
            for transaction in given_up:
                with suppress(CoordinatorError, TransactionFailed):
                    if (slot := await _landed(node, transaction.signatures[0])) is not None:
                        return Landed(transaction, slot)
            await asyncio.sleep(POLL_MAX)

    return await first_of(*(of(node) for node in pool.each()))


async def _tell(node: RpcPool, transaction: VersionedTransaction) -> None:
    """Send it to the node, unless it has heard of it: who says that it has landed may have swallowed it. One that does
    not answer is waited for twice, and then left as by any call.
    """
    node = node.patient(TELL_SECONDS, tries=1)
    with suppress(CoordinatorError, TransactionFailed, TimeoutError):
        async with asyncio.timeout(TELL_SECONDS + POLL_MAX):  # for both; the first fails by itself before that
            if await _landed(node, transaction.signatures[0]) is None:
                await _send(node, transaction)


class _Elsewhere:
    """What every node by itself says of a transaction."""

    def __init__(self, transaction: VersionedTransaction) -> None:
        self._transaction = transaction
        self._doubted = asyncio.Event()
        self._failed: set[RpcPool] = set()

    async def unless_denied(self, delivered: Coroutine[Any, Any, int]) -> int:
        """As `delivered`, and later if that is that it failed."""
        try:
            return await delivered
        except TransactionFailed:
            self._doubted.set()
            await asyncio.sleep(ELSEWHERE_AFTER)
            raise

    async def by_way_of(self, node: RpcPool) -> int:
        """As `deliver`, later, and for as long as somebody else wants to know; failed if another one says so too, or
        none denies it.
        """
        now = asyncio.get_running_loop().time
        with suppress(TimeoutError):
            async with asyncio.timeout(ELSEWHERE_AFTER):
                await self._doubted.wait()
        next_send, wait, failed = now(), POLL_MAX, 0.0
        while True:
            try:
                if now() >= next_send:
                    next_send = now() + RESEND_SECONDS
                    await _send(node, self._transaction)
                if (slot := await _landed(node, self._transaction.signatures[0])) is not None:
                    return slot
            except TransactionFailed:
                self._failed.add(node)
                self._doubted.set()
                failed = failed or now()
                if len(self._failed) > 1 or now() >= failed + ELSEWHERE_AFTER:
                    raise
            except CoordinatorError:
                wait = min(wait * 2, RESEND_SECONDS)
            await asyncio.sleep(wait)


async def _unknown(pool: RpcPool, transaction: VersionedTransaction) -> int:
    """Raises Expired once a node does not know the blockhash of what has not landed for long: it may be none, or that
    node behind. What is merely slow is not signed anew: both would land.
    """
    await asyncio.sleep(UNKNOWN_AFTER)
    while True:
        for node in pool.each():
            with suppress(CoordinatorError):
                if not await _knows(node, transaction):
                    if (slot := await _landed(node, transaction.signatures[0])) is not None:
                        return slot
                    raise Expired
        await asyncio.sleep(RESEND_SECONDS)


async def _knows(node: RpcPool, transaction: VersionedTransaction) -> bool:
    """Whether the node knows the transaction's blockhash, or does not say."""

    def read(reply: Any) -> bool:
        return bool(reply["value"]["err"] != "BlockhashNotFound")

    config = RpcSimulateTransactionConfig(sig_verify=False, commitment=COMMITMENT)
    try:
        return await node.call(SimulateVersionedTransaction(transaction, config), read)
    except TransactionFailed:
        return True


async def _deliver(
    pool: RpcPool,
    transaction: VersionedTransaction,
    last_valid_height: int,
    *,
    least: float = 0.0,
) -> int:
    """By way of whichever node answers; not expired before `least` seconds, whatever is said of heights."""
    now = asyncio.get_running_loop().time
    signature = transaction.signatures[0]
    start = next_send = now()
    expired = False
    wait = POLL_FIRST
    while True:
        if now() >= next_send:
            expired = next_send > start + least and await _too_late(pool, last_valid_height)
            await _send(pool, transaction)
            next_send = now() + RESEND_SECONDS
        slot = await _landed(pool, signature)
        if slot is not None:
            return slot
        if expired or now() >= start + GIVE_UP_SECONDS:
            raise Expired
        await asyncio.sleep(wait)
        wait = min(wait * 2, POLL_MAX)


async def _send(pool: RpcPool, transaction: VersionedTransaction) -> None:
    config = RpcSendTransactionConfig(skip_preflight=True, preflight_commitment=CommitmentLevel.Processed)
    try:
        await pool.call(SendRawTransaction(bytes(transaction), config), str)
    except TransactionFailed as failure:
        # A node that executes at once may report what the status will say; only a transaction it never took matters
        # here.
        if failure.kind not in ("AlreadyProcessed", "BlockhashNotFound"):
            raise


async def _landed(pool: RpcPool, signature: Signature) -> int | None:
    """The slot of a confirmed transaction, None when unknown or not yet confirmed; TransactionFailed if it failed."""
    (status,) = await _statuses(pool, [signature])
    if status is None:
        return None
    if status.get("err") is not None:
        raise TransactionFailed(status["err"])
    if status.get("confirmationStatus") not in LANDED:
        return None
    slot = status.get("slot")
    return slot if is_u64(slot) else 0


async def _statuses(pool: RpcPool, signatures: Sequence[Signature]) -> list[dict[str, Any] | None]:
    def read(reply: Any) -> list[dict[str, Any] | None]:
        values = reply.get("value") if isinstance(reply, dict) else None
        valid = isinstance(values, list) and len(values) == len(signatures)
        if not valid or not all(isinstance(v, dict | None) for v in values or ()):
            raise BadReply("the RPC node answered getSignatureStatuses with something else")
        return list(values or ())

    return await pool.call(GetSignatureStatuses(list(signatures), RpcSignatureStatusConfig(False)), read)


async def _too_late(pool: RpcPool, last_valid_height: int) -> bool:
    return await pool.call(GetBlockHeight(RpcContextConfig(COMMITMENT)), whole) > last_valid_height


async def deliver_all(pool: RpcPool, transactions: Sequence[VersionedTransaction], last_valid_height: int) -> int:
    """Send many transactions at once and wait for them; returns how many landed, whether they failed or not.

    Ends early when the blockhash expired. For writes whose effect is checked by reading; nothing is sent twice.
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
        still = []
        for start in range(0, len(waiting), STATUSES_AT_ONCE):
            part = waiting[start : start + STATUSES_AT_ONCE]
            statuses = await _statuses(pool, part)
            still += [s for s, status in zip(part, statuses, strict=True) if not _is_final(status)]
        waiting = still
        if expired:
            break
        if waiting:
            await asyncio.sleep(POLL_MAX)
    return len(transactions) - len(waiting)


def _is_final(status: dict[str, Any] | None) -> bool:
    return status is not None and status.get("confirmationStatus") in LANDED
