"""The decision of DP-Fast MH against its exact law, enumerated place by place."""

import itertools
import math

from functools import cache

import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, logsumexp
from scipy.stats import poisson

from pymc_dp.acceptance import Barker, Lazy, Metropolis, Penalty
from pymc_dp.privacy.accounting.calibration import delta_of, epsilon_of
from pymc_dp.privacy.mechanisms.mechanism import ORDERS, Adjacency, Decision
from pymc_dp.privacy.mechanisms.poisson_minibatch import PoissonMinibatchDecision

RULES = [Barker(), Lazy(Barker(), 0.3), Lazy(Penalty(1.0), 0.5), Lazy(Penalty(0.3), 0.9)]
PRIOR = np.linspace(-12, 12, 241)  # a constant that is added to the log-ratio
SOME_ORDERS = np.array([1.5, 2.0, 8.0, 32.0])


@cache
def outcomes(n_records, largest):
    """All ways in which places can go: kept for each record and dropped, shape (outcomes, n_records + 1)."""
    rows = [
        row
        for row in itertools.product(range(largest + 1), repeat=n_records + 1)
        if sum(row) <= largest
    ]
    return np.array(rows)


def decision(rule, shares, c, lam, prior=PRIOR):
    """Log-probabilities of accepting and rejecting, shape (2, len(prior)), by the algorithm as published, without a limit.

    ``B ~ Poisson(lam + N c)`` places; each takes one of the N records, keeps it with probability
    ``(lam + N c (1 - u) / 2) / (lam + N c)`` and then adds ``ln((2 lam + N c (1 + u)) / (2 lam + N
    c (1 - u)))`` to the log-ratio.
    """
    u = np.asarray(shares, dtype=float)
    n = len(u)
    rate = lam + n * c
    keep = (lam + n * c * (1 - u) / 2) / rate
    weight = np.log((2 * lam + n * c * (1 + u)) / (2 * lam + n * c * (1 - u)))
    # The number of places is Poisson, what becomes of each is one of n + 1 things.
    largest = int(poisson.isf(1e-13, rate)) + 1
    counts = outcomes(n, largest)
    each = np.append(keep / n, np.mean(1 - keep))
    places = counts.sum(axis=1)
    log_p = places * math.log(rate) - rate - gammaln(counts + 1).sum(axis=1)
    with np.errstate(divide="ignore"):
        log_each = np.maximum(np.log(each), -1e6)
    log_p = log_p + counts @ log_each
    law = np.stack(rule.log_probabilities((counts[:, :-1] @ weight)[:, None] + prior))
    return logsumexp(law + log_p[:, None], axis=1)


def shifts(rule, rate, w, prior=PRIOR):
    """The same, if only one record ever counts: ``w`` times a Poisson number."""
    j = np.arange(int(poisson.isf(1e-16, rate * (1 + math.exp(abs(w))))) + 10)
    law = np.stack(rule.log_probabilities(prior[:, None] + j * w))
    return logsumexp(law + poisson.logpmf(j, rate), axis=2)


def divergence(log_p, log_q, order):
    return np.logaddexp(*(order * log_p + (1 - order) * log_q)) / (order - 1)


def excess(log_p, log_q, epsilon):
    return np.maximum(np.exp(log_p) - math.exp(epsilon) * np.exp(log_q), 0).sum(axis=0)


def worst(laws, orders=SOME_ORDERS, epsilons=()):
    """Largest divergences between two of the laws, over prior terms and both directions."""
    pairs = list(itertools.permutations(laws, 2))
    return (
        np.array([max(divergence(p, q, a).max() for p, q in pairs) for a in orders]),
        np.array([max(excess(p, q, e).max() for p, q in pairs) for e in epsilons]),
    )


CASES = [(1, 0.5, 0.5), (2, 0.3, 0.5)]
EXTREME = (-1.0, -0.4, 0.0, 0.4, 1.0)


