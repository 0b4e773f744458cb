"""Send instructions as transactions, and retry if the blockhash expires.

Every transaction is simulated first. That measures its compute limit and is its preflight: a
refusal costs nothing. The priority fee is capped. A wallet that cannot pay gets test money if the
network gives any (see `funding`); otherwise the error names the sum.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from aftermath.base.concurrency import both
from aftermath.chain.accounts import balance, rent
from aftermath.chain.confirm import Expired, deliver
from aftermath.chain.failures import TransactionFailed
from aftermath.chain.funding import (
    ensure_funds,
    payer_and_signers,
    priority_price,
    rent_due,
    signature_count,
    transaction_fee,
)
from aftermath.chain.node_client import Simulation
from aftermath.chain.refusals import Errors, lacks_funds, lamports_short, refused
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import CoordinatorError, Refused, Unavailable

log = logging.getLogger(__name__)

MAX_TRANSACTION = 1232
MAX_UNITS = 1_400_000
UNIQUE = 1_000
BUILDS = 3
REFILLS = 3  # each transfer of a transaction may lack money


@dataclass
class Spend:
    """Transactions that landed (also failed ones) and the lamports of their fees."""

    transactions: int = 0
    lamports: int = 0


class Sender:
    """Signs with one wallet and sends through one pool. `errors` has the programs' error tables by
    program id.
    """

    def __init__(
        self, pool: RpcPool, wallet: Wallet, *, errors: Errors, max_priority_fee: int = 0
    ) -> None:
        self.pool = pool
        self.wallet = wallet
        self.spend = Spend()
        # the newest slot one of our transactions landed in; later reads must not be older
        self.slot = 0
        self._errors = errors
        self._cap = max_priority_fee
        # Two transactions with equal content and blockhash would be the same transaction, so the
        # compute limit contains a counter. It starts at the pool's seed, because two commands may
        # use the same blockhash.
        self._count = itertools.count(pool.seed + 1)

    async def send(
        self,
        instructions: Sequence[Instruction],
        *,
        signers: Sequence[Keypair] = (),
        headroom: int = 0,
    ) -> Signature:
        """Send one transaction and wait until it is confirmed.

        Raises Refused (by the program's error name; `InsufficientFunds` when the wallet cannot pay)
        or Unavailable.
        """
        for refill in range(REFILLS + 1):
            try:
                measured, (blockhash, height) = await both(
                    self._measure(instructions, headroom), self.blockhash()
                )
                return await self._land(instructions, signers, *measured, blockhash, height)
            except TransactionFailed as failure:
                if refill == REFILLS or not await self._refilled(failure, instructions):
                    raise self.refusal(failure, instructions) from failure
        raise AssertionError("unreachable")

    async def send_packed(
        self,
        instructions: Sequence[Instruction],
        signers: Sequence[Keypair] = (),
        *,
        headroom: int = 0,
    ) -> list[Signature]:
        """Send the instructions in order, in as few transactions as fit; each is confirmed before
        the next.
        """
        return await self.send_each(pack(self.wallet, instructions), signers, headroom=headroom)

    async def send_each(
        self,
        groups: Sequence[Sequence[Instruction]],
        signers: Sequence[Keypair] = (),
        *,
        headroom: int = 0,
    ) -> list[Signature]:
        """Send one transaction for each group, in order; each is confirmed before the next."""
        signatures = []
        for group in groups:
            needed = payer_and_signers(self.wallet.pubkey, group)
            signatures.append(
                await self.send(
                    group, signers=[s for s in signers if s.pubkey() in needed], headroom=headroom
                )
            )
        return signatures

    async def afford(
        self,
        instructions: Sequence[Instruction],
        sizes: Mapping[Pubkey, int] | None = None,
        *,
        later: int = 0,
    ) -> None:
        """Make sure the wallet can pay for all instructions before any is sent.

        The sum includes the rent of accounts of these `sizes` and the fees of `later` more
        transactions. If it is missing, ask for all of it at once (see `funding.ensure_funds`).
        """
        fees = [self.highest_fee(group) for group in pack(self.wallet, instructions)]
        missing_rent = await rent_due(self.pool, sizes) if sizes else {}
        await self.ensure_funds(
            sum(fees) + sum(missing_rent.values()) + later * self.highest_fee([])
        )

    async def ensure_funds(self, lamports: int) -> None:
        """Make sure the wallet can spend `lamports` and stay above the rent of its own account."""
        await ensure_funds(self.pool, self.wallet.pubkey, lamports + await rent(self.pool, 0))

    async def blockhash(self) -> tuple[Hash, int]:
        """Return (recent blockhash, last block height at which it is valid)."""
        latest = (await self.pool.call(lambda node: node.get_latest_blockhash())).value
        return latest.blockhash, latest.last_valid_block_height

    def paid(self, signatures: int, units: int, price: int) -> None:
        """Count a transaction that landed."""
        self.spend.transactions += 1
        self.spend.lamports += transaction_fee(signatures, units, price)

    async def price(self, instructions: Sequence[Instruction]) -> int:
        """Return the micro-lamports per compute unit to offer, within the user's limit."""
        return await priority_price(self.pool, instructions, self._cap)

    def transaction(
        self,
        instructions: Sequence[Instruction],
        signers: Sequence[Keypair],
        units: int,
        price: int,
        blockhash: Hash,
    ) -> VersionedTransaction:
        """Return the signed transaction."""
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
        for build in range(BUILDS):
            if build:
                blockhash, height = await self.blockhash()
            transaction = self.transaction(instructions, signers, units, price, blockhash)
            try:
                slot = await deliver(self.pool, transaction, height)
            except Expired:
                log.info("transaction %s expired, sending it again", transaction.signatures[0])
            except TransactionFailed:
                self.paid(signature_count(self.wallet.pubkey, instructions), units, price)
                raise
            else:
                self.slot = max(self.slot, slot)
                self.paid(signature_count(self.wallet.pubkey, instructions), units, price)
                return transaction.signatures[0]
        raise Unavailable(
            f"the cluster did not confirm the transaction in {BUILDS} tries",
            "Allow a priority fee with --max-priority-fee: the network may be congested",
        )

    async def _measure(self, instructions: Sequence[Instruction], headroom: int) -> tuple[int, int]:
        """Return (compute limit, price per unit). Raises TransactionFailed when the simulation
        fails.
        """
        simulation, price = await both(self.simulate(instructions), self.price(instructions))
        used = simulation.units or MAX_UNITS
        return min(allowed_units(used, headroom) + next(self._count) % UNIQUE, MAX_UNITS), price

    async def simulate(
        self, instructions: Sequence[Instruction], watched: Sequence[Pubkey] = ()
    ) -> Simulation:
        """Simulate them unsigned, on a state as of our last transaction or later. Raises
        TransactionFailed.

        The result has the accounts `watched` as they would be.
        """
        message = self._message(instructions, MAX_UNITS, self._simulated_price, Hash.default())
        unsigned = [Signature.default()] * message.header.num_required_signatures
        transaction = VersionedTransaction.populate(message, unsigned)
        try:
            return await self.pool.call(
                lambda node: node.simulate(transaction, watched, self.slot or None)
            )
        except Unavailable:
            self.slot = 0  # otherwise, after one forged high slot, all nodes would count as behind
            raise

    def simulated_fee(self, instructions: Sequence[Instruction]) -> int:
        """Return the fee that a simulation takes from the wallet, in lamports."""
        signatures = signature_count(self.wallet.pubkey, instructions)
        return transaction_fee(signatures, MAX_UNITS, self._simulated_price)

    @property
    def _simulated_price(self) -> int:
        return 1 if self._cap else 0

    def _message(
        self, instructions: Sequence[Instruction], units: int, price: int, blockhash: Hash
    ) -> Message:
        prefix = [set_compute_unit_limit(units), set_compute_unit_price(price)]
        return Message.new_with_blockhash([*prefix, *instructions], self.wallet.pubkey, blockhash)

    def highest_fee(self, instructions: Sequence[Instruction]) -> int:
        """Return the highest fee that a transaction of these instructions can cost, in lamports."""
        return transaction_fee(
            signature_count(self.wallet.pubkey, instructions), MAX_UNITS, self._cap
        )

    async def _refilled(
        self, failure: TransactionFailed, instructions: Sequence[Instruction]
    ) -> bool:
        """Return whether the transaction failed for lack of money and a faucet has now funded the
        wallet.

        Raises Refused `InsufficientFunds` if no faucet does.
        """
        if not lacks_funds(failure):
            return False
        wallet_lamports = await balance(self.pool, self.wallet.pubkey)
        missing = lamports_short(failure)
        needed = (
            self.highest_fee(instructions)
            + await rent(self.pool, 0)
            + (wallet_lamports + missing if missing else 0)
        )
        if wallet_lamports >= needed:
            return False  # another account lacks lamports
        await ensure_funds(self.pool, self.wallet.pubkey, needed)
        log.info("wallet %s was given test SOL", self.wallet.pubkey)
        return True

    def refusal(self, failure: TransactionFailed, instructions: Sequence[Instruction]) -> Refused:
        """Return the cluster's refusal of a transaction as an error for people."""
        for log_line in failure.logs:
            log.debug("program log: %s", log_line)
        prefix = [set_compute_unit_limit(0), set_compute_unit_price(0)]
        return refused(failure, [*prefix, *instructions], self._errors)


def allowed_units(used: int, headroom: int) -> int:
    """Return the compute limit of a transaction whose simulation used `used` units."""
    return min(used * 11 // 10 + headroom, MAX_UNITS)


def pack(wallet: Wallet, instructions: Sequence[Instruction]) -> list[list[Instruction]]:
    """Split `instructions`, in order, into the fewest groups that fit a transaction.

    Raises CoordinatorError if one alone does not fit.
    """
    groups: list[list[Instruction]] = []
    for instruction in instructions:
        if groups and transaction_size(wallet, [*groups[-1], instruction]) <= MAX_TRANSACTION:
            groups[-1].append(instruction)
            continue
        if (size := transaction_size(wallet, [instruction])) > MAX_TRANSACTION:
            raise CoordinatorError(
                f"an instruction needs a transaction of {size} bytes, and the limit is {MAX_TRANSACTION}",
                "Shorten names, descriptions and addresses, or change fewer things at once",
            )
        groups.append([instruction])
    return groups


def transaction_size(wallet: Wallet, instructions: Sequence[Instruction]) -> int:
    """Return the size of the signed transaction in bytes, compute-budget instructions included."""
    prefix = [set_compute_unit_limit(0), set_compute_unit_price(0)]
    message = Message.new_with_blockhash([*prefix, *instructions], wallet.pubkey, Hash.default())
    unsigned = [Signature.default()] * message.header.num_required_signatures
    return len(bytes(VersionedTransaction.populate(message, unsigned)))
