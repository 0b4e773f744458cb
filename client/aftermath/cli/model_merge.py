"""`model merge`: a tier's slice back into its full model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.base.outputs import check_directory
from aftermath.cli.command import command
from aftermath.cli.model_init import NEW_DIRECTORY
from aftermath.cli.present import Result, note


@command(
    "model merge",
    example="aftermath-solana model merge --into checkpoints/tiny --slice checkpoints/tiny-tier1 --out checkpoints/new",
)
def model_merge(
    into: Annotated[Path, typer.Option(help="The full checkpoint; it stays as it is.")],
    slice: Annotated[Path, typer.Option("--slice", help="A tier of it, trained on, for example.")],
    out: Annotated[Path, typer.Option(help=NEW_DIRECTORY)],
) -> Result:
    """Put a tier's slice back into the full model it belongs to.

    The result is another checkpoint. The slice's tensors take the place of the first hidden units of the full
    model's. What was exported and not changed since gives the same bits. It warns if the slice's values differ from the
    full model's: then the slice was trained further, or it is of another training.
    """

    from aftermath.model.merge import merged
    from aftermath.model.store import read_companions, write_checkpoint

    place = out.expanduser()
    check_directory(place, "model merge")
    config, params = merged(into.expanduser(), slice.expanduser(), lambda sentence: note(f"warning: {sentence}"))
    companions = read_companions(into.expanduser())
    write_checkpoint(place, params, config, tier=0, companions=companions, made_by="model merge")
    return Result({"out": str(place)}, f"Wrote {place}")
