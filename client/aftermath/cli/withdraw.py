"""`withdraw`: end a wallet's membership of a run, and take back the bond and the rent.

Decided here: a run that was closed, and whose name may belong to another run by now, owes its members the same; so all
memberships of that name are withdrawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from aftermath.cli.command import command
from aftermath.cli.options import SigningOptions, checked_run_id, shared
from aftermath.cli.present import Result
from aftermath.rules.limits import RUN_ID_BYTES

if TYPE_CHECKING:
    from solders.pubkey import Pubkey

    from aftermath.cli.connection import Cluster
    from aftermath.rules.members import Membership


def _checked(run: str | None) -> str | None:
    """Return a run's id or address as it is. Raise UsageError if it can be neither."""
    return run if run is not None and _address(run) is not None else checked_run_id(run)


def _address(run: str) -> Pubkey | None:
    """Return the address that this text is, or None. A run id is too short to be taken for one."""
    from solders.pubkey import Pubkey

    if len(run) <= RUN_ID_BYTES:
        return None
    try:
        return Pubkey.from_string(run)
    except ValueError:
        return None


RunOrAddress = Annotated[
    str,
    shared(
        "--run-id",
        text="The run's name, at most 32 bytes, or the address of a closed run, which status shows.",
        check=_checked,
        stored="run",
    ),
]


@command("withdraw", example="aftermath-solana withdraw --run-id demo -w wallet.json")
async def withdraw(options: SigningOptions, run_id: RunOrAddress) -> Result:
    """End a wallet's membership of a run and take back its bond and rent.

    The wallet must have left, and the epoch that it was in must have ended: until then others may show that its results
    were false. Its points go with the membership, and the bond of a member that was ejected is lost. A run that was
    closed meanwhile changes nothing.
    """
    from aftermath.chain.memberships import memberships_of
    from aftermath.chain.refusals import sol
    from aftermath.cli.connection import sign_in
    from aftermath.coordinator.errors import Refused

    async with sign_in(options) as chain:
        program, wallet = chain.coordinator.program_id, chain.wallet.pubkey
        run, name = await _named(chain, run_id)
        found = [one for one in await memberships_of(chain.pool, program, run, wallet) if one.enrolled]
        if not found:
            raise Refused(
                "NotEnrolled",  # as the program calls it, which is not asked without an account to name
                f"{wallet} has no membership of run {run_id}",
                "Name the run that it joined, and its wallet: --run-id, -w FILE; runs: aftermath-solana list-runs",
            )
        before = await chain.balance(wallet)
        # one by one: a membership that is still bound must not hold up those that are not
        steps = [[chain.coordinator.ix.withdraw(one, name)] for one in found]
        signatures = [str(signature) for signature in await chain.sender.send_each(steps)]
        returned = await chain.balance(wallet) - before
    lost = sum(map(_lost, found))
    data = {"run_id": run_id, "wallet": str(wallet), "lamports_returned": returned, "signatures": signatures}
    text = f"{wallet} is no member of run {run_id} any more; {sol(returned)} came back"
    return Result(data, text + (f", and a bond of {sol(lost)} is lost" if lost else ""))


async def _named(chain: Cluster, run: str) -> tuple[Pubkey, str | None]:
    """Return the address of a run, and its id, or None if only the address of a closed run is known."""
    from aftermath.chain.addresses import run_addresses

    program, address = chain.coordinator.program_id, _address(run)
    if address is None:
        return run_addresses(program, run).run, run
    listed = (one.run_id for one, _, _ in await chain.coordinator.list_runs())
    return address, next((name for name in listed if run_addresses(program, name).run == address), None)


def _lost(held: Membership) -> int:
    return held.forfeited
