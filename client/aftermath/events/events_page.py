"""Writes docs/events.md from the classes of events: `python -m aftermath.events.events_page docs/events.md`.

Decided: the page is generated, never edited, so that a kind is explained where it is defined; a test compares the two.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import typing

import msgspec

from aftermath.base.page import deliver
from aftermath.events.event_types import MEMBER_EVENTS, Gpu

PREFACE = """# Events

All kinds of events that a member emits, with their fields. Generated from the classes in
[event_types.py](../client/aftermath/events/event_types.py). After changing them, run
`python -m aftermath.events.events_page docs/events.md`. How to keep, read, replay, export and draw events is in
[operations.md](operations.md#events-and-metrics).

An event is one line with a JSON object. `at` is its date, `t` seconds since the process began (the member's clock),
and `kind` one of the kinds below. Warnings and errors also have `severity`, WARNING or ERROR. Fields with their default
value are omitted. Numbers that are not finite are `null`."""


def page() -> str:
    """The whole page as markdown."""
    return "\n\n".join([PREFACE, *map(_section, typing.get_args(MEMBER_EVENTS)), _section(Gpu)]) + "\n"


def _section(kind: type[msgspec.Struct]) -> str:
    """One kind, or what a field of one holds: what it is, and its fields."""
    name = kind.__struct_config__.tag or f"in `gpus`: {kind.__name__}"
    text = textwrap.fill(" ".join((inspect.getdoc(kind) or "").split()), 120, break_on_hyphens=False)
    fields = [one for one in msgspec.structs.fields(kind) if one.name != "t"]
    if not fields:
        return f"## {name}\n\n{text}"
    rows = [f"| `{one.encode_name}` | {_type(one.type)} | {_default(one)} |" for one in fields]
    return "\n".join([f"## {name}", "", text, "", "| field | type | default |", "|---|---|---|", *rows])


def _type(kind: object) -> str:
    """As the class writes it, without the names of modules."""
    written = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
    return f"`{re.sub(r'[a-z_]+[.](?=[A-Za-z])', '', written)}`".replace("|", "\\|")


def _default(one: msgspec.structs.FieldInfo) -> str:
    return "–" if one.default is msgspec.NODEFAULT else f"`{one.default!r}`"


def main() -> None:
    """Write the page to the path given, or to stdout."""
    deliver(page())


if __name__ == "__main__":
    main()
