"""Frozen descriptions of one access to the data, each knowing what it costs.

A mechanism is a value: what was accessed, with which noise, never how often. All costs are upper
bounds, rounded to the safe side. Noise and sensitivities are given for the adjacency in use; a
mechanism whose bound holds for one adjacency only says so, and a budget for the other refuses it.
"""

from __future__ import annotations

import json
import math
import operator

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from enum import StrEnum
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from scipy.special import log_ndtr

from pymc_dp.acceptance import AcceptanceRule, Barker, Lazy, Metropolis, Penalty
from pymc_dp.privacy.decisions import (
    decision_mu,
    decision_profile,
    decision_renyi,
    interpolate_profile,
)

__all__ = [
    "ORDERS",
    "Adjacency",
    "Decision",
    "Gaussian",
    "Mechanism",
    "check_count",
    "concentrated",
    "from_json",
    "gaussian_profile",
    "positive",
    "probability",
    "real",
    "reals",
    "to_json",
    "whole",
]

#: Rényi orders at which costs are composed: every whole number up to 64 (some bounds are known at
#: whole orders only), dense where the best order lies for epsilon between 0.001 and 100.
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
    """Which data sets count as neighbours."""

    SUBSTITUTE = "substitute"  #: one record replaced by any other; the number of records is public
    ADD_REMOVE = "add_remove"  #: one record added or removed


class Mechanism(ABC):
    """One access to the data. Subclasses are frozen dataclasses whose fields are numbers, names or rules."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Short description with all parameters, for reports."""

    @property
    def adjacencies(self) -> frozenset[Adjacency]:
        """Adjacencies for which the bound is proved: both, where the sensitivity says it all."""
        return frozenset(Adjacency)

    @property
    def gaussian_mu(self) -> float | None:
        """``mu`` such that the access is ``mu``-GDP, by an argument that composes exactly; None if there is none."""
        return None

    @property
    def zcdp(self) -> float | None:
        """``rho`` such that the access is ``rho``-zCDP; None if there is none."""
        return None

    def renyi(self, orders: npt.ArrayLike) -> np.ndarray:
        """Upper bound on the Rényi divergence at each order > 1, shape of ``orders``."""
        alpha = reals("Rényi orders", orders)
        if not np.all(alpha > 1):
            raise ValueError(f"Rényi orders must exceed 1, got {orders!r}.")
        return self._renyi(alpha.ravel()).reshape(alpha.shape)

    @abstractmethod
    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Upper bound at each of a vector of orders."""

    def privacy_profile(self, epsilons: npt.ArrayLike) -> np.ndarray | None:
        """Upper bound on the hockey-stick divergence over all pairs of neighbours, at any real epsilon.

        None if no bound is known. Over *all* pairs, and below 0 too: then a pair of distributions
        with this profile dominates the mechanism, and dominating pairs compose (Theorem 10 of Zhu,
        Dong, Wang 2022, https://proceedings.mlr.press/v151/zhu22c.html). The profile of one pair of
        data sets, even the worst one, would not do.
        """
        return None

    def _set(self, **values: Any) -> None:
        """Replace fields by what they come to, while the mechanism is made."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


def gaussian_profile(log_t: np.ndarray, mu: float) -> np.ndarray:
    """Log of the hockey-stick divergence of order ``exp(log_t)`` between ``N(mu, 1)`` and ``N(0, 1)``."""
    mu = max(mu, 1e-100)  # nothing overflows, and more is safe
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
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        self._set(noise_multiplier=positive("noise multiplier", self.noise_multiplier))

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
        return concentrated(self.gaussian_mu)

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Exact Rényi divergence."""
        return orders * self.zcdp

    def privacy_profile(self, epsilons: npt.ArrayLike) -> np.ndarray:
        """Exact hockey-stick divergence."""
        finite = np.clip(np.asarray(epsilons, dtype=float), -1e9, 1e9)
        return np.exp(gaussian_profile(finite, self.gaussian_mu))


@dataclass(frozen=True)
class Decision(Mechanism):
    r"""One accept/reject bit; the log-ratio behind it is never released.

    One record moves the log-ratio by at most the sensitivity, so the cost at order ``alpha`` is the
    largest Rényi divergence between ``Bernoulli(a(x))`` and ``Bernoulli(a(x + sensitivity))``, in
    either direction, over all real ``x``: a maximisation over one variable. For a monotone rule no
    smaller shift is worse.

    Further bounds that hold: a penalty decision is post-processing of the log-ratio plus ``N(0,
    s**2)``, hence ``Delta/s``-GDP (no smaller ``mu`` will do) and ``Delta**2 / (2 s**2)``-zCDP; the
    log-odds of a Barker decision move by at most ``Delta``, hence ``Delta**2 / 8``-zCDP, and its ``mu``,
    about ``0.62666 Delta``, is a maximum over log-ratios, as that of lazy decisions
    (:func:`~pymc_dp.privacy.decisions.decision_mu`). Laziness is post-processing, so a lazy decision
    inherits the bounds of its rule.

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
        self._set(sensitivity=positive("sensitivity", self.sensitivity))
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
    def _released(self) -> float:
        """``Delta / s`` for penalty rules, lazy or not: ``mu`` as if the noisy log-ratio were released; else infinite."""
        return (
            self.sensitivity / self._inner.scale if isinstance(self._inner, Penalty) else math.inf
        )

    @property
    def gaussian_mu(self) -> float | None:
        """Smallest ``mu`` over all log-ratios, rounded up; None where it cannot be searched for."""
        if isinstance(self.rule, Penalty):
            return self._released
        mu = min(decision_mu(self.rule, self.sensitivity), self._released)
        return mu if mu < math.inf else None

    @property
    def zcdp(self) -> float | None:
        """Closed-form ``rho`` for penalty and Barker rules, else None."""
        if isinstance(self._inner, Barker):
            return concentrated(self.sensitivity / 2)
        return concentrated(self._released) if self._released < math.inf else None

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Upper bound on the Rényi divergence at each order: the least of the maximum over log-ratios and the closed form."""
        found = decision_renyi(self.rule, self.sensitivity, tuple(orders.tolist()))
        # The closed form is the lower one by rounding only, or where nothing is searched any more.
        return np.minimum(found, math.inf if self.zcdp is None else orders * self.zcdp)

    def privacy_profile(self, epsilons: npt.ArrayLike) -> np.ndarray:
        """Supremum over the log-ratio at each epsilon.

        Every epsilon has a worst log-ratio of its own, so over many decisions this is looser than
        the Rényi bound; for one decision it is exact.
        """
        return interpolate_profile(
            *decision_profile(self.rule, self.sensitivity), np.asarray(epsilons)
        )


def concentrated(mu: float) -> float:
    """``mu**2 / 2``, the ``rho`` of what is ``mu``-GDP: infinite where that is too large, and never 0."""
    return max(mu * mu / 2, math.ulp(0.0)) if mu < 1e150 else math.inf


def real(value: Any) -> float:
    """Any real number as a float; NaN for what is none, which no comparison lets pass."""
    if type(value) is float:
        return value
    if getattr(value, "ndim", None) == 0:
        value = np.asarray(value).item()
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def reals(what: str, values: npt.ArrayLike) -> np.ndarray:
    """Any real numbers as an array of floats, else ValueError."""
    try:
        array = np.asarray(values)
        if array.dtype.kind in "biufO":
            return array.astype(float)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"The {what} must be real numbers, got {values!r}.")


def positive(what: str, value: Any) -> float:
    """Return the value as a float; ValueError unless it is a positive finite number."""
    if not 0 < real(value) < math.inf:
        raise ValueError(f"The {what} must be positive and finite, got {value!r}.")
    return real(value)


def probability(what: str, value: Any) -> float:
    """Return the value as a float; ValueError unless ``0 < value <= 1``."""
    if not 0 < real(value) <= 1:
        raise ValueError(f"The {what} must be above 0 and at most 1, got {value!r}.")
    return real(value)


def whole(what: str, value: Any, least: int | None = None) -> int:
    """Return the value as an int; TypeError unless it is one, ValueError unless it is at least that."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, got {value!r}: give an integer.") from None
    if least is not None and number < least:
        raise ValueError(f"{what} must be at least {least}, got {value!r}.")
    return number


