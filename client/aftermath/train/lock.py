"""Allow one process per wallet and run. Two would send conflicting transactions.

The lock is a file per wallet and run, in a directory of this user. It does not protect against a
second machine with the same wallet: both members then take turns losing the seat and rejoin with
growing delays.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from aftermath.base.errors import Unsuitable
from aftermath.base.files import space_or
from aftermath.base.locks import hold


@contextlib.contextmanager
def only_process(
    directory: Path, *, cluster: str, program: str, run_id: str, wallet: str
) -> Iterator[None]:
    """Lock a run for this process and `wallet`. `cluster` is the chain's genesis hash.

    Raises Unsuitable if another process has the lock, or if the directory is not writable.
    """
    name = hashlib.sha256("\0".join((cluster, program, run_id, wallet)).encode()).hexdigest()
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = hold(directory / f"{name}.lock")
    except BlockingIOError:
        raise Unsuitable(
            f"another process on this machine already takes part in run {run_id} with this wallet",
            "Stop the other process, or use another wallet",
        ) from None
    except OSError as error:
        raise Unsuitable(
            f"cannot create a lock in {directory}: {error.strerror}",
            space_or(error, "Make the directory writable"),
        ) from error
    with lock:
        yield
