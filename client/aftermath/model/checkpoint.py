"""Read, verify and merge checkpoints of one tier or of the full model.

A replica always has the tier that the caller asked for. Contradictions in a checkpoint (sizes,
tiers, digests, paths outside it) are errors under every strategy.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from aftermath.base.text import counted
from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfig, stored_tier
from aftermath.model.json_documents import (
    CheckpointError,
    Strategy,
    hf_config,
    is_file,
    read_limited,
)
from aftermath.model.levels import prefix
from aftermath.model.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    ManifestUnusable,
    local_path,
    parse_manifest,
    verify,
)
from aftermath.model.published_checkpoints import PLAIN, Form, form_of
from aftermath.model.weights import absent_from, read_weights, weight_files

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TierSource:
    """Files that hold one tier (0: the full model) of a model."""

    config: ModelConfig  # the full model's config
    stored: int
    weights: tuple[Path, ...]
    form: Form = PLAIN


def load_config(directory: Path) -> ModelConfig:
    """Return the full model's config from any tier. Raises CheckpointError, ModelConfigError."""
    return config_of(hf_config(directory / "config.json"))


def tier_of(directory: Path, tier: int | None) -> int:
    """Return the requested tier, else the directory's. Raises as `load_config` does."""
    return stored_tier(hf_config(directory / "config.json"))[0] if tier is None else tier


def load(directory: Path, tier: int, strategy: Strategy = "auto") -> dict[str, Tensor]:
    """Return the fp32 tensors of a tier. Raises CheckpointError, ModelConfigError."""
    source = find(Path(directory), tier, strategy)
    return read_weights(
        source.weights, source.config, stored=source.stored, tier=tier, form=source.form
    )


def find(directory: Path, tier: int, strategy: Strategy = "auto") -> TierSource:
    """Return the files that hold a tier. Raises CheckpointError, ModelConfigError."""
    whole = directory.absolute()
    sibling = whole.parent / f"{whole.name}-tier{tier}"
    may_slice = tier > 0 and strategy != "universal"
    alone = may_slice and not is_file(directory / "config.json")
    if alone and is_file(sibling / "config.json"):
        return _tier_source(sibling / "config.json", tier, weight_files(sibling))
    document = hf_config(directory / "config.json")
    config = config_of(document)
    (stored, _) = stored_tier(document)
    form = form_of(document)
    config.width(tier)  # WidthNotDivisible names valid widths
    if stored > 0:
        _guard_slice(directory, stored, tier, strategy)
        return TierSource(config, stored, weight_files(directory), form)
    if not may_slice:
        return TierSource(config, 0, weight_files(directory, absent_from(config, tier, form)), form)
    tier_source = _own_files(directory, sibling, tier, strategy)
    if tier_source is not None:
        if tier_source.config != config:
            raise CheckpointError(
                f"the files of tier {tier} do not belong to {directory}: their config.json describes another model",
                "Export the tiers again from the full checkpoint",
            )
        return tier_source
    if strategy == "sliced":
        raise CheckpointError(
            f"{directory} has no files of tier {tier}, which the strategy `sliced` needs",
            f"Run aftermath-solana model export --src {directory} --tiers {tier}, or use the strategy auto",
        )
    return TierSource(config, 0, weight_files(directory, absent_from(config, tier, form)), form)


def _own_files(directory: Path, sibling: Path, tier: int, strategy: Strategy) -> TierSource | None:
    """Return the tier's own files, or None if there are none."""
    manifest = directory / MANIFEST_FILE
    if is_file(manifest):
        try:
            return _from_manifest(manifest, tier)
        except ManifestUnusable as error:
            if strategy == "sliced":
                raise
            log.warning("ignored %s: %s", manifest, error.message)
    if is_file(sibling / "config.json"):
        return _tier_source(sibling / "config.json", tier, weight_files(sibling))
    return None


