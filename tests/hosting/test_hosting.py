"""DPPenalty inside pm.sample: one process and several, both hosts; nothing overspent, nothing lost."""

import copy
import logging
import pickle

from collections import Counter

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from pymc_dp import (
    DPPenalty,
    PrivacyBudget,
    RandomWalk,
    release,
    sample,
)
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.accounting.composition import renyi_to_epsilon
from pymc_dp.privacy.mechanisms.mechanism import Decision
from pymc_dp.privacy.randomness.bits import OperatingSystemBits

QUIET = {"progressbar": False, "compute_convergence_checks": False}


def make_step(model, budget, **kwargs):
    options = {"clip_bound": 2.0, "proposal": RandomWalk(0.03), **kwargs}
    return DPPenalty(budget=budget, model=model, **options)


def run(model, budget, step, *, chains=2, draws=3000, tune=0, **kwargs):
    with model:
        return pm.sample(
            draws=draws,
            tune=tune,
            chains=chains,
            step=step,
            callback=budget,
            **{**QUIET, "cores": 1, **kwargs},
        )


def record_charges(monkeypatch):
    """Collect every mechanism that any allowance in this process is asked to pay for."""
    from pymc_dp.privacy.budget.allocation import Allocation

    paid = []
    charge = Allocation.charge

    def spy(self, accesses):
        granted = charge(self, accesses)
        if granted:
            paid.extend(m for m, k in accesses for _ in range(k))
        return granted

    monkeypatch.setattr(Allocation, "charge", spy)
    return paid


def epsilon_paid(paid, budget, delta):
    """Epsilon of all that was paid, composed at the orders of the plan: no less than at the best of all orders, which takes
    many times as long to find.
    """
    orders = sorted({allowance.share.order for allowance in budget.plan().values()})
    total = sum(k * m.renyi(orders) for m, k in Counter(paid).items())
    return min(renyi_to_epsilon(a, t, delta) for a, t in zip(orders, total, strict=True))


@pytest.mark.parametrize(
    "parallel",
    [
        {"cores": 1},
        {"cores": 2, "mp_ctx": "fork"},
        pytest.param({"cores": 2, "mp_ctx": "forkserver"}, marks=pytest.mark.slow),
        pytest.param({"cores": 2, "mp_ctx": "spawn"}, marks=pytest.mark.slow),
    ],
    ids=lambda p: p.get("mp_ctx", "sequential"),
)
def test_stops_when_spent_and_loses_no_draw(normal_model, parallel):
    budget = PrivacyBudget(3.0, 1e-5, chains=2)
    step = make_step(normal_model, budget)
    idata = run(normal_model, budget, step, **parallel)
    draws, expected = idata.posterior.sizes["draw"], budget.expected_draws()
    assert idata.posterior.sizes["chain"] == 2
    assert 0.5 * expected < draws < 1.5 * expected
    assert not np.any(idata.sample_stats["exhausted"])
    assert draws == min(budget.report().draws)
    # The last draw has used up the share, up to one proposal.
    assert float(idata.sample_stats["epsilon_spent"][:, -1].max()) > 0.9 * 3.0
    assert budget.spent() == pytest.approx(3.0, rel=1e-4)
    assert budget.spent() <= 3.0


def test_every_decision_is_paid_and_the_sum_stays_within_the_budget(normal_model, monkeypatch):
    paid = record_charges(monkeypatch)
    budget = PrivacyBudget(3.0, 1e-5, chains=2)
    step = make_step(normal_model, budget)
    evaluations = []
    batch = step.likelihood._batch
    monkeypatch.setattr(batch, "all_records", _Counting(batch.all_records, evaluations))
    run(normal_model, budget, step)
    assert all(isinstance(m, Decision) for m in paid)
    assert 0.9 * 3.0 < epsilon_paid(paid, budget, 1e-5) <= 3.0
    # One evaluation per paid decision, and one for the first state of each chain: the current state is cached.
    assert len(evaluations) == len(paid) + 2
    assert sum(budget.report().draws) == len(paid)


class _Counting:
    """Counts evaluations of all records."""

    def __init__(self, logp, calls):
        self._logp, self._calls = logp, calls

    def __call__(self, theta):
        self._calls.append(theta.copy())
        return self._logp(theta)


def test_after_the_end_the_data_are_not_touched(normal_model, monkeypatch):
    """Calls that PyMC makes beyond the allowance return the point unchanged and never reach the likelihood."""
    budget = PrivacyBudget(1.0, 1e-5, chains=1)
    step = make_step(normal_model, budget)
    calls = []
    batch = step.likelihood._batch
    monkeypatch.setattr(batch, "all_records", _Counting(batch.all_records, calls))
    step.set_rng(np.random.default_rng(1))
    step.stop_tuning()
    point = normal_model.initial_point()
    while True:
        point, stats = step.step(point)
        if stats[0]["exhausted"]:
            break
    n = len(calls)
    assert n > 0
    for _ in range(50):
        again, stats = step.step(point)
        assert again is point and stats[0]["exhausted"] and not stats[0]["accepted"]
    assert len(calls) == n
    with pytest.raises(PrivacyBudgetExhausted, match="callback=budget"):
        for _ in range(2000):
            step.step(point)
    assert len(calls) == n


