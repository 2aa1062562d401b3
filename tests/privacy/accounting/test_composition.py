"""Composing every kind of mechanism: loss distributions, what "best" takes, the safe side, adjacencies."""

import math

import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from experiments.published_bounds import BarkerRelease, MinibatchRelease, moments, zcdp
from pymc_dp.acceptance import Barker, Penalty
from pymc_dp.privacy import (
    Adjacency,
    Decision,
    Gaussian,
    PoissonMinibatchDecision,
    RenyiShare,
    SampledDecision,
    SampledGaussian,
    ZeroConcentratedDP,
    calibrate,
    delta_of,
    epsilon_of,
    max_draws,
)
from pymc_dp.privacy.accounting import pld
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.budget.budget import PrivacyBudget
from tests.privacy.budget.test_budget import access

DELTA = 1e-6
needs_pld = pytest.mark.skipif(not pld.AVAILABLE, reason="the extra 'pld' is not installed")


def poisson(z, q):
    return SampledGaussian(z, q, "poisson", "add_remove")


def batch(z, q):
    return SampledGaussian(z, q, "without_replacement", "substitute")


NOISES = st.floats(0.6, 20)
#: One strategy for each kind: noise, then how to make the mechanism from it (more is more private).
FAMILIES = {
    "Gaussian": lambda v: Gaussian(v),
    "Poisson": lambda v: poisson(v, 0.02),
    "without replacement": lambda v: batch(v, 0.02),
    "decision": lambda v: Decision(Penalty(1.4), 0.3 / v),
    "Barker decision": lambda v: Decision(Barker(), 0.3 / v),
    "sampled decision": lambda v: SampledDecision(Penalty(1.4), 2.0 / v, 0.02),
    "Poisson minibatch": lambda v: PoissonMinibatchDecision(Barker(), 0.01 / v, 500, 10_000),
    "minibatch release": lambda v: MinibatchRelease(v, 0.02),
}
#: Bounds of these take seconds for each example.
COSTLY = ("Poisson", "Poisson minibatch", "sampled decision")


