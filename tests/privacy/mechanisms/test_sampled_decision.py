"""Decisions on random batches: costs against every triple of laws."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp.acceptance import Barker, Lazy, Metropolis, Penalty
from pymc_dp.privacy.mechanisms.decision_suprema import decision_renyi
from pymc_dp.privacy.mechanisms.mechanism import (
    ORDERS,
    Decision,
)
from pymc_dp.privacy.mechanisms.subsampled import SampledDecision
from tests.privacy.mechanisms.test_mechanisms import decision_law

rate = st.floats(math.log(1e-4), math.log(0.9)).map(math.exp)
RULES = [
    Penalty(0.4),
    Penalty(1.4),
    Penalty(6.0),
    Barker(),
    Lazy(Penalty(1.4), 0.5),
    Lazy(Barker(), 0.25),
]


def bit(rule, x):
    """Log-probabilities of accepting and rejecting."""
    return np.stack(rule.log_probabilities(np.asarray(x, dtype=float)))


def mixed(q, without, given):
    """Law of a bit that sees the record with probability ``q``."""
    if q == 1:
        return given
    return np.logaddexp(math.log1p(-q) + without, math.log(q) + given)


def bit_divergence(log_p, log_q, order):
    return np.logaddexp(*(order * log_p + (1 - order) * log_q)) / (order - 1)


class TestSampledDecision:
    """Bits whose log-ratio is estimated on a batch."""

    @pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
    @pytest.mark.parametrize("sensitivity, q", [(0.3, 0.02), (1.0, 0.4), (4.0, 0.1)])
    def test_against_all_triples(self, rule, sensitivity, q):
        """A grid over all three log-ratios, pairwise within one sensitivity: never above the bound, which is reached."""
        scale = getattr(getattr(rule, "rule", rule), "scale", 1.0)
        base = np.concatenate(
            [
                np.linspace(-6 - 2 * sensitivity, 6 + 2 * sensitivity, 61),
                scale**2 / 2 + scale * np.linspace(-4, 8, 41),
                scale**2 / 2 + sensitivity * np.linspace(0, 12, 61),
            ]
        )
        moves = np.linspace(-1, 1, 9) * sensitivity
        one, other = (m.ravel() for m in np.meshgrid(moves, moves, indexing="ij"))
        inside = np.abs(one - other) <= sensitivity * (1 + 1e-12)
        one, other = one[inside], other[inside]
        without = bit(rule, base)[:, :, None]
        p = mixed(q, without, bit(rule, base[:, None] + one))
        r = mixed(q, without, bit(rule, base[:, None] + other))
        mechanism = SampledDecision(rule, sensitivity, q)
        orders = [1.5, 3.0, 10.0]
        for order, cost in zip(orders, mechanism.renyi(orders), strict=True):
            worst = bit_divergence(p, r, order).max()
            assert worst <= cost * (1 + 1e-5)
            assert cost <= worst * 1.03  # the grid is coarse, the bound is not
        top = float(np.max((p - r)[p > -10]))
        epsilons = np.array([-0.4, -0.1, 0.0, 0.1, 0.2]) * top
        t = np.exp(epsilons)[:, None, None, None]
        excess = np.maximum(np.exp(p) - t * np.exp(r), 0).sum(axis=1)
        worst = excess.max(axis=(1, 2))
        bound = mechanism.privacy_profile(epsilons)
        assert np.all(worst <= bound * (1 + 1e-9))
        assert np.all(bound <= worst * 1.06)

    @given(
        rule=st.sampled_from(RULES),
        sensitivity=st.floats(math.log(1e-3), math.log(5)).map(math.exp),
        q=rate,
        x=st.floats(-10, 25),
        one=st.floats(-1, 1),
        other=st.floats(-1, 1),
        order=st.sampled_from([1.1, 2.0, 8.0, 64.0, 400.0]),
    )
    @settings(max_examples=100, deadline=None)
    def test_no_triple_beats_the_supremum(self, rule, sensitivity, q, x, one, other, order):
        """In 60 digits, with the formulas of the rules written down again."""
        if abs(one - other) > 1:
            other = one - math.copysign(1, one - other)
        with mpmath.workdps(60):
            q_ = mpmath.mpf(q)

            def law(shift):
                return decision_law(rule, mpmath.mpf(x) + mpmath.mpf(shift) * sensitivity)

            without, first, second = law(0), law(one), law(other)
            p = [(1 - q_) * a + q_ * b for a, b in zip(without, first, strict=True)]
            r = [(1 - q_) * a + q_ * b for a, b in zip(without, second, strict=True)]
            order_ = mpmath.mpf(order)
            moment = sum(a**order_ * b ** (1 - order_) for a, b in zip(p, r, strict=True))
            exact = float(mpmath.log(moment) / (order_ - 1))
        cost = SampledDecision(rule, sensitivity, q).renyi([order])[0]
        assert exact <= cost * (1 + 1e-9) + 1e-18

    @pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
    def test_all_records_are_a_plain_decision(self, rule):
        sampled, plain = SampledDecision(rule, 0.7, 1.0), Decision(rule, 0.7)
        epsilons = np.linspace(-1, 1, 11)
        assert np.array_equal(sampled.renyi(ORDERS), plain.renyi(ORDERS))
        assert np.array_equal(sampled.privacy_profile(epsilons), plain.privacy_profile(epsilons))
        nearly = SampledDecision(rule, 0.7, 1 - 1e-9).renyi(ORDERS)
        assert nearly == pytest.approx(plain.renyi(ORDERS), rel=1e-5)

    def test_rules_within_rules(self):
        """Two lazy rules, one inside the other, are one: the search must reach as far."""
        nested = decision_renyi(Lazy(Lazy(Penalty(30.0), 0.9), 0.8), 1.0, (2.0, 10.0))
        flat = decision_renyi(Lazy(Penalty(30.0), 0.72), 1.0, (2.0, 10.0))
        assert nested == pytest.approx(flat, rel=1e-6)

    def test_lazy_metropolis(self):
        """A rule with a kink, at which the worst log-ratio lies: closed form."""
        for weight, sensitivity, q in itertools.product((0.3, 0.99), (1e-3, 0.2), (0.3, 1.0)):
            mechanism = SampledDecision(Lazy(Metropolis(), weight), sensitivity, q)
            top, less = weight, weight * math.exp(-sensitivity)
            top, less = np.log([top, 1 - top]), np.log([less, 1 - less])
            for order in (2.0, 16.0):
                for one, other in ((top, mixed(q, top, less)), (less, mixed(q, less, top))):
                    true = max(bit_divergence(one, other, order), bit_divergence(other, one, order))
                    assert mechanism.renyi([order])[0] >= true * (1 - 1e-9)
