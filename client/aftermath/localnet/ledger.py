"""The ledger directory: snapshots of all accounts, journals of what happened since, and one process at a time.

Decided: snapshot-N holds the accounts before journal-N. Recovery is the newest snapshot plus every journal from its
number on; older journals serve only the transaction history and go when newer ones fill it. Every start writes a new
snapshot, so a journal never mixes two eras of time. `MARK_SLOTS` idle slots are marked without a sync; a start skips
past them.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from aftermath.localnet.errors import LedgerError
from aftermath.localnet.journal import Journal, frame, read_records
from aftermath.localnet.records import FORMAT, Chain, End, Entry, Landed, Mark, Record, Stored

log = logging.getLogger(__name__)

MARK_SLOTS = 25
COMPACT_BYTES = 64 * 1024 * 1024


@dataclass
class Recovered:
    """What the ledger knew: the chain's header, the live accounts (bincode) and the newest transactions, oldest
    first.
    """

    chain: Chain
    accounts: dict[bytes, bytes] = field(default_factory=dict)
    history: list[Landed] = field(default_factory=list)


class Ledger:
    """An open ledger directory. Every method raises `LedgerError` with what to do about it."""

    def __init__(self, directory: Path, history_limit: int) -> None:
        self.directory = directory
        self._history_limit = history_limit
        self._journal: Journal | None = None
        self._number = -1
        self._compact_at = COMPACT_BYTES
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LedgerError(
                f"The ledger {directory} cannot be opened: {error.strerror}.", "Choose another --ledger."
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise LedgerError(
                f"The ledger {directory} is in use by another localnet.", "Stop that one or give another --ledger."
            ) from None

    def recover(self) -> Recovered | None:
        """The newest state, or None when the directory holds no ledger yet."""
        snapshots = self._numbers("snapshot")
        if not snapshots:
            return None
        self._number = snapshots[-1]
        recovered = self._read_snapshot(self._number)
        for number in (n for n in self._numbers("journal") if n >= self._number):
            self._replay(number, recovered)
            self._number = max(self._number, number)
        self._recall(recovered, snapshots[-1])
        return recovered

    def _read_snapshot(self, number: int) -> Recovered:
        path = self._path("snapshot", number)
        recovered: Recovered | None = None
        for record in read_records(path, repair=False):
            if isinstance(record, Chain) and record.format == FORMAT:
                recovered = Recovered(record)
            elif isinstance(record, Stored) and recovered is not None:
                recovered.accounts[record.key] = record.account
            elif isinstance(record, End) and recovered is not None and record.accounts == len(recovered.accounts):
                return recovered
            else:
                break
        raise LedgerError(
            f"The snapshot {path} is not one that this version wrote.",
            "Use the version that wrote it, or another --ledger.",
        )

    def _replay(self, number: int, recovered: Recovered) -> None:
        for record in read_records(self._path("journal", number), repair=True):
            if isinstance(record, Mark):
                recovered.chain.slot = max(recovered.chain.slot, record.slot)
            elif isinstance(record, Entry):
                recovered.chain.slot = max(recovered.chain.slot, record.landed.slot)
                recovered.chain.transactions += 1
                recovered.history.append(record.landed)
                for key, account in record.writes:
                    if account is None:
                        recovered.accounts.pop(key, None)
                    else:
                        recovered.accounts[key] = account

    def _recall(self, recovered: Recovered, before: int) -> None:
        """Fill the history from the journals before snapshot `before`; drop those that it no longer reaches."""
        for number in reversed([n for n in self._numbers("journal") if n < before]):
            path = self._path("journal", number)
            if len(recovered.history) >= self._history_limit:
                path.unlink(missing_ok=True)
                continue
            older = [r.landed for r in read_records(path, repair=True) if isinstance(r, Entry)]
            recovered.history[:0] = older

    def start(self, chain: Chain, accounts: Iterable[Stored]) -> None:
        """Write a snapshot and go on in a new journal; the previous snapshot is removed when the new one is safe."""
        number = self._number + 1
        self._write_snapshot(number, chain, accounts)
        journal = Journal(self._path("journal", number))
        if self._journal is not None:
            self._journal.close()
        self._journal, self._number = journal, number
        self._compact_at = COMPACT_BYTES
        for old in self._numbers("snapshot")[:-1]:
            self._path("snapshot", old).unlink(missing_ok=True)

    def compact(self, chain: Chain, accounts: Iterable[Stored]) -> None:
        """Like `start`, but a full disk only postpones it: the running journal stays good."""
        try:
            self.start(chain, accounts)
        except LedgerError as error:
            log.warning("snapshot postponed: %s", error.message)
            self._compact_at += COMPACT_BYTES

    @property
    def wants_compaction(self) -> bool:
        return self._journal is not None and self._journal.size >= self._compact_at

    def append(self, records: list[Record], sync: bool = True) -> None:
        assert self._journal is not None
        self._journal.append(records, sync)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        os.close(self._lock)

    def _write_snapshot(self, number: int, chain: Chain, accounts: Iterable[Stored]) -> None:
        path = self._path("snapshot", number)
        temporary = path.with_suffix(".new")
        try:
            with open(temporary, "wb") as file:
                file.write(frame(chain))
                count = 0
                for account in accounts:
                    file.write(frame(account))
                    count += 1
                file.write(frame(End(count)))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            folder = os.open(self.directory, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise LedgerError(
                f"The snapshot {path} cannot be written: {error.strerror}.", "Free space in that directory."
            ) from None

    def _path(self, kind: str, number: int) -> Path:
        return self.directory / f"{kind}-{number:06d}"

    def _numbers(self, kind: str) -> list[int]:
        names = (path.name.removeprefix(f"{kind}-") for path in self.directory.glob(f"{kind}-*"))
        return sorted(int(name) for name in names if name.isdigit())
