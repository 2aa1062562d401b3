"""Allocation of a budget: what one chain of each step may do."""

from __future__ import annotations

import math

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from pymc_dp.display import Shown
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.calibration import max_draws
from pymc_dp.privacy.accounting.composition import ACCOUNTANTS, Cost, accountant_of, check_pure
from pymc_dp.privacy.accounting.filters import Filter, Share
from pymc_dp.privacy.budget.claims import BudgetTerms, StepAccess
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Mechanism
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalCost


@dataclass
class Allocation(Shown):
    """What one chain of one step may do: a number of iterations, or a share of a filter."""

    claim: Accesses
    #: Number of iterations that the claim pays for, infinite for a share; number that is expected.
    iterations: float
    expected: float
    share: Share | None = None
    prices: dict[Mechanism, float] = field(default_factory=dict, repr=False)
    #: Fraction of the run that is spent after each iteration, if it does not grow evenly.
    progress: tuple[float, ...] = field(default=(), repr=False)
    #: Epsilon of the budget; price of the whole run, and the epsilon to which a price of 0 converts.
    epsilon: float = math.inf
    run: float = 0.0
    conversion: float = 0.0
    used: int = 0

    def __post_init__(self) -> None:
        self.filter = None if self.share is None else Filter(self.share, self.prices)
        self._remaining = dict(self.claim)

    def fresh(self) -> Allocation:
        """Return an unused copy."""
        return replace(self, used=0)

    def charge(self, accesses: Accesses) -> bool:
        """Pay for one iteration; False, now and for all later calls, if the allocation does not cover it."""
        if self.used >= self.iterations:
            return False
        if self.filter is not None:
            granted = self.filter.grant(accesses)
        else:
            granted = self.iterations == math.inf or self._take(accesses)
        self.used += granted
        return granted

    def _take(self, accesses: Accesses) -> bool:
        """Subtract accesses from the claim; False if the schedule asks for more than was claimed."""
        for mechanism, count in accesses:
            self._remaining[mechanism] = self._remaining.get(mechanism, 0) - count
            if self._remaining[mechanism] < 0:
                self.used = int(self.iterations)
                return False
        return True

    def epsilon_spent(self) -> float:
        """Epsilon of the whole run if all chains and steps have advanced as far as this one, from one Rényi order."""
        if self.epsilon == math.inf:
            return math.inf
        if self.filter is not None:
            fraction = self.filter.fraction
        else:
            even = self.used / self.iterations
            fraction = self.progress[self.used - 1] if self.progress and self.used else even
        return (
            min(self.epsilon, max(0.0, fraction * self.run + self.conversion)) if fraction else 0.0
        )


def allocate(
    steps: Mapping[str, StepAccess], terms: BudgetTerms, chains: int, before: Cost = Cost.of(())
) -> dict[str, Allocation]:
    """Allocate a budget, after accesses that belong to no chain, to all steps and chains.

    If all draws of all steps cost the same, each chain gets an equal number of iterations of all steps. They compose by the
    accountant if nothing was claimed before (all chains are then claimed at once), else adaptively. If the cost
    of a draw varies with the proposal, each chain of each step gets a share of a filter in the currency that
    was fixed when the budget was opened. Steps share in proportion to their expected costs, so that they end
    together.
    """
    if terms.epsilon == math.inf:
        return {label: Allocation((), math.inf, math.inf) for label in steps}
    varying = any(isinstance(m, PerProposalCost) for s in steps.values() for m, _ in s.mechanisms)
    shown = AdaptiveComposition.opened(terms.epsilon, terms.delta)
    if varying:
        found = _shares(steps, terms, chains, before)
    else:
        found = _iterations(steps, terms, chains, before, shown)
    run = chains * sum(shown.price_of(Cost.of(each.claim)) for each in found.values())
    conversion = terms.epsilon - shown.limit + shown.price_of(before)
    return {
        label: replace(each, epsilon=terms.epsilon, run=run, conversion=conversion)
        for label, each in found.items()
    }


