"""PrivacyBudget without PyMC: sharing out, stopping, reporting."""

import json
import math
import pickle

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp.acceptance import Barker, Penalty
from pymc_dp.errors import PrivacyBudgetExhausted, PrivacyLeak
from pymc_dp.privacy.accounting.calibration import MOST_SCHEDULED, epsilon_of, max_draws
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.budget.allocation import allocate
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.claims import BudgetTerms, StepAccess
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privacy.mechanisms.mechanism import Decision, Gaussian
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalDecision

#: Few: each has its own cost, which takes milliseconds to find.
DISTANCES = tuple(np.random.default_rng(0).rayleigh(0.02, size=50).tolist())


def fixed(label="A[x]", variables=("x",), sensitivity=0.05, **kwargs):
    return access(((Decision(Barker(), sensitivity), 1),), label, variables, **kwargs)


def varying(label="B[x]", variables=("x",), **kwargs):
    return access(
        ((PerProposalDecision(2.0, Penalty(1.4), None, 1.0, DISTANCES), 1),),
        label,
        variables,
        **kwargs,
    )


def access(
    mechanisms, label, variables, everything=None, model=1, n_records=1000, secret=True, **kwargs
):
    return StepAccess(
        label, variables, mechanisms, model, everything or variables, n_records, secret, **kwargs
    )


def terms_of(epsilon=1.0, delta=1e-6, accountant="best"):
    return BudgetTerms("b", epsilon, delta, accountant)


def draw(chain, exhausted=False, **stats):
    return SimpleNamespace(
        chain=chain, stats=[{"epsilon_spent": 0.1, "exhausted": exhausted, **stats}], tuning=False
    )


