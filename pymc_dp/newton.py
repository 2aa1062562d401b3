"""What simulated records say of the posterior around a position, and of a Newton step from there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scipy.linalg import eigh

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.simulated import differences
from pymc_dp.preparation import Prepared

__all__ = [
    "MISFIT",
    "NewtonStep",
    "alike",
    "local_precision",
    "newton_step",
]

#: Clip bounds to choose from: parts of the simulated records' gradients that are within.
_WITHIN = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 1.0)
#: Least part of a move that clipped gradients must show, in any direction.
_SEEN = 0.5
#: Clipping is corrected for by what the model says of it: part of that in which the data may differ.
MISFIT = 0.1
#: Records that are simulated at each position.
_SIMULATED = 20_000
#: Least precision of a coordinate of which neither prior nor data tell (a standard deviation of 100), and
#: of a direction relative to the coordinates.
_LEAST, _LEAST_RELATIVE = 1e-4, 1e-8
#: Factor by which a step may change the precision.
_TRUST = 6.0


def alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two metrics differ by no more than a factor: where a Newton step can be trusted."""
    values = eigh(other, one, eigvals_only=True)
    return bool(values.min() > 1 / _TRUST and values.max() < _TRUST)


def local_precision(
    prepared: Prepared, theta: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Precision of the posterior around a position, and gradients there of the records it is based on.

    From the covariance of gradients, which is the expected curvature for records that are drawn from
    the model (and no eigenvalue of it is lost in noise, as may happen to a curvature). Of other
    records it is the curvature; where that is negative, its size counts.

    Returns
    -------
    precision : array of shape (n_dim, n_dim)
    gradients : array of shape (n, n_dim)
    """
    likelihood, simulated = prepared.likelihood, prepared.simulated
    some = simulated.some(_SIMULATED, rng)
    gradients, information = [], np.zeros((simulated.n_dim, simulated.n_dim))
    for _ in range(-(-_SIMULATED // len(some))):
        with np.errstate(all="ignore"):
            data = simulated.draw(theta, rng)
        gradients.append(simulated.gradients(theta, data, some))
        if not simulated.are_drawn:
            information += simulated.curvature(theta, data) / simulated.n_records * len(some)
    rows = np.concatenate(gradients)
    if simulated.are_drawn:
        information = rows.T @ rows
    weight = prepared.temperature * prepared.n_records
    prior = differences(likelihood.grad_log_prior, theta)
    precision = weight / len(rows) * information - prior
    if not (np.isfinite(precision).all() and np.isfinite(rows).all()):
        raise UnsupportedModel(
            f"the derivatives of simulated records are not finite at {likelihood.unravel(theta)}: give a start."
        )
    # In units in which parameters are alike: of what gradients tell, which is never negative.
    scale = weight * (rows**2).mean(axis=0) + np.abs(np.diag(prior))
    scale = np.sqrt(np.where(scale > 0, scale, _LEAST))
    values, vectors = np.linalg.eigh(precision / np.outer(scale, scale))
    vectors = scale[:, None] * vectors
    return (vectors * np.maximum(np.abs(values), _LEAST_RELATIVE)) @ vectors.T, rows


class NewtonStep(NamedTuple):
    """What a step needs to know.

    In coordinates in which the precision is 1 for each (tempered) record: the clip bound; what it cuts
    off on average, and the covariance of that number's error; and the inverse of the part of a move
    that clipped gradients show.
    """

    mass: np.ndarray
    bound: float
    excess: np.ndarray
    error: np.ndarray
    newton: np.ndarray


def newton_step(mass: np.ndarray, rows: np.ndarray, variance: float, n_records: int) -> NewtonStep:
    """Choose the clip bound: `variance`, for a bound of 1, is that of the noise in posterior variances."""
    white = np.linalg.solve(np.linalg.cholesky(mass), rows.T).T
    norms = np.linalg.norm(white, axis=1)
    if not norms.max() > 0:
        raise UnsupportedModel(
            "the log-likelihood of simulated records does not change with the parameters."
        )

    def clipped(bound: float, white: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, ...]:
        off = (1 - np.minimum(1, bound / np.maximum(norms, bound)))[:, None] * white
        # Minus the derivative of the mean of what is left, with the records' law: for a score, its
        # covariance with the score.
        return off, np.eye(white.shape[1]) - (off.T @ white + white.T @ off) / (2 * len(white))

    some = slice(None, None, -(-len(white) // _SIMULATED))
    costs = {}
    for bound in {float(b) for b in np.quantile(norms, _WITHIN) if b > 0}:
        off, seen = clipped(bound, white[some], norms[some])
        values, vectors = np.linalg.eigh(seen)
        if values.min() > _SEEN:
            inverse = vectors / np.maximum(values, _SEEN)
            unknown = MISFIT * np.mean(np.abs(off @ inverse), axis=0)
            costs[bound] = (
                bound**2 * variance * np.sum(inverse**2)
                + np.sum(np.var((white[some] - off) @ inverse, axis=0))
                + n_records * np.sum(unknown**2)
            )
    bound = min(costs, key=costs.__getitem__, default=float(norms.max()))
    off, seen = clipped(bound, white, norms)
    error = np.atleast_2d(np.cov(off.T)) / len(off)
    values, vectors = np.linalg.eigh(seen)
    newton = (vectors / np.maximum(values, _SEEN)) @ vectors.T
    return NewtonStep(mass, bound, off.mean(axis=0), error, newton)
