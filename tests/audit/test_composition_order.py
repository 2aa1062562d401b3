"""What composes adaptively is fixed before anything is released: adversaries who choose by what they have seen.

Deltas are computed by integration over the privacy loss of the first release, and a maximum over what may follow each
of its values: no simulation. The rule that was in use before, the least over orders and accountants of what was
claimed so far, is planted, and exceeds delta by more than a factor of two.
"""

import math
import multiprocessing
import pickle

from dataclasses import dataclass

import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from pymc_dp.acceptance import Barker, Penalty
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import Cost, renyi_budget
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.claims import StepAccess
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import (
    ORDERS,
    Decision,
    Gaussian,
    Mechanism,
    gaussian_profile,
)
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalDecision


@dataclass(frozen=True)
class Bit(Mechanism):
    """Something that is 1 with probability p, or q for the neighbour, p > q: all costs are exact."""

    p: float
    q: float

    @property
    def name(self):
        return f"bit {self.p:.3g} / {self.q:.3g}"

    @property
    def gaussian_mu(self):
        return float(ndtri(self.p) - ndtri(self.q))

    def _renyi(self, orders):
        return bit_renyi(self.p, self.q, orders)


def bit_renyi(p, q, order):
    def one_way(p, q):
        ones = order * np.log(p) + (1 - order) * np.log(q)
        noughts = order * np.log1p(-p) + (1 - order) * np.log1p(-q)
        return np.logaddexp(ones, noughts) / (order - 1)

    with np.errstate(over="ignore"):
        return np.maximum(one_way(p, q), one_way(q, p))


class Adversary:
    """Has a Gaussian release of a small part of the budget, and the bits of which it will choose one.

    For each loss of the first release, and each of some orders, it has the bit that adds most to delta among those that
    the budget has room for at this order.
    """

    def __init__(self, epsilon, delta):
        self.epsilon, self.delta = epsilon, delta
        self.rule = AdaptiveComposition.opened(epsilon, delta)
        mu = math.sqrt(2 * 0.01 * self.rule.limit / self.rule.order)
        self.first = Gaussian(1 / mu)
        normal = np.linspace(-8, 8, 1601)
        self.losses = mu**2 / 2 + mu * normal
        self.weights = np.exp(-(normal**2) / 2) / np.exp(-(normal**2) / 2).sum()
        seen = self.losses[::40]
        per_order = [self._best_bits(order, seen) for order in ORDERS[ORDERS > 1.05]]
        gains = [p - np.exp(epsilon - seen) * q for p, q in per_order]
        choice = np.argmax(gains, axis=0)
        self.bits = [
            Bit(*(float(x[i]) for x in per_order[k])) for i, k in enumerate(choice)
        ]  # of any order
        p, q = self._best_bits(self.rule.order, seen)
        self.bits += [Bit(*pair) for pair in zip(p.tolist(), q.tolist(), strict=True)]

    def _best_bits(self, order, seen):
        """By the log-odds that is best where the bound of the conversion is reached, as likely as there is room for."""
        room = float(renyi_budget(order, self.epsilon, self.delta)) * (1 - 1e-6)
        room -= order * self.first.zcdp
        if room <= 0:
            return np.full((2, len(seen)), 1e-30)
        change = np.maximum(self.epsilon - seen + math.log(order / (order - 1)), 1e-3)
        low, high = np.full(len(seen), -60.0), np.full(len(seen), math.log(0.5))
        for _ in range(60):
            middle = (low + high) / 2
            fits = bit_renyi(np.exp(middle), np.exp(middle - change), order) <= room
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return np.exp(low), np.exp(low - change)

    def reached(self, second):
        """Delta at epsilon if, of these, what adds most to it follows on each loss, as a multiple of the delta stated."""
        left = self.epsilon - self.losses
        best = np.maximum(0, -np.expm1(left))
        for mechanism in second:
            if isinstance(mechanism, Bit):
                gain = mechanism.p - np.exp(left) * mechanism.q
            else:
                gain = np.exp(gaussian_profile(left, mechanism.gaussian_mu))
            best = np.maximum(best, gain)
        return float(self.weights @ best) / self.delta


def granted(first, second, **terms):
    """Whether a budget pays for one after the other."""
    budget = PrivacyBudget(**terms, chains=1)
    budget.spend("first", ((first, 1),))
    try:
        budget.spend("second", ((second, 1),))
    except PrivacyBudgetExhausted:
        return False
    assert budget.spent() <= budget.epsilon
    return True


TERMS = [(1.0, 1e-6), (4.0, 1e-6), (0.5, 1e-8)]


