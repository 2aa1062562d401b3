r"""Sums over records, drawn again from their law given the scores that were released before.

Sums :math:`T` and scores :math:`S` were computed from the same records. So the law of ``T`` is not that of new records at
parameters from the posterior. Parameters are drawn given ``S``. Records :math:`D'` are drawn at these parameters, with
noise on their sum of features, :math:`S'`. As sums of many records are jointly normal,

.. math:: T^* = T(D') + \operatorname{Cov}(T, S) \operatorname{Cov}(S)^{-1} (S - S')

has the law of ``T`` given ``S`` and the parameters (Matheron's rule). Covariances are conditional on the covariates: half the
mean products of differences of two data sets that are drawn at the same parameters and covariates.

References
----------
Wilson, Borovitskiy, Terenin, Mostowsky, Deisenroth (2021), Pathwise conditioning of Gaussian processes,
https://www.jmlr.org/papers/v22/20-1260.html (Matheron's rule).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from pymc_dp.scores.score_step import DPScore
from pymc_dp.scores.sum_law import SumState

#: From a data set to the vectors of its records, shape ``(n_records, size)``.
Vectors = Callable[[list[np.ndarray]], np.ndarray]

#: Records whose differences make the covariances, at least.
_N_COVARIANCE = 30_000


def replicated_sums(
    step: DPScore,
    states: Iterator[SumState],
    vectors: Vectors,
    n: int,
    rng: np.random.Generator,
    *,
    given_scores: bool = True,
) -> np.ndarray:
    """Draw sums of vectors from their law given the scores, shape ``(n, size)``; nothing private is accessed."""
    weights, features = _weights(step), step.target.features
    slope: np.ndarray | None = None
    found = []
    for _ in range(n):
        state = next(states)
        blocks = [step.simulator.simulated.draw(state.theta, rng) for _ in weights]
        total = _sum(vectors, blocks, weights)
        if given_scores:
            if slope is None:
                slope = _slope(step, vectors, rng)
            variances = np.repeat(np.exp(state.log_variances), np.diff(features.ends))
            noise = np.sqrt(variances) * rng.standard_normal(len(variances))
            lacking = features.total - _sum(features.of, blocks, weights) - noise
            width = len(lacking)
            covariance = slope[:width] + np.diag(variances)
            total = total + slope[width:] @ np.linalg.solve(covariance, lacking)
        found.append(total)
    return np.array(found)


def _weights(step: DPScore) -> list[np.ndarray]:
    """Weights of simulated records, block by block: 1 for each that counts, 0 for surplus ones."""
    m, n = step.simulator.simulated.n_records, step.scores.n_records
    weights = [np.ones(m) for _ in range(-(-n // m))]
    weights[-1][np.random.default_rng(0).permutation(m)[: m * len(weights) - n]] = 0.0
    return weights


def _sum(vectors: Vectors, blocks: list[list[np.ndarray]], weights: list[np.ndarray]) -> np.ndarray:
    return np.sum([w @ vectors(data) for data, w in zip(blocks, weights, strict=True)], axis=0)


def _slope(step: DPScore, vectors: Vectors, rng: np.random.Generator) -> np.ndarray:
    """Covariances at the posterior's centre, without noise: of scores with scores, and below them of sums with scores."""
    simulated, theta = step.simulator.simulated, step.approximation.mean
    n_sets = -(-_N_COVARIANCE // simulated.n_records)
    products = np.zeros(())
    for _ in range(n_sets):
        both = [simulated.draw(theta, rng) for _ in range(2)]
        features = step.target.features.of(both[0]) - step.target.features.of(both[1])
        values = np.hstack([features, vectors(both[0]) - vectors(both[1])])
        products = products + values.T @ features
    return products * step.scores.n_records / (2 * n_sets * simulated.n_records)
