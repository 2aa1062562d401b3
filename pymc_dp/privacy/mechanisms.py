"""Frozen descriptions of one access to the data, each knowing what it costs.

A mechanism is a value: what was accessed, with which noise, never how often. All costs are upper
bounds, rounded to the safe side. Sensitivities and noise are given for the adjacency in use; who
builds a mechanism states which (see :mod:`pymc_dp.privacy.budget`).
"""

from __future__ import annotations

import json
import math

from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pymc_dp import acceptance
from pymc_dp.acceptance import AcceptanceRule, Barker, Lazy, Penalty
from pymc_dp.privacy.decisions import decision_renyi

__all__ = [
    "ORDERS",
    "Decision",
    "DecisionFamily",
    "Gaussian",
    "Mechanism",
    "RenyiShare",
    "from_json",
    "to_json",
]

#: Rényi orders at which costs are composed: dense where the best order lies for epsilon between
#: 0.001 and 100.
ORDERS = np.concatenate(
    [1 + np.geomspace(0.01, 0.9, 12), np.geomspace(2, 1000, 240), np.geomspace(1050, 1e5, 40)]
)
ORDERS.flags.writeable = False


@runtime_checkable
class Mechanism(Protocol):
    """One access to the data."""

    @property
    def name(self) -> str:
        """Short description with all parameters, for reports."""
        ...

    @property
    def gaussian_mu(self) -> float | None:
        """``mu`` such that the access is ``mu``-GDP, by an argument that composes exactly; None if there is none."""
        ...

    @property
    def zcdp(self) -> float | None:
        """``rho`` such that the access is ``rho``-zCDP; None if there is none."""
        ...

    def renyi(self, orders: npt.ArrayLike) -> np.ndarray:
        """Upper bound on the Rényi divergence at each order > 1, shape of ``orders``."""
        ...


@dataclass(frozen=True)
class Gaussian:
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
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _positive("noise multiplier", self.noise_multiplier)

    @property
    def name(self) -> str:
        """Name with the noise multiplier."""
        return f"Gaussian(sigma/sensitivity={self.noise_multiplier:.6g})"

    @property
    def gaussian_mu(self) -> float:
        """Exact ``mu``."""
        return 1 / self.noise_multiplier

    @property
    def zcdp(self) -> float:
        """Exact ``rho``."""
        return 0.5 / self.noise_multiplier**2

    def renyi(self, orders: npt.ArrayLike) -> np.ndarray:
        """Exact Rényi divergence."""
        return np.asarray(orders, dtype=float) * self.zcdp


@dataclass(frozen=True)
class Decision:
    r"""One accept/reject bit; the log-ratio behind it is never released.

    One record moves the log-ratio by at most the sensitivity, so the cost at order ``alpha`` is the
    largest Rényi divergence between ``Bernoulli(a(x))`` and ``Bernoulli(a(x + sensitivity))``, in
    either direction, over all real ``x``: a maximisation over one variable. For a monotone rule no
    smaller shift is worse.

    Further bounds that hold: a penalty decision is post-processing of the log-ratio plus ``N(0,
    s**2)``, hence ``Delta/s``-GDP and ``Delta**2 / (2 s**2)``-zCDP; the log-odds of a Barker
    decision move by at most ``Delta``, hence ``Delta**2 / 8``-zCDP. Laziness is post-processing, so
    a lazy decision inherits the bounds of its rule.

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
    """

    rule: AcceptanceRule
    sensitivity: float

    def __post_init__(self) -> None:
        _positive("sensitivity", self.sensitivity)
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
    def _inner(self) -> AcceptanceRule:
        return self.rule.rule if isinstance(self.rule, Lazy) else self.rule

    @property
    def gaussian_mu(self) -> float | None:
        """``Delta / s`` for penalty rules, else None."""
        return self.sensitivity / self._inner.scale if isinstance(self._inner, Penalty) else None

    @property
    def zcdp(self) -> float | None:
        """Closed-form ``rho`` for penalty and Barker rules, else None."""
        if isinstance(self._inner, Barker):
            return self.sensitivity**2 / 8
        mu = self.gaussian_mu
        return None if mu is None else mu**2 / 2

    def renyi(self, orders: npt.ArrayLike) -> np.ndarray:
        """Upper bound on the Rényi divergence at each order, by maximising over the log-ratio."""
        alpha = np.atleast_1d(np.asarray(orders, dtype=float))
        return decision_renyi(self.rule, self.sensitivity, tuple(alpha.tolist())).copy()


@dataclass(frozen=True)
class RenyiShare:
    r"""A share of a Rényi filter: any adaptively chosen accesses that together stay within ``rho`` at one order.

    Parameters
    ----------
    order : float
        The order, fixed in advance.
    rho : float
        Bound on the sum of the Rényi divergences at this order. (By monotonicity it also bounds
        lower orders; at higher orders nothing is promised.)

    References
    ----------
    Feldman, Zrnic (2021), Individual privacy accounting via a Rényi filter,
    https://arxiv.org/abs/2008.11193.
    """

    order: float
    rho: float
    gaussian_mu: None = field(default=None, init=False, repr=False, compare=False)
    zcdp: None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _positive("share of the filter", self.rho)
        if not self.order > 1:
            raise ValueError(f"A Rényi order must exceed 1, got {self.order!r}.")

    @property
    def name(self) -> str:
        """Name with order and share."""
        return f"Rényi filter at order {self.order:.4g}, share {self.rho:.4g}"

    def renyi(self, orders: npt.ArrayLike) -> np.ndarray:
        """``rho`` up to the order of the filter, infinite beyond."""
        return np.where(
            np.asarray(orders, dtype=float) <= self.order * (1 + 1e-12), self.rho, np.inf
        )


