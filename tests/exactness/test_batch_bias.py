"""Tests on batches without replacement are approximate: biased by no more than is stated.

For the penalty and Barker's test on batches the invariant law is computed and compared with the posterior; run this file as a
module (``python -m tests.exactness.test_batch_bias``) for a table.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pymc as pm
import pytest

from scipy import interpolate, ndimage, optimize, stats

from pymc_dp import Barker, DPBarker, DPPenalty, Penalty, RandomWalk
from pymc_dp.steps import accept_reject
from pymc_dp.steps.corrected_barker import CorrectedBarker
from tests.exactness.targets import compiled_once, decide_on, decision_for, move_between
from tests.exactness.test_exactness import HUGE, LIMIT, check, run

# ---------------------------------------------------------------- approximate: tests on batches without replacement

#: Records, standard normal likelihood. States are in posterior standard deviations from the posterior mean, which is 0.
N = 2000
POWER = 200.0  # temperature times N, unless said
DATA = {
    "normal": stats.norm.ppf,
    "exponential": stats.expon.ppf,
    "log-normal": functools.partial(stats.lognorm.ppf, s=1.0),
    "two values": np.sign,
}


@functools.cache
def data(name):
    """Quantiles of a law, with mean 0 and variance 1: the change of each log-likelihood is all but proportional to them."""
    p = (np.arange(N) + 0.5) / N
    y = DATA[name](p - 0.5 if name == "two values" else p)
    return (y - y.mean()) / y.std()


@functools.cache
def batch_moments(name, size, n_batches):
    """Means and variances of batches: the parts of random partitions, so that their mean is that of the data."""
    rng, parts = np.random.default_rng(0), N // size
    drawn = [
        rng.permutation(data(name))[: parts * size].reshape(parts, size)
        for _ in range(-(-n_batches // parts))
    ]
    batches = np.concatenate(drawn)
    return batches.mean(axis=1), batches.var(axis=1)


def estimates(name, size, power, n_batches, move, middle):
    """Estimated log-ratio and variance for each batch, of moves in posterior sd around a middle (flat prior)."""
    mean, variance = batch_moments(name, size, n_batches)
    finite = (N - size) / (N - 1)
    x = move * (math.sqrt(power) * mean - middle)
    return x, np.broadcast_to(move**2 * power / size * finite * variance, x.shape)


@functools.cache
def penalty_table():
    x = np.linspace(0, 40, 8001)
    return x, Penalty(2.0).log_probabilities(x)[0]


def penalty_test(x, v, corrected=True):
    """Probability of accepting with noise of sd 2, by detailed balance and interpolation, within 1e-6 of it."""
    x = x - v / 2 if corrected else x
    return np.exp(np.minimum(x, 0) + np.interp(np.abs(x), *penalty_table()))


@functools.cache
def barker_table():
    x, v = np.linspace(0, 30, 601), np.linspace(0, 1, 41)
    return np.array([CorrectedBarker(1.0, each).log_probabilities(x)[1] for each in v])


def barker_test(x, v, corrected=True):
    """Probability of accepting with ``C = 1``, by interpolation."""
    if not corrected:
        return 1 / (1 + np.exp(-x))
    where = [40 * np.minimum(v, 1), 20 * np.minimum(np.abs(x), 30)]
    less = np.exp(ndimage.map_coordinates(barker_table(), where, order=1, mode="nearest"))
    return np.where(x < 0, less, 1 - less)


def longest_move(test, size, power):
    """In posterior sd: for Barker's test such that with two values the variance stays below 1, in a step too."""
    return math.inf if test is penalty_test else 0.7 * math.sqrt(size / power)


def scale_for(test, size, variance, power):
    """Scale of the proposal at which the mean variance of the error has this value."""

    def mean_square(h):
        top = longest_move(test, size, power) / h
        return h**2 * stats.truncnorm.var(-top, top) if math.isfinite(top) else h**2

    wanted = variance * size / power * (N - 1) / (N - size)
    return optimize.brentq(lambda h: mean_square(h) - wanted, 1e-3, 30) if mean_square(30) > wanted else math.nan  # fmt: skip


def invariant_law(test, name, size, scale, *, power=POWER, n_batches=2000, corrected=True):
    """States, and the invariant distribution of a random walk whose moves are decided on batches.

    The acceptance probability is averaged over batches on a coarse grid and interpolated; the rest is linear algebra.
    """
    longest = min(5 * scale, longest_move(test, size, power))
    moves, middles = np.linspace(-longest, longest, 28), np.linspace(-6.5, 6.5, 41)
    accept = np.empty((len(moves), len(middles)))
    for i, move in enumerate(moves):
        x, v = estimates(name, size, power, n_batches, move, middles[:, None])
        accept[i] = test(x, v, corrected).mean(axis=1)
    surface = interpolate.RectBivariateSpline(moves, middles, np.log(accept))
    states = np.linspace(-6, 6, max(201, math.ceil(72 / scale)))
    old, new = np.meshgrid(states, states, indexing="ij")
    move = np.clip(new - old, -longest, longest)
    matrix = np.exp(surface.ev(move, (old + new) / 2) - 0.5 * ((new - old) / scale) ** 2)
    matrix *= (np.abs(new - old) <= longest) & (new != old)
    matrix *= 1 / np.exp(-0.5 * (np.arange(-longest, longest, states[1] - states[0]) / scale) ** 2).sum()  # fmt: skip
    np.fill_diagonal(matrix, 1 - matrix.sum(axis=1))
    system = matrix.T - np.eye(len(states))
    system[-1] = 1  # it sums to one; the equation replaced follows from the others
    return states, np.linalg.solve(system, np.append(np.zeros(len(states) - 1), 1.0))


