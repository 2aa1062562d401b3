r"""Group privacy: the cost for several records that change at once, as those of one person or household.

Data sets that differ in ``k`` records are joined by a chain of neighbours. If every access depends on one
sensitivity (:meth:`~pymc_dp.privacy.Mechanism.for_group`), the cost is that of the same
accesses with ``k`` times the sensitivity. If not, bounds for neighbours give bounds for groups:

* pure epsilon, ``rho`` of zCDP and ``mu`` of Gaussian DP become ``k`` epsilon, ``k**2 rho`` and ``k mu``;
* a Rényi divergence of at most ``D`` at the order :math:`\alpha` becomes

  .. math:: D_a \le D\,(\alpha - 1)(t^{-k} - 1), \qquad a = \frac{1}{1 - t^k}, \qquad t = 1 - 1/\alpha .

  *Proof.* For laws ``P``, ``Q``, ``R`` and ``0 < s < 1``, Hölder's inequality for
  :math:`(P^a Q^{s - a}) (Q^{a - s} R^{1 - a})` gives

  .. math:: D_a(P, R) \le \frac{a - s}{a - 1} D_{a/s}(P, Q) + D_{b}(Q, R), \qquad b = \frac{a - s}{1 - s} .

  With :math:`s = a / \alpha` the first order is :math:`\alpha`, and :math:`1 - 1/a = t (1 - 1/b)`. So if ``b``
  is the order for ``k - 1`` steps, where :math:`1 - 1/b = t^{k - 1}`, then ``a`` is that for ``k``, and the
  first factor is :math:`t^{1 - k}`. The sum of these factors is :math:`\sum_{m=1}^k t^{1-m}
  = (\alpha - 1)(t^{-k} - 1)`.

The usual bound :math:`(k \varepsilon, \delta (e^{k \varepsilon} - 1) / (e^\varepsilon - 1))` from (epsilon,
delta) is larger than the last one, on the best point of the privacy profile too (see the tests).

Successive claims need an order that is fixed in advance: here ``a``, a function of the budget's order and of
``k`` only.

References
----------
zCDP: Bun, Steinke (2016), Proposition 1.9, https://doi.org/10.1007/978-3-662-53641-4_24. Gaussian DP: Dong,
Roth, Su (2022), section 2.4, https://doi.org/10.1111/rssb.12454. Rényi divergence: the inequality for two
steps is that of Proposition 11 of Mironov (2017), https://doi.org/10.1109/CSF.2017.11, whose bound for two
records, ``3 D`` at half the order, is larger. (epsilon, delta): Vadhan (2017), Lemma 2.2,
https://doi.org/10.1007/978-3-319-57048-8_7.
"""

from __future__ import annotations

import math

import numpy as np

from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import Cost, renyi_to_epsilon
from pymc_dp.privacy.accounting.filters import GaussianShare
from pymc_dp.privacy.mechanisms.mechanism import ORDERS, Mechanism

_SAFETY = 1 + 1e-9


def group_renyi(orders: np.ndarray, renyi: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Orders ``a`` and bounds ``D_a`` for a group (module docstring), from divergences of neighbours at finite orders.

    At ``a = 1`` nothing is known.
    """
    with np.errstate(over="ignore"):
        power = size * np.log1p(-1 / orders)
        return -1 / np.expm1(power), renyi * (orders - 1) * np.expm1(-power) * _SAFETY


def group_price(mechanism: Mechanism, size: int, order: float) -> tuple[float, float]:
    """Order for a group, from that for one record, and the Rényi divergence of one access there: exact, or a bound."""
    own = mechanism.renyi([order])
    if size == 1 or order == math.inf:
        return order, size * float(own[0])
    at, bound = (float(v[0]) for v in group_renyi(np.array([order]), own, size))
    exact = mechanism.for_group(size) if at > 1 else None
    return at, bound if exact is None else min(bound, float(exact.renyi([at])[0]))


def successive_claims(cost: Cost, size: int, composed: AdaptiveComposition) -> float:
    """Epsilon for a group after successive claims, at the delta of the composition; it holds for any stopping rule.

    :meth:`~pymc_dp.privacy.accounting.adaptive.AdaptiveComposition.holds` has the proof, here with prices for
    the group. With Gaussian DP, it is that of the whole limit. Infinite if no bound is known.
    """
    if cost.free:
        return 0.0
    if composed.order is None:
        whole = GaussianShare(size * math.sqrt(composed.limit))
        return Cost.of([(whole, 1)]).epsilon(composed.delta, "gaussian")
    prices = [(group_price(m, size, composed.order), k) for m, k in cost.counts.items()]
    order, total = prices[0][0][0], math.fsum(k * price for (_, price), k in prices)
    if composed.is_pure:
        return total
    if order == 1 or total == math.inf:
        return math.inf
    return max(0.0, float(renyi_to_epsilon(order, total, composed.delta))) * _SAFETY


def fixed_plan(cost: Cost, size: int, delta: float, accountant: str) -> float:
    """Epsilon for a group at ``delta``, of accesses that were planned together and claimed at once.

    By the accountant of the plan, if the sensitivities of all accesses can be multiplied; else the smallest general
    bound, which may be infinite.
    """
    exact = [(m.for_group(size), k) for m, k in cost.counts.items()]
    found = [(m, k) for m, k in exact if m is not None]
    if size == 1 or len(found) == len(exact):
        return Cost.of(found if size > 1 else cost.counts.items()).epsilon(delta, accountant)
    return general_bound(cost, size, delta)


def general_bound(cost: Cost, size: int, delta: float) -> float:
    """Smallest epsilon for a group at ``delta`` that follows from the cost of a plan for one record."""
    found = [size * cost.pure_epsilon]
    if delta > 0 and not cost.free:
        for orders, renyi in (
            group_renyi(ORDERS, cost.renyi, size),
            (ORDERS, size**2 * cost.rho * ORDERS),
        ):
            known = orders > 1
            found.append(float(np.min(renyi_to_epsilon(orders[known], renyi[known], delta))))
        if cost.mu_squared < math.inf:
            share = GaussianShare(size * math.sqrt(cost.mu_squared))
            found.append(Cost.of([(share, 1)]).epsilon(delta, "gaussian"))
    return max(0.0, min(found)) * _SAFETY
