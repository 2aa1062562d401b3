"""Posteriors given noisy scores by simulation-based calibration: the truth is anywhere among the draws, equally likely.

Parameters are drawn from the prior, records given them, and noisy sums of these as ``private_scores`` would release them at a public
guess. Chains are those of ``DPScore``, first state and warm-up included (Talts et al. 2018, https://arxiv.org/abs/1804.06788).
"""

from __future__ import annotations

import functools

import numpy as np
import pymc as pm
import pytest

from scipy import stats

from pymc_dp import DPScore, PrivateScores
from pymc_dp.planning import local_information
from pymc_dp.planning.simulator import Simulator
from pymc_dp.scores import ScoreRelease, linearized, score_step
from pymc_dp.scores.clipped_scores import ClippedScores
from tests.scores.score_models import noise_of

pytestmark = pytest.mark.slow

N = 60
X = np.column_stack([np.ones(N), np.linspace(-1.5, 1.5, N)])
GROUPS = np.arange(N) % 4
#: Replicates; draws of each, between which are some iterations.
SETS, DRAWS, THIN = 200, 9, 6


def logistic():
    pm.Bernoulli("y", logit_p=X @ pm.Normal("b", 0, 1, shape=2), observed=np.zeros(N, dtype=int))
    return lambda z: z, np.zeros(2)


def counts():
    pm.Poisson("y", pm.math.exp(X @ pm.Normal("b", 0.3, 0.5, shape=2)), observed=np.zeros(N, dtype=int))  # fmt: skip
    return lambda z: 0.3 + 0.5 * z, np.array([0.3, 0.3])


def location_and_scale():
    mu, sigma = pm.Normal("mu"), pm.LogNormal("sigma", 0, 0.4)
    pm.Normal("y", mu, sigma, observed=np.zeros(N))
    return lambda z: z * [1, 0.4], np.zeros(2)


def hierarchical():
    mu, tau = pm.Normal("mu"), pm.LogNormal("tau", -0.5, 0.3)
    means = pm.Normal("means", mu, tau, shape=4)
    pm.Normal("y", means[GROUPS], 1.0, observed=np.zeros(N))

    def prior(z):
        log_tau = -0.5 + 0.3 * z[1]
        return np.array([z[0], log_tau, *(z[0] + np.exp(log_tau) * z[2:])])

    return prior, np.array([0, -0.5, 0, 0, 0, 0])


MODELS = {f.__name__: f for f in (logistic, counts, location_and_scale, hierarchical)}


@functools.cache
def built(name):
    """Simulator, prior, and releases with zeros as sums."""
    with pm.Model() as model:
        prior, guess = MODELS[name]()
    simulator = Simulator(model, covariates="public")
    simulated, rng = simulator.simulated, np.random.default_rng(0)
    scores = np.vstack([simulated.gradients(guess, simulated.draw(guess, rng)) for _ in range(100)])
    part = np.flatnonzero((scores != 0).any(axis=0))
    fisher = scores[:, part].T @ scores[:, part] / len(scores)
    directions = np.zeros((len(guess), len(part)))
    directions[part] = np.linalg.inv(np.linalg.cholesky(fisher)).T
    bound = float(np.median(np.linalg.norm(scores @ directions, axis=1)))
    kinds = [("l2", 3.0), ("gaussian", 6.0)] if name == "logistic" else [("l2", 2.5)]
    zeros = np.zeros(len(part))
    releases = [ScoreRelease(guess, directions, bound, kind, s, zeros) for kind, s in kinds]
    shapes = {k: np.shape(v) for k, v in simulator.likelihood.unravel(guess).items()}
    return simulator, prior, PrivateScores(tuple(releases), shapes, N, "substitute", ())


def rank(name, method, rng, louder=False):
    """Number of draws below the truth, for each parameter."""
    simulator, prior, empty = built(name)
    truth = prior(rng.standard_normal(simulator.simulated.n_dim))
    data = simulator.simulated.draw(truth, rng)
    total = ClippedScores(empty, simulator.simulated).of(data).sum(axis=0)
    releases, start = [], 0
    for r in empty.releases:
        d = len(r.total)
        scale = r.scale * (10 if louder else 1)
        noise = noise_of(r.noise, scale, (1, d), rng)[0]
        releases.append(
            ScoreRelease(
                r.theta, r.directions, r.bound, r.noise, r.scale, total[start : start + d] + noise
            )
        )
        start += d
    scores = PrivateScores(tuple(releases), empty.shapes, N, "substitute", ())
    step = DPScore(scores, simulator=simulator, model=simulator.model, method=method)
    step.set_rng(rng)
    draws = []
    for i in range(DRAWS * THIN):
        point = step.step({})[0]
        if i % THIN == 0:
            draws.append(simulator.likelihood.ravel(point))
    return (np.array(draws) < truth).sum(axis=0)


def ranks(name, method="records", seed=1, n_sets=SETS, **options):
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_step, "_WARMUP", (25, 25, 50))
        for module in (linearized, local_information):
            patch.setattr(module, "_N_SIMULATED", 3000)
        return np.array([rank(name, method, rng, **options) for _ in range(n_sets)])


def p_value(found):
    """Smallest of chi-square tests of uniform ranks, of all parameters, with Bonferroni's correction."""
    tests = [
        stats.chisquare(np.bincount(column // 2, minlength=(DRAWS + 1) // 2)).pvalue
        for column in found.T
    ]
    return min(tests) * len(tests)


@pytest.mark.parametrize("method", ["records", "normal"])
@pytest.mark.parametrize("name", MODELS)
def test_ranks_are_uniform(name, method):
    found = ranks(name, method, n_sets=SETS if method == "records" else SETS // 2)
    assert p_value(found) > 1e-4
    # The mean rank, too, which tells more of a shift.
    z = (found.mean(axis=0) - DRAWS / 2) / np.sqrt(((DRAWS + 1) ** 2 - 1) / 12 / len(found))
    assert np.abs(z).max() < 4


def test_more_noise_than_is_known_of_is_found():
    """Control."""
    assert p_value(ranks("location_and_scale", n_sets=40, louder=True)) < 1e-4
