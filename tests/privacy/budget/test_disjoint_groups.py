"""Budgets of disjoint groups of records: the account pays the largest cost of a group, whatever the order of claims."""

import math
import pickle

from pathlib import Path

import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp.errors import PrivacyBudgetExhausted, PrivacyLeak
from pymc_dp.privacy import Gaussian, L2Laplace
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.budget import ledger as ledgers
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.draws import check_paid, new_token
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.privacy.budget.report import PrivacyReport
from tests.privacy.budget.test_budget import fixed, varying

DELTA = 1e-6
ACCESS = ((Gaussian(12.0), 1),)


def budget_of(epsilon=1.0, delta=DELTA, chains=1, **kwargs):
    return PrivacyBudget(epsilon, delta, chains=chains, **kwargs)


class TestClaims:
    @pytest.mark.parametrize("accountant", ["best", "gaussian"])
    @pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
    @pytest.mark.parametrize("step", [fixed(), varying()], ids=lambda step: step.label)
    def test_each_group_has_the_whole_budget(self, step, accountant, adjacency):
        whole = budget_of(accountant=accountant, adjacency=adjacency)
        groups = whole.split_by(["a", "b", "c"])
        alone = budget_of(accountant=accountant, adjacency=adjacency)
        for budget in (alone, *groups.values()):
            budget.register(step)
            budget.claim(step.label)
        one = groups["a"]
        assert alone.spent() == one.spent() == whole.spent() <= 1
        assert alone.ledger.spent() == one.ledger.spent() == 1
        assert whole.remaining() == one.remaining() == alone.remaining()
        assert len(one.ledger.claims()) == 3

    def test_plans_are_claimed_at_once_by_each_group(self):
        """Pure DP pays for a whole epsilon in l2 noise, which does not fit one Rényi order; later claims for all do not fit."""
        plan = [(L2Laplace(1.0, 3), 1)]
        groups = budget_of().split_by(["a", "b"])
        for budget in groups.values():
            budget.spend("sum", plan, plan=plan)
        ledger = groups["a"].ledger
        assert ledger.spent() == 1 and groups["a"].report().at_once
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.record(epsilon=1e-4, note="histogram")
        with pytest.raises(PrivacyBudgetExhausted):
            groups["a"].spend("again", plan)

    def test_a_planted_fault_is_found(self, monkeypatch):
        """If each group had a claim of its own, their costs would add up."""
        monkeypatch.setattr(ledgers, "whole_of", lambda budget: budget)
        with pytest.raises(PrivacyBudgetExhausted):
            self.test_each_group_has_the_whole_budget(fixed(), "best", "substitute")

    @given(
        claims=st.lists(
            st.tuples(st.sampled_from(["all", "1a", "1b", "2a", "2b"]), st.floats(10, 90)),
            max_size=20,
        )
    )
    @settings(max_examples=15, deadline=None)
    def test_no_record_exceeds_the_account(self, claims):
        """With two divisions of one account that need not agree: every pair of groups may have a record."""
        ledger = Ledger(epsilon=1.0, delta=DELTA)
        part = {"epsilon": 0.4, "delta": 4e-7, "ledger": ledger}
        budgets = {"all": budget_of(**part)}
        for division in "12":
            for label, budget in budget_of(**part).split_by(["a", "b"]).items():
                budgets[division + label] = budget
        costs = dict.fromkeys(budgets, Cost.of([]))
        for k, (who, noise) in enumerate(claims):
            try:
                budgets[who].spend(str(k), [(Gaussian(noise), 1)])
            except PrivacyBudgetExhausted:
                continue
            costs[who] += Cost.of([(Gaussian(noise), 1)])
        records = [
            costs["all"] + costs["1" + one] + costs["2" + two] for one in "ab" for two in "ab"
        ]
        exact = max(cost.epsilon(DELTA, "gaussian") for cost in records)
        assert exact <= ledger.spent() <= 1 and ledger.n_budgets <= 2


