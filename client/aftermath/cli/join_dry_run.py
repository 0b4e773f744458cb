"""`train --dry-run`: what joining the run would send and cost, without joining it.

It runs the checks of `can-join`, then simulates the instructions of a join. It cannot estimate the
fees of training, because they depend on the other members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aftermath.cli.can_join import admission, most_severe
from aftermath.cli.present import Ended, Result, facts, note, plain_text

if TYPE_CHECKING:
    from aftermath.chain.dry_run import DryRunReport
    from aftermath.cli.findings import Finding, Subject
    from aftermath.train.connection import MemberBackend
    from aftermath.train.settings import TrainSettings


async def dry_run_join(settings: TrainSettings) -> Ended:
    """Return the end of a dry run of `train`. Raises what keeps this wallet, or this machine, from
    the run.

    Makes no directory, holds no seat and requests no test money.
    """
    from aftermath.cli.check_list import FIT, examine
    from aftermath.events.text import LOADING
    from aftermath.train.admission import check_values
    from aftermath.train.connection import on_solana

    check_values(settings)
    backend = on_solana(settings)
    async with backend.pool:
        subject = _subject(settings, backend)
        _refuse(await admission(subject))
        note(LOADING)
        from aftermath.train.device_options import device_setup  # which loads PyTorch

        device_setup(settings, backend)
        fits = await examine(subject, ("torch", *FIT))
        _refuse(fits)
        assert subject.tier is not None
        report = await _join(settings, backend, subject, subject.tier)
    report.output = {
        "run_id": settings.run_id,
        "tier": subject.tier,
        "why_tier": subject.why_tier,
        "warnings": _warnings(fits),
        "withdrawable_lamports": report.rent + report.bond,
    }
    return _ended(report, subject.tier, subject.why_tier)


def _subject(settings: TrainSettings, backend: MemberBackend) -> Subject:
    """Return what the checks look at. They do not ask for test money."""
    from aftermath.chain.authorizer import Authorizer
    from aftermath.chain.client import CoordinatorClient
    from aftermath.cli.connection import Cluster
    from aftermath.cli.findings import Subject

    pool = backend.pool
    return Subject(
        device=settings.device,
        tier=settings.matformer_tier,
        files=settings,
        chain=Cluster(
            pool, CoordinatorClient(pool, program_id=backend.program_id), Authorizer(pool)
        ),
        wallet=backend.wallet.pubkey,
        authorizer=backend.authorizer,
        owner=settings.owner,
        max_bond=settings.max_bond,
        run_id=settings.run_id,
        checkpoint_dir=settings.checkpoint_dir,
        is_start=True,
    )


def _refuse(findings: list[tuple[str, Finding]]) -> None:
    """Raise the refusal that `can-join` takes its exit code from, if there is one, and note the
    others.
    """
    from aftermath.cli.check_list import refusals

    if not (reasons := refusals(findings)):
        return
    worst = most_severe(reasons)
    for other in reasons:
        if other is not worst:
            note(f"no: {other.message}")
    raise worst


def _warnings(findings: list[tuple[str, Finding]]) -> list[str]:
    """Return the warnings that `train` would begin with, and note them."""
    warnings = [finding.message for _, finding in findings if finding.status == "warning"]
    for warning in warnings:
        note(f"warning: {warning}")
    return warnings


async def _join(
    settings: TrainSettings, backend: MemberBackend, subject: Subject, tier: int
) -> DryRunReport:
    """Simulate the join and return the outcome. It assumes weight 1, because the weight does not
    change the costs.
    """
    from aftermath.chain.accounts import rent
    from aftermath.chain.addresses import membership_address, run_addresses
    from aftermath.chain.admission import FEES_IN_HAND
    from aftermath.chain.client import TRANSITION_UNITS
    from aftermath.chain.dry_run import DrySender, PlannedTransaction
    from aftermath.chain.programs import authorizer_program, coordinator_program, error_tables
    from aftermath.chain.views import membership_account
    from aftermath.chain.wallet import identity_public
    from aftermath.train.connection import member_of

    assert subject.view is not None
    run = subject.view.run
    program = coordinator_program(backend.program_id)
    async with member_of(settings, backend) as member:
        bond = await member.bond_due()
        steps = await member.joining(
            p2p=identity_public(backend.secret),
            tier=tier,
            weight=1,
            schema_hash=subject.view.model.schema_hash,
            stateless=True,
        )
    errors = error_tables(program, authorizer_program())
    sender = DrySender(
        backend.pool, backend.wallet, errors=errors, max_priority_fee=settings.max_priority_fee
    )
    membership = membership_address(
        program.id, run_addresses(program.id, run.run_id).run, run.created, backend.wallet.pubkey
    )
    await sender.creating({membership: membership_account().size})
    # train requires this much in the wallet, including the rent of the wallet's own account
    await sender.ensure_funds(FEES_IN_HAND + bond - await rent(backend.pool, 0))
    return await sender.dry_run([PlannedTransaction(steps)], TRANSITION_UNITS, bond=bond)


def _ended(report: DryRunReport, tier: int, reason: str) -> Ended:
    """Return the end of a dry run, with what comes back later and what comes on top."""
    from rich.console import Group

    from aftermath.chain.refusals import sol
    from aftermath.cli.connection import ended

    end = ended(report)
    paid = report.rent + report.bond
    rows = {"tier": f"{tier}: {reason}" if reason else str(tier)}
    if paid:
        rows["withdraw"] = (
            f"returns {sol(paid)} after you have left; an ejected member loses the bond"
        )
    rows["on top"] = "a fee for each transaction while training"
    return Ended(
        Result(end.result.data, Group(end.result.text or plain_text(""), facts(rows))),
        end.error,
    )
