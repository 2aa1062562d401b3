"""Published bounds and iteration counts, from the theorems written down again."""

import math

import mpmath
import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.published_bounds import BarkerRelease, MinibatchRelease, moments
from pymc_dp.privacy.accounting.calibration import max_draws
from pymc_dp.privacy.mechanisms.mechanism import ORDERS
from pymc_dp.privacy.mechanisms.subsampled import SampledGaussian

EPSILONS = (1, 2, 4, 6)
DELTA = 1e-6


def gaussian(tau):
    """Rényi divergence of a Gaussian release whose noise variance is ``tau`` squared sensitivities."""
    return lambda j: mpmath.mpf(j) / (2 * mpmath.mpf(tau))


def barker(b):
    """Divergence of the noisy log-ratio of DP Barker on its batch (Theorem 3.3 of Räisä 2021)."""
    b = mpmath.mpf(b)
    return lambda a: (
        5 / (2 * b) + mpmath.log(2 * b / (b - 5 * a)) / (2 * (a - 1)) + 2 * a / (b - 5 * a)
    )


def theorem_9(order, q, divergence, last=True):
    """Wang, Balle, Kasiviswanathan (2019) for a mechanism without pure DP; ``last=False`` forgets the last term of the sum."""
    with mpmath.workdps(40):
        q = mpmath.mpf(q)
        second = mpmath.exp(divergence(2))
        total = 1 + q**2 * mpmath.binomial(order, 2) * min(4 * (second - 1), 2 * second)
        for j in range(3, order + last):
            total += q**j * mpmath.binomial(order, j) * 2 * mpmath.exp((j - 1) * divergence(j))
        return mpmath.log(total) / (order - 1)


def iterations(q, divergence, last, orders):
    """Largest counts within each epsilon, by the moments accountant at whole orders."""
    costs = [(a, theorem_9(a, q, divergence, last)) for a in orders]
    return tuple(
        max(0, *(int(mpmath.floor((e + math.log(DELTA) / (a - 1)) / cost)) for a, cost in costs))
        for e in EPSILONS
    )


def counts(mechanism):
    return tuple(max_draws([(mechanism, 1)], e, DELTA, accountant=moments) for e in EPSILONS)


class TestTheorems:
    """Both bounds at whole orders, and what lies between."""

    @given(z=st.floats(0.3, 30), q=st.floats(1e-4, 1), order=st.integers(2, 40))
    @settings(max_examples=60, deadline=None)
    def test_minibatch(self, z, q, order):
        exact = float(theorem_9(order, q, gaussian(mpmath.mpf(z) ** 2)))
        assert MinibatchRelease(z, q).renyi([order])[0] == pytest.approx(exact, rel=1e-9)

    @given(b=st.integers(16, 5000), more=st.floats(1, 1000), part=st.floats(0, 1))
    @settings(max_examples=60, deadline=None)
    def test_barker(self, b, more, part):
        n, highest = math.ceil(b * more), min(60, (b - 1) // 5)
        order = 3 + int(part * (highest - 3))
        exact = float(theorem_9(order, mpmath.mpf(b) / n, barker(b)))
        assert BarkerRelease(b, n).renyi([order])[0] == pytest.approx(exact, rel=1e-9)

    @pytest.mark.parametrize("b, highest", [(16, 3), (20, 3), (21, 4), (1300, 259), (1301, 260)])
    def test_barker_ends_below_a_fifth_of_the_batch(self, b, highest):
        """``2 alpha / (b - 5 alpha)`` has its pole at ``b / 5``."""
        cost = BarkerRelease(b, 100_000).renyi([highest, highest + 1e-9, highest + 1, b / 5, 1e5])
        assert np.isfinite(cost[0]) and cost[0] > 0
        assert np.all(np.isinf(cost[1:]))

    @pytest.mark.parametrize(
        "mechanism, lowest",
        [(MinibatchRelease(1.3, 0.02), 2), (BarkerRelease(1300, 100_000), 3)],
        ids=["minibatch", "Barker"],
    )
    def test_between_whole_orders(self, mechanism, lowest):
        """On the chord of the cumulant, which is 0 at order 1; infinite beyond the highest order."""

        def cumulant(order):
            return (order - 1) * mechanism.renyi([order])[0]

        assert cumulant(1.25) == pytest.approx(cumulant(lowest) * 0.25 / (lowest - 1), rel=1e-12)
        middle = 0.7 * cumulant(5) + 0.3 * cumulant(6)
        assert cumulant(5.3) == pytest.approx(middle, rel=1e-12)
        everywhere = mechanism.renyi(ORDERS)
        single = np.array([mechanism.renyi([a])[0] for a in ORDERS])
        assert np.array_equal(np.isfinite(everywhere), np.isfinite(single))
        assert everywhere == pytest.approx(single, rel=1e-12)
        assert np.all(np.isinf(mechanism.renyi([1000.5, 5000.0])))


class TestCounts:
    """Iterations at epsilon 1, 2, 4, 6 and delta = 1e-6, as Räisä (2021) has them."""

    def test_barker(self):
        assert counts(BarkerRelease(1300, 100_000)) == (106, 433, 1687, 3640)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "tau, whole, without_last",
        [
            (0.7, (0, 0, 272, 961), (0, 0, 329, 991)),
            (1.5, (0, 285, 1237, 2705), (0, 292, 1237, 2705)),
            (2.0, (60, 451, 1826, 3977), (64, 451, 1826, 3977)),
        ],
    )
    def test_minibatch_penalty(self, tau, whole, without_last):
        """Erratum: forgetting the last term of the theorem's sum allows more iterations than were proved."""
        orders = range(2, 90)
        assert counts(MinibatchRelease(math.sqrt(tau), 0.01)) == whole
        assert iterations(0.01, gaussian(tau), True, orders) == whole
        assert iterations(0.01, gaussian(tau), False, orders) == without_last

    @pytest.mark.parametrize("tau, least", [(0.7, 1.9), (1.5, 2.7), (2.0, 2.8)])
    def test_the_same_release_costs_less(self, tau, least):
        """The package's own bounds allow that many times more at epsilon 4 with the same conversion, and three times with its own."""
        z = math.sqrt(tau)
        ours = SampledGaussian(z, 0.01, "without_replacement", "substitute")
        published = counts(MinibatchRelease(z, 0.01))[2]
        assert max_draws([(ours, 1)], 4, DELTA, accountant=moments) > least * published
        assert max_draws([(ours, 1)], 4, DELTA, accountant="rdp") > 3 * published
