"""Stored results of the experiments support what the pages say of them, and agree with second ways to the same numbers."""

import math
import re
import statistics

import numpy as np
import pytest

from scipy import stats

from tests.documentation.test_tables import ROOT, page_of


@pytest.fixture
def stored(script):
    return lambda name: script(name).EXPERIMENT.stored()


def error_of(coverage, n_dim=4):
    """Standard error of the mean; not below that of independent parameters with the level of the intervals."""
    return max(np.std(coverage), np.sqrt(0.9 * 0.1 / n_dim)) / np.sqrt(len(coverage))


def test_all_data_sets_are_there(script):
    """Of each setting that runs here; those of other software, which take days, may be fewer."""
    for name in ("limits", "ppc_experiments", "private_compare_experiments", "scores_experiments", "scores_mmd",
                 "scores_mortgages", "stand_in_experiments", "synthetic_experiments", "sghmc_experiments"):  # fmt: skip
        experiment = script(name).EXPERIMENT
        missing = {setting for setting, _ in experiment.missing([], experiment.stored())}
        assert missing <= {"logistic_300_small"}, name


def rejected(p):
    return np.mean(np.array(p) <= 0.05)


def root_mean_square(values):
    return np.sqrt(np.mean(np.square(values)))


#: Script, setting, column, figure, and its least and largest value: what pages say of single columns.
CLAIMS = [
    *(("scores_experiments", f"logistic_{n}", "ratio", np.mean, 1, most) for n, most in ((300, 1.5), (1000, 1.18), (3000, 1.08))),
    # Moments of the scores correct a stand-in with other correlations: without them 66 % were covered.
    ("scores_experiments", "correlated_1000", "coverage", np.mean, 0.85, 1),
    ("scores_experiments", "correlated_1000", "ratio", np.mean, 1, 1.5),
    ("stand_in_experiments", "simulated_ranges", "coverage", np.mean, 0.85, 1),
    *(("scores_mortgages", men, "ratio", np.mean, 1, most) for men, most in (("2000", 1.3), ("20000", 1.05), ("214144", 1.01))),
    *(("scores_mortgages", men, "shift", root_mean_square, 0, most) for men, most in (("2000", 0.7), ("20000", 0.3), ("214144", 0.2))),
    # Power of checks: data sets with a p-value of at most 0.05, at epsilon = 1; of regressions at 4.
    *(("ppc_experiments", "poisson_3000_overdispersed", column, rejected, 1, 1) for column in ("rootogram", "variance")),
    ("ppc_experiments", "normal_10000_outliers", "bins", rejected, 0.7, 1),
    ("ppc_experiments", "normal_30000_outliers", "bins", rejected, 0.8, 1),
    *(("ppc_experiments", f"misfit_{data}", "bins", rejected, 1, 1) for data in ("t4", "gamma", "outliers")),
    ("ppc_experiments", "misfit_overdispersed", "rootogram", rejected, 1, 1),
    ("ppc_experiments", "misfit_curved", "square", rejected, 1, 1),
]  # fmt: skip


def test_figures_are_as_said(stored):
    for script, setting, column, figure, least, most in CLAIMS:
        assert least <= figure(stored(script)[setting][column]) <= most, (script, setting, column)
    for name, found in stored("scores_mmd").items():
        assert np.median(found["mmd"]) <= 0.1 and np.median(found["ess"]) > 200, name


# ------------------------------------------------------------------------- samplers
def test_sghmc_calculated_bias(script, stored):
    """Stored values are as calculated; measured ones agree within their errors; few steps narrow the distribution."""
    sghmc = script("sghmc_experiments")
    _, precision = sghmc.normal_posterior()
    for row in stored("sghmc_experiments")["bias"]["rows"]:
        for kind, found in row["kinds"].items():
            batch, right, refresh = sghmc.KINDS_OF_BIAS[kind]
            variance, size = sghmc.batch_variance(batch), row["step size"]
            estimate = size * variance / 2 * right
            law = sghmc.law(precision, size, 25.0, estimate, variance, 10, refresh=refresh)
            sd = math.sqrt(law[1, 1] * precision)
            assert found["calculated"] == pytest.approx(sd, rel=1e-3)
            assert abs(found["measured"] - sd) < 4 * found["error"]
    law = sghmc.law(precision, 1e-4, 25.0, 0.0, 0.0, 10)
    assert law[1, 1] * precision == pytest.approx(10 / 11, rel=2e-3)