class TestUse:
    def test_containers_of_two_groups_are_compared_and_not_values(self):
        """The same array, or a view of its memory, is refused; equal values elsewhere are not, as that would show a bit of the data."""
        y, groups = np.zeros(8), budget_of().split_by(["a", "b"])
        table = {"x": y}
        groups["a"].spend("sum", ACCESS, (y[:4], table))
        groups["a"].spend("more", ACCESS, (y,))
        for same in (y, y[2:6], y[::2], table):
            for use in (
                lambda same=same: groups["b"].spend("sum", ACCESS, (same,)),
                lambda same=same: groups["b"].register(fixed(), (same,)),
            ):
                with pytest.raises(PrivacyLeak, match="of the group 'b' was already used"):
                    use()
        assert not groups["b"].ledger.claims(groups["b"].id)
        groups["b"].register(fixed(), (np.zeros(8), {"x": y}))
        for values in (y, np.ones(8)):
            groups["b"].spend(f"sum {values[0]}", ACCESS, (values.copy(), dict(table)))
        assert not pickle.loads(pickle.dumps(groups["a"]))._used

    def test_interleaved_rows_are_disjoint(self):
        y, groups = np.zeros(8), budget_of().split_by(["a", "b"])
        groups["a"].spend("sum", ACCESS, (y[::2],))
        groups["b"].spend("sum", ACCESS, (y[1::2],))

    def test_the_divided_budget_pays_for_nothing_else(self):
        whole = budget_of()
        groups = whole.split_by(["a", "b"])
        for use in (
            lambda: whole.spend("sum", ACCESS),
            lambda: whole.register(fixed()),
            whole.report,
            lambda: whole.split_by(["c"]),
        ):
            with pytest.raises(ValueError, match="was divided by split_by"):
                use()
        used = budget_of()
        used.register(fixed())
        spent = budget_of()
        spent.spend("sum", ACCESS)
        for budget in (used, spent, groups["a"]):
            with pytest.raises(ValueError, match="in use already"):
                budget.split_by(["a"])
        assert whole.spent() == 0 and math.isinf(
            budget_of(math.inf).split_by(["a"])["a"].remaining()
        )

    @pytest.mark.parametrize("labels", [[], ["a", "a"], "ab", [1, 2], ["a", ""]], ids=str)
    def test_bad_labels(self, labels):
        with pytest.raises(ValueError, match="groups must be distinct labels"):
            budget_of().split_by(labels)

    def test_copies_are_divided_alike(self):
        """A copy that is spent undivided, or divided among other groups, would have a record pay twice for one claim."""
        whole = budget_of()
        copies = [pickle.loads(pickle.dumps(whole)) for _ in range(4)]
        copies[0].split_by(["a", "b"])["a"].spend("sum", [(Gaussian(20.0), 1)])
        copies[1].split_by(["b", "a"])["b"].spend("sum", [(Gaussian(20.0), 1)])
        for other in (copies[2].split_by(["a", "c"])["a"], copies[3]):
            with pytest.raises(PrivacyBudgetExhausted, match="Another copy of this budget"):
                other.spend("sum", [(Gaussian(20.0), 1)])

    def test_identity(self):
        """A group is the same budget in whichever process the records are divided."""
        whole = budget_of()
        one, other = (pickle.loads(pickle.dumps(whole)).split_by(["a", "b"]) for _ in range(2))
        assert new_token(one["a"].id) > 0 and one["a"].id == other["a"].id != one["b"].id
        one["a"].spend("sum", ACCESS)
        with pytest.raises(PrivacyBudgetExhausted):
            other["a"].spend("sum", ACCESS)
        with pytest.raises(PrivacyLeak, match="another budget"):
            check_paid("start", one["a"].id, one["b"].id)

    @pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
    def test_reports_and_listing(self, tmp_path, adjacency):
        groups = budget_of(ledger=tmp_path / "a.ledger", adjacency=adjacency).split_by(["ward 1", "Süd"])  # fmt: skip
        for budget in groups.values():
            budget.spend("sum", ACCESS)
        report = groups["Süd"].report()
        assert PrivacyReport.from_json(report.to_json()) == report and report.group == "Süd"
        assert "'Süd', one of several disjoint groups of records" in str(report)
        assert ("on this record only, and is public." in str(report)) == (adjacency == "substitute")
        assert report.account_epsilon is None
        listing = " ".join(str(Ledger(Path(groups["Süd"].ledger.path))).split())
        assert "(group 'ward 1')" in listing and "(group 'Süd')" in listing
        assert "group" not in str(budget_of().report())
