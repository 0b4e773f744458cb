#!/usr/bin/env python3
"""Print what each test file costs, and fail if a tier exceeds its budget.

    scripts/test_times.py           check the budgets of the last `make test` and `make slow`
    scripts/test_times.py --keep    also write them to tests/durations.tsv, which is committed

It reads runs/test-times/TIER.json. tests/budget.toml has the budgets and reasons for costly files.
"""

# A budget is compared with the CPU seconds that the tests would have taken on the machine it was
# set on. The same tests take twice the CPU seconds on a machine with slow memory, and a gate must
# not fail for that.

from __future__ import annotations

import argparse
import csv
import json
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "runs" / "test-times"
TABLE = ROOT / "tests" / "durations.tsv"
TIERS = ("fast", "slow", "nightly")
COLUMNS = ("tier", "file", "cases", "cpu_s", "wall_s")
SHOWN_FILES = 25


@dataclass
class FileCost:
    cases: int = 0
    cpu: float = 0.0
    wall: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", action="store_true", help="write tests/durations.tsv")
    keep = parser.parse_args().keep
    limits = tomllib.loads((ROOT / "tests" / "budget.toml").read_text())
    budgets = limits["cpu_seconds"]
    measured = {tier: path for tier in TIERS if (path := RECORDED / f"{tier}.json").exists()}
    if not measured:
        print("error: no test times were recorded\nfix: make test-times", file=sys.stderr)
        return 1
    over = False
    rows: list[tuple[str, ...]] = []
    for tier, path in measured.items():
        recorded = json.loads(path.read_text())
        files = cost_per_file(recorded["tests"])
        slowness = recorded["reference"] / limits["reference_cpu_seconds"]
        # The table holds CPU seconds of the reference machine, so that it does not depend on who
        # renews it.
        rows += [
            (tier, name, f"{c.cases}", f"{c.cpu / slowness:.1f}", f"{c.wall:.1f}")
            for name, c in files.items()
        ]
        over |= not print_tier(
            tier, recorded["cpu"], recorded["wall"], slowness, files, budgets.get(tier)
        )
    if keep:
        write_table(rows)
    return 1 if over else 0


def cost_per_file(tests: dict[str, dict[str, float]]) -> dict[str, FileCost]:
    """Return the cost of each test file, most expensive first."""
    files: dict[str, FileCost] = defaultdict(FileCost)
    for nodeid, row in tests.items():
        cost = files[nodeid.partition("::")[0]]
        cost.cases += 1
        cost.cpu += row["cpu"]
        cost.wall += row["wall"]
    return dict(sorted(files.items(), key=lambda item: (-item[1].cpu, item[0])))


def print_tier(
    tier: str,
    cpu: float,
    wall: float,
    slowness: float,
    files: dict[str, FileCost],
    budget: float | None,
) -> bool:
    """Print one tier's table. Return whether it stayed within its budget of CPU seconds.

    `slowness`: CPU seconds of this machine for one of the machine that the budget was set on.
    """
    cases = sum(cost.cases for cost in files.values())
    print(f"{tier}: {cases} cases in {len(files)} files, {cpu:.0f} CPU seconds, {wall:.0f} s")
    print(
        f"  this machine takes {slowness:.2f} times the CPU seconds of the reference: {cpu / slowness:.0f} there"
    )
    print(f"  {'CPU s':>7} {'wall s':>7} {'cases':>6}  file")
    for name, cost in list(files.items())[:SHOWN_FILES]:
        print(f"  {cost.cpu:7.1f} {cost.wall:7.1f} {cost.cases:6}  {name}")
    if budget is None or cpu / slowness <= budget:
        return True
    print(
        f"error: the {tier} tier took {cpu / slowness:.0f} CPU seconds of the reference, its budget is {budget:.0f}\n"
        "fix: make its most expensive files cheaper, or move their campaigns to nightly (CONTRIBUTING.md, Tests)",
        file=sys.stderr,
    )
    return False


def write_table(rows: list[tuple[str, ...]]) -> None:
    """Replace the measured tiers in tests/durations.tsv; tiers that were not measured keep their
    rows.
    """
    tiers = {row[0] for row in rows}
    with TABLE.open() as table:
        kept = [
            tuple(row[name] for name in COLUMNS) for row in csv.DictReader(table, delimiter="\t")
        ]
    rows = [row for row in kept if row[0] not in tiers] + rows
    rows.sort(key=lambda row: (TIERS.index(row[0]), -float(row[3]), row[1]))
    with TABLE.open("w", newline="") as table:
        csv.writer(table, delimiter="\t", lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    sys.exit(main())
