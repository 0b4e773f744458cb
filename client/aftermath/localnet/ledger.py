"""The ledger directory: snapshots of all accounts, journals of what happened since, and one process at a time.

Decided: snapshot-N holds the accounts before journal-N, and journal-N exists, head included, before snapshot-N does.
Recovery is the newest snapshot plus every journal from its number on. Older journals serve only the transaction
history: the oldest go while all together exceed `HISTORY_BYTES`, save those from which a transaction could still be
repeated. A snapshot is written at every start, so that a journal never mixes two eras of time, and whenever the
journal outgrows `COMPACT_BYTES`, so that the directory stays bounded while the network runs. Every `MARK_SLOTS` slots
are marked; a start skips past them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aftermath.base.files import replacing
from aftermath.base.locks import hold
from aftermath.localnet.delta import apply
from aftermath.localnet.errors import OPTIONS, LedgerError
from aftermath.localnet.journal import Journal, frame, read_records, remove
from aftermath.localnet.records import FORMAT, Chain, End, Entry, Head, Landed, Mark, Record, Stored
from aftermath.localnet.slots import MAX_PROCESSING_AGE

log = logging.getLogger(__name__)

MARK_SLOTS = 25
COMPACT_BYTES = 16 * 1024 * 1024
HISTORY_BYTES = 64 * 1024 * 1024


@dataclass
class Recovered:
    """What the ledger knew: the chain's header, the live accounts (bincode) and the newest transactions, oldest
    first.
    """

    chain: Chain
    accounts: dict[bytes, bytearray] = field(default_factory=dict)
    history: list[Landed] = field(default_factory=list)


@dataclass(frozen=True)
class _Older:
    """A journal before the newest snapshot: its size, and the last slot that may be in it."""

    number: int
    size: int
    last_slot: int


class Ledger:
    """An open ledger directory. Every method raises `LedgerError` with what to do about it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._journal: Journal | None = None
        self._older: list[_Older] = []
        self._number = -1
        self._compact_at = COMPACT_BYTES
        self._snapshot_bytes = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = hold(directory / "lock")
        except BlockingIOError:
            raise LedgerError(
                f"the ledger {directory} is in use by another process",
                f"Stop that one, or name another directory: {OPTIONS}",
            ) from None
        except OSError as error:
            raise LedgerError(
                f"the ledger {directory} cannot be opened: {error.strerror}", f"Choose another directory: {OPTIONS}"
            ) from None

    def recover(self) -> Recovered | None:
        """The newest state, or None when the directory holds no ledger yet."""
        snapshots, journals = self._numbers("snapshot"), self._numbers("journal")
        self._number = max([*snapshots, *journals], default=-1)
        if not snapshots:
            return None
        newest = snapshots[-1]
        recovered = self._read_snapshot(newest)
        if newest not in journals:
            raise self._unfit(self._path("journal", newest), "is missing")
        for number in (n for n in journals if n >= newest):
            self._replay(number, recovered, begun=number > newest)
        for number in reversed([n for n in journals if n < newest]):
            older = [r.landed for r in self._records(number, recovered.chain) if isinstance(r, Entry)]
            recovered.history[:0] = older
            last = older[-1].slot if older else 0
            self._older.insert(0, _Older(number, self._path("journal", number).stat().st_size, last))
        return recovered

    def _read_snapshot(self, number: int) -> Recovered:
        path = self._path("snapshot", number)
        recovered: Recovered | None = None
        for record in read_records(path, repair=False):
            if isinstance(record, Chain) and record.format != FORMAT:
                raise LedgerError(
                    f"the ledger {self.directory} has format {record.format}; this version writes format {FORMAT}",
                    f"Give a new directory ({OPTIONS}), or use the version that wrote this one",
                )
            if isinstance(record, Chain):
                recovered = Recovered(record)
            elif isinstance(record, Stored) and recovered is not None:
                recovered.accounts[record.key] = bytearray(record.account)
            elif isinstance(record, End) and recovered is not None and record.accounts == len(recovered.accounts):
                return recovered
            else:
                break
        raise self._unfit(path, "is not a whole snapshot")

    def _replay(self, number: int, recovered: Recovered, *, begun: bool) -> None:
        for record in self._records(number, recovered.chain, begun=begun):
            if isinstance(record, Mark):
                recovered.chain.slot = max(recovered.chain.slot, record.slot)
            elif isinstance(record, Entry):
                recovered.chain.slot = max(recovered.chain.slot, record.landed.slot)
                recovered.chain.transactions += 1
                recovered.history.append(record.landed)
                try:
                    apply(recovered.accounts, record.changes)
                except ValueError:
                    raise self._unfit(self._path("journal", number), "does not follow from its snapshot") from None

    def _records(self, number: int, chain: Chain, *, begun: bool = False) -> Iterator[Record]:
        """The records of a journal of this chain after its head; one that was only `begun` may lack that too."""
        path = self._path("journal", number)
        records = read_records(path, repair=True)
        head = next(records, None)
        if head is None and begun:
            return
        if head != Head(chain.genesis, number):
            raise self._unfit(path, "is not a journal of this chain, or was cut off at its start")
        yield from records

    def _unfit(self, path: Path, how: str) -> LedgerError:
        return LedgerError(
            f"the ledger file {path} {how}",
            f"Restore the ledger directory from a copy, or start with an empty one: {OPTIONS}",
        )

    def start(self, chain: Chain, accounts: Iterable[Stored]) -> None:
        """Write a snapshot and go on in a new journal; the previous snapshot is removed when the new one is safe."""
        number = self._number + 1
        journal = Journal(self._path("journal", number), Head(chain.genesis, number))
        try:
            self._snapshot_bytes = self._write_snapshot(number, chain, accounts)
        except LedgerError:
            journal.discard()
            raise
        if self._journal is not None:
            self._older.append(_Older(self._number, self._journal.size, chain.slot))
            self._journal.close()
        self._journal, self._number = journal, number
        self._compact_at = COMPACT_BYTES
        self._tidy(chain.slot)

    def _tidy(self, slot: int) -> None:
        """Remove what neither recovery nor the transaction history needs."""
        for old in self._numbers("snapshot")[:-1]:
            remove(self._path("snapshot", old))
        for left in self.directory.glob(".snapshot-*.partial"):
            remove(left)
        total = sum(older.size for older in self._older)
        while self._older and total > HISTORY_BYTES and self._older[0].last_slot < slot - MAX_PROCESSING_AGE:
            gone = self._older.pop(0)
            total -= gone.size
            remove(self._path("journal", gone.number))

    def compact(self, chain: Chain, accounts: Iterable[Stored]) -> None:
        """Like `start`, but a full disk only postpones it: the running journal stays good."""
        try:
            self.start(chain, accounts)
        except LedgerError as error:
            log.warning("snapshot postponed: %s", error.message)
            self._compact_at += COMPACT_BYTES

    @property
    def wants_compaction(self) -> bool:
        """Whether the journal outgrew its share; never before it has grown as large as the snapshot would be."""
        return self._journal is not None and self._journal.size >= max(self._compact_at, self._snapshot_bytes)

    @property
    def trouble(self) -> str | None:
        """What the disk said to the last thing that was to be kept, None when it was kept."""
        return self._journal.trouble if self._journal is not None else None

    def append(self, records: list[Record]) -> None:
        assert self._journal is not None
        self._journal.append(records)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        self._lock.close()

    def _write_snapshot(self, number: int, chain: Chain, accounts: Iterable[Stored]) -> int:
        """Its size. When this raises, there is no such snapshot."""
        path = self._path("snapshot", number)
        try:
            with replacing(path) as file:
                file.write(frame(chain))
                count = 0
                for account in accounts:
                    file.write(frame(account))
                    count += 1
                file.write(frame(End(count)))
                size = file.tell()
        except OSError as error:
            remove(path)
            raise LedgerError(
                f"the snapshot {path} cannot be written: {error.strerror}", "Free space in that directory"
            ) from None
        return size

    def _path(self, kind: str, number: int) -> Path:
        return self.directory / f"{kind}-{number:06d}"

    def _numbers(self, kind: str) -> list[int]:
        names = (path.name.removeprefix(f"{kind}-") for path in self.directory.glob(f"{kind}-*"))
        return sorted(int(name) for name in names if name.isdigit())
