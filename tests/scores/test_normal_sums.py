"""The normal approximation of sums: against augmentation by records, and against closed forms."""

from __future__ import annotations

import functools

import arviz as az
import numpy as np
import pymc as pm
import pytest

from pymc_dp import DPScore, PrivacyBudget, private_scores
from pymc_dp.planning.simulator import Simulator
from pymc_dp.scores import score_step, sum_law
from tests.scores.score_models import CASES, chain, public, released, simulator_of, template

N = 2000


def normal_mean(temperature, k, n, seed=3):
    """A sum without clipping of a normal model's scores, and its posterior in closed form."""
    case, rng = CASES["mean"], np.random.default_rng(seed)
    one = template(case, "gaussian", k, [0.0], 0.0, n)
    (release,) = released(case, [one], np.array([0.1]), rng, n)
    w = release.term.directions[0, 0]
    variance = n * w**2 + release.noise.scale**2
    precision = 1 + temperature * (n * w) ** 2 / variance
    mean = (0.2 + temperature * n * w * release.total[0] / variance) / precision
    return public(case, [release], n), mean, precision**-0.5


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "k"), [(0.5, 1.0), (0.7, 0.3)])
def test_tempered_sums_have_the_closed_form(temperature, k):
    simulator = Simulator(CASES["mean"].model(N), temperature=temperature)
    scores, mean, sd = normal_mean(temperature, k, N)
    draws = chain(simulator, scores, 800, 1, "auto")[:, 0]
    error = draws.std() / np.sqrt(float(az.ess(draws[None])))
    assert abs(draws.mean() - mean) < 4 * error + 0.1 * sd
    assert abs(np.log(draws.std() / sd)) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("rows", [5000, 100])
def test_many_records_and_few_rows(rows):
    simulator, (scores, mean, sd) = simulator_of("mean", rows), normal_mean(1.0, 0.3, 50_000)
    draws = chain(simulator, scores, 1500, 1, "auto")[:, 0]
    error = draws.std() / np.sqrt(float(az.ess(draws[None])))
    assert abs(draws.mean() - mean) < 4 * error + 0.05 * sd
    assert abs(np.log(draws.std() / sd)) < 0.07


def test_the_density_is_proper(kind="l2"):
    """Far away the density of the sums is bounded, and below that in the bulk: the prior decides."""
    case, simulator, rng = (
        CASES["location_scale"],
        simulator_of("location_scale", 150),
        np.random.default_rng(4),
    )
    one = template(case, kind, 0.5, case.prior[0], 0.6, 150)
    scores = public(case, released(case, [one], case.prior[0] + 0.05, rng, 150), 150)
    step = DPScore(scores, simulator=simulator, model=simulator.model, method="normal")
    target, centre = step._target, step.approximation.mean
    sd = np.sqrt(np.diag(step.approximation.covariance))

    def likelihood(theta):
        return target.log_density(target.position(theta))[0] - simulator.likelihood.log_prior(theta)

    bulk = likelihood(centre)
    for direction in ([1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, 1]):
        for distance in (10, 100, 1000):
            assert likelihood(centre + distance * np.array(direction) * sd) < bulk
    # The gradient is that of the density, of parameters and of the log-variance.
    position, h = target.position(centre + 0.7 * sd), 1e-5
    position[2:] += 0.4
    gradient = target.log_density(position)[1]
    assert len(gradient) == 3
    for e, g in zip(np.eye(len(gradient)), gradient, strict=True):
        up, down = (target.log_density(position + s * h * e)[0] for s in (1, -1))
        assert (up - down) / (2 * h) == pytest.approx(g, rel=1e-5)
    # Where there is no density the gradient is finite.
    for e in np.eye(len(gradient)):
        for far in (1e4, 1e9, np.inf, np.nan):
            value, slope = target.log_density(position + np.where(e, far, 0.0))
            assert value < bulk and np.isfinite(slope).all()


def wrong_shape(self, log_variances):
    value, slopes = right_noise(self, log_variances)
    return value - log_variances[self._l2].sum(), slopes - 1


def no_determinant(self, log_variances):
    return right_precision(self, log_variances)[0], 0.0


def no_variance(self, log_variances):
    return np.exp(-log_variances[0]) * np.eye(2), -2 * float(log_variances[0])


@functools.cache
def l2_target():
    """A law with l2 noise, a position, and the scale of the noise."""
    case, simulator = CASES["location_scale"], simulator_of("location_scale", 150)
    one = template(case, "l2", 1.0, case.prior[0], 0.6, 150)
    scores = public(case, released(case, [one], case.prior[0], np.random.default_rng(5), 150), 150)
    step = DPScore(scores, simulator=simulator, model=simulator.model, method="normal")
    return step.target, case.prior[0], one.noise.scale


