"""Claims of one budget: its terms, its claims so far, and the decision about the next one.

Two kinds of claims are admitted by the budget:

1. *Adaptive*: all claims so far, with this one, fit the adaptive composition
   (:mod:`pymc_dp.privacy.accounting.adaptive`).
2. *At once*: the first claim takes a whole plan, if the best accountant finds it within epsilon. Every later
   claim counts the whole plan, whether all of it was made or not, and nothing outside of it is ever admitted. So
   nobody can choose between the two ways of counting after a release: the first claim decides.

The chains of a run are claimed at once only if they do not fit the adaptive composition, or are one; releases that
are planned together always, so that none of them can be refused after the first.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pymc_dp.codec import published
from pymc_dp.display import Shown
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import Cost, check_pure
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Adjacency


@dataclass(frozen=True)
class BudgetTerms(Shown):
    """Terms of a budget, fixed when it is made: what it claims of an account, and how its own claims compose."""

    id: str
    epsilon: float
    delta: float
    #: Of a plan that is claimed at once.
    accountant: str = "best"
    adjacency: Adjacency = Adjacency.SUBSTITUTE

    @cached_property
    def adaptive(self) -> AdaptiveComposition:
        """Composition of claims that follow each other."""
        return AdaptiveComposition.opened(self.epsilon, self.delta, self.accountant)

    def check_proved(self, label: str, accesses: Accesses) -> None:
        """Raise unless the costs of all these accesses are proved for the budget's neighbours, and finite if its delta is 0."""
        for mechanism, _ in accesses:
            check_pure(self.delta, [mechanism], f"{label} accesses")
            if self.adjacency not in mechanism.adjacencies:
                raise ValueError(
                    f"{label} accesses {mechanism.name}, whose cost is proved for adjacency "
                    f"{' or '.join(repr(a.value) for a in sorted(mechanism.adjacencies))}, not {self.adjacency.value!r}. "
                    "Make the budget for that adjacency, or use a step that is proved for this one."
                )


@dataclass(frozen=True)
class StepAccess:
    """Every data access of one step, as the step registers it with its budget."""

    label: str
    #: Value variables that it updates.
    variables: tuple[str, ...]
    #: Accesses of one iteration; of the first one if there is a schedule.
    mechanisms: Accesses
    #: Identity of the model, and all of its value variables: a private step must update each of them.
    model: int
    all_variables: tuple[str, ...]
    #: Number of privacy units, and whether the randomness of the step is secret.
    n_records: int
    secret: bool
    #: Accesses of each chain before its first iteration, such as the gradient at its first state.
    starting: Accesses = ()
    #: Accesses of iteration 1, 2, ..., if they differ and are fixed in advance.
    schedule: Callable[[int], Accesses] | None = None
    #: Number that the step puts on its draws, see :mod:`~pymc_dp.privacy.budget.draws`.
    token: int = 0
    #: Names and arrays that were declared public, and the same in words.
    public: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    declared: tuple[str, ...] = ()

    def at(self, iteration: int) -> Accesses:
        """Return the accesses of an iteration (1, 2, ...), without those of the start."""
        return self.mechanisms if self.schedule is None else self.schedule(iteration)

    def run(self, draws: int) -> Cost:
        """Cost of one chain with this number of draws."""
        if self.schedule is None:
            return Cost.of(self.starting) + Cost.of(self.mechanisms) * draws
        every = [access for t in range(1, draws + 1) for access in self.at(t)]
        return Cost.of([*self.starting, *every])


@dataclass(frozen=True)
class Claim(Shown):
    """One granted claim; the first of a budget may fix the plan of all of them."""

    budget: str
    step: str
    accesses: Accesses
    created: str
    process: str
    plan: Accesses | None = None
    #: Whether the whole plan was claimed with this claim.
    at_once: bool = False


