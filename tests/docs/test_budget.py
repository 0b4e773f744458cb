"""Test the table of test costs: its files exist, and each expensive fast file has a reason."""

from __future__ import annotations

import csv
import tomllib

from docs.test_docs import ROOT

LIMIT_CPU_SECONDS = 10


def durations() -> list[dict[str, str]]:
    with (ROOT / "tests" / "durations.tsv").open() as table:
        return list(csv.DictReader(table, delimiter="\t"))


def test_durations_name_existing_test_files() -> None:
    assert not {row["file"] for row in durations() if not (ROOT / row["file"]).exists()}, (
        "run: make test-times"
    )


def test_costly_fast_files_have_a_reason() -> None:
    costly = {
        row["file"]
        for row in durations()
        if row["tier"] == "fast" and float(row["cpu_s"]) > LIMIT_CPU_SECONDS
    }
    reasons = tomllib.loads((ROOT / "tests" / "budget.toml").read_text())["reasons"]
    assert costly <= set(reasons), (
        "tests/budget.toml needs a reason for each fast file above 10 CPU seconds"
    )
