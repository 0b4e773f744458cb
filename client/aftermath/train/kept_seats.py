"""Refuse a start that would lose the trained steps for which a wallet keeps its seat.

A stopped last member keeps its seat, and its next start continues from the model that it saved. A
start without that model would join as a new member, and the join would end the epoch.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
from pathlib import Path

import msgspec

from aftermath.base.bounded import Malformed, json_as
from aftermath.base.errors import Unsuitable
from aftermath.base.files import replacing, state_directory
from aftermath.base.text import counted
from aftermath.coordinator.ports import View
from aftermath.member.unfinished_epoch import (
    UnfinishedEpoch,
    find_unfinished,
    read_unfinished,
    unfinished_path,
)
from aftermath.rules.contents import steps_at_risk
from aftermath.rules.deadlines import last_member
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState
from aftermath.train.tier import AUTO_TIER

_MOST_BYTES = 16384


class SeatRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this machine last started one wallet in one run."""

    directory: str | None
    """The checkpoint directory, as an absolute path."""
    unfinished_epoch: UnfinishedEpoch | None
    """The epoch in which the wallet kept its seat."""


class SeatRecords:
    """The records of this user's wallets on one cluster and program, one file per run and wallet.

    The files only help to find saved steps, so a missing or damaged one is not an error.
    """

    def __init__(self, *, cluster: str, program: str) -> None:
        self._directory = state_directory() / "seats"
        self._network = (cluster, program)

    def read(self, run: Run, wallet: bytes) -> SeatRecord | None:
        """Return the record of a wallet, or None."""
        try:
            with self._file(run, wallet).open("rb") as stream:
                record: SeatRecord = json_as(stream.read(_MOST_BYTES), SeatRecord)
        except (OSError, Malformed):
            return None
        return record

    def update(self, run: Run, wallet: bytes, directory: Path | None) -> None:
        """Record the checkpoint directory of a start, and the saved steps in it."""
        path = None if directory is None else directory.absolute()
        record = SeatRecord(
            directory=None if path is None else str(path),
            unfinished_epoch=None
            if path is None
            else read_unfinished(unfinished_path(path, run, wallet)),
        )
        file = self._file(run, wallet)
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replacing(file, shared=True) as stream:
                stream.write(msgspec.json.encode(record))

    def _file(self, run: Run, wallet: bytes) -> Path:
        words = (*self._network, run.run_id, run.identity, wallet.hex())
        name = hashlib.sha256("\0".join(words).encode()).hexdigest()
        return self._directory / f"{name[:32]}.json"


def recorded_directory(record: SeatRecord | None) -> Path | None:
    """Return the checkpoint directory of a record."""
    return None if record is None or record.directory is None else Path(record.directory)


def check_kept_seat(
    view: View,
    wallet: bytes,
    record: SeatRecord | None,
    *,
    directory: Path | None,
    tier: int | None,
) -> UnfinishedEpoch | None:
    """Return the saved epoch from which a start continues, or None if none waits for this wallet.

    `directory` and `tier` are those of the start. A tier of None is not decided yet. Raises
    Unsuitable if the start would lose the epoch's steps.
    """
    run = view.run
    seat = view.members.find(wallet)
    if seat is None or view.members.seats[seat].state is not MemberState.HEALTHY:
        return None
    recorded = record.unfinished_epoch if record is not None else None
    if recorded is not None and not recorded.matches(run):
        recorded = None
    # A step of the epoch's first round is not counted yet, so only the record tells of it.
    if recorded is None and seat != last_member(run, view.members, view.model):
        return None
    seat_tier = view.members.seats[seat].tier
    saved = find_unfinished(directory, run, wallet)
    if saved is not None and tier in (seat_tier, AUTO_TIER, None):
        return saved
    if saved is None:
        directory = recorded_directory(record)
        saved = find_unfinished(directory, run, wallet)
    if saved is None and recorded is None and record is not None:
        return None  # the member was killed on this machine, before it saved anything
    raise _would_lose_steps(view, saved, recorded, directory=directory, tier=seat_tier)


def _would_lose_steps(
    view: View,
    saved: UnfinishedEpoch | None,
    recorded: UnfinishedEpoch | None,
    *,
    directory: Path | None,
    tier: int,
) -> Unsuitable:
    """Return the error of a start that would lose steps.

    `saved` is the unfinished epoch whose model is in `directory`, and `recorded` is the one that
    this machine recorded.
    """
    run = view.run
    give_up = (
        f"aftermath-solana tick --run-id {shlex.quote(run.run_id)} first to give these steps up"
    )
    steps = steps_at_risk(run, view.model)
    unfinished = saved or recorded
    if unfinished is not None:
        # The step of the epoch's first round may not be counted on chain yet.
        steps = max(steps, unfinished.step - (run.trained_steps - steps))
    has = f"only this wallet has {counted(steps, 'trained step', 'trained steps')} of this run"
    if unfinished is None or directory is None:
        return Unsuitable(
            f"{has}, and this machine does not know where they are saved",
            f"Start the member where it trained, with the same --checkpoint-dir DIR, or run {give_up}",
        )
    if saved is None:
        return Unsuitable(
            f"{has}, but the saved model {unfinished.directory} is gone",
            f"Restore the directory {directory}, or run {give_up}",
        )
    words = f"--checkpoint-dir {shlex.quote(str(directory))} --matformer-tier {tier}"
    return Unsuitable(f"{has}, saved in {directory}", f"Add {words}, or run {give_up}")
