"""A directory to work in: claimed by one process at a time, and emptied only if one like it made it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aftermath.base.locks import hold
from aftermath.testnet.errors import StageError


@contextmanager
def claimed(root: Path, who: str, option: str) -> Iterator[None]:
    """Hold `root` while the block runs; it is empty then but for our mark. `option` names another one.

    StageError if another of those who are called `who` works there, or if there are files that none put there.
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
            _empty(root, mark)
            yield
    except OSError as error:
        raise StageError(f"cannot work in {root}: {error.strerror}", other) from error


def _empty(root: Path, mark: Path) -> None:
    for path in root.iterdir():
        if path == mark:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
