r"""private_stand_in(): made-up rows of private covariates, from their ranges and two noisy sums.

1. **Marginals.** Counts of all columns in public bins (categories, or equal parts of a range): one release of
   :math:`m` histograms, of L2 sensitivity :math:`\sqrt{2 m}` if a record is replaced. Noisy counts are projected on the
   simplex.
2. **Dependence.** With the released distribution function of column ``j``, each value has a score
   :math:`g_j = \sqrt{12}\,(F_j - 1/2)`, its centred rank (the middle one for a category), of absolute value at most
   :math:`\sqrt 3`. The sum of the :math:`M = m (m - 1) / 2` products :math:`g_j g_k` is released, clipped to a
   ball of radius :math:`2 \sqrt M`: twice the root mean square of its norm for independent columns.
3. **Rows** are drawn from a Gaussian copula with the released marginals. Its correlations are those with which
   simulated products of scores have the released means, shrunk towards independence by the noise.

Nothing but the two releases depends on the data: the number of rows is free.

References
----------
Xue (2000), Multivariate dispersion models generated from Gaussian copula,
https://doi.org/10.1111/1467-9469.00201; Asghar, Ding, Rakotoarivelo, Mrabet, Kaafar (2020), Differentially private
release of datasets using Gaussian copula, https://doi.org/10.29012/jpc.686; Duchi et al. (2008), Efficient projections
onto the l1-ball, https://doi.org/10.1145/1390156.1390191.
"""

from __future__ import annotations

import math

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pytensor.tensor as pt

from scipy.special import ndtr

from pymc_dp.arguments import as_integer
from pymc_dp.model.record_function import RecordFunction
from pymc_dp.privacy.accounting.noise_choice import least_noise
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Gaussian
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.privacy.randomness.bits import OperatingSystemBits
from pymc_dp.queries.private_sum import check_unused
from pymc_dp.queries.ranges import Ranges

__all__ = ["StandIn", "private_stand_in"]

#: Parts of a range, at most; fewer if the noise on a count would exceed this part of its mean.
_N_BINS, _MOST_NOISE = (16, 8, 4, 2), 0.25
#: Part of the budget for the counts.
_COUNTS_PART = 0.5
#: Standard deviation of a correlation before it is released, and the largest one of a copula.
_PRIOR_SD, _MOST = 0.5, 0.99
#: Points and correlations at which the products of a copula's scores are simulated.
_N_POINTS, _CORRELATIONS = 8192, np.linspace(-_MOST, _MOST, 67)


@dataclass(frozen=True, eq=False)
class StandIn:
    """Made-up rows of covariates: public, since a budget paid for what they were made from.

    Parameters
    ----------
    rows : dict of str to array
        By the names of the ranges, with made-up rows on the leading axis: for a model of the same parameters that is
        passed as ``covariates=``.
    ranges : Ranges
    probabilities : tuple of arrays
        Of the bins of each column.
    correlations : array of shape (n_columns, n_columns)
        Of the Gaussian copula.
    report : PrivacyReport
    """

    rows: dict[str, np.ndarray]
    ranges: Ranges
    probabilities: tuple[np.ndarray, ...]
    correlations: np.ndarray
    report: PrivacyReport = field(repr=False)

    def draw(self, n_rows: int, random_seed: Any = None) -> dict[str, np.ndarray]:
        """Draw further made-up rows; nothing private is accessed."""
        rng = np.random.default_rng(random_seed)
        d = len(self.correlations)
        values, vectors = np.linalg.eigh(self.correlations)
        normal = rng.standard_normal((n_rows, d)) @ (vectors * np.sqrt(np.maximum(values, 0))).T
        margins = [_Margin(p, bool(c.categories)) for p, c in zip(self.probabilities, self.ranges.columns, strict=True)]  # fmt: skip
        places = [margin.places(z) for margin, z in zip(margins, normal.T, strict=True)]
        return self.ranges.rows(np.column_stack(places))

    def __str__(self) -> str:
        """The columns, with their marginal laws and correlations."""
        lines = [f"stand-in with {len(self.correlations)} column(s), made from noisy sums"]
        for column, p, row in zip(
            self.ranges.columns, self.probabilities, self.correlations, strict=True
        ):
            parts = " ".join(f"{x:.2f}" for x in p[:8]) + (" ..." if len(p) > 8 else "")
            others = " ".join(f"{r:+.2f}" for r in row[:8]) + (" ..." if len(row) > 8 else "")
            lines.append(f"  {column.name:<16} probabilities {parts}; correlations {others}")
        return "\n".join(lines)


