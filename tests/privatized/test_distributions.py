"""Distributions of releases: probabilities in two ways, draws against probabilities, use in models."""

import functools
import math

import mpmath
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from numpy.testing import assert_allclose, assert_array_equal
from pymc.distributions.distribution import support_point
from pymc.logprob.utils import ParameterValueError
from scipy import stats

import pymc_dp as dp

SCALES = [0.05, 0.3989, 0.4, 1.0, 7.5, 1e4]
NOISE = [dp.DiscreteLaplace, dp.DiscreteGaussian]


@functools.cache
def compiled(distribution, mode="NUMBA", gradients=False):
    """Log-probability of float values; and its gradient with respect to the scale (or epsilon) and the location.

    Compiling the gradient takes longer than all else, so only the tests of it do.
    """
    value, location, scale = pt.dvectors("value", "location", "scale")
    others = [pt.lscalar("n_categories")] if distribution is dp.RandomizedResponse else []
    logp = pm.logp(distribution.dist(location, scale, *others), value)
    gradient = (
        pt.grad(logp.sum(), [scale, location], disconnected_inputs="ignore") if gradients else []
    )
    return pytensor.function(
        [value, location, scale, *others],
        [logp, *gradient],
        mode=mode,
        on_unused_input="ignore",
    )


def logp(distribution, value, location, scale, *others, mode="NUMBA"):
    arguments = np.broadcast_arrays(*np.atleast_1d(value, location, scale))
    return compiled(distribution, mode)(*(np.array(a, float) for a in arguments), *others)[0]


def around(scale, mu=0):
    """Integers that hold all but a negligible part of the noise."""
    reach = int(45 * scale) + 20
    return np.arange(mu - reach, mu + reach + 1)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("distribution", NOISE)
def test_probabilities_sum_to_one(distribution, scale):
    for mu in (0, -17):
        assert_allclose(np.exp(logp(distribution, around(scale, mu), mu, scale)).sum(), 1, 1e-12)


@pytest.mark.parametrize("scale", SCALES)
def test_laplace_against_scipy_and_a_long_sum(scale):
    k = around(scale)
    found = logp(dp.DiscreteLaplace, k + 3, 3, scale)
    assert_allclose(found, stats.dlaplace(1 / scale).logpmf(k), rtol=1e-12, atol=1e-15)
    assert_allclose(found, -abs(k) / scale - np.log(np.exp(-abs(k) / scale).sum()), 1e-11, 1e-15)


