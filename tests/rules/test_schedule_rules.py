"""Test learning rates: known values, no jumps at phase ends, and equal bits everywhere."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.rules import schedules
from aftermath.rules.model import LrSchedule, Model
from aftermath.rules.state import RunState, ScheduleKind
from rules.builders import run, schedule

LINEAR = schedule(ScheduleKind.LINEAR, final_lr=4e-5, warmup_steps=250, total_steps=25000)
COSINE = schedule(ScheduleKind.COSINE, final_lr=4e-5, warmup_steps=250, total_steps=25000)
STABLE = schedule(
    ScheduleKind.WARMUP_STABLE_DECAY,
    cosine_decay_final_lr=1e-4,
    final_lr=1e-5,
    warmup_steps=100,
    stable_steps=200,
    cosine_decay_steps=300,
    linear_decay_steps=400,
)
NO_LINE = replace(STABLE, linear_decay_steps=0)
NO_COSINE = replace(STABLE, cosine_decay_steps=0)


@pytest.mark.parametrize(
    ("rule", "step", "rate"),
    [
        (schedule(ScheduleKind.CONSTANT), 1, 4e-4),
        (schedule(ScheduleKind.CONSTANT, warmup_steps=4, warmup_init_lr=1e-4), 1, 1.75e-4),
        (LINEAR, 125, 2e-4),
        (LINEAR, 250, 4e-4),
        (LINEAR, 12625, 2.2e-4),
        (LINEAR, 25000, 4e-5),
        (LINEAR, 10**6, 4e-5),
        (COSINE, 250, 4e-4),
        (COSINE, 250 + 24750 // 3, 3.1e-4),
        (COSINE, 12625, 2.2e-4),
        (COSINE, 25000, 4e-5),
        (COSINE, 40000, 4e-5),
        (STABLE, 50, 2e-4),
        (STABLE, 299, 4e-4),
        (STABLE, 450, 2.5e-4),
        (STABLE, 600, 1e-4),
        (STABLE, 800, 5.5e-5),
        (STABLE, 1000, 1e-5),
        (STABLE, 5000, 1e-5),
        # a phase without steps is passed over
        (NO_LINE, 600, 1e-5),
        (NO_COSINE, 300, 1e-4),
    ],
)
def test_learning_rate_equals_known_values(rule: LrSchedule, step: int, rate: float) -> None:
    assert schedules.learning_rate(rule, step) == pytest.approx(rate, rel=1e-14)


@pytest.mark.parametrize(
    ("rule", "borders"), [(LINEAR, [250, 25000]), (COSINE, [250, 25000]), (STABLE, [100, 300, 600])]
)
def test_rates_do_not_jump_at_phase_ends(rule: LrSchedule, borders: list[int]) -> None:
    for border in borders:
        before, at, after = (
            schedules.learning_rate(rule, border + offset) for offset in (-1, 0, 1)
        )
        assert abs(at - before) <= rule.base_lr / 90
        assert abs(after - at) <= rule.base_lr / 90


@given(st.integers(1, 10**6), st.data())
def test_cosine_equals_platform_to_last_bits(total: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, total - 1))
    shape = schedule(ScheduleKind.COSINE, base_lr=2.0, total_steps=total)
    expected = 1.0 + math.cos(math.pi * step / total)
    assert schedules.learning_rate(shape, step) == pytest.approx(expected, abs=1e-15)


def test_cosine_has_golden_bits() -> None:
    """The cosine is correctly rounded, so it is a constant. A change would fork the replicas of
    running runs.
    """
    assert schedules.learning_rate(COSINE, 777).hex() == "0x1.a3021dacf5ad5p-12"


@given(st.integers(0, 1000), st.integers(1, 100), st.integers(0, 1000))
def test_cold_start_rises_to_full_rate_and_stays(start: int, warmup: int, step: int) -> None:
    factor = schedules.cold_start_factor(step, start, warmup)
    assert 0.0 <= factor <= 1.0
    assert factor <= schedules.cold_start_factor(step + 1, start, warmup)
    assert schedules.cold_start_factor(start, start, warmup) == 1 / warmup
    assert schedules.cold_start_factor(start + warmup - 1, start, warmup) == 1.0


@given(st.sampled_from([LINEAR, COSINE, STABLE]), st.integers(1, 20), st.integers(1, 300))
def test_first_trained_step_has_rate_above_zero(rule: LrSchedule, warmup: int, start: int) -> None:
    """A rate of 0 would waste the whole batch of the first step."""
    assert rule.warmup_init_lr == 0.0
    assert schedules.learning_rate(rule, 1) > 0
    assert (
        schedules.learning_rate(rule, start) * schedules.cold_start_factor(start, start, warmup) > 0
    )


def test_only_epoch_after_cold_start_is_warmed_up(configured_model: Model) -> None:
    cold = run(RunState.ROUND_TRAIN, cold_start=True, start_step=100)
    warm = run(RunState.ROUND_TRAIN, cold_start=False, start_step=100)
    full = schedules.learning_rate(configured_model.lr_schedule, 105)
    assert configured_model.cold_start_warmup_steps == 10
    assert schedules.round_learning_rate(warm, configured_model, 105) == full
    assert schedules.round_learning_rate(cold, configured_model, 105) == full * 0.6
    assert schedules.cold_start_factor(7, 7, 0) == 1.0


def test_last_change_is_end_of_last_phase() -> None:
    constant = schedule(ScheduleKind.CONSTANT, warmup_steps=4, total_steps=9)
    assert [schedules.last_change(one) for one in (constant, LINEAR, COSINE, STABLE)] == [
        4,
        25000,
        25000,
        1000,
    ]
