"""The thesis's benchmark models: exact draws are draws from the posterior of the model."""

import importlib.util
import math
import sys

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scipy import stats

import pymc_dp as dp

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "benchmark_models.py"
SEED = 5
# Table 5.1 of the thesis: d, n, n0.
TABLE = {
    "easy-2d": (2, 100_000, None),
    "easy-10d": (10, 200_000, None),
    "tempered-2d": (2, 100_000, 1000),
    "tempered-10d": (10, 200_000, 1000),
    "gauss-30d": (30, 200_000, None),
    "hard-2d": (2, 150_000, None),
    "hard-gauss-2d": (2, 200_000, None),
    "circle": (2, 100_000, None),
}
TWO = [name for name, (d, *_) in TABLE.items() if d == 2]
# Compiling the others takes half a minute.
COMPILED = [
    name if name in ("easy-2d", "hard-gauss-2d", "circle") else pytest.param(name, marks=pytest.mark.slow)
    for name in TABLE
]  # fmt: skip


@pytest.fixture(scope="module")
def models():
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT.stem] = module  # its dataclasses look for themselves there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[SCRIPT.stem]


@pytest.fixture
def small(models):
    """Make the same experiment with fewer records; tempered ones are tempered to a quarter."""

    def make(name, n_records=200):
        experiment = models.EXPERIMENTS[name]
        tempered = experiment.n_tempered and n_records // 4
        return replace(experiment, n_records=n_records, n_tempered=tempered)

    return make


def spread_out(experiment, data, rng, n=12):
    """Draws, and points several posterior standard deviations away from them."""
    draws = experiment.exact(data, n, rng)
    return draws + rng.normal(size=draws.shape) * experiment.sds(data) * np.linspace(0, 3, n)[:, None]  # fmt: skip


def mismatch(likelihood, experiment, data, points, tempered=1.0):
    """Difference of log-posterior and closed form, apart from a constant, relative to their range."""
    t = tempered * experiment.temperature
    posterior = np.array([t * likelihood.logp(p).sum() + likelihood.log_prior(p) for p in points])
    difference = posterior - experiment.log_density(data, points)
    return np.ptp(difference) / np.ptp(posterior)


# ------------------------------------------------------------------------------ what is published
def test_table(models):
    assert list(models.EXPERIMENTS) == list(TABLE)
    for name, experiment in models.EXPERIMENTS.items():
        assert experiment.name == name
        assert (experiment.n_dim, experiment.n_records, experiment.n_tempered) == TABLE[name]
        assert experiment.delta == pytest.approx(0.1 / experiment.n_records)
    temperatures = {e.name: e.temperature for e in models.EXPERIMENTS.values() if e.n_tempered}
    assert temperatures == pytest.approx({"tempered-2d": 0.01, "tempered-10d": 0.005})
    with pytest.raises(ValueError, match="n_tempered must be from 1 to 500"):
        replace(models.EXPERIMENTS["tempered-2d"], n_records=500)


@pytest.mark.parametrize("name", TABLE)
def test_data(models, name):
    experiment = models.EXPERIMENTS[name]
    data = experiment.data(SEED)
    assert len(data) == experiment.n_records
    np.testing.assert_array_equal(data, experiment.data(SEED))
    assert not np.any(data == experiment.data(SEED + 1))
    z = np.abs(np.mean(data, axis=0) - ([3.0] if name == "circle" else experiment.truth))
    if name == "circle":
        assert data.ndim == 1
        covariance = np.ones((1, 1))
    else:
        assert data.shape[1] == experiment.n_dim
        covariance = experiment.covariance
    assert np.all(z < 5 * np.sqrt(np.diag(covariance) / len(data)))
    # Standard errors of covariances of normal records are below the product of the two sds.
    sds = np.sqrt(np.diag(covariance))
    error = np.abs(np.atleast_2d(np.cov(data.T)) - covariance) / np.outer(sds, sds)
    assert error.max() < 5 * math.sqrt(2 / len(data))


