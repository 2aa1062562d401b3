"""What composes adaptively: one Rényi order or Gaussian DP, filters in both, and accounts that keep which."""

import math

import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.published_bounds import zcdp
from pymc_dp.acceptance import Barker, Penalty
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.calibration import delta_of, epsilon_of
from pymc_dp.privacy.accounting.composition import ACCOUNTANTS, Cost, renyi_budget
from pymc_dp.privacy.accounting.filters import Filter, GaussianShare
from pymc_dp.privacy.budget.allocation import allocate
from pymc_dp.privacy.budget.claims import BudgetTerms
from pymc_dp.privacy.mechanisms.mechanism import ORDERS, Gaussian
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalDecision, PerProposalPoissonMinibatch
from pymc_dp.privacy.mechanisms.subsampled import SampledGaussian
from tests.privacy.budget.test_budget import DISTANCES, access

EPSILONS, DELTAS = st.floats(1e-2, 50), st.floats(1e-12, 1e-2)
NOTHING = Cost.of([])


class TestRule:
    """A function of the terms alone."""

    @given(epsilon=EPSILONS, delta=DELTAS)
    @settings(max_examples=50, deadline=None)
    def test_the_limit_is_the_largest_that_converts(self, epsilon, delta):
        order = AdaptiveComposition.opened(epsilon, delta)
        worth = renyi_budget(ORDERS, epsilon, delta) / ORDERS
        assert order.limit / order.order == worth.max()
        share = order.share(order.limit * (1 - 1e-8))
        assert epsilon_of([(share, 1)], delta) <= epsilon
        gaussian = AdaptiveComposition.opened(epsilon, delta, "gaussian")
        z = 1 / math.sqrt(gaussian.limit)
        assert delta_of([(Gaussian(z), 1)], epsilon) <= delta
        assert delta_of([(Gaussian(z * (1 - 1e-6)), 1)], epsilon) > delta * (1 - 1e-6)
        # More room for Gaussian releases, as it is exact for them.
        assert gaussian.limit / 2 > worth.max()

    @given(epsilon=EPSILONS, delta=DELTAS, part=st.floats(0.01, 1), less=st.floats(1e-3, 1))
    @settings(max_examples=50, deadline=None)
    def test_a_smaller_budget_never_has_a_smaller_order(self, epsilon, delta, part, less):
        large = AdaptiveComposition.opened(epsilon, delta)
        small = AdaptiveComposition.opened(epsilon * part, delta * less)
        assert small.order >= large.order

    @pytest.mark.parametrize("accountant", [a.name for a in ACCOUNTANTS])
    def test_by_accountant(self, accountant):
        rule = AdaptiveComposition.opened(1.0, 1e-6, accountant)
        assert (rule.order is None) == (accountant == "gaussian")
        assert rule.order in (None, 22.0)
        assert rule.accountant == ("rdp" if rule.order else "gaussian")

    def test_gaussian_dp_has_more_room_for_gaussian_releases(self):
        """Of docs/accounting.md."""
        for epsilon, more in ((1.0, 1.15), (4.0, 1.13)):
            order, gaussian = (AdaptiveComposition.opened(epsilon, 1e-6, a) for a in ("rdp", "gaussian"))  # fmt: skip
            found = gaussian.limit / 2 / (order.limit / order.order)
            assert found == pytest.approx(more, abs=0.005)
            assert round(100 * (1 - 1 / math.sqrt(found))) == {1.0: 7, 4.0: 6}[epsilon]

    def test_infinite_and_tiny(self):
        for accountant in ("best", "gaussian"):
            rule = AdaptiveComposition.opened(math.inf, 1e-6, accountant)
            assert rule.limit == math.inf and rule.fits(Cost.of([(Gaussian(1e-9), 1e9)]))
        tiny = AdaptiveComposition.opened(1e-9, 1e-12)
        assert tiny.limit < 0 and not tiny.fits(Cost.of([(Gaussian(1e9), 1)]))
        assert tiny.fits(NOTHING) and tiny.left(NOTHING) < 0

    @given(
        epsilon=st.floats(0.1, 20), parts=st.lists(st.floats(0.01, 1), min_size=1, max_size=5),
        accountant=st.sampled_from(["best", "gaussian"]),
    )  # fmt: skip
    @settings(max_examples=50, deadline=None)
    def test_shares_fit_together(self, epsilon, parts, accountant):
        """However the total is divided."""
        rule = AdaptiveComposition.opened(epsilon, 1e-6, accountant)
        left = rule.left(NOTHING)
        shares = [(rule.share(left * p / sum(parts)), 1) for p in parts]
        assert rule.fits(Cost.of(shares))
        assert rule.reading(Cost.of(shares)) > 0.999 * epsilon
        assert not rule.fits(Cost.of([*shares, (rule.share(left * 1e-3), 1)]))


class TestFilters:
    """Both kinds, by the same code."""

    def test_no_bound_no_grant(self):
        sampled = SampledGaussian(1.0, 0.01, "without_replacement", "substitute")
        assert not Filter(GaussianShare(1e3)).grant([(sampled, 1)])

    def test_a_tiny_mu_has_a_cost(self):
        assert GaussianShare(1.0).price(Gaussian(1e200)) > 0

    def test_a_gaussian_share_is_a_gaussian_release(self):
        share, release = GaussianShare(0.4), Gaussian(2.5)
        assert share.renyi(ORDERS) == pytest.approx(release.renyi(ORDERS))
        assert share.privacy_profile([0.0, 1.0]) == pytest.approx(release.privacy_profile([0, 1]))
        for accountant in ("best", "gaussian", zcdp, "rdp"):
            assert epsilon_of([(share, 3)], 1e-6, accountant) == pytest.approx(epsilon_of([(release, 3)], 1e-6, accountant))  # fmt: skip


class TestGaussianBudgets:
    """Chains whose costs vary, in Gaussian DP."""

    @pytest.mark.parametrize("rule, laziness", [(Barker(), 1.0), (Penalty(2.0), 0.5)])
    def test_chains_stay_within_their_shares(self, rule, laziness):
        family = PerProposalDecision(2.0, rule, None, laziness, DISTANCES)
        step = access(((family, 1),), "B[x]", ("x",))
        terms = BudgetTerms("b", 2.0, 1e-6, "gaussian")
        other_accesses = [(Gaussian(20.0), 3)]
        plan = allocate({step.label: step}, terms, 2, Cost.of(other_accesses))[step.label]
        rng, charged = np.random.default_rng(1), []
        for _ in range(2):
            allocation, used = plan.fresh(), 0
            while allocation.charge(((cell := family.at(rng.choice(DISTANCES)), 1),)):
                charged.append((cell, 1))
                used += 1
            assert used == pytest.approx(plan.expected, rel=0.25)
            assert 1.8 < allocation.epsilon_spent() <= 2.0
        assert 0.95 * 2.0 < epsilon_of([*other_accesses, *charged], 1e-6, "gaussian") <= 2.0
        assert isinstance(plan.share, GaussianShare)

    def test_batches_are_refused_by_name(self):
        family = PerProposalPoissonMinibatch(0.01, Barker(), 10.0, 1000, None, DISTANCES)
        step = access(((family, 1),), "B[x]", ("x",))
        allocate({"B[x]": step}, BudgetTerms("b", 2.0, 1e-6), 1)
        with pytest.raises(ValueError, match=r"'gaussian' has no bound for: .*Poisson"):
            allocate({"B[x]": step}, BudgetTerms("b", 2.0, 1e-6, "gaussian"), 1)
