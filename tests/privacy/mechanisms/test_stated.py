"""Releases of which only the guarantee is known: closed forms against randomized response, and what dominates them."""

import math

import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from pymc_dp.privacy import Gaussian, L2Laplace, PureDP, ZeroConcentratedDP, delta_of, epsilon_of
from pymc_dp.privacy.accounting import pld
from pymc_dp.privacy.mechanisms.mechanism import ORDERS
from pymc_dp.privacy.mechanisms.stated import stated

EPSILONS = st.floats(1e-3, 30)


def randomized_response(epsilon):
    p = 1 / (1 + math.exp(-epsilon))
    return np.array([p, math.exp(-epsilon) * p])


class TestPureDP:
    @given(epsilon=EPSILONS, order=st.floats(1.01, 20))
    @settings(deadline=None)
    def test_renyi_is_that_of_randomized_response(self, epsilon, order):
        p = randomized_response(epsilon)
        direct = math.log(np.sum(p**order * p[::-1] ** (1 - order))) / (order - 1)
        assert PureDP(epsilon).renyi([order])[0] == pytest.approx(direct, rel=1e-6, abs=1e-13)

    @given(epsilon=EPSILONS)
    @settings(deadline=None)
    def test_zcdp_is_the_smallest(self, epsilon):
        """Never below the divergence over the order, and equal to it at order 1."""
        rho, renyi = PureDP(epsilon).zcdp, PureDP(epsilon).renyi
        assert rho <= epsilon**2 / 2 * (1 + 1e-8)
        assert np.all(renyi(ORDERS) <= rho * ORDERS)
        assert renyi([1 + 1e-6])[0] == pytest.approx(rho, rel=1e-4)

    @given(epsilon=EPSILONS)
    @settings(deadline=None)
    def test_trade_off_curve_lies_above_that_of_mu(self, epsilon):
        """Of every pure release, max(0, 1 - e^eps x, e^-eps (1 - x)); it touches that of mu at its vertex."""
        x, mu = np.append(np.linspace(1e-9, 1, 2001), randomized_response(epsilon)[1]), PureDP(epsilon).gaussian_mu  # fmt: skip
        pure = np.maximum(1 - math.exp(epsilon) * x, math.exp(-epsilon) * (1 - x))
        gap = np.maximum(pure, 0) - norm.cdf(norm.isf(x) - mu)
        assert gap.min() >= -1e-15 and gap[-1] == pytest.approx(0, abs=1e-8)
        assert mu == pytest.approx(2 * norm.isf(randomized_response(epsilon)[1]), rel=1e-6)

    def test_a_smaller_mu_is_found(self):
        x, mu = randomized_response(1.0)[1], 0.999 * PureDP(1.0).gaussian_mu
        assert norm.cdf(norm.isf(x) - mu) > x

    @given(epsilon=EPSILONS, t=st.floats(-40, 40))
    @settings(deadline=None)
    def test_profile(self, epsilon, t):
        p = randomized_response(epsilon)
        direct = np.sum(np.maximum(p - math.exp(t) * p[::-1], 0))
        assert PureDP(epsilon).privacy_profile(t) == pytest.approx(direct, rel=1e-7, abs=1e-14)

    @pytest.mark.parametrize("release", [L2Laplace(1.0, 1), L2Laplace(1.0, 8)], ids=str)
    def test_it_dominates_a_release(self, release):
        pure = PureDP(1.0)
        assert np.all(release.renyi(ORDERS) <= pure.renyi(ORDERS))
        assert release.gaussian_mu <= pure.gaussian_mu
        t = np.linspace(-3, 3, 100)
        assert np.all(release.privacy_profile(t) <= pure.privacy_profile(t) * (1 + 1e-8))

    def test_extremes(self):
        for epsilon in (1e-12, 500.0):
            pure = PureDP(epsilon)
            assert 0 < pure.zcdp and 0 < pure.gaussian_mu < math.inf
            assert np.all((pure.renyi(ORDERS) > 0) & (pure.renyi(ORDERS) <= epsilon))
        assert PureDP(0.25).for_group(3) == PureDP(0.75)

    @pytest.mark.skipif(not pld.AVAILABLE, reason="the extra 'pld' is not installed")
    def test_many_compose_by_their_losses(self):
        """The number of true bits is binomial: the delta of 20 bits, exactly."""
        n, epsilon, total = 20, 0.2, 1.5
        p = randomized_response(epsilon)[0]
        k = np.arange(n + 1)
        loss = (2 * k - n) * epsilon
        mass = np.exp([math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in k])
        mass = mass * p**k * (1 - p) ** (n - k)
        exact = float(np.sum(mass * np.maximum(1 - np.exp(total - loss), 0)))
        found = delta_of([(PureDP(epsilon), n)], total, accountant="pld")
        assert exact <= found <= 1.1 * exact


def test_zcdp():
    release = ZeroConcentratedDP(0.02)
    np.testing.assert_allclose(release.renyi(ORDERS), 0.02 * ORDERS)
    assert np.all(Gaussian(5.0).renyi(ORDERS) == pytest.approx(release.renyi(ORDERS)))
    assert release.gaussian_mu is None and release.pure_epsilon == math.inf
    assert release.for_group(3) == ZeroConcentratedDP(0.18)
    assert epsilon_of([(release, 2)], 1e-6) >= epsilon_of([(Gaussian(5.0), 2)], 1e-6)


def test_what_is_stated():
    assert stated(0.5, None, None) == PureDP(0.5)
    assert stated(None, 0.5, None) == ZeroConcentratedDP(0.5)
    assert stated(None, None, 0.25) == Gaussian(4.0)
    assert "0.5" in PureDP(0.5).name and "0.5" in ZeroConcentratedDP(0.5).name
    for values, message in [
        ((None, None, None), "none of them"),
        ((0.5, 0.1, None), r"'epsilon': 0.5, 'rho': 0.1"),
        ((-1.0, None, None), "must be positive and finite, got -1.0"),
        ((None, None, math.inf), "mu must be positive and finite, got inf"),
        ((None, "much", None), "rho of a release must be positive and finite, got 'much'"),
    ]:
        with pytest.raises(ValueError, match=message):
            stated(*values)
