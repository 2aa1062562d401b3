"""DP penalty chains have exactly the posterior, unless they are broken, and then these tests say so.

Every chain starts from an exact draw, so that all its draws have the right law. Moments, tail probabilities and a two-sample
Kolmogorov-Smirnov test are compared with independent exact draws. Standard errors come from batch means.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pymc as pm
import pytest

from scipy import stats

from pymc_dp import DPPenalty, GuidedWalk, OneComponent, PrivacyBudget, RandomWalk
from pymc_dp.acceptance import Penalty
from pymc_dp.steps import accept_reject
from tests.exactness.targets import BANANA, GAUSSIAN, LOGIT, compiled_once

#: False alarms: 1e-4 for the whole file, shared by fewer than 350 comparisons.
LIMIT = 1e-4 / 350
N_DRAWS = 18_000
N_BATCHES = 60
#: Far above any slope of a log-likelihood here: nothing is clipped.
HUGE = 1e3

# ---------------------------------------------------------------- running and comparing


def private_step(target, proposal, *, step=DPPenalty, clip_bound=HUGE, **kwargs):
    budget = PrivacyBudget(math.inf, 1e-6, chains=1)
    with compiled_once(target.name), target.model():
        return step(
            budget=budget, clip_bound=clip_bound, proposal=proposal, reproducible=True, **kwargs
        )


def run(step, start, n, seed, observe=None):
    """States of a chain from ``start``, shape (n, d)."""
    step.set_rng(np.random.default_rng(seed))
    step.stop_tuning()
    point = step.likelihood.unravel(start)
    draws = np.empty((n, len(start)))
    for i in range(n):
        point, _ = step.step(point)
        draws[i] = step.likelihood.ravel(point)
        if observe is not None:
            observe(i)
    return draws


@functools.cache
def reference(target, temperature):
    draws = target.exact(temperature, 200_000, np.random.default_rng(2024))
    draws.flags.writeable = False
    return draws


def batch_means(values):
    """Mean, standard error and integrated autocorrelation time of each column."""
    usable = len(values) // N_BATCHES * N_BATCHES
    means = values[:usable].reshape(N_BATCHES, -1, values.shape[1]).mean(axis=1)
    error = means.std(axis=0, ddof=1) / math.sqrt(N_BATCHES)
    with np.errstate(invalid="ignore"):
        autocorrelation = len(values) * error**2 / values.var(axis=0)
    return (
        values.mean(axis=0),
        error,
        np.maximum(np.nan_to_num(autocorrelation, nan=len(values)), 1.0),
    )


def compare(draws, exact):
    """One p-value for each comparison of a chain with exact draws, and the longest autocorrelation time."""
    centre, spread = exact.mean(axis=0), exact.std(axis=0)
    low, high = np.quantile(exact, [0.1, 0.9], axis=0)

    def features(x):
        z = (x - centre) / spread
        # Squares and products of values cut off at 2.5 standard deviations: rare excursions would give
        # their means a skewed law, for which batch means are no match.
        cut = np.clip(z, -2.5, 2.5)
        columns = {}
        for j in range(x.shape[1]):
            columns[f"mean {j}"], columns[f"square {j}"] = z[:, j], cut[:, j] ** 2
            columns[f"lower tail {j}"] = x[:, j] < low[j]
            columns[f"upper tail {j}"] = x[:, j] > high[j]
        if x.shape[1] == 2:
            columns["product"] = cut[:, 0] * cut[:, 1]
            columns["bend"] = cut[:, 0] ** 2 * cut[:, 1]
        return list(columns), np.column_stack([c.astype(float) for c in columns.values()])

    names, values = features(draws)
    _, truth = features(exact)
    mean, error, autocorrelation = batch_means(values)
    error = np.sqrt(error**2 + truth.var(axis=0) / len(truth))
    t = (mean - truth.mean(axis=0)) / np.maximum(error, 1e-12)
    result = dict(zip(names, 2 * stats.t.sf(np.abs(t), N_BATCHES - 1), strict=True))
    for j in range(draws.shape[1]):
        time = max(
            a for a, name in zip(autocorrelation, names, strict=True) if name.endswith(str(j))
        )
        thinned = draws[:: math.ceil(2 * time), j]
        result[f"two-sample {j}"] = stats.ks_2samp(thinned, exact[:20_000, j]).pvalue
    return result, autocorrelation.max()


def check(draws, exact):
    """Raise if a chain does not have the law of the exact draws."""
    found, time = compare(draws, exact)
    worst = {name: p for name, p in found.items() if not p > LIMIT}
    if worst:
        raise AssertionError(
            "wrong law: " + ", ".join(f"{name} (p = {p:.1e})" for name, p in worst.items())
        )
    # Batch means are independent, and normal enough, if a batch is many autocorrelation times long.
    assert time < len(draws) / N_BATCHES / 2, (
        f"the chain is too short: autocorrelation time {time:.0f}"
    )


def chain(
    target,
    walk,
    *,
    noise=1.5,
    laziness=1.0,
    temperature=1.0,
    multiplier=False,
    seed=1,
    n=N_DRAWS,
    step=DPPenalty,
):
    """Draws of a penalty chain with noise of sd about ``noise``, and exact draws."""
    exact = reference(target, temperature)
    proposal, distance = walk(exact.mean(axis=0), exact.std(axis=0))
    noise = (
        {"noise_multiplier": noise / (2 * temperature * HUGE * distance)}
        if multiplier
        else {"noise_scale": noise}
    )
    method = private_step(
        target, proposal, step=step, laziness=laziness, temperature=temperature, **noise
    )
    start = np.random.default_rng(seed + 1000).integers(len(exact))
    draws = run(method, exact[start], n, seed)
    rows = draws[:: n // 100]
    for old, new in itertools.pairwise(rows):
        change = np.abs(method.likelihood.logp(new) - method.likelihood.logp(old)).max()
        assert change <= 0.5 * HUGE * np.linalg.norm(new - old)  # nothing near the clip bound
    return draws, exact


# Each maps posterior means and standard deviations to a proposal and a typical distance of it.
WALKS = {
    "random walk": lambda mean, sd: (RandomWalk(1.4 * sd), 1.4 * np.linalg.norm(sd)),
    "one component": lambda mean, sd: (OneComponent(1.6 * sd, metric="proposal"), 1.0),
    "guided walk": lambda mean, sd: (GuidedWalk(1.4 * sd, metric=sd), 1.4),
}
#: Target, walk, laziness, temperature, and whether noise is proportional to the distance: each value with others.
CASES = [
    (BANANA, "random walk", 0.6, 0.4, False),
    (BANANA, "guided walk", 1.0, 0.4, True),
    (LOGIT, "one component", 0.6, 1.0, True),
    pytest.param(GAUSSIAN, "guided walk", 1.0, 1.0, False, marks=pytest.mark.slow),
    pytest.param(LOGIT, "random walk", 1.0, 0.4, True, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("target", "walk", "laziness", "temperature", "multiplier"), CASES)
def test_posterior(target, walk, laziness, temperature, multiplier):
    options = {"laziness": laziness, "temperature": temperature, "multiplier": multiplier}
    check(*chain(target, WALKS[walk], **options))


@pytest.mark.slow
def test_the_comparison_detects_the_temperature():
    """Tempered and plain posteriors are far enough apart for the comparison to tell them apart."""
    draws, _ = chain(LOGIT, WALKS["random walk"], temperature=0.4, n=6000)
    with pytest.raises(AssertionError, match="wrong law"):
        check(draws, reference(LOGIT, 1.0))


# ---------------------------------------------------------------- negative controls


class WithoutCorrection(DPPenalty):
    """Metropolis' test on a noisy log-ratio, the noise not corrected for."""

    def transition(self, theta):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                accept_reject,
                "decide",
                lambda rule, x, bits: decide(rule, x + rule.scale**2 / 2, bits),
            )
            return super().transition(theta)


