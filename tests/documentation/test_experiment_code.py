"""Code of the experiments, against closed forms and second ways: models, measures, analyses of synthetic data, the page's examples."""

import math
import os
import re
import subprocess
import sys

from dataclasses import replace

import numpy as np
import pytensor.tensor as pt
import pytest

from scipy import stats

import pymc_dp as dp

from tests.documentation.test_tables import ROOT, page_of

SEED = 5


# ------------------------------------------------------------------- maximum mean discrepancy
def test_mmd_by_definition(script, monkeypatch):
    """Against loops, in which the diagonal does not count; blocks do not matter."""
    module, rng, s = script("mmd"), np.random.default_rng(0), 1.3
    x, y = rng.normal(size=(7, 3)), rng.normal(1, 2, size=(5, 3))

    def k(a, b):
        return math.exp(-sum((a - b) ** 2) / (2 * s**2))

    total = sum(k(x[i], x[j]) for i in range(7) for j in range(7) if i != j) / 42
    total += sum(k(y[i], y[j]) for i in range(5) for j in range(5) if i != j) / 20
    total -= 2 * sum(k(a, b) for a in x for b in y) / 35
    for block in (module._BLOCK, 11):
        monkeypatch.setattr(module, "_BLOCK", block)
        assert module.mmd(x, y, bandwidth=s) == pytest.approx(math.sqrt(abs(total)), rel=1e-12)
    with pytest.raises(ValueError, match="bandwidth"):
        module.mmd(x, y, bandwidth=-1.0)


# ------------------------------------------------------------------- the thesis's models
def small(script, name, n_records=200):
    """The same with fewer records; tempered ones are tempered to a quarter."""
    experiment = script("benchmark_models").EXPERIMENTS[name]
    tempered = experiment.n_tempered and n_records // 4
    return replace(experiment, n_records=n_records, n_tempered=tempered)


def mismatch(likelihood, experiment, data, points, tempered=1.0):
    """Difference of log-posterior and closed form, apart from a constant, relative to their range."""
    t = tempered * experiment.temperature
    posterior = np.array([t * likelihood.logp(p).sum() + likelihood.log_prior(p) for p in points])
    difference = posterior - experiment.log_density(data, points)
    return np.ptp(difference) / np.ptp(posterior)


@pytest.mark.parametrize(
    "name", ["circle", *(pytest.param(n, marks=pytest.mark.slow) for n in ("tempered-2d", "hard-gauss-2d", "easy-10d"))]
)  # fmt: skip
def test_exact_density_is_that_of_the_model(script, name):
    experiment, rng = small(script, name), np.random.default_rng(SEED)
    data = experiment.data(SEED)
    likelihood = dp.model.RecordLikelihood(experiment.model(data))
    draws = experiment.exact(data, 12, rng)
    # Draws, and points several posterior standard deviations away from them.
    away = rng.normal(size=draws.shape) * experiment.sds(data) * np.linspace(0, 3, 12)[:, None]
    points = draws + away
    assert mismatch(likelihood, experiment, data, points) < 1e-8
    # Controls: changes of one record and of the temperature are detected.
    assert mismatch(likelihood, experiment, data[1:], points) > 1e-6
    assert mismatch(likelihood, experiment, data, points, tempered=1 + 1e-6) > 1e-7


def weighted(experiment, data, n=301):
    """Points in the plane, along the ridge of the posterior, and their probabilities by the log-density."""
    edge = np.linspace(*((-11, 11) if experiment.name == "circle" else (-8, 8)), n)
    points = np.stack(np.meshgrid(edge, edge), axis=-1).reshape(-1, 2)
    if (
        experiment.name != "circle"
    ):  # shifted along the banana, so that all cells have the same area
        mean, precision = experiment.posterior(data)
        points = experiment.bent(mean + points @ np.linalg.cholesky(np.linalg.inv(precision)).T)
    log = experiment.log_density(data, points)
    weight = np.exp(log - log.max())
    return points, weight / weight.sum()


