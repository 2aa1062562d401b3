"""Pure differential privacy: budgets and accounts with delta = 0."""

import json
import math
import pickle
import warnings

import numpy as np
import pytest

from pymc_dp.acceptance import Barker, Lazy, Penalty
from pymc_dp.errors import LedgerError, PrivacyBudgetExhausted
from pymc_dp.privacy import calibrate, delta_of, epsilon_of, max_draws
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import ACCOUNTANTS, Cost
from pymc_dp.privacy.accounting.filters import Filter, GaussianShare, RenyiShare
from pymc_dp.privacy.budget.allocation import allocate
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.claims import BudgetTerms, StepAccess
from pymc_dp.privacy.budget.ledger import Account, Ledger
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Decision, Gaussian
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalDecision
from pymc_dp.privacy.mechanisms.poisson_minibatch import PoissonMinibatchDecision
from pymc_dp.privacy.mechanisms.subsampled import SampledDecision, SampledGaussian

#: Barker decisions have a pure epsilon in theory; as drawn, probabilities below 1e-308 are rounded.
NOT_PURE = [
    Gaussian(1e9),
    Decision(Penalty(2.0), 1e-3),
    Decision(Barker(), 1e-3),
    Decision(Lazy(Barker(), 0.5), 1e-3),
    SampledDecision(Barker(), 1e-3, 0.1),
    SampledGaussian(50.0, 0.1, "without_replacement", "substitute"),
    PoissonMinibatchDecision(Barker(), 1e-4, 50.0, 1000),
    PerProposalDecision(2.0, Barker(), None, 1.0, (0.01, 0.02)),
    RenyiShare(1e5, 1e-3),
    GaussianShare(1e-3),
]


def l2(epsilon, count=1, n_dim=4):
    return ((L2Laplace(epsilon, n_dim), count),)


def budget_of(epsilon=1.0, **kwargs):
    return PrivacyBudget(epsilon, 0, chains=1, **kwargs)


def step_of(mechanisms, **kwargs):
    return StepAccess("A[x]", ("x",), mechanisms, 1, ("x",), 1000, True, **kwargs)


class TestEpsilonsAddUp:
    def test_to_all_of_it_and_no_further(self):
        """The parts of the trials, in sums that are exact; one after the other, with no choice of an order."""
        budget = budget_of()
        for part in (0.1, 0.25, 0.65):
            budget.spend(f"part {part}", l2(part))
        assert budget.spent() == 1 == budget.ledger.spent()
        assert budget.remaining() == 0 >= budget.left()
        with pytest.raises(PrivacyBudgetExhausted, match=r"added up by pure epsilons"):
            budget.spend("more", l2(1e-9))
        assert len(budget.ledger.claims()) == 3

    def test_the_largest_feasible_share(self):
        budget = budget_of()
        budget.spend("first", l2(0.75))
        assert budget.remaining() == 0.25
        with pytest.raises(PrivacyBudgetExhausted, match=r"asked for .*: 1, .*feasible: 25\.0%"):
            budget.spend("more", l2(0.5, 2))

    def test_a_plan_is_the_same_sum(self):
        budget = budget_of()
        plan = (*l2(0.3, 2), *l2(0.4))
        budget.spend("first", plan[:1], plan=plan)
        assert budget.spent() == math.fsum([0.3, 0.3, 0.4])
        assert budget.report().proved_by == "pure"
        budget.spend("second", plan[1:])
        with pytest.raises(PrivacyBudgetExhausted, match="all that is planned"):
            budget_of().spend("first", plan[:1], plan=(*plan, *l2(0.1)))

    def test_a_filter_of_infinite_order(self):
        spending = Filter(RenyiShare(math.inf, 1.0))
        granted = [spending.grant(l2(0.3)) for _ in range(4)]
        assert granted == [True, True, True, False]
        assert not Filter(RenyiShare(math.inf, 1e9)).grant([(Gaussian(1e9), 1)])

    def test_draws_with_l2_noise(self):
        """A step whose draws have a pure epsilon gets a whole number of them, with what was claimed before."""
        budget = PrivacyBudget(1.0, 0, chains=2)
        budget.register(step_of(l2(2**-6), starting=l2(2**-5)))
        budget.spend("start", l2(0.25))
        assert budget.expected_draws() == (0.75 - 2 * 2**-5) / 2 * 64
        for _ in range(2):
            allocation = budget.claim("A[x]")
            while allocation.charge(l2(2**-6)):
                pass
        assert budget.spent() == 1 == pytest.approx(allocation.epsilon_spent())

    def test_the_order_belongs_to_delta(self):
        assert AdaptiveComposition.opened(1.0, 0).order == math.inf
        for delta, order in ((0, 20.0), (0, None), (1e-6, math.inf)):
            with pytest.raises(ValueError, match="if and only if delta is 0"):
                AdaptiveComposition(1.0, delta, order)


