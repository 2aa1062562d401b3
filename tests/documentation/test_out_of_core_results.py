"""Stored figures of records on disk, and the page that shows them."""

from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "experiments" / "out_of_core.py"
PAGE = (ROOT / "docs" / "larger_than_memory.md").read_text()


def test_the_page_has_the_stored_figures(experiments, stored):
    *table, _, growth = experiments.tables(stored)
    assert len(table) == 2 + len(experiments.SETTINGS)
    assert "\n".join(table) in PAGE and growth in PAGE


def test_one_gigabyte_is_enough(experiments, stored):
    for name, (_, d) in experiments.SETTINGS.items():
        found = stored[name]
        assert found["limited"] and found["peak_mb"] < experiments.LIMIT / 2**20
        # Distance from the truth, in posterior standard deviations: a chi distribution with d degrees of freedom.
        assert found["error"] ** 2 * d < d + 4 * np.sqrt(2 * d)


def test_time_grows_with_the_number_of_records_and_memory_does_not(stored):
    found = stored["growth"]
    slope = np.polyfit(np.log(found["n"]), np.log(found["seconds"]), 1)[0]
    assert 0.95 <= slope <= 1.05
    assert found["n"][-1] == 1000 * found["n"][0]
    assert found["peak_mb"][-1] < 1.25 * found["peak_mb"][0]