class TestSharingOut:
    """Every plan, carried out to the end by all chains, stays within the budget and uses it up."""

    @given(
        epsilon=st.floats(0.2, 8),
        delta=st.floats(1e-9, 1e-4),
        chains=st.integers(1, 8),
        sensitivity=st.floats(0.005, 0.1),
    )
    @settings(max_examples=6, deadline=None)
    def test_fixed_cost(self, epsilon, delta, chains, sensitivity):
        step = fixed(sensitivity=sensitivity)
        try:
            allocation = allocate({step.label: step}, terms_of(epsilon, delta), chains)[step.label]
        except PrivacyBudgetExhausted:
            assert max_draws(step.mechanisms, epsilon, delta) < chains
            return
        total = chains * allocation.iterations
        assert epsilon_of([(step.mechanisms[0][0], total)], delta) <= epsilon
        assert total > max_draws(step.mechanisms, epsilon, delta) - chains

    def test_steps_of_both_kinds_share(self):
        """Fixed and varying costs in one iteration go through one filter and run out together."""
        steps = {s.label: s for s in (fixed("A[x]", ("x",)), varying("B[y]", ("y",)))}
        plans = allocate(steps, terms_of(4.0), 2)
        shares = [(p.share, 2) for p in plans.values()]
        assert epsilon_of(shares, 1e-6) <= 4.0
        a = plans["A[x]"].fresh()
        while a.charge(steps["A[x]"].mechanisms):
            pass
        assert a.used == pytest.approx(plans["B[y]"].expected, rel=0.01)

    @given(epsilon=st.floats(1, 4), chains=st.integers(1, 4), decay=st.floats(0.0, 0.2))
    @settings(max_examples=8, deadline=None)
    def test_schedule(self, epsilon, chains, decay):
        """Noise that grows by a schedule, and one access at the start: all of it counts, and no draw is left over."""

        def schedule(t):
            return ((Gaussian(20.0 * t**decay), 2),)

        step = access(
            schedule(1), "S[x]", ("x",), starting=((Gaussian(30.0), 1),), schedule=schedule
        )
        plan = allocate({"S[x]": step}, terms_of(epsilon), chains)["S[x]"]

        def spent(draws):
            run = [(Gaussian(30.0), 1), *(a for t in range(1, draws + 1) for a in schedule(t))]
            return epsilon_of([(m, k * chains) for m, k in run], 1e-6)

        assert spent(plan.iterations) <= epsilon < spent(plan.iterations + 1)
        assert epsilon_of([(m, k * chains) for m, k in plan.claim], 1e-6) == pytest.approx(
            spent(plan.iterations), rel=1e-9
        )
        allocation = plan.fresh()
        for t in range(1, plan.iterations + 1):
            assert allocation.charge(schedule(t))
            assert allocation.epsilon_spent() >= spent(t) * (1 - 1e-9)
        assert not allocation.charge(schedule(plan.iterations + 1))

    def test_a_schedule_that_changes_is_not_covered(self):
        """What is charged for must be what was claimed, not only as often."""

        def schedule(t):
            return ((Gaussian(20.0), 2),)

        step = access(schedule(1), "S[x]", ("x",), schedule=schedule)
        allocation = allocate({"S[x]": step}, terms_of(2.0), 1)["S[x]"].fresh()
        assert allocation.charge(schedule(1))
        assert not allocation.charge(((Gaussian(10.0), 2),))
        assert not allocation.charge(schedule(3))

    def test_report_of_a_schedule(self):
        """Says what comes once and what changes, and does not list hundreds of costs."""
        budget = PrivacyBudget(epsilon=4.0, delta=1e-6, chains=1)
        budget.register(
            access(
                ((Gaussian(20.0), 2),), "S[x]", ("x",), starting=((Gaussian(30.0), 1),), schedule=lambda t: ((Gaussian(20.0 * t ** (1 / 6)), 2),),
            )
        )  # fmt: skip
        budget.claim("S[x]")
        (step,) = budget.report().steps
        assert step.per_draw == (
            "2 x Gaussian(sigma/sensitivity=20) (draw 1, then by a schedule)",
            "1 x Gaussian(sigma/sensitivity=30) (once a chain)",
        )
        assert len(step.per_chain) == 5
        assert "kinds more" in step.per_chain[2]
        assert 3.9 < budget.spent() <= 4.0

    def test_endless_schedule(self):
        """Noise may grow so fast that the budget never ends: planning does."""
        step = access(
            ((Gaussian(20.0), 1),), "S[x]", ("x",), schedule=lambda t: ((Gaussian(20.0 * 2.0 ** min(t, 99)), 1),),
        )  # fmt: skip
        assert allocate({"S[x]": step}, terms_of(4.0), 1)["S[x]"].iterations == MOST_SCHEDULED

    def test_first_access_comes_out_of_the_filter(self):
        """What a chain accesses once is planned for, whatever steps are beside."""
        gradient, (decision, _) = Gaussian(8.0), varying().mechanisms[0]
        step = access(((gradient, 1), (decision, 1)), "H[x]", ("x",), starting=((gradient, 1),))
        other = fixed("A[y]", ("y",))
        terms = terms_of(4.0)
        plans = allocate({s.label: s for s in (step, other)}, terms, 2)
        assert epsilon_of([(p.share, 2) for p in plans.values()], 1e-6) <= 4.0
        a, b = plans["H[x]"].fresh(), plans["A[y]"].fresh()
        usual = decision.at(float(np.sqrt(np.mean(np.square(DISTANCES)))))
        draws = 0
        while a.charge(((gradient, 1 + (draws == 0)),)) and a.charge(((usual, 1),)):
            assert b.charge(other.mechanisms)
            draws += 1
        assert draws == pytest.approx(plans["H[x]"].expected, abs=1 + 0.05 * draws)
        assert draws > 5
        alone = allocate({"H[x]": step}, terms, 2)["H[x]"]
        without = allocate({"H[x]": replace(step, starting=())}, terms, 2)["H[x]"]
        assert alone.expected < without.expected

    def test_closed_accountants_need_fixed_costs(self):
        step = varying()
        with pytest.raises(ValueError, match="same for every proposal"):
            allocate({step.label: step}, terms_of(2.0, accountant="pure"), 1)

    def test_a_refusal_is_final(self):
        step = varying()
        plan = allocate({step.label: step}, terms_of(1.0), 1)[step.label].fresh()
        family = step.mechanisms[0][0]
        assert not plan.charge(((family.at(100.0), 1),))
        assert not plan.charge(((family.at(1e-6), 1),))
        assert plan.used == 0


