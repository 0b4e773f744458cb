"""Checks and completes the arguments of an instruction against the IDL before anchorpy encodes them.

Decided: structs travel as plain dicts; fields named `pad…` may be left out (they are zero); any other missing or
unknown field, a wrong length or a number out of range is named, instead of failing deep inside the encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aftermath.base.errors import shown
from aftermath.coordinator.errors import CoordinatorError

Json = dict[str, Any]
_BITS = {"u8": 8, "u16": 16, "u32": 32, "u64": 64, "u128": 128, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128}


def complete(value: Any, kind: Any, types: Mapping[str, Json], path: str) -> Any:
    """`value` as the legacy IDL type `kind`, padding filled in. CoordinatorError names `path` if it does not fit."""
    if isinstance(kind, str):
        return _simple(value, kind, path)
    (form,) = kind
    if form == "option":
        return None if value is None else complete(value, kind[form], types, path)
    if form == "defined":
        return _defined(value, types[kind[form]], types, path)
    element, length = kind["array"] if form == "array" else (kind["vec"], None)
    if not isinstance(value, bytes | list | tuple) or (length is not None and len(value) != length):
        wanted = "a list" if length is None else f"{length} values"
        raise CoordinatorError(f"{path} must be {wanted}, not {shown(value)}")
    return [complete(item, element, types, f"{path}[{i}]") for i, item in enumerate(value)]


def zero(kind: Any, types: Mapping[str, Json]) -> Any:
    """The value of `kind` whose bytes are zero."""
    if isinstance(kind, str):
        return "" if kind == "string" else False if kind == "bool" else 0
    if "array" in kind:
        return [zero(kind["array"][0], types)] * kind["array"][1]
    if "option" in kind:
        return None
    if "vec" in kind:
        return []
    return {f["name"]: zero(f["type"], types) for f in types[kind["defined"]]["fields"]}


def _defined(value: Any, definition: Json, types: Mapping[str, Json], path: str) -> Any:
    if definition["kind"] != "struct":
        return value  # anchorpy's own enum values
    if not isinstance(value, Mapping):
        raise CoordinatorError(f"{path} must be a table of fields, not {shown(value)}")
    fields = {f["name"]: f["type"] for f in definition["fields"]}
    if unknown := sorted(set(value) - set(fields)):
        raise CoordinatorError(f"{path} has no field {unknown[0]!r}", f"The fields are {', '.join(fields)}")
    filled = {}
    for name, kind in fields.items():
        if name in value:
            filled[name] = complete(value[name], kind, types, f"{path}.{name}")
        elif name.startswith("pad"):
            filled[name] = zero(kind, types)
        else:
            raise CoordinatorError(f"{path}.{name} is missing")
    return filled


def _simple(value: Any, kind: str, path: str) -> Any:
    if kind in _BITS:
        low, high = (-(1 << _BITS[kind] - 1), (1 << _BITS[kind] - 1) - 1)
        if kind[0] == "u":
            low, high = 0, (1 << _BITS[kind]) - 1
        if isinstance(value, bool) and kind == "u8":
            return int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise CoordinatorError(f"{path} must be a whole number from {low} to {high}, not {shown(value)}")
        return int(value)
    wanted = {"bool": bool, "string": str}.get(kind)
    if wanted and not isinstance(value, wanted):
        raise CoordinatorError(f"{path} must be a {kind}, not {shown(value)}")
    return value
