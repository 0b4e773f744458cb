"""A process that writes events until it is killed, and prints a line once they are being written.

`python -m events.event_writer DIRECTORY [LIMIT]`: with a limit, none of its files grows beyond that
many bytes.
"""

from __future__ import annotations

import resource
import sys
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from aftermath.events.event_files import EpochFiles
from aftermath.events.stream import Events
from events.sample_events import sample_event

EPOCH = 50  # rounds


def write(directory: Path) -> None:
    events = Events(lambda: 1.0, [EpochFiles(directory, lambda: datetime.now(UTC))])
    events.emit(sample_event("started", run_id="demo", tier=1, wallet="W" * 44, version="0.1.0"))
    for step in count(1):
        if step % EPOCH == 1:
            events.emit(
                sample_event(
                    "state", epoch=step // EPOCH, state="WARMUP", step=step - 1, total_steps=1000
                )
            )
        events.emit(
            sample_event("trained", epoch=step // EPOCH, step=step, loss=4.0, tokens=10, bytes=100)
        )
        events.emit(sample_event("sample", step=step, prompt="def ", text="x" * 3000))
        if step == 2 * EPOCH + 1:
            print("two epochs are over", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        limit = int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    write(Path(sys.argv[1]))