def _from_manifest(path: Path, tier: int) -> TierSource:
    """Return a tier's files by the manifest. Raises ManifestUnusable or CheckpointError."""
    manifest = parse_manifest(read_limited(path, MAX_MANIFEST_BYTES))
    entry = manifest.of_tier(tier)
    files = {listed: local_path(path.parent, listed, tier) for listed in entry.files}
    absent = [listed for listed, place in files.items() if not is_file(place)]
    if absent:
        raise ManifestUnusable(f"the file {absent[0]} of tier {tier} is missing")
    verify(files, manifest.sha256)
    config = next(place for place in files.values() if place.name == "config.json")
    source = _tier_source(
        config, tier, tuple(place for place in files.values() if place.suffix == ".safetensors")
    )
    for label, stated, actual in (
        (
            "matformer_base_intermediate_size",
            manifest.matformer_base_intermediate_size,
            source.config.intermediate_size,
        ),
        (f"tier {tier}'s intermediate_size", entry.intermediate_size, source.config.width(tier)),
    ):
        if stated not in (None, actual):
            raise CheckpointError(
                f"{label} is {stated} in the manifest, but {actual} in config.json",
                "Export the tiers again",
            )
    return source


def _tier_source(config: Path, tier: int, weights: tuple[Path, ...]) -> TierSource:
    document = hf_config(config)
    stored, _ = stored_tier(document)
    if stored != tier:
        raise CheckpointError(
            f"{config} is of tier {stored}, not of tier {tier}", "Export the tiers again"
        )
    return TierSource(config_of(document), stored, weights, form_of(document))


def _guard_slice(directory: Path, stored: int, tier: int, strategy: Strategy) -> None:
    """Refuse to use a tier's slice as anything but that tier."""
    if strategy == "universal":
        raise CheckpointError(
            f"{directory} is a slice of tier {stored}; the strategy `universal` needs the full checkpoint",
            "Name the full checkpoint, or use the strategy auto",
        )
    choose = f"Name the full checkpoint, or pass --tier {stored} (train: --matformer-tier {stored})"
    if tier > stored:
        raise CheckpointError(
            f"{directory} is a slice of tier {stored}, which cannot be sliced again for tier {tier}",
            choose,
        )
    if tier < stored:
        raise CheckpointError(
            f"{directory} is a slice of tier {stored}, which lacks weights of tier {tier}",
            choose,
        )


@dataclass(frozen=True)
class Verified:
    """The result of a successful check."""

    tiers: tuple[int, ...]
    """The tiers whose own files were compared with the full model."""
    files: int
    """Number of files whose SHA-256 matches the manifest."""
    tensors: int
    """Number of tensors of the model, or of the slice."""
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
                    f"{name} of tier {tier} differs from the full model",
                    "Export the tiers again from the full checkpoint",
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
    """Return the manifest's files by tier, after checking their digests. Raises CheckpointError.

    Empty without a manifest.
    """
    path = directory / MANIFEST_FILE
    if not is_file(path):
        return {}
    manifest = parse_manifest(read_limited(path, MAX_MANIFEST_BYTES))
    files_by_tier = {
        entry.tier: {
            name: local_path(directory, name, entry.tier)
            for name in manifest.of_tier(entry.tier).files
        }
        for entry in manifest.tiers
    }
    for files in files_by_tier.values():
        verify(files, manifest.sha256)
    return files_by_tier


def merged(
    full: Path, part: Path, warn: Callable[[str], None] = log.warning
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the full model's config and its tensors with a slice's values written into them.

    Call `warn` with the distance if the slice's values differ. Raises CheckpointError or
    ModelConfigError, also for a slice of another model.
    """
    config = load_config(full)
    tier = stored_tier(hf_config(part / "config.json"))[0]
    if stored_tier(hf_config(full / "config.json"))[0]:
        raise CheckpointError(f"{full} is itself a slice", "Name the full checkpoint")
    if load_config(part) != config:
        raise CheckpointError(
            f"{part} is not a slice of {full}: their config.json files describe different models",
            "Name the full model from which the slice was exported",
        )
    params = load(full, 0)
    slices = load(part, tier)
    changed = 0
    squares = 0.0
    differences = 0.0
    for name, tensor in slices.items():
        place = params[name][prefix(tensor.shape)]
        changed += not torch.equal(place, tensor)
        squares += float(place.square().sum(dtype=torch.float64))
        differences += float((place - tensor).square().sum(dtype=torch.float64))
        place.copy_(tensor)
    if changed:
        size = math.sqrt(differences / squares) if squares else math.inf
        differ = "differs" if changed == 1 else "differ"
        warn(
            f"{counted(changed, 'tensor')} of {part} {differ} from {full} by {size:.1%} of the norm. "
            "Merging makes sense only if the slice was trained from this model; above 100% it "
            "probably was not"
        )
    return config, params
