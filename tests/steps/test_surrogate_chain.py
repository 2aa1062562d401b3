"""The chain on the surrogate, by itself: on densities that are written down here."""

import math

import numpy as np
import pytest

from scipy import stats

from pymc_dp.steps.noncentring import PartialNoncentring
from pymc_dp.steps.surrogate import Position, Surrogate

N_STEPS, N_BATCHES = 60_000, 50


class Known(Surrogate):
    """A kernel whose centre and spread are far from those of its density, a skewed one."""

    _noncentring = None

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


class Groups(Surrogate):
    """Means of four groups, which are about equal, and the logarithm of their standard deviation, last."""

    MEANS, ERRORS = np.array([0.3, -0.2, 0.1, -0.4]), np.array([0.4, 0.3, 0.2, 0.5])

    def __init__(self, noncentring=True, **part):
        self._centre = np.array([0.1, -0.1, 0.0, -0.1, -1.0])
        self._root = np.diag([0.25, 0.2, 0.15, 0.3, 1.0])
        self._noncentring = None
        if noncentring:
            # Looked at beside the mode, and with precisions that are wrong.
            at = np.array([0.4, 0.2, -0.1, 0.3, 0.0])
            gradient = np.append((self.MEANS - at[:4]) / self.ERRORS**2, 0.0)
            precision = np.append([3.0, 0.3, 2.0, 4.0] / self.ERRORS**2, 0.0)
            self._noncentring = Scaled(self.grad_log_prior, at, gradient, precision)
            self._noncentring.part = part

    @staticmethod
    def grad_log_prior(theta):
        return np.append(-theta[:4] * math.exp(-2 * theta[4]), math.nan)  # the last is not used

    def at(self, theta):
        means, tau = theta[:4], math.exp(theta[4])
        density = -0.5 * (
            np.sum(((means - self.MEANS) / self.ERRORS) ** 2) + means @ means / tau**2
        )
        return Position(theta, float(density) - 4 * theta[4] - tau**2 / 2 + theta[4], None)

    @classmethod
    def ranks(cls, log_tau):
        """Under its law, with the means integrated out: uniform."""
        grid = np.linspace(-12, 3, 2000)
        tau = np.exp(grid)
        logp = grid - tau**2 / 2
        for mean, error in zip(cls.MEANS, cls.ERRORS, strict=True):
            logp += stats.norm.logpdf(mean, 0, np.hypot(tau, error))
        law = np.cumsum(np.exp(logp))
        return np.interp(log_tau, grid + (grid[1] - grid[0]) / 2, law / law[-1])

    def errors(self, seed):
        """Of mean and second moment of the ranks, in standard errors by batch means."""
        rng, position, path = np.random.default_rng(seed), self.at(self._centre), []
        for _ in range(2 * N_STEPS):
            position = self._metropolis(position, rng)
            path.append(position.theta[4])
        ranks = self.ranks(np.array(path))
        batches = np.array([ranks - 1 / 2, ranks**2 - 1 / 3]).reshape(2, N_BATCHES, -1).mean(axis=2)
        return batches.mean(axis=1) / (batches.std(axis=1, ddof=1) / math.sqrt(N_BATCHES))

    def steps_to_leave(self, seed, most):
        """From where groups are equal but for a thousandth."""
        rng = np.random.default_rng(seed)
        position = self.at(np.append(1e-3 * rng.standard_normal(4), math.log(1e-3)))
        for step in range(most):
            if position.theta[4] > -2:
                return step
            position = self._metropolis(position, rng)
        return most


class Scaled(PartialNoncentring):
    """With a part of the corrections for what is proposed."""

    def move(self, *arguments):
        new, jacobian = super().move(*arguments)
        return new, self.part.get("jacobian", 1.0) * jacobian

    def refresh(self, *arguments):
        new, odds = super().refresh(*arguments)
        return new, self.part.get("odds", 1.0) * odds


class TestHyperparameters:
    def test_invariance(self):
        assert np.abs(Groups().errors(seed=1)).max() < 4.5

    @pytest.mark.parametrize("part", [0.0, 2.0])
    @pytest.mark.parametrize("correction", ["jacobian", "odds"])
    def test_a_wrong_correction_for_the_proposal_is_found(self, correction, part):
        assert np.abs(Groups(**{correction: part}).errors(seed=1)).max() > 8

    def test_a_funnel_is_left(self):
        """Without these moves it is not, in a hundred times as many steps."""
        assert max(Groups().steps_to_leave(seed, 2000) for seed in range(5)) < 2000
        assert Groups(noncentring=False).steps_to_leave(0, 50_000) == 50_000

    def test_there_and_back(self):
        rng, kernel = np.random.default_rng(2), Groups()
        for _ in range(20):
            theta, by = rng.normal(0, 2, 5), rng.normal(0, 2, 1)
            new, jacobian = kernel._noncentring.move(theta, by)
            back, opposite = kernel._noncentring.move(new, -by)
            np.testing.assert_allclose(back, theta, rtol=1e-9)
            assert jacobian == pytest.approx(-opposite, rel=1e-9)
