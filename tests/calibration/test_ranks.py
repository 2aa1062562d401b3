"""Simulation-based calibration of exact samplers and of posteriors given noisy scores: the truth is anywhere among the draws, equally likely.

Parameters are drawn from the prior and records given them, so that the truth is itself a draw of the posterior. A chain that
is reversible runs from it both ways: where in such a chain the truth stands is uniform whatever the autocorrelation (Besag and
Clifford, 1989, Biometrika 76, 633-642), and nothing need converge. Ranks are those of parameters and of the log-likelihood,
which depends on the data (Modrák et al., 2023, https://doi.org/10.1214/23-BA1404). Given scores, chains are those of ``DPScore``,
first state and warm-up included, and ranks those of parameters (Talts et al. 2018, https://arxiv.org/abs/1804.06788).
"""

import functools

from dataclasses import replace

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
    DPScore,
    Penalty,
    PrivateScores,
    RandomWalk,
)
from pymc_dp.model import ClippedScores
from pymc_dp.planning import local_information
from pymc_dp.planning.simulator import Simulator
from pymc_dp.scores import score_step
from pymc_dp.scores.score_features import ScoreFeatures
from pymc_dp.steps import base
from tests.scores.score_models import noise_of
from tests.terms import score_release

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
]

N, SETS, LENGTH, THIN = 60, 100, 40, 2
#: Draws given scores, between which are some iterations.
DRAWS, ITERATIONS = 9, 6
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
        self.simulator = Simulator(self.model, covariates="public")
        self.likelihood, self.simulated = self.simulator.likelihood, self.simulator.simulated
        self.data = None

    def logp(self, theta):
        return self.simulated.logp(theta, self.data)

    def logp_at(self, theta, index):
        if np.ndim(theta) == 2:
            return np.array([self.logp(point)[index] for point in theta])
        return self.logp(theta)[index]

    def total(self, term, index=None):
        if not isinstance(term, ClippedScores):
            return type(self.likelihood).total(self.likelihood, term, index)
        if term.keeps_logp:
            self.likelihood._latest.keep(term.theta, self.logp(term.theta))
        directions = np.diag(term.directions) if term.directions.ndim == 1 else term.directions
        rows = self.simulated.gradients(term.theta, self.data) @ directions
        norms = np.linalg.norm(rows, axis=1)
        rows *= np.minimum(1, term.bound / np.maximum(norms, term.bound))[:, None]
        return np.rint(np.ldexp(rows, -term.exponent)).astype(np.int64).sum(axis=0)

    def given_records(self, sampler, temperature=1.0):
        """Chains of a sampler, from the truth both ways, and their log-likelihoods."""
        # A likelihood is frozen, for good reason.
        self.likelihood.__dict__.update(logp=self.logp, logp_at=self.logp_at, total=self.total)
        self.likelihood._batch.all_records = self.logp
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base, "RecordLikelihood", lambda *_, **__: self.likelihood)
            zeros = np.zeros(self.simulated.n_dim)
            self.data = self.simulated.draw(zeros, np.random.default_rng(0))
            step = sampler(self.scales, model=self.model, temperature=temperature)
        step.stop_tuning()

        def chain(truth, rng):
            step.set_rng(rng)
            before, states = rng.integers(LENGTH + 1), [truth]
            for steps in (before, LENGTH - before):
                step._reset_chain()
                point = self.likelihood.unravel(truth)
                for _ in range(steps):
                    for _ in range(THIN):
                        point, _ = step.step(point)
                    states.append(self.likelihood.ravel(point))
            return [[*theta, self.logp(theta).sum()] for theta in states]

        return chain

    @functools.cached_property
    def releases(self):
        """Of scores at a public guess, half of which are clipped; with zeros as sums, and two kinds of noise."""
        guess, rng = self.prior(np.zeros(self.simulated.n_dim)), np.random.default_rng(0)
        data = (self.simulated.draw(guess, rng) for _ in range(100))
        scores = np.vstack([self.simulated.gradients(guess, each) for each in data])
        part = np.flatnonzero((scores != 0).any(axis=0))
        fisher = scores[:, part].T @ scores[:, part] / len(scores)
        directions = np.zeros((len(guess), len(part)))
        directions[part] = np.linalg.inv(np.linalg.cholesky(fisher)).T
        bound = float(np.median(np.linalg.norm(scores @ directions, axis=1)))
        kinds = (("l2", 3.0), ("gaussian", 6.0))
        return [score_release(guess, directions, bound, *k, np.zeros(len(part))) for k in kinds]

    def private(self, totals=None):
        releases = self.releases
        if totals is not None:
            releases = [replace(r, total=t) for r, t in zip(releases, totals, strict=True)]
        point = self.likelihood.unravel(np.zeros(self.simulated.n_dim))
        shapes = {k: np.shape(v) for k, v in point.items()}
        return PrivateScores(tuple(releases), shapes, N, "substitute", ())

    def given_scores(self, louder=1):
        """Chains of DPScore, given noisy sums; the noise may be larger than is known."""

        def chain(truth, rng):
            total = ScoreFeatures(self.private(), self.simulated).of(self.data).sum(axis=0)
            totals = [
                part + noise_of(r.noise.kind, louder * r.noise.scale, (1, len(part)), rng)[0]
                for r, part in zip(self.releases, np.split(total, 2), strict=True)
            ]
            scores = self.private(totals)
            step = DPScore(scores, simulator=self.simulator, model=self.model)
            step.set_rng(rng)
            points = [step.step({})[0] for _ in range(DRAWS * ITERATIONS)]
            return [truth, *map(self.likelihood.ravel, points[::ITERATIONS])]

        return chain

    def ranks(self, chain, n_sets=SETS, seed=1):
        """Of the truth, for each data set, in (0, 1)."""
        found = []
        for k in range(n_sets):
            rng = np.random.default_rng([seed, k])
            truth = self.prior(rng.standard_normal(self.simulated.n_dim))
            self.data = self.simulated.draw(truth, rng)
            values = np.array(chain(truth, rng))
            less, same = values < values[0], values == values[0]
            found.append((less.sum(axis=0) + rng.random() * same.sum(axis=0)) / len(values))
        return np.array(found)