@dataclass(frozen=True)
class Claims(Shown):
    """Claims of one budget, as its ledger has them, and what follows from them."""

    terms: BudgetTerms
    claims: Sequence[Claim] = ()

    @property
    def plan(self) -> Cost | None:
        """All that the budget ever pays for, if its first claim fixed this."""
        plan = self.claims[0].plan if self.claims else None
        return None if plan is None else Cost.of(plan)

    @property
    def at_once(self) -> bool:
        """Whether the whole plan was claimed with the first claim."""
        return bool(self.claims) and self.claims[0].at_once

    @cached_property
    def made(self) -> Cost:
        """Cost of the claims."""
        return Cost.of(access for claim in self.claims for access in claim.accesses)

    @property
    def cost(self) -> Cost:
        """Cost of the whole plan, if it was claimed at once; else of the claims."""
        return self.plan if self.plan and self.at_once else self.made

    @property
    def bound(self) -> Cost | None:
        """Bound on all that the budget ever pays for: its plan, or else the whole adaptive composition."""
        if self.terms.epsilon == math.inf:
            return None
        if self.made.free:
            return self.made
        return self.plan or Cost.of([(self.terms.adaptive.whole(), 1)])

    def spent(self) -> tuple[float, str]:
        """Epsilon that holds after all claims, for any rule of stopping, and the accountant that proves it.

        After a plan that was claimed at once: by the budget's accountant, for the whole plan, made or not. (For the
        part that was made it would not hold: a stopping rule that depends on the releases could choose among
        accountants.)
        """
        terms, cost = self.terms, self.cost
        if terms.epsilon == math.inf:
            return math.inf if self.claims else 0.0, terms.accountant
        if cost.free:
            return 0.0, terms.accountant
        if self.at_once:
            return cost.best(terms.delta, terms.accountant)
        return terms.adaptive.holds(cost), terms.adaptive.accountant

    def remaining(self) -> float:
        """Epsilon not yet claimed."""
        if self.terms.epsilon == math.inf:
            return math.inf
        used = self.spent()[0] if self.at_once else self.terms.adaptive.reading(self.made)
        return max(0.0, self.terms.epsilon - used)

    def check_chains(
        self, label: str, n_chains: int, limit: float, draws: float | None = None
    ) -> None:
        """Raise if a run of this many chains of a step would exceed the number that share the budget."""
        before = sum(claim.step == label for claim in self.claims)
        of_draws = "" if draws is None else f" of about {draws:g} draws"
        if before + n_chains > limit:
            raise PrivacyBudgetExhausted(
                f"This run has {n_chains} chain(s), but the budget of {label} is shared over chains={limit}, of which {before} have run. Spent: "
                f"epsilon = {self.spent()[0]:.4g} of {self.terms.epsilon:g}. Largest feasible: {limit - before} chain(s){of_draws}. A finished or interrupted "
                "chain is not refunded; make a budget for as many chains as you want before the first runs."
            )

    def grant(
        self, label: str, accesses: Accesses, plan: Accesses | None, draws: float | None
    ) -> bool | None:
        """Grant a claim or raise; if it fixes the plan, return whether all of this is claimed with it."""
        terms, cost = self.terms, Cost.of(accesses)
        by = f"one chain of {label}{'' if draws is None else f' ({draws:g} draws)'}"
        if self.plan is not None and not (self.made + cost).within(self.plan):
            raise PrivacyBudgetExhausted(
                f"The first claim of this budget fixed what it pays for, and what {by} asks for is not part of it. "
                "Make a new PrivacyBudget; to keep one account for the data set, give both the same ledger file. Nothing was accessed."
            )
        if self.at_once:
            return None
        run = cost if plan is None else Cost.of(plan)
        if not cost.within(run):
            raise ValueError(f"What {by} asks for is not part of its own plan. Nothing was accessed.")  # fmt: skip
        of_releases = plan is not None and draws is None
        if not self.claims:
            if terms.adaptive.fits(run):
                return None if plan is None else of_releases or run.counts == cost.counts
            if run.epsilon(terms.delta, terms.accountant) <= terms.epsilon:
                return True
        if of_releases:
            best, cost = run.epsilon(terms.delta, terms.accountant), run
            by = (
                f"all that is planned (epsilon = {best:.4g} by the accountant {terms.accountant!r})"
            )
        self._check_fits(cost, by, draws)
        return None

    def _check_fits(self, cost: Cost, by: str, draws: float | None) -> None:
        """Raise unless the adaptive composition pays for a cost after the claims; the error states what part of it would fit."""
        adaptive = self.terms.adaptive
        if adaptive.fits(self.made + cost):
            return
        parts = 1000 if draws is None else math.ceil(draws)
        low, high = 0, parts
        while high - low > 1:
            middle = (low + high) // 2
            fits = adaptive.fits(self.made + cost * (middle / parts))
            low, high = (middle, high) if fits else (low, middle)
        part = f"{low / parts:.1%} of that" if draws is None else f"{low} draws by one chain"
        spent, total = adaptive.reading(self.made), adaptive.reading(self.made + cost)
        raise PrivacyBudgetExhausted(
            f"The budget allows epsilon = {adaptive.epsilon:g} at delta = {adaptive.delta:g}. Spent: {spent:.4g}, left: {self.remaining():.4g}; "
            f"asked for by {by}: {adaptive.reading(cost):.4g}, in total {total:.4g} (claims one after the other are added up by "
            f"{adaptive.name}). Largest feasible: {part}. Nothing was accessed."
        )


@published
@dataclass(frozen=True)
class StepReport(Shown):
    """Claims of one step."""

    label: str
    chains: int
    per_draw: tuple[str, ...]
    per_chain: tuple[str, ...]

    @classmethod
    def of(cls, access: StepAccess, claims: Sequence[Claim]) -> StepReport:
        """From the accesses of a step, and the claims of a budget."""
        claims = [claim for claim in claims if claim.step == access.label]
        each, starting = listed(access.mechanisms), listed(access.starting)
        if access.schedule is not None:
            each = tuple(f"{name} (draw 1, then by a schedule)" for name in each)
        per_draw = (*each, *(f"{name} (once a chain)" for name in starting))
        per_chain = listed(claims[0].accesses) if claims else ()
        return cls(access.label, len(claims), per_draw, per_chain)

    def rows(self) -> list[tuple[str, str]]:
        """Rows of the report."""
        return [
            (self.label, f"{self.chains} chain(s) claimed"),
            *(("  each draw", access) for access in self.per_draw),
            *(("  each chain", claim) for claim in self.per_chain),
        ]


def listed(accesses: Accesses) -> tuple[str, ...]:
    """Accesses in words; only the first and the last ones of many."""
    names = [f"{count:g} x {mechanism.name}" for mechanism, count in accesses]
    if len(names) > 6:
        names[2:-2] = [f"... ({len(names) - 4} kinds more) ..."]
    return tuple(names)
