"""Latent records of users, of several variables, and in blocks of a stand-in's rows: weights count exactly the records there are."""

from __future__ import annotations

import functools
import math

import numpy as np
import pymc as pm
import pytest

from scipy import stats

from pymc_dp import DPScore, PrivateScores
from pymc_dp.model.simulation import SimulatedRecords
from pymc_dp.planning.simulator import Simulator
from pymc_dp.scores.latent_posterior import LatentPosterior, Walk
from pymc_dp.scores.score_features import ScoreFeatures
from tests.scores.score_models import clipped
from tests.terms import score_release

UNITS = 12
#: Two rows of one variable, and one row of the other, of each unit; not in the same order.
LABELS = {"y": np.arange(2 * UNITS) // 2, "c": np.random.default_rng(0).permutation(UNITS)}
X = np.linspace(-1, 1, 2 * UNITS)
THETA = np.array([0.3, -0.2])
RELEASE = score_release(THETA, np.array([[0.8, 0.1], [0.0, 0.9]]), 0.9, "l2", 0.7, np.zeros(2))


@functools.cache
def users() -> SimulatedRecords:
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Normal("y", a + b * pm.Data("x", X), 1.0, observed=np.zeros(2 * UNITS))
        pm.Poisson("c", pm.math.exp(a), observed=np.zeros(UNITS, dtype=int))
    return SimulatedRecords(model, records=LABELS, public_covariates=True)


def scores_of(n_records):
    return PrivateScores((RELEASE,), {"a": (), "b": ()}, n_records, "substitute", ())


def target_of(n_records) -> LatentPosterior:
    simulated = users()
    found = ScoreFeatures(scores_of(n_records), simulated)
    return LatentPosterior(found, simulated, simulated, n_records)


def terms(theta, data):
    """Log-likelihoods of units and their scores, by hand."""
    y, c = data
    rest, rate = y - theta[0] - theta[1] * X, np.exp(theta[0])
    logp, score = np.zeros(UNITS), np.zeros((UNITS, 2))
    np.add.at(logp, LABELS["y"], stats.norm.logpdf(rest))
    np.add.at(logp, LABELS["c"], stats.poisson.logpmf(c, rate))
    np.add.at(score, LABELS["y"], np.column_stack([rest, rest * X]))
    np.add.at(score[:, 0], LABELS["c"], c - rate)
    return logp, score


@pytest.mark.slow
@pytest.mark.parametrize("n_records", [UNITS, 30, 5])
def test_weights_count_the_records(n_records):
    target, rng = target_of(n_records), np.random.default_rng(1)
    weights = target._weights
    assert len(weights) == math.ceil(n_records / UNITS)
    assert sum(w.sum() for w in weights) == n_records
    assert all(set(w) <= {0.0, 1.0} for w in weights)
    assert all((w == 1).all() for w in weights[:-1])
    state = target.draw(np.array([0.5, 0.4]), rng)
    for _ in range(20):
        target.update_records(state, rng)
        state, _ = target.update_both(state, Walk(THETA, 0.5 * np.eye(2)), rng)
    total = np.zeros(2)
    log_density, gradient = -(state.theta @ state.theta) / 2 - np.log(2 * np.pi), -state.theta
    for w, data, found in zip(weights, state.data, state.features, strict=True):
        by_hand = w[:, None] * clipped(
            terms(THETA, data)[1] @ RELEASE.term.directions, RELEASE.term.bound
        )
        np.testing.assert_allclose(found, by_hand, atol=1e-12)
        total += by_hand.sum(axis=0)
        logp, score = terms(state.theta, data)
        log_density, gradient = log_density + w @ logp, gradient + w @ score
    np.testing.assert_allclose(state.residual, -total, atol=1e-9)
    value, slope = target.log_density(state.theta, state)
    np.testing.assert_allclose(value, log_density, rtol=1e-10)
    np.testing.assert_allclose(slope, gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_rows_of_a_user_move_together():
    target, rng = target_of(UNITS + 4), np.random.default_rng(2)
    state = target.draw(THETA, rng)
    moved = 0
    for _ in range(20):
        before = [[v.copy() for v in block] for block in state.data]
        target.update_records(state, rng)
        for w, old, new in zip(target._weights, before, state.data, strict=True):
            changed = (old[0] != new[0]).reshape(UNITS, 2)
            assert (changed[:, 0] == changed[:, 1]).all()
            assert not changed[w == 0].any()
            counts = np.zeros(UNITS, dtype=bool)
            counts[LABELS["c"]] = old[1] != new[1]
            assert not (counts & ~changed[:, 0]).any()
            assert old[1].dtype == new[1].dtype and new[1].dtype.kind == "i"
            moved += changed[:, 0].sum()
    assert moved > 5 * UNITS


@pytest.mark.slow
def test_a_stand_in_with_fewer_rows():
    """Private records with covariates, of which a stand-in has 20 invented rows, not a divisor of their number."""

    def model(n):
        rng = np.random.default_rng(n)
        x = rng.normal(size=n)
        with pm.Model() as built:
            pm.Normal("y", pm.Normal("a") + pm.Normal("b") * x, 1.0, observed=rng.normal(size=n))
        return built

    private, stand_in = model(50), model(20)
    simulator = Simulator(private, covariates=stand_in)
    assert simulator.n_records == 50 and simulator.simulated.n_records == 20
    step = DPScore(scores_of(50), simulator=simulator, model=private)
    weights = step._target._weights
    assert [len(w) for w in weights] == [20, 20, 20] and sum(map(np.sum, weights)) == 50
    # Whoever has the stand-in alone, and the scores, has the same posterior.
    other = DPScore(scores_of(50), covariates="public", model=stand_in)
    assert [w.tolist() for w in other._target._weights] == [w.tolist() for w in weights]
    np.testing.assert_allclose(other.approximation.mean, step.approximation.mean, atol=0.1)
    np.testing.assert_allclose(
        other.approximation.covariance, step.approximation.covariance, rtol=0.2, atol=0.01
    )
    for s in (step, other):
        s.set_rng(np.random.default_rng(1))
        s.step({})
        assert len(s._chain.state.data) == 3
