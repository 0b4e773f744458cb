"""`json-dump-user`: what a run knows of one wallet."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.options import ClusterOptions, RunId
from aftermath.cli.present import CommandError, Result
from aftermath.events.printable import json_text


@command("json-dump-user", example="aftermath-solana json-dump-user --run-id demo --address wallet.json")
async def json_dump_user(
    options: ClusterOptions,
    run_id: RunId,
    address: Annotated[
        str, typer.Option("--address", "--wallet", help="The wallet: a public key, or a key file that holds it.")
    ],
) -> Result:
    """Print everything a run knows of one wallet, as JSON."""
    from aftermath.chain.dump import member, plain
    from aftermath.chain.memberships import membership_of
    from aftermath.chain.options import public_key
    from aftermath.cli.connection import connect

    key = public_key(address)
    async with connect(options) as chain:
        run, _, members = await chain.coordinator.snapshot(run_id)
        held = await membership_of(chain.pool, chain.coordinator.program_id, run, key)
    index = members.find(bytes(key))
    if index is None and held is None:
        raise CommandError(
            f"{key} is not a member of run {run_id}",
            f"See who is: aftermath-solana json-dump-run --run-id {shlex.quote(run_id)}",
        )
    data = {
        "run_id": run_id,
        "member": member(index, members.seats[index]) if index is not None else None,
        "membership": plain(held),
    }
    return Result(data, json_text(data, indent=2))
