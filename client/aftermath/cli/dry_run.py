"""`--dry-run`: what a command would have sent, as a table for people and as JSON for scripts."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from solders.instruction import Instruction
from solders.system_program import ID as SYSTEM_PROGRAM

from aftermath.chain.dry_run import Outcome, Rehearsed, Simulated
from aftermath.chain.loader import CALLS, LOADER
from aftermath.chain.programs import authorizer_program, coordinator_program
from aftermath.chain.refusals import sol
from aftermath.cli.present import Ended, Result, completed_text, facts, listing, plain_text

if TYPE_CHECKING:
    from rich.console import RenderableType

_NAMES = {LOADER: CALLS, SYSTEM_PROGRAM: {bytes(4): "system.create_account"}}
_WORDS = {
    Outcome.ACCEPTED: "accepted by the simulation",
    Outcome.REFUSED: "refused by the simulation",
    Outcome.OPEN: "not known before what comes first is done",
}


def ended(found: Rehearsed) -> Ended:
    """Return the exception that ends a dry run, with its report and first refusal."""
    refusal = found.refusal
    return Ended(Result(_data(found), _text(found)), refusal)


def call(instruction: Instruction) -> str:
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


def _calls(one: Simulated) -> list[str]:
    runs = [(name, len(list(group))) for name, group in groupby(map(call, one.step.instructions))]
    return [name if count == 1 else f"{name} x {count}" for name, count in runs]


def _data(found: Rehearsed) -> dict[str, Any]:
    refusal = found.refusal
    return {
        "dry_run": True,
        "wallet": str(found.wallet),
        "transactions": [_transaction(one) for one in found.simulated],
        "accounts": [
            {"address": str(one.address), "bytes": one.size, "rent_lamports": one.rent}
            for one in found.accounts
        ],
        "rent_lamports": found.rent,
        "fees_lamports": found.fees,
        "bond_lamports": found.bond,
        "total_lamports": found.total,
        "returned_lamports": sum(one.returned for one in found.simulated),
        "held_lamports": found.held,
        "needed_lamports": found.needed,
        "refusal": refusal
        and {"code": refusal.code, "error": refusal.message, "fix": completed_text(refusal.fix)},
        **found.output,
    }


def _transaction(one: Simulated) -> dict[str, Any]:
    return {
        "instructions": [call(instruction) for instruction in one.step.instructions],
        "times": one.step.times,
        "outcome": one.outcome.value,
        "compute_units": one.units,
        "fee_lamports": one.fee,
    }


def _text(found: Rehearsed) -> RenderableType:
    from rich.console import Group

    parts: list[RenderableType] = [plain_text("nothing was sent; this would be:")]
    columns = ("transactions", "instructions", "fee at most", "outcome")
    parts.append(
        listing(
            columns,
            [
                [one.step.times, _calls(one), sol(one.fee), _ends(one, found)]
                for one in found.simulated
            ],
        )
    )
    if found.accounts:
        rows = [[str(one.address), f"{one.size:,}", sol(one.rent)] for one in found.accounts]
        parts.append(listing(("account", "bytes", "rent"), rows))
    bond = f"{sol(found.bond)} of bond, " if found.bond else ""
    costs = {
        "in all": f"{sol(found.total)}: {sol(found.rent)} of rent, {bond}{sol(found.fees)} of fees at most"
    }
    if returned := sum(one.returned for one in found.simulated):
        costs["comes back"] = sol(returned)
    lacks = _lacks(found)
    costs["wallet"] = f"{found.wallet} holds {sol(found.held)}, and needs {sol(found.needed)}"
    if lacks:
        costs["wallet"] += f": it lacks {sol(lacks)}"
    if lacks and found.granted:
        costs["test money"] = "this machine's network gives what is missing"
    return Group(*parts, facts(costs))


def _lacks(found: Rehearsed) -> int:
    """Return the lamports that the wallet lacks."""
    return max(0, found.needed - found.held)


def _ends(one: Simulated, found: Rehearsed) -> str:
    """Return a transaction's outcome in words. Name missing SOL if that makes it unknown."""
    lacks = _lacks(found)
    if one.outcome is not Outcome.OPEN or not lacks:
        return _WORDS[one.outcome]
    if found.granted:
        return f"not known before the wallet has the {sol(lacks)} that it lacks"
    return f"would fail: the wallet lacks {sol(lacks)}"
