"""Planning: what one chain of each step may do within a budget."""

from __future__ import annotations

import math

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.accounting import max_draws
from pymc_dp.privacy.adaptive import AdaptiveComposition
from pymc_dp.privacy.composition import Accesses, Accountant, Cost
from pymc_dp.privacy.families import Family
from pymc_dp.privacy.filters import Filter, Share
from pymc_dp.privacy.mechanisms import Adjacency, Mechanism

__all__ = ["WITH_FILTER", "Allowance", "StepAccess", "check_adjacency", "share_out"]

#: Accountants that have a filter, for accesses whose cost is known only when they are made.
WITH_FILTER = ("best", "rdp", "gaussian")


@dataclass(frozen=True)
class StepAccess:
    """The whole truth about what one iteration of a step accesses, as the step tells its budget.

    Parameters
    ----------
    label : str
        Name of the step with its variables.
    variables : tuple of str
        Value variables it updates.
    mechanisms : tuple of (Mechanism, int)
        Mechanism and count per iteration; of the first one if there is a schedule.
    model : int
        Identity of the model, to tell models apart.
    all_variables : tuple of str
        All value variables of the model: every one must be covered by a private step.
    n_records : int
        Number of privacy units.
    secret : bool
        Whether the randomness of the step is secret.
    starting : tuple of (Mechanism, int)
        What every chain accesses once, besides, such as the gradient at its first state.
    schedule : callable, optional
        Accesses of iteration 1, 2, ..., where they differ in a way that is fixed in advance.
    token : int
        Number that the step puts on its draws, see :mod:`~pymc_dp.privacy.binding`.
    data_keys : tuple of bytes
        Which data these are, in this program, see :mod:`~pymc_dp.privacy.memory`.
    public : tuple
        Names and arrays that were declared public.
    declared : tuple of str
        The same in words, for the report.
    """

    label: str
    variables: tuple[str, ...]
    mechanisms: tuple[tuple[Mechanism, int], ...]
    model: int
    all_variables: tuple[str, ...]
    n_records: int
    secret: bool
    starting: tuple[tuple[Mechanism, int], ...] = ()
    schedule: Callable[[int], tuple[tuple[Mechanism, int], ...]] | None = None
    token: int = 0
    data_keys: tuple[bytes, ...] = ()
    public: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    declared: tuple[str, ...] = ()

    def at(self, iteration: int) -> tuple[tuple[Mechanism, int], ...]:
        """Return what an iteration (1, 2, ...) accesses, without what is accessed once."""
        return self.mechanisms if self.schedule is None else self.schedule(iteration)


@dataclass
class Allowance:
    """What one chain of one step may do: a number of iterations, or a share of a filter.

    Parameters
    ----------
    iterations : float
        Number of iterations (infinite under a filter or without protection).
    share : Share or None
        Share of the filter, if the proposals decide what an iteration costs.
    claim : tuple of (Mechanism, float)
        What the chain claims: all accesses of all its iterations, or its share.
    run, conversion : float
        For showing what has been spent: Rényi divergence of the whole run (all steps and chains) at
        one order, and what converts it to an epsilon there.
    epsilon : float
        Of the budget.
    expected : float
        Draws it should last for: exact if ``iterations`` is finite.
    prices : dict
        Costs in the filter that are known already.
    progress : tuple of float
        Part of the whole that is spent after iteration 1, 2, ...; empty if all cost the same.
    """

    iterations: float
    share: Share | None
    claim: tuple[tuple[Mechanism, float], ...]
    run: float
    conversion: float
    epsilon: float
    expected: float
    prices: dict[Mechanism, tuple[float, ...]] = field(default_factory=dict, repr=False)
    progress: tuple[float, ...] = field(default=(), repr=False)
    used: int = 0

    def __post_init__(self) -> None:
        self.filter = None if self.share is None else Filter(self.share, self.prices)
        self._left = dict(self.claim)

    def fresh(self) -> Allowance:
        """Return the same allowance, unused."""
        return replace(self, used=0)

    def charge(self, accesses: Sequence[tuple[Mechanism, int]]) -> bool:
        """Pay for one iteration; False, now and ever after, if the allowance does not cover it."""
        if self.used >= self.iterations:
            return False
        if self.filter is not None:
            granted = self.filter.grant(accesses)
        else:
            granted = self.iterations == math.inf or self._take(accesses)
        if granted:
            self.used += 1
        return granted

    def _take(self, accesses: Sequence[tuple[Mechanism, int]]) -> bool:
        """Take accesses out of what was claimed: a schedule that has changed its mind is not covered."""
        for mechanism, count in accesses:
            self._left[mechanism] = self._left.get(mechanism, 0) - count
            if self._left[mechanism] < 0:
                self.used = int(self.iterations)
                return False
        return True

    def epsilon_spent(self) -> float:
        """Epsilon of the whole run if every chain and step has come as far as this one: the reading at one Rényi order."""
        if self.epsilon == math.inf:
            return math.inf
        if self.filter is not None:
            fraction = self.filter.fraction
        elif self.progress and self.used:
            fraction = self.progress[self.used - 1]
        else:
            fraction = self.used / self.iterations
        if fraction == 0:
            return 0.0
        return min(self.epsilon, max(0.0, fraction * self.run + self.conversion))


