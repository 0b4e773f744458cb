"""A process with a screen for tests: a member that replays recorded events.

`python tui_process.py HOW`: `stays` waits for Ctrl-C and then for the file $GO, `ends` shows a
finished run, `floods` sends more than a terminal can show, and `loads` ends at once on Ctrl-C.
`hangs-up` is `stays` that also leaves when the terminal is closed, and then creates the file $LEFT.
SIGUSR1 kills it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from aftermath.base.quiet_interrupts import end_at_once
from aftermath.base.signals import on_interrupt
from aftermath.train.settings import TrainSettings
from aftermath.train.sinks import events_of
from aftermath.ui.terminal.messages import EventMessage
from ui.terminal.tui_boards import busy_member, event_message, where


def main(how: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGINT, end_at_once if how == "loads" else lambda *_: stop.set())
    signal.signal(signal.SIGUSR1, lambda *_: os.abort())
    with contextlib.ExitStack() as stack:
        if how == "hangs-up":
            stack.enter_context(on_interrupt(stop.set))
        events = events_of(TrainSettings(run_id="demo", matformer_tier=1, logs="tui"), stack)
        events.look(where)
        for message in busy_member(40):
            if isinstance(message, EventMessage):
                events.emit(message.event)
        os.write(2, b"a library says something\n")
        if how == "ends":
            events.emit(event_message("finished", step=120).event)
        elif how == "floods":
            for _ in range(10_000):
                events.emit(event_message("trained", step=40, loss=3.0, tokens=1).event)
            Path(os.environ["DONE"]).touch()
        else:
            while not stop.wait(0.1):
                events.emit(event_message("round", step=41, height=40).event)
            events.emit(event_message("leaving").event)
            while "GO" in os.environ and not Path(os.environ["GO"]).exists():
                time.sleep(0.02)
            events.emit(event_message("left", finished=False).event)
            if "LEFT" in os.environ:
                Path(os.environ["LEFT"]).touch()
    print("back to normal", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
