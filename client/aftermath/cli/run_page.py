"""A run's standing as people read it: a page of facts and a table of its members, or one line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text
from solders.pubkey import Pubkey

from aftermath.base.counted import counted
from aftermath.cli.dump import in_words
from aftermath.cli.present import facts, listing
from aftermath.watch.printable import printable
from aftermath.watch.progress import span
from aftermath.watch.standing import MemberStanding, Standing

COLUMNS = ("seat", "wallet", "tier", "standing", "weight", "points", "last seen")
_FACTS = 10  # lines above the members, and an empty one


def page(found: Standing, *, rows: int | None = None) -> RenderableType:
    """All of it; in a window of so many rows as many members as have room."""
    shown: Sequence[MemberStanding] = found.members
    if rows is not None:
        shown = shown[: max(0, rows - _FACTS - len(found.waits) - 4)]
    parts: list[RenderableType] = [facts(_facts(found)), Text()]
    if shown:
        parts.append(listing(COLUMNS, [_row(member) for member in shown]))
    if more := len(found.members) - len(shown):
        parts.append(Text(f"and {counted(more, 'more member')}", style="dim"))
    return Group(*parts)


def line(found: Standing) -> str:
    """The same in a line, for where nothing can be drawn over."""
    here = sum(member.takes_part for member in found.members)
    parts = [f"{_state(found)}", _steps(found), f"{counted(here, 'member')} take part"]
    return printable("; ".join([*parts, f"waits for {', and '.join(found.waits)}"]))


def _facts(found: Standing) -> dict[str, object]:
    return {
        "run": found.run_id,
        "name": found.name,
        "description": found.description,
        "state": f"{_state(found)}, for {span(found.since)}",
        "steps": _steps(found) + ("" if found.left is None else f", about {span(found.left)} left"),
        "speed": None if found.tokens_per_second is None else f"{found.tokens_per_second:,} tokens/s",
        "deadline": _deadline(found.deadline),
        "waits for": list(found.waits),
        "members": counted(len(found.members), "seat") + " in use",
    }


def _state(found: Standing) -> str:
    at = f"epoch {found.epoch}" + ("" if found.round is None else f", round {found.round}")
    return f"{in_words(found.state)} ({at})"


def _steps(found: Standing) -> str:
    return f"step {found.step:,} of {found.total_steps:,}" if found.total_steps else "no step yet"


def _deadline(seconds: int | None) -> str:
    if seconds is None:
        return "none: no time runs"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def _row(member: MemberStanding) -> list[object]:
    standing = f"{member.standing}, witness" if member.witness else member.standing
    points = f"{member.points:,}" + (f" (-{member.slashed:,})" if member.slashed else "")
    wallet = str(Pubkey.from_bytes(member.signer))
    return [member.seat, wallet, member.tier, standing, f"{member.weight:,}", points, member.seen]
