"""The toys of this folder as an installed package that registers them."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
ENTRY_POINTS = {
    "aftermath.data_sources": "Counting = extending.toy_source:CountingData",
    "aftermath.architectures": "Averaging = extending.toy_architecture:AveragingConfig",
    "aftermath.optimizers": "Majority = extending.toy_optimizer:Majority",
}
"""A line for each kind, as in the `[project.entry-points]` tables of a pyproject.toml."""


def install(folder: Path, entry_points: dict[str, str] = ENTRY_POINTS) -> Path:
    """Write the metadata that an installer writes; `folder` is to be on sys.path."""
    metadata = folder / "toys-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    groups = [f"[{group}]\n{line}\n" for group, line in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(groups))
    return folder
