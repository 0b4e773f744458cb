"""Multiply int16 matrices into int32, for any processor that LLVM supports.

A tile's sums stay in vector registers. Where the processor has an instruction for products of pairs
(vpdpwssd, vpmaddwd), LLVM uses it. This is twice as fast as fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

_LANES = 16  # int32 sums in a vector; each adds a pair of products
DOT = 4
"""Rows and columns of a tile of `dot_tile`."""
ROWS = 8
COLUMNS = 2 * _LANES
"""Rows and columns of a tile of `pair_tile`."""

_INT16 = ir.IntType(16)
_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)
_SUMS = ir.VectorType(_INT32, _LANES)
_PAIRS = ir.VectorType(_INT16, 2 * _LANES)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=2)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


def _plus_pairs(builder: Any, sums: Any, one: Any, other: Any) -> Any:
    """Return sums plus one[2 i] other[2 i] + one[2 i + 1] other[2 i + 1] in lane i."""
    wide = ir.VectorType(_INT32, 2 * _LANES)
    products = builder.mul(builder.sext(one, wide), builder.sext(other, wide))
    undefined = ir.Constant(wide, ir.Undefined)
    even, odd = (
        builder.shuffle_vector(products, undefined, ir.Constant(_SUMS, list(range(at, 32, 2))))
        for at in (0, 1)
    )
    return builder.add(sums, builder.add(even, odd))


def _loop(
    builder: Any, count: Any, states: int, step: Callable[[Any, Sequence[Any]], list[Any]]
) -> list[Any]:
    """Build a loop of at least one turn that adds to vectors of sums. Return the sums."""
    before = builder.block
    body = builder.append_basic_block()
    after = builder.append_basic_block()
    builder.branch(body)
    builder.position_at_end(body)
    turn = builder.phi(_INT64)
    sums = [builder.phi(_SUMS) for _ in range(states)]
    new = step(turn, sums)
    following = builder.add(turn, _INT64(1))
    turn.add_incoming(_INT64(0), before)
    turn.add_incoming(following, body)
    zero = ir.Constant(_SUMS, [0] * _LANES)
    for phi, value in zip(sums, new, strict=True):
        phi.add_incoming(zero, before)
        phi.add_incoming(value, body)
    builder.cbranch(builder.icmp_signed("<", following, count), body, after)
    builder.position_at_end(after)
    return new


def _at(builder: Any, base: Any, number: Any, stride: Any) -> Any:
    return builder.add(base, builder.mul(number, stride))


def _dot_tile(_: Any, one: Any, other: Any, stride: Any, vectors: Any, out: Any, width: Any) -> Any:
    def code(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        one, other, stride, vectors, out, width = arguments

        def step(turn: Any, sums: Sequence[Any]) -> list[Any]:
            byte = builder.mul(turn, _INT64(4 * _LANES))
            rows, columns = (
                [
                    _load(
                        builder,
                        builder.add(_at(builder, base, _INT64(number), stride), byte),
                        _PAIRS,
                    )
                    for number in range(DOT)
                ]
                for base in (one, other)
            )
            return [
                _plus_pairs(builder, sums[DOT * y + x], rows[y], columns[x])
                for y in range(DOT)
                for x in range(DOT)
            ]

        add = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(_INT32, [_SUMS]),
            f"llvm.vector.reduce.add.v{_LANES}i32",
        )
        for number, sums in enumerate(_loop(builder, vectors, DOT * DOT, step)):
            y, x = divmod(number, DOT)
            place = builder.add(_at(builder, out, _INT64(y), width), _INT64(4 * x))
            _store(builder, builder.call(add, [sums]), place)
        return ir.Constant(ir.IntType(8).as_pointer(), None)

    return numba.types.none(*[numba.types.int64] * 6), code


def _pair_tile(
    _: Any, one: Any, one_stride: Any, pairs: Any, stride: Any, count: Any, out: Any, width: Any
) -> Any:
    def code(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        one, one_stride, pairs, stride, count, out, width = arguments

        def step(turn: Any, sums: Sequence[Any]) -> list[Any]:
            line = _at(builder, pairs, turn, stride)
            columns = [
                _load(builder, builder.add(line, _INT64(4 * _LANES * x)), _PAIRS)
                for x in range(COLUMNS // _LANES)
            ]
            byte = builder.mul(turn, _INT64(4))
            new = []
            for y in range(ROWS):
                address = builder.add(_at(builder, one, _INT64(y), one_stride), byte)
                pair = _load(builder, address, _INT32)
                undefined = ir.Constant(_SUMS, ir.Undefined)
                first = builder.insert_element(undefined, pair, _INT32(0))
                spread = builder.shuffle_vector(first, undefined, ir.Constant(_SUMS, [0] * _LANES))
                row = builder.bitcast(spread, _PAIRS)
                for x, column in enumerate(columns):
                    new.append(_plus_pairs(builder, sums[len(columns) * y + x], row, column))
            return new

        vectors = COLUMNS // _LANES
        for number, sums in enumerate(_loop(builder, count, ROWS * vectors, step)):
            y, x = divmod(number, vectors)
            place = builder.add(_at(builder, out, _INT64(y), width), _INT64(4 * _LANES * x))
            _store(builder, sums, place)
        return ir.Constant(ir.IntType(8).as_pointer(), None)

    return numba.types.none(*[numba.types.int64] * 7), code


dot_tile: Any = intrinsic(_dot_tile)
"""Set int32 out [4, 4] to the products of int16 rows one [4, n] and other [4, n].

Arguments: addresses of both, their row stride in bytes, n / 32, and the address and row stride of
`out`.
"""
pair_tile: Any = intrinsic(_pair_tile)
"""Set int32 out [8, 32] to the product of int16 one [8, 2 n] and other [2 n, 32].

Arguments: address and row stride in bytes of `one`; address, row stride and number n of the other's
pairs of rows; address and row stride of `out`. A word of a pair of rows has both rows' int16, the
first one in its lower half.
"""
