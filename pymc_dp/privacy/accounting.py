"""Questions to the accountants: what did it cost, how often may I, how much noise does it take.

Answers are on the safe side: an epsilon or delta is never below what was proved, a number of draws
never above, calibrated noise never below. The accountants are those of
:mod:`pymc_dp.privacy.composition`.
"""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import Any

from scipy.optimize import brentq

from pymc_dp.privacy.composition import (
    Accesses,
    Accountant,
    Cost,
    accountants_for,
    check_accountant,
    check_terms,
)
from pymc_dp.privacy.mechanisms import real

__all__ = ["MOST_SCHEDULED", "calibrate", "delta_of", "epsilon_of", "max_draws"]

#: Most draws that are planned where a schedule decides their cost: it may become so cheap that there
#: is no end.
MOST_SCHEDULED = 20_000


def epsilon_of(accesses: Accesses, delta: float, accountant: str = "best") -> float:
    """Epsilon of a composition.

    Parameters
    ----------
    accesses : iterable of (Mechanism, float)
        What was accessed, and how often.
    delta : float
        In (0, 1).
    accountant : {"best", "rdp", "gaussian", "pld", "zcdp", "moments"}
        How to compose.

    Returns
    -------
    float
        Infinite if the accountant has no finite bound for these mechanisms.
    """
    return Cost.of(accesses).epsilon(delta, accountant)


def delta_of(accesses: Accesses, epsilon: float, accountant: str = "best") -> float:
    """Delta of a composition at a given epsilon; arguments as in :func:`epsilon_of`."""
    return Cost.of(accesses).delta(epsilon, accountant)


def max_draws(
    mechanisms: Accesses | Callable[[int], Accesses],
    epsilon: float,
    delta: float,
    chains: int = 1,
    *,
    per_chain: Accesses = (),
    besides: Accesses = (),
    accountant: Accountant = "best",
) -> float:
    """Largest number of draws of each chain for which all chains together stay within (epsilon, delta).

    Parameters
    ----------
    mechanisms : iterable of (Mechanism, float), or callable
        What one iteration accesses, and how often; or a function of the iteration's number (1, 2,
        ...), where a schedule decides that in advance.
    epsilon, delta : float
        Target, never exceeded.
    chains : int
        Number of chains that share the budget.
    per_chain : iterable of (Mechanism, float)
        What every chain accesses once, such as the first gradient of HMC.
    besides : iterable of (Mechanism, float)
        What is accessed once for all chains, such as a private starting point.
    accountant : {"best", "rdp", "gaussian", "pld", "zcdp", "moments"} or callable
        How to compose: a name, or a function of a cost and a delta, such as
        :meth:`~pymc_dp.privacy.adaptive.AdaptiveComposition.reading`.

    Returns
    -------
    float
        A whole number, or ``math.inf`` if ``epsilon`` is infinite or an iteration accesses nothing.
        At most 20 000 if `mechanisms` is a function.

    Examples
    --------
    >>> from pymc_dp.privacy.mechanisms import Gaussian
    >>> max_draws([(Gaussian(31.62), 1)], epsilon=1.0, delta=1e-6, chains=4)
    14
    """
    epsilon, delta = check_terms(epsilon, delta)
    check_accountant(accountant)
    if not real(chains) >= 1:
        raise ValueError(f"chains must be at least 1, got {chains!r}.")
    unit = Cost.of(mechanisms(1) if callable(mechanisms) else mechanisms)
    once, before = Cost.of(per_chain), Cost.of(besides)
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
    # Each accountant starts where the last one ended; the slow one comes last.
    for name in accountants_for(run(1), delta) if accountant == "best" else (accountant,):

        def cost(draws: int, by: Accountant = name) -> float:
            return run(draws).epsilon(delta, by) if draws <= most else math.inf

        known = _largest(cost, epsilon, known)
    return known


def _largest(cost: Callable[[int], float], target: float, known: int = 0) -> int:
    """Largest k >= known with ``cost(k) <= target``, for a cost that grows with k.

    Costs can take long to compute, and grow about as a power of k: the next k to try is where the power
    that fits two costs meets the target.
    """
    low, high = known, 0  # the target lies between; 0 while there is no upper end
    costs = {known: cost(known) if known else 0.0}
    while not high or high - low > 1:
        guess, power = low, 2.0
        if costs[low] > 0:
            if high and costs[high] < math.inf:
                power = math.log(high / low) / math.log(costs[high] / costs[low])
            guess = math.floor(low * min(target / costs[low], 2.0**20) ** power)
        if not high:
            guess = max(guess, 2 * low if costs[low] == 0 else low) + 1
        elif len(costs) % 3 == 0:  # so that it ends in any case
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


