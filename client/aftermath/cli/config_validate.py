"""`config validate`: what is wrong with a run's config file, before anything is asked or sent.

Decided: mistakes are the command's result and not its error, so that they are one document on stdout; the exit code
says whether there are any.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.present import EXIT_KNOWN, Result, plain_text


@command("config validate", example="aftermath-solana config validate run.toml")
def config_validate(
    file: Annotated[Path, typer.Argument(help="The run's config file.", show_default=False)],
) -> Result:
    """Say what is wrong with a run's config file, asking nobody.

    Mistakes are what update-config would refuse, and what train would refuse of what the file says; each comes with its
    line and, with --json, with a code (docs/config.md). What the owner may not have meant is a warning. The model is
    looked at where this machine has it, or as a file beside the config says that it will be made. Exits 1 if there is a
    mistake, else 0.
    """
    from aftermath.cli.config_check import check

    found = check(file)
    data = {
        "file": str(file),
        "ok": not found.mistakes,
        "mistakes": [
            {"code": one.code, "line": one.line, "key": one.key, "message": one.sentence} for one in found.mistakes
        ],
        "warnings": [{"code": code, "message": sentence} for code, sentence in found.warnings],
        "not_looked_at": list(found.unseen),
    }
    lines = [f"{file}:{one.line}: {one.sentence}" for one in found.mistakes]
    lines += [f"warning: {sentence}" for _, sentence in found.warnings]
    lines += [f"not looked at: {what}" for what in found.unseen]
    lines.append(f"{file} has mistakes" if found.mistakes else f"{file} is a config that a run can have")
    return Result(data, plain_text("\n".join(lines)), EXIT_KNOWN if found.mistakes else 0)
