"""Fisher information and law of the scores at a position, from simulated records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from scipy.linalg import hadamard

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.simulation import PooledRecords, differences
from pymc_dp.planning.simulator import Simulator

#: Part of what clipping cuts off that may shift a mean, as the data are not exactly from the model.
MODEL_MISFIT_FRACTION = 0.1
#: Number of records simulated at each position.
_N_SIMULATED = 20_000
#: Smallest precision of a coordinate that neither prior nor data determine (a standard deviation of 100).
_MIN_PRECISION = 1e-4
#: Smallest precision of a direction, relative to the coordinates.
_MIN_RELATIVE_PRECISION = 1e-8
#: Smallest eigenvalue of a precision, relative to another one.
_MIN_PRECISION_LEFT = 1e-6
#: Largest number of pairs of points over which gradients of priors are averaged; a power of 2.
_MAX_PAIRS = 32

Function = Callable[[np.ndarray], Any]


class LocalInformation(NamedTuple):
    """Precision of the posterior at a position; simulated records, and their scores."""

    precision: np.ndarray
    gradients: np.ndarray
    records: PooledRecords


def local_information(
    simulator: Simulator, theta: np.ndarray, rng: np.random.Generator, n_least: int | None = None
) -> LocalInformation:
    """Simulate records at a position; estimate the posterior's precision there.

    The precision is the covariance of the scores (the Fisher information, which is positive semidefinite even when
    estimated) plus the curvature of the prior. If records cannot be drawn, it is the curvature of the stand-in's own
    records, with the absolute values of negative eigenvalues.

    Hyperparameters without parents are treated as by the EM algorithm (Dempster, Laird, Rubin 1977,
    doi:10.1111/j.2517-6161.1977.tb01600.x): the gradient of the log-prior is averaged over the other parameters, given
    the hyperparameters, so that steps lead to the marginal mode. The joint mode of a hierarchical model is far from its
    mass: the density is infinite where all groups are equal and their standard deviation is 0.
    """
    likelihood, simulated = simulator.likelihood, simulator.simulated
    n_least = _N_SIMULATED if n_least is None else n_least
    some = simulated.some(n_least, rng)
    with np.errstate(all="ignore"):
        sets = (simulated.draw(theta, rng) for _ in range(-(-n_least // len(some))))
        records = simulated.pooled((data, some) for data in sets)
    scores = records.gradients(theta)
    information = scores.T @ scores / len(scores)
    if not simulated.can_simulate:
        information = simulated.curvature(theta, simulated.draw(theta, rng)) / simulated.n_records
    weight = simulator.temperature * simulator.n_records
    information *= weight
    squares = weight * (scores**2).mean(axis=0)

    def precision_with(prior: Function) -> np.ndarray:
        curvature = differences(prior, theta)
        precision = information - curvature
        if not (np.isfinite(precision).all() and np.isfinite(scores).all()):
            raise UnsupportedModel(
                f"the derivatives of simulated records are not finite at {likelihood.unravel(theta)}: give a guess= with "
                "other values, and covariates without missing or infinite values."
            )
        # Relative to the diagonal of squared scores, which is never negative.
        scale = squares + np.abs(np.diag(curvature))
        scale = np.sqrt(np.where(scale > 0, scale, _MIN_PRECISION))
        values, vectors = np.linalg.eigh(precision / np.outer(scale, scale))
        vectors = scale[:, None] * vectors
        return (vectors * np.maximum(np.abs(values), _MIN_RELATIVE_PRECISION)) @ vectors.T

    prior: Function = likelihood.grad_log_prior
    precision = precision_with(prior)
    below = np.flatnonzero((squares > 0) | simulated.has_parent)
    if 0 < len(below) < len(theta):
        prior = averaged(prior, below, np.linalg.inv(precision[np.ix_(below, below)]))
        precision = precision_with(prior)
    return LocalInformation(precision, scores, records)


def averaged(function: Function, part: np.ndarray, covariance: np.ndarray) -> Function:
    """Average of a function over normal errors of a part of its argument, by cubature with antithetic pairs of points.

    The signs are orthogonal: exact for polynomials up to degree three in that part, such as a normal log-prior and its
    gradient. With many parameters they are random: exact if the errors are independent, else approximate.
    """
    d = len(part)
    pairs = min(1 << (d - 1).bit_length(), _MAX_PAIRS)
    few = d <= pairs
    signs = hadamard(pairs)[:, :d] if few else np.random.default_rng(0).choice([-1, 1], (pairs, d))
    offsets = signs @ np.linalg.cholesky(covariance).T

    def average(theta: np.ndarray) -> Any:
        points = np.repeat(theta[None], 2 * pairs, axis=0)
        points[:, part] += np.concatenate([offsets, -offsets])
        return np.mean([function(point) for point in points], axis=0)

    return average


def information_of(
    scores: np.ndarray, features: np.ndarray, noise: np.ndarray, n_records: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fisher information in a noisy sum of features, and the gain matrix that maps the sum to its score."""
    centred = features - features.mean(axis=0)
    slope = n_records * centred.T @ scores / len(scores)
    covariance = n_records * centred.T @ centred / len(scores) + noise
    pull = np.linalg.solve(covariance, slope).T
    return pull @ slope, pull


def floored(precision: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """A precision whose eigenvalues are at least a small fraction of those of another one."""
    root = np.linalg.cholesky(whole)
    inverse = np.linalg.inv(root)
    values, vectors = np.linalg.eigh(inverse @ precision @ inverse.T)
    back = root @ vectors
    return (back * np.maximum(np.abs(values), _MIN_PRECISION_LEFT)) @ back.T
