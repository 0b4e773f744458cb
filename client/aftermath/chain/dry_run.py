"""The sender of a dry run: simulates transactions and reports their outcome and cost.

It raises `DryRunReport` where a `Sender` sends, because the rest of a command expects a changed
chain. It requests no test SOL. If a refusal may come only from an earlier transaction that has not
landed, the outcome stays open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from aftermath.chain.accounts import balance, rent
from aftermath.chain.failures import TransactionFailed
from aftermath.chain.funding import rent_due, signature_count, transaction_fee
from aftermath.chain.refusals import lacks_funds, no_funds
from aftermath.chain.sender import MAX_UNITS, Sender, allowed_units
from aftermath.coordinator.errors import Refused


class Outcome(StrEnum):
    """The result of a simulation."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    OPEN = "open"
    """The outcome depends on an earlier transaction, or on test money."""


@dataclass(frozen=True)
class PlannedTransaction:
    """A transaction that would be sent `times` times, each with other data.

    `units` is its compute limit, if known. `retried`: the command tries again after a refusal.
    """

    instructions: Sequence[Instruction]
    times: int = 1
    units: int | None = None
    retried: bool = False


@dataclass(frozen=True)
class Simulated:
    """A simulated step. `fee` is the highest fee in lamports for all times; `units` is None if
    nothing was measured.
    """

    step: PlannedTransaction
    outcome: Outcome
    fee: int
    units: int | None = None
    refusal: Refused | None = None
    returned: int = 0
    """Lamports that the step gives the wallet, without fees."""


@dataclass(frozen=True)
class NewAccount:
    """An account that would be created or grow: its new size in bytes, and the lamports of rent
    that it lacks.
    """

    address: Pubkey
    size: int
    rent: int


@dataclass
class DryRunReport(Exception):
    """Report everything that a command was about to send. `output`: the command's JSON fields.

    The wallet holds `held` lamports and needs `needed`: rent, fees, bond, the rent of its own
    account, and what the command asks for beforehand. `granted`: a local network would give what
    is missing.
    """

    wallet: Pubkey
    held: int
    needed: int
    granted: bool
    simulated: Sequence[Simulated]
    accounts: Sequence[NewAccount]
    output: dict[str, Any] = field(default_factory=dict)
    bond: int = 0
    """Lamports that the run would lock as a bond."""

    @property
    def refusal(self) -> Refused | None:
        """The first refusal, None if everything would be accepted."""
        if self.held < self.needed and not self.granted:
            return no_funds(self.wallet, self.held, self.needed)
        return next((one.refusal for one in self.simulated if one.outcome is Outcome.REFUSED), None)

    @property
    def rent(self) -> int:
        """Lamports of rent that the wallet pays."""
        return sum(account.rent for account in self.accounts)

    @property
    def fees(self) -> int:
        """The highest fees in lamports."""
        return sum(one.fee for one in self.simulated)

    @property
    def total(self) -> int:
        """The most that leaves the wallet, in lamports."""
        return self.rent + self.fees + self.bond


class DrySender(Sender):
    """A `Sender` that raises `DryRunReport` instead of sending."""

    _accounts: Sequence[NewAccount] = ()
    _requested = 0

    async def send(
        self,
        instructions: Sequence[Instruction],
        *,
        signers: Sequence[Keypair] = (),
        headroom: int = 0,
    ) -> Signature:
        """Raise DryRunReport with this transaction."""
        raise await self.dry_run([PlannedTransaction(instructions)], headroom)

    async def send_each(
        self,
        groups: Sequence[Sequence[Instruction]],
        signers: Sequence[Keypair] = (),
        *,
        headroom: int = 0,
    ) -> list[Signature]:
        """Raise DryRunReport with a transaction for each group, if there are groups."""
        if groups:
            raise await self.dry_run([PlannedTransaction(group) for group in groups], headroom)
        return []

    async def afford(
        self,
        instructions: Sequence[Instruction],
        sizes: Mapping[Pubkey, int] | None = None,
        *,
        later: int = 0,
    ) -> None:
        """Note the accounts and the sum for `DryRunReport`."""
        await self.creating(sizes or {})
        await super().afford(instructions, sizes, later=later)

    async def ensure_funds(self, lamports: int) -> None:
        """Note the sum for the report."""
        self._requested = lamports

    async def creating(self, sizes: Mapping[Pubkey, int]) -> None:
        """Note that accounts of these sizes will be at these addresses."""
        missing_rent = await rent_due(self.pool, sizes) if sizes else {}
        self._accounts = [
            NewAccount(address, sizes[address], lamports)
            for address, lamports in missing_rent.items()
            if lamports
        ]

    async def dry_run(
        self, steps: Sequence[PlannedTransaction], headroom: int = 0, *, bond: int = 0
    ) -> DryRunReport:
        """Return what sending these steps in order would do. One of them pays `bond` lamports."""
        wallet_lamports = await balance(self.pool, self.wallet.pubkey)
        wallet_rent = await rent(self.pool, 0)
        written_accounts: set[Pubkey] = set()
        simulated = []
        for step in steps:
            writes = {
                meta.pubkey for ix in step.instructions for meta in ix.accounts if meta.is_writable
            }
            writes -= {self.wallet.pubkey}
            simulated.append(
                await self._simulated(
                    step,
                    headroom,
                    wallet_lamports,
                    is_certain=not (step.retried or writes & written_accounts),
                )
            )
            written_accounts |= writes
        report = DryRunReport(
            self.wallet.pubkey,
            wallet_lamports,
            0,
            self.pool.is_local,
            simulated,
            self._accounts,
            bond=bond,
        )
        report.needed = max(self._requested, report.total) + wallet_rent
        return report

    async def _simulated(
        self, step: PlannedTransaction, headroom: int, wallet_lamports: int, *, is_certain: bool
    ) -> Simulated:
        price = await self.price(step.instructions)

        def fee(units: int) -> int:
            return step.times * transaction_fee(
                signature_count(self.wallet.pubkey, step.instructions), units, price
            )

        try:
            simulation = await self.simulate(step.instructions, [self.wallet.pubkey])
        except TransactionFailed as failure:
            outcome = Outcome.REFUSED if is_certain and not lacks_funds(failure) else Outcome.OPEN
            refusal = (
                self.refusal(failure, step.instructions) if outcome is Outcome.REFUSED else None
            )
            return Simulated(step, outcome, fee(step.units or MAX_UNITS), step.units, refusal)
        units = step.units or allowed_units(simulation.units or MAX_UNITS, headroom)
        (wallet,) = simulation.accounts
        lamports_after = wallet.lamports if wallet is not None else 0
        returned = max(0, lamports_after + self.simulated_fee(step.instructions) - wallet_lamports)
        return Simulated(step, Outcome.ACCEPTED, fee(units), units, returned=returned)
