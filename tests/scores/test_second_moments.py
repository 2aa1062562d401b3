"""Products of scores: their sums and what a record can change in them; rows of a stand-in that have the released moments."""

from __future__ import annotations

import functools

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

from pymc_dp import DPScore, PrivacyBudget, codec
from pymc_dp.model.sums.vector_sums import product_exponent, products, sum_products
from pymc_dp.model.terms import ScoreProducts
from pymc_dp.planning.simulator import Simulator
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Adjacency, Gaussian
from pymc_dp.queries import Release
from pymc_dp.queries.noisy_total import noisy_total
from pymc_dp.scores import check_fit, score_plan
from pymc_dp.scores.private_scores import plan_scores
from pymc_dp.scores.second_moments import (
    corrected,
    corrected_by,
    row_weights,
)
from tests.terms import product_steps, score_moments

N, RHO = 1500, 0.6


def matrices(rows):
    """Symmetric matrices of rows of products."""
    d = int((np.sqrt(8 * rows.shape[1] + 1) - 1) / 2)
    found = np.zeros((len(rows), d, d))
    upper = np.triu_indices(d)
    found[:, upper[0], upper[1]] = rows / np.where(upper[0] == upper[1], 1, np.sqrt(2))
    return found + np.triu(found, 1).transpose(0, 2, 1)


def test_products_are_those_of_clipped_scores():
    vectors = np.random.default_rng(1).normal(size=(200, 3)) * 2
    vectors[0], vectors[1], vectors[2] = 0, np.nan, 1e300
    clipped = vectors[3:] * np.minimum(1, 1.5 / np.linalg.norm(vectors[3:], axis=1))[:, None]
    found = products(vectors, 1.5)
    np.testing.assert_allclose(
        matrices(found)[3:], clipped[:, :, None] * clipped[:, None, :], atol=1e-12
    )
    assert (found[:3] == 0).all()
    # Lengths are Frobenius norms.
    assert np.linalg.norm(found, axis=1).max() == pytest.approx(1.5**2)


def test_the_sum_is_exact():
    vectors = np.random.default_rng(2).normal(size=(500, 2))
    directions = np.array([[1.0, 0.3], [0.0, 2.0]])
    steps, exponent = sum_products([vectors[:200] @ directions, vectors[200:] @ directions], 2, 1.7), product_exponent(1.7)  # fmt: skip
    total = products(vectors @ directions, 1.7).sum(axis=0)
    np.testing.assert_allclose(np.ldexp(steps.astype(float), exponent), total, atol=500 * 2.0**-28)
    again = sum_products([(vectors @ directions)[::-1]], 2, 1.7)
    assert (steps == again).all()


@pytest.mark.parametrize("bound", [1e-9, 1.3, 1e6])
def test_no_record_changes_the_sum_by_more_than_is_said(bound):
    rng = np.random.default_rng(3)
    extremes = [
        *rng.normal(size=(30, 3)) * bound, *(s * e for e in np.eye(3) for s in (1e-9, 1.0, 1e9, -1e150)),
        np.full(3, np.inf), np.full(3, np.nan), np.full(3, 1e300), np.full(3, 5e-324),
    ]  # fmt: skip
    common = rng.normal(size=(20, 3)) * bound
    sums = []
    for more in ([], *([e] for e in extremes)):
        vectors = np.array([*common, *more])
        steps, exponent = sum_products([vectors], 3, bound), product_exponent(bound)
        sums.append(np.ldexp(steps.astype(float), exponent))
    sums = np.array(sums) / bound**2
    removed = np.linalg.norm(sums[1:] - sums[0], axis=1).max()
    replaced = max(np.linalg.norm(sums[1:] - one, axis=1).max() for one in sums[1:])
    term = ScoreProducts(np.zeros(1), np.eye(1), 1.0)
    assert 0.999 < removed <= term.sensitivity("add_remove")
    assert 1.41 < replaced <= term.sensitivity("substitute") < 1.4143


@functools.cache
def model(rho=RHO, n=N, seed=4):
    rng = np.random.default_rng(seed)
    x = rng.multivariate_normal(np.zeros(2), [[1, rho], [rho, 1]], size=n)
    y = (rng.random(n) < 1 / (1 + np.exp(-(0.3 + x @ [0.8, -0.5])))).astype(int)
    with pm.Model() as found:
        b = pm.Normal("b", 0, 1.5, shape=3)
        pm.Bernoulli("y", logit_p=b[0] + pm.math.dot(pm.Data("x", x), b[1:]), observed=y)
    return found


@functools.cache
def simulator() -> Simulator:
    """Correlated covariates, and a stand-in with independent ones."""
    return Simulator(model(), covariates=model(0.0, 3000, 5))


