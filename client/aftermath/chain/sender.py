"""Sends instructions: measured compute limit, capped priority fee, confirmation, and a new try when the blockhash
expires.

Decided: a wallet that cannot pay is given test money where the network has some (see `funds`), else the error says the
sum. Every transaction is simulated first (that is also its preflight, so a refusal costs nothing); the limit is
what the simulation used plus 10 % plus the `headroom` the caller knows of, because the state may advance in between
(the last witness closes the round). Two calls with equal content must not become one transaction, so a counter is
hidden in the compute limit; it begins with the pool's seed, since two commands may meet one blockhash.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from solders.account_decoder import UiAccountEncoding
from solders.commitment_config import CommitmentLevel
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash, ParseHashError
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.rpc.config import (
    RpcContextConfig,
    RpcSimulateTransactionAccountsConfig,
    RpcSimulateTransactionConfig,
)
from solders.rpc.requests import GetLatestBlockhash, SimulateVersionedTransaction
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from aftermath.base.bucket import Bucket
from aftermath.base.wait import both
from aftermath.chain.accounts import COMMITMENT, balance, rent
from aftermath.chain.confirm import Expired, deliver
from aftermath.chain.failures import BadReply, TransactionFailed
from aftermath.chain.fees import payer_and_signers, priority_price, signature_count, transaction_fee
from aftermath.chain.funds import ensure_funds, rent_due
from aftermath.chain.refusals import Errors, lacks_funds, lamports_short, refused
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import CoordinatorError, Refused, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_TRANSACTION = 1232
MAX_UNITS = 1_400_000
UNIQUE = 1_000
BUILDS = 3
BEHIND_SECONDS = 5.0  # for which nodes may not be as far as what they say has landed
REFILLS = 3  # a transaction of several transfers may lack money for each of them
LOST_AT_ONCE, LOST_PER_SECOND = 30, 1 / 30
"""Transactions of one kind that are signed and do not succeed, of which each may cost its fee."""


@dataclass
class Spend:
    """Transactions that landed (also failed ones) and the lamports of their fees."""

    transactions: int = 0
    lamports: int = 0


class Sender:
    """Signs with one wallet and sends through one pool. `errors`: the programs' error tables by program id."""

    def __init__(self, pool: RpcPool, wallet: Wallet, *, errors: Errors, max_priority_fee: int = 0) -> None:
        self.pool = pool
        self.wallet = wallet
        self.spend = Spend()
        self.slot = 0  # the newest slot one of our transactions landed in; later reads must not be older
        self._errors = errors
        self._cap = max_priority_fee
        self._count = itertools.count(pool.seed + 1)
        self._lost: defaultdict[bytes, Bucket] = defaultdict(
            lambda: Bucket(asyncio.get_running_loop().time, LOST_PER_SECOND, LOST_AT_ONCE)
        )
        self._hash_of = 0  # by way of which node alone blockhashes are asked for; 0 is all of them

    async def send(
        self, instructions: Sequence[Instruction], *, signers: Sequence[Keypair] = (), headroom: int = 0
    ) -> Signature:
        """Send one transaction and wait until it is confirmed.

        Raises Refused (by the program's error name; `InsufficientFunds` when the wallet cannot pay) or
        Unavailable.
        """
        if self._lost[_kind(instructions)].next_in():
            raise Unavailable(
                "transactions that a node had called fine have failed too often",
                "It may lie, or be far behind: name another one by --rpc",
            )
        for refill in range(REFILLS + 1):
            try:
                measured, (blockhash, height) = await both(self._measure(instructions, headroom), self.blockhash())
                return await self._land(instructions, signers, *measured, blockhash, height)
            except TransactionFailed as failure:
                if refill == REFILLS or not await self._refilled(failure, instructions):
                    raise self.refusal(failure, instructions) from failure
        raise AssertionError("unreachable")

    def each(self) -> list[Sender]:
        """This sender by way of every node by itself."""
        senders = []
        for node in self.pool.each():
            sender = copy.copy(self)
            sender.pool, sender._hash_of = node, 0
            sender.slot = 0  # by which another one may have kept this one from answering
            senders.append(sender)
        return senders

    async def send_packed(
        self, instructions: Sequence[Instruction], signers: Sequence[Keypair] = (), *, headroom: int = 0
    ) -> list[Signature]:
        """Send the instructions in order, in as few transactions as their size allows; each is confirmed before the
        next.
        """
        return await self.send_each(pack(self.wallet, instructions), signers, headroom=headroom)

    async def send_each(
        self, groups: Sequence[Sequence[Instruction]], signers: Sequence[Keypair] = (), *, headroom: int = 0
    ) -> list[Signature]:
        """Send a transaction of each group, in order; each is confirmed before the next."""
        sent = []
        for group in groups:
            needed = payer_and_signers(self.wallet.pubkey, group)
            sent.append(await self.send(group, signers=[s for s in signers if s.pubkey() in needed], headroom=headroom))
        return sent

    async def afford(
        self, instructions: Sequence[Instruction], sizes: Mapping[Pubkey, int] | None = None, *, later: int = 0
    ) -> None:
        """Before anything is sent: make sure the wallet can pay for all the instructions, for the rent of the accounts
        they leave with these `sizes`, and for `later` more transactions, or ask for the whole sum at once (see
        `funds.ensure_funds`).
        """
        fees = [self.highest_fee(group) for group in pack(self.wallet, instructions)]
        due = await rent_due(self.pool, sizes) if sizes else {}
        await self.ensure_funds(sum(fees) + sum(due.values()) + later * self.highest_fee([]))

    async def ensure_funds(self, lamports: int) -> None:
        """Make sure the wallet can spend `lamports` and stay above the rent of its own account."""
        await ensure_funds(self.pool, self.wallet.pubkey, lamports + await rent(self.pool, 0))

    async def after_sent(self, read: Callable[[RpcPool, int | None], Awaitable[T]]) -> T:
        """What `read` finds as of a slot: the newest in which something of ours landed, unless no node is that far."""
        if self.slot:
            try:
                return await read(self.pool.patient(BEHIND_SECONDS), self.slot)
            except Unavailable:
                self.slot = 0  # who said so may have lied
        return await read(self.pool, None)

    async def blockhash(self) -> tuple[Hash, int]:
        """(recent blockhash, last block height at which it is valid), of another node once it expired unused."""
        request = GetLatestBlockhash(RpcContextConfig(COMMITMENT))
        if self._hash_of:
            try:
                return await self.pool.each()[self._hash_of].call(request, latest_blockhash)
            except Unavailable:
                self._hash_of = 0
        return await self.pool.call(request, latest_blockhash)

    def paid(self, signatures: int, units: int, price: int) -> None:
        """Count a transaction that landed."""
        self.spend.transactions += 1
        self.spend.lamports += transaction_fee(signatures, units, price)

    async def price(self, instructions: Sequence[Instruction]) -> int:
        """Micro-lamports per compute unit to offer for these instructions, within the user's limit."""
        return await priority_price(self.pool, instructions, self._cap)

    def transaction(
        self, instructions: Sequence[Instruction], signers: Sequence[Keypair], units: int, price: int, blockhash: Hash
    ) -> VersionedTransaction:
        """The signed transaction."""
        message = self._message(instructions, units, price, blockhash)
        return VersionedTransaction(message, [self.wallet.keypair, *signers])

    async def _land(
        self,
        instructions: Sequence[Instruction],
        signers: Sequence[Keypair],
        units: int,
        price: int,
        blockhash: Hash,
        height: int,
    ) -> Signature:
        given_up: list[VersionedTransaction] = []
        for build in range(BUILDS):
            if build:
                blockhash, height = await self.blockhash()
            transaction = self.transaction(instructions, signers, units, price, blockhash)
            try:
                landed = await deliver(self.pool, transaction, height, given_up, last=build == BUILDS - 1)
                self.slot = max(self.slot, landed.slot)
                self.paid(signature_count(self.wallet.pubkey, instructions), units, price)
                return landed.transaction.signatures[0]
            except Expired:
                given_up.append(transaction)
                self._lost[_kind(instructions)].take()
                self._hash_of = (self._hash_of + 1) % len(self.pool.endpoints)
                log.info("transaction %s expired, sending it again", transaction.signatures[0])
            except TransactionFailed:
                self._lost[_kind(instructions)].take()
                self.paid(signature_count(self.wallet.pubkey, instructions), units, price)
                raise
        raise Unavailable(
            f"the cluster did not confirm the transaction in {BUILDS} tries",
            "The network may be congested: allow a priority fee with --max-priority-fee",
        )

    async def _measure(self, instructions: Sequence[Instruction], headroom: int) -> tuple[int, int]:
        """(compute limit, price per unit). Raises TransactionFailed when the simulation fails."""
        simulation = self.simulation(instructions)
        try:
            used, price = await both(self.pool.call(simulation, simulated_units), self.price(instructions))
        except Unavailable:
            self.slot = 0  # no node is that far: who said so may have lied
            raise
        return min(allowed_units(used, headroom) + next(self._count) % UNIQUE, MAX_UNITS), price

    def simulation(
        self, instructions: Sequence[Instruction], watched: Sequence[Pubkey] = ()
    ) -> SimulateVersionedTransaction:
        """The request that simulates them, unsigned; its reply has the accounts `watched` as they would be."""
        message = self._message(instructions, MAX_UNITS, self._simulated_price, Hash.default())
        unsigned = [Signature.default()] * message.header.num_required_signatures
        transaction = VersionedTransaction.populate(message, unsigned)
        accounts = RpcSimulateTransactionAccountsConfig(list(watched), UiAccountEncoding.Base64) if watched else None
        config = RpcSimulateTransactionConfig(
            sig_verify=False,
            replace_recent_blockhash=True,
            commitment=CommitmentLevel.Processed,
            accounts=accounts,
            min_context_slot=self.slot or None,
        )
        return SimulateVersionedTransaction(transaction, config)

    def simulated_fee(self, instructions: Sequence[Instruction]) -> int:
        """What a simulation of them takes from the wallet as its fee, in lamports."""
        signatures = signature_count(self.wallet.pubkey, instructions)
        return transaction_fee(signatures, MAX_UNITS, self._simulated_price)

    @property
    def _simulated_price(self) -> int:
        return 1 if self._cap else 0

    def _message(self, instructions: Sequence[Instruction], units: int, price: int, blockhash: Hash) -> Message:
        prefix = [set_compute_unit_limit(units), set_compute_unit_price(price)]
        return Message.new_with_blockhash([*prefix, *instructions], self.wallet.pubkey, blockhash)

    def highest_fee(self, instructions: Sequence[Instruction]) -> int:
        """The most that a transaction of them may cost, whatever it computes."""
        return transaction_fee(signature_count(self.wallet.pubkey, instructions), MAX_UNITS, self._cap)

    async def _refilled(self, failure: TransactionFailed, instructions: Sequence[Instruction]) -> bool:
        """Whether the transaction failed for want of money that the wallet has been given since.

        Raises Refused `InsufficientFunds` where nobody gives any.
        """
        if not lacks_funds(failure):
            return False
        held = await balance(self.pool, self.wallet.pubkey)
        short = lamports_short(failure)
        needed = self.highest_fee(instructions) + await rent(self.pool, 0) + (held + short if short else 0)
        if held >= needed:
            return False  # it is another account that lacks lamports
        await ensure_funds(self.pool, self.wallet.pubkey, needed)
        log.info("wallet %s was given test SOL", self.wallet.pubkey)
        return True

    def refusal(self, failure: TransactionFailed, instructions: Sequence[Instruction]) -> Refused:
        """What the cluster said of a transaction of them, as an error for people."""
        for log_line in failure.logs:
            log.debug("program log: %s", log_line)
        prefix = [set_compute_unit_limit(0), set_compute_unit_price(0)]
        return refused(failure, [*prefix, *instructions], self._errors)


