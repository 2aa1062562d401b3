r"""Adaptive composition, in one Rényi order, Gaussian DP or pure DP, fixed when a budget is opened.

A claim after a release may depend on the release. Theorems on such adaptive composition need a currency that is
fixed before: one order for a Rényi filter (Feldman, Zrnic 2021), or Gaussian DP (Smith, Thakurta 2022; Koskela,
Tobaben, Honkela 2022). The minimum over orders and accountants of the claims so far is not valid: an adversary
who sees a first release, and then claims what is cheap at one order or at another one, reaches more than twice
the stated delta. So the currency is a function of epsilon, delta and the accountant's name only. At ``delta = 0``
it is pure DP, the Rényi order infinity, where epsilons add up whatever was chosen.

Claims that are planned together and made at once, before any release, may use any accountant.

References
----------
Feldman, Zrnic (2021), Individual privacy accounting via a Rényi filter,
https://arxiv.org/abs/2008.11193. Smith, Thakurta (2022), Fully adaptive composition for Gaussian
differential privacy, https://arxiv.org/abs/2210.17520. Koskela, Tobaben, Honkela (2022), Individual
privacy accounting with Gaussian differential privacy, https://arxiv.org/abs/2209.15596.
"""

from __future__ import annotations

import math

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from scipy.optimize import brentq

from pymc_dp.arguments import as_float, check_epsilon_delta
from pymc_dp.privacy.accounting.composition import (
    Cost,
    accountant_of,
    renyi_budget,
    renyi_to_epsilon,
)
from pymc_dp.privacy.accounting.filters import GaussianShare, RenyiShare, Share
from pymc_dp.privacy.mechanisms.mechanism import ORDERS, Mechanism, gaussian_profile

