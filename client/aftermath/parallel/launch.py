"""Start the ranks of a member as processes of this machine, and notice when one ends.

A rank that ends takes its member with it: the member reports it and leaves the run. The others
continue without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from aftermath.base.concurrency import first_of
from aftermath.base.environment import environment_without_secrets
from aftermath.base.errors import AftermathError
from aftermath.parallel.commands import Join
from aftermath.parallel.group import Ranks
from aftermath.parallel.mesh import Mesh

T = TypeVar("T")
_LOOK = 0.2  # seconds
_BLAME = 3.0  # seconds for a rank that broke a connection to be seen to have ended


class RankLost(AftermathError):
    """A rank of this member has ended, and with it the member's training."""

    code = "rank-lost"


class Launched:
    """The other ranks' processes."""

    def __init__(self, mesh: Mesh, threads: int, store: Path) -> None:
        """Start them."""
        self._mesh = mesh
        self._joins = [
            Join(rank, mesh.data, mesh.tensor, str(device), threads, str(store))
            for rank, device in enumerate(mesh.devices)
        ]
        self._processes = [_started(join) for join in self._joins[1:]]

    def join(self) -> Ranks:
        """Take part as the first rank; returns when all are here."""
        return Ranks(self._joins[0])

    @property
    def processes(self) -> list[int]:
        """The ids of the other ranks' processes, in the order of ranks."""
        return [process.pid for process in self._processes]

    def lost(self) -> RankLost | None:
        """What to say if a rank has ended."""
        for join, process in zip(self._joins[1:], self._processes, strict=True):
            if (status := process.poll()) is not None:
                return RankLost(
                    f"rank {join.rank} of this member, on {join.device}, has ended {_how(status)}; a member cannot go "
                    "on without one of its ranks",
                    "Start the member again: it takes the model from the others and joins the next epoch",
                )
        return None

    async def while_all_run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work returns or raises. Raises RankLost once a rank has ended."""
        try:
            return await first_of(work, self._watch())
        except (
            RuntimeError
        ) as error:  # a connection to another rank broke, perhaps before its end was seen
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BLAME):
                    await self._watch(error)
            raise

    async def _watch(self, cause: Exception | None = None) -> NoReturn:
        while (lost := self.lost()) is None:
            await asyncio.sleep(_LOOK)
        raise lost from cause

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


@contextmanager
def launched(mesh: Mesh, threads: int) -> Iterator[Launched]:
    """Yield the ranks of this process, until the end of the block."""
    meeting = Path(tempfile.mkdtemp(prefix="aftermath-ranks-"))
    ranks = Launched(mesh, threads, meeting / "store")
    try:
        yield ranks
    finally:
        ranks.close()
        shutil.rmtree(meeting, ignore_errors=True)


def threads_of(mesh: Mesh, wanted: int) -> int:
    """CPU threads of each rank; ranks that share a CPU share its cores. 0: as torch thinks."""
    if wanted or mesh.alone or mesh.devices[0].type != "cpu":
        return wanted
    return max(1, (os.cpu_count() or 1) // len(mesh.devices))


def _started(join: Join) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "aftermath.parallel.worker", msgspec.json.encode(join).decode()]
    environment = environment_without_secrets()
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)


def _how(status: int) -> str:
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