@pytest.mark.parametrize("name", TABLE)
def test_starting_points(models, name):
    experiment = models.EXPERIMENTS[name]
    data = experiment.data(SEED)
    starts = experiment.starts(data, 4000, np.random.default_rng(SEED))
    assert starts.shape == (4000, experiment.n_dim)
    centre, spread = np.array([0.0, 1.0]), 1.0
    if name != "circle":
        centre, spread = experiment.truth, experiment.sds(data).mean()
    z = (starts - centre) / spread
    assert np.abs(z.mean(axis=0)).max() < 5 / math.sqrt(4000)
    assert np.abs(z.std(axis=0) - 1).max() < 5 / math.sqrt(2 * 4000)


@pytest.mark.parametrize("name", TABLE)
def test_standard_deviations(models, name):
    experiment = models.EXPERIMENTS[name]
    data = experiment.data(SEED)
    draws = experiment.exact(data, 50_000, np.random.default_rng(SEED))
    assert draws.shape == (50_000, experiment.n_dim)
    centred = draws - draws.mean(axis=0)
    variance = centred.var(axis=0)
    error = np.std(centred**2, axis=0) / math.sqrt(len(draws))
    assert np.all(np.abs(variance - experiment.sds(data) ** 2) < 5 * error)
    if name != "circle":  # the truth is where it should be
        distance = np.abs(draws.mean(axis=0) - experiment.truth) / experiment.sds(data)
        assert distance.max() < 5


# ------------------------------------------------------------------------------ the model and its posterior
@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_exact_density_is_that_of_the_model(small, name):
    experiment = small(name)
    data = experiment.data(SEED)
    likelihood = dp.model.RecordLikelihood(experiment.model(data))
    assert (likelihood.n_records, likelihood.n_dim) == (200, experiment.n_dim)
    points = spread_out(experiment, data, np.random.default_rng(SEED))
    assert mismatch(likelihood, experiment, data, points) < 1e-8
    # Controls: changes of one record, the temperature, the prior and the curve are detected.
    assert mismatch(likelihood, experiment, data[1:], points) > 1e-6
    assert mismatch(likelihood, experiment, data, points, tempered=1 + 1e-6) > 1e-7
    if name != "circle":
        other = replace(experiment, prior_variance=experiment.prior_variance * 1.1)
        assert mismatch(likelihood, other, data, points) > 1e-8
        if experiment.curvature:
            other = replace(experiment, curvature=experiment.curvature * 1.001)
            assert mismatch(likelihood, other, data, points) > 1e-6


@pytest.mark.parametrize(
    "name",
    [n if n == "circle" else pytest.param(n, marks=pytest.mark.slow) for n in TABLE],
)
def test_at_full_size(models, name):
    experiment = models.EXPERIMENTS[name]
    data = experiment.data(SEED)
    likelihood = dp.model.RecordLikelihood(experiment.model(data))
    assert (likelihood.n_records, likelihood.n_dim) == (experiment.n_records, experiment.n_dim)
    points = spread_out(experiment, data, np.random.default_rng(SEED), n=4)
    assert mismatch(likelihood, experiment, data, points) < 1e-7


@pytest.mark.parametrize(
    "name", ["circle", pytest.param("tempered-2d", marks=pytest.mark.slow)]
)  # fmt: skip
def test_settings_are_those_of_the_penalty(small, name):
    experiment = small(name)
    budget = dp.PrivacyBudget(epsilon=4.0, delta=experiment.delta, chains=1)
    step = dp.DPPenalty(
        budget=budget, temperature=experiment.temperature, reproducible=True,
        model=experiment.model(experiment.data(SEED)), **experiment.settings,
    )  # fmt: skip
    sensitivity = 2 * experiment.temperature * experiment.clip_bound
    assert step.family.sensitivity_per_distance == pytest.approx(sensitivity)
    assert step.family.noise_multiplier == pytest.approx(experiment.tau * math.sqrt(200))
    assert budget.expected_draws() >= 1


