"""The clip rule, and sums of vectors that are clipped by it and truncated to whole units: the inner loops of terms."""

from __future__ import annotations

import math

from collections.abc import Callable
from functools import cache

import numba
import numpy as np

from pymc_dp.model.sums.row_functions import compiled_loop

# The operations are the same for each vector, so that its term does not depend on its place. Several
# simple passes over data in the cache are vectorized better than one. The compiler may regroup sums
# and products, in the same way for all vectors; `unit` must therefore not be close to the limits of
# float64.
_compiled = numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc"})
_FEW = 8  # vectors per pass: a multiple of the length of a vector instruction


@_compiled
def clip_factor(norm: float, bound: float) -> float:
    """The clip rule, of the release, the features of simulated records, plans and checks.

    A vector is multiplied by ``min(1, bound / norm)``, and by 0 if it is not finite, or zero.
    """
    return bound / max(norm, bound) if 0.0 < norm < math.inf else 0.0


@numba.vectorize
def clip_factors(norm: float, bound: float) -> float:
    """The rule for arrays of norms."""
    return clip_factor(norm, bound)


@_compiled
def _to_factors(squares: np.ndarray, unit: float, length: float) -> None:
    """Replace squared norms by factors that convert vectors to units, of norm `length` at most; 0 if not finite."""
    for i in range(len(squares)):
        squares[i] = unit * clip_factor(math.sqrt(squares[i]), length)


@_compiled
def add_rows(
    vectors: np.ndarray, unit: float, length: float, factors: np.ndarray, total: np.ndarray
) -> None:
    """Add the rows of a matrix to `total`, clipped, in whole units; `factors` is a work array."""
    n, width = vectors.shape
    for begin in range(0, n, _FEW):
        end = min(begin + _FEW, n)
        for i in range(begin, end):
            square = 0.0
            for j in range(width):
                square += (vectors[i, j] * unit) ** 2
            factors[i] = square
        _to_factors(factors[begin:end], unit, length)
        for i in range(begin, end):
            factor = factors[i]
            if factor == 0.0:
                continue
            for j in range(width):
                total[j] += np.trunc(vectors[i, j] * factor)


@_compiled
def add_columns(
    vectors: np.ndarray, unit: float, length: float, factors: np.ndarray, total: np.ndarray
) -> None:
    """Add the columns of a matrix, as `add_rows` does: faster for short vectors."""
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


def sum_of_clipped(vectors: np.ndarray, unit: float, length: float, by_column: bool) -> np.ndarray:
    """Sum of the rows of a matrix in whole units, each shortened to `length`."""
    total, factors = np.zeros(vectors.shape[1]), np.empty(len(vectors))
    add, layout = (add_columns, vectors.T) if by_column else (add_rows, vectors)
    add(np.ascontiguousarray(layout), unit, length, factors, total)
    return total.astype(np.int64)


def norm_ratios(clipping: str, logp: np.ndarray) -> np.ndarray:
    """Norm that is clipped over that of the score of the outcome observed, of two outcomes; not infinite.

    The scores ``s(1), s(0)`` have mean zero, so that norms are in inverse proportion to probabilities ``p``, whose
    logarithm is given for the outcome observed. ``"outcome_free"`` clips the larger of both, ``p / (1 - p)`` or 1 times
    as long; ``"midpoint"`` half of their difference, ``1 / (2 (1 - p))`` times as long.
    """
    logp = np.minimum(logp, -np.finfo(float).tiny)
    other = -np.expm1(logp)
    return 0.5 / other if clipping == "midpoint" else np.maximum(1.0, np.exp(logp) / other)


