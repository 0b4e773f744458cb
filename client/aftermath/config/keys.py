"""Describe every key of a run's config file, and write config files and their JSON Schema.

The descriptions come from the classes that read the file. The docs page, `config explain`, editors
and the comments in generated files all use them.
"""

from __future__ import annotations

import difflib
import json
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from aftermath.config.document import RunConfig
from aftermath.config.tables import BareVariant, Choice, KeyLimits, Table

_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false"}
_RUN_CONFIG = ("run", "config")
_NEAREST = 5
_LEAST_PART = 3  # minimum letters of a word that may match a part of a key
COLUMNS = 120


@dataclass(frozen=True)
class ConfigKey:
    """One key. `example` is a TOML line, empty for a table."""

    path: tuple[str, ...]
    kind: str
    unit: str
    limits: str
    least: float | None
    """The least value that the program accepts, if it has a limit."""
    default: str
    """The default in TOML syntax, or empty if there is none."""
    required: bool
    text: str
    example: str
    table: type[Table] | None
    """The class of the table, if the key is one."""

    @property
    def name(self) -> str:
        """The key with its tables, joined by dots."""
        return ".".join(self.path)


@cache
def keys() -> tuple[ConfigKey, ...]:
    """Return all keys in the order of their classes, each table before its keys."""
    return tuple(_below((), RunConfig))


def held_by(table: ConfigKey) -> list[ConfigKey]:
    """Return the keys directly in a table, or the variants of a choice."""
    return [key for key in keys() if key.path[:-1] == table.path]


def find(name: str) -> list[ConfigKey]:
    """Return the keys that `name` matches.

    Try the full name, then names that end with it, then paths as `json-dump-run` prints them
    (`run.config.total_steps`, `model.optimizer.value_bits`).
    """
    path = tuple(part for part in name.strip("[] ").split(".") if part)
    if not path:
        return []
    exact = [key for key in keys() if key.path == path]
    return (
        exact
        or [key for key in keys() if key.path[-len(path) :] == path]
        or [key for key in keys() if key.path[-1] == path[-1] and _leaves_out(path, key.path)]
        # The program's `run.config` also has some settings of the model's table.
        or [key for key in keys() if key.path[-1] == path[-1] and path[:-1] == _RUN_CONFIG]
    )


