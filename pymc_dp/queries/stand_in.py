r"""private_stand_in(): made-up rows of private covariates, from their ranges and noisy sums.

1. **Marginals.** Counts of all columns in public bins (categories; the limits of a range, and equal parts of it): one release of
   :math:`m` histograms, of L2 sensitivity :math:`\sqrt{2 m}` if a record is replaced. Noisy counts of categories are
   projected on the simplex; those of parts of a range are smoothed as much as their noise allows.
2. **Dependence.** With the released distribution function of column ``j``, each value has a score
   :math:`g_j = \sqrt{12}\,(F_j - 1/2)`, its centred rank (the middle one for a category), of absolute value at most
   :math:`c_j \le \sqrt 3`. The sum of the products :math:`g_j g_k`, for all pairs of columns, is released. Its
   terms have a norm of at most :math:`r = (\sum_{j < k} c_j^2 c_k^2)^{1/2}`, so that nothing is clipped. If a record is replaced, it
   changes by at most :math:`\min(2 r, \sum_j c_j^2)`: twice the square of the change is at most
   :math:`|g g' - h h'|^2 \le |g|^4 + |h|^4`.
3. **Rows** are drawn from a Gaussian copula with the released marginals. Its correlations are those with which
   simulated products of scores have the released means, shrunk towards independence by the noise.

If the bins of all columns have few combinations, one histogram of these is released in place of 1 and 2, of
sensitivity :math:`\sqrt 2` whatever their number (:mod:`pymc_dp.queries.cells`).

Nothing but the releases depends on the data: the number of rows is free.

References
----------
Xue (2000), Multivariate dispersion models generated from Gaussian copula,
https://doi.org/10.1111/1467-9469.00201; Asghar, Ding, Rakotoarivelo, Mrabet, Kaafar (2020), Differentially private
release of datasets using Gaussian copula, https://doi.org/10.29012/jpc.686; Duchi et al. (2008), Efficient projections
onto the l1-ball, https://doi.org/10.1145/1390156.1390191; Silverman (1982), On the estimation of a probability density
function by the maximum penalized likelihood method, https://doi.org/10.1214/aos/1176345872.
"""

from __future__ import annotations

import math

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_dp.arguments import as_integer
from pymc_dp.codec import published
from pymc_dp.display import MOST_ROWS, Shown, Table
from pymc_dp.model.record_function import Ball, Bins, RecordFunction
from pymc_dp.model.stand_in_error import StandInError, indicators
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privacy.mechanisms.mechanism import Adjacency
from pymc_dp.queries.cells import (
    cell_correlations,
    cell_covariance,
    cell_numbers,
    cell_places,
    cell_probabilities,
    margins_of,
)
from pymc_dp.queries.copula import Margin, bin_edges, correlations_of, limit_probabilities
from pymc_dp.queries.copula_error import copula_error
from pymc_dp.queries.noisy_total import check_can_be_made, check_unused, noisy_total
from pymc_dp.queries.ranges import Ranges
from pymc_dp.queries.stand_in_design import ROUNDING, StandInDesign, design_stand_in

#: Allowance for the truncation of products to a grid.
_TRUNCATION = 1 + 2.0**-20


