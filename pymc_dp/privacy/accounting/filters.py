"""Filters: adaptive composition of accesses whose costs are known only when they are made.

Proposals of different lengths have different costs, and the next proposal depends on earlier decisions. Ordinary
composition fixes all costs in advance; a filter does not.
"""

from __future__ import annotations

import math

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from pymc_dp.arguments import as_float, as_positive_float
from pymc_dp.display import Shown
from pymc_dp.privacy.mechanisms.mechanism import (
    Accesses,
    Gaussian,
    Mechanism,
    check_count,
    concentrated,
)


class Share(Mechanism):
    """A share of a filter: any adaptively chosen accesses whose prices add up to no more than its totals."""

    @property
    @abstractmethod
    def total(self) -> float:
        """Limit on the sum of the prices."""

    @abstractmethod
    def price(self, mechanism: Mechanism) -> float:
        """Price of one access; infinite if no bound is known."""


@dataclass(frozen=True)
class RenyiShare(Share):
    r"""A share of a Rényi filter: any adaptively chosen accesses that together stay within ``rho`` at one order.

    Parameters
    ----------
    order : float
        The order, fixed in advance; infinite for pure epsilons.
    rho : float
        Bound on the sum of the Rényi divergences at this order. (It also bounds lower orders, by monotonicity,
        but no higher ones.)

    References
    ----------
    Feldman, Zrnic (2021), Individual privacy accounting via a Rényi filter,
    https://arxiv.org/abs/2008.11193.

    Examples
    --------
    >>> share = dp.privacy.RenyiShare(order=8.0, rho=0.5)
    >>> round(share.price(dp.privacy.Gaussian(10.0)), 6)  # of 0.5
    0.04
    """

    order: float
    rho: float

    def __post_init__(self) -> None:
        self._set(rho=as_positive_float("share of the filter", self.rho))
        if not as_float(self.order) > 1:
            raise ValueError(f"A Rényi order must exceed 1, got {self.order!r}.")
        self._set(order=as_float(self.order))

    @property
    def name(self) -> str:
        """Name with order and share."""
        return f"Rényi filter at order {self.order:.4g}, share {self.rho:.4g}"

    @property
    def pure_epsilon(self) -> float:
        """``rho`` at infinite order."""
        return self.rho if self.order == math.inf else math.inf

    @property
    def total(self) -> float:
        """``rho``."""
        return self.rho

    def price(self, mechanism: Mechanism) -> float:
        """Rényi divergence at the order."""
        return float(mechanism.renyi([self.order])[0])

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """``rho`` up to the order of the filter, infinite beyond."""
        return np.where(orders <= self.order * (1 + 1e-12), self.rho, np.inf)

    def for_group(self, size: int) -> RenyiShare | None:
        """Return ``size`` times the share for pure epsilons, which add up along a chain of neighbours."""
        return RenyiShare(self.order, self.rho * size) if self.order == math.inf else None


@dataclass(frozen=True)
class GaussianShare(Share):
    r"""A share of a Gaussian-DP filter: any adaptively chosen accesses that together are ``mu``-GDP.

    Their squared ``mu`` add up to ``mu**2`` at most: they reveal as much as one Gaussian release with this ``mu``.

    Parameters
    ----------
    mu : float
        Root of the bound on the sum of squares.

    References
    ----------
    Smith, Thakurta (2022), Fully adaptive composition for Gaussian differential privacy,
    https://arxiv.org/abs/2210.17520. Koskela, Tobaben, Honkela (2022), Individual privacy accounting
    with Gaussian differential privacy, https://arxiv.org/abs/2209.15596.

    Examples
    --------
    >>> share = dp.privacy.GaussianShare(mu=0.5)
    >>> round(share.price(dp.privacy.Gaussian(10.0)), 6)  # of share.total, 0.25
    0.01
    """

    mu: float

    def __post_init__(self) -> None:
        self._set(mu=as_positive_float("share of the filter", self.mu))

    @property
    def name(self) -> str:
        """Name with ``mu``."""
        return f"Gaussian-DP filter, share mu={self.mu:.4g}"

    @property
    def total(self) -> float:
        """``mu**2``."""
        return self.mu * self.mu

    def price(self, mechanism: Mechanism) -> float:
        """``mu**2`` of an access, infinite if it has no ``mu``."""
        mu = mechanism.gaussian_mu
        return math.inf if mu is None else 2 * concentrated(mu)  # never 0

    @property
    def gaussian_mu(self) -> float:
        """``mu``."""
        return self.mu

    @property
    def zcdp(self) -> float:
        """``mu**2 / 2``."""
        return concentrated(self.mu)

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """That of a Gaussian release."""
        return orders * self.zcdp

    def privacy_profile(self, epsilons: npt.ArrayLike) -> np.ndarray:
        """That of a Gaussian release."""
        return Gaussian(1 / self.mu).privacy_profile(epsilons)

    def for_group(self, size: int) -> GaussianShare:
        """Return the share with ``size * mu`` (Theorem 2.14 of Dong, Roth, Su 2022)."""
        return GaussianShare(self.mu * size)


class Filter(Shown):
    """Spends a share: grants or refuses each access before it is made.

    The kind of share and its total are fixed in advance: of a :class:`~pymc_dp.privacy.RenyiShare` the sum of Rényi
    divergences at one order (Theorem 3.1 of Feldman, Zrnic 2021), of a :class:`~pymc_dp.privacy.GaussianShare` that of
    squared ``mu``. The accesses may be chosen adaptively, with full knowledge of earlier releases. If each access is
    made only after it was granted, all of them together stay within the share. A refusal is final: later, cheaper
    accesses are refused too, so that the number of accesses reveals nothing that was not paid for.

    Parameters
    ----------
    share : RenyiShare or GaussianShare
        What may be spent.
    prices : mapping of Mechanism to float, optional
        Prices that were computed before; by default each is computed when it is first asked for.

    Examples
    --------
    >>> spending = dp.privacy.Filter(dp.privacy.RenyiShare(order=8.0, rho=1.0))
    >>> [spending.grant([(dp.privacy.Gaussian(4.0), 1)]) for _ in range(5)]
    [True, True, True, True, False]
    """

    def __init__(self, share: Share, prices: Mapping[Mechanism, float] = MappingProxyType({})):
        self.share = share
        #: Sum of the prices.
        self.spent = 0.0
        self.closed = False
        self._prices = dict(prices)

    @property
    def fraction(self) -> float:
        """Fraction of the share that is spent."""
        return self.spent / self.share.total

    def grant(self, accesses: Accesses) -> bool:
        """Pay for these accesses together, or refuse them and all later ones."""
        cost = 0.0
        for mechanism, count in accesses:
            check_count(mechanism, count)
            if mechanism not in self._prices:
                self._prices[mechanism] = self.share.price(mechanism)
            cost += as_float(count) * self._prices[mechanism]
        self.closed = self.closed or not self.spent + cost <= self.share.total
        if not self.closed:
            self.spent += cost
        return not self.closed
