r"""Mean and covariance of a record's features at any parameters: the law that a sum of many records has.

Each row of the model, with its covariates :math:`x_r`, has points :math:`y_{rk}` with weights that sum to 1, and

.. math:: m(\theta) = \frac{1}{R} \sum_r m_r, \qquad m_r = \sum_k w_{rk} f(x_r, y_{rk}), \qquad
          V(\theta) = \frac{1}{R} \sum_{rk} w_{rk} f f' - \frac{1}{R} \sum_r m_r m_r'

given public covariates, which are the same in each data set; if they are private, a record draws its row, and the last
term is :math:`m m'`. There are three choices of points:

*Enumerated*
    Outcomes that are few whole numbers: :math:`y_k = k`, with :math:`w_{rk} = p(k \mid x_r, \theta)`. Exact.
*Fixed random numbers*
    Outcomes that are a smooth function (for many laws the quantile function) of parameters and of numbers that are
    uniform, normal or exponential, whatever the parameters are: these numbers are drawn once, stratified over the points
    of a row, and equally weighted.
*Reweighted*
    All else: records simulated at anchors :math:`\theta_a` that span the posterior, with weights :math:`\propto
    p(y \mid x, \theta) / \sum_a p(y \mid x, \theta_a)`: of each row, or, with less than 32 points of a row, over all.

In each case the derivative of a mean is its covariance with the score: of :math:`m`, and of the second moments.
Enumeration over all rows is exact, and with fixed numbers the error of a mean of ``k`` points is of order
:math:`k^{-3/2}`. Else the mean at the centre is that of all rows, or of many more simulated records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scipy.special import logsumexp

from pymc_dp.display import Shown
from pymc_dp.model.simulation import PooledRecords, SimulatedRecords
from pymc_dp.scores.score_features import ScoreFeatures

#: Points at each position: of enumerated outcomes, of outcomes that move, and of all others.
_MOST_ENUMERATED, _MOVING, _MOST_SIMULATED = 20_000, 3_000, 10_000
#: Enumerated points among which equal rows are looked for.
_MOST_COMPARED = 200_000
#: Points of a row: least of those with fixed numbers; number from which their error, of 10**-1.5 standard deviations of the
#: sum, needs no correction; and most.
_LEAST_SETS, _ACCURATE, _MOST_SETS = 3, 10, 100
#: Points of a row from which its own weights are accurate.
_MIXTURE = 32


class FeatureMoments(NamedTuple):
    """Moments at a position: weights ``(n_sets, n_rows)``; features less their mean in the row, or of all, a row for each point."""

    weights: np.ndarray
    errors: np.ndarray
    mean: np.ndarray

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of a record's features."""
        return (self.errors * self.weights.reshape(-1, 1)).T @ self.errors


