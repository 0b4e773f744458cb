"""`close-run`: give a halted run's accounts back."""

from __future__ import annotations

from dataclasses import replace

from aftermath.base.text import counted
from aftermath.cli.command import JSON, command, run_in_loop
from aftermath.cli.consent import YES, agreed, check_can_ask
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import EXIT_KNOWN, Result
from aftermath.rules.unsaved import unsaved_steps


@command("close-run", example="aftermath-solana close-run --run-id demo --yes")
def close_run(options: SigningOptions, run_id: RunId, *, yes: YES = False, json_output: JSON = False) -> Result:
    """Close a halted run and take back its rent.

    The run's accounts and its members' points cease to exist; pause the run first. On a terminal it says what ends and
    what comes back, and asks before it closes; without one, and with --json, it needs --yes.
    """
    if not (yes or options.dry_run):
        check_can_ask("close-run", f"ends run {run_id} for good", as_json=json_output)
        if not agreed(run_in_loop(_question(options, run_id))):
            return Result({"run_id": run_id}, f"run {run_id} stays as it is", EXIT_KNOWN)
    return run_in_loop(_closed(options, run_id))


async def _question(options: SigningOptions, run_id: str) -> str:
    """What ends with the run, and who gets its rent. Raises what the program would say to closing it now."""
    from aftermath.chain.accounts import fetch_many
    from aftermath.chain.dry_run import Rehearsed
    from aftermath.chain.refusals import sol
    from aftermath.cli.connection import sign_in
    from aftermath.events.status import not_recorded

    async with sign_in(replace(options, dry_run=True)) as chain:
        run, model, members = await chain.coordinator.snapshot(run_id)
        _, accounts = await fetch_many(chain.pool, list(chain.coordinator.sizes(run_id)))
        try:
            await chain.coordinator.close_run(run_id)
        except Rehearsed as found:
            if found.refusal is not None:
                raise found.refusal from None
    rent = sum(account.lamports for account in accounts if account is not None)
    points = f"the points of {counted(sum(seat.used for seat in members.seats), 'member')}"
    back = f"and have {sol(rent)} of rent back in {chain.wallet.pubkey}"
    unsaved = unsaved_steps(run, model)
    warning = f"{not_recorded(unsaved)}; otherwise that training is lost. " if unsaved else ""
    return f"{warning}close run {run_id} for good, with its {run.trained_steps:,} steps and {points}, {back}?"


async def _closed(options: SigningOptions, run_id: str) -> Result:
    from aftermath.chain.refusals import sol
    from aftermath.cli.connection import sign_in

    async with sign_in(options) as chain:
        await chain.coordinator.run(run_id)  # says so if there is no such run
        await chain.sender.afford([chain.coordinator.ix.close_run(run_id)])
        before = await chain.balance(chain.wallet.pubkey)
        signatures = await chain.coordinator.close_run(run_id)
        returned = await chain.balance(chain.wallet.pubkey) - before
    return Result(
        {"run_id": run_id, "lamports_returned": returned, "signature": str(signatures[-1])},
        f"run {run_id} is closed; {sol(returned)} came back to {chain.wallet.pubkey}",
    )
