"""`config schema`: the JSON Schema of a run's config file."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.present import Result
from aftermath.events.printable import json_text


@command("config schema", example="aftermath-solana config schema")
def config_schema() -> Result:
    """Print the JSON Schema of a run's config file, by which editors complete and check one.

    A config file whose first line is #:schema ./run.schema.json is checked by editors that know Taplo's comments; with
    and without --json it is the same document.
    """
    from aftermath.config.json_schema import json_schema

    document = json_schema()
    return Result(document, json_text(document, indent=2))
