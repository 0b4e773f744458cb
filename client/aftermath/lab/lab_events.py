"""Event types of a training without a run, one class each.

Members have their own in `events.event_types`.
"""

from __future__ import annotations

from aftermath.events.event_types import Event, Warning

EVENTS = "events.jsonl"
"""The name of the file in a training's directory that receives them."""


class Started(Event, frozen=True, kw_only=True):
    """The first event: what is trained, and from which step on."""

    optimizer: str
    tiers: tuple[int, ...]
    parameters: int
    sequences: int
    steps: int
    done: int


class Step(Event, frozen=True, kw_only=True):
    """A step is done: its loss over all sequences, and each member's; `bytes` are those of all
    results.
    """

    step: int
    loss: float | None
    losses: list[float | None]
    lr: float
    tokens: int
    seconds: float
    bytes: int
    accepted: int


class HeldOut(Event, frozen=True, kw_only=True):
    """A tier's loss on sequences that nobody trains."""

    step: int
    tier: int
    loss: float | None
    sequences: int


class Finished(Event, frozen=True, kw_only=True):
    """All steps are done; the checkpoint's place, if one is kept."""

    step: int
    tokens: int
    held_out_by_tier: dict[str, float | None]
    checkpoint: str | None


LAB_EVENTS = Started | Step | HeldOut | Finished | Warning
"""All event types of a local training, to read its event file."""
