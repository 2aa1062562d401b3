"""The page on limits says what ``experiments/limits.py`` has stored, and a forecast of it can be made again."""

import re

from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "experiments" / "limits.py"
PAGE = (ROOT / "docs" / "limits.md").read_text()


def test_forecasts_and_what_was_measured(experiments):
    forecasts = {n: ratio for n, ratio in experiments.lines()[4, 1.0]}
    text = " ".join(PAGE.split())
    found = re.findall(r"(\d+) records the forecast is ([\d.]+), and ([\d.]+) was measured", text)
    assert len(found) == 3
    for n, forecast, measured in found:
        assert forecast == f"{forecasts[int(n)]:.2f}"
        assert measured == f"{dict(experiments.measured(4, 1.0))[int(n)]:.2f}"


def test_ratios_fall_with_records_and_epsilon_and_rise_with_parameters(experiments):
    """In the table, where the prior does not dominate."""
    ratios = {key: np.array([r for _, r in line]) for key, line in experiments.lines().items()}
    for (n_dim, epsilon), line in ratios.items():
        assert len(line) == len(experiments.RECORDS)
        if epsilon >= 1:
            assert (np.diff(line) < 0).all()
            assert (line < ratios[n_dim, 0.1]).all()
        if n_dim > 4:
            assert (line > ratios[4, epsilon]).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
def test_a_stored_forecast_can_be_made_again(experiments, stored):
    found = experiments.forecasts(300, 4, n_sets=1)
    assert {epsilon: ratios[0] for epsilon, ratios in stored["300 4"].items()} == pytest.approx(
        {epsilon: ratios[0] for epsilon, ratios in found.items()}, rel=0.02
    )
