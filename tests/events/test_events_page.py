"""The page of events is what the code says."""

from __future__ import annotations

import typing
from pathlib import Path

from aftermath.events import events_page
from aftermath.events.event_types import MEMBER_EVENTS

PAGE = Path(__file__).parents[2] / "docs/events.md"


def test_the_page_of_events_is_current() -> None:
    text = PAGE.read_text()
    assert text == events_page.page(), "run: python -m aftermath.events.events_page docs/events.md"
    kinds = [kind.__struct_config__.tag for kind in typing.get_args(MEMBER_EVENTS)]
    assert len(kinds) > 25
    assert [kind for kind in kinds if f"## {kind}\n" not in text] == []
