"""The command `doctor`: find problems of this machine or its connection to a server."""

from __future__ import annotations

from typing import Annotated

from aftermath.cli.command import command
from aftermath.cli.doctor import ListeningOptions
from aftermath.cli.options import AccessOptions, Device, RunId, shared
from aftermath.cli.present import Result
from aftermath.rules.limits import MAX_LEVELS
from aftermath.server.commands.options import ServerOptions, trusted


@command(
    "doctor",
    example="aftermath-centralized doctor --run-id demo --server-addr 192.168.1.5:20000 -i secret.key",
)
async def doctor(
    server: ServerOptions,
    run_id: RunId,
    *,
    matformer_tier: Annotated[
        int | None,
        shared(
            "--matformer-tier",
            text="Tier that must fit into memory. By default, the largest that does.",
            least=0,
            most=MAX_LEVELS - 1,
        ),
    ] = None,
    device: Device = "auto",
    listening: ListeningOptions,
    files: AccessOptions,
) -> Result:
    """Find problems of this machine and its connection to a server, and print their fixes.

    Checks this machine first: Python and its packages, PyTorch and the device, disk, ports, UDP and
    the relay. Then checks the server: whether it answers and admits the key, its clock, and the
    run's version, model and data. Reports which tier fits into memory. Exits with 1 if a check
    fails, otherwise 0.
    """
    from aftermath.cli.check_list import ADMISSION, FIT, examine
    from aftermath.cli.doctor import result_of
    from aftermath.cli.findings import Subject
    from aftermath.server.client_backend import load_identity, open_cluster

    wallet = load_identity(server.identity_secret_key_path)
    subject = Subject(
        device=device,
        tier=matformer_tier,
        bind_port=listening.bind_p2p_port,
        interface=listening.bind_p2p_interface,
        relay=listening.iroh_relay,
        metrics_port=listening.metrics_port,
        run_id=run_id,
        files=files,
        wallet=wallet.pubkey,
    )
    findings = await examine(
        subject, ("python", "torch", "disk", "hub-token", "metrics-port", "udp")
    )
    async with open_cluster(server.server_addr, trusted(server), wallet, run_id) as chain:
        subject.chain = chain
        findings += await examine(subject, ("server",))
        if subject.answers:
            findings += await examine(subject, ("clock", "run", *ADMISSION, "reach"))
    return result_of([*findings, *await examine(subject, ("relay", *FIT))])