def test_sghmc_energy_stays_with_friction_only(script, stored):
    found = stored("sghmc_experiments")["phase"]["kinds"]
    assert found["batches, no friction"]["last quarter"] > 100
    assert 0.7 < found["batches, friction"]["last quarter"] < 1.5
    for kind, each in found.items():
        expected = script("sghmc_experiments").expected_energy(kind, 2000)[-1]
        assert each["expected"][-1] == pytest.approx(expected, rel=1e-3)


def test_sghmc_accounts_and_radon(stored):
    accounts = stored("sghmc_experiments")["accounting"]
    for row in [*accounts["by delta"], *accounts["by length"]]:
        assert 0.995 < row["ours"] / row["published"] < 1.015
    for row in accounts["runs"]:
        assert 0.94 < row["ours"] / row["published"] < 1.015
    rows = stored("sghmc_experiments")["radon"]["rows"]
    ours = {row["epsilon"]: row for row in rows if row["what"] == "DPSGHMC, T = 1"}
    (best,) = (row for row in rows if row["what"] == "posterior mode, not private")
    for epsilon in (0.3, 1.0, 3.0, 10.0):
        assert ours[epsilon]["accuracy"] > best["accuracy"] - 0.01
        assert ours[epsilon]["log-loss"] < 1.04 * best["log-loss"]


def test_comparison_of_samplers(script, stored):
    """All cells are there; shares of clipped records fall with the bound."""
    comparison, found = script("comparison_experiments"), stored("comparison_experiments")
    for name, experiment in comparison.EXPERIMENTS.items():
        assert max(found["independent"][name]) < 0.1
        for sampler in comparison.SAMPLERS:
            for epsilon in comparison.epsilons_of(name):
                row = comparison.stored_row(found, name, sampler, epsilon)
                assert (row is None) == (comparison.settings(experiment, sampler) is None)
                assert row is None or row["runs"] + row["failed"] >= comparison.FEWEST
    for name in comparison.CLIPPING:
        for kind in ("random walk", "HMC"):
            rows = [found["clipping"][f"{name}, {kind}, bound {b:g}"] for b in comparison.BOUNDS]
            shares = [np.mean(row["clipped"]) for row in rows]
            assert shares[0] > 0.5 and shares[-1] < 0.05 and sorted(shares, reverse=True) == shares


# ------------------------------------------------------------------------------- privatized data
def test_privatized_coverage_is_that_of_the_paper(stored):
    """Two samples of a hundred each; the bound holds for all 40 cells in 98 of 100 cases."""
    results = stored("privatized_experiments")
    for kind, rows in results["published"].items():
        means = []
        for epsilon, published in rows.items():
            found = np.array(results[kind][epsilon]["covered"]) / 100
            pooled = np.clip((found + published) / 2, 0.005, 0.995)
            error = np.sqrt(pooled * (1 - pooled) * 2 / 100)
            assert (abs(found - published) < 3.5 * error).all(), (kind, epsilon, found, published)
            # Proposition 3.1; rates are far above the bound, and increase with the noise.
            assert min(results[kind][epsilon]["lowest"]) > math.exp(-float(epsilon))
            means.append(np.mean(results[kind][epsilon]["acceptance"]))
        assert means == sorted(means, reverse=True)


# ------------------------------------------------------------------------- noisy scores
def test_intervals_cover_the_truth(script, stored):
    """Each setting within four standard errors, all together within 2 %: parameters are not drawn from the prior."""
    settings, rates = script("scores_experiments").SETTINGS, []
    for name, found in stored("scores_experiments").items():
        if not settings[name].truth and settings[name].correlation is None:
            covered = np.array(found["coverage"])
            n_dim, n = settings[name].n_dim, len(covered)
            error = np.sqrt(0.9 * 0.1 / n_dim / n) + covered.std() / np.sqrt(n)
            assert abs(covered.mean() - 0.9) < 4 * error, name
            rates.append(covered.mean())
    assert abs(np.mean(rates) - 0.9) < 0.02


