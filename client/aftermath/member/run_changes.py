"""Check that a run's owner has not changed what a connected member reads only once.

A member reads the schedule and the rules again at each epoch. It opens the data and builds the
model once, when it starts.
"""

from __future__ import annotations

from aftermath.base.errors import AftermathError
from aftermath.rules.model import Model

_READ_ONCE = {
    "architecture": "architecture",
    "schema_hash": "model or optimizer",
    "data_type": "data_type",
    "data_location": "data_location",
    "max_seq_len": "max_seq_len",
}
"""Fields of `Model` that a member reads once, and their names for people."""


class RunChanged(AftermathError):
    """The owner changed what a run trains while this member was connected."""

    code = "run-changed"


def require_unchanged(first: Model, now: Model) -> None:
    """Raise RunChanged if a member that started with `first` cannot train `now`."""
    changed = [
        name for field, name in _READ_ONCE.items() if getattr(first, field) != getattr(now, field)
    ]
    if changed:
        raise RunChanged(
            f"the run's owner changed its {', '.join(changed)} while this member was connected",
            "Restart train with the same options to read the new values",
        )
