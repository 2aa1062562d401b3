"""Budgets on the same data in one program know of each other, and what was spent is not lost in an exception."""

from __future__ import annotations

import functools
import math
import pickle
import warnings

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp

from pymc_dp import Ledger, PrivacyBudget, PrivacyReport, RandomWalk, release, sample
from pymc_dp.errors import PrivacyLeakWarning, WeakGuaranteeWarning
from pymc_dp.model.data_keys import data_keys
from pymc_dp.privacy import Gaussian
from pymc_dp.privacy.budget import memory
from tests.exactness.targets import compiled_once

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.filterwarnings("error::pymc_dp.errors.PrivacyLeakWarning"),
]

Y = np.random.default_rng(5).normal(0.5, 1.0, 300)
STEP = {"clip_bound": 1.0, "proposal": RandomWalk(0.05)}
QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1}
SOLD = ((Gaussian(5.0), 1),)


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


@pytest.mark.parametrize("cores", [1, 2])
def test_three_budgets_on_the_same_data(model, cores):
    """They used to report epsilon = 1 each, and nothing of the others; also if worker processes claimed."""
    first, step = step_on(model, chains=2)
    run(model, first, step, cores)
    with pytest.warns(PrivacyLeakWarning, match=r"^1 other budget.*one ledger file"):
        second, step = step_on(model, chains=2)
    run(model, second, step, cores)
    with pytest.warns(PrivacyLeakWarning, match=r"^2 other budget"):
        third, step = step_on(model, chains=2)
    idata = run(model, third, step, cores)
    budgets = (first, second, third)
    total = sum(budget.spent() for budget in budgets)  # basic composition: deltas add up, too
    assert 2.4 < total <= 3.0
    for budget in budgets:
        report = budget.report()
        assert report.epsilon <= 1.0
        assert report.other_budgets == 2 and report.total_epsilon == pytest.approx(total)
        assert report.total_delta == pytest.approx(3e-6)
        assert f"epsilon = {total:.4g} at delta = 3e-06" in str(report)
    public = release(idata, model, third)
    assert PrivacyReport.of(public).total_epsilon == pytest.approx(total)


def test_budgets_that_were_made_before_any_was_spent(model):
    """They are found when the second one is going to be."""
    (first, one), (second, two) = step_on(model), step_on(model)
    run(model, first, one)
    with pytest.warns(PrivacyLeakWarning, match="^1 other budget"):
        run(model, second, two)
    assert first.report().other_budgets == second.report().other_budgets == 1


def test_one_file_by_two_names_is_one_ledger(model, tmp_path):
    path, other = tmp_path / "a.ledger", tmp_path / "link.ledger"
    first, step = step_on(model, ledger=Ledger(path, epsilon=3.0, delta=1e-6))
    run(model, first, step)
    other.symlink_to(path)
    second, _ = step_on(model, ledger=other)
    assert second.report().other_budgets == 0


def test_it_warns_once(model):
    first, _ = step_on(model)
    first.spend("something", SOLD, data_keys(model))
    with pytest.warns(PrivacyLeakWarning) as caught:
        budget, _ = step_on(model)
        budget.spend("another", SOLD, data_keys(model))
        dp.DPPenalty(budget=budget, model=model, **STEP)
    assert [str(w.message)[:14] for w in caught].count("1 other budget") == 1


def test_budgets_without_claims_are_not_counted(model):
    for _ in range(3):
        budget, _ = step_on(model)
    assert budget.report().other_budgets == 0 and budget.report().total_epsilon is None


def test_a_start_on_another_budget(model):
    """Not only steps spend."""
    budget = PrivacyBudget(1.0, 1e-6, chains=1)
    budget.spend("first", SOLD, data_keys(model))
    with pytest.warns(PrivacyLeakWarning, match="^1 other budget"):
        PrivacyBudget(1.0, 1e-6, chains=1).spend("second", SOLD, data_keys(model))


def test_one_ledger_needs_no_warning(model, tmp_path):
    """Its account adds up; the report names the total, and the file without its folder."""
    ledger = Ledger(tmp_path / "ward.ledger", epsilon=3.0, delta=1e-6)
    for _ in range(2):
        budget, step = step_on(model, ledger=ledger)
        idata = run(model, budget, step)
    report = PrivacyReport.of(release(idata, model, budget))
    assert report.other_budgets == 0 and report.total_epsilon is None
    assert report.account_epsilon == pytest.approx(ledger.spent()) and ledger.spent() > 1.2
    assert f"together: epsilon = {ledger.spent():.4g}" in str(report)


def test_published_reports_do_not_show_folders(model, tmp_path):
    """They used to hold the ledger's absolute path."""
    budget, step = step_on(model, ledger=tmp_path / "ward.ledger")
    public = release(run(model, budget, step), model, budget)
    assert PrivacyReport.of(public).ledger == "ward.ledger"
    for text in (public.attrs["privacy_report"], str(budget.report()), budget.report().to_html()):
        assert str(tmp_path) not in text and tmp_path.name not in text and "ward.ledger" in text


