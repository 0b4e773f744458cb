"""Read the events of `train-local` trainings, finished or running, as curves of one plot."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aftermath.events.plot import Curve
from aftermath.events.reader import unreadable
from aftermath.lab import lab_events
from aftermath.lab.lab_events import EVENTS


@dataclass(frozen=True)
class TrainingCurves:
    """One training's losses in nats per token."""

    name: str
    steps: int
    loss: Curve
    held_out: Mapping[int, Curve]
    """Curve of each tier."""


def trainings_in(places: Sequence[Path]) -> list[Path]:
    """Return the event files of `train-local` among files and directories.

    A directory is one training, or has a subdirectory per training. Raises NoEvents for a file that
    cannot be read.
    """
    trainings: dict[Path, None] = {}
    for place in places:
        inside = [place / EVENTS, *sorted(place.glob(f"*/{EVENTS}"))] if place.is_dir() else [place]
        trainings |= dict.fromkeys(path for path in inside if _is_training(path))
    return list(trainings)


def read_trainings(paths: Sequence[Path]) -> list[TrainingCurves]:
    """Read event files. A curve has the name of its directory, or its path if names repeat."""
    names = Counter(path.parent.name for path in paths)
    return [
        _read(path, path.parent.name if names[path.parent.name] == 1 else str(path.parent))
        for path in paths
    ]


def curves_of(trainings: Sequence[TrainingCurves]) -> dict[str, Curve]:
    """Return all curves that have a point, by the name that the legend gives them."""
    curves: dict[str, Curve] = {}
    for one in trainings:
        curves[one.name] = one.loss
        for tier, curve in one.held_out.items():
            curves[f"{one.name}, held out, tier {tier}"] = curve
    return {name: curve for name, curve in curves.items() if curve}


def _is_training(path: Path) -> bool:
    """Return whether a file's first event is `Started`. Raises NoEvents if it is unreadable."""
    try:
        with path.open("rb") as file:
            first = msgspec.json.decode(file.readline(1 << 16), type=lab_events.LAB_EVENTS)
    except (
        FileNotFoundError,
        IsADirectoryError,
        NotADirectoryError,
        msgspec.MsgspecError,
        RecursionError,
    ):
        return False
    except OSError as error:
        raise unreadable(path, error) from None
    return isinstance(first, lab_events.Started)


def _read(path: Path, name: str) -> TrainingCurves:
    """Read one event file. Skip lines that are not events, like a half-written last line."""
    loss: list[tuple[int, float]] = []
    held_out: dict[int, list[tuple[int, float]]] = defaultdict(list)
    steps = 0
    for line in path.read_bytes().splitlines():
        try:
            event = msgspec.json.decode(line, type=lab_events.LAB_EVENTS)
        except (msgspec.MsgspecError, RecursionError):
            continue
        if isinstance(event, lab_events.Step):
            steps = event.step
            if event.loss is not None:
                loss.append((event.step, event.loss))
        elif isinstance(event, lab_events.HeldOut) and event.loss is not None:
            held_out[event.tier].append((event.step, event.loss))
    return TrainingCurves(name, steps, loss, dict(sorted(held_out.items())))
