"""One trajectory of Hamiltonian Monte Carlo, and the adaptation of its step size."""

from __future__ import annotations

import math

from collections.abc import Callable

import numpy as np

__all__ = ["StepSize", "hamiltonian_move"]

#: Length of a trajectory, in posterior standard deviations: a quarter of an orbit of a normal posterior.
_TRAJECTORY = math.pi / 2
_MAX_LEAPFROG = 32
#: Acceptance rate that step sizes are adapted to, between the optima for second-order integrators
#: (0.65; Beskos et al. 2013, https://doi.org/10.3150/12-BEJ414) and few leapfrog steps.
_TARGET = 0.8

LogDensity = Callable[[np.ndarray], tuple[float, np.ndarray]]


def hamiltonian_move(
    theta: np.ndarray,
    log_density: LogDensity,
    root: np.ndarray,
    step_size: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, float]:
    """Propose by a trajectory of random length, and accept or reject.

    Parameters
    ----------
    theta : array of shape (n_dim,)
    log_density : callable
        Log-density and its gradient.
    root : array of shape (n_dim, n_dim)
        Root of a covariance similar to that of the target: the mass matrix is its inverse.
    step_size : float
        In units of `root`.
    rng : numpy.random.Generator

    Returns
    -------
    theta : array of shape (n_dim,)
    probability : float
        Of acceptance.
    """
    value, gradient = log_density(theta)
    momentum = rng.standard_normal(len(theta))
    energy = value - momentum @ momentum / 2
    step_size = step_size * rng.uniform(0.8, 1.2)
    n_leapfrog = min(max(1, round(_TRAJECTORY / step_size)), _MAX_LEAPFROG)
    new = theta
    with np.errstate(all="ignore"):
        for _ in range(n_leapfrog):
            momentum = momentum + step_size / 2 * root.T @ gradient
            new = new + step_size * root @ momentum
            value, gradient = log_density(new)
            if not math.isfinite(value):
                return theta, 0.0
            momentum = momentum + step_size / 2 * root.T @ gradient
        log_ratio = float(value - momentum @ momentum / 2 - energy)
        probability = math.exp(min(0.0, log_ratio)) if log_ratio == log_ratio else 0.0
    return (new if rng.random() < probability else theta), probability


class StepSize:
    """Step size that approaches the target acceptance rate (Robbins, Monro 1951), for warm-up only.

    Parameters
    ----------
    n_dim : int
    """

    def __init__(self, n_dim: int) -> None:
        self.value = n_dim**-0.25
        self._n = 0

    def adapt(self, probability: float) -> None:
        """Learn from the acceptance probability of a trajectory."""
        self._n += 1
        change = (probability - _TARGET) / math.sqrt(self._n)
        self.value = min(max(self.value * math.exp(change), 1e-4), 1.5)
