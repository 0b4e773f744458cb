"""Writes docs/commands-centralized.md from the commands' own help: `python -m aftermath.server.docs FILE`."""

from __future__ import annotations

from aftermath.cli import docs
from aftermath.server.index import CENTRALIZED

PREFACE = """# Commands of aftermath-centralized

Generated from `--help`; change the command, then run `python -m aftermath.server.docs docs/commands-centralized.md`.

`aftermath-centralized`, or `python -m aftermath.server` where it is not in the path. What holds of all commands of
`aftermath-solana`, `--json`, errors and exit codes among it, holds here: see [commands.md](commands.md). How to use
them is in [centralized.md](centralized.md)."""


if __name__ == "__main__":
    docs.main(CENTRALIZED, PREFACE)
