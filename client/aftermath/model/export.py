"""Exporting tiers: one sliced directory per tier beside the full checkpoint, and the manifest that describes them.

Decided: slices are written first and the manifest last, so a manifest never promises what is not there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from aftermath.model.checkpoint import load, load_config
from aftermath.model.config import stored_tier
from aftermath.model.documents import COMPANIONS, CheckpointError, hf_config
from aftermath.model.manifest import MANIFEST_FILE, TierFiles, encode_manifest, file_sha256
from aftermath.model.store import read_companions, write_checkpoint, writing
from aftermath.model.weights import weight_files


def export_tiers(source: Path, tiers: Sequence[int]) -> list[Path]:
    """Write `<source>-tier<t>` for every tier and `matformer_manifest.json` into `source`; returns the directories.

    Raises CheckpointError, ModelConfigError or WidthNotDivisible; an existing export of the same tier is replaced.
    """
    source = source.absolute()
    config = load_config(source)
    stored, _ = stored_tier(hf_config(source / "config.json"))
    if stored:
        raise CheckpointError(f"{source} is itself a slice of tier {stored}", "Export from the full checkpoint.")
    wanted = sorted(set(tiers))
    if not wanted or wanted[0] < 1:
        raise CheckpointError("tiers to export start at 1; tier 0 is the full checkpoint itself")
    config.width(wanted[-1])
    places = [source.with_name(f"{source.name}-tier{tier}") for tier in wanted]
    companions = read_companions(source)
    for tier, place in zip(wanted, places, strict=True):
        params = load(source, tier, "universal")
        write_checkpoint(place, params, config, tier=tier, companions=companions)
    entries: list[TierFiles] = []
    digests: dict[str, str] = {}
    for tier, place in zip([0, *wanted], [source, *places], strict=True):
        files = [place / "config.json", *weight_files(place)]
        listed = {path.name if tier == 0 else f"../{place.name}/{path.name}": path for path in files}
        entries.append(TierFiles(tier, list(listed), config.width(tier)))
        digests |= {name: file_sha256(path) for name, path in listed.items()}
    common = [name for name in COMPANIONS if name in companions]
    digests |= {name: file_sha256(source / name) for name in common}
    partial = source / (MANIFEST_FILE + ".partial")
    with writing(source):
        partial.write_bytes(encode_manifest(config.intermediate_size, entries, common, digests))
        os.replace(partial, source / MANIFEST_FILE)
    return places