def bias(*args, **kwargs):
    """Mean and standard deviation of the invariant law: 0 and 1 if it were the posterior."""
    states, law = invariant_law(*args, **kwargs)
    mean = law @ states
    return mean, math.sqrt(law @ (states - mean) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "name", "variance"),
    [
        (penalty_test, "normal", 1.0),
        (barker_test, "two values", 0.1),
    ],
)
def test_bias_without_skewness(test, name, variance):
    """Mean and sd of the invariant law within 0.4 % of a posterior sd; without the correction the sd is off by several times that."""
    scale = scale_for(test, 200, variance, POWER)
    mean, sd = bias(test, name, 200, scale)
    assert abs(mean) < 0.004
    assert abs(sd - 1) < 0.004
    _, wrong = bias(test, name, 200, scale, corrected=False)
    assert wrong - 1 > 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "name", "sign", "size"),
    [
        (penalty_test, "log-normal", -1, 200),
        (penalty_test, "exponential", -1, 50),
        (barker_test, "exponential", 1, 200),
    ],
)
def test_bias_with_skewness(test, name, sign, size):
    """Skewed changes shift the mean, by about ``0.4 * skewness * v * sqrt(N T) / m`` posterior sd; the spread stays right."""
    scale = scale_for(test, size, 0.1, POWER)
    mean, sd = bias(test, name, size, scale, n_batches=6000)
    about = sign * 0.4 * stats.skew(data(name)) * 0.1 * math.sqrt(POWER) / size
    assert 0.55 < mean / about < 1.2
    assert abs(sd - 1) < 0.01


@pytest.mark.slow
def test_skewness_shifts_a_chain():
    """The step's own chain has the law that was computed, which is then not the posterior: a third of an sd off."""
    exact, draws = approximate_chain("penalty", "log-normal", 50, 0.5, 60_000)
    assert exact.mean() < -0.3
    check(draws, exact)
    with pytest.raises(AssertionError, match="wrong law"):
        check(draws, np.random.default_rng(0).normal(size=(200_000, 1)))


def approximate_step(step, name, size, scale, **kwargs):
    """A step on these data; in a private run it would clip at the same bound."""
    unit = 1 / math.sqrt(POWER)
    test = penalty_test if issubclass(step, DPPenalty) else barker_test
    longest = longest_move(test, size, POWER)
    with compiled_once(name), pm.Model():
        mu = pm.Normal("mu", 0, 1000)
        pm.Normal("y", mu, 1, observed=data(name))
        return step(
            budget=None,
            # A record's change per unit of distance is its distance from the middle of a move.
            clip_bound=1.42 if name == "two values" else HUGE,
            proposal=RandomWalk(scale * unit, max_distance=None if math.isinf(longest) else longest * unit),
            temperature=POWER / N, batch_size=size, reproducible=True, **kwargs,
        )  # fmt: skip


APPROXIMATE = {
    "penalty": (DPPenalty, "exponential", penalty_test, lambda v: Penalty(math.sqrt(4 + v))),
    "Barker": (DPBarker, "two values", barker_test, lambda v: Barker()),
}


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_decision_on_a_given_batch(kind):
    """Estimate, variance and rule are those that the bias was computed with."""
    step, name, test, _ = APPROXIMATE[kind]
    method, size, unit = approximate_step(step, name, 200, 0.5), 200, 1 / math.sqrt(POWER)
    rng, seen = np.random.default_rng(1), []
    for old, new in ((0.3, 0.9), (-1.0, -1.6), (2.0, 1.5)):
        drawn = rng.choice(N, size=size, replace=False)
        move = move_between(method, [old * unit], [new * unit])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accept_reject, "without_replacement", lambda n, m, bits, i=drawn: i)
            patch.setattr(accept_reject, "decide", lambda rule, x, bits: seen.append((rule, x)))
            decide_on(method, move, decision_for(method, move))
        y, d = data(name)[drawn], new - old
        x = d * (math.sqrt(POWER) * y.mean() - (old + new) / 2)
        v = d**2 * POWER / size * (N - size) / (N - 1) * y.var()
        rule, log_ratio = seen[-1]
        assert rule.probability(log_ratio) == pytest.approx(
            test(np.array([x]), np.array([v]))[0], abs=1e-4
        )
        if kind == "penalty":
            assert log_ratio == pytest.approx(x - v / 2, abs=1e-4)
        else:
            assert log_ratio == pytest.approx(x, abs=1e-6)
            assert rule.batch_variance == pytest.approx(v, abs=1e-6)