def share_out(
    steps: Mapping[str, StepAccess],
    *,
    epsilon: float,
    delta: float,
    chains: int,
    accountant: str,
    besides: Accesses = (),
    account: AdaptiveComposition | None = None,
) -> dict[str, Allowance]:
    """Share a budget out over steps and chains.

    If the cost of a draw is the same for all, each chain gets an equal number of iterations of all
    steps: by the accountant, if nothing was claimed before (all chains are then claimed at once), else
    by what composes adaptively. If it varies with the proposal, each chain of each step gets a share of
    a filter in the currency that was fixed when the budget was opened; steps share in proportion to
    their expected cost, so that they end together.

    Parameters
    ----------
    steps : mapping of label to StepAccess
        All steps of one iteration.
    epsilon, delta, chains, accountant
        Terms of the budget.
    besides : iterable of (Mechanism, float)
        What was claimed outside of all chains.
    account : AdaptiveComposition, optional
        That of the account, if it is not the budget's own: shares are bounded in both.

    Returns
    -------
    dict of label to Allowance
        For one chain of each step; copy it with :meth:`Allowance.fresh`.

    Raises
    ------
    PrivacyBudgetExhausted
        If the budget does not pay for one draw of each chain.
    ValueError
        If costs vary and the accountant, or a mechanism, has no filter.
    """
    if epsilon == math.inf:
        return {
            label: Allowance(math.inf, None, (), 0.0, 0.0, epsilon, math.inf) for label in steps
        }
    epsilon = min(epsilon, 1e100)  # nothing overflows, and less is safe
    before, adaptive = Cost.of(besides), AdaptiveComposition.opened(epsilon, delta, accountant)
    if any(isinstance(m, Family) for step in steps.values() for m, _ in step.mechanisms):
        if accountant not in WITH_FILTER:
            raise ValueError(
                f"The accountant {accountant!r} needs a sensitivity that is the same for every proposal; use 'best', 'rdp' or 'gaussian'."
            )
        return _shares(steps, adaptive, chains, before, account)
    by = accountant if before.free else adaptive.reading
    return _iterations(steps, epsilon, delta, chains, by, before)


def _shown(epsilon: float, delta: float, besides: Cost) -> tuple[AdaptiveComposition, float]:
    """The order by which chains show what was spent, and what converts their divergence there, claims before included."""
    shown = AdaptiveComposition.opened(epsilon, delta)
    return shown, epsilon - shown.limit + shown.price_of(besides)


def _iterations(
    steps: Mapping[str, StepAccess],
    epsilon: float,
    delta: float,
    chains: int,
    accountant: Accountant,
    besides: Cost,
) -> dict[str, Allowance]:
    """Equal numbers of iterations, where all costs are known in advance."""
    scheduled = any(step.schedule is not None for step in steps.values())
    starting = [access for step in steps.values() for access in step.starting]

    @cache  # many numbers of iterations are tried
    def accesses(iteration: int) -> list[tuple[Mechanism, int]]:
        return [access for step in steps.values() for access in step.at(iteration)]

    def affordable(chains: int) -> float:
        draws = accesses if scheduled else accesses(1)
        return max_draws(
            draws, epsilon, delta, chains,
            per_chain=starting, besides=besides.counts.items(), accountant=accountant,
        )  # fmt: skip

    each = affordable(chains)
    if each < 1:
        raise PrivacyBudgetExhausted(_too_small(accesses(1), epsilon, delta, chains, affordable(1)))
    whole = {
        label: Cost.of(
            [*step.starting, *(a for t in range(1, int(each) + 1) for a in step.at(t))]
            if scheduled
            else [*step.starting, *((m, k * each) for m, k in step.mechanisms)]
        )
        for label, step in steps.items()
    }
    shown, conversion = _shown(epsilon, delta, besides)
    run = sum(shown.price_of(cost) for cost in whole.values()) * chains
    progress: tuple[float, ...] = ()
    if scheduled or starting:
        costs = [shown.price_of(Cost.of(accesses(t))) for t in range(1, int(each) + 1)]
        spent = shown.price_of(Cost.of(starting)) + np.cumsum(costs)
        progress = tuple((spent / spent[-1]).tolist())
    return {
        label: Allowance(
            each,
            None,
            tuple(cost.counts.items()),
            run,
            conversion,
            epsilon,
            each,
            progress=progress,
        )
        for label, cost in whole.items()
    }


