"""Check before a member joins that it can write the files that its options name.

Checks that need no chain come first. They write a test file to each directory, because permissions
alone do not prove that writing works. The disk needs space for two checkpoints, of which one may
be there already: the new one is complete before the old one is removed.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from aftermath.base.errors import Unsuitable, UsageError
from aftermath.base.files import fix_of
from aftermath.base.locks import hold
from aftermath.base.outputs import is_protected, maker_of, write_mark
from aftermath.base.text import is_repository, shortage
from aftermath.member.unfinished_epoch import find_unfinished
from aftermath.model.saved_checkpoints import maker_name, saved_steps, stem_of_run
from aftermath.model.schema import StateSchema
from aftermath.rules.run import Run
from aftermath.train.put_links import PutLinks
from aftermath.train.settings import TrainSettings

_AT_ONCE = 2


def check_hub(settings: TrainSettings) -> None:
    """Raise UsageError or Unsuitable if checkpoints cannot go to the named Hub repository."""
    if settings.hub_repo is None:
        return
    if not is_repository(settings.hub_repo):
        raise UsageError(
            f"--hub-repo {settings.hub_repo!r} is not the name of a repository",
            "Use OWNER/NAME, for example --hub-repo ada/my-model",
        )
    if not settings.matformer_tier and settings.hub_token is None:
        raise UsageError(
            f"--hub-repo {settings.hub_repo} needs a token to write to it",
            "Set HF_TOKEN to a Hugging Face token with write access; create one at huggingface.co/settings/tokens",
        )


def check_put_links(settings: TrainSettings) -> None:
    """Raise UsageError or CheckpointError if --checkpoint-put-links is given and cannot be used."""
    if settings.checkpoint_put_links is None:
        return
    if settings.hub_repo is not None:
        raise UsageError(
            "--checkpoint-put-links and --hub-repo are both given", "Pass only one of them"
        )
    if settings.checkpoint_dir is None:
        raise UsageError(
            "--checkpoint-put-links requires --checkpoint-dir",
            "Pass --checkpoint-dir DIR",
        )
    PutLinks(settings.checkpoint_put_links).check()


def check_directories(settings: TrainSettings) -> None:
    """Test writing to the named directories. Create none. Raises Unsuitable if that fails."""
    for option, directory in (
        ("--checkpoint-dir", None if settings.matformer_tier > 0 else settings.checkpoint_dir),
        ("--optimizer-state-dir", settings.optimizer_state_dir),
        ("--write-gradients-dir", settings.write_gradients_dir),
    ):
        if directory is not None:
            _check_writable(option, directory.absolute())


def check_room(settings: TrainSettings, schema: StateSchema, run: Run, wallet: bytes) -> str | None:
    """Raise Unsuitable if --checkpoint-dir is not writable or lacks space for checkpoints.

    A start that continues from the member's saved model needs no space, and could use no other
    directory. Without space it gets a warning, which is returned.
    """
    from aftermath.model.save_checkpoint import (
        RESERVE,  # imports torch, which the other checks do not need
    )

    if settings.checkpoint_dir is None or settings.matformer_tier:
        return None
    directory = settings.checkpoint_dir.absolute()
    free = _free("--checkpoint-dir", directory)
    saved = saved_steps(directory, stem_of_run(directory, run.run_id, run.identity))
    # Protected copies stay, and of all others the new checkpoint replaces all but one.
    count = _AT_ONCE - any(not is_protected(path) for path in saved)
    needed = count * sum(segment.size for segment in schema.segments) + RESERVE
    if free > needed:
        return None
    need, room = shortage(needed, free)
    noun = "checkpoints" if count > 1 else "more checkpoint"
    message = (
        f"--checkpoint-dir {directory}: {count} {noun} of this model and a reserve need "
        f"{need}, but only {room} are free"
    )
    if find_unfinished(directory, run, wallet) is not None:
        return f"{message}\nFree some space, or the steps trained from now on may be lost"
    raise Unsuitable(message, "Free some space, or choose a directory on another disk")


@contextlib.contextmanager
def gradients_directory(settings: TrainSettings, identity: str) -> Iterator[None]:
    """Create, test and lock --write-gradients-dir, and remove half-written files.

    Raises Unsuitable if it is not writable, if another process has the lock, or if it has results
    of another run. Files of two runs would have the same names.
    """
    if settings.write_gradients_dir is None:
        yield
        return
    directory = settings.write_gradients_dir.absolute()
    _free("--write-gradients-dir", directory)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold(directory / ".lock"))
            _claim(directory, maker_name(identity))
            for partial in directory.glob(".step-*.partial"):
                partial.unlink(missing_ok=True)
        except OSError as error:
            why = (
                "another process on this machine writes there"
                if isinstance(error, BlockingIOError)
                else _why(error)
            )
            raise Unsuitable(
                f"--write-gradients-dir {directory}: {why}",
                "Choose a directory that only this member uses",
            ) from None
        yield


def _claim(directory: Path, made_by: str) -> None:
    """Mark a directory as a run's. Raises Unsuitable if it has results of another run."""
    if maker_of(directory) == made_by:
        return
    if any(directory.glob("step-*.safetensors")):
        raise Unsuitable(
            f"--write-gradients-dir {directory} already has results of another run or version",
            "Choose an empty directory",
        )
    write_mark(directory, made_by)


def _check_writable(option: str, directory: Path) -> None:
    """Raise Unsuitable if a directory, or the nearest existing parent, is not writable.

    A later check may refuse this start because the directory is gone. A new empty one would then
    be in the way of the one that the user restores.
    """
    with _unsuitable(option, directory):
        place = next(path for path in (directory, *directory.parents) if path.exists())
        if place == directory:
            place.mkdir(exist_ok=True)  # fails if it is a file
        _write_test_file(place)


def _free(option: str, directory: Path) -> int:
    """Create a directory and return its free bytes. Raises Unsuitable if it is not writable."""
    with _unsuitable(option, directory):
        directory.mkdir(parents=True, exist_ok=True)
        _write_test_file(directory)
        return shutil.disk_usage(directory).free


def _write_test_file(directory: Path) -> None:
    with tempfile.TemporaryFile(dir=directory) as probe:
        probe.write(b"probe")


@contextlib.contextmanager
def _unsuitable(option: str, directory: Path) -> Iterator[None]:
    """Raise an OSError of the block as Unsuitable."""
    try:
        yield
    except OSError as error:
        raise Unsuitable(
            f"{option} {directory}: {_why(error)}", fix_of(error, "directory")
        ) from error


def _why(error: OSError) -> str:
    return "it is a file" if isinstance(error, FileExistsError) else str(error.strerror)


def checkpoint_warning(settings: TrainSettings) -> str | None:
    """Return a warning if the checkpoint options probably do not do what the user expects."""
    keeps = settings.checkpoint_dir is not None or settings.hub_repo is not None
    if keeps and settings.matformer_tier:
        return (
            "only members of tier 0 write checkpoints: --checkpoint-dir and --hub-repo have no effect with "
            f"--matformer-tier {settings.matformer_tier}"
        )
    if not keeps and not settings.matformer_tier:
        return (
            "this member saves no checkpoints, so the model is lost with the run's members unless "
            "another tier-0 member saves it\nPass --checkpoint-dir or --hub-repo"
        )
    return None
