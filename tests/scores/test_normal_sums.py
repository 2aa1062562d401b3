"""The normal law of sums: against closed forms, and its density's shape."""

from __future__ import annotations

import functools

import arviz as az
import numpy as np
import pytest

from pymc_dp import DPScore
from pymc_dp.planning.simulator import Simulator
from pymc_dp.scores import sum_law
from pymc_dp.scores.score_features import ScoreFeatures
from pymc_dp.scores.sum_law import NormalSums, normal_sums
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
    draws = chain(simulator, scores, 800, 1)[:, 0]
    error = draws.std() / np.sqrt(float(az.ess(draws[None])))
    assert abs(draws.mean() - mean) < 4 * error + 0.1 * sd
    assert abs(np.log(draws.std() / sd)) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("rows", [5000, 100])
def test_many_records_and_few_rows(rows):
    simulator, (scores, mean, sd) = simulator_of("mean", rows), normal_mean(1.0, 0.3, 50_000)
    draws = chain(simulator, scores, 1500, 1)[:, 0]
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
    step = DPScore(scores, simulator=simulator, model=simulator.model)
    target, centre = step._target, step.approximation.mean
    sd = np.sqrt(np.diag(step.approximation.covariance))

    def likelihood(theta):
        return target.log_density(target.position(theta))[0] - simulator.likelihood.log_prior(theta)

    bulk = likelihood(centre)
    for direction in ([1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, 1]):
        for distance in (10, 100, 1000):
            assert likelihood(centre + distance * np.array(direction) * sd) < bulk
    # Where there is no density the gradient is finite.
    position = target.position(centre + 0.7 * sd)
    for e in np.eye(len(position)):
        for far in (1e4, 1e9, np.inf, np.nan):
            value, slope = target.log_density(position + np.where(e, far, 0.0))
            assert value < bulk and np.isfinite(slope).all()


@pytest.mark.parametrize(
    ("name", "kind", "error"),
    [("poisson", "l2", 1e-5), ("bernoulli", "gaussian", 1e-5), ("location_scale", "l2", 0.03)],
)
def test_the_gradient_is_that_of_the_density(name, kind, error):
    """Of parameters and of the log-variance; of outcomes that move it is the expected one, with errors up to 0.011 for five seeds."""
    case, simulator = CASES[name], simulator_of(name, 150)
    one = template(case, kind, 0.5, case.prior[0], 0.6, 150)
    scores = public(case, released(case, [one], case.prior[0], np.random.default_rng(4), 150), 150)
    target = DPScore(scores, simulator=simulator, model=simulator.model).target
    position, h = target.position(target.centre + 0.7 * target._root.sum(axis=1)), 1e-5
    position[len(case.shapes) :] += 0.4
    gradient = target.log_density(position)[1]
    assert len(gradient) == len(case.shapes) + (kind == "l2")
    ends = [[target.log_density(position + s * h * e)[0] for s in (1, -1)] for e in np.eye(len(gradient))]  # fmt: skip
    numeric = -np.diff(ends)[:, 0] / (2 * h)
    np.testing.assert_allclose(numeric, gradient, rtol=0, atol=error * np.abs(gradient).max())


def wrong_shape(self, log_variances):
    value, slopes = right_noise(self, log_variances)
    return value - log_variances[self._l2].sum(), slopes - 1


def no_determinant(self, log_variances, spread):
    return right_precision(self, log_variances, spread)[0], 0.0


def no_variance(self, log_variances, spread):
    return np.exp(-log_variances[0]) * np.eye(2), -2 * float(log_variances[0])


@functools.cache
def l2_target():
    """A law with l2 noise, a position, and the scale of the noise."""
    case, simulator = CASES["location_scale"], simulator_of("location_scale", 150)
    one = template(case, "l2", 1.0, case.prior[0], 0.6, 150)
    scores = public(case, released(case, [one], case.prior[0], np.random.default_rng(5), 150), 150)
    step = DPScore(scores, simulator=simulator, model=simulator.model)
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
    target._varies = False
    monkeypatch.setattr(target, "_spread_of", lambda moments: (spread * s) ** 2 * np.eye(2))
    if fault is not None:
        monkeypatch.setattr(target, name, fault.__get__(target))
    grid = target._expected[0] + np.linspace(-14, 6, 400)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    shifts = spread * s * np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    weights = np.outer(weights, weights).ravel()
    found, wanted = [], []
    for distance in (0.0, 1.0, 3.0, 8.0):
        residual = distance * s * np.array([0.6, -0.8])
        monkeypatch.setattr(target, "residual", lambda moments, r=residual: r)
        logs = np.array([target.log_density(np.append(prior, v))[0] for v in grid])
        found.append(np.logaddexp.reduce(logs))
        wanted.append(np.log(weights @ np.exp(-np.linalg.norm(residual - shifts, axis=1) / s)))
    error = np.abs(np.diff(found) - np.diff(wanted)).max()
    assert error < 0.005 if fault is None else error > 0.05


def test_the_centre_is_the_mode(shift=8.0):
    """Wherever the search begins."""
    case, simulator = CASES["location_scale"], simulator_of("location_scale", N)
    one = template(case, "gaussian", 0.5, case.prior[0], 0.6, N)
    scores = public(
        case, released(case, [one], case.prior[0] + 0.05, np.random.default_rng(6), N), N
    )
    law = normal_sums(simulator, scores, np.random.default_rng(1)).approximation
    sd, features = np.sqrt(np.diag(law.covariance)), ScoreFeatures(scores, simulator.simulated)
    far, root = law.mean + shift * sd, np.linalg.cholesky(law.covariance)
    target = NormalSums(simulator, features, [far], root, np.random.default_rng(2))
    gradient = target.log_density(target.position(target.centre))[1]
    assert np.linalg.norm(root.T @ gradient) < 0.5
    assert (np.abs(target.centre - law.mean) < 0.3 * sd).all()
