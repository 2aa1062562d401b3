"""The normal law of sums of few records, against their exact posterior: enumeration of counts, or convolution on a grid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scipy import stats

from pymc_dp import DPScore
from pymc_dp.model import ClippedScores
from pymc_dp.scores.feature_law import FeatureMoments
from tests.scores.score_models import (
    CASES,
    exact_weights,
    features,
    grid,
    public,
    released,
    simulator_of,
    template,
)

#: Model and number of records; releases (noise, its standard deviation over the root of this number, reference, clipped
#: fraction); largest difference of means in standard deviations, and of logarithms of standard deviations.
SETTINGS = {
    "bernoulli, two releases": ("bernoulli", 30, [("l2", 0.5, [0.9], 0.6), ("gaussian", 0.7, [-1.0], 0.5)], 0.05),
    "bernoulli, Gaussian": ("bernoulli", 100, [("gaussian", 0.3, [0.4], 0.5)], 0.02),
    "bernoulli, midpoint": ("bernoulli", 30, [("l2", 0.5, [2.0], 0.05, "midpoint")], 0.05),
    "poisson, l2": ("poisson", 20, [("l2", 0.5, [0.8], 0.6)], 0.05),
    "mean, Gaussian": ("mean", 40, [("gaussian", 0.3, [0.4], 0.6)], 0.05),
    "student, Gaussian": ("student", 40, [("gaussian", 0.3, [0.4], 0.6)], 0.05),
    "gamma, Gaussian": ("gamma", 40, [("gaussian", 0.3, [0.6], 0.6)], 0.05),
    "mean, two releases": ("mean", 20, [("gaussian", 0.2, [0.2], 0.3), ("gaussian", 0.2, [0.5], 0.5)], 0.05),
}  # fmt: skip

SLOW = {"student, Gaussian", "gamma, Gaussian", "mean, two releases"}


def made(setting, seed=1):
    """Case, scores of simulated records, and the largest error."""
    name, n, wanted, most = SETTINGS[setting]
    case = replace(CASES[name], n=n)
    releases = [template(case, *r[:4], clipping=(*r, "norm")[4]) for r in wanted]
    rng = np.random.default_rng(seed)
    theta = case.prior[0] + 0.7 * case.prior[1] * rng.standard_normal(len(case.prior[0]))
    return case, released(case, releases, theta, rng), most


def weights_of(target, positions):
    """Posterior probabilities of positions by the normal law; the log-variance of l2 noise is integrated out."""
    found = []
    for theta in positions:
        expected = target.position(theta)[1:]
        grid = [np.append(theta, expected + shift) for shift in np.linspace(-12, 5, 24)]
        at = grid if len(expected) else [theta]
        found.append(np.logaddexp.reduce([target.log_density(x)[0] for x in at]))
    weights = np.exp(np.array(found) - max(found))
    return weights / weights.sum()


def errors(setting, n=None, seed=1):
    """Of the mean, in standard deviations, and of the logarithm of the standard deviation."""
    case, releases, most = made(setting, seed)
    positions = grid(case, 81)
    t, moments = positions[:, 0], []
    step = DPScore(public(case, releases, n), simulator=simulator_of(case.name, case.n))
    for weights in (exact_weights(case, releases, positions), weights_of(step.target, positions)):
        mean = weights @ t
        moments.append((mean, np.sqrt(weights @ (t - mean) ** 2)))
    (mean, sd), (found, found_sd) = moments
    return max(abs(found - mean) / sd, abs(np.log(found_sd / sd))) / most


@pytest.mark.parametrize(
    "setting",
    [pytest.param(s, marks=[pytest.mark.slow] if s in SLOW else []) for s in SETTINGS],
)
def test_the_law_of_few_records_is_nearly_exact(setting):
    assert errors(setting) < 1


def test_records_that_are_not_clipped_are_found(monkeypatch):
    monkeypatch.setattr(ClippedScores, "clipped", lambda self, vectors, logp: vectors)
    assert errors("mean, Gaussian") > 2


def test_a_midpoint_that_is_not_subtracted_is_found(monkeypatch):
    """The release is of midpoint features, and the posterior takes it for one of clipped scores."""
    right = ClippedScores.clipped

    def as_clipped(self, vectors, logp):
        return right(replace(self, clipping="norm"), vectors, logp)

    monkeypatch.setattr(ClippedScores, "clipped", as_clipped)
    assert errors("bernoulli, midpoint") > 2


def test_another_number_of_records_is_found():
    assert errors("poisson, l2", n=30) > 2


def test_covariances_between_sums_are_needed(monkeypatch):
    """Two sums of the same records are not independent."""
    right = FeatureMoments.covariance.fget
    independent = property(lambda self: np.diag(np.diag(right(self))))
    monkeypatch.setattr(FeatureMoments, "covariance", independent)
    assert errors("bernoulli, two releases") > 2


@pytest.mark.parametrize("name", ["poisson", "mean"])  # by enumeration, and by convolution
def test_quadrature_itself(name):
    """By weighted draws of parameters and records from the model: an independent method with an error of its own."""
    case, rng = CASES[name], np.random.default_rng(3)
    d = len(case.prior[0])
    releases = [template(case, "l2", 0.8, case.prior[0], 0.6)]
    if d == 1:
        releases.append(template(case, "gaussian", 1.0, case.prior[0] + 0.4, 0.5))
    releases = released(case, releases, case.prior[0] + 0.3, rng)
    positions = grid(case, 201 if d == 1 else 31)
    weights = exact_weights(case, releases, positions)
    n = 20_000
    theta = case.prior[0] + case.prior[1] * rng.standard_normal((n, d))
    y = np.array([case.draw(t, case.n, rng) for t in theta])
    parts = features(case, releases, y.ravel()).reshape(n, case.n, -1)
    total = np.concatenate([r.total for r in releases])
    importance = np.exp(_log_noise(releases, total - parts.sum(axis=1)))
    importance /= importance.sum()
    for h in (lambda t: t[:, 0], lambda t: t[:, -1] ** 2):
        found, expected = importance @ h(theta), weights @ h(positions)
        error = np.sqrt((importance**2) @ (h(theta) - found) ** 2)
        assert abs(found - expected) < 4.5 * error
        assert error < 0.05


def _log_noise(releases, residual):
    """Written again, from SciPy's densities."""
    value, start = 0.0, 0
    for r in releases:
        part = residual[:, start : start + len(r.total)]
        if r.noise.kind == "gaussian":
            value = value + stats.norm.logpdf(part, scale=r.noise.scale).sum(axis=1)
        else:
            length = np.linalg.norm(part, axis=1)
            # The radius is Gamma(d) and the direction uniform.
            value = value + stats.gamma.logpdf(length, part.shape[1], scale=r.noise.scale)
            value = value - (part.shape[1] - 1) * np.log(length)
        start += len(r.total)
    return value
