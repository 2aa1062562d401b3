"""Errors of a copula: of the statistics from which it was made, and of those of which it knows nothing."""

from __future__ import annotations

import math

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

import numpy as np

from scipy import linalg

from pymc_dp.model.stand_in_error import StandInError
from pymc_dp.queries.cells import cell_covariance
from pymc_dp.queries.copula import Margin, product_sd

#: Standard deviation of the mean of products that are not released, around those of the copula, in units of the factors' standard
#: deviations: of a square and another column, and of three columns. As in the log-linear model of combinations.
_BENT_SD, _TRIPLE_SD = 0.25, 0.1
#: Most of such products of each kind, else none of it; and most numbers of all statistics: of the first rows, if there are more.
_MOST_PRODUCTS, _MOST_NUMBERS = 300, 20_000_000
#: Standard deviations that are smaller are rounding errors.
_SMALL = 1e-6


def copula_error(
    margins: Sequence[Margin], places: np.ndarray, noise_sd: float, product_noise_sd: float
) -> StandInError:
    """Covariance of the copula's error: from noisy margins and correlations, and from dependence it cannot represent."""
    width = sum(len(x.probabilities) for x in margins) + math.comb(len(margins), 2)
    places = places[: _MOST_NUMBERS // (width + 2 * _MOST_PRODUCTS)]
    statistics, covariances = list[np.ndarray](), list[np.ndarray]()
    for margin, column in zip(margins, places.T, strict=True):
        statistics.append(np.eye(len(margin.probabilities))[margin.bins_of(column)])
        covariances.append(_of_bins(margin, noise_sd))
    scores = [margin.scores(column) for margin, column in zip(margins, places.T, strict=True)]
    for one, two in combinations(scores, 2):
        prior = product_sd(one, two) ** 2
        variance = prior * product_noise_sd**2 / (prior + product_noise_sd**2) if prior else 0.0
        statistics.append((one * two)[:, None])
        covariances.append(np.array([[variance]]))
    for product, sd in _further(scores):
        statistics.append(product[:, None])
        covariances.append(np.array([[sd**2]]))
    return StandInError(np.hstack(statistics), linalg.block_diag(*covariances))


def _of_bins(margin: Margin, noise_sd: float) -> np.ndarray:
    """Covariance of the errors of bin probabilities; a limit of a range has its own noise, and the parts adapt to it."""
    p, is_range = margin.probabilities, not margin.is_category
    if not margin.n_limits:
        return cell_covariance(p, [len(p)], [is_range], noise_sd)
    between = p[1:-1].sum()
    parts = p[1:-1] / between
    found = np.zeros((len(p), len(p)))
    found[1:-1, 1:-1] = between**2 * cell_covariance(
        parts, [len(parts)], [True], noise_sd / between
    )
    for limit in np.flatnonzero(p[[0, -1]]) * (len(p) - 1):
        change = np.concatenate([[0.0], -parts, [0.0]])
        change[limit] = 1.0
        found += noise_sd**2 * np.outer(change, change)
    return found


def _further(scores: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, float]]:
    """Products of scores that are not released, with prior standard deviations."""
    m = len(scores)
    bent = [_bent(score) for score in scores] if math.perm(m, 2) <= _MOST_PRODUCTS else []
    for j, k in permutations(range(len(bent)), 2):
        if bent[j].std() > _SMALL:
            yield bent[j] * scores[k], _BENT_SD * bent[j].std() * scores[k].std()
    if math.comb(m, 3) <= _MOST_PRODUCTS:
        for one, two, three in combinations(scores, 3):
            yield one * two * three, _TRIPLE_SD * one.std() * two.std() * three.std()


def _bent(score: np.ndarray) -> np.ndarray:
    """Squared score minus its regression on the score: zero for a column of two values."""
    basis = np.column_stack([np.ones(len(score)), score])
    return score**2 - basis @ np.linalg.lstsq(basis, score**2)[0]
