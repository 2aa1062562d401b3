"""Barker's test and the samplers on batches inside pm.sample: nothing overspent, nothing lost, nothing else released."""

import math

import numpy as np
import pytest

from pymc_dp import (
    DPBarker,
    DPFastMH,
    DPPenalty,
    Penalty,
    PrivacyBudget,
    RandomWalk,
    release,
    sample,
)
from pymc_dp.privacy.accounting.composition import renyi_to_epsilon
from pymc_dp.privacy.mechanisms.poisson_minibatch import PoissonMinibatchDecision
from pymc_dp.privacy.mechanisms.subsampled import SampledDecision
from tests.hosting.test_hosting import QUIET, record_charges, run

BOUND = 2.0
#: 400 records around 1 with sd 1: a short walk for those on batches.
SHORT = RandomWalk(0.01, max_distance=0.02)
STEPS = {
    "Barker": (DPBarker, {"proposal": RandomWalk(0.01)}),
    "Barker on batches": (DPBarker, {"proposal": SHORT, "batch_size": 300}),
    "penalty on batches": (DPPenalty, {"proposal": SHORT, "batch_size": 150, "laziness": 0.5}),
    "DP-Fast MH": (DPFastMH, {"proposal": SHORT, "batch_rate": 40.0}),
    "DP-Fast MH, lazy penalty": (DPFastMH, {"proposal": SHORT, "batch_rate": 40.0, "rule": Penalty(2.0)}),
    "DP-Fast MH, full batch": (DPFastMH, {"proposal": RandomWalk(0.01), "full_batch_at": 1}),
}  # fmt: skip
EPSILON, DELTA = 1.5, 1e-5


def make(name, model, budget):
    step, options = STEPS[name]
    return step(budget=budget, model=model, clip_bound=BOUND, **options)


def check_run(idata, budget):
    """Raise unless the budget ended the run, all draws are there, and the report stays within epsilon."""
    report, draws = budget.report(), idata.posterior.sizes["draw"]
    assert idata.posterior.sizes["chain"] == 2
    assert draws == min(report.draws)
    assert 0.5 * budget.expected_draws() < draws < 1.5 * budget.expected_draws() + 50
    assert not np.any(idata.sample_stats["exhausted"])
    assert float(idata.sample_stats["epsilon_spent"].max()) > 0.9 * EPSILON
    assert report.epsilon <= EPSILON and report.protected and report.secret_randomness
    assert budget.spent() == pytest.approx(EPSILON, rel=1e-4)
    assert budget.spent() <= EPSILON


PUBLIC = {"accepted", "acceptance_rate", "step_distance", "epsilon_spent"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["Barker on batches", "penalty on batches", "DP-Fast MH, lazy penalty"]
)
def test_stops_when_spent_and_loses_no_draw(normal_model, name, monkeypatch):
    """In one process; the sum of what was charged stays within epsilon; what is released is allowed."""
    paid = record_charges(monkeypatch)
    budget = PrivacyBudget(EPSILON, DELTA, chains=2)
    step = make(name, normal_model, budget)
    idata = run(normal_model, budget, step, draws=20_000)
    check_run(idata, budget)
    assert sum(budget.report().draws) == len(paid)
    order = budget.plan()[step.label].share.order
    total = sum(paid.count(m) * float(m.renyi([order])[0]) for m in set(paid))
    assert 0.9 * EPSILON < renyi_to_epsilon(order, total, DELTA) <= EPSILON
    kind = {"batches": SampledDecision, "MH": PoissonMinibatchDecision, "penalty": PoissonMinibatchDecision}.get(name.split()[-1])  # fmt: skip
    assert kind is None or all(isinstance(m, kind) for m in paid)
    assert idata.sample_stats["accepted"].values.any()
    public = release(idata, normal_model, budget)
    assert set(public.posterior.data_vars) == {"mu", "squared"}
    assert set(public.sample_stats.data_vars) == PUBLIC
    assert public.posterior.sizes["draw"] == idata.posterior.sizes["draw"]
    assert float(public.posterior.attrs["epsilon"]) <= EPSILON


def test_one_call(normal_model):
    """dp.sample runs a step on its budget, and releases."""
    kind, options = STEPS["DP-Fast MH"]
    budget = PrivacyBudget(EPSILON, DELTA, chains=2)
    step = kind(budget=budget, model=normal_model, clip_bound=BOUND, **options)
    idata = sample(step=step, cores=1, **QUIET)
    assert float(idata.posterior.attrs["epsilon"]) <= EPSILON
    assert 0.9 * EPSILON < float(idata.sample_stats["epsilon_spent"].max()) <= EPSILON
    assert set(idata.sample_stats.data_vars) == PUBLIC
    assert set(idata.posterior.data_vars) == {"mu", "squared"}


def test_cost_follows_the_distance_and_not_the_data(normal_model):
    """Charges are a function of the public distances of the run."""
    budget = PrivacyBudget(EPSILON, DELTA, chains=1)
    step = make("DP-Fast MH", normal_model, budget)
    idata = run(normal_model, budget, step, chains=1, draws=20_000)
    share = budget.plan()[step.label].share
    distances = idata.sample_stats["step_distance"].values[0]
    cost = sum(float(step.family.at(d).renyi([share.order])[0]) for d in distances)
    # The next proposal was too long for what was left.
    assert cost <= share.rho < cost + float(step.family.at(0.02).renyi([share.order])[0])


def test_expected_batch(normal_model):
    """Records looked at, as expected from public distances: what batches save, without saying how many there were."""
    budget = PrivacyBudget(math.inf, DELTA, chains=1)
    step = make("DP-Fast MH", normal_model, budget)
    expected = step.expected_batch([0.0, 0.001, 0.01, 0.1])
    assert expected[0] == 0
    np.testing.assert_allclose(expected[1:], [40.8, 48.0, 120.0])
    assert make("DP-Fast MH, full batch", normal_model, budget).expected_batch(0.01) == 400
