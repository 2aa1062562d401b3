"""Mechanisms: the cost of one decision against brute force, closed forms and its own true pair."""

import math

import mpmath
import numpy as np
import pytest

from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, ndtr, ndtri, ndtri_exp
from scipy.stats import norm

from pymc_dp import codec
from pymc_dp.acceptance import Barker, Lazy, Metropolis, Penalty
from pymc_dp.privacy import L2Laplace, PureDP, SampledDecision, SampledGaussian, ZeroConcentratedDP
from pymc_dp.privacy.accounting.filters import GaussianShare, RenyiShare
from pymc_dp.privacy.mechanisms.decision_suprema import bernoulli_divergence
from pymc_dp.privacy.mechanisms.mechanism import (
    ORDERS,
    Decision,
    Gaussian,
    Mechanism,
)
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalDecision
from pymc_dp.privacy.mechanisms.poisson_minibatch import PoissonMinibatchDecision

RULES = [
    Penalty(0.3),
    Penalty(1.0),
    Penalty(2.0),
    Penalty(6.0),
    Barker(),
    Lazy(Penalty(1.4), 0.5),
    Lazy(Barker(), 0.25),
]


def divergence(p, q, order):
    """Rényi divergence between two decisions, each given as (accept, reject), in mpmath."""
    order = mpmath.mpf(order)
    return mpmath.log(sum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))) / (
        order - 1
    )


def decision_law(rule, x):
    """Probabilities of accepting and rejecting in mpmath, written down again from the formulas."""
    x = mpmath.mpf(x)
    if isinstance(rule, Lazy):
        accept, reject = decision_law(rule.rule, x)
        weight = mpmath.mpf(rule.weight)
        return weight * accept, weight * reject + 1 - weight
    if isinstance(rule, Barker):
        return 1 / (1 + mpmath.exp(-x)), 1 / (1 + mpmath.exp(x))
    s = mpmath.mpf(rule.scale)
    tail = mpmath.exp(x) * mpmath.ncdf(-x / s - s / 2)
    return mpmath.ncdf(x / s - s / 2) + tail, mpmath.ncdf(-x / s + s / 2) - tail


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
@pytest.mark.parametrize("sensitivity, order", [(0.3, 1.5), (3.0, 20.0)])
def test_decision_against_brute_force(rule, sensitivity, order):
    """The supremum is never below a 60-digit scan of log-ratios and shifts, and not far above it."""
    bound = float(Decision(rule, sensitivity).renyi([order])[0])
    inner = rule.rule if isinstance(rule, Lazy) else rule
    far = order * sensitivity + 6 * getattr(inner, "scale", 1.0) + getattr(inner, "scale", 0.0) ** 2
    best = 0.0
    with mpmath.workdps(60):
        for x in np.linspace(-8 - sensitivity, far, 240):
            for shift in (sensitivity / 2, sensitivity):
                p, q = decision_law(rule, x), decision_law(rule, mpmath.mpf(x) + shift)
                best = max(best, float(divergence(p, q, order)), float(divergence(q, p, order)))
    assert best <= bound
    assert bound <= best * 1.01  # the scan is coarse, the bound is not


@given(
    magnitude=st.floats(-4, 4),
    ratio=st.floats(-3, 1),
    u=st.floats(-20, 60),
    order=st.sampled_from([1.1, 2.0, 8.0, 64.0, 400.0]),
)
@example(  # both directions peak at nearly the same height
    magnitude=1.3077634, ratio=-2.6190935, u=0.03125, order=64.0
)
@settings(max_examples=150, deadline=None)
def test_no_log_ratio_beats_the_supremum(magnitude, ratio, u, order):
    s = 10**magnitude
    x, sensitivity = s * (u + s / 2), s * 10**ratio
    decision = Decision(Penalty(s), sensitivity)
    with mpmath.workdps(60):
        p, q = decision_law(Penalty(s), x), decision_law(Penalty(s), mpmath.mpf(x) + sensitivity)
        worst = max(divergence(p, q, order), divergence(q, p, order))
        assert float(worst) <= float(decision.renyi([order])[0]) * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize("sensitivity", [0.01, 0.1, 1.0, 4.0])
def test_barker_stays_within_its_closed_form(sensitivity):
    """Bounded range: Delta^2/8-zCDP, and the supremum approaches it for small sensitivities."""
    decision = Decision(Barker(), sensitivity)
    ratio = decision.renyi(ORDERS[ORDERS < 200]) / (ORDERS[ORDERS < 200] * decision.zcdp)
    assert np.all(ratio <= 1 + 1e-6)
    if sensitivity <= 0.1:
        assert ratio[0] == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("scale", [30.0, 300.0, 1e4])
