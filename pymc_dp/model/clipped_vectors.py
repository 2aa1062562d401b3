"""Sums of vectors, each clipped and cut off to whole units: the inner loops of `gradients`."""

from __future__ import annotations

import math

from collections.abc import Callable

import numba
import numpy as np

from pymc_dp.model.blocks import compiled_loop, fetch

__all__ = [
    "add_columns",
    "add_rows",
    "columns_times_matrix",
    "nothing",
    "sum_of_blocks",
    "times_matrix",
    "times_scales",
    "unchanged",
]

# The same operations for each vector: what it adds does not depend on its place. Several passes over
# what is in the cache, as compilers make more of simple loops. They may regroup sums and products,
# alike for all vectors: so `unit` must not be near the end of the range of numbers.
_compiled = numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc"})
#: Vectors between requests to the memory: it takes so many at a time. A multiple of a vector instruction.
_FEW = 8


@_compiled
def _to_factors(squares: np.ndarray, unit: float, length: float) -> None:
    """From squared norms to what takes vectors to units, and to `length` if longer; 0 if not finite."""
    for i in range(len(squares)):
        norm = math.sqrt(squares[i])
        squares[i] = unit * (length / max(norm, length)) if norm < math.inf else 0.0


@_compiled
def add_rows(
    vectors: np.ndarray,
    unit: float,
    length: float,
    factors: np.ndarray,
    total: np.ndarray,
    ahead: np.ndarray,
) -> None:
    """Add vectors in whole units, clipped; `factors` is for working in, `ahead` what is read next."""
    n, width = vectors.shape
    part = -(-len(ahead) // max(n, 1))
    for begin in range(0, n, _FEW):
        end = min(begin + _FEW, n)
        fetch(ahead[begin * part : end * part])
        for i in range(begin, end):
            square = 0.0
            for j in range(width):
                square += (vectors[i, j] * unit) ** 2
            factors[i] = square
        _to_factors(factors[begin:end], unit, length)
        for i in range(begin, end):
            factor = factors[i]
            if factor != 0.0:
                for j in range(width):
                    total[j] += np.trunc(vectors[i, j] * factor)


@_compiled
def add_columns(
    vectors: np.ndarray,
    unit: float,
    length: float,
    factors: np.ndarray,
    total: np.ndarray,
    ahead: np.ndarray,
) -> None:
    """Add vectors that are columns: quicker if they are short."""
    width, n = vectors.shape
    factors[:] = 0.0
    for j in range(width):
        for i in range(n):
            factors[i] += (vectors[j, i] * unit) ** 2
    _to_factors(factors, unit, length)
    for j in range(width):
        part = 0.0
        for i in range(n):
            part += np.trunc(vectors[j, i] * factors[i]) if factors[i] != 0.0 else 0.0
        total[j] += part


# One of the next four is what `sum_of_blocks` takes to get from gradients to vectors.


@compiled_loop
def unchanged(gradients: np.ndarray, _: np.ndarray) -> np.ndarray:
    """The gradients themselves."""
    return gradients


@compiled_loop
def times_scales(gradients: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """For a diagonal matrix."""
    vectors = np.empty_like(gradients)
    for i in range(len(vectors)):
        for j in range(len(scales)):
            vectors[i, j] = gradients[i, j] * scales[j]
    return vectors


@compiled_loop
def times_matrix(gradients: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """For any matrix."""
    return np.dot(gradients, matrix)


@compiled_loop
def columns_times_matrix(gradients: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """For gradients that are columns, and short, so that loops are quicker than BLAS."""
    vectors = np.empty((matrix.shape[1], gradients.shape[1]))
    for k in range(matrix.shape[1]):
        for i in range(gradients.shape[1]):
            vectors[k, i] = matrix[0, k] * gradients[0, i]
        for j in range(1, len(matrix)):
            for i in range(gradients.shape[1]):
                vectors[k, i] += matrix[j, k] * gradients[j, i]
    return vectors


@compiled_loop
def nothing(begin: int, end: int) -> None:
    """For `sum_of_blocks`: nothing else to do."""


@compiled_loop
def sum_of_blocks(
    function: Callable,
    before: tuple,
    after: tuple,
    begin: int,
    end: int,
    length: int,
    convert: Callable,
    matrix: np.ndarray,
    add: Callable,
    n_columns: int,
    unit: float,
    bound: float,
    data: np.ndarray,
    also: Callable,
    arguments: tuple,
) -> np.ndarray:
    """Steps of the sum of rows' vectors.

    Parameters
    ----------
    function, before, after, begin, end, length
        See `RowFunction.loop`.
    convert, matrix : callable, array
        From gradients to vectors.
    add : callable
        `add_rows` or `add_columns`.
    n_columns : int
        Length of vectors.
    unit, bound : float
        See `add`.
    data : matrix of bytes
        With a row for each record: what is waited for, unless asked for beforehand.
    also : callable
        Called with the limits of each block, while its data are in the cache, and `arguments`.
    """
    steps, total = np.zeros(n_columns, dtype=np.int64), np.empty(n_columns)
    factors = np.empty(length)
    for a in range(begin, end, length):
        b = min(a + length, end)
        (gradients,) = function(*before, np.array(a), np.array(b), *after)
        vectors = convert(np.ascontiguousarray(gradients), matrix)
        total[:] = 0.0
        add(vectors, unit, bound, factors[: b - a], total, data[b : min(b + length, end)].ravel())
        for j in range(n_columns):
            steps[j] += np.int64(total[j])
        also(a, b, *arguments)
    return steps
