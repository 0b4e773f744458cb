"""Read and check the event files of a run's members."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from aftermath.events.reader import EventReader, flat
from aftermath.sim.chain_invariants import state_of

Event = dict[str, Any]


class EventLog:
    """The events of one member, over all of its processes, in the order of their starts."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader: EventReader | None = None
        self._events: list[Event] = []

    @property
    def events(self) -> list[Event]:
        """Return all events so far."""
        if self._reader is None and self._directory.exists():
            self._reader = EventReader([self._directory])
        self._events += [flat(event) for event in self._reader.read()] if self._reader else []
        return self._events

    def events_of(self, kind: str, since: int = 0, **fields: Any) -> list[Event]:
        """Return the events of a kind with these field values, from number `since` on."""
        return [
            event
            for event in self.events[since:]
            if event["kind"] == kind and all(event.get(key) == v for key, v in fields.items())
        ]

    def position(self) -> int:
        """Return the number of events, for use as `since`."""
        return len(self.events)


def compare_replicas(event_logs: dict[str, EventLog]) -> int:
    """Fail unless all members of a level had the same bits after every step. Return the number of
    comparisons.
    """
    digests: dict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    for name, event_log in event_logs.items():
        for event in event_log.events_of("applied") + event_log.events_of("cooldown"):
            for level, digest in event["hashes"].items():
                digests[*state_of(event), level][name] = digest
    for place, hashes in digests.items():
        assert len(set(hashes.values())) == 1, f"replicas differ at {place}: {hashes}"
    return sum(len(hashes) - 1 for hashes in digests.values())


def applied_sequences(event_log: EventLog) -> list[int]:
    """Return the sequences whose results this member applied. Fail if one occurs twice."""
    counts: Counter[int] = Counter()
    for event in event_log.events_of("applied"):
        for start, stop in event["sequences"]:
            counts.update(range(start, stop))
    twice = [index for index, count in counts.items() if count > 1]
    assert not twice, f"sequences trained more than once: {sorted(twice)[:20]}"
    return sorted(counts)
