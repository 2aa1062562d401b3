"""Frozen descriptions of one access to the data, with its privacy cost.

A mechanism is a value: what is accessed and with which noise, but not how often. All costs are upper bounds, rounded
to the safe side. Noise and sensitivities are given for the adjacency in use. A mechanism whose bound holds for one
adjacency only lists that one, and a budget for the other refuses it.
"""

from __future__ import annotations

import math

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from scipy.special import log_ndtr

from pymc_dp.acceptance import AcceptanceRule, Barker, Penalty
from pymc_dp.arguments import as_float, as_floats, as_positive_float
from pymc_dp.codec import published
from pymc_dp.privacy.mechanisms.decision_suprema import (
    decision_mu,
    decision_profile,
    decision_renyi,
    interpolate_profile,
)

#: Rényi orders at which costs are composed: all whole numbers up to 64 (some bounds are known at whole orders
#: only), and a dense grid where the best order lies for epsilon between 0.001 and 100.
ORDERS = np.unique(
    np.concatenate(
        [
            1 + np.geomspace(0.01, 0.9, 12),
            np.geomspace(2, 38, 115),
            np.arange(2, 65),
            np.round(np.geomspace(65, 1000, 105)),
            np.geomspace(1050, 1e5, 40),
        ]
    )
)
ORDERS.flags.writeable = False


class Adjacency(StrEnum):
    """Which data sets count as neighbours.

    Examples
    --------
    >>> dp.privacy.Adjacency("substitute").sensitivity_factor
    2.0
    """

    SUBSTITUTE = "substitute"  #: one record replaced by any other; the number of records is public
    ADD_REMOVE = "add_remove"  #: one record added or removed

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"Unknown adjacency {value!r}; choose 'substitute' or 'add_remove'.")

    @property
    def sensitivity_factor(self) -> float:
        """Largest change of a sum of clipped terms between neighbours, in units of the clip bound."""
        return 2.0 if self is Adjacency.SUBSTITUTE else 1.0


