"""A directory to work in: claimed by one process at a time, and emptied only if one like it made it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aftermath.base.locks import hold
from aftermath.base.outputs import check_names, empty_directory
from aftermath.testnet.errors import StageError

CHECKPOINTS = "checkpoints"


@contextmanager
def claimed(root: Path, who: str, option: str, names: str) -> Iterator[None]:
    """Hold `root` while the block runs, emptied of what an earlier one left. `option` names another directory.

    `names` is a pattern of the names that are made in it. Checkpoints are moved to `checkpoints-1` and so on, not
    removed. StageError if another process called `who` works there; OutputError if other files are there.
    """
    mark, other = root / f".aftermath-{who}", f"Name another directory: {option}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not mark.exists() and any(root.iterdir()):
            raise StageError(f"{root} holds files that are not a {who}'s", f"Empty it, or name another: {option}")
        try:
            held = hold(mark)
        except BlockingIOError:
            raise StageError(f"another {who} works in {root}", other) from None
        with held:
            kept = rf"{re.escape(mark.name)}|{CHECKPOINTS}-\d+"
            check_names(root, f"{names}|{kept}", f"a {who}")
            _set_checkpoints_aside(root)
            empty_directory(root, names, f"a {who}", kept)
            yield
    except OSError as error:
        raise StageError(f"cannot work in {root}: {error.strerror}", other) from error


def _set_checkpoints_aside(root: Path) -> None:
    checkpoints = root / CHECKPOINTS
    if checkpoints.is_dir() and any(checkpoints.iterdir()):
        numbers = (number for number in itertools.count(1) if not (root / f"{CHECKPOINTS}-{number}").exists())
        checkpoints.rename(root / f"{CHECKPOINTS}-{next(numbers)}")
