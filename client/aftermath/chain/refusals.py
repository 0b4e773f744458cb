"""Turns the cluster's error for a transaction into a sentence: the program's own words, or what is missing and how
to get it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from anchorpy.error import LangErrorMessage
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from aftermath.chain.accounts import LAMPORTS_PER_SOL
from aftermath.chain.failures import TransactionFailed
from aftermath.chain.idl import ProgramError
from aftermath.run.errors import ChainRefused

INSUFFICIENT_FUNDS = "InsufficientFunds"
_NO_FUNDS = frozenset({"AccountNotFound", "InsufficientFundsForFee", "InsufficientFundsForRent"})
_NO_PROGRAM = frozenset({"ProgramAccountNotFound", "UnsupportedProgramId", "InvalidProgramForExecution"})
_FRAME = re.compile(r"Program \w+ (invoke|success|failed|consumed)")
_TRANSFER = re.compile(r"insufficient lamports (\d+), need (\d+)")

# Framework errors of Anchor 2 that anchorpy, made for Anchor 0.2x, does not list.
_ANCHOR_2 = {
    2020: ("ConstraintAccountIsNone", "An account this instruction needs was left out"),
    2040: ("ConstraintDuplicateMutableAccount", "The same account was given for two roles, one of them writable"),
}

_CONFIGURE = "aftermath-solana update-config --run-id RUN --config-path FILE"
# Commands for what the program can only describe.
_FIXES = {
    "NotHalted": "aftermath-solana set-paused --run-id RUN pause; a run that no member is left to end is moved on by: "
    "aftermath-solana tick --run-id RUN",
    "RunHalted": "its owner resumes it: aftermath-solana set-paused --run-id RUN resume",
    "ConfigMissing": _CONFIGURE,
    "ModelMissing": _CONFIGURE,
    "SchemaMissing": _CONFIGURE,
    "NotMainAuthority": "name its key file: -w FILE",
}

Errors = Mapping[Pubkey, Mapping[int, ProgramError]]


def sol(lamports: int) -> str:
    """Lamports as SOL, without trailing zeros."""
    return f"{lamports / LAMPORTS_PER_SOL:.9f}".rstrip("0").rstrip(".") + " SOL"


def no_funds(wallet: Pubkey, held: int, needed: int) -> ChainRefused:
    """The sentence for a wallet that cannot pay."""
    missing = max(needed - held, 0)
    return ChainRefused(
        INSUFFICIENT_FUNDS,
        f"wallet {wallet} holds {sol(held)} but needs {sol(needed)}: {sol(missing)} are missing",
        f"send it at least {sol(missing)} (devnet: solana airdrop 1 {wallet} -u devnet)",
    )


def lacks_funds(failure: TransactionFailed) -> bool:
    """Whether the payer could not pay the fee, the rent or a transfer."""
    return failure.kind in _NO_FUNDS or any(_TRANSFER.search(line) for line in failure.logs)


def lamports_needed(failure: TransactionFailed) -> int:
    """The transfer that failed, as the system program logged it; 0 when it did not."""
    return max((int(m[2]) for line in failure.logs if (m := _TRANSFER.search(line))), default=0)


def refused(failure: TransactionFailed, instructions: Sequence[Instruction], errors: Errors) -> ChainRefused:
    """ChainRefused for a transaction made of `instructions` (the indices in `failure` count these)."""
    found = failure.instruction
    if failure.kind in _NO_PROGRAM:
        return _not_deployed(instructions[-1].program_id)
    if found is None or not 0 <= found[0] < len(instructions):
        return ChainRefused(failure.kind, f"the cluster refused the transaction: {failure.kind}")
    program = instructions[found[0]].program_id
    if failure.custom is not None:
        return _custom(failure.custom, program, errors.get(program, {}))
    detail = found[1] if isinstance(found[1], str) else str(next(iter(found[1]), "")) if found[1] else "unknown"
    if detail in _NO_PROGRAM:
        return _not_deployed(program)
    said = next((line for line in reversed(failure.logs) if not _FRAME.match(line)), "").removeprefix("Program log: ")
    return ChainRefused(detail, f"program {program} failed: {detail}" + (f" ({said})" if said else ""))


def _custom(code: int, program: Pubkey, errors: Mapping[int, ProgramError]) -> ChainRefused:
    if code in errors:
        return ChainRefused(errors[code].name, errors[code].message, _FIXES.get(errors[code].name, ""))
    if framework := _framework(code):
        name, message = framework
        return ChainRefused(name, f"program {program}: {message} ({name})")
    if program == SYSTEM_PROGRAM and code == 0:
        return ChainRefused("AccountInUse", "an account to be created exists already")
    return ChainRefused(f"Custom{code}", f"program {program} refused the transaction with error {code}")


def _framework(code: int) -> tuple[str, str] | None:
    """(name, message) of an error of the Anchor framework itself."""
    for listed, message in LangErrorMessage.items():
        if int(listed) == code:
            return str(getattr(listed, "name", code)), message
    return _ANCHOR_2.get(code)


def _not_deployed(program: Pubkey) -> ChainRefused:
    return ChainRefused(
        "ProgramNotDeployed",
        f"there is no program {program} on this cluster",
        "check --rpc and the program id, or deploy it: aftermath-solana deploy",
    )
