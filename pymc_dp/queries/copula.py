"""A Gaussian copula with given marginal laws: positions from normal scores, correlations from products of ranks."""

from __future__ import annotations

import math

from itertools import combinations

import numpy as np

from scipy import interpolate, optimize, special

#: Standard deviation of a correlation before it is released, and the largest one of a copula.
_PRIOR_SD, _MOST = 0.5, 0.99
#: Points and correlations at which the products of a copula's scores are simulated.
_N_POINTS, _CORRELATIONS = 8192, np.linspace(-_MOST, _MOST, 67)
#: Points in each part of a range at which its distribution function is interpolated.
_N_FINE = 64
#: Records are at a limit of a range if their noisy count exceeds so many standard deviations of the noise.
_SPIKE = 3.0
#: Weights of the penalty on third differences of log-probabilities, in the order in which they are tried.
_WEIGHTS = 10.0 ** np.arange(6, -5, -1)


def nearest_probabilities(vector: np.ndarray, noise_sd: float) -> np.ndarray:
    """Euclidean projection onto the simplex (Duchi et al.), raised to at least half of the noise: each category exists."""
    descending = np.sort(vector)[::-1]
    excess = (descending.cumsum() - 1) / np.arange(1, len(vector) + 1)
    last = np.flatnonzero(descending > excess)[-1]
    found = np.maximum(vector - excess[last], min(noise_sd, 1 / len(vector)) / 2)
    return found / found.sum()


