"""`config unset`: forget what was chosen for all commands."""

from __future__ import annotations

from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.present import CommandError, Result, plain_text
from aftermath.cli.profile import Name, read_profile, write_profile


@command("config unset", example="aftermath-solana config unset run")
def config_unset(name: Annotated[Name, typer.Argument(help="What to forget.", show_default=False)]) -> Result:
    """Forget what was stored for all commands."""
    held = read_profile()
    if name not in held:
        raise CommandError(f"the profile has no {name}", "See what it has: aftermath-solana config show")
    path = write_profile({key: value for key, value in held.items() if key != name})
    return Result({"name": str(name), "file": str(path)}, plain_text(f"{name} is not in {path} any more"))
