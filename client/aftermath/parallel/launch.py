"""Start the ranks of a member as processes of this machine, and notice when one ends.

If a rank ends, its member reports that and leaves the run. Other members continue without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
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
from aftermath.parallel.group import Join, Ranks, out_of_memory
from aftermath.parallel.mesh import Mesh
from aftermath.replica.pass_size import OutOfMemory

T = TypeVar("T")
_POLL_SECONDS = 0.2
_END_TIMEOUT = 3.0  # seconds to wait for the end of the rank that broke a connection


class RankLost(AftermathError):
    """A rank of this member has ended, so the member cannot train."""

    code = "rank-lost"


class RankProcesses:
    """The processes of the other ranks."""

    def __init__(self, mesh: Mesh, threads: int, store: Path) -> None:
        """Start the processes."""
        self._joins = [
            Join(rank, mesh.data, mesh.tensor, str(device), threads, str(store))
            for rank, device in enumerate(mesh.devices)
        ]
        self._processes = [_start_rank(join) for join in self._joins[1:]]

    def join(self) -> Ranks:
        """Connect as the first rank. Return when all ranks are connected."""
        return Ranks(self._joins[0])

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the other ranks, in the order of ranks."""
        return [process.pid for process in self._processes]

    def lost(self) -> RankLost | OutOfMemory | None:
        """Return an error that names the first rank found ended, if one has."""
        for join, process in zip(self._joins[1:], self._processes, strict=True):
            status = process.poll()
            if status == errno.ENOMEM:
                return out_of_memory(join.rank, join.device)
            if status is not None:
                return RankLost(
                    f"rank {join.rank} of this member, on {join.device}, ended "
                    f"{_describe_exit(status)}; the member needs all of its ranks",
                    "Restart the member. It fetches the model from its peers and joins the next epoch",
                )
        return None

    async def while_all_run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Raises RankLost or OutOfMemory as soon as a rank has
        ended.
        """
        try:
            return await first_of(work, self._watch())
        except RuntimeError as error:
            # the connection to a rank broke, perhaps before `_watch` noticed its end
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_TIMEOUT):
                    await self._watch(error)
            raise

    async def _watch(self, cause: Exception | None = None) -> NoReturn:
        while (lost := self.lost()) is None:
            await asyncio.sleep(_POLL_SECONDS)
        raise lost from cause

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


@contextmanager
def launch_ranks(mesh: Mesh, threads: int) -> Iterator[RankProcesses]:
    """Start the other ranks, and kill them at the end of the block."""
    meeting = Path(tempfile.mkdtemp(prefix="aftermath-ranks-"))
    ranks = RankProcesses(mesh, threads, meeting / "store")
    try:
        yield ranks
    finally:
        ranks.close()
        shutil.rmtree(meeting, ignore_errors=True)


def threads_of(mesh: Mesh, threads: int) -> int:
    """Return the CPU threads of each rank, 0 for PyTorch's default. CPU ranks share the cores."""
    if threads or mesh.alone or mesh.devices[0].type != "cpu":
        return threads
    return max(1, (os.cpu_count() or 1) // len(mesh.devices))


def _start_rank(join: Join) -> subprocess.Popen[bytes]:
    line = [
        sys.executable,
        "-P",
        "-m",
        "aftermath.parallel.worker",
        msgspec.json.encode(join).decode(),
    ]
    environment = environment_without_secrets()
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)


def _describe_exit(status: int) -> str:
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