class TestExactLaw:
    """Every data set on a grid, and random ones."""

    @pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
    @pytest.mark.parametrize("n, c, lam", CASES)
    def test_no_neighbours_exceed_the_bound(self, rule, n, c, lam):
        """No pair exceeds the bound, and some pair reaches it."""
        mechanism = PoissonMinibatchDecision(rule, c, lam, n)
        epsilons = np.array([-0.3, 0.0, 0.05, 0.2])
        cost, profile = mechanism.renyi(SOME_ORDERS), mechanism.privacy_profile(epsilons)
        true, hockey = np.zeros(len(SOME_ORDERS)), np.zeros(len(epsilons))
        for others in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), n - 1):
            laws = [decision(rule, (u, *others), c, lam) for u in EXTREME]
            found = worst(laws, SOME_ORDERS, epsilons)
            true, hockey = np.maximum(true, found[0]), np.maximum(hockey, found[1])
        assert np.all(true <= cost * (1 + 1e-9))
        assert np.all(hockey <= profile * (1 + 1e-9) + 1e-15)
        assert np.all(cost <= true * 1.03)
        assert np.all(profile <= hockey * 1.03 + 1e-6)

    @given(
        n=st.integers(1, 2),
        c=st.floats(0.02, 0.5),
        lam=st.floats(0.2, 1.5),
        shares=st.lists(st.floats(-1, 1), min_size=2, max_size=2),
        other=st.floats(-1, 1),
        rule=st.sampled_from(RULES),
    )
    @settings(max_examples=20, deadline=None)
    def test_random_data_sets(self, n, c, lam, shares, other, rule):
        mechanism = PoissonMinibatchDecision(rule, c, lam, n)
        laws = [decision(rule, (u, *shares[1:n]), c, lam, PRIOR[::4]) for u in (shares[0], other)]
        epsilons = np.array([-0.2, 0.0, 0.1])
        true, hockey = worst(laws, SOME_ORDERS, epsilons)
        assert np.all(true <= mechanism.renyi(SOME_ORDERS) * (1 + 1e-9) + 1e-14)
        assert np.all(hockey <= mechanism.privacy_profile(epsilons) * (1 + 1e-9) + 1e-14)

    def test_negative_control(self):
        """A record can do more than it would if all records decided: the cost of that decision alone would not cover it."""
        n, c, lam = 1000, 0.01, 1.0
        mechanism = PoissonMinibatchDecision(Barker(), c, lam, n)
        step = math.log1p(n * c / lam)
        laws = [
            shifts(Barker(), (2 * lam + n * c) / n / (1 + math.exp(w)), w) for w in (-step, step)
        ]
        true = worst(laws)[0]
        assert np.all(true <= mechanism.renyi(SOME_ORDERS))
        assert np.all(true > 2 * Decision(Barker(), 2 * c).renyi(SOME_ORDERS))


class TestTightness:
    """The supremum over log-ratios and weights, on grids inside, against finer ones."""

    @pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
    @pytest.mark.parametrize("n, c, lam", [(100, 0.01, 1.0), (1000, 0.02, 2.0), (50, 0.3, 10.0)])
    def test_finer_grid(self, rule, n, c, lam):
        step = math.log1p(n * c / lam)
        prior = np.unique(np.concatenate([np.linspace(-4, 4, 161), np.linspace(-30, 30, 301)]))
        laws = np.array(
            [
                shifts(rule, (2 * lam + n * c) / n / (1 + math.exp(w)), w, prior)
                for w in np.linspace(-step, step, 81)
            ]
        )
        each = np.arange(len(prior))
        most, least = (
            laws[index, :, each].T
            for index in (laws[:, 0].argmax(axis=0), laws[:, 0].argmin(axis=0))
        )
        orders, epsilons = np.array([2.0, 16.0, 200.0]), np.array([0.0, 0.1, 0.5])
        mechanism = PoissonMinibatchDecision(rule, c, lam, n)
        true, hockey = worst([most, least], orders, epsilons)
        cost = mechanism.renyi(orders)
        assert np.all(true * (1 - 1e-9) <= cost)
        assert np.all(cost <= true * 1.02)
        profile = mechanism.privacy_profile(epsilons)
        assert np.all(hockey * (1 - 1e-9) <= profile)
        assert np.all(profile <= hockey * 1.05 + 1e-6)

    @pytest.mark.parametrize("rule", RULES[::2], ids=lambda r: r.name)
    def test_one_order_or_many(self, rule):
        """What else is asked for makes no difference, except to the grid."""
        mechanism = PoissonMinibatchDecision(rule, 0.02, 2.0, 200)
        together, some = mechanism.renyi(ORDERS), slice(None, None, 7)
        single = np.concatenate([mechanism.renyi([a]) for a in ORDERS[some]])
        assert together[some] == pytest.approx(single, rel=6e-4)
        assert mechanism.renyi(ORDERS[::-1]) == pytest.approx(together[::-1], rel=1e-12)
        assert np.all(np.diff(together) >= -1e-3 * together[1:])


