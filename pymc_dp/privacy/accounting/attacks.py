"""Power of attacks that distinguish two neighbouring data sets from a release."""

from __future__ import annotations

import math

import numpy as np

from scipy.special import ndtr, ndtri

from pymc_dp.privacy.accounting.composition import Cost

__all__ = ["max_true_positive_rate"]


def max_true_positive_rate(cost: Cost, false_positive_rate: float) -> float:
    """Bound the power of any attack that distinguishes two neighbouring data sets.

    Parameters
    ----------
    cost : Cost
        Of all accesses.
    false_positive_rate : float
        False positive rate of the attack, in (0, 1).

    Returns
    -------
    float
        Largest possible true positive rate: exact for Gaussian mechanisms, else from all (epsilon, delta) pairs,
        that of ``delta = 0`` included.
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
