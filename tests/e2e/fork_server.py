"""Fork members from a process that has already imported everything: a start takes milliseconds
instead of CPU seconds.

Use it for tests of several members. The tests of the local testnet, the compose file, the wheel and
the centralized server start the real command.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

SUPPORTED = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)
_LONGEST = 1 << 18  # bytes of a request


class Forked:
    """A child process that the fork server started. It has the part of subprocess.Popen's interface
    that tests use.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, or None while it runs."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def wait(self, timeout: float) -> int:
        """Wait until it has ended. Raise TimeoutExpired after `timeout` seconds."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.02)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """The process from which members are forked. It has only one thread."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], start_new_session=True
            )

    def start(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> Forked:
        """Start `aftermath-solana ARGUMENTS`; its output goes to `log`."""
        request = json.dumps([list(arguments), str(log), dict(environment), os.getcwd()]).encode()
        assert len(request) < _LONGEST
        # The server's child ends at once, and its own child, the member, becomes a child of this
        # process. So this process can wait for the member, the member's CPU seconds count for the
        # test, and its parent is the process that started it.
        _adopt_orphans(True)
        try:
            self._socket.send(request)
            pid = int(self._socket.recv(32))
        finally:
            _adopt_orphans(False)
        return Forked(pid)

    def close(self) -> None:
        """End the server. Members continue."""
        self._socket.close()
        self._process.wait(30)


@cache
def fork_server() -> ForkServer:
    """Return this process's fork server. Start it at the first call."""
    return ForkServer()


def close_fork_server() -> None:
    """End this process's server, if it has one."""
    if fork_server.cache_info().currsize:
        fork_server().close()
        fork_server.cache_clear()


def _adopt_orphans(enable: bool) -> None:
    """Let descendants that lose their parents become this process's children instead of init's."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(enable), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _serve(requests: socket.socket) -> None:
    import numba  # noqa: F401
    import torch

    import aftermath.optim.compiled_proof
    import aftermath.train.assembly
    import aftermath.train.device_options
    import aftermath.train.session

    torch.set_num_threads(1)
    aftermath.optim.compiled_proof.unfit()  # load the compiled kernels, which members then share
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: what is forked would lack all but one"
    while request := requests.recv(_LONGEST):
        here, there = os.pipe()
        if not (between := os.fork()):
            if member := os.fork():
                os.write(there, str(member).encode())
                os._exit(0)
            for handle in (here, there, requests.fileno()):
                os.close(handle)
            _become(*json.loads(request))
        os.close(there)
        os.waitpid(between, 0)
        requests.send(os.read(here, 32))
        os.close(here)


def _become(arguments: list[str], log: str, environment: dict[str, str], place: str) -> NoReturn:
    """Run the command as in a new process."""
    code = 1
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.chdir(place)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["aftermath-solana", *arguments]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Modules that read the environment at import must read this member's.
        from aftermath.cli.main import main

        main()
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(socket.socket(fileno=int(sys.argv[1])))
