"""Turn the cluster's error for a transaction into a sentence and a fix.

Errors that a user can fix get a text here, with a command. Other errors keep the program's text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from anchorpy.error import LangErrorMessage
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from aftermath.chain.accounts import LAMPORTS_PER_SOL
from aftermath.chain.addresses import run_id_among
from aftermath.chain.failures import TransactionFailed, variant
from aftermath.chain.idl import ProgramError
from aftermath.coordinator.errors import Refusal, Refused

INSUFFICIENT_FUNDS = "InsufficientFunds"
CLOSED_TOO_EARLY = "ClosedTooEarly"
_NO_FUNDS = frozenset({"AccountNotFound", "InsufficientFundsForFee", "InsufficientFundsForRent"})
_NO_PROGRAM = frozenset(
    {"ProgramAccountNotFound", "UnsupportedProgramId", "InvalidProgramForExecution"}
)
_FRAME = re.compile(r"Program \w+ (invoke|success|failed|consumed)")
_TRANSFER = re.compile(r"insufficient lamports (\d{1,18}), need (\d{1,18})\b")

# Framework errors of Anchor 2 that anchorpy, made for Anchor 0.2x, does not list.
_ANCHOR_2 = {
    2020: ("ConstraintAccountIsNone", "An account this instruction needs was left out"),
    2040: (
        "ConstraintDuplicateMutableAccount",
        "The same account was given for two roles, one of them writable",
    ),
}

_CONFIGURE_FIX = "Its owner configures it: aftermath-solana update-config {flag} --config-path FILE"
_CONFIGURE = ("{run} is not configured yet", _CONFIGURE_FIX)
_SPEC_INCOMPLETE = (
    "the training spec of {run} is incomplete: an update-config was interrupted or still runs",
    _CONFIGURE_FIX,
)
_TEXTS = {
    "NotMainAuthority": ("{run} belongs to another wallet", "Sign with the owner's key: -w FILE"),
    "NotHalted": (
        "{run} is not paused",
        "Pause it, and wait until its epoch has ended: aftermath-solana set-paused {flag} pause; "
        "if all members have left, advance it: aftermath-solana tick {flag}",
    ),
    "RunHalted": (
        "{run} is not running",
        "Its owner starts or resumes it: aftermath-solana set-paused {flag} resume",
    ),
    "StepsDone": (
        "{run} has trained all its steps",
        "Reopen it with more, for example: aftermath-solana reopen {flag} --total-steps 5000",
    ),
    "AlreadyHalted": (
        "{run} is not running, so it cannot be paused",
        "You can close or change it now; see what it waits for: aftermath-solana show-run {flag}",
    ),
    "NotPaused": (
        "{run} is already running",
        "Follow it: aftermath-solana watch {flag}",
    ),
    "ConfigMissing": _CONFIGURE,
    "ModelMissing": _CONFIGURE,
    "SchemaMissing": _CONFIGURE,
    "SpecMissing": _SPEC_INCOMPLETE,
    "SpecMismatch": _SPEC_INCOMPLETE,
    "NotAuthorized": (
        "this wallet is not admitted to {run}",
        "Ask the run's join authority; if you are a delegate, pass --authorizer KEY",
    ),
    "SchemaMismatch": (
        "this member's model is not the one that {run} is configured for",
        "Restore the config.json of the run's checkpoint, or ask the owner to run update-config again",
    ),
    "Barred": (
        "this wallet is barred from {run}",
        "Ask the owner to lift the bar (kick without --bar): aftermath-solana kick {flag} --wallet {wallet}",
    ),
    "NotEnrolled": (
        "this wallet is no longer a member of {run}: its membership was withdrawn",
        "Join again: aftermath-solana train {flag}",
    ),
    "BondTooLow": (
        "this wallet's bond in {run} is too low: the wallet was ejected, or the owner raised the bond",
        "If you agree to pay it, restart with --max-bond: aftermath-solana train {flag}",
    ),
    "StillBound": (
        "this wallet is in the running epoch of {run}, or waits for the next one",
        "Stop its train, and try again when the epoch has ended; until then its bond may still be taken. "
        "See what the epoch waits for: aftermath-solana show-run {flag}; if nobody is left, end it, which gives "
        "up steps that a stopped member saved: aftermath-solana tick {flag}",
    ),
    "NotAllowedToKick": (
        "only the owner of {run} and its join authority may remove or bar a wallet",
        "Sign with the key of one of these: -w FILE",
    ),
    "NoSuchCheckpoint": (
        "the recorded checkpoints of {run} have changed in the meantime",
        "List them again: aftermath-solana rewind {flag}",
    ),
    "MembersFull": ("all seats of {run} are taken", "Try again after the epoch"),
    "NotAMember": (
        "this wallet is not a member of {run}",
        "List the members: aftermath-solana show-run {flag}; to become one: aftermath-solana train {flag}",
    ),
    "NotAllowedToCheckpoint": (
        "this wallet may not record a checkpoint of {run}",
        "Sign with the key of the owner, or of a tier-0 member that finished the last epoch: -w FILE",
    ),
    "CheckpointMismatch": (
        "the checkpoint is not the model that the members of {run} attested",
        "Wait for the end of the epoch, and record the checkpoint that a tier-0 member wrote then",
    ),
    "CheckpointNotNewer": ("{run} has a checkpoint of this step already, or a later one", ""),
    "CheckpointPlaceRefused": (
        "this wallet may record only a Hub repository as the checkpoint of {run}",
        "Pass --repo OWNER/NAME; members may record a directory only if a recorded checkpoint is one, "
        "or the newest is older than the last epoch",
    ),
    "NotGrantor": (
        "another wallet granted this authorization",
        "Sign with the join authority's key: -w FILE",
    ),
    "NotGrantee": (
        "this authorization is for another wallet",
        "Sign with the authorized key: -w FILE",
    ),
    "TooManyDelegates": (
        "an authorization has at most 64 delegates",
        "Replace them: pass --delegates-clear, and --delegates-added for each delegate to keep",
    ),
    CLOSED_TOO_EARLY: (
        "the authorization is now invalid, but because it has delegates it can be closed only after 30 days",
        "Run the same command then to get the rent back",
    ),
}

_REASONS = {
    "DuplicateWitness": Refusal.ALREADY_DONE,
    "NotUnhealthy": Refusal.ALREADY_DONE,
    "AlreadyEjected": Refusal.ALREADY_DONE,
    "DuplicateVerdict": Refusal.ALREADY_DONE,
    "WrongState": Refusal.WRONG_STATE,
    "StaleHeight": Refusal.WRONG_STATE,
    "NothingToTick": Refusal.WRONG_STATE,
    "NotDisputed": Refusal.WRONG_STATE,
    "NotElected": Refusal.NOT_ELECTED,
    "NotAuditor": Refusal.NOT_ELECTED,
    "NotAJuror": Refusal.NOT_ELECTED,
    "SeatMismatch": Refusal.NOT_ELECTED,
    "NotAMember": Refusal.NOT_A_MEMBER,
    "RunHalted": Refusal.HALTED,
    "MembersFull": Refusal.FULL,
    "WrongEvicted": Refusal.FULL,
    # The wallet may get funds. The run may have changed after the simulation that set the compute
    # limit.
    "CasesFull": Refusal.MAY_PASS,
    INSUFFICIENT_FUNDS: Refusal.MAY_PASS,
    "ComputationalBudgetExceeded": Refusal.MAY_PASS,
    "ProgramFailedToComplete": Refusal.MAY_PASS,
}
"""How a member treats errors of the program and the cluster. All other errors are final."""

Errors = Mapping[Pubkey, Mapping[int, ProgramError]]


def error_text(name: str) -> tuple[str, str]:
    """Return the message and the fix of the error `name`, with placeholders `run` and `flag`."""
    return _TEXTS[name]


def sol(lamports: int) -> str:
    """Format lamports as SOL without trailing zeros."""
    return f"{lamports / LAMPORTS_PER_SOL:.9f}".rstrip("0").rstrip(".") + " SOL"


def refusal(name: str, message: str, fix: str = "") -> Refused:
    """Return the error `name`, with the reason by which a member decides what to do."""
    return Refused(name, message, fix, reason=_REASONS.get(name, Refusal.FINAL))


def no_funds(wallet: Pubkey, balance: int, needed: int) -> Refused:
    """Return the error for a wallet that holds `balance` lamports and needs `needed`."""
    missing = max(needed - balance, 0)
    return refusal(
        INSUFFICIENT_FUNDS,
        f"wallet {wallet} holds {sol(balance)} but needs {sol(needed)}: {sol(missing)} is missing",
        f"Send it at least {sol(missing)} (devnet: solana airdrop 1 {wallet} -u devnet)",
    )


def lacks_funds(failure: TransactionFailed) -> bool:
    """Return whether the payer could not pay the fee, the rent or a transfer."""
    return failure.kind in _NO_FUNDS or any(_TRANSFER.search(line) for line in failure.logs)


def lamports_short(failure: TransactionFailed) -> int:
    """Return the lamports missing for a failed transfer, from the log; 0 if no transfer failed."""
    return max(
        (int(m[2]) - int(m[1]) for line in failure.logs if (m := _TRANSFER.search(line))), default=0
    )


def refused(
    failure: TransactionFailed, instructions: Sequence[Instruction], errors: Errors
) -> Refused:
    """Return the error for a failed transaction. Indices in `failure` refer to `instructions`."""
    failed_instruction = failure.instruction
    if failure.kind in _NO_PROGRAM:
        return _not_deployed(instructions[-1].program_id)
    if failed_instruction is None or not 0 <= failed_instruction[0] < len(instructions):
        return refusal(failure.kind, f"the cluster refused the transaction: {failure.kind}")
    program = instructions[failed_instruction[0]].program_id
    if failure.custom is not None:
        run_id = run_id_among(meta.pubkey for meta in instructions[failed_instruction[0]].accounts)
        return _custom(failure.custom, program, errors.get(program, {}), run_id)
    detail = variant(failed_instruction[1])
    if detail in _NO_PROGRAM:
        return _not_deployed(program)
    last_log_line = next(
        (line for line in reversed(failure.logs) if not _FRAME.match(line)), ""
    ).removeprefix("Program log: ")
    return refusal(
        detail,
        f"program {program} failed: {detail}" + (f" ({last_log_line})" if last_log_line else ""),
        "Check that it is the right program: --rpc, --coordinator-program-id",
    )


def program_refusal(name: str, run_id: str | None, wallet: Pubkey | None = None) -> Refused:
    """Return the program's refusal `name` of a wallet without sending a transaction."""
    words = {
        "run": f"run {run_id}" if run_id else "the run",
        "flag": f"--run-id {shlex.quote(run_id or 'RUN')}",
        "wallet": str(wallet or "WALLET"),
    }
    sentence, fix = _TEXTS[name]
    return refusal(name, sentence.format(**words), fix.format(**words))


def _custom(
    code: int, program: Pubkey, errors: Mapping[int, ProgramError], run_id: str | None
) -> Refused:
    if code in errors:
        name = errors[code].name
        return (
            program_refusal(name, run_id) if name in _TEXTS else refusal(name, errors[code].message)
        )
    if framework := _framework(code):
        name, message = framework
        return refusal(name, f"program {program}: {message} ({name})")
    if program == SYSTEM_PROGRAM and code == 0:
        return refusal("AccountInUse", "an account to create already exists")
    return refusal(f"Custom{code}", f"program {program} refused the transaction with error {code}")


def _framework(code: int) -> tuple[str, str] | None:
    """Return (name, message) of an error of the Anchor framework, or None."""
    for error, message in LangErrorMessage.items():
        if int(error) == code:
            return str(getattr(error, "name", code)), message
    return _ANCHOR_2.get(code)


def _not_deployed(program: Pubkey) -> Refused:
    return refusal(
        "ProgramNotDeployed",
        f"there is no program {program} on this cluster",
        "Check --rpc and the program id, or deploy it: aftermath-solana deploy",
    )
