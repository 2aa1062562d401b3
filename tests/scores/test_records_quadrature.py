"""Chains that augment by records, against the exact posterior: enumeration of counts, or convolution on a grid."""

from __future__ import annotations

import numpy as np
import pytest

from scipy import stats

from pymc_dp.model import ClippedScores
from tests.scores.score_models import (
    CASES,
    LARGEST_Z,
    chain,
    exact_weights,
    features,
    grid,
    public,
    released,
    simulator_of,
    template,
    z_scores,
)

#: Model, releases (noise, its standard deviation over the root of the number of records, reference, clipped fraction).
SETTINGS = {
    "bernoulli, two releases": ("bernoulli", [("l2", 0.3, [0.9], 0.6), ("gaussian", 2.0, [-1.0], 0.5)]),
    "poisson, much Gaussian noise": ("poisson", [("gaussian", 1.5, [0.8], 0.6)]),
    "poisson, l2": ("poisson", [("l2", 0.3, [0.8], 0.6)]),
    "mean, Gaussian": ("mean", [("gaussian", 0.3, [0.4], 0.6)]),
    "mean, two releases": ("mean", [("l2", 0.4, [-1.0], 0.6), ("gaussian", 0.6, [1.0], 0.5)]),
    "location and scale, much l2 noise": ("location_scale", [("l2", 1.2, [0.0, 0.0], 0.6)]),
}  # fmt: skip
FAST = ("bernoulli, two releases",)


def made(setting, seed=1):
    """Case, and scores of simulated records."""
    name, wanted = SETTINGS[setting]
    case = CASES[name]
    releases = [template(case, *r) for r in wanted]
    rng = np.random.default_rng(seed)
    theta = case.prior[0] + 0.7 * case.prior[1] * rng.standard_normal(len(case.prior[0]))
    return case, released(case, releases, theta, rng)


def check(setting, n_draws, seed=1, **changed):
    case, releases = made(setting, seed)
    positions = grid(case, 401 if len(case.shapes) == 1 else 41)
    weights = exact_weights(case, releases, positions)
    draws = chain(simulator_of(case.name), public(case, releases, **changed), n_draws, seed)
    return z_scores(draws, positions, weights)


@pytest.mark.parametrize(
    "setting", [s if s in FAST else pytest.param(s, marks=pytest.mark.slow) for s in SETTINGS]
)
def test_posterior_is_exact(setting):
    found = check(setting, 1500 if setting in FAST else 4000)
    assert max(map(abs, found.values())) < LARGEST_Z, found


@pytest.mark.slow
def test_a_wrong_posterior_is_found(monkeypatch):
    """Control: records of the chain are not clipped."""
    monkeypatch.setattr(ClippedScores, "clipped", lambda self, vectors, logp: vectors)
    found = check("mean, Gaussian", 4000)
    assert max(map(abs, found.values())) > LARGEST_Z + 2


@pytest.mark.slow
def test_another_number_of_records_is_found():
    """Control: half as many records again as there are."""
    found = check("poisson, l2", 4000, n=CASES["poisson"].n * 3 // 2)
    assert max(map(abs, found.values())) > LARGEST_Z + 2


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
