"""Test the figures of unequal members, and that docs/measurements.md shows the recorded
trainings.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.test_benchmarks_worth import BENCHMARKS, arms, module

module("worth")
unequal = module("heterogeneity")


def test_interval_equals_students_formula() -> None:
    """The mean of 1, 2, 3, 4, 5 is 3, and the interval is 2.776 times the square root of 2.5 /
    5.
    """
    mean, reach = unequal.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3
    assert reach == pytest.approx(2.776 * math.sqrt(0.5))
    assert unequal.interval([2.0]) == (2.0, math.inf)


def test_gain_compares_same_tier_and_seeds() -> None:
    losses = {"a": {0: {0: 2.0, 1: 2.1, 2: 9.0}, 1: {0: 1.0}}, "b": {0: {0: 2.5, 1: 2.7}}}
    gain = unequal.gain("q", 0, ("a", "b"), losses)
    assert (gain["gain"], gain["seeds"]) == (0.55, 2)
    assert gain["interval"] == pytest.approx(12.706 * 0.05, abs=1e-3)
    assert not gain["clear"]
    assert unequal.gain("q", 1, ("a", "b"), losses) is None
    close = {"a": {0: {0: 2.0, 1: 2.0}}, "b": {0: {0: 2.5, 1: 2.51}}}
    assert unequal.gain("q", 0, ("a", "b"), close)["clear"]


def test_small_members_count_by_their_computation() -> None:
    gains = [
        {"with": "mixed", "without": "alone", "gain": 0.1},
        {"with": "three-large", "without": "alone", "gain": 0.2},
    ]
    # half the gain for less computation than two large members
    assert unequal.recovered(gains, "0.2M") > 0.5
    assert unequal.recovered(gains[:1], "0.2M") is None


def test_goal_is_met_only_by_clear_gains() -> None:
    def gain(tier: int, without: str, gained: float) -> dict[str, object]:
        return {
            "with": "mixed",
            "without": without,
            "tier": tier,
            "gain": gained,
            "interval": 0.1,
            "clear": True,
        }

    gains = [gain(0, "alone", 0.3), gain(1, "small-only", 0.2), gain(2, "small-only", -0.2)]
    assert [one["met"] for one in unequal.goals(gains, 0.79)] == [True, False, False]
    gains[2] |= {"gain": 0.2}
    assert [one["met"] for one in unequal.goals(gains, 0.8)] == [True, True, True]
    gains[0] |= {"clear": False}
    assert [one["met"] for one in unequal.goals(gains, None)] == [False, True]
    assert [one["goal"] for one in unequal.goals(gains[1:], None)] == [
        unequal.goals(gains, None)[1]["goal"]
    ]


def measured_figures() -> list[Any]:
    """Return the figures of both plots."""
    files = [BENCHMARKS / "measured" / f"{name}.json" for name in ("heterogeneity", "rolling")]
    return [json.loads(file.read_text())["figures"] for file in files]


@pytest.fixture
def plots() -> ModuleType:
    module("learning_tables")
    module("audit_tables")
    module("quote")  # plots reads figures with it
    return module("plots")


def test_heterogeneity_pictures_are_current(plots: ModuleType) -> None:
    measured, rolling = measured_figures()
    docs = BENCHMARKS.parent / "docs/assets"
    assert plots.digest(measured) in (docs / "experiments-unequal.svg").read_text(), (
        "run: make docs"
    )
    assert (
        plots.digest([measured, rolling]) in (docs / "experiments-unequal-kinds.svg").read_text()
    ), "run: make docs"


@pytest.mark.slow
def test_pictures_change_with_their_figures(plots: ModuleType, tmp_path: Path) -> None:
    measured, rolling = measured_figures()
    changed = json.loads(json.dumps(measured))
    changed["static"]["0.2M"]["arms"]["mixed"]["held_out"]["2"]["interval"] += 0.01
    changed["kinds"]["0.2M-depth"]["arms"]["mixed"]["held_out"]["2"]["interval"] += 0.01
    plots.draw_unequal(measured, tmp_path / "as-measured.svg")
    plots.draw_unequal(changed, tmp_path / "changed.svg")
    assert _drawn(tmp_path / "as-measured.svg") != _drawn(tmp_path / "changed.svg")
    plots.draw_kinds(measured, rolling, tmp_path / "as-measured.svg")
    plots.draw_kinds(changed, rolling, tmp_path / "changed.svg")
    assert _drawn(tmp_path / "as-measured.svg") != _drawn(tmp_path / "changed.svg")


def _drawn(picture: Path) -> str:
    """Return an SVG without its metadata."""
    return re.sub(r"<metadata>.*?</metadata>", "", picture.read_text(), flags=re.DOTALL)


def test_every_question_names_existing_arms() -> None:
    arm_names = {arm.name for source in unequal.KINDS.values() for arm in arms.arms(source)}
    assert {name for _, _, *names in unequal.QUESTIONS for name in names} == arm_names


_OF_THREE = ("mixed", "three-large", "small-only", "smallest")


@pytest.mark.parametrize("kind", unequal.KINDS)
def test_every_heterogeneity_arm_is_trainable(kind: str) -> None:
    question_arms = arms.arms(unequal.KINDS[kind])
    for arm in question_arms:
        arms.result_bytes(arm.trainings[0])  # the others differ in steps, rate and seed
        for training in arm.trainings:
            assert training.said["steps"] * training.inner_steps == training.steps
    tokens = {arm.name: arm.trainings[0].said["total_batch"] for arm in question_arms}
    assert {tokens[name] for name in tokens if name in _OF_THREE} == {3 * tokens["alone"]}


def test_heterogeneity_page_covers_all_trainings() -> None:
    written = json.loads((BENCHMARKS / "measured" / "heterogeneity.json").read_text())["figures"]
    for kind, sizes in written.items():
        source = unequal.KINDS[kind]
        for size, figures in sizes.items():
            keys = {
                one.key for arm in arms.arms(source) for one in arm.trainings if one.size == size
            }
            assert set(arms.kept(size, source)) <= keys
            again = json.loads(json.dumps(unequal.of_size(size, kind)))
            assert again == figures, "run: benchmarks/measure.py heterogeneity"