@needs_pld
class TestLossDistributions:
    """Against published figures, closed forms and the exact truth."""

    @pytest.mark.slow
    def test_sghmc_of_lode(self):
        """Table 6.3: batches by Poisson sampling, 10 steps at each of 200 noise levels; to the last published digit."""
        published = {1e-6: 0.881, 1e-5: 0.763, 1e-4: 0.629, 1e-3: 0.473, 1e-2: 0.273}
        run = [
            (poisson(math.sqrt(2 / (0.49 * 3 * t ** (-1 / 3))), 0.01), 10) for t in range(1, 201)
        ]
        for delta, epsilon in published.items():
            assert epsilon_of(run, delta) == pytest.approx(epsilon, rel=2e-3, abs=1e-3)
        assert epsilon_of(run[:100], 1e-5) == pytest.approx(0.609, rel=2e-3)

    @pytest.mark.parametrize("z, k", [(1.0, 1), (20.0, 100), (100.0, 20_000)])
    @pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
    def test_gaussian(self, z, k, delta):
        exact = epsilon_of([(Gaussian(z), k)], delta, "gaussian")
        got = epsilon_of([(Gaussian(z), k)], delta, "pld")
        assert exact <= got <= 1.005 * exact

    @pytest.mark.parametrize("k", [1, 3, 12])
    def test_decisions_among_gaussians(self, k):
        """Never below the exact delta of Gaussians and Barker decisions at one log-ratio, close to it for one decision."""
        z, sensitivity, epsilon = 1.5, 0.8, 1.0
        mixture = [(Gaussian(z), 1), (Decision(Barker(), sensitivity), k)]
        mu, worst = 1 / z, 0.0
        for x in np.linspace(-3, 3, 25):
            p, q = Barker().probability(x + sensitivity), Barker().probability(x)
            delta = 0.0
            for j in range(k + 1):
                chance = math.comb(k, j) * p**j * (1 - p) ** (k - j)
                ratio = (p / q) ** j * ((1 - p) / (1 - q)) ** (k - j)
                left = epsilon - math.log(ratio)
                delta += chance * (
                    norm.cdf(mu / 2 - left / mu) - math.exp(left) * norm.cdf(-mu / 2 - left / mu)
                )
            worst = max(worst, delta)
        bound = delta_of(mixture, epsilon, "pld")
        assert worst <= bound
        if k == 1:
            assert bound <= 1.15 * worst

    def test_many_kinds_at_once(self):
        """The best of a mixture is at least as good as Rényi composition, and repeats are what counts say."""
        mixture = [(Gaussian(30.0), 20), (batch(1.0, 0.005), 40), (Decision(Barker(), 0.02), 20)]
        spent, by = Cost.of(mixture).best(DELTA)
        assert by == "pld"
        assert spent < epsilon_of(mixture, DELTA, "rdp")
        apart = [*mixture, (Gaussian(30.0), 1), (Gaussian(30.000001), 1)]
        together = [*mixture[1:], (Gaussian(30.0), 22)]
        assert epsilon_of(apart, DELTA) == pytest.approx(epsilon_of(together, DELTA), rel=3e-3)
        half = [(mechanism, count / 2 - 0.4) for mechanism, count in mixture]
        assert epsilon_of(half, DELTA, "pld") == epsilon_of(
            [(mechanism, count / 2) for mechanism, count in mixture], DELTA, "pld"
        )

    def test_what_has_no_profile_has_no_distribution(self):
        share = [(RenyiShare(8.0, 0.01), 1), (Gaussian(2.0), 1)]
        assert epsilon_of(share, DELTA, "pld") == math.inf
        assert epsilon_of(share, DELTA) == epsilon_of(share, DELTA, "rdp")
        assert delta_of(share, 1.0, "pld") == 1.0

    def test_tiny_delta_is_left_to_the_others(self):
        run = [(batch(1.0, 0.01), 100)]
        assert epsilon_of(run, 1e-12, "pld") == math.inf
        assert Cost.of(run).best(1e-12)[1] == "rdp"
        assert delta_of(run, 50.0, "pld") == pld.LEAST_DELTA


def test_without_the_library(monkeypatch):
    """Everything works, only less tightly; asking for the library by name says what to install."""
    run = [(batch(1.0, 0.01), 100)]
    monkeypatch.setattr(pld, "AVAILABLE", False)
    assert Cost.of(run).best(DELTA) == (epsilon_of(run, DELTA, "rdp"), "rdp")
    with pytest.raises(ValueError, match=r"pymc-dp\[pld\]"):
        epsilon_of(run, DELTA, "pld")
    with pytest.raises(ValueError, match=r"pymc-dp\[pld\]"):
        PrivacyBudget(1.0, DELTA, chains=1, accountant="pld")


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow if k in COSTLY else []) for k in FAMILIES]
)
@given(noise=NOISES, epsilon=st.floats(0.2, 6), chains=st.integers(1, 4))
@settings(max_examples=2, deadline=None)
def test_max_draws_is_the_last_that_fits(kind, noise, epsilon, chains):
    access, first = FAMILIES[kind](noise), Gaussian(25.0)
    draws = max_draws([(access, 1)], epsilon, DELTA, chains, per_chain=[(first, 1)])

    def spent(k):
        return epsilon_of([(access, chains * k), (first, chains)], DELTA)

    assert spent(draws) <= epsilon or draws == 0
    assert spent(draws + 1) > epsilon


@pytest.mark.parametrize(
    "kind", ["Gaussian", *(pytest.param(k, marks=pytest.mark.slow) for k in ("Poisson", "Barker decision", "minibatch release"))]
)  # fmt: skip
@given(epsilon=st.floats(0.05, 10), k=st.integers(1, 5000))
@settings(max_examples=3, deadline=None)
def test_calibrated_noise_never_exceeds_its_target(kind, epsilon, k):
    make = FAMILIES[kind]
    try:
        noise = calibrate(lambda v: [(make(v), k)], epsilon, DELTA, low=0.3, high=1e3)
    except ValueError:  # the published bound for batches does not vanish with the noise
        assert kind == "minibatch release" and epsilon_of([(make(1e3), k)], DELTA) > epsilon
        return
    assert epsilon_of([(make(noise), k)], DELTA) <= epsilon
    if noise > 0.3:
        assert epsilon_of([(make(noise * (1 - 1e-3)), k)], DELTA) > epsilon


