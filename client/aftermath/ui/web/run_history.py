"""The observer's memory of a run: snapshots by time, and a record for each run of one id."""

from __future__ import annotations

import zlib
from bisect import bisect_right, insort
from collections.abc import Iterator

import msgspec

from aftermath.events.reader import RunName
from aftermath.ui.web.from_events import EventSnapshots, Losses
from aftermath.ui.web.snapshot import Figures, RunSnapshot

MOST_MOMENTS = 2000
MOST_BYTES = 8 << 20


class SnapshotHistory:
    """Snapshots of one run in bounded memory, as compressed JSON.

    When there are too many, every second snapshot of the older half is removed. So recent times
    stay exact and older ones become coarse. The first snapshot is always kept.
    """

    def __init__(self, most: int = MOST_MOMENTS, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: list[tuple[int, bytes]] = []
        self._bytes = 0

    def keep(self, moment: RunSnapshot) -> None:
        """Add a snapshot. It replaces one of the same millisecond."""
        self.forget(moment.at)
        packed = zlib.compress(msgspec.json.encode(moment), 1)
        insort(self._kept, (moment.at, packed))
        self._bytes += len(packed)
        while len(self._kept) > self._most or (
            self._bytes > self._most_bytes and len(self._kept) > 2
        ):
            self._thin()

    def forget(self, at: int) -> None:
        """Remove the snapshot of exactly this time, if any."""
        index = self._place(at)
        if index >= 0 and self._kept[index][0] == at:
            self._bytes -= len(self._kept.pop(index)[1])

    def times(self) -> list[int]:
        """Return the times of all snapshots, ascending."""
        return [at for at, _ in self._kept]

    def before(self, at: int) -> bytes | None:
        """Return the JSON of the last snapshot at or before this time, otherwise of the first one.
        None without any.
        """
        if not self._kept:
            return None
        return zlib.decompress(self._kept[max(0, self._place(at))][1])

    def _place(self, at: int) -> int:
        return bisect_right(self._kept, at, key=lambda entry: entry[0]) - 1

    def _thin(self) -> None:
        half = max(3, len(self._kept) // 2)
        del self._kept[1:half:2]
        self._bytes = sum(len(packed) for _, packed in self._kept)


MOST_RECORDS = 4
"""Records per run id. Files may come from anyone, and each record takes memory."""


class RunRecord:
    """The data about one run. `run.identity` is empty for events that do not name their run."""

    def __init__(self, run: RunName) -> None:
        self.run = run
        self.losses = Losses()
        self.event_snapshots = EventSnapshots(run.run_id, self.losses)
        self.past = SnapshotHistory()
        self.moment: RunSnapshot | None = None
        self.live_since: int | None = None
        """Unix time in milliseconds when it was first read from the chain."""
        self.stated: dict[str, Figures] = {}
        """The last loss and speed that each wallet attested on chain."""
        self.epochs: dict[int, int] = {}
        """The first step of each epoch, from attestations."""
        self.transactions = 0
        self.lamports = 0


class RunRecords:
    """The records of one run id. The run on chain is shown; until that is known, the newest one."""

    def __init__(self, run_id: str) -> None:
        self.shown = RunRecord(RunName(run_id, "", 0, ""))
        self._records = {"": self.shown}
        self._on_chain = False

    def __iter__(self) -> Iterator[RunRecord]:
        return iter(self._records.values())

    def show(self, run: RunName) -> None:
        """Show the record of the run that is on chain."""
        self._on_chain = True
        self.shown = self._record(run)

    def record_for(self, run: RunName) -> RunRecord | None:
        """Return the record for events of a run. None for a run older than the records that are
        kept.
        """
        if (
            run.identity not in self._records
            and len(self._records) >= MOST_RECORDS
            and not self._make_room(run)
        ):
            return None
        record = self._record(run)
        if not self._on_chain and record.run.created >= self.shown.run.created:
            self.shown = record
        return record

    def _record(self, run: RunName) -> RunRecord:
        if run.identity not in self._records:
            self._records[run.identity] = RunRecord(run)
        return self._records[run.identity]

    def _make_room(self, run: RunName) -> bool:
        """Forget the oldest run if it was created before `run`."""
        others = [record for record in self._records.values() if record is not self.shown]
        oldest = min(others, key=lambda record: record.run.created)
        if oldest.run.created >= run.created:
            return False
        del self._records[oldest.run.identity]
        return True