def smooth_probabilities(counts: np.ndarray, total: float, noise_sd: float) -> np.ndarray:
    r"""Probabilities of equal parts of a range, as smooth as the noisy counts allow (Silverman 1982).

    The penalty is on third differences of the log-probabilities, so uniform, exponential and normal laws have none. Its
    weight is the largest at which the mean squared residual is at most :math:`\sigma^2` (Morozov's discrepancy
    principle). If no weight is small enough, the probabilities are the nearest ones.
    """
    third = np.diff(np.eye(len(counts)), 3, axis=0)
    precision = third.T @ third

    def fitted(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = special.softmax(logs)
        return p, (total * p - counts) / noise_sd

    def loss(logs: np.ndarray, weight: float) -> tuple[float, np.ndarray]:
        (p, errors), pull = fitted(logs), weight * precision @ logs
        slope = total / noise_sd * p * (errors - p @ errors)
        return errors @ errors / 2 + logs @ pull / 2, slope + pull

    logs = np.log(nearest_probabilities(counts / total, noise_sd / total))
    for weight in _WEIGHTS:
        logs = optimize.minimize(loss, logs, args=(weight,), jac=True, method="BFGS").x
        p, errors = fitted(logs)
        if errors @ errors <= len(counts):
            return p
    return nearest_probabilities(counts / total, 0.0)


def limit_probabilities(counts: np.ndarray, total: float, noise_sd: float) -> np.ndarray:
    """Probabilities of the lower limit of a range, of equal parts between the limits, and of the upper limit.

    The probability of a limit is zero if its count is not distinct from the noise.
    """
    limits = np.where(counts[[0, -1]] > _SPIKE * noise_sd, counts[[0, -1]], 0.0)
    between = max(total - limits.sum(), noise_sd)
    parts = between * smooth_probabilities(counts[1:-1], between, noise_sd)
    found = np.concatenate([limits[:1], parts, limits[1:]])
    return found / found.sum()


def bin_edges(n_categories: int, n_parts: int) -> np.ndarray:
    """Edges of bins of positions: between categories, or around the limits and equal parts of a range."""
    if n_categories:
        return np.arange(0.5, n_categories - 1)
    return np.concatenate([[np.nextafter(0, 1)], np.arange(1, n_parts + 1) / n_parts])


class Margin:
    """Released law of a column, from normal scores to positions and from positions to centred ranks.

    `probabilities` are those of categories, or of parts of a range; with `has_limits` the first and last bins are the
    limits of the range, and the others the parts between them.
    """

    def __init__(
        self, probabilities: np.ndarray, is_category: bool, has_limits: bool = False
    ) -> None:
        self.probabilities = probabilities / probabilities.sum()
        self._below = np.concatenate([[0.0], self.probabilities.cumsum()])
        self.is_category, self.n_limits = is_category, int(has_limits)
        self._n = len(probabilities) - 2 * self.n_limits
        #: Ranks at the ends of the parts of a range.
        self._at_edges = self._below[self.n_limits : self.n_limits + self._n + 1]

    def places(self, normal: np.ndarray) -> np.ndarray:
        """Positions whose ranks are those of standard normal numbers."""
        ranks = special.ndtr(normal)
        bins = self.bins(ranks)
        if self.is_category:
            return bins.astype(float)
        low, high = self._below[bins], self._below[bins + 1]
        parts = bins - self.n_limits + (ranks - low) / np.maximum(high - low, 1e-300)
        return np.clip(parts / self._n, 0.0, 1.0)

    def bins(self, ranks: np.ndarray) -> np.ndarray:
        """Bins of ranks in [0, 1]."""
        return np.searchsorted(self._below[1:-1], ranks, side="right")

    def bins_of(self, places: np.ndarray) -> np.ndarray:
        """Bins of positions."""
        if self.is_category:
            return places.astype(int)
        bins = np.minimum(places * self._n, self._n - 1).astype(int) + self.n_limits
        return bins + self.n_limits * ((places >= 1).astype(int) - (places <= 0))

    def ranks(self, bins: np.ndarray, uniform: np.ndarray | float) -> np.ndarray:
        """Ranks in given bins, for `uniform` in [0, 1]."""
        return self._below[bins] + uniform * np.diff(self._below)[bins]

    def smooth_places(self, ranks: np.ndarray) -> np.ndarray:
        """Positions of ranks; in a range by a smooth interpolation of the released distribution function."""
        if self.is_category:
            return self.bins(ranks).astype(float)
        edges = np.arange(self._n + 1) / self._n
        fine = np.linspace(0, 1, _N_FINE * self._n + 1)
        return np.interp(ranks, interpolate.PchipInterpolator(edges, self._at_edges)(fine), fine)

    @property
    def largest_score(self) -> float:
        """Largest absolute value of a score."""
        ends = np.arange(self._n) if self.is_category else np.array([0.0, 1.0])
        return float(np.abs(self.scores(ends)).max())

    def scores(self, places: np.ndarray) -> np.ndarray:
        """Centred ranks times the square root of 12, each a function of one position."""
        if self.is_category:
            bins = places.astype(int)
            ranks = (self._below[bins] + self._below[bins + 1]) / 2
        else:
            ranks = np.interp(places, np.arange(self._n + 1) / self._n, self._at_edges)
        if self.n_limits:
            ranks = np.where(places <= 0, self._below[1] / 2, ranks)
            ranks = np.where(places >= 1, (self._below[-2] + 1) / 2, ranks)
        return math.sqrt(12) * (ranks - 0.5)


def product_sd(first: np.ndarray, second: np.ndarray) -> float:
    """Prior standard deviation of the mean product of two columns' scores."""
    return float(_PRIOR_SD * first.std() * second.std())


def correlations_of(margins: list[Margin], means: np.ndarray, noise_sd: float) -> np.ndarray:
    """Copula correlations whose scores have these mean products, after shrinkage by the noise."""
    rng = np.random.default_rng(0)
    one, two = rng.standard_normal((2, _N_POINTS))
    one, two = np.concatenate([one, -one]), np.concatenate([two, two])
    found = np.eye(len(margins))
    for (j, k), mean in zip(combinations(range(len(margins)), 2), means, strict=True):
        first = margins[j].scores(margins[j].places(one))
        second = [
            margins[k].scores(margins[k].places(r * one + math.sqrt(1 - r * r) * two))
            for r in _CORRELATIONS
        ]
        products = np.maximum.accumulate(np.mean(np.array(second) * first, axis=1))
        spread = product_sd(first, second[len(second) // 2])
        if spread > 0:
            shrunk = mean * spread**2 / (spread**2 + noise_sd**2)
            found[j, k] = found[k, j] = np.interp(shrunk, products, _CORRELATIONS)
    values, vectors = np.linalg.eigh(found)
    root = vectors * np.sqrt(np.maximum(values, 1e-6))
    found = root @ root.T
    scale = np.sqrt(np.diag(found))
    return found / np.outer(scale, scale)
