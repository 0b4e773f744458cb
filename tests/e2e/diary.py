"""What the members of a run wrote down: their event files, and what must hold in them whatever
happens.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from aftermath.events.reader import EventReader, flat
from aftermath.sim.chain_invariants import state_of

Event = dict[str, Any]


class Diary:
    """The events of one member, over all of its processes, in the order of their starts."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader: EventReader | None = None
        self._events: list[Event] = []

    @property
    def events(self) -> list[Event]:
        """Everything written so far."""
        if self._reader is None and self._directory.exists():
            self._reader = EventReader([self._directory])
        self._events += [flat(told) for told in self._reader.read()] if self._reader else []
        return self._events

    def saw(self, kind: str, since: int = 0, **fields: Any) -> list[Event]:
        """The events of a kind with these fields, from number `since` on."""
        found = self.events[since:]
        return [
            e
            for e in found
            if e["kind"] == kind and all(e.get(name) == v for name, v in fields.items())
        ]

    def mark(self) -> int:
        """How many events there are; for `since`."""
        return len(self.events)


def compare_replicas(diaries: dict[str, Diary]) -> int:
    """Fail unless all members of a level had the same bits after every step; how many comparisons
    that were.
    """
    found: dict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    for name, diary in diaries.items():
        for event in diary.saw("applied") + diary.saw("cooldown"):
            for level, digest in event["hashes"].items():
                found[*state_of(event), level][name] = digest
    for place, hashes in found.items():
        assert len(set(hashes.values())) == 1, f"replicas differ at {place}: {hashes}"
    return sum(len(hashes) - 1 for hashes in found.values())


def applied_sequences(diary: Diary) -> list[int]:
    """The sequences whose results this member applied; each may be there once only."""
    counts: Counter[int] = Counter()
    for event in diary.saw("applied"):
        for start, stop in event["sequences"]:
            counts.update(range(start, stop))
    twice = [index for index, count in counts.items() if count > 1]
    assert not twice, f"sequences trained more than once: {sorted(twice)[:20]}"
    return sorted(counts)