#: At the initial point the score of a record is 0.5 times its row.
DIRECTIONS = 2 * np.eye(3)


def moments_of(noise_sd=0.0, bound=1.8, seed=6) -> Release:
    steps, exponent = product_steps(simulator().likelihood, np.zeros(3), DIRECTIONS, bound)
    noise = noise_sd * np.random.default_rng(seed).standard_normal(len(steps))
    total = np.ldexp(steps.astype(float), exponent) + noise
    return score_moments(np.zeros(3), DIRECTIONS, bound, "gaussian", noise_sd, total)


def second_moments(simulator, weights=None):
    """Of the scores of simulated records."""
    simulated = simulator.simulated
    data = simulated.draw(np.zeros(3), np.random.default_rng(7))
    scores = simulated.gradients(np.zeros(3), data, None, DIRECTIONS)
    return np.einsum("ij,ik,i->jk", scores, scores, np.full(len(scores), 1 / len(scores)) if weights is None else weights)  # fmt: skip


def true_moments():
    x = model()["x"].get_value()
    x = np.column_stack([np.ones(N), x])
    return x.T @ x / N


def rows_with(moments, start=None) -> Simulator:
    return corrected(start or simulator(), moments, N, np.zeros(3), np.zeros((3, 3)))


@pytest.mark.slow
@pytest.mark.long
def test_weighted_rows_have_the_released_moments():
    moments, rng = moments_of(), np.random.default_rng(8)
    weights = row_weights(moments, simulator(), N, np.zeros(3), np.zeros((3, 3)), rng)
    simulated = simulator().simulated
    data = simulated.draw(np.zeros(3), rng)
    scores = simulated.gradients(np.zeros(3), data, None, DIRECTIONS)
    # Whatever the outcome, the products are those of the rows: no error of simulation.
    np.testing.assert_allclose(
        weights @ products(scores, moments.term.bound), moments.total / N, atol=2e-4
    )
    assert np.abs(second_moments(simulator(), weights) - true_moments()).max() < 0.12
    assert np.abs(second_moments(simulator()) - true_moments()).max() > 0.5


@pytest.mark.slow
@pytest.mark.long
def test_noise_shrinks_moments_towards_the_stand_in():
    alone = second_moments(simulator())
    distances = []
    for noise_sd in (1.0, 0.7 * N, 7.0 * N):
        exact = moments_of()
        moments = replace(exact, noise=replace(exact.noise, scale=noise_sd))
        weights = row_weights(
            moments, simulator(), N, np.zeros(3), np.zeros((3, 3)), np.random.default_rng(9)
        )
        distances.append(np.abs(second_moments(simulator(), weights) - alone).max())
    assert distances[0] > 1.5 * distances[1] > 6 * distances[2]
    assert distances[2] < 0.05


@pytest.mark.slow
@pytest.mark.long
def test_rows_are_kept_in_proportion_to_their_weights():
    moments = moments_of()
    found = rows_with(moments)
    kept = found.simulated.n_records
    assert 300 < kept < 2500
    errors = np.abs(second_moments(found) - true_moments())
    assert errors.max() < 0.12 + 4 * 2.5 / np.sqrt(kept)
    assert second_moments(found)[1, 2] > 0.35 > abs(second_moments(simulator())[1, 2]) + 0.2
    # The same rows again, also from a simulator that has been corrected before.
    again = rows_with(replace(moments), rows_with(moments_of(seed=1)))
    np.testing.assert_array_equal(found.simulated._kept, again.simulated._kept)


def test_a_stand_in_that_cannot_have_the_moments_keeps_some_rows():
    moments = moments_of()
    impossible = replace(moments, total=-5 * moments.total)
    found = rows_with(impossible)
    assert found.simulated.n_records >= 50


def released(noise="auto", epsilon=2.0):
    budget = PrivacyBudget(epsilon, 1e-6, chains=1)
    plan = plan_scores(simulator(), budget, noise=noise, random_seed=1)
    return plan, plan.release()


def quieter(moments, factor):
    """The same with less noise."""
    return replace(moments, noise=replace(moments.noise, scale=moments.noise.scale / factor))