class TestRefusals:
    @pytest.mark.parametrize("mechanism", NOT_PURE, ids=lambda m: type(m).__name__)
    def test_what_has_no_epsilon_is_refused_by_name_before_anything_is_claimed(self, mechanism):
        budget = budget_of(10.0)
        asks = [
            lambda: budget.spend("release", ((mechanism, 1),)),
            lambda: budget.spend("release", l2(0.1), plan=(*l2(0.1), (mechanism, 1))),
            lambda: budget.register(step_of(((mechanism, 1),))),
            lambda: budget.register(step_of(l2(0.1), starting=((mechanism, 1),))),
            lambda: budget.register(step_of((), schedule=lambda t: ((mechanism, 1),))),
            lambda: epsilon_of([(mechanism, 1), *l2(0.1)], 0),
            lambda: max_draws([(mechanism, 1)], 1.0, 0),
            lambda: max_draws(l2(0.1), 1.0, 0, other_accesses=[(mechanism, 1)]),
            lambda: calibrate(lambda z: [(mechanism, 1)], 1.0, 0),
            lambda: budget.ledger.claim(BudgetTerms("b", 1, 0), "s", ((mechanism, 1),)),
        ]  # fmt: skip
        for ask in asks:
            with pytest.raises(ValueError, match=r"Choose delta > 0 .*or l2 noise") as error:
                ask()
            assert mechanism.name in str(error.value)
        assert budget.ledger.claims() == [] and budget.steps == {}

    @pytest.mark.parametrize("accountant", [a.name for a in ACCOUNTANTS if not a.at_zero])
    def test_other_accountants(self, accountant):
        if accountant == "pld":
            pytest.importorskip("dp_accounting")
        for ask in (
            lambda: budget_of(accountant=accountant),
            lambda: epsilon_of(l2(0.5), 0, accountant),
            lambda: max_draws(l2(0.1), 1.0, 0, accountant=accountant),
        ):
            with pytest.raises(ValueError, match=r"needs delta > 0.*use 'best'"):
                ask()

    def test_decisions_of_varying_cost_have_no_share(self):
        """Also for who asks without a budget."""
        step = step_of(((NOT_PURE[7], 1),))
        with pytest.raises(ValueError, match="no finite epsilon at delta = 0"):
            allocate({"A[x]": step}, BudgetTerms("b", 9.0, 0), 1)


class TestAccounts:
    def test_on_disk(self, tmp_path):
        path = tmp_path / "a.ledger"
        first = budget_of(0.5, ledger=Ledger(path, epsilon=1.0, delta=0))
        first.spend("sum", l2(0.5))
        again = Ledger(path, epsilon=1.0, delta=0)
        assert again.account == Account(1.0, 0.0, "substitute")
        assert pickle.loads(pickle.dumps(again)).spent() == 0.5
        text = str(again)
        assert (
            "delta = 0," in text
            and "epsilons and deltas add up" in text
            and "delta = 0 by 1" in text
        )
        assert budget_of(0.5, ledger=path).ledger.account.delta == 0
        with pytest.raises(LedgerError, match="exceeds the account"):
            PrivacyBudget(0.5, 1e-9, chains=1, ledger=path)


