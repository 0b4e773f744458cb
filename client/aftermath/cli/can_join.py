"""`can-join`: say whether `train` could join with this wallet on this machine.

It runs the checks of `train`, first those that do not need PyTorch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aftermath.base.errors import AftermathError, UsageError
from aftermath.base.stdio import one_output
from aftermath.cli.command import command
from aftermath.cli.error_report import EXIT_KNOWN, EXITS
from aftermath.cli.options import (
    AccessOptions,
    Authorizer,
    ClusterOptions,
    Device,
    MaxBond,
    MemberTier,
    RunId,
    RunOwner,
)
from aftermath.cli.present import Result, note

if TYPE_CHECKING:
    from solders.pubkey import Pubkey

    from aftermath.cli.findings import Finding, Subject

_FINAL_CODES = ("barred",)
"""Codes of refusals on every machine. `can-join` then skips the checks of this machine."""
_HALTED = "run-halted"


@command("can-join", example="aftermath-solana can-join --run-id demo --address wallet.json")
async def can_join(
    options: ClusterOptions,
    run_id: RunId,
    address: Annotated[
        str,
        typer.Option(
            "--address",
            "--wallet",
            help="The wallet that wants to join: a public key, or a key file that holds it.",
        ),
    ],
    authorizer: Authorizer = None,
    owner: RunOwner = None,
    max_bond: MaxBond = 0,
    matformer_tier: MemberTier = 0,
    device: Device = "auto",
    *,
    files: AccessOptions,
) -> Result:
    """Check whether a wallet may join a run, and say why not.

    Runs the checks that train runs before it joins: admission, the client's version, funds and
    bond, other local processes with the same wallet, the device, and the run's model, tier and
    data. Lists the local files that the run reads and the addresses that it contacts. On a local
    network it requests the test SOL that the wallet lacks.

    Exits 0 if the wallet may join, 10 if the run needs another version, 11 if the run does not
    admit the wallet, and 1 for any other reason.
    """
    from aftermath.chain.options import public_key
    from aftermath.cli.connection import connect
    from aftermath.cli.findings import Subject
    from aftermath.replica.options import indices_named

    indices_named(device)
    user = public_key(address)
    subject = Subject(
        device=device,
        tier=matformer_tier,
        may_fund=True,
        files=files,
        wallet=user,
        authorizer=public_key(authorizer) if authorizer is not None else None,
        owner=owner,
        max_bond=max_bond,
        run_id=run_id,
    )
    async with connect(options) as chain:
        subject.chain = chain
        findings = await admission(subject, "balance")
    result = await answer(subject, findings)
    made = {"checkpoint_dir": subject.checkpoint_dir, "matformer_tier": 0}  # only tier 0 saves
    return replace(
        result,
        case="" if address == str(user) else "file",
        made=made if subject.checkpoint_dir is not None else {},
    )


async def admission(subject: Subject, *extra: str) -> list[tuple[str, Finding]]:
    """Read the run, and return the findings of its admission checks.

    `extra`: names of further checks. Raises UsageError, and CoordinatorError if there is no run.
    """
    from aftermath.cli.check_list import ADMISSION, examine
    from aftermath.cli.run_checks import read_run
    from aftermath.coordinator.errors import Unavailable

    await read_run(subject)
    return await examine(subject, (*ADMISSION, *extra), passing=(UsageError, Unavailable))


async def answer(subject: Subject, findings: list[tuple[str, Finding]]) -> Result:
    """Check the machine, and return the answer of `can-join`. `findings`: the chain's findings."""
    from aftermath.cli.check_list import FIT, examine, refusals
    from aftermath.coordinator.errors import Unavailable
    from aftermath.train.access import access_report

    assert subject.view is not None
    final = _is_final(subject, refusals(findings))
    if not final:
        _print_refusals(subject, refusals(findings))
        findings = findings + await examine(
            subject, ("torch", *FIT), passing=(UsageError, Unavailable)
        )
    reasons = refusals(findings)
    warnings = [finding.message for _, finding in findings if finding.status == "warning"]
    for warning in warnings:
        note(f"warning: {warning}")
    access = access_report(subject.view.model, subject.access())
    data = _data(subject, reasons) | {
        "warnings": warnings,
        "reads": access.files,
        "contacts": access.addresses,
        **_run_facts(subject),
    }
    text = (
        _refusal_text(reasons, _label(subject, reasons))
        if reasons
        else f"yes: {subject.wallet} may join run {subject.run_id}"
    )
    text += f"\ntier {subject.tier}: {subject.why_tier}" if subject.why_tier else ""
    text += "" if final else "".join(f"\n{line}" for line in access.lines())
    return Result(data, text, _exit_of(most_severe(reasons)) if reasons else 0)


