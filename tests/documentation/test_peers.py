"""Comparison with other software: its data, measures and tables, and what is stored."""

import re
import subprocess
import sys

from pathlib import Path

import numpy as np
import pytensor.tensor as pt
import pytest

from scipy import stats

from tests.documentation.test_experiments import loaded

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "peers"


@pytest.fixture(scope="module")
def scripts():
    """The command, and its table of tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        patch.syspath_prepend(str(FOLDER.parent))
        yield from loaded(FOLDER / "run_peers.py")


@pytest.fixture(scope="module")
def simulated(scripts):
    task = scripts.task("noisy_regression")
    return task, task.problem(np.random.default_rng(1))


def test_the_designs_of_arrays_and_of_models_are_the_same(scripts):
    covariate = sys.modules["peer_tasks"].Covariate
    rng = np.random.default_rng(2)
    for c, values in (
        (covariate("a", 4), rng.integers(4, size=30).astype(float)),
        (covariate("b", low=10, high=30, square=True), rng.uniform(10, 30, size=30)),
        (covariate("c", low=0, high=8, scale=2), rng.uniform(0, 8, size=30)),
    ):
        arrays = c.columns(values, np.equal)
        graphs = [column.eval() for column in c.columns(pt.constant(values), pt.eq)]
        np.testing.assert_allclose(arrays, graphs)
        assert np.max(np.abs(arrays)) <= 2
    assert len(arrays) == 1 and np.abs(arrays).max() > 1


@pytest.mark.parametrize("family", ["logistic", "normal", "poisson", "negative binomial"])
def test_the_posterior_without_privacy(scripts, family):
    """Mode and curvature are those of the density, by differences."""
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(200), rng.normal(size=(200, 2))])
    y = {
        "logistic": rng.integers(2, size=200),
        "normal": 1 + x[:, 1] + 0.5 * rng.normal(size=200),
        "poisson": rng.poisson(1.5, size=200),
        "negative binomial": rng.negative_binomial(1.2, 0.5, size=200),
    }[family]
    mode, covariance = scripts.fit(family, x, y, 2.5)

    def density(theta):
        prior = stats.norm.logpdf(theta[:3], 0, 2.5).sum()
        return scripts.log_likelihood(family, theta, x, y).sum() + prior

    steps = 1e-4 * np.eye(len(mode))
    slopes = [density(mode + e) - density(mode - e) for e in steps]
    assert np.abs(slopes).max() < 1e-7
    second = [
        [density(mode + e + f) - density(mode + e - f) - density(mode - e + f) + density(mode - e - f) for f in steps]
        for e in steps
    ]  # fmt: skip
    np.testing.assert_allclose(-np.linalg.inv(np.array(second) / 4e-8), covariance, rtol=1e-3)


def test_measures_of_the_exact_posterior_and_of_wrong_ones(scripts, simulated):
    task, problem = simulated
    mode, covariance = scripts.fit(task.family, task.design(problem.z), problem.y, 2.5)
    rng = np.random.default_rng(4)
    exact = rng.multivariate_normal(mode, covariance, size=4000)[:, : task.n_dim]
    sd = np.sqrt(np.diag(covariance))[: task.n_dim]
    found = scripts.measures(task, problem, exact, 5)
    assert found["width"] == pytest.approx(1, abs=0.05) and found["shift"] < 0.06
    assert found["mmd"] < 0.05 and abs(found["lpd"]) < 2e-3
    shifted = scripts.measures(task, problem, exact + 3 * sd, 5)
    assert shifted["shift"] == pytest.approx(3, abs=0.1)
    assert shifted["width"] == pytest.approx(found["width"])
    assert shifted["mmd"] > 0.5 and shifted["lpd"] < found["lpd"]
    wide = scripts.measures(task, problem, mode[: task.n_dim] + 4 * (exact - mode[: task.n_dim]), 5)
    assert wide["width"] == pytest.approx(4 * found["width"], rel=1e-3)
    assert wide["coverage 0.9"] == 1
    point = scripts.measures(task, problem, exact.mean(axis=0)[None], 5)
    assert "width" not in point and "coverage 0.9" not in point


def test_coverage_is_that_of_the_truth(scripts, simulated):
    """Of normal posteriors whose intervals cover each parameter with a known probability."""
    task, problem = simulated
    covered, rng = [], np.random.default_rng(6)
    for _ in range(60):
        mean = problem.truth[: task.n_dim] + rng.standard_normal(task.n_dim)
        draws = mean + rng.standard_normal((1000, task.n_dim))
        covered.append(scripts.measures(task, problem, draws, 7)["coverage 0.8"])
    error = np.sqrt(0.8 * 0.2 / (60 * task.n_dim))
    assert np.mean(covered) == pytest.approx(0.8, abs=4 * error)


def test_public_bounds_hold(scripts, simulated):
    task, problem = simulated
    x = task.design(problem.z)
    assert np.abs(x).max() <= task.largest == 5
    assert np.linalg.norm(x[:, 1:], axis=1).max() <= task.largest_norm
    assert task.largest_norm == pytest.approx(np.sqrt(50))


def test_calibration(scripts):
    rng = np.random.default_rng(8)
    chance = rng.random(20_000)
    y = rng.random(20_000) < chance
    assert scripts.calibration_error(chance, y) < 0.02
    assert scripts.calibration_error(chance**2, y) > 0.1


def test_results_are_stored_side_by_side(scripts, tmp_path, monkeypatch):
    monkeypatch.setattr(scripts, "STORE", tmp_path / "peers.json")
    for seed in range(3):
        scripts.store("b | d3p | 1", seed, {"shift": 0.5})
    scripts.store("a | d3p | 1", 0, {"shift": 0.25})
    assert scripts.stored() == {
        "a | d3p | 1": {"0": {"shift": 0.25}},
        "b | d3p | 1": {seed: {"shift": 0.5} for seed in "012"},
    }
    assert list(scripts.stored()) == sorted(scripts.stored())


def test_data_without_network(scripts, tmp_path, monkeypatch):
    data = sys.modules["peer_data"]
    monkeypatch.setattr(data, "CACHE", tmp_path / "none")
    monkeypatch.setattr(data.subprocess, "run", lambda *args, **kwargs: None)
    with pytest.raises(data.NotDownloaded, match=r"pip download --no-deps ISLP==0\.6\.0"):
        data.table("wage")


@pytest.mark.slow
def test_the_command_in_small():
    command = [sys.executable, "-W", "ignore", str(FOLDER / "run_peers.py"), "--small", "--peer"]
    run = subprocess.run([*command, "pymc_dp", "NUTS"], capture_output=True, text=True, check=True)
    lines = dict(line.split(" ", 1) for line in run.stdout.splitlines() if "{" in line)
    assert set(lines) == {"pymc_dp", "NUTS"}
    assert all("'width'" in line for line in lines.values())


def test_stored_results_are_of_the_tasks(scripts):
    stored = scripts.stored()
    assert stored
    for key, sets in stored.items():
        task, peer, epsilon = key.split(" | ")
        assert task in scripts.TASKS and peer in (*scripts.OWN, *scripts.SCRIPTS)
        assert (epsilon == "inf") == (peer in scripts.NOT_PRIVATE)
        assert all(s["seconds"] > 0 for s in sets.values())


def test_a_bold_method_covers_and_is_the_narrowest(scripts):
    """Of made-up results: intervals that are too narrow, valid ones of two widths, a point."""
    tables = pytest.importorskip("peer_tables")

    def sets(coverage, width, n=10):
        one = {f"coverage {level}": coverage for level in scripts.LEVELS}
        one |= {"width": width, "widest": width, "shift": 1.0, "mmd": 0.1, "seconds": 2.0}
        return {str(seed): one for seed in range(n)}

    stored = {
        "german | d3p | 1": sets(0.5, 1.1), "german | pymc_dp | 1": sets(0.9, 1.5),
        "german | NA-DPVI | 1": sets(0.95, 1.7), "german | NUTS | inf": sets(0.9, 1.0),
        "german | diffprivlib | 1": {"0": {"shift": 2.0, "seconds": 0.1}},
    }  # fmt: skip
    assert tables.is_valid(sets(0.9, 1.5)) and not tables.is_valid(sets(0.9, 1.5, n=9))
    lines = tables.at_one(stored, ["german"])[2:]
    assert [line.split("|")[2].strip() for line in lines] == [
        "**pymc_dp**", "d3p", "NA-DPVI", "diffprivlib"
    ]  # fmt: skip
    without = tables.without_privacy(stored, ["german"])[2:]
    assert [line.split("|")[2].strip() for line in without] == ["NUTS"]  # no set says what is exact
    assert "no interval" in lines[3] and "0.90 0.90 0.90 | 1.50" in lines[0]
    head, _, row = tables.at_all(stored, ["german"])
    assert head == "| coverage of 90 % / width | epsilon | pymc_dp | d3p | NA-DPVI |"
    assert row == "| german | 1 | **0.90 / 1.50** | 0.50 / 1.10 | 0.95 / 1.70 |"
    assert any("| d3p | 30 |" in line for line in tables.tables(stored))


def test_the_figure_is_of_the_stored_results(scripts):
    figure = pytest.importorskip("peer_figure")
    (stored,) = re.findall(rb"Comment\x00([0-9a-f]{64})", figure.PICTURE.read_bytes())
    assert stored.decode() == figure.digest(figure.lines())
    assert f"_static/{figure.PICTURE.name}" in (ROOT / "docs" / "peers.md").read_text()
    assert f"docs/_static/{figure.PICTURE.name}" in (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_comparison_with_dapper_in_small():
    """Without R."""
    command = [sys.executable, "-W", "ignore", str(FOLDER / "dapper_comparison.py"), "--small"]
    assert "'covered'" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
