"""Test that the msgpack limits agree with the decoder at every size class, and that many tiny JSON
values are refused.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aftermath.base.bounded import MAX_JSON_VALUES, MAX_VALUES, Malformed, json_value, msgpack_as

SIZES = (0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536)
POWERS = [1 << bits for bits in (0, 5, 7, 8, 15, 16, 31, 32, 63)]
NUMBERS = [number for power in POWERS for number in (power - 1, power, -power, 1 - power)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["bytes", "text", "array", "map", "extension"])
def test_msgpack_of_every_size_is_read(kind: str, size: int) -> None:
    value: Any = {
        "bytes": bytes(size),
        "text": "x" * size,
        "array": [None] * min(size, MAX_VALUES - 3),
        "map": {str(number): True for number in range(min(size, MAX_VALUES // 2 - 2))},
        "extension": msgspec.msgpack.Ext(5, bytes(size)),
    }[kind]
    for whole in (msgspec.msgpack.encode(value), msgspec.msgpack.encode([value, 1])):
        assert msgspec.msgpack.encode(msgpack_as(whole, Any)) == whole
        for wrong in (whole[:-1], whole + b"\xc0"):
            with pytest.raises(Malformed):
                msgpack_as(wrong, Any)


@pytest.mark.parametrize("number", [*NUMBERS, 0.5, True, False, None])
def test_msgpack_of_every_number_is_read(number: float | None) -> None:
    data = msgspec.msgpack.encode([number, b"after"])
    assert msgpack_as(data, Any) == [number, b"after"]


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_msgpack_extensions_of_fixed_sizes_are_read(size: int) -> None:
    value = [msgspec.msgpack.Ext(1, bytes(size)), 7]
    assert msgpack_as(msgspec.msgpack.encode(value), Any) == value


def test_too_many_values_are_refused_before_parsing() -> None:
    assert len(msgpack_as(msgspec.msgpack.encode([1] * (MAX_VALUES - 1)), Any)) == MAX_VALUES - 1
    for many in (
        b"\xdd\xff\xff\xff\xff",
        msgspec.msgpack.encode([1] * MAX_VALUES),
        b"\xdf\xff\xff\xff\xff",
    ):
        with pytest.raises(Malformed):
            msgpack_as(many, Any)


@pytest.mark.parametrize("one", ["[]", "{}", "7", '"ab"', "[" * 30 + "]" * 30])
def test_many_small_values_are_refused_before_parsing(one: str) -> None:
    few = MAX_JSON_VALUES // 64
    assert len(json_value(f"[{','.join([one] * few)}]")) == few
    with pytest.raises(Malformed, match="more values"):
        json_value(f"[{','.join([one] * (MAX_JSON_VALUES + 1))}]")


def test_unseparated_strings_are_refused_unread() -> None:
    with pytest.raises(Malformed, match="more values"):
        json_value("[" * 20 + '""' * 3 * MAX_JSON_VALUES)
