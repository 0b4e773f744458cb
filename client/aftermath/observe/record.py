"""What an observer knows of one run. Runs of one id, created one after the other, have a record each."""

from __future__ import annotations

from collections.abc import Iterator

from aftermath.observe.curves import Losses
from aftermath.observe.moment import Figures, Moment
from aftermath.observe.past import Past
from aftermath.observe.retold import Retold
from aftermath.watch.runs import RunName

MOST_RECORDS = 4
"""Of one run id. Files may come from anybody, and each record takes memory."""


class RunRecord:
    """`run.identity` is empty for events that do not say whose run they are of."""

    def __init__(self, run: RunName) -> None:
        self.run = run
        self.losses = Losses()
        self.retold = Retold(run.run_id, self.losses)
        self.past = Past()
        self.moment: Moment | None = None
        self.live_since: int | None = None
        """When the chain first showed it, in milliseconds."""
        self.stated: dict[str, Figures] = {}
        """What each member's witness stated last on chain, by wallet."""
        self.epochs: dict[int, int] = {}
        """The first step of each epoch, by what witnesses stated."""
        self.transactions = 0
        self.lamports = 0


class RunRecords:
    """The records of one run id, of which one is shown: the chain's, and until that is known the one created last."""

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

    def told(self, run: RunName) -> RunRecord | None:
        """Return the record for events of a run. None for a run older than the records that are kept."""
        if run.identity not in self._records and len(self._records) >= MOST_RECORDS and not self._make_room(run):
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
        """Forget the run that was created first, if that was before `run`."""
        others = [record for record in self._records.values() if record is not self.shown]
        oldest = min(others, key=lambda record: record.run.created)
        if oldest.run.created >= run.created:
            return False
        del self._records[oldest.run.identity]
        return True
