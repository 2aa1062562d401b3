"""Releases of which only the guarantee is known: pure DP and zero-concentrated DP."""

from __future__ import annotations

import math

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scipy.special import ndtri_exp

from pymc_dp.arguments import as_positive_float
from pymc_dp.privacy.mechanisms.mechanism import Gaussian, Mechanism

_SAFETY = 1 + 1e-9


@dataclass(frozen=True)
class PureDP(Mechanism):
    r"""Any release that is pure ``epsilon``-DP.

    Randomized response, a bit that is true with probability :math:`p = e^\varepsilon / (1 + e^\varepsilon)`,
    dominates every such release (Kairouz, Oh, Viswanath 2015): each cost is that of randomized response. Its
    Rényi divergence is

    .. math:: D_\alpha = \frac{1}{\alpha - 1}
        \log \frac{\cosh((\alpha - 1/2)\,\varepsilon)}{\cosh(\varepsilon / 2)} ,

    the mean of :math:`\varepsilon \tanh((s - 1/2) \varepsilon)` over ``s`` from 1 to :math:`\alpha`. As tanh
    is concave above 0, that is at most :math:`\varepsilon \tanh(\alpha \varepsilon / 2) \le \alpha \varepsilon
    \tanh(\varepsilon / 2)`, which is the ``rho`` of zCDP (at most ``epsilon**2 / 2``). Its trade-off curve is
    piecewise linear with one vertex, at :math:`(1 - p, 1 - p)`, so that
    :math:`\mu = 2 \Phi^{-1}(p)`, as for decisions
    (:func:`~pymc_dp.privacy.mechanisms.decision_suprema.decision_mu`).

    Parameters
    ----------
    epsilon : float
        > 0.

    References
    ----------
    Kairouz, Oh, Viswanath (2015), The composition theorem for differential privacy,
    https://proceedings.mlr.press/v37/kairouz15.html; Bun, Steinke (2016), Proposition 1.4,
    https://doi.org/10.1007/978-3-662-53641-4_24; Dong, Roth, Su (2022), https://doi.org/10.1111/rssb.12454.

    Examples
    --------
    >>> round(dp.privacy.PureDP(1.0).gaussian_mu, 4)
    1.232
    """

    epsilon: float

    def __post_init__(self) -> None:
        self._set(epsilon=as_positive_float("epsilon of a release", self.epsilon))

    @property
    def name(self) -> str:
        """Name with epsilon."""
        return f"pure DP(epsilon={self.epsilon:.6g})"

    @property
    def pure_epsilon(self) -> float:
        """Its epsilon."""
        return self.epsilon

    @property
    def gaussian_mu(self) -> float:
        """Smallest ``mu`` that holds for every such release, rounded up."""
        log_small = -self.epsilon - math.log1p(math.exp(-self.epsilon))
        return max(-2 * float(ndtri_exp(log_small)) * _SAFETY, math.ulp(0.0)) + 1e-15

    @property
    def zcdp(self) -> float:
        """Smallest ``rho`` that holds for every such release, rounded up."""
        return max(self.epsilon * math.tanh(self.epsilon / 2) * _SAFETY, math.ulp(0.0))

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """That of randomized response, at most epsilon and at most that of its zCDP."""
        high, low = (orders - 0.5) * self.epsilon, self.epsilon / 2
        with np.errstate(over="ignore"):
            far = high - low + np.log1p(np.exp(-2 * high)) - math.log1p(math.exp(-2 * low))
            product = 2 * np.sinh(orders * low) * np.sinh((orders - 1) * low)
        near = np.log1p(np.where(high < 10, product, 0.0) / math.cosh(min(low, 10.0)))
        found = np.where(high < 10, near, far) / (orders - 1) * _SAFETY
        return np.minimum(np.minimum(found, self.epsilon), orders * self.zcdp)

    def privacy_profile(self, epsilons: npt.ArrayLike) -> np.ndarray:
        """That of randomized response."""
        t = np.minimum(np.asarray(epsilons, dtype=float), 1e3)
        inside = -np.expm1(np.minimum(t - self.epsilon, 0.0)) / (1 + math.exp(-self.epsilon))
        return np.minimum(np.maximum(inside * _SAFETY, -np.expm1(np.minimum(t, 0.0))), 1.0)

    def for_group(self, size: int) -> PureDP:
        """Return a release with ``size`` times the epsilon: no smaller one holds in general."""
        return PureDP(self.epsilon * size)


@dataclass(frozen=True)
class ZeroConcentratedDP(Mechanism):
    r"""Any release that is ``rho``-zCDP.

    Its Rényi divergence is at most :math:`\alpha \rho` at every order :math:`\alpha`. No ``mu`` of Gaussian DP and no pure epsilon follow from ``rho``.

    Parameters
    ----------
    rho : float
        > 0.

    References
    ----------
    Bun, Steinke (2016), Concentrated differential privacy,
    https://doi.org/10.1007/978-3-662-53641-4_24.

    Examples
    --------
    >>> access = dp.privacy.ZeroConcentratedDP(0.01)
    >>> round(dp.privacy.epsilon_of([(access, 1)], delta=1e-6), 2)
    0.62
    """

    rho: float

    def __post_init__(self) -> None:
        self._set(rho=as_positive_float("rho of a release", self.rho))

    @property
    def name(self) -> str:
        """Name with ``rho``."""
        return f"zCDP(rho={self.rho:.6g})"

    @property
    def zcdp(self) -> float:
        """Its ``rho``."""
        return self.rho

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """``rho`` times the order."""
        return orders * self.rho

    def for_group(self, size: int) -> ZeroConcentratedDP:
        """Return a release with ``size**2`` times the ``rho`` (Proposition 1.9 of Bun, Steinke 2016)."""
        return ZeroConcentratedDP(self.rho * size**2)


def stated(
    epsilon: float | None, rho: float | None, mu: float | None
) -> PureDP | ZeroConcentratedDP | Gaussian:
    """Return a release with the guarantee that another tool states; ValueError unless exactly one of epsilon, ``rho`` and ``mu`` is given."""
    values: dict[str, Any] = {"epsilon": epsilon, "rho": rho, "mu": mu}
    given = {name: value for name, value in values.items() if value is not None}
    if len(given) != 1:
        raise ValueError(
            f"Give exactly one of epsilon (with or without delta), rho (zCDP) and mu (Gaussian DP), got {given or 'none of them'}: the "
            "guarantee that the other tool states."
        )
    if epsilon is not None:
        return PureDP(epsilon)
    return ZeroConcentratedDP(rho) if rho is not None else Gaussian(1 / as_positive_float("mu", mu))
