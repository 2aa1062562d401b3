"""The budget of a run: its allocation to steps and chains, the callback of ``pm.sample``, the report."""

from __future__ import annotations

import math
import os
import uuid

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from pymc_dp.arguments import as_float, as_integer
from pymc_dp.errors import PrivacyBudgetExhausted, PrivacyLeak
from pymc_dp.ledger_file import id_of_group
from pymc_dp.privacy.accounting.composition import Cost, accountant_of, check_epsilon_delta
from pymc_dp.privacy.budget.allocation import Allocation, StepAccess, allocate, check_proved
from pymc_dp.privacy.budget.claims import BudgetTerms
from pymc_dp.privacy.budget.guarantee_warnings import warn_of_delta, warn_of_epsilon
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.privacy.budget.spent import SpentBudget
from pymc_dp.privacy.budget.stopping import RunProgress, check_own
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Adjacency


def _is_same(one: object, other: object) -> bool:
    """Whether two containers of data are one, or arrays have memory in common; values are never compared."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        with suppress(np.exceptions.TooHardError):
            return np.shares_memory(one, other, max_work=10**5)  # type: ignore[arg-type]
    return one is other


class PrivacyBudget(SpentBudget):
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
        try:
            self.chains = as_integer("chains", chains, 1)
        except TypeError as error:
            raise ValueError(str(error)) from None
        self.adjacency = Adjacency(adjacency)
        self.accountant = accountant
        self.ledger = Ledger.for_budget(
            ledger, self.epsilon, self.delta, self.adjacency.value, accountant
        )
        #: The adaptive composition, and the accountant of a run that is claimed at once.
        self.terms = BudgetTerms.of_budget(self.epsilon, self.delta, accountant)
        self.id = uuid.uuid4().hex
        self.steps: dict[str, StepAccess] = {}
        #: Accesses that belong to no chain, by label.
        self.one_off_accesses: dict[str, Accesses] = {}
        #: All accesses of the budget, if they were planned with the first of them; no chain may run then.
        self.planned: Accesses = ()
        #: Number of privacy units, if a claim that belongs to no chain has told it.
        self._n_records: int | None = None
        self._allocations: dict[str, Allocation] | None = None
        #: Label of the group of records that this budget is for, and budgets of the groups it was divided among.
        self.group: str | None = None
        self.groups: dict[str, PrivacyBudget] = {}
        #: Arrays and tables that the groups of one division have used, in this process.
        self._used: list[tuple[Any, str]] = []
        self._warned_of_delta = False
        warn_of_epsilon(self.epsilon)
        self._callback_noted = False
        self._run = RunProgress(self.chains)

    # ------------------------------------------------------------------ planning

    def register(self, access: StepAccess, containers: Iterable[Any] = ()) -> None:
        """Add a step, and the private arrays or tables that it will access; called by the step when it is built.

        As long as nothing was claimed, a new step on a variable replaces an older one, and a step of another
        model replaces all (as when a notebook cell is run again).
        """
        check_proved(self.adjacency, self.delta, access.label, (*access.starting, *access.at(1)))
        self._check_no_chain("its steps cannot be changed")
        self._note(containers, access.n_records)
        kept = {
            label: other
            for label, other in self.steps.items()
            if other.model == access.model and not set(other.variables) & set(access.variables)
        }
        kept[access.label] = access
        self.steps, self._allocations = kept, None

    def spend(
        self, label: str, accesses: Accesses, containers: Iterable[Any] = (), n_records: int | None = None,
        *, plan: Accesses | None = None,
    ) -> None:  # fmt: skip
        """Claim accesses that belong to no chain, before any chain runs: chains share the remaining budget.

        If all accesses of the budget are known, give them as `plan` with the first claim. They are then claimed
        together and compose by the best accountant, whether all of them are made or not. Later claims are parts
        of the plan, and no chain can run.

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
            All that is ever claimed on this budget, these accesses included; the same in later claims, or
            left out there.

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
        check_proved(self.adjacency, self.delta, label, everything)
        self._check_no_chain("the rest of it is allocated")
        fixed = self.planned if self.one_off_accesses else plan
        if Cost.of(plan).counts != Cost.of(fixed).counts:
            raise PrivacyBudgetExhausted(
                "A plan is fixed by the first claim of a budget, and cannot be given or changed later. Make a new PrivacyBudget; to keep one "
                "account for the data set, give both the same ledger file. Nothing was accessed."
            )
        self._note(containers, n_records)
        self._n_records = n_records if n_records is not None else self._n_records
        self._claim(label, accesses, limit=1, plan=plan or None, at_once=bool(plan))
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
        if n_records is not None and self.adjacency is Adjacency.SUBSTITUTE:
            if not self._warned_of_delta:
                self._warned_of_delta = warn_of_delta(self.delta, n_records)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_used": []}  # data do not go along with a budget

    def split_by(self, groups: Iterable[str]) -> dict[str, PrivacyBudget]:
        """Divide the records into disjoint groups, each with a budget of the whole epsilon and delta.

        A record is in one group only, so releases about other groups do not affect its privacy (parallel
        composition): the groups share one claim on the account. It holds for claims in any order, that depend on
        releases about any group: accesses to other groups do not depend on this record.

        Parameters
        ----------
        groups : iterable of str
            Public labels of the groups. Which group a record is in must depend on this record only. Under
            ``"substitute"`` it must also be public, as a record that moved would change two groups.

        Returns
        -------
        dict of str to PrivacyBudget
            By label: use each with the records of its group only. The divided budget can pay for nothing else.

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
        if self.group is not None or self.steps or self.ledger.claims(self.id):
            raise ValueError("This budget is in use already (it has steps or claims, or is that of a group): divide a new PrivacyBudget.")  # fmt: skip
        for label in labels:
            budget = PrivacyBudget(
                self.epsilon, self.delta, chains=self.chains, adjacency=self.adjacency,
                accountant=self.accountant, ledger=self.ledger,
            )  # fmt: skip
            budget.id, budget.group = id_of_group(self.id, label), label
            budget._used = self._used
            self.groups[label] = budget
        return dict(self.groups)

    def _check_no_chain(self, consequence: str) -> None:
        self._check_undivided()
        if any(claim.step not in self.one_off_accesses for claim in self.ledger.claims(self.id)):
            raise PrivacyBudgetExhausted(
                f"Chains have already run on this budget, so {consequence}. Make a new PrivacyBudget; to keep one account for "
                "the data set, give both the same ledger file."
            )

    def _claim(
        self, label: str, what: Accesses, limit: int, draws: float | None = None, plan: Accesses | None = None,
        at_once: bool = False,
    ) -> None:  # fmt: skip
        self.ledger.claim(
            self.id, label, what, epsilon=self.epsilon, delta=self.delta, accountant=self.accountant,
            limit=limit, draws=draws, plan=plan, at_once=at_once,
        )  # fmt: skip

    def left(self, other_accesses: Accesses = ()) -> float:
        """Remaining limit of the adaptive composition, after accesses outside of chains and further ones; 0 if all are planned."""
        if self.planned:
            return 0.0
        return self.terms.adaptive.left(self.claimed_before(other_accesses))

    def claimed_before(self, other_accesses: Accesses = ()) -> Cost:
        """Cost of accesses outside of chains, and of further ones that are planned."""
        claimed = [access for accesses in self.one_off_accesses.values() for access in accesses]
        return Cost.of([*claimed, *other_accesses])

    def _whole_run(self) -> Accesses | None:
        """Claims of all chains, if they are to be claimed at once; None for shares of a filter, which need not be."""
        allocations = self.plan().values()
        if self.one_off_accesses or any(allocation.share is not None for allocation in allocations):
            return None
        return tuple(
            (m, k * self.chains) for allocation in allocations for m, k in allocation.claim
        )

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
            self._allocations = allocate(
                self.steps,
                epsilon=self.epsilon,
                delta=self.delta,
                chains=self.chains,
                accountant=self.accountant,
                other_accesses=self.claimed_before().counts.items(),
            )
        return self._allocations

    def expected_draws(self) -> float:
        """Draws of each chain: exact if all draws cost the same, expected if the cost depends on the proposals."""
        return min(allocation.expected for allocation in self.plan().values())

    # ------------------------------------------------------------------ spending

    def check_covered(self) -> None:
        """Raise unless every variable of the model has a step on this budget."""
        for access in self.steps.values():
            covered = {v for step in self.steps.values() for v in step.variables}
            missing = [v for v in access.all_variables if v not in covered]
            if missing:
                raise PrivacyLeak(
                    f"No private step updates {', '.join(missing)}: PyMC would give such variables NUTS on the raw likelihood. Let the "
                    "step take all variables (leave out vars=), or build further steps for them with the same budget."
                )

    def check_number_of_chains(self, label: str, n_chains: int) -> None:
        """Refuse a run of too many chains before it begins; called by the step when PyMC passes it the number.

        An early check, before any chain has begun; the ledger enforces the limit in any case.
        """
        self.check_covered()
        self._run.begin(n_chains)
        before = sum(claim.step == label for claim in self.ledger.claims(self.id))
        if before + n_chains > self.chains:
            remaining = self.chains - before
            raise PrivacyBudgetExhausted(
                f"This run has {n_chains} chain(s), but the budget of {label} is shared over "
                f"chains={self.chains}, of which {before} have run. Spent: epsilon = "
                f"{self.spent():.4g} of {self.epsilon:g}. Largest feasible: {remaining} chain(s) of about "
                f"{self.expected_draws() if remaining else 0:g} draws. A finished or interrupted chain is "
                "not refunded; make a budget for as many chains as you want before the first runs."
            )
        by = f"{n_chains} chain(s) of {' and '.join(self.steps)}"
        self.ledger.check(self.id, by, self.epsilon, self.delta)

    def claim(self, label: str, token: int = 0) -> Allocation:
        """Claim the allocation of one chain of a step, on disk, before it accesses the data; called by the step.

        If all draws cost the same and nothing was claimed before, all chains compose by the accountant. If that
        allows more than the adaptive composition, the first chain claims the whole run at once, and the others
        take their parts of it.
        """
        if label not in self.steps or self.steps[label].token != token:
            raise PrivacyBudgetExhausted(
                f"{label} was replaced by a newer step on the same variables; sample with that one."
            )
        self.check_covered()
        allocation = self.plan()[label]
        draws = None if math.isinf(allocation.iterations) else allocation.iterations
        self._claim(label, allocation.claim, self.chains, draws, self._whole_run())
        return allocation.fresh()

    def remember_stats(self, stats: dict[str, Any]) -> None:
        """Remember the latest statistics of a step in this process; called by the step."""
        self._run.latest = stats

    def has_callback(self) -> bool:
        """Whether this budget is the callback of the run; called by a step whose allocation is used up."""
        return self._callback_noted or self.ledger.has_callback(self.id)

    def __call__(self, trace: Any, draw: Any) -> None:
        """Callback of ``pm.sample`` after each draw: stop chains whose allocation is used up, abort runs that are not private.

        Raises
        ------
        KeyboardInterrupt
            PyMC's way to end a chain (sequential sampling) or the run (parallel) and keep the
            draws.
        PrivacyLeak
            If a step of the run is not private: no draw is returned.
        """
        check_own(draw.stats, {access.token for access in self.steps.values()})
        if not self._callback_noted:
            self.ledger.note_callback(self.id)
            self._callback_noted = True
        self._run.after_draw(trace, draw)
