"""The budget of a run: shares itself out over steps and chains, answers ``pm.sample``'s callback, reports."""

from __future__ import annotations

import math
import operator
import os
import uuid

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pymc_dp.errors import LedgerError, PrivacyBudgetExhausted, PrivacyLeak
from pymc_dp.privacy.accounts import Terms
from pymc_dp.privacy.allowance import Allowance, StepAccess, check_adjacency, share_out
from pymc_dp.privacy.composition import Accountant, Cost, check_accountant, check_terms
from pymc_dp.privacy.ledger import Accesses, Ledger
from pymc_dp.privacy.mechanisms import Adjacency, real
from pymc_dp.privacy.memory import remember, together, warn_of_others
from pymc_dp.privacy.report import PrivacyReport, StepReport, listed
from pymc_dp.privacy.stopping import check_own, make_rectangle, shorten
from pymc_dp.privacy.weakness import warn_of_delta, warn_of_epsilon

__all__ = ["PrivacyBudget"]


class PrivacyBudget:
    r"""Privacy budget of one posterior: pass it to every step and, as ``callback``, to ``pm.sample``.

    Parameters
    ----------
    epsilon : float
        Total over all chains, > 0. ``math.inf`` runs the same code without any protection, for
        tests and public data; the report says so.
    delta : float
        In (0, 1); usual: well below 1 / (number of records).
    chains : int
        Number of chains the budget is shared over. PyMC's own default depends on the number of
        cores, so it must be said here; one chain more is refused.
    adjacency : {"substitute", "add_remove"}
        Which data sets count as neighbours.
    accountant : {"best", "rdp", "gaussian", "pld", "zcdp", "moments"}
        How the cost of what is claimed at once is composed, see :mod:`pymc_dp.privacy.composition`. What is
        claimed one after the other, and decisions of varying cost, compose Gaussian DP if this is
        ``"gaussian"``, else one Rényi order, which epsilon and delta decide
        (:mod:`pymc_dp.privacy.adaptive`).
    ledger : path-like or Ledger, optional
        File that keeps the data set's account over programs. If it does not exist it is opened with
        this budget's epsilon and delta; to divide an account between several analyses, open it
        first with ``Ledger(path, epsilon=..., delta=...)``. Default: a temporary file for this
        program.

    Examples
    --------
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6, chains=4)
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
        check_terms(epsilon, delta)
        try:
            chains = operator.index(chains)
        except TypeError:
            raise ValueError(f"chains must be a whole number, got {chains!r}.") from None
        if chains < 1:
            raise ValueError(f"chains must be at least 1, got {chains}.")
        check_accountant(accountant)
        try:
            self.adjacency = Adjacency(adjacency)
        except ValueError:
            raise ValueError(
                f"Unknown adjacency {adjacency!r}; choose 'substitute' or 'add_remove'."
            ) from None
        self.epsilon, self.delta = float(epsilon), float(delta)
        self.chains, self.accountant = chains, accountant
        if not isinstance(ledger, Ledger):
            exists = ledger is not None and Path(ledger).exists()
            terms = (None, None) if exists else (self.epsilon, self.delta)
            ledger = Ledger(
                ledger, epsilon=terms[0], delta=terms[1], adjacency=self.adjacency.value, accountant=accountant
            )  # fmt: skip
        account = ledger.account
        if account.adjacency != self.adjacency.value:
            raise LedgerError(
                f"The account in {ledger.path} is for adjacency {account.adjacency!r}, not {self.adjacency.value!r}."
            )
        for name in ("epsilon", "delta"):
            if getattr(self, name) > getattr(account, name):
                raise LedgerError(
                    f"A budget of {name} = {getattr(self, name):g} exceeds the account in {ledger.path}, opened with "
                    f"{name} = {getattr(account, name):g}. An account's terms cannot be raised."
                )
        #: What composes adaptively, and the accountant for what is claimed at once.
        self.terms = Terms.of_budget(self.epsilon, self.delta, accountant)
        self.ledger = ledger
        self.id = uuid.uuid4().hex
        self.steps: dict[str, StepAccess] = {}
        self.outside: dict[str, Accesses] = {}
        self._plans: dict[str, Allowance] | None = None
        self._latest: Any = None
        #: Which data the steps and claims are on, in this program.
        self.data_keys: set[bytes] = set()
        self._warned = {"others": False, "delta": False}
        warn_of_epsilon(self.epsilon)
        self._exhausted: set[int] = set()
        self._callback_noted = False
        self._draws: Counter[int] = Counter()
        self._run_chains = self.chains
        self._traces: dict[int, Any] = {}

    # ------------------------------------------------------------------ planning

    def register(self, access: StepAccess) -> None:
        """Take a step in; called by the step when it is built.

        A new step on a variable replaces an older one, and a step of another model all (as in a
        notebook cell run again), as long as nothing was claimed.
        """
        check_adjacency(self.adjacency, access.label, access.mechanisms)
        self._check_no_chain("its steps are settled")
        self._note(access.data_keys, access.n_records)
        kept = {
            label: other
            for label, other in self.steps.items()
            if other.model == access.model and not set(other.variables) & set(access.variables)
        }
        kept[access.label] = access
        self.steps, self._plans = kept, None

    def spend(
        self, label: str, accesses: Accesses, data_keys: Iterable[bytes] = (), n_records: int | None = None
    ) -> None:  # fmt: skip
        """Claim accesses that belong to no chain, before any chain runs: chains share what is left.

        Parameters
        ----------
        label : str
            What they are for, as the report says it: another one for each claim.
        accesses : sequence of (Mechanism, int)
            Claimed on disk when this returns, and not refunded. If the budget does not pay for
            them, that raises PrivacyBudgetExhausted, and nothing is claimed.
        data_keys : iterable of bytes
            Which data these are, see :mod:`pymc_dp.privacy.memory`.
        n_records : int, optional
            Number of privacy units, of which a warning for a large delta knows.
        """
        accesses = tuple(accesses)
        if not accesses or any(real(count) != int(count) for _, count in accesses):
            raise ValueError(f"{label} must access something, a whole number of times.")
        if label in self.steps:
            raise ValueError(f"{label!r} is a step of this budget: label the claim differently.")
        check_adjacency(self.adjacency, label, accesses)
        self._check_no_chain("what is left is shared out already")
        self._note(data_keys, n_records)
        self._claim(label, accesses, limit=1)
        self.outside[label] = accesses
        self._plans = None

    def _note(self, data_keys: Iterable[bytes], n_records: int | None = None) -> None:
        """Remember which data are going to be accessed; warn of what was spent on them, and of a delta that is too large for them."""
        self.data_keys.update(data_keys)
        remember(self.data_keys, self.ledger)
        if not self._warned["others"]:
            self._warned["others"] = warn_of_others(self.data_keys, self.ledger)
        if n_records is not None and self.adjacency is Adjacency.SUBSTITUTE:
            if not self._warned["delta"]:
                self._warned["delta"] = warn_of_delta(self.delta, n_records)

    def _check_no_chain(self, so: str) -> None:
        if any(claim.step not in self.outside for claim in self.ledger.claims(self.id)):
            raise PrivacyBudgetExhausted(
                f"Chains have already run on this budget, so {so}. Make a new PrivacyBudget; to keep one account for "
                "the data set, give both the same ledger file."
            )

    def _claim(
        self, label: str, what: Accesses, limit: int, draws: float | None = None, plan: Accesses | None = None
    ) -> None:  # fmt: skip
        self.ledger.claim(
            self.id, label, what,
            epsilon=self.epsilon, delta=self.delta, accountant=self.accountant, limit=limit, draws=draws, plan=plan,
        )  # fmt: skip

    def left(self, besides: Accesses = ()) -> float:
        """What composes adaptively may still add up to, after what was spent outside of chains and what will be besides."""
        return self.terms.adaptive.left(self.claimed_before(besides))

    def accountant_after(self, besides: Accesses = ()) -> Accountant:
        """How a run of draws of known cost is composed: by the accountant, if nothing is claimed before."""
        return self.accountant if self.claimed_before(besides).free else self.terms.adaptive.reading

    def claimed_before(self, besides: Accesses = ()) -> Cost:
        """What was spent outside of chains, and what will be besides."""
        claimed = [access for accesses in self.outside.values() for access in accesses]
        return Cost.of([*claimed, *besides])

    def _whole_run(self) -> Accesses | None:
        """All that chains claim, if it is to be claimed at once: what chains share in a filter need not be."""
        allowances = self.plan().values()
        if self.outside or any(allowance.share is not None for allowance in allowances):
            return None
        return tuple((m, k * self.chains) for allowance in allowances for m, k in allowance.claim)

    def plan(self) -> dict[str, Allowance]:
        """Return the allowance of one chain of each step, by label: an equal part of the budget for each chain."""
        if self._plans is None:
            if not self.steps:
                raise ValueError("No step uses this budget yet: build one with budget=... first.")
            self._plans = share_out(
                self.steps,
                epsilon=self.epsilon,
                delta=self.delta,
                chains=self.chains,
                accountant=self.accountant,
                besides=self.claimed_before().counts.items(),
                account=self.ledger.account.adaptive,
            )
        return self._plans

    def expected_draws(self) -> float:
        """Draws each chain can make: exact if every draw costs the same, expected if the proposals decide."""
        return min(allowance.expected for allowance in self.plan().values())

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

    def expect_chains(self, label: str, n_chains: int) -> None:
        """Refuse a run of too many chains before it begins; called by the step as soon as the host tells it the number.

        A courtesy that saves the first chains' draws: what holds in any case is that the ledger
        refuses a claim too many. PyMC has forked its workers by then, but no chain has begun.
        """
        self.check_covered()
        self._note(())  # other budgets may have been spent since the steps were built
        share = [access for allowance in self.plan().values() for access in allowance.claim]
        # A new run: what an interrupted one left behind must not end this one early.
        self._run_chains, self._traces, self._exhausted = n_chains, {}, set()
        before = sum(claim.step == label for claim in self.ledger.claims(self.id))
        if before + n_chains > self.chains:
            left = self.chains - before
            raise PrivacyBudgetExhausted(
                f"This run has {n_chains} chain(s), but the budget of {label} is shared over "
                f"chains={self.chains}, of which {before} have run. Spent: epsilon = "
                f"{self.spent():.4g} of {self.epsilon:g}. Largest feasible: {left} chain(s) of about "
                f"{self.expected_draws() if left else 0:g} draws. A finished or interrupted chain is "
                "not refunded; make a budget for as many chains as you want before the first runs."
            )
        if n_chains * len(self.steps) > 1:  # a single claim loses nothing if it is refused
            by = f"{n_chains} chain(s) of {' and '.join(self.steps)}"
            self.ledger.check(share, by, n_chains, budget=self.id, plan=self._whole_run())

    def claim(self, label: str, token: int = 0) -> Allowance:
        """Claim the share of one chain of a step, on disk, before it touches the data; called by the step.

        Where every draw costs the same, and nothing was claimed before, all chains compose by the
        accountant. If that allows for more than what composes adaptively, the first chain claims the whole
        run at once, and the others only take their part.
        """
        if label not in self.steps or self.steps[label].token != token:
            raise PrivacyBudgetExhausted(
                f"{label} was replaced by a newer step on the same variables; sample with that one."
            )
        self.check_covered()
        plan = self.plan()[label]
        draws = None if math.isinf(plan.iterations) else plan.iterations
        self._claim(label, plan.claim, self.chains, draws, self._whole_run())
        return plan.fresh()

    def watch(self, stats: dict[str, Any]) -> None:
        """Remember the statistics a step in this process has just returned; called by the step."""
        self._latest = stats

    def has_callback(self) -> bool:
        """Whether this budget is the run's callback, asked by a step whose allowance is used up."""
        return self._callback_noted or self.ledger.has_callback(self.id)

    def __call__(self, trace: Any, draw: Any) -> None:
        """Answer ``pm.sample`` after each draw: stop what is used up, abort what is not private.

        Raises
        ------
        KeyboardInterrupt
            PyMC's way to end a chain (sequential sampling) or the run (parallel) and keep the
            draws.
        PrivacyLeak
            If a step that is not private took part: no draw is returned.
        """
        check_own(draw.stats, {access.token for access in self.steps.values()})
        if not self._callback_noted:
            self.ledger.note_callback(self.id)
            self._callback_noted = True
        if not any(s["exhausted"] for s in draw.stats):
            self._draws[draw.chain] += 1
            self._exhausted.discard(draw.chain)
            return
        # The step returned its point unchanged, without looking at the data: that is no draw.
        self._traces[draw.chain] = trace
        shorten(trace, by=1)
        self._exhausted.add(draw.chain)
        in_this_process = any(s is self._latest for s in draw.stats)
        if in_this_process or len(self._exhausted) >= self._run_chains:
            make_rectangle(self._traces.values())
            self._exhausted.clear()
            raise KeyboardInterrupt

    def __getstate__(self) -> dict[str, Any]:
        # Traces stay in the process that records them.
        return self.__dict__ | {"_traces": {}, "_latest": None}

    # ------------------------------------------------------------------ reporting

    def spent(self) -> float:
        """Epsilon of everything claimed on this budget, at its delta: it holds whatever it was that decided to stop here."""
        return self._spent_by()[0]

    def _spent_by(self) -> tuple[float, str]:
        claimed = self.ledger.claimed()
        if self.epsilon == math.inf:
            return math.inf if self.ledger.claims(self.id) else 0.0, self.accountant
        return self.terms.spent(claimed.of(self.id), claimed.is_whole(self.id))

    def remaining(self) -> float:
        """Epsilon not yet claimed. (Costs do not add up linearly: what it buys is said by the error of a refused claim.)"""
        if self.epsilon == math.inf:
            return math.inf
        claimed = self.ledger.claimed()
        if claimed.is_whole(self.id):
            return max(0.0, self.epsilon - self.spent())
        return max(0.0, self.epsilon - self.terms.adaptive.reading(claimed.of(self.id)))

    def _bound(self) -> Cost | None:
        """What bounds all that this budget ever pays for: its plan, or else all that composes adaptively."""
        claimed = self.ledger.claimed()
        if self.epsilon == math.inf:
            return None
        if self.id in claimed.plans:
            return Cost.of(claimed.plans[self.id].accesses)
        cost = claimed.of(self.id)
        return cost if cost.free else Cost.of([(self.terms.adaptive.whole(), 1)])

    def report(self) -> PrivacyReport:
        """Privacy statement of everything claimed so far; print it, or show it in a notebook."""
        claims = self.ledger.claims(self.id)
        steps = tuple(
            StepReport.of(access, [c for c in claims if c.step == label])
            for label, access in self.steps.items()
        )
        records = {s.n_records for s in self.steps.values()}
        declared = [text for access in self.steps.values() for text in access.declared]
        return PrivacyReport.build(
            epsilon=self.epsilon,
            delta=self.delta,
            spent=self.spent(),
            proved_by=self._spent_by()[1],
            cost=self._bound(),
            chains=self.chains,
            adjacency=self.adjacency.value,
            accountant=self.accountant,
            n_records=records.pop()
            if len(records) == 1 and self.adjacency is Adjacency.SUBSTITUTE
            else None,
            secret=all(s.secret for s in self.steps.values()),
            ledger=None if self.ledger.temporary else Path(self.ledger.path).name,
            steps=steps,
            once={label: listed(accesses) for label, accesses in self.outside.items()},
            draws=tuple(self._draws[chain] for chain in sorted(self._draws)),
            account_epsilon=self.ledger.spent() if self.ledger.n_budgets > 1 else None,
            together=together(self.data_keys, self.ledger),
            declared=tuple(dict.fromkeys(declared)),
        )

    def __repr__(self) -> str:
        """Terms of the budget."""
        return (
            f"PrivacyBudget(epsilon={self.epsilon:g}, delta={self.delta:g}, chains={self.chains}, "
            f"adjacency={self.adjacency.value!r}, accountant={self.accountant!r})"
        )
