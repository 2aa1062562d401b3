r"""Composition: from mechanisms and counts to (epsilon, delta).

Accountants, all upper bounds:

* ``"rdp"`` adds Rényi divergences at fixed orders and converts with the best order.
* ``"gaussian"`` is exact for Gaussian mechanisms (and valid for post-processing of them).
* ``"pld"`` composes privacy loss distributions (needs ``dp_accounting``, the extra ``pld``): the
  tightest for sampled Gaussians.
* ``"zcdp"`` and ``"moments"`` are closed forms and conversions of the papers, kept for comparison:
  zero-concentrated DP, and Rényi orders with the conversion of Mironov (2017), which is that of the
  moments accountant.

``"best"`` is the least of those that apply. That is for accesses which are planned together and claimed at
once; what composes adaptively is in :mod:`pymc_dp.privacy.adaptive`.

Numbers are rounded to the safe side: an epsilon or delta is never below what was proved.

References
----------
RDP: Mironov (2017), https://doi.org/10.1109/CSF.2017.11. Conversion: Proposition 12 of Canonne,
Kamath, Steinke (2020), https://arxiv.org/abs/2004.00010. zCDP: Bun, Steinke (2016),
https://doi.org/10.1007/978-3-662-53641-4_24. Gaussian: Theorem 8 of Balle, Wang (2018),
https://proceedings.mlr.press/v80/balle18a.html; Sommer, Meiser, Mohammadi (2019),
https://doi.org/10.2478/popets-2019-0029. Moments accountant: Abadi et al. (2016),
https://doi.org/10.1145/2976749.2978318.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from scipy.optimize import brentq

from pymc_dp.privacy import pld
from pymc_dp.privacy.mechanisms import (
    ORDERS,
    Gaussian,
    Mechanism,
    check_count,
    gaussian_profile,
    real,
)

__all__ = ["ACCOUNTANTS", "Accesses", "Accountant", "Cost", "accountants_for", "check_accountant", "check_terms", "renyi_budget", "renyi_to_epsilon"]  # fmt: skip

ACCOUNTANTS = ("best", "rdp", "gaussian", "pld", "zcdp", "moments")
_SAFETY = 1 + 1e-9
Accesses = Iterable[tuple[Mechanism, float]]
#: A name, or a function of a cost and a delta.
Accountant = str | Callable[["Cost", float], float]


@lru_cache(maxsize=4096)
def _renyi(mechanism: Mechanism) -> np.ndarray:
    cost = mechanism.renyi(ORDERS)
    cost.flags.writeable = False
    return cost


@dataclass(frozen=True, eq=False)
class Cost:
    """What a collection of accesses costs, in every currency; costs add, and scale with a count.

    Parameters
    ----------
    counts : mapping of Mechanism to float
        How often each mechanism is used, in whatever order. Adaptively chosen parameters are not
        covered: use a filter.
    """

    counts: Mapping[Mechanism, float]

    @classmethod
    def of(cls, accesses: Accesses) -> Cost:
        """Compose ``(mechanism, count)`` pairs."""
        counts: dict[Mechanism, float] = {}
        for mechanism, count in accesses:
            check_count(mechanism, count)
            if count > 0:
                counts[mechanism] = counts.get(mechanism, 0) + count
        if counts and not frozenset.intersection(*(m.adjacencies for m in counts)):
            raise ValueError(
                "These accesses are proved for different adjacencies, so they have no cost in common: "
                + "; ".join(f"{m.name}: {' or '.join(sorted(m.adjacencies))}" for m in counts)
            )
        return cls(counts)

    def __add__(self, other: Cost) -> Cost:
        """Cost of both."""
        return Cost.of([*self.counts.items(), *other.counts.items()])

    def __mul__(self, count: float) -> Cost:
        """Cost of ``count`` repetitions (a fraction is meaningful for planning only)."""
        return Cost.of([(mechanism, k * count) for mechanism, k in self.counts.items()])

    @property
    def free(self) -> bool:
        """Whether nothing was accessed."""
        return not self.counts

    @cached_property
    def renyi(self) -> np.ndarray:
        """Rényi divergence at each order of :data:`~pymc_dp.privacy.mechanisms.ORDERS`."""
        with np.errstate(over="ignore"):
            return sum((k * _renyi(m) for m, k in self.counts.items()), np.zeros(len(ORDERS)))

    @cached_property
    def mu_squared(self) -> float:
        """Square of the Gaussian-DP parameter; infinite if some access has none."""
        mus = [(m.gaussian_mu, k) for m, k in self.counts.items()]
        return sum((math.inf if mu is None else k * mu * mu for mu, k in mus), 0.0)

    @cached_property
    def rho(self) -> float:
        """zCDP parameter; infinite if some access has none."""
        rhos = [(m.zcdp, k) for m, k in self.counts.items()]
        return sum((math.inf if rho is None else k * rho for rho, k in rhos), 0.0)

    @property
    def exactly_gaussian(self) -> bool:
        """Whether the Gaussian accountant is exact, so that no other can be better."""
        return all(isinstance(mechanism, Gaussian) for mechanism in self.counts)

    def epsilon(self, delta: float, accountant: Accountant = "best") -> float:
        """Smallest proved epsilon at this delta."""
        return accountant(self, delta) if callable(accountant) else self.best(delta, accountant)[0]

    def best(self, delta: float, accountant: str = "best") -> tuple[float, str]:
        """Smallest proved epsilon at this delta, and the accountant that proves it."""
        check_accountant(accountant)
        delta = _check_delta(delta)
        if self.free:
            return 0.0, accountant
        names = accountants_for(self, delta) if accountant == "best" else (accountant,)
        return min((_EPSILON[name](self, delta), name) for name in names)

    def delta(self, epsilon: float, accountant: str = "best") -> float:
        """Smallest proved delta at this epsilon."""
        check_accountant(accountant)
        epsilon = _check_epsilon(epsilon)
        if self.free or epsilon == math.inf:
            return 0.0
        epsilon = min(epsilon, 1e100)  # nothing overflows, and less is safe
        names = accountants_for(self, 1.0) if accountant == "best" else (accountant,)
        return min(1.0, *(_DELTA[name](self, epsilon) for name in names))


def accountants_for(cost: Cost, delta: float) -> tuple[str, ...]:
    """Accountants of which one gives the least bound, quickest first ("moments" never beats "rdp")."""
    if cost.exactly_gaussian:
        return ("gaussian",)
    names = ("rdp", "gaussian", "zcdp")
    if delta < pld.LEAST_DELTA or not pld.applies(cost.counts):
        return names
    return (*names, "pld")


def check_accountant(accountant: Accountant) -> None:
    """Raise ValueError if there is no such accountant, or if what it needs is not installed."""
    if callable(accountant):
        return
    if accountant not in ACCOUNTANTS:
        raise ValueError(
            f"Unknown accountant {accountant!r}; choose one of {', '.join(ACCOUNTANTS)}."
        )
    if accountant == "pld" and not pld.AVAILABLE:
        raise ValueError(
            "The accountant 'pld' needs the package dp_accounting: pip install 'pymc-dp[pld]'. 'best' does without it."
        )


def _check_delta(delta: float) -> float:
    if not 0 < real(delta) < 1:
        raise ValueError(
            f"delta must lie strictly between 0 and 1, got {delta!r}. Usual: well below 1 / (number of records)."
        )
    return real(delta)


def _check_epsilon(epsilon: float) -> float:
    if not real(epsilon) > 0:
        raise ValueError(
            f"epsilon must be positive (math.inf: no protection at all), got {epsilon!r}."
        )
    return real(epsilon)


def check_terms(epsilon: float, delta: float) -> tuple[float, float]:
    """Return both as floats; ValueError unless ``epsilon > 0`` and ``0 < delta < 1``."""
    return _check_epsilon(epsilon), _check_delta(delta)


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


def _epsilon_moments(cost: Cost, delta: float) -> float:
    return float(np.min(cost.renyi - math.log(delta) / (ORDERS - 1))) * _SAFETY


def _delta_moments(cost: Cost, epsilon: float) -> float:
    return math.exp(min(0.0, float(np.min((ORDERS - 1) * (cost.renyi - epsilon))))) * _SAFETY


def _epsilon_zcdp(cost: Cost, delta: float) -> float:
    return cost.rho + 2 * math.sqrt(-cost.rho * math.log(delta))


def _delta_zcdp(cost: Cost, epsilon: float) -> float:
    if cost.rho >= epsilon:
        return 1.0
    return math.exp(-((epsilon - cost.rho) ** 2) / (4 * cost.rho))


def _log_delta_gaussian(cost: Cost, epsilon: float) -> float:
    if cost.mu_squared == math.inf:
        return 0.0
    return float(gaussian_profile(np.array(epsilon), math.sqrt(cost.mu_squared)))


def _delta_gaussian(cost: Cost, epsilon: float) -> float:
    return math.exp(_log_delta_gaussian(cost, epsilon))


def _epsilon_gaussian(cost: Cost, delta: float) -> float:
    if cost.mu_squared == math.inf:
        return math.inf

    def excess(epsilon: float) -> float:
        return max(_log_delta_gaussian(cost, epsilon), -1e4) - math.log(delta)

    if excess(1e-12) <= 0:
        return 1e-12
    high = 1.0
    while excess(high) > 0:
        high *= 2
        if high > 1e12:
            return math.inf
    root = brentq(excess, 1e-12, high, xtol=1e-12, rtol=1e-12)
    return root * _SAFETY + 1e-12


def _epsilon_pld(cost: Cost, delta: float) -> float:
    if delta < pld.LEAST_DELTA or not pld.applies(cost.counts):
        return math.inf
    with np.errstate(over="ignore"):  # where it divides by a probability next to nothing
        return float(pld.composed(cost.counts).get_epsilon_for_delta(delta)) * _SAFETY


def _delta_pld(cost: Cost, epsilon: float) -> float:
    if not pld.applies(cost.counts):
        return 1.0
    return max(pld.LEAST_DELTA, float(pld.composed(cost.counts).get_delta_for_epsilon(epsilon)))


_EPSILON: dict[str, Callable[[Cost, float], float]] = {
    "rdp": _epsilon_rdp,
    "gaussian": _epsilon_gaussian,
    "pld": _epsilon_pld,
    "zcdp": _epsilon_zcdp,
    "moments": _epsilon_moments,
}
_DELTA: dict[str, Callable[[Cost, float], float]] = {
    "rdp": _delta_rdp,
    "gaussian": _delta_gaussian,
    "pld": _delta_pld,
    "zcdp": _delta_zcdp,
    "moments": _delta_moments,
}
