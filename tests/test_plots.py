"""Plots of plans, by the data in their artists."""

import sys

import numpy as np
import pytest

from pymc_dp import DPPenalty, Plan, PrivacyBudget
from pymc_dp.checks import CheckedStatistic, PrivatePPC
from pymc_dp.planning import Candidate, Forecast
from pymc_dp.plots import plot_plan, plot_ppc
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw


@pytest.fixture
def plt():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


def plan(step, *forecasts):
    """A plan with these forecasts: bias and effective draws."""
    candidates = tuple(
        Candidate({"k": k}, Forecast(100.0, effective, 0.05, bias))
        for k, (bias, effective) in enumerate(forecasts)
    )
    return Plan(
        step=step, budget=PrivacyBudget(1.0, 1e-6, chains=2), simulator=None, candidates=candidates,
        chosen=candidates[0], settings={}, position={}, notes=(),
    )  # fmt: skip


def test_what_is_drawn(plt):
    drawn, expected = plan(DPPenalty, (0.05, 100.0), (0.3, 25.0)), [[0.1, 0.05], [0.2, 0.3]]
    _, mine = plt.subplots()
    ax = plot_plan(drawn, ax=mine)
    assert ax is mine
    dots, ring = ax.collections
    np.testing.assert_allclose(dots.get_offsets(), expected)
    np.testing.assert_allclose(ring.get_offsets(), expected[:1])
    # The inner circle goes through the chosen candidate, at its error.
    x, y = ax.get_lines()[0].get_data()
    np.testing.assert_allclose(np.hypot(x, y), np.hypot(*expected[0]))
    assert plot_plan(drawn) is not mine


def test_without_matplotlib(monkeypatch):
    for name in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="'plots'"):
        plot_plan(plan(DPPenalty, (0.05, 100.0)))


def test_a_check_is_drawn(plt):
    """Intervals with and without noise, and released values, in red where they are outside."""
    rng = np.random.default_rng(1)
    counts = CheckedStatistic("bins", ("a", "b"), np.array([100.0, 250.0]), 100 + 5 * rng.normal(size=(4000, 2)), np.full(2, 4.0), 0.01)  # fmt: skip
    mean = CheckedStatistic("mean", ("mean",), np.array([1.0]), 1 + rng.normal(size=(4000, 1)), np.array([0.6]), 0.9)  # fmt: skip
    axes = plot_ppc(PrivatePPC((counts, mean), NoiseLaw("gaussian", 4.0, 3), 1000, None))
    light, dark = (np.diff([s[:, 1] for s in c.get_segments()]) for c in axes[0].collections[:2])
    assert light == pytest.approx(np.full((2, 1), 2 * 1.645 * 5), rel=0.06)
    assert dark == pytest.approx(np.full((2, 1), 2 * 1.645 * 3), rel=0.06)
    dots = axes[0].collections[2]
    assert np.asarray(dots.get_offsets())[:, 1] == pytest.approx([0, 150], abs=1)
    assert (dots.get_facecolors()[0] != dots.get_facecolors()[1]).any()
    assert axes[1].get_title() == "mean (p = 0.9)"
    with pytest.raises(ValueError, match="must be 2"):
        plot_ppc(PrivatePPC((counts, mean), NoiseLaw("gaussian", 4.0, 3), 1000, None), axes=axes[0])
