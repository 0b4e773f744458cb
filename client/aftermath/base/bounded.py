"""Parse JSON, msgpack and TOML from others within fixed limits, and define the integer limits."""

from __future__ import annotations

import re
import tomllib
from typing import Any, NamedTuple, TypeGuard, TypeVar

import msgspec

U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1


class NumberLimits(NamedTuple):
    """Minimum and maximum of a number, named as pydantic names them. None means no limit."""

    ge: int
    le: int | None = None


MAX_DEPTH = 32
"""Maximum nesting of a JSON or TOML document. Documents of this software nest less than ten deep.
"""
MAX_VALUES = 1 << 16
"""Maximum number of values in a msgpack document."""
MAX_JSON_VALUES = 1 << 20
"""Maximum number of values in a JSON document, counted by brackets and commas. A cluster's list of
accounts has many.
"""
_MSGPACK_DEPTH = 8
_SHOWN = 200

# A string, closed or not, or a bracket. Possessive, so that matching takes linear time.
_JSON_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)

# A dotted key nests as deep as it has parts, and the parser takes quadratic time in that.
_TOML_KEY = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_TOML_DEEP = re.compile(
    rf"(?:^|[\[{{,])[ \t]*+(?:{_TOML_KEY}[ \t]*+\.[ \t]*+){{{MAX_DEPTH},}}+", re.MULTILINE
)

# msgpack by first byte: the size of the value in bytes (None: a size field follows), the width of
# the size field, and whether it counts values.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_FIXED |= {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_SIZED |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
_MANY = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}

T = TypeVar("T")


class Malformed(ValueError):
    """Raised for a document from others that cannot be used. The message says why."""


def json_value(data: bytes | bytearray | str, most: int = MAX_JSON_VALUES) -> Any:
    """Return the value of a JSON document of at most `most` values. Raises Malformed."""
    return json_as(data, Any, most)


def json_as(data: bytes | bytearray | str, kind: type[T] | Any, most: int = MAX_JSON_VALUES) -> T:
    """Return a JSON document decoded as this type. Raises Malformed."""
    try:
        raw = data.encode() if isinstance(data, str) else data
        _check_json(raw, most)
        return msgspec.json.decode(raw, type=kind)
    except Malformed:
        raise
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise Malformed(str(error)[:_SHOWN]) from None


def msgpack_as(data: bytes, kind: type[T] | Any, most: int = MAX_VALUES) -> T:
    """Decode a msgpack document of this type with at most `most` values. Raises Malformed."""
    try:
        _check_msgpack(data, most)
        return msgspec.msgpack.decode(data, type=kind)
    except Malformed:
        raise
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise Malformed(str(error)[:_SHOWN]) from None


def is_u64(value: object) -> TypeGuard[int]:
    """Return whether a decoded value is an integer that fits 64 bits. Booleans are not integers."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= U64_MAX


def toml_value(text: str) -> dict[str, Any]:
    """Return the tables of a TOML document. Raises Malformed."""
    try:
        if _TOML_DEEP.search(text):
            raise RecursionError
        tables = tomllib.loads(text)
    except RecursionError:
        raise Malformed(f"it nests more than {MAX_DEPTH} deep") from None
    except ValueError as error:
        raise Malformed(str(error)[:_SHOWN]) from None
    _check_nesting(tables)
    return tables


def _check_json(data: bytes | bytearray, most: int) -> None:
    inner = data.count(b"[") + data.count(b"{")
    if inner + data.count(b",") > most or data.count(b'"') > 4 * most:
        raise Malformed("it holds more values than are allowed")
    if inner <= MAX_DEPTH:
        return
    depth = 0
    for token in _JSON_TOKEN.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise Malformed(f"it nests more than {MAX_DEPTH} deep")
        elif first != 0x22:
            depth -= 1


def _check_nesting(value: Any) -> None:
    """Raise Malformed if tables nest too deeply. The TOML parser nests them without recursion."""
    layer = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = [v for v in layer if isinstance(v, dict | list)]
        if not inner:
            return
        layer = [one for v in inner for one in (v.values() if isinstance(v, dict) else v)]
    raise Malformed(f"it nests more than {MAX_DEPTH} deep")


def _check_msgpack(data: bytes, most: int) -> None:
    # number of values that are still to come in each open array or map
    at = 0
    values = 0
    open_ = [1]
    while open_:
        if not open_[-1]:
            open_.pop()
            continue
        open_[-1] -= 1
        values += 1
        if at >= len(data):
            raise Malformed("it is cut short")
        at, inner = _value(data, at)
        if inner > len(data) - at or values + inner > most:
            raise Malformed("it is cut short, or holds more values than are allowed")
        if inner:
            open_.append(inner)
            if len(open_) > _MSGPACK_DEPTH + 1:
                raise Malformed(f"it nests more than {_MSGPACK_DEPTH} deep")
    if at != len(data):
        raise Malformed("more data follows its end")


def _value(data: bytes, at: int) -> tuple[int, int]:
    """Return (next offset, number of inner values) of the value at `at`.

    The next offset is the start of the first inner value, or the end of a value without any.
    """
    first = data[at]
    at += 1
    if first < 0x80 or first >= 0xE0:
        return at, 0
    if first < 0xA0:
        return at, (first & 0xF) * (2 if first < 0x90 else 1)
    if first < 0xC0:
        return at + (first & 0x1F), 0
    if first in _FIXED:
        return at + _FIXED[first], 0
    if first in _SIZED:
        width, more = _SIZED[first]
        return at + width + more + int.from_bytes(data[at : at + width], "big"), 0
    if first in _MANY:
        width, each = _MANY[first]
        return at + width, each * int.from_bytes(data[at : at + width], "big")
    raise Malformed("it is not msgpack")
