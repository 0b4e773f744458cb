"""`doctor`: find what is wrong with this machine, wallet or cluster before `train` does.

Without --rpc and --run-id it examines the machine alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from aftermath.chain import defaults
from aftermath.cli.command import command
from aftermath.cli.error_report import EXIT_KNOWN
from aftermath.cli.options import (
    CLUSTER,
    RPC_TEXT,
    AccessOptions,
    Authorizer,
    ClusterOptions,
    Device,
    FittingTier,
    MaxBond,
    WalletOptions,
    checked_run_id,
    shared,
)
from aftermath.cli.present import Result
from aftermath.p2p.relay import AUTO, relay_named

if TYPE_CHECKING:
    from aftermath.cli.findings import Finding


@dataclass(frozen=True)
class ExaminedOptions(WalletOptions, ClusterOptions):
    """A wallet and a cluster. Both are optional."""

    rpc: Annotated[
        str,
        shared(
            "--rpc",
            text=f"{RPC_TEXT} By default no cluster is checked.",
            panel=CLUSTER,
            stored="rpc",
        ),
    ] = ""


@dataclass(frozen=True)
class ListeningOptions:
    """Ports and relay of `train`."""

    bind_p2p_port: Annotated[
        int,
        shared(
            "--bind-p2p-port",
            text="UDP port that train would use. 0 picks a free one.",
            least=0,
            most=65535,
        ),
    ] = 0
    bind_p2p_interface: Annotated[
        str | None,
        shared(
            "--bind-p2p-interface", text="Address that train would bind. By default all interfaces."
        ),
    ] = None
    iroh_relay: Annotated[
        str,
        shared(
            "--iroh-relay",
            text="Relay to test: disabled, n0, or your own relay's URL. auto: n0, but none on a local network.",
            parser=relay_named,
        ),
    ] = AUTO
    metrics_port: Annotated[
        int | None,
        shared(
            "--metrics-port",
            text="TCP port at which train would serve metrics.",
            least=1,
            most=65535,
        ),
    ] = None


@command(
    "doctor",
    example="aftermath-solana doctor --rpc http://127.0.0.1:8899 --run-id demo -w wallet.json",
)
async def doctor(
    options: ExaminedOptions,
    *,
    run_id: Annotated[
        str | None,
        shared("--run-id", text="Also check this run.", check=checked_run_id, stored="run"),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Repair what can be repaired: a key file's mode.")
    ] = False,
    matformer_tier: FittingTier = None,
    device: Device = "auto",
    listening: ListeningOptions,
    files: AccessOptions,
    authorizer: Authorizer = None,
    max_bond: MaxBond = 0,
) -> Result:
    """Find problems of this machine, wallet and cluster, and print their fixes.

    Checks Python and its packages, PyTorch and the device, disk, the wallet's file, the Hub's
    token, ports, UDP and the relay. With --rpc it also checks the nodes, their websockets, the
    chain's clock and the wallet's balance. With --run-id it also checks admission of the wallet,
    the run's model and data, and which tier fits into memory. Sends nothing and spends nothing.
    Exits 1 if a check fails, else 0.
    """
    from dataclasses import replace

    from aftermath.chain.options import public_key
    from aftermath.cli.check_list import ADMISSION, FIT, examine
    from aftermath.cli.connection import connect
    from aftermath.cli.findings import Subject

    subject = Subject(
        device=device,
        tier=matformer_tier,
        wallet_path=options.wallet_private_key_path,
        bind_port=listening.bind_p2p_port,
        interface=listening.bind_p2p_interface,
        relay=listening.iroh_relay,
        metrics_port=listening.metrics_port,
        repair=fix,
        run_id=run_id,
        files=files,
        authorizer=public_key(authorizer) if authorizer is not None else None,
        max_bond=max_bond,
    )
    findings = await examine(
        subject, ("python", "torch", "disk", "wallet", "hub-token", "metrics-port", "udp")
    )
    if options.rpc or run_id:
        async with connect(replace(options, rpc=options.rpc or defaults.RPC)) as chain:
            subject.chain = chain
            findings += await examine(subject, ("rpc",))
            if subject.answers:
                findings += await examine(
                    subject, ("websocket", "clock", "run", *ADMISSION, "balance", "access")
                )
    return result_of([*findings, *await examine(subject, ("relay", *FIT))])


def result_of(findings: list[tuple[str, Finding]]) -> Result:
    """Return the findings; a failure among them makes the exit code 1."""
    from aftermath.cli.findings import Status, as_data, as_text

    failed = any(finding.status is Status.FAILURE for _, finding in findings)
    data = {"ok": not failed, "checks": as_data(findings)}
    return Result(data, as_text(findings), EXIT_KNOWN if failed else 0)
