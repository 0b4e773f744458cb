"""Write docs/commands-centralized.md: `python -m aftermath.server.commands_page FILE`."""

from __future__ import annotations

from aftermath.cli import commands_page
from aftermath.server.index import CENTRALIZED

PREFACE = """# Commands of aftermath-centralized

Generated from `--help`. After a change of a command, run
`python -m aftermath.server.commands_page docs/commands-centralized.md`.

`aftermath-centralized`, or `python -m aftermath.server` if it is not in the path. All that [commands.md](commands.md)
says about the commands of `aftermath-solana` applies here too, including `--json`, errors and exit codes.
[A server instead of a cluster](operations.md#a-server-instead-of-a-cluster) says how to use these commands."""


if __name__ == "__main__":
    commands_page.main(CENTRALIZED, PREFACE)
