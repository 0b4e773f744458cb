"""Write docs/commands-centralized.md from `--help`: `python -m aftermath.server.docs FILE`."""

from __future__ import annotations

from aftermath.cli import docs
from aftermath.server.index import CENTRALIZED

PREFACE = """# Commands of aftermath-centralized

Generated from `--help`; change the command, then run `python -m aftermath.server.docs docs/commands-centralized.md`.

`aftermath-centralized`, or `python -m aftermath.server` if it is not in the path. All that [commands.md](commands.md)
says about the commands of `aftermath-solana` applies here too, including `--json`, errors and exit codes.
[A server instead of a cluster](operations.md#a-server-instead-of-a-cluster) says how to use these commands."""


if __name__ == "__main__":
    docs.main(CENTRALIZED, PREFACE)
