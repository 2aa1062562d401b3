"""Clipped scores of simulated records at the references of releases, and their noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_dp.display import Shown
from pymc_dp.model.simulation import PooledRecords, SimulatedRecords
from pymc_dp.model.sums.clipped_vectors import clip_rows
from pymc_dp.scores.releases import PrivateScores

#: Records that are simulated for each of two estimates of the mean features of a stand-in's rows: first, and at most.
_N_PER_HALF, _MOST_PER_HALF = 50_000, 800_000
#: More are simulated until variances that the simulation of one estimate alone would make are at most this part of those
#: of the noise and of the records. (Those of the product of both are smaller, by the root of the number of statistics.)
_SIMULATION_ERROR = 0.5
#: Relative cutoff of singular values: hyperparameters have no scores.
_SINGULAR = 1e-10


class ScoreFeatures(Shown):
    """Features of records: their clipped scores at the references of all releases, side by side."""

    def __init__(self, scores: PrivateScores, simulated: SimulatedRecords) -> None:
        self.releases, self.n_records, self._simulated = (
            scores.releases,
            scores.n_records,
            simulated,
        )
        self.total = np.concatenate([r.total for r in self.releases])
        self.ends = np.cumsum([0, *(len(r.total) for r in self.releases)])
        self.scales = np.array([r.noise.scale for r in self.releases])
        self.is_gaussian = np.array([r.noise.kind == "gaussian" for r in self.releases])

    def of(self, data: list[np.ndarray]) -> np.ndarray:
        """Features of the records of a data set, shape ``(n_records, width)``."""
        return self._of(
            lambda term: self._simulated.gradients(term.theta, data, None, term.directions),
            lambda term: self._simulated.logp(term.theta, data),
        )

    def of_pooled(self, records: PooledRecords) -> np.ndarray:
        """Features of pooled records, shape ``(n, width)``."""
        return self._of(
            lambda term: records.gradients(term.theta) @ term.directions,
            lambda term: records.logp(term.theta),
        )

    def _of(
        self, vectors: Callable[..., np.ndarray], logp: Callable[..., np.ndarray]
    ) -> np.ndarray:
        with np.errstate(all="ignore"):
            parts = [
                r.term.clipped(
                    vectors(r.term), np.empty(0) if r.term.clipping == "norm" else logp(r.term)
                )
                for r in self.releases
            ]
        return parts[0] if len(parts) == 1 else np.hstack(parts)

    def stand_in_error(
        self, theta: np.ndarray, n_records: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Covariance of the sums from errors of a stand-in, shape ``(width, width)``; zero if none are known.

        A product takes the mean features of a row from two independent simulations, with the scores at `theta` as
        control variates: given the row, their mean is zero.
        """
        width = len(self.total)
        if (error := self._simulated.error) is None:
            return np.zeros((width, width))
        sums = np.zeros((2, self._simulated.n_records, width))
        n_sets, more = 0, -(-_N_PER_HALF // self._simulated.n_records)
        values, scores = self._with_scores(theta, rng)
        others = self.noise_variances() + n_records * values.var(axis=0)
        slopes = np.linalg.lstsq(scores, values - values.mean(axis=0))[0]
        while True:
            for half in sums:
                for _ in range(more):
                    values, scores = self._with_scores(theta, rng)
                    half += values - scores @ slopes
            n_sets += more
            one, two = sums / n_sets - sums.mean(axis=1, keepdims=True) / n_sets
            simulation_error = n_records**2 * error.of_means(one - two, one - two) / 2
            is_small = np.all(np.diag(simulation_error) <= _SIMULATION_ERROR * others)
            if is_small or n_sets * self._simulated.n_records >= _MOST_PER_HALF:
                return n_records**2 * error.of_means(one, two)
            more = 3 * n_sets

    def _with_scores(
        self, theta: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Features of simulated records, and their scores at the position (zero where not finite)."""
        data = self._simulated.draw(theta, rng)
        with np.errstate(all="ignore"):
            scores = self._simulated.gradients(theta, data)
        return self.of(data), clip_rows(scores, np.inf)

    def release_variances(self) -> np.ndarray:
        """Variance of the noise on a coordinate, for each release."""
        return np.array([r.noise_sd**2 for r in self.releases])

    def noise_variances(self) -> np.ndarray:
        """Variance of the noise on each column of the features."""
        return np.repeat(self.release_variances(), np.diff(self.ends))


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
