"""Record from which saved model a stopped last member can continue its epoch.

Needs no PyTorch.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from aftermath.base.files import replacing
from aftermath.model.saved_checkpoints import stem_of_run
from aftermath.rules.run import Run
from aftermath.rules.state import RunState


class UnfinishedEpoch(msgspec.Struct, frozen=True):
    """An unfinished epoch, and where its last member saved the model after `step` steps."""

    epoch: int
    epoch_started_at: int
    step: int
    directory: str

    def matches(self, run: Run) -> bool:
        """Return whether the run is still in that epoch, and its rounds have begun."""
        same = (run.epoch, run.epoch_started_at) == (self.epoch, self.epoch_started_at)
        return same and (run.state.training or run.state is RunState.COOLDOWN)


def unfinished_path(directory: Path, run: Run, wallet: bytes) -> Path:
    """Return the path of the file that records the run's unfinished epoch.

    Several members of one machine may share a checkpoint directory.
    """
    stem = stem_of_run(directory, run.run_id, run.identity)
    return directory / f".{stem}-{wallet.hex()[:16]}-unfinished.json"


def write_unfinished(path: Path, unfinished: UnfinishedEpoch) -> None:
    """Write the file. Raises OSError."""
    with replacing(path) as stream:
        stream.write(msgspec.json.encode(unfinished) + b"\n")


def read_unfinished(path: Path) -> UnfinishedEpoch | None:
    """Return the file's contents, or None if it is missing or unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=UnfinishedEpoch)
    except (OSError, msgspec.MsgspecError):
        return None


def find_unfinished(directory: Path | None, run: Run, wallet: bytes) -> UnfinishedEpoch | None:
    """Return a checkpoint directory's unfinished epoch if the run can continue from its model."""
    if directory is None:
        return None
    unfinished = read_unfinished(unfinished_path(directory, run, wallet))
    if unfinished is None or not unfinished.matches(run):
        return None
    return unfinished if Path(unfinished.directory).is_dir() else None