class FeatureLaw(Shown):
    """Features of a record at any parameters, from sets of points, each with a point of every row, set by set.

    The covariance may be that given the rows. The weights of each row, or of all points, have a fixed sum.
    """

    def __init__(
        self, features: ScoreFeatures, points: PooledRecords, n_sets: int, given_rows: bool, by_row: bool = True
    ) -> None:  # fmt: skip
        self._features, self._points, self._given_rows, self.by_row = features, points, given_rows, by_row  # fmt: skip
        values = features.of_pooled(points)
        self._values = values.reshape(n_sets, -1, values.shape[1])
        #: Whether the mean needs no correction at the centre.
        self.is_exact = False
        #: Number of rows that each row stands for.
        self._counts = np.ones(self._values.shape[1])

    def _log_weights(self, theta: np.ndarray) -> np.ndarray | None:
        """Unnormalised log-weights of points, shape ``(n_sets, n_rows)``, None if all are equal; may move the points."""
        return self._points.logp(theta).reshape(self._values.shape[:2])

    def at(self, theta: np.ndarray) -> FeatureMoments | None:
        """Moments at a position; None where points have no density."""
        with np.errstate(all="ignore"):
            logs = self._log_weights(theta)
        values, (n_sets, n_rows, width) = self._values, self._values.shape
        if logs is None:
            weights = np.full((n_sets, n_rows), 1 / (n_sets * n_rows))
        else:
            axis = 0 if self.by_row else None
            logs = np.where(np.isnan(logs), -np.inf, logs)
            highest = logs.max(axis=axis)
            if not np.isfinite(highest).all():
                return None
            weights = np.exp(logs - highest)
            shares = self._counts / self._counts.sum() if self.by_row else 1.0
            weights *= shares / weights.sum(axis=axis)
        flat = weights.reshape(-1, 1)
        centres = mean = flat[:, 0] @ values.reshape(-1, width)
        if self._given_rows:
            centres = (weights[..., None] * values).sum(axis=0) / weights.sum(axis=0)[:, None]
        errors = (values - centres).reshape(-1, width)
        return FeatureMoments(weights, errors, mean)

    def derivative(
        self, theta: np.ndarray, at: FeatureMoments, mean: np.ndarray, covariance: np.ndarray | None
    ) -> np.ndarray:
        """Derivative of ``mean @ m`` and, if given, of the sum of the entries of ``covariance * V``, shape ``(n_dim,)``."""
        terms = at.errors @ mean
        if covariance is not None:
            terms += ((at.errors @ covariance) * at.errors).sum(axis=1)
        return self._centred(at.weights, terms[:, None])[:, 0] @ self._scores(theta, at.weights)

    def slope(self, theta: np.ndarray, at: FeatureMoments) -> np.ndarray:
        """Jacobian of the mean, shape ``(width, n_dim)``."""
        return self._centred(at.weights, at.errors).T @ self._scores(theta, at.weights)

    def _centred(self, weights: np.ndarray, terms: np.ndarray) -> np.ndarray:
        """Weighted terms, less their mean where weights have a fixed sum: in each row, or among all."""
        axis, by_row = (0 if self.by_row else (0, 1)), weights[..., None]
        weighted = by_row * terms.reshape(*weights.shape, -1)
        means = weighted.sum(axis=axis, keepdims=True) / by_row.sum(axis=axis, keepdims=True)
        return (weighted - by_row * means).reshape(terms.shape)

    def _scores(self, theta: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Scores of the points that count, at the position of the last moments."""
        with np.errstate(all="ignore"):
            scores = self._points.gradients(theta)
            is_finite = np.isfinite(scores.sum())
        if is_finite:
            return scores
        return np.where(weights.reshape(-1, 1) > 0, np.nan_to_num(scores, posinf=0.0, neginf=0.0), 0.0)  # fmt: skip


class Enumerated(FeatureLaw):
    """All outcomes of each row, weighted by their probabilities; rows that are equal are one."""

    def __init__(
        self, features: ScoreFeatures, simulated: SimulatedRecords, sets: list[list[np.ndarray]],
        positions: Sequence[np.ndarray], given_rows: bool, rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self._sets, self._simulated = sets, simulated
        most, some = _MOST_ENUMERATED // len(sets), simulated.some(_MOST_COMPARED // len(sets), rng)
        every = simulated.pooled((data, some) for data in sets)
        places = [*(r.term.theta for r in features.releases), *positions[:2]]
        first, counts = _distinct(every, len(sets), places)
        is_exact = len(first) <= most and len(some) == simulated.n_records
        if len(first) > most:
            first = np.sort(rng.permutation(len(some))[:most])
            counts = np.ones(most)
        rows = some[first]
        points = simulated.pooled((data, rows) for data in sets)
        super().__init__(features, points, len(sets), given_rows)
        self._counts, self.is_exact = counts, is_exact

    def mean_of_all(self, theta: np.ndarray) -> np.ndarray:
        """Mean over all rows, also those that are no points."""
        with np.errstate(all="ignore"):
            logs = np.stack([self._simulated.logp(theta, data) for data in self._sets])
        weights = np.exp(np.nan_to_num(logs, nan=-np.inf, neginf=-np.inf))
        weights /= weights.sum(axis=0) * logs.shape[1]
        pairs = zip(weights, self._sets, strict=True)
        return np.sum([w @ self._features.of(data) for w, data in pairs], axis=0)


def _distinct(
    points: PooledRecords, n_sets: int, positions: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of distinct rows, by likelihoods and scores of all outcomes at some positions, and how often each occurs."""
    with np.errstate(all="ignore"):
        found = [np.column_stack([points.logp(t), points.gradients(t)]) for t in positions]
    rows = np.hstack([*np.hstack(found).reshape(n_sets, -1, sum(f.shape[1] for f in found))])
    rows = np.ascontiguousarray(rows)
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    return first, counts.astype(float)


class FixedNumbers(FeatureLaw):
    """Outcomes that move with the parameters, by random numbers that are fixed."""

    def __init__(
        self, features: ScoreFeatures, simulated: SimulatedRecords, numbers: list[list[np.ndarray]],
        centre: np.ndarray, given_rows: bool,
    ) -> None:  # fmt: skip
        self._simulated, self._numbers, n_sets = simulated, numbers, len(numbers)
        sets = (simulated.draw_from(centre, z) for z in numbers)
        points = simulated.pooled((data, np.arange(simulated.n_records)) for data in sets)
        super().__init__(features, points, n_sets, given_rows)
        self.is_exact = n_sets >= _ACCURATE

    def _log_weights(self, theta: np.ndarray) -> None:
        sets = [self._simulated.draw_from(theta, z) for z in self._numbers]
        rows = self._simulated.rows
        self._points = self._points.with_outcomes([np.concatenate([y[rows] for y in each]) for each in zip(*sets, strict=True)])  # fmt: skip
        self._values = self._features.of_pooled(self._points).reshape(self._values.shape)


class Reweighted(FeatureLaw):
    """Records simulated at several anchors, weighted by their density over that of the mixture of all anchors."""

    def __init__(
        self, features: ScoreFeatures, simulated: SimulatedRecords, anchors: Sequence[np.ndarray], given_rows: bool,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        n_sets = min(-(-_MOST_SIMULATED // simulated.n_records), _MOST_SETS)
        n_sets -= (
            n_sets % len(anchors) if n_sets > len(anchors) else 0
        )  # as many sets of each anchor
        anchors = anchors[:n_sets]
        rows = simulated.some(_MOST_SIMULATED, rng) if n_sets == 1 else np.arange(simulated.n_records)  # fmt: skip
        points = simulated.pooled(
            (simulated.draw(anchors[k % len(anchors)], rng), rows) for k in range(n_sets)
        )
        by_row = n_sets >= _MIXTURE
        super().__init__(features, points, n_sets, given_rows and by_row, by_row)
        self._base = logsumexp([points.logp(theta) for theta in anchors], axis=0)

    def _log_weights(self, theta: np.ndarray) -> np.ndarray:
        return (self._points.logp(theta) - self._base).reshape(self._values.shape[:2])


def feature_law(
    features: ScoreFeatures,
    simulated: SimulatedRecords,
    positions: Sequence[np.ndarray],
    given_rows: bool,
    rng: np.random.Generator,
) -> FeatureLaw:
    """The law with the best points that the outcomes allow; `positions` span the posterior, beginning with its centre."""
    if (sets := simulated.outcomes(positions)) is not None:
        return Enumerated(features, simulated, sets, positions, given_rows, rng)
    n_sets = min(_MOVING // simulated.n_records, _MOST_SETS)
    if n_sets >= _LEAST_SETS and (numbers := simulated.standard_numbers(n_sets, rng)) is not None:
        return FixedNumbers(features, simulated, numbers, positions[0], given_rows)
    return Reweighted(features, simulated, positions, given_rows, rng)
