"""Pictures of plans, by the data in their artists."""

import numpy as np
import pytest

from pymc_dp import DPPenalty
from pymc_dp.blind_plans import Candidate
from pymc_dp.plan_plots import plot_plan
from pymc_dp.surrogate_plans import SurrogateChoice, SurrogatePlan
from pymc_dp.tuning import Plan

TERMS = {"chains": 2, "epsilon": 1.0, "delta": 1e-6, "n_records": 1000, "position": {}}


@pytest.fixture
def plt():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


def surrogate_plan():
    def choice(part, noise, effective):
        return SurrogateChoice(2.0, 0.05, 0.99, 1.5, part, noise, 0.04, 100.0, effective)

    choices = (choice(0.8, 0.03, 400.0), choice(0.1, 0.3, 1600.0))
    return SurrogatePlan(choices=choices, **TERMS)


def penalty_plan():
    def candidate(length, bias, effective):
        return Candidate("local", length, 2.0, 0.5, 1.0, 0.01, 0.2, 100.0, effective, bias)

    candidates = (candidate(0.7, 0.05, 100.0), candidate(0.2, 0.3, 25.0))
    return Plan(
        step=DPPenalty, settings={}, chosen=candidates[0], candidates=candidates, notes=(), **TERMS
    )


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (surrogate_plan(), [[0.05, 0.05], [0.025, np.hypot(0.3, 0.04)]]),
        (penalty_plan(), [[0.1, 0.05], [0.2, 0.3]]),
    ],
    ids=["surrogate", "penalty"],
)
def test_what_is_drawn(plt, plan, expected):
    _, mine = plt.subplots()
    ax = plot_plan(plan, ax=mine)
    assert ax is mine
    dots, ring = ax.collections
    np.testing.assert_allclose(dots.get_offsets(), expected)
    np.testing.assert_allclose(ring.get_offsets(), expected[:1])
    # The inner circle goes through what was chosen, which is what its error means.
    x, y = ax.get_lines()[0].get_data()
    np.testing.assert_allclose(np.hypot(x, y), np.hypot(*expected[0]))
    assert plot_plan(plan) is not mine