@published
@dataclass(frozen=True, eq=False)
class StandIn(Shown):
    """Laws of covariates, and made-up rows that have them: public, since a budget paid for what they were made from.

    Parameters
    ----------
    ranges : Ranges
        Names, and ranges or categories, of the columns.
    probabilities : tuple of arrays
        Of the bins of each column: categories, or equal parts of a range.
    correlations : array of shape (n_columns, n_columns)
        Of the Gaussian copula.
    n_rows, seed : int
        Number of rows that are made up, and the public seed they are made with.
    cells : array, optional
        Probability of each combination of bins, the last column changing fastest, in place of a copula.
    noise_sd : float
        Standard deviation of the noise on the share of each combination, or of each bin; 0 if errors are not known.
    product_noise_sd : float
        Standard deviation of the noise on the mean of each product of scores.
    has_limits : bool
        Whether the first and the last bin of a range are its limits.
    report : PrivacyReport, optional
        What it cost, if a budget of its own paid for it.

    Examples
    --------
    >>> ranges = dp.Ranges(age=(18, 98), ill=[0, 1])
    >>> shares = np.full(4, 0.25), np.array([0.9, 0.1])
    >>> dp.queries.StandIn(ranges, shares, np.eye(2), n_rows=500).rows["age"].shape
    (500,)
    """

    ranges: Ranges
    probabilities: tuple[np.ndarray, ...]
    correlations: np.ndarray
    n_rows: int
    seed: int = 0
    cells: np.ndarray | None = field(default=None, repr=False)
    noise_sd: float = 0.0
    product_noise_sd: float = 0.0
    has_limits: bool = False
    report: PrivacyReport | None = field(default=None, repr=False)

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """Simulated rows by the names of the ranges: for a model of the same parameters, passed as ``covariates=``."""
        return self.draw(self.n_rows, self.seed)

    @property
    def sizes(self) -> list[int]:
        """Number of bins of each column."""
        return [len(p) for p in self.probabilities]

    @cached_property
    def error(self) -> StandInError | None:
        """Covariance of the error of the rows' statistics, as far as it is known; None without noise."""
        if not self.noise_sd:
            return None
        rng = np.random.default_rng(self.seed)
        ordered = [not column.categories for column in self.ranges.columns]
        if self.cells is not None:
            numbers = cell_numbers(self.cells, self.n_rows, rng)
            covariance = cell_covariance(self.cells, self.sizes, ordered, self.noise_sd)
            return StandInError(indicators(numbers, len(self.cells)), covariance)
        places = self._places(self.n_rows, rng)
        return copula_error(self._margins, places, self.noise_sd, self.product_noise_sd)

    @property
    def _margins(self) -> list[Margin]:
        pairs = zip(self.probabilities, self.ranges.columns, strict=True)
        return [
            Margin(p, bool(c.categories), self.has_limits and not c.categories) for p, c in pairs
        ]

    def has_rows(self, data: Mapping[str, np.ndarray]) -> bool:
        """Whether columns are those of :attr:`rows`."""
        return all(name in data and np.array_equal(data[name], x) for name, x in self.rows.items())

    def draw(self, n_rows: int, random_seed: Any = None) -> dict[str, np.ndarray]:
        """Draw further made-up rows; nothing private is accessed."""
        return self.ranges.rows(self._places(n_rows, np.random.default_rng(random_seed)))

    def _places(self, n_rows: int, rng: np.random.Generator) -> np.ndarray:
        """Positions of simulated rows, shape ``(n_rows, n_columns)``."""
        margins = self._margins
        if self.cells is not None:
            return cell_places(self.cells, margins, self.sizes, self.correlations, n_rows, rng)
        values, vectors = np.linalg.eigh(self.correlations)
        root = vectors * np.sqrt(np.maximum(values, 0))
        normal = rng.standard_normal((n_rows, len(root))) @ root.T
        return np.column_stack([m.places(z) for m, z in zip(margins, normal.T, strict=True)])

    def __str__(self) -> str:
        """The columns, with their marginal laws and correlations."""
        lines = (f"  {name:<16} {text}".rstrip() for name, text in self._table().rows)
        return "\n".join([self._table().title, *lines])

    def _table(self) -> Table:
        title = f"stand-in with {len(self.correlations)} column(s), made from noisy sums"
        rows = []
        for column, p, row in zip(
            self.ranges.columns, self.probabilities, self.correlations, strict=True
        ):
            parts = " ".join(f"{x:.2f}" for x in p[:8]) + (" ..." if len(p) > 8 else "")
            others = " ".join(f"{r:+.2f}" for r in row[:8]) + (" ..." if len(row) > 8 else "")
            rows.append((column.name, f"probabilities {parts}; correlations {others}"))
        more = len(rows) - MOST_ROWS
        return Table(title, rows if more <= 0 else [*rows[:MOST_ROWS], (f"... {more} more", "")])


