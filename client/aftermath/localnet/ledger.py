"""The ledger directory: a chain's accounts and newest transactions in one SQLite database.

A method that writes returns when its changes are on disk. The ledger stores how transactions
left their accounts and never executes them again, so a newer runtime recovers the same state.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from solders.account import Account
from solders.pubkey import Pubkey

from aftermath.base.locks import hold
from aftermath.localnet.errors import OPTIONS, LedgerError
from aftermath.localnet.records import Chain, Era, Landed
from aftermath.localnet.runtime import AccountState
from aftermath.localnet.slots import MAX_PROCESSING_AGE

DATABASE = "ledger.sqlite3"
MARK_SLOTS = 25
"""Slots between two updates of an idle chain's slot on disk. A start skips this many slots."""
HISTORY_BYTES = 64 * 1024 * 1024
"""Bytes of transactions to keep. Those that could still be sent again are kept in any case."""
REMIND_SECONDS = 60.0
"""Minimum seconds between two warnings about failed writes."""
FORMAT = 3
"""Formats 1 and 2 were journals with snapshots."""

log = logging.getLogger(__name__)
_APPLICATION = int.from_bytes(b"AFML")
_SCHEMA = (
    # `eras` is msgpack. There is one row.
    """CREATE TABLE IF NOT EXISTS chain (
        id INTEGER PRIMARY KEY CHECK (id = 0), genesis BLOB NOT NULL, eras BLOB NOT NULL,
        slot INTEGER NOT NULL, transactions INTEGER NOT NULL)""",
    # `account` is bincode. SQLite rewrites only the pages of it that differ.
    "CREATE TABLE IF NOT EXISTS accounts (key BLOB PRIMARY KEY, account BLOB NOT NULL)",
    # `landed` is msgpack. `position` counts the bytes of all transactions to the end of this one.
    """CREATE TABLE IF NOT EXISTS history (
        position INTEGER PRIMARY KEY, slot INTEGER NOT NULL, landed BLOB NOT NULL)""",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)
_encode = msgspec.msgpack.encode
_landed_decoder = msgspec.msgpack.Decoder(Landed)
_eras_decoder = msgspec.msgpack.Decoder(list[Era])

Entry = tuple[Landed, Sequence[AccountState]]
"""A transaction, and the accounts it changed as it left them."""


@dataclass(frozen=True)
class Recovered:
    """What a ledger holds. `history` has the newest transactions, oldest first."""

    chain: Chain
    accounts: list[AccountState]
    history: list[Landed]