def private_stand_in(
    data: Mapping[str, Any],
    ranges: Ranges,
    *,
    budget: PrivacyBudget,
    n_rows: int = 2000,
    noise: str = "auto",
    n_records: int | None = None,
    random_seed: Any = None,
) -> StandIn:
    """Make a stand-in for private covariates from their ranges: counts and products are released, rows are made up.

    Parameters
    ----------
    data : mapping of str to array, or DataFrame
        Private covariates, a record per row.
    ranges : Ranges
        Of the columns that the stand-in is to have.
    budget : PrivacyBudget
        Pays for both releases, all of it. To spend a twentieth of an account, make a budget of that part with the same
        ledger.
    n_rows : int
        Number of made-up rows.
    noise : {"auto", "gaussian", "l2"}
        As in :func:`~pymc_dp.private_sum`.
    n_records : int, optional
        Public guess of the number of records, for the number of bins; required under add/remove. By default the
        number of rows, which is public under substitution.
    random_seed : int or Generator, optional
        Of the made-up rows.

    Returns
    -------
    StandIn

    Raises
    ------
    ValueError, TypeError
        If data and ranges do not fit together, before anything is accessed.
    PrivacyBudgetExhausted
        If something was claimed on the budget before, or its ledger does not pay for it.

    Notes
    -----
    What a stand-in has are marginal laws in bins and one correlation for each pair of columns, in the order of the
    categories. Interactions and other dependence among three or more columns are not those of the data.

    Examples
    --------
    >>> import numpy as np, pymc_dp as dp
    >>> from pymc_dp.queries import Ranges, private_stand_in
    >>> rng = np.random.default_rng(3)
    >>> age = rng.uniform(30, 60, size=20_000)
    >>> data = {"age": age, "ill": (rng.random(20_000) < age / 200).astype(int)}
    >>> budget = dp.PrivacyBudget(epsilon=0.5, delta=1e-7, chains=1)
    >>> found = private_stand_in(data, Ranges(age=(18, 100), ill=[0, 1]), budget=budget)
    >>> bool(
    ...     abs(found.rows["age"].mean() - 45) < 2 and abs(found.rows["ill"].mean() - 0.225) < 0.05
    ... )
    True
    """
    places = ranges.places(data)
    check_unused(budget, "stand-in")
    number = as_integer("n_records", len(places) if n_records is None else n_records, 1)
    if n_records is None and budget.adjacency.sensitivity_factor == 1:
        raise ValueError(
            "Under add/remove the number of records is private: pass n_records=, a public guess."
        )
    columns = ranges.columns
    n_bins, first, second = _design(budget, noise, columns, number)
    n_pairs = len(columns) * (len(columns) - 1) // 2
    accesses = ((first, 1), *(((second, 1),) if second else ()))
    counted = RecordFunction(lambda place: place, {"place": places})
    edges = [_edges(len(c.categories), n_bins) for c in columns]
    factor = budget.adjacency.sensitivity_factor
    budget.spend("stand-in", accesses, counted.data_keys, len(places), plan=accesses)
    counts = counted.counts(edges)
    law = NoiseLaw.of(first, math.sqrt(factor * len(columns)), sum(map(len, counts)))
    noisy = law.add(np.concatenate(counts), 0, OperatingSystemBits())
    ends = np.cumsum([len(count) for count in counts])[:-1]
    probabilities = tuple(
        _on_simplex(c / max(noisy.sum() / len(counts), 1)) for c in np.split(noisy, ends)
    )
    correlations = np.eye(len(columns))
    if second:
        margins = [_Margin(p, bool(c.categories)) for p, c in zip(probabilities, columns, strict=True)]  # fmt: skip
        scores = np.column_stack(
            [margin.scores(place) for margin, place in zip(margins, places.T, strict=True)]
        )
        products = RecordFunction(_products, {"scores": scores})
        radius = 2 * math.sqrt(n_pairs)
        steps, exponent = products.ball_steps(np.zeros(n_pairs), radius)
        law = NoiseLaw.of(second, factor, n_pairs)
        means = law.add(steps, exponent, OperatingSystemBits()) * radius / number
        correlations = _correlations(margins, means, law.sd * radius / number)
    made = StandIn({}, ranges, probabilities, correlations, budget.report())
    made.rows.update(made.draw(n_rows, random_seed))
    return made