def wrong(experiment, data, rng, n=40_000):
    """Draws with one mistake, as from a misreading of the model."""
    if experiment.name == "circle":  # area taken for the length of the radius
        radius = np.linspace(0, 11, 4001)
        density = np.exp(experiment.posterior(data).logpdf(radius**2))
        radius = rng.choice(radius, size=n, p=density / density.sum())
        angle = rng.uniform(0, 2 * np.pi, size=n)
        return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    if experiment.n_tempered is not None:
        return replace(experiment, n_tempered=None).exact(data, n, rng)
    if experiment.correlation is not None:
        return replace(experiment, correlation=0.9988).exact(data, n, rng)
    return replace(experiment, curvature=1.03 * experiment.curvature).exact(data, n, rng)


@pytest.mark.parametrize("name", ["circle", "easy-2d", "tempered-2d", "hard-2d", "hard-gauss-2d"])
def test_draws_against_quadrature(script, name):
    """Means of smooth functions, and standard deviations; wrong draws are found."""
    experiment, rng = small(script, name, 60), np.random.default_rng(SEED)
    data = experiment.data(SEED)
    points, weight = weighted(experiment, data)
    sd = experiment.sds(data)

    def across(p):
        """Coordinate across the ridge."""
        if name == "circle":
            return np.linalg.norm(p, axis=1) - weight @ np.linalg.norm(points, axis=1)
        way = [-1.0 if experiment.correlation else 0.0, 1.0]
        return (experiment.straight(p) - experiment.posterior(data)[0]) @ way

    def furthest(draws):
        def functions(p):
            x, y = ((p - centre) / sd).T
            t = across(p) / np.sqrt(weight @ across(points) ** 2)
            return np.column_stack([x, y, x**2, y**2, x * y, t, t**2, t**4, np.tanh(t)])

        centre = weight @ points
        mean = weight @ functions(points)
        spread = np.sqrt(weight @ (functions(points) - mean) ** 2)
        return np.max(np.abs(functions(draws).mean(axis=0) - mean) / spread) * math.sqrt(len(draws))

    assert furthest(experiment.exact(data, 40_000, rng)) < 5
    assert furthest(wrong(experiment, data, rng)) > 10
    variance = weight @ (points - weight @ points) ** 2
    np.testing.assert_allclose(np.sqrt(variance), sd, rtol=1e-3)