def test_two_steps_share_a_budget(two_variable_model, monkeypatch):
    paid = record_charges(monkeypatch)
    with two_variable_model as model:
        budget = PrivacyBudget(4.0, 1e-5, chains=2)
        steps = [
            DPPenalty([model["mu"]], budget=budget, clip_bound=1.0, proposal=RandomWalk(0.05)),
            DPPenalty([model["sigma"]], budget=budget, clip_bound=1.0, proposal=RandomWalk(0.05)),
        ]
        assert len(budget.plan()) == 2
        idata = run(model, budget, steps)
    assert 0 < epsilon_paid(paid, budget, 1e-5) <= 4.0
    assert budget.spent() <= 4.0
    assert idata.posterior["sigma"].std() > 0 and idata.posterior["mu"].std() > 0
    assert len(budget.ledger.claims()) == 4
    public = release(idata, model, budget)
    assert set(public.posterior.data_vars) == {"mu", "sigma"}
    assert public.sample_stats["accepted"].shape == (2, idata.posterior.sizes["draw"], 2)


def test_secret_bits_are_not_pickled_or_shared(normal_model):
    budget = PrivacyBudget(2.0, 1e-5, chains=1)
    step = make_step(normal_model, budget)
    assert isinstance(step._bits, OperatingSystemBits)
    assert not vars(step._bits)  # there is no state to copy
    shipped = pickle.loads(cloudpickle.dumps(step))
    assert isinstance(shipped._bits, OperatingSystemBits)
    assert shipped.budget.ledger.path == budget.ledger.path


def test_a_copy_made_in_mid_chain_claims_for_itself(normal_model):
    """Neither pickling nor copying a running step doubles what it may still spend."""
    budget = PrivacyBudget(2.0, 1e-5, chains=2)
    step = make_step(normal_model, budget)
    step.set_rng(np.random.default_rng(1))
    step.stop_tuning()
    point = normal_model.initial_point()
    for _ in range(5):
        step.step(point)
    copies = [pickle.loads(cloudpickle.dumps(step)), copy.deepcopy(step)]
    assert all(c._current is None for c in copies)
    copies[0].step(point)
    assert len(budget.ledger.claims()) == 2
    with pytest.raises(PrivacyBudgetExhausted, match="chains=2"):
        copies[1].step(point)
    with pytest.raises(PrivacyBudgetExhausted, match="claimed nothing"):
        copies[1].transition(np.zeros(1))


def test_progress_columns(normal_model):
    """The bar shows acceptance and the epsilon spent so far, from the statistics of a draw."""
    shown = []

    class Watched(DPPenalty):
        @staticmethod
        def _make_progressbar_update_functions():
            (update,) = DPPenalty._make_progressbar_update_functions()
            return (lambda stats: shown.append(update(stats)) or shown[-1],)

    budget = PrivacyBudget(1.0, 1e-5, chains=1)
    step = Watched(budget=budget, model=normal_model, clip_bound=2.0, proposal=RandomWalk(0.03))
    columns, start = step._progressbar_config(1)
    assert [c.get_table_column().header for c in columns] == ["Accept", "Epsilon"]
    assert set(start) == {"acceptance_rate", "epsilon_spent"}
    idata = run(normal_model, budget, step, chains=1, draws=200, progressbar=True)
    epsilons = [s["epsilon_spent"] for s in shown[: idata.posterior.sizes["draw"]]]
    assert np.array_equal(epsilons, idata.sample_stats["epsilon_spent"].values[0])


class TestSample:
    """dp.sample with a step: run, release."""

    @staticmethod
    def step(model, epsilon=3.0):
        budget = PrivacyBudget(epsilon, 1e-5, chains=2)
        return DPPenalty(budget=budget, model=model, clip_bound=2.0, proposal=RandomWalk(0.03))

    def test_one_call(self, normal_model, caplog):
        with caplog.at_level(logging.INFO, logger="pymc.dp"):
            idata = sample(step=self.step(normal_model), cores=1, **QUIET)
        assert "Plan: about" in caplog.text and "epsilon = 3" in caplog.text
        assert set(idata.posterior.data_vars) == {"mu", "squared"}
        assert float(idata.posterior.attrs["epsilon"]) <= 3.0
        assert float(idata.sample_stats["epsilon_spent"].max()) > 2.8

    def test_the_plan_is_shown_before_any_data_are_touched(self, normal_model, caplog):
        """Should the user stop here, nothing is spent."""
        seen = []

        def stopped(*args, **kwargs):
            seen.append(caplog.text)
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pm, "sample", stopped)
            caplog.set_level(logging.INFO, logger="pymc.dp")
            with pytest.raises(KeyboardInterrupt):
                sample(step=self.step(normal_model))
        assert "draws in each of 2 chains" in seen[0]


class TestBadInput:
    """Each refusal says what was found and what to do."""

    def test_unblocked(self, two_variable_model):
        with pytest.raises(ValueError, match="together"):
            make_step(two_variable_model, PrivacyBudget(1.0, 1e-5, chains=1), blocked=False)

    @pytest.mark.parametrize("name", ["clip_bound", "temperature", "proposal", "budget"])
    def test_what_was_charged_for_cannot_be_changed(self, normal_model, name):
        step = make_step(normal_model, PrivacyBudget(1.0, 1e-5, chains=1))
        with pytest.raises(AttributeError, match="Build a new step"):
            setattr(step, name, 100.0)
        shipped = pickle.loads(cloudpickle.dumps(step))
        with pytest.raises(AttributeError, match="Build a new step"):
            setattr(shipped, name, 100.0)


def test_a_likelihood_that_shows_its_errors_is_refused(normal_model):
    from pymc_dp.model import RecordLikelihood

    shown = RecordLikelihood(normal_model, private=False)
    with pytest.raises(ValueError, match="private=False"):
        DPPenalty(
            budget=PrivacyBudget(1.0, 1e-6, chains=1), clip_bound=1.0, proposal=RandomWalk(0.1),
            model=normal_model, likelihood=shown,
        )  # fmt: skip