def p_values(ranks):
    return np.array([stats.kstest(column, "uniform").pvalue for column in ranks.T])


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.long] if n == "hierarchical" else []) for n in MODELS],
)
def test_ranks_of_the_truth_are_uniform(name):
    case = Case(name)
    for sampler in SAMPLERS:
        found = p_values(case.ranks(case.given_records(sampler)))
        assert found.min() > 1e-4, (sampler.__name__, found)
    # Controls: chains of another posterior, and with likelihoods of the wrong state.
    assert p_values(case.ranks(case.given_records(penalty, temperature=0.25))).min() < 1e-5
    assert p_values(case.ranks(case.given_records(cached_rejected))).min() < 1e-5


@pytest.fixture
def short_warm_up(monkeypatch):
    monkeypatch.setattr(score_step, "_WARMUP", 100)
    monkeypatch.setattr(local_information, "_N_SIMULATED", 3000)


@pytest.mark.usefixtures("short_warm_up")
@pytest.mark.parametrize(
    "name",
    [
        "location_and_scale",
        *(pytest.param(n, marks=pytest.mark.long) for n in MODELS if n != "location_and_scale"),
    ],
)
def test_ranks_given_scores_are_uniform(name):
    case = Case(name)
    assert p_values(case.ranks(case.given_scores(), 40)).min() > 1e-4


@pytest.mark.usefixtures("short_warm_up")
def test_more_noise_than_is_known_of_is_found():
    """Control."""
    case = Case("location_and_scale")
    assert p_values(case.ranks(case.given_scores(louder=10), 26)).min() < 1e-4
