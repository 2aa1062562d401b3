"""Changes of records' log-likelihoods, clipped and rounded to a dyadic grid, so that sums are exact."""

from __future__ import annotations

import math

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Variable

__all__ = ["clipped_changes", "grid", "quantized_sum"]

# Steps within the clip bound: 2**30 or more, so that 2**31 records, which is the limit, add up to
# less than 2**62.
GRID_BITS = 30


def clipped_changes(new: np.ndarray, old: np.ndarray, bound: float) -> np.ndarray:
    """Each record's term of :meth:`RecordLikelihood.clipped_sum`, for a batch.

    Parameters
    ----------
    new, old : arrays of float64, shape (n,)
        Log-likelihoods, as `RecordLikelihood.logp_at` returns them.
    bound : float
        Largest contribution of a record, at least 0; ``inf`` for no clipping.

    Returns
    -------
    array of float64, shape (n,)
        Multiples of the grid: their sum is exact for up to 2**22 records.
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
    """Exponent of the grid, and number of its steps within the bound: 2**30 to 2**31."""
    _, exponent = math.frexp(bound)  # bound = m * 2**exponent with 1/2 <= m < 1
    exponent = exponent - 1 - GRID_BITS
    if bound == 0 or exponent < -1000:  # the grid would leave the range of floating point
        return 0, 0
    return exponent, math.floor(math.ldexp(bound, -exponent))


def quantized_sum(n_records: int) -> tuple[list[Variable], Variable]:
    """Graph of the sum over records of whole numbers ``rint(scale * (new - old))``, limited."""
    new, old = (pt.vector(name, shape=(n_records,), dtype="float64") for name in ("new", "old"))
    scale, limit = pt.dscalars("scale", "limit")
    steps = pt.clip(pt.round((new - old) * scale, mode="half_to_even"), -limit, limit)
    # Whole numbers in int64, not in float64: no rewrite or vectorisation can make this inexact.
    steps = pt.switch(pt.isnan(steps), 0.0, steps).astype("int64")
    return [new, old, scale, limit], pt.sum(steps)