class TestRange:
    """The closed form for Barker's rule: the log-odds move by at most R."""

    @given(
        n=st.integers(1, 10**5),
        c=st.floats(1e-4, 1),
        ratio=st.floats(-1.2, 2),
        x=st.floats(-30, 60),
        w=st.floats(-1, 1),
    )
    @settings(deadline=None)
    def test_never_exceeded(self, n, c, ratio, x, w):
        lam = n * c * 10**ratio
        mechanism = PoissonMinibatchDecision(Barker(), c, lam, n)
        total, step = 2 * lam / n + c, math.log1p(n * c / lam)
        bound = math.sqrt(8 * mechanism.zcdp)
        # Near the right end odds are ratios of what is left of 1: take them from the exact law.
        (a, r), (b, s) = (
            shifts(Barker(), total / (1 + math.exp(v)), v, np.array([x]))[:, 0]
            for v in (w * step, -step)
        )
        assert (a - r) - (b - s) <= bound * (1 + 1e-9) + 1e-12
        assert mechanism.zcdp == PoissonMinibatchDecision(Lazy(Barker(), 0.5), c, lam, n).zcdp


class TestPenalty:
    """The plain penalty rule: no finite Rényi cost, but a privacy profile."""

    @pytest.mark.parametrize("order", [1.05, 2.0, 8.0])
    def test_the_divergence_grows_without_bound(self, order):
        """Exact law of one record: rejections that only many of its places explain. Not so for a lazy rule."""
        c, lam, n = 1.0, 0.1, 1
        step = math.log1p(n * c / lam)
        prior = np.array([100.0, 200.0, 400.0, 800.0])
        assert np.all(np.isinf(PoissonMinibatchDecision(Penalty(1.0), c, lam, n).renyi([order])))

        def law(rule, w):
            j = np.arange(500)
            parts = np.stack(rule.log_probabilities(prior[:, None] + j * w))
            rate = (2 * lam + n * c) / n / (1 + math.exp(w))
            return logsumexp(parts + poisson.logpmf(j, rate), axis=2)

        true = divergence(law(Penalty(1.0), -step), law(Penalty(1.0), step), order)
        assert np.all(true[1:] > 3 * true[:-1])
        assert true[0] > 100
        lazy = Lazy(Penalty(1.0), 0.99)
        assert np.all(divergence(law(lazy, -step), law(lazy, step), order) < 1e-6)

    def test_profile_is_finite_and_valid(self):
        c, lam, n = 0.3, 0.5, 1
        mechanism = PoissonMinibatchDecision(Penalty(1.0), c, lam, n)
        epsilons = np.array([-1.0, 0.0, 0.2, 1.0, 4.0, 12.0])
        profile = mechanism.privacy_profile(epsilons)
        prior = np.linspace(-15, 40, 551)
        laws = [decision(Penalty(1.0), (u,), c, lam, prior) for u in EXTREME]
        hockey = worst(laws, (), epsilons)[1]
        assert np.all(hockey <= profile * (1 + 1e-9))
        assert np.all(profile <= hockey * 1.05)
        assert 0 < profile[-1] < 1e-9
        assert np.all(np.diff(profile) < 0)

    def test_composes_by_its_profile(self):
        pytest.importorskip("dp_accounting", reason="the extra 'pld' is not installed")
        access = [(PoissonMinibatchDecision(Penalty(1.0), 0.01, 10.0, 1000), 50)]
        assert epsilon_of(access, 1e-6, "rdp") == math.inf
        assert 0 < epsilon_of(access, 1e-6) < 5


