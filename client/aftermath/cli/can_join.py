"""`can-join`: would `train` with this wallet, on this machine, be let in?

Decided: it answers from what `train` checks before it joins, by the same functions and in the same order: options, the
chain, and only then what takes PyTorch, which is seconds to load. What the chain objects to is said before that, and
the answer has it again. What `train` would wait for, or ask the run's members for, is no obstacle but a warning.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from aftermath.base.errors import AftermathError, UsageError
from aftermath.base.stdio import one_output
from aftermath.cli.command import command
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
from aftermath.cli.present import EXIT_KNOWN, EXITS, Result, note

if TYPE_CHECKING:
    from solders.pubkey import Pubkey

    from aftermath.base.run_access import RunAccess
    from aftermath.cli.connection import Cluster
    from aftermath.coordinator.errors import Refused
    from aftermath.coordinator.view import View
    from aftermath.rules.members import Membership

_WHATEVER_THE_MACHINE = ("barred",)
"""Codes of refusals that no other machine would avoid, so `can-join` does not check this one."""


def obstacles(
    view: View, address: bytes, held: Membership | None, *, authorized: bool, named: Pubkey | None
) -> list[Refused]:
    """Why the program would refuse a join of this wallet now, by its own errors' names; empty when it would not.

    `named`: the grantee as whose delegate it wants to join, if it says one.
    """
    from solders.pubkey import Pubkey

    from aftermath.cli.authorization import as_delegate
    from aftermath.coordinator.errors import Refused
    from aftermath.rules.state import MemberState

    run, members = view.run, view.members
    reasons = []
    if not authorized:
        nobody = "no valid authorization of the run's join authority admits it"
        grantor = Pubkey.from_bytes(run.join_authority)
        other = "name another" if named else "name one"
        fix = f"Ask the run's join authority {grantor} for an authorization, or {other} with --authorizer"
        reasons.append(Refused("NotAuthorized", f"{nobody} ({as_delegate(named)})", fix))
    if run.halted:
        reasons.append(Refused("RunHalted", halted(view)))
    place = members.find(address)
    if held is not None and held.barred:
        lifted = "its owner or its join authority can lift that with kick"
        reasons.append(Refused("Barred", f"the wallet is barred from the run ({lifted})"))
    full = all(seat.used and (seat.pending or seat.state is not MemberState.IDLE) for seat in members.seats)
    if full and place is None:
        taken = f"all {len(members.seats)} seats are taken"
        reasons.append(Refused("MembersFull", taken, "Try again when an epoch has ended"))
    return reasons


def halted(view: View) -> str:
    """Why nobody may join a run that stands still, on whom that waits, and what whoever wants to join can do."""
    from aftermath.events.progress import state_words
    from aftermath.events.status import owner_owes
    from aftermath.rules.state import RunState

    run, model = view.run, view.model
    if run.state is RunState.FINISHED:
        return "the run is finished (its owner can let it go on, with more steps: reopen)"
    can = "train may be started now, and joins once that is done"
    if not model.configured:  # train would not know what to train, and ends
        can = f"watch --run-id {shlex.quote(run.run_id)} shows when that is done"
    return f"the run is {state_words(run.state.name)}, and waits: {owner_owes(run, model)}; {can}"


@contextmanager
def noting(refusals: list[AftermathError]) -> Iterator[None]:
    """Note what a check of `train` refuses. What is wrong with the command line, or nobody answers, is no answer."""
    from aftermath.coordinator.errors import Unavailable

    try:
        yield
    except (UsageError, Unavailable):
        raise
    except AftermathError as refusal:
        refusals.append(refusal)


@dataclass(frozen=True)
class OnChain:
    """What the run's accounts say of a wallet that wants to join."""

    view: View
    authorized_as: str | None
    """The grantee of the authorization that admits it."""
    bond_paid: int
    lacking: int
    """Lamports of the run's bond that it has yet to pay."""
    refusals: list[AftermathError]
    """Why the program would refuse it, and what `train` would end with."""


