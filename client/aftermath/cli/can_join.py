"""`can-join`: would `train` with this wallet be let in?

Decided: it answers from what `train` checks before it joins, with this client's version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from aftermath.base.errors import AftermathError, Unsuitable
from aftermath.cli.command import command
from aftermath.cli.options import Authorizer, ClusterOptions, MaxBond, RunId
from aftermath.cli.present import EXIT_KNOWN, EXITS, Result
from aftermath.coordinator.errors import Refused
from aftermath.rules.accounts import Members, Membership, Run
from aftermath.rules.state import MemberState, RunState
from aftermath.watch.phase import state_words

_OWNER_CAN = {
    RunState.UNINITIALIZED: " (its owner configures it with update-config, and starts it with set-paused resume)",
    RunState.PAUSED: " (its owner resumes it with set-paused resume)",
}


def obstacles(run: Run, members: Members, address: bytes, held: Membership | None, *, authorized: bool) -> list[str]:
    """Why the program would refuse a join of this wallet now; empty when it would not."""
    reasons = []
    if not authorized:
        reasons.append("no valid authorization of the run's join authority admits it")
    if run.halted:
        reasons.append(f"the run is {state_words(run.state.name)}{_OWNER_CAN.get(run.state, '')}")
    place = members.find(address)
    if held is not None and held.barred:
        reasons.append("the wallet is barred from the run (its owner or its join authority can lift that with kick)")
    full = all(slot.used and (slot.pending or slot.state is not MemberState.IDLE) for slot in members.slots)
    if full and place is None:
        reasons.append(f"all {len(members.slots)} places are taken")
    return reasons


@contextmanager
def noting(refusals: list[AftermathError]) -> Iterator[None]:
    """Note what a check of `train` refuses."""
    try:
        yield
    except (Refused, Unsuitable) as refusal:
        refusals.append(refusal)


@command("can-join", example="aftermath-solana can-join --run-id demo --address wallet.json")
async def can_join(
    options: ClusterOptions,
    run_id: RunId,
    address: Annotated[
        str, typer.Option("--address", help="The wallet that wants to join: a public key, or a key file that holds it.")
    ],
    authorizer: Authorizer = None,
    max_bond: MaxBond = 0,
) -> Result:
    """Say whether a wallet may join a run, and why not.

    It looks at what train with this client looks at before it joins, and on a local network gives the wallet the test
    SOL that it lacks, as train does. Exits 0 when the wallet may join, 10 when the run takes another version of the
    client, and 1 when it may not for another reason.
    """
    from solders.pubkey import Pubkey

    from aftermath import __version__
    from aftermath.chain.addresses import run_addresses
    from aftermath.chain.admission import check_funds, check_version
    from aftermath.chain.memberships import check_bond, lacking, membership_of
    from aftermath.chain.options import public_key
    from aftermath.cli.connection import connect
    from aftermath.train.outfit import check_model

    user = public_key(address)
    delegate_of = public_key(authorizer) if authorizer is not None else None
    async with connect(options) as chain:
        run, model, members = await chain.coordinator.snapshot(run_id)
        grantor = Pubkey.from_bytes(run.join_authority)
        found = await chain.authorizer.admitting(
            grantor, user, run_addresses(chain.coordinator.program_id, run_id).run, delegate_of
        )
        held = await membership_of(chain.pool, chain.coordinator.program_id, run, user)
        reasons = obstacles(run, members, bytes(user), held, authorized=found is not None)
        refusals: list[AftermathError] = []
        with noting(refusals):
            check_version(run_id, model.client_version, __version__)
        if run.state is not RunState.UNINITIALIZED:
            with noting(refusals):
                check_model(model, run_id)
        with noting(refusals):
            check_bond(run, held, max_bond)
        with noting(refusals):
            await check_funds(chain.pool, user, lacking(run, held))
    reasons += [refusal.message for refusal in refusals]
    data = {
        "run_id": run_id,
        "address": str(user),
        "can_join": not reasons,
        "reasons": reasons,
        "authorized_as": str(found.grantee) if found else None,
        "client_version": model.client_version,
        "this_version": __version__,
        "bond": run.config.join_bond,
        "bond_paid": held.bond if held else 0,
    }
    text = f"no: {'; '.join(reasons)}" if reasons else f"yes: {user} may join run {run_id}"
    exits = max((EXITS.get(refusal.code, EXIT_KNOWN) for refusal in refusals), default=EXIT_KNOWN)
    return Result(data, text, exits if reasons else 0)