@pytest.mark.parametrize(
    "epsilon, delta", [TERMS[0], pytest.param(*TERMS[2], marks=pytest.mark.slow)]
)
def test_the_order_must_not_be_chosen_after_a_release(epsilon, delta):
    """The least over orders of what is claimed: more than twice the delta. The order fixed before: all of it, and no more."""
    adversary = Adversary(epsilon, delta)
    first = adversary.first
    planted = [
        bit for bit in adversary.bits if Cost.of([(first, 1), (bit, 1)]).epsilon(delta) <= epsilon
    ]
    assert adversary.reached(planted) > 2
    admitted = [b for b in adversary.bits if granted(first, b, epsilon=epsilon, delta=delta)]
    assert 0 < len(admitted) < len(planted)
    assert 0.99 < adversary.reached(admitted) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("epsilon, delta", TERMS[:1])
def test_gaussian_dp_under_the_same_adversary(epsilon, delta):
    adversary = Adversary(epsilon, delta)
    terms = {"epsilon": epsilon, "delta": delta, "accountant": "gaussian"}
    rule = AdaptiveComposition.opened(**terms)
    rest = Gaussian(1 / math.sqrt(rule.left(Cost.of([(adversary.first, 1)]))))
    menu = [rest, *adversary.bits]
    admitted = [m for m in menu if granted(adversary.first, m, **terms)]
    assert rest in admitted
    assert 0.99 < adversary.reached(admitted) <= 1
    # The better of both rules after the release is as wrong as the better of two orders.
    either = [m for m in menu if granted(adversary.first, m, **terms | {"accountant": "best"})]
    assert adversary.reached([*admitted, *either]) > 1.005


def delta_of_stopping(first, second, reported):
    """Delta of who stops after the first release, or goes on, by its loss, at the epsilon that is then reported."""
    mu, other = first.gaussian_mu, second.gaussian_mu
    normal = np.linspace(-9, 9, 4001)
    weights = np.exp(-(normal**2) / 2) / np.exp(-(normal**2) / 2).sum()
    losses = mu**2 / 2 + mu * normal
    stop = np.maximum(0, -np.expm1(reported[0] - losses))
    go_on = np.exp(gaussian_profile(reported[1] - losses, other))
    return float(weights @ np.maximum(stop, go_on))


@pytest.mark.parametrize("accountant", ["best", "gaussian"])
@pytest.mark.parametrize("epsilon, delta", TERMS)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_what_is_reported_holds_whatever_it_was_that_decided_to_stop(
    epsilon, delta, part, accountant
):
    budget = PrivacyBudget(epsilon, delta, chains=1, accountant=accountant)
    rule = budget.terms.adaptive
    unit = rule.price(Gaussian(1.0))
    releases = [Gaussian(math.sqrt(unit / rule.left(Cost.of([])) / w)) for w in (part, 1 - part)]
    reported, planted, report = [], [], None
    for k, release in enumerate(releases):
        budget.spend(f"release {k}", ((release, 1),))
        reported.append(budget.spent())
        planted.append(Cost.of([(r, 1) for r in releases[: k + 1]]).epsilon(delta, "gaussian"))
        report = budget.report()
        assert report.epsilon == reported[-1] <= epsilon
    assert delta_of_stopping(*releases, reported) <= delta
    # Each of these holds for who had decided before where to stop.
    assert delta_of_stopping(*releases, planted) > 1.05 * delta
    assert report.gaussian_mu == (pytest.approx(math.sqrt(rule.limit)) if accountant == "gaussian" else None)  # fmt: skip


def run_a_chain(pickled, start, results):
    budget = pickle.loads(pickled)
    start.wait()
    try:
        results.put(budget.claim("G[x]").iterations)
    except PrivacyBudgetExhausted:
        results.put(-1)


