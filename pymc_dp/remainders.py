"""Bounds on what a surrogate leaves of records: what they cut off, and how many decisions they allow."""

from __future__ import annotations

import math

import numpy as np

from pymc_dp.acceptance import Barker
from pymc_dp.costs import decision_cost, decisions, sides_of
from pymc_dp.model.simulated import SimulatedRecords
from pymc_dp.newton import MISFIT
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.steps.features import LEAST, MANY, Features
from pymc_dp.steps.surrogate import Surrogate

__all__ = ["POSITIONS", "best_within", "bounds_on_the_rest", "effective"]

#: Parts of what is left, among simulated records, that bounds may hold.
_WITHIN = (0.9, 0.95, 0.98, 0.99, 0.998, 1.0)
#: Variance of the 5 % quantile of independent normal draws, times their number: p (1 - p) / density^2.
_ENDS = 4.47
#: Positions that they are judged by.
POSITIONS = 32


@np.errstate(over="ignore", invalid="ignore")
def bounds_on_the_rest(
    simulated: SimulatedRecords,
    features: Features,
    draws: np.ndarray,
    n_records: int,
    temperature: float,
    budget: PrivacyBudget,
) -> list[tuple[float, float, float]]:
    """For each part that bounds may hold: it, the bias, and the price of a decision.

    Means over draws of a surrogate; the bias is in posterior standard deviations.
    """
    n, t, d = n_records, temperature, len(features.theta)
    found = []
    for theta in draws:
        place = features.at(theta)
        if place is None:  # under much noise places are as good as impossible: no choice
            return []
        found.append(_cut_off(*features.left(theta, place)))
    unknown = MISFIT * math.sqrt(n * t * np.mean(features.cut_gradient**2))
    judged = []
    for within, of_each in zip(_WITHIN, np.moveaxis(np.array(found), 1, 0), strict=True):
        bounds, variance, unseen, size = of_each.T
        # Of the sum over the data, and of its mean over records that are simulated.
        scatter = n * (1 + n / min(simulated.n_records, MANY)) * variance.mean()
        misfit = unknown**2 + (MISFIT * t * n) ** 2 * np.mean(size**2) / d
        bias = np.sqrt(t**2 * scatter / d + np.mean(unseen**2) + misfit)
        pairs = np.quantile(np.add.outer(bounds, bounds), np.linspace(0.02, 0.98, 13))
        sensitivities = sides_of(budget) * t * pairs
        cost = np.mean([decision_cost(budget, Barker(), x) for x in sensitivities.tolist()])
        # Under much noise places are so far off that there are no numbers: as bad as can be.
        bias, cost = np.nan_to_num([bias, cost], nan=np.inf, posinf=np.inf)
        judged.append((within, float(bias), float(cost)))
    return judged


def best_within(
    simulated: SimulatedRecords, surrogate: Surrogate, budget: PrivacyBudget, max_draws: int
) -> float:
    """The part that bounds should hold, once it is known where decisions are going to be.

    The ends of 90 % intervals are then least off; they need more draws than means do.
    """
    draws = surrogate.draws[:: math.ceil(len(surrogate.draws) / POSITIONS)]
    n, t = surrogate.n_records, surrogate.temperature
    left, chains = budget.left(), budget.chains

    def error(judged: tuple[float, float, float]) -> float:
        _, bias, cost = judged
        return bias**2 + _ENDS / effective(chains, decisions(left, cost, chains, max_draws))

    judged = bounds_on_the_rest(simulated, surrogate.features, draws, n, t, budget)
    return min(judged, key=error)[0]


def effective(chains: int, draws: float) -> float:
    """Effective draws, roughly: proposals are nearly independent, and half of them rejected."""
    return max(chains * draws / 3, 1e-12)


def _cut_off(ratios: np.ndarray, left: np.ndarray) -> list[tuple[float, ...]]:
    """For each part, the bound; of what it cuts off the variance, the part of ratios, the mean size."""
    found: list[tuple[float, ...]] = []
    for bound in np.maximum(np.quantile(np.abs(left), _WITHIN), LEAST):
        cut = left - np.clip(left, -bound, bound)
        (variance, shared), (_, all_) = np.cov(cut, ratios)
        found.append((bound, variance, shared / all_, np.abs(cut).mean()))
    return found
