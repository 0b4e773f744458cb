"""Commands that list, show and follow runs, and dump their accounts."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.options import ClusterOptions, JsonLines, RunId
from aftermath.cli.present import CommandError, Result, listing
from aftermath.events.printable import json_text
from aftermath.events.progress import state_text

COLUMNS = ("run", "name", "state", "epoch", "step", "of", "members", "tiers")


@command("list-runs", example="aftermath-solana list-runs --rpc http://127.0.0.1:8899")
async def list_runs(options: ClusterOptions) -> Result:
    """List the runs on a cluster."""
    from aftermath.chain.dump import plain
    from aftermath.cli.connection import connect

    async with connect(options) as chain:
        runs = await chain.coordinator.list_runs()
    data = [
        {
            "run_id": run.run_id,
            "name": model.metadata.name,
            "state": plain(run.state),
            "epoch": run.epoch,
            "step": run.trained_steps,
            "total_steps": run.config.total_steps,
            "members": members.present if members else 0,
            "tiers": model.tiers,
        }
        for run, model, members in runs
    ]
    status_result = [
        [*(row | {"state": state_text(run.state.name)}).values()]
        for row, (run, _, _) in zip(data, runs, strict=True)
    ]
    text = listing(COLUMNS, status_result) if data else "no runs on this cluster"
    return Result(data, text)


@command("show-run", example="aftermath-solana show-run --run-id demo")
async def show_run(options: ClusterOptions, run_id: RunId) -> Result:
    """Show a run's state, members, and what it waits for.

    For each member it shows seat, wallet, tier, state, witness election, weight, points and the
    round in which the chain last saw it. json-dump-run prints everything.
    """
    from aftermath.cli.connection import connect
    from aftermath.cli.run_view import status_result

    async with connect(options) as chain:
        return await status_result(chain.coordinator, run_id)


@command("watch", example="aftermath-solana watch --run-id demo", until_interrupt=True)
async def watch(options: ClusterOptions, run_id: RunId, json_output: JsonLines = False) -> Result:
    """Follow a run's state until it finishes, or until Ctrl-C.

    On a terminal it shows a screen of tabs: Tab switches, q closes. Elsewhere it prints a line for
    every change.
    """
    from aftermath.chain.endpoints import shown
    from aftermath.cli.connection import connect
    from aftermath.cli.run_view import follow_run

    async with connect(options) as chain:
        return await follow_run(
            chain.coordinator,
            run_id,
            ("Chain", {"rpc": shown(options.rpc)}),
            as_json=json_output,
        )


@command("json-dump-run", example="aftermath-solana json-dump-run --run-id demo", json_errors=True)
async def json_dump_run(options: ClusterOptions, run_id: RunId) -> Result:
    """Print everything the chain has about a run, as JSON."""
    from aftermath.chain.dump import whole_run
    from aftermath.cli.connection import connect

    async with connect(options) as chain:
        data = whole_run(*await chain.coordinator.snapshot(run_id, any_spec=True))
    return Result(data, json_text(data, indent=2))


@command(
    "json-dump-user",
    example="aftermath-solana json-dump-user --run-id demo --address wallet.json",
    json_errors=True,
)
async def json_dump_user(
    options: ClusterOptions,
    run_id: RunId,
    address: Annotated[
        str,
        typer.Option(
            "--address", "--wallet", help="The wallet: a public key, or a key file that holds it."
        ),
    ],
) -> Result:
    """Print everything a run has about one wallet, as JSON."""
    from aftermath.chain.dump import member, plain
    from aftermath.chain.memberships import membership_of
    from aftermath.chain.options import public_key
    from aftermath.cli.connection import connect

    key = public_key(address)
    async with connect(options) as chain:
        run, _, members = await chain.coordinator.snapshot(run_id, any_spec=True)
        membership = await membership_of(chain.pool, chain.coordinator.program_id, run, key)
    index = members.find(bytes(key))
    if index is None and membership is None:
        raise CommandError(
            f"{key} is not a member of run {run_id}",
            f"List the members: aftermath-solana json-dump-run --run-id {shlex.quote(run_id)}",
        )
    data = {
        "run_id": run_id,
        "member": member(index, members.seats[index]) if index is not None else None,
        "membership": plain(membership),
    }
    return Result(data, json_text(data, indent=2))
