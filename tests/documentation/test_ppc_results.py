"""Stored results of the experiments on posterior predictive checks: level, and power."""

from pathlib import Path

import numpy as np

from scipy import stats

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "ppc_experiments.py"


def test_all_data_sets_are_there(experiments, stored):
    assert [*stored] == [*experiments.SETTINGS, *experiments.REGRESSIONS]
    assert experiments.SETTINGS["normal_300_records"].n_sets == 500
    for name, found in stored.items():
        wanted = experiments.N_REGRESSIONS
        if name in experiments.SETTINGS:
            wanted = experiments.SETTINGS[name].n_sets
        assert {len(p) for p in found.values()} == {wanted}


def test_p_values_are_uniform_if_the_model_is_right(experiments, stored):
    for name, setting in experiments.SETTINGS.items():
        if setting.truth == "model":
            for statistic, p in stored[name].items():
                if "new records" not in statistic:
                    assert stats.kstest(p, "uniform").pvalue > 0.01, (name, statistic)


def test_those_of_new_records_are_too_large(stored):
    """The negative control: without conditioning on the scores p-values are not uniform."""
    found = stored["normal_300_records"]
    for statistic in ("mean", "variance", "bins"):
        naive, right = np.array(found[f"{statistic}, new records"]), np.array(found[statistic])
        assert stats.kstest(naive, "uniform").pvalue < 1e-4
        assert naive.mean() > right.mean() + 0.1
    assert np.mean(np.array(found["mean, new records"]) <= 0.05) == 0


def test_few_right_regressions_are_rejected(experiments, stored):
    """At 5 %: 80 p-values, of which those of one data set depend on each other."""
    right = [name for name in experiments.REGRESSIONS if not name.startswith("misfit")]
    p_values = np.concatenate([p for name in right for p in stored[name].values()])
    assert len(p_values) == 80 and np.mean(p_values <= 0.05) < 0.05 + 3.5 * np.sqrt(0.05 / 80)


def test_wrong_models_are_found(stored):
    for name, statistic, least in POWER:
        assert np.mean(np.array(stored[name][statistic]) <= 0.05) >= least, (name, statistic)


#: Part of the data sets with a p-value of at most 0.05, at epsilon = 1; regressions: 4.
POWER = [
    ("poisson_3000_overdispersed", "rootogram", 1.0),
    ("poisson_3000_overdispersed", "variance", 1.0),
    ("normal_10000_outliers", "bins", 0.7),
    ("normal_30000_outliers", "bins", 0.8),
    ("misfit_t4", "bins", 1.0),
    ("misfit_gamma", "bins", 1.0),
    ("misfit_outliers", "bins", 1.0),
    ("misfit_overdispersed", "rootogram", 1.0),
    ("misfit_curved", "square", 1.0),
]
