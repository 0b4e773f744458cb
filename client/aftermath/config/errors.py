"""Error messages for a config file. Each names file, line, key, the given value and the limits."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from aftermath.base.errors import ConfigError, short_repr
from aftermath.base.text import counted

Path = tuple[str, ...]
CODES = {
    "not-toml": "the file is not valid TOML",
    "unknown-key": "the key does not exist: it is mistyped or in the wrong table",
    "missing-key": "a required key or table is missing",
    "wrong-type": "the value has the wrong type",
    "wrong-word": "the word is not one of the allowed ones",
    "wrong-form": "the text has the wrong format",
    "wrong-length": "the list has the wrong length",
    "wrong-choice": "the table must have exactly one variant, and a supported one",
    "out-of-range": "the number is outside of its range",
}
"""Stable codes of mistakes that the parser finds. Rules have the codes of the program's errors."""
_BY_KIND = {
    "extra_forbidden": "unknown-key",
    "missing": "missing-key",
    "literal_error": "wrong-word",
    "string_pattern_mismatch": "wrong-form",
    "too_short": "wrong-length",
    "too_long": "wrong-length",
    "value_error": "wrong-choice",
    "greater_than_equal": "out-of-range",
    "less_than_equal": "out-of-range",
}
_HEADER = re.compile(r"^\s*\[+\s*([^\[\]]+?)\s*\]+")
_KEY = re.compile(
    r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_BARE_WORD = re.compile(r"^\s*([\w.-]+)\s*=\s*([A-Za-z_~./][\w./~-]*)\s*(?:#.*)?$")
"""Matches a key whose value is text without quotes."""
_TWICE = re.compile(r"Cannot declare .* twice")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
}
_KINDS |= {
    "list_type": "a list",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "int_from_float": "a whole number",
}


class Mistake(NamedTuple):
    """A mistake at a key, as a sentence and as a code."""

    path: Path
    sentence: str
    code: str


@dataclass(frozen=True)
class LocatedMistake:
    """A mistake with its line in the file, from 1."""

    line: int
    key: str
    sentence: str
    code: str


class Mistaken(ConfigError):
    """A config file with mistakes. `found` and the message list them by line."""

    def __init__(self, source: str, mistakes: Sequence[LocatedMistake], fix: str) -> None:
        self.found = tuple(sorted(mistakes, key=lambda one: one.line))
        super().__init__(
            "\n".join(f"{source}:{one.line}: {one.sentence}" for one in self.found), fix
        )


def invalid_toml(source: str, text: str, why: str, fix: str) -> Mistaken:
    """Return the error for a `text` that is not valid TOML. `why`: the parser's message."""
    match = re.search(r"at line (\d+)", why)
    line = int(match[1]) if match else 1
    sentence = f"this is not valid TOML: {why}"
    written = text.splitlines()[line - 1 : line]
    if written and (_TWICE.search(why) or "Cannot overwrite" in why):
        key = written[0].split("#")[0].partition("=")[0].strip()
        sentence = f"{key} is set twice"
    elif written and (bare := _BARE_WORD.match(written[0])):
        word = bare[2].lower()
        needs = (
            f"write {word}"
            if word in ("true", "false")
            else f'text needs quotes: {bare[1]} = "{bare[2]}"'
        )
        sentence = f"{bare[1]} is {bare[2]}: {needs}"
    return Mistaken(source, [LocatedMistake(line, "", sentence, "not-toml")], fix)