def uniform_stand_in(ranges: Ranges, n_rows: int) -> StandIn:
    """The stand-in before any release: uniform and independent columns."""
    sizes = [len(column.categories) or 1 for column in ranges.columns]
    return StandIn(ranges, tuple(np.full(k, 1 / k) for k in sizes), np.eye(len(sizes)), n_rows)


def release_stand_in(
    places: np.ndarray,
    ranges: Ranges,
    design: StandInDesign,
    adjacency: Adjacency,
    n_rows: int,
    seed: int = 0,
) -> StandIn:
    """Release counts and products, and make a stand-in from them; paid for by the caller."""
    columns = ranges.columns
    if design.is_joint:
        return _release_cells(places, ranges, design, adjacency, n_rows, seed)
    edges = [bin_edges(len(c.categories), design.n_bins) for c in columns]
    source, term = RecordFunction(lambda place: place, {"place": places}), Bins(edges)
    release = noisy_total(source, term, design.counts, adjacency)
    noisy, law = release.total, release.noise
    is_public = adjacency is Adjacency.SUBSTITUTE
    total = len(places) if is_public else max(noisy.sum() / len(columns), 1.0)
    noise_sd = law.sd / total
    probabilities = tuple(
        cell_probabilities(count / total, [len(count)], [False], noise_sd)
        if column.categories
        else limit_probabilities(count, total, law.sd)
        for column, count in zip(columns, term.split(noisy), strict=True)
    )
    independent = np.eye(len(columns))
    found = StandIn(
        ranges, probabilities, independent, n_rows, seed, noise_sd=noise_sd, has_limits=True
    )
    if design.products is None:
        return found
    margins = found._margins
    pairs = zip(margins, places.T, strict=True)
    scores = np.column_stack([margin.scores(place) for margin, place in pairs])
    products = RecordFunction(_products, {"scores": scores})
    product = _products_of([m.largest_score for m in margins])
    sums, scale = noisy_total(products, product, design.products, adjacency), product.bound / total
    means, product_noise_sd = sums.total * scale, sums.noise_sd * scale
    correlations = correlations_of(margins, means, product_noise_sd)
    return replace(found, correlations=correlations, product_noise_sd=product_noise_sd)