def calibrate(
    accesses: Callable[[Any], Accesses],
    epsilon: float,
    delta: float,
    *,
    low: float = 1e-3,
    high: float = 1e6,
    largest: bool = False,
    whole: bool = False,
    accountant: Accountant = "best",
    rtol: float = 1e-6,
) -> Any:
    """Least private setting for which a composition stays within (epsilon, delta).

    Parameters
    ----------
    accesses : callable
        Maps the setting to the ``(mechanism, count)`` pairs of the whole run.
    epsilon, delta : float
        Target, never exceeded.
    low, high : float
        Where to look.
    largest : bool
        False (default): more is more private, as for a noise multiplier or a noise scale, and the
        smallest setting that fits is returned. True: more is less private, as for a batch size with
        a given noise multiplier, and the largest is returned.
    whole : bool
        Whole numbers only (a batch size).
    accountant : {"best", "rdp", "gaussian", "pld", "zcdp", "moments"} or callable
        How to compose: a name, or a function of a cost and a delta, such as
        :meth:`~pymc_dp.privacy.adaptive.AdaptiveComposition.reading`.
    rtol : float
        Relative accuracy; the answer errs towards more privacy. It always fits, even if the cost
        should not be monotone between ``low`` and ``high``.

    Raises
    ------
    ValueError
        If not even the most private end is enough.

    Examples
    --------
    >>> from pymc_dp.privacy.mechanisms import Gaussian
    >>> z = calibrate(lambda z: [(Gaussian(z), 100)], epsilon=1.0, delta=1e-6)
    >>> epsilon_of([(Gaussian(z), 100)], 1e-6) <= 1.0
    True

    The largest batch, at noise multiplier 1 and for 1000 iterations:

    >>> from pymc_dp.privacy.sampled import SampledGaussian
    >>> def run(m):
    ...     release = SampledGaussian(1.0, m / 100_000, "without_replacement", "substitute")
    ...     return [(release, 1000)]
    >>> m = calibrate(run, 1.0, 1e-6, low=1, high=10_000, largest=True, whole=True)
    >>> epsilon_of(run(m), 1e-6) <= 1.0 < epsilon_of(run(m + 1), 1e-6)
    True
    """
    epsilon, delta = check_terms(epsilon, delta)
    if not 0 < real(low) <= real(high) < math.inf:
        raise ValueError(
            f"The search needs 0 < low <= high, both finite, got low={low!r} and high={high!r}."
        )
    low, high = (math.ceil(low), math.floor(high)) if whole else (real(low), real(high))
    if low > high:
        raise ValueError(f"There is no whole number to try: {high} < {low}. Look farther.")

    most_private, least_private = (low, high) if largest else (high, low)
    names = (
        accountants_for(Cost.of(accesses(most_private)), delta)
        if accountant == "best"
        else (accountant,)
    )
    found = None
    # Each accountant starts where the last one ended; the slow one comes last.
    for name in names:

        def ratio(setting: Any, by: Accountant = name) -> float:
            return Cost.of(accesses(setting)).epsilon(delta, by) / epsilon

        start = most_private if found is None else found
        if ratio(start) <= 1:
            step = 4.0 if found is None else 1.05
            found = _boundary(ratio, start, least_private, step, whole, rtol)
    if found is None:
        raise ValueError(
            f"Not even {most_private:g} reaches epsilon = {epsilon:g} at delta = {delta:g}; fewer iterations are needed."
        )
    return found


def _boundary(
    ratio: Callable[[Any], float], inside: Any, outside: Any, step: float, whole: bool, rtol: float
) -> Any:
    """Find the setting, from ``inside``, where the ratio is at most 1, towards ``outside``, at which it comes up to 1."""
    upwards = outside > inside
    # In growing steps: for all accountants but the first the answer is near.
    edge = inside
    while True:
        if edge == outside:
            return outside
        inside = edge
        edge = min(edge * step, outside) if upwards else max(edge / step, outside)
        if whole:
            edge = math.ceil(edge) if upwards else math.floor(edge)
        if ratio(edge) > 1:
            break
        step **= 2

    def height(log_setting: float) -> float:
        setting = math.exp(log_setting)
        return math.log(min(max(ratio(round(setting) if whole else setting), 1e-9), 1e9))

    # For whole numbers the height is a staircase: brentq finds a step of it.
    accuracy = 0.5 / max(edge, inside) if whole else rtol / 4
    root = math.exp(brentq(height, math.log(edge), math.log(inside), xtol=accuracy, rtol=1e-14))
    if whole:
        return _step(ratio, round(root), inside, edge)
    part = rtol / 2
    while True:  # to the private side of the root
        setting = root * (1 - part if upwards else 1 + part)
        if setting <= inside if upwards else setting >= inside:
            return inside
        if ratio(setting) <= 1:
            return setting
        part *= 2


def _step(ratio: Callable[[Any], float], near: int, inside: int, edge: int) -> int:
    """Last whole number that fits on the way from ``inside`` to ``edge``, which is near ``near``."""
    away = 1 if edge > inside else -1
    while near != inside and ratio(near) > 1:
        near -= away
    while near + away != edge and ratio(near + away) <= 1:
        near += away
    return near
