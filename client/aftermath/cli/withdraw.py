"""`withdraw`: end a wallet's membership of a run, and take back the bond and the rent.

Decided here: a run that was closed, and whose name may belong to another run by now, owes its members the same; so all
memberships of that name are withdrawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aftermath.cli.command import command
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import Result

if TYPE_CHECKING:
    from aftermath.rules.members import Membership


@command("withdraw", example="aftermath-solana withdraw --run-id demo -w wallet.json")
async def withdraw(options: SigningOptions, run_id: RunId) -> Result:
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
        found = [one for one in await memberships_of(chain.pool, program, run_id, wallet) if one.enrolled]
        if not found:
            raise Refused(
                "NotEnrolled",  # as the program calls it, which is not asked without an account to name
                f"{wallet} has no membership of run {run_id}",
                "Name the run that it joined, and its wallet: --run-id, -w FILE; runs: aftermath-solana list-runs",
            )
        before = await chain.balance(wallet)
        # one by one: a membership that is still bound must not hold up those that are not
        steps = [[chain.coordinator.ix.withdraw(run_id, one)] for one in found]
        signatures = [str(signature) for signature in await chain.sender.send_each(steps)]
        returned = await chain.balance(wallet) - before
    lost = sum(map(_lost, found))
    data = {"run_id": run_id, "wallet": str(wallet), "lamports_returned": returned, "signatures": signatures}
    text = f"{wallet} is no member of run {run_id} any more; {sol(returned)} came back"
    return Result(data, text + (f", and a bond of {sol(lost)} is lost" if lost else ""))


def _lost(held: Membership) -> int:
    return held.forfeited
