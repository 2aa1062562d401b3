"""Planning: what one chain of each step may do within a budget."""

from __future__ import annotations

import math

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.accounting import max_draws
from pymc_dp.privacy.composition import Accesses, Cost, renyi_budget, renyi_to_epsilon
from pymc_dp.privacy.families import Family
from pymc_dp.privacy.filters import RenyiFilter, RenyiShare
from pymc_dp.privacy.mechanisms import ORDERS, Mechanism

__all__ = ["Allowance", "StepAccess", "share_out"]


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

    def at(self, iteration: int) -> tuple[tuple[Mechanism, int], ...]:
        """Return what an iteration (1, 2, ...) accesses, without what is accessed once."""
        return self.mechanisms if self.schedule is None else self.schedule(iteration)


@dataclass
class Allowance:
    """What one chain of one step may do: a number of iterations, or a share of a Rényi filter.

    Parameters
    ----------
    iterations : float
        Number of iterations (infinite under a filter or without protection).
    share : RenyiShare or None
        Share of the filter, if the proposals decide what an iteration costs.
    claim : tuple of (Mechanism, float)
        What the chain claims: all accesses of all its iterations, or its share.
    run, conversion : tuple of float
        For showing what has been spent: Rényi divergence of the whole run (all steps and chains) at
        a few orders, and what converts it to an epsilon there.
    epsilon : float
        Of the budget.
    expected : float
        Draws it should last for: exact if ``iterations`` is finite.
    prices : dict
        Costs at the order of the filter that are known already.
    progress : tuple of float
        Part of the whole that is spent after iteration 1, 2, ...; empty if all cost the same.
    """

    iterations: float
    share: RenyiShare | None
    claim: tuple[tuple[Mechanism, float], ...]
    run: tuple[float, ...]
    conversion: tuple[float, ...]
    epsilon: float
    expected: float
    prices: dict[Mechanism, float] = field(default_factory=dict, repr=False)
    progress: tuple[float, ...] = field(default=(), repr=False)
    used: int = 0

    def __post_init__(self) -> None:
        self.filter = None if self.share is None else RenyiFilter(self.share, self.prices)
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
        """Epsilon of the whole run if every chain and step has come as far as this one."""
        if self.epsilon == math.inf:
            return math.inf
        if self.filter is not None:
            fraction = self.filter.spent / self.filter.share.rho
        elif self.progress and self.used:
            fraction = self.progress[self.used - 1]
        else:
            fraction = self.used / self.iterations
        if fraction == 0:
            return 0.0
        readings = [fraction * r + c for r, c in zip(self.run, self.conversion, strict=True)]
        return min(self.epsilon, max(0.0, min(readings)))


def share_out(
    steps: Mapping[str, StepAccess],
    *,
    epsilon: float,
    delta: float,
    chains: int,
    accountant: str,
    besides: Accesses = (),
) -> dict[str, Allowance]:
    """Share a budget out over steps and chains.

    If the cost of a draw is the same for all, each chain gets an equal number of iterations of all
    steps. If it varies with the proposal, each chain of each step gets a share of a Rényi filter at
    the one order that is expected to last longest; steps share in proportion to their expected
    cost, so that they end together.

    Parameters
    ----------
    steps : mapping of label to StepAccess
        All steps of one iteration.
    epsilon, delta, chains, accountant
        Terms of the budget.
    besides : iterable of (Mechanism, float)
        What was claimed outside of all chains.

    Returns
    -------
    dict of label to Allowance
        For one chain of each step; copy it with :meth:`Allowance.fresh`.

    Raises
    ------
    PrivacyBudgetExhausted
        If the budget does not pay for one draw of each chain.
    """
    if epsilon == math.inf:
        return {label: Allowance(math.inf, None, (), (), (), epsilon, math.inf) for label in steps}
    epsilon = min(epsilon, 1e100)  # nothing overflows, and less is safe
    if any(isinstance(m, Family) for step in steps.values() for m, _ in step.mechanisms):
        return _shares(steps, epsilon, delta, chains, accountant, Cost.of(besides))
    return _iterations(steps, epsilon, delta, chains, accountant, Cost.of(besides))