# ------------------------------------------------------------------- comparison of samplers
def test_shares_of_clipped_records(script):
    """Gradients against derivatives by hand, and ratios against quantiles."""
    comparison = script("comparison_experiments")
    case, n, rng = (
        comparison.Case(small(script, "easy-2d", 2000), seed=5),
        2000,
        np.random.default_rng(1),
    )
    points, (x1, x2), expected = case.exact[:3], case.data.T, []
    for first, second in points:
        left = (x2 - second - 20 * first**2) / 2.5
        norm = np.hypot((x1 - first) / 20 + 40 * first * left, left)
        expected.append(np.mean(norm > 1.0))
    found = comparison.clipped_gradients(case, points, 1.0, rng)  # of all records, as they are few
    assert 0.01 < found < 0.99 and found == pytest.approx(np.mean(expected), abs=2 / n)
    old, new = case.exact[:2]
    distance = np.linalg.norm(new - old)
    change = np.abs(case.likelihood.logp(new) - case.likelihood.logp(old)) / distance
    bound, moves = np.quantile(change, 0.8), [(old, new, distance)]
    assert comparison.clipped_ratios(case, moves, bound, rng) == pytest.approx(0.2, abs=2 / n)
    # Decisions are drawn from seeds: results can be reproduced; and no draw is a result, too.
    first, again = (comparison.run(case, "penalty", 100.0, 1, most=12)[1] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    row = comparison.cell(case, "penalty", 1e-4, seconds=0.0)
    assert row.pop("CPU seconds") >= 0 and row == {"runs": 0, "failed": comparison.FEWEST}


# ------------------------------------------------------------------- synthetic data
def test_variances_of_synthetic_data_by_simulation(script):
    """Modes of V + v, mixture of V + 2 v, its quantile's error, and the combining rule, from normal numbers alone."""
    module, rng, r = script("synthetic_experiments"), np.random.default_rng(1), 0.7
    modes = np.sqrt(1 + r) * rng.normal(size=(2000, module.N_SYNTHETIC))
    draws = modes[..., None] + np.sqrt(r) * rng.normal(size=(*modes.shape, 60))
    assert draws.var() == pytest.approx(1 + 2 * r, rel=0.02)
    ends = np.quantile(draws.reshape(2000, -1), 0.95, axis=1)
    assert ends.mean() == pytest.approx(stats.norm.ppf(0.95) * np.sqrt(1 + 2 * r), rel=0.03)
    assert ends.var() == pytest.approx(module.quantile_variance(np.array([r]))[0], rel=0.15)
    low, high = np.array([module.combined(m[:, None], np.full((len(m), 1), r)) for m in modes])[
        ..., 0
    ].T
    truth = rng.normal(size=2000)
    assert np.mean((low < truth) & (truth < high)) == pytest.approx(0.9, abs=0.03)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS|The effective sample size|The chains disagree"
)
def test_four_sites():
    """The example runs, and has the output of the page up to the noise; with a fifth of its draws, at equal cost."""
    pytest.importorskip("distributed")
    page = page_of("many_machines")
    code = "import functools, four_sites; dp = four_sites.dp; dp.sample = functools.partial(dp.sample, draws=200); four_sites.main()"
    path = os.pathsep.join([str(ROOT / "examples"), str(ROOT)])  # hospitals import the example, too
    ended = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    head, *lines = ended.stdout.splitlines()[-4:]
    assert head in page
    for line in lines:
        name, mean, sd = re.fullmatch(r"(\w+): (-?[\d.]+) \(sd ([\d.]+)\)", line).groups()
        shown = re.search(rf"^{name}: (-?[\d.]+) \(sd ([\d.]+)\)$", page, re.MULTILINE)
        assert abs(float(mean) - float(shown[1])) < 0.25
        assert abs(float(sd) - float(shown[2])) < 0.5 * float(shown[2])


# ------------------------------------------------------------------- other software
def test_the_designs_of_arrays_and_of_models_are_the_same(script):
    covariate, rng = script("peers/peer_tasks").Covariate, np.random.default_rng(2)
    for c, values in (
        (covariate("a", 4), rng.integers(4, size=30).astype(float)),
        (covariate("b", low=10, high=30, square=True), rng.uniform(10, 30, size=30)),
        (covariate("c", low=0, high=8, scale=2), rng.uniform(0, 8, size=30)),
    ):
        arrays = c.columns(values, np.equal)
        graphs = [column.eval() for column in c.columns(pt.constant(values), pt.eq)]
        np.testing.assert_allclose(arrays, graphs)
        assert np.max(np.abs(arrays)) <= 2


@pytest.mark.parametrize(
    "family", ["logistic", "normal", "poisson", pytest.param("negative binomial", marks=pytest.mark.slow)]
)  # fmt: skip
def test_the_posterior_without_privacy(script, family):
    """Mode and curvature are those of the density, by differences."""
    tasks, rng = script("peers/peer_tasks"), np.random.default_rng(3)
    x = np.column_stack([np.ones(200), rng.normal(size=(200, 2))])
    y = {
        "logistic": rng.integers(2, size=200),
        "normal": 1 + x[:, 1] + 0.5 * rng.normal(size=200),
        "poisson": rng.poisson(1.5, size=200),
        "negative binomial": rng.negative_binomial(1.2, 0.5, size=200),
    }[family]
    mode, covariance = tasks.fit(family, x, y, 2.5)

    def density(theta):
        prior = stats.norm.logpdf(theta[:3], 0, 2.5).sum()
        return tasks.log_likelihood(family, theta, x, y).sum() + prior

    steps = 1e-4 * np.eye(len(mode))
    assert max(abs(density(mode + e) - density(mode - e)) for e in steps) < 1e-7
    second = [
        [density(mode + e + f) - density(mode + e - f) - density(mode - e + f) + density(mode - e - f) for f in steps]
        for e in steps
    ]  # fmt: skip
    np.testing.assert_allclose(-np.linalg.inv(np.array(second) / 4e-8), covariance, rtol=1e-3)


