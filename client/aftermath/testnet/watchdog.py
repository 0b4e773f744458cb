"""Becomes a command, and leaves a watcher that ends it once its parent is gone, kill -9 included.

Called as `watchdog.py CONTROL COMMAND ARGUMENT...`, by a parent that keeps the other end of CONTROL
open: a named pipe, or - for the standard input, of which the command then has none. The command
must be the leader of its process group.

Decided: the end of a pipe tells, since every system closes the files of a process that ends; the
command keeps the process id, so that its exit status and its signals are nobody else's. It runs
before every command, so it imports next to nothing. What it does is Unix's, and so are groups:
another system needs another such file.
"""

from __future__ import annotations

import os
import select
import signal
import sys

CHECK_SECONDS = 1.0


def main() -> None:
    """Leave the watcher and become the command."""
    control, *command = sys.argv[1:]
    watched = os.dup(0) if control == "-" else os.open(control, os.O_RDONLY | os.O_NONBLOCK)
    nothing = os.open(os.devnull, os.O_RDWR)
    leader = os.getpid()
    if os.fork() == 0:
        os.setsid()
        for standard in range(3):
            os.dup2(nothing, standard)
        watch(watched, leader)
        os._exit(0)
    if control == "-":
        os.dup2(nothing, 0)
    os.execvp(command[0], command)


def watch(watched: int, leader: int) -> None:
    """Wait for the end of the pipe, and kill the group of our parent then; or for our parent's own
    end.
    """
    while os.getppid() == leader:
        readable, _, _ = select.select([watched], [], [], CHECK_SECONDS)
        if readable and not os.read(watched, 1):
            if os.getppid() == leader:
                kill(leader)
            return


def kill(leader: int) -> None:
    """Kill the group of a process that was started as the leader of one."""
    os.killpg(leader, signal.SIGKILL)


def interrupt(leader: int) -> None:
    """Ask that group to end as Ctrl-C does."""
    os.killpg(leader, signal.SIGINT)


if __name__ == "__main__":
    main()
