"""Decisions whose cost depends on the public distance of the proposal."""

from __future__ import annotations

import math

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from pymc_dp.acceptance import AcceptanceRule, Lazy, Penalty
from pymc_dp.arguments import as_positive_float
from pymc_dp.privacy.mechanisms.mechanism import Adjacency, Decision, Mechanism
from pymc_dp.privacy.mechanisms.poisson_minibatch import PoissonMinibatchDecision
from pymc_dp.privacy.mechanisms.subsampled import SampledDecision

#: Number of distances at which the expected cost is computed.
_BINS = 8


class PerProposalCost(Mechanism):
    """Accesses whose cost is a function of the distance of the proposal, which is public.

    The size that determines the cost (a sensitivity, or a bound) is rounded up to a geometric grid before it is
    charged, so that each cost is computed once.
    """

    #: Public law of the distance, as equally likely values: to plan, never to charge.
    distances: tuple[float, ...]
    #: Ratio of neighbouring grid points.
    RATIO: ClassVar[float]
    #: Relative rounding error of the terms of the log-ratio: a few units in the last place. Terms below 1e4
    #: count as 1e4: with larger ones every rule is certain.
    ROUNDING: ClassVar[float] = 1e-15

    @abstractmethod
    def at(self, distance: float, offset: float = 0.0) -> Mechanism:
        """Return the access that is charged for a proposal of this public length: that of the next grid point.

        The offset is the size of the public part of the log-ratio (prior and proposal terms), which determines the
        rounding error of the whole.
        """

    def _index(self, size: float, offset: float) -> int:
        size = size * (1 + 1e-9) + self.ROUNDING * max(1e4, offset)
        # No budget pays for sizes near this limit.
        return math.ceil(math.log(min(size, 1e100)) / math.log(self.RATIO))

    def usual(self) -> set[Mechanism]:
        """Accesses of typical proposals, whose costs are computed before chains begin."""
        lengths = np.exp(
            np.unique(np.round(np.log(self.distances), 2))
        )  # fewer than the 2000 distances
        return {self.at(length) for length in lengths.tolist()}

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Infinite, as distances have no bound: use a filter."""
        return np.full(np.shape(orders), np.inf)

    def mean_price(self, price: Callable[[Mechanism], float]) -> float:
        """Return the expected price of a decision, for planning a filter."""
        return float(np.mean([price(access) for access in self._typical()]))

    def _typical(self) -> list[Mechanism]:
        # Costs grow about as the square of the distance: root mean squares within bins keep the mean cost.
        bins = np.array_split(np.sort(self.distances), _BINS)
        return [self.at(math.sqrt(float(np.mean(np.square(b))))) for b in bins if b.size]


@dataclass(frozen=True)
class PerProposalDecision(PerProposalCost):
    """Decisions on all records, or on a batch of fixed size, whose sensitivity grows with the distance.

    The sensitivity is ``sensitivity_per_distance * M + sensitivity_per_square * M**2``. Rounding it
    up to the grid costs at most 2 % (on average 1 %) of the privacy of a decision.

    Parameters
    ----------
    sensitivity_per_distance : float
        ``2 T b`` under substitution, if all records decide.
    rule : AcceptanceRule or None
        The rule; None for the penalty rule with noise proportional to the sensitivity.
    noise_multiplier : float or None
        Noise scale divided by sensitivity, if there is no rule. The noise scale is at most 1e6, where hardly
        any proposal is accepted.
    laziness : float
        Weight of the lazy rule, 1 for none.
    distances : tuple of float
        Public law of the distance, as equally likely values.
    sensitivity_per_square : float
        Sensitivity of the variance that is estimated from a batch.
    sampling_probability : float
        Fraction of the records in a batch drawn without replacement; 1 for all.

    Examples
    --------
    >>> barker, law = dp.Barker(), (0.01, 0.02)  # of the distances
    >>> decision = dp.steps.PerProposalDecision(6.0, barker, None, 1.0, distances=law)
    >>> [round(decision.at(distance).sensitivity, 2) for distance in law]
    [0.06, 0.12]
    """

    sensitivity_per_distance: float
    rule: AcceptanceRule | None
    noise_multiplier: float | None
    laziness: float
    distances: tuple[float, ...] = field(compare=False, repr=False)
    sensitivity_per_square: float = 0.0
    sampling_probability: float = 1.0

    RATIO: ClassVar[float] = 1.01

    def __post_init__(self) -> None:
        per_distance = as_positive_float("sensitivity per distance", self.sensitivity_per_distance)
        self._set(sensitivity_per_distance=per_distance)
        if (self.rule is None) == (self.noise_multiplier is None):
            raise ValueError("Give exactly one of rule and noise_multiplier.")
        if self.noise_multiplier is not None:
            self._set(noise_multiplier=as_positive_float("noise multiplier", self.noise_multiplier))
            if not 1e-6 <= self.noise_multiplier <= 1e6:
                raise ValueError(
                    f"The noise multiplier of a decision must be from 1e-6 to 1e6, got {self.noise_multiplier!r}. "
                    "Values of 1 to 10 are usual."
                )
        self._cell(0)  # refuses invalid settings, as the mechanism does

    @property
    def name(self) -> str:
        """Name with the rule and the law of the sensitivity."""
        rule = (
            f"penalty(s={self.noise_multiplier:.4g}*sensitivity)"
            if self.rule is None
            else self.rule.name
        )
        lazy = "" if self.laziness == 1 else f", lazy w={self.laziness:.4g}"
        part = self.sampling_probability
        batch = "" if part == 1 else f" on a batch without replacement, probability {part:.4g}"
        typical = self._sensitivity(float(np.median(self.distances)))
        return f"decision by {rule}{lazy}{batch}, sensitivity varying with the proposal, median {typical:.4g}"

    @property
    def adjacencies(self) -> frozenset[Adjacency]:
        """Those of its decisions."""
        return self._cell(0).adjacencies

    def _sensitivity(self, distance: float) -> float:
        return distance * (self.sensitivity_per_distance + self.sensitivity_per_square * distance)

    def at(self, distance: float, offset: float = 0.0) -> Decision | SampledDecision:
        """Return the decision that is charged; see :meth:`PerProposalCost.at`."""
        return self._cell(self._index(self._sensitivity(distance), offset))

    @lru_cache(maxsize=16384)
    def _cell(self, index: int) -> Decision | SampledDecision:
        sensitivity = self.RATIO**index
        rule = self.rule
        if rule is None:
            assert self.noise_multiplier is not None  # one of them was given
            rule = Penalty(min(sensitivity * self.noise_multiplier, Penalty.LARGEST))
        if self.laziness < 1:
            rule = Lazy(rule, self.laziness)
        if self.sampling_probability == 1:
            return Decision(rule, sensitivity)
        return SampledDecision(rule, sensitivity, self.sampling_probability)


@dataclass(frozen=True)
class PerProposalPoissonMinibatch(PerProposalCost):
    """Decisions of DP-Fast MH, whose bound on a record's contribution grows with the distance.

    The sampler itself uses the rounded bound (it is exact for any bound that is large enough and symmetric), so
    the decision that is charged is the one that is made. Moves shorter than a twentieth of the typical length
    are treated as that long: their cost is negligible.
    """

    #: ``T b``.
    bound_per_distance: float
    rule: AcceptanceRule
    #: Part of the expected batch size that does not depend on the proposal.
    batch_rate: float
    n_records: int
    #: Smallest expected batch size at which all records decide; None for the number of records.
    full_batch_at: int | None
    #: Public law of the distance, as equally likely values.
    distances: tuple[float, ...] = field(compare=False, repr=False)

    RATIO: ClassVar[float] = 1.02

    def __post_init__(self) -> None:
        self._set(
            bound_per_distance=as_positive_float("bound per distance", self.bound_per_distance)
        )
        self.at(max(self.distances))  # refuses invalid settings, as the mechanism does

    @property
    def name(self) -> str:
        """Name with the rule and the typical batch."""
        typical = self.at(float(np.median(self.distances)))
        return f"{typical.name} (median, varying with the proposal)"

    @property
    def adjacencies(self) -> frozenset[Adjacency]:
        """Substitution."""
        return frozenset([Adjacency.SUBSTITUTE])

    @cached_property
    def _shortest(self) -> float:
        return 0.05 * math.sqrt(float(np.mean(np.square(self.distances))))

    def at(self, distance: float, offset: float = 0.0) -> PoissonMinibatchDecision | Decision:
        """Return the decision made and charged for a proposal of this length.

        All records decide if the expected batch size reaches the limit, or if one record could change the odds
        so much that a batch is useless. The *expected* size is public and the same for the reverse move. A
        limit on the drawn size would not leave the posterior invariant.
        """
        bound = self.bound_per_distance * max(distance, self._shortest)
        return self._cell(self._index(bound, offset))

    @lru_cache(maxsize=16384)
    def _cell(self, index: int) -> PoissonMinibatchDecision | Decision:
        bound = self.RATIO**index
        extra = self.n_records * bound
        places = self.batch_rate + extra
        limit = min(self.n_records, self.full_batch_at or self.n_records)
        if places >= limit or places * (1 + extra / self.batch_rate) > 100 * self.n_records:
            return Decision(self.rule, 2 * bound)
        return PoissonMinibatchDecision(self.rule, bound, self.batch_rate, self.n_records)