def _products(scores: Any) -> Any:
    """Of a record's scores, all pairs."""
    first, second = np.triu_indices(scores.type.shape[0], 1)
    return pt.stack([scores[j] * scores[k] for j, k in zip(first, second, strict=True)])


def _design(
    budget: PrivacyBudget, noise: str, columns: list[Any], n_records: int
) -> tuple[int, Gaussian | L2Laplace, Gaussian | L2Laplace | None]:
    """Number of bins of a range, and noise of both releases."""
    limits = budget.epsilon, budget.delta
    options: dict[str, Any] = {"noise": noise, "accountant": budget.accountant}
    n_pairs = len(columns) * (len(columns) - 1) // 2
    for n_bins in _N_BINS:
        size = sum(len(c.categories) or n_bins for c in columns)
        if budget.epsilon == math.inf:
            return n_bins, Gaussian(1e-6), Gaussian(1e-6) if n_pairs else None
        first = alone = least_noise(size, *limits, **options)
        if n_pairs and isinstance(alone, L2Laplace):
            first = L2Laplace(alone.epsilon * _COUNTS_PART, size)
        elif n_pairs:
            first = Gaussian(alone.noise_sd / math.sqrt(_COUNTS_PART))
        factor = budget.adjacency.sensitivity_factor
        if first.noise_sd * math.sqrt(factor * len(columns)) <= _MOST_NOISE * n_records / n_bins:
            break
    if not n_pairs:
        return n_bins, first, None
    return n_bins, first, least_noise(n_pairs, *limits, before=((first, 1),), **options)


def _edges(n_categories: int, n_bins: int) -> np.ndarray:
    """Edges between categories, or equal parts of [0, 1]."""
    if n_categories:
        return np.arange(0.5, n_categories - 1)
    return np.arange(1, n_bins) / n_bins


def _on_simplex(vector: np.ndarray) -> np.ndarray:
    """The nearest vector of probabilities (Duchi et al.)."""
    descending = np.sort(vector)[::-1]
    excess = (descending.cumsum() - 1) / np.arange(1, len(vector) + 1)
    last = np.flatnonzero(descending > excess)[-1]
    return np.maximum(vector - excess[last], 0.0)


class _Margin:
    """Released law of a column: positions from normal scores, and centred ranks of positions."""

    def __init__(self, probabilities: np.ndarray, is_category: bool) -> None:
        self._below = np.concatenate([[0.0], probabilities.cumsum()])
        self._below /= self._below[-1]
        self._is_category, self._n = is_category, len(probabilities)

    def places(self, normal: np.ndarray) -> np.ndarray:
        """The position whose rank is that of a standard normal number."""
        ranks = ndtr(normal)
        bins = np.searchsorted(self._below[1:-1], ranks, side="right")
        if self._is_category:
            return bins.astype(float)
        low, high = self._below[bins], self._below[bins + 1]
        return (bins + (ranks - low) / np.maximum(high - low, 1e-300)) / self._n

    def scores(self, places: np.ndarray) -> np.ndarray:
        """Centred ranks times the root of 12, each a function of one position."""
        if self._is_category:
            bins = places.astype(int)
            ranks = (self._below[bins] + self._below[bins + 1]) / 2
        else:
            ranks = np.interp(places, np.arange(self._n + 1) / self._n, self._below)
        return math.sqrt(12) * (ranks - 0.5)


def _correlations(margins: list[_Margin], means: np.ndarray, noise_sd: float) -> np.ndarray:
    """Correlations of the copula whose scores have these mean products, shrunk by the noise."""
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
        spread = _PRIOR_SD * first.std() * second[len(second) // 2].std()
        if spread > 0:
            shrunk = mean * spread**2 / (spread**2 + noise_sd**2)
            found[j, k] = found[k, j] = np.interp(shrunk, products, _CORRELATIONS)
    values, vectors = np.linalg.eigh(found)
    root = vectors * np.sqrt(np.maximum(values, 1e-6))
    found = root @ root.T
    scale = np.sqrt(np.diag(found))
    return found / np.outer(scale, scale)
