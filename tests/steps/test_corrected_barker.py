"""The correction distribution: how near to the logistic, how steep, and that it corrects."""

import math

import mpmath
import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit, logsumexp

from pymc_dp.acceptance import AcceptanceRule, Barker, Lazy
from pymc_dp.privacy.mechanisms.subsampled import SampledDecision
from pymc_dp.steps import corrected_barker as correction
from pymc_dp.steps.corrected_barker import CorrectedBarker, mixture, slopes
from tools.fit_corrected_barker import fit

# What the documentation states: largest error, and relative error of the tails.
STATED = {1.0: (1.0e-6, 1.02e-4), 2.0: (7.61e-4, 0.0301)}
ORDERS = np.array([1.01, 1.5, 2.0, 4.0, 16.0, 64.0])

each_c = pytest.mark.parametrize("c", [1.0, pytest.param(2.0, marks=pytest.mark.slow)])
xs = st.floats(-60, 60)
shares = st.floats(0, 1)  # of the largest variance


def log_odds(x, c, v):
    accept, reject = CorrectedBarker(c, v).log_probabilities(np.asarray(x))
    return accept - reject


@each_c
class TestMixture:
    def test_is_a_symmetric_distribution(self, c):
        law = mixture(c)
        assert np.all(law.weights > 0)
        assert np.all(law.variances > 0)  # smooth even where the batch takes all of C
        assert law.weights.sum() == pytest.approx(1, abs=1e-14)
        for values, sign in ((law.means, -1), (law.variances, 1), (law.weights, 1)):
            assert np.array_equal(values, sign * values[::-1])

    def test_error_is_the_stated_one(self, c):
        """By another formula, on both sides, between the points at which it was measured."""
        law = mixture(c)
        components = stats.norm(law.means, np.sqrt(c + law.variances))
        x = np.array_split(np.arange(-12, 12, 7.1e-4), 20)
        error = [np.abs(components.cdf(part[:, None]) @ law.weights - expit(part)) for part in x]
        assert max(map(np.max, error)) == pytest.approx(law.sup_error, rel=1e-4)
        assert law.sup_error <= STATED[c][0]
        # Beyond, both distribution functions are nearer than that to their limits together.
        assert 2 * expit(-12) * STATED[c][1] < law.sup_error

    def test_error_by_convolution(self, c):
        """The distribution function of a sum of two random variables, from the density of each."""
        law, step = mixture(c), 2.0**-7
        y = np.arange(-45, 45, step)
        density = stats.norm(law.means, np.sqrt(law.variances)).pdf(y[:, None]) @ law.weights
        for x in (-7.0, -1.3, 0.0, 0.4, 2.5, 11.0):
            total = step * np.sum(density * stats.norm.cdf((x - y) / math.sqrt(c)))
            assert total == pytest.approx(CorrectedBarker(c).probability(x), abs=1e-13)
            assert abs(total - expit(x)) <= law.sup_error


# The second fit takes seconds more than the first.
@pytest.mark.slow
@pytest.mark.parametrize("c", [1.0, 2.0])
def test_can_be_made_again(c):
    """Solvers may differ in last digits and among equally good weights: not in what they achieve."""
    stored, law = mixture(c), fit(c)
    assert law.sup_error == pytest.approx(stored.sup_error, rel=1e-2)
    x = np.arange(0, 30, 0.01)[:, None]
    for v, apart in ((0.0, 2.1 * stored.sup_error), (0.5, 20 * stored.sup_error)):
        assert np.abs(law.upper_tail(x, c - v) - stored.upper_tail(x, c - v)).max() <= apart
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(correction, "mixture", lambda c: law)
        assert slopes.__wrapped__(c, 1.0) == pytest.approx(slopes(c, 1.0), rel=0.05)