class TestReport:
    def budget(self, epsilon=1.0):
        budget = budget_of(epsilon)
        budget.register(step_of(l2(0.25)))
        budget.spend("sum", l2(0.5), n_records=10)
        return budget

    def test_words_and_figures(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # delta = 0 is below 1 / n
            report = self.budget().report()
        assert report.protected and (report.epsilon, report.delta) == (0.5, 0)
        assert report.proved_by == "pure" and report.zcdp_rho is None
        text = str(report)
        assert "pure 0.5-differential privacy (delta = 0), of a budget of 1" in text
        assert "best, by pure" in text and "WEAK" not in text
        assert PrivacyReport.from_json(report.to_json()) == report
        assert json.loads(report.to_json())["delta"] == 0

    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
    def test_attacks_on_all_that_it_pays_for(self, epsilon):
        """The rates of randomised response, at which pure privacy is attained."""
        power = self.budget(epsilon).report().attack_power
        for name, rate in (("0.1%", 0.001), ("1%", 0.01)):
            bound = min(math.exp(epsilon) * rate, 1 - math.exp(-epsilon) * (1 - rate))
            assert power[name] == pytest.approx(bound, rel=1e-12)

    @pytest.mark.parametrize("rate", [1e-4, 0.01, 0.1, 0.4, 0.8])
    def test_attacks_on_one_release_of_one_number(self, rate):
        """Laplace's law: the power of the most powerful test, known in closed form."""
        for epsilon in (0.3, 1.0, 5.0):
            exact = math.exp(epsilon) * rate
            if rate > math.exp(-epsilon) / 2:
                exact = 1 - math.exp(-epsilon) / (4 * rate)
            if rate > 0.5:
                exact = 1 - math.exp(-epsilon) * (1 - rate)
            bound = Cost.of(l2(epsilon, n_dim=1)).max_true_positive_rate(rate)
            assert exact - 1e-12 <= bound <= min(1, math.exp(epsilon) * rate) + 1e-12


class TestPureBounds:
    """The accountant "pure", also where delta is above 0."""

    def test_delta_is_that_of_randomised_response(self):
        """Its two outcomes have probabilities in the ratio exp(epsilon): the worst pair of all."""
        pure = 1.5
        p = 1 / (1 + math.exp(-pure))
        for epsilon in (0.0001, 0.5, 1.4):
            exact = p - math.exp(epsilon) * (1 - p)
            assert delta_of(l2(pure), epsilon, "pure") == pytest.approx(exact, rel=1e-6)
            assert delta_of(l2(pure), epsilon) <= exact * (1 + 1e-8)
        assert delta_of(l2(pure), pure, "pure") == 0 == delta_of(l2(pure), 2.0)
        assert delta_of([(Gaussian(1.0), 1)], 9.0, "pure") == 1

    def test_epsilon(self):
        assert epsilon_of(l2(0.25, 3), 0) == epsilon_of(l2(0.25, 3), 1e-6, "pure") == 0.75
        assert epsilon_of(l2(5.0, n_dim=1), 1e-12) <= 5  # one Rényi order alone gives more
        assert epsilon_of(l2(5.0, n_dim=1), 1e-12, "rdp") > 5
        assert epsilon_of([(Gaussian(1.0), 1)], 1e-6, "pure") == math.inf
        assert epsilon_of([], 0) == 0

    def test_infinite_order_is_the_limit(self):
        for d in (1, 4, 30):
            curve = L2Laplace(0.7, d).renyi([2.0, 1e3, 1e6, math.inf])
            assert np.all(np.diff(curve) > 0) and curve[-1] == 0.7
            assert curve[-2] == pytest.approx(0.7, rel=1e-3)
        assert Gaussian(3.0).renyi(math.inf) == math.inf

    def test_planning(self):
        assert max_draws(l2(0.125), 1.0, 0, chains=2) == 4
        assert max_draws(l2(0.125), 1.0, 0, per_chain=l2(0.25), chains=2) == 2
        found = calibrate(lambda e: l2(e, 4), 1.0, 0, low=1e-3, high=100, largest=True)
        assert 0.25 * (1 - 2e-6) < found <= 0.25
