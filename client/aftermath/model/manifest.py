"""`matformer_manifest.json` (version 1): the files of each tier and their SHA-256.

Paths are relative and stay in the manifest's directory or its sibling `<name>-tier<k>`. On the Hub
a leading `..` stops at the root. A file without a digest, or with a wrong one, is not used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from aftermath.base.bounded import Malformed, json_as
from aftermath.model.config import MAX_TIERS
from aftermath.model.json_documents import CheckpointError, check_listed, is_file

MANIFEST_FILE = "matformer_manifest.json"
MAX_MANIFEST_BYTES = 4 << 20


class ManifestUnusable(CheckpointError):
    """The manifest is unreadable, of another version, or incomplete for the tier."""


class TierFiles(msgspec.Struct, frozen=True):
    """One tier's own files: its config.json and its safetensors."""

    tier: int
    files: list[str]
    intermediate_size: int | None = None


class Manifest(msgspec.Struct, frozen=True):
    """The manifest document."""

    schema_version: int
    tiers: list[TierFiles]
    common_files: list[str] = []
    sha256: dict[str, str] = {}
    matformer_base_intermediate_size: int | None = None

    def of_tier(self, tier: int) -> TierFiles:
        """Return the tier's entry. Raises ManifestUnusable if it is missing or incomplete."""
        entries = [entry for entry in self.tiers if entry.tier == tier]
        if len(entries) != 1:
            raise ManifestUnusable(
                f"the manifest has {len(entries)} entries for tier {tier}",
                f"Export this tier from the full checkpoint: model export --tiers {tier}",
            )
        files = entries[0].files
        if sum(PurePosixPath(path).name == "config.json" for path in files) != 1:
            raise ManifestUnusable(
                f"the manifest's tier {tier} does not have exactly one config.json"
            )
        if not any(path.endswith(".safetensors") for path in files):
            raise ManifestUnusable(f"the manifest's tier {tier} has no .safetensors file")
        bare = [path for path in files if path not in self.sha256]
        if bare:
            raise ManifestUnusable(f"the manifest has no sha256 for {bare[0]}")
        return entries[0]


def parse_manifest(data: bytes) -> Manifest:
    """Parse a manifest. Raises ManifestUnusable."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestUnusable(f"the manifest is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        manifest: Manifest = json_as(data, Manifest)
    except Malformed as error:
        raise ManifestUnusable(f"the manifest is not valid: {error}") from None
    if manifest.schema_version != 1:
        raise ManifestUnusable(
            f"the manifest has version {manifest.schema_version}, but this client reads only 1"
        )
    if any(not 0 <= entry.tier < MAX_TIERS for entry in manifest.tiers):
        raise ManifestUnusable(f"the manifest names a tier outside 0 to {MAX_TIERS - 1}")
    try:
        for name in (
            *manifest.common_files,
            *(file for entry in manifest.tiers for file in entry.files),
        ):
            check_listed(name, "the manifest")
    except CheckpointError as error:
        raise ManifestUnusable(error.message, error.fix) from None
    return manifest


def local_path(directory: Path, listed: str, tier: int) -> Path:
    """Return the path on disk of a listed file of a tier.

    Raises CheckpointError if it leads out of the checkpoint. Raises ManifestUnusable if it leads to
    a sibling of another name, which happens when the directory was renamed or copied.
    """
    directory = directory.absolute()
    path_parts = _resolve((directory.name,), listed, clamp=False)
    if len(path_parts) < 2 or path_parts[0] not in (directory.name, f"{directory.name}-tier{tier}"):
        raise ManifestUnusable(
            f"the manifest's path {listed!r} is not in {directory.name} or its tier {tier} directory"
        )
    return directory.parent.joinpath(*path_parts)


def hub_path(manifest: str, listed: str) -> str:
    """Return the repository path of a file listed in the manifest at repository path `manifest`."""
    return "/".join(_resolve(PurePosixPath(manifest).parent.parts, listed, clamp=True))


def _resolve(start: tuple[str, ...], listed: str, *, clamp: bool) -> list[str]:
    """Return the path components of `listed` relative to `start`, without `..`."""
    if (
        not listed
        or "\\" in listed
        or "\0" in listed
        or listed.startswith("/")
        or ":" in listed.split("/")[0]
    ):
        raise CheckpointError(
            f"the manifest's path {listed!r} is not a relative path", "Export the tiers again"
        )
    path_parts = list(start)
    for part in listed.split("/"):
        if part == "..":
            if path_parts:
                path_parts.pop()
            elif not clamp:
                raise CheckpointError(
                    f"the manifest's path {listed!r} is outside of the checkpoint"
                )
        elif part not in ("", "."):
            path_parts.append(part)
    return path_parts


def verify(files: Mapping[str, Path], digests: Mapping[str, str]) -> None:
    """Compare files by listed name with the manifest's digests. Raises CheckpointError."""
    for listed, path in files.items():
        if file_sha256(path) != digests[listed].lower():
            raise CheckpointError(
                f"{path} is not the file that the manifest describes: its SHA-256 differs",
                "Download it again, or export the tiers again if you changed the checkpoint",
            )


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hex. Raises CheckpointError."""
    if not is_file(path):
        raise CheckpointError(
            f"there is no file {path}", "Download it again, or export the tiers again"
        )
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None


def encode_manifest(
    base_width: int, tiers: Iterable[TierFiles], common: list[str], sha256: dict[str, str]
) -> bytes:
    """Return a version 1 manifest as JSON bytes."""
    manifest = Manifest(1, list(tiers), common, dict(sorted(sha256.items())), base_width)
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2)
