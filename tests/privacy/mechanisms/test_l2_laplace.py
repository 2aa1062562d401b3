"""The l2 mechanism: its law of the loss against integrals over the noise itself, and against Laplace's."""

import math

from itertools import pairwise

import numpy as np
import pytest

from scipy import integrate
from scipy.special import gammaln, ndtri

from pymc_dp.privacy import Gaussian, L2Laplace, epsilon_of
from pymc_dp.privacy.mechanisms.mechanism import ORDERS, gaussian_profile

CASES = [(0.05, 2), (1.0, 2), (1.0, 3), (3.0, 4), (0.5, 10), (20.0, 3)]


def expected(of_loss, epsilon, d, kinks=()):
    """Expectation of a function of the loss: over the length of the noise, and its angle with the difference."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    cuts = [-1.0, 1.0]
    log_angle = gammaln(d / 2) - gammaln((d - 1) / 2) - 0.5 * math.log(math.pi)

    def given_length(r):
        # Where the loss has a kink, the interval of cosines is cut.
        at = [((r + k / epsilon) ** 2 - r * r - 1) / (2 * r) for k in kinks]
        ends = sorted({*cuts, *(c for c in at if -1 < c < 1)})
        total = 0.0
        for low, high in pairwise(ends):
            a, b = math.acos(high), math.acos(low)
            angle = (a + b) / 2 + (b - a) / 2 * nodes
            loss = epsilon * (np.sqrt(r * r + 2 * r * np.cos(angle) + 1) - r)
            density = math.exp(log_angle) * np.sin(angle) ** (d - 2)
            total += (b - a) / 2 * float(weights @ (of_loss(loss) * density))
        log_length = (d - 1) * math.log(r) + d * math.log(epsilon) - epsilon * r - gammaln(d)
        return math.exp(log_length) * total

    far = (d + 40 * math.sqrt(d) + 60) / epsilon
    parts = np.linspace(0, far, 9)
    return sum(
        integrate.quad(given_length, a, b, epsabs=1e-13, epsrel=1e-10, limit=200)[0]
        for a, b in pairwise(parts)
    )


@pytest.mark.parametrize(("epsilon", "d"), CASES)
@pytest.mark.parametrize("order", [1.1, 3.0, 40.0])
def test_renyi_divergence_is_that_of_the_noise(epsilon, d, order):
    power = order - 1
    moment = expected(lambda loss: np.exp(power * (loss - epsilon)), epsilon, d)
    direct = math.log(moment) / power + epsilon
    bound = float(L2Laplace(epsilon, d).renyi(order))
    assert bound == pytest.approx(direct, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "d"), CASES)
@pytest.mark.parametrize("part", [-0.7, 0.0, 0.3, 0.9])
def test_privacy_profile_is_that_of_the_noise(epsilon, d, part):
    t = part * epsilon
    direct = expected(lambda loss: np.maximum(-np.expm1(t - loss), 0), epsilon, d, kinks=(t,))
    bound = float(L2Laplace(epsilon, d).privacy_profile(t))
    assert bound == pytest.approx(direct, rel=1e-4, abs=1e-11)
    assert bound >= direct * (1 - 1e-8)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0])
def test_one_dimension_is_laplace(epsilon):
    mechanism, a = L2Laplace(epsilon, 1), np.array([1.5, 4.0, 100.0])
    both = np.logaddexp(
        np.log(a / (2 * a - 1)) + (a - 1) * epsilon, np.log((a - 1) / (2 * a - 1)) - a * epsilon
    )
    assert mechanism.renyi(a) == pytest.approx(both / (a - 1), rel=1e-6)
    t = np.linspace(-0.99, 0.99, 7) * epsilon
    assert mechanism.privacy_profile(t) == pytest.approx(-np.expm1((t - epsilon) / 2), rel=1e-6)


@pytest.mark.parametrize(("epsilon", "d"), [(1.0, 1), *CASES, (1.0, 200), (0.5, 1000)])
def test_renyi_curve_grows_from_below_to_epsilon(epsilon, d):
    curve = L2Laplace(epsilon, d).renyi(ORDERS)
    assert np.all(np.diff(curve) >= -1e-8 * curve[1:] - 1e-11)
    assert np.all(curve <= epsilon)
    assert curve[-1] > 0.95 * epsilon or d > 100
    assert np.all(L2Laplace(0.99 * epsilon, d).renyi(ORDERS) < curve)  # shorter differences


@pytest.mark.parametrize(("epsilon", "d"), [(1.0, 1), *CASES, (1.0, 200), (300.0, 2)])
def test_gaussian_dp_covers_the_profile_and_hardly_more(epsilon, d):
    mechanism = L2Laplace(epsilon, d)
    t = np.linspace(0, epsilon, 4001)  # the knots, where the profile is exact
    profile = mechanism.privacy_profile(t)
    seen = profile > 1e-280

    def excess(mu):
        return profile[seen] - np.exp(gaussian_profile(t[seen], mu))

    assert np.all(excess(mechanism.gaussian_mu) <= 1e-9 * profile[seen])
    if epsilon < 100:  # beyond, profiles are 1 up to rounding where they would differ
        assert np.any(excess(mechanism.gaussian_mu * (1 - 1e-3)) > 0)
    # The test that compares best is which of the two sums is nearer.
    above = expected(lambda loss: loss > 0, epsilon, d, kinks=(0.0,)) if 1 < d < 20 else None
    if above is not None and epsilon < 10:
        assert mechanism.gaussian_mu == pytest.approx(2 * ndtri(above), rel=1e-4)


def test_many_dimensions_are_a_gaussian():
    d = 2000
    mechanism = L2Laplace(1.0, d)
    assert mechanism.gaussian_mu == pytest.approx(1 / math.sqrt(d + 1), rel=2e-3)
    assert mechanism.renyi(8.0) == pytest.approx(4 / (d + 1), rel=5e-3)


@pytest.mark.parametrize("arguments", [(0, 2), (math.inf, 2), (501, 2), ("1", 2), (1.0, 0)])
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match=r"epsilon|n_dim"):
        L2Laplace(*arguments)


class TestPrivacyLossDistribution:
    """The library's own Laplace mechanism, and its composition with a Gaussian, as a second opinion."""

    @pytest.mark.parametrize(("epsilon", "count"), [(0.5, 1), (0.3, 3), (0.1, 9)])
    def test_one_dimension(self, epsilon, count):
        pytest.importorskip("dp_accounting")
        from dp_accounting.pld import privacy_loss_distribution as library

        laplace = library.from_laplace_mechanism(1 / epsilon, value_discretization_interval=1e-4)
        gaussian = library.from_gaussian_mechanism(20.0, value_discretization_interval=1e-4)
        theirs = laplace.self_compose(count).compose(gaussian).get_epsilon_for_delta(1e-6)
        accesses = [(L2Laplace(epsilon, 1), count), (Gaussian(20.0), 1)]
        ours = epsilon_of(accesses, 1e-6, "pld")
        assert ours == pytest.approx(theirs, rel=2e-3)
        assert epsilon_of(accesses, 1e-6) == ours