def line_numbers(text: str) -> dict[Path, int]:
    """Return the line (from 1) of every table header and key, by path."""
    lines: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _parts(header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault(table + _parts(key[1]), number)
    return lines


def line_of(lines: dict[Path, int], path: Sequence[str | int]) -> int:
    """Return the line of a key, or of the nearest table or key that contains it, or 1."""
    names = tuple(str(part) for part in path)
    for length in range(len(names), 0, -1):
        if names[:length] in lines:
            return lines[names[:length]]
        # A table may only ever appear as part of a longer header: [a.b] stands for [a], too.
        inside = [line for known, line in lines.items() if known[:length] == names[:length]]
        if inside:
            return min(inside)
    return 1


def sentences(error: ValidationError, root: type[BaseModel]) -> list[Mistake]:
    """Return pydantic's errors as mistakes, unknown keys first: a typo often causes the others."""
    mistakes = sorted(
        error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden"
    )
    return [
        Mistake(
            tuple(map(str, item["loc"])),
            _sentence(item, root),
            _BY_KIND.get(item["type"], "wrong-type"),
        )
        for item in mistakes
    ]


def _sentence(item: Any, root: type[BaseModel]) -> str:
    """Return one of pydantic's errors as a sentence."""
    *table, key = item["loc"] or ("",)
    where = f"[{'.'.join(map(str, table))}] {key}" if table else f"[{key}]"
    kind = item["type"]
    value = item["input"]
    context = item.get("ctx", {})
    if kind == "extra_forbidden":
        allowed = _keys(root, table)
        return f"{where} is not a known key{_nearest(str(key), allowed)}; known here: {', '.join(allowed)}"
    if kind == "missing":
        return f"{where} is missing"
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", context["expected"])
        return f"{where} is {_as_written(value)}{_nearest(str(value), allowed)}; allowed: {', '.join(allowed)}"
    if kind in ("greater_than_equal", "less_than_equal"):
        limit = context.get("ge", context.get("le"))
        if "le" in context:
            return f"{where} is {value}; it must be at most {limit}"
        least = _known(item["loc"])[1]
        return f"{where} is {value}; it must be at least {limit if least is None else max(limit, least):g}"
    if kind in ("too_short", "too_long"):
        limit = context.get("min_length", context.get("max_length"))
        return f"{where} has {counted(context['actual_length'], 'entry', 'entries')}; it must have {limit}"
    if kind == "value_error":
        return f"{where} {context['error']}"
    if kind == "string_pattern_mismatch":
        return f"{where} is {_as_written(value)}; it must be {_form(item['loc'])}"
    unit = _known(item["loc"])[0] if kind in ("int_type", "int_from_float", "float_type") else ""
    return f"{where} is {_as_written(value)}; it must be {_KINDS.get(kind, item['msg'])}{f' of {unit}' if unit else ''}"


def _known(path: Sequence[str | int]) -> tuple[str, float | None]:
    """Return the unit of a run's config key (may be empty), and its least value or None."""
    # imported here, because config.keys imports the tables, and those import this module
    from aftermath.config.keys import keys

    name = ".".join(map(str, path))
    return next(((key.unit, key.least) for key in keys() if key.name == name), ("", None))


def _form(path: Sequence[str | int]) -> str:
    """Describe the form of a key's text in words. Keys of a spec have shorter paths."""
    from aftermath.config.keys import find

    return find(".".join(map(str, path)))[0].limits


def _as_written(value: object) -> str:
    """Return a value in TOML syntax, or "a list" or "a table"."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date | time):
        return value.isoformat()
    return (
        "a list"
        if isinstance(value, list)
        else "a table"
        if isinstance(value, dict)
        else short_repr(value)
    )


def _nearest(text: str, allowed: Iterable[str]) -> str:
    close = difflib.get_close_matches(text.lower(), [name.lower() for name in allowed], n=1)
    return next(
        (f" (did you mean {name}?)" for name in allowed if close and name.lower() == close[0]), ""
    )


def _keys(root: type[BaseModel], table: Sequence[str | int]) -> list[str]:
    """Return the keys that are allowed in the table at this path."""
    model = root
    for name in table:
        annotation = model.model_fields[str(name)].annotation
        options = (
            typing.get_args(annotation)
            if isinstance(annotation, types.UnionType)
            else (annotation,)
        )
        model = next(
            option
            for option in options
            if isinstance(option, type) and issubclass(option, BaseModel)
        )
    return list(model.model_fields)


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
