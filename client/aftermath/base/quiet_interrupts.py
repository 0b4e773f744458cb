"""Exit with one line on Ctrl-C, also during imports.

Scripts import this module first, so it imports next to nothing itself.
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
    """Wrap a whole script. Leave Ctrl-C alone if it is ignored or already handled."""

    def __enter__(self) -> None:
        self._ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._ours:
            signal.signal(signal.SIGINT, on_sigint)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._ours:
            return
        # the interpreter is exiting, and would print a traceback
        signal.signal(signal.SIGINT, end_at_once)
        if kind is KeyboardInterrupt:
            end_at_once()


def on_sigint(_: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C: raise KeyboardInterrupt, but exit at once during an import.

    During an import, libraries swallow a KeyboardInterrupt or abort on it. `base.signals` handles
    event loops and sections that must finish.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTS):
            end_at_once()
        frame = frame.f_back
    raise KeyboardInterrupt


def end_at_once(*_: object) -> NoReturn:
    """Print `interrupted` and exit from wherever the process is."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(EXIT_INTERRUPTED)
