"""Claim a working directory for one process, and empty it if the same tool made it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aftermath.base.locks import hold
from aftermath.base.outputs import check_names, empty_directory
from aftermath.testnet.processes import ProcessError

CHECKPOINTS = "checkpoints"


@contextmanager
def claimed_workdir(root: Path, who: str, option: str, names: str) -> Iterator[None]:
    """Lock `root` and remove what an earlier run left there.

    `names` matches the entries that a run makes; `option` is the command-line option shown in
    fixes. Checkpoints are moved to `checkpoints-1`, `-2` and so on instead of removed. Raises
    ProcessError if another process called `who` works there, and OutputError if other files are
    there.
    """
    mark = root / f".aftermath-{who}"
    other = f"Name another directory: {option}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not mark.exists() and any(root.iterdir()):
            raise ProcessError(
                f"{root} holds files that are not a {who}'s", f"{other}, or empty it"
            )
        try:
            lock = hold(mark)
        except BlockingIOError:
            raise ProcessError(f"another {who} works in {root}", other) from None
        with lock:
            kept_names = rf"{re.escape(mark.name)}|{CHECKPOINTS}-\d+"
            check_names(root, f"{names}|{kept_names}", f"a {who}")
            _set_checkpoints_aside(root)
            empty_directory(root, names, f"a {who}", kept_names)
            yield
    except OSError as error:
        raise ProcessError(f"cannot work in {root}: {error.strerror}", other) from error


def _set_checkpoints_aside(root: Path) -> None:
    checkpoints = root / CHECKPOINTS
    if checkpoints.is_dir() and any(checkpoints.iterdir()):
        numbers = (
            number
            for number in itertools.count(1)
            if not (root / f"{CHECKPOINTS}-{number}").exists()
        )
        checkpoints.rename(root / f"{CHECKPOINTS}-{next(numbers)}")