# ------------------------------------------------------------------------------ quadrature
def posterior_on_grid(experiment, data):
    """Points and probabilities in the plane, from the formulas in the thesis alone."""
    if experiment.name == "circle":
        edge = np.linspace(-11, 11, 301)
        x, y = (a.ravel() for a in np.meshgrid(edge, edge))
        distance = (x**2 + y**2)[:, None] - data**2
        log = -1e-5 * (distance**2).sum(axis=1)
        points = np.column_stack([x, y])
    elif experiment.name == "hard-gauss-2d":
        # Along and across the ridge; the density is that of x and y.
        along = np.linspace(-8, 8, 301) / math.sqrt(len(data)) * math.sqrt(2)
        p, q = (a.ravel() for a in np.meshgrid(along, along * math.sqrt(0.001 / 2)))
        points = data.mean(axis=0) + np.column_stack([p + q, p - q]) / math.sqrt(2)
        record = stats.multivariate_normal([0, 0], [[1, 0.999], [0.999, 1]])
        log = sum(record.logpdf(row - points) for row in data)
        log = log + stats.norm.logpdf(points, scale=10).sum(axis=1)
    else:
        a = {"hard-2d": 350}.get(experiment.name, 20)
        root = math.sqrt(experiment.temperature * len(data))
        first = data[:, 0].mean() + np.linspace(-8, 8, 301) * math.sqrt(20) / root
        above = data[:, 1].mean() + np.linspace(-8, 8, 301) * math.sqrt(2.5) / root
        x, u = (v.ravel() for v in np.meshgrid(first, above))
        y = u - a * x**2  # points along the banana: a shift, so all cells have the same area
        log = sum(
            stats.norm.logpdf(x1, x, math.sqrt(20))
            + stats.norm.logpdf(x2, y + a * x**2, math.sqrt(2.5))
            for x1, x2 in data
        )
        prior = stats.norm(scale=math.sqrt(1000))
        log = experiment.temperature * log + prior.logpdf(x) + prior.logpdf(y + a * x**2)
        points = np.column_stack([x, y])
    weight = np.exp(log - log.max())
    return points, weight / weight.sum()


def across(name, points):
    """Coordinate across the ridge of the posterior."""
    x, y = points.T
    if name == "circle":
        return np.hypot(x, y)
    if name == "hard-gauss-2d":
        return y - x
    return y + {"hard-2d": 350}.get(name, 20) * x**2


def furthest(name, draws, points, weight):
    """Largest deviation of a mean over draws from quadrature, in standard errors."""
    centre = weight @ across(name, points)
    width = math.sqrt(weight @ (across(name, points) - centre) ** 2)

    def functions(points):  # smooth, as sums over a grid are exact for these only
        (x, y), t = points.T, (across(name, points) - centre) / width
        return np.column_stack([x, y, x**2, y**2, x * y, t, t**2, t**4, t * x, t * y, np.tanh(t)])

    mean = weight @ functions(points)
    sd = np.sqrt(weight @ (functions(points) - mean) ** 2)
    return np.max(np.abs(functions(draws).mean(axis=0) - mean) / sd) * math.sqrt(len(draws))


def wrong_draws(experiment, data, rng):
    """Draws with one mistake, as from a misreading of the model."""
    n = 40_000
    if experiment.name == "circle":  # area taken for the length of the radius
        radius = np.linspace(0, 11, 4001)
        density = np.exp(experiment.posterior(data).logpdf(radius**2))
        radius = rng.choice(radius, size=n, p=density / density.sum())
        angle = rng.uniform(0, 2 * np.pi, size=n)
        return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    if experiment.name == "hard-gauss-2d":
        return replace(experiment, correlation=0.9988).exact(data, n, rng)
    if experiment.n_tempered is not None:
        return replace(experiment, n_tempered=None).exact(data, n, rng)
    return replace(experiment, curvature=1.03 * experiment.curvature).exact(data, n, rng)


@pytest.mark.parametrize(
    "name", [n if n == "circle" else pytest.param(n, marks=pytest.mark.slow) for n in TWO]
)
def test_draws_against_quadrature(small, name):
    experiment = small(name, 300 if name == "circle" else 60)
    data = experiment.data(SEED)
    points, weight = posterior_on_grid(experiment, data)
    rng = np.random.default_rng(SEED)
    assert furthest(name, experiment.exact(data, 40_000, rng), points, weight) < 5
    assert furthest(name, wrong_draws(experiment, data, rng), points, weight) > 10


def test_circle_is_cut_off_at_the_origin(small):
    """The truncation affects the radius with few records, and not with all of them."""
    few, many = (small("circle", n).posterior(small("circle", n).data(SEED)) for n in (20, 100_000))
    assert few.std() < 0.9 / math.sqrt(2 * 1e-5 * 20)
    assert many.std() == pytest.approx(1 / math.sqrt(2 * 1e-5 * 100_000), rel=1e-9)
    assert few.support()[0] == pytest.approx(0, abs=1e-9)
