"""`train --dry-run`: what joining the run would send and cost, without joining it.

Decided
- It answers from what `can-join` looks at, and from the instructions that a member's join is made of. The first reason
  against it ends it as `train` would be ended, and others are said in passing; only lacking funds are told with the
  rest, as in any dry run.
- It tells the join alone. What a member sends while it trains answers what others do: nobody knows it before.
- Nothing is left behind: no directory is made or tried, no place of the wallet is held, no test money asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aftermath.cli.can_join import at_the_chain, chosen, gravest, on_this_machine
from aftermath.cli.present import Ended, Result, facts, note, plain_text

if TYPE_CHECKING:
    from aftermath.base.errors import AftermathError
    from aftermath.base.run_access import RunAccess
    from aftermath.chain.dry_run import Rehearsed
    from aftermath.cli.can_join import OnChain
    from aftermath.train.reach import Reach
from aftermath.train.access_options import access_for
from aftermath.train.settings import TrainSettings


async def rehearsed(settings: TrainSettings) -> Ended:
    """The end of a dry run of `train`. Raises what keeps this wallet, or this machine, from the run."""
    from aftermath.events.text import LOADING
    from aftermath.train.letting_in import check_words
    from aftermath.train.reach import on_solana
    from aftermath.train.tier import AUTO_TIER

    check_words(settings)
    reach = on_solana(settings)
    async with reach.pool:
        entry = await _entry(settings, reach)
        _refuse(entry.refusals)
        note(LOADING)
        tier, why = settings.matformer_tier, ""
        if tier == AUTO_TIER:
            tier, why = chosen(entry.view, reach.wallet.public, settings.device, _access(settings, reach, entry))
        warnings = _fits(settings, reach, entry, tier)
        found = await _join(settings, reach, entry, tier)
    found.beside = {
        "run_id": settings.run_id,
        "tier": tier,
        "why_tier": why,
        "warnings": warnings,
        "withdrawable_lamports": found.rent + found.bond,
    }
    return _ended(found, tier, why)


async def _entry(settings: TrainSettings, reach: Reach) -> OnChain:
    """What the run says of this wallet."""
    from aftermath.chain.authorizer import Authorizer
    from aftermath.chain.client import CoordinatorClient
    from aftermath.cli.connection import Cluster

    pool = reach.pool
    cluster = Cluster(pool, CoordinatorClient(pool, program_id=reach.program_id), Authorizer(pool))
    return await at_the_chain(
        cluster, settings.run_id, reach.wallet.pubkey, reach.authorizer, settings.max_bond, settings.owner
    )


def _fits(settings: TrainSettings, reach: Reach, entry: OnChain, tier: int) -> list[str]:
    """The warnings that `train` would begin with on this machine. Raises what it would refuse here."""
    from aftermath.train.named import named_by

    named_by(settings, reach)
    refusals, warnings = on_this_machine(
        entry.view, reach.wallet.public, tier, settings.device, _access(settings, reach, entry)
    )
    _refuse(refusals)
    for warning in warnings:
        note(f"warning: {warning}")
    return warnings


def _access(settings: TrainSettings, reach: Reach, entry: OnChain) -> RunAccess:
    return access_for(settings, entry.view.run, on_local_network=reach.pool.is_local)


def _refuse(refusals: list[AftermathError]) -> None:
    """Raises the one of these that `can-join` takes its exit code from, if there is any."""
    if not refusals:
        return
    told = gravest(refusals)
    for other in refusals:
        if other is not told:
            note(f"no: {other.message}")
    raise told


async def _join(settings: TrainSettings, reach: Reach, entry: OnChain, tier: int) -> Rehearsed:
    """What the join would do. Its weight, which is measured, changes nothing of that."""
    from aftermath.chain.accounts import rent
    from aftermath.chain.addresses import membership_address, run_addresses
    from aftermath.chain.admission import FEES_IN_HAND
    from aftermath.chain.client import TRANSITION_UNITS
    from aftermath.chain.dry_run import DrySender, Step
    from aftermath.chain.programs import authorizer_program, coordinator_program, error_tables
    from aftermath.chain.views import membership_account
    from aftermath.chain.wallet import identity_public
    from aftermath.train.reach import member_of

    run, program = entry.view.run, coordinator_program(reach.program_id)
    async with member_of(settings, reach) as member:
        bond = await member.bond_due()
        steps = await member.joining(
            p2p=identity_public(reach.secret),
            tier=tier,
            weight=1,
            schema_hash=entry.view.model.schema_hash,
            stateless=True,
        )
    errors = error_tables(program, authorizer_program())
    sender = DrySender(reach.pool, reach.wallet, errors=errors, max_priority_fee=settings.max_priority_fee)
    place = membership_address(program.id, run_addresses(program.id, run.run_id).run, run.created, reach.wallet.pubkey)
    await sender.creating({place: membership_account().size})
    # train asks that the wallet hold this much in all, its own account's rent included
    await sender.ensure_funds(FEES_IN_HAND + bond - await rent(reach.pool, 0))
    return await sender.rehearse([Step(steps)], TRANSITION_UNITS, bond=bond)


def _ended(found: Rehearsed, tier: int, why: str) -> Ended:
    """The end of a dry run, with what comes back later and what comes on top."""
    from rich.console import Group

    from aftermath.chain.refusals import sol
    from aftermath.cli.dry_run import ended

    told, paid = ended(found), found.rent + found.bond
    later = {"tier": f"{tier}: {why}" if why else str(tier)}
    if paid:
        later["withdraw"] = f"gives back {sol(paid)} once you have left; the bond not to a member that was ejected"
    later["on top"] = "fees of what a member sends while it trains, which answers what others do"
    return Ended(Result(told.result.data, Group(told.result.text or plain_text(""), facts(later))), told.error)
