"""`doctor`: what on this machine, on the way to peers, or on a cluster would stop a member, before it does."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.options import (
    CLUSTER,
    Authorizer,
    ClusterOptions,
    Device,
    MaxBond,
    Tier,
    WalletOptions,
    checked_run_id,
    shared,
)
from aftermath.cli.present import Result


@dataclass(frozen=True)
class DoctorOptions(WalletOptions, ClusterOptions):
    """A wallet and a cluster, if there are any yet."""

    rpc: Annotated[
        str,
        shared(
            "--rpc", text="Solana RPC endpoint; with neither this nor --run-id, no cluster is looked at.", panel=CLUSTER
        ),
    ] = ""


@command("doctor", example="aftermath-solana doctor --rpc http://127.0.0.1:8899 --run-id demo -w wallet.json")
async def doctor(
    options: DoctorOptions,
    run_id: Annotated[
        str | None,
        shared("--run-id", text="The run to be joined; without it, none is looked at.", check=checked_run_id),
    ] = None,
    authorizer: Authorizer = None,
    max_bond: MaxBond = 0,
    matformer_tier: Tier = 0,
    device: Device = "auto",
    bind_p2p_port: Annotated[
        int, shared("--bind-p2p-port", text="UDP port for peers that is to be tried.", least=0, most=65535)
    ] = 0,
    iroh_relay: Annotated[
        str, shared("--iroh-relay", text="Relay to ask where it sees this machine: n0, or a URL; auto: none.")
    ] = "auto",
    fix: Annotated[bool, typer.Option("--fix", help="Take from others the right to read the wallet's file.")] = False,
) -> Result:
    """Find what would stop a member, on this machine and on a cluster.

    Every check is ok, a warning, a failure, or unknown where it could not be looked at, and says what to do. Nothing is
    sent to a cluster. Exits 0 without failures, 10 when the run takes another version of the client, else 1.
    """
    from aftermath.chain.options import public_key
    from aftermath.cli.connection import connect
    from aftermath.cli.findings import Findings
    from aftermath.cli.look_at_chain import look_at_clock, look_at_funds, look_at_nodes, look_at_program, look_at_run
    from aftermath.cli.look_at_machine import (
        look_at_device,
        look_at_disk,
        look_at_hub,
        look_at_packages,
        look_at_port,
        look_at_wallet,
    )
    from aftermath.cli.look_at_peers import look_at_udp
    from aftermath.p2p.relay import relay_named

    relay = relay_named(iroh_relay)
    delegate_of = public_key(authorizer) if authorizer is not None else None
    findings = Findings()
    look_at_packages(findings)
    free = look_at_device(findings, device)
    look_at_disk(findings)
    wallet = look_at_wallet(findings, options.wallet_private_key_path, mend=fix)
    look_at_hub(findings)
    look_at_port(findings, bind_p2p_port)
    await look_at_udp(findings, relay)
    if options.rpc or run_id:
        async with connect(replace(options, rpc=options.rpc or ClusterOptions.rpc)) as chain:
            if await look_at_nodes(findings, chain.pool):
                await look_at_clock(findings, chain.pool)
                await look_at_program(findings, chain)
                user = wallet.pubkey if wallet is not None else None
                if run_id:
                    await look_at_run(
                        findings, chain, run_id, user, delegate_of, max_bond, matformer_tier, device, free
                    )
                elif user is not None:
                    await look_at_funds(findings, chain.pool, user, await chain.balance(user), bond=0)
    data = {"ok": not findings.exit_code, "checks": [asdict(one) for one in findings.made]}
    return Result(data, findings.table(), findings.exit_code)
