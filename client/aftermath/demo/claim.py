"""The demo's own directory: claimed by one demo at a time, and emptied only if a demo made it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aftermath.base.locks import hold
from aftermath.demo.commands import DemoFailed

_MARK = ".aftermath-demo"


@contextmanager
def claimed(root: Path) -> Iterator[None]:
    """Hold `root` while the block runs; it is empty then but for our mark.

    DemoFailed if another demo works there, or if there are files that no demo put there.
    """
    mark = root / _MARK
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not mark.exists() and any(root.iterdir()):
            raise DemoFailed(f"{root} holds files that are not a demo's; empty it, or name another: make demo DIR=...")
        try:
            held = hold(mark)
        except BlockingIOError:
            raise DemoFailed(f"another demo works in {root}; name another directory: make demo DIR=...") from None
        with held:
            _empty(root, mark)
            yield
    except OSError as error:
        raise DemoFailed(f"cannot work in {root}: {error.strerror}") from error


def _empty(root: Path, mark: Path) -> None:
    for path in root.iterdir():
        if path == mark:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
