"""Epsilon and delta of a composition, the largest number of draws within them, and the least noise.

Results are on the safe side: an epsilon or delta is never below the proved value, a number of draws never above
it, calibrated noise never below it. The accountants are those of :mod:`pymc_dp.privacy.accounting.composition`.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Mapping
from typing import Any

from scipy.optimize import brentq

from pymc_dp.arguments import as_float, check_epsilon_delta
from pymc_dp.privacy.accounting.composition import (
    Bound,
    Cost,
    accountants_for,
    check_pure,
)
from pymc_dp.privacy.mechanisms.mechanism import Accesses

#: Largest number of draws that is planned for a schedule: costs that fall fast may allow infinitely many.
MOST_SCHEDULED = 20_000


def epsilon_of(accesses: Accesses, delta: float, accountant: str | Bound = "best") -> float:
    """Epsilon of a composition.

    Parameters
    ----------
    accesses : iterable of (Mechanism, float)
        What was accessed, and how often.
    delta : float
        In [0, 1).
    accountant : {"best", "rdp", "gaussian", "pld", "pure"} or callable
        How to compose: a name, or a function of a cost and a delta.

    Returns
    -------
    float
        Infinite if the accountant has no finite bound for these mechanisms.

    Examples
    --------
    A hundred noisy sums, each with twenty times as much noise as its sensitivity:

    >>> round(dp.privacy.epsilon_of([(dp.privacy.Gaussian(20.0), 100)], delta=1e-6), 2)
    2.25
    """
    return Cost.of(accesses).epsilon(delta, accountant)


def delta_of(accesses: Accesses, epsilon: float, accountant: str = "best") -> float:
    """Delta of a composition at a given epsilon.

    Parameters
    ----------
    accesses : iterable of (Mechanism, float)
        What was accessed, and how often.
    epsilon : float
        From 0 on.
    accountant : {"best", "rdp", "gaussian", "pld", "pure"}
        How to compose.

    Returns
    -------
    float
        1 if the accountant has no bound for these mechanisms.

    Examples
    --------
    >>> dp.privacy.delta_of([(dp.privacy.Gaussian(20.0), 100)], epsilon=2.3) < 1e-6
    True
    """
    return Cost.of(accesses).delta(epsilon, accountant)


def max_draws(
    mechanisms: Accesses | Callable[[int], Accesses],
    epsilon: float,
    delta: float,
    chains: int = 1,
    *,
    per_chain: Accesses = (),
    other_accesses: Accesses = (),
    accountant: str | Bound = "best",
) -> float:
    """Largest number of draws of each chain for which all chains together stay within (epsilon, delta).

    Parameters
    ----------
    mechanisms : iterable of (Mechanism, float), or callable
        Accesses of one iteration; or a function of the iteration's number (1, 2, ...) that returns them, for a
        schedule that is fixed in advance.
    epsilon, delta : float
        Target, never exceeded.
    chains : int
        Number of chains that share the budget.
    per_chain : iterable of (Mechanism, float)
        Accesses of each chain before its first iteration, such as the first gradient of HMC.
    other_accesses : iterable of (Mechanism, float)
        Accesses that belong to no chain, such as a private starting point.
    accountant : {"best", "rdp", "gaussian", "pld", "pure"} or callable
        How to compose: a name, or a function of a cost and a delta, such as
        :meth:`~pymc_dp.privacy.accounting.adaptive.AdaptiveComposition.reading`.

    Returns
    -------
    float
        A whole number, at most 20 000 if `mechanisms` is a function; ``math.inf`` if ``epsilon`` is infinite or
        an iteration accesses nothing.

    Examples
    --------
    >>> dp.privacy.max_draws(
    ...     [(dp.privacy.Gaussian(31.62), 1)], epsilon=1.0, delta=1e-6, chains=4
    ... )
    14
    """
    epsilon, delta = check_epsilon_delta(epsilon, delta)
    if not as_float(chains) >= 1:
        raise ValueError(f"chains must be at least 1, got {chains!r}.")
    unit = Cost.of(mechanisms(1) if callable(mechanisms) else mechanisms)
    once, before = Cost.of(per_chain), Cost.of(other_accesses)
    check_pure(delta, [*unit.counts, *once.counts, *before.counts])
    if epsilon == math.inf:
        return math.inf

    def run(draws: int) -> Cost:
        if callable(mechanisms):
            every = Cost.of(access for t in range(1, draws + 1) for access in mechanisms(t))
        else:
            every = unit * draws
        return (every + once) * chains + before

    if unit.free and not callable(mechanisms):
        return math.inf if run(0).epsilon(delta, accountant) <= epsilon else 0
    most = MOST_SCHEDULED if callable(mechanisms) else math.inf
    known = 0
    # Each accountant starts from the result of the previous one; the slowest comes last.
    for bound in accountants_for(run(1), delta, accountant):

        def cost(draws: int, by: Bound = bound) -> float:
            return run(draws).epsilon(delta, by) if draws <= most else math.inf

        known = _largest(cost, epsilon, known)
    return known


def _largest(cost: Callable[[int], float], target: float, known: int = 0) -> int:
    """Largest k >= known with ``cost(k) <= target``, for a cost that grows with k.

    Costs can be slow to compute, and grow about as a power of k: the next k is where a power through two known
    costs meets the target.
    """
    low, high = known, 0  # the target lies between them; high is 0 until an upper end is known
    costs = {known: cost(known) if known else 0.0}
    while not high or high - low > 1:
        guess = _by_a_power(costs, target, low, high)
        if not high:
            guess = max(guess, low) + 1
        elif len(costs) % 3 == 0:  # bisection, so that the search always ends
            guess = (low + high) // 2
        else:
            guess = min(max(guess, low + 1), high - 1)
        costs[guess] = cost(guess)
        if costs[guess] <= target:
            low = guess
            if low >= 2**50:
                return low
        else:
            high = guess
    return low


def _by_a_power(costs: Mapping[int, float], target: float, low: int, high: int) -> int:
    """Where a power through two known costs, or the square, meets the target; twice as far if the lower one is 0."""
    if costs[low] == 0:
        return 2 * low
    power = 2.0
    if high and costs[high] < math.inf:
        power = math.log(high / low) / math.log(costs[high] / costs[low])
    return math.floor(low * min(target / costs[low], 2.0**20) ** power)


def calibrate(
    accesses: Callable[[Any], Accesses],
    epsilon: float,
    delta: float,
    *,
    low: float = 1e-3,
    high: float = 1e6,
    largest: bool = False,
    whole: bool = False,
    accountant: str | Bound = "best",
    rtol: float = 1e-6,
) -> Any:
    """Least private setting with which a composition stays within (epsilon, delta).

    Parameters
    ----------
    accesses : callable
        Maps the setting to the ``(mechanism, count)`` pairs of the whole run.
    epsilon, delta : float
        Target, never exceeded.
    low, high : float
        Ends of the search interval.
    largest : bool
        False (default): privacy grows with the setting, as for a noise multiplier, and the smallest setting
        that fits is returned. True: privacy falls with it, as for a batch size, and the largest is returned.
    whole : bool
        Whether the setting is a whole number (a batch size).
    accountant : {"best", "rdp", "gaussian", "pld", "pure"} or callable
        How to compose: a name, or a function of a cost and a delta, such as
        :meth:`~pymc_dp.privacy.accounting.adaptive.AdaptiveComposition.reading`.
    rtol : float
        Relative accuracy, rounded towards more privacy. The result always fits, even if the cost is not monotone.

    Raises
    ------
    ValueError
        If not even the most private end of the interval fits.

    Examples
    --------
    >>> z = dp.privacy.calibrate(
    ...     lambda z: [(dp.privacy.Gaussian(z), 100)], epsilon=1.0, delta=1e-6
    ... )
    >>> dp.privacy.epsilon_of([(dp.privacy.Gaussian(z), 100)], 1e-6) <= 1.0
    True

    The largest batch, at noise multiplier 1 and for 1000 iterations:

    >>> def run(m):
    ...     release = dp.privacy.SampledGaussian(
    ...         1.0, m / 100_000, "without_replacement", "substitute"
    ...     )
    ...     return [(release, 1000)]
    >>> m = dp.privacy.calibrate(
    ...     run, 1.0, 1e-6, low=1, high=10_000, largest=True, whole=True
    ... )
    >>> dp.privacy.epsilon_of(run(m), 1e-6) <= 1.0 < dp.privacy.epsilon_of(run(m + 1), 1e-6)
    True
    """
    epsilon, delta = check_epsilon_delta(epsilon, delta)
    if not 0 < as_float(low) <= as_float(high) < math.inf:
        raise ValueError(
            f"The search needs 0 < low <= high, both finite, got low={low!r} and high={high!r}."
        )
    low, high = (math.ceil(low), math.floor(high)) if whole else (as_float(low), as_float(high))
    if low > high:
        raise ValueError(f"There is no whole number to try: {high} < {low}. Look farther.")

    most_private, least_private = (low, high) if largest else (high, low)
    least = Cost.of(accesses(most_private))
    check_pure(delta, least.counts)
    found, step, fits = most_private, 4.0, False
    # Each accountant starts from the result of the previous one; the slowest comes last.
    for bound in accountants_for(least, delta, accountant):

        def ratio(setting: Any, by: Bound = bound) -> float:
            return Cost.of(accesses(setting)).epsilon(delta, by) / epsilon

        if ratio(found) <= 1:
            found = _boundary(ratio, found, least_private, step, whole, rtol)
            step, fits = 1.05, True
    if not fits:
        raise ValueError(
            f"Not even {most_private:g} reaches epsilon = {epsilon:g} at delta = {delta:g}; fewer iterations are needed."
        )
    return found


def _boundary(
    ratio: Callable[[Any], float], inside: Any, outside: Any, step: float, whole: bool, rtol: float
) -> Any:
    """Last setting on the way from ``inside``, where the ratio is at most 1, to ``outside`` at which it still is."""
    away = 1 if outside > inside else -1
    edge = inside
    while edge != outside:
        inside, edge = edge, _farther(edge, step**away, outside, whole)
        if ratio(edge) > 1:
            break
        step **= 2  # for all accountants but the first the result is near
    else:
        return outside
    snap = round if whole else float

    def height(log_setting: float) -> float:
        return math.log(min(max(ratio(snap(math.exp(log_setting))), 1e-9), 1e9))

    # For whole numbers the height is a step function: brentq finds a step of it.
    accuracy = max(rtol / 4, whole * 0.5 / max(edge, inside))
    root = math.exp(brentq(height, math.log(edge), math.log(inside), xtol=accuracy, rtol=1e-14))
    if whole:
        return _step(ratio, round(root), inside, edge)
    part = rtol / 2
    while True:  # to the private side of the root
        setting = root * (1 - away * part)
        if (setting - inside) * away <= 0:
            return inside
        if ratio(setting) <= 1:
            return setting
        part *= 2


def _farther(setting: Any, factor: float, outside: Any, whole: bool) -> Any:
    """A setting times a factor, rounded away from it if it is a whole number, not beyond an end."""
    if factor < 1:
        return max(math.floor(setting * factor) if whole else setting * factor, outside)
    return min(math.ceil(setting * factor) if whole else setting * factor, outside)


def _step(ratio: Callable[[Any], float], near: int, inside: int, edge: int) -> int:
    """Last whole number that fits on the way from ``inside`` to ``edge``, searched from ``near``."""
    away = 1 if edge > inside else -1
    while near != inside and ratio(near) > 1:
        near -= away
    while near + away != edge and ratio(near + away) <= 1:
        near += away
    return near
