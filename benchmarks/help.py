"""Measure how long `--help` takes, in milliseconds over an interpreter that does nothing.

python benchmarks/help.py                      # all commands
python benchmarks/help.py train tick --json
"""

# How it is measured:
# - Commands take turns, so other work on the machine affects all of them.
# - The least of several times counts, since nothing makes a process faster than it is.
# - It is CPU time, which a busy machine changes least.

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys

from aftermath.cli.main import INDEX

TIMES = 7
GOAL_MS = 150.0
INDEX_PAGE = "(index)"


def lines(names: list[str]) -> dict[str, list[str]]:
    """Return the command lines by name, with an empty one for the bare interpreter."""
    module = [sys.executable, "-m", "aftermath"]
    asked = {
        name: [*module, *([] if name == INDEX_PAGE else name.split()), "--help"] for name in names
    }
    return {"": [sys.executable, "-c", "pass"], **asked}


def spent() -> float:
    """Return the processor time of all child processes that have ended, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(names: list[str], times: int) -> dict[str, float]:
    """Return the milliseconds over a bare interpreter, by name."""
    least = dict.fromkeys(("", *names), float("inf"))
    for _ in range(times):
        for name, line in lines(names).items():
            began = spent()
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
            least[name] = min(least[name], spent() - began)
    return {name: 1000 * (least[name] - least[""]) for name in names}


def main() -> None:
    """Print the table, slowest first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "commands", nargs="*", metavar="COMMAND", help="only these; quote names of two words"
    )
    parser.add_argument(
        "--times", type=int, default=TIMES, help=f"processes of each (default {TIMES})"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    found = measure(given.commands or [INDEX_PAGE, *INDEX], given.times)
    if given.json:
        print(
            json.dumps(
                {
                    "goal_ms": GOAL_MS,
                    "ms_over_interpreter": {k: round(v, 1) for k, v in found.items()},
                }
            )
        )
        return
    for name, took in sorted(found.items(), key=lambda row: -row[1]):
        print(f"{took:7.0f} ms  {name}{'' if took <= GOAL_MS else f'   over {GOAL_MS:.0f}'}")


if __name__ == "__main__":
    main()
