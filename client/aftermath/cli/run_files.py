"""`run-files`: make the model and the tokens that a run's config names and that are not there yet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.present import Result, note


@command("run-files", example="aftermath-solana run-files run.toml")
def run_files(
    file: Annotated[Path, typer.Argument(help="The run's config file; or a config of the package, as demo.")],
) -> Result:
    """Make the model and the tokens that a run's config names and that are not there yet.

    Beside NAME.toml, NAME.files.toml says what they are made of: the options of model init in [model], those of
    data tokenize in [tokens] or of data fetch in [fetch]. init writes both files. What exists already stays as it is.
    """
    import os

    from aftermath.testnet.configs import chosen, log_of, make_missing

    found = chosen(file)
    log = log_of(found.path)
    made = make_missing(found.path, found.config, log, os.environ, lambda place: note(f"making {place}; log: {log}"))
    text = "\n".join(f"made {place}" for place in made)
    return Result({"made": [str(place) for place in made]}, text or "nothing to make: the model and the tokens exist")
