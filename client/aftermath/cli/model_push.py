"""`model push`: a checkpoint to a repository on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.base.text import counted
from aftermath.cli.command import command
from aftermath.cli.present import Result


@command("model push", example="aftermath-solana model push --model checkpoints/tiny --repo me/tiny")
def model_push(
    model: Annotated[Path, typer.Option(help="The full checkpoint.")],
    repo: Annotated[str, typer.Option(help="OWNER/NAME on the Hub; made if it is missing.")],
    message: Annotated[str, typer.Option(help="Of the commit.")] = "a checkpoint",
) -> Result:
    """Upload a checkpoint to the Hugging Face Hub.

    The tiers that were exported beside it go along, and members of a tier then fetch its files alone. Says which
    commit it is. The token is that of HF_TOKEN. What is wrong with the checkpoint or with a tier's files is told
    before anything is sent.
    """
    import os

    from aftermath.base.errors import UsageError
    from aftermath.base.text import is_repository
    from aftermath.model.checkpoint import load_config
    from aftermath.model.hub import upload
    from aftermath.model.verify import manifest_files
    from aftermath.model.weights import weight_files

    if not is_repository(repo):
        raise UsageError(f"--repo {repo!r} is no repository of the Hub", "Say OWNER/NAME")
    place = model.expanduser()
    load_config(place), weight_files(place)
    tiers = {tier: files for tier, files in manifest_files(place).items() if tier}
    beside = sorted({path.parent for files in tiers.values() for path in files.values()} - {place.absolute()})
    commit = upload(place, repo, token=os.environ.get("HF_TOKEN"), message=message, tiers=beside)
    text = f"{repo}@{commit}" + (f", with {counted(len(tiers), 'tier')}" if tiers else "")
    return Result({"repo": repo, "commit": commit, "tiers": sorted(tiers)}, text)
