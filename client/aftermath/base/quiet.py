"""A script that Ctrl-C ends with one line from its first on, also while modules are imported.

Decided
- While a module is imported, Ctrl-C ends the process from within the handler: libraries swallow a
  KeyboardInterrupt
  then, or abort on it, and Python prints one that it cannot raise. Elsewhere it is a
  KeyboardInterrupt, so that a
  command cleans up; an event loop and what must not be broken off have their own ways
  (`base.interrupt`).
- A script begins with this module, and Python's own traceback ends with it: next to nothing is
  imported here.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

EXIT_INTERRUPTED = 130
_IMPORTS = "<frozen importlib"


class QuietInterrupts:
    """All that a script does is done within. Nothing changes where Ctrl-C is ignored, or where a
    handler decides already what it does.
    """

    def __enter__(self) -> None:
        self._ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._ours:
            signal.signal(signal.SIGINT, told)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._ours:
            return
        signal.signal(signal.SIGINT, end_at_once)  # the interpreter ends, and prints what it is interrupted in
        if kind is KeyboardInterrupt:
            end_at_once()


def told(_: int, frame: FrameType | None) -> None:
    """Ctrl-C, as such a script hears of it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTS):
            end_at_once()
        frame = frame.f_back
    raise KeyboardInterrupt


def end_at_once(*_: object) -> NoReturn:
    """Say so, and end the process in the middle of whatever it does."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(EXIT_INTERRUPTED)
