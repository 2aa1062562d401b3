"""Acceptance rules: detailed balance, both tails, and the law they stand for."""

import functools
import math

import mpmath
import numpy as np
import pytest

from hypothesis import given
from hypothesis import strategies as st

from pymc_dp.acceptance import AcceptanceRule, Barker, Lazy, Metropolis, Penalty

RULES = [
    *(Penalty(s) for s in (0.05, 0.5, 1.0, 1.4, 3.0, 20.0)),
    Barker(),
    Metropolis(),
    Lazy(Penalty(1.4), 0.5),
    Lazy(Barker(), 0.1),
    Lazy(Penalty(0.7), 1.0),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
class TestContract:
    """What every rule must satisfy."""

    @given(x=st.floats(-700, 700))
    def test_detailed_balance(self, rule, x):
        there, back = (float(rule.log_probabilities(v)[0]) for v in (x, -x))
        assert there - back == pytest.approx(x, rel=1e-11, abs=1e-11)

    @given(x=st.floats(-50, 50))
    def test_probabilities_sum_to_one(self, rule, x):
        accept, reject = rule.log_probabilities(x)
        assert math.exp(accept) + math.exp(reject) == pytest.approx(1, abs=1e-13)
        assert rule.probability(x) == pytest.approx(math.exp(accept), abs=1e-15)

    @given(x=st.floats(-100, 100), step=st.floats(1e-6, 10))
    def test_monotone(self, rule, x, step):
        (a0, r0), (a1, r1) = rule.log_probabilities(x), rule.log_probabilities(x + step)
        assert a1 >= a0 - 1e-13 * (1 + abs(a0))
        assert r1 <= r0 or r1 - r0 < 1e-13 * (1 + abs(r0))

    def test_limits(self, rule):
        top = rule.weight if isinstance(rule, Lazy) else 1.0
        assert rule.probability(math.inf) == pytest.approx(top)
        assert rule.probability(-math.inf) == 0

    def test_is_a_rule(self, rule):
        assert isinstance(rule, AcceptanceRule)
        assert rule.private == (not isinstance(rule, Metropolis))


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 1.4, 10.0, 40.0])
def test_penalty_against_high_precision(scale):
    """Both logs to 1e-11, far into both tails, against 60-digit arithmetic."""
    with mpmath.workdps(60):
        s = mpmath.mpf(scale)
        for x in (-700, -30, -1, -1e-3, -1e-6, 0, 1e-9, 0.01, 1, 4, 20, 300):
            if x / scale > 500:
                continue
            t = mpmath.mpf(x)
            accept = mpmath.ncdf(t / s - s / 2) + mpmath.e**t * mpmath.ncdf(-t / s - s / 2)
            reject = mpmath.ncdf(-t / s + s / 2) - mpmath.e**t * mpmath.ncdf(-t / s - s / 2)
            got = Penalty(scale).log_probabilities(x)
            assert float(got[0]) == pytest.approx(float(mpmath.log(accept)), rel=1e-11, abs=1e-11)
            assert float(got[1]) == pytest.approx(float(mpmath.log(reject)), rel=1e-11, abs=1e-11)


@given(x=st.floats(-1e6, 1e6), scale=st.floats(0.01, 50))
def test_penalty_of_a_float_is_that_of_an_array(x, scale):
    one, many = Penalty(scale).log_probabilities(x), Penalty(scale).log_probabilities(np.array([x]))
    for a, b in zip(one, many, strict=True):
        assert float(a) == pytest.approx(b[0], rel=1e-12, abs=1e-13)


@functools.cache
def quadrature():
    return np.polynomial.legendre.leggauss(2000)


@pytest.mark.parametrize("log_ratio", [-3.0, -0.5, 0.0, 0.8, 4.0])
def test_penalty_is_metropolis_with_noise_averaged_out(log_ratio):
    """The second way to the number: integrate min(1, exp(lambda + xi - s^2/2)) over xi."""
    s = 1.3
    nodes, weights = quadrature()
    kink = (s**2 / 2 - log_ratio) / s  # integrate on both sides of it
    total = 0.0
    for low, high in ((-12, kink), (kink, 12)):
        xi = (high - low) / 2 * nodes + (high + low) / 2
        density = np.exp(-(xi**2) / 2) / math.sqrt(2 * math.pi)
        total += (
            (high - low)
            / 2
            * np.sum(weights * density * np.exp(np.minimum(0, log_ratio + s * xi - s**2 / 2)))
        )
    assert Penalty(s).probability(log_ratio) == pytest.approx(total, rel=1e-12)


def test_a_wrong_correction_breaks_detailed_balance():
    """Negative control: without the -s^2/2 the rule is not exact, and the property test would say so."""
    s, x = 1.0, 0.7

    def uncorrected(t):
        return Penalty(s).probability(t + s**2 / 2)

    assert uncorrected(x) / uncorrected(-x) != pytest.approx(math.exp(x), rel=0.05)
