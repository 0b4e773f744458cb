"""Parse account bytes into frozen dataclasses.

Bytes from a node are checked first: size, discriminator, version, known states, UTF-8. Seats are
read by column, so 256 members take a few list conversions instead of thousands of field look-ups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from aftermath.base.errors import AccountError, Unsuitable
from aftermath.chain import layout
from aftermath.config.chain_values import NO_SPEC, trained_by
from aftermath.config.spec import UNREADABLE_FIX, read_spec
from aftermath.rules import bitmap, state
from aftermath.rules.audits import MAX_DRAWN, Case
from aftermath.rules.limits import MAX_LEVELS, SPEC_BYTES
from aftermath.rules.members import Members, Membership, Seat
from aftermath.rules.model import Checkpoint, Metadata, Model, Recorded
from aftermath.rules.run import (
    BACKLOG,
    MAX_WITNESSES,
    STORED_ROUNDS,
    Attestation,
    Config,
    Interval,
    Round,
    Run,
)

VERSION = 14

_Row = TypeVar("_Row")
_Convert = Callable[[Any], Any]


def run_account() -> layout.Account:
    """Return the layout of the Run account."""
    return layout.coordinator_account("Run")


def model_account() -> layout.Account:
    """Return the layout of the Model account."""
    return layout.coordinator_account("Model")


def members_account() -> layout.Account:
    """Return the layout of the Members account."""
    return layout.coordinator_account("Members")


def witnesses_account() -> layout.Account:
    """Return the layout of the Witnesses account."""
    return layout.coordinator_account("Witnesses")


def membership_account() -> layout.Account:
    """Return the layout of a Membership account."""
    return layout.coordinator_account("Membership")


@lru_cache(maxsize=8)  # RunWatcher parses each answer up to three times; a Run is immutable
def parse_run(data: bytes) -> Run:
    """Read a Run account (discriminator included). Raises AccountError."""
    record = run_account().read(data)
    _check_version(int(record["version"][0]))
    levels = _at_most(int(record["levels"][0]), MAX_LEVELS, "levels")
    _at_most(int(record["head"][0]), STORED_ROUNDS - 1, "head")
    began = [bitmap.from_bytes(record["began"][0].tobytes())] * STORED_ROUNDS
    return _one(
        Run,
        record,
        config=_one(Config, record["config"]),
        rounds=tuple(
            _rows(Round, record["rounds"][0], redo=_redone(record["rounds"][0]), began=began)
        ),
        level_hashes=tuple(record["level_hashes"][0, :levels].tolist()),
    )


def _redone(rounds: np.ndarray[Any, Any]) -> list[tuple[Interval, ...]]:
    """Return the intervals that each round retrains."""
    spans = zip(rounds["redo_index"].tolist(), rounds["redo"].tolist(), strict=True)
    return [
        tuple(
            Interval(start, length) for start, length in zip(starts, lengths, strict=True) if length
        )
        for starts, lengths in spans
    ]


def parse_model(data: bytes, *, any_spec: bool = False) -> Model:
    """Read a Model account (discriminator included).

    Raises AccountError, and Unsuitable if this client cannot read the training spec. With
    `any_spec`, such a model has a `spec_error` instead.
    """
    record = model_account().read(data)
    _check_version(int(record["version"][0]))
    tiers = _at_most(int(record["tiers"][0]), MAX_LEVELS, "tiers")
    model = _one(
        Model,
        record,
        **_trained(record),
        metadata=_one(Metadata, record["metadata"]),
        checkpoint=_one(Checkpoint, record["checkpoint"]),
        earlier=tuple(_recorded(record["earlier"][0], tiers)),
        checkpoint_hashes=tuple(record["checkpoint_hashes"][0, :tiers].tolist()),
        tier_widths=tuple(record["tier_widths"][0, :tiers].tolist()),
    )
    if not any_spec:
        require_readable(model)
    return model


def require_readable(model: Model) -> None:
    """Raise Unsuitable if this client cannot read the model's training spec."""
    if model.spec_error:
        raise Unsuitable(model.spec_error, UNREADABLE_FIX)