def _leaves_out(shorter: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Return whether `shorter`, without a leading `run`, is a subsequence of `path`."""
    parts = iter(path)
    return all(part in parts for part in (shorter[1:] if shorter[0] == "run" else shorter))


def nearest(name: str) -> list[str]:
    """Return the names of keys with a similar spelling, the closest first."""
    names = {key.name.lower(): key.name for key in keys()}
    close = difflib.get_close_matches(name.lower(), names, n=_NEAREST)
    last = {key.path[-1].lower(): key.name for key in reversed(keys())}
    close += [
        last[one].lower()
        for one in difflib.get_close_matches(name.rpartition(".")[2].lower(), last, n=_NEAREST)
    ]
    # A short word may be a part of a key's last part: `topk` of `compression_topk`.
    word = name.rpartition(".")[2].lower()
    close += [key for key in names if len(word) >= _LEAST_PART and word in key.rpartition(".")[2]]
    return [names[one] for one in dict.fromkeys(close)][:_NEAREST]


def first_sentences(text: str, room: int) -> str:
    """Return the first sentence of `text`, and the following ones that fit into `room` columns."""
    first, *rest = re.split(r"(?<=\.)\s", text)
    for sentence in rest:
        if len(first) + 1 + len(sentence) > room:
            break
        first += f" {sentence}"
    return first


def _below(path: tuple[str, ...], table: type[BaseModel]) -> Iterator[ConfigKey]:
    for name, field in table.model_fields.items():
        key = _key((*path, name), field)
        yield key
        if key.table is not None:
            yield from _below(key.path, key.table)


def _key(path: tuple[str, ...], field: FieldInfo) -> ConfigKey:
    kind, marks = _plain(field.annotation, field.metadata)
    inner = kind if isinstance(kind, type) and issubclass(kind, Table) else None
    key_limits = next((mark for mark in marks if isinstance(mark, KeyLimits)), KeyLimits())
    default = "" if field.is_required() or field.default is None else _default(field.default)
    examples = field.examples or ([] if field.default is None else [field.default])
    example = "" if inner or not examples else f"{path[-1]} = {written(examples[0])}"
    return ConfigKey(
        path=path,
        kind=_kind_text(kind),
        unit=key_limits.unit,
        limits=_limits(key_limits, marks),
        least=_least(key_limits, marks),
        default=default,
        required=field.is_required(),
        text=field.description or "",
        example=example,
        table=inner,
    )


def _plain(annotation: Any, marks: Iterable[Any] = ()) -> tuple[Any, list[Any]]:
    """Return a type without `None` and annotations, and its annotations."""
    all_marks = list(marks)
    while True:
        origin = get_origin(annotation)
        inner = get_args(annotation)
        if origin is Annotated:
            all_marks += [mark for one in inner[1:] for mark in getattr(one, "metadata", [one])]
            annotation = inner[0]
        elif origin in (Union, types.UnionType):
            annotation = next(one for one in inner if one is not type(None))
        else:
            return annotation, all_marks


def _kind_text(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(written, get_args(kind)))
    if get_origin(kind) is list:
        return f"list of {_kind_text(_plain(get_args(kind)[0])[0])}s"
    if issubclass(kind, Choice):
        return "one of the tables " + ", ".join(kind.variants())
    if issubclass(kind, BareVariant):
        return f"table, or its {next(iter(kind.model_fields))} alone"
    return "table" if issubclass(kind, Table) else _TYPES[kind]


def _limits(key_limits: KeyLimits, marks: list[Any]) -> str:
    """Return in words the narrower of the program's and the type's limits."""

    def of(name: str) -> list[Any]:
        return [value for mark in marks if (value := getattr(mark, name, None)) is not None]

    least = _least(key_limits, marks)
    most = min(
        [*of("le"), *([key_limits.most] if key_limits.most is not None else [])], default=None
    )
    if key_limits.bytes is not None:
        return f"at most {key_limits.bytes} bytes"
    if length := of("max_length"):
        return f"{length[0]} of them"
    if key_limits.form:
        return key_limits.form
    if least is not None and most is not None:
        return f"{_number(least)} to {_number(most)}"
    sides = (
        ("above", key_limits.above),
        ("at least", least),
        ("below", key_limits.below),
        ("at most", most),
    )
    return ", ".join(f"{word} {_number(limit)}" for word, limit in sides if limit is not None)


def _least(key_limits: KeyLimits, marks: list[Any]) -> Any:
    known = [key_limits.least, *(getattr(mark, "ge", None) for mark in marks)]
    return max((limit for limit in known if limit is not None), default=None)


def _number(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


def _default(value: Any) -> str:
    if isinstance(value, Choice):
        return next(name for name in type(value).model_fields if getattr(value, name) is not None)
    return "" if isinstance(value, Table) else written(value)


def written(value: Any) -> str:
    """Return a value in TOML syntax: text, number, boolean, list or inline table."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {written(one)}" for name, one in value.items()) + " }"
    return "[" + ", ".join(map(written, value)) + "]"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema, draft 7, which TOML editors support.

    It has no $id, because config files refer to it by path. It has only the limits of single keys;
    `config validate` also checks the rules between keys.
    """
    schema = RunConfig.model_json_schema()
    return (
        {"$schema": "http://json-schema.org/draft-07/schema#"}
        | schema
        | {"title": "Config of an aftermath run"}
    )


def config_text(config: RunConfig, comment: Sequence[str]) -> str:
    """Return a config as TOML text with a one-line comment for every key.

    Keys with default values are written too. `comment` has the lines at its top.
    """
    lines = [f"# {line}".rstrip() for line in comment]
    for name in type(config).model_fields:
        lines += _table(config, (), name)
    return "\n".join(lines) + "\n"


def tables_text(tables: dict[str, dict[str, Any]], comment: Sequence[str]) -> str:
    """Return the text of a file of plain tables without comments, such as a recipe file."""
    lines = [f"# {line}" for line in comment]
    for name, values in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {written(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _table(holder: Table, above: tuple[str, ...], name: str) -> Iterator[str]:
    """Yield the lines of a table and of its inner tables."""
    table = getattr(holder, name)
    path = (*above, name)
    comment = _comment(path)
    if isinstance(table, Choice):
        path = (*path, _chosen(table))
        table = table.chosen
    inner = [one for one in type(table).model_fields if _is_table(getattr(table, one))]
    values = [
        one
        for one in type(table).model_fields
        if getattr(table, one) is not None and one not in inner
    ]
    if values or not inner:
        yield from ("", comment, f"[{'.'.join(path)}]")
    for one in values:
        value = getattr(table, one)
        yield _comment((*path, one))
        yield f"{one} = {written(_chosen(value) if isinstance(value, Choice) else value)}"
    for one in inner:
        yield from _table(table, path, one)


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
