"""Compute the DCT-II and its inverse for many vectors at once.

Vector v has its number x at [x, v], so the inner loop runs over vectors. The basis is the one of
`optim.dct_basis`, where equal cosines are equal numbers.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from aftermath.kernels.jit import kernel

_FOLDS = 4  # the remaining product is small


@kernel(fused=True)
def forward(
    basis: NDArray[Any],
    source: NDArray[Any],
    target: NDArray[Any],
    scratch: NDArray[Any],
    vectors: int,
) -> None:
    """Set target[i] = sum(basis[i, x] source[x]) for the first `vectors` vectors.

    basis is [n, n], the others are [n, at least vectors]. Overwrite `source` and `scratch`.
    """
    # Row i of the basis is symmetric for even i and antisymmetric for odd i. Sums and differences
    # of opposite numbers halve the work, and even rows fold again, until the edge is odd. At edge
    # 64 this takes a third of the multiplications. Integer results equal the plain product bit by
    # bit: each sum here is one of its partial sums, which are exact in any order.
    size = len(basis)
    step = 1
    while size % 2 == 0 and step < 1 << _FOLDS:
        half = size // 2
        for x in range(half):
            one = source[x]
            other = source[size - 1 - x]
            difference = scratch[x]
            for v in range(vectors):
                low = one[v]
                high = other[v]
                difference[v] = low - high
                one[v] = low + high
        _product(basis, step, 2 * step, 0, 1, scratch, 0, 1, target, step, 2 * step, half, vectors)
        size, step = half, 2 * step
    _product(basis, 0, step, 0, 1, source, 0, 1, target, 0, step, size, vectors)


@kernel(fused=True)
def inverse(
    turned: NDArray[Any],
    source: NDArray[Any],
    target: NDArray[Any],
    scratch: NDArray[Any],
    vectors: int,
) -> None:
    """Set target[x] = sum(basis[i, x] source[i]) for the first `vectors` vectors.

    turned is the transposed basis [n, n], the others are [n, at least vectors]. Overwrite
    `scratch`.
    """
    folds = 0
    size = len(turned)
    while size % 2 == 0 and folds < _FOLDS:
        size, folds = size // 2, folds + 1
    step = 1 << folds
    _product(turned, 0, 1, 0, step, source, 0, step, target, 0, 1, size, vectors)
    while folds > 0:
        _product(
            turned, 0, 1, step // 2, step, source, step // 2, step, scratch, 0, 1, size, vectors
        )
        for x in range(size):
            one = target[x]
            other = target[2 * size - 1 - x]
            odd = scratch[x]
            for v in range(vectors):
                even = one[v]
                change = odd[v]
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
    """Multiply a strided part of a matrix by strided vectors, in tiles of 4 by 4.

    found[target + o targets] = sum over i < size of matrix[row + o rows, column + i columns]
    given[source + i sources], for o < size.
    """
    whole = size - size % 4
    for o in range(0, whole, 4):
        r0 = matrix[row + o * rows]
        r1 = matrix[row + (o + 1) * rows]
        r2 = matrix[row + (o + 2) * rows]
        r3 = matrix[row + (o + 3) * rows]
        t = target + o * targets
        f0 = found[t]
        f1 = found[t + targets]
        f2 = found[t + 2 * targets]
        f3 = found[t + 3 * targets]
        for i in range(0, whole, 4):
            c0 = column + i * columns
            c1 = c0 + columns
            c2 = c0 + 2 * columns
            c3 = c0 + 3 * columns
            s = source + i * sources
            g0 = given[s]
            g1 = given[s + sources]
            g2 = given[s + 2 * sources]
            g3 = given[s + 3 * sources]
            m00 = r0[c0]
            m01 = r0[c1]
            m02 = r0[c2]
            m03 = r0[c3]
            m10 = r1[c0]
            m11 = r1[c1]
            m12 = r1[c2]
            m13 = r1[c3]
            m20 = r2[c0]
            m21 = r2[c1]
            m22 = r2[c2]
            m23 = r2[c3]
            m30 = r3[c0]
            m31 = r3[c1]
            m32 = r3[c2]
            m33 = r3[c3]
            if i == 0:
                for v in range(vectors):
                    a = g0[v]
                    b = g1[v]
                    c = g2[v]
                    d = g3[v]
                    f0[v] = m00 * a + m01 * b + m02 * c + m03 * d
                    f1[v] = m10 * a + m11 * b + m12 * c + m13 * d
                    f2[v] = m20 * a + m21 * b + m22 * c + m23 * d
                    f3[v] = m30 * a + m31 * b + m32 * c + m33 * d
            else:
                for v in range(vectors):
                    a = g0[v]
                    b = g1[v]
                    c = g2[v]
                    d = g3[v]
                    f0[v] += m00 * a + m01 * b + m02 * c + m03 * d
                    f1[v] += m10 * a + m11 * b + m12 * c + m13 * d
                    f2[v] += m20 * a + m21 * b + m22 * c + m23 * d
                    f3[v] += m30 * a + m31 * b + m32 * c + m33 * d
    for o in range(size):
        line = matrix[row + o * rows]
        own = found[target + o * targets]
        first = whole if o < whole else 0
        if first == 0:
            for v in range(vectors):
                own[v] = 0
        for i in range(first, size):
            factor = line[column + i * columns]
            from_ = given[source + i * sources]
            for v in range(vectors):
                own[v] += factor * from_[v]