#: Fraction of a budget that shares leave unused for the rounding of conversions, so that all of them together fit.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class AdaptiveComposition:
    r"""A bound (epsilon, delta) on accesses that are chosen one after the other, with full knowledge of earlier releases.

    Each access has a *price*: its Rényi divergence at the order, or the square of its ``mu``. While the sum of
    the prices is at most :attr:`limit`, all accesses together are (epsilon, delta)-DP.
    """

    epsilon: float
    delta: float
    #: The Rényi order, infinite if and only if delta is 0; None for Gaussian DP.
    order: float | None

    def __post_init__(self) -> None:
        epsilon, delta = check_epsilon_delta(self.epsilon, self.delta)
        self.__dict__.update(epsilon=epsilon, delta=delta)
        if self.order is not None and not as_float(self.order) > 1:
            raise ValueError(f"A Rényi order must exceed 1, got {self.order!r}.")
        if self.is_pure != (delta == 0):
            raise ValueError(f"The Rényi order must be infinite if and only if delta is 0, got {self.order!r} at delta = {delta:g}.")  # fmt: skip

    @classmethod
    def opened(cls, epsilon: float, delta: float, accountant: str = "best") -> AdaptiveComposition:
        r"""Return the adaptive composition of a budget opened with these terms.

        Pure DP at ``delta = 0``. Gaussian DP for the accountant ``"gaussian"``. For all others the Rényi order that maximises
        :math:`B(\alpha) / \alpha`, where :math:`B(\alpha) = \varepsilon - c(\alpha, \delta)` is the budget at
        this order: it pays for most accesses with costs :math:`\alpha \rho`, as those of Gaussian releases and,
        nearly, of decisions. (``"pld"`` applies to claims made at once.)
        """
        epsilon, delta = check_epsilon_delta(epsilon, delta)
        accountant_of(accountant, delta)  # refuses what has no bound
        if delta == 0:
            return cls(epsilon, delta, math.inf)
        if accountant == "gaussian":
            return cls(epsilon, delta, None)
        worth = renyi_budget(ORDERS, min(epsilon, 1e100), delta) / ORDERS
        return cls(epsilon, delta, float(ORDERS[np.argmax(worth)]))

    @property
    def is_pure(self) -> bool:
        """Whether pure epsilons add up."""
        return self.order == math.inf

    @property
    def name(self) -> str:
        """Name of the currency, for messages."""
        if self.is_pure:
            return "pure epsilons (delta = 0)"
        return "Gaussian DP" if self.order is None else f"the Rényi order {self.order:.4g}"

    @property
    def accountant(self) -> str:
        """Name of the accountant that adds up in this currency."""
        return "gaussian" if self.order is None else "pure" if self.is_pure else "rdp"

    @cached_property
    def limit(self) -> float:
        """Limit of the sum of the prices; negative if even a sum of 0 does not convert to (epsilon, delta)."""
        if self.epsilon == math.inf:
            return math.inf
        epsilon = min(self.epsilon, 1e100)  # a smaller epsilon is safe, and avoids overflow
        if self.is_pure:
            return epsilon
        if self.order is None:
            return _largest_mu(min(epsilon, 1e11), self.delta) ** 2
        return float(renyi_budget(np.array(self.order), epsilon, self.delta))

    def price(self, mechanism: Mechanism) -> float:
        """Price of one access; infinite if no bound is known."""
        return _price(self.share(1.0), mechanism)

    def price_of(self, cost: Cost) -> float:
        """Sum of the prices of a collection of accesses."""
        return math.fsum(k * self.price(m) for m, k in cost.counts.items())

    def left(self, cost: Cost) -> float:
        """Remaining limit after these accesses, with room for rounding; may be negative."""
        return self.limit * (1 - math.copysign(_ROUNDING, self.limit)) - self.price_of(cost)

    def share(self, total: float) -> Share:
        """A share of a filter in this currency."""
        return GaussianShare(math.sqrt(total)) if self.order is None else RenyiShare(self.order, total)  # fmt: skip

    def whole(self) -> Share:
        """The whole limit as one share."""
        return self.share(self.limit)

    def reading(self, cost: Cost, delta: float | None = None) -> float:
        """Epsilon at delta (by default the bound's own) to which the sum of prices converts."""
        if cost.free:
            return 0.0
        delta = self.delta if delta is None else delta
        total = self.price_of(cost)
        if self.is_pure:
            return total
        if self.order is not None:
            converted = float(renyi_to_epsilon(self.order, total, delta))
            return max(0.0, converted) * (1 + 1e-9)
        if total == math.inf:
            return math.inf
        return Cost.of([(GaussianShare(math.sqrt(total) * (1 + 1e-15)), 1)]).epsilon(delta, "gaussian")  # fmt: skip

    def fits(self, cost: Cost) -> bool:
        """Whether these accesses stay within the bound, however they were chosen."""
        return self.epsilon == math.inf or self.reading(cost) <= self.epsilon

    def holds(self, cost: Cost) -> float:
        r"""Epsilon that holds after these accesses, for any stopping rule that depends on the releases.

        With one Rényi order (or pure epsilons) that is the reading. Let :math:`L_t` be the privacy loss of the releases after
        ``t`` accesses and :math:`R_t` the sum of their prices. :math:`e^{(\alpha - 1)(L_t - R_t)}` is a
        non-negative supermartingale that begins at 1, so its mean is at most 1 at any stopping time
        :math:`\tau` of the releases (optional stopping; :math:`R` is bounded by the limit). With
        :math:`\varepsilon_\tau = R_\tau + c`, where ``c`` is the constant of the conversion, the bound
        :math:`1 - e^{-x} \le e^{(\alpha - 1) x - \ln \alpha} (1 - 1/\alpha)^{\alpha - 1}` for all ``x``, by which the
        conversion is proved, gives

        .. math:: \operatorname{E} (1 - e^{\varepsilon_\tau - L_\tau})_+ \le \delta \operatorname{E} e^{(\alpha - 1)(L_\tau - R_\tau)} \le \delta .

        With Gaussian DP there is no such bound: a rule that stops if the loss is large exceeds the delta to
        which the ``mu`` so far converts. All later accesses stay within the budget's epsilon, and stopping is
        post-processing: so that epsilon holds, and no smaller one.
        """
        if cost.free:
            return 0.0
        return self.epsilon if self.order is None else self.reading(cost)


@lru_cache(maxsize=16384)
def _price(share: Share, mechanism: Mechanism) -> float:
    return share.price(mechanism)


def _largest_mu(epsilon: float, delta: float) -> float:
    """Largest ``mu`` that is (epsilon, delta)-DP, rounded down."""

    def excess(log_mu: float) -> float:
        found = float(gaussian_profile(np.array(epsilon), math.exp(log_mu)))
        return max(found, -1e6) - math.log(delta)

    low, high = -200.0, 1.0
    while excess(high) <= 0:
        high += 1.0
    part, root = 1e-9, math.exp(brentq(excess, low, high, xtol=1e-12, rtol=1e-14))
    while excess(math.log(mu := root * (1 - part))) > 0:
        part *= 2
    return mu