def check_average(step, exact_rule, move, tolerance=0.003, n=4000):
    """Raise unless the probability of accepting, averaged over batches, is that of an exact rule on all records."""
    unit, seen = 1 / math.sqrt(POWER), []
    for old in (-2.0, 0.5):
        pair = move_between(step, [old * unit], [(old + move) * unit])
        decision = decision_for(step, pair)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                accept_reject,
                "decide",
                lambda rule, x, bits: seen.append(rule.probability(x)),
            )
            seen.clear()
            for _ in range(n):
                decide_on(step, pair, decision)
        v = move**2 * POWER / step.batch_size * (N - step.batch_size) / (N - 1)
        expected = exact_rule(v).probability(-move * (old + move / 2))
        error = np.std(seen) / math.sqrt(n)
        if abs(np.mean(seen) - expected) > tolerance + stats.norm.isf(LIMIT / 2) * error:
            raise AssertionError(f"wrong law: {np.mean(seen):.4f} in place of {expected:.4f}")


class IgnoresTheVariance:
    """Takes the estimate for the log-ratio."""

    def estimated_log_ratio(self, move):
        return super().estimated_log_ratio(move)[0], 0.0


class PenaltyWithoutCorrection(IgnoresTheVariance, DPPenalty):
    pass


class BarkerWithoutCorrection(IgnoresTheVariance, DPBarker):
    pass


class ForgetsHalfTheScale(DPPenalty):
    """Scales the estimate, and not its variance."""

    def estimated_log_ratio(self, move):
        estimate, variance = super().estimated_log_ratio(move)
        return estimate, variance * self.batch_size / self.likelihood.n_records


def average_case(kind, step=None):
    """A step on data without skewness, and moves of variance about 1 for the penalty and 0.4 for Barker."""
    real, _, _, rule = APPROXIMATE[kind]
    move = 1.0 if kind == "penalty" else 0.7 * 0.95
    method = approximate_step(step or real, "two values", 200, 0.5)
    method.set_rng(np.random.default_rng(5))
    method.stop_tuning()
    method._open()
    return method, rule, move


@pytest.mark.slow
@pytest.mark.parametrize("kind", APPROXIMATE)
def test_average_over_batches(kind):
    """Where nothing is skewed the error of the batch is corrected for: within 0.003, for moves of both directions."""
    method, rule, move = average_case(kind)
    check_average(method, rule, move)


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("penalty", PenaltyWithoutCorrection),
        pytest.param("penalty", ForgetsHalfTheScale, marks=pytest.mark.slow),
        ("Barker", BarkerWithoutCorrection),
    ],
)
def test_batches_without_correction_are_found(kind, step):
    method, rule, move = average_case(kind, step)
    with pytest.raises(AssertionError, match="wrong law"):
        check_average(method, rule, move)


def approximate_chain(kind, name, size, scale, n):
    """Draws from the invariant law that was computed, and of a chain; in posterior sd."""
    step, _, test, _ = APPROXIMATE[kind]
    states, law = invariant_law(test, name, size, scale)
    rng, unit = np.random.default_rng(3), 1 / math.sqrt(POWER)
    exact = rng.choice(states, p=np.maximum(law, 0) / np.maximum(law, 0).sum(), size=200_000)
    exact += (states[1] - states[0]) * (rng.random(len(exact)) - 0.5)
    method = approximate_step(step, name, size, scale)
    return exact[:, None], run(method, exact[:1] * unit, n, 4) / unit


def print_table(n_batches=20_000):
    """Table of docs/guarantees.md: 2000 records without tempering, by the mean variance of the error of batches."""
    print("| contributions | `m` | `v = 0.1` | 0.3 | 1 | 3 | sd |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    rows = [("normal", 200), ("exponential", 50), ("exponential", 200), ("exponential", 500), ("log-normal", 200)]  # fmt: skip

    def found(test, name, size, variance):
        scale = scale_for(test, size, variance, float(N))
        return bias(test, name, size, scale, power=float(N), n_batches=n_batches)

    for name, size in rows:
        means, sds = zip(*(found(penalty_test, name, size, v) for v in (0.1, 0.3, 1.0, 3.0)), strict=True)  # fmt: skip
        barker, sd = found(barker_test, name, size, 0.1)
        cells = [f"{mean:+.3f}" for mean in means]
        cells[0] += f" ({barker:+.3f})"
        cells.append(f"{max(*sds, sd) - 1:+.1%}".replace("%", " %"))
        skewness = f"{name} (skewness {stats.skew(data(name)):.1f})"
        print(f"| {skewness} | {size} | {' | '.join(cells)} |")


if __name__ == "__main__":
    print_table()
