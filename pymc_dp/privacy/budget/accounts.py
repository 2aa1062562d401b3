"""Claims on an account: terms, claims so far, and the decision about the next claim.

Two kinds of claims are admitted, by the account and by the budget that claims, each with its own terms:

1. *Adaptive*: all claims so far, with this one, fit the adaptive composition
   (:mod:`pymc_dp.privacy.accounting.adaptive`).
2. *At once*: before anything else was claimed, a whole plan (all chains of a run) is claimed in one
   transaction, if the best accountant finds it within epsilon. The claims of its chains then only record who
   made which part of it. Every later claim counts the whole plan, whether all of it was made or not. If the
   plan does not fit the adaptive composition, nothing else is ever admitted. So nobody can choose between the
   two ways of counting after a release: the first claim decides.

A run's plan that fits the adaptive composition is recorded, but claimed chain by chain, so that others can claim
the rest of the account. A plan of releases (:meth:`~pymc_dp.PrivacyBudget.spend` with
``plan=``) is always claimed at once, so that none of them can be refused after the first.
"""

from __future__ import annotations

import json
import math
import uuid

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pymc_dp.display import Shown, one_line
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import Cost, check_epsilon_delta, check_pure
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Adjacency, from_json, to_json

__all__ = ["Account", "Asked", "BudgetTerms", "Claim", "Claimed", "Plan", "id_of_group", "label_of", "read", "written"]  # fmt: skip

#: Hexadecimal digits of a budget's id. That of a group begins with the id of the divided budget; then come its label and 8 random digits.
_ID = 32


@dataclass(frozen=True)
class Account:
    """Total that may be spent on a data set, by all programs together.

    Parameters
    ----------
    epsilon, delta : float
    adjacency : str
    order : float or None
        Rényi order at which claims compose adaptively; infinite for pure DP, None for Gaussian DP.
    """

    epsilon: float
    delta: float
    adjacency: str
    order: float | None

    def __post_init__(self) -> None:
        epsilon, delta = check_epsilon_delta(self.epsilon, self.delta)
        self.__dict__.update(epsilon=epsilon, delta=delta)
        if self.adjacency not in list(Adjacency):
            raise ValueError(
                f"adjacency must be 'substitute' or 'add_remove', got {self.adjacency!r}."
            )
        _ = self.adaptive  # refuses an order of at most 1

    @cached_property
    def adaptive(self) -> AdaptiveComposition:
        """The adaptive composition."""
        return AdaptiveComposition(self.epsilon, self.delta, self.order)

    @property
    def terms(self) -> BudgetTerms:
        """Terms that bind all claims."""
        return BudgetTerms("account", self.adaptive, "best")


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
    """Terms of a budget or an account: the adaptive composition, and the accountant of a plan that is claimed at once."""

    name: str
    adaptive: AdaptiveComposition
    accountant: str

    @classmethod
    def of_budget(cls, epsilon: float, delta: float, accountant: str) -> BudgetTerms:
        """Terms of a budget."""
        return cls("budget", AdaptiveComposition.opened(epsilon, delta, accountant), accountant)

    def at_once(self, cost: Cost) -> bool:
        """Whether a plan may be claimed at once, if nothing was claimed before."""
        epsilon, delta = self.adaptive.epsilon, self.adaptive.delta
        return self.adaptive.fits(cost) or cost.epsilon(delta, self.accountant) <= epsilon

    def admits(self, before: Cost, cost: Cost) -> bool:
        """Whether a plan may be claimed after earlier claims."""
        return self.at_once(cost) if before.free else self.adaptive.fits(before + cost)

    def spent(self, cost: Cost, closed: bool) -> tuple[float, str]:
        """Epsilon that holds after all claims, and the accountant that proves it.

        Parameters
        ----------
        cost : Cost
            Of all claims.
        closed : bool
            Whether they are one plan that was claimed at once, after which no other claim is admitted. Then the
            best accountant counts, of the whole plan, made or not. (Of the part that was made it would not
            hold: a stopping rule that depends on the releases could choose among accountants.)
        """
        if cost.free:
            return 0.0, self.accountant
        if self.adaptive.epsilon == math.inf:
            return math.inf, self.accountant
        if closed:
            return cost.best(self.adaptive.delta, self.accountant)
        return self.adaptive.holds(cost), self.adaptive.accountant

    def check(self, before: Cost, closed: bool, asked: Asked) -> None:
        """Raise if a claim does not fit after earlier ones; the error states how many units would fit."""
        adaptive, epsilon = self.adaptive, self.adaptive.epsilon
        if adaptive.fits(before + asked.cost):
            return
        check_pure(adaptive.delta, asked.cost.counts)
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
    """A claim that is asked for.

    Parameters
    ----------
    cost : Cost
    by : str
        Who asks.
    number, units : float or None, str
        Number of units, and their name, for the message if they do not fit.
    plan : Cost, optional
        Of the run that includes this claim.
    at_once : bool
        Whether the first claim claims the whole plan in any case, or else nothing.
    """

    cost: Cost
    by: str
    number: float | None
    units: str
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
        """The least that must fit: the claim, or the whole plan."""
        if not self.at_once:
            return self
        best = self.run.epsilon(terms.adaptive.delta, terms.accountant)
        by = f"all that is planned (epsilon = {best:.4g} by the accountant {terms.accountant!r})"
        return Asked(self.run, by, None, "")


