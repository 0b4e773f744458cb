"""Write a run's config as TOML with a one-line comment for every key.

Comments are the keys' descriptions, as in the docs and `config explain`. Keys with default values
are written too, so that the file shows everything that can be changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aftermath.config.document import RunConfig
from aftermath.config.keys import find, first_sentences, written
from aftermath.config.tables import Choice, Table

COLUMNS = 120


def text_of(config: RunConfig, about: Sequence[str]) -> str:
    """Return a config as TOML text. `about`: lines of the comment at its top."""
    lines = [f"# {line}".rstrip() for line in about]
    for name in type(config).model_fields:
        lines += _table(config, (), name)
    return "\n".join(lines) + "\n"


def tables_of(tables: dict[str, dict[str, Any]], about: Sequence[str]) -> str:
    """Return the text of a file of plain tables without comments, such as a recipe file."""
    lines = [f"# {line}" for line in about]
    for name, values in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {written(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _table(holder: Table, above: tuple[str, ...], name: str) -> Iterator[str]:
    """Yield the lines of a table and of its inner tables."""
    held = getattr(holder, name)
    path = (*above, name)
    comment = _comment(path)
    if isinstance(held, Choice):
        path = (*path, _chosen(held))
        held = held.chosen
    inner = [one for one in type(held).model_fields if _is_table(getattr(held, one))]
    values = [
        one
        for one in type(held).model_fields
        if getattr(held, one) is not None and one not in inner
    ]
    if values or not inner:
        yield from ("", comment, f"[{'.'.join(path)}]")
    for one in values:
        value = getattr(held, one)
        yield _comment((*path, one))
        yield f"{one} = {written(_chosen(value) if isinstance(value, Choice) else value)}"
    for one in inner:
        yield from _table(held, path, one)


def _is_table(value: object) -> bool:
    """Return whether a value needs a header. A variant without keys is written as its name."""
    return isinstance(value, Table) and not (
        isinstance(value, Choice) and not type(value.chosen).model_fields
    )


def _chosen(choice: Choice) -> str:
    return next(name for name in type(choice).model_fields if getattr(choice, name) is not None)


def _comment(path: tuple[str, ...]) -> str:
    key = find(".".join(path))[0]
    unit = f" ({key.unit})" if key.unit else ""
    return f"# {first_sentences(key.text, COLUMNS - 2 - len(unit))}{unit}"
