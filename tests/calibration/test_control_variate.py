"""DPControlVariate, noise included, by simulation-based calibration: the truth is anywhere in the posterior, equally likely.

Talts, Betancourt, Simpson, Vehtari, Gelman (2018), https://arxiv.org/abs/1804.06788. Parameters are drawn from the prior,
records given them, noise on the sum of their gradients is larger than the posterior is wide; gradients, and what is left, are
clipped.
"""

import functools

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

from scipy import stats

from pymc_dp import DPControlVariate, RecordLikelihood, preparation
from pymc_dp.steps import base
from pymc_dp.steps import surrogate as surrogates
from pymc_dp.steps.features import Features
from pymc_dp.steps.gradients import Coordinates
from pymc_dp.steps.surrogate import Surrogate

N, N_SIMULATED, DRAWS = 10_000, 50_000, 30
CENTRE, SPREAD = -0.4, 0.025  # of the prior: posteriors are less than half as wide, without noise


def model(n):
    """Exponential records with a log-rate: skewed, and clipping is not symmetric."""
    with pm.Model() as model:
        theta = pm.Normal("theta", CENTRE, SPREAD)
        pm.Exponential("y", lam=pm.math.exp(theta), observed=np.ones(n))
    return model


@functools.cache
def built():
    simulated = preparation.simulation(model(N_SIMULATED), None, False, None)
    likelihood = RecordLikelihood(model(N))
    reference, rng = np.array([CENTRE]), np.random.default_rng(0)
    gradients = simulated.gradients(reference, simulated.draw(reference, rng))
    coordinates = Coordinates(np.cov(gradients.T).reshape(1, 1), np.arange(1), 1)
    vectors = np.abs(gradients @ coordinates.directions)
    bound = float(np.quantile(vectors, 0.98))
    features = Features(simulated, reference, coordinates, bound, 0.95, rng)
    noise_sd = 1.2 * np.sqrt(N) / features.gain[0, 0]  # of 1.2 posterior standard deviations
    return SimpleNamespace(
        model=model(N), likelihood=likelihood, features=features, noise_sd=noise_sd
    )


def probabilities(n, seed, *, noise_aware=True):
    """Of the truth, in the posteriors of that many data sets."""
    case, found = built(), []
    likelihood, features = case.likelihood, case.features
    for k in range(n):
        rng = np.random.default_rng([seed, k])
        theta = rng.normal(CENTRE, SPREAD)
        y = rng.exponential(np.exp(-theta), N)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(likelihood.__dict__, "logp", lambda at, y=y: at[0] - y * np.exp(at[0]))
            patch.setitem(
                likelihood.__dict__,
                "gradients",
                lambda at, _=None, y=y: (1 - y * np.exp(at[0]))[:, None],
            )
            patch.setattr(base, "RecordLikelihood", lambda *_, **__: likelihood)
            patch.setattr(surrogates, "_LENGTHS", (400,))  # long enough in one dimension
            total = features.of(likelihood.gradients(features.theta)).sum(axis=0)
            total = total + case.noise_sd * rng.standard_normal(1)
            surrogate = Surrogate(
                features, total, case.noise_sd, N, 1.0, rng, noise_aware=noise_aware
            )
            step = DPControlVariate(
                budget=None, surrogate=surrogate, reproducible=True, model=case.model
            )
            step.set_rng(rng)
            step.stop_tuning()
            point, draws = {"theta": np.array(CENTRE)}, []
            for _ in range(3 * DRAWS + 20):
                point, _ = step.step(point)
                draws.append(float(point["theta"]))
        rank = np.sum(np.array(draws[20::3]) < theta)
        found.append((rank + rng.random()) / (DRAWS + 1))
    return np.array(found)


def scores(probabilities):
    """Standard normal and sum of squares, in standard deviations."""
    z, n = stats.norm.ppf(probabilities), len(probabilities)
    return np.array([z.sum() / np.sqrt(n), (np.sum(z**2) - n) / np.sqrt(2 * n)])


@pytest.mark.slow
def test_truth_is_anywhere_in_the_posterior(n=40, seed=1):
    found = probabilities(n, seed)
    assert np.abs(scores(found)).max() < 4, scores(found)
    assert stats.kstest(found, "uniform").pvalue > 1e-4
    # Control: on the same data, who ignores the noise is too sure.
    sure = scores(probabilities(n, seed, noise_aware=False))[1]
    assert sure > scores(found)[1] + 2, (sure, scores(found))