def refused_by(refusal: AftermathError, run_id: str, user: Pubkey) -> Result:
    """Return the answer of `can-join` if a server does not let this member read the run."""
    from aftermath.cli.findings import Subject

    return Result(
        _data(Subject(run_id=run_id, wallet=user), [refusal]),
        _refusal_text([refusal]),
        _exit_of(refusal),
    )


def most_severe(refusals: list[AftermathError]) -> AftermathError:
    """Return the refusal whose exit code a command ends with."""
    return max(refusals, key=_exit_of)


def _exit_of(refusal: AftermathError) -> int:
    return EXITS.get(refusal.code, EXIT_KNOWN)


def _is_final(subject: Subject, refusals: list[AftermathError]) -> bool:
    """Return whether no machine could join: the wallet is barred, or the run takes no members."""
    from aftermath.rules.state import RunState

    assert subject.view is not None
    finished = subject.view.run.state is RunState.FINISHED
    barred = any(refusal.code in _FINAL_CODES for refusal in refusals)
    return finished or barred or not subject.view.model.configured


def _label(subject: Subject, refusals: list[AftermathError]) -> str:
    """Return "not yet" if the wallet could join once the run is resumed, else "no"."""
    from aftermath.rules.state import RunState

    assert subject.view is not None
    only_halted = all(refusal.code == _HALTED for refusal in refusals)
    return "not yet" if only_halted and subject.view.run.state is not RunState.FINISHED else "no"


def _print_refusals(subject: Subject, refusals: list[AftermathError]) -> None:
    """Print refusals on stderr before PyTorch loads, unless stdout is the same stream."""
    from aftermath.events.text import LOADING

    for refusal in () if one_output() else refusals:
        note(f"{_label(subject, refusals)}: {refusal.message}")
    note(LOADING)


def _refusal_text(refusals: list[AftermathError], label: str = "no") -> str:
    """Return the reasons against a join, and the fix of each that has one.

    A halted run has a fix only if nothing else keeps the wallet out.
    """
    lasting = [refusal for refusal in refusals if refusal.code != _HALTED]
    fixes = [f"fix: {refusal.fix}" for refusal in lasting or refusals if refusal.fix]
    return "\n".join([f"{label}: {'; '.join(refusal.message for refusal in refusals)}", *fixes])


def _data(subject: Subject, refusals: list[AftermathError]) -> dict[str, Any]:
    return {
        "run_id": subject.run_id,
        "address": str(subject.wallet),
        "can_join": not refusals,
        "reasons": [refusal.message for refusal in refusals],
        "fixes": [refusal.fix for refusal in refusals],
        "codes": [refusal.code for refusal in refusals],
    }


def _run_facts(subject: Subject) -> dict[str, Any]:
    from aftermath import __version__
    from aftermath.train.tier import AUTO_TIER

    assert subject.view is not None
    membership = subject.membership
    return {
        "tier": None if subject.tier == AUTO_TIER else subject.tier,
        "why_tier": subject.why_tier,
        "authorized_as": str(subject.authorization.grantee) if subject.authorization else None,
        "client_version": subject.view.model.client_version,
        "this_version": __version__,
        "bond": subject.view.run.config.join_bond,
        "bond_paid": membership.bond if membership else 0,
    }