def _trained(record: np.ndarray[Any, Any]) -> Mapping[str, Any]:
    """Return the Model fields from the training spec, the spec's hash, and why it is unreadable."""
    length = _at_most(int(record["spec_len"][0]), SPEC_BYTES, "spec_len")
    if not length:
        return NO_SPEC
    spec = record["spec"][0].tobytes()[:length]
    spec_hash = record["spec_hash"][0].tobytes()
    try:
        trained = trained_by(read_spec(spec, spec_hash))
    except Unsuitable as error:
        return {**NO_SPEC, "spec_hash": spec_hash, "spec_error": error.message}
    return {**NO_SPEC, **trained, "spec_hash": spec_hash}


@lru_cache(maxsize=8)
def parse_members(data: bytes) -> Members:
    """Read a Members account (discriminator included). Raises AccountError."""
    record = members_account().read(data)
    seats = record["seats"][0]
    pending = seats["pending"]
    _at_most(int(pending.max()), _BARRED, "pending")
    pending_values = {"pending": _WAITS, "removed": _REMOVED, "barred": _BARRED}
    columns = {name: (pending == value).tolist() for name, value in pending_values.items()}
    # a seat whose wallet has withdrawn declares 0
    columns["used"] = ((seats["used"] == 1) & (seats["declared"] > 0)).tolist()
    planes = record["shown"][0]
    even = 1 << len(planes) - 1
    return _one(
        Members,
        record,
        delivered=_counts(record["delivered"][0]),
        shown=tuple(count - even for count in _counts(planes)),
        seats=tuple(_rows(Seat, seats, **columns)),
    )


def parse_membership(data: bytes) -> Membership:
    """Read a Membership account (discriminator included). Raises AccountError."""
    record = membership_account().read(data)
    _check_version(int(record["version"][0]))
    return _one(Membership, record)