right_noise, right_precision = (
    getattr(sum_law.NormalSums, n) for n in ("_noise_density", "_precision")
)
FAULTS = {"_noise_density": [wrong_shape], "_precision": [no_determinant, no_variance]}


@pytest.mark.parametrize(
    ("name", "fault"), [(None, None), *((k, f) for k, faults in FAULTS.items() for f in faults)]
)
def test_l2_noise_and_the_spread_of_records_have_their_law(name, fault, monkeypatch):
    """Log-variances are integrated out: what is left is the convolution of a normal law and exp(-|r| / s), by quadrature."""
    target, prior, s, spread = *l2_target(), 0.7
    target._spread = (spread * s) ** 2 * np.eye(2)
    if fault is not None:
        monkeypatch.setattr(target, name, fault.__get__(target))
    grid = target._expected[0] + np.linspace(-14, 6, 400)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    shifts = spread * s * np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    weights = np.outer(weights, weights).ravel()
    found, wanted = [], []
    for distance in (0.0, 1.0, 3.0, 8.0):
        residual = distance * s * np.array([0.6, -0.8])
        monkeypatch.setattr(
            target, "residual", lambda theta, r=residual: (r, target._weights(theta))
        )
        logs = np.array([target.log_density(np.append(prior, v))[0] for v in grid])
        found.append(np.logaddexp.reduce(logs))
        wanted.append(np.log(weights @ np.exp(-np.linalg.norm(residual - shifts, axis=1) / s)))
    error = np.abs(np.diff(found) - np.diff(wanted)).max()
    assert error < 0.005 if fault is None else error > 0.05


def sums_of(monkeypatch, n_weighted, shift=0.0):
    """A law of sums with few or many weighted records, and its step; the first centre is off by `shift` sds."""
    case, simulator = CASES["location_scale"], simulator_of("location_scale", N)
    one = template(case, "gaussian", 0.5, case.prior[0], 0.6, N)
    scores = public(
        case, released(case, [one], case.prior[0] + 0.05, np.random.default_rng(6), N), N
    )
    monkeypatch.setattr(sum_law, "_N_WEIGHTED", n_weighted)
    found = score_step.normal_posterior

    def shifted(*args):
        posterior = found(*args)
        sd = np.sqrt(np.diag(posterior.covariance))
        return posterior._replace(mean=posterior.mean + shift * sd)

    monkeypatch.setattr(score_step, "normal_posterior", shifted)
    step = DPScore(scores, simulator=simulator, model=simulator.model, method="normal")
    return step, np.sqrt(np.diag(step.approximation.covariance))


def test_the_derivative_of_the_mean_is_one(monkeypatch):
    step, sd = sums_of(monkeypatch, 2000)
    target = step._target
    theta, h = target._centre + sd, 1e-5
    slope = target.with_slope(theta)[1]
    for e, column in zip(np.eye(2), slope.T, strict=True):
        up, down = (target.residual(theta + s * h * e)[0] for s in (1, -1))
        np.testing.assert_allclose((down - up) / (2 * h), column, rtol=1e-5)


def test_the_centre_is_the_mode(monkeypatch):
    """Wherever the approximation was."""
    step, sd = sums_of(monkeypatch, 4000, shift=8.0)
    target = step._target
    gradient = target.log_density(target.position(target._centre))[1]
    assert np.linalg.norm(target._root.T @ gradient) < 0.5
    assert (np.abs(target._centre - step.approximation.mean) > 4 * sd).any()


@pytest.mark.slow
@pytest.mark.parametrize("n", [500, 12_000])
def test_equal_records_count_as_often_as_there_are(n, monkeypatch):
    """The law of the sums is the same, of records that are yes or no in three categories: twenty sets of them, or one.

    Of twenty sets, the third category has one record in each: its other outcome is first seen in a later set.
    """
    rng = np.random.default_rng(8)
    g = rng.integers(3, size=n) if n > 10_000 else np.append(rng.integers(2, size=n - 1), 2)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=b[g], observed=rng.random(len(g)) < 0.3)
    simulator = Simulator(model, covariates="public")
    budget = PrivacyBudget(1.0, 1e-6, chains=1)
    scores = private_scores(simulator, budget=budget, random_seed=9, progressbar=False)
    one = DPScore(scores, simulator=simulator, method="normal").target

    def all_differ(self, values, centre):
        return np.arange(len(values)), np.ones(len(values))

    monkeypatch.setattr(sum_law.NormalSums, "_different", all_differ)
    other = DPScore(scores, simulator=simulator, method="normal").target
    assert len(one._counts) == 6
    assert one._counts.sum() == len(other._counts) == 10_000
    for theta in one._centre + 0.1 * rng.standard_normal((5, 3)):
        ours, theirs = (law.log_density(law.position(theta))[0] for law in (one, other))
        assert ours == pytest.approx(theirs, rel=1e-6)
        for x, y in zip(one.with_slope(theta), other.with_slope(theta), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)
