"""dp-statsmodels (Ghenis 2025, https://github.com/MaxGhenis/dp-statsmodels): linear regression by noisy sufficient statistics.

    pip install git+https://github.com/MaxGhenis/dp-statsmodels@ce4a47b    # it is not on PyPI

Gaussian noise is added to X'X, X'y and y'y, which get 40, 40 and 20 per cent of epsilon and a third of delta each.
Standard errors are those of the regression and of the noise, to first order.

The sensitivities are those of *adding or removing* a record. Replacing one is removing one and adding another, so
a mechanism that is (e, d)-private for the former is (2 e, (1 + exp(e)) d)-private for the latter (Dwork and Roth 2014,
doi:10.1561/0400000042, theorem 2.2): it is run with half of epsilon, and delta over 1 + exp(epsilon / 2).

What a user chooses: one range for all covariates, and one for the outcome.
"""

import math

import dp_statsmodels.api as dpsm
import numpy as np

from peer_program import answer, problem


def posterior(x, y, epsilon, delta, bounds_x, bounds_y, seed):
    """Estimates and standard errors, the intercept first."""
    session = dpsm.Session(
        epsilon=epsilon, delta=delta, bounds_X=bounds_x, bounds_y=bounds_y, random_state=seed
    )
    found = session.OLS(y, x, epsilon=epsilon)
    return found.params, found.bse


def draws(p):
    """Of the normal law with these errors, by another generator than the noise has."""
    delta, largest = p.delta / (1 + math.exp(p.epsilon / 2)), (-p.largest, p.largest)
    given = p.x[:, 1:], p.y, p.epsilon / 2, delta, largest, tuple(p.outcome), p.seed
    mean, sd = posterior(*given)
    return mean + sd * np.random.default_rng([p.seed, 1]).standard_normal((2000, len(mean)))


if __name__ == "__main__":
    p = problem()
    answer(lambda: draws(p))
