"""Common learning-rate schedules, in the form of a run's config."""

from __future__ import annotations

from dataclasses import replace

from aftermath.rules.model import LrSchedule
from aftermath.rules.state import ScheduleKind

_RATES = ("base_lr", "warmup_init_lr", "final_lr", "cosine_decay_final_lr")


def constant(rate: float, warmup: int) -> LrSchedule:
    """Return a schedule with a constant rate after the warm-up."""
    return _schedule(ScheduleKind.CONSTANT, rate, warmup)


def cosine(rate: float, warmup: int, steps: int, final: float) -> LrSchedule:
    """Return a cosine schedule that ends at the rate `final`."""
    return replace(_schedule(ScheduleKind.COSINE, rate, warmup), final_lr=final, total_steps=steps)


def stable(rate: float, warmup: int, steps: int) -> LrSchedule:
    """Return a constant schedule with a linear decay over the last fifth of the steps.

    The rate would reach 0 one step after the last.
    """
    steady = max(steps * 4 // 5, 1)
    return replace(
        _schedule(ScheduleKind.WARMUP_STABLE_DECAY, rate, warmup),
        cosine_decay_final_lr=rate,
        stable_steps=max(steady - warmup, 0),
        linear_decay_steps=steps - max(steady, warmup) + 1,
    )


def scaled(schedule: LrSchedule, rate: float) -> LrSchedule:
    """Return the schedule scaled to another highest rate."""
    factor = rate / schedule.base_lr
    others = {name: getattr(schedule, name) * factor for name in _RATES[1:]}
    return replace(schedule, base_lr=rate, **others)


def _schedule(kind: ScheduleKind, rate: float, warmup: int) -> LrSchedule:
    zeros = dict.fromkeys(
        ("total_steps", "stable_steps", "cosine_decay_steps", "linear_decay_steps"), 0
    )
    return LrSchedule(kind, rate, 0.0, 0.0, 0.0, warmup, **zeros)
