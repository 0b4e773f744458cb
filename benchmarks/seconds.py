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
"""The processor of lines that do not say theirs: all are of one machine."""
SLOT = 0.4  # seconds
LATENCY = 0.1  # seconds
UP = 110e6 / 8  # bytes per second
DOWN = 500e6 / 8  # bytes per second
# a witness waits half a slot to get into one, and the close is seen at its end
SLOTS_OF_A_ROUND = 1.5
# an announcement, a request, its answer, and the witness on its way to the chain
LATENCIES_OF_A_ROUND = 4
UNSURE = 1.1
"""How much more and less than measured is tried next to it: seeds alone leave about as much, or
more.
"""

Seconds = Mapping[str, float]
"""The seconds of a step of an arm, by processor."""


def protocol_seconds(members: int, result_bytes: float) -> float:
    """What a round takes in addition to training: every member sends its result to all others, and
    gets theirs.
    """
    carried = (members - 1) * result_bytes
    return SLOTS_OF_A_ROUND * SLOT + LATENCIES_OF_A_ROUND * LATENCY + carried / UP + carried / DOWN


def seconds_of(lines: Sequence[Mapping[str, Any]]) -> Seconds:
    """The least of all trainings of an arm on each processor."""
    return {machine: min(took) for machine, took in _by_processor(lines).items()}


def spread(arms: Iterable[Sequence[Mapping[str, Any]]]) -> float:
    """How many times as long as another training of the same arm on the same processor one took at
    most.
    """
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

    It is the seconds of one machine alone over those of a member. `own` are those of all members in
    one process; `sent` are the bytes of a result.
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
    """How long a step must take one machine for members to be worth so much; None if they never
    are.

    Three times: if they are worth a tenth more than measured, as much, and a tenth less. Supposed:
    what they are worth by `tokens` stays, results are as large, and what members compute in
    addition to the gradient takes the same part of a step, so that without the protocol they have
    the same `share`.
    """
    protocol = protocol_seconds(training.members, sent) / training.inner_steps
    left = [most / worth - 1 / share for most in (tokens * UNSURE, tokens, tokens / UNSURE)]
    return [round(protocol / rest, 3) if rest > 0 else None for rest in left]
