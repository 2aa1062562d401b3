"""Moves of hyperparameters in partially non-centred coordinates: they leave any target invariant."""

import arviz as az
import numpy as np
import pytest

from scipy import stats

from pymc_dp.scores.noncentring import PartialNoncentring

#: Observed means of the groups, and their standard errors.
MEANS, ERRORS = np.array([-1.0, 0.3, 1.4, 0.2]), np.array([0.3, 0.5, 0.8, 0.2])


def log_prior(theta):
    """Of ``mu``, ``log tau`` and a centred parameter for each group."""
    mu, log_tau, groups = theta[0], theta[1], theta[2:]
    hyper = -((mu / 1.5) ** 2) / 2 - ((log_tau + 1) / 1.2) ** 2 / 2
    return hyper - 4 * log_tau - ((groups - mu) ** 2).sum() / (2 * np.exp(2 * log_tau))


def grad_log_prior(theta):
    mu, log_tau, groups = theta[0], theta[1], theta[2:]
    z = (groups - mu) / np.exp(2 * log_tau)
    square = ((groups - mu) * z).sum()
    hyper = z.sum() - mu / 1.5**2, square - 4 - (log_tau + 1) / 1.2**2
    return np.array([*hyper, *-z])


def log_density(theta):
    return log_prior(theta) - (((theta[2:] - MEANS) / ERRORS) ** 2).sum() / 2


def law_of_log_tau():
    """Its grid and distribution function: groups are integrated out in closed form, and ``mu`` on a grid."""
    log_tau, mu = np.linspace(-7, 4, 600), np.linspace(-6, 6, 500)[:, None]
    logp = stats.norm.logpdf(mu, 0, 1.5) + stats.norm.logpdf(log_tau, -1, 1.2)
    for mean, error in zip(MEANS, ERRORS, strict=True):
        logp = logp + stats.norm.logpdf(mean, mu, np.hypot(np.exp(log_tau), error))
    law = np.exp(logp - logp.max()).sum(axis=0)
    return log_tau, np.cumsum(law) / law.sum()


def ranks(reference, hastings=1.0, n=3000):
    """Ranks of ``log tau`` in a chain of these moves alone, and their effective number."""
    scale = np.array([0.7, 1.0, *ERRORS])
    gradient = np.array([0.0, 0.0, *((MEANS - reference) / ERRORS**2)])
    precision = np.array([0.0, 0.0, *(1 / ERRORS**2)])
    position = np.array([0.0, -1.0, *np.full(4, reference)])
    moves = PartialNoncentring(grad_log_prior, position, gradient, precision, scale)
    move, refresh = moves.move, moves.refresh
    moves.move = lambda *a: (lambda new, h: (new, hastings * h))(*move(*a))
    moves.refresh = lambda *a: (lambda new, h: (new, hastings * h))(*refresh(*a))
    rng, theta, path = np.random.default_rng(7), position, []
    for _ in range(n):
        theta = moves.metropolis(theta, log_density, rng)
        path.append(theta[1])
    log_tau, law = law_of_log_tau()
    found = np.interp(path, log_tau, law)
    return found, float(az.ess(found[None]))


@pytest.mark.parametrize("reference", [0.0, 0.8])
def test_the_law_of_a_standard_deviation(reference):
    """The reference, at which the moves approximate the likelihood, does not matter."""
    found, n = ranks(reference)
    assert n > 300
    for power, mean, sd in ((1, 1 / 2, 12**-0.5), (2, 1 / 3, (4 / 45) ** 0.5)):
        assert abs((found**power).mean() - mean) < 4.5 * sd / np.sqrt(n)


@pytest.mark.slow
def test_a_missing_jacobian_is_found():
    found, n = ranks(0.0, hastings=0.0)
    assert abs(found.mean() - 1 / 2) > 6 * 12**-0.5 / np.sqrt(n)
