"""Normal approximation of the posterior given noisy sums: for forecasts, first states and proposals."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pymc_dp.display import one_line
from pymc_dp.planning.local_information import local_information, metrics_agree
from pymc_dp.planning.simulator import Simulator
from pymc_dp.scores.score_features import ScoreFeatures

#: Smallest number of simulated records.
_N_SIMULATED = 20_000
#: Gauss-Newton steps, each at most so often halved, until one is shorter than this (in standard deviations).
_N_STEPS, _MAX_HALVINGS, _NEAR = 4, 20, 0.5
#: Relative cutoff of singular values: hyperparameters have no scores.
_SINGULAR = 1e-10
#: Smallest eigenvalue of a precision, relative to the one without privacy.
_MIN_PRECISION = 1e-6


class NormalPosterior(NamedTuple):
    """Normal approximation of the posterior given noisy sums."""

    mean: np.ndarray
    covariance: np.ndarray
    precision: np.ndarray
    theta: np.ndarray
    gradient: np.ndarray
    information: np.ndarray
    gain: np.ndarray

    def __repr__(self) -> str:
        return one_line(self)

    def distance(self, theta: np.ndarray) -> float:
        """Root mean square distance from the mean, in standard deviations, over the parameters with information."""
        has_scores = self.information > 0
        squares = (theta - self.mean) ** 2 / np.diag(self.covariance)
        return float(np.sqrt(squares[has_scores].mean()))


def normal_posterior(
    simulator: Simulator,
    features: ScoreFeatures,
    theta: np.ndarray,
    n_records: int,
    rng: np.random.Generator,
) -> NormalPosterior:
    """Normal approximation from the law of the sums, linearized at a position and again at each new mean.

    These are Gauss-Newton steps, each halved until records can be drawn and the precision is similar at its end.
    """
    found = _linearized(simulator, features, theta, n_records, rng)
    for _ in range(_N_STEPS):
        root = np.linalg.cholesky(np.linalg.inv(found.covariance))
        length = float(np.linalg.norm(root.T @ (found.mean - theta)))
        if length < _NEAR:
            break
        for halvings in range(_MAX_HALVINGS):
            new = theta + (found.mean - theta) / 2**halvings
            there = _try_linearized(simulator, features, new, n_records, rng)
            if there is not None and metrics_agree(found.precision, there.precision):
                theta, found = new, there
                break
        else:
            return found._replace(mean=theta)
    return found


def _try_linearized(
    simulator: Simulator, features: ScoreFeatures, theta: np.ndarray, *rest: Any
) -> NormalPosterior | None:
    """The approximation at a position; None where the prior is zero or records cannot be drawn."""
    if not np.isfinite(simulator.likelihood.log_prior(theta)):
        return None
    try:
        return _linearized(simulator, features, theta, *rest)
    except (ValueError, np.linalg.LinAlgError):  # UnsupportedModel is a ValueError
        return None


def _linearized(
    simulator: Simulator,
    features: ScoreFeatures,
    theta: np.ndarray,
    n_records: int,
    rng: np.random.Generator,
) -> NormalPosterior:
    simulated, temperature = simulator.simulated, simulator.temperature
    local = local_information(simulator, theta, rng)
    fisher = local.gradients.T @ local.gradients / len(local.gradients)
    prior = local.precision - temperature * simulator.n_records * fisher
    scores, values = [], []
    for _ in range(-(-_N_SIMULATED // simulated.n_records)):
        data = simulated.draw(theta, rng)
        scores.append(simulated.gradients(theta, data))
        values.append(features.of(data))
    score, value = np.vstack(scores), np.vstack(values)
    noise = np.diag(features.noise_variances()) + features.stand_in_error(theta, n_records, rng)
    information, pull = information_of(score, value, noise, n_records)
    # The mean score is zero where records are drawn: a control variate.
    slope = np.linalg.lstsq(score.T @ score, score.T @ value, rcond=_SINGULAR)[0]
    excess = features.total - n_records * (value - score @ slope).mean(axis=0)
    whole = prior + temperature * n_records * fisher
    covariance = np.linalg.inv(floored(prior + temperature * information, whole))
    gradient = temperature * pull @ excess
    mean = theta + covariance @ (gradient + local.grad_log_prior(theta))
    information = temperature * np.diag(information)
    gain = temperature * covariance @ pull
    return NormalPosterior(mean, covariance, whole, theta, gradient, information, gain)


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
    return (back * np.maximum(np.abs(values), _MIN_PRECISION)) @ back.T
