"""Which runs events are of. Runs that share a run id are told apart by their owner and the slot of their creation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from aftermath.watch.printable import printable
from aftermath.watch.reader import About, EventRecord


@dataclass(frozen=True, slots=True)
class RunName:
    """A run as its members' events name it. `identity` is empty where they do not say whose it is."""

    run_id: str
    owner: str
    created: int
    identity: str

    @classmethod
    def of(cls, about: About) -> RunName:
        return cls(about.run_id, about.owner, about.created, about.identity)

    def __str__(self) -> str:
        if not self.identity:
            return printable(f"{self.run_id} (its events do not say who owns it)")
        return printable(f"{self.run_id} of {self.owner}, created in slot {self.created}: --run {self.identity}")


@dataclass
class RunFilter:
    """Lets events of one run through, and remembers the runs that it saw. `wanted`: a run id or an identity."""

    wanted: str | None = None
    seen: set[RunName] = field(default_factory=set)

    def __call__(self, told: Iterable[EventRecord]) -> Iterator[EventRecord]:
        for record in told:
            run = RunName.of(record.about)
            if self.wanted is None or self.wanted in (run.run_id, run.identity):
                self.seen.add(run)
                yield record

    def namesakes(self) -> list[RunName]:
        """Return the runs that share their run id with another one, if any."""
        by_id: dict[str, list[RunName]] = defaultdict(list)
        for run in sorted(self.seen, key=lambda run: (run.run_id, run.created, run.owner)):
            if run.identity:  # what a process tells before it knows the run is of no run
                by_id[run.run_id].append(run)
        return [run for runs in by_id.values() if len(runs) > 1 for run in runs]
