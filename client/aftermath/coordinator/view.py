"""One moment of a run as its coordinator had it: everything that changes, together.

Decided: the three were read at one moment, so nobody ever decides by members that are newer than the run. A view never
changes; a newer one takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Run


@dataclass(frozen=True, slots=True)
class View:
    """A run, who is in it and what it trains, as of one moment."""

    run: Run
    members: Members
    model: Model
