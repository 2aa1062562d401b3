"""What an attack on whole runs proves: lower bounds on epsilon, and on mu of Gaussian differential privacy."""

from __future__ import annotations

import math

from scipy import optimize, stats

#: Each bound fails by chance so often.
LIMIT = 0.005


def lower_bounds(wrong: tuple[int, int], runs: int, delta: float) -> tuple[float, float]:
    """On epsilon and on mu, from the errors of a test of one data set against the other (Clopper and Pearson, 1934).

    `wrong`: how many of the `runs` on either data set were taken for one on the other.
    """
    one, other = (stats.beta.isf(LIMIT, w + 1, runs - w) if w < runs else 1.0 for w in wrong)
    epsilon = max(math.log(max(1 - b - delta, 1e-300) / a) for a, b in ((one, other), (other, one)))
    return epsilon, stats.norm.isf(one) + stats.norm.isf(other)


def mu_allowed(epsilon: float, delta: float) -> float:
    """Mu of the Gaussian mechanism that is ``(epsilon, delta)``-private (Dong, Roth, Su, 2022)."""

    def excess(mu: float) -> float:
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return stats.norm.cdf(a) - math.exp(epsilon) * stats.norm.cdf(b) - delta

    return optimize.brentq(excess, 0.01, 20.0)
