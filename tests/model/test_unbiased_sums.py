"""Sums of scores of binary outcomes, clipped by factors that do not depend on them: closed form, norms, and what is refused."""

import numpy as np
import pymc as pm
import pytest

from scipy import special

from pymc_dp.data import Records
from pymc_dp.model import BlockedLikelihood, RecordLikelihood
from pymc_dp.model.sums import gradients
from pymc_dp.model.sums.clipped_vectors import norm_ratios
from tests.data.mixed_columns import fed
from tests.terms import clipped_grad_steps

N, D = 203, 3
MODE = {"mode": "FAST_COMPILE"}
X = np.random.default_rng(1).normal(size=(N, D)) * [1.0, 2.0, 0.3]
Y = np.random.default_rng(2).integers(0, 2, N)
THETA = np.array([0.4, -1.5, 2.0])
DIRECTIONS = np.random.default_rng(3).normal(size=(D, 2))
BOUND = 0.6


def regression(x, y):
    pm.Bernoulli("z", logit_p=x @ pm.Normal("b", 0, 1, shape=D), observed=y)


def likelihood_of(x=X, y=Y, **options):
    with pm.Model() as model:
        regression(x, y)
    return RecordLikelihood(model, compile_kwargs=MODE, **options)


def sums(
    likelihood, theta=THETA, bound=BOUND, index=None, directions=DIRECTIONS, clipping="outcome_free"
):
    steps, exponent = clipped_grad_steps(
        likelihood, theta, bound, index, directions=directions, clipping=clipping
    )
    return np.ldexp(steps.astype(float), exponent)


@pytest.mark.parametrize("directions", [None, DIRECTIONS, np.array([0.5, 1.0, 3.0])])
@pytest.mark.parametrize("clipping", ["outcome_free", "midpoint"])
def test_closed_form(clipping, directions):
    """Scores (y - p) x, or (y - 1/2) x, times the factor that both outcomes allow."""
    p = special.expit(X @ THETA)
    matrix = np.eye(D) if directions is None else directions
    image = X @ matrix if matrix.ndim == 2 else X * matrix
    centre, largest = (p, np.maximum(p, 1 - p)) if clipping == "outcome_free" else (0.5, 0.5)
    factors = np.minimum(1, BOUND / (largest * np.linalg.norm(image, axis=1)))
    assert 0.2 < np.mean(factors < 1) < 0.98
    wanted = ((Y - centre) * factors) @ image
    found = sums(likelihood_of(), directions=directions, clipping=clipping)
    np.testing.assert_allclose(found, wanted, atol=N * BOUND * 2.0**-29)
    assert np.abs(sums(likelihood_of(), directions=directions, clipping="norm") - wanted).max() > 0.1  # fmt: skip


def test_means_of_both_outcomes_and_norms():
    """Record by record: with "outcome_free" the mean given the covariates is zero, with "midpoint" both outcomes are opposite."""
    zeros, ones = (likelihood_of(y=np.full(N, k)) for k in (0, 1))
    p = special.expit(X @ THETA)[:, None]

    def both(clipping):
        zero, one = (
            np.array([sums(of, index=[i], clipping=clipping) for i in range(N)])
            for of in (zeros, ones)
        )
        assert max(np.linalg.norm(zero, axis=1).max(), np.linalg.norm(one, axis=1).max()) <= BOUND
        return zero, one

    for clipping, is_zero in (("outcome_free", True), ("norm", False)):
        zero, one = both(clipping)
        mean = np.abs((1 - p) * zero + p * one).max()
        assert mean < BOUND * 2.0**-28 if is_zero else mean > 0.1 * BOUND
    np.testing.assert_allclose(*np.abs(both("midpoint")), rtol=0, atol=BOUND * 2.0**-28)


def test_extreme_positions():
    """Where an outcome is certain, its score is zero; one that is impossible has the bound's norm, not an infinite one."""
    likelihood = likelihood_of(np.array([[1.0, 0, 0]] * 2), np.array([0, 1]))
    for level in (40.0, 800.0):
        each = [sums(likelihood, [level, 0, 0], index=[i], directions=None) for i in (0, 1)]
        np.testing.assert_allclose(each[0], [-BOUND, 0, 0], atol=BOUND * 2.0**-29)
        np.testing.assert_allclose(each[1], 0, atol=1e-12)
    for clipping in ("outcome_free", "midpoint"):
        assert np.isfinite(norm_ratios(clipping, np.array([0.0, -np.inf, -1e-320, -800.0]))).all()


def test_sums_over_blocks_and_parts_are_the_same(monkeypatch):
    whole = likelihood_of()
    data = {"x": X, "y": Y}
    blocked = BlockedLikelihood(fed(regression, data), Records(data, block_rows=64), compile_kwargs=MODE)  # fmt: skip
    assert blocked.is_binary and blocked.rehearsal.is_binary
    order = np.random.default_rng(4).permutation(N)
    parts = [sums(whole, index=part) for part in np.split(order, [1, 8, 70])]
    np.testing.assert_array_equal(np.sum(parts, axis=0), sums(whole))
    np.testing.assert_array_equal(sums(blocked), sums(whole))
    expected = sums(whole)
    monkeypatch.setattr(gradients, "CHUNK", 64)
    assert whole._gradients.chunk == 64
    np.testing.assert_array_equal(sums(whole), expected)


def test_what_is_not_one_binary_outcome_is_refused():
    labels = np.arange(N) // 2
    with pm.Model() as counts:
        pm.Poisson("y", pm.math.exp(pm.Normal("b")), observed=Y)
    with pm.Model() as pairs:
        pm.Bernoulli("y", logit_p=pm.Normal("b"), observed=np.column_stack([Y, 1 - Y]))
    with pm.Model() as two:
        for name in ("one", "two"):
            pm.Bernoulli(name, logit_p=pm.Normal(f"b_{name}"), observed=Y)
    found = [RecordLikelihood(model, compile_kwargs=MODE) for model in (counts, pairs, two)]
    for likelihood in [*found, likelihood_of(records=labels)]:
        assert not likelihood.is_binary
        with pytest.raises(ValueError, match="one Bernoulli outcome"):
            clipped_grad_steps(likelihood, np.zeros(likelihood.n_dim), 1.0, clipping="midpoint")
    assert likelihood_of(records=np.arange(N)).is_binary
