"""The decision of DP-Fast MH, on a batch whose size is Poisson and depends on public bounds only."""

from __future__ import annotations

import math

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from scipy.special import gammaln, pdtrc

from pymc_dp.acceptance import AcceptanceRule, Barker, Metropolis, Penalty
from pymc_dp.arguments import as_integer, as_positive_float
from pymc_dp.privacy.mechanisms.decision_suprema import (
    LARGEST_EPSILON,
    LARGEST_NOISE,
    Law,
    bernoulli_divergence,
    bernoulli_excess,
    coarse_grid,
    interpolate_profile,
)
from pymc_dp.privacy.mechanisms.mechanism import Adjacency, Decision, Mechanism

# Relative allowance for grids of the log-ratio and of the weight: they miss less than half of it (see the
# tests), as the divergence is quadratic near its maxima.
_SAFETY = 1 + 1e-3
_SPACING = 0.04  # of the weights
_MOST_PLACES = 200
# Up to this weight the probability of acceptance by Barker's rule grows with the weight.
_MONOTONE = math.log1p(math.sqrt(2))


@dataclass(frozen=True)
class PoissonMinibatchDecision(Mechanism):
    r"""One accept/reject bit of DP-Fast MH (Zhang, Zhang 2023), on the batches of TunaMH (Zhang, Cooper, De Sa 2020).

    Let ``c`` bound what one record can contribute to the log-ratio, and ``N`` be the number of records. The
    batch has ``B ~ Poisson(lam + N c)`` places. Each place takes a record at random and keeps it with a
    probability that depends on the record's share ``u`` in ``[-1, 1]`` of the bound; a kept record adds
    ``w(u)`` to the log-ratio.

    The numbers of places that different records take are independent. So the record in question adds ``J w`` to the
    log-ratio of the others, with

    .. math:: J \sim \mathrm{Poisson}\Big(\frac{2\,lam + N c}{N\,(1 + e^{w})}\Big), \qquad
        |w| \le W = \ln(1 + N c / lam)

    (``w`` takes the place of ``u``). This would not hold given the total ``B``, where a place that one record
    takes is one that the others lose. So ``B`` has no limit here. (In the paper all records decide where ``B``
    reaches a limit; its chain does not have the posterior.)

    In ``w`` the least accepting value is ``-W``, for every monotone rule. The most accepting one is ``W`` for
    Barker's rule if ``N c <= sqrt(2) lam``. Otherwise, and for the penalty rule far to the right, it is some
    ``w`` in ``(0, W]`` (a record with a larger ``w`` is kept less often), and the values of a grid are tried.

    For Barker's rule the log-odds under two values of the record differ by less than

    .. math:: R = c\,e^{W} + \frac{2\,lam + N c}{N} \max_{0 \le w \le W} e^{-w} \tanh(w/2)

    at every log-ratio (``2 c cosh(W)`` if ``N c <= sqrt(2) lam``), and approach it far to the right. So
    ``Decision(Barker(), R)`` costs at least as much, and the decision is ``R**2 / 8``-zCDP.

    The penalty rule has *no* finite Rényi cost here, at any order: ``j`` places of one record shift the
    log-ratio by ``j W``, against which a rejection of the penalty rule has a probability of order ``exp(-(j
    W)**2 / (2 s**2))``, while ``j`` places have probability ``exp(-j ln j)`` only. Its privacy profile is
    finite. A lazy penalty rule has finite costs, as its rejections are never improbable.

    Proved for substitution: under add/remove the law of the batch size is not public.

    Parameters
    ----------
    rule : AcceptanceRule
        How the decision is drawn from the log-ratio. Metropolis' rule is refused, lazy or not.
    log_ratio_bound : float
        ``c``: temperature times clip bound times distance.
    batch_rate : float
        ``lam`` > 0, the part of the expected batch size that does not depend on the proposal.
    n_records : int
        Number of records.

    Notes
    -----
    *Monotone in w.* Given the number ``t`` of places that the record takes, ``J`` is binomial. With ``a`` the
    rule and ``k`` the probability that a place counts, the derivative of the probability of acceptance in ``w``
    is ``t k`` times the mean of ``a'(y + w) - (a(y + w) - a(y)) e^w / (1 + e^w)``, where ``y`` is the log-ratio
    after ``t - 1`` places. For ``w < 0`` it is positive if ``a`` is increasing. For Barker's rule and ``z =
    e^w`` it has the sign of ``2 e^(-y) + 1 + 2 z - z^2``, positive for ``z <= 1 + sqrt(2)``.

    *Range of Barker's log-odds.* They are ``x + ln m(x)``, where ``m`` is the mean of ``e^(J w)`` weighted by
    the probabilities of rejection at ``x + J w``. ``m(x)`` falls with ``x``, from ``E e^(J w)`` to ``1 / E
    e^(-J w)``. Its remaining fall to the right of ``x`` is ``ln(E_1 a / E_2 a)``, with ``J`` of rate ``r`` in
    ``E_1`` and ``r e^(-w)`` in ``E_2``: the integral between these rates of a mean of ``(z - 1) / (1 + z e^y)``
    over some ``y >= x`` (``w > 0``), or of ``(1 - z) / (1 + z e^y)``, ``y <= x`` (``w < 0``). For no ``w`` in
    ``(0, W]`` is it more than for ``-W``. So the difference of the two log-odds grows with ``x`` and is largest
    in the limit.

    References
    ----------
    https://arxiv.org/abs/2303.06171, https://arxiv.org/abs/2006.11677

    Examples
    --------
    >>> decision = dp.privacy.PoissonMinibatchDecision(dp.Barker(), 0.001, 500, 50_000)
    >>> decision.name
    'decision by Barker on a Poisson batch of about 550 of 50000, bound 0.001'
    """

    rule: AcceptanceRule
    log_ratio_bound: float
    batch_rate: float
    n_records: int

    def __post_init__(self) -> None:
        self._set(
            log_ratio_bound=as_positive_float(
                "bound on a record's contribution", self.log_ratio_bound
            ),
            batch_rate=as_positive_float("batch rate", self.batch_rate),
            n_records=as_integer("The number of records", self.n_records, 1),
        )
        if self._most_weight > _MOST_PLACES:
            raise ValueError(
                f"Records would be taken too often for a minibatch to make sense: {self.expected_batch:.4g} places for {self.n_records} "
                f"records, at up to {self._largest_odds:.4g} times the odds each, by a bound of {self.log_ratio_bound!r} and a "
                f"batch_rate of {self.batch_rate!r}. Use a larger batch_rate, a smaller bound, or all records (Decision)."
            )
        Decision(self.rule, self.log_ratio_bound)  # refuses a rule without a finite cost
        scale = self.rule.inner.scale if isinstance(self.rule.inner, Penalty) else 1.0
        if not 0.01 <= scale <= LARGEST_NOISE or isinstance(self.rule.inner, Metropolis):
            raise ValueError(
                f"The cost of {self.rule.name} is not known here: the search for the worst case needs a smooth rule. Use "
                "Barker(), or a lazy Penalty(scale) with a scale from 0.01 to 1e4."
            )

    @property
    def name(self) -> str:
        """Name with the rule and the batch."""
        return (
            f"decision by {self.rule.name} on a Poisson batch of about {self.expected_batch:.4g} of {self.n_records}, "
            f"bound {self.log_ratio_bound:.4g}"
        )

    @property
    def adjacencies(self) -> frozenset[Adjacency]:
        """Substitution."""
        return frozenset([Adjacency.SUBSTITUTE])

    @property
    def expected_batch(self) -> float:
        """Expected number of places in the batch."""
        return self.batch_rate + self.n_records * self.log_ratio_bound

    @property
    def _plain_penalty(self) -> bool:
        """Whether rejections can be as improbable as the tail of the penalty rule."""
        return isinstance(self.rule.inner, Penalty) and getattr(self.rule, "weight", 1.0) == 1

    @property
    def _largest_odds(self) -> float:
        """``e^W``: what one place of a record can do to the odds."""
        return 1 + self.n_records * self.log_ratio_bound / self.batch_rate

    @property
    def _largest_weight(self) -> float:
        """``W`` of the docstring."""
        return math.log1p(self.n_records * self.log_ratio_bound / self.batch_rate)

    @property
    def _rate(self) -> float:
        """Expected number of places that a record takes and that count, times ``1 + e^w``."""
        return 2 * self.batch_rate / self.n_records + self.log_ratio_bound

    @property
    def _most_weight(self) -> float:
        """Expected places of a record, each weighted by what it can do to the odds."""
        return self.expected_batch / self.n_records * self._largest_odds

    @property
    def _range(self) -> float:
        """Range of Barker's log-odds: ``R`` of the docstring."""
        w = min(self._largest_weight, _MONOTONE)
        # The bound c is self._rate * tanh(W / 2).
        least = -self.log_ratio_bound * self._largest_odds
        return self._rate * math.exp(-w) * math.tanh(w / 2) - least

    @property
    def zcdp(self) -> float | None:
        """``R**2 / 8`` for Barker's rule, lazy or not, else None."""
        return self._range**2 / 8 if isinstance(self.rule.inner, Barker) else None

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Upper bound on the Rényi divergence at each order; infinite for the penalty rule."""
        if self._plain_penalty:
            return np.full(orders.shape, np.inf)
        alpha = orders[:, None]
        high, low = _laws(self, orders.max())
        cost = _SAFETY * np.maximum(
            _row_maxima(bernoulli_divergence(high, low, alpha)),
            _row_maxima(bernoulli_divergence(low, high, alpha)),
        )
        return cost if self.zcdp is None else np.minimum(cost, orders * self.zcdp)

    def privacy_profile(self, epsilons: npt.ArrayLike) -> np.ndarray:
        """Supremum over the log-ratio at each epsilon."""
        return interpolate_profile(*_profile(self), np.asarray(epsilons, dtype=float))


@lru_cache(maxsize=64)
def _profile(mechanism: PoissonMinibatchDecision) -> tuple[np.ndarray, np.ndarray]:
    """Knots and values of the privacy profile."""
    high, low = _laws(mechanism, 1.0)
    reach = 0.0
    for a, b in zip(high, low, strict=True):
        reach = max(reach, float(np.max(np.where(np.maximum(a, b) > -42, np.abs(a - b), 0))))
    # The penalty rule reaches far: dense at the epsilons of a decision on all records.
    unit = mechanism.log_ratio_bound
    knots = unit * np.sinh(np.linspace(0, 1, 257) * np.arcsinh(min(reach, LARGEST_EPSILON) / unit))
    values = np.maximum(
        _row_maxima(bernoulli_excess(high, low, knots[:, None])),
        _row_maxima(bernoulli_excess(low, high, knots[:, None])),
    )
    return knots, np.clip(values * _SAFETY, 0.0, 1.0)


def _row_maxima(values: np.ndarray) -> np.ndarray:
    """Largest value of each row of a smooth function, by parabolas through the peaks of the grid."""
    left, middle, right = values[:, :-2], values[:, 1:-1], values[:, 2:]
    bend = 2 * middle - left - right
    peak = (middle >= left) & (middle >= right) & (bend > 0)
    rise = np.square(right - left) / (8 * np.where(peak, bend, 1.0))
    return np.maximum(values.max(axis=1), (middle + np.where(peak, rise, 0.0)).max(axis=1))


def _laws(mechanism: PoissonMinibatchDecision, largest_order: float) -> tuple[Law, Law]:
    """Most and least accepting laws of the bit on a grid of log-ratios."""
    inner, largest = mechanism.rule.inner, mechanism._largest_weight
    # Far out each place that the record can take makes a separate step.
    size = max(301.0, 40 * (5 + mechanism._most_weight * largest))
    if isinstance(inner, Penalty):
        # The tail of the rule becomes steeper with the log-ratio, unless lazy rejections dominate it.
        hidden = getattr(mechanism.rule, "weight", 1.0) <= 0.99
        size = max(size, 301 * 0.3 / inner.scale) if hidden else 4001
    scale, order = max(largest, mechanism._range), max(largest_order, 64.0)
    x = coarse_grid(mechanism.rule, scale, order, int(min(size, 4001)))[0]
    smallest = _MONOTONE if isinstance(inner, Barker) else 0.0
    steps = math.ceil(max(largest - smallest, 0) / _SPACING)
    low, high = _law(mechanism, x, -largest), _law(mechanism, x, largest)
    for w in np.linspace(largest, smallest, steps + 1)[1:]:
        accept, reject = _law(mechanism, x, float(w))
        high = np.maximum(high[0], accept), np.minimum(high[1], reject)
    return high, low


def _law(mechanism: PoissonMinibatchDecision, x: np.ndarray, w: float) -> Law:
    """Law of the bit at each log-ratio if the record has weight ``w``."""
    kept = mechanism._rate / (1 + math.exp(w))  # expected number of places that count
    # More places than `most` have no weight even where each multiplies the odds by exp(abs(w)).
    heavy = kept * math.exp(abs(w))
    counts = np.arange(math.ceil(heavy + 10 * math.sqrt(heavy) + 40))
    most = int(np.argmax(pdtrc(counts, heavy) < 1e-18)) + 2
    j = np.arange(most)
    log_weights = j * math.log(kept) - kept - gammaln(j + 1)
    bits = []
    for log_a in mechanism.rule.log_probabilities(x[:, None] + j * w):
        terms = log_a + log_weights
        # In units of the largest term, so that tails do not underflow.
        top = terms.max(axis=1, keepdims=True)
        bits.append(np.log(np.exp(terms - top).sum(axis=1)) + top[:, 0])
    return bits[0], bits[1]
