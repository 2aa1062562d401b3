"""Budgets of disjoint groups of records: the account pays the largest cost of a group, whatever the order of claims."""

import itertools
import math
import pickle

from pathlib import Path

import pytest

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pymc_dp.errors import PrivacyBudgetExhausted, PrivacyLeak
from pymc_dp.privacy import Gaussian, L2Laplace
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.budget import accounts
from pymc_dp.privacy.budget.binding import check_paid, new_token
from pymc_dp.privacy.budget.budget import PrivacyBudget
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
    def test_each_group_has_the_whole_budget(self, accountant, adjacency):
        whole = budget_of(accountant=accountant, adjacency=adjacency)
        groups = whole.split_by(["a", "b", "c"])
        alone = budget_of(accountant=accountant, adjacency=adjacency)
        for budget in (alone, *groups.values()):
            budget.register(fixed())
            budget.claim(fixed().label)
        one = groups["a"]
        assert alone.spent() == one.spent() == whole.spent() <= 1
        assert alone.ledger.spent() == one.ledger.spent() <= 1
        assert whole.remaining() == one.remaining() == alone.remaining()
        assert len(one.ledger.claims()) == 3

    def test_a_group_stays_within_its_budget(self):
        groups = budget_of().split_by(["a", "b"])
        for k in itertools.count():
            try:
                groups["a"].spend(f"sum {k}", ACCESS)
            except PrivacyBudgetExhausted:
                break
        alone = budget_of()
        for i in range(k):
            alone.spend(f"sum {i}", ACCESS)
        with pytest.raises(PrivacyBudgetExhausted):
            alone.spend("more", ACCESS)
        groups["b"].spend("sum", ACCESS)
        assert groups["b"].spent() < groups["a"].spent() == groups["a"].ledger.spent()

    def test_of_larger_accounts_the_rest_is_for_all(self, tmp_path):
        """What is claimed for all records adds up with the largest group."""
        account = Ledger(tmp_path / "a.ledger", epsilon=2.0, delta=DELTA)
        groups = budget_of(1.0, ledger=account).split_by(["a", "b"])
        for k in range(3):
            groups["a"].spend(f"{k}", ACCESS)
        groups["b"].spend("sum", ACCESS)
        account.record(mu=0.1, note="histogram")
        expected = Cost.of([(Gaussian(12.0), 3), (Gaussian(10.0), 1)])
        assert account.spent() == account.account.adaptive.holds(expected)
        limit = account.account.adaptive.left(expected) / account.account.adaptive.price(Gaussian(12.0))  # fmt: skip
        other = budget_of(2.0, ledger=account)
        with pytest.raises(PrivacyBudgetExhausted, match="The account allows"):
            other.spend("sums", [(Gaussian(12.0), math.floor(limit) + 1)])
        other.spend("sums", [(Gaussian(12.0), math.floor(limit))])
        with pytest.raises(PrivacyBudgetExhausted, match="The account allows"):
            groups["a"].spend("too much", ACCESS)
        groups["b"].spend("more", ACCESS)

    def test_plans_are_claimed_at_once_by_each_group(self):
        """Pure DP pays for a whole epsilon in l2 noise, which does not fit one Rényi order; later claims for all do not fit."""
        plan = [(L2Laplace(1.0, 3), 1)]
        groups = budget_of().split_by(["a", "b"])
        for budget in groups.values():
            budget.spend("sum", plan, plan=plan)
        ledger = groups["a"].ledger
        assert 0.99 < ledger.spent() <= 1 and groups["a"].report().at_once
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.record(mu=1e-4, note="histogram")
        with pytest.raises(PrivacyBudgetExhausted):
            groups["a"].spend("again", plan)

    def test_a_plan_for_all_closes_every_group(self):
        plan = [(L2Laplace(1.0, 3), 1)]
        whole = budget_of()
        groups = whole.split_by(["a", "b"])
        budget_of(ledger=whole.ledger).spend("sum", plan, plan=plan)
        with pytest.raises(PrivacyBudgetExhausted):
            groups["b"].spend("sum", [(Gaussian(1e4), 1)])

    def test_chains_with_shares(self):
        groups = budget_of(chains=2).split_by(["a", "b"])
        for budget in groups.values():
            budget.register(varying())
            budget.check_number_of_chains(varying().label, 2)
            for _ in range(2):
                budget.claim(varying().label)
            with pytest.raises(PrivacyBudgetExhausted):
                budget.claim(varying().label)
        assert groups["a"].ledger.spent() == pytest.approx(1, rel=1e-5)

    def test_a_planted_fault_is_found(self, monkeypatch):
        """If groups were not told apart their costs would add up."""
        monkeypatch.setattr(accounts, "_apart", lambda one, other: False)
        with pytest.raises(PrivacyBudgetExhausted):
            self.test_each_group_has_the_whole_budget("best", "substitute")

    @given(
        claims=st.lists(
            st.tuples(st.sampled_from(["all", "1a", "1b", "2a", "2b"]), st.floats(4, 40)),
            max_size=20,
        )
    )
    @example([("all", 4.5)])
    @settings(max_examples=15, deadline=None)
    def test_no_record_exceeds_the_account(self, claims):
        """With two divisions of one account that need not agree: every pair of groups may have a record."""
        ledger = Ledger(epsilon=1.0, delta=DELTA)
        budgets = {"all": budget_of(ledger=ledger)}
        for division in "12":
            for label, budget in budget_of(ledger=ledger).split_by(["a", "b"]).items():
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
        exact, adaptive = (
            max(map(of, records))
            for of in (lambda cost: cost.epsilon(DELTA, "gaussian"), ledger.account.adaptive.holds)
        )
        # A claim that fits only as a whole plan, by the exact accountant, is the last one.
        assert exact <= 1 and exact * (1 - 1e-9) <= ledger.spent()
        assert adaptive > 1 or ledger.spent() >= adaptive


