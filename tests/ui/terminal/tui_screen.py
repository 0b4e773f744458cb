"""Wait until a screen under test has drawn everything."""

from __future__ import annotations

from textual.app import App
from textual.pilot import Pilot

LOOKS = 3
"""In a row that find the same: each lets every widget do what it was told until then."""


def screen_text(app: App[None]) -> str:
    """Return the characters on the terminal, without styles."""
    lines = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in lines)


async def drawn(pilot: Pilot[None]) -> str:
    """Return the characters once they no longer change."""
    screen = ""
    same = 0
    while same < LOOKS:
        # scrolling is scheduled like an animation, even without animations
        await pilot.wait_for_scheduled_animations()
        now = screen_text(pilot.app)
        same, screen = (same + 1 if now == screen else 0), now
    return screen