class TestClaimedAtOnce:
    """The best accountant counts where nothing was seen before, and then for the whole plan."""

    def budget(self, ledger, chains=2, noise=30.0, **terms):
        budget = PrivacyBudget(**{"epsilon": 1.0, "delta": 1e-6} | terms, chains=chains, ledger=ledger)  # fmt: skip
        step = StepAccess("G[x]", ("x",), ((Gaussian(noise), 1),), 1, ("x",), 1000, True)
        budget.register(step)
        return budget

    @pytest.fixture
    def ledger(self, tmp_path):
        return Ledger(tmp_path / "a.ledger", epsilon=1.0, delta=1e-6)

    def test_the_first_chain_claims_the_run(self, ledger):
        """By Gaussian DP, which is exact, there are 15 % more draws than by one order; the other chain only takes its part."""
        budget = self.budget(ledger)
        rule = budget.terms.adaptive
        draws = budget.expected_draws()
        assert draws > 1.1 * rule.limit / rule.price(Gaussian(30.0)) / 2
        budget.check_number_of_chains("G[x]", 2)
        budget.claim("G[x]")
        spent = budget.spent()
        assert 0.98 < spent <= 1 == ledger.spent()
        budget.check_number_of_chains("G[x]", 1)
        budget.claim("G[x]")
        assert budget.spent() == spent and len(ledger.claims()) == 2
        with pytest.raises(PrivacyBudgetExhausted, match="chains=2"):
            budget.claim("G[x]")
        assert budget.report().proved_by == "gaussian"

    @pytest.mark.slow
    def test_racing_chains_take_parts_of_one_plan(self, ledger):
        """In processes of their own: one of them claims the run, each takes a part, and a chain too many is refused."""
        budget = self.budget(ledger, chains=3)
        context = multiprocessing.get_context("spawn")
        start, results = context.Barrier(5), context.Queue()
        work = (pickle.dumps(budget), start, results)
        chains = [context.Process(target=run_a_chain, args=work) for _ in range(5)]
        for chain in chains:
            chain.start()
        outcomes = sorted(results.get(timeout=600) for _ in chains)
        for chain in chains:
            chain.join()
        draws = budget.expected_draws()
        assert outcomes == [-1, -1, draws, draws, draws]
        claimed = ledger.claimed(budget.terms)
        assert claimed.made.counts == claimed.cost.counts == {Gaussian(30.0): 3 * draws}
        assert 0.96 < budget.spent() <= 1 == ledger.spent() and ledger.n_budgets == 1
        assert "G[x] (3 claims)" in str(ledger)


def spends():
    kinds = st.sampled_from(["spend", "plan"])
    return st.tuples(kinds, st.integers(0, 2), st.floats(3, 300))


def runs():
    kinds = st.sampled_from(["gaussian", "decisions", "varying"])
    return st.tuples(st.just("run"), st.integers(0, 2), kinds)


@given(
    actions=st.lists(st.one_of(spends(), runs()), min_size=2, max_size=8),
    accountant=st.sampled_from(["best", "gaussian"]),
    parts=st.lists(st.sampled_from([0.3, 0.7, 1.0]), min_size=3, max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_any_sequence_of_claims(actions, accountant, parts):
    """Whatever is asked for, in whatever order: one plan, or all of it within what was fixed before."""
    composition = "gaussian" if accountant == "gaussian" else "basic"
    ledger = Ledger(epsilon=2.0, delta=1e-6, composition=composition)
    budgets = [
        PrivacyBudget(2.0 * part, 1e-6 * part, chains=2, accountant=accountant, ledger=ledger)
        for part in parts
    ]
    distances = (0.01, 0.02, 0.03)
    each = {
        "gaussian": Gaussian(25.0),
        "decisions": Decision(Barker(), 0.1),
        "varying": PerProposalDecision(2.0, Penalty(1.4), None, 1.0, distances),
    }
    for number, (kind, which, what) in enumerate(actions):
        budget = budgets[which]
        try:
            if kind == "spend":
                budget.spend(f"spend {number}", ((Gaussian(what), 1),))
            elif kind == "plan":  # the first of its two parts, or the second
                plan = budget.planned or ((Gaussian(what), 1), (L2Laplace(0.6, 4), 1))
                part = plan[1:] if budget.planned else plan[:1]
                budget.spend(f"part {number}", part, plan=plan)
            else:
                if not budget.steps:
                    budget.register(
                        StepAccess("S[x]", ("x",), ((each[what], 1),), 1, ("x",), 9, True)
                    )
                budget.claim("S[x]")
        except PrivacyBudgetExhausted:
            pass
        for b in budgets:
            own, claimed = b.terms.adaptive, ledger.claimed(b.terms)
            its = claimed.cost
            if (
                own.price_of(its) > own.limit
            ):  # then it is one plan, and nothing else was ever admitted
                assert claimed.at_once and claimed.made.within(its)
                assert its.epsilon(b.delta) <= b.epsilon
            assert b.spent() <= b.epsilon
        opened = [b for b in budgets if ledger.claims(b.id)]
        assert ledger.n_budgets == len(opened) and ledger.spent() <= 2.0
        if accountant == "best":
            assert sum(b.epsilon for b in opened) <= 2.0 * (1 + 1e-15)
        else:  # what was claimed inside, with all of it together, is within the account's mu
            everything = Cost.of(
                a for b in opened for a in ledger.claimed(b.terms).cost.counts.items()
            )
            assert everything.epsilon(1e-6, "gaussian") <= 2.0
