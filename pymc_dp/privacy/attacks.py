"""How well anybody can tell two neighbouring data sets apart from what was released."""

from __future__ import annotations

import math

import numpy as np

from scipy.special import ndtr, ndtri

from pymc_dp.privacy.composition import Cost

__all__ = ["max_true_positive_rate"]


def max_true_positive_rate(cost: Cost, false_positive_rate: float) -> float:
    """Bound the power of any attack that tells two neighbouring data sets apart.

    Parameters
    ----------
    cost : Cost
        Of everything released.
    false_positive_rate : float
        How often the attacker may cry wolf, in (0, 1).

    Returns
    -------
    float
        Largest possible true positive rate: exact for Gaussian mechanisms, else from all (epsilon,
        delta) pairs.
    """
    if cost.free:
        return false_positive_rate
    power = 1.0
    if cost.mu_squared < math.inf:
        power = float(ndtr(ndtri(false_positive_rate) + math.sqrt(cost.mu_squared)))
    for epsilon in np.geomspace(1e-3, 50, 200):
        delta = cost.delta(epsilon, "rdp")
        power = min(
            power,
            math.exp(epsilon) * false_positive_rate + delta,
            1 - math.exp(-epsilon) * (1 - false_positive_rate - delta),
        )
    return power
