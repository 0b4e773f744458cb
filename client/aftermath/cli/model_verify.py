"""`model verify`: whether a checkpoint and its tiers are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.base.text import counted
from aftermath.cli.command import command
from aftermath.cli.present import Result


@command("model verify", example="aftermath-solana model verify --model checkpoints/tiny")
def model_verify(model: Annotated[Path, typer.Option(help="A full checkpoint, or an exported tier of one.")]) -> Result:
    """Read a checkpoint and its tiers whole, and say whether they are.

    Every tensor that it needs, finite; every file that its manifest lists, by SHA-256. Tiers that were exported
    must hold the full model's very values. Of an exported tier alone it checks its own tensors, and its files by the
    manifest of the full checkpoint beside it. The first thing that is wrong ends it.
    """
    from aftermath.model.verify import verified

    found = verified(model.expanduser())
    data = {"tensors": found.tensors, "files": found.files, "tiers": list(found.tiers), "slice_of": found.slice_of}
    tiers = f"; tiers {', '.join(map(str, found.tiers))} are the same model" if found.tiers else ""
    files = f", {counted(found.files, 'file')} as the manifest says" if found.files else ""
    of = f" of tier {found.slice_of}" if found.slice_of else ""
    return Result(data, f"{counted(found.tensors, 'tensor')}{of} whole and finite{files}{tiers}")