def test_measures_of_posteriors(script):
    """Of the exact one, and of one that is shifted, too wide, or a point; coverage is that of the truth."""
    module = script("peers/run_peers")
    task = module.task("noisy_regression")
    problem, rng = task.problem(np.random.default_rng(1)), np.random.default_rng(4)
    mode, covariance = module.fit(task.family, task.design(problem.z), problem.y, 2.5)
    exact = rng.multivariate_normal(mode, covariance, size=4000)[:, : task.n_dim]
    sd, mode = np.sqrt(np.diag(covariance))[: task.n_dim], mode[: task.n_dim]
    found, shifted, wide, point = (
        module.measures(task, problem, draws, 5)
        for draws in (exact, exact + 3 * sd, mode + 4 * (exact - mode), mode[None])
    )
    assert found["width"] == pytest.approx(1, abs=0.05) and found["shift"] < 0.06
    assert found["mmd"] < 0.05 and abs(found["lpd"]) < 2e-3
    assert shifted["shift"] == pytest.approx(3, abs=0.1) and shifted["mmd"] > 0.5
    assert (
        wide["width"] == pytest.approx(4 * found["width"], rel=1e-3) and wide["coverage 0.9"] == 1
    )
    assert "width" not in point
    covered = []
    for _ in range(40):  # of normal posteriors
        mean = problem.truth[: task.n_dim] + rng.standard_normal(task.n_dim)
        draws = mean + rng.standard_normal((500, task.n_dim))
        covered.append(module.measures(task, problem, draws, 7)["coverage 0.8"])
    assert np.mean(covered) == pytest.approx(0.8, abs=4 * np.sqrt(0.16 / len(covered) / task.n_dim))


def test_a_bold_method_covers_and_is_the_narrowest(script):
    """Of made-up results: intervals that are too narrow, valid ones of two widths, a point."""
    tables = script("peers/peer_tables")

    def sets(coverage, width, n=10):
        one = {f"coverage {level}": coverage for level in (0.8, 0.9, 0.95)}
        one |= {"width": width, "widest": width, "shift": 1.0, "mmd": 0.1, "seconds": 2.0}
        return {name: [value] * n for name, value in one.items()}

    stored = {
        "german | d3p | 1": sets(0.5, 1.1), "german | pymc_dp | 1": sets(0.9, 1.5),
        "german | NA-DPVI | 1": sets(0.95, 1.7), "german | NUTS | inf": sets(0.9, 1.0),
        "german | diffprivlib | 1": {"shift": [2.0], "seconds": [0.1]},
    }  # fmt: skip
    assert tables.is_valid(sets(0.9, 1.5)) and not tables.is_valid(sets(0.9, 1.5, n=9))
    lines = tables.at_one(stored, ["german"])[2:]
    names = [line.split("|")[2].strip() for line in lines]
    assert names == ["**pymc_dp**", "d3p", "NA-DPVI", "diffprivlib"]
    assert "no interval" in lines[3] and "0.90 0.90 0.90 | 1.50" in lines[0]
    row = tables.at_all(stored, ["german"])[2]
    assert row == "| german | 1 | **0.90 / 1.50** | 0.50 / 1.10 | 0.95 / 1.70 |"
