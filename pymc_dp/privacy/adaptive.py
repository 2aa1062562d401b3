r"""What composes adaptively: one Rényi order, or Gaussian DP, fixed when a budget or an account is opened.

Whoever claims again after a release has been seen may choose what to claim by it. Composition theorems
for this want the currency fixed before: one order for a Rényi filter (Feldman, Zrnic 2021), or Gaussian
DP (Smith, Thakurta 2022; Koskela, Tobaben, Honkela 2022). Taking the least over orders and accountants
of what has been claimed so far is no theorem: who sees a first release, and then claims what is cheap at
one order or at another one, gets more than twice the stated delta. So the currency is a function of
epsilon, delta and the accountant's name alone.

What is planned together and claimed at once, before anything was seen, may take any accountant.

References
----------
Feldman, Zrnic (2021), Individual privacy accounting via a Rényi filter,
https://arxiv.org/abs/2008.11193. Smith, Thakurta (2022), Fully adaptive composition for Gaussian
differential privacy, https://arxiv.org/abs/2210.17520. Koskela, Tobaben, Honkela (2022), Individual
privacy accounting with Gaussian differential privacy, https://arxiv.org/abs/2209.15596.
"""

from __future__ import annotations

import math

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from scipy.optimize import brentq

from pymc_dp.privacy.composition import Cost, check_terms, renyi_budget, renyi_to_epsilon
from pymc_dp.privacy.filters import GaussianShare, RenyiShare, Share
from pymc_dp.privacy.mechanisms import ORDERS, Mechanism, gaussian_profile, real

__all__ = ["AdaptiveComposition"]

