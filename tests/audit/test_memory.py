"""Reports of several budgets in one program, whatever their data, and what was spent is not lost in an exception."""

from __future__ import annotations

import functools
import math

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp

from pymc_dp import PrivacyBudget, PrivacyReport, RandomWalk, release, sample
from pymc_dp.errors import WeakGuaranteeWarning
from tests.exactness.targets import compiled_once

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.filterwarnings("error::pymc_dp.errors.PrivacyLeakWarning"),
]

Y = np.random.default_rng(5).normal(0.5, 1.0, 300)
STEP = {"clip_bound": 1.0, "proposal": RandomWalk(0.05)}
QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1}


def one_mean(y=Y):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 5), 1.0, observed=y)
    return model


@pytest.fixture(scope="module")
def model():
    model = one_mean()
    with compiled_once("memory", only=model):
        yield model


def step_on(model, epsilon=1.0, chains=1, **options):
    budget = PrivacyBudget(epsilon, 1e-6, chains=chains, **options)
    return budget, dp.DPPenalty(budget=budget, model=model, **STEP)


def run(model, budget, step, cores=1):
    return pm.sample(
        10, tune=0, chains=budget.chains, step=step, callback=budget, model=model, **(QUIET | {"cores": cores, "random_seed": 1})
    )  # fmt: skip


# ---------------------------------------------------------------- several budgets


def test_line_2_three_budgets(model):
    """All are counted, also if worker processes claimed, and if their data are others."""
    budgets = []
    for _ in range(3):
        budget, step = step_on(model, chains=2)
        idata = run(model, budget, step, cores=2)
        budgets.append(budget)
    for budget in budgets:
        assert budget.report().budgets_without_ledger == 3 and budget.report().epsilon <= 1.0
    report = PrivacyReport.of(release(idata, model, budgets[2]))
    assert report.budgets_without_ledger == 3
    assert "opened 3 budget(s) without a ledger file" in " ".join(str(report).split())


def test_published_reports_do_not_show_folders(model, tmp_path):
    """They used to hold the ledger's absolute path."""
    budget, step = step_on(model, ledger=tmp_path / "ward.ledger")
    public = release(run(model, budget, step), model, budget)
    assert PrivacyReport.of(public).ledger == "ward.ledger"
    for text in (public.attrs["privacy_report"], str(budget.report()), budget.report().to_html()):
        assert str(tmp_path) not in text and tmp_path.name not in text and "ward.ledger" in text


# ---------------------------------------------------------------- exceptions


def test_an_interruption_in_sample_leaves_its_budget(model, monkeypatch):
    """A second call used to report epsilon = 1, and nothing of the first."""

    @functools.wraps(pm.sample)
    def interrupted(*args, step, **kwargs):
        step.budget.claim(step.label, step.token)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pm, "sample", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            sample(step=step_on(model)[1], **QUIET)
    assert 0.7 < caught.value.budget.spent() <= 1.0
    public = sample(step=step_on(model)[1], **QUIET)
    assert PrivacyReport.of(public).budgets_without_ledger == 2


def test_wrong_arguments_leave_their_budget(model):
    with pytest.raises(ValueError, match="pays for") as caught:
        sample(step=step_on(model)[1], draws=10**6)
    assert caught.value.budget.epsilon == 1.0 and caught.value.budget.spent() == 0.0


# ---------------------------------------------------------------- guarantees that protect hardly anybody


@pytest.mark.filterwarnings("error::pymc_dp.errors.WeakGuaranteeWarning")
class TestWeakGuarantees:
    def test_a_large_epsilon(self):
        PrivacyBudget(20.0, 1e-6, chains=1)
        PrivacyBudget(math.inf, 1e-6, chains=1)  # which is not protected, and says so
        with pytest.warns(WeakGuaranteeWarning, match=r"epsilon = 30 is above 20.*factor e\^30"):
            budget = PrivacyBudget(30.0, 1e-6, chains=1)
        assert "WEAK EPSILON" in str(budget.report())

    def test_a_large_delta(self, model):
        def report(delta):
            budget = PrivacyBudget(1.0, delta, chains=1)
            dp.DPPenalty(budget=budget, model=model, **STEP)
            return str(budget.report())

        assert "WEAK DELTA" not in report(0.99 / 300)
        with pytest.warns(WeakGuaranteeWarning, match="delta = 0.00333333 is not below 1 / .* one whole record"):  # fmt: skip
            assert "WEAK DELTA" in report(1 / 300)
        plan = dp.plan(epsilon=1.0, delta=1 / 300, model=model)
        assert "Note: delta = 0.00333333 is not below" in str(plan)

    def test_persons_count(self, model):
        """With records= it is they who are counted."""
        budget = PrivacyBudget(1.0, 1 / 50, chains=1)
        with pytest.warns(WeakGuaranteeWarning):
            dp.DPPenalty(budget=budget, model=one_mean(), records=np.arange(300) // 6, **STEP)

    def test_a_private_number_of_records_is_not_shown_and_others_once(self, model):
        budget = PrivacyBudget(1.0, 0.1, chains=1, adjacency="add_remove")
        dp.DPPenalty(budget=budget, model=model, **STEP)
        budget = PrivacyBudget(1.0, 0.1, chains=1)
        with pytest.warns(WeakGuaranteeWarning) as caught:
            for _ in range(3):
                dp.DPPenalty(budget=budget, model=model, **STEP)
        assert len(caught) == 1
