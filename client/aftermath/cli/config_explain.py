"""`config explain`: what one key of a run's config file is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.present import Result, plain_text

if TYPE_CHECKING:
    from aftermath.config.keys import Key


@command("config explain", example="aftermath-solana config explain config.global_batch_size_end")
def config_explain(
    key: Annotated[str, typer.Argument(help="The key, as config.total_steps, or its last part.", show_default=False)],
) -> Result:
    """Say what a key of a run's config file is: its type, unit, default and limits, what it does, and an example.

    A key's last part is enough; all keys that end so are shown. So is the name by which update-config shows it. Of a
    table its keys are listed.
    """
    from aftermath.config.keys import find, held_by, nearest

    found = find(key)
    if not found:
        close = nearest(key)
        hint = f"Did you mean {', or '.join(close)}?" if close else "docs/config.md lists them"
        raise UsageError(f"a run's config file has no key {key!r}", hint)
    inner = {one.name: [held.path[-1] for held in held_by(one)] for one in found}
    data = [_data(one, inner[one.name]) for one in found]
    return Result(data, plain_text("\n\n".join(_page(one, inner[one.name]) for one in found)))


def _data(key: Key, inner: list[str]) -> dict[str, Any]:
    return {
        "key": key.name,
        "type": key.kind,
        "unit": key.unit,
        "required": key.required,
        "default": key.default,
        "limits": key.limits,
        "what": key.text,
        "example": key.example,
        "keys": inner,
    }


def _page(key: Key, inner: list[str]) -> str:
    rows = {
        "type": key.kind,
        "unit": key.unit,
        "limits": key.limits,
        "default": key.default or ("none: it must be given" if key.required else "none: it may be left out"),
        "example": key.example,
        "keys": ", ".join(inner),
    }
    return "\n".join([key.name, f"  {key.text}", *(f"  {name + ':':9} {said}" for name, said in rows.items() if said)])
