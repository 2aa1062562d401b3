r"""Composition: from mechanisms and counts to (epsilon, delta), and back.

Three accountants, all upper bounds: ``"rdp"`` adds Rényi divergences at fixed orders and converts
with the best order; ``"gaussian"`` is exact for Gaussian mechanisms (and valid for post-processing
of them); ``"zcdp"`` is the closed form of the papers, kept for comparison. ``"best"`` is the least
of those that apply.

Numbers are rounded to the safe side: an epsilon or delta is never below what was proved, a number
of iterations never above, calibrated noise never below.

References
----------
RDP: Mironov (2017), https://doi.org/10.1109/CSF.2017.11. Conversion: Proposition 12 of Canonne,
Kamath, Steinke (2020), https://arxiv.org/abs/2004.00010. zCDP: Bun, Steinke (2016),
https://doi.org/10.1007/978-3-662-53641-4_24. Gaussian: Theorem 8 of Balle, Wang (2018),
https://proceedings.mlr.press/v80/balle18a.html; Sommer, Meiser, Mohammadi (2019),
https://doi.org/10.2478/popets-2019-0029.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from scipy.optimize import brentq
from scipy.special import log_ndtr

from pymc_dp.privacy.mechanisms import ORDERS, Mechanism

__all__ = [
    "ACCOUNTANTS",
    "Cost",
    "calibrate",
    "delta_of",
    "epsilon_of",
    "max_iterations",
]

ACCOUNTANTS = ("best", "rdp", "gaussian", "zcdp")
_SAFETY = 1 + 1e-9


@dataclass(frozen=True, eq=False)
class Cost:
    """What a collection of accesses costs, in every currency at once; costs add, and scale with a count.

    Parameters
    ----------
    renyi : ndarray, shape (len(ORDERS),)
        Rényi divergence at each order of :data:`~pymc_dp.privacy.mechanisms.ORDERS`.
    mu_squared : float
        Square of the Gaussian-DP parameter; infinite if some access has none.
    rho : float
        zCDP parameter; infinite if some access has none.
    """

    renyi: np.ndarray
    mu_squared: float
    rho: float

    @classmethod
    def of(cls, accesses: Iterable[tuple[Mechanism, float]]) -> Cost:
        """Compose ``(mechanism, count)`` pairs; adaptively chosen parameters are not covered, use a filter."""
        renyi, mu_squared, rho = np.zeros(len(ORDERS)), 0.0, 0.0
        for mechanism, count in accesses:
            if not count >= 0:
                raise ValueError(f"A count must be at least 0, got {count!r} for {mechanism.name}.")
            if count == 0:
                continue
            mu, zcdp = mechanism.gaussian_mu, mechanism.zcdp
            renyi = renyi + count * mechanism.renyi(ORDERS)
            mu_squared += math.inf if mu is None else count * mu**2
            rho += math.inf if zcdp is None else count * zcdp
        return cls(renyi, mu_squared, rho)

    def __add__(self, other: Cost) -> Cost:
        """Cost of both."""
        return Cost(
            self.renyi + other.renyi, self.mu_squared + other.mu_squared, self.rho + other.rho
        )

    def __mul__(self, count: float) -> Cost:
        """Cost of ``count`` repetitions (a fraction is meaningful for planning only)."""
        if count == 0:
            return Cost.of(())
        return Cost(self.renyi * count, self.mu_squared * count, self.rho * count)

    @property
    def free(self) -> bool:
        """Whether nothing was accessed."""
        return not self.renyi.any()

    def epsilon(self, delta: float, accountant: str = "best") -> float:
        """Smallest proved epsilon at this delta."""
        _check_delta(delta)
        if self.free:
            return 0.0
        return min(f(self, delta) for f in _choose(_EPSILON, accountant))

    def delta(self, epsilon: float, accountant: str = "best") -> float:
        """Smallest proved delta at this epsilon."""
        _check_epsilon(epsilon)
        if self.free or epsilon == math.inf:
            return 0.0
        return min(1.0, *(f(self, epsilon) for f in _choose(_DELTA, accountant)))


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(
            f"delta must lie strictly between 0 and 1, got {delta!r}. Usual: well below 1 / (number of records)."
        )


def _check_epsilon(epsilon: float) -> None:
    if not epsilon > 0:
        raise ValueError(
            f"epsilon must be positive (math.inf: no protection at all), got {epsilon!r}."
        )


def check_terms(epsilon: float, delta: float) -> None:
    """Raise ValueError unless ``epsilon > 0`` and ``0 < delta < 1``."""
    _check_epsilon(epsilon)
    _check_delta(delta)


def _choose(table: dict[str, Callable], accountant: str) -> list[Callable]:
    if accountant not in ACCOUNTANTS:
        raise ValueError(
            f"Unknown accountant {accountant!r}; choose one of {', '.join(ACCOUNTANTS)}."
        )
    return list(table.values()) if accountant == "best" else [table[accountant]]


def renyi_to_epsilon(orders: Any, renyi: Any, delta: float) -> Any:
    """Epsilon at each order by itself (Canonne, Kamath, Steinke 2020, Proposition 12)."""
    return renyi + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)


def renyi_budget(orders: np.ndarray, epsilon: float, delta: float) -> np.ndarray:
    """Largest Rényi divergence at each order that converts to (epsilon, delta); negative where none does."""
    return epsilon - renyi_to_epsilon(orders, 0.0, delta)


def _epsilon_rdp(cost: Cost, delta: float) -> float:
    return max(0.0, float(np.min(renyi_to_epsilon(ORDERS, cost.renyi, delta)))) * _SAFETY


def _delta_rdp(cost: Cost, epsilon: float) -> float:
    log_delta = (ORDERS - 1) * (cost.renyi - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    return math.exp(min(0.0, float(np.min(log_delta)))) * _SAFETY


def _epsilon_zcdp(cost: Cost, delta: float) -> float:
    return cost.rho + 2 * math.sqrt(-cost.rho * math.log(delta))


def _delta_zcdp(cost: Cost, epsilon: float) -> float:
    if cost.rho >= epsilon:
        return 1.0
    return math.exp(-((epsilon - cost.rho) ** 2) / (4 * cost.rho))


def _delta_gaussian(cost: Cost, epsilon: float) -> float:
    if cost.mu_squared == math.inf:
        return 1.0
    mu = math.sqrt(cost.mu_squared)
    upper, lower = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    if lower >= upper:  # only by rounding, where delta is below any use
        return math.exp(upper)
    # The two terms cancel: allow for the rounding of each.
    return math.exp(upper) * (-math.expm1(lower - upper) + 4e-16 * (1 + abs(upper)))


def _epsilon_gaussian(cost: Cost, delta: float) -> float:
    if cost.mu_squared == math.inf:
        return math.inf
    if _delta_gaussian(cost, 1e-12) <= delta:
        return 1e-12
    high = 1.0
    while _delta_gaussian(cost, high) > delta:
        high *= 2
        if high > 1e12:
            return math.inf
    root = brentq(
        lambda e: math.log(max(_delta_gaussian(cost, e), 1e-300) / delta),
        1e-12,
        high,
        xtol=1e-12,
        rtol=1e-12,
    )
    return root * _SAFETY + 1e-12


_EPSILON: dict[str, Callable] = {
    "rdp": _epsilon_rdp,
    "gaussian": _epsilon_gaussian,
    "zcdp": _epsilon_zcdp,
}
_DELTA: dict[str, Callable] = {"rdp": _delta_rdp, "gaussian": _delta_gaussian, "zcdp": _delta_zcdp}


def epsilon_of(
    accesses: Iterable[tuple[Mechanism, float]], delta: float, accountant: str = "best"
) -> float:
    """Epsilon of a composition.

    Parameters
    ----------
    accesses : iterable of (Mechanism, float)
        What was accessed, and how often.
    delta : float
        In (0, 1).
    accountant : {"best", "rdp", "gaussian", "zcdp"}
        How to compose.

    Returns
    -------
    float
        Infinite if the accountant has no finite bound for these mechanisms.
    """
    return Cost.of(accesses).epsilon(delta, accountant)


def delta_of(
    accesses: Iterable[tuple[Mechanism, float]], epsilon: float, accountant: str = "best"
) -> float:
    """Delta of a composition at a given epsilon; arguments as in :func:`epsilon_of`."""
    return Cost.of(accesses).delta(epsilon, accountant)


def max_iterations(
    accesses: Iterable[tuple[Mechanism, float]],
    epsilon: float,
    delta: float,
    accountant: str = "best",
) -> float:
    """Largest number of repetitions of ``accesses`` that stays within (epsilon, delta).

    Returns
    -------
    float
        A whole number, or ``math.inf`` if ``epsilon`` is infinite or nothing is accessed.
    """
    check_terms(epsilon, delta)
    unit = Cost.of(accesses)
    if epsilon == math.inf or unit.free:
        return math.inf
    return _largest(lambda k: (unit * k).epsilon(delta, accountant) <= epsilon)


def _largest(fits: Callable[[int], bool]) -> int:
    """Largest k with ``fits(k)``, for a predicate that is true and then false; 0 if it never holds."""
    if not fits(1):
        return 0
    low = 1
    while fits(2 * low):
        low *= 2
        if low >= 2**50:
            return low
    high = 2 * low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def calibrate(
    accesses: Callable[[float], Iterable[tuple[Mechanism, float]]],
    epsilon: float,
    delta: float,
    *,
    low: float = 1e-3,
    high: float = 1e6,
    accountant: str = "best",
    rtol: float = 1e-6,
) -> float:
    """Smallest noise for which a composition stays within (epsilon, delta).

    Parameters
    ----------
    accesses : callable
        Maps the noise (a noise multiplier, a noise scale, one over a clip bound: anything of which
        more is more private) to the ``(mechanism, count)`` pairs of the whole run.
    epsilon, delta : float
        Target, never exceeded.
    low, high : float
        Where to look.
    rtol : float
        Relative accuracy; the answer errs towards more noise.

    Raises
    ------
    ValueError
        If not even ``high`` is enough.

    Examples
    --------
    >>> from pymc_dp.privacy.mechanisms import Gaussian
    >>> z = calibrate(lambda z: [(Gaussian(z), 100)], epsilon=1.0, delta=1e-6)
    >>> epsilon_of([(Gaussian(z), 100)], 1e-6) <= 1.0
    True
    """
    _check_epsilon(epsilon)

    def fits(x: float) -> bool:
        return epsilon_of(accesses(x), delta, accountant) <= epsilon

    if not fits(high):
        raise ValueError(
            f"Not even noise {high:g} reaches epsilon = {epsilon:g} at delta = {delta:g}; fewer iterations are needed."
        )
    if fits(low):
        return low
    while high / low > 1 + rtol:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
