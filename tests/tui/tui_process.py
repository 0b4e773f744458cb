"""A process with a screen for tests: a member whose events are recorded ones, told a few at a time.

`python tui_process.py HOW`: `stays` waits for Ctrl-C, `ends` is a run that is finished, `crashes` dies without a word.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from aftermath.train.settings import TrainSettings
from aftermath.train.sinks import events_of
from aftermath.tui.messages import Told
from tui.tui_boards import busy_member, told, where


def main(how: str) -> None:
    with contextlib.ExitStack() as stack:
        events = events_of(TrainSettings(run_id="demo", matformer_tier=1, logs="tui"), stack)
        events.look(where)
        for message in busy_member(40):
            if isinstance(message, Told):
                events.emit(message.event)
        os.write(2, b"a library says something\n")
        if how == "crashes":
            time.sleep(2)
            os.abort()
        if how == "stays":
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(60)
            events.emit(told("leaving").event)
            events.emit(told("left", finished=False).event)
        else:
            events.emit(told("finished", step=120).event)
    print("back to normal", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
