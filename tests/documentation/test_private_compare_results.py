"""Stored results of the experiment on private comparisons: what the documentation says of coverage and noise."""

from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "private_compare_experiments.py"


def test_all_releases_are_there(experiments, stored):
    assert [len(found["releases"]) for found in stored] == [experiments.N_RELEASES] * experiments.N_SETS  # fmt: skip


def test_intervals_cover_the_difference_without_privacy(experiments, stored):
    """90 % intervals, 200 releases: 87 to 93 %; by simulated noise, to within a percent or two of the nominal level."""
    found = experiments.summary(stored)
    assert 0.87 <= found["coverage"] <= 0.93
    assert 0.88 <= found["expected_coverage"] <= 0.93


def test_noise_is_small_beside_the_variation_between_data_sets(experiments, stored):
    found = experiments.summary(stored)
    assert found["noise_sd"] < 0.25 * found["exact_sampling_sd"]
    assert found["sampling_sd"] == pytest.approx(found["exact_sampling_sd"], rel=0.05)
    assert found["right_sign"] > 0.95


def test_the_table_of_the_page(experiments, stored):
    page = (SCRIPT.parents[1] / "docs" / "comparing_models.md").read_text()
    assert "\n".join(experiments.table(stored)) in page


@pytest.mark.slow
def test_the_experiment_in_small(experiments):
    """2000 records: the noise is larger, and two releases on one data set cover."""
    found = experiments.one_set(1, n_records=2000, n_releases=2)
    for release in found["releases"]:
        assert release["low"] < release["difference"] < release["high"]
        assert abs(release["difference"] - found["exact"]) < 8 * release["noise_sd"]
        assert 0.8 < release["expected_coverage"] < 0.99
        assert release["sampling_sd"] == pytest.approx(found["sampling_sd"], rel=0.6)