def private_stand_in(
    data: Mapping[str, Any],
    ranges: Ranges,
    *,
    budget: PrivacyBudget,
    n_rows: int = 2000,
    n_records: int | None = None,
    random_seed: int = 0,
) -> StandIn:
    """Make a stand-in for private covariates from their ranges: counts are released, rows are made up.

    Parameters
    ----------
    data : mapping of str to array, or DataFrame
        Private covariates, a record per row.
    ranges : Ranges
        Of the columns that the stand-in is to have.
    budget : PrivacyBudget
        Pays for the releases, all of it; their noise is Gaussian, or l2 noise with ``delta = 0``. To spend a
        part of an account, make a budget of that part with the same ledger.
    n_rows : int
        Number of made-up rows.
    n_records : int, optional
        Public guess of the number of records, for the number of bins; required under add/remove. By default the
        number of rows, which is public under substitution.
    random_seed : int
        Of the made-up rows; public.

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
    With at most 500 combinations of bins, and little noise on their counts, a stand-in has these combinations. Else it
    has marginal laws in bins and one correlation for each pair of columns, in the order of the categories; then
    interactions and other dependence among three or more columns are not those of the data.

    Examples
    --------
    >>> import numpy as np, pymc_dp as dp
    >>> rng = np.random.default_rng(3)
    >>> age = rng.uniform(30, 60, size=20_000)
    >>> data = {"age": age, "ill": (rng.random(20_000) < age / 200).astype(int)}
    >>> budget = dp.PrivacyBudget(epsilon=0.5, delta=1e-7, chains=1)
    >>> found = dp.private_stand_in(
    ...     data, dp.Ranges(age=(18, 100), ill=[0, 1]), budget=budget
    ... )
    >>> bool(
    ...     abs(found.rows["age"].mean() - 45) < 2
    ...     and abs(found.rows["ill"].mean() - 0.225) < 0.05
    ... )
    True
    """
    places = ranges.places(data)
    check_unused(budget, "stand-in")
    is_private = budget.adjacency is Adjacency.ADD_REMOVE
    if n_records is None and is_private:
        raise ValueError(
            "Under add/remove the number of records is private: pass n_records=, a public guess."
        )
    number = as_integer("n_records", len(places) if n_records is None else n_records, 1)
    n_rows, random_seed = as_integer("n_rows", n_rows, 1), as_integer("random_seed", random_seed, 0)
    design = design_stand_in(ranges, budget, number)
    check_can_be_made(design.accesses, budget.adjacency)
    containers = [data, *(data[name] for name in ranges)]
    budget.spend("stand-in", design.accesses, containers, len(places), plan=design.accesses)
    made = release_stand_in(places, ranges, design, budget.adjacency, n_rows, random_seed)
    return replace(made, report=budget.report())


def _release_cells(
    places: np.ndarray,
    ranges: Ranges,
    design: StandInDesign,
    adjacency: Adjacency,
    n_rows: int,
    seed: int,
) -> StandIn:
    """Release the counts of all cells and make a stand-in from them."""
    sizes = [len(column.categories) or design.n_bins for column in ranges.columns]
    bins = [
        place.astype(int) if column.categories else np.minimum(place * n, n - 1).astype(int)
        for column, place, n in zip(ranges.columns, places.T, sizes, strict=True)
    ]
    function = RecordFunction(lambda x: [x], {"x": np.ravel_multi_index(bins, sizes)})
    term = Bins([np.arange(0.5, math.prod(sizes) - 1)])
    release = noisy_total(function, term, design.counts, adjacency)
    noisy, law = release.total, release.noise
    is_public = adjacency is Adjacency.SUBSTITUTE
    total = len(places) if is_public else max(noisy.sum(), 1.0)
    ordered = [not column.categories for column in ranges.columns]
    noise_sd = law.sd / total
    cells = cell_probabilities(noisy / total, sizes, ordered, noise_sd)
    laws = margins_of(cells, sizes)
    correlations = cell_correlations(cells, laws)
    return StandIn(ranges, tuple(laws), correlations, n_rows, seed, cells, noise_sd)


def _products(scores: Any) -> Any:
    """Products of all pairs of a record's scores."""
    first, second = np.triu_indices(scores.type.shape[0], 1)
    return pt.stack([scores[j] * scores[k] for j, k in zip(first, second, strict=True)])


@dataclass(frozen=True, eq=False)
class _Products(Ball):
    """Products of pairs of a record's scores, in units of their largest norm; `square` is that of the scores' norm."""

    square: float

    def sensitivity(self, adjacency: str) -> float:
        r"""If a record is replaced, at most :math:`\min(2 r, \sum_j c_j^2)`, in units of `r`: the proof is above, at 2."""
        if adjacency == Adjacency.ADD_REMOVE:
            return 1.0
        return min(2 * self.bound, self.square * _TRUNCATION) / self.bound


def _products_of(largest: Sequence[float]) -> _Products:
    """For scores with these largest absolute values."""
    squares, d = np.square(largest), len(largest)
    radius = math.sqrt((squares.sum() ** 2 - np.square(squares).sum()) / 2) * ROUNDING
    return _Products(np.zeros(d * (d - 1) // 2), radius, squares.sum())
