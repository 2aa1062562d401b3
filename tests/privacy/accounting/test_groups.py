"""Group privacy: closed forms, bounds that are never below the exact cost, reports, and a planted fault."""

import math

import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp import Barker, Penalty
from pymc_dp.privacy import (
    Decision,
    Gaussian,
    GaussianShare,
    L2Laplace,
    RenyiShare,
    SampledDecision,
    SampledGaussian,
    epsilon_of,
)
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.accounting.groups import (
    fixed_plan,
    general_bound,
    group_price,
    group_renyi,
    successive_claims,
)
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privacy.mechanisms.mechanism import ORDERS
from pymc_dp.scores.results import joint_report
from tests.privacy.budget.test_budget import fixed, varying

DELTA = 1e-6
EXACT = {
    "Gaussian": lambda v: Gaussian(v),
    "l2 noise": lambda v: L2Laplace(1 / v, n_dim=5),
    "penalty": lambda v: Decision(Penalty(1.4), 0.5 / v),
    "Barker": lambda v: Decision(Barker(), 0.5 / v),
}
SIZES = st.integers(2, 12)


class TestExact:
    """The same mechanism with a multiple of the sensitivity."""

    @given(noise=st.floats(0.5, 50), size=SIZES)
    @settings(max_examples=30, deadline=None)
    def test_gaussian(self, noise, size):
        found = Gaussian(noise).for_group(size)
        assert found.gaussian_mu == pytest.approx(size / noise, rel=1e-14)
        assert found.zcdp == pytest.approx(size**2 * Gaussian(noise).zcdp, rel=1e-12)
        assert GaussianShare(1 / noise).for_group(size).mu == pytest.approx(size / noise)

    def test_l2_noise_and_decisions(self):
        assert L2Laplace(0.5, 3).for_group(4) == L2Laplace(2.0, 3)
        assert L2Laplace(200.0, 3).for_group(4) is None
        assert Decision(Barker(), 0.1).for_group(3) == Decision(Barker(), 0.1 * 3)
        assert RenyiShare(math.inf, 0.5).for_group(3) == RenyiShare(math.inf, 1.5)
        assert RenyiShare(8.0, 0.5).for_group(3) is None

    @pytest.mark.parametrize("rule", [Barker(), Penalty(1.4)], ids=str)
    def test_a_chain_of_neighbours_of_a_decision(self, rule):
        """Laws of a bit at log-ratios up to three sensitivities apart, one by one."""
        x, bound = np.linspace(-20, 20, 8001), Decision(rule, 0.4).for_group(3).renyi([4.0])[0]
        other = np.exp(rule.log_probabilities(x))
        for steps in (1, 2, 3):
            one = np.exp(rule.log_probabilities(x + 0.4 * steps))
            pairs = (one, other), (other, one)
            found = max(np.log(np.sum(p**4 * q**-3, axis=0)).max() / 3 for p, q in pairs)
            assert found <= bound
        assert found == pytest.approx(bound, rel=1e-4)

    @pytest.mark.parametrize(
        "mechanism",
        [
            SampledDecision(Barker(), 0.1, 0.1),
            SampledGaussian(2.0, 0.1, "poisson", "add_remove"),
        ],
        ids=str,
    )
    def test_batches_have_general_bounds_only(self, mechanism):
        assert mechanism.for_group(2) is None


class TestGeneralBounds:
    @pytest.mark.parametrize("kind", EXACT)
    @given(value=st.floats(1, 20), size=SIZES, count=st.integers(1, 50))
    @settings(max_examples=5, deadline=None)
    def test_never_below_the_exact_cost(self, kind, value, size, count):
        mechanism = EXACT[kind](value)
        cost, group = Cost.of([(mechanism, count)]), mechanism.for_group(size)
        # Both are upper bounds, on different grids of orders: they differ by less than a thousandth.
        exact = fixed_plan(cost, size, DELTA, "best")
        assert general_bound(cost, size, DELTA) >= exact * (1 - 1e-3)
        at, bound = (float(v[0]) for v in group_renyi(np.array([20.0]), mechanism.renyi([20.0]), size))  # fmt: skip
        assert group_price(mechanism, size, 20.0) == (at, group.renyi([at])[0])
        assert bound >= group.renyi([at])[0]

    def test_of_gaussians_it_is_exact(self):
        cost = Cost.of([(Gaussian(10.0), 3)])
        exact = epsilon_of([(Gaussian(2.0), 3)], DELTA)
        assert general_bound(cost, 5, DELTA) == pytest.approx(exact, rel=1e-8)
        assert fixed_plan(cost, 5, DELTA, "best") == pytest.approx(exact, rel=1e-8)

    @given(order=st.floats(2, 1000), first=st.integers(2, 5), second=st.integers(2, 5))
    def test_groups_of_groups(self, order, first, second):
        """A group of groups is a group: the closed form composes with itself, and is the recursion of its proof."""
        once = group_renyi(*group_renyi(np.array([order]), np.array([0.1]), first), second)
        at_once = group_renyi(np.array([order]), np.array([0.1]), first * second)
        np.testing.assert_allclose(once[0], at_once[0], rtol=1e-9)
        total, a = 0.1, order
        for _ in range(first - 1):
            a, b = 1 / (1 / order + (1 - 1 / order) / a), a
            total = (a - a / order) / (a - 1) * 0.1 + total
            assert b > a
        order_of, renyi = group_renyi(np.array([order]), np.array([0.1]), first)
        np.testing.assert_allclose([order_of[0], renyi[0]], [a, total], rtol=1e-6)

    def test_no_pair_of_laws_exceeds_it(self):
        """Chains of random laws on three outcomes: their divergences at the order of the group stay within the bound."""
        rng = np.random.default_rng(1)
        laws = rng.dirichlet(np.ones(3), size=(2000, 4)) * 0.9 + 0.1 / 3

        def divergence(p, q, order):
            return np.log(np.sum(p**order * q ** (1 - order), axis=-1)) / (order - 1)

        own = np.max([divergence(laws[:, i], laws[:, i + 1], 6.0) for i in range(3)], axis=0)
        at, bound = group_renyi(np.array([6.0]), own, 3)
        assert np.all(divergence(laws[:, 0], laws[:, 3], at[0]) <= bound)

    def test_a_planted_fault_is_found(self):
        """The bound of one record times the size of the group, at the same order, does not hold."""
        one, group = Gaussian(5.0).renyi([10.0])[0], Gaussian(5.0).for_group(3).renyi([10.0])[0]
        assert group > 3 * one


