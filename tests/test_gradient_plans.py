"""Plans for the gradient samplers: the normal approximation in a second way, and true to what happens."""

import math

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp

from pymc_dp import DPHMC, DPSGHMC, PrivacyBudget
from pymc_dp.path_plans import Slope, normal_paths, slopes
from pymc_dp.pilot import Pilot
from pymc_dp.preparation import prepare
from pymc_dp.privacy.mechanisms import Gaussian
from pymc_dp.sghmc_plans import stationary
from pymc_dp.steps.gradients import Coordinates, Phase, leapfrog
from pymc_dp.tuning import plan

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

N, EPSILON = 5000, 20.0
COVARIANCE = np.array([[1.0, 0.9], [0.9, 1.0]])
Y = np.random.default_rng(3).multivariate_normal([1.0, -1.0], COVARIANCE, size=N)
GUESS = {"mu": [1.0, -1.0]}
QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1}


@pytest.fixture(scope="module")
def model():
    """Known posterior: normal, around the mean, with covariance `COVARIANCE` / N."""
    with pm.Model() as model:
        pm.MvNormal("y", pm.Normal("mu", 0, 100, shape=2), COVARIANCE, observed=Y)
    return model


def in_standard_deviations(draws):
    """Draws of the posterior, shape ``(..., 2)``, in coordinates in which it is standard normal."""
    return (draws - Y.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(COVARIANCE / N)).T


def test_slopes_are_those_of_sums_of_clipped_gradients():
    """For a skewed law, of which clipping cuts off more on one side."""
    n = 20_000
    x = np.column_stack([np.ones(n), np.random.default_rng(1).normal(size=n)])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2.5, shape=2)
        pm.Bernoulli("y", logit_p=x @ beta, observed=np.zeros(n, dtype=int))
    budget = PrivacyBudget(1.0, 1e-6, chains=1)
    prepared = prepare(budget=budget, model=model, public_covariates=True)
    pilot = Pilot(prepared, np.array([-2.0, 0.5]), np.random.default_rng(4))
    covariance = pilot.shapes["local"]
    root = np.linalg.cholesky(covariance)
    for slope in slopes(pilot, covariance):

        def total(w, bound=slope.bound):
            rows = pilot.gradients(pilot.centre + root @ w) @ root
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            kept = rows * np.minimum(1, bound / lengths)
            return kept.sum(axis=0), (rows - kept).sum(axis=0), (lengths > bound).mean()

        _, lost, clipped = total(np.zeros(2))
        assert slope.clipped == pytest.approx(clipped)
        assert np.linalg.norm(slope.offset) == pytest.approx(np.linalg.norm(lost))
        if slope.clipped > 0.01:
            assert np.linalg.norm(lost) > 1  # in standard deviations: enough to matter
        h = 0.2
        derivative = np.array([total(h * e)[0] - total(-h * e)[0] for e in np.eye(2)]) / (2 * h)
        found = np.linalg.eigvalsh(-(derivative + derivative.T) / 2)
        np.testing.assert_allclose(found, slope.gains, rtol=0.02)
    np.testing.assert_allclose(slope.gains, 1, rtol=0.1)  # of those that are not clipped
    assert slope.clipped == 0


def test_paths_of_the_normal_approximation():
    """Against the integrator of the sampler, with the same noise."""
    rng = np.random.default_rng(1)
    w, p, noise = rng.normal(size=2), rng.normal(size=2), rng.normal(size=(6, 1, 2))
    slope = Slope(
        np.eye(2), 1.0, 0.0, np.array([0.9, 0.7]), np.array([0.3, -0.2]), np.ones(2), np.ones(2)
    )
    change, ratio = normal_paths(w[None], p[None], noise, slope, 0.8, 5)
    drawn = iter(noise[:, 0])

    def gradient(at, is_last=False):
        return slope.offset - slope.gains * at + next(drawn)

    start = Phase(w, p, gradient(w))
    *_, end = leapfrog(start, gradient, Coordinates(None, np.arange(2), 2), 0.8 / 5, 5)
    np.testing.assert_allclose(change[0], end.theta - w)
    energies = [(x.theta @ x.theta + x.momentum @ x.momentum) / 2 for x in (start, end)]
    assert ratio[0] == pytest.approx(energies[0] - energies[1])


