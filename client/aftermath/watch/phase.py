"""What a member does now, in a few words, from the events that say so."""

from __future__ import annotations

import msgspec

from aftermath.rules.state import RunState
from aftermath.watch import kinds

_ROUND = "epoch {epoch} round {height}: "
_PHASES: dict[type[kinds.Event], str] = {
    kinds.Started: "looking for the run",
    kinds.Loading: "loading PyTorch",
    kinds.Compiling: "compiling",
    kinds.Measuring: "measuring this machine's speed",
    kinds.Measured: "joining",
    kinds.State: "epoch {epoch}: {state}",
    kinds.Round: _ROUND + "training",
    kinds.Trained: _ROUND + "sharing",
    kinds.Cooldown: "epoch {epoch}: cooldown",
    kinds.Leaving: "stopping",
    kinds.Left: "left the run",
    kinds.Finished: "the run is finished",
}
_STATES = {
    "UNINITIALIZED": "new",
    "WARMUP": "warm-up",
    "ROUND_TRAIN": "training",
    "ROUND_WITNESS": "witnessing",
}
"""The states whose names are not what a person would call them."""


def phase(event: kinds.Event) -> str | None:
    """The member's phase after this event; None if the event does not change it."""
    words = _PHASES.get(type(event))
    if words is None or (isinstance(event, kinds.Left) and event.finished):  # that run's end has been seen
        return None
    fields = msgspec.structs.asdict(event)
    return words.format_map(fields | {"state": state_words(str(fields.get("state", "")))})


def state_words(name: str) -> str:
    """The name of a state of the run as a person reads it."""
    return _STATES.get(name, name.lower().replace("_", " "))


def in_words(state: RunState) -> str:
    """A run's state as a sentence says it: the run is ..., in the words that a member's own view has for it."""
    words = state_words(state.name)
    return f"in {words}" if state in (RunState.WARMUP, RunState.COOLDOWN) else words
