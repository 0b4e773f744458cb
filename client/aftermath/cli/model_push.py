"""`model push`: a checkpoint to a repository on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.present import Result


@command("model push", example="aftermath-solana model push --model checkpoints/tiny --repo me/tiny")
def model_push(
    model: Annotated[Path, typer.Option(help="Checkpoint directory, with the tiers that lie in it.")],
    repo: Annotated[str, typer.Option(help="OWNER/NAME on the Hub; made if it is missing.")],
    message: Annotated[str, typer.Option(help="Of the commit.")] = "a checkpoint",
) -> Result:
    """Upload a checkpoint to the Hugging Face Hub.

    Says which commit it is. The token is that of HF_TOKEN. What is wrong with the checkpoint is told before
    anything is sent.
    """
    import os

    from aftermath.base.errors import UsageError
    from aftermath.config.repository import is_repository
    from aftermath.model.checkpoint import load_config
    from aftermath.model.hub import upload
    from aftermath.model.weights import weight_files

    if not is_repository(repo):
        raise UsageError(f"--repo {repo!r} is no repository of the Hub", "say OWNER/NAME")
    place = model.expanduser()
    load_config(place), weight_files(place)
    commit = upload(place, repo, token=os.environ.get("HF_TOKEN"), message=message)
    return Result({"repo": repo, "commit": commit}, f"{repo}@{commit}")
