"""The commands `can-join`, `doctor` and `predownload`: check and prepare before `client train`."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.doctor import ListeningOptions
from aftermath.cli.options import (
    AccessOptions,
    Device,
    FittingTier,
    MemberTier,
    RunId,
    Tier,
)
from aftermath.cli.present import Result
from aftermath.server.commands.options import ServerOptions, trusted


@command(
    "can-join",
    example="aftermath-centralized can-join --run-id demo --server-addr 192.168.1.5:20000 -i secret.key",
)
async def can_join(
    server: ServerOptions,
    run_id: RunId,
    matformer_tier: MemberTier = 0,
    device: Device = "auto",
    *,
    files: AccessOptions,
) -> Result:
    """Check whether a member may join a server's run, and print the reason if not.

    Runs the checks that client train runs before it joins. They cover the server's list of members,
    the client version, other local processes with the same key, the device, and the run's model,
    tier and data. Exits with 0 if the member may join, 10 if the run needs another client version,
    11 if the run or server does not admit the key, and 1 for any other reason.
    """
    from aftermath.cli.can_join import admission, answer, refused_by
    from aftermath.cli.findings import Subject
    from aftermath.server.client_backend import load_identity, open_cluster
    from aftermath.server.connection import ServerRefused

    wallet = load_identity(server.identity_secret_key_path)
    subject = Subject(
        device=device, tier=matformer_tier, files=files, wallet=wallet.pubkey, run_id=run_id
    )
    try:
        async with open_cluster(server.server_addr, trusted(server), wallet, run_id) as chain:
            subject.chain = chain
            findings = await admission(subject)
    except ServerRefused as refusal:
        return refused_by(refusal, run_id, wallet.pubkey)
    return await answer(subject, findings)


@command(
    "doctor",
    example="aftermath-centralized doctor --run-id demo --server-addr 192.168.1.5:20000 -i secret.key",
)
async def doctor(
    server: ServerOptions,
    run_id: RunId,
    *,
    matformer_tier: FittingTier = None,
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
            findings += await examine(subject, ("clock", "run", *ADMISSION, "access"))
    return result_of([*findings, *await examine(subject, ("relay", *FIT))])


@command(
    "predownload",
    example="aftermath-centralized predownload --run-id demo --server-addr 192.168.1.5:20000 --matformer-tier 1",
)
async def predownload(
    server: ServerOptions,
    run_id: RunId,
    matformer_tier: Tier = 0,
    *,
    files: AccessOptions,
) -> Result:
    """Fetch the model of a server's run and check its data before joining.

    The model is loaded once, so that a damaged or unsuitable checkpoint is found now and not in the
    warm-up. If the server has a list of members, pass a listed key with
    --identity-secret-key-path.
    """
    from aftermath.cli.findings import Subject
    from aftermath.cli.predownload import fetch_run_files
    from aftermath.cli.run_checks import read_run
    from aftermath.server.client_backend import load_identity, open_cluster

    wallet = load_identity(server.identity_secret_key_path)
    subject = Subject(tier=matformer_tier, files=files, run_id=run_id)
    async with open_cluster(server.server_addr, trusted(server), wallet, run_id) as chain:
        subject.chain = chain
        await read_run(subject)
    return await fetch_run_files(subject)
