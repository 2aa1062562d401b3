"""The budget of a run: shares itself out over steps and chains, answers ``pm.sample``'s callback, reports."""

from __future__ import annotations

import math
import os
import uuid

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from pymc_dp.errors import LedgerError, PrivacyBudgetExhausted, PrivacyLeak, UnsupportedModel
from pymc_dp.privacy.accounting import (
    ACCOUNTANTS,
    Cost,
    _check_delta,
    _check_epsilon,
    max_iterations,
    renyi_budget,
    renyi_to_epsilon,
)
from pymc_dp.privacy.ledger import Ledger
from pymc_dp.privacy.mechanisms import ORDERS, DecisionFamily, Mechanism, RenyiShare
from pymc_dp.privacy.report import PrivacyReport, StepReport

__all__ = ["Adjacency", "Allowance", "PrivacyBudget", "StepAccess"]

#: Name of the statistic by which the budget knows draws of a private step.
SIGNATURE = "epsilon_spent"


class Adjacency(str, Enum):
    """Which data sets count as neighbours."""

    SUBSTITUTE = "substitute"  #: one record replaced by any other; the number of records is public
    ADD_REMOVE = "add_remove"  #: one record added or removed


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
        Mechanism and count per iteration.
    model : int
        Identity of the model, to tell models apart.
    all_variables : tuple of str
        All value variables of the model: every one must be covered by a private step.
    n_records : int
        Number of privacy units.
    secret : bool
        Whether the randomness of the step is secret.
    """

    label: str
    variables: tuple[str, ...]
    mechanisms: tuple[tuple[Mechanism, int], ...]
    model: int
    all_variables: tuple[str, ...]
    n_records: int
    secret: bool


@dataclass
class Allowance:
    """What one chain of one step may do: a number of iterations, or a share of a Rényi filter.

    Parameters
    ----------
    iterations : float
        Number of iterations (infinite under a filter or without protection).
    share : RenyiShare or None
        Share of the filter, if the cost varies from iteration to iteration.
    run : ndarray
        Rényi divergence at :data:`ORDERS` of the whole run (all steps and chains), or of one iteration of it if
        ``iterations`` is infinite: for showing what has been spent.
    epsilon, delta : float
        Terms of the budget.
    """

    iterations: float
    share: RenyiShare | None
    run: np.ndarray
    epsilon: float
    delta: float
    used: int = 0
    spent: float = 0.0
    closed: bool = False

    def charge(self, accesses: Sequence[tuple[Mechanism, int]]) -> bool:
        """Pay for one iteration; False, now and ever after, if the allowance does not cover it."""
        cost = 0.0
        if self.share is not None:
            order = np.array([self.share.order])
            cost = sum(count * float(mechanism.renyi(order)[0]) for mechanism, count in accesses)
            self.closed = self.closed or self.spent + cost > self.share.rho
        self.closed = self.closed or self.used >= self.iterations
        if self.closed:
            return False
        self.used += 1
        self.spent += cost
        return True

    def epsilon_spent(self) -> float:
        """Epsilon of the whole run if every chain and step has come as far as this one."""
        if self.epsilon == math.inf:
            return math.inf
        fraction = self.spent / self.share.rho if self.share is not None else self.used / self.iterations
        if fraction == 0:
            return 0.0
        return min(self.epsilon, max(0.0, float(np.min(renyi_to_epsilon(ORDERS, self.run * fraction, self.delta)))))


class PrivacyBudget:
    r"""Privacy budget of one posterior: pass it to every step and, as ``callback``, to ``pm.sample``.

    Parameters
    ----------
    epsilon : float
        Total over all chains, > 0. ``math.inf`` runs the same code without any protection, for tests and public
        data; the report says so.
    delta : float
        In (0, 1); usual: well below 1 / (number of records).
    chains : int
        Number of chains the budget is shared over. PyMC's own default depends on the number of cores, so it must be said
        here; one chain more is refused.
    adjacency : {"substitute", "add_remove"}
        Which data sets count as neighbours.
    accountant : {"best", "rdp", "gaussian", "zcdp"}
        How costs are composed, see :mod:`pymc_dp.privacy.accounting`.
    ledger : path-like or Ledger, optional
        File that keeps the data set's account over programs. If it does not exist it is opened with this budget's
        epsilon and delta; to divide an account between several analyses, open it first with
        ``Ledger(path, epsilon=..., delta=...)``. Default: a temporary file for this program.

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
        _check_epsilon(epsilon)
        _check_delta(delta)
        if not (isinstance(chains, int | np.integer) and chains >= 1):
            raise ValueError(f"chains must be a whole number of at least 1, got {chains!r}.")
        if accountant not in ACCOUNTANTS:
            raise ValueError(f"Unknown accountant {accountant!r}; choose one of {', '.join(ACCOUNTANTS)}.")
        try:
            self.adjacency = Adjacency(adjacency)
        except ValueError:
            raise ValueError(f"Unknown adjacency {adjacency!r}; choose 'substitute' or 'add_remove'.") from None
        self.epsilon, self.delta, self.chains, self.accountant = float(epsilon), float(delta), int(chains), accountant
        if not isinstance(ledger, Ledger):
            exists = ledger is not None and Path(ledger).exists() and Path(ledger).stat().st_size > 0
            terms = {} if exists else {"epsilon": self.epsilon, "delta": self.delta}
            ledger = Ledger(ledger, adjacency=self.adjacency.value, **terms)
        account = ledger.account
        if account.adjacency != self.adjacency.value:
            raise LedgerError(f"The account in {ledger.path} is for adjacency {account.adjacency!r}, not {self.adjacency.value!r}.")
        for name in ("epsilon", "delta"):
            if getattr(self, name) > getattr(account, name):
                raise LedgerError(
                    f"A budget of {name} = {getattr(self, name):g} exceeds the account in {ledger.path}, opened with "
                    f"{name} = {getattr(account, name):g}. An account's terms cannot be raised."
                )
        self.ledger = ledger
        self.id = uuid.uuid4().hex
        self._steps: dict[str, StepAccess] = {}
        self._plans: dict[str, Allowance] | None = None
        self._latest: Any = None
        self._exhausted: set[int] = set()
        self._callback_noted = False

    # ------------------------------------------------------------------ planning

    def register(self, access: StepAccess) -> None:
        """Take a step in; called by the step when it is built.

        A new step on a variable replaces an older one (as in a notebook cell run again), as long as nothing was claimed.
        """
        kept = {
            label: other
            for label, other in self._steps.items()
            if other.model == access.model and not set(other.variables) & set(access.variables)
        }
        if len(kept) < len(self._steps) and self.ledger.claims(self.id):
            raise PrivacyBudgetExhausted(
                "Chains have already run on this budget, so its steps cannot be exchanged. Make a new PrivacyBudget; to keep "
                "one account for the data set, give both the same ledger file."
            )
        kept[access.label] = access
        self._steps, self._plans = kept, None

    @property
    def accesses(self) -> tuple[tuple[Mechanism, int], ...]:
        """Mechanism and count per iteration of all registered steps together."""
        return tuple(a for step in self._steps.values() for a in step.mechanisms)

    def plan(self) -> dict[str, Allowance]:
        """Return the allowance of one chain of each step, by label: an equal part of the budget for each chain."""
        if self._plans is None:
            if not self._steps:
                raise ValueError("No step uses this budget yet: build one with budget=... first.")
            varying = any(isinstance(m, DecisionFamily) for m, _ in self.accesses)
            self._plans = self._plan_filter() if varying and self.epsilon < math.inf else self._plan_fixed()
        return self._plans

    def _plan_fixed(self) -> dict[str, Allowance]:
        total = max_iterations(self.accesses, self.epsilon, self.delta, self.accountant) if self.epsilon < math.inf else math.inf
        each = total // self.chains if total < math.inf else math.inf
        if each < 1:
            self._too_small(total)
        run = Cost.of(self.accesses).renyi * (self.chains * each) if each < math.inf else np.zeros(len(ORDERS))
        return {label: Allowance(each, None, run, self.epsilon, self.delta) for label in self._steps}

    def _plan_filter(self) -> dict[str, Allowance]:
        if self.accountant not in ("best", "rdp"):
            raise ValueError(
                f"The accountant {self.accountant!r} needs a sensitivity that is the same for every proposal; use 'best' or 'rdp', "
                "or a proposal of fixed length."
            )
        means = {
            label: sum(k * (m.mean_renyi(ORDERS) if isinstance(m, DecisionFamily) else m.renyi(ORDERS)) for m, k in step.mechanisms)
            for label, step in self._steps.items()
        }
        mean = sum(means.values())
        budget = renyi_budget(ORDERS, self.epsilon, self.delta)
        best = int(np.argmax(budget / mean))
        if budget[best] < self.chains * mean[best]:
            self._too_small(max(0.0, budget[best] / mean[best]))
        # The last digits belong to the conversion's safety margin, so that all shares together fit.
        rho = float(budget[best]) * (1 - 1e-6) / self.chains
        order = float(ORDERS[best])
        run = np.where(ORDERS <= order, rho * self.chains, np.inf)
        return {
            label: Allowance(math.inf, RenyiShare(order, rho * float(m[best] / mean[best])), run, self.epsilon, self.delta)
            for label, m in means.items()
        }

    def _too_small(self, total: float) -> None:
        names = "; ".join(f"{count} x {mechanism.name}" for mechanism, count in self.accesses)
        raise PrivacyBudgetExhausted(
            f"epsilon = {self.epsilon:g} at delta = {self.delta:g} allows {total:.3g} iteration(s) in all, fewer than one for each of "
            f"{self.chains} chains. One iteration accesses: {names}. Use a smaller clip bound or proposal, more noise, fewer chains, or a larger epsilon."
        )

    def expected_draws(self) -> float:
        """Draws each chain can make: exact for a fixed cost per draw, the expected number under a filter."""
        draws = []
        for label, allowance in self.plan().items():
            if allowance.share is None:
                draws.append(allowance.iterations)
            else:
                order = np.array([allowance.share.order])
                cost = sum(
                    k * float((m.mean_renyi(order) if isinstance(m, DecisionFamily) else m.renyi(order))[0])
                    for m, k in self._steps[label].mechanisms
                )
                draws.append(float(math.floor(allowance.share.rho / cost)))
        return min(draws)

    # ------------------------------------------------------------------ spending

    def check_covered(self) -> None:
        """Raise unless every variable of the model has a step on this budget."""
        for access in self._steps.values():
            covered = {v for step in self._steps.values() for v in step.variables}
            missing = [v for v in access.all_variables if v not in covered]
            if missing:
                raise PrivacyLeak(
                    f"No private step updates {', '.join(missing)}: PyMC would give such variables NUTS on the raw likelihood. Let the "
                    "step take all variables (leave out vars=), or build further steps for them with the same budget."
                )

    def claim(self, label: str) -> Allowance:
        """Claim the share of one chain of a step, on disk, before it touches the data; called by the step."""
        if label not in self._steps:
            raise PrivacyBudgetExhausted(f"{label} was replaced by a newer step on the same variables; sample with that one.")
        self.check_covered()
        plan = self.plan()[label]
        if plan.share is not None:
            accesses: tuple[tuple[Mechanism, float], ...] = ((plan.share, 1),)
            draws = None
        else:
            accesses = tuple((m, k * plan.iterations) for m, k in self._steps[label].mechanisms)
            draws = plan.iterations
        if self.epsilon == math.inf:
            accesses, draws = (), None
        self.ledger.claim(
            self.id, label, accesses,
            epsilon=self.epsilon, delta=self.delta, accountant=self.accountant, limit=self.chains, draws=draws,
        )  # fmt: skip
        return Allowance(plan.iterations, plan.share, plan.run, self.epsilon, self.delta)

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
            PyMC's way to end a chain (sequential sampling) or the run (parallel) and keep the draws.
        PrivacyLeak
            If a step that is not private took part: no draw is returned.
        """
        foreign = [s for s in draw.stats if SIGNATURE not in s]
        if foreign:
            raise PrivacyLeak(
                "A step that is not private took part in this run (statistics: "
                f"{', '.join(sorted(map(str, foreign[0]))) or 'none'}). PyMC gives variables without a step NUTS on the raw likelihood. "
                "The draws are discarded; let private steps cover all variables."
            )
        if not self._callback_noted:
            self.ledger.note_callback(self.id)
            self._callback_noted = True
        if not any(s["exhausted"] for s in draw.stats):
            self._exhausted.discard(draw.chain)
            return
        # The step returned its point unchanged, without looking at the data: that is no draw, take it back.
        if isinstance(getattr(trace, "draw_idx", None), int) and trace.draw_idx > 0:
            trace.draw_idx -= 1
        self._exhausted.add(draw.chain)
        in_this_process = any(s is self._latest for s in draw.stats)
        if in_this_process or len(self._exhausted) >= self.chains:
            self._exhausted.clear()
            raise KeyboardInterrupt

    # ------------------------------------------------------------------ reporting

    def _claimed(self) -> list[tuple[Mechanism, float]]:
        return [access for claim in self.ledger.claims(self.id) for access in claim.accesses]

    def spent(self) -> float:
        """Epsilon of everything claimed on this budget, at its delta."""
        if self.epsilon == math.inf:
            return math.inf if self.ledger.claims(self.id) else 0.0
        return Cost.of(self._claimed()).epsilon(self.delta, self.accountant)

    def remaining(self) -> float:
        """Epsilon not yet claimed. (Costs do not add up linearly: what it buys is said by the error of a refused claim.)"""
        return max(0.0, self.epsilon - self.spent()) if self.epsilon < math.inf else math.inf

    def report(self) -> PrivacyReport:
        """Privacy statement of everything claimed so far; print it, or show it in a notebook."""
        claims = self.ledger.claims(self.id)
        steps = []
        for label, access in self._steps.items():
            own = [a for c in claims if c.step == label for a in c.accesses]
            steps.append(
                StepReport(
                    label=label,
                    chains=sum(c.step == label for c in claims),
                    accesses=tuple(f"{k} x {m.name}" for m, k in access.mechanisms),
                    claimed=tuple(f"{k:g} x {m.name}" for m, k in own[: len(access.mechanisms)]),
                    draws_per_chain=self.plan()[label].iterations if self.plan()[label].share is None else None,
                )
            )
        records = {s.n_records for s in self._steps.values()}
        return PrivacyReport.build(
            epsilon=self.epsilon,
            delta=self.delta,
            spent=self.spent(),
            cost=None if self.epsilon == math.inf else Cost.of(self._claimed()),
            chains=self.chains,
            adjacency=self.adjacency.value,
            accountant=self.accountant,
            n_records=records.pop() if len(records) == 1 and self.adjacency is Adjacency.SUBSTITUTE else None,
            secret=all(s.secret for s in self._steps.values()),
            ledger=None if self.ledger.temporary else self.ledger.path,
            steps=tuple(steps),
        )

    def __repr__(self) -> str:
        """Terms of the budget."""
        return (
            f"PrivacyBudget(epsilon={self.epsilon:g}, delta={self.delta:g}, chains={self.chains}, "
            f"adjacency={self.adjacency.value!r}, accountant={self.accountant!r})"
        )