def sum_of_binary(
    clipping: str, vectors: np.ndarray, logp: np.ndarray, unit: float, length: float
) -> np.ndarray:
    """Sum of the rows of a matrix in whole units, clipped by factors that do not depend on outcomes (`norm_ratios`).

    A row is multiplied by ``min(1, length / (ratio * norm))``, and with ``"midpoint"`` by the ratio, too. Operations are
    elementwise, so that the term of a row does not depend on its place.
    """
    ratios = norm_ratios(clipping, logp)
    with np.errstate(all="ignore"):
        vectors = vectors * unit
        squares = np.zeros(len(vectors))
        for column in vectors.T:
            squares += column**2
        factors = clip_factors(ratios * np.sqrt(squares), length)
        if clipping == "midpoint":
            factors = factors * ratios
        vectors *= factors[:, None]
    vectors[factors == 0.0] = 0.0
    return np.trunc(vectors).sum(axis=0)


def clip_rows(vectors: np.ndarray, bound: float) -> np.ndarray:
    """The rows of a matrix, shortened in place to a norm of at most `bound`; those that are not finite become zero."""
    vectors = np.ascontiguousarray(vectors)
    _clip_rows(vectors, min(bound, np.finfo(float).max))
    return vectors


@numba.njit(error_model="numpy")
def _clip_rows(vectors: np.ndarray, bound: float) -> None:
    for i in range(len(vectors)):
        square = 0.0
        for j in range(vectors.shape[1]):
            square += vectors[i, j] ** 2
        factor = clip_factor(math.sqrt(square), bound)
        for j in range(vectors.shape[1]):
            vectors[i, j] = vectors[i, j] * factor if factor > 0.0 else 0.0


def clip_binary_rows(
    clipping: str, vectors: np.ndarray, logp: np.ndarray, bound: float
) -> np.ndarray:
    """The same by the factors of `sum_of_binary`."""
    ratios = norm_ratios(clipping, logp)[:, None]
    clipped = clip_rows(vectors * ratios, bound)
    return clipped if clipping == "midpoint" else clipped / ratios


# `sum_of_blocks` uses one of the next three, or `product`, to convert gradients to vectors.


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
def columns_times_matrix(gradients: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """For short gradients that are columns."""
    vectors = np.empty((matrix.shape[1], gradients.shape[1]))
    for k in range(matrix.shape[1]):
        for i in range(gradients.shape[1]):
            vectors[k, i] = matrix[0, k] * gradients[0, i]
        for j in range(1, len(matrix)):
            for i in range(gradients.shape[1]):
                vectors[k, i] += matrix[j, k] * gradients[j, i]
    return vectors


@compiled_loop
def no_callback(begin: int, end: int) -> None:
    """For `sum_of_blocks`: do nothing."""


@cache
def sum_of_blocks(convert: Callable, add_vectors: Callable, callback: Callable) -> Callable:
    """Make a compiled loop that sums the vectors of rows in steps, for `RowFunction.loop`.

    `convert` makes vectors from gradients and a matrix, `add_vectors` is `add_rows` or `add_columns`.
    `callback` is called with the limits of each block, while its data are in the cache. The loop's further
    arguments are the matrix; a tuple of the length of vectors and the `unit` and `length` of `add_vectors`;
    and a tuple of further arguments of `callback`.
    """

    @compiled_loop
    def loop(
        function: Callable,
        inputs: tuple,
        limits: tuple,
        matrix: np.ndarray,
        clipping: tuple,
        arguments: tuple,
    ) -> np.ndarray:
        before, after = inputs
        begin, end, length = limits
        n_columns, unit, bound = clipping
        steps, total = np.zeros(n_columns, dtype=np.int64), np.empty(n_columns)
        factors = np.empty(length)
        for a in range(begin, end, length):
            b = min(a + length, end)
            (gradients,) = function(*before, np.array(a), np.array(b), *after)
            vectors = convert(np.ascontiguousarray(gradients), matrix)
            total[:] = 0.0
            add_vectors(vectors, unit, bound, factors[: b - a], total)
            for j in range(n_columns):
                steps[j] += np.int64(total[j])
            callback(a, b, *arguments)
        return steps

    return loop