class Ledger:
    """A ledger directory that this process has locked. Methods raise `LedgerError` with a fix."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trouble: str | None = None
        """Why the newest write failed, or None."""
        self._path = directory / DATABASE
        self._connection: sqlite3.Connection | None = None
        self._position = 0
        self._warned_at: float | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = hold(directory / "lock")
        except BlockingIOError:
            raise LedgerError(
                f"the ledger {directory} is in use by another process",
                f"Stop that process, or name another directory: {OPTIONS}",
            ) from None
        except OSError as error:
            raise LedgerError(
                f"the ledger {directory} cannot be opened: {error.strerror}",
                f"Choose another directory: {OPTIONS}",
            ) from None

    def recover(self) -> Recovered | None:
        """Open the database. Return its chain, or None if it is new."""
        if is_of_older_format(self.directory):
            raise self._of_other_format("an older version wrote it")
        try:
            self._path.touch(mode=0o600)
            self._connection = sqlite3.connect(self._path, timeout=0, isolation_level=None)
            return self._read(self._connection)
        except (sqlite3.OperationalError, OSError) as error:
            raise LedgerError(
                f"the ledger {self._path} cannot be read: {error}",
                f"Check its permissions and its disk, or name another directory: {OPTIONS}",
            ) from None
        except (
            sqlite3.DatabaseError,
            msgspec.DecodeError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise self._damaged(str(error)) from None

    def _read(self, database: sqlite3.Connection) -> Recovered | None:
        # An exclusive lock needs no shared memory, which some file systems lack.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        is_new = self._is_new(database)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")  # every commit waits for the disk
        if is_new:
            return None
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise self._damaged(verdict)
        row = database.execute("SELECT genesis, eras, slot, transactions FROM chain").fetchone()
        if row is None:
            raise self._damaged("it holds no chain")
        genesis, eras, slot, transactions = row
        chain = Chain(genesis, _eras_decoder.decode(eras), slot, transactions)
        # Whole results, because an unfinished query keeps the database open after an error.
        accounts = database.execute("SELECT key, account FROM accounts ORDER BY rowid").fetchall()
        query = "SELECT position, landed FROM history ORDER BY position"
        history = database.execute(query).fetchall()
        if history:
            self._position = history[-1][0]
        return Recovered(
            chain,
            accounts=[(Pubkey(key), Account.from_bytes(account)) for key, account in accounts],
            history=[_landed_decoder.decode(landed) for _, landed in history],
        )

    def _is_new(self, database: sqlite3.Connection) -> bool:
        """Return whether the database is empty. Raise LedgerError if it has another format."""
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == 0 and tables == 0:
            return True
        if application != _APPLICATION:
            raise LedgerError(f"{self._path} is not a ledger", f"Name another directory: {OPTIONS}")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != FORMAT:
            how = f"it has format {version}, and this version reads format {FORMAT}"
            raise self._of_other_format(how)
        return False

    def _damaged(self, how: str) -> LedgerError:
        return LedgerError(
            f"the ledger {self._path} is damaged: {how}",
            f"Restore the ledger directory from a copy, or start with an empty one: {OPTIONS}",
        )

    def _of_other_format(self, how: str) -> LedgerError:
        return LedgerError(
            f"the ledger {self.directory} cannot be read: {how}",
            f"Start again with `localnet --ledger {self.directory} --reset`, use the version that "
            f"wrote it, or name a new directory: {OPTIONS}",
        )

    def start(self, chain: Chain, accounts: Iterable[AccountState]) -> None:
        """Store where the chain starts or continues, and these accounts."""
        with self._transaction() as database:
            for statement in _SCHEMA:
                database.execute(statement)
            database.execute(
                "INSERT OR REPLACE INTO chain VALUES (0, ?, ?, ?, ?)",
                (chain.genesis, _encode(chain.eras), chain.slot, chain.transactions),
            )
            _put(database, accounts)

    def append(self, entries: Sequence[Entry]) -> None:
        """Store transactions and the accounts that they changed."""
        position = self._position
        rows = []
        states: dict[Pubkey, Account | None] = {}
        for landed, changed in entries:
            encoded = _encode(landed)
            position += len(encoded)
            rows.append((position, landed.slot, encoded))
            states.update(changed)
        with self._transaction() as database:
            database.executemany("INSERT INTO history VALUES (?, ?, ?)", rows)
            _put(database, states.items())
            database.execute(
                "UPDATE chain SET slot = max(slot, ?), transactions = transactions + ?",
                (max(slot for _, slot, _ in rows), len(rows)),
            )
        self._position = position

    def mark(self, slot: int) -> None:
        """Store how far the chain is, and delete transactions beyond `HISTORY_BYTES`."""
        with self._transaction() as database:
            database.execute("UPDATE chain SET slot = max(slot, ?)", (slot,))
            database.execute(
                "DELETE FROM history WHERE position <= ? AND slot < ?",
                (self._position - HISTORY_BYTES, slot - MAX_PROCESSING_AGE),
            )

    def put(self, accounts: Iterable[AccountState]) -> None:
        """Store accounts outside any transaction of the chain; None deletes one."""
        with self._transaction() as database:
            _put(database, accounts)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit what the block executes. After an error, nothing of it is stored."""
        assert self._connection is not None
        try:
            with self._connection:
                self._connection.execute("BEGIN")
                yield self._connection
        except sqlite3.Error as error:
            self.trouble = str(error)
            failure = LedgerError(
                f"the ledger {self._path} cannot be written: {error}",
                "Free space on its disk, or check its permissions; the chain is unchanged",
            )
            self._warn(failure)
            raise failure from None
        self.trouble = None

    def _warn(self, failure: LedgerError) -> None:
        """Log a failed write for the operator of this chain, once in `REMIND_SECONDS`.

        On a full disk small writes may still succeed between two that fail.
        """
        now = time.monotonic()
        if self._warned_at is None or now - self._warned_at >= REMIND_SECONDS:
            self._warned_at = now
            log.warning("%s. %s", failure.message, failure.fix)

    def close(self) -> None:
        """Close the database and let other processes use the directory."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._lock.close()


def holds_chain(directory: Path) -> bool:
    """Return whether a ledger directory holds a chain of this format or an older one."""
    return (directory / DATABASE).exists() or is_of_older_format(directory)


def is_of_older_format(directory: Path) -> bool:
    """Return whether a ledger directory holds snapshots of format 1 or 2."""
    # A validator's snapshots have longer names.
    return any(re.fullmatch(r"snapshot-\d+", path.name) for path in directory.glob("snapshot-*"))


def _put(database: sqlite3.Connection, states: Iterable[AccountState]) -> None:
    removed = []
    stored = []
    for key, account in states:
        if account is None:
            removed.append((bytes(key),))
        else:
            stored.append((bytes(key), bytes(account)))
    database.executemany("DELETE FROM accounts WHERE key = ?", removed)
    database.executemany(
        """INSERT INTO accounts VALUES (?, ?)
        ON CONFLICT (key) DO UPDATE SET account = excluded.account""",
        stored,
    )
