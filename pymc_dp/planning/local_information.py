"""Fisher information and law of the scores at a position, and the settings of a Newton step from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scipy.linalg import eigh, hadamard

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.simulation import PooledRecords, differences
from pymc_dp.model.sums.clipped_vectors import clip_factors
from pymc_dp.planning.simulator import Simulator

#: Candidates for the clip bound: quantiles of the norms of simulated scores.
_QUANTILES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 1.0)
#: Smallest fraction of a move that clipped scores must still show, in any direction.
_MIN_BREAD = 0.5
#: The bias of clipping is corrected by its value under the model. Fraction of it that may remain, as
#: the data are not exactly from the model.
MODEL_MISFIT_FRACTION = 0.1
#: Number of records simulated at each position.
_N_SIMULATED = 20_000
#: Smallest precision of a coordinate that neither prior nor data determine (a standard deviation of 100).
_MIN_PRECISION = 1e-4
#: Smallest precision of a direction, relative to the coordinates.
_MIN_RELATIVE_PRECISION = 1e-8
#: Factor by which a step may change the precision.
_TRUST_FACTOR = 6.0
#: Largest number of pairs of points over which gradients of priors are averaged; a power of 2.
_MAX_PAIRS = 32

Gradient = Callable[[np.ndarray], np.ndarray]


def metrics_agree(a: np.ndarray, b: np.ndarray) -> bool:
    """Trust region of a Newton step: two metrics differ by less than a factor in every direction."""
    ratios = eigh(b, a, eigvals_only=True)
    return bool(ratios.min() > 1 / _TRUST_FACTOR and ratios.max() < _TRUST_FACTOR)


class LocalInformation(NamedTuple):
    """Precision of the posterior at a position; simulated records, their scores, and the gradient of the prior."""

    precision: np.ndarray
    gradients: np.ndarray
    records: PooledRecords
    grad_log_prior: Gradient


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

    def precision_with(prior: Gradient) -> np.ndarray:
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

    prior: Gradient = likelihood.grad_log_prior
    precision = precision_with(prior)
    below = np.flatnonzero((squares > 0) | simulated.has_parent)
    if 0 < len(below) < len(theta):
        prior = _averaged(prior, below, np.linalg.inv(precision[np.ix_(below, below)]))
        precision = precision_with(prior)
    return LocalInformation(precision, scores, records, prior)


def _averaged(gradient: Gradient, part: np.ndarray, covariance: np.ndarray) -> Gradient:
    """Average of a gradient over normal errors of a part of its argument, by cubature with antithetic pairs of points.

    The signs are orthogonal: exact for polynomials up to degree three in that part, such as the gradient of a normal
    prior. With many parameters they are random: exact if the errors are independent, else approximate.
    """
    d = len(part)
    pairs = min(1 << (d - 1).bit_length(), _MAX_PAIRS)
    few = d <= pairs
    signs = hadamard(pairs)[:, :d] if few else np.random.default_rng(0).choice([-1, 1], (pairs, d))
    offsets = signs @ np.linalg.cholesky(covariance).T

    def average(theta: np.ndarray) -> np.ndarray:
        points = np.repeat(theta[None], 2 * pairs, axis=0)
        points[:, part] += np.concatenate([offsets, -offsets])
        return np.mean([gradient(point) for point in points], axis=0)

    return average


class NewtonStep(NamedTuple):
    """Settings of a Newton step with clipped scores, as for a Huber M-estimator.

    All but `grad_log_prior` are in coordinates in which the posterior's precision is 1 per (tempered) record.
    """

    mass: np.ndarray
    bound: float
    clipped_off: np.ndarray
    error: np.ndarray
    newton: np.ndarray
    grad_log_prior: Gradient


def newton_step(
    information: LocalInformation, temperature: float, variance: float, n_records: int
) -> NewtonStep:
    """Settings with the clip bound of least expected squared error."""
    mass, scores = information.precision / (temperature * n_records), information.gradients
    white = np.linalg.solve(np.linalg.cholesky(mass), scores.T).T
    norms = np.linalg.norm(white, axis=1)
    if not norms.max() > 0:
        raise UnsupportedModel(
            "the log-likelihood of simulated records does not change with the parameters."
        )
    some = slice(None, None, -(-len(white) // _N_SIMULATED))
    costs = {}
    for bound in {float(b) for b in np.quantile(norms, _QUANTILES) if b > 0}:
        removed, bread = _clip(bound, white[some], norms[some])
        values, vectors = np.linalg.eigh(bread)
        if values.min() > _MIN_BREAD:
            inverse = vectors / np.maximum(values, _MIN_BREAD)
            misfit = MODEL_MISFIT_FRACTION * np.mean(np.abs(removed @ inverse), axis=0)
            costs[bound] = (
                bound**2 * variance * np.sum(inverse**2)
                + np.sum(np.var((white[some] - removed) @ inverse, axis=0))
                + n_records * np.sum(misfit**2)
            )
    bound = min(costs, key=costs.__getitem__, default=float(norms.max()))
    removed, bread = _clip(bound, white, norms)
    error = np.atleast_2d(np.cov(removed.T)) / len(removed)
    values, vectors = np.linalg.eigh(bread)
    newton = (vectors / np.maximum(values, _MIN_BREAD)) @ vectors.T
    return NewtonStep(mass, bound, removed.mean(axis=0), error, newton, information.grad_log_prior)


def _clip(bound: float, white: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores removed by clipping, shape ``(n, n_dim)``, and the bread matrix.

    The bread matrix, minus the derivative of the mean clipped score by the parameters of the records' law, is the
    covariance of clipped score and score.
    """
    removed = (1 - clip_factors(norms, bound))[:, None] * white
    bread = np.eye(white.shape[1]) - (removed.T @ white + white.T @ removed) / (2 * len(white))
    return removed, bread