def _iterations(
    steps: Mapping[str, StepAccess], terms: BudgetTerms, chains: int, before: Cost, shown: AdaptiveComposition
) -> dict[str, Allocation]:  # fmt: skip
    """Equal numbers of iterations, if all costs are known in advance."""
    scheduled = any(step.schedule is not None for step in steps.values())
    starting = [access for step in steps.values() for access in step.starting]

    @cache  # max_draws tries many numbers of iterations
    def accesses(iteration: int) -> Accesses:
        return [access for step in steps.values() for access in step.at(iteration)]

    def affordable(chains: int) -> float:
        return max_draws(
            accesses if scheduled else accesses(1), terms.epsilon, terms.delta, chains,
            per_chain=starting, other_accesses=before.counts.items(),
            accountant=terms.accountant if before.free else terms.adaptive.reading,
        )  # fmt: skip

    draws = affordable(chains)
    if draws < 1:
        raise PrivacyBudgetExhausted(_too_small(accesses(1), terms, chains, affordable(1)))
    progress: tuple[float, ...] = ()
    if scheduled or starting:
        prices = [shown.price_of(Cost.of(accesses(t))) for t in range(1, int(draws) + 1)]
        spent = shown.price_of(Cost.of(starting)) + np.cumsum(prices)
        progress = tuple((spent / spent[-1]).tolist())
    claims = {label: tuple(step.run(int(draws)).counts.items()) for label, step in steps.items()}
    return {label: Allocation(c, draws, draws, progress=progress) for label, c in claims.items()}


def _shares(
    steps: Mapping[str, StepAccess], terms: BudgetTerms, chains: int, before: Cost
) -> dict[str, Allocation]:
    """Shares of a filter, if costs depend on the proposals."""
    adaptive = terms.adaptive
    if not accountant_of(terms.accountant).has_filter:
        others = " or ".join(repr(a.name) for a in ACCOUNTANTS if a.has_filter)
        raise ValueError(
            f"The accountant {terms.accountant!r} needs a sensitivity that is the same for every proposal; use {others}."
        )
    accesses = [a for step in steps.values() for a in (*step.starting, *step.mechanisms)]
    check_pure(terms.delta, [mechanism for mechanism, _ in accesses])
    for mechanism, _ in accesses:  # a Rényi divergence may be infinite at one order
        if adaptive.order is None and mechanism.mean_price(adaptive.price) == math.inf:
            raise ValueError(
                f"The accountant 'gaussian' has no bound for: {mechanism.name}. Use 'best' or 'rdp'."
            )
    # Expected prices of an iteration (of the first, if there is a schedule), and of the start of a chain.
    means = {
        label: sum(k * m.mean_price(adaptive.price) for m, k in step.mechanisms)
        for label, step in steps.items()
    }
    starts = {label: adaptive.price_of(Cost.of(step.starting)) for label, step in steps.items()}
    mean, start = sum(means.values()), sum(starts.values())
    per_chain = adaptive.left(before) / chains
    expected = (per_chain - start) / mean
    if not expected >= 1:
        total = max(0.0, (per_chain * chains - start) / mean)
        raise PrivacyBudgetExhausted(_too_small(accesses, terms, chains, total))
    allocations = {}
    for label, step in steps.items():
        wanted = starts[label] + expected * means[label]
        share = adaptive.share(per_chain * wanted / (start + expected * mean))
        usual = {u for m, _ in (*step.starting, *step.mechanisms) for u in m.usual()}
        prices = {access: share.price(access) for access in usual}
        claim = ((share, 1),)
        allocations[label] = Allocation(claim, math.inf, math.floor(expected), share, prices)
    return allocations


def _too_small(accesses: Accesses, terms: BudgetTerms, chains: int, total: float) -> str:
    names = "; ".join(f"{count} x {mechanism.name}" for mechanism, count in accesses)
    return (
        f"epsilon = {terms.epsilon:g} at delta = {terms.delta:g} pays for {total:.3g} iteration(s) in all, fewer than one for each of {chains} "
        f"chains. One iteration accesses: {names}. Use a smaller clip bound or proposal, more noise, fewer chains, or a larger epsilon."
    )