@pytest.mark.parametrize("n_steps", [1, 3])
def test_stationary_law(n_steps):
    """Against sums over the past."""
    slope = Slope(np.eye(2), 1.0, 0.0, np.array([0.9, 0.4]), np.zeros(2), np.ones(2), np.ones(2))
    size, friction, kick = 0.3, 1.2, np.array([0.7, 0.5])
    variances, slowest = stationary(slope, size, friction, kick, n_steps)
    expected, sums = [], []
    for gain, noise in zip(slope.gains, kick, strict=True):
        # The response of the position to a single kick, at each later step.
        w, v, response = 0.0, 1.0, []
        for _ in range(2000):
            w += size * v
            response.append(w)
            v += -size * gain * w - size * friction * v
        response = math.sqrt(noise) * np.array(response)
        covariances = [response @ response] + [
            response[k:] @ response[:-k] for k in range(n_steps, 1000, n_steps)
        ]
        expected.append(covariances[0])
        sums.append(covariances[0] + 2 * sum(covariances[1:]))
    np.testing.assert_allclose(variances, expected)
    assert slowest == pytest.approx(max(sums))
    assert stationary(slope, 3.0, friction, kick, n_steps) is None  # energy grows without end


@pytest.mark.parametrize("friction", [1.0, 2.0, 4.0])
def test_cost_of_an_effective_draw_of_dpsghmc(friction, bound=0.03, sides=2.0):
    """``(s T b)**2 / 2``, as docs/planning.md says: friction slows a chain by as much as its noise is cheaper."""
    slope = Slope(np.eye(1), bound, 0.0, np.ones(1), np.zeros(1), np.zeros(1), np.zeros(1))
    size, steps = 0.002, 20
    _, slowest = stationary(slope, size, friction, np.array([2 * friction * size]), steps)
    noise = math.sqrt(2 * friction / size) / (sides * bound)
    assert steps * Gaussian(noise).zcdp * slowest == pytest.approx(
        (sides * bound) ** 2 / 2, rel=0.01
    )


@pytest.mark.slow
def test_a_plan_for_dphmc_is_what_happens(model):
    budget = PrivacyBudget(EPSILON, 1e-6, chains=1)
    made = plan(budget=budget, step=DPHMC, at=GUESS, model=model, random_seed=1)
    assert "paths of length" in str(made) and "private data were not looked at" in str(made)
    assert made.chosen == made.candidates[0] and len(made.candidates) > 1
    assert all(c.clipped <= 0.1 for c in made.candidates)
    with model:
        idata = dp.sample(
            epsilon=EPSILON,
            delta=1e-6,
            chains=1,
            step=DPHMC,
            initvals=GUESS,
            **made.settings,
            **QUIET,
        )
    n = idata.posterior.sizes["draw"]
    assert n == pytest.approx(made.chosen.draws, rel=0.15)
    accepted = float(idata.sample_stats["accepted"].mean())
    # Both are means, over 32 paths and over n draws that hang together.
    assert abs(accepted - made.chosen.acceptance) < 4 * math.sqrt(0.1 / 32 + 0.5 / n)


@pytest.mark.slow
def test_effective_draws_of_dphmc(model):
    """Without a budget the same sampler can go on until they can be counted."""
    made = plan(
        budget=PrivacyBudget(EPSILON, 1e-6, chains=1),
        step=DPHMC,
        at=GUESS,
        model=model,
        random_seed=1,
    )
    with model:
        step = DPHMC(budget=None, **made.settings)
        idata = pm.sample(6000, tune=0, chains=1, step=step, initvals=GUESS, random_seed=2, **QUIET)
    draws = in_standard_deviations(idata.posterior["mu"].to_numpy()[0])
    # Variance of means of long parts of the chain.
    means = draws.reshape(20, -1, 2).mean(axis=1)
    effective = 20 / np.mean(means**2)
    expected = len(draws) * made.chosen.effective_draws / made.chosen.draws
    # A variance from 40 means is known to a fifth or so, an acceptance from 32 paths to a fourth.
    assert 0.5 < effective / expected < 2


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_a_plan_for_dpsghmc_is_what_happens(model, adjacency):
    budget = PrivacyBudget(EPSILON / 2, 1e-6, chains=1, adjacency=adjacency, accountant="rdp")
    made = plan(
        budget=budget, step=DPSGHMC, at=GUESS, model=model, public_covariates=True, random_seed=1
    )
    assert "step(s) of" in str(made) and all(c.clipped <= 0.1 for c in made.candidates)
    step = made.build(budget, model)
    assert budget.expected_draws() == made.chosen.draws
    if adjacency == "add_remove":  # Poisson batches differ in this, and take minutes
        return
    with model:
        idata = pm.sample(
            int(made.chosen.draws), tune=0, chains=1, step=step, callback=budget, initvals=GUESS,
            **QUIET,
        )  # fmt: skip
    draws = in_standard_deviations(idata.posterior["mu"].to_numpy()[0])
    error = math.sqrt(made.chosen.error**2 - made.chosen.spread**2)
    assert np.linalg.norm(draws.mean(axis=0)) / math.sqrt(2) < 3 * error
    assert abs(draws.std() - 1) < made.chosen.spread + 4 / math.sqrt(made.chosen.effective_draws)
