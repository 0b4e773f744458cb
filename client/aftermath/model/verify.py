"""Whether a checkpoint is whole: every file it lists, every tensor it needs, and every tier the same model.

Decided: the first thing that is wrong ends it with a sentence; what is checked is what a member relies on when
it loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from aftermath.model.checkpoint import load
from aftermath.model.config import stored_tier
from aftermath.model.documents import CheckpointError, hf_config, is_file, read_limited
from aftermath.model.levels import prefix
from aftermath.model.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, local_path, parse_manifest, verify


@dataclass(frozen=True)
class Verified:
    """What was found right."""

    tiers: tuple[int, ...]
    """Those whose own files were compared with the full model's."""
    files: int
    """Files whose SHA-256 is the manifest's."""
    tensors: int
    """Of the model, or of the slice."""
    slice_of: int | None = None
    """The tier of a slice; None for a full checkpoint."""


def verified(directory: Path) -> Verified:
    """Check a full checkpoint and the tiers next to it, or one tier's slice."""
    if stored := stored_tier(hf_config(directory / "config.json"))[0]:
        return _verified_slice(directory.absolute(), stored)
    params = load(directory, 0, "universal")
    listed = manifest_files(directory)
    tiers = tuple(sorted(tier for tier in listed if tier))
    for tier in tiers:
        for name, tensor in load(directory, tier, "sliced").items():
            if not torch.equal(params[name][prefix(tensor.shape)], tensor):
                raise CheckpointError(
                    f"tier {tier}'s {name} is not the full model's", "Export the tiers again from the full checkpoint"
                )
    return Verified(tiers, sum(map(len, listed.values())), len(params))


def _verified_slice(directory: Path, tier: int) -> Verified:
    """Check a slice, by the manifest of the full checkpoint next to it if there is one."""
    params = load(directory, tier)
    whole = directory.with_name(directory.name.removesuffix(f"-tier{tier}"))
    files: dict[str, Path] = {}
    if whole != directory and is_file(whole / MANIFEST_FILE):
        manifest = parse_manifest(read_limited(whole / MANIFEST_FILE, MAX_MANIFEST_BYTES))
        files = {name: local_path(whole, name, tier) for name in manifest.of_tier(tier).files}
        verify(files, manifest.sha256)
    return Verified((), len(files), len(params), tier)


def manifest_files(directory: Path) -> dict[int, dict[str, Path]]:
    """The manifest's files by tier, each compared with its digest; nothing where there is no manifest.

    Raises CheckpointError.
    """
    path = directory / MANIFEST_FILE
    if not is_file(path):
        return {}
    manifest = parse_manifest(read_limited(path, MAX_MANIFEST_BYTES))
    found = {
        entry.tier: {name: local_path(directory, name, entry.tier) for name in manifest.of_tier(entry.tier).files}
        for entry in manifest.tiers
    }
    for files in found.values():
        verify(files, manifest.sha256)
    return found