async def at_the_chain(
    chain: Cluster, run_id: str, user: Pubkey, delegate_of: Pubkey | None, max_bond: int, owner: str | None
) -> OnChain:
    """Look at all that needs no PyTorch, but for funds: owner, authorization, membership, version, bond, and other
    processes that take part with the wallet.
    """
    from solders.pubkey import Pubkey

    from aftermath import __version__
    from aftermath.base.files import state_directory
    from aftermath.chain.addresses import run_addresses
    from aftermath.chain.admission import check_verdicts, check_version
    from aftermath.chain.memberships import check_bond, lacking, membership_of
    from aftermath.coordinator.view import View
    from aftermath.train.known_runs import KnownRuns
    from aftermath.train.letting_in import owner_named

    run, model, members = await chain.coordinator.snapshot(run_id)
    grantor, address = Pubkey.from_bytes(run.join_authority), run_addresses(chain.coordinator.program_id, run_id).run
    found = await chain.authorizer.admitting(grantor, user, address, delegate_of)
    held = await membership_of(chain.pool, chain.coordinator.program_id, run, user)
    view = View(run, members, model)
    refusals: list[AftermathError] = [
        *obstacles(view, bytes(user), held, authorized=found is not None, named=delegate_of)
    ]
    with noting(refusals):
        network = {"cluster": await chain.pool.genesis(), "program": str(chain.coordinator.program_id)}
        KnownRuns(state_directory() / "runs", **network).check(run, owner_named(owner))
    with noting(refusals):
        check_verdicts(run)
    with noting(refusals):
        check_version(run_id, model.client_version, __version__)
    with noting(refusals):
        check_bond(run, held, max_bond)
    with noting(refusals):
        await _check_only_process(chain, run_id, user)
    grantee, bond = str(found.grantee) if found else None, held.bond if held else 0
    return OnChain(view, grantee, bond, lacking(run, held), refusals)


async def _check_only_process(chain: Cluster, run_id: str, user: Pubkey) -> None:
    """Raises Unsuitable if a process on this machine takes part with the wallet already."""
    from aftermath.base.files import cache_directory
    from aftermath.train.lock import only_process

    cluster, program = await chain.pool.genesis(), str(chain.coordinator.program_id)
    with only_process(cache_directory("locks"), cluster=cluster, program=program, run_id=run_id, wallet=str(user)):
        pass


def on_this_machine(
    view: View, wallet: bytes, tier: int, device: str, access: RunAccess
) -> tuple[list[AftermathError], list[str]]:
    """What `train` would refuse about device, model, tier and data, and the warnings it would begin with."""
    from aftermath.data.source import SourceAway
    from aftermath.ranks.mesh import Mesh, mesh_of
    from aftermath.replica.exactness import exact_device
    from aftermath.train.letting_in import check_model, check_tier
    from aftermath.train.newcomer import may_ask
    from aftermath.train.outfit import data_of, outline_of
    from aftermath.train.tier import check_memory

    refusals: list[AftermathError] = []
    warnings: list[str] = []
    run, model = view.run, view.model
    mesh: Mesh | None = None
    with noting(refusals):
        mesh = mesh_of(device, 0, 1)
        exact_device(device)
    if not model.configured:  # which is an obstacle already
        return refusals, warnings
    try:
        check_model(model, run.run_id)
    except AftermathError as refusal:
        return [*refusals, refusal], warnings
    try:
        schema = outline_of(model, run.run_id, warnings.append, access=access)[1]
    except AftermathError as refusal:
        if not may_ask(view, wallet):
            return [*refusals, refusal], warnings
        return refusals, [*warnings, f"train would ask the run's members what its model is: {refusal.message}"]
    with noting(refusals):
        check_tier(tier, model.tiers, run.run_id)
        if mesh is not None:
            check_memory(view, schema, tier, mesh.devices)
    try:
        data_of(model, schema, access)
    except SourceAway as away:
        warnings.append(f"{away.message}; train would wait for it")
    except AftermathError as refusal:
        refusals.append(refusal)
    return refusals, warnings


def chosen(view: View, wallet: bytes, device: str, access: RunAccess) -> tuple[int, str]:
    """The tier that `train --matformer-tier auto` would take here, and why. Raises what keeps it from one."""
    from aftermath.ranks.mesh import mesh_of
    from aftermath.replica.passes import arithmetic_of
    from aftermath.train.outfit import schema_of
    from aftermath.train.settings import TrainSettings
    from aftermath.train.tier import AUTO_TIER, check_alone, chosen_here

    mesh = mesh_of(device, 0, 1)
    check_alone(AUTO_TIER, mesh)
    settings = TrainSettings(run_id=view.run.run_id, device=device)
    arithmetic = arithmetic_of(mesh.devices[0], settings.precision, settings.compile)
    choice = chosen_here(view, wallet, schema_of(view.model, view.run.run_id, access=access), settings, arithmetic)
    return choice.tier, choice.why


def tell(entry: OnChain) -> None:
    """What is known before PyTorch is loaded, on stderr; not where the answer, which has it again, goes to as well."""
    from aftermath.events.text import LOADING

    for refusal in () if one_output() else entry.refusals:
        note(f"no: {refusal.message}")
    note(LOADING)


