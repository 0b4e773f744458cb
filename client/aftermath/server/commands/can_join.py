"""The command `can-join`: check whether `client train` would be admitted."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.options import AccessOptions, Device, MemberTier, RunId
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
