"""Spending as you go: accesses whose cost is known only when they are made.

Proposals of different lengths cost differently, and which is next depends on what was accepted
before. Ordinary composition fixes all costs in advance; a filter does not.
"""

from __future__ import annotations

import math

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from pymc_dp.privacy.mechanisms import (
    Gaussian,
    Mechanism,
    check_count,
    concentrated,
    positive,
    real,
    reals,
)

__all__ = ["Filter", "GaussianFilter", "GaussianShare", "RenyiFilter", "RenyiOdometer", "RenyiShare", "Share"]  # fmt: skip

_ODOMETER_ORDERS = tuple(2.0**k for k in range(1, 11))


class Share(Mechanism):
    """A share of a filter: any adaptively chosen accesses whose prices add up to no more than its totals."""

    @property
    @abstractmethod
    def totals(self) -> tuple[float, ...]:
        """Most that the prices may add up to, in each currency."""

    @abstractmethod
    def prices(self, mechanism: Mechanism) -> tuple[float, ...]:
        """What one access takes of the totals; infinite where no bound is known."""


@dataclass(frozen=True)
class RenyiShare(Share):
    r"""A share of a Rényi filter: any adaptively chosen accesses that together stay within ``rho`` at one order.

    Parameters
    ----------
    order : float
        The order, fixed in advance.
    rho : float
        Bound on the sum of the Rényi divergences at this order. (By monotonicity it also bounds
        lower orders; at higher orders nothing is promised.)
    below, rho_below : float, optional
        A lower order, and a bound on the sum of the divergences there that counts, too: what a share
        costs on an account whose order is the lower one.

    References
    ----------
    Feldman, Zrnic (2021), Individual privacy accounting via a Rényi filter,
    https://arxiv.org/abs/2008.11193.
    """

    order: float
    rho: float
    below: float | None = None
    rho_below: float | None = None

    def __post_init__(self) -> None:
        self._set(rho=positive("share of the filter", self.rho))
        if not real(self.order) > 1:
            raise ValueError(f"A Rényi order must exceed 1, got {self.order!r}.")
        self._set(order=real(self.order))
        if (self.below is None) != (self.rho_below is None):
            raise ValueError("Give both or none of below and rho_below.")
        if self.below is not None:
            if not 1 < real(self.below) < self.order:
                raise ValueError(
                    f"The lower order must lie between 1 and {self.order:g}, got {self.below!r}."
                )
            self._set(below=real(self.below), rho_below=positive("lower share", self.rho_below))

    @property
    def name(self) -> str:
        """Name with order and share."""
        return f"Rényi filter at order {self.order:.4g}, share {self.rho:.4g}"

    @property
    def totals(self) -> tuple[float, ...]:
        """``rho``, and ``rho_below`` if there is one."""
        return (self.rho,) if self.rho_below is None else (self.rho, self.rho_below)

    def prices(self, mechanism: Mechanism) -> tuple[float, ...]:
        """Rényi divergence at the order, and at the lower one if there is one."""
        orders = (self.order,) if self.below is None else (self.order, self.below)
        return tuple(float(mechanism.renyi([order])[0]) for order in orders)

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """``rho`` up to the order of the filter, infinite beyond."""
        bound = np.where(orders <= self.order * (1 + 1e-12), self.rho, np.inf)
        if self.below is None or self.rho_below is None:
            return bound
        below = np.where(orders <= self.below * (1 + 1e-12), self.rho_below, np.inf)
        return np.minimum(bound, below)


@dataclass(frozen=True)
class GaussianShare(Share):
    r"""A share of a Gaussian-DP filter: any adaptively chosen accesses whose ``mu**2`` add up to ``mu**2`` at most.

    All of them together are ``mu``-GDP, as one Gaussian release with this ``mu``.

    Parameters
    ----------
    mu : float
        Root of the bound on the sum of squares.

    References
    ----------
    Smith, Thakurta (2022), Fully adaptive composition for Gaussian differential privacy,
    https://arxiv.org/abs/2210.17520. Koskela, Tobaben, Honkela (2022), Individual privacy accounting
    with Gaussian differential privacy, https://arxiv.org/abs/2209.15596.
    """

    mu: float

    def __post_init__(self) -> None:
        self._set(mu=positive("share of the filter", self.mu))

    @property
    def name(self) -> str:
        """Name with ``mu``."""
        return f"Gaussian-DP filter, share mu={self.mu:.4g}"

    @property
    def totals(self) -> tuple[float]:
        """``mu**2``."""
        return (self.mu * self.mu,)

    def prices(self, mechanism: Mechanism) -> tuple[float]:
        """``mu**2`` of an access, infinite if it has no ``mu``."""
        mu = mechanism.gaussian_mu
        return (math.inf if mu is None else 2 * concentrated(mu),)  # never 0

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


