"""Power of attacks that distinguish two neighbouring data sets from a release."""

from __future__ import annotations

import math

import numpy as np

from scipy.special import ndtr, ndtri

from pymc_dp.privacy.accounting.composition import Cost

__all__ = ["max_true_positive_rate"]


def max_true_positive_rate(cost: Cost, false_positive_rate: float) -> float:
    r"""Largest true positive rate of any attack on two neighbouring data sets, at a false positive rate in (0, 1).

    Exact for Gaussian mechanisms: :math:`\Phi(\Phi^{-1}(\alpha) + \mu)` (section 2 of Dong, Roth,
    Su 2022, https://doi.org/10.1111/rssb.12454). Else the smallest that follows from (epsilon, delta) pairs, the one at
    ``delta = 0`` included.
    """
    if cost.free:
        return false_positive_rate
    power = 1.0
    if cost.mu_squared < math.inf:
        power = float(ndtr(ndtri(false_positive_rate) + math.sqrt(cost.mu_squared)))
    pairs = [(e, cost.delta(e, "rdp")) for e in np.geomspace(1e-3, 50, 200).tolist()]
    if cost.pure_epsilon <= 50:
        pairs.append((cost.pure_epsilon, 0.0))
    for epsilon, delta in pairs:
        power = min(
            power,
            math.exp(epsilon) * false_positive_rate + delta,
            1 - math.exp(-epsilon) * (1 - false_positive_rate - delta),
        )
    return power