@each_c
class TestRule:
    def test_shows_no_private_value(self, c):
        rule = CorrectedBarker(c, 0.123456)
        assert isinstance(rule, AcceptanceRule) and not rule.private
        assert "123456" not in rule.name + repr(rule) + str(rule)
        assert rule.name == f"corrected Barker(C={c:g})"

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.97, 1.0])
    def test_against_high_precision(self, c, share):
        """Both logs, relative, far into both tails; beyond the cut the smaller probability is exponential."""
        v = share * c
        law, rule = mixture(c), CorrectedBarker(c, v)
        with mpmath.workdps(40):
            sds = [
                mpmath.sqrt(mpmath.mpf(c) - mpmath.mpf(v) + mpmath.mpf(s)) for s in law.variances
            ]
            total = mpmath.fsum(map(mpmath.mpf, law.weights))
            for x in (0.0, 1e-9, 0.3, 1.0, 4.0, 11.0, 19.9, 20.0, 20.1, 33.0, 700.0):
                inside = min(mpmath.mpf(x), 20)
                terms = (
                    w * mpmath.ncdf((m - inside) / s)
                    for m, s, w in zip(law.means, sds, law.weights, strict=True)
                )
                tail = mpmath.fsum(terms) / total * mpmath.exp(inside - mpmath.mpf(x))
                less, more = float(mpmath.log(tail)), float(mpmath.log1p(-tail))
                for sign, expected in ((1, (more, less)), (-1, (less, more))):
                    for value in (sign * x, np.array(sign * x)):
                        found = rule.log_probabilities(value)
                        assert [float(f) for f in found] == pytest.approx(expected, rel=1e-12)

    @given(x=xs, share=shares)
    def test_symmetric(self, c, x, share):
        rule = CorrectedBarker(c, share * c)
        there, back = rule.log_probabilities(x), rule.log_probabilities(-x)
        assert there == (back if x == 0 else back[::-1])
        assert math.exp(there[0]) + math.exp(there[1]) == pytest.approx(1, abs=1e-15)
        assert rule.probability(x) == math.exp(there[0])

    @given(x=xs, step=st.floats(1e-6, 10), share=shares)
    def test_monotone(self, c, x, step, share):
        rule = CorrectedBarker(c, share * c)
        (a0, r0), (a1, r1) = rule.log_probabilities(x), rule.log_probabilities(x + step)
        assert a1 >= a0 - 1e-14 * (1 + abs(a0))
        assert r1 <= r0 + 1e-14 * (1 + abs(r0))

    def test_limits_and_shapes(self, c):
        rule = CorrectedBarker(c, c)
        assert rule.probability(math.inf) == 1
        assert rule.probability(-math.inf) == 0
        assert rule.probability(0) == pytest.approx(0.5, abs=1e-15)
        assert math.isnan(rule.probability(math.nan))
        accept, reject = rule.log_probabilities(np.array([[-math.inf, -3.0], [math.inf, 0.0]]))
        assert accept.shape == reject.shape == (2, 2)
        assert accept[0, 0] == reject[1, 0] == -math.inf
        assert accept[1, 0] == reject[0, 0] == 0

    def test_tails_are_logistic(self, c):
        """Relative to the smaller probability, as far out as anyone will look."""
        x = np.concatenate([np.arange(0, 40, 0.003), [100.0, 600.0]])
        small = CorrectedBarker(c).log_probabilities(-x)[0]
        assert np.abs(np.expm1(small + np.logaddexp(0, x))).max() <= STATED[c][1]


@each_c
class TestCorrects:
    """Averaged over the error of the batch, the rule is Barker's."""

    @staticmethod
    def averaged(x, v, rule):
        z, step = np.linspace(-9, 9, 1201, retstep=True)  # so smooth that sums are exact
        probabilities = np.exp(rule.log_probabilities(x[:, None] + math.sqrt(v) * z)[0])
        return step * probabilities @ stats.norm.pdf(z)

    @pytest.mark.parametrize("v", [0.05, 0.3, 1.0])
    def test_averages_to_barker(self, c, v):
        """Ignoring the error of the batch is off by orders of magnitude."""
        x = np.linspace(-9, 9, 41)
        right, wrong = (
            np.abs(self.averaged(x, v, rule) - expit(x)).max()
            for rule in (CorrectedBarker(c, v), CorrectedBarker(c))
        )
        assert right <= mixture(c).sup_error * (1 + 1e-6)
        assert v < 0.3 or wrong > max(10 * mixture(c).sup_error, 0.01 * v)


SLOPES = [(1.0, 0.0), (1.0, 0.1), (1.0, 0.5), (1.0, 1.0), (2.0, 0.1), (2.0, 1.0), (2.0, 2.0)]


@pytest.mark.parametrize(("c", "largest"), SLOPES)
def test_slopes_bound_differences(c, largest):
    """At random points, in the tails, beyond the cut, and at the end of the range of v."""
    rng = np.random.default_rng(7)
    in_x, in_v = slopes(c, largest)
    x = np.concatenate(
        [rng.uniform(0, 12, 4000), rng.uniform(-30, 30, 300), np.linspace(19, 21, 50)]
    )
    h, steepest = 1e-6, [0.0, 0.0]
    for v in [largest, *(largest * rng.uniform(size=3))]:
        odds = log_odds(np.array([x, x + h]), c, v)
        steepest[0] = max(steepest[0], np.abs(np.diff(odds, axis=0)).max() / h)
        if v >= h:
            change = np.abs(log_odds(x, c, v) - log_odds(x, c, v - h))
            steepest[1] = max(steepest[1], change.max() / h)
    assert steepest[0] <= in_x + 1e-7
    assert steepest[1] <= in_v + 1e-7
    assert in_x <= 1.005 * steepest[0]
    if largest:
        assert in_v <= 1.005 * steepest[1]


