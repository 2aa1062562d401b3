"""Design of the releases of a stand-in: which counts, in how many bins, with how much noise."""

from __future__ import annotations

import math

from dataclasses import dataclass

from pymc_dp.display import Shown
from pymc_dp.privacy.accounting.noise_choice import least_noise
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Adjacency, Gaussian
from pymc_dp.queries.noisy_total import NO_PROTECTION
from pymc_dp.queries.ranges import Ranges

#: Parts of a range, at most; fewer if the noise on a count would exceed this part of its mean.
_N_BINS, _MOST_NOISE = (16, 8, 4, 2), 1.0
#: Combinations of bins are counted if they are at most so many, and if the sum of the standard deviations of the noise
#: on all counts is at most this part of the number of records: with so many parts of a range.
_MOST_CELLS, _CELL_BINS = 500, ((16, 0.5), (8, 0.5), (6, 0.5), (4, 2.5))
#: Allowance for rounding errors.
ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class StandInDesign(Shown):
    """Releases of a stand-in: counts in the bins of each column, or of all cells (`is_joint`), and products of scores.

    `n_bins` is the number of equal parts of each range; `products` is None for a single column.
    """

    n_bins: int
    counts: Gaussian | L2Laplace
    products: Gaussian | L2Laplace | None
    is_joint: bool = False

    @property
    def accesses(self) -> Accesses:
        """All accesses that are claimed."""
        return ((self.counts, 1), *(((self.products, 1),) if self.products else ()))

    def count_noise(self, adjacency: Adjacency, n_columns: int) -> float:
        """Standard deviation of the noise on each count."""
        n_histograms = 1 if self.is_joint else n_columns
        return self.counts.noise_sd * math.sqrt(adjacency.sensitivity_factor * n_histograms)


def design_stand_in(
    ranges: Ranges, budget: PrivacyBudget, n_records: int, share: float = 1.0
) -> StandInDesign:
    """Bins and noise of a stand-in for a share of a budget: Gaussian noise, or l2 noise if ``delta = 0``.

    The share is of the squared ``mu``, or of epsilon. The counts of all cells get all of it, unless there are too many
    cells or a single range; else counts of each column and products get half of it each.
    """
    columns = ranges.columns
    sizes = [len(column.categories) for column in columns]
    n_pairs = len(columns) * (len(columns) - 1) // 2

    def noise(n_dim: int, part: float) -> Gaussian | L2Laplace:
        if budget.epsilon == math.inf:
            return NO_PROTECTION
        if budget.delta == 0:
            return L2Laplace(budget.epsilon * part / ROUNDING, n_dim)
        limits = budget.epsilon, budget.delta
        alone = least_noise(1, *limits, noise="gaussian", accountant=budget.accountant)
        return Gaussian(alone.noise_sd * ROUNDING / math.sqrt(part))

    for n_bins, most_noise in _CELL_BINS if n_pairs or sizes[0] else ():
        n_cells = math.prod(size or n_bins for size in sizes)
        joint = StandInDesign(n_bins, noise(n_cells, share), None, is_joint=True)
        total_noise = n_cells * joint.count_noise(budget.adjacency, 1)
        if n_cells <= _MOST_CELLS and total_noise <= most_noise * n_records:
            return joint
    part = share / 2 if n_pairs else share
    products = noise(n_pairs, part) if n_pairs else None
    for n_bins in _N_BINS:
        counts = noise(sum(size or n_bins + 2 for size in sizes), part)  # with the limits
        found = StandInDesign(n_bins, counts, products)
        most = _MOST_NOISE * n_records / n_bins
        if found.count_noise(budget.adjacency, len(columns)) <= most:
            break
    return found