decide = accept_reject.decide


class StaleLikelihood(DPPenalty):
    """Keeps the likelihood of the proposal after a rejection."""

    def choose(self, move, rule, log_ratio):
        theta, accepted, distance = super().choose(move, rule, log_ratio)
        if not accepted:
            self.likelihood._latest.keep(theta, self.likelihood.logp(move.new.theta))
        return theta, accepted, distance


class FlipsAlways(GuidedWalk):
    """Turns round after every proposal, accepted or not."""

    def decided(self, accepted):
        super().decided(False)


class ShorterUpwards(GuidedWalk):
    """Moves one way are shorter than moves the other way."""

    def _move(self, j, rng):
        move = super()._move(j, rng)
        return move * (0.3 if move > 0 else 1.0)


class NoiseOfTheProposal(RandomWalk):
    """Noise that depends on where the proposal is, not on the pair of states."""

    def propose(self, theta, rng):
        new, distance = super().propose(theta, rng)
        return new, distance * (0.3 if new[0] > self.centre else 1.7)

    def start(self, n_dim):
        walk = super().start(n_dim)
        walk.centre = self.centre
        return walk

    @classmethod
    def around(cls, centre, scale):
        walk = cls(scale)
        walk.centre = centre
        return walk


CONTROLS = {
    "no correction": {"step": WithoutCorrection},
    "stale likelihood": {"step": StaleLikelihood},
    "flips always": {"walk": lambda mean, sd: (FlipsAlways(0.9 * sd), 1.0), "noise": 0.6},
    "asymmetric moves": {"walk": lambda mean, sd: (ShorterUpwards(0.5 * sd), 1.0), "noise": 0.9},
    "noise of the proposed state": {
        "walk": lambda mean, sd: (
            NoiseOfTheProposal.around(mean[0], 1.4 * sd),
            1.4 * np.linalg.norm(sd),
        ),
        "multiplier": True,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS)
def test_broken_chains_fail(control, target=GAUSSIAN):
    """Negative controls: the very check that the chains above pass."""
    settings = {"walk": WALKS["random walk"]} | CONTROLS[control]
    draws, exact = chain(target, settings.pop("walk"), n=N_DRAWS // 2, **settings)
    with pytest.raises(AssertionError, match="wrong law"):
        check(draws, exact)


# ---------------------------------------------------------------- clipping: the chain is what it is said to be


CLIPPED_Y = np.random.default_rng(21).gamma(0.5, 2.0, size=80)
CLIPPED_SD, BOUND, STEP = 6.0, 0.02, 1.5


def clipped_step():
    """One parameter; most records are clipped, those that are depend on the pair of states."""
    with compiled_once("clipped"), pm.Model():
        mu = pm.Normal("mu", 0.0, 3.0)
        pm.Normal("y", mu, CLIPPED_SD, observed=CLIPPED_Y)
        return DPPenalty(
            budget=PrivacyBudget(math.inf, 1e-6, chains=1), clip_bound=BOUND, proposal=RandomWalk(STEP),
            noise_scale=1.2, reproducible=True,
        )  # fmt: skip


def clipped_log_ratio(old, new):
    """Written again by hand: clipped likelihood ratios and prior."""
    change = (CLIPPED_Y - (old + new)[..., None] / 2) * (new - old)[..., None] / CLIPPED_SD**2
    bound = BOUND * np.abs(new - old)[..., None]
    return np.clip(change, -bound, bound).sum(axis=-1) + (old**2 - new**2) / 18


@functools.cache
def clipped_chain():
    """States, transition matrix by quadrature, and its invariant distribution."""
    states = np.linspace(-6, 9, 301)
    cell = states[1] - states[0]
    old, new = np.meshgrid(states, states, indexing="ij")
    accept = np.exp(Penalty(1.2).log_probabilities(clipped_log_ratio(old, new))[0])
    matrix = stats.norm.pdf(new - old, scale=STEP) * cell * accept
    matrix[np.diag_indices(len(states))] = 0
    matrix[np.diag_indices(len(states))] = 1 - matrix.sum(axis=1)
    system = np.vstack([matrix.T - np.eye(len(states)), np.ones(len(states))])
    invariant = np.linalg.lstsq(system, np.append(np.zeros(len(states)), 1.0))[0]
    assert np.allclose(invariant @ matrix, invariant, rtol=0, atol=1e-10)
    assert np.all(np.abs(invariant[[0, -1]]) < 1e-6)
    return states, matrix, np.maximum(invariant, 0) / np.maximum(invariant, 0).sum()


def test_clipped_moves_balance_in_pairs(monkeypatch):
    """The step's own acceptance probabilities, there and back, against the hand-written ratio."""
    step, seen = clipped_step(), []
    step._open()
    monkeypatch.setattr(
        accept_reject, "decide", lambda rule, x, bits: seen.append((rule, x)) or False
    )
    rng = np.random.default_rng(0)
    for _ in range(50):
        pair = rng.normal(1.0, 2.0, size=2)
        for old, new in (pair, pair[::-1]):
            step._walk = _Forced(np.array([new]), abs(new - old))
            step.transition(np.array([old]))
            assert seen[-1][1] == pytest.approx(
                float(clipped_log_ratio(np.array(old), np.array(new))), abs=1e-8
            )
        (rule, there), (_, back) = seen[-2:]
        assert there == -back
        assert rule.probability(there) == pytest.approx(
            math.exp(there) * rule.probability(back), rel=1e-12
        )


def test_clipped_chain_has_the_law_of_its_matrix(seed=9):
    """The real chain has the invariant law of that matrix, which is not the posterior."""
    states, _, invariant = clipped_chain()
    rng = np.random.default_rng(8)
    exact = rng.choice(states, p=invariant, size=200_000) + (states[1] - states[0]) * (
        rng.random(200_000) - 0.5
    )
    draws = run(clipped_step(), exact[:1], N_DRAWS, seed)
    check(draws, exact[:, None])
    precision = len(CLIPPED_Y) / CLIPPED_SD**2 + 1 / 9
    mean = CLIPPED_Y.sum() / CLIPPED_SD**2 / precision
    with pytest.raises(AssertionError, match="wrong law"):
        check(draws, rng.normal(mean, precision**-0.5, size=(200_000, 1)))


def test_clipped_chain_is_not_reversible():
    """Pairs balance and cycles do not: clipped ratios are no differences of one function of the state."""
    a, b, c = np.array(-1.0), np.array(0.5), np.array(3.0)
    assert abs(clipped_log_ratio(a, b) + clipped_log_ratio(b, c) + clipped_log_ratio(c, a)) > 0.05
    _, matrix, invariant = clipped_chain()
    flow = invariant[:, None] * matrix
    np.fill_diagonal(flow, 0)
    assert np.abs(flow - flow.T).max() > 1e-2 * flow.max()


class _Forced:
    """A proposal that is given."""

    def __init__(self, new, distance):
        self.new, self.distance = new, distance

    def propose(self, theta, rng):
        return self.new, self.distance

    def decided(self, accepted):
        pass