def test_composition_against_dynamic_programming():
    """Four decisions with prior terms chosen adaptively: below the composed bound, and not far below."""
    n, c, lam, k = 100, 0.05, 2.0, 4
    mechanism = PoissonMinibatchDecision(Barker(), c, lam, n)
    step = math.log1p(n * c / lam)
    prior = np.linspace(-6, 6, 25)
    laws = [
        shifts(Barker(), (2 * lam + n * c) / n / (1 + math.exp(w)), w, prior)
        for w in (-step, 0.0, step)
    ]
    choices = [
        (p[:, i], q[:, i]) for p, q in itertools.permutations(laws, 2) for i in range(len(prior))
    ]
    grid = np.linspace(-4, 4, 1601)
    for epsilon in (0.1, 0.4):
        value = np.maximum(1 - np.exp(epsilon - grid), 0)
        for _ in range(k):
            options = [
                sum(math.exp(p[i]) * np.interp(grid + p[i] - q[i], grid, value) for i in (0, 1))
                for p, q in choices
            ]
            value = np.max(options, axis=0)
        attack = float(np.interp(0.0, grid, value))
        bound = delta_of([(mechanism, k)], epsilon)
        # Interpolating a convex function errs upwards; the margin covers it.
        assert 0 < attack <= bound * 1.02
        assert bound <= 2.5 * attack


class TestValues:
    """What the mechanism is as a value."""

    def test_batch_size(self):
        mechanism = PoissonMinibatchDecision(Barker(), 0.05, 7.0, 100)
        assert mechanism.adjacencies == {Adjacency.SUBSTITUTE} and mechanism.gaussian_mu is None
        assert PoissonMinibatchDecision(Penalty(1.0), 0.05, 7.0, 100).zcdp is None
        assert mechanism.expected_batch == pytest.approx(12.0)

    def test_profile_of_a_pair_of_distributions(self):
        """In [0, 1], falling, convex in exp(epsilon), symmetric; no overflow."""
        mechanism = PoissonMinibatchDecision(Barker(), 0.05, 2.0, 20)
        epsilons = np.linspace(-1.5, 1.5, 301)
        profile = mechanism.privacy_profile(epsilons)
        assert np.all((profile >= 0) & (profile <= 1))
        slopes = np.diff(profile) / np.diff(np.exp(epsilons))
        assert np.all(slopes <= 1e-12) and np.all(np.diff(slopes) >= -1e-9)
        mirrored = -np.expm1(-epsilons) + np.exp(-epsilons) * profile
        below = mechanism.privacy_profile(-epsilons)
        assert below[epsilons > 0] == pytest.approx(mirrored[epsilons > 0], rel=1e-12)
        far = mechanism.privacy_profile([-math.inf, -800.0, 800.0, math.inf])
        assert far == pytest.approx([1, 1, 0, 0], abs=1e-15)

    def test_refusals(self):
        """Rules and settings; numbers: `test_mechanism_properties`."""
        for inner in (Metropolis(), Penalty(0.009), Penalty(2e4)):
            with pytest.raises(ValueError, match="needs a smooth rule"):
                PoissonMinibatchDecision(Lazy(inner, 0.5), 0.01, 1.0, 10)
        with pytest.raises(ValueError, match="too often for a minibatch"):
            PoissonMinibatchDecision(Barker(), 1.0, 1.0, 1000)
