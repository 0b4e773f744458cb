"""A run's standing as a page: its facts, and a table of its members."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from aftermath.cli.present import facts, listing
from aftermath.events.status import COLUMNS, Standing, facts_of, row_of, shown_levels


def page(found: Standing) -> RenderableType:
    """All of it."""
    known = facts_of(found)
    if levels := shown_levels(found):
        known["proven holders"] = levels
    parts: list[RenderableType] = [facts(known), Text()]
    if found.members:
        parts.append(listing(COLUMNS, [row_of(member) for member in found.members]))
    return Group(*parts)