@pytest.mark.slow
@pytest.mark.long
def test_a_plan_with_a_stand_in_releases_moments():
    plan, scores = released()
    moments = scores.moments
    assert plan.design.moments is not None and moments is not None
    claims = [a for c in plan.budget.ledger.claims(plan.budget.id) for a in c.accesses]
    assert claims[0] == (plan.design.moments.mechanism, 1)
    assert sum(n for _, n in claims) == sum(n for _, n in plan.design.accesses)
    assert "products of scores" in str(plan) and "products of scores" in str(scores)
    kept = codec.loads(codec.dumps(scores))
    np.testing.assert_array_equal(kept.moments.total, moments.total)
    one, other = (DPScore(s, simulator=simulator()).simulator for s in (scores, kept))
    assert corrected_by(one, kept) is other and corrected_by(other, kept) is other
    noisier = replace(kept, moments=quieter(kept.moments, 1 / 50))
    fewer = corrected_by(one, noisier).simulated
    assert fewer.n_records > other.simulated.n_records  # nearer to equal weights
    assert corrected_by(simulator(), replace(scores, moments=None)) is simulator()
    np.testing.assert_array_equal(one.simulated._kept, other.simulated._kept)
    assert one.simulated.n_records < simulator().simulated.n_records
    fit, again = (check_fit(scores, s) for s in (simulator(), one))
    assert fit.p_value == again.p_value
    # Of two, those with less noise count.
    worse = replace(scores, moments=quieter(moments, 1 / 2))
    assert (scores + worse).moments is moments and (worse + scores).moments is moments
    assert (replace(scores, moments=None) + worse).moments is worse.moments


@pytest.mark.parametrize("noise", ["l2", "gaussian"])
def test_the_noise_is_the_claimed_one(noise):
    """Many releases, minus the exact sum: standard deviation in units of the largest change by a record."""
    steps, exponent = product_steps(simulator().likelihood, np.zeros(3), DIRECTIONS, 1.8)
    exact, mechanism = np.ldexp(steps.astype(float), exponent), L2Laplace(0.5, 6)
    if noise == "gaussian":
        mechanism = Gaussian(3.0)
    term, likelihood = ScoreProducts(np.zeros(3), DIRECTIONS, 1.8), simulator().likelihood
    found = [noisy_total(likelihood, term, mechanism, Adjacency.SUBSTITUTE) for _ in range(200)]
    errors = np.array([m.total for m in found]) - exact
    wanted = term.sensitivity("substitute") * mechanism.noise_sd
    assert errors.std() == pytest.approx(wanted, rel=5 / np.sqrt(2 * errors.size))
    assert found[0].noise_sd == pytest.approx(wanted)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("broken", ["noisy_total", "corrected"])
def test_moments_are_paid_for_before_they_are_released(broken, monkeypatch):
    """If the release fails, its cost has been claimed; if its rows are of no use, all else is released as planned."""
    budget = PrivacyBudget(2.0, 1e-6, chains=1)
    plan = plan_scores(simulator(), budget, random_seed=1)

    def fails(*args):
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(score_plan, broken, fails)
    if broken == "noisy_total":
        with pytest.raises(np.linalg.LinAlgError, match="singular"):
            plan.release()
        assert budget.ledger.claims(budget.id)[-1].accesses == ((plan.design.moments.mechanism, 1),)
    else:
        assert plan.release().moments is None
        claims = [a for c in budget.ledger.claims(budget.id) for a in c.accesses]
        assert sum(n for _, n in claims) == sum(n for _, n in plan.design.accesses)


def regressions(spread, seed):
    """Normal regression of scale 1; outcomes are far from what the model says at its initial point."""
    rng = np.random.default_rng(seed)
    x = spread * rng.standard_normal((2000, 2))
    with pm.Model() as found:
        b, sigma = pm.Normal("b", 0, 2.5, shape=2), pm.HalfNormal("sigma", 2)
        mean = pm.math.dot(pm.Data("x", x), b)
        pm.Normal("y", mean, sigma, observed=x @ [1.0, 2.0] + rng.standard_normal(2000))
    return found


@pytest.mark.slow
@pytest.mark.long
def test_moments_far_from_the_data_are_those_of_the_parameters_found():
    """At the guess, products of scores are those of residuals: rows must not make up for them."""
    away = Simulator(regressions(1.0, 13), covariates=regressions(1.3, 14))
    theta, truth, bound = np.array([0.0, 0.0, 0.7]), np.array([1.0, 2.0, 0.0]), 3.0
    steps, exponent = product_steps(away.likelihood, theta, np.eye(3), bound)
    total = np.ldexp(steps.astype(float), exponent)
    moments = score_moments(theta, np.eye(3), bound, "gaussian", 1.0, total)
    kept = []
    for at in (theta, truth):
        found = corrected(away, moments, 2000, at, np.zeros((3, 3)))
        rows = found.covariates["x"].get_value()[found.simulated.rows]
        kept.append((len(rows), rows.var()))
    assert kept[0][0] < 300 < 900 < kept[1][0]
    assert kept[1][1] < 1.35  # of 1.69, for 1
    # Where the parameters are not known, products say little about the rows.
    weights = row_weights(moments, away, 2000, theta, 4 * np.eye(3), np.random.default_rng(15))
    assert 1 / np.sum(weights**2) > 1000
