"""The screen process, `python -m aftermath.ui.terminal FD`, which `screen` starts.

It reads messages from that file descriptor. It ends on request or when its parent process ends, and
restores the terminal. If the parent died silently, it prints the parent's last lines. The quit key
sends the parent the signal of Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
import threading
import time

import msgspec
from rich.console import Console

from aftermath.ui.terminal.board import Board, ScreenOptions, errors_of
from aftermath.ui.terminal.messages import End, message_of
from aftermath.ui.terminal.run_app import RunApp
from aftermath.ui.terminal.tabbed import Tabbed
from aftermath.ui.terminal.testnet_app import LocalTestnetApp, LocalTestnetBoard

_LONGEST = 1 << 24  # bytes of a message
_LINGER = 5.0  # seconds without a parent process after which the screen ends


class PipeScreen(Tabbed):
    """A screen that receives messages from the parent process."""

    board: Board | LocalTestnetBoard
    """The board that receives the messages."""
    descriptor: int
    """The file descriptor of the messages."""
    deserted = False
    """Whether the parent process ended without a message."""
    left = False
    """Whether the user pressed the quit key. A screen that is still loading then ends at once."""

    @property
    def last_lines(self) -> str:
        """Return the parent's last lines, or "interrupted" if it ended before it could leave."""
        leaving = isinstance(self.board, Board) and self.board.leaving
        return "interrupted" if self.left and not leaving else self.board.last_lines()

    def on_ready(self) -> None:
        """Start to listen. The screen can be closed from now on."""
        self.run_worker(self._listen(), exit_on_error=True)

    async def _listen(self) -> None:
        reader = asyncio.StreamReader(limit=_LONGEST)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self.descriptor, "rb")
        )
        while line := await reader.readline():
            message = message_of(line)
            if isinstance(message, End):
                return self.exit()
            self.board.take(message)
        self.deserted = True
        return self.exit()


class PipeRunApp(PipeScreen, RunApp):
    """The screen of a run."""


class PipeTestnetApp(PipeScreen, LocalTestnetApp):
    """The screen of a testnet."""


def screen_of(opening: ScreenOptions, descriptor: int) -> PipeScreen:
    """Return the screen for the process that started this one."""
    app: PipeScreen
    board: Board | LocalTestnetBoard
    parent = os.getppid()

    def clock() -> float:
        return time.monotonic() - opening.started

    def leave() -> None:
        app.left = True
        os.kill(parent, signal.SIGINT)

    if opening.role == "testnet":
        board = LocalTestnetBoard(opening.run_id, opening.names)
        app = PipeTestnetApp(board, clock, leave)
    else:
        board = Board(opening.role, opening.run_id, opening.tier)
        app = PipeRunApp(board, clock, leave)
    app.board = board
    app.descriptor = descriptor
    return app


def _end_after(parent: int) -> None:
    """End this process if its parent has ended and it has not noticed.

    On a closed terminal, textual waits for a write that never succeeds.
    """
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(_LINGER)
    os._exit(1)


def main() -> None:
    """Show the screen until it ends."""
    threading.Thread(target=_end_after, args=(os.getppid(),), daemon=True).start()
    app = screen_of(msgspec.json.decode(sys.argv[2], type=ScreenOptions), int(sys.argv[1]))
    app.error_console = Console(file=(errors := io.StringIO()), width=100)
    app.run()
    if errors.getvalue():
        with contextlib.suppress(OSError):
            errors_file = errors_of(os.getpid())
            errors_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            errors_file.write_text(errors.getvalue())
    if app.deserted:
        print(app.last_lines, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # exit without the interpreter's cleanup, which takes time
    os._exit(app.return_code or 0)


if __name__ == "__main__":
    main()
