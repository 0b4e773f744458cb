"""The event types of a training without a run. `events.event_types` has those of members."""

from __future__ import annotations

from aftermath.events.event_types import Event, Warning

EVENTS = "events.jsonl"
"""Name of the event file in a training's directory."""


class Started(Event, frozen=True, kw_only=True):
    """The training started. `done` steps were trained before, by an interrupted process."""

    optimizer: str
    tiers: tuple[int, ...]
    parameters: int
    sequences: int
    steps: int
    done: int


class Step(Event, frozen=True, kw_only=True):
    """A step is done. `loss` is the mean, `losses` are by member, `bytes` counts all results."""

    step: int
    loss: float | None
    losses: list[float | None]
    lr: float
    tokens: int
    seconds: float
    bytes: int
    accepted: int


class HeldOut(Event, frozen=True, kw_only=True):
    """A tier's loss on sequences that are not trained."""

    step: int
    tier: int
    loss: float | None
    sequences: int


class Finished(Event, frozen=True, kw_only=True):
    """All steps are done. `checkpoint` is its directory, or None without --out."""

    step: int
    tokens: int
    held_out_by_tier: dict[str, float | None]
    checkpoint: str | None


LAB_EVENTS = Started | Step | HeldOut | Finished | Warning
"""All event types of a local training, to read its event file."""
