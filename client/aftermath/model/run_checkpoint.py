"""Resolve the checkpoint that a run names on chain to a local directory.

Imports no torch, and the slow Hub library only for a checkpoint on the Hub.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from aftermath.base.allowed_locations import TRUSTING, RunAccess
from aftermath.base.errors import Unsuitable, short_repr
from aftermath.base.text import is_repository
from aftermath.model.json_documents import CheckpointError, Strategy, hf_config, is_file
from aftermath.rules.model import Checkpoint
from aftermath.rules.state import CheckpointKind


def resolve(
    checkpoint: Checkpoint,
    *,
    tier: int = 0,
    strategy: Strategy = "auto",
    cache_dir: Path | None = None,
    access: RunAccess = TRUSTING,
    momentum: bool = False,
) -> Path:
    """Return a directory for `checkpoint.load`. From the Hub, fetch only the tier's files.

    `momentum`: fetch the outer momentum too, if the checkpoint has it. Raises CheckpointError or
    ModelConfigError.
    """
    require_place(checkpoint)
    if checkpoint.kind is CheckpointKind.HUB:
        from aftermath.model import hub

        return hub.download(
            checkpoint.repo,
            checkpoint.revision,
            tier=tier,
            strategy=strategy,
            cache_dir=cache_dir,
            token=access.hub_token(checkpoint.repo),
            momentum=momentum,
        )
    if checkpoint.kind is CheckpointKind.DUMMY:
        return _config_file(checkpoint, cache_dir, access).parent
    return _opened(checkpoint, access)


def local_directory(checkpoint: Checkpoint) -> Path:
    """Return the directory of a Local checkpoint. Raises CheckpointError if it is invalid."""
    try:
        return Path(checkpoint.repo).expanduser().absolute()
    except (
        RuntimeError,
        ValueError,
    ):  # ~NAME of an unknown user, or an impossible name
        raise CheckpointError(f"there is no checkpoint at {checkpoint.repo}") from None


def load_hf_config(
    checkpoint: Checkpoint,
    *,
    cache_dir: Path | None = None,
    access: RunAccess = TRUSTING,
) -> dict[str, Any]:
    """Return a checkpoint's config.json, without its weights. Raises CheckpointError."""
    require_place(checkpoint)
    return hf_config(_config_file(checkpoint, cache_dir, access))


def outline_directory(checkpoint: Checkpoint, access: RunAccess = TRUSTING) -> Path:
    """Return a directory with config.json and any tokenizer files. Raises CheckpointError."""
    require_place(checkpoint)
    directory = _local(checkpoint, access)
    if directory is not None and (checkpoint.kind is CheckpointKind.LOCAL or directory.is_dir()):
        return directory
    from aftermath.model import hub

    return hub.download_outline(
        checkpoint.repo, checkpoint.revision, token=access.hub_token(checkpoint.repo)
    )


def _config_file(checkpoint: Checkpoint, cache_dir: Path | None, access: RunAccess) -> Path:
    """Return the path of a checkpoint's config.json. Fetch it if necessary."""
    here = _local(checkpoint, access)
    if here is not None and (
        checkpoint.kind is CheckpointKind.LOCAL or is_file(here / "config.json")
    ):
        return here / "config.json"
    from aftermath.model import hub

    token = access.hub_token(checkpoint.repo)
    return hub.download_config(
        checkpoint.repo, checkpoint.revision, cache_dir=cache_dir, token=token
    )


def _local(checkpoint: Checkpoint, access: RunAccess) -> Path | None:
    """Return the directory of a Local or Dummy checkpoint, or None if it names a repository.

    Raises Unsuitable if the run may not open a Local one.
    """
    if checkpoint.kind is CheckpointKind.LOCAL:
        return _opened(checkpoint, access)
    if checkpoint.kind is CheckpointKind.DUMMY:
        with contextlib.suppress(Unsuitable):
            return _opened(checkpoint, access)
    return None


def _opened(checkpoint: Checkpoint, access: RunAccess) -> Path:
    return local_directory(checkpoint) if access.trusting else access.model_place(checkpoint.repo)


def require_place(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError for an invalid name: any tier-0 member may have chosen it."""
    if checkpoint.kind is CheckpointKind.NONE or not checkpoint.repo:
        raise CheckpointError(
            "the run has neither a checkpoint nor a model shape",
            "Ask the run's owner to set [model.LLM.checkpoint] with update-config",
        )
    if checkpoint.kind is CheckpointKind.HUB and not is_repository(checkpoint.repo):
        raise CheckpointError(
            f"the run's checkpoint {short_repr(checkpoint.repo)} is not a Hub repository (OWNER/NAME)",
            "Ask the run's owner to correct it: aftermath-solana checkpoint --repo OWNER/NAME "
            "--revision COMMIT, or --path DIR for a directory that a tier-0 member wrote",
        )