@pytest.mark.parametrize("mu", [0.01, 0.2, 2.0])
def test_much_noise_leaves_whether_the_noisy_value_passes_a_threshold(scale, mu):
    """Log-ratios far above 0 are then the worst: the profile is the Gaussian's, as thresholds are the best tests."""
    decision = Decision(Penalty(scale), mu * scale)
    u = np.linspace(-3 - 70 * mu, 3 + 70 * mu, 20_000)
    p, q = norm.logcdf([u + mu, -u - mu]), norm.logcdf([u, -u])
    for order in (1.5, 8.0, 64.0):
        worst = [logsumexp(order * a + (1 - order) * b, axis=0).max() for a, b in ((p, q), (q, p))]
        assert decision.renyi([order]) == pytest.approx(
            max(worst) / (order - 1), rel=2 / scale + 1e-5
        )
    epsilons = np.array([0.0, mu, 3 * mu])
    released = Gaussian(1 / mu).privacy_profile(epsilons)
    assert decision.privacy_profile(epsilons) == pytest.approx(released, rel=2 / scale + 5e-3)


@pytest.mark.parametrize("scale", [1e-4, 8.26e-4, 1e-2, 1.0, 1e3])
@pytest.mark.parametrize("sensitivity", [6.0, 161.5])
@pytest.mark.parametrize("weight", [0.02, 0.944, 1.0])
def test_decisions_with_little_noise(scale, sensitivity, weight):
    """The rule changes within one noise scale, which may be far less than the sensitivity: nothing is passed over."""
    rule = Lazy(Penalty(scale), weight)
    bends = scale**2 / 2 + np.array([[-1.0], [0.0], [1.0]]) * sensitivity
    x = (bends + scale * np.linspace(-20, 20, 4001)).ravel()
    p, q = rule.log_probabilities(x + sensitivity), rule.log_probabilities(x)
    orders = np.array([[1.01], [2.0], [8.0], [64.0]])
    found = np.maximum(bernoulli_divergence(p, q, orders), bernoulli_divergence(q, p, orders))
    assert np.all(found.max(axis=1) <= Decision(rule, sensitivity).renyi(orders[:, 0]) * (1 + 1e-9))


@pytest.mark.parametrize("scale, ratio", [(0.05, 0.3), (0.4, 1.75), (2.0, 3.75), (40.0, 20.0)])
def test_no_order_is_passed_over(scale, ratio):
    """All orders, each of which has a worst log-ratio of its own, against a dense scan."""
    rule, sensitivity = Penalty(scale), ratio * scale
    orders = ORDERS[ORDERS < 40, None]
    far = 20 + 45 * ratio
    x = scale**2 / 2 + scale * np.linspace(-far, far, 20_001)
    p, q = rule.log_probabilities(x + sensitivity), rule.log_probabilities(x)
    found = np.maximum(bernoulli_divergence(p, q, orders), bernoulli_divergence(q, p, orders))
    decision = Decision(rule, sensitivity)
    most = np.minimum(found.max(axis=1), orders[:, 0] * decision.zcdp)
    assert np.all(decision.renyi(orders[:, 0]) >= most * (1 - 1e-12))


@pytest.mark.parametrize("scale", [0.5, 1.4, 4.0])
@pytest.mark.parametrize("sensitivity", [0.02, 0.5, 5.0])
def test_penalty_decision_costs_less_than_the_noisy_value(scale, sensitivity):
    """Post-processing: at every order the bit costs at most what releasing the noisy log-ratio does."""
    decision = Decision(Penalty(scale), sensitivity)
    released = Gaussian(scale / sensitivity).renyi(ORDERS)
    assert np.all(decision.renyi(ORDERS) <= released * (1 + 1e-6))
    assert decision.gaussian_mu == pytest.approx(sensitivity / scale)


def test_monotone_in_sensitivity_and_order():
    costs = [Decision(Penalty(1.0), d).renyi(ORDERS) for d in np.geomspace(1e-4, 20, 25)]
    costs = np.array(costs)
    assert np.all(np.diff(costs, axis=0) > 0)
    assert np.all(np.diff(costs, axis=1) >= -1e-6 * costs[:, 1:])


@pytest.mark.parametrize(
    "decision",
    [
        lambda rule: Decision(rule, 0.1),
        lambda rule: SampledDecision(rule, 0.1, 0.1),
        lambda rule: PoissonMinibatchDecision(rule, 0.01, 1.0, 10),
        lambda rule: PerProposalDecision(1.0, rule, None, 1.0, (1.0,)),
    ],
)
def test_metropolis_is_refused(decision):
    decision(Barker())
    with pytest.raises(ValueError, match="no finite privacy cost"):
        decision(Metropolis())


