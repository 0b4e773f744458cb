"""One process per place in a run: two with the same wallet would each undo what the other says on chain.

Choices: an advisory lock (flock) on a file named after the place, in a directory of this user; the kernel takes it back
when the process ends, however it ends. Two machines with one wallet are not found out here: joins are paced for that.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from aftermath.base.errors import Unsuitable


def lock_directory() -> Path:
    """Where this user's locks are."""
    return Path.home() / ".cache/aftermath/locks"


def hold(path: Path) -> IO[str]:
    """Lock a file of this user, made if need be, until it is closed.

    Raises BlockingIOError if another process holds it, another OSError if it cannot be opened.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file


@contextlib.contextmanager
def only_process(directory: Path, *, cluster: str, program: str, run_id: str, wallet: str) -> Iterator[None]:
    """Hold the place of `wallet` in a run. `cluster` is its genesis hash.

    Raises Unsuitable if another process holds it, or if the directory cannot be used.
    """
    name = hashlib.sha256("\0".join((cluster, program, run_id, wallet)).encode()).hexdigest()
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = hold(directory / f"{name}.lock")
    except BlockingIOError:
        raise Unsuitable(
            f"another process on this machine takes part in run {run_id} with this wallet",
            "use another wallet; a new one is made by: aftermath-solana show-identity --create -w FILE",
        ) from None
    except OSError as error:
        raise Unsuitable(
            f"no lock can be made in {directory}: {error.strerror}", "make this directory one that you may write to"
        ) from error
    with held:
        yield
