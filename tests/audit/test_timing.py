"""The time of an iteration does not tell about a record: steps on two data sets take turns, with the same proposals and decisions.

In each block both run some iterations, in alternating order, and the median of each is kept. What the machine does besides
hits both alike: without a difference it is chance which of the two is slower in a block, so the interval between two order
statistics of the ratios holds their median but with probability FALSE_ALARM, however loaded the machine is. A leak is an
interval that lies wholly beyond the margin; a control of half as much time again must be found.
"""

from __future__ import annotations

import math
import time
import timeit

import numpy as np
import pytest

from scipy import stats

from tests.audit.audited_samplers import SAMPLERS, budget_for, build, normal_model, same_releases
from tests.audit.replay import Leak

pytestmark = pytest.mark.slow

FALSE_ALARM, MARGIN = 1e-9, 0.15
BLOCKS, PER_BLOCK = 101, 9
#: Of the record: its likelihood is zero, or no number, or as for others but made of the smallest numbers.
VALUES = (1e300, math.inf, 5e-324)


def started(step, seed=1):
    step.set_rng(np.random.default_rng(seed))
    step.stop_tuning()
    return step


def times(steps):
    """Median time of an iteration of each of two steps in each block, shape (BLOCKS, 2)."""
    points, result = [{"mu": np.array(0.1)}] * 2, np.empty((BLOCKS, 2))
    streams = [np.random.default_rng(2) for _ in steps]
    for step, point in zip(steps, points, strict=True):
        with same_releases():
            for _ in range(5):  # warm up
                step.step(point)
    for block in range(BLOCKS):
        for k in (0, 1) if block % 2 else (1, 0):
            spent, seed = [], int(streams[k].integers(2**32))
            with same_releases(seed):
                for _ in range(PER_BLOCK):
                    begin = time.perf_counter()
                    points[k], (row,) = steps[k].step(points[k])
                    spent.append(time.perf_counter() - begin)
            assert not row["exhausted"]
            result[block, k] = np.median(spent)
    return result


def compare(steps):
    """Raise unless the ratio of times may lie within the margin; return the interval of the ratio's median."""
    taken = times(steps)
    ratios = np.sort(np.log(taken[:, 1] / taken[:, 0]))
    k = int(stats.binom.ppf(FALSE_ALARM / 2, BLOCKS, 0.5)) - 1
    low, high = math.exp(ratios[k]), math.exp(ratios[-1 - k])
    if low > 1 + MARGIN or high < 1 / (1 + MARGIN):
        raise Leak(f"times differ by a factor of {low:.3f} to {high:.3f}")
    return low, high


def step_on(name, last):
    return started(build(name, normal_model(last), budget_for(epsilon=math.inf), last))


@pytest.mark.parametrize("name", SAMPLERS)
def test_time_does_not_depend_on_a_record(name):
    plain = step_on(name, 0.4)
    for last in VALUES:
        low, high = compare((plain, step_on(name, last)))
        assert high / low < 3  # else nothing was measured


class Slower:
    """A likelihood that counts some numbers if a record is far out; for half as long again as an iteration takes."""

    def __init__(self, likelihood, count):
        self._likelihood, self._count = likelihood, count

    def __getattr__(self, name):
        return getattr(self._likelihood, name)

    def _delayed(self, theta):
        if np.any(np.abs(self._likelihood.logp(theta)) > 1e9):
            sum(range(self._count))

    def clipped_change(self, new, old, bound):
        self._delayed(new)
        return self._likelihood.clipped_change(new, old, bound)

    def logp_at(self, theta, index):
        self._delayed(theta[0])
        return self._likelihood.logp_at(theta, index)


@pytest.mark.parametrize("name", ["penalty", "DP-Fast MH"])
def test_a_slower_likelihood_is_found(name):
    """Control; and the other way round."""
    plain, far = step_on(name, 0.4), step_on(name, 1e300)
    each = min(timeit.repeat(lambda: sum(range(10_000)), number=1, repeat=21)) / 10_000
    count = int(0.5 * np.median(times((plain, plain))) / each)
    for step in (plain, far):
        object.__setattr__(step, "likelihood", Slower(step.likelihood, count))
    with pytest.raises(Leak):
        compare((plain, far))
    with pytest.raises(Leak):
        compare((far, plain))