class TestRegistration:
    """Which steps an iteration is made of."""

    def test_a_newer_step_on_the_same_variable_replaces_the_older(self):
        budget = PrivacyBudget(1.0, 1e-6, chains=1)
        budget.register(fixed("old[x]", ("x",), sensitivity=0.5))
        budget.register(fixed("new[x]", ("x",)))
        assert set(budget.plan()) == {"new[x]"}
        with pytest.raises(PrivacyBudgetExhausted, match="replaced"):
            budget.claim("old[x]")

    def test_another_model_replaces_all(self):
        budget = PrivacyBudget(1.0, 1e-6, chains=1)
        budget.register(fixed("old[x]", ("x",)))
        budget.register(fixed("new[z]", ("z",), model=2))
        assert set(budget.plan()) == {"new[z]"}

    def test_uncovered_variables(self):
        budget = PrivacyBudget(1.0, 1e-6, chains=1)
        budget.register(fixed(everything=("x", "y")))
        with pytest.raises(PrivacyLeak, match="y: PyMC"):
            budget.claim("A[x]")
        assert not budget.ledger.claims()
        budget.register(fixed("A[y]", ("y",), everything=("x", "y")))
        budget.claim("A[x]")

    def test_a_pickled_budget_claims_from_the_same_ledger(self):
        """As in a worker process."""
        budget = PrivacyBudget(1.0, 1e-6, chains=2)
        budget.register(fixed())
        copies = [pickle.loads(pickle.dumps(budget)) for _ in range(3)]
        for copy in copies[:2]:
            copy.claim("A[x]")
        with pytest.raises(PrivacyBudgetExhausted, match="chains=2"):
            copies[2].claim("A[x]")
        assert budget.spent() == pytest.approx(copies[2].spent()) and budget.spent() <= 1.0


class TestRunsBeforeTheyBegin:
    """Nothing is claimed for a run that another program's claims do not leave enough for."""

    @pytest.mark.parametrize("chains, names", [(2, "x"), (1, "xy"), (1, "x")])
    def test_all_chains_and_steps_together(self, tmp_path, chains, names):
        """The budget that is refused names who asks; what was claimed before goes on."""
        ledger = Ledger(tmp_path / "a.ledger", epsilon=2.0, delta=1e-6)
        killed = PrivacyBudget(1.5, 5e-7, chains=2, ledger=ledger)
        killed.register(fixed())
        killed.check_number_of_chains("A[x]", 2)
        assert ledger.n_budgets == 0
        killed.claim("A[x]")
        again = PrivacyBudget(1.0, 5e-7, chains=chains, ledger=ledger)
        for name in names:
            again.register(fixed(f"A[{name}]", (name,), everything=tuple(names)))
        by = " and ".join(f"A[{name}]" for name in names)
        with pytest.raises(PrivacyBudgetExhausted) as caught:
            again.check_number_of_chains("A[x]", chains)
        assert f"Asked for by {chains} chain(s) of {by}: epsilon = 1" in str(caught.value)
        assert "left: epsilon = 0.5, delta = 5e-07" in str(caught.value)
        assert not ledger.claims(again.id)
        killed.check_number_of_chains("A[x]", 1)
        killed.claim("A[x]")