class Filter:
    r"""Spends a share: says of each access, before it is made, whether it is still covered.

    The kind of share and its total are fixed in advance; the accesses may be chosen adaptively, with
    full knowledge of what was released. While every access is asked for first and made only if granted,
    all of them together stay within the share. A refusal is final: later, cheaper accesses are refused
    too, so that the number of accesses shows nothing that was not paid for.

    Parameters
    ----------
    share : Share
        What may be spent.
    prices : mapping of Mechanism to tuple of float, optional
        Prices by this share that are known already.
    """

    def __init__(
        self, share: Share, prices: Mapping[Mechanism, tuple[float, ...]] = MappingProxyType({})
    ):
        self.share = share
        self.all_spent = (0.0,) * len(share.totals)
        self.closed = False
        self._prices = dict(prices)

    @property
    def spent(self) -> float:
        """Sum of the prices, in the first currency of the share."""
        return self.all_spent[0]

    @property
    def fraction(self) -> float:
        """How much of the share is spent, in the currency of which most is."""
        return max(s / t for s, t in zip(self.all_spent, self.share.totals, strict=True))

    def grant(self, accesses: Sequence[tuple[Mechanism, int]]) -> bool:
        """Pay for ``(mechanism, count)`` pairs together, or refuse them, and all that follow."""
        cost = [0.0] * len(self.all_spent)
        for mechanism, count in accesses:
            check_count(mechanism, count)
            if mechanism not in self._prices:
                self._prices[mechanism] = self.share.prices(mechanism)
            for i, price in enumerate(self._prices[mechanism]):
                cost[i] += real(count) * price
        after = tuple(s + c for s, c in zip(self.all_spent, cost, strict=True))
        covered = all(a <= t for a, t in zip(after, self.share.totals, strict=True))
        self.closed = self.closed or not covered
        if not self.closed:
            self.all_spent = after
        return not self.closed


class RenyiFilter(Filter):
    r"""Spends a :class:`RenyiShare`: the sum of Rényi divergences at one order stays within ``rho``.

    The order is fixed in advance (Theorem 3.1 of Feldman, Zrnic 2021); see :class:`Filter`.

    Examples
    --------
    >>> from pymc_dp.privacy.mechanisms import Gaussian
    >>> spending = RenyiFilter(RenyiShare(order=8.0, rho=1.0))
    >>> [spending.grant([(Gaussian(4.0), 1)]) for _ in range(5)]
    [True, True, True, True, False]
    """

    share: RenyiShare


class GaussianFilter(Filter):
    r"""Spends a :class:`GaussianShare`: the sum of ``mu**2`` stays within that of the share; see :class:`Filter`.

    Examples
    --------
    >>> from pymc_dp.privacy.mechanisms import Gaussian
    >>> spending = GaussianFilter(GaussianShare(mu=0.5))
    >>> [spending.grant([(Gaussian(4.0), 1)]) for _ in range(5)]
    [True, True, True, True, False]
    """

    share: GaussianShare


class RenyiOdometer:
    r"""Reads off, at any time, how much has been spent, without a budget fixed in advance.

    Let ``L_t`` be the privacy loss of everything released so far and ``R_t`` the sum of the Rényi
    divergences at order ``alpha``. ``exp((alpha - 1) (L_t - R_t))`` is a non-negative
    supermartingale with mean at most 1, however the accesses are chosen, so by Ville's inequality

    .. math:: \Pr[\exists t:\ L_t > R_t + \ln(1/\delta) / (\alpha - 1)] \le \delta .

    Several orders share ``delta`` equally, and the least reading counts. The readings hold for all
    times at once: whoever stops when the reading reaches epsilon has run an (epsilon, delta)-DP
    algorithm. A filter, which fixes one order and the end in advance, is tighter at its end.

    Parameters
    ----------
    delta : float
        Probability that any reading is ever too low, in (0, 1).
    orders : sequence of float
        Rényi orders > 1, fixed in advance. Default: powers of 2 from 2 to 1024.

    References
    ----------
    Rogers, Roth, Ullman, Vadhan (2016), https://arxiv.org/abs/1605.08294. Whitehouse, Ramdas,
    Rogers, Wu (2023), Fully-adaptive composition in differential privacy,
    https://proceedings.mlr.press/v202/whitehouse23a.html.

    Examples
    --------
    >>> from pymc_dp.privacy.mechanisms import Gaussian
    >>> odometer = RenyiOdometer(delta=1e-6)
    >>> odometer.epsilon
    0.0
    >>> odometer.add([(Gaussian(30.0), 100)])
    >>> 1 < odometer.epsilon < 2.5
    True
    """

    def __init__(self, delta: float, orders: Sequence[float] = _ODOMETER_ORDERS):
        if not 0 < real(delta) < 1:
            raise ValueError(f"delta must lie strictly between 0 and 1, got {delta!r}.")
        self.delta = real(delta)
        self.orders = reals("Rényi orders", orders)
        if self.orders.size == 0 or not np.all(self.orders > 1):
            raise ValueError(f"All Rényi orders must exceed 1, got {list(orders)!r}.")
        self.renyi = np.zeros(len(self.orders))

    def add(self, accesses: Sequence[tuple[Mechanism, float]]) -> None:
        """Add ``(mechanism, count)`` pairs that are about to be, or have been, made."""
        for mechanism, count in accesses:
            check_count(mechanism, count)
            with np.errstate(over="ignore"):
                self.renyi = self.renyi + real(count) * mechanism.renyi(self.orders)

    @property
    def epsilon(self) -> float:
        """Reading: the privacy loss has never exceeded it, but with probability ``delta``."""
        if not self.renyi.any():
            return 0.0
        return float(
            np.min(self.renyi + math.log(len(self.orders) / self.delta) / (self.orders - 1))
        )
