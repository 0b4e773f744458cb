"""The learning rate of a step.

Every replica must get the same bits, so all operations are correctly rounded: basic arithmetic on
IEEE doubles in a fixed order, and a cosine from decimal arithmetic. `cos` differs between C
libraries. Schedules follow upstream Psyche, except that the cosine stays at its final rate after
`total_steps`.
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext

from aftermath.rules.model import LrSchedule, Model
from aftermath.rules.run import Run
from aftermath.rules.state import ScheduleKind

_DIGITS = Context(prec=50)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
_NEGLIGIBLE = Decimal("1e-48")


def learning_rate(schedule: LrSchedule, step: int) -> float:
    """Return the rate at `step`. The run's first step is 1.

    Linear warm-up to `base_lr`, then the shape of the schedule's kind.
    """
    if step < schedule.warmup_steps:
        return _ramp(schedule.warmup_init_lr, schedule.base_lr, step, schedule.warmup_steps)
    if schedule.kind is ScheduleKind.CONSTANT:
        return schedule.base_lr
    done = step - schedule.warmup_steps
    if schedule.kind is ScheduleKind.WARMUP_STABLE_DECAY:
        return _stable_decay(schedule, done)
    shape = _ramp if schedule.kind is ScheduleKind.LINEAR else _half_cosine
    return shape(
        schedule.base_lr, schedule.final_lr, done, schedule.total_steps - schedule.warmup_steps
    )


def highest_rate(schedule: LrSchedule) -> float:
    """Return an upper bound of all rates. Numbers that a kind does not use are 0."""
    return max(
        schedule.base_lr, schedule.warmup_init_lr, schedule.final_lr, schedule.cosine_decay_final_lr
    )


def last_change(schedule: LrSchedule) -> int:
    """Return the step from which on the rate is constant."""
    if schedule.kind is ScheduleKind.CONSTANT:
        return schedule.warmup_steps
    if schedule.kind is ScheduleKind.WARMUP_STABLE_DECAY:
        return (
            schedule.warmup_steps
            + schedule.stable_steps
            + schedule.cosine_decay_steps
            + schedule.linear_decay_steps
        )
    return schedule.total_steps


def cold_start_factor(step: int, start_step: int, warmup_steps: int) -> float:
    """Return the factor of the rate in the first steps after a cold start.

    Step n after the start, counted from 1, gets min(1, n / `warmup_steps`). It is never 0.
    """
    if warmup_steps == 0:
        return 1.0
    return min(max(step - start_step + 1, 0), warmup_steps) / warmup_steps


def first_epoch_rate(schedule: LrSchedule, cold_steps: int, step: int) -> float:
    """Return the rate of a step in a run whose only cold start is its first step."""
    return learning_rate(schedule, step) * cold_start_factor(step, 1, cold_steps)


def round_learning_rate(run: Run, model: Model, step: int) -> float:
    """Return the rate at which the running epoch applies the result of `step`, cold start
    included.
    """
    rate = learning_rate(model.lr_schedule, step)
    if not run.cold_start:
        return rate
    return rate * cold_start_factor(step, run.start_step, model.cold_start_warmup_steps)


def _stable_decay(schedule: LrSchedule, done: int) -> float:
    """Return the rate of a stable-decay schedule: constant, cosine, linear, then constant."""
    decayed = done - schedule.stable_steps
    if decayed < 0:
        return schedule.base_lr
    if decayed < schedule.cosine_decay_steps:
        return _half_cosine(
            schedule.base_lr, schedule.cosine_decay_final_lr, decayed, schedule.cosine_decay_steps
        )
    decayed -= schedule.cosine_decay_steps
    return _ramp(
        schedule.cosine_decay_final_lr, schedule.final_lr, decayed, schedule.linear_decay_steps
    )


def _ramp(start: float, end: float, done: int, total: int) -> float:
    """Return a linear ramp from `start` to `end` over `total` steps, then `end`."""
    if done >= total:
        return end
    return start + (end - start) * (done / total)


def _half_cosine(start: float, end: float, done: int, total: int) -> float:
    """Return half a cosine wave from `start` to `end` over `total` steps, then `end`."""
    if done >= total:
        return end
    return end + (start - end) * (0.5 * (1.0 + _cosine_of_pi(done, total)))


def _cosine_of_pi(numerator: int, denominator: int) -> float:
    """Return cos(pi * numerator / denominator), correctly rounded.

    Taylor series to 50 digits, at most 40 terms on [0, pi].
    """
    with localcontext(_DIGITS):
        angle = _PI * numerator / denominator
        square = angle * angle
        term = total = Decimal(1)
        index = 0
        while abs(term) > _NEGLIGIBLE:
            index += 2
            term = -term * square / (index * (index - 1))
            total += term
        return float(total)
