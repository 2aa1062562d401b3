"""Stored results of the experiments on synthetic data, and the analysis that the page shows."""

import re

from pathlib import Path

import numpy as np
import pytest

from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "experiments" / "synthetic_experiments.py"
PAGE = (ROOT / "docs" / "after_the_release.md").read_text()


@pytest.fixture(scope="module")
def wanted(experiments, stored):
    return experiments.expected(np.array(stored["relative"]) ** 2)


def error_of(coverage):
    """Standard error of the mean; not below that of independent parameters with the level of the intervals."""
    return max(np.std(coverage), np.sqrt(0.9 * 0.1 / 4)) / np.sqrt(len(coverage))


def test_all_data_sets_are_there(experiments, stored):
    assert experiments.N_SETS >= 60
    assert {len(column) for column in stored.values()} == {experiments.N_SETS}
    assert {name.rpartition(" ")[0] for name in stored} - {""} == {*experiments.ANALYSES}
    assert experiments.table(stored) in PAGE


def test_coverage_and_width_are_as_expected(experiments, stored, wanted):
    """Two ways to the same numbers: simulation, and the formulas of the page."""
    for name in experiments.ANALYSES:
        width, coverage = wanted[name]
        found = stored[f"{name} coverage"]
        assert abs(np.mean(found) - coverage) < 3.5 * error_of(found), name
        widths = np.array(stored[f"{name} width"])
        # Quantiles of a few components, and of normal approximations, are not quite those of the formula.
        spread = np.subtract(*np.quantile(widths, [0.75, 0.25])) / 1.35
        margin = 0.03 * width + 3.5 * 1.25 * spread / np.sqrt(len(widths))
        assert abs(np.median(widths) - width) < margin, name


def test_the_mixture_of_large_sets_is_nearly_the_private_posterior(stored):
    coverage = np.array(stored["mixture_large coverage"])
    assert abs(coverage.mean() - 0.9) < 3.5 * error_of(coverage)
    assert 1.0 < np.mean(stored["mixture_large width"]) < 1.05
    difference = coverage - stored["private coverage"]
    assert abs(difference.mean()) < 3.5 * difference.std() / np.sqrt(len(difference))


def test_single_sets_are_wrong_and_mixtures_of_small_ones_too_wide(stored):
    """The negative controls."""
    small, large = (np.array(stored[f"single_{size} coverage"]) for size in ("small", "large"))
    assert small.mean() + 3.5 * error_of(small) < 0.8
    assert large.mean() + 3.5 * error_of(large) < 0.4
    assert np.mean(stored["mixture_small width"]) > 1.4
    assert np.mean(stored["mixture_small coverage"]) > 0.95


def test_limits_that_the_page_states(experiments):
    """With V = v n / N, its least value."""
    for times, most in re.findall(r"([\d.]+),? for `n = (\d+) N`", PAGE.replace("and ", "")):
        assert float(times) == pytest.approx(np.sqrt(1 + 2 / int(most)), abs=0.005)
    assert len(re.findall(r"for `n = \d+ N`", PAGE)) == 2
    error = np.sqrt(experiments.quantile_variance(np.array([1e-9]))[0])
    assert error == pytest.approx(0.3, abs=0.02)
    assert "0.3 standard deviations" in PAGE


def test_variances_by_simulation(experiments):
    """Modes of V + v, mixture of V + 2 v, and its quantile's error, from normal numbers alone."""
    rng, m, r = np.random.default_rng(1), experiments.N_SYNTHETIC, 0.7
    modes = np.sqrt(1 + r) * rng.normal(size=(2000, m))
    draws = modes[..., None] + np.sqrt(r) * rng.normal(size=(2000, m, 60))
    assert draws.var() == pytest.approx(1 + 2 * r, rel=0.02)
    ends = np.quantile(draws.reshape(2000, -1), 0.95, axis=1)
    assert ends.mean() == pytest.approx(stats.norm.ppf(0.95) * np.sqrt(1 + 2 * r), rel=0.03)
    assert ends.var() == pytest.approx(experiments.quantile_variance(np.array([r]))[0], rel=0.15)


def test_the_fit_is_newtons(experiments):
    """Mode and covariance of the analyst: the gradient is zero, and the covariance is that of its differences."""
    rng = np.random.default_rng(2)
    x, y = experiments.synthetic(np.array([0.3, -0.5, 0.2, 0.0]), 400, rng)
    mode, covariance = experiments.analyst(x, y)
    design = np.column_stack([np.ones(len(x)), x])

    def gradient(b):
        p = 1 / (1 + np.exp(-design @ b))
        return design.T @ (y - p) - b / experiments.PRIOR_SD**2

    np.testing.assert_allclose(gradient(mode), 0, atol=1e-6)
    h = 1e-5
    hessian = [(gradient(mode + h * e) - gradient(mode - h * e)) / (2 * h) for e in np.eye(4)]
    np.testing.assert_allclose(np.linalg.inv(-np.array(hessian)), covariance, rtol=1e-5)


def test_the_rule_removes_the_variance_of_the_fit(experiments):
    """From modes of variance V + v, the interval of the combining rule covers a truth of variance V."""
    rng, v, covered = np.random.default_rng(3), 0.7, []
    for _ in range(4000):
        modes = np.sqrt(1 + v) * rng.normal(size=(experiments.N_SYNTHETIC, 1))
        low, high = experiments.combined(modes, np.full_like(modes, v))
        covered.append((low < (truth := rng.normal())) & (truth < high))
    assert np.mean(covered) == pytest.approx(0.9, abs=0.025)


def test_the_rule_fails_in_two_data_sets(stored):
    """Between and within variance were nearly the same there, for one of the parameters."""
    assert "In two of the 200 data sets" in PAGE
    assert np.sum(np.array(stored["rubin_small width"]) > 2) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS|The effective sample size|The chains disagree"
)
def test_the_analysis_of_the_page(tmp_path, monkeypatch):
    """Its mixture agrees with its private posterior; what was not released, an interaction, is near zero."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(block, names)
    draws = names["again"]["posterior"]["b"].values.reshape(-1, 3)
    mixture, sd = names["mixture"], draws.std(axis=0)
    n_sets = len(names["synthetic"])
    assert (np.abs(mixture.mean(axis=0) - draws.mean(axis=0)) < 4.5 * sd / np.sqrt(n_sets)).all()
    assert (np.abs(np.log(mixture.std(axis=0) / sd)) < 4.5 / np.sqrt(2 * n_sets)).all()
    single = np.sqrt(np.diag(names["fit"](names["x"], names["synthetic"][0])[1]))
    assert (single < 0.4 * sd).all()
    more = np.column_stack([names["x"], names["x"][:, 1] * names["x"][:, 2]])  # an interaction
    modes = np.array([names["fit"](more, y)[0][3] for y in names["synthetic"]])
    assert abs(modes.mean()) < 4.5 * modes.std() / np.sqrt(n_sets) and modes.std() < 0.4 * sd[2]
    assert (names["sd"]["prior"] / names["sd"]["posterior"] > 5).all()
    assert names["other"]["posterior"]["b"].values.std(axis=(0, 1))[2] < sd[2]
    assert set(names["predicted"]["posterior_predictive"]["ill"].shape) == {4, 1000, 2}
