"""The demo's live picture: one row per member, the loss so far, what happens now."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from aftermath.demo.story import Story
from aftermath.watch.spark import spark


def picture(story: Story, title: str, now: str, elapsed: float) -> RenderableType:
    """What to show at this moment."""
    table = Table(expand=True)
    for column in ("member", "tier", "round state", "step", "loss", "tokens/s", "sent", "model from"):
        table.add_column(column, justify="right" if column in ("step", "loss", "tokens/s", "sent") else "left")
    for member in story.members:
        table.add_row(
            member.name,
            str(member.tier),
            member.state,
            str(member.step),
            f"{member.loss:.4f}" if member.loss is not None else "-",
            f"{member.tokens_per_sec:,.0f}",
            f"{member.total('sent') / 1e3:,.0f} kB",
            member.sources[-1] if member.sources else "",
        )
    curve = story.loss_curve()
    losses = [loss for _, loss in curve]
    line = f"loss {losses[0]:.3f} {spark(losses)} {losses[-1]:.3f}" if losses else "no loss yet"
    return Panel(Group(table, Text(line), Text(now, style="bold")), title=f"{title}   {elapsed:5.1f} s")
