"""Audit of what noisy scores tell about a record: sums of neighbouring data sets, against the noise that was claimed and used."""

from __future__ import annotations

import functools

from fractions import Fraction

import numpy as np
import pymc as pm
import pytest

from scipy import stats

from pymc_dp import PrivacyBudget
from pymc_dp.model import ClippedScores
from pymc_dp.model.sums.clipped_vectors import clip_rows
from pymc_dp.planning.simulator import Simulator
from pymc_dp.privacy.mechanisms import noise_law
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Adjacency
from pymc_dp.queries.noisy_total import noisy_total
from pymc_dp.scores.private_scores import plan_scores
from tests.terms import clipped_grad_steps

#: Records of both data sets, and the one that differs.
COMMON = 8
EXTREMES = (0.3, 50.0, -50.0, 1e300, -1e300, np.inf)


Y = np.concatenate([np.random.default_rng(6).normal(size=COMMON), EXTREMES])
X = np.concatenate([np.linspace(-1, 1, COMMON), np.full(len(EXTREMES), 0.7)])


@functools.cache
def simulator() -> Simulator:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a") + pm.Normal("b") * X, 1.0, observed=Y)
    return Simulator(model, covariates="public")


def largest_difference(release) -> tuple[float, float]:
    """Of exact sums of data sets that differ in one record, and of a data set with and without it; in units of the bound."""
    likelihood, sums = simulator().likelihood, []
    records = [[], *([COMMON + i] for i in range(len(EXTREMES)))]
    for more in records:
        index = np.array([*range(COMMON), *more])
        steps, exponent = clipped_grad_steps(
            likelihood,
            release.term.theta,
            release.term.bound,
            index,
            directions=release.term.directions,
        )
        sums.append([int(s) for s in steps])
    unit = Fraction(2) ** exponent / Fraction(release.term.bound)

    def distance(one, other):
        return float(sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) * unit**2) ** 0.5

    replaced = max(distance(a, b) for a in sums[1:] for b in sums[1:])
    return replaced, max(distance(sums[0], b) for b in sums[1:])


def audited(noise, delta=1e-6):
    """Whether noise was enough: release, mechanism, scale of the noise that was really added; of the last sum."""
    scales = []
    right = noise_law.noisy_sum
    with pytest.MonkeyPatch.context() as patch:

        def listen(steps, exponent, scale, *rest):
            scales.append(scale)
            return right(steps, exponent, scale, *rest)

        patch.setattr(noise_law, "noisy_sum", listen)
        budget = PrivacyBudget(4.0, delta, chains=1)
        release = (
            plan_scores(simulator(), budget, noise=noise, fit_share=0, random_seed=1)
            .release()
            .releases[-1]
        )
    ((mechanism, _),) = budget.ledger.claims(budget.id)[-1].accesses
    return release, mechanism, scales[-1]


def sensitivity_of(mechanism, scale):
    """Differences that noise of this scale protects at the claimed cost."""
    if isinstance(mechanism, L2Laplace):
        return scale * mechanism.epsilon
    return scale / mechanism.noise_multiplier


@pytest.mark.parametrize("noise", ["l2", "gaussian"])
def test_noise_covers_every_neighbour(noise):
    release, mechanism, scale = audited(noise)
    replaced, removed = largest_difference(release)
    assert scale == pytest.approx(release.noise.scale, rel=1e-14)
    assert 1.9 < replaced <= 2 and 0.99 < removed <= 1
    assert replaced * release.term.bound <= sensitivity_of(mechanism, scale) * (1 + 1e-12)
    assert sensitivity_of(mechanism, scale) < 2.1 * release.term.bound  # and not more than it must


def test_noise_for_adding_and_removing_alone_is_found(monkeypatch):
    """Control: the noise of a sum that changes by one bound, where records are replaced."""
    monkeypatch.setattr(ClippedScores, "sensitivity", lambda self, adjacency: self.bound)
    release, mechanism, scale = audited("l2")
    assert largest_difference(release)[0] * release.term.bound > 1.5 * sensitivity_of(
        mechanism, scale
    )


@pytest.mark.parametrize("noise", ["l2", "gaussian"])
def test_the_noise_has_the_law_that_the_posterior_assumes(noise):
    """Many sums as the release made them, minus the exact one."""
    likelihood = simulator().likelihood
    release, mechanism, _ = audited(noise)
    term = ClippedScores(release.term.theta, release.term.bound, release.term.directions)
    exact = np.ldexp(likelihood.total(term).astype(float), term.exponent)
    sums = [
        noisy_total(likelihood, term, mechanism, Adjacency.SUBSTITUTE).total for _ in range(1500)
    ]
    noise_ = (np.array(sums) - exact) / release.noise.scale
    length, angle = np.hypot(*noise_.T), np.arctan2(*noise_.T)
    law = stats.gamma(2) if noise == "l2" else stats.rayleigh()
    assert stats.kstest(length, law.cdf).pvalue > 1e-6
    assert stats.kstest(angle, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-6
    assert noise_.std() * release.noise.scale == pytest.approx(release.noise_sd, rel=0.12)


def test_features_of_simulated_records_are_those_of_private_ones():
    """The posterior clips as the release does: the same sum, up to its grid, of the same data."""
    release = audited("l2")[0]
    steps, exponent = clipped_grad_steps(
        simulator().likelihood,
        release.term.theta,
        release.term.bound,
        directions=release.term.directions,
    )
    vectors = simulator().simulated.gradients(
        release.term.theta, [Y], None, release.term.directions
    )
    total = clip_rows(vectors, release.term.bound)
    np.testing.assert_allclose(
        total.sum(axis=0), np.ldexp(steps.astype(float), exponent), atol=1e-6
    )
