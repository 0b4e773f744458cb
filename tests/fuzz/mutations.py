"""Seeded changes of valid messages: bits flipped, cut, doubled, spliced, nested, and extreme
numbers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence

# Values with a meaning in some format: extreme integers, opening bytes of msgpack and JSON, and
# invalid UTF-8.
_BORDERS = (
    [bytes(n) for n in (1, 2, 4, 8)]
    + [b"\xff" * n for n in (1, 2, 4, 8)]
    + [b"\x7f" + b"\xff" * 7, b"\x80"]
)
_TOKENS = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
_TOKENS += [b"\xc1", b"\xc0", b"\x90", b"\x80", b"\x00", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]
_TOKENS += [b"[", b"{", b"]", b"}", b'"', b"\\", b":", b",", b"=", b".", b"\n", b"../"]
_TOKENS += [b"null", b"true", b"-1", b"1e999", b"NaN", b"9" * 25, b"\\ud800"]


def nested(depth: int, opening: bytes = b"\x91") -> bytes:
    """Return a deeply nested document (msgpack by default) that overflows a recursive parser."""
    return opening * depth + b"\xc0"


def mutations(chance: random.Random, seeds: Sequence[bytes], count: int) -> Iterator[bytes]:
    """Yield `count` documents, each a seed with one to four changes."""
    for _ in range(count):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            chance.choice(_CHANGES)(chance, data, seeds)
        yield bytes(data)


def _span(chance: random.Random, data: bytearray) -> tuple[int, int]:
    start = chance.randrange(len(data) + 1)
    return start, min(len(data), start + chance.choice((1, 1, 2, 4, 8, 16, 64)))


def _flip(chance: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _replace(chance: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.randrange(256)


def _border(chance: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    value = chance.choice(_BORDERS)
    start = chance.randrange(len(data) + 1)
    data[start : start + len(value)] = value


def _token(chance: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start, end = _span(chance, data)
    data[start : chance.choice((start, end))] = chance.choice(_TOKENS)


def _cut(chance: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    del data[chance.randrange(len(data) + 1) :]


def _drop(chance: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start, end = _span(chance, data)
    del data[start:end]


def _double(chance: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start, end = _span(chance, data)
    data[start:start] = data[start:end] * chance.choice((1, 2, 8))


def _splice(chance: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = chance.choice(seeds)
    data[chance.randrange(len(data) + 1) :] = other[chance.randrange(len(other) + 1) :]


def _nest(chance: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start = chance.randrange(len(data) + 1)
    data[start:start] = nested(
        chance.choice((2, 40, 1200)), chance.choice((b"\x91", b"\x81\xa1x", b"[", b'{"a":'))
    )


_VALUES: list[object] = [None, True, -1, 0, 2**64, 1.5, "", "x", [], {}, [[]], [1, "x"], {"x": 1}]


def _swap(chance: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """Replace any JSON value by another."""
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        _replace(chance, data, seeds)
        return
    inner = whole
    while isinstance(inner, dict | list) and inner:
        key = chance.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        if not isinstance(inner[key], dict | list) or chance.random() < 0.3:
            inner[key] = chance.choice(_VALUES)
            break
        inner = inner[key]
    data[:] = json.dumps(whole).encode()


_CHANGES: list[Callable[[random.Random, bytearray, Sequence[bytes]], None]] = [
    _flip, _flip, _replace, _border, _token, _token, _cut, _drop, _double, _splice, _nest, _swap,
]  # fmt: skip
