"""One pass over the latent records: each is proposed from the model, and accepted by the noise."""

from __future__ import annotations

import math

import numba
import numpy as np


@numba.njit(error_model="numpy", nogil=True)
def sweep(
    current: np.ndarray,
    proposed: np.ndarray,
    residual: np.ndarray,
    log_uniforms: np.ndarray,
    ends: np.ndarray,
    scales: np.ndarray,
    is_gaussian: np.ndarray,
) -> tuple[np.ndarray, float]:
    """Accept or reject a proposal for each record in turn; changes `current` and `residual`."""
    n, width = current.shape
    n_releases = len(scales)
    accepted = np.zeros(n, dtype=np.bool_)
    rate = 0.0
    new = np.empty(width)
    squares, new_squares = np.zeros(n_releases), np.empty(n_releases)
    for k in range(n_releases):
        for j in range(ends[k], ends[k + 1]):
            squares[k] += residual[j] ** 2
    for i in range(n):
        log_ratio = 0.0
        for k in range(n_releases):
            square = 0.0
            for j in range(ends[k], ends[k + 1]):
                new[j] = residual[j] + (current[i, j] - proposed[i, j])
                square += new[j] ** 2
            new_squares[k] = square
            if is_gaussian[k]:
                log_ratio -= (square - squares[k]) / (2 * scales[k] ** 2)
            else:
                log_ratio -= (math.sqrt(square) - math.sqrt(squares[k])) / scales[k]
        rate += min(1.0, math.exp(min(log_ratio, 0.0)))
        if log_uniforms[i] < log_ratio:
            accepted[i] = True
            for j in range(width):
                residual[j] = new[j]
                current[i, j] = proposed[i, j]
            for k in range(n_releases):
                squares[k] = new_squares[k]
    return accepted, rate / n