@command("can-join", example="aftermath-solana can-join --run-id demo --address wallet.json")
async def can_join(
    options: ClusterOptions,
    run_id: RunId,
    address: Annotated[
        str,
        typer.Option(
            "--address", "--wallet", help="The wallet that wants to join: a public key, or a key file that holds it."
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
    """Say whether a wallet may join a run, and why not.

    It looks at what train on this machine looks at before it joins: whether the run is open to the wallet, the client's
    version, funds and bond, and that no process here takes part with it; the device, the model's kind, its config.json
    by the hash on chain, and the tier; and that the data is here, and is the run's. It also names the local files that
    the run reads and the addresses that it contacts. On a local network it gives the wallet the test SOL that it lacks,
    as train does. Exits 0 when the wallet may join, 10 when the run takes another version, 11 when the run does not
    admit the wallet, and 1 when it may not join otherwise.
    """
    from aftermath.chain.admission import check_funds
    from aftermath.chain.options import public_key
    from aftermath.cli.connection import connect
    from aftermath.replica.devices import indices_named

    indices_named(device)
    user = public_key(address)
    delegate_of = public_key(authorizer) if authorizer is not None else None
    async with connect(options) as chain:
        entry = await at_the_chain(chain, run_id, user, delegate_of, max_bond, owner)
        with noting(entry.refusals):
            await check_funds(chain.pool, user, entry.lacking)
    found = answer(entry, run_id, user, tier=matformer_tier, device=device, files=files, is_local=chain.pool.is_local)
    return replace(found, case="" if address == str(user) else "file")


def refused_by(refusal: AftermathError, run_id: str, user: Pubkey) -> Result:
    """Return the answer of `can-join` where whoever keeps the run shows nothing of it to this member."""
    data = {
        "run_id": run_id,
        "address": str(user),
        "can_join": False,
        "reasons": [refusal.message],
        "fixes": [refusal.fix],
        "codes": [refusal.code],
    }
    return Result(data, _no([refusal]), _exit_of(refusal))


def _no(refusals: list[AftermathError]) -> str:
    """Return what keeps a member from the run, and the fix of each reason that has one."""
    fixes = [f"fix: {refusal.fix}" for refusal in refusals if refusal.fix]
    return "\n".join([f"no: {'; '.join(refusal.message for refusal in refusals)}", *fixes])


def answer(
    entry: OnChain, run_id: str, user: Pubkey, *, tier: int, device: str, files: AccessOptions, is_local: bool
) -> Result:
    """Return the answer of `can-join`: what the run objects to, and what this machine lacks."""
    from aftermath import __version__
    from aftermath.train.access_options import access_for
    from aftermath.train.reached import reached_by
    from aftermath.train.tier import AUTO_TIER

    view, refusals = entry.view, entry.refusals
    access = access_for(files, view.run, on_local_network=is_local)
    why = ""
    warnings: list[str] = []
    if not any(refusal.code in _WHATEVER_THE_MACHINE for refusal in refusals):
        tell(entry)
        if tier == AUTO_TIER:
            with noting(refusals):
                tier, why = chosen(view, bytes(user), device, access)
        unfit, warnings = on_this_machine(view, bytes(user), max(tier, 0), device, access)
        refusals += unfit
    reached = reached_by(view.model, access)
    reasons = [refusal.message for refusal in refusals]
    for warning in warnings:
        note(f"warning: {warning}")
    data = {
        "run_id": run_id,
        "address": str(user),
        "can_join": not reasons,
        "reasons": reasons,
        "fixes": [refusal.fix for refusal in refusals],
        "codes": [refusal.code for refusal in refusals],
        "warnings": warnings,
        "reads": reached.files,
        "contacts": reached.addresses,
        "tier": None if tier == AUTO_TIER else tier,
        "why_tier": why,
        "authorized_as": entry.authorized_as,
        "client_version": view.model.client_version,
        "this_version": __version__,
        "bond": view.run.config.join_bond,
        "bond_paid": entry.bond_paid,
    }
    text = _no(refusals) if refusals else f"yes: {user} may join run {run_id}"
    text += f"\ntier {tier}: {why}" if why else ""
    text += "".join(f"\n{line}" for line in reached.lines())
    return Result(data, text, _exit_of(gravest(refusals)) if refusals else 0)


def gravest(refusals: list[AftermathError]) -> AftermathError:
    """Of several, the one whose exit code a command ends with."""
    return max(refusals, key=_exit_of)


def _exit_of(refusal: AftermathError) -> int:
    return EXITS.get(refusal.code, EXIT_KNOWN)
