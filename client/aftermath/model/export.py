"""Export tiers: one sliced directory per tier next to the full checkpoint, and the manifest.

The manifest is written last, so it never lists a missing file. Checkpoints of a run are pruned
with all their contents, so their tiers go to another directory with a copy of the checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from aftermath.base.files import replacing
from aftermath.base.outputs import (
    check_can_be_directory,
    check_directory,
    refuse_inputs,
    update_mark,
)
from aftermath.model.checkpoint import load, load_config
from aftermath.model.config import ModelConfig, stored_tier
from aftermath.model.json_documents import (
    COMPANIONS,
    INDEX_FILE,
    CheckpointError,
    hf_config,
    is_file,
)
from aftermath.model.manifest import (
    MANIFEST_FILE,
    Manifest,
    TierFiles,
    encode_manifest,
    file_sha256,
    local_path,
    parse_manifest,
    verify,
)
from aftermath.model.save_checkpoint import publish, read_companions, write_checkpoint, writing
from aftermath.model.saved_checkpoints import is_removable
from aftermath.model.weights import weight_files

MADE_BY = "model export"
_ELSEWHERE = "Export to another directory: --out DIRECTORY"


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    tiers: list[Path]
    manifest: Path


def export_tiers(
    source: Path, tiers: Sequence[int], out: Path | None = None, dtype: torch.dtype = torch.float32
) -> Exported:
    """Write `<name>-tier<t>` next to `source` for every tier, and a manifest into `source`.

    With `out`, write everything to that directory, with a copy of `source`. Numbers are rounded to
    `dtype`; without `out` this must not change them. An existing export of these tiers is replaced.
    The manifest keeps other tiers of the same model whose files are unchanged.

    Raises CheckpointError, OutputError, ModelConfigError or WidthNotDivisible.
    """
    source = source.absolute()
    config = load_config(source)
    stored, _ = stored_tier(hf_config(source / "config.json"))
    if stored:
        raise CheckpointError(
            f"{source} is itself a slice of tier {stored}", "Export from the full checkpoint"
        )
    chosen = sorted(set(tiers))
    if not chosen or chosen[0] < 1:
        raise CheckpointError(
            "tiers to export must be at least 1; tier 0 is the full checkpoint itself",
            "Pass for example --tiers 1,2",
        )
    config.width(chosen[-1])
    if out is not None:
        check_can_be_directory(out, _ELSEWHERE)
    base = source if out is None else out.absolute() / source.name
    if base.parent.resolve() == source.parent.resolve():
        base = source  # `out` may spell the same directory differently; do not copy onto itself
    _refuse_removable(source, base)
    if out is not None:
        refuse_inputs(out, [source], _ELSEWHERE)
    places = [base.with_name(f"{base.name}-tier{tier}") for tier in chosen]
    for place in [*places, *([] if base == source else [base])]:
        check_directory(place, MADE_BY, _ELSEWHERE)
    companions = read_companions(source)
    earlier = _read_manifest(base)  # before the export replaces it
    for tier, place in zip(chosen, places, strict=True):
        params = load(source, tier, "universal")
        if base == source:
            _require_exact(params, dtype, source)
        write_checkpoint(
            place, params, config, tier=tier, companions=companions, made_by=MADE_BY, dtype=dtype
        )
    if base != source and dtype == torch.float32:
        _copy(source, base)
    elif base != source:
        params = load(source, 0, "universal")
        write_checkpoint(
            base, params, config, tier=0, companions=companions, made_by=MADE_BY, dtype=dtype
        )
    directories = dict(zip([0, *chosen], [base, *places], strict=True))
    return Exported(places, _describe(config, base, directories, earlier))


def _require_exact(params: Mapping[str, Tensor], dtype: torch.dtype, source: Path) -> None:
    """Raise CheckpointError if rounding changes a number: tiers must share exact numbers."""
    if any(not torch.equal(tensor.to(dtype).float(), tensor) for tensor in params.values()):
        raise CheckpointError(
            f"rounding to {str(dtype).removeprefix('torch.')} would make the tiers differ from {source}",
            _ELSEWHERE,
        )


def _refuse_removable(source: Path, base: Path) -> None:
    """Raise CheckpointError if the export would be in a directory that a member prunes."""
    origin = source.resolve()
    output = base.parent.resolve()
    sibling = is_removable(origin) and (base == source or output == origin.parent)
    inside = any(
        is_removable(path) and is_file(path / "config.json") for path in (output, *output.parents)
    )
    if sibling or inside:
        raise CheckpointError(
            f"{origin if sibling else output} is a checkpoint of a run; its member will remove it later",
            _ELSEWHERE,
        )


def _copy(source: Path, base: Path) -> None:
    """Copy the full checkpoint's files, without an older manifest."""
    weights = weight_files(source)
    small = [
        source / name for name in ("config.json", INDEX_FILE, *COMPANIONS) if is_file(source / name)
    ]

    def fill(place: Path) -> None:
        for path in small:
            shutil.copyfile(path, place / path.name)
        for path in weights:
            try:
                os.link(path.resolve(), place / path.name)
            except OSError:
                shutil.copyfile(path, place / path.name)

    with writing(base.parent):
        publish(base, fill, MADE_BY)


def _read_manifest(base: Path) -> Manifest | None:
    """Return the manifest of an earlier export, or None if it is missing or unusable."""
    try:
        return parse_manifest((base / MANIFEST_FILE).read_bytes())
    except (OSError, CheckpointError):
        return None


def _kept_tiers(
    base: Path, earlier: Manifest, exported: Collection[int], digests: Mapping[str, str]
) -> list[TierFiles]:
    """Return the entries of other tiers of the same model whose files are unchanged.

    `digests` are those of the full checkpoint's files.
    """
    if any(earlier.sha256.get(name) != digest for name, digest in digests.items()):
        return []
    kept = []
    for entry in earlier.tiers:
        if entry.tier in exported:
            continue
        try:
            files = {name: local_path(base, name, entry.tier) for name in entry.files}
            verify(
                files, {name: earlier.sha256[name] for name in earlier.of_tier(entry.tier).files}
            )
        except CheckpointError:
            continue
        kept.append(entry)
    return kept


def _describe(
    config: ModelConfig, base: Path, places: Mapping[int, Path], earlier: Manifest | None
) -> Path:
    """Write the manifest of the tiers in these directories and return its path.

    It keeps the other tiers of the `earlier` one (see `_kept_tiers`).
    """
    entries: list[TierFiles] = []
    digests: dict[str, str] = {}
    for tier, place in places.items():
        weights = weight_files(place)
        index = [place / INDEX_FILE] if len(weights) > 1 else []
        files = [place / "config.json", *index, *weights]
        listed = {
            path.name if tier == 0 else f"../{place.name}/{path.name}": path for path in files
        }
        entries.append(TierFiles(tier, list(listed), config.width(tier)))
        digests |= {name: file_sha256(path) for name, path in listed.items()}
    if earlier is not None:
        full = {name: digests[name] for name in entries[0].files}
        kept = _kept_tiers(base, earlier, places, full)
        entries = sorted([*entries, *kept], key=lambda entry: entry.tier)
        digests |= {name: earlier.sha256[name] for entry in kept for name in entry.files}
    common = [name for name in COMPANIONS if is_file(base / name)]
    digests |= {name: file_sha256(base / name) for name in common}
    manifest = base / MANIFEST_FILE
    with writing(base):
        with replacing(manifest) as stream:
            stream.write(encode_manifest(config.intermediate_size, entries, common, digests))
        update_mark(base, manifest.name)
    return manifest