def _shares(
    steps: Mapping[str, StepAccess],
    adaptive: AdaptiveComposition,
    chains: int,
    besides: Cost,
    account: AdaptiveComposition | None,
) -> dict[str, Allowance]:
    """Shares of a filter, where the proposals decide about costs."""
    means = {label: _mean_price(step, adaptive) for label, step in steps.items()}
    starts = {label: adaptive.price_of(Cost.of(step.starting)) for label, step in steps.items()}
    mean, start = sum(means.values()), sum(starts.values())
    accesses = [a for step in steps.values() for a in (*step.starting, *step.mechanisms)]
    if adaptive.order is None and mean + start == math.inf:
        unknown = [m.name for m, _ in accesses if _mean(m, adaptive.price) == math.inf]
        raise ValueError(
            f"The accountant 'gaussian' has no bound for: {'; '.join(unknown)}. Use 'best' or 'rdp'."
        )
    left = adaptive.left(besides) / chains
    expected = (left - start) / mean
    if not expected >= 1:
        total = max(0.0, (left * chains - start) / mean)
        terms = adaptive.epsilon, adaptive.delta
        raise PrivacyBudgetExhausted(_too_small(accesses, *terms, chains, total))
    shown, conversion = _shown(adaptive.epsilon, adaptive.delta, besides)
    allowances = {}
    for label, step in steps.items():
        wanted = starts[label] + expected * means[label]
        total = left * wanted / (start + expected * mean)
        families = [m for m, _ in step.mechanisms if isinstance(m, Family)]
        usual = {access for m in families for access in m.usual()}
        others = {m for m, _ in (*step.starting, *step.mechanisms) if not isinstance(m, Family)}
        share = adaptive.share_on(account, total, usual | others)
        allowances[label] = Allowance(
            math.inf,
            share,
            ((share, 1),),
            shown.price(adaptive.share(left * chains)),
            conversion,
            adaptive.epsilon,
            math.floor(expected),
            {access: share.prices(access) for access in usual},
        )
    return allowances


def _mean_price(step: StepAccess, adaptive: AdaptiveComposition) -> float:
    """Expected price of one iteration of a step; of the first, if there is a schedule."""
    return sum(count * _mean(mechanism, adaptive.price) for mechanism, count in step.mechanisms)


def _mean(mechanism: Mechanism, price: Callable[[Mechanism], float]) -> float:
    return mechanism.mean_price(price) if isinstance(mechanism, Family) else price(mechanism)


def _too_small(
    accesses: Sequence[tuple[Mechanism, int]],
    epsilon: float,
    delta: float,
    chains: int,
    total: float,
) -> str:
    names = "; ".join(f"{count} x {mechanism.name}" for mechanism, count in accesses)
    return (
        f"epsilon = {epsilon:g} at delta = {delta:g} pays for {total:.3g} iteration(s) in all, fewer than one for each of {chains} "
        f"chains. One iteration accesses: {names}. Use a smaller clip bound or proposal, more noise, fewer chains, or a larger epsilon."
    )


def check_adjacency(adjacency: Adjacency, label: str, accesses: Accesses) -> None:
    """Raise unless the costs of all these accesses are proved for the budget's neighbours."""
    for mechanism, _ in accesses:
        if adjacency not in mechanism.adjacencies:
            raise ValueError(
                f"{label} accesses {mechanism.name}, whose cost is proved for adjacency "
                f"{' or '.join(repr(a.value) for a in sorted(mechanism.adjacencies))}, not {adjacency.value!r}. "
                "Make the budget for that adjacency, or use a step that is proved for this one."
            )
