"""DPHMC inside ``pm.sample``, and the arguments that it refuses."""

from __future__ import annotations

import copy
import math
import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from pymc_dp import DPHMC, Barker, PrivacyBudget, release
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.randomness.bits import OperatingSystemBits
from pymc_dp.steps import Lazy, Metropolis
from tests.exactness.targets import (
    BANANA,
    compiled_once,
)
from tests.steps.hmc_building import (
    INFINITE,
    PAID,
    PATH,
    paid_step,
    start,
)

# ---------------------------------------------------------------- 5. inside pm.sample

QUIET = {"progressbar": False, "compute_convergence_checks": False, "tune": 0}
HOSTED = {
    "mass_matrix": [400.0], "step_size": 0.8, "n_leapfrog": 2, "clip_bound": 0.05, "gradient_clip_bound": 0.05,
    "gradient_noise_multiplier": 25.0, "max_distance": 4.0,
}  # fmt: skip


def hosted(model, budget, **options):
    return DPHMC(budget=budget, model=model, **HOSTED | options)


def test_stops_when_spent_and_loses_no_draw(normal_model):
    budget = PrivacyBudget(6.0, 1e-5, chains=2)
    step = hosted(normal_model, budget)
    with normal_model:
        idata = pm.sample(draws=2000, chains=2, step=step, callback=budget, cores=1, **QUIET)
    assert idata.posterior.sizes["chain"] == 2
    assert 5 < idata.posterior.sizes["draw"] == min(budget.report().draws) < 2000
    assert not np.any(idata.sample_stats["exhausted"])
    spent = idata.sample_stats["epsilon_spent"].values
    assert np.all(np.diff(spent, axis=1) > 0) and 0.8 * 6 < spent[:, -1].max() <= 6
    assert 0.999 * 6 < budget.spent() <= 6
    public = release(idata, normal_model, budget)
    assert set(public.sample_stats.data_vars) == {
        "accepted", "acceptance_rate", "step_distance", "epsilon_spent"
    }  # fmt: skip
    assert set(public.posterior.data_vars) == {"mu", "squared"}
    assert "Gaussian" in str(budget.report())


def test_statistics_are_the_allowed_ones(normal_model):
    step = hosted(normal_model, PrivacyBudget(6.0, 1e-5, chains=1))
    step.set_rng(np.random.default_rng(1))
    step.stop_tuning()
    _, (statistics,) = step.step(normal_model.initial_point())
    assert set(statistics) == set(DPHMC.stats_dtypes_shapes) == {
        "accepted", "acceptance_rate", "step_distance", "epsilon_spent", "exhausted", "budget_token"
    }  # fmt: skip
    assert isinstance(step._bits, OperatingSystemBits) and not vars(step._bits)


def test_copies_have_no_private_state(normal_model):
    """No records, no gradient, no allowance; a copy claims for itself."""
    budget = PrivacyBudget(6.0, 1e-5, chains=2)
    step = hosted(normal_model, budget)
    step.set_rng(np.random.default_rng(1))
    step.stop_tuning()
    point = {"mu": np.array(1.1)}
    while not step.likelihood._latest._found:
        point, _ = step.step(point)
    assert step._current.gradient is not None
    for twin in (pickle.loads(cloudpickle.dumps(step)), copy.deepcopy(step)):
        assert not twin.likelihood._latest._found
        assert twin._current is None and twin._allocation is None and not twin._opened
        with pytest.raises(AttributeError, match="Build a new step"):
            twin.gradient_clip_bound = 1e3
    assert len(budget.ledger.claims()) == 1
    twin.step(point)
    assert len(budget.ledger.claims()) == 2


def test_what_was_charged_for_cannot_be_changed():
    step = paid_step()
    for name in (
        "budget", "step_size", "n_leapfrog", "clip_bound", "gradient_clip_bound", "gradient_noise_multiplier", "temperature",
        "laziness", "family", "max_distance", "step_size_jitter", "reuse_gradient", "coordinates", "likelihood",
    ):  # fmt: skip
        with pytest.raises(AttributeError, match="Build a new step"):
            setattr(step, name, 1.0)


NAN, INF = math.nan, math.inf
#: An argument, values that are refused, and what the message says; then several arguments together.
NUMBERS = [
    ("step_size", [0.0, NAN, INF], "step_size"),
    ("n_leapfrog", [0], "n_leapfrog"),
    ("step_size_jitter", [1.0, -0.1, NAN], "step_size_jitter"),
    ("max_distance", [0.0, NAN], "max_distance"),
    ("clip_bound", [0.0, NAN], "clip_bound"),
    ("clip_bound", [INF], "decide everything"),
    ("gradient_clip_bound", [0.0, -1.0, NAN], "gradient_clip_bound"),
    ("gradient_clip_bound", [INF], "move a gradient anywhere"),
    ("gradient_noise_multiplier", [0.0], "not private at any epsilon"),
    ("gradient_noise_multiplier", [-1.0, INF, NAN], "noise multiplier"),
    ("gradient_noise_multiplier", [1e7], "at most 1e6"),
    ("rule", [Metropolis()], "refused in a private run"),
    ("rule", [Lazy(Barker(), 0.5)], "laziness=0.5"),
    ("noise_multiplier", [0.0], "positive"),
    ("laziness", [0.0], "laziness"),
    ("temperature", [0.0, 1.5], "temperature"),
    ("record_trajectories", [True], "budget=None"),
    ("blocked", [False], "together"),
    ("mass_matrix", [[1.0], np.ones((2, 3))], r"shape \(2,\)"),
    ("mass_matrix", [[1.0, 0.0]], "positive"),
    ("mass_matrix", [[1.0, NAN]], "positive and finite"),
    ("mass_matrix", [[[1.0, 2.0], [2.0, 1.0]]], "positive definite"),
    ("mass_matrix", [[[1.0, 0.5], [0.2, 1.0]]], "symmetric"),
    ("mass_matrix", [[[1.0, INF], [INF, 1.0]]], "finite"),
]
REFUSED = [
    *(({name: v}, ValueError, match) for name, values, match in NUMBERS for v in values),
    ({"n_leapfrog": 2.5}, TypeError, "integer"),
    ({"rule": Barker}, TypeError, "acceptance rule"),
    ({"rule": Barker(), "noise_multiplier": 2.0}, ValueError, "not both"),
    ({"budget": 1.0}, TypeError, "PrivacyBudget"),
    ({"budget": None, **INFINITE, "gradient_noise_multiplier": 1.0}, ValueError, "infinite gradient_clip_bound"),
    ({"budget": None, "clip_bound": INF, "noise_multiplier": 1.0}, ValueError, "finite clip_bound"),
]  # fmt: skip


def test_refused():
    budget = PrivacyBudget(6.0, 1e-5, chains=1)
    model = BANANA.model()
    with compiled_once(BANANA.name):
        for options, error, match in REFUSED:
            with pytest.raises(error, match=match):
                DPHMC(model=model, **{"budget": budget} | PATH | PAID | options)
    assert not budget.ledger.claims()


def test_budget_without_one_draw_per_chain(normal_model):
    step = hosted(normal_model, PrivacyBudget(0.05, 1e-9, chains=4), clip_bound=5.0)
    with pytest.raises(PrivacyBudgetExhausted, match="fewer than one for each of 4 chains"):
        start(step)
