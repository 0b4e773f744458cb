"""`close-run`: give a halted run's accounts back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aftermath.cli.command import JSON, command
from aftermath.cli.consent import YES, agreed, check_can_ask
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import EXIT_KNOWN, Result

if TYPE_CHECKING:
    from aftermath.rules.run import Run


@command("close-run", example="aftermath-solana close-run --run-id demo --yes")
def close_run(options: SigningOptions, run_id: RunId, *, yes: YES = False, json_output: JSON = False) -> Result:
    """Close a halted run and take back its rent.

    The run's accounts and its members' points cease to exist; pause the run first. On a terminal it asks before it
    closes; without one, and with --json, it needs --yes.
    """
    import asyncio

    if not yes:
        check_can_ask("close-run", f"ends run {run_id} for good", as_json=json_output)
        trained = asyncio.run(_found(options, run_id)).trained_steps
        if not agreed(f"close run {run_id} for good, with its {trained:,} steps and its members' points?"):
            return Result({"run_id": run_id}, f"run {run_id} stays as it is", EXIT_KNOWN)
    return asyncio.run(_closed(options, run_id))


async def _found(options: SigningOptions, run_id: str) -> Run:
    from aftermath.cli.connection import connect

    async with connect(options) as chain:
        return await chain.coordinator.run(run_id)


async def _closed(options: SigningOptions, run_id: str) -> Result:
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
