#!/usr/bin/env python3
"""Measure the cost of threads that wait by spinning, alone and next to another busy process.

python benchmarks/spinning.py [--json]
"""

# How it is measured:
# - It asks `aftermath-solana estimate --device cpu` for the sequences per minute of a model of a
#   million parameters, by tier. It measures twice: with the OpenMP settings of our commands
#   (`base.environment`), and with GNU's default as the reference. Each runs alone and next to a
#   busy process.

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aftermath.base.environment import BY_THE_USER

PRESET = "llama-1m"
GNU = {"GOMP_SPINCOUNT": "300000"}
COMMAND = [sys.executable, "-m", "aftermath"]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    as_json = parser.parse_args().json
    found = measure()
    if as_json:
        print(json.dumps(found))
    else:
        for name, kinds in found.items():
            print(
                f"{name}: {kinds['sleeping']} sequences a minute by tier, spinning {kinds['spinning']}"
            )
    return 0


def measure() -> dict[str, Any]:
    """Return the sequences per minute by tier and the ratio to the reference, alone and with a busy
    process.
    """
    found = {}
    with tempfile.TemporaryDirectory(prefix="aftermath-spinning-") as folder:
        config = Path(folder) / "run.toml"
        line = [*COMMAND, "init", "--out", str(config), "--preset", PRESET]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name, busy in (("alone", 0), ("next_to_one", 1)):
            with counting(busy):
                spinning = paces(config, GNU)
                sleeping = paces(config, {})
            ratios = [
                round(ours / theirs, 2) for ours, theirs in zip(sleeping, spinning, strict=True)
            ]
            found[name] = {
                "spinning": spinning,
                "sleeping": sleeping,
                "sleeping_over_spinning": ratios,
            }
    return found


def paces(config: Path, own: dict[str, str]) -> list[int]:
    """Return the sequences per minute, by tier."""
    line = [*COMMAND, "estimate", "--config-path", str(config), "--device", "cpu", "--json"]
    plain = {name: value for name, value in os.environ.items() if name not in BY_THE_USER}
    done = subprocess.run(
        line, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=plain | own
    )
    return [one["sequences_per_minute"] for one in json.loads(done.stdout)["here"]]


@contextmanager
def counting(processes: int) -> Iterator[None]:
    """Keep this number of processes busy until the block ends."""
    started = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