#: Part of a budget that shares leave to the rounding of conversions, so that all of them together fit.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class AdaptiveComposition:
    r"""A bound (epsilon, delta) on accesses that are chosen one after the other, with full knowledge of what was released.

    Each access has a *price*, its Rényi divergence at the order or the square of its ``mu``. While
    prices add up to no more than :attr:`limit`, all accesses together are (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon, delta : float
        The bound.
    order : float or None
        The Rényi order; None for Gaussian DP.
    """

    epsilon: float
    delta: float
    order: float | None

    def __post_init__(self) -> None:
        epsilon, delta = check_terms(self.epsilon, self.delta)
        self.__dict__.update(epsilon=epsilon, delta=delta)
        if self.order is not None and not 1 < real(self.order) < math.inf:
            raise ValueError(f"A Rényi order must exceed 1, got {self.order!r}.")

    @classmethod
    def opened(cls, epsilon: float, delta: float, accountant: str = "best") -> AdaptiveComposition:
        r"""Return what a budget or an account opened with these terms composes adaptively.

        Gaussian DP for the accountant ``"gaussian"``. For all others the Rényi order at which a budget
        :math:`B(\alpha) = \varepsilon - c(\alpha, \delta)` buys the most of what costs :math:`\alpha
        \rho`, as Gaussian releases do and decisions nearly: the largest :math:`B(\alpha) / \alpha`.
        (What ``"pld"``, ``"zcdp"`` and ``"moments"`` add is for what is claimed at once.)

        A smaller epsilon or delta never has a smaller order: both differences, of :math:`\varepsilon /
        \alpha` and of :math:`\ln \delta / (\alpha (\alpha - 1))`, grow as alpha falls. So a share of a
        budget's order is never infinite at its account's.
        """
        epsilon, delta = check_terms(epsilon, delta)
        if accountant == "gaussian":
            return cls(epsilon, delta, None)
        worth = renyi_budget(ORDERS, min(epsilon, 1e100), delta) / ORDERS
        return cls(epsilon, delta, float(ORDERS[np.argmax(worth)]))

    @property
    def name(self) -> str:
        """In words."""
        return "Gaussian DP" if self.order is None else f"the Rényi order {self.order:.4g}"

    @property
    def accountant(self) -> str:
        """Name of the accountant that adds up in this currency."""
        return "gaussian" if self.order is None else "rdp"

    @cached_property
    def limit(self) -> float:
        """Most that prices may add up to; negative if not even nothing converts to (epsilon, delta)."""
        if self.epsilon == math.inf:
            return math.inf
        epsilon = min(self.epsilon, 1e100)  # nothing overflows, and less is safe
        if self.order is None:
            return _largest_mu(min(epsilon, 1e11), self.delta) ** 2
        return float(renyi_budget(np.array(self.order), epsilon, self.delta))

    def price(self, mechanism: Mechanism) -> float:
        """Price of one access; infinite where no bound is known."""
        return _price(self.share(1.0), mechanism)

    def price_of(self, cost: Cost) -> float:
        """Sum of the prices of a collection of accesses."""
        return math.fsum(k * self.price(m) for m, k in cost.counts.items())

    def left(self, cost: Cost) -> float:
        """What may still be spent after these accesses, with room for rounding; may be negative."""
        return self.limit * (1 - math.copysign(_ROUNDING, self.limit)) - self.price_of(cost)

    def share(self, total: float) -> Share:
        """A share of a filter in this currency."""
        return GaussianShare(math.sqrt(total)) if self.order is None else RenyiShare(self.order, total)  # fmt: skip

    def share_on(
        self, account: AdaptiveComposition | None, total: float, usual: Iterable[Mechanism]
    ) -> Share:
        """A share of a filter that is bounded at a lower order of the account, too.

        There it may cost what accesses of the usual kinds could at most, so that they are not refused for it.
        By this one order alone it would cost as much there as here, by monotonicity: far more.
        """
        if account is None or None in (account.order, self.order) or account.order >= self.order:  # type: ignore[operator]
            return self.share(total)
        assert self.order is not None and account.order is not None
        ratio = max(account.price(m) / self.price(m) for m in usual) * (1 + 1e-9)
        return RenyiShare(self.order, total, account.order, total * min(ratio, 1.0))

    def whole(self) -> Share:
        """All of it as one share."""
        return self.share(self.limit)

    def reading(self, cost: Cost, delta: float | None = None) -> float:
        """Epsilon at delta (by default the bound's own) to which the sum of prices converts."""
        if cost.free:
            return 0.0
        delta = self.delta if delta is None else delta
        total = self.price_of(cost)
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
        r"""Epsilon that holds after these accesses, whatever it was that decided to stop here.

        With one Rényi order that is the reading. Let :math:`L_t` be the privacy loss of what was released
        after ``t`` accesses and :math:`R_t` the sum of their prices. :math:`e^{(\alpha - 1)(L_t - R_t)}` is a
        non-negative supermartingale that begins at 1, so its mean is at most 1 at any time :math:`\tau` that
        is chosen by what was released (optional stopping; :math:`R` is bounded by the limit). With
        :math:`\varepsilon_\tau = R_\tau + c`, where ``c`` is the constant of the conversion, the bound
        :math:`1 - e^{-x} \le e^{(\alpha - 1) x - \ln \alpha} (1 - 1/\alpha)^{\alpha - 1}` for all ``x``, by which the
        conversion is proved, gives

        .. math:: \operatorname{E} (1 - e^{\varepsilon_\tau - L_\tau})_+ \le \delta \operatorname{E} e^{(\alpha - 1)(L_\tau - R_\tau)} \le \delta .

        With Gaussian DP there is no such bound: who stops if the loss is large, and goes on if not, exceeds
        the delta that the ``mu`` so far converts to. All that may follow is within epsilon, and to stop is
        post-processing: so that epsilon holds, and no smaller one.
        """
        if cost.free:
            return 0.0
        return self.epsilon if self.order is None else self.reading(cost)


@lru_cache(maxsize=16384)
def _price(share: Share, mechanism: Mechanism) -> float:
    return share.prices(mechanism)[0]


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
