"""What a member does now, in a few words, from the events that say so."""

from __future__ import annotations

from aftermath.watch.events import Event

_ROUND = "epoch {epoch} round {height}: "
_PHASES = {
    "started": "looking for the run",
    "measuring": "measuring this machine's speed",
    "measured": "joining",
    "state": "epoch {epoch}: {state}",
    "round": _ROUND + "training",
    "trained": _ROUND + "sharing",
    "cooldown": "epoch {epoch}: cooldown",
    "leaving": "stopping",
    "left": "left the run",
    "finished": "the run is finished",
}
_STATES = {
    "UNINITIALIZED": "new",
    "WARMUP": "warm-up",
    "ROUND_TRAIN": "training",
    "ROUND_WITNESS": "witnessing",
}
"""The states whose names are not what a person would call them."""


def phase(event: Event) -> str | None:
    """The member's phase after this event; None if the event does not change it."""
    words = _PHASES.get(event["kind"])
    if words is None or event.get("finished"):  # who leaves a finished run has seen its end
        return None
    return words.format_map(event | {"state": state_words(str(event.get("state", "")))})


def state_words(name: str) -> str:
    """The name of a state of the run as a person reads it."""
    return _STATES.get(name, name.lower().replace("_", " "))
