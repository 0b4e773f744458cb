"""A member's events as series of numbers, for experiment trackers; docs/operations.md has their names.

Decided
- A series has the name of the metric that Prometheus gets, without `aftermath_` and `_total`; what is a label there
  stands after a slash. Counters count from the start of the process here as there.
- A row is what one event says, at the step of the run that it is about; what has no step of its own, at the newest.
- What peers can bring about as often as they like is counted, and told with this member's next share: who floods it
  with what is refused does not flood its tracker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from aftermath.watch import kinds

_OF_A_GPU = {
    "gpu_memory_used_bytes": "memory_used",
    "gpu_memory_total_bytes": "memory_total",
    "gpu_utilization_percent": "utilization",
    "gpu_temperature_celsius": "temperature",
    "gpu_power_watts": "power",
}

_COUNTED = ("tokens", "results_applied", "fetch_failures", "refused", "members_dropped", "warnings")


@dataclass(frozen=True)
class Row:
    """Numbers of one step, by the names of their series; all of them are finite."""

    step: int
    numbers: dict[str, float]


class Series:
    """Takes events in the order in which they happen."""

    def __init__(self) -> None:
        self._step = 0
        self._counted: dict[str, float] = dict.fromkeys(_COUNTED, 0)

    def take(self, event: kinds.Event) -> Row | None:
        """What an event adds to the series, None for nothing."""
        step, numbers = self._step, self._numbers(event)
        if isinstance(event, kinds.Trained | kinds.Applied | kinds.Evaluated | kinds.Optimizer):
            step = event.step
            self._step = max(step, self._step) if isinstance(event, kinds.Evaluated) else step
        finite = {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
        return Row(step, finite) if finite else None

    def _numbers(self, event: kinds.Event) -> dict[str, float | None]:
        match event:
            case kinds.State():
                self._step = event.step
            case kinds.FetchFailed():
                self._counted["fetch_failures"] += 1
            case kinds.Refused():
                self._counted["refused"] += 1
            case kinds.Dropped():
                self._counted["members_dropped"] += len(event.seats)
            case kinds.Warning():
                self._counted["warnings"] += 1
            case kinds.Trained():
                return self._trained(event)
            case kinds.Applied():
                self._counted["results_applied"] += event.results
                return {"round_seconds/wait": event.waited, "round_seconds/apply": event.seconds}
            case kinds.Traffic():
                costs = {name: event.costs.get(name) for name in ("transactions", "lamports")}
                return {"peers": event.peers, "sent_bytes": event.sent, "received_bytes": event.received, **costs}
            case kinds.Machine():
                return _machine(event)
            case kinds.Evaluated():
                return {f"eval/{event.task}/{event.metric}": event.value}
            case kinds.Optimizer():
                levels = event.levels.items()
                return {f"optimizer/{level}/{name}": value for level, said in levels for name, value in said.items()}
        return {}

    def _trained(self, event: kinds.Trained) -> dict[str, float | None]:
        self._counted["tokens"] += event.tokens
        return {
            "epoch": event.epoch,
            "loss": event.loss,
            "tokens_per_second": event.tokens_per_sec,
            "round_seconds/train": event.seconds,
            "round_seconds/encode": event.encode_seconds,
            "round_seconds/announce": event.announce_seconds,
            **self._counted,
        }


def _machine(event: kinds.Machine) -> dict[str, float | None]:
    numbers: dict[str, float | None] = {
        "cpu_percent": event.cpu,
        "memory_resident_bytes": event.resident,
        "memory_available_bytes": event.available,
        "disk_free_bytes": event.disk_free,
        "network_sent_bytes": event.network_sent,
        "network_received_bytes": event.network_received,
    }
    for gpu in event.gpus:
        numbers |= {f"{name}/{gpu.number}": getattr(gpu, field) for name, field in _OF_A_GPU.items()}
    return numbers