@dataclass(frozen=True)
class Claimed(Shown):
    """Claims on an account, and plans by budget."""

    claims: Sequence[Claim]
    plans: Mapping[str, Plan]

    def is_whole(self, budget: str) -> bool:
        """Whether a budget has claimed its whole plan at once."""
        return budget in self.plans and self.plans[budget].whole

    def of(self, budget: str) -> Cost:
        """Cost of a budget's claims: of its whole plan, if that was claimed at once."""
        if self.is_whole(budget):
            return Cost.of(self.plans[budget].accesses)
        return _total([c for c in self.claims if c.budget == budget])

    @cached_property
    def total(self) -> Cost:
        """Cost of the claims of all budgets."""
        budgets = dict.fromkeys([*self.plans, *(c.budget for c in self.claims)])
        return Cost.of(access for b in budgets for access in self.of(b).counts.items())

    def views(self, budget: str) -> list[Claimed]:
        """Claims that a record can be affected by, for each group of records that a budget's claims affect.

        A record of a group is affected by all claims but those of other groups of the same division. (Two
        divisions of one account need not agree, so the groups of the other one are added up.) A budget that
        is for all records affects each group.
        """
        ids = {*self.plans, *(c.budget for c in self.claims)}
        groups = [budget] if _is_group(budget) else sorted(filter(_is_group, ids))
        return [self._without({i for i in ids if _apart(i, g)}) for g in groups] or [self]

    def _without(self, others: set[str]) -> Claimed:
        claims = [c for c in self.claims if c.budget not in others]
        return Claimed(claims, {b: plan for b, plan in self.plans.items() if b not in others})

    def spent(self, account: BudgetTerms) -> float:
        """Epsilon of all claims together, for the group of records for which it is largest."""
        return max(account.spent(v.total, v.closes(account))[0] for v in self.views(""))

    def admits(self, account: BudgetTerms, budget: str, plan: Cost) -> bool:
        """Whether an account admits the plan of a budget after all these claims."""
        return all(account.admits(v.total, plan) for v in self.views(budget))

    def check(self, account: BudgetTerms, budget: str, asked: Asked) -> None:
        """Raise if the claim of a budget does not fit on an account after all these claims."""
        for view in self.views(budget):
            account.check(view.total, view.closes(account), asked)

    def closes(self, account: BudgetTerms) -> bool:
        """Whether the claims are one plan after which the account admits nothing else."""
        budgets = {c.budget for c in self.claims}
        return (
            len(budgets) == 1 and self.is_whole(*budgets) and not account.adaptive.fits(self.total)
        )

    def within_plan(self, budget: str, asked: Cost) -> bool:
        """Whether a claim lies within the part of a budget's plan that is not yet made."""
        made = _total([c for c in self.claims if c.budget == budget]) + asked
        return made.within(Cost.of(self.plans[budget].accesses))

    def grant(
        self, account: BudgetTerms, terms: BudgetTerms, budget: str, asked: Asked
    ) -> bool | None:
        """Decide about a claim; for the first one of a plan, return whether the whole plan is claimed with it.

        Parameters
        ----------
        account, terms : BudgetTerms
            Those of the account, and of the budget.
        budget : str
            The budget that claims.
        asked : Asked
            The claim.

        Raises
        ------
        PrivacyBudgetExhausted
            If it is not admitted.
        ValueError
            If the plan does not include the claim.
        """
        if budget in self.plans and not self.within_plan(budget, asked.cost):
            raise PrivacyBudgetExhausted(
                f"The first claim of this budget fixed what it pays for, and what {asked.by} asks for is not part of it. "
                "Make a new PrivacyBudget; to keep one account for the data set, give both the same ledger file. Nothing was accessed."
            )
        if self.is_whole(budget):
            return None
        own, run = self.of(budget), asked.run
        is_first = own.free and budget not in self.plans
        if is_first and terms.at_once(run) and self.admits(account, budget, run):
            adaptive = account.adaptive
            fits = all(adaptive.fits(view.total + run) for view in self.views(budget))
            return asked.is_whole if fits and terms.adaptive.fits(run) else True
        asked = asked.least(terms)
        self.check(account, budget, asked)
        terms.check(own, False, asked)
        return None


def id_of_group(budget: str, label: str) -> str:
    """Return a new id, for the budget of a group of records, of a divided budget."""
    return f"{budget}{label.encode().hex()}{uuid.uuid4().hex[:8]}"


def label_of(budget: str) -> str:
    """Return the label of the group of a budget; empty if it is for all records."""
    return bytes.fromhex(budget[_ID:-8]).decode() if _is_group(budget) else ""


def _is_group(budget: str) -> bool:
    return len(budget) > _ID


def _apart(one: str, other: str) -> bool:
    """Whether budgets are for different groups of one division."""
    return _is_group(one) and _is_group(other) and one[:_ID] == other[:_ID] and one != other


def _total(claims: Sequence[Claim]) -> Cost:
    return Cost.of(access for claim in claims for access in claim.accesses)


def written(accesses: Accesses) -> str:
    """Accesses as text, for the ledger and for reports."""
    return json.dumps([(to_json(m), k) for m, k in accesses])


def read(text: str) -> Accesses:
    """Read what :func:`written` wrote."""
    return tuple((from_json(m), float(k)) for m, k in json.loads(text))