def _kind(instructions: Sequence[Instruction]) -> bytes:
    """What a transaction of them does, by the instruction that matters."""
    return bytes(instructions[-1].data[:8]) if instructions else b""


def allowed_units(used: int, headroom: int) -> int:
    """The compute limit of a transaction whose simulation took `used` units."""
    return min(used * 11 // 10 + headroom, MAX_UNITS)


def simulated_units(reply: Any) -> int:
    """Compute units of a simulateTransaction result; TransactionFailed if the simulation failed."""
    value = reply.get("value") if isinstance(reply, dict) else None
    if not isinstance(value, dict):
        raise BadReply("the RPC node answered simulateTransaction with something else")
    if value.get("err") is not None:
        raise TransactionFailed(value["err"], value.get("logs") or ())
    used = value.get("unitsConsumed")
    return used if isinstance(used, int) and 0 < used <= MAX_UNITS else MAX_UNITS


def latest_blockhash(reply: Any) -> tuple[Hash, int]:
    """(blockhash, last valid block height) of a getLatestBlockhash result."""
    try:
        return Hash.from_string(reply["value"]["blockhash"]), int(reply["value"]["lastValidBlockHeight"])
    except (KeyError, TypeError, ValueError, ParseHashError) as error:
        raise BadReply("the RPC node sent no blockhash") from error


def pack(wallet: Wallet, instructions: Sequence[Instruction]) -> list[list[Instruction]]:
    """Split `instructions`, in order, into the fewest groups that fit a transaction. CoordinatorError if one alone does
    not.
    """
    groups: list[list[Instruction]] = []
    for instruction in instructions:
        if groups and transaction_size(wallet, [*groups[-1], instruction]) <= MAX_TRANSACTION:
            groups[-1].append(instruction)
            continue
        if (size := transaction_size(wallet, [instruction])) > MAX_TRANSACTION:
            raise CoordinatorError(
                f"an instruction needs a transaction of {size} bytes, the limit is {MAX_TRANSACTION}",
                "Shorten the texts in it (names, descriptions, addresses), or change fewer things at once",
            )
        groups.append([instruction])
    return groups


def transaction_size(wallet: Wallet, instructions: Sequence[Instruction]) -> int:
    """Bytes of the signed transaction, compute-budget instructions included."""
    prefix = [set_compute_unit_limit(0), set_compute_unit_price(0)]
    message = Message.new_with_blockhash([*prefix, *instructions], wallet.pubkey, Hash.default())
    unsigned = [Signature.default()] * message.header.num_required_signatures
    return len(bytes(VersionedTransaction.populate(message, unsigned)))
