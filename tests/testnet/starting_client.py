"""A client that starts slowly: it reports a loss when allowed, waits to be killed, and comes back.

`python -m testnet.starting_client NUMBER PLACE … --events-dir DIRECTORY …` runs one of two clients.
PLACE gets a file per client with a line for each action. The first client trains at once, but not
after its restart. The second one trains once the first is back. Then the run is over.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from aftermath.events.event_files import EpochFiles
from aftermath.events.stream import Events
from events.sample_events import sample_event

STARTS = "starts"
TRAINS = "trains"


def actions(place: Path, number: int) -> list[str]:
    """Return the actions so far of all processes of a client."""
    file = place / f"actions-{number}"
    return file.read_text().split() if file.exists() else []


def live(place: Path, number: int, directory: Path) -> None:
    events = Events(time.monotonic, [EpochFiles(directory, lambda: datetime.now(UTC))])

    def record(action: str) -> None:
        with (place / f"actions-{number}").open("a") as file:
            file.write(f"{action}\n")

    def other_is_back() -> bool:
        return actions(place, 3 - number).count(STARTS) > 1

    record(STARTS)
    events.emit(sample_event("started", run_id="local-testnet", wallet="W" * 44, version="0.1.0"))
    if actions(place, number).count(STARTS) > 1:
        while number == 1 and not other_is_back():
            time.sleep(0.05)
        events.emit(sample_event("finished"))
        return
    while number == 2 and not other_is_back():
        time.sleep(0.05)
    record(TRAINS)
    events.emit(sample_event("trained", step=number, loss=4.0))
    time.sleep(600)


if __name__ == "__main__":
    live(Path(sys.argv[2]), int(sys.argv[1]), Path(sys.argv[sys.argv.index("--events-dir") + 1]))
