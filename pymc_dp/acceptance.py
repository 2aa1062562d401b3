r"""Acceptance rules :math:`a(\lambda)`, which determine both exactness and privacy.

``a(lambda)`` is the probability of accepting a proposal whose log-ratio is ``lambda``. Every rule
satisfies

.. math:: a(\lambda) = e^{\lambda} a(-\lambda),

which is detailed balance with respect to the target (exactness). The privacy cost of a decision follows from
how fast ``a`` and ``1 - a`` can change with ``lambda``, so a rule also computes ``log a`` and ``log(1 - a)`` to
full relative accuracy in both tails.
"""

from __future__ import annotations

import math

from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from scipy.special import erfcx, log_ndtr

from pymc_dp.codec import published

_SQRT_HALF_PI = math.sqrt(math.pi / 2)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
# Above this log-ratio every penalty decision is certain, and squares would overflow.
_FARTHEST = 1e130


@runtime_checkable
class AcceptanceRule(Protocol):
    """Interface of an acceptance rule: a frozen, hashable value with these members."""

    def __hash__(self) -> int:
        """Rules are values: costs are computed once for each."""
        ...

    @property
    def name(self) -> str:
        """Short description with all parameters, for reports."""
        ...

    @property
    def private(self) -> bool:
        """Whether a decision has a finite privacy cost at every finite sensitivity."""
        ...

    @property
    def inner(self) -> AcceptanceRule:
        """The rule itself, or the one that a lazy rule slows down."""
        ...

    def probability(self, log_ratio: float) -> float:
        """Probability of accepting."""
        ...

    def log_probabilities(self, log_ratio: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """``(log a, log(1 - a))``, each with the shape of ``log_ratio``."""
        ...


class BaseRule:
    """What all rules share."""

    @property
    def inner(self) -> AcceptanceRule:
        """The rule itself."""
        return self  # type: ignore[return-value]

    def probability(self, log_ratio: float) -> float:
        """Probability of accepting, in [0, 1]; the infinities give the limits."""
        return float(np.exp(self.log_probabilities(log_ratio)[0]))  # type: ignore[attr-defined]


def _log_mills(x: np.ndarray) -> np.ndarray:
    """Log of the Mills ratio ``Phi(-x) / phi(x)``; ``erfcx`` alone overflows below -26."""
    positive, negative = np.maximum(x, 0.0), np.minimum(x, 0.0)
    right = np.log(_SQRT_HALF_PI * erfcx(positive / math.sqrt(2)))
    left = log_ndtr(-negative) + 0.5 * np.square(negative) + _LOG_SQRT_2PI
    return np.where(x >= 0, right, left)


def _is_real_between(value: Any, low: float, high: float) -> bool:
    return isinstance(value, Real) and low <= float(value) <= high


@published
@dataclass(frozen=True)
class Penalty(BaseRule):
    r"""Penalty rule: Metropolis' test on a log-ratio with Gaussian noise, noise integrated out.

    .. math:: a(\lambda) = \Phi(\lambda/s - s/2) + e^{\lambda}\,\Phi(-\lambda/s - s/2)

    is the expectation of ``min(1, exp(lambda + xi - s**2 / 2))`` over ``xi ~ N(0, s**2)``. A decision drawn
    from it has the same law as one that draws ``xi`` first, without a noisy value whose low-order bits could
    leak.

    Parameters
    ----------
    scale : float
        Standard deviation ``s > 0`` of the noise, in units of the log-ratio.

    References
    ----------
    Ceperley, Dewing (1999), The penalty method for random walks with uncertain energies,
    https://doi.org/10.1063/1.478034. Yildirim, Ermis (2019), Exact MCMC with differentially private
    moves, https://doi.org/10.1007/s11222-018-9847-x.

    Examples
    --------
    >>> round(dp.Penalty(scale=1.0).probability(0.0), 3)
    0.617
    """

    #: Largest noise scale.
    LARGEST: ClassVar[float] = 1e6

    scale: float
    private: bool = field(default=True, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # With less noise every decision is certain; with more, every proposal is rejected.
        if not _is_real_between(self.scale, 1e-20, self.LARGEST):
            raise ValueError(
                f"The noise scale of the penalty rule must be positive and finite, from 1e-20 to 1e6, got {self.scale!r}. "
                "Values of 1 to 2 are usual; without noise the rule is Metropolis', which is not private."
            )
        object.__setattr__(self, "scale", float(self.scale))  # in double precision

    @property
    def name(self) -> str:
        """Name with the noise scale."""
        return f"penalty(s={self.scale:.4g})"

    def log_probabilities(self, log_ratio: Any) -> tuple[np.ndarray, np.ndarray]:
        """``(log a, log(1 - a))`` for scalars or arrays of log-ratios."""
        if isinstance(log_ratio, float):
            return self._of_float(log_ratio)
        x = np.asarray(log_ratio, dtype=float)
        s = self.scale
        # Detailed balance gives the left half from the right one, where there is no cancellation.
        u = np.minimum(np.abs(x), _FARTHEST) / s - s / 2
        # With e^t phi(u + s) = phi(u), both terms share the factor phi(u):
        # a = Phi(u) + phi(u) m(u + s),  1 - a = phi(u) (m(u) - m(u + s)),  m the Mills ratio.
        log_phi = -0.5 * np.square(u) - _LOG_SQRT_2PI
        log_m1, log_m2 = _log_mills(u), _log_mills(u + s)
        log_reject = log_phi + log_m1 + np.log(-np.expm1(np.minimum(log_m2 - log_m1, -1e-300)))
        log_accept = np.logaddexp(log_ndtr(u), log_phi + log_m2)
        # The smaller probability is the accurate one; the larger follows from it.
        log_accept = np.where(
            log_reject < -0.7,
            np.log1p(-np.exp(np.minimum(log_reject, -0.7))),
            np.minimum(log_accept, 0.0),
        )
        left = np.where(x < 0, x, 0.0) + log_accept
        log_not_left = np.log(-np.expm1(np.minimum(left, -1e-300)))
        return np.where(x < 0, left, log_accept), np.where(x < 0, log_not_left, log_reject)

    def _of_float(self, x: float) -> tuple[Any, Any]:
        """The same for one float, as in each iteration of a chain, in a tenth of the time."""
        s = self.scale
        u = min(abs(x), _FARTHEST) / s - s / 2
        log_phi = -0.5 * u * u - _LOG_SQRT_2PI
        log_m1, log_m2 = _log_mills_of_float(u), _log_mills_of_float(u + s)
        log_reject = log_phi + log_m1 + math.log(-math.expm1(min(log_m2 - log_m1, -1e-300)))
        if log_reject < -0.7:
            log_accept = math.log1p(-math.exp(log_reject))
        else:
            # Not the logarithm of a sum: with much noise both terms underflow, and math.log raises.
            log_accept = min(float(np.logaddexp(log_ndtr(u), log_phi + log_m2)), 0.0)
        if x >= 0:
            return log_accept, log_reject
        left = x + log_accept
        return left, math.log(-math.expm1(min(left, -1e-300)))


def _log_mills_of_float(x: float) -> float:
    if x < 0:
        return float(log_ndtr(-x)) + 0.5 * x * x + _LOG_SQRT_2PI
    return math.log(_SQRT_HALF_PI * float(erfcx(x / math.sqrt(2))))


@published
@dataclass(frozen=True)
class Barker(BaseRule):
    r"""Barker's rule, private with no added noise.

    .. math:: a(\lambda) = 1 / (1 + e^{-\lambda})

    The log-odds of a decision *are* the log-ratio, so a record that moves ``lambda`` by at most
    ``Delta`` gives pure ``Delta``-DP, and ``Delta**2 / 8``-zCDP (bounded range).

    References
    ----------
    Barker (1965), Monte Carlo calculations of the radial distribution functions for a
    proton-electron plasma, https://doi.org/10.1071/PH650119.

    Examples
    --------
    >>> dp.Barker().probability(0.0)
    0.5
    """

    private: bool = field(default=True, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the rule."""
        return "Barker"

    def log_probabilities(self, log_ratio: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """``(log a, log(1 - a))`` for scalars or arrays of log-ratios."""
        x = np.asarray(log_ratio, dtype=float)
        return -np.logaddexp(0.0, -x), -np.logaddexp(0.0, x)


@published
@dataclass(frozen=True)
class Metropolis(BaseRule):
    r"""Metropolis' rule, **not private**: only for runs without a budget.

    .. math:: a(\lambda) = \min(1, e^\lambda)

    A rejection can be impossible under one data set and have probability ``1 - exp(-Delta)`` under
    its neighbour, so no ``delta`` below that is reached at any ``epsilon``.

    References
    ----------
    Metropolis et al. (1953), https://doi.org/10.1063/1.1699114.

    Examples
    --------
    >>> dp.steps.Metropolis().probability(0.0), dp.steps.Metropolis().private
    (1.0, False)
    """

    private: bool = field(default=False, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the rule."""
        return "Metropolis"

    def log_probabilities(self, log_ratio: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """``(log a, log(1 - a))`` for scalars or arrays of log-ratios."""
        log_accept = np.minimum(np.asarray(log_ratio, dtype=float), 0.0)
        with np.errstate(divide="ignore"):
            return log_accept, np.log(-np.expm1(log_accept))


@published
@dataclass(frozen=True)
class Lazy(BaseRule):
    r"""Lazy version of another rule, which rejects a fixed part of all proposals.

    It accepts with probability :math:`w\, a(\lambda)`, where :math:`0 < w \le 1`.
    With probability ``1 - w`` the proposal is rejected without regard to the data. Such a rejection
    cannot be distinguished from one by the rule: the chain moves less often, and each iteration costs
    less privacy.

    Parameters
    ----------
    rule : AcceptanceRule
        The rule to slow down. If it is lazy itself, its inner rule is taken, with the product of the weights.
    weight : float
        Probability ``w`` of using the outcome of ``rule``.

    Examples
    --------
    >>> dp.steps.Lazy(dp.Barker(), weight=0.5).probability(0.0)
    0.25
    """

    rule: AcceptanceRule
    weight: float

    def __post_init__(self) -> None:
        if not _is_real_between(self.weight, math.ulp(0.0), 1):
            raise ValueError(f"The weight of a lazy rule must lie in (0, 1], got {self.weight!r}.")
        object.__setattr__(self, "weight", float(self.weight))
        if isinstance(self.rule, Lazy):  # costs are computed from the inner rule, which is not lazy
            object.__setattr__(self, "weight", self.weight * self.rule.weight)
            object.__setattr__(self, "rule", self.rule.rule)

    @property
    def name(self) -> str:
        """Name with the weight and the rule inside."""
        return f"lazy({self.rule.name}, w={self.weight:.4g})"

    @property
    def inner(self) -> AcceptanceRule:
        """The rule that is slowed down."""
        return self.rule

    @property
    def private(self) -> bool:
        """Laziness makes Metropolis' rule private too, since a rejection always has probability at least 1 - w."""
        return self.rule.private or (self.weight < 1 and isinstance(self.rule, Metropolis))

    def log_probabilities(self, log_ratio: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """``(log a, log(1 - a))`` for scalars or arrays of log-ratios."""
        log_accept, log_reject = self.rule.log_probabilities(log_ratio)
        if self.weight == 1:
            return log_accept, log_reject
        log_w = math.log(self.weight)
        return log_w + log_accept, np.logaddexp(math.log1p(-self.weight), log_w + log_reject)


def check_rule(rule: Any, private: bool) -> None:
    """Raise unless this is an acceptance rule, not lazy, and private if it has to be."""
    # The class of a rule has the members of one, too.
    if isinstance(rule, type) or not isinstance(rule, AcceptanceRule):
        raise TypeError(f"rule must be an acceptance rule such as Barker(), got {rule!r}.")
    if private and not rule.inner.private:
        raise ValueError(
            f"The rule {rule.name} is refused in a private run: a rejection can be impossible under one data set and likely under "
            "its neighbour, so a decision is not (epsilon, delta)-private for any useful delta. Use Barker() or Penalty(scale), or "
            "budget=None for a run without privacy."
        )
    if isinstance(rule, Lazy):
        raise ValueError(f"Give the rule {rule.rule.name} and laziness={rule.weight:g}.")
