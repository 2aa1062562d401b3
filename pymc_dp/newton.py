"""What simulated records say of the posterior around a position, and of a Newton step from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scipy.linalg import eigh, hadamard

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.simulated import differences
from pymc_dp.preparation import Prepared

__all__ = [
    "MISFIT",
    "NewtonStep",
    "Surroundings",
    "alike",
    "newton_step",
    "surroundings",
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
#: Pairs of points, at most, that gradients of priors are averaged over; a power of 2.
_PAIRS = 32

Gradient = Callable[[np.ndarray], np.ndarray]


def alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two metrics differ by no more than a factor: where a Newton step can be trusted."""
    values = eigh(other, one, eigvals_only=True)
    return bool(values.min() > 1 / _TRUST and values.max() < _TRUST)


class Surroundings(NamedTuple):
    """What is known of a position.

    Parameters
    ----------
    precision : array of shape (n_dim, n_dim)
        Of the posterior around it.
    gradients : array of shape (n, n_dim)
        Of the records there that this is based on.
    grad_log_prior : callable
        Gradient of the log-prior, for Newton steps; on average where there are hyperparameters.
    """

    precision: np.ndarray
    gradients: np.ndarray
    grad_log_prior: Gradient


def surroundings(prepared: Prepared, theta: np.ndarray, rng: np.random.Generator) -> Surroundings:
    """Simulate records at a position.

    The precision comes from the covariance of gradients, which is the expected curvature for records
    that are drawn from the model (and no eigenvalue of it is lost in noise, as may happen to a
    curvature). Of other records it is the curvature; where that is negative, its size counts.

    Parameters that no record tells of directly, and that have no others in their prior, are the
    uppermost hyperparameters. The mode of a hierarchical model is not where its mass is: if all groups
    are equal, and their standard deviation is 0, the density is infinite. So the mode over these is
    looked for with all others integrated out, by the EM algorithm (Dempster, Laird, Rubin 1977,
    doi:10.1111/j.2517-6161.1977.tb01600.x): the gradient of the log-prior is averaged over what the
    others may be, given the hyperparameters.
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
    information *= weight / len(rows)
    squares = weight * (rows**2).mean(axis=0)

    def precision_with(prior: Gradient) -> np.ndarray:
        curvature = differences(prior, theta)
        precision = information - curvature
        if not (np.isfinite(precision).all() and np.isfinite(rows).all()):
            raise UnsupportedModel(
                f"the derivatives of simulated records are not finite at {likelihood.unravel(theta)}: give a start, "
                "and covariates without missing or infinite values."
            )
        # In units in which parameters are alike: of what gradients tell, which is never negative.
        scale = squares + np.abs(np.diag(curvature))
        scale = np.sqrt(np.where(scale > 0, scale, _LEAST))
        values, vectors = np.linalg.eigh(precision / np.outer(scale, scale))
        vectors = scale[:, None] * vectors
        return (vectors * np.maximum(np.abs(values), _LEAST_RELATIVE)) @ vectors.T

    prior: Gradient = likelihood.grad_log_prior
    precision = precision_with(prior)
    part = np.flatnonzero((squares > 0) | simulated.governed)
    if 0 < len(part) < len(theta):
        prior = _averaged(prior, part, np.linalg.inv(precision[np.ix_(part, part)]))
        precision = precision_with(prior)
    return Surroundings(precision, rows, prior)


def _averaged(gradient: Gradient, part: np.ndarray, covariance: np.ndarray) -> Gradient:
    """A gradient, averaged over normal errors of a part of its argument.

    By points to both sides of it, with signs that are orthogonal: exact for what has degree three at
    most in that part, as the gradient of a normal prior has. With many parameters, signs are random:
    exact then if they are independent, and near to it if not.
    """
    d = len(part)
    pairs = min(1 << (d - 1).bit_length(), _PAIRS)
    few = d <= pairs
    signs = hadamard(pairs)[:, :d] if few else np.random.default_rng(0).choice([-1, 1], (pairs, d))
    offsets = signs @ np.linalg.cholesky(covariance).T

    def average(theta: np.ndarray) -> np.ndarray:
        points = np.repeat(theta[None], 2 * pairs, axis=0)
        points[:, part] += np.concatenate([offsets, -offsets])
        return np.mean([gradient(point) for point in points], axis=0)

    return average


class NewtonStep(NamedTuple):
    """What a step needs to know.

    In coordinates in which the precision is 1 for each (tempered) record: the clip bound; what it cuts
    off on average, and the covariance of that number's error; the inverse of the part of a move that
    clipped gradients show. Of the parameters themselves: the gradient of the log-prior.
    """

    mass: np.ndarray
    bound: float
    excess: np.ndarray
    error: np.ndarray
    newton: np.ndarray
    grad_log_prior: Gradient


def newton_step(
    around: Surroundings, temperature: float, variance: float, n_records: int
) -> NewtonStep:
    """Choose the clip bound: `variance`, for a bound of 1, is that of the noise in posterior variances."""
    mass, rows = around.precision / (temperature * n_records), around.gradients
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
    return NewtonStep(mass, bound, off.mean(axis=0), error, newton, around.grad_log_prior)