def test_width_of_independent_covariates_and_of_noise(stored):
    """The variance of a coefficient is 1.5 times as large with three covariates that correlate by 0.5."""
    factor = np.linalg.inv(0.5 + 0.5 * np.eye(3))[0, 0]
    coverage = 2 * stats.norm.cdf(stats.norm.isf(0.05) / np.sqrt(factor)) - 1
    assert f"makes {100 * coverage:.0f} % of 90 %" in page_of("noisy_scores")
    # The noise, which the width shows, explains the shift, up to the Monte Carlo error of its mean square.
    found = stored("stand_in_experiments")["mortgages_ranges"]
    squares, noise = np.square(found["shift"]), np.mean(found["ratio"]) ** 2 - 1
    assert squares.mean() < noise + 3.5 * squares.std() / np.sqrt(len(squares))


def test_misfit_is_rejected_or_does_no_harm(script, stored):
    """Misfits are rejected, or the posterior is near the one without privacy; right models are not rejected."""
    for name, found in stored("scores_experiments").items():
        setting = script("scores_experiments").SETTINGS[name]
        rejected = np.array(found["p_value"]) < 0.01
        if setting.truth:
            assert (rejected | (np.array(found["distance"]) < 3)).mean() >= 0.95, name
        elif setting.n_records == 30_000:
            assert rejected.mean() <= 0.05, name


# ------------------------------------------------------------------------- checks and comparisons
def test_predictive_checks(script, stored):
    """Uniform p-values of right models, but not without conditioning on the scores."""
    ppc, results = script("ppc_experiments"), stored("ppc_experiments")
    for name, setting in ppc.SETTINGS.items():
        for statistic, p in results[name].items() if setting.truth == "model" else ():
            if "new records" not in statistic:
                assert stats.kstest(p, "uniform").pvalue > 0.01, (name, statistic)
    found = results["normal_300_records"]
    for statistic in ("mean", "variance", "bins"):
        naive = found[f"{statistic}, new records"]
        assert stats.kstest(naive, "uniform").pvalue < 1e-4
        assert np.mean(naive) > np.mean(found[statistic]) + 0.1
    # At 5 %: 80 p-values, of which those of one data set depend on each other.
    right = [name for name in ppc.REGRESSIONS if not name.startswith("misfit")]
    p_values = np.concatenate([p for name in right for p in results[name].values()])
    assert len(p_values) == 80 and np.mean(p_values <= 0.05) < 0.05 + 3.5 * np.sqrt(0.05 / 80)


def test_private_comparisons(script, stored):
    """90 % intervals, 200 releases: 87 to 93 %; the noise is small beside the variation between data sets."""
    found = script("private_compare_experiments").summary(stored("private_compare_experiments"))
    assert found["releases"] == 200 and 0.87 <= found["coverage"] <= 0.93
    assert 0.88 <= found["expected_coverage"] <= 0.93 and found["right_sign"] > 0.95
    assert found["noise_sd"] < 0.25 * found["exact_sampling_sd"]
    assert found["sampling_sd"] == pytest.approx(found["exact_sampling_sd"], rel=0.05)


# ------------------------------------------------------------------------- synthetic data
def test_synthetic_data_are_as_expected(script, stored):
    """Two ways to the same numbers: simulation, and the formulas of the page."""
    module, found = (
        script("synthetic_experiments"),
        stored("synthetic_experiments")["logistic_1000"],
    )
    wanted = module.expected(np.array(found["relative"]) ** 2)
    for name in module.ANALYSES:
        width, coverage = wanted[name]
        covered, widths = found[f"{name} coverage"], np.array(found[f"{name} width"])
        assert abs(np.mean(covered) - coverage) < 3.5 * error_of(covered), name
        # Quantiles of a few components, and of normal approximations, are not quite those of the formula.
        spread = np.subtract(*np.quantile(widths, [0.75, 0.25])) / 1.35
        margin = 0.03 * width + 3.5 * 1.25 * spread / np.sqrt(len(widths))
        assert abs(np.median(widths) - width) < margin, name
    # The negative controls: single sets are wrong, mixtures of small ones too wide.
    for size, most in (("small", 0.8), ("large", 0.4)):
        single = found[f"single_{size} coverage"]
        assert np.mean(single) + 3.5 * error_of(single) < most
    assert np.mean(found["mixture_small width"]) > 1.4
    assert "In two of the 200 data sets" in page_of("after_the_release")
    assert np.sum(np.array(found["rubin_small width"]) > 2) == 2
    limits = re.findall(
        r"([\d.]+),? for `n = (\d+) N`", page_of("after_the_release").replace("and ", "")
    )
    assert len(limits) == 2  # with V = v n / N, its least value
    for times, most in limits:
        assert float(times) == pytest.approx(np.sqrt(1 + 2 / int(most)), abs=0.005)


