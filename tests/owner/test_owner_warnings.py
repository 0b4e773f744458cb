"""Test the warnings about valid but unusual settings."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from aftermath.optim.schema import build_schema
from aftermath.owner import warnings
from aftermath.owner.schema import Shape
from aftermath.owner.warnings import (
    WARNINGS,
    idle_when_reopened,
    warning_about_cooldown,
    warning_about_rate,
    warning_about_rounds,
    warning_about_schedule,
    warning_about_shares,
    warning_about_size,
)
from aftermath.rules.model import LrSchedule
from aftermath.rules.run import Config
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.rules.state import ScheduleKind
from optim.optim_oracle import CONFIG
from rules import builders


@pytest.mark.parametrize(
    ("width", "topk", "steps", "large"),
    [
        (256, 4096, 1, False),  # all of a model of millions of parameters is not much
        (2048, 4096, 1, True),
        (2048, 4096, 2, True),
        (2048, 4096, 4, False),  # less than a bit of a parameter for each step
        (2048, 16, 1, False),
    ],
)
def test_burdensome_result_sizes_are_a_warning(
    width: int, topk: int, steps: int, large: bool
) -> None:
    config = CONFIG | {"hidden_size": width, "intermediate_size": 3 * width, "vocab_size": 512}
    shape = Shape(
        build_schema(config, 1, SparseLoCo(topk=topk, topk_embeddings=topk, inner_steps=steps))
    )
    warning = warning_about_size(shape)
    assert bool(warning) == large
    if large:
        assert (
            f"sends {shape.bytes_per_round[0]:,} bytes to every other member in each round"
            in warning
        )
        assert ("for 2 steps" in warning) == (steps == 2)
        assert "raise compression_chunk" in warning


@pytest.mark.parametrize(
    ("ends", "steps", "says"),
    [
        (100, 94, "lasts until step 100, but the run has only 94 steps"),
        (100, 95, ""),
        (13, 11, "lasts until step 13, but the run has only 11 steps"),
        (13, 12, ""),
        (96, 100, ""),
        (95, 100, "is 0 from step 95 on, so the steps up to 100"),
    ],
)
def test_schedule_length_off_by_a_twentieth_is_accepted(ends: int, steps: int, says: str) -> None:
    warning = warning_about_schedule(
        LrSchedule(ScheduleKind.COSINE, 1e-3, 0.0, 0.0, 0.0, 10, ends, 0, 0, 0), steps
    )
    assert says in warning
    assert bool(warning) == bool(says)


@pytest.mark.parametrize(
    ("schedule_steps", "trained", "total", "idle"),
    [
        (60, 60, 80, 61),
        (60, 60, 62, 61),  # within a twentieth of all steps, but not of the new ones
        (80, 60, 80, None),
        (70, 60, 80, 70),
        (100, 60, 80, None),
    ],
)
def test_idle_when_reopened_finds_steps_with_rate_zero(
    schedule_steps: int, trained: int, total: int, idle: int | None
) -> None:
    schedule = LrSchedule(ScheduleKind.COSINE, 1e-3, 0.0, 0.0, 0.0, 10, schedule_steps, 0, 0, 0)
    assert idle_when_reopened(schedule, trained, total) == idle


@pytest.mark.parametrize(
    ("rate", "warned"), [(0.02, False), (0.1, False), (0.11, True), (2.0, True)]
)
def test_unlikely_learning_rate_is_a_warning(rate: float, warned: bool) -> None:
    warning = warning_about_rate(
        LrSchedule(ScheduleKind.CONSTANT, rate, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0)
    )
    assert warning.startswith(f"base_lr = {rate:g}: ") == warned
    assert bool(warning) == warned


@pytest.mark.parametrize(("seconds", "warned"), [(1, True), (2, True), (3, False)])
def test_rounds_shorter_than_transactions_are_a_warning(seconds: int, warned: bool) -> None:
    warning = warning_about_rounds(builders.config(max_round_train_time=seconds))
    assert bool(warning) == warned
    assert not warned or warning.startswith(f"max_round_train_time = {seconds}: ")


@pytest.mark.parametrize(
    ("steps", "batch", "members", "share"), [(4, 12, 3, 0), (4, 11, 3, 3), (1, 3, 3, 0)]
)
def test_share_below_inner_steps_is_a_warning(
    steps: int, batch: int, members: int, share: int
) -> None:
    shape = Shape(build_schema(CONFIG, 1, SparseLoCo(inner_steps=steps)))
    rules = Config(30, 30, 1, 30, 1, 0, 4096, 0, 20, 100, 64, members, 1, 1, 1, batch, batch, 0, 10)
    assert rules.init_min_clients == members
    warning = warning_about_shares(shape, rules)
    assert bool(warning) == bool(share)
    assert not share or f"global_batch_size_start = {batch} a share has only {share};" in warning


def test_warning_functions_all_have_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    each = [name for name in vars(warnings) if name.startswith("warning_about_")]
    for name in each:
        monkeypatch.setattr(warnings, name, lambda *args: "trouble")
    anything: Any = mock.MagicMock()
    assert {
        code for code, _ in warnings.warnings_by_code(anything, anything, anything)
    } == WARNINGS.keys() - {"data-here"}
    assert warnings.warnings_of(anything, anything, anything, "data") == ["data"] + [
        "trouble"
    ] * len(each)


@pytest.mark.parametrize(
    ("percent", "seconds", "says"),
    [
        (0, 30, ""),
        (5, 60, ""),
        (5, 30, "false results are missed if a share takes more than 5 seconds"),
    ],
)
def test_cooldown_shorter_than_audits_is_a_warning(percent: int, seconds: int, says: str) -> None:
    rules = builders.config(
        verification_percent=percent, cooldown_time=seconds, max_round_train_time=60
    )
    assert says in warning_about_cooldown(rules)
    assert bool(warning_about_cooldown(rules)) == bool(says)
