"""Counts of vectors by their norm, and sums of products of their coordinates: both in exact whole numbers.

Row by row, so that a record's terms depend on its own vector alone.
"""

from __future__ import annotations

import math

from collections.abc import Iterable

import numba
import numpy as np

from pymc_dp.model.sums.clipped_vectors import clip_factor
from pymc_dp.model.sums.exact_sums import GRID_BITS


def product_exponent(bound: float) -> int:
    """Exponent of the steps of products of vectors with norms up to a bound."""
    return math.frexp(bound**2)[1] - 1 - GRID_BITS


def sum_products(blocks: Iterable[np.ndarray], n_columns: int, bound: float) -> np.ndarray:
    """Sum of the :func:`products` of the rows of all blocks, truncated to steps."""
    exponent = product_exponent(bound)
    total = np.zeros(n_columns * (n_columns + 1) // 2, dtype=np.int64)
    for vectors in blocks:
        _add_products(np.ascontiguousarray(vectors), bound, 2.0**-exponent, total)
    return total


@numba.njit(nogil=True, error_model="numpy")
def norm_bins(vectors: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Bin of each row's norm, from 0 to ``len(edges)``; norms that are not finite are in the last bin."""
    bins = np.zeros(len(vectors), dtype=np.int64)
    for i in range(len(vectors)):
        square = 0.0
        for j in range(vectors.shape[1]):
            square += vectors[i, j] * vectors[i, j]
        norm = np.sqrt(square)
        for edge in edges:
            bins[i] += not norm < edge  # true for NaN
    return bins


@numba.njit(nogil=True, error_model="numpy")
def products(vectors: np.ndarray, bound: float) -> np.ndarray:
    """Products of the coordinates of each row, clipped; zero for rows that are not finite."""
    n, d = vectors.shape
    found = np.zeros((n, d * (d + 1) // 2))
    for i in range(n):
        square = 0.0
        for j in range(d):
            square += vectors[i, j] ** 2
        if not square < np.inf:
            continue
        factor = clip_factor(np.sqrt(square), bound)
        place = 0
        for j in range(d):
            for k in range(j, d):
                scale = 1.0 if j == k else np.sqrt(2.0)
                found[i, place] = scale * (factor * vectors[i, j]) * (factor * vectors[i, k])
                place += 1
    return found


@numba.njit(nogil=True, error_model="numpy")
def _add_products(
    vectors: np.ndarray, bound: float, steps_per_unit: float, total: np.ndarray
) -> None:
    """Add the products of each row to `total`, of type int64, truncated to whole steps."""
    # The norm of the products, as they are computed, is at most the square of the bound.
    bound = bound * (1 - 1e-9)
    for i in range(len(vectors)):
        found = products(vectors[i : i + 1], bound)[0]
        for k in range(len(total)):
            total[k] += np.int64(np.trunc(found[k] * steps_per_unit))
