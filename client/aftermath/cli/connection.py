"""Open a cluster for the length of a command, with or without a wallet.

`--dry-run` of a signing command gets a sender that simulates. Its report is a table for people and
JSON for scripts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from aftermath.chain.accounts import balance
from aftermath.chain.authorizer import Authorization, Authorizer
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.dry_run import DryRunReport, Outcome, Simulated
from aftermath.chain.loader import CALLS, LOADER
from aftermath.chain.options import coordinator_id, open_pool
from aftermath.chain.programs import authorizer_program, coordinator_program
from aftermath.chain.refusals import sol
from aftermath.chain.rpc import RpcPool
from aftermath.chain.sender import Sender
from aftermath.chain.wallet import Wallet, load_wallet
from aftermath.cli.options import ClusterOptions, SigningOptions
from aftermath.cli.present import Ended, Result, completed_text, facts, listing, plain_text

if TYPE_CHECKING:
    from rich.console import RenderableType


PATIENCE_SECONDS = 10.0
"""How long a person waits for a cluster that does not answer."""
_NAMES = {LOADER: CALLS, SYSTEM_PROGRAM: {bytes(4): "system.create_account"}}
_WORDS = {
    Outcome.ACCEPTED: "accepted by the simulation",
    Outcome.REFUSED: "refused by the simulation",
    Outcome.OPEN: "unknown until the transactions before it land",
}


def ended(report: DryRunReport) -> Ended:
    """Return the exception that ends a dry run, with its report and first refusal."""
    refusal = report.refusal
    return Ended(Result(_data(report), _text(report)), refusal)


def instruction_name(instruction: Instruction) -> str:
    """Return an instruction's name, or its program's address if it is unknown."""
    names = _NAMES.get(instruction.program_id)
    if names is None:
        names = authorizer_program().calls
        if instruction.program_id != authorizer_program().id:
            names = coordinator_program().calls
    data = bytes(instruction.data)
    return next(
        (name for begin, name in names.items() if data.startswith(begin)),
        str(instruction.program_id),
    )


def _calls(simulated: Simulated) -> list[str]:
    repeats = [
        (name, len(list(group)))
        for name, group in groupby(map(instruction_name, simulated.step.instructions))
    ]
    return [name if count == 1 else f"{name} x {count}" for name, count in repeats]


def _data(report: DryRunReport) -> dict[str, Any]:
    refusal = report.refusal
    return {
        "dry_run": True,
        "wallet": str(report.wallet),
        "transactions": [_transaction(item) for item in report.simulated],
        "accounts": [
            {"address": str(item.address), "bytes": item.size, "rent_lamports": item.rent}
            for item in report.accounts
        ],
        "rent_lamports": report.rent,
        "fees_lamports": report.fees,
        "bond_lamports": report.bond,
        "total_lamports": report.total,
        "returned_lamports": sum(item.returned for item in report.simulated),
        "held_lamports": report.held,
        "needed_lamports": report.needed,
        "refusal": refusal
        and {"code": refusal.code, "error": refusal.message, "fix": completed_text(refusal.fix)},
        **report.output,
    }


def _transaction(simulated: Simulated) -> dict[str, Any]:
    return {
        "instructions": [
            instruction_name(instruction) for instruction in simulated.step.instructions
        ],
        "times": simulated.step.times,
        "outcome": simulated.outcome.value,
        "compute_units": simulated.units,
        "fee_lamports": simulated.fee,
    }


def _text(report: DryRunReport) -> RenderableType:
    from rich.console import Group

    blocks: list[RenderableType] = [plain_text("nothing was sent; the command would send:")]
    columns = ("transactions", "instructions", "fee at most", "outcome")
    blocks.append(
        listing(
            columns,
            [
                [item.step.times, _calls(item), sol(item.fee), _outcome_text(item, report)]
                for item in report.simulated
            ],
        )
    )
    if report.accounts:
        rows = [[str(item.address), f"{item.size:,}", sol(item.rent)] for item in report.accounts]
        blocks.append(listing(("account", "bytes", "rent"), rows))
    bond = f"{sol(report.bond)} of bond, " if report.bond else ""
    costs = {
        "in all": f"{sol(report.total)}: {sol(report.rent)} of rent, {bond}{sol(report.fees)} of fees at most"
    }
    if returned := sum(item.returned for item in report.simulated):
        costs["comes back"] = sol(returned)
    lacks = _lacks(report)
    costs["wallet"] = f"{report.wallet} holds {sol(report.held)}"
    costs["required"] = f"{sol(report.needed)}, with the wallet's own rent and later fees"
    if lacks:
        costs["required"] += f": it lacks {sol(lacks)}"
    if lacks and report.granted:
        costs["test money"] = "the local network gives the missing SOL"
    return Group(*blocks, facts(costs))


def _lacks(report: DryRunReport) -> int:
    """Return the lamports that the wallet lacks."""
    return max(0, report.needed - report.held)


def _outcome_text(simulated: Simulated, report: DryRunReport) -> str:
    """Return a transaction's outcome in words. Name missing SOL if that makes it unknown."""
    lacks = _lacks(report)
    if simulated.outcome is not Outcome.OPEN or not lacks:
        return _WORDS[simulated.outcome]
    if report.granted:
        return f"unknown until the wallet has the missing {sol(lacks)}"
    return f"would fail: the wallet lacks {sol(lacks)}"


@dataclass(frozen=True)
class Cluster:
    """The programs on a cluster, to read."""

    pool: RpcPool
    coordinator: CoordinatorClient
    authorizer: Authorizer

    async def balance(self, key: Pubkey) -> int:
        """Return the lamports of an account, 0 if it does not exist."""
        return await balance(self.pool, key)


@dataclass(frozen=True)
class SignedCluster(Cluster):
    """The programs on a cluster, and the wallet that signs and pays."""

    wallet: Wallet

    @property
    def sender(self) -> Sender:
        """Packs, signs and sends instructions."""
        return self.coordinator.sender

    async def balance(self, key: Pubkey) -> int:
        """Return the lamports of an account after our last transaction, 0 if it does not exist."""
        return await balance(self.pool, key, self.sender.slot or None)

    async def authorization(
        self, grantor: Pubkey, grantee: Pubkey, scope: bytes
    ) -> Authorization | None:
        """Return the authorization after our last transaction (see `Authorizer.fetch`)."""
        return await self.authorizer.fetch(
            grantor, grantee, scope, min_slot=self.sender.slot or None
        )


@asynccontextmanager
async def connect(choice: ClusterOptions) -> AsyncIterator[Cluster]:
    """Open the cluster that these options name, for reading."""
    pool, program_id = _open(choice)
    async with pool:
        yield Cluster(pool, CoordinatorClient(pool, program_id=program_id), Authorizer(pool))


@asynccontextmanager
async def sign_in(choice: SigningOptions) -> AsyncIterator[SignedCluster]:
    """Open the cluster and the wallet that these options name.

    In a dry run, raise Ended when a transaction would be sent.
    """
    wallet = load_wallet(choice.wallet_private_key_path)
    cap = choice.max_priority_fee
    pool, program_id = _open(choice)
    async with pool:
        coordinator = CoordinatorClient(
            pool, wallet, program_id=program_id, max_priority_fee=cap, dry=choice.dry_run
        )
        try:
            yield SignedCluster(pool, coordinator, Authorizer(pool), wallet)
        except DryRunReport as report:
            raise ended(report) from None


def _open(choice: ClusterOptions) -> tuple[RpcPool, Pubkey | None]:
    return open_pool(choice, patience=PATIENCE_SECONDS), coordinator_id(choice)
