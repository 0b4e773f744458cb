"""When a screen under test has drawn all that it was to draw."""

from __future__ import annotations

from textual.app import App
from textual.pilot import Pilot

LOOKS = 5
"""In a row that find the same: each lets every widget do what it was told until then."""


def seen(app: App[None]) -> str:
    """The characters on the terminal, without what surrounds them."""
    lines = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in lines)


async def drawn(pilot: Pilot[None]) -> str:
    """What is seen once nothing changes any more.

    One pause is not enough: it lasts until this process uses little of a processor, as it also does where others leave
    it none.
    """
    shown, same = "", 0
    while same < LOOKS:
        await pilot.pause()
        now = seen(pilot.app)
        same, shown = (same + 1 if now == shown else 0), now
    return shown