class TestUse:
    def test_data_of_two_groups_are_refused(self):
        groups = budget_of().split_by(["a", "b"])
        groups["a"].spend("sum", ACCESS, (b"x", b"y"))
        groups["a"].spend("more", ACCESS, (b"x",))
        for use in (
            lambda: groups["b"].spend("sum", ACCESS, (b"z", b"y")),
            lambda: groups["b"].register(fixed(data_keys=(b"x",))),
        ):
            with pytest.raises(PrivacyLeak, match="Data of the group 'b' were already used"):
                use()
        assert not groups["b"].ledger.claims(groups["b"].id)
        groups["b"].spend("sum", ACCESS, (b"w",))

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

    def test_identity(self):
        groups = budget_of().split_by(["a", "b"])
        one, other = groups["a"], groups["b"]
        assert new_token(one.id) > 0 and one.id != other.id
        with pytest.raises(PrivacyLeak, match="another budget"):
            check_paid("start", one.id, other.id)
        copy = pickle.loads(pickle.dumps(one))
        assert copy.id == one.id and copy.group == "a"

    @pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
    def test_reports_and_listing(self, tmp_path, adjacency):
        groups = budget_of(ledger=tmp_path / "a.ledger", adjacency=adjacency).split_by(["ward 1", "Süd"])  # fmt: skip
        for budget in groups.values():
            budget.spend("sum", ACCESS)
        report = groups["Süd"].report()
        assert PrivacyReport.from_json(report.to_json()) == report and report.group == "Süd"
        assert "'Süd', one of several disjoint groups of records" in str(report)
        assert ("on this record only, and is public." in str(report)) == (adjacency == "substitute")
        assert report.account_epsilon == report.epsilon
        listing = str(Ledger(Path(groups["Süd"].ledger.path)))
        assert "(group 'ward 1')  sum" in listing and "(group 'Süd')  sum" in listing
        assert "group" not in str(budget_of().report())
