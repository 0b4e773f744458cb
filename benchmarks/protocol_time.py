"""Compute the seconds of arms and rounds: the part of worth that is not learning."""

# How it is measured:
# - Seconds of two processors do not compare. So each processor's figures are computed alone, from
#   arms that all trained on it.
# - The least of an arm's trainings on a processor counts: other work on a machine only adds.
# - The protocol's time is a model of home lines and a public chain, the same for each arm. With
#   an overlap of 1, a round's results travel while the next one trains, so a round lasts as long
#   as the longer of the two.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arms import Training

UNNAMED = "older, not named"
"""The processor of result lines without one. All are from one machine."""
SLOT = 0.4  # seconds
LATENCY = 0.1  # seconds
UP = 110e6 / 8  # bytes per second
DOWN = 500e6 / 8  # bytes per second
# a witness waits half a slot on average, and sees the close at the end of another
SLOTS_OF_A_ROUND = 1.5
# an announcement, a request, its answer, and the witness's way to the chain
LATENCIES_OF_A_ROUND = 4
UNSURE = 1.1
"""Factor by which the measured worth is varied: about the spread between seeds."""

Seconds = Mapping[str, float]
"""Seconds of an arm's step, by processor."""


def protocol_seconds(members: int, result_bytes: float) -> float:
    """Return a round's seconds in addition to training. Each member sends its result to all others
    and receives theirs.
    """
    carried = (members - 1) * result_bytes
    return SLOTS_OF_A_ROUND * SLOT + LATENCIES_OF_A_ROUND * LATENCY + carried / UP + carried / DOWN


def seconds_of(lines: Sequence[Mapping[str, Any]]) -> Seconds:
    """Return the fastest training of an arm on each processor."""
    return {machine: min(took) for machine, took in _by_processor(lines).items()}


def spread(arms: Iterable[Sequence[Mapping[str, Any]]]) -> float:
    """Return the largest ratio of durations of two trainings of one arm on one processor."""
    return max(
        (max(took) / min(took) for lines in arms for took in _by_processor(lines).values()),
        default=1.0,
    )


def _by_processor(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        found[line.get("machine") or UNNAMED].append(line["cpu_seconds_per_step"])
    return found


def shares(
    training: Training, sent: int, own: Seconds, one: Seconds
) -> dict[str, tuple[float, float]]:
    """Return the compute share with and without the protocol, by processor.

    It is the seconds of one machine alone over a member's. `own` are the seconds of all members in
    one process; `sent` is the size of a result in bytes.
    """
    protocol = protocol_seconds(training.members, sent) / training.inner_steps
    found = {}
    for machine in sorted(own.keys() & one.keys()):
        member = own[machine] / training.members
        lasts = max(member, protocol) if training.overlap else member + protocol
        found[machine] = one[machine] / lasts, one[machine] / member
    return found


def step_seconds_for(
    worth: float, tokens: float, share: float, training: Training, sent: int
) -> list[float | None]:
    """Return the shortest step, in seconds on one machine, for which members reach `worth`.

    There are three values: if the worth by `tokens` is 10 % higher than measured, as measured, and
    10 % lower. None means never. Assumes that the size of results and the `share` without the
    protocol stay as measured.
    """
    protocol = protocol_seconds(training.members, sent) / training.inner_steps
    left = [most / worth - 1 / share for most in (tokens * UNSURE, tokens, tokens / UNSURE)]
    return [round(protocol / rest, 3) if rest > 0 else None for rest in left]