class TestCallback:
    """Arguments of pm.sample."""

    def setup_method(self):
        self.budget = PrivacyBudget(1.0, 1e-6, chains=2)
        self.budget.register(fixed())
        self.trace = SimpleNamespace(draw_idx=5)

    def test_parallel_run_is_stopped_when_all_chains_are_through(self):
        self.budget(self.trace, draw(0, exhausted=True))
        self.budget(self.trace, draw(0, exhausted=True))
        self.budget(self.trace, draw(1))
        assert self.trace.draw_idx == 3 and self.budget.report().draws == (1,)
        with pytest.raises(KeyboardInterrupt):
            self.budget(self.trace, draw(1, exhausted=True))

    def test_chains_of_different_length_are_all_kept(self):
        """PyMC would keep one chain of 50 draws rather than two of 20."""
        traces = [SimpleNamespace(draw_idx=51), SimpleNamespace(draw_idx=21)]
        for chain in (0, 1):
            last = draw(chain, exhausted=True)
            self.budget.run.latest = last.stats[0]
            with pytest.raises(KeyboardInterrupt):
                self.budget(traces[chain], last)
        assert [t.draw_idx for t in traces] == [20, 20]

    def test_an_interrupted_run_does_not_end_the_next_one(self):
        self.budget.check_number_of_chains("A[x]", 2)
        self.budget(self.trace, draw(1, exhausted=True))  # then the user stops the run
        self.budget.check_number_of_chains("A[x]", 2)
        self.budget(self.trace, draw(0, exhausted=True))  # chain 1 waits for a core: no interrupt
        with pytest.raises(KeyboardInterrupt):
            self.budget(self.trace, draw(1, exhausted=True))

    def test_foreign_statistics_abort(self):
        foreign = draw(0)
        foreign.stats.append({"tree_size": 7})
        with pytest.raises(PrivacyLeak, match="tree_size"):
            self.budget(self.trace, foreign)
        with pytest.raises(PrivacyLeak):
            self.budget(self.trace, SimpleNamespace(chain=0, stats=[{}]))

    def test_other_processes_detect_the_callback(self):
        copy = pickle.loads(pickle.dumps(self.budget))
        assert not copy.ledger.has_callback(copy.id)
        self.budget(self.trace, draw(0))
        assert copy.ledger.has_callback(copy.id)


class TestReport:
    """The statement that travels with a result."""

    @pytest.fixture
    def budget(self):
        budget = PrivacyBudget(2.0, 1e-6, chains=2)
        budget.register(fixed())
        budget.claim("A[x]")
        return budget

    def test_report_of_what_was_claimed(self, budget):
        report = budget.report()
        k = budget.plan()["A[x]"].iterations
        # One of two chains: its epsilon at the order that was fixed; for the rest, what the plan allows.
        claimed = Cost.of([(Decision(Barker(), 0.05), k)])
        assert report.epsilon == pytest.approx(budget.terms.adaptive.reading(claimed))
        assert claimed.epsilon(1e-6) < report.epsilon < report.epsilon_budget == 2.0
        assert report.zcdp_rho == pytest.approx(2 * k * 0.05**2 / 8)
        assert report.gaussian_mu == pytest.approx(0.62666 * 0.05 * math.sqrt(2 * k), rel=1e-4)
        assert report.protected and report.n_records == 1000
        assert 0.001 < report.attack_power["0.1%"] < report.attack_power["1%"] < 0.3
        assert budget.remaining() == pytest.approx(2.0 - report.epsilon)

    def test_forms(self, budget):
        report = budget.report()
        for text in (
            str(report),
            report.to_markdown(),
            report.to_html(),
            report._repr_html_(),
        ):
            for part in (
                "differential privacy",
                "substitute one record",
                "1000",
                "decision by Barker",
                "true positive rate",
                "temporary",
            ):
                assert part in text
        assert json.loads(report.to_json())["steps"][0]["label"] == "A[x]"
        assert PrivacyReport.from_json(report.to_json()) == report
        assert report.to_dict()["delta"] == 1e-6

    def test_broken_guarantees_are_reported(self):
        known = PrivacyBudget(2.0, 1e-6, chains=1)
        known.register(fixed(secret=False))
        known.claim("A[x]")
        report = known.report()
        assert (
            not report.protected
            and "REPRODUCIBLE" in str(report)
            and report.attack_power["1%"] == 1.0
        )
        none = PrivacyBudget(math.inf, 1e-6, chains=1)
        none.register(fixed())
        none.claim("A[x]")
        report = none.report()
        assert (
            not report.protected
            and report.epsilon == math.inf
            and "NOT PROTECTED" in report.to_html()
            and "epsilon is infinite" in str(report)
        )
        assert none.remaining() == math.inf == none.plan()["A[x]"].epsilon_spent()
        assert json.loads(report.to_json())["epsilon"] == "inf"
        assert PrivacyReport.from_json(report.to_json()) == report

    def test_number_of_records_is_private_under_add_remove(self):
        budget = PrivacyBudget(2.0, 1e-6, chains=1, adjacency="add_remove")
        budget.register(fixed())
        budget.claim("A[x]")
        report = budget.report()
        assert report.n_records is None
        assert "1000" not in str(report) and "number of records" not in str(report)
        other = PrivacyBudget(2.0, 1e-6, chains=1).report()
        assert "number of records" in str(other)
        assert set(report.assumptions) < set(other.assumptions)


