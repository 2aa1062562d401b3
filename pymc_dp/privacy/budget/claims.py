"""Claims of one budget: its terms, its claims so far, and the decision about the next one.

Two kinds of claims are admitted by the budget:

1. *Adaptive*: all claims so far, with this one, fit the adaptive composition
   (:mod:`pymc_dp.privacy.accounting.adaptive`).
2. *At once*: before anything else was claimed, a whole plan (all chains of a run) is claimed in one
   transaction, if the best accountant finds it within epsilon. The claims of its chains then only record who
   made which part of it. Every later claim counts the whole plan, whether all of it was made or not, and nothing
   outside of it is ever admitted. So nobody can choose between the two ways of counting after a release: the
   first claim decides.

A run's plan that fits the adaptive composition is recorded, but claimed chain by chain. A plan of releases
(:meth:`~pymc_dp.PrivacyBudget.spend` with ``plan=``) is always claimed at once, so that none of them can be
refused after the first. Of the account, the first claim takes the whole budget in any case
(:mod:`pymc_dp.ledger_file`).
"""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pymc_dp.codec import dumps, loads
from pymc_dp.display import Shown, one_line
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import Cost, check_pure
from pymc_dp.privacy.mechanisms.mechanism import Accesses


@dataclass(frozen=True)
class Claim(Shown):
    """One granted claim: its budget and step, its accesses, its time and process."""

    budget: str
    step: str
    accesses: Accesses
    created: str
    process: str


class Plan(NamedTuple):
    """All claims of a budget, fixed by the first of them; claimed as a whole, or chain by chain."""

    accesses: Accesses
    whole: bool

    def __repr__(self) -> str:
        return one_line(self)


@dataclass(frozen=True)
class BudgetTerms:
    """Terms of a budget: the adaptive composition, and the accountant of a plan that is claimed at once."""

    adaptive: AdaptiveComposition
    accountant: str

    @classmethod
    def of_budget(cls, epsilon: float, delta: float, accountant: str) -> BudgetTerms:
        """Terms of a budget."""
        return cls(AdaptiveComposition.opened(epsilon, delta, accountant), accountant)

    def at_once(self, cost: Cost) -> bool:
        """Whether a plan may be claimed at once, if nothing was claimed before."""
        epsilon, delta = self.adaptive.epsilon, self.adaptive.delta
        return self.adaptive.fits(cost) or cost.epsilon(delta, self.accountant) <= epsilon

    def spent(self, claimed: Claimed) -> tuple[float, str]:
        """Epsilon that holds after all claims, and the accountant that proves it.

        After a plan that was claimed at once: by the budget's accountant, for the whole plan, made or not. (For the
        part that was made it would not hold: a stopping rule that depends on the releases could choose among
        accountants.)
        """
        cost = claimed.cost
        if self.adaptive.epsilon == math.inf:
            return math.inf if claimed.claims else 0.0, self.accountant
        if cost.free:
            return 0.0, self.accountant
        if claimed.is_whole:
            return cost.best(self.adaptive.delta, self.accountant)
        return self.adaptive.holds(cost), self.adaptive.accountant

    def check(self, before: Cost, asked: Asked) -> None:
        """Raise if a claim does not fit after earlier ones; the error states how many units would fit."""
        adaptive, epsilon = self.adaptive, self.adaptive.epsilon
        if adaptive.fits(before + asked.cost):
            return
        check_pure(adaptive.delta, asked.cost.counts)
        parts = 1000 if asked.draws is None else math.ceil(asked.draws)
        low, high = 0, parts
        while high - low > 1:
            middle = (low + high) // 2
            fits = adaptive.fits(before + asked.cost * (middle / parts))
            low, high = (middle, high) if fits else (low, middle)
        part = f"{low / parts:.1%} of that" if asked.draws is None else f"{low} draws by one chain"
        spent, total = adaptive.reading(before), adaptive.reading(before + asked.cost)
        raise PrivacyBudgetExhausted(
            f"The budget allows epsilon = {epsilon:g} at delta = {adaptive.delta:g}. Spent: {spent:.4g}, left: {max(epsilon - spent, 0):.4g}; "
            f"asked for by {asked.by}: {adaptive.reading(asked.cost):.4g}, in total {total:.4g} (claims one after the other are added up by "
            f"{adaptive.name}). Largest feasible: {part}. Nothing was accessed."
        )


class Asked(NamedTuple):
    """A requested claim."""

    cost: Cost
    by: str
    draws: float | None = None
    plan: Cost | None = None
    at_once: bool = False

    @property
    def run(self) -> Cost:
        """Cost of the plan, which must include the claim; by default of the claim."""
        run = self.cost if self.plan is None else self.plan
        if not self.cost.within(run):
            raise ValueError(f"What {self.by} asks for is not part of its own plan. Nothing was accessed.")  # fmt: skip
        return run

    @property
    def is_whole(self) -> bool | None:
        """Whether a plan that fits the adaptive composition is claimed as a whole, as is a run of one claim."""
        return (
            self.at_once or self.plan.counts == self.cost.counts if self.plan is not None else None
        )

    def least(self, terms: BudgetTerms) -> Asked:
        """Smallest amount to reserve: the claim, or the full plan."""
        if not self.at_once:
            return self
        best = self.run.epsilon(terms.adaptive.delta, terms.accountant)
        by = f"all that is planned (epsilon = {best:.4g} by the accountant {terms.accountant!r})"
        return Asked(self.run, by)


@dataclass(frozen=True)
class Claimed(Shown):
    """Claims of one budget, and the plan that its first claim has fixed, if any."""

    claims: Sequence[Claim]
    plan: Plan | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the budget has claimed its whole plan at once."""
        return self.plan is not None and self.plan.whole

    @cached_property
    def made(self) -> Cost:
        """Cost of the claims."""
        return Cost.of(access for claim in self.claims for access in claim.accesses)

    @property
    def cost(self) -> Cost:
        """Cost of the whole plan, if it was claimed at once; else of the claims."""
        return Cost.of(self.plan.accesses) if self.plan and self.plan.whole else self.made

    def grant(self, terms: BudgetTerms, asked: Asked) -> bool | None:
        """Decide about a claim; for the first one of a plan, return whether the whole plan is claimed with it."""
        if self.plan and not (self.made + asked.cost).within(Cost.of(self.plan.accesses)):
            raise PrivacyBudgetExhausted(
                f"The first claim of this budget fixed what it pays for, and what {asked.by} asks for is not part of it. "
                "Make a new PrivacyBudget; to keep one account for the data set, give both the same ledger file. Nothing was accessed."
            )
        if self.is_whole:
            return None
        run = asked.run
        if self.made.free and self.plan is None and terms.at_once(run):
            return asked.is_whole if terms.adaptive.fits(run) else True
        terms.check(self.made, asked.least(terms))
        return None


def written(accesses: Accesses) -> str:
    """Accesses as text, for the ledger and for reports."""
    return dumps([*accesses])


def read(text: str) -> Accesses:
    """Read what :func:`written` wrote."""
    return tuple((m, float(k)) for m, k in loads(text))
