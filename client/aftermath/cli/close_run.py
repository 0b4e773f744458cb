"""`close-run`: give a halted run's accounts back."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import Result


@command("close-run", example="aftermath-solana close-run --run-id demo")
async def close_run(options: SigningOptions, run_id: RunId) -> Result:
    """Close a halted run and take back its rent.

    The run's accounts and its members' points cease to exist; pause the run first.
    """
    from aftermath.chain.refusals import sol
    from aftermath.cli.connection import sign_in

    async with sign_in(options) as chain:
        await chain.coordinator.run(run_id)  # says so if there is no such run
        await chain.sender.afford([chain.coordinator.ix.close_run(run_id)])
        before = await chain.balance(chain.wallet.pubkey)
        signature = await chain.coordinator.close_run(run_id)
        returned = await chain.balance(chain.wallet.pubkey) - before
    return Result(
        {"run_id": run_id, "lamports_returned": returned, "signature": str(signature)},
        f"run {run_id} is closed; {sol(returned)} came back to {chain.wallet.pubkey}",
    )
