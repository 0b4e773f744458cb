"""What a member does now, in a few words, from the events that say so."""

from __future__ import annotations

from aftermath.watch.events import Event

_ROUND = "epoch {epoch} round {height}: "
_PHASES = {
    "state": "epoch {epoch}: {state}",
    "round": _ROUND + "training",
    "trained": _ROUND + "sharing",
    "cooldown": "epoch {epoch}: cooldown",
}


def phase(event: Event) -> str | None:
    """The member's phase after this event; None if the event does not change it."""
    words = _PHASES.get(event["kind"])
    return words.format(**event).lower().replace("_", " ") if words else None
