"""How fast this machine is, found out before it joins: its share of a round is in proportion to that.

Decided: it is said what is measured and how long that can take; a machine that has not finished by then joins with the
smallest share, since a share that it does in time says more than any measurement.
"""

from __future__ import annotations

from aftermath.base.wait import first_of
from aftermath.base.worker import Worker
from aftermath.member.ports import Ports, Role
from aftermath.replica.origin import Origin
from aftermath.watch import kinds

PATIENCE = 60.0
"""Seconds after which a member joins without knowing its speed."""
_SLOWEST = 1


async def measured_weight(ports: Ports, role: Role, compute: Worker, origin: Origin, seq_len: int) -> int:
    """This machine's throughput in sequences per minute, as a member declares it."""
    ports.events.emit(
        kinds.Measuring(tier=role.tier, parameters=role.schema.state.parameters(role.tier), limit=PATIENCE)
    )
    started = ports.clock.monotonic()

    async def measure() -> int | None:
        return await compute(lambda: origin.measure_weight(seq_len))

    weight = await first_of(measure(), ports.clock.sleep(PATIENCE))
    if weight is None:
        ports.events.emit(
            kinds.Warning(
                message=f"this machine's speed is not known after {PATIENCE:.0f} s: it asks for the smallest share; "
                "a higher --matformer-tier is a smaller model",
                until="state",
            )
        )
    weight = weight or _SLOWEST
    ports.events.emit(kinds.Measured(weight=weight, seconds=ports.clock.monotonic() - started))
    return weight
