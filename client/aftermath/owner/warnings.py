"""Warn about valid settings that a run's owner probably did not intend.

Each function returns a sentence that says what to change, or "" if there is nothing to warn of.
"""

from __future__ import annotations

from bisect import bisect_left

from aftermath.base.text import counted
from aftermath.model.levels import ELEMENT_BYTES
from aftermath.owner.schema import Shape
from aftermath.rules.model import LrSchedule, Model
from aftermath.rules.run import Config, Run
from aftermath.rules.schedules import last_change, learning_rate

WARNINGS = {
    "large-results": "results are large compared with the model",
    "few-sequences": "members have fewer sequences than inner steps",
    "late-results": "results come too late for this optimizer",
    "rate-schedule": "the learning rate does not fit the run's steps",
    "unlikely-rate": "the learning rate is unusually high",
    "short-rounds": "rounds are too short for their transactions",
    "short-cooldown": "the cooldown may be too short to audit an epoch's last rounds",
    "data-here": "this machine cannot train on the data",
}
"""Stable codes of the warnings, and what they mean."""
# warn if a result has more bytes per step than the model's bytes divided by this: one bit per
# parameter
LARGE_RESULT = 32
HIGH_RATE = 0.1
"""The shipped configs have 0.0004 to 0.02."""
SHORT_ROUND = 3  # seconds: commitments, results and attestations take one or two
# results up to this size are never reported: half a second to seven others at 110 Mb/s
SMALL_RESULT = 1 << 20


def warnings_of(run: Run, model: Model, shape: Shape, with_data: str = "") -> list[str]:
    """Return all warnings. `with_data`: the warning of `owner.agreed_data`, or ""."""
    warnings = [sentence for _, sentence in warnings_by_code(model.lr_schedule, run.config, shape)]
    return [with_data, *warnings] if with_data else warnings


def warnings_by_code(
    schedule: LrSchedule, rules: Config, shape: Shape | None
) -> list[tuple[str, str]]:
    """Return the code and text of each warning except those about data."""
    sentences = {
        "unlikely-rate": warning_about_rate(schedule),
        "short-rounds": warning_about_rounds(rules),
        "short-cooldown": warning_about_cooldown(rules),
        "rate-schedule": warning_about_schedule(schedule, rules.total_steps),
    }
    if shape is not None:
        sentences |= {
            "large-results": warning_about_size(shape),
            "few-sequences": warning_about_shares(shape, rules),
            "late-results": warning_about_overlap(shape, rules),
        }
    return [(code, sentence) for code, sentence in sentences.items() if sentence]


def warning_about_rate(schedule: LrSchedule) -> str:
    """Return a warning if the learning rate is unusually high, else ""."""
    if schedule.base_lr <= HIGH_RATE:
        return ""
    return f"base_lr = {schedule.base_lr:g}: most trainings diverge above {HIGH_RATE}; 0.0004 to 0.02 is usual"


def warning_about_rounds(rules: Config) -> str:
    """Return a warning if rounds are shorter than their transactions, else ""."""
    if rules.max_round_train_time >= SHORT_ROUND:
        return ""
    return (
        f"max_round_train_time = {rules.max_round_train_time}: a round's transactions alone take 1 to 2 seconds, so "
        f"most results come too late; allow {SHORT_ROUND} seconds or more"
    )


def warning_about_cooldown(rules: Config) -> str:
    """Return a warning if the cooldown may be too short for audits, else ""."""
    seconds = rules.cooldown_time
    # Only members know a share's time. An owner that allows a long cooldown probably thought of it.
    if not rules.verification_percent or seconds >= rules.max_round_train_time:
        return ""
    return (
        f"cooldown_time = {seconds}: audits of an epoch's last rounds need about six times a share's time, so "
        f"false results are missed if a share takes more than {seconds / 6:g} seconds; raise cooldown_time"
    )


def warning_about_size(shape: Shape) -> str:
    """Return a warning if results are large compared with the model, else ""."""
    size = shape.bytes_per_round[0]
    model = ELEMENT_BYTES * shape.num_parameters
    steps = shape.schema.optimizer.inner_steps
    if size <= SMALL_RESULT or size * LARGE_RESULT <= model * steps:
        return ""
    per_steps = "" if steps == 1 else f", for {steps} steps,"
    return (
        f"a tier-0 member sends {size:,} bytes to every other member in each round{per_steps} and the whole model has "
        f"only {model:,}: raise compression_chunk, or lower compression_topk or compression_topk_embeddings"
    )


def warning_about_shares(shape: Shape, rules: Config) -> str:
    """Return a warning if shares have fewer sequences than `inner_steps`, else ""."""
    settings = shape.schema.optimizer
    share = rules.global_batch_size_start // rules.init_min_clients
    if share >= settings.inner_steps:
        return ""
    batch = rules.global_batch_size_start
    members = counted(rules.init_min_clients, "member")
    return (
        f"inner_steps = {settings.inner_steps}, but each step takes a sequence, and with {members} and "
        f"global_batch_size_start = {batch} a share has only {share}; raise the batch size, or lower inner_steps"
    )


def warning_about_overlap(shape: Shape, rules: Config) -> str:
    """Return a warning if overlap delays results too long for this optimizer, else ""."""
    late = shape.schema.optimizer.LATE
    return f"overlap = {rules.overlap}: {late}; use overlap = 0" if late and rules.overlap else ""


def warning_about_schedule(schedule: LrSchedule, total_steps: int) -> str:
    """Return a warning if the schedule does not fit the run's steps, else "".

    A difference of a twentieth, or of one step, is ignored.
    """
    last = last_change(schedule)
    if last - max(last // 20, 1) > total_steps:
        return (
            f"the learning-rate schedule lasts until step {last:,}, but the run has only {total_steps:,} steps and "
            f"ends at the rate {learning_rate(schedule, total_steps):.3g}; make the schedule as long as total_steps"
        )
    idle = _idle_from(schedule, schedule.warmup_steps, total_steps - total_steps // 20)
    if idle is None:
        return ""
    return (
        f"the learning rate is 0 from step {idle} on, so the steps up to {total_steps:,} change nothing; make the "
        "schedule as long as total_steps"
    )


def idle_when_reopened(schedule: LrSchedule, trained_steps: int, total_steps: int) -> int | None:
    """Return the first step that a reopened run would train at a rate of 0.

    None if there is none, or only in the last twentieth of its new steps.
    """
    idle_at_most = max((total_steps - trained_steps) // 20, 1)
    return _idle_from(
        schedule, max(trained_steps, schedule.warmup_steps), total_steps - idle_at_most
    )


def _idle_from(schedule: LrSchedule, trained_steps: int, last: int) -> int | None:
    """Return the first step with a learning rate of 0 after `trained_steps` and up to `last`, or
    None.
    """
    steps = range(trained_steps + 1, last + 1)
    index = bisect_left(steps, True, key=lambda step: learning_rate(schedule, step) == 0)
    return steps[index] if index < len(steps) else None
