"""The file that marks a saved model of an epoch that has not ended. Needs no PyTorch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from aftermath.base.files import replacing
from aftermath.model.saved_checkpoints import stem_of_run
from aftermath.rules.run import Run
from aftermath.rules.state import RunState


class UnsavedWork(msgspec.Struct, frozen=True):
    """A saved model of an epoch that has not ended: `step` steps are trained in it."""

    epoch: int
    epoch_started_at: int
    step: int
    directory: str

    def is_of(self, run: Run) -> bool:
        """Return whether the run is still in that epoch, and its rounds have begun."""
        same = (run.epoch, run.epoch_started_at) == (self.epoch, self.epoch_started_at)
        return same and (run.state.training or run.state is RunState.COOLDOWN)


def mark_path(directory: Path, run: Run, wallet: bytes) -> Path:
    """Return the path of the file that records the run's unfinished epoch.

    Several members of one machine may share a checkpoint directory.
    """
    stem = stem_of_run(directory, run.run_id, run.identity)
    return directory / f".{stem}-{wallet.hex()[:16]}-unfinished.json"


def write_mark(path: Path, unfinished: UnsavedWork) -> None:
    """Write the mark. Raises OSError."""
    with replacing(path) as stream:
        stream.write(msgspec.json.encode(unfinished) + b"\n")


def read_mark(path: Path) -> UnsavedWork | None:
    """Return the mark's contents, or None if it is missing or unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=UnsavedWork)
    except (OSError, msgspec.MsgspecError):
        return None


def find_saved_work(directory: Path | None, run: Run, wallet: bytes) -> UnsavedWork | None:
    """Return the mark in a checkpoint directory if the run can continue from its model."""
    if directory is None:
        return None
    work = read_mark(mark_path(directory, run, wallet))
    usable = work is not None and work.is_of(run) and Path(work.directory).is_dir()
    return work if usable else None
