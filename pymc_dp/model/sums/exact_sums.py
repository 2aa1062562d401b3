"""Clipped changes of log-likelihoods, rounded to a dyadic grid, so that their sums are exact."""

from __future__ import annotations

import math

import numba
import numpy as np

# At least 2**30 and less than 2**31 steps within the clip bound, so that the sum over 2**31 records,
# the largest number allowed, stays below 2**62.
GRID_BITS = 30


def clipped_changes(new: np.ndarray, old: np.ndarray, bound: float) -> np.ndarray:
    """The term of each record of a batch in :meth:`Likelihood.clipped_change`.

    Arguments are log-likelihoods of a batch, as `RecordLikelihood.logp_at` returns them, and the largest
    term of a record, ``inf`` for no clipping. Returns multiples of the grid: their sum is exact for up to
    2**22 records.
    """
    exponent, limit = (0, math.inf) if bound == np.inf else grid(bound)
    with np.errstate(invalid="ignore", over="ignore"):
        steps = new - old
        if bound < np.inf:
            steps *= math.ldexp(1.0, -exponent)
            np.rint(steps, out=steps)
        steps[np.isnan(steps)] = 0.0
        np.minimum(steps, limit, out=steps)
        np.maximum(steps, -limit, out=steps)
        steps *= math.ldexp(1.0, exponent)
    return steps


def grid(bound: float) -> tuple[int, int]:
    """Exponent of the grid, and number of its steps within the bound, 2**30 to 2**31; (0, 0) if `bound` is too small."""
    _, exponent = math.frexp(bound)  # bound = m * 2**exponent with 1/2 <= m < 1
    exponent = exponent - 1 - GRID_BITS
    if bound == 0 or exponent < -1000:  # the unit of the grid would be subnormal
        return 0, 0
    return exponent, math.floor(math.ldexp(bound, -exponent))


@numba.njit(nogil=True, error_model="numpy")
def sum_of_steps(new: np.ndarray, old: np.ndarray, scale: float, limit: float) -> int:
    """Sum over records of ``rint(scale * (new - old))``, clipped to ``limit``; 0 where not a number.

    The terms are added as integers: no vectorization can make this sum inexact.
    """
    total = 0
    for i in range(len(new)):
        step = np.rint((new[i] - old[i]) * scale)
        step = step if step == step else 0.0
        total += np.int64(min(max(step, -limit), limit))  # type: ignore[assignment]
    return total


@numba.njit(nogil=True, error_model="numpy")
def sums_with_squares(
    new: np.ndarray, old: np.ndarray, scale: float, log_square_scale: int
) -> tuple[int, int]:
    """Sums over records of ``t = rint(scale * (new - old))``, clipped to ``2**GRID_BITS``, and of ``t**2``.

    The squares are divided by ``2**(GRID_BITS + log_square_scale)`` and rounded down. A difference that is not a
    number counts as 0.
    """
    limit, shift = 2.0**GRID_BITS, GRID_BITS + log_square_scale
    total, squares = 0, 0
    for i in range(len(new)):
        step = np.rint((new[i] - old[i]) * scale)
        step = step if step == step else 0.0
        whole = np.int64(min(max(step, -limit), limit))
        total += whole  # type: ignore[assignment]
        squares += (whole * whole) >> shift  # type: ignore[assignment]
    return total, squares