def test_slopes_as_reported():
    assert slopes(1.0, 1.0) == pytest.approx((1.714, 1.649), abs=0.002)
    assert slopes(1.0, 0.5) == pytest.approx((1.174, 0.531), abs=0.002)
    assert slopes(1.0, 0.1) == pytest.approx((1.026, 0.502), abs=0.002)
    assert slopes(2.0, 1.0) == pytest.approx((1.376, 0.823), abs=0.002)


class TestDomination:
    """One record that moves x by up to D and v by up to E reveals no more than plain Barker at eta."""

    @staticmethod
    def renyi(one, other):
        """Rényi divergences of two laws of a bit, given as logs of both probabilities."""
        terms = [ORDERS * a + (1 - ORDERS) * b for a, b in zip(one, other, strict=True)]
        return logsumexp(terms, axis=0) / (ORDERS - 1)

    @staticmethod
    def mixed(without, given, q):
        logs = zip(without, given, strict=True)
        return [np.logaddexp(math.log1p(-q), math.log(q) + b - a) + a for a, b in logs]

    @settings(deadline=None)
    @given(
        x=st.floats(-25, 25),
        steps=st.tuples(*[st.floats(0, 1)] * 3),
        shares=st.tuples(*[st.floats(0, 1)] * 3),
        q=st.sampled_from([0.01, 0.3, 0.9]),
        c=st.sampled_from([1.0, 2.0]),
        largest=st.sampled_from([0.1, 1.0]),
    )
    def test_of_the_subsampled_bit(self, x, steps, shares, q, c, largest):
        d, e = 0.3, 0.1
        start = shares[0] * (largest - e)
        laws = [
            CorrectedBarker(c, start + e * share).log_probabilities(x + d * step)
            for step, share in zip(steps, shares, strict=True)
        ]
        one, other = (self.mixed(laws[0], law, q) for law in laws[1:])
        in_x, in_v = slopes(c, largest)
        bound = SampledDecision(Barker(), in_x * d + in_v * e, q).renyi(ORDERS)
        assert np.all(self.renyi(one, other) <= bound * (1 + 1e-6) + 1e-13)

    @pytest.mark.parametrize("largest", [0.5, 1.0])
    def test_control_with_slope_one(self, largest, d=0.3):
        """To account for plain Barker at the sensitivity of the log-ratio alone would be too little."""
        rule = CorrectedBarker(1.0, largest)
        x = np.linspace(-2, 2, 401)
        spent = [self.renyi(rule.log_probabilities(t + d), rule.log_probabilities(t)) for t in x]
        charged = SampledDecision(Barker(), d, 1.0).renyi(ORDERS)
        assert np.all(np.max(spent, axis=0) > charged)


class TestRefuses:
    @pytest.mark.parametrize("made", [CorrectedBarker, lambda c: slopes(c, 0.0)])
    def test_other_noise_variances(self, made):
        for c in (0.0, 1.5, -1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match=r"1\.0 or 2\.0"):
                made(c)

    @pytest.mark.parametrize("c", [1.0, 2.0])
    @pytest.mark.parametrize("excess", [0.0345678, 1e-8, math.inf])
    def test_too_large_a_batch_variance(self, c, excess):
        with pytest.raises(ValueError, match="The batch variance must lie") as raised:
            CorrectedBarker(c, c + excess)
        assert str(c + excess) not in str(raised.value)
        with pytest.raises(ValueError, match="largest batch variance"):
            slopes(c, c + excess)

    @pytest.mark.parametrize("v", [-1e-3, -math.inf, math.nan])
    def test_no_variance(self, v):
        with pytest.raises(ValueError, match="batch variance") as raised:
            CorrectedBarker(1.0, v)
        assert str(v) not in str(raised.value)

    def test_rounding_errors_are_accepted(self):
        assert CorrectedBarker(1.0, 1 + 1e-10) == CorrectedBarker(1.0, 1.0)
        assert CorrectedBarker(1, 0) == CorrectedBarker()


def test_laziness_does_not_make_it_private():
    """What one record does to the batch variance is not part of any sensitivity of the log-ratio."""
    lazy = Lazy(CorrectedBarker(), 0.5)
    assert not lazy.private
    with pytest.raises(ValueError, match="no finite privacy cost"):
        SampledDecision(lazy, 0.1, 0.5)