class TestAdjacency:
    """A bound that holds for one adjacency only is refused for the other."""

    @pytest.mark.parametrize(
        "mechanism, other",
        [
            (poisson(1.0, 0.01), "substitute"),
            (batch(1.0, 0.01), "add_remove"),
            (SampledGaussian(1.0, 0.01, "poisson", "substitute"), "add_remove"),
            (SampledDecision(Barker(), 0.1, 0.01), "add_remove"),
            (PoissonMinibatchDecision(Barker(), 0.001, 50, 10_000), "add_remove"),
            (BarkerRelease(1300, 100_000), "add_remove"),
            (MinibatchRelease(1.0, 0.01), "add_remove"),
        ],
        ids=lambda v: getattr(v, "name", v)[:30],
    )
    def test_budget_refuses(self, mechanism, other):
        (own,) = mechanism.adjacencies
        assert own != other
        PrivacyBudget(1.0, DELTA, chains=1, adjacency=own).register(
            access(((mechanism, 1),), "G[x]", ("x",))
        )
        with pytest.raises(ValueError, match=f"'{own.value}', not '{other}'"):
            PrivacyBudget(1.0, DELTA, chains=1, adjacency=other).register(
                access(((mechanism, 1),), "G[x]", ("x",))
            )

    def test_no_composition_across_adjacencies(self):
        with pytest.raises(ValueError, match="different adjacencies"):
            epsilon_of([(poisson(1.0, 0.01), 1), (Gaussian(1.0), 1), (batch(1.0, 0.01), 1)], DELTA)

    def test_both_adjacencies_if_only_the_sensitivity_matters(self):
        for mechanism in (Gaussian(1.0), Decision(Barker(), 0.1)):
            assert mechanism.adjacencies == set(Adjacency)


@needs_pld
def test_budget_and_report_use_the_best_accountant():
    """Chains get the draws of the composed distributions, the ledger agrees, and the report says whose bound it is."""
    release = batch(1.0, 0.01)
    budget = PrivacyBudget(2.0, DELTA, chains=3)
    budget.register(access(((release, 1),), "G[x]", ("x",)))
    draws = max_draws([(release, 1)], 2.0, DELTA, 3)
    assert draws > 1.1 * max_draws([(release, 1)], 2.0, DELTA, 3, accountant="rdp")
    assert budget.expected_draws() == draws
    for _ in range(3):
        budget.claim("G[x]")
    report = budget.report()
    assert 1.9 < report.epsilon <= 2.0
    assert report.proved_by == "pld"
    assert "best, by pld" in str(report)


def test_the_loosest_bounds():
    """The conversions of the papers are never below Rényi DP, and there is an end to what is computed."""
    cost = Cost.of([(Gaussian(5.0), 3)])
    assert min(moments(cost, 1e-6), zcdp(cost, 1e-6)) > cost.epsilon(1e-6, "rdp")
    for rho in (1e-12, 1e7):  # the best order is beyond the grid
        extreme = Cost.of([(ZeroConcentratedDP(rho), 1)])
        assert extreme.epsilon(1e-9) == extreme.epsilon(1e-9, "rdp") == zcdp(extreme, 1e-9)
        assert extreme.delta(zcdp(extreme, 1e-9)) == pytest.approx(1e-9, rel=1e-3)
    assert Cost.of([(Gaussian(1e-9), 1)]).epsilon(1e-6) == math.inf
    for order in (1.0, 0.0, math.nan):
        with pytest.raises(ValueError, match="exceed 1"):
            RenyiShare(order, 1.0)
        with pytest.raises(ValueError, match="exceed 1"):
            AdaptiveComposition(1.0, 1e-6, order)
