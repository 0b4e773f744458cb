"""What `estimate --device` adds: how fast this machine trains each tier, and what members like it would need for a run.

Decided: only computing is reckoned, each member with an equal part of a round. What is sent and agreed on comes on top,
and warm-ups and cooldowns do: so this is the least that a run takes, as the file's limits are the most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aftermath.base.errors import UsageError

if TYPE_CHECKING:
    from aftermath.optim.schema import Schema
    from aftermath.rules.run import Config


@dataclass(frozen=True)
class Pace:
    """Of members like this machine that all hold one tier."""

    tier: int
    sequences_per_minute: int
    """Of one of them."""
    seconds_per_round: float
    seconds: float
    """Of all rounds."""


def measured(schema: Schema, rules: Config, members: int, sequences: int, device: str) -> list[Pace]:
    """The pace of each tier that the device's memory holds; `sequences` are those of all rounds together.

    Raises UsageError for several devices, and what is wrong with the one that is named.
    """
    from aftermath.ranks.mesh import mesh_of
    from aftermath.replica.passes import arithmetic_of
    from aftermath.train.settings import TrainSettings
    from aftermath.train.tier import speed_here

    mesh = mesh_of(device, 0, 1)
    if not mesh.alone:
        raise UsageError("estimate --device measures one device, not several", "Name one of them, for example cuda:0")
    settings = TrainSettings(run_id="estimate", device=device)
    arithmetic = arithmetic_of(mesh.devices[0], settings.precision, settings.compile)
    found = []
    for tier in range(schema.state.tiers):
        if speed := speed_here(schema, tier, rules.max_seq_len, settings, arithmetic):
            found.append(pace(rules, members, sequences, tier, speed))
    return found


def pace(rules: Config, members: int, sequences: int, tier: int, speed: int) -> Pace:
    """What `speed`, in sequences a minute, comes to: a round is done by who has the largest part of it."""
    share = math.ceil(rules.global_batch_size_end / members)
    least = float(rules.min_round_time)
    in_all = max(rules.total_steps * least, sequences / members * 60 / speed)
    return Pace(tier, speed, max(least, share * 60 / speed), in_all)
