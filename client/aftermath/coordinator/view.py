"""A run's state at one moment, with all its accounts together.

The accounts are read at one moment, so no decision mixes newer members with an older run. A view
never changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Run


@dataclass(frozen=True, slots=True)
class View:
    """A run, its members and its model at one moment."""

    run: Run
    members: Members
    model: Model
