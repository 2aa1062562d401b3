"""What may be claimed on an account: terms, what was claimed so far, and the decision about the next claim.

Two kinds of claims are admitted, by the account and by the budget that claims, each with its own terms:

1. *Adaptive* ones: all that was claimed so far, this included, fits what composes adaptively
   (:mod:`pymc_dp.privacy.adaptive`).
2. *At once*: before anything else was claimed, a whole plan (all chains of a run) is claimed in one
   transaction, if the best accountant finds it within epsilon. The claims of its chains then only say
   who made which part of it. Every later claim counts the whole plan, made or not: if the plan does not
   fit what composes adaptively, nothing else ever does. So there is no choice between two ways to
   count, after anything was released: the first claim decides which one it is.

A plan that fits what composes adaptively is noted, but claimed chain by chain: what its chains have not
made is there for others.
"""

from __future__ import annotations

import math

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.adaptive import AdaptiveComposition
from pymc_dp.privacy.composition import Cost, check_terms
from pymc_dp.privacy.mechanisms import Adjacency, Mechanism

__all__ = ["Accesses", "Account", "Asked", "Claim", "Claimed", "Plan", "Terms"]

Accesses = Sequence[tuple[Mechanism, float]]


@dataclass(frozen=True)
class Account:
    """What may be spent on a data set in total, by all programs together.

    Parameters
    ----------
    epsilon, delta : float
    adjacency : str
    order : float or None
        Rényi order at which claims compose adaptively; None for Gaussian DP.
    """

    epsilon: float
    delta: float
    adjacency: str
    order: float | None

    def __post_init__(self) -> None:
        epsilon, delta = check_terms(self.epsilon, self.delta)
        self.__dict__.update(epsilon=epsilon, delta=delta)
        if self.adjacency not in list(Adjacency):
            raise ValueError(
                f"adjacency must be 'substitute' or 'add_remove', got {self.adjacency!r}."
            )
        _ = self.adaptive  # refuses what is no order

    @cached_property
    def adaptive(self) -> AdaptiveComposition:
        """What composes adaptively."""
        return AdaptiveComposition(self.epsilon, self.delta, self.order)

    @property
    def terms(self) -> Terms:
        """Terms that bind all claims."""
        return Terms("account", self.adaptive, "best")


@dataclass(frozen=True)
class Claim:
    """One granted claim: by which budget and step, for which accesses, when and by which process."""

    budget: str
    step: str
    accesses: tuple[tuple[Mechanism, float], ...]
    created: str
    process: str


class Plan(NamedTuple):
    """All that the chains of a budget may claim, fixed by the first of them; claimed as a whole, or chain by chain."""

    accesses: tuple[tuple[Mechanism, float], ...]
    whole: bool


@dataclass(frozen=True)
class Terms:
    """Terms of an account or of a budget: what composes adaptively, and the accountant for what is claimed at once."""

    name: str
    adaptive: AdaptiveComposition
    accountant: str

    @classmethod
    def of_budget(cls, epsilon: float, delta: float, accountant: str) -> Terms:
        """Terms of a budget."""
        return cls("budget", AdaptiveComposition.opened(epsilon, delta, accountant), accountant)

    def at_once(self, cost: Cost) -> bool:
        """Whether a plan may be claimed at once, where nothing was claimed before."""
        epsilon, delta = self.adaptive.epsilon, self.adaptive.delta
        return self.adaptive.fits(cost) or cost.epsilon(delta, self.accountant) <= epsilon

    def admits(self, before: Cost, cost: Cost) -> bool:
        """Whether a plan may be claimed after what was claimed before."""
        return self.at_once(cost) if before.free else self.adaptive.fits(before + cost)

    def spent(self, cost: Cost, closed: bool) -> tuple[float, str]:
        """Epsilon that holds after all that was claimed, and the accountant that proves it.

        Parameters
        ----------
        cost : Cost
            Of all that was claimed.
        closed : bool
            Whether it is one plan that was claimed at once, after which nothing else can be. Then the best
            accountant counts, of the whole plan, made or not. (Of the part that was made it would not do:
            who decides by what was released where to stop could choose among accountants.)
        """
        if cost.free:
            return 0.0, self.accountant
        if self.adaptive.epsilon == math.inf:
            return math.inf, self.accountant
        if closed:
            return cost.best(self.adaptive.delta, self.accountant)
        return self.adaptive.holds(cost), self.adaptive.accountant

    def check(self, before: Cost, closed: bool, asked: Asked) -> None:
        """Raise if what is asked for does not fit after what was claimed; say how many units would."""
        adaptive, epsilon = self.adaptive, self.adaptive.epsilon
        if adaptive.fits(before + asked.cost):
            return
        parts = 1000 if asked.number is None else math.ceil(asked.number)
        low, high = 0, parts
        while high - low > 1:
            middle = (low + high) // 2
            fits = adaptive.fits(before + asked.cost * (middle / parts))
            low, high = (middle, high) if fits else (low, middle)
        feasible = (
            f"{low / parts:.1%} of that share" if asked.number is None else f"{low} {asked.units}"
        )
        spent = self.spent(before, closed)[0] if closed else adaptive.reading(before)
        total = adaptive.reading(before + asked.cost)
        raise PrivacyBudgetExhausted(
            f"The {self.name} allows epsilon = {epsilon:g} at delta = {adaptive.delta:g}. Spent: {spent:.4g}, left: {max(epsilon - spent, 0):.4g}; "
            f"asked for by {asked.by}: {adaptive.reading(asked.cost):.4g}, in total {total:.4g} (claims one after the other are added up by "
            f"{adaptive.name}). Largest feasible: {feasible}. Nothing was accessed."
        )


