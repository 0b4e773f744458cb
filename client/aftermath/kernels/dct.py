"""The DCT-II and its inverse, of many vectors at once, by folding.

Decided
- Row i of the basis is the same backwards, but for its sign where i is odd. So sums and differences of opposite numbers
  halve the work; even rows are the basis of half the edge, and are folded again. That takes a third of the
  multiplications of a product with the whole basis at edge 64, and any edge works: folding ends at an odd one.
- The basis is that of `optim.basis`, in which equal cosines are equal numbers. With whole numbers the result is that of
  the product, bit by bit, where all partial sums of it are exact in any order: whatever is added here is one of them.
- Vectors lie side by side (number x of vector v at [x, v]): the innermost loop runs over vectors.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from aftermath.kernels.jit import kernel

_FOLDS = 4  # at most: what is left then is small


@kernel(fused=True)
def forward(basis: NDArray[Any], given: NDArray[Any], found: NDArray[Any], scratch: NDArray[Any], vectors: int) -> None:
    """found[i] = sum(basis[i, x] given[x]) of the first `vectors` vectors; `given` and `scratch` are used up.

    basis is [n, n], the others are [n, at least vectors].
    """
    size, step = len(basis), 1
    while size % 2 == 0 and step < 1 << _FOLDS:
        half = size // 2
        for x in range(half):
            one, other, difference = given[x], given[size - 1 - x], scratch[x]
            for v in range(vectors):
                low, high = one[v], other[v]
                difference[v] = low - high
                one[v] = low + high
        _product(basis, step, 2 * step, 0, 1, scratch, 0, 1, found, step, 2 * step, half, vectors)
        size, step = half, 2 * step
    _product(basis, 0, step, 0, 1, given, 0, 1, found, 0, step, size, vectors)


@kernel(fused=True)
def inverse(
    turned: NDArray[Any], given: NDArray[Any], found: NDArray[Any], scratch: NDArray[Any], vectors: int
) -> None:
    """found[x] = sum(basis[i, x] given[i]) of the first `vectors` vectors; `scratch` is used up.

    turned is the transposed basis [n, n], the others are [n, at least vectors].
    """
    folds, size = 0, len(turned)
    while size % 2 == 0 and folds < _FOLDS:
        size, folds = size // 2, folds + 1
    step = 1 << folds
    _product(turned, 0, 1, 0, step, given, 0, step, found, 0, 1, size, vectors)
    while folds > 0:
        _product(turned, 0, 1, step // 2, step, given, step // 2, step, scratch, 0, 1, size, vectors)
        for x in range(size):
            one, other, odd = found[x], found[2 * size - 1 - x], scratch[x]
            for v in range(vectors):
                even, change = one[v], odd[v]
                one[v] = even + change
                other[v] = even - change
        size, step, folds = 2 * size, step // 2, folds - 1


@kernel(fused=True)
def _product(
    matrix: NDArray[Any],
    row: int,
    rows: int,
    column: int,
    columns: int,
    given: NDArray[Any],
    source: int,
    sources: int,
    found: NDArray[Any],
    target: int,
    targets: int,
    size: int,
    vectors: int,
) -> None:
    """found[target + o targets] = sum over i < size of matrix[row + o rows, column + i columns]
    given[source + i sources], for o < size. In tiles of 4 by 4.
    """
    whole = size - size % 4
    for o in range(0, whole, 4):
        r0, r1, r2, r3 = (
            matrix[row + o * rows],
            matrix[row + (o + 1) * rows],
            matrix[row + (o + 2) * rows],
            matrix[row + (o + 3) * rows],
        )
        t = target + o * targets
        f0, f1, f2, f3 = found[t], found[t + targets], found[t + 2 * targets], found[t + 3 * targets]
        for i in range(0, whole, 4):
            c0 = column + i * columns
            c1, c2, c3 = c0 + columns, c0 + 2 * columns, c0 + 3 * columns
            s = source + i * sources
            g0, g1, g2, g3 = given[s], given[s + sources], given[s + 2 * sources], given[s + 3 * sources]
            m00, m01, m02, m03 = r0[c0], r0[c1], r0[c2], r0[c3]
            m10, m11, m12, m13 = r1[c0], r1[c1], r1[c2], r1[c3]
            m20, m21, m22, m23 = r2[c0], r2[c1], r2[c2], r2[c3]
            m30, m31, m32, m33 = r3[c0], r3[c1], r3[c2], r3[c3]
            if i == 0:
                for v in range(vectors):
                    a, b, c, d = g0[v], g1[v], g2[v], g3[v]
                    f0[v] = m00 * a + m01 * b + m02 * c + m03 * d
                    f1[v] = m10 * a + m11 * b + m12 * c + m13 * d
                    f2[v] = m20 * a + m21 * b + m22 * c + m23 * d
                    f3[v] = m30 * a + m31 * b + m32 * c + m33 * d
            else:
                for v in range(vectors):
                    a, b, c, d = g0[v], g1[v], g2[v], g3[v]
                    f0[v] += m00 * a + m01 * b + m02 * c + m03 * d
                    f1[v] += m10 * a + m11 * b + m12 * c + m13 * d
                    f2[v] += m20 * a + m21 * b + m22 * c + m23 * d
                    f3[v] += m30 * a + m31 * b + m32 * c + m33 * d
    for o in range(size):
        line, own = matrix[row + o * rows], found[target + o * targets]
        first = whole if o < whole else 0
        if first == 0:
            for v in range(vectors):
                own[v] = 0
        for i in range(first, size):
            factor, from_ = line[column + i * columns], given[source + i * sources]
            for v in range(vectors):
                own[v] += factor * from_[v]
