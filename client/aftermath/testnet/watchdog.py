"""exec() a command under a watchdog that kills its process group if the parent dies, even by kill
-9.

Usage: `watchdog.py CONTROL COMMAND ARGUMENT...`. CONTROL is a named pipe, or - for standard input;
the parent holds its other end. The command must lead its process group. It keeps its process id, so
exit status and signals stay its own. Unix only. Imports little.
"""

from __future__ import annotations

import os
import select
import signal
import sys

CHECK_SECONDS = 1.0


def main() -> None:
    """Fork the watchdog and become the command."""
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
    """Kill our parent's process group when the pipe ends. Return when the parent ends by itself."""
    while os.getppid() == leader:
        readable, _, _ = select.select([watched], [], [], CHECK_SECONDS)
        if readable and not os.read(watched, 1):
            if os.getppid() == leader:
                kill(leader)
            return


def kill(leader: int) -> None:
    """Kill a process group by its leader."""
    os.killpg(leader, signal.SIGKILL)


def interrupt(leader: int) -> None:
    """Ask a process group to end, as Ctrl-C does."""
    os.killpg(leader, signal.SIGINT)


if __name__ == "__main__":
    main()