def _counts(planes: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """Decode per-seat counters stored as bit planes."""
    bits = np.unpackbits(
        planes.view(np.uint8).reshape(len(planes), -1), axis=1, bitorder="little"
    ).astype(np.int64)
    return tuple((bits << np.arange(len(planes))[:, None]).sum(axis=0).tolist())


def _recorded(array: np.ndarray[Any, Any], tiers: int) -> list[Recorded]:
    checkpoints = _rows(Checkpoint, array["checkpoint"])
    hashes = [tuple(row[:tiers]) for row in array["hashes"].tolist()]
    return _rows(Recorded, array, checkpoint=checkpoints, hashes=hashes)


def witness_round_range(ring: int, count: int = MAX_WITNESSES) -> tuple[int, int]:
    """Return (offset, length) of a stored round's first `count` attestations, for an RPC slice."""
    account = witnesses_account()
    return account.offset("rounds", ring, "attestations"), count * account.field(
        "rounds", "attestations"
    ).itemsize


def parse_witness_round(data: bytes, count: int) -> tuple[Attestation, ...]:
    """Return the first `count` attestations in a slice taken by `witness_round_range`.

    Raises AccountError on a short slice.
    """
    return tuple(
        _rows(Attestation, _slice(data, witnesses_account().field("rounds", "attestations"), count))
    )


def witnesses_backlog_range() -> tuple[int, int]:
    """Return (offset, length) of the backlog, for an RPC slice."""
    account = witnesses_account()
    return account.offset("backlog"), account.field("backlog").itemsize


def parse_backlog(data: bytes) -> tuple[Interval, ...]:
    """Return the intervals to train again, from a slice taken by `witnesses_backlog_range`.

    Raises AccountError.
    """
    record = _slice(data, witnesses_account().field("backlog"), 1)[0]
    count = _at_most(int(record["count"]), BACKLOG, "the backlog's count")
    return tuple(_rows(Interval, record["intervals"][:count]))


def witnesses_cases_range() -> tuple[int, int]:
    """Return (offset, length) of the cases about audited results, for an RPC slice."""
    account = witnesses_account()
    return account.offset("cases"), account.field("cases").itemsize


def parse_cases(data: bytes) -> tuple[Case, ...]:
    """Return the cases in a slice taken by `witnesses_cases_range`. Some may have expired.

    Raises AccountError.
    """
    record = _slice(data, witnesses_account().field("cases"), 1)[0]
    count = _at_most(int(record["count"]), MAX_DRAWN, "the number of cases")
    entries = record["entries"][:count]
    intervals = [
        tuple(interval for interval in _rows(Interval, row) if interval.len)
        for row in entries["intervals"]
    ]
    voted = _bitmaps(entries["voted"])
    not_matching = _bitmaps(entries["not_matching"])
    pairs = list(zip(voted, not_matching, strict=True))
    return tuple(
        _rows(
            Case,
            entries,
            intervals=intervals,
            jury=[voted | waiting for voted, waiting in pairs],
            mismatches=[voted & waiting for voted, waiting in pairs],
            matches=[voted & ~waiting for voted, waiting in pairs],
        )
    )


def _bitmaps(column: np.ndarray[Any, Any]) -> list[int]:
    return [bitmap.from_bytes(row) for row in column.tolist()]


def _slice(data: bytes, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
    if len(data) < count * dtype.itemsize:
        raise AccountError(
            f"the RPC node returned {len(data)} bytes instead of {count * dtype.itemsize}"
        )
    return np.frombuffer(data, dtype, count=count)


def _check_version(version: int) -> None:
    if version != VERSION:
        raise AccountError(
            f"the run's accounts have layout version {version}, but this client reads version {VERSION}",
            "Use a client of the version that created the run",
        )


def _at_most(value: int, limit: int, name: str) -> int:
    if value > limit:
        raise AccountError(f"the account has {name} = {value}, above the limit of {limit}")
    return value


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8")


_WAITS = 1
_REMOVED = 2
_BARRED = 3
"""Values of a seat's `pending` other than 0."""
_MEMBER_STATES = {member.value: member for member in state.MemberState}
_CONVERTERS: dict[type, dict[str, _Convert]] = {
    Run: {
        "state": state.RunState,
        "model_source": state.ModelSource,
        "exit_reason": state.ExitReason,
        "run_id": _text,
        "pending_pause": bool,
        "cold_start": bool,
        "finishers": bitmap.from_bytes,
        "began": bitmap.from_bytes,
        "next_roster": bitmap.from_bytes,
    },
    Round: {
        "roster": bitmap.from_bytes,
        "attested": bitmap.from_bytes,
        "established": state.EstablishedOnly,
    },
    Metadata: {"name": _text, "description": _text},
    Model: {"client_version": _text},
    Checkpoint: {"kind": state.CheckpointKind, "repo": _text, "revision": _text},
    Members: {
        "proven": bitmap.from_bytes,
        "established": bitmap.from_bytes,
        "judges": bitmap.from_bytes,
        "healthy": bitmap.from_bytes,
        "forfeited": bitmap.from_bytes,
    },
    Membership: {"enrolled": bool, "barred": bool},
    Seat: {"state": _MEMBER_STATES.__getitem__},
    Attestation: {"participation": bitmap.from_bytes},
}


def _column(cls: type, name: str, array: np.ndarray[Any, Any]) -> list[Any]:
    values = list(array[name].tolist())
    convert = _CONVERTERS.get(cls, {}).get(name)
    if convert is None:
        return values
    try:
        return [convert(value) for value in values]
    except (ValueError, KeyError) as error:
        raise AccountError(f"the account has an unknown {name}: {error}") from None


def _rows(
    cls: type[_Row], array: np.ndarray[Any, Any], **columns_given: Sequence[Any]
) -> list[_Row]:
    """Return one `cls` per element, of the columns of `array` or `columns_given`."""
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    columns = [
        columns_given[name] if name in columns_given else _column(cls, name, array)
        for name in names
    ]
    return [cls(*row) for row in zip(*columns, strict=True)]


def _one(cls: type[_Row], record: np.ndarray[Any, Any], **fields_given: Any) -> _Row:
    return _rows(cls, record, **{name: [value] for name, value in fields_given.items()})[0]