class Asked(NamedTuple):
    """What is asked for: its cost, by whom, in how many units, and what they are."""

    cost: Cost
    by: str
    number: float | None
    units: str


@dataclass(frozen=True)
class Claimed:
    """What was claimed on an account: claims, and by budget the plans."""

    claims: Sequence[Claim]
    plans: Mapping[str, Plan]

    def is_whole(self, budget: str) -> bool:
        """Whether a budget has claimed its whole plan at once."""
        return budget in self.plans and self.plans[budget].whole

    def of(self, budget: str) -> Cost:
        """What a budget has claimed: its whole plan, if that was claimed at once."""
        if self.is_whole(budget):
            return Cost.of(self.plans[budget].accesses)
        return _total([c for c in self.claims if c.budget == budget])

    @cached_property
    def total(self) -> Cost:
        """What all budgets have claimed."""
        budgets = dict.fromkeys([*self.plans, *(c.budget for c in self.claims)])
        return Cost.of(access for b in budgets for access in self.of(b).counts.items())

    def closes(self, account: Terms) -> bool:
        """Whether all that was claimed is one plan, after which the account admits nothing else."""
        budgets = {c.budget for c in self.claims}
        return (
            len(budgets) == 1 and self.is_whole(*budgets) and not account.adaptive.fits(self.total)
        )

    def left_of_plan(self, budget: str, asked: Cost) -> bool:
        """Whether what is asked for lies in what the chains of a budget have not yet made of its plan."""
        made = _total([c for c in self.claims if c.budget == budget]) + asked
        plan = Cost.of(self.plans[budget].accesses).counts
        return all(count <= plan.get(m, 0) for m, count in made.counts.items())

    def grant(
        self, account: Terms, terms: Terms, budget: str, asked: Asked, plan: Cost | None
    ) -> bool | None:
        """Decide about a claim; for the first one of a plan, return whether the whole plan is claimed with it.

        Parameters
        ----------
        account, terms : Terms
            Those of the account, and of the budget.
        budget : str
            Who claims.
        asked : Asked
            For what.
        plan : Cost, optional
            Of the run that this claim is a part of; by default the claim is all.

        Raises
        ------
        PrivacyBudgetExhausted
            If it is not admitted.
        """
        if budget in self.plans:
            if not self.left_of_plan(budget, asked.cost):
                raise PrivacyBudgetExhausted(
                    f"The first claim of this budget fixed what it pays for, and what {asked.by} asks for is no part of that. "
                    "Make a new PrivacyBudget; to keep one account for the data set, give both the same ledger file. Nothing was accessed."
                )
            if self.plans[budget].whole:
                return None
        own, whole = self.of(budget), asked.cost if plan is None else plan
        first = own.free and budget not in self.plans
        if terms.adaptive.fits(own + whole) and account.adaptive.fits(self.total + whole):
            # A run of one claim is whole, and nothing of it is left for others.
            return plan.counts == asked.cost.counts if first and plan is not None else None
        if first and terms.at_once(whole) and account.admits(self.total, whole):
            return True
        account.check(self.total, self.closes(account), asked)
        terms.check(own, False, asked)
        return None


def _total(claims: Sequence[Claim]) -> Cost:
    return Cost.of(access for claim in claims for access in claim.accesses)
