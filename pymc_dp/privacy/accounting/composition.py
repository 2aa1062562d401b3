r"""Composition: from mechanisms and counts to (epsilon, delta).

Accountants (:data:`ACCOUNTANTS`), all upper bounds:

* ``"rdp"`` adds Rényi divergences at fixed orders and converts with the best order. Where all accesses are
  concentrated (a ``rho`` of zCDP), it also has the best of all orders, in closed form.
* ``"gaussian"`` is exact for Gaussian mechanisms (and valid for post-processing of them).
* ``"pld"`` composes privacy loss distributions (needs ``dp_accounting``, the extra ``pld``): the
  tightest for sampled Gaussians.
* ``"pure"`` adds up the epsilons at ``delta = 0``, where they are finite, and is the only one for ``delta = 0``.

``"best"`` is the minimum of those that apply. It holds for accesses that are planned together and claimed at
once; :mod:`pymc_dp.privacy.accounting.adaptive` composes adaptively. Numbers are rounded to the safe side: an
epsilon or delta is never below the proved value.

References
----------
RDP: Mironov (2017), https://doi.org/10.1109/CSF.2017.11. Conversion: Proposition 12 of Canonne,
Kamath, Steinke (2020), https://arxiv.org/abs/2004.00010. zCDP: Proposition 1.3 of Bun, Steinke (2016),
https://doi.org/10.1007/978-3-662-53641-4_24. Gaussian: Theorem 8 of Balle, Wang (2018),
https://proceedings.mlr.press/v80/balle18a.html; Sommer, Meiser, Mohammadi (2019),
https://doi.org/10.2478/popets-2019-0029.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from pymc_dp.arguments import check_delta, check_epsilon
from pymc_dp.display import Shown
from pymc_dp.privacy.accounting import pld
from pymc_dp.privacy.mechanisms.mechanism import (
    ORDERS,
    Accesses,
    Gaussian,
    Mechanism,
    check_count,
    gaussian_profile,
)

_SAFETY = 1 + 1e-9
#: Proved epsilon of a cost at a delta, or its delta at an epsilon.
Bound = Callable[["Cost", float], float]


@lru_cache(maxsize=4096)
def _renyi(mechanism: Mechanism) -> np.ndarray:
    cost = mechanism.renyi(ORDERS)
    cost.flags.writeable = False
    return cost


@dataclass(frozen=True, eq=False)
class Cost(Shown):
    """Cost of a collection of accesses, in every currency; costs can be added, and multiplied by a count.

    If parameters are chosen adaptively, use a filter instead.
    """

    #: How often each mechanism is used, in any order.
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

    def within(self, other: Cost) -> bool:
        """Whether the other includes these accesses."""
        return all(count <= other.counts.get(m, 0) for m, count in self.counts.items())

    @property
    def free(self) -> bool:
        """Whether nothing was accessed."""
        return not self.counts

    @cached_property
    def renyi(self) -> np.ndarray:
        """Rényi divergence at each order of :data:`~pymc_dp.privacy.mechanisms.mechanism.ORDERS`."""
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

    @cached_property
    def pure_epsilon(self) -> float:
        """Sum of the epsilons at ``delta = 0``, which also holds for adaptive choices; infinite if some access has none."""
        return math.fsum(k * m.pure_epsilon for m, k in self.counts.items())

    def epsilon(self, delta: float, accountant: str | Bound = "best") -> float:
        """Smallest proved epsilon at this delta, by the accountant of this name, or by a function of a cost and a delta."""
        return accountant(self, delta) if callable(accountant) else self.best(delta, accountant)[0]

    def best(self, delta: float, accountant: str = "best") -> tuple[float, str]:
        """Smallest proved epsilon at this delta, and the accountant that proves it."""
        delta = check_delta(delta)
        accountants = accountants_for(self, delta, accountant)
        check_pure(delta, self.counts)
        if self.free:
            return 0.0, accountant
        return min((a(self, delta), a.name) for a in accountants)

    def delta(self, epsilon: float, accountant: str = "best") -> float:
        """Smallest proved delta at this epsilon."""
        found = accountant_of(accountant)
        epsilon = check_epsilon(epsilon)
        if self.free or epsilon == math.inf:
            return 0.0
        epsilon = min(epsilon, 1e100)  # a smaller epsilon is safe, and avoids overflow
        return min(1.0, found.delta(self, epsilon))

    def max_true_positive_rate(self, false_positive_rate: float) -> float:
        r"""Largest true positive rate of any attack on two neighbouring data sets, at a false positive rate in (0, 1).

        Exact for Gaussian mechanisms: :math:`\Phi(\Phi^{-1}(\alpha) + \mu)` (section 2 of Dong, Roth, Su 2022,
        https://doi.org/10.1111/rssb.12454). Else the smallest that follows from (epsilon, delta) pairs, the one at
        ``delta = 0`` included.
        """
        if self.free:
            return false_positive_rate
        power = 1.0
        if self.mu_squared < math.inf:
            power = float(ndtr(ndtri(false_positive_rate) + math.sqrt(self.mu_squared)))
        pairs = [(e, self.delta(e, "rdp")) for e in np.geomspace(1e-3, 50, 200).tolist()]
        if self.pure_epsilon <= 50:
            pairs.append((self.pure_epsilon, 0.0))
        for epsilon, delta in pairs:
            by_odds = math.exp(epsilon) * false_positive_rate + delta
            by_rest = 1 - math.exp(-epsilon) * (1 - false_positive_rate - delta)
            power = min(power, by_odds, by_rest)
        return power


@dataclass(frozen=True)
class Accountant:
    """One way to compose accesses; called with a cost and a delta, it returns an epsilon, as :class:`Bound` does."""

    name: str
    epsilon: Bound
    delta: Bound
    #: Whether it has a bound at ``delta = 0``.
    at_zero: bool = False
    #: Whether it has a filter, for accesses whose cost is known only when they are made.
    has_filter: bool = False

    def __call__(self, cost: Cost, delta: float) -> float:
        """Epsilon of a cost."""
        return 0.0 if cost.free else self.epsilon(cost, delta)


def accountant_of(name: str, delta: float = math.nan) -> Accountant:
    """Return the accountant of this name; ValueError if it has no bound at this delta, or its package is not installed."""
    found = {accountant.name: accountant for accountant in ACCOUNTANTS}.get(name)
    if found is None:
        raise ValueError(
            f"Unknown accountant {name!r}; choose one of {', '.join(a.name for a in ACCOUNTANTS)}."
        )
    if name == "pld" and not pld.AVAILABLE:
        raise ValueError(
            "The accountant 'pld' needs the package dp_accounting: pip install 'pymc-dp[pld]'. 'best' works without it."
        )
    if delta == 0 and not found.at_zero:
        raise ValueError(
            f"The accountant {name!r} needs delta > 0. At delta = 0 pure epsilons are added up: use 'best'."
        )
    return found


def accountants_for(cost: Cost, delta: float, accountant: Any = "best") -> tuple[Any, ...]:
    """An accountant, by its name, or a function; for "best" those of which one gives the smallest bound, fastest first."""
    found = accountant if callable(accountant) else accountant_of(accountant, delta)
    if found is not _BEST:
        return (found,)
    if delta > 0 and all(isinstance(m, Gaussian) for m in cost.counts):
        return (_GAUSSIAN,)  # exact: no other is smaller
    return tuple(a for a in ACCOUNTANTS[1:] if delta > 0 or a.at_zero)


def check_pure(delta: float, mechanisms: Iterable[Mechanism], by: str = "The accesses include") -> None:  # fmt: skip
    """Raise ValueError if delta is 0 and a mechanism has no finite epsilon there."""
    for mechanism in mechanisms if delta == 0 else ():
        if mechanism.pure_epsilon == math.inf:
            raise ValueError(
                f"{by} {mechanism.name}, which has no finite epsilon at delta = {delta:g}. Choose delta > 0 (usual: well below 1 / (number of "
                "records)), or l2 noise (L2Laplace), whose epsilon is finite."
            )


def renyi_to_epsilon(orders: Any, renyi: Any, delta: float) -> Any:
    """Epsilon from each order separately (Canonne, Kamath, Steinke 2020, Proposition 12)."""
    return renyi + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)


def renyi_budget(orders: np.ndarray, epsilon: float, delta: float) -> np.ndarray:
    """Largest Rényi divergence at each order that converts to (epsilon, delta); negative if none does."""
    return epsilon - renyi_to_epsilon(orders, 0.0, delta)


def _epsilon_rdp(cost: Cost, delta: float) -> float:
    """Least over the orders of the grid; also over all orders, if all accesses have a ``rho`` (``rho = inf`` if not)."""
    at_orders = float(np.min(renyi_to_epsilon(ORDERS, cost.renyi, delta)))
    everywhere = cost.rho + 2 * math.sqrt(-cost.rho * math.log(delta))
    return min(max(0.0, at_orders) * _SAFETY, everywhere)


def _delta_rdp(cost: Cost, epsilon: float) -> float:
    log_delta = (ORDERS - 1) * (cost.renyi - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    at_orders = math.exp(min(0.0, float(np.min(log_delta)))) * _SAFETY
    if cost.rho >= epsilon:
        return at_orders
    return min(at_orders, math.exp(-((epsilon - cost.rho) ** 2) / (4 * cost.rho)))


def _epsilon_pure(cost: Cost, delta: float) -> float:
    return cost.pure_epsilon


def _delta_pure(cost: Cost, epsilon: float) -> float:
    """Largest hockey-stick divergence of a pure mechanism: that of randomised response."""
    pure = cost.pure_epsilon
    return max(0.0, -math.expm1(epsilon - pure)) / (1 + math.exp(-pure)) * _SAFETY


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
    with np.errstate(over="ignore"):  # it divides by tiny probabilities
        return float(pld.composed(cost.counts).get_epsilon_for_delta(delta)) * _SAFETY


def _delta_pld(cost: Cost, epsilon: float) -> float:
    if not pld.applies(cost.counts):
        return 1.0
    return max(pld.LEAST_DELTA, float(pld.composed(cost.counts).get_delta_for_epsilon(epsilon)))


def _epsilon_best(cost: Cost, delta: float) -> float:
    return min(accountant(cost, delta) for accountant in accountants_for(cost, delta))


def _delta_best(cost: Cost, epsilon: float) -> float:
    return min(accountant.delta(cost, epsilon) for accountant in accountants_for(cost, 1.0))


_BEST = Accountant("best", _epsilon_best, _delta_best, at_zero=True, has_filter=True)
_GAUSSIAN = Accountant("gaussian", _epsilon_gaussian, _delta_gaussian, has_filter=True)
#: All accountants: the first is the minimum of the others, which are in the order in which searches try them, fastest first.
ACCOUNTANTS = (
    _BEST,
    Accountant("pure", _epsilon_pure, _delta_pure, at_zero=True),
    Accountant("rdp", _epsilon_rdp, _delta_rdp, has_filter=True),
    _GAUSSIAN,
    Accountant("pld", _epsilon_pld, _delta_pld),
)
