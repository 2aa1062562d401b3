"""What a budget has spent, and its report."""

from __future__ import annotations

import math

from collections.abc import Mapping
from pathlib import Path

from pymc_dp.display import MOST_ROWS, Shown, Table, one_line
from pymc_dp.errors import LedgerError
from pymc_dp.ledger_file import budgets_without_file
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.budget.allocation import StepAccess
from pymc_dp.privacy.budget.claims import BudgetTerms, Claimed, written
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privacy.budget.report_parts import StepReport, assumptions, listed, one_off, strength
from pymc_dp.privacy.budget.stopping import RunProgress
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Adjacency

_SPENT = "Spent: "


def check_is_budget(budget: object) -> None:
    """Raise TypeError unless this is a budget."""
    if not isinstance(budget, SpentBudget):
        raise TypeError(
            f"budget must be a PrivacyBudget, such as PrivacyBudget(epsilon=1.0, delta=1e-6, chains=1), got a {type(budget).__name__}."
        )


def explain(error: BaseException, budget: SpentBudget | None, scores: object = None) -> None:
    """Add a note to an error that ends a run: what was spent, what is left, and how to go on; none if nothing was spent."""
    if budget is None or any(n.startswith(_SPENT) for n in getattr(error, "__notes__", ())):
        return
    try:
        spent, account, by_all = budget.spent(), budget.ledger.account, budget.ledger.spent()
    except LedgerError:
        return  # the error itself is about the ledger, or the program's end has removed a temporary one
    if not spent:
        return
    how = (
        "Released sums are in error.scores, and these are paid for: dp.sample(step=dp.DPScore(error.scores, ...)) samples from them at no cost."
        if scores is not None
        else "Another run needs a new PrivacyBudget; to keep one account for the data set, give it the same ledger file."
    )
    error.add_note(
        f"{_SPENT}epsilon = {spent:.4g} of {budget.epsilon:g} of this budget (error.budget), and {by_all:.4g} of {account.epsilon:g} of the account "
        f"in its ledger; claims are not refunded. {how}"
    )


class SpentBudget(Shown):
    """The part of a :class:`~pymc_dp.privacy.budget.budget.PrivacyBudget` that reads its claims."""

    id: str
    epsilon: float
    delta: float
    chains: int
    adjacency: Adjacency
    accountant: str
    ledger: Ledger
    terms: BudgetTerms
    steps: dict[str, StepAccess]
    one_off_accesses: dict[str, Accesses]
    planned: Accesses
    group: str | None
    groups: Mapping[str, SpentBudget]
    _n_records: int | None
    _run: RunProgress

    def spent(self) -> float:
        """Epsilon of everything claimed on this budget, at its delta; it holds for any rule of stopping."""
        return self._spent_by()[0]

    def _spent_by(self) -> tuple[float, str]:
        if self.groups:
            return max(budget._spent_by() for budget in self.groups.values())
        return self.terms.spent(self._claimed())

    def _claimed(self) -> Claimed:
        return self.ledger.claimed(self.id)

    def remaining(self) -> float:
        """Epsilon not yet claimed. (Costs do not add up linearly; the error of a refused claim states what it pays for.)"""
        if self.groups:
            return min(budget.remaining() for budget in self.groups.values())
        if self.epsilon == math.inf:
            return math.inf
        claimed = self._claimed()
        spent = self.spent() if claimed.is_whole else self.terms.adaptive.reading(claimed.cost)
        return max(0.0, self.epsilon - spent)

    def _bound(self) -> Cost | None:
        """Bound on all that this budget ever pays for: its plan, or else the whole adaptive composition."""
        if self.epsilon == math.inf:
            return None
        claimed = self._claimed()
        if claimed.plan is not None:
            return Cost.of(claimed.plan.accesses)
        free = claimed.cost.free
        return claimed.cost if free else Cost.of([(self.terms.adaptive.whole(), 1)])

    def report(self) -> PrivacyReport:
        """Privacy statement of everything claimed so far; print it, or show it in a notebook."""
        self._check_undivided()
        claimed = self._claimed()
        steps = self.steps.values()
        spent, proved_by = self._spent_by()
        secret = all(step.secret for step in steps)
        substitution = self.adjacency is Adjacency.SUBSTITUTE
        records: set[int | None] = {step.n_records for step in steps} or {self._n_records}
        return PrivacyReport(
            **strength(self._bound(), secret),
            epsilon_budget=self.epsilon,
            epsilon=spent,
            delta=self.delta,
            adjacency=self.adjacency.value,
            accountant=self.accountant,
            proved_by=proved_by,
            chains=0 if self.planned else self.chains,
            n_records=records.pop() if substitution and len(records) == 1 else None,
            secret_randomness=secret,
            ledger=None if self.ledger.temporary else Path(self.ledger.path).name,
            steps=tuple(StepReport.of(step, claimed.claims) for step in steps),
            one_off_accesses=one_off(self.one_off_accesses, self.planned),
            draws=self._run.draws_of_chains(),
            assumptions=assumptions(substitution, chains=not self.planned, group=self.group),
            public=tuple(dict.fromkeys(text for step in steps for text in step.declared)),
            account_epsilon=self._account_epsilon(),
            budgets_without_ledger=budgets_without_file(),
            claimed=written(claimed.cost.counts.items()),
            order=self.terms.adaptive.order,
            at_once=claimed.is_whole,
            group=self.group,
        )

    def _account_epsilon(self) -> float | None:
        """Epsilon that holds for all budgets on the ledger, if there are several."""
        if self.ledger.n_budgets < 2:
            return None
        account = self.ledger.account
        return account.epsilon if account.is_gaussian else self.ledger.spent()

    def __repr__(self) -> str:
        """Terms of the budget, and what is spent and left."""
        return one_line(self, **dict(self._spent_and_left()))

    def _table(self) -> Table:
        """Terms, what is spent and left, and who claims."""
        rows = [
            ("guarantee", f"({self.epsilon:g}, {self.delta:g})-differential privacy, {self.adjacency.value}"),
            *self._spent_and_left(),
            ("chains", f"{self.chains}"),
            ("accountant", self.accountant),
            ("ledger", "temporary" if self.ledger.temporary else Path(self.ledger.path).name),
            *(("group", label) for label in [*self.groups, self.group] if label is not None),
            *((label, "; ".join(listed(accesses))) for label, accesses in self.one_off_accesses.items()),
            *((label, "; ".join(listed(step.mechanisms))) for label, step in self.steps.items()),
        ]  # fmt: skip
        return Table("Privacy budget", rows[:MOST_ROWS])

    def _spent_and_left(self) -> list[tuple[str, str]]:
        try:
            return [("spent", f"{self.spent():.4g}"), ("left", f"{self.remaining():.4g}")]
        except LedgerError:
            return [("spent", "unknown, as the ledger cannot be read")]

    def _check_undivided(self) -> None:
        if self.groups:
            raise ValueError(
                f"This budget was divided by split_by() among {len(self.groups)} groups of records ({', '.join(self.groups)}): use the budget of "
                "a group, for its records only."
            )