@pytest.mark.parametrize(
    "mechanism",
    [
        Gaussian(3.5),
        Decision(Penalty(1.1), 0.02),
        Decision(Lazy(Barker(), 0.3), 0.5),
        Decision(Lazy(Metropolis(), 0.3), 0.5),
        SampledGaussian(1.5, 0.1, "poisson", "add_remove"),
        SampledGaussian(1.5, 0.1, "poisson", "substitute"),
        SampledGaussian(1.5, 0.1, "without_replacement", "substitute"),
        SampledDecision(Lazy(Penalty(1.2), 0.5), 0.3, 0.05),
        SampledDecision(Barker(), 0.3, 1.0),
        PoissonMinibatchDecision(Lazy(Barker(), 0.3), 0.01, 3.0, 200),
        PoissonMinibatchDecision(Penalty(1.0), 0.01, 3.0, 200),
        L2Laplace(0.7, 5),
        PureDP(0.5),
        ZeroConcentratedDP(0.5),
        RenyiShare(17.0, 0.2),
        RenyiShare(math.inf, 0.4),
        GaussianShare(0.3),
    ],
    ids=lambda m: m.name,
)
def test_values(mechanism):
    """Hashable, comparable, and the same after a trip through the ledger's text."""
    again = codec.loads(codec.dumps(mechanism))
    assert again == mechanism and hash(again) == hash(mechanism) and type(again) is type(mechanism)
    assert np.array_equal(again.renyi(ORDERS), mechanism.renyi(ORDERS))
    assert isinstance(mechanism, Mechanism)
    with pytest.raises(AttributeError):
        mechanism.sensitivity = 0.0


def test_orders_of_any_shape():
    for mechanism in (Gaussian(2.0), Decision(Barker(), 0.5), RenyiShare(3.0, 0.1)):
        assert mechanism.renyi(2.0).shape == ()
        assert mechanism.renyi([[1.5, 2.0], [2.5, 3.0]]).shape == (2, 2)
        assert mechanism.renyi(2.0) == mechanism.renyi([2.0])[0]
        with pytest.raises(ValueError, match="orders must exceed 1"):
            mechanism.renyi([1.0, 2.0])


class TestGaussianMuOfDecisions:
    """The smallest ``mu`` of a bit, against brute force in 40 digits."""

    RULES = (Barker(), Lazy(Barker(), 0.9), Lazy(Barker(), 0.25), Lazy(Penalty(1.4), 0.5))

    @staticmethod
    def probit(p):
        with mpmath.workdps(40):
            z = mpmath.mpf(float(ndtri(float(p))))
            for _ in range(4):
                z -= (mpmath.ncdf(z) - p) / mpmath.npdf(z)
            return z

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
    @pytest.mark.parametrize("sensitivity", [1e-6, 0.05, 1.0, 6.0])
    def test_no_log_ratio_beats_it(self, rule, sensitivity):
        def change(x):
            with mpmath.workdps(40):
                x, shift = mpmath.mpf(x), mpmath.mpf(sensitivity)
                both = (decision_law(rule, x + shift)[0], decision_law(rule, x)[0])
                return float(self.probit(both[0]) - self.probit(both[1]))

        mu = Decision(rule, sensitivity).gaussian_mu
        grid = np.linspace(-8, 6, 57) - sensitivity / 2
        best = grid[np.argmax([change(x) for x in grid])]
        around = [change(x) for x in np.linspace(best - 0.25, best + 0.25, 41)]
        assert max(around) <= mu <= max(around) * (1 + 1e-3)

    @pytest.mark.parametrize("sensitivity", [1e-9, 1e-3, 0.3, 5.0, 200.0])
    def test_barker_is_worst_where_both_outcomes_are_as_likely(self, sensitivity):
        worst = -2 * ndtri_exp(-np.logaddexp(0, sensitivity / 2))
        assert worst <= Decision(Barker(), sensitivity).gaussian_mu <= worst * (1 + 3e-5)

    @given(
        rule=st.sampled_from(RULES), sensitivity=st.floats(1e-12, 100), x=st.floats(-30, 30)
    )  # fmt: skip
    @settings(max_examples=50, deadline=None)
    def test_trade_off_curve_of_the_bit_is_above(self, rule, sensitivity, x):
        """Every level, both directions: what an attacker may find by one bit is no more than Gaussian DP allows."""
        mu = Decision(rule, sensitivity).gaussian_mu
        one, other = (np.exp(rule.log_probabilities(y)[0]) for y in (x, x + sensitivity))
        for p, q in ((one, other), (other, one), (1 - one, 1 - other), (1 - other, 1 - one)):
            levels = np.linspace(1e-6, 1 - 1e-6, 101)
            # Least type II error of p against q: reject first on the bit with the larger likelihood ratio.
            on, off = (
                1 - p - (levels - q) * (1 - p) / max(1 - q, 1e-300),
                1 - levels * p / max(q, 1e-300),
            )
            least = np.where(levels <= q, off, on) if p >= q else 1 - levels
            assert np.all(least >= ndtr(ndtri(1 - levels) - mu) - 1e-12)

    def test_too_large_to_search(self):
        assert Decision(Barker(), 1e10).gaussian_mu is None
        assert Decision(Lazy(Penalty(1e5), 0.5), 1.0).gaussian_mu == 1e-5
