"""Decisions that cost more the farther a proposal goes."""

from __future__ import annotations

import math

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pymc_dp.acceptance import AcceptanceRule, Lazy, Penalty
from pymc_dp.privacy.mechanisms import Adjacency, Decision, Mechanism, positive
from pymc_dp.privacy.minibatch import PoissonMinibatchDecision
from pymc_dp.privacy.sampled import SampledDecision

__all__ = ["DecisionFamily", "Family", "PoissonMinibatchFamily"]


class Family(Mechanism):
    """Accesses whose cost follows a public distance that differs from proposal to proposal.

    What decides the cost (a sensitivity, or a bound) is rounded up to a geometric grid before
    anything is charged, so that every cost is computed once.
    """

    #: Public law of the distance as equally likely values, used to plan (never to charge).
    distances: tuple[float, ...]
    #: Ratio of neighbouring grid points.
    RATIO: ClassVar[float]
    #: Distances at which the expected cost is computed.
    NODES: ClassVar[int]
    #: Allowance for rounding, per unit of the log-ratio's terms: a few units in the last place. Terms
    #: below 1e4 are counted as 1e4, beyond which every rule is certain.
    ROUNDING: ClassVar[float] = 1e-15

    @abstractmethod
    def at(self, distance: float, offset: float = 0.0) -> Mechanism:
        """Return what is charged for a proposal of this length: the access of the next grid point.

        Parameters
        ----------
        distance : float
            Public distance of the proposal, > 0.
        offset : float
            Size of the public part of the log-ratio (prior and proposal terms), which decides how
            coarsely the whole is rounded.
        """

    def _index(self, size: float, offset: float) -> int:
        size = size * (1 + 1e-9) + self.ROUNDING * max(1e4, offset)
        # No budget pays for what comes anywhere near the limit.
        return math.ceil(math.log(min(size, 1e100)) / math.log(self.RATIO))

    def usual(self) -> set[Mechanism]:
        """What proposals usually lead to: costs are computed before chains begin."""
        lengths = np.exp(np.unique(np.round(np.log(self.distances), 2)))  # each of 2000 takes time
        return {self.at(length) for length in lengths.tolist()}

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Infinite: without a bound on the distance a single decision has no bound. Use a filter."""
        return np.full(np.shape(orders), np.inf)

    def mean_renyi(self, orders: npt.ArrayLike) -> np.ndarray:
        """Return the expected cost of a decision at each order, for planning."""
        return np.mean([access.renyi(orders) for access in self._typical()], axis=0)

    def mean_price(self, price: Callable[[Mechanism], float]) -> float:
        """Return the expected price of a decision, for planning a filter."""
        return float(np.mean([price(access) for access in self._typical()]))

    def _typical(self) -> list[Mechanism]:
        # Costs grow about as the square: root mean squares within bins keep the weight of the long
        # moves.
        bins = np.array_split(np.sort(self.distances), self.NODES)
        return [self.at(math.sqrt(float(np.mean(np.square(b))))) for b in bins if b.size]


@dataclass(frozen=True)
class DecisionFamily(Family):
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
        Noise scale divided by sensitivity, if there is no rule; noise never exceeds 1e6, where hardly
        any proposal would be taken.
    laziness : float
        Weight of the lazy rule, 1 for none.
    distances : tuple of float
        Public law of the distance as equally likely values, used to plan (never to charge).
    sensitivity_per_square : float
        What a record can do to the variance that is estimated from a batch.
    sampling_probability : float
        Part of the records in a batch drawn without replacement; 1 for all.
    """

    sensitivity_per_distance: float
    rule: AcceptanceRule | None
    noise_multiplier: float | None
    laziness: float
    distances: tuple[float, ...] = field(compare=False, repr=False)
    sensitivity_per_square: float = 0.0
    sampling_probability: float = 1.0

    RATIO: ClassVar[float] = 1.01
    NODES: ClassVar[int] = 8

    def __post_init__(self) -> None:
        per_distance = positive("sensitivity per distance", self.sensitivity_per_distance)
        self._set(sensitivity_per_distance=per_distance)
        if (self.rule is None) == (self.noise_multiplier is None):
            raise ValueError("Give exactly one of rule and noise_multiplier.")
        if self.noise_multiplier is not None:
            self._set(noise_multiplier=positive("noise multiplier", self.noise_multiplier))
            if not 1e-6 <= self.noise_multiplier <= 1e6:
                raise ValueError(
                    f"The noise multiplier of a decision must be from 1e-6 to 1e6, got {self.noise_multiplier!r}. "
                    "Values of 1 to 10 are usual."
                )
        self._cell(0)  # refuses what the mechanism would refuse

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
        """Return the decision charged for a proposal of this length: that of the next grid point.

        Parameters
        ----------
        distance, offset : float
            See :meth:`Family.at`.
        """
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
class PoissonMinibatchFamily(Family):
    """Decisions of DP-Fast MH, whose bound on a record's contribution grows with the distance.

    The sampler itself takes the rounded bound (any bound that is large enough and symmetric leaves
    it exact), so what is charged is what is done. Moves shorter than a twentieth of what is typical
    are taken as that long: their cost is nothing beside the others', and need not be computed.

    Parameters
    ----------
    bound_per_distance : float
        ``T b``.
    rule : AcceptanceRule
        Lazy or not.
    batch_rate : float
        Part of the expected batch size that does not depend on the proposal.
    n_records : int
        Number of records.
    full_batch_at : int or None
        Expected batch size from which on all records decide; None for the number of records.
    distances : tuple of float
        Public law of the distance as equally likely values, used to plan (never to charge).
    """

    bound_per_distance: float
    rule: AcceptanceRule
    batch_rate: float
    n_records: int
    full_batch_at: int | None
    distances: tuple[float, ...] = field(compare=False, repr=False)

    RATIO: ClassVar[float] = 1.02
    NODES: ClassVar[int] = 8

    def __post_init__(self) -> None:
        self._set(bound_per_distance=positive("bound per distance", self.bound_per_distance))
        self.at(max(self.distances))  # refuses what the mechanism would refuse

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

        All records decide where a batch would have as many places, or as many as the limit, or
        where the odds of a record could change so much that a batch makes no sense. By the expected
        size, which is public and the same for the move back: a limit on the size that was drawn
        would not leave the posterior invariant.

        Parameters
        ----------
        distance, offset : float
            See :meth:`Family.at`.
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
