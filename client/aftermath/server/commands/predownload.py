"""The command `predownload`: fetch the model and check the data of a server's run."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.options import AccessOptions, RunId, Tier
from aftermath.cli.present import Result
from aftermath.server.commands.options import ServerOptions, trusted


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