class Mechanism(ABC):
    """One access to the data. Subclasses are frozen dataclasses whose fields are numbers, names or acceptance rules.

    Examples
    --------
    >>> access: dp.privacy.Mechanism = dp.privacy.Gaussian(noise_multiplier=10.0)
    >>> round(access.zcdp, 6), access.adjacencies == set(dp.privacy.Adjacency)
    (0.005, True)
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Ledgers hold mechanisms."""
        super().__init_subclass__(**kwargs)
        published(cls)

    @property
    @abstractmethod
    def name(self) -> str:
        """Short description with all parameters, for reports."""

    @property
    def adjacencies(self) -> frozenset[Adjacency]:
        """Adjacencies for which the bound is proved: both, if it depends on the adjacency through the sensitivity only."""
        return frozenset(Adjacency)

    @property
    def gaussian_mu(self) -> float | None:
        """``mu`` such that the access is ``mu``-GDP; None if none is known."""
        return None

    @property
    def zcdp(self) -> float | None:
        """``rho`` such that the access is ``rho``-zCDP; None if none is known."""
        return None

    @property
    def pure_epsilon(self) -> float:
        """Epsilon at ``delta = 0``, which is the Rényi divergence of infinite order; infinite if no bound is known."""
        return math.inf

    def renyi(self, orders: npt.ArrayLike) -> np.ndarray:
        """Upper bound on the Rényi divergence at each order > 1, shape of ``orders``."""
        alpha = as_floats("Rényi orders", orders)
        if not np.all(alpha > 1):
            raise ValueError(f"Rényi orders must exceed 1, got {orders!r}.")
        found, finite = np.full(alpha.shape, self.pure_epsilon), alpha < math.inf
        if finite.any():
            found[finite] = self._renyi(alpha[finite])
        return found

    @abstractmethod
    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Upper bound at each of a vector of finite orders."""

    def privacy_profile(self, epsilons: npt.ArrayLike) -> np.ndarray | None:
        """Upper bound on the hockey-stick divergence over all pairs of neighbours, at any real epsilon.

        None if no bound is known. As it covers all pairs and negative epsilons, a pair of distributions with
        this profile dominates the mechanism, and dominating pairs compose (Theorem 10 of Zhu, Dong, Wang 2022,
        https://proceedings.mlr.press/v151/zhu22c.html). The profile of one pair of data sets would not be
        enough.
        """
        return None

    def for_group(self, size: int) -> Mechanism | None:
        """Return the access if neighbours differ in a group of records; None if only the general bounds are known.

        Two data sets that differ in ``size`` records are joined by as many steps from one neighbour to the
        next, under substitution and under add/remove. By the triangle inequality the accessed sum or log-ratio
        changes by at most ``size`` sensitivities, and a mechanism whose bound holds for every change up to its
        sensitivity costs a group what the same mechanism with ``size`` times the sensitivity costs one record.
        These costs compose as others do: composition holds for any relation between data sets.

        Parameters
        ----------
        size : int
            Number of records in the group, at least 1.
        """
        return None

    def usual(self) -> set[Mechanism]:
        """Accesses that are charged for it, as far as they can be told in advance: itself, unless its cost varies."""
        return {self}

    def mean_price(self, price: Callable[[Mechanism], float]) -> float:
        """Return its price, or the expected one if its cost varies, for planning a filter."""
        return price(self)

    def _set(self, **values: Any) -> None:
        """Set fields to their checked values, in ``__post_init__``."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


#: Mechanisms, and how often each is used.
Accesses = Iterable[tuple[Mechanism, float]]


def gaussian_profile(log_t: np.ndarray, mu: float) -> np.ndarray:
    """Log of the hockey-stick divergence of order ``exp(log_t)`` between ``N(mu, 1)`` and ``N(0, 1)``."""
    mu = max(mu, 1e-100)  # a larger mu is safe, and avoids overflow
    upper, lower = log_ndtr(mu / 2 - log_t / mu), log_t + log_ndtr(-mu / 2 - log_t / mu)
    with np.errstate(divide="ignore"):
        # The two terms cancel: allow for the rounding of each.
        gap = -np.expm1(np.minimum(lower - upper, 0)) + 4e-16 * (1 + np.abs(upper))
    return upper + np.log(gap)


@dataclass(frozen=True)
class Gaussian(Mechanism):
    r"""A vector released with Gaussian noise.

    ``mu = 1 / noise_multiplier``; :math:`D_\alpha = \alpha \mu^2 / 2` exactly, and ``k`` releases
    are exactly ``sqrt(k) * mu``-GDP.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise divided by the L2 *sensitivity* (under substitution that is
        twice the clip bound: pass ``sigma / (2 * bound)``).

    References
    ----------
    Dong, Roth, Su (2022), Gaussian differential privacy, https://doi.org/10.1111/rssb.12454.
    Theorem 2.11 of Räisä (2021), Differentially private Metropolis-Hastings algorithms.

    Examples
    --------
    >>> dp.privacy.Gaussian(noise_multiplier=20.0).gaussian_mu
    0.05
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        self._set(noise_multiplier=as_positive_float("noise multiplier", self.noise_multiplier))

    @property
    def name(self) -> str:
        """Name with the noise multiplier."""
        return f"Gaussian(sigma/sensitivity={self.noise_multiplier:.6g})"

    @property
    def noise_sd(self) -> float:
        """Standard deviation of each coordinate, in units of the sensitivity: the noise multiplier."""
        return self.noise_multiplier

    @property
    def gaussian_mu(self) -> float:
        """Exact ``mu``."""
        return 1 / self.noise_multiplier

    @property
    def zcdp(self) -> float:
        """Exact ``rho``."""
        return concentrated(self.gaussian_mu)

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Exact Rényi divergence."""
        return orders * self.zcdp

    def privacy_profile(self, epsilons: npt.ArrayLike) -> np.ndarray:
        """Exact hockey-stick divergence."""
        finite = np.clip(np.asarray(epsilons, dtype=float), -1e9, 1e9)
        return np.exp(gaussian_profile(finite, self.gaussian_mu))

    def for_group(self, size: int) -> Gaussian:
        """Return the release with ``size`` times the sensitivity: exact, see :meth:`Mechanism.for_group`."""
        return Gaussian(self.noise_multiplier / size)


@dataclass(frozen=True)
class Decision(Mechanism):
    r"""One accept/reject bit; the log-ratio behind it is never released.

    One record changes the log-ratio by at most the sensitivity. So the cost at order ``alpha`` is the largest
    Rényi divergence between ``Bernoulli(a(x))`` and ``Bernoulli(a(x + sensitivity))``, in either direction,
    over all real ``x``: a maximisation over one variable. For a monotone rule no smaller shift costs more.

    Further bounds: a penalty decision is post-processing of the log-ratio plus ``N(0, s**2)``, hence
    ``Delta/s``-GDP (the smallest possible ``mu``) and ``Delta**2 / (2 s**2)``-zCDP. The log-odds of a Barker
    decision change by at most ``Delta``, hence ``Delta**2 / 8``-zCDP. Its ``mu``, about ``0.62666 Delta``, is a
    maximum over log-ratios, as that of lazy decisions
    (:func:`~pymc_dp.privacy.mechanisms.decision_suprema.decision_mu`). Laziness is post-processing, so the
    bounds of its rule hold for a lazy decision.

    Parameters
    ----------
    rule : AcceptanceRule
        How the decision is drawn from the log-ratio.
    sensitivity : float
        Largest change of the log-ratio when one record changes, > 0.

    References
    ----------
    Bounded range: Dong, Durfee, Rogers (2020), Optimal differential privacy composition for
    exponential mechanisms, https://proceedings.mlr.press/v119/dong20a.html.

    Examples
    --------
    >>> round(dp.privacy.Decision(dp.Barker(), sensitivity=0.2).zcdp, 4)
    0.005
    """

    rule: AcceptanceRule
    sensitivity: float

    def __post_init__(self) -> None:
        self._set(sensitivity=as_positive_float("sensitivity", self.sensitivity))
        if not self.rule.private:
            raise ValueError(
                f"The rule {self.rule.name} has no finite privacy cost: a decision can be certain under one data set and "
                "uncertain under its neighbour. Use Penalty(scale) or Barker()."
            )

    @property
    def name(self) -> str:
        """Name with the rule and the sensitivity."""
        return f"decision by {self.rule.name}, sensitivity {self.sensitivity:.4g}"

    @property
    def _released(self) -> float:
        """``mu`` of a release of the noisy log-ratio: ``Delta / s`` for penalty rules, lazy or not, else infinite."""
        return (
            self.sensitivity / self.rule.inner.scale
            if isinstance(self.rule.inner, Penalty)
            else math.inf
        )

    @property
    def gaussian_mu(self) -> float | None:
        """Smallest ``mu`` that holds at all log-ratios, rounded up; None beyond the range of the search."""
        if isinstance(self.rule, Penalty):
            return self._released
        mu = min(decision_mu(self.rule, self.sensitivity), self._released)
        return mu if mu < math.inf else None

    @property
    def zcdp(self) -> float | None:
        """Closed-form ``rho`` for penalty and Barker rules, else None."""
        if isinstance(self.rule.inner, Barker):
            return concentrated(self.sensitivity / 2)
        return concentrated(self._released) if self._released < math.inf else None

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Upper bound at each order: the minimum of the supremum over log-ratios and the closed form."""
        found = decision_renyi(self.rule, self.sensitivity, tuple(orders.tolist()))
        # The closed form is lower by rounding only, or beyond the range of the search.
        return np.minimum(found, math.inf if self.zcdp is None else orders * self.zcdp)

    def privacy_profile(self, epsilons: npt.ArrayLike) -> np.ndarray:
        """Supremum over the log-ratio at each epsilon.

        Exact for one decision. Each epsilon has another worst log-ratio, so over many decisions the Rényi bound
        is tighter.
        """
        return interpolate_profile(
            *decision_profile(self.rule, self.sensitivity), np.asarray(epsilons)
        )

    def for_group(self, size: int) -> Decision:
        """Return the decision with ``size`` times the sensitivity: exact, see :meth:`Mechanism.for_group`."""
        return Decision(self.rule, self.sensitivity * size)


def concentrated(mu: float) -> float:
    """``mu**2 / 2``, the ``rho`` of a ``mu``-GDP mechanism: infinite on overflow, and never 0."""
    return max(mu * mu / 2, math.ulp(0.0)) if mu < 1e150 else math.inf


def check_count(mechanism: Mechanism, count: Any) -> None:
    """Raise ValueError unless the count is a number of at least 0."""
    if not as_float(count) >= 0:
        raise ValueError(f"A count must be at least 0, got {count!r} for {mechanism.name}.")
