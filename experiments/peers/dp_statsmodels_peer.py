"""dp-statsmodels: linear regression by noisy sufficient statistics: see README.md."""

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