class TestSpentOutsideOfChains:
    """What is claimed once, for all chains, is paid from the same budget, and chains share the rest."""

    START = ((Gaussian(30.0), 8),)

    @pytest.mark.parametrize("make", [fixed, varying])
    def test_chains_share_the_rest(self, make):
        whole, rest = (PrivacyBudget(2.0, 1e-6, chains=2) for _ in range(2))
        for budget in (whole, rest):
            budget.register(make())
        before = rest.expected_draws()
        rest.spend("start", self.START)
        assert 0.5 * before < rest.expected_draws() < before == whole.expected_draws()
        # Chains follow: it is counted at the one order, by which more is spent than if it were all.
        adaptive = rest.terms.adaptive
        assert rest.spent() == adaptive.reading(Cost.of(self.START)) > epsilon_of(self.START, 1e-6)
        shown = []
        for _ in range(2):
            allocation = rest.claim(make().label)
            (mechanism, count) = make().mechanisms[0]
            access = mechanism.at(0.02) if isinstance(mechanism, PerProposalDecision) else mechanism
            while allocation.charge(((access, count),)):
                shown.append(allocation.epsilon_spent())
            # The last draws of all chains come to the budget, and the first began with the start.
            assert 1.9 < shown[-1] <= 2.0
        assert shown[0] > 0.9 * epsilon_of(self.START, 1e-6)
        everything = [a for claim in rest.ledger.claims() for a in claim.accesses]
        assert len(rest.ledger.claims()) == 3
        assert 1.9 < rest.spent() == adaptive.reading(Cost.of(everything)) <= 2.0

    def test_the_number_of_draws_is_the_last_that_fits(self):
        budget = PrivacyBudget(2.0, 1e-6, chains=3)
        budget.register(fixed())
        budget.spend("start", self.START)
        draws, each = budget.expected_draws(), fixed().mechanisms[0][0]
        for k, fits in ((draws, True), (draws + 1, False)):
            assert budget.terms.adaptive.fits(Cost.of([*self.START, (each, 3 * k)])) == fits

    def test_too_much(self):
        budget = PrivacyBudget(1.0, 1e-6, chains=1)
        budget.register(fixed())
        nearly = ((Gaussian(4.24), 1),)
        assert 0.98 < epsilon_of(nearly, 1e-6) <= 1
        budget.spend("start", nearly)
        with pytest.raises(PrivacyBudgetExhausted, match=r"Largest feasible|pays for"):
            budget.claim(fixed(sensitivity=0.5).label)

    def test_once_and_before_the_chains(self):
        budget = PrivacyBudget(2.0, 1e-6, chains=1)
        budget.spend("start", self.START)
        budget.register(fixed())
        with pytest.raises(PrivacyBudgetExhausted):
            budget.spend("start", self.START)
        budget.claim(fixed().label)
        with pytest.raises(PrivacyBudgetExhausted, match="already run"):
            budget.spend("another", self.START)
        with pytest.raises(PrivacyBudgetExhausted, match=r"already run.*cannot be changed"):
            budget.register(varying())
