"""Mean and covariance of what is computed from simulated records, with their scores as control variates."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_dp.model.simulation import SimulatedRecords

#: Relative cutoff of singular values: hyperparameters have no scores.
_SINGULAR = 1e-10


class Moments(NamedTuple):
    """Moments of a record's values at a position."""

    n: int
    mean: np.ndarray
    covariance: np.ndarray
    slopes: np.ndarray
    unexplained: np.ndarray


def simulated_moments(
    simulated: SimulatedRecords,
    theta: np.ndarray,
    n_sets: int,
    values_of: Callable[[list[np.ndarray]], np.ndarray],
    rng: np.random.Generator,
) -> Moments:
    """Moments of records simulated at a position; the score, whose mean is zero, is a control variate for the values."""
    n, sums = 0, np.zeros((1, 1))
    for _ in range(n_sets):
        with np.errstate(all="ignore"):
            data = simulated.draw(theta, rng)
        values = values_of(data)
        rows = np.hstack([np.ones((len(values), 1)), values, simulated.gradients(theta, data)])
        n, sums = n + len(rows), sums + rows.T @ rows
    width = values.shape[1]
    mean = sums[0, 1:] / n
    covariance = sums[1:, 1:] / n - np.outer(mean, mean)
    own, slopes, fisher = covariance[:width, :width], covariance[:width, width:], covariance[width:, width:]  # fmt: skip
    coefficients = np.linalg.lstsq(fisher, slopes.T, rcond=_SINGULAR)[0]
    return Moments(
        n, mean[:width] - mean[width:] @ coefficients, own, slopes, own - slopes @ coefficients
    )