class TestSuccessiveClaims:
    TERMS = AdaptiveComposition.opened(1.0, DELTA)

    def test_one_record(self):
        cost = Cost.of([(Gaussian(20.0), 3), (SampledDecision(Barker(), 0.1, 0.1), 5)])
        assert successive_claims(cost, 1, self.TERMS) == self.TERMS.holds(cost)

    @pytest.mark.parametrize("accountant", ["best", "gaussian"])
    @pytest.mark.parametrize("size", [2, 4])
    def test_gaussians_by_closed_forms(self, accountant, size):
        terms = AdaptiveComposition.opened(1.0, DELTA, accountant)
        found = successive_claims(Cost.of([(Gaussian(20.0), 2)]), size, terms)
        if accountant == "gaussian":
            expected = epsilon_of([(Gaussian(1 / (size * math.sqrt(terms.limit))), 1)], DELTA)
        else:
            a = 1 / (1 - (1 - 1 / terms.order) ** size)
            total = 2 * a * size**2 / (2 * 20.0**2)
            expected = total + math.log1p(-1 / a) - math.log(DELTA * a) / (a - 1)
        assert found == pytest.approx(expected, rel=1e-6)

    def test_nothing_is_known_of_large_groups_of_shares(self):
        assert successive_claims(Cost.of([(RenyiShare(2.0, 0.1), 1)]), 2, self.TERMS) == math.inf
        assert successive_claims(Cost.of([]), 5, self.TERMS) == 0
        grown = [successive_claims(Cost.of([(self.TERMS.whole(), 1)]), k, self.TERMS) for k in (1, 2, 3, 10)]  # fmt: skip
        assert grown[0] == pytest.approx(1) and np.all(np.diff(grown) > 1) and grown[-1] < math.inf


class TestReports:
    @pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
    def test_of_a_run(self, adjacency):
        """A run of decisions is claimed at once; its report can be read back."""
        budget = PrivacyBudget(1.0, DELTA, chains=2, adjacency=adjacency)
        budget.register(fixed())
        draws = budget.claim(fixed().label).iterations
        report = PrivacyReport.from_json(budget.report().to_json())
        assert report == budget.report() and report.for_group(1) == (report.epsilon, DELTA)
        composed = Cost.of([(Decision(Barker(), 0.15), draws)])
        found = report.for_group(3)
        if report.at_once:
            assert found == (pytest.approx(epsilon_of([(Decision(Barker(), 0.15), 2 * draws)], DELTA)), DELTA)  # fmt: skip
        else:
            assert found[0] > composed.epsilon(DELTA)
        with pytest.raises(ValueError, match="size must be at least 1, got 0"):
            report.for_group(0)
        with pytest.raises(ValueError, match="does not hold its accesses"):
            joint_report([report, report]).for_group(2)

    def test_of_a_plan(self):
        plan = [(L2Laplace(0.3, 4), 1), (Gaussian(30.0), 2)]
        budget = PrivacyBudget(1.0, DELTA, chains=1)
        budget.spend("sums", plan[:1], plan=plan)
        report = budget.report()
        assert report.at_once
        assert report.for_group(2)[0] == epsilon_of([(L2Laplace(0.6, 4), 1), (Gaussian(15.0), 2)], DELTA)  # fmt: skip

    def test_of_chains_with_shares(self):
        budget = PrivacyBudget(1.0, DELTA, chains=2)
        budget.register(varying())
        budget.claim(varying().label)
        report = budget.report()
        assert 2 * report.epsilon < report.for_group(2)[0] < 10

    def test_without_protection_and_without_claims(self):
        budget = PrivacyBudget(math.inf, DELTA, chains=1)
        budget.spend("sum", [(Gaussian(1.0), 1)])
        assert budget.report().for_group(3) == (math.inf, DELTA)
        assert PrivacyBudget(1.0, DELTA, chains=1).report().for_group(3) == (0.0, DELTA)

    def test_pure(self):
        budget = PrivacyBudget(1.0, 0.0, chains=1)
        budget.spend("first", [(L2Laplace(0.25, 4), 1)])
        budget.spend("second", [(L2Laplace(0.5, 2), 1)])
        assert budget.report().for_group(4) == (3.0, 0.0)


def test_every_order_has_a_bound():
    orders, renyi = group_renyi(ORDERS, 0.01 * ORDERS, 3)
    assert np.all(orders >= 1) and np.all(orders < ORDERS) and np.all(renyi > 0)