def _iterations(
    steps: Mapping[str, StepAccess],
    epsilon: float,
    delta: float,
    chains: int,
    accountant: str,
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
    run = np.sum([cost.renyi for cost in whole.values()], axis=0) * chains
    # The less is spent, the higher the best order.
    best = int(np.argmin(renyi_to_epsilon(ORDERS, run + besides.renyi, delta)))
    shown = np.unique(np.linspace(best, len(ORDERS) - 1, 16).astype(int))
    progress: tuple[float, ...] = ()
    if scheduled or starting:
        once = Cost.of(starting).renyi[shown]
        spent = once + np.cumsum(
            [Cost.of(accesses(t)).renyi[shown] for t in range(1, int(each) + 1)], axis=0
        )
        progress = tuple(np.max(spent / spent[-1], axis=1).tolist())
    at_start = renyi_to_epsilon(ORDERS[shown], besides.renyi[shown], delta)
    conversion = tuple(np.asarray(at_start).tolist())
    return {
        label: Allowance(
            each,
            None,
            tuple(cost.counts.items()),
            tuple(run[shown].tolist()),
            conversion,
            epsilon,
            each,
            progress=progress,
        )
        for label, cost in whole.items()
    }


def _shares(
    steps: Mapping[str, StepAccess],
    epsilon: float,
    delta: float,
    chains: int,
    accountant: str,
    besides: Cost,
) -> dict[str, Allowance]:
    """Shares of a filter, where the proposals decide about costs."""
    if accountant not in ("best", "rdp"):
        raise ValueError(
            f"The accountant {accountant!r} needs a sensitivity that is the same for every proposal; use 'best' or 'rdp'."
        )
    means = {label: _mean_renyi(step) for label, step in steps.items()}
    starts = {label: Cost.of(step.starting).renyi for label, step in steps.items()}
    mean, start = (np.sum([*costs.values()], axis=0) for costs in (means, starts))
    budget = (renyi_budget(ORDERS, epsilon, delta) - besides.renyi) / chains
    draws = np.nan_to_num((budget - start) / mean, nan=0.0)
    best = int(np.argmax(draws))
    expected = float(draws[best])
    if expected < 1:
        accesses = [a for step in steps.values() for a in (*step.starting, *step.mechanisms)]
        total = float((budget * chains - start)[best] / mean[best])
        raise PrivacyBudgetExhausted(_too_small(accesses, epsilon, delta, chains, max(0.0, total)))
    # The last digits belong to the conversion's safety margin, so that all shares together fit.
    rho = float(budget[best]) * (1 - 1e-6)
    order = float(ORDERS[best])
    at_zero = float(renyi_to_epsilon(order, besides.renyi[best], delta))
    allowances = {}
    for label, step in steps.items():
        wanted = float(starts[label][best] + expected * means[label][best])
        share = RenyiShare(order, rho * wanted / float(budget[best]))
        families = [m for m, _ in step.mechanisms if isinstance(m, Family)]
        prices = {access: price for m in families for access, price in m.prices(order).items()}
        allowances[label] = Allowance(
            math.inf,
            share,
            ((share, 1),),
            (rho * chains,),
            (at_zero,),
            epsilon,
            math.floor(expected),
            prices,
        )
    return allowances


def _mean_renyi(step: StepAccess) -> np.ndarray:
    """Expected cost of one iteration of a step at each order; of the first, if there is a schedule."""
    total = np.zeros(len(ORDERS))
    for mechanism, count in step.mechanisms:
        total += count * (
            mechanism.mean_renyi(ORDERS)
            if isinstance(mechanism, Family)
            else mechanism.renyi(ORDERS)
        )
    return total


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