def check_count(mechanism: Mechanism, count: Any) -> None:
    """Raise ValueError unless something can be accessed so often."""
    if not real(count) >= 0:
        raise ValueError(f"A count must be at least 0, got {count!r} for {mechanism.name}.")


def to_json(mechanism: Mechanism) -> str:
    """Serialise a mechanism for the ledger."""

    def encode(value: Any) -> Any:
        if isinstance(value, Mechanism | Penalty | Barker | Lazy | Metropolis):
            return {
                "kind": type(value).__name__,
                **{f.name: encode(getattr(value, f.name)) for f in fields(value) if f.init},  # type: ignore[arg-type]
            }
        return value

    return json.dumps(encode(mechanism))


def from_json(text: str) -> Mechanism:
    """Rebuild a mechanism from the ledger; validates like the constructor."""
    kinds: dict[str, type] = {}
    for kind in (*_subclasses(Mechanism), Penalty, Barker, Lazy, Metropolis):
        # Of two of a name, such as a subclass of the user's, that of this package was charged for.
        if kind.__name__ not in kinds or kind.__module__.startswith("pymc_dp."):
            kinds[kind.__name__] = kind

    def decode(value: Any) -> Any:
        if isinstance(value, dict):
            if value["kind"] not in kinds:
                raise ValueError(
                    f"The ledger holds a mechanism of kind {value['kind']!r}, which this version of pymc_dp does not know."
                )
            return kinds[value["kind"]](**{k: decode(v) for k, v in value.items() if k != "kind"})
        return value

    return decode(json.loads(text))


def _subclasses(kind: type) -> list[type]:
    below: list[type] = kind.__subclasses__()
    return [*below, *(deeper for each in below for deeper in _subclasses(each))]