# ------------------------------------------------------------------------- time, memory, forecasts
def test_clusters(script, stored):
    """Two workers are nearly twice as fast; a pass costs little; the law describes what was measured."""
    pytest.importorskip("distributed")
    clusters, found = script("clusters"), stored("clusters")
    workers = found["workers"]
    assert min(workers["workers_1"]) / min(workers["workers_2"]) >= 1.8
    assert workers["same"] and workers["killed"] > min(workers["workers_2"])
    alone, cluster = (statistics.median(found["overhead"][k]) for k in ("alone", "cluster"))
    assert cluster - alone <= 0.02
    intercept, slope = clusters.law(found)
    for n in clusters.WORKERS:
        measured = 1e3 * (statistics.median(found["latency"][str(n)]) - clusters.LATENCY)
        assert abs(measured - intercept - slope * n) < 0.25 * (20 + intercept + slope * n)
    passes = 1e3 * clusters.LATENCY + intercept + 64 * slope
    work = min(workers["workers_1"]) * 1e9 / clusters.N / 64
    page = page_of("many_machines")
    assert f"about {passes:.0f} ms for a pass" in page and f"about {work:.1f} s." in page


def test_one_gigabyte_is_enough(script, stored):
    pytest.importorskip("pyarrow")
    module, found = script("out_of_core"), stored("out_of_core")
    for name, (_, d) in module.SETTINGS.items():
        assert found[name]["limited"] and found[name]["peak_mb"] < module.LIMIT / 2**20
        # Distance from the truth, in posterior standard deviations: a chi distribution with d degrees of freedom.
        assert found[name]["error"] ** 2 * d < d + 4 * np.sqrt(2 * d)
    growth = found["growth"]
    assert growth["n"][-1] == 1000 * growth["n"][0]
    assert 0.95 <= np.polyfit(np.log(growth["n"]), np.log(growth["seconds"]), 1)[0] <= 1.05
    assert growth["peak_mb"][-1] < 1.25 * growth["peak_mb"][0]


def test_forecasts_and_what_was_measured(script, stored):
    """Ratios fall with records and epsilon, and rise with parameters, where the prior does not dominate."""
    limits = script("limits")
    lines = limits.lines(stored("limits"))
    text = " ".join(page_of("limits").split())
    found = re.findall(r"(\d+) records the forecast is ([\d.]+), and ([\d.]+) was measured", text)
    assert len(found) == 3
    for n, *both in found:
        known = dict(lines[4, 1.0])[int(n)], dict(limits.measured(4, 1.0))[int(n)]
        assert both == [f"{ratio:.2f}" for ratio in known]
    ratios = {key: np.array([r for _, r in line]) for key, line in lines.items()}
    for (n_dim, epsilon), line in ratios.items():
        assert epsilon < 1 or ((np.diff(line) < 0).all() and (line < ratios[n_dim, 0.1]).all())
        assert n_dim == 4 or (line > ratios[4, epsilon]).all()


def test_pictures_are_drawn_from_what_is_stored(script):
    overview, peers = script("overview_figure"), script("peers/run_peers").EXPERIMENT.stored()
    tables, numbers = script("peers/peer_tables"), overview.stored()
    pictures = {
        "benchmarks": (overview.PICTURE, numbers),
        "peers": (tables.PICTURE, tables.drawn(peers)),
    }
    for page, (picture, found) in pictures.items():
        (drawn,) = re.findall(rb"Comment\x00([0-9a-f]{64})", picture.read_bytes())
        assert drawn.decode() == script("runner").digest(found)
        assert f"(_static/{picture.name})" in page_of(page)
    assert overview.caption(numbers) in " ".join(page_of("benchmarks").split())
    assert "docs/_static/peers.png" in (ROOT / "README.md").read_text()
