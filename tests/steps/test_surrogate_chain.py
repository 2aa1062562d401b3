"""The chain on the surrogate, by itself: on densities that are written down here."""

import math

import numpy as np
import pytest

from pymc_dp.steps.surrogate import Position, Surrogate

N_STEPS, N_BATCHES = 60_000, 50


class Known(Surrogate):
    """A kernel whose centre and spread are far from those of its density, a skewed one."""

    def __init__(self, correction=1.0):
        self._centre, self._root = np.array([0.5]), np.array([[0.7]])
        self._correction = correction

    def at(self, theta):
        # Of the logarithm of a gamma variable with shape 3.
        return Position(theta, float(3 * theta[0] - math.exp(theta[0])), None)

    def _squared(self, theta):
        return self._correction * super()._squared(theta)


def standardized(kernel, seed):
    """Errors of mean and second moment, in standard errors by batch means."""
    rng, position, path = np.random.default_rng(seed), kernel.at(np.array([1.0])), []
    for _ in range(N_STEPS):
        position = kernel._metropolis(position, rng)
        path.append(position.theta[0])
    mean, variance = 3 / 2 - np.euler_gamma, math.pi**2 / 6 - 5 / 4  # digamma and trigamma of 3
    errors = []
    for values in (np.array(path) - mean, (np.array(path) - mean) ** 2 - variance):
        batches = values.reshape(N_BATCHES, -1).mean(axis=1)
        errors.append(values.mean() / (batches.std(ddof=1) / math.sqrt(N_BATCHES)))
    return np.array(errors)


def test_invariance():
    assert np.abs(standardized(Known(), seed=1)).max() < 4.5


@pytest.mark.parametrize("correction", [0.0, 0.5, 2.0])
def test_a_wrong_correction_for_the_proposal_is_found(correction):
    """Control: what is proposed around the centre is not symmetric."""
    assert np.abs(standardized(Known(correction), seed=1)).max() > 8