@pytest.mark.parametrize("sigma", SCALES)
def test_gaussian_against_long_sums(sigma):
    with mpmath.workdps(120):
        s = mpmath.mpf(sigma)
        if sigma < 100:
            total = mpmath.fsum(mpmath.exp(-(j**2) / (2 * s**2)) for j in range(-1000, 1001))
        else:  # too many terms for mpmath; fsum rounds once
            total = math.fsum(np.exp(-((around(sigma) / sigma) ** 2) / 2))
        k = np.unique([0, 1, 2, int(sigma), int(5 * sigma)])
        expected = [float(-(mpmath.mpf(int(i)) ** 2) / (2 * s**2) - mpmath.log(total)) for i in k]
    assert_allclose(logp(dp.DiscreteGaussian, 5 - k, 5, sigma), expected, rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("scale", SCALES)
def test_privacy_of_neighbouring_counts(scale):
    """Pure epsilon of the geometric mechanism; Renyi divergence of the Gaussian one, alpha / (2 sigma^2)."""
    k = around(scale)
    one, other = (logp(dp.DiscreteLaplace, k, mu, scale) for mu in (0, 1))
    assert_allclose(abs(one - other).max(), 1 / scale, rtol=1e-9)
    one, other = (logp(dp.DiscreteGaussian, k, mu, scale) for mu in (0, 1))
    for alpha in (
        2,
        5,
    ):  # attained for integers alpha, as all moments are then sums over shifted integers
        log_terms = alpha * one + (1 - alpha) * other
        top = log_terms.max()
        divergence = (top + np.log(np.exp(log_terms - top).sum())) / (alpha - 1)
        assert_allclose(divergence, alpha / (2 * scale**2), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("n", "epsilon"), [(2, 0.0), (2, 800.0), (3, 1.0), (10, 0.1)])
def test_randomized_response_against_its_matrix(n, epsilon):
    truth, answer = (a.ravel() for a in np.mgrid[:n, :n])
    found = logp(dp.RandomizedResponse, answer, truth, epsilon, n).reshape(n, n)
    log_total = np.logaddexp(epsilon, np.log(n - 1))
    assert_allclose(found, np.where(np.eye(n), epsilon, 0) - log_total, rtol=1e-14, atol=1e-13)
    assert_allclose(np.exp(found).sum(axis=1), 1, rtol=1e-13)
    assert_allclose(np.ptp(found, axis=0).max(), epsilon, rtol=1e-13)


def test_off_the_support():
    """Values that PyMC has not made integers before (it does for NumPy arrays)."""
    outside = [0.5, -1e-9, 1 + 1e-9, np.inf, -np.inf, np.nan]
    for distribution in NOISE:
        assert_array_equal(logp(distribution, outside, 0, 2.0), -np.inf)
    assert_array_equal(logp(dp.RandomizedResponse, [*outside, -1, 3], 1, 1.0, 3), -np.inf)


def test_far_from_the_centre():
    """A square of int64 would overflow."""
    for mu in (0, 3):
        k = np.array([-(10**12), 10**12])
        found = pm.logp(dp.DiscreteGaussian.dist(mu, 1e3), k).eval(mode="FAST_COMPILE")
        assert_allclose(found, -(((k - mu) / 1e3) ** 2) / 2, rtol=1e-12)
        found = pm.logp(dp.DiscreteLaplace.dist(mu, 1e3), k).eval(mode="FAST_COMPILE")
        assert_allclose(found, -abs(k - mu) / 1e3, rtol=1e-7)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
def test_bad_scales(bad):
    with pytest.raises(ParameterValueError, match="scale > 0"):
        logp(dp.DiscreteLaplace, 0, 0, bad)
    with pytest.raises(ParameterValueError, match="sigma > 0"):
        logp(dp.DiscreteGaussian, 0, 0, bad)


@pytest.mark.parametrize(
    ("truth", "epsilon", "n"),
    [(0, -0.1, 2), (0, np.nan, 2), (2, 1, 2), (-1, 1, 2), (0.5, 1, 2), (0, 1, 1)],
)
def test_bad_randomized_responses(truth, epsilon, n):
    with pytest.raises(ParameterValueError, match="epsilon >= 0, n_categories >= 2, value in 0"):
        logp(dp.RandomizedResponse, 0, truth, epsilon, n)


def test_categories_are_counted_in_integers():
    with pytest.raises(TypeError, match="its type is float64"):
        dp.RandomizedResponse.dist(0, 1.0, 2.3)


CASES = [
    (dp.DiscreteLaplace, [-3.0, 0.0, 11.0], [0.0, 2.0, 4.0], [0.2, 1.0, 50.0], ()),
    (
        dp.DiscreteGaussian,
        [-3.0, 0.0, 11.0],
        [-4.0, 2.0, 4.0],
        [0.2, (2 * np.pi) ** -0.5, 50.0],
        (),
    ),
    (dp.RandomizedResponse, [0.0, 1.0, 2.0], [0.0, 2.0, 1.0], [0.2, 1.0, 4.0], (3,)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("distribution", "value", "location", "scale", "others"), CASES)
def test_gradients_and_numba(distribution, value, location, scale, others):
    """Central differences; the default mode and Numba agree."""
    arguments = [np.array(a) for a in (value, location, scale)]
    found, by_scale, by_location = compiled(distribution, gradients=True)(*arguments, *others)
    for other, ours in zip(
        compiled(distribution, None, gradients=True)(*arguments, *others),
        (found, by_scale, by_location),
        strict=True,
    ):
        assert_allclose(ours, other, rtol=1e-12, atol=1e-14)

    def difference(i, h):
        moved = [a.copy() for a in arguments], [a.copy() for a in arguments]
        moved[0][i] += h
        moved[1][i] -= h
        return (logp(distribution, *moved[0], *others) - logp(distribution, *moved[1], *others)) / (
            2 * h
        )

    assert_allclose(by_scale, difference(2, 1e-6), rtol=1e-6, atol=1e-8)
    if distribution in NOISE:
        assert_allclose(by_location, difference(1, 1e-6), rtol=1e-6, atol=1e-8)
    else:
        assert_array_equal(by_location, 0)


def test_distribution_function():
    """Against SciPy and against the sum of probabilities; both tails keep their digits."""
    k, scale = np.arange(-60, 61), 1.5
    found = pm.logcdf(dp.DiscreteLaplace.dist(2, scale), k).eval(mode="FAST_COMPILE")
    assert_allclose(found, stats.dlaplace(1 / scale, 2).logcdf(k), rtol=1e-11, atol=1e-16)
    cumulated = np.cumsum(np.exp(logp(dp.DiscreteLaplace, np.arange(-200, 61), 2, scale)))[
        -len(k) :
    ]
    assert_allclose(np.exp(found), cumulated, rtol=1e-12)
    clamped = pm.Censored.dist(dp.DiscreteLaplace.dist(2, scale), 0, 5)
    masses = np.exp(pm.logp(clamped, np.arange(-1, 7)).eval(mode="FAST_COMPILE"))
    assert_allclose(masses.sum(), 1, rtol=1e-12)
    assert_array_equal(masses[[0, -1]], 0)


# Draws -------------------------------------------------------------------------------------------


def p_value(draws, k, probabilities):
    """Chi-square test of draws, in bins of consecutive values that expect ten draws or more."""
    assert draws.min() >= k[0] and draws.max() <= k[-1]
    expected, observed = [], []
    counts = np.bincount(draws - k[0], minlength=len(k))
    start = 0
    sums = np.cumsum(probabilities) * len(draws)
    for stop in range(1, len(k) + 1):
        mass = sums[stop - 1] - (sums[start - 1] if start else 0)
        rest = sums[-1] - sums[stop - 1]
        if (mass >= max(10, len(draws) / 50) and rest >= 10) or stop == len(k):
            expected.append(mass)
            observed.append(counts[start:stop].sum())
            start = stop
    assert len(expected) > 1
    return stats.chisquare(observed, np.array(expected) * len(draws) / np.sum(expected)).pvalue


@pytest.mark.slow
@pytest.mark.parametrize("distribution", NOISE)
def test_draws_of_noise_follow_the_probabilities(distribution):
    """Threshold: one in 10 000 per case; a seed is fixed. Shapes of the parameters are broadcast."""
    scales = np.array([0.5, 1.0, 3.0, 20.0, 1e4])
    mu = np.array([5, 0, -3, 100, 0])
    variable = distribution.dist(mu, scales, shape=(10_000, len(scales)))
    # The other one is compiled in the next test, a slow one.
    mode = None if distribution is dp.DiscreteLaplace else "FAST_COMPILE"
    draws = pm.draw(variable, random_seed=20, mode=mode)
    assert draws.dtype == np.int64 and draws.shape == (10_000, 5)
    for m, scale, column in zip(mu, scales, draws.T, strict=True):
        k = around(scale, m)
        assert p_value(column, k, np.exp(logp(distribution, k, m, scale))) > 1e-4
    assert len(np.unique(draws[:, -1])) > 5000  # independent draws, not one that is repeated


@pytest.mark.slow
def test_rejection_is_exact():
    """Many draws where rounding matters most: an acceptance probability above 1 would shift them by 1 %."""
    sigmas = np.array([0.35, 0.5, 1.0])
    variable = dp.DiscreteGaussian.dist(0, sigmas, shape=(20_000, 3))
    draws = pm.draw(variable, 10, random_seed=23).reshape(-1, 3)
    for sigma, column in zip(sigmas, draws.T, strict=True):
        k = around(sigma)
        assert p_value(column, k, np.exp(logp(dp.DiscreteGaussian, k, 0, sigma))) > 1e-4


def test_draws_with_hardly_any_noise():
    """P(noise is not 0) is 4e-9 for Laplace and 3e-87 for Gaussian noise."""
    for distribution in NOISE:
        assert_array_equal(
            pm.draw(distribution.dist([3, -8], 0.05), random_seed=1, mode="FAST_COMPILE"), [3, -8]
        )


@pytest.mark.parametrize(("n", "epsilon"), [(2, 1.0), (4, 0.7), (3, 0.0)])
def test_draws_of_randomized_response_follow_the_probabilities(n, epsilon):
    truth = np.arange(n)
    draws = pm.draw(
        dp.RandomizedResponse.dist(truth, epsilon, n, shape=(20_000, n)),
        random_seed=21,
        mode="FAST_COMPILE",
    )
    assert draws.dtype == np.int64
    for value, column in zip(truth, draws.T, strict=True):
        probabilities = np.exp(logp(dp.RandomizedResponse, truth, value, epsilon, n))
        assert p_value(column, truth, probabilities) > 1e-4


# In models ---------------------------------------------------------------------------------------


def test_shapes_and_support_points():
    mu = np.array([[1], [2]])
    for distribution in NOISE:
        variable = distribution.dist(mu, [1.0, 2.0, 3.0])
        assert variable.dtype == "int64" and variable.ndim == 2
        assert_array_equal(support_point(variable).eval(mode="FAST_COMPILE"), np.tile(mu, 3))
        assert pm.draw(variable, 4, mode="FAST_COMPILE").shape == (4, 2, 3)
        assert distribution.dist(0, 1.0, size=(3, 2)).type.shape == (3, 2)
    answers = dp.RandomizedResponse.dist([0, 1, 2], [[1.0], [2.0]], 3)
    assert_array_equal(support_point(answers).eval(mode="FAST_COMPILE"), np.tile([0, 1, 2], (2, 1)))


@pytest.fixture(scope="module")
def model():
    """Three private bits, of which a noisy count, two more noisy counts and noisy answers are known."""
    with pm.Model(coords={"person": ["a", "b", "c"], "release": ["first", "second"]}) as model:
        x = pm.Bernoulli("x", 0.3, dims="person")
        scale = pm.HalfNormal("scale")
        dp.DiscreteLaplace("s_dp", x.sum(), scale=scale, observed=2)
        dp.DiscreteGaussian("t_dp", x.sum(), sigma=1.5, observed=[0, 4], dims="release")
        dp.RandomizedResponse("answers", x, epsilon=1.0, observed=[1, 0, 1], dims="person")
    return model


def test_prior_predictive(model):
    """Means and variances of 4000 releases, within five standard errors."""
    names = ["x", "t_dp", "answers"]
    drawn = pm.sample_prior_predictive(
        4000, model, var_names=names, random_seed=22, compile_kwargs={"mode": "FAST_COMPILE"}
    )
    prior, predictive = (drawn[g] for g in ("prior", "prior_predictive"))
    noise = (predictive["t_dp"] - prior["x"].sum("person")).to_numpy()[0]
    assert noise.shape == (4000, 2) and noise.dtype == np.int64
    assert abs(noise.mean()) < 5 * 1.5 / np.sqrt(noise.size)
    assert abs(noise.var() - 1.5**2) < 5 * 1.5**2 * np.sqrt(2 / noise.size)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 5 / np.sqrt(4000)
    kept = (predictive["answers"] == prior["x"]).to_numpy()
    p = np.e / (1 + np.e)
    assert abs(kept.mean() - p) < 5 * np.sqrt(p * (1 - p) / kept.size)


def test_a_parameter_that_a_sampler_moves_out_of_range_is_refused_not_an_error():
    with pm.Model() as model:
        x = pm.Binomial("x", 5, 0.5)
        dp.RandomizedResponse("answer", x, 1.0, 3, observed=0)
    assert model.compile_logp(mode="FAST_COMPILE")({"x": 4}) == -np.inf