@dataclass(frozen=True)
class DecisionFamily:
    """Decisions whose sensitivity is proportional to a public distance that differs from proposal to proposal.

    Distances are rounded up to a geometric grid before anything is charged, so that every cost is
    computed once.

    Parameters
    ----------
    sensitivity_per_distance : float
        Sensitivity of the log-ratio divided by the distance of the proposal: ``2 T b`` under
        substitution.
    noise_scale, noise_multiplier : float or None
        Exactly one of them: a fixed noise scale, or noise proportional to the sensitivity.
    laziness : float
        Weight of the lazy rule, 1 for none.
    distances : tuple of float
        Public law of the distance as equally likely values, used to plan (never to charge).
    """

    sensitivity_per_distance: float
    noise_scale: float | None
    noise_multiplier: float | None
    laziness: float
    distances: tuple[float, ...] = field(compare=False, repr=False)

    #: Ratio of neighbouring grid points: rounding costs at most 1 % (on average 0.5 %) of the
    #: privacy of a decision.
    RATIO: ClassVar[float] = 1.005
    #: Allowance for rounding, per unit of the log-ratio's terms: a few units in the last place. Terms
    #: below 1e4 are counted as 1e4, beyond which every rule is certain.
    ROUNDING: ClassVar[float] = 1e-15
    gaussian_mu: ClassVar[None] = None
    zcdp: ClassVar[None] = None

    def __post_init__(self) -> None:
        _positive("sensitivity per distance", self.sensitivity_per_distance)
        if (self.noise_scale is None) == (self.noise_multiplier is None):
            raise ValueError("Give exactly one of noise_scale and noise_multiplier.")
        noise = self.noise_scale if self.noise_scale is not None else self.noise_multiplier
        _positive("noise scale or multiplier", noise)  # type: ignore[arg-type] # one is given

    @property
    def name(self) -> str:
        """Name with the rule and the law of the sensitivity."""
        fixed = self.noise_scale is not None
        scale = f"{self.noise_scale:.4g}" if fixed else f"{self.noise_multiplier:.4g}*sensitivity"
        lazy = "" if self.laziness == 1 else f", lazy w={self.laziness:.4g}"
        typical = self.sensitivity_per_distance * float(np.median(self.distances))
        return f"decision by penalty(s={scale}){lazy}, sensitivity varying with the proposal, median {typical:.4g}"

    def at(self, distance: float, offset: float = 0.0) -> Decision:
        """Return the decision charged for a proposal of this length: that of the next grid point.

        Parameters
        ----------
        distance : float
            Public distance of the proposal, > 0.
        offset : float
            Size of the public part of the log-ratio (prior and proposal terms), which decides how
            coarsely the whole is rounded.
        """
        rounding = self.ROUNDING * max(1e4, offset)
        sensitivity = self.sensitivity_per_distance * distance * (1 + 1e-9) + rounding
        return self._cell(math.ceil(math.log(sensitivity) / math.log(self.RATIO)))

    @lru_cache(maxsize=16384)
    def _cell(self, index: int) -> Decision:
        sensitivity = self.RATIO**index
        scale = self.noise_scale or sensitivity * self.noise_multiplier  # type: ignore[operator]
        rule: AcceptanceRule = Penalty(scale)
        return Decision(rule if self.laziness == 1 else Lazy(rule, self.laziness), sensitivity)

    def renyi(self, orders: npt.ArrayLike) -> np.ndarray:
        """Infinite: without a bound on the distance a single decision has no bound. Use a filter."""
        return np.full(np.shape(orders), np.inf)

    def mean_renyi(self, orders: npt.ArrayLike) -> np.ndarray:
        """Return the expected cost of a decision at each order, for planning a filter."""
        # Costs grow about as the square: root mean squares within bins keep the weight of the long
        # moves.
        bins = np.array_split(np.sort(self.distances), 16)
        nodes = [math.sqrt(float(np.mean(np.square(b)))) for b in bins if b.size]
        return np.mean([self.at(m).renyi(orders) for m in nodes], axis=0)


def _positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"The {what} must be positive and finite, got {value!r}.")


_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Gaussian,
        Decision,
        RenyiShare,
        acceptance.Penalty,
        acceptance.Barker,
        acceptance.Lazy,
    )
}


def to_json(mechanism: Mechanism) -> str:
    """Serialise a mechanism for the ledger."""

    def encode(value: Any) -> Any:
        if type(value).__name__ in _KINDS:
            return {
                "kind": type(value).__name__,
                **{f.name: encode(getattr(value, f.name)) for f in fields(value) if f.init},
            }
        return value

    return json.dumps(encode(mechanism))


def from_json(text: str) -> Mechanism:
    """Rebuild a mechanism from the ledger; validates like the constructor."""

    def decode(value: Any) -> Any:
        if isinstance(value, dict):
            kind = _KINDS[value["kind"]]
            return kind(**{k: decode(v) for k, v in value.items() if k != "kind"})
        return value

    return decode(json.loads(text))
