"""Test the series for trackers: exactly the page's names, finite numbers, and no flood that peers
could cause.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aftermath.events.trackers import Row, Series
from events.sample_events import KINDS, sample_event
from events.test_metrics import GPU

ROOT = Path(__file__).parents[2]
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


def rows(*events: Any) -> list[Row]:
    series = Series()
    return [row for event in events if (row := series.take(event)) is not None]


def test_series_page_lists_exactly_all_series() -> None:
    everything = rows(
        *(sample_event(kind) for kind in KINDS),
        sample_event("trained", loss=1.0),
        sample_event("traffic", costs={"transactions": 1, "lamports": 5000}),
        sample_event("machine", gpus=[GPU]),
        sample_event("evaluated", task="source-choice", metric="acc"),
        sample_event("optimizer", levels={0: {"norm": 1.0}}),
    )
    names = {name for row in everything for name in row.numbers}
    stand_for = {
        "eval/source-choice/acc": "eval/TASK/METRIC",
        "optimizer/0/norm": "optimizer/LEVEL/NAME",
    }
    series = {stand_for.get(name, re.sub(r"/1$", "/GPU", name)) for name in names} - {"eval//"}
    table = (
        (ROOT / "docs/operations.md")
        .read_text()
        .split("\n| metric | series of trackers | what |\n")[1]
        .split("\n\n")[0]
    )
    assert series == {
        name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[2])
    }


def test_series_row_belongs_to_its_step() -> None:
    result = rows(
        sample_event("state", step=7, epoch=1),
        sample_event("machine", cpu=3.0),
        sample_event("trained", step=9, epoch=1, tokens=10, tokens_per_sec=5.0, loss=2.5),
        sample_event("evaluated", step=4, task="t", metric="acc", value=0.25),
        sample_event("traffic", peers=3),
        sample_event("state", step=5),
        sample_event("traffic", peers=2),
    )
    assert [row.step for row in result] == [7, 9, 4, 9, 5]
    assert (result[1].numbers["loss"], result[1].numbers["tokens"]) == (2.5, 10)
    assert result[2].numbers == {"eval/t/acc": 0.25}


def test_series_row_without_loss_omits_it() -> None:
    (row,) = rows(sample_event("trained", loss=None, tokens=3))
    assert "loss" not in row.numbers
    assert row.numbers["tokens"] == 3


@given(st.integers(1, 20))
def test_refused_peer_data_adds_no_rows(times: int) -> None:
    flood = [
        sample_event(kind) for kind in ("refused", "fetch_failed", "warning") for _ in range(times)
    ]
    (row,) = rows(*flood, sample_event("dropped", seats=[1, 2]), sample_event("trained"))
    counted = {"refused": times, "fetch_failures": times, "warnings": times, "members_dropped": 2}
    assert counted.items() <= row.numbers.items()


@given(NUMBERS, NUMBERS, NUMBERS)
def test_series_numbers_are_all_finite(one: float, two: float, three: float) -> None:
    result = rows(
        sample_event("trained", loss=one, tokens_per_sec=two, seconds=three),
        sample_event("evaluated", value=one),
        sample_event("optimizer", levels={0: {"norm": two, "none": None}}),
        sample_event("machine", cpu=three),
    )
    assert all(math.isfinite(number) for row in result for number in row.numbers.values())
    assert all(row.numbers for row in result)
