"""Exact samplers by simulation-based calibration: the truth is anywhere among the draws, equally likely.

Parameters are drawn from the prior and records given them, so that the truth is itself a draw of the posterior. A chain that
is reversible runs from it both ways: where in such a chain the truth stands is uniform whatever the autocorrelation (Besag and
Clifford, 1989, Biometrika 76, 633-642), and nothing need converge. Ranks are those of parameters and of the log-likelihood,
which depends on the data (Modrák et al., 2023, https://doi.org/10.1214/23-BA1404).
"""

import numpy as np
import pymc as pm
import pytest

from scipy import stats

from pymc_dp import (
    DPHMC,
    Barker,
    DPBarker,
    DPFastMH,
    DPPenalty,
    Penalty,
    RandomWalk,
)
from pymc_dp.planning.simulator import Simulator
from pymc_dp.steps import base

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
]

N, SETS, LENGTH, THIN = 40, 100, 40, 2
X = np.column_stack([np.ones(N), np.linspace(-1, 1, N), np.cos(np.arange(N))])
GROUPS = np.arange(N) % 4


def location_and_scale():
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.LogNormal("sigma", 0, 0.3)
        pm.Normal("y", mu, sigma, observed=np.zeros(N))
    return model, lambda z: z * [1, 0.3], [0.2, 0.15]


def counts():
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 0.5, shape=3)
        pm.Poisson("y", pm.math.exp(X @ beta), observed=np.zeros(N, dtype=int))
    return model, lambda z: 0.5 * z, [0.15, 0.2, 0.2]


def hierarchical():
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.LogNormal("tau", -0.5, 0.3)
        means = pm.Normal("means", mu, tau, shape=4)
        pm.Normal("y", means[GROUPS], 1.0, observed=np.zeros(N))

    def prior(z):
        log_tau = -0.5 + 0.3 * z[1]
        return np.array([z[0], log_tau, *(z[0] + np.exp(log_tau) * z[2:])])

    return model, prior, [0.4, 0.3, 0.3, 0.3, 0.3, 0.3]


MODELS = {f.__name__: f for f in (location_and_scale, counts, hierarchical)}
FREE = {"budget": None, "reproducible": True}


def penalty(scales, **options):
    walk = RandomWalk(scales, metric="proposal")
    return DPPenalty(clip_bound=np.inf, proposal=walk, noise_scale=1.0, **FREE, **options)


def lazy_barker(scales, **options):
    walk = RandomWalk(scales, metric="proposal")
    return DPBarker(clip_bound=np.inf, proposal=walk, laziness=0.7, **FREE, **options)


def fast_mh(scales, rule=Barker(), **options):
    """No record changes by more than the bound, so far as these models go; batches have three places for four records."""
    walk = RandomWalk(np.divide(scales, 6), metric="proposal")
    typical = np.sqrt(len(scales))
    step = DPFastMH(clip_bound=0.6 / typical, proposal=walk, batch_rate=5.0, rule=rule, **FREE, **options)  # fmt: skip
    assert step.expected_batch(typical) < 0.75 * N
    return step


def fast_mh_penalty(scales, **options):
    return fast_mh(scales, Penalty(1.0), **options)


def hmc(scales, **options):
    """Gradients are clipped, with noise as large as they are; each is drawn anew, so that states are all there is."""
    return DPHMC(
        step_size=0.5, n_leapfrog=3, clip_bound=np.inf, gradient_clip_bound=0.3,
        gradient_noise_multiplier=2.0, mass_matrix=1 / np.square(scales), reuse_gradient=False, **FREE, **options,
    )  # fmt: skip


class CachedRejected(DPPenalty):
    """Fault: after a rejection, the current state has the likelihoods of the rejected one."""

    def choose(self, move, rule, log_ratio):
        theta, accepted, distance = super().choose(move, rule, log_ratio)
        if not accepted:
            values = self.likelihood.logp(move.new.theta)
            self.likelihood._latest.keep(move.old.theta, values)
        return theta, accepted, distance


def cached_rejected(scales, **options):
    walk = RandomWalk(scales, metric="proposal")
    return CachedRejected(clip_bound=np.inf, proposal=walk, noise_scale=1.0, **FREE, **options)


SAMPLERS = [penalty, lazy_barker, fast_mh, fast_mh_penalty, hmc]


class Case:
    """A model whose observed values can be exchanged."""

    def __init__(self, name):
        self.model, self.prior, self.scales = MODELS[name]()
        simulator = Simulator(self.model, covariates="public")
        self.likelihood, self.simulated = simulator.likelihood, simulator.simulated
        self.data = None
        # A likelihood is frozen, for good reason.
        self.likelihood.__dict__.update(
            logp=self.logp, logp_at=self.logp_at, clipped_grad_steps=self.clipped_grad_steps
        )

    def logp(self, theta):
        return self.simulated.logp(theta, self.data)

    def logp_at(self, theta, index):
        if np.ndim(theta) == 2:
            return np.array([self.logp(point)[index] for point in theta])
        return self.logp(theta)[index]

    def clipped_grad_steps(self, theta, bound, index=None, *, directions, keeps_logp=False):
        assert index is None
        if keeps_logp:
            self.likelihood._latest.keep(theta, self.logp(theta))
        rows = self.simulated.gradients(theta, self.data) @ (
            np.diag(directions) if np.ndim(directions) == 1 else directions
        )
        rows *= np.minimum(1, bound / np.maximum(np.linalg.norm(rows, axis=1), bound))[:, None]
        return np.rint(np.ldexp(rows, 30)).astype(np.int64).sum(axis=0), -30

    def ranks(self, sampler, seed, temperature=1.0):
        """Of the truth, for each data set: of all parameters, and of the log-likelihood."""
        found = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base, "RecordLikelihood", lambda *_, **__: self.likelihood)
            self.data = self.simulated.draw(
                np.zeros(self.simulated.n_dim), np.random.default_rng(0)
            )
            step = sampler(self.scales, model=self.model, temperature=temperature)
        step.stop_tuning()
        for k in range(SETS):
            rng = np.random.default_rng([seed, k])
            truth = self.prior(rng.standard_normal(self.simulated.n_dim))
            self.data = self.simulated.draw(truth, rng)
            step.set_rng(rng)
            before = rng.integers(LENGTH + 1)
            states = [truth]
            for steps in (before, LENGTH - before):
                step._reset_chain()
                point = self.likelihood.unravel(truth)
                for _ in range(steps):
                    for _ in range(THIN):
                        point, _ = step.step(point)
                    states.append(self.likelihood.ravel(point))
            quantities = np.array([[*theta, self.logp(theta).sum()] for theta in states])
            less, same = quantities < quantities[0], quantities == quantities[0]
            found.append((less.sum(axis=0) + rng.random() * same.sum(axis=0)) / (LENGTH + 1))
        return np.array(found)


def p_values(ranks):
    return np.array([stats.kstest(column, "uniform").pvalue for column in ranks.T])


@pytest.mark.parametrize("name", MODELS)
def test_ranks_of_the_truth_are_uniform(name, seed=1):
    case = Case(name)
    for sampler in SAMPLERS:
        found = p_values(case.ranks(sampler, seed))
        assert found.min() > 1e-4, (sampler.__name__, found)
    # Controls: chains of another posterior, and with likelihoods of the wrong state.
    assert p_values(case.ranks(penalty, seed, temperature=0.25)).min() < 1e-5
    assert p_values(case.ranks(cached_rejected, seed)).min() < 1e-5
