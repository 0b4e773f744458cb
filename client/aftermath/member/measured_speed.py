"""Measure this machine's speed before it joins. Its share of a round is proportional to it.

A machine whose measurement times out joins with the smallest share. Its finished shares then show
its speed.
"""

from __future__ import annotations

import math

from aftermath.base.concurrency import Worker, first_of
from aftermath.base.text import counted
from aftermath.coordinator.ports import View
from aftermath.events import event_types
from aftermath.member.ports import Ports, Role
from aftermath.member.rounds.throughput import WHAT_HELPS
from aftermath.member.rounds.witness import time_for_results
from aftermath.replica.origin import Origin
from aftermath.replica.replica import Replica
from aftermath.rules import bitmap
from aftermath.rules.assignment import batch_size
from aftermath.rules.state import MemberState

PATIENCE = 10.0
"""Seconds after which a member joins without knowing its speed."""
BUILD_SECONDS = 50.0
"""Timeout in seconds for building the model before the measurement."""
_SLOWEST = 1


async def measured_weight(
    ports: Ports, role: Role, compute: Worker, origin: Origin, seq_len: int
) -> int:
    """Return this machine's throughput in sequences per minute, for the member's declaration."""
    ports.events.emit(
        event_types.Measuring(
            tier=role.tier, parameters=role.schema.state.parameters(role.tier), limit=PATIENCE
        )
    )
    started = ports.clock.monotonic()

    async def make() -> Replica | None:
        return await compute(origin.stand_in)

    async def measure(replica: Replica) -> int | None:
        return await compute(lambda: origin.measure_weight(replica, seq_len))

    replica = await first_of(make(), ports.clock.sleep(BUILD_SECONDS))
    weight = None
    if replica is not None:
        weight = await first_of(measure(replica), ports.clock.sleep(PATIENCE))
    if weight is None:
        seconds = ports.clock.monotonic() - started
        _warn(
            ports,
            f"this machine's speed was not measured within {seconds:.0f} s, so it declares "
            f"{_SLOWEST} sequence a minute "
            "and gets the smallest share; a higher --matformer-tier is a smaller model",
        )
    elif warning := too_slow(ports.feed.view, ports.transport.node_id, weight):
        _warn(ports, warning)
    weight = weight or _SLOWEST
    ports.events.emit(
        event_types.SpeedMeasured(weight=weight, seconds=ports.clock.monotonic() - started)
    )
    return weight


def too_slow(view: View, node_id: bytes, weight: int) -> str:
    """Return why a member of this weight and key is too slow for its share, or an empty string."""
    limit = time_for_results(view.run.config)
    share = expected_share(view, node_id, weight)
    seconds = share * 60 / weight
    if seconds <= limit:
        return ""
    takes = f"{seconds:.0f} s" + (" or more" if weight == _SLOWEST else "")
    return (
        f"this machine is too slow for the run: its share of a round would be {counted(share, 'sequence')} and take "
        f"{takes}, but a round leaves at most {limit:.0f} s for it. {WHAT_HELPS}"
    )


def expected_share(view: View, node_id: bytes, weight: int) -> int:
    """Return the sequences of a round that a member of this weight and key would train."""
    # Until `init_min_clients` members are present, assume that the missing ones are like them.
    run = view.run
    members = view.members
    present = [
        members.seats[seat]
        for seat in bitmap.seats(members.mask(MemberState.HEALTHY) | members.pending)
    ]
    weights = [weight, *(member.declared for member in present if member.p2p != node_id)]
    total = sum(weights) * max(len(weights), run.config.init_min_clients) / len(weights)
    return max(1, math.floor(batch_size(run.config, run.data_index) * weight / total))


def _warn(ports: Ports, sentence: str) -> None:
    ports.events.emit(event_types.Warning(message=sentence, until="state"))