def test_other_data_are_other_data(model):
    budget, step = step_on(model)
    run(model, budget, step)
    step_on(one_mean(Y + 1.0))
    step_on(one_mean(Y[:200]))
    assert data_keys(one_mean(Y.copy())) == data_keys(model) != data_keys(one_mean(-Y))


def test_covariates_are_data_too():
    """Two outcomes of the same people, by their covariates."""

    def model_of(y, public=()):
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("b") * Y, 1.0, observed=y)
        budget, access = PrivacyBudget(1.0, 1e-6, chains=1), dp.RandomWalk(0.1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step = dp.DPPenalty(budget=budget, clip_bound=1.0, proposal=access, model=model, public=public)  # fmt: skip
            budget.spend("first", SOLD, step.likelihood.data_keys)
        return [str(w.message) for w in caught if issubclass(w.category, PrivacyLeakWarning)]

    outcomes = np.random.default_rng(9).normal(size=(4, len(Y)))
    assert not model_of(outcomes[0])
    assert any("1 other budget" in message for message in model_of(outcomes[1]))
    # Control: public covariates do not identify a data set.
    memory.forget()
    assert not model_of(outcomes[2], [Y]) and not model_of(outcomes[3], [Y])


def test_patterns_are_not_data():
    """Models that observe zeros, as a trick, have nothing in common."""
    assert data_keys(one_mean(np.zeros(50))) == ()


def test_another_model_of_the_same_data(model):
    budget, step = step_on(model)
    run(model, budget, step)
    with pm.Model() as other:
        pm.StudentT(
            "again", nu=4.0, mu=pm.Normal("centre", 0, 5), sigma=1.0, observed=pm.Data("values", Y)
        )
    with pytest.warns(PrivacyLeakWarning, match="^1 other budget"):
        step_on(other)


def test_infinite_and_incomparable_budgets(model):
    budget = PrivacyBudget(1.0, 1e-6, chains=1, adjacency="add_remove")
    budget.spend("first", SOLD, data_keys(model))
    with pytest.warns(PrivacyLeakWarning, match="for another adjacency"):
        second, _ = step_on(model)
    assert second.report().other_budgets == 1 and second.report().total_epsilon is None
    memory.forget()
    run(model, *(endless := step_on(model, math.inf)))
    with pytest.warns(PrivacyLeakWarning, match="there is no bound on the cost"):
        third, _ = step_on(model)
    report = third.report()
    assert endless[0].report().protected is False
    assert PrivacyReport.from_json(report.to_json()) == report and report.total_epsilon == math.inf


def test_a_ledger_that_was_removed_is_still_spent(model, tmp_path):
    budget, step = step_on(model, ledger=tmp_path / "a.ledger")
    run(model, budget, step)
    (tmp_path / "a.ledger").unlink()
    with pytest.warns(PrivacyLeakWarning, match="there is no bound on the cost"):
        other, _ = step_on(model)
    assert other.report().total_epsilon == math.inf


def test_deleted_budgets_are_counted(model):
    """Its temporary ledger lasts as long as the program."""
    budget = PrivacyBudget(1.0, 1e-6, chains=1)
    budget.spend("first", SOLD, data_keys(model))
    spent = budget.spent()
    del budget
    with pytest.warns(PrivacyLeakWarning, match=f"epsilon = {spent:.4g} at delta = 1e-06"):
        step_on(model)


def test_keys_show_no_data(model):
    """They are made with a key of the process, which is in no pickle."""
    from pymc_dp.model.data_keys import _SECRET

    _, step = step_on(model)
    raw = cloudpickle.dumps(step)
    assert pickle.loads(raw).likelihood.data_keys == data_keys(model)
    assert _SECRET not in raw


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
    with pytest.warns(PrivacyLeakWarning, match="^1 other budget"):
        public = sample(step=step_on(model)[1], **QUIET)
    report = PrivacyReport.of(public)
    assert report.other_budgets == 1
    assert max(report.epsilon, caught.value.budget.spent()) < report.total_epsilon < 2.0


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

    def test_persons_count(self, model):
        """With records= it is they who are counted."""
        budget = PrivacyBudget(1.0, 1 / 50, chains=1)
        with pytest.warns(WeakGuaranteeWarning):
            dp.DPPenalty(budget=budget, model=one_mean(), records=np.arange(300) // 6, **STEP)

    def test_a_private_number_of_records_is_not_shown(self, model):
        budget = PrivacyBudget(1.0, 0.1, chains=1, adjacency="add_remove")
        dp.DPPenalty(budget=budget, model=model, **STEP)

    def test_it_is_said_once(self, model):
        budget = PrivacyBudget(1.0, 0.1, chains=1)
        with pytest.warns(WeakGuaranteeWarning) as caught:
            for _ in range(3):
                dp.DPPenalty(budget=budget, model=model, **STEP)
        assert len(caught) == 1
