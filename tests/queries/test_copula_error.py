"""Errors of a copula: of what was counted, and of dependence that it does not have."""

import dataclasses

import numpy as np
import pytest

from scipy import stats

from pymc_dp import Ranges
from pymc_dp.model import stand_in_error
from pymc_dp.model.stand_in_error import StandInError, indicators
from pymc_dp.privacy.mechanisms.mechanism import Adjacency, Gaussian
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.queries import copula_error
from pymc_dp.queries.copula import Margin
from pymc_dp.queries.stand_in import release_stand_in
from pymc_dp.queries.stand_in_design import StandInDesign

SEED = 0
RANGES = Ranges(a=[0, 1, 2], b=[0, 1], x=(-4, 4))


def records(n, rng):
    """A Gaussian copula with two columns of categories."""
    law = np.array([[1, 0.6, 0.3], [0.6, 1, -0.2], [0.3, -0.2, 1]])
    z = rng.multivariate_normal(np.zeros(3), law, size=n)
    return {"a": np.digitize(z[:, 0], [-0.5, 1.3]), "b": (z[:, 1] > 0.8) * 1, "x": z[:, 2]}


def released(data, noise=8.0, seed=0):
    """A copula with 16 bins."""
    design = StandInDesign(16, Gaussian(noise), Gaussian(noise))
    places = RANGES.places(data)
    return release_stand_in(places, RANGES, design, Adjacency.SUBSTITUTE, len(places), seed)


def features(data):
    """Of a record: two shares and two products."""
    a, b, x = (np.asarray(data[name], float) for name in "abx")
    return np.column_stack([a == 2, b, b * (a == 2), x * b])


def test_indicators_give_the_means_in_classes():
    """Of features that do not vary in a class, in closed form; classes without rows have no part."""
    rng = np.random.default_rng(1)
    numbers, means = rng.integers(0, 3, size=100), np.array([1.0, -2.0, 5.0, 7.0])
    covariance = 1e-8 * np.cov(rng.standard_normal((4, 9)))
    error = StandInError(indicators(numbers, 4), covariance)
    found = error.of_means(means[numbers][:, None], means[numbers][:, None])
    wanted = means[:3] @ covariance[:3, :3] @ means[:3]
    assert found[0, 0] == pytest.approx(wanted)
    kept = error.keeping(np.arange(0, 100, 2)).of_means(
        means[numbers][::2, None], means[numbers][::2, None]
    )
    assert kept[0, 0] == pytest.approx(wanted)


def test_errors_of_collinear_statistics_are_bounded():
    """Two statistics that are nearly the same: their errors can differ by no more than weights of rows allow."""
    first, second = np.linalg.qr(np.random.default_rng(2).standard_normal((500, 2)))[0].T * 500**0.5
    error = StandInError(np.column_stack([first, first + 1e-3 * second]), 1e-4 * np.eye(2))
    found = error.of_means(*2 * [np.column_stack([first, second])])
    # Two measurements of one mean; the difference of their errors is the thousandth part of the mean of the second.
    assert np.diag(found) == pytest.approx([1e-4 / 2, stand_in_error._MOST_VARIANCE], rel=0.01)


def test_the_error_of_a_limit_is_that_of_its_noise():
    """Of its share; shares sum to 1. A limit without records has none."""
    for p, variances in (
        ([0.3, 0.2, 0.2, 0.1, 0.2], [1e-4, 1e-4]),
        ([0.3, 0.3, 0.3, 0.1, 0], [1e-4, 0]),
    ):
        found = copula_error._of_bins(Margin(np.array(p), False, has_limits=True), 0.01)
        assert found[[0, -1], [0, -1]] == pytest.approx(variances)
        np.testing.assert_allclose(found.sum(axis=0), 0, atol=1e-12)
        assert (np.diag(found)[1:-1] > 0).all()


@pytest.fixture(autouse=True)
def noise(monkeypatch):
    """With a seed."""
    rng = np.random.default_rng(SEED)

    def add(self, steps, exponent, bits):
        return steps * 2.0**exponent + self.draw(1, rng)[0]

    monkeypatch.setattr(NoiseLaw, "add", add)


@pytest.mark.slow
def test_errors_are_those_that_are_claimed(monkeypatch):
    """Of shares and products, over releases of the same data: squares over the variances that are claimed.

    A sixth of the records is at a limit.
    """
    monkeypatch.setitem(globals(), "RANGES", Ranges(a=[0, 1, 2], b=[0, 1], x=(-1.0, 4)))
    data = records(3000, np.random.default_rng(SEED + 2))
    data["x"] = data["x"].clip(-1.0)
    truth, ratios = features(data).mean(axis=0), []
    for seed in range(60):
        found = released(data, seed=seed)
        values = features(found.rows)
        variances = np.diag(found.error.of_means(values, values))
        # Rows are drawn from the copula.
        variances = variances + values.var(axis=0) / len(values)
        ratios.append((values.mean(axis=0) - truth) ** 2 / variances)
    shares, products = np.split(np.mean(ratios, axis=0), 2)
    # Squares of normal variables: standard errors of 0.18. Errors of products may also be due to what is not released.
    assert (shares > 0.4).all() and (shares < 1.7).all()
    assert (products < 1.7).all()


def test_dependence_that_a_copula_does_not_have_is_an_error(monkeypatch):
    """Many in the middle of a range, few at its ends: not without the prior of such dependence."""
    rng = np.random.default_rng(SEED + 3)
    data = records(20_000, rng)
    data["b"] = (rng.random(20_000) < np.exp(-(data["x"] ** 2))) * 1
    found = released(data, noise=1.0)
    values = [np.asarray(d["b"] * d["x"] ** 2, float)[:, None] for d in (data, found.rows)]
    difference = values[0].mean() - values[1].mean()

    def claimed():
        return np.sqrt(dataclasses.replace(found).error.of_means(values[1], values[1])[0, 0])

    assert 0.3 < abs(difference) / claimed() < 3
    monkeypatch.setattr(copula_error, "_further", lambda scores: iter(()))
    assert abs(difference) > 5 * claimed()


def test_a_column_of_two_values_is_not_bent():
    score = np.repeat([-0.4, 1.3], [30, 10])
    assert np.abs(copula_error._bent(score)).max() < 1e-12
    assert copula_error._bent(stats.norm.ppf(np.arange(1, 40) / 40)).std() > 0.5
