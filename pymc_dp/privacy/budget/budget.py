"""The budget of a run: its allocation to steps and chains, what it has spent, the callback of ``pm.sample``, the report."""

from __future__ import annotations

import math
import os
import uuid
import warnings

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from pymc_dp.arguments import as_float, as_integer, check_epsilon_delta
from pymc_dp.display import MOST_ROWS, Shown, Table, one_line
from pymc_dp.errors import LedgerError, PrivacyBudgetExhausted, PrivacyLeak, WeakGuaranteeWarning
from pymc_dp.privacy.accounting.composition import Cost, accountant_of
from pymc_dp.privacy.budget.allocation import Allocation, allocate
from pymc_dp.privacy.budget.claims import BudgetTerms, StepAccess, listed
from pymc_dp.privacy.budget.draws import RunProgress, check_own
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.privacy.budget.report import PrivacyReport, report_of, weak_delta, weak_epsilon
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Adjacency


def check_is_budget(budget: object) -> None:
    """Raise TypeError unless this is a budget."""
    if not isinstance(budget, PrivacyBudget):
        raise TypeError(
            f"budget must be a PrivacyBudget, such as PrivacyBudget(epsilon=1.0, delta=1e-6, chains=1), got a {type(budget).__name__}."
        )


def _is_same(one: object, other: object) -> bool:
    """Whether two containers of data are one, or arrays have memory in common; values are never compared."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        with suppress(np.exceptions.TooHardError):
            return np.shares_memory(one, other, max_work=10**5)  # type: ignore[arg-type]
    return one is other


class PrivacyBudget(Shown):
    r"""Privacy budget of one posterior: pass it to every step and, as ``callback``, to ``pm.sample``.

    Pass ``tune=0``, too: private steps do not adapt, since tuning on private data is charged for like any other
    draws, or would reveal the data through the settings.

    Parameters
    ----------
    epsilon : float
        Total over all chains, > 0. ``math.inf`` runs the same code without protection, for tests and public
        data; the report states it.
    delta : float
        In [0, 1); usual: well below 1 / (number of records). With 0 (pure DP) only l2 noise can be used.
    chains : int
        Number of chains that share the budget; one chain more is refused. No default, as PyMC's depends on the
        number of cores.
    adjacency : {"substitute", "add_remove"}
        Which data sets count as neighbours.
    accountant : {"best", "rdp", "gaussian", "pld", "pure"}
        Composition of a run that is claimed at once, see :mod:`pymc_dp.privacy.accounting.composition`.
        Successive claims, and decisions of varying cost, compose in pure DP if delta is 0, in Gaussian DP if
        this is ``"gaussian"``, else at one Rényi order, a function of epsilon and delta
        (:mod:`pymc_dp.privacy.accounting.adaptive`).
    ledger : path-like or Ledger, optional
        File that keeps the account of the data set across programs. The budget claims all of its epsilon and delta
        there at its first access; to make it costs nothing. If the file does not exist, it is opened with
        this budget's epsilon and delta. To divide an account among several analyses, open it first with
        ``Ledger(path, epsilon=..., delta=...)``. Default: a temporary file for this program.

    Examples
    --------
    >>> budget = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=4)
    >>> budget.spent()
    0.0
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        chains: int,
        adjacency: str | Adjacency = Adjacency.SUBSTITUTE,
        accountant: str = "best",
        ledger: str | os.PathLike | Ledger | None = None,
    ):
        self.epsilon, self.delta = check_epsilon_delta(epsilon, delta)
        accountant_of(accountant, self.delta)  # refuses what has no bound
        self.chains = as_integer("chains", chains, 1)
        self.adjacency, self.accountant = Adjacency(adjacency), accountant
        #: What it claims of the account, and how its own claims compose.
        self.terms = BudgetTerms(
            uuid.uuid4().hex, self.epsilon, self.delta, accountant, self.adjacency
        )
        #: Everything that the budget pays for carries it.
        self.id = self.terms.id
        self.ledger = Ledger.for_budget(ledger, self.terms)
        self.steps: dict[str, StepAccess] = {}
        #: Accesses that belong to no chain, by label.
        self.one_off_accesses: dict[str, Accesses] = {}
        #: All accesses of the budget, if they were planned with the first of them; no chain may run then.
        self.planned: Accesses = ()
        #: Label of the group of records that this budget is for, and budgets of the groups it was divided among.
        self.group: str | None = None
        self.groups: dict[str, PrivacyBudget] = {}
        #: Arrays and tables that the groups of one division have used, in this process.
        self._used: list[tuple[Any, str]] = []
        #: Number of privacy units, if a claim that belongs to no chain has told it.
        self.n_records: int | None = None
        self._allocations: dict[str, Allocation] | None = None
        self._warned_of_delta = self._callback_noted = False
        #: Of the run whose callback it is; a step in this process puts its latest statistics there.
        self.run = RunProgress(self.chains)
        if weak := weak_epsilon(self.epsilon):
            text = f"{weak}. Usual values are 0.1 to 10."
            warnings.warn(text, WeakGuaranteeWarning, stacklevel=2)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_used": []}  # data do not go along with a budget

    # ------------------------------------------------------------------ what it pays for

    def register(self, access: StepAccess, containers: Iterable[Any] = ()) -> None:
        """Add a step, with the data that it will access; it replaces older ones on its variables, and all of another model."""
        self.terms.check_proved(access.label, (*access.starting, *access.at(1)))
        self._check_no_chain("its steps cannot be changed")
        self._note(containers, access.n_records)
        kept = {
            label: other
            for label, other in self.steps.items()
            if other.model == access.model and not set(other.variables) & set(access.variables)
        }
        self.steps, self._allocations = kept | {access.label: access}, None

    def spend(
        self, label: str, accesses: Accesses, containers: Iterable[Any] = (), n_records: int | None = None,
        *, plan: Accesses | None = None,
    ) -> None:  # fmt: skip
        """Claim accesses that belong to no chain, before any chain runs: chains share the remaining budget.

        Parameters
        ----------
        label : str
            Their purpose, for the report; a different one for each claim.
        accesses : iterable of (Mechanism, int)
            Claimed on disk when this returns, and not refunded.
        containers : iterable of object
            Private arrays or tables that are accessed, so that two groups of :meth:`split_by` do not use the same.
        n_records : int, optional
            Number of privacy units, to warn of a large delta.
        plan : iterable of (Mechanism, int), optional
            With the first claim: all that is ever claimed on this budget. It is claimed as a whole, and composes by the
            best accountant; later claims are parts of it, and no chain can run.

        Raises
        ------
        PrivacyBudgetExhausted
            If the budget does not pay for them (or for the plan), they are not part of the plan, or chains have
            run: nothing is claimed.
        """
        accesses = tuple(accesses)
        plan = tuple(plan or self.planned)
        everything = (*accesses, *plan)
        if not accesses or any(as_float(count) != int(count) for _, count in everything):
            raise ValueError(f"{label} must access something, a whole number of times.")
        if label in self.steps:
            raise ValueError(f"{label!r} is a step of this budget: label the claim differently.")
        self.terms.check_proved(label, everything)
        self._check_no_chain("the rest of it is allocated")
        fixed = self.planned if self.one_off_accesses else plan
        if Cost.of(plan).counts != Cost.of(fixed).counts:
            raise PrivacyBudgetExhausted(
                "A plan is fixed by the first claim of a budget, and cannot be given or changed later. Make a new PrivacyBudget; to keep one "
                "account for the data set, give both the same ledger file. Nothing was accessed."
            )
        self._note(containers, n_records)
        self.n_records = n_records if n_records is not None else self.n_records
        self.ledger.claim(self.terms, label, accesses, limit=1, plan=plan or None)
        self.one_off_accesses[label], self.planned = accesses, plan
        self._allocations = None

    def _note(self, containers: Iterable[Any], n_records: int | None = None) -> None:
        """Check that the data are those of this group, by what holds them and never by values; warn if delta is too large for them."""
        if self.group is not None:
            found = list(containers)
            if any(g != self.group and _is_same(x, y) for x in found for y, g in self._used):
                raise PrivacyLeak(
                    f"An array or table of the group {self.group!r} was already used for another group: the groups of split_by() must be disjoint, as "
                    "each has the whole budget. Build each group's model on arrays of its records only. Nothing was accessed."
                )
            self._used += [(x, self.group) for x in found]
        if self.adjacency is Adjacency.SUBSTITUTE and not self._warned_of_delta:
            if weak := weak_delta(self.delta, n_records):
                text = f"{weak}. Choose delta well below it, such as {0.01 / (n_records or 1):.1g}."
                warnings.warn(text, WeakGuaranteeWarning, stacklevel=5)
                self._warned_of_delta = True

    def split_by(self, groups: Iterable[str]) -> dict[str, PrivacyBudget]:
        """Divide the records into disjoint groups, each with a budget of the whole epsilon and delta.

        A record is in one group only, so releases about other groups do not affect its privacy (parallel
        composition), in whatever order the groups claim: they share one claim on the account.

        Parameters
        ----------
        groups : iterable of str
            Public labels of the groups. Which group a record is in must depend on this record only. Under
            ``"substitute"`` it must also be public, as a record that moved would change two groups.

        Returns
        -------
        dict of str to PrivacyBudget
            By label, each for the records of its group only. The divided budget can pay for nothing else.

        Raises
        ------
        ValueError
            If the labels are not distinct, or if this budget is in use, or divided, already.

        References
        ----------
        McSherry (2009), Privacy integrated queries, Theorem 4, https://doi.org/10.1145/1559845.1559850; Feldman,
        Zrnic (2021), https://arxiv.org/abs/2008.11193.

        Examples
        --------
        >>> wards = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=4).split_by(
        ...     ["north", "south"]
        ... )
        >>> wards["south"].epsilon
        1.0
        """
        labels: list[Any] = [] if isinstance(groups, str) else list(groups)
        valid = all(isinstance(label, str) and label for label in labels)
        if not labels or not valid or len(set(labels)) < len(labels):
            raise ValueError(f"groups must be distinct labels, each a text, got {groups!r}: such as split_by(['north', 'south']).")  # fmt: skip
        self._check_undivided()
        if self.group or self.steps or self.ledger.claims(self.id):
            raise ValueError("This budget is in use already (it has steps or claims, or is that of a group): divide a new PrivacyBudget.")  # fmt: skip
        division = blake2b(repr(sorted(labels)).encode(), digest_size=8).hexdigest()
        for label in labels:
            budget = self.groups[label] = PrivacyBudget(
                self.epsilon, self.delta, chains=self.chains, adjacency=self.adjacency,
                accountant=self.accountant, ledger=self.ledger,
            )  # fmt: skip
            budget.terms = replace(self.terms, id=f"{self.id}/{division}:{label}")
            budget.id, budget.group, budget._used = budget.terms.id, label, self._used
        return dict(self.groups)

    def _check_undivided(self) -> None:
        if self.groups:
            raise ValueError(
                f"This budget was divided by split_by() among {len(self.groups)} groups of records ({', '.join(self.groups)}): use the budget of "
                "a group, for its records only."
            )

    def _check_no_chain(self, consequence: str) -> None:
        self._check_undivided()
        if any(claim.step not in self.one_off_accesses for claim in self.ledger.claims(self.id)):
            raise PrivacyBudgetExhausted(
                f"Chains have already run on this budget, so {consequence}. Make a new PrivacyBudget; to keep one account for "
                "the data set, give both the same ledger file."
            )

    def _one_off(self, further: Accesses = ()) -> Cost:
        """Cost of accesses outside of chains, and of further ones that are planned."""
        return Cost.of([*(a for each in self.one_off_accesses.values() for a in each), *further])

    def left(self, other_accesses: Accesses = ()) -> float:
        """Remaining limit of the adaptive composition, after accesses outside of chains and further ones; 0 if all are planned."""
        return 0.0 if self.planned else self.terms.adaptive.left(self._one_off(other_accesses))

    def plan(self) -> dict[str, Allocation]:
        """Return the allocation of one chain of each step, by label; chains get equal parts of the budget."""
        if self.planned:
            raise PrivacyBudgetExhausted(
                f"All accesses of this budget were planned with the first of them ({', '.join(self.one_off_accesses)}), so no chain can run on "
                "it. Make a new PrivacyBudget; to keep one account for the data set, give both the same ledger file. Nothing was accessed."
            )
        if self._allocations is None:
            if not self.steps:
                raise ValueError("No step uses this budget yet: build one with budget=... first.")
            self._allocations = allocate(self.steps, self.terms, self.chains, self._one_off())
        return self._allocations

    def expected_draws(self) -> float:
        """Draws of each chain: exact if all draws cost the same, expected if the cost depends on the proposals."""
        return min(allocation.expected for allocation in self.plan().values())

    # ------------------------------------------------------------------ chains

    def check_covered(self) -> None:
        """Raise unless every variable of the model has a step on this budget."""
        steps = self.steps.values()
        covered = {v for step in steps for v in step.variables}
        missing = dict.fromkeys(v for s in steps for v in s.all_variables if v not in covered)
        if missing:
            raise PrivacyLeak(
                f"No private step updates {', '.join(missing)}: PyMC would give such variables NUTS on the raw likelihood. Let the "
                "step take all variables (leave out vars=), or build further steps for them with the same budget."
            )

    def check_number_of_chains(self, label: str, n_chains: int) -> None:
        """Refuse a run of too many chains before it begins, when PyMC tells the step the number; the ledger enforces it in any case."""
        self.check_covered()
        self.run.begin(n_chains)
        claims, draws = self.ledger.claimed(self.terms), self.expected_draws()
        claims.check_chains(label, n_chains, self.chains, draws)
        self.ledger.check(self.terms, f"{n_chains} chain(s) of {' and '.join(self.steps)}")

    def claim(self, label: str, token: int = 0) -> Allocation:
        """Claim the allocation of one chain of a step, on disk, before it accesses the data; called by the step."""
        if label not in self.steps or self.steps[label].token != token:
            raise PrivacyBudgetExhausted(
                f"{label} was replaced by a newer step on the same variables; sample with that one."
            )
        self.check_covered()
        own, run = self.plan()[label], None
        if not self.one_off_accesses and own.share is None:
            run = [(m, k * self.chains) for each in self.plan().values() for m, k in each.claim]
        draws = None if math.isinf(own.iterations) else own.iterations
        self.ledger.claim(self.terms, label, own.claim, limit=self.chains, plan=run, draws=draws)
        return own.fresh()

    def __call__(self, trace: Any, draw: Any) -> None:
        """Callback of ``pm.sample`` after each draw: KeyboardInterrupt ends chains whose allocation is used up, PrivacyLeak runs that are not private."""
        check_own(draw.stats, {access.token for access in self.steps.values()})
        if not self._callback_noted:
            self.ledger.note_callback(self.id)
            self._callback_noted = True
        self.run.after_draw(trace, draw)

    # ------------------------------------------------------------------ what was spent

    def spent(self) -> float:
        """Epsilon of everything claimed on this budget, at its delta; it holds for any rule of stopping."""
        own = self.ledger.claimed(self.terms).spent()[0]  # nothing if the budget is divided
        return max([own, *(budget.spent() for budget in self.groups.values())])

    def remaining(self) -> float:
        """Epsilon not yet claimed. (Costs do not add up linearly; the error of a refused claim states what it pays for.)"""
        own = self.ledger.claimed(self.terms).remaining()
        return min([own, *(budget.remaining() for budget in self.groups.values())])

    def report(self) -> PrivacyReport:
        """Privacy statement of everything claimed so far; print it, or show it in a notebook."""
        self._check_undivided()
        return report_of(self)

    def _spent_and_left(self) -> dict[str, str]:
        try:
            return {"spent": f"{self.spent():.4g}", "left": f"{self.remaining():.4g}"}
        except LedgerError:
            return {"spent": "unknown, as the ledger cannot be read"}

    def __repr__(self) -> str:
        """Terms of the budget, and what is spent and left."""
        return one_line(self, **self._spent_and_left())

    def _table(self) -> Table:
        """Terms, what is spent and left, and who claims."""
        ledger = "temporary" if self.ledger.temporary else Path(self.ledger.path).name
        used = self.one_off_accesses | {x: step.mechanisms for x, step in self.steps.items()}
        rows = [
            ("guarantee", f"({self.epsilon:g}, {self.delta:g})-differential privacy, {self.adjacency.value}"),
            *self._spent_and_left().items(),
            ("chains", f"{self.chains}"),
            ("accountant", self.accountant),
            ("ledger", ledger),
            *(("group", label) for label in [*self.groups, self.group] if label is not None),
            *((label, "; ".join(listed(accesses))) for label, accesses in used.items()),
        ]  # fmt: skip
        return Table("Privacy budget", rows[:MOST_ROWS])
