"""Train for hours on bad lines with members that are killed, and count what wears out.

soak.py [--hours 8] [--members 4] [--json]
"""

# How it is measured:
# - `local-testnet start` runs the demo's run without an end: the real programs on the embedded
#   chain, and a process per member.
# - Each member's packets have 50 ms of latency, and 0.1 % of them are lost. Every ten minutes, one
#   member is killed (kill -9) and starts again.
# - Connections are summed over all processes. A kill closes one connection per other member. Every
#   other closed or failed connection is a fault of the transport or of the machine.
# - `memory_growth` is a member's resident memory at its end over that after its first minutes, for
#   the process that lived longest.

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).parents[1] / "config/demo"
KILL_EVERY_S = 600
SETTLED_S = 300.0
"""Seconds after which a process has allocated what it needs in every round."""


def processes(log: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the events of each process that wrote to one member's log."""
    events: list[dict[str, Any]] = []
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "started" and not event.get("part") and events:
            yield events
            events = []
        events.append(event)
    yield events


def memory_growth(lives: Sequence[list[dict[str, Any]]]) -> float | None:
    """Return how much the longest process grew, or None if none lived past `SETTLED_S`."""
    longest = max(lives, key=lambda events: float(events[-1]["t"]))
    sizes = [
        one["resident"] for one in longest if one["kind"] == "machine" and one["t"] > SETTLED_S
    ]
    return round(sizes[-1] / sizes[0], 3) if len(sizes) > 1 else None


def report(logs: Sequence[Path]) -> dict[str, Any]:
    """Return the sums over all members' processes."""
    connections = Counter[str]()
    warnings = Counter[str]()
    growth = []
    rounds = 0
    for log in logs:
        lives = list(processes(log))
        growth.append(memory_growth(lives))
        rounds = max(rounds, *(one.get("step", 0) for events in lives for one in events))
        for events in lives:
            traffic = [one for one in events if one["kind"] == "traffic"]
            connections.update(traffic[-1]["connections"] if traffic else {})
            # numbers and keys would make every message another one
            warnings.update(
                re.sub(r"\b[0-9a-f]{8,}\b|\d+(\.\d+)?", "N", one["message"].splitlines()[0])
                for one in events
                if one["kind"] == "warning"
            )
    return {
        "rounds": rounds,
        "connections": dict(connections),
        "warnings": dict(warnings.most_common()),
        "memory_growth": [one for one in growth if one is not None],
    }


def soak(hours: float, members: int, directory: Path) -> dict[str, Any]:
    """Run a testnet in `directory` and return what it counted. Raises CalledProcessError."""
    text = (CONFIG / "config.toml").read_text()
    steps = tomllib.loads(text)["config"]["total_steps"]
    endless = text.replace(f"total_steps = {steps}", "total_steps = 4000000")
    copied = directory / "config"
    copied.mkdir()
    (copied / "config.toml").write_text(endless)
    (copied / "config.files.toml").write_text((CONFIG / "config.files.toml").read_text())
    command = [sys.executable, "-P", "-m", "aftermath", "local-testnet", "start", "--json", "-q"]
    command += ["--num-clients", str(members), "--client-matformer-tiers", "0,1,2"]
    command += ["--config-path", str(copied), "--dir", str(directory / "testnet"), "--write-log"]
    command += ["--headless", "--headless-exit-after-secs", str(max(1, round(3600 * hours)))]
    command += ["--latency-ms", "50", "--loss", "0.1", "--client-keep-steps", "1"]
    command += ["--random-kill-num", "1", "--random-kill-interval", str(KILL_EVERY_S)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=directory)
    ended = json.loads(done.stdout)
    kept = ("kills", "failed", "comparisons", "differing", "seconds")
    logs = sorted((directory / "testnet/logs").glob("*.jsonl"))
    return {name: ended[name] for name in kept} | report(logs)


def main() -> None:
    """Read the options, soak, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = soak(options.hours, options.members, Path(directory))
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:16} {value}")


if __name__ == "__main__":
    main()
