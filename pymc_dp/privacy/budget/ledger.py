"""Claims on disk: one SQLite file per data set.

A budget claims itself, whole, in the transaction of its first access; each further access claims a part of the budget
in one transaction *before* the data are accessed. Claims are never refunded: those of a killed program stay
spent, and of two programs that race for the last part one is refused. :mod:`pymc_dp.ledger_file` adds up
what budgets claim of an account, :mod:`pymc_dp.privacy.budget.claims` what accesses claim of a budget.
"""

from __future__ import annotations

import getpass
import math
import os
import socket
import sqlite3
import tempfile
import uuid
import weakref

from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from pymc_dp.arguments import check_epsilon_delta
from pymc_dp.codec import dumps, loads
from pymc_dp.errors import LedgerError, PrivacyBudgetExhausted
from pymc_dp.ledger_file import (
    TEMPORARY,
    Account,
    BudgetClaim,
    LedgerFile,
    division_of,
    in_words,
    now,
    remove,
    whole_of,
)
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import Cost, accountant_of
from pymc_dp.privacy.budget.claims import BudgetTerms, Claim, Claims, listed
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Gaussian, Mechanism
from pymc_dp.privacy.mechanisms.stated import PureDP, stated


class Ledger(LedgerFile):
    """Account of a data set: what may be spent on it, and what was claimed.

    A :class:`~pymc_dp.PrivacyBudget` claims its epsilon and delta at its first access, whole; nothing goes back.

    Parameters
    ----------
    path : path-like, optional
        SQLite file; created if absent. Default: a temporary file, removed when the program ends.
    epsilon, delta : float, optional
        Total that may ever be spent; required to create the file. On an existing file they must agree with it.
    adjacency : str, optional
        Adjacency of all claims; ``"substitute"`` unless given when the file is created.
    composition : {"basic", "gaussian"}, optional
        When the file is created: ``"basic"`` (the default) adds up the epsilons and the deltas of budgets,
        ``"gaussian"`` the squares of their ``mu`` in Gaussian DP, for many small analyses; their budgets must then
        have ``accountant="gaussian"``.

    Raises
    ------
    LedgerError
        If the file cannot be used, or holds an account with other terms.

    References
    ----------
    Rogers, Roth, Ullman, Vadhan (2016), https://arxiv.org/abs/1605.08294; Vadhan, Zhang (2023),
    https://arxiv.org/abs/2207.08335; Smith, Thakurta (2022), https://arxiv.org/abs/2210.17520.

    Examples
    --------
    >>> account = dp.Ledger(epsilon=3.0, delta=1e-5)  # with a path it is kept
    >>> budget = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=4, ledger=account)
    >>> account.spent()
    0.0
    """

    def __init__(
        self,
        path: str | os.PathLike | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        adjacency: str | None = None,
        composition: str | None = None,
    ):
        if not isinstance(path, str | os.PathLike | None):
            raise TypeError(
                f"path must be that of a file, and ledger= the path of a file, or a Ledger, got a {type(path).__name__}."
            )
        self.temporary = path is None
        if path is None:
            path = Path(tempfile.mkdtemp(prefix="pymc_dp_")) / "temporary.ledger"
            self._finalizer = weakref.finalize(self, remove, str(path), os.getpid())
        self.path = str(Path(path).absolute())
        if not Path(self.path).exists():
            if epsilon is None or delta is None:
                raise LedgerError(
                    f"There is no file {self.path}, so it holds no account yet: give epsilon and delta to open one."
                )
            self._create(_opened(epsilon, delta, adjacency, composition))
        super().__init__(self.path)
        self._check_terms(
            epsilon=epsilon, delta=delta, adjacency=adjacency, composition=composition
        )

    def _check_terms(self, **asked: Any) -> None:
        """Raise if the account was opened with other terms than these, where they are not None."""
        for name, value in asked.items():
            if value not in (None, found := getattr(self.account, name)):
                raise LedgerError(
                    f"The account in {self.path} was opened with {name} = {found}, not {value}. "
                    "The terms of an account cannot be changed; data that are spent stay spent."
                )

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_finalizer"}

    @classmethod
    def for_budget(cls, ledger: str | os.PathLike | Ledger | None, terms: BudgetTerms) -> Ledger:
        """Return the ledger of a budget: a ledger, or one opened from a path; LedgerError if the budget exceeds its account."""
        if not isinstance(ledger, Ledger):
            exists = isinstance(ledger, str | os.PathLike) and Path(ledger).exists()
            total = (None, None) if exists else (terms.epsilon, terms.delta)
            adjacency = terms.adjacency.value
            ledger = cls(ledger, epsilon=total[0], delta=total[1], adjacency=adjacency)
        if ledger.temporary and ledger not in TEMPORARY:
            TEMPORARY.append(ledger)
        ledger._check_terms(adjacency=terms.adjacency.value)
        account = ledger.account
        if account.is_gaussian and terms.delta > 0 and terms.accountant != "gaussian":
            raise LedgerError(
                f"The account in {ledger.path} adds up squares of mu, so everything in its budgets must compose in Gaussian DP: make the budget "
                f"with accountant='gaussian', not {terms.accountant!r}. For an account that adds up epsilons, open one with composition='basic'."
            )
        if terms.epsilon > account.epsilon or terms.delta > account.delta:
            raise LedgerError(
                f"A budget of delta = {terms.delta:g}, epsilon = {terms.epsilon:g} exceeds the account in {ledger.path}, opened with delta = "
                f"{account.delta:g}, epsilon = {account.epsilon:g}. The terms of an account cannot be raised."
            )
        return ledger

    def claims(self, budget: str | None = None) -> list[Claim]:
        """All claims so far, or those of one budget."""
        with self._reading() as db:
            return self._claims(db, budget)

    def claimed(self, terms: BudgetTerms) -> Claims:
        """Claims of a budget so far, with its plan."""
        return Claims(terms, self.claims(terms.id))

    def _claims(self, db: sqlite3.Connection, budget: str | None) -> list[Claim]:
        names = "budget, step, accesses, created, process, plan, at_once"
        query = f"SELECT {names} FROM claims WHERE budget = ? OR ? IS NULL ORDER BY id"
        rows = db.execute(query, (budget, budget))
        with self._usable(Exception):  # invalid contents
            return [
                Claim(b, s, _read(a), c, p, None if plan is None else _read(plan), bool(at_once))
                for b, s, a, c, p, plan, at_once in rows
            ]

    def _is_new(self, db: sqlite3.Connection, new: BudgetClaim) -> bool:
        """Whether a budget is yet to claim its epsilon and delta; an error if the account does not pay for them."""
        account, claims = self._account(db), self._budgets(db)
        for claim in claims:
            if claim.id == new.id:
                if (claim.epsilon, claim.delta) != (new.epsilon, new.delta):
                    raise PrivacyBudgetExhausted("This budget has claimed another epsilon or delta.")  # fmt: skip
                return False
        if account.admits(claims, new):
            return True
        raise PrivacyBudgetExhausted(
            f"The account in {self.path} allows epsilon = {account.epsilon:g} at delta = {account.delta:g}. Spent by {len(claims)} budget(s): "
            f"{in_words(account.spent(claims))}; left: {in_words(account.left(claims))}. Asked for by {new.what}: {in_words(account.spent([new]))}, "
            "as a budget claims all of itself at its first access. Make a PrivacyBudget of at most what is left. Nothing was accessed."
        )

    def check(self, terms: BudgetTerms, what: str) -> None:
        """Raise unless the account pays for a budget, or has paid for it; nothing is claimed."""
        with self._reading() as db:
            self._is_new(db, self._new(terms.id, what, terms.epsilon, terms.delta))

    def claim(
        self,
        terms: BudgetTerms,
        step: str,
        accesses: Accesses,
        *,
        limit: float = math.inf,
        plan: Accesses | None = None,
        draws: float | None = None,
    ) -> None:
        """Claim accesses of a step, and with the first of them the whole budget, or raise without claiming anything.

        `limit` is the largest number of claims of this step. `plan` is all that the budget ever pays for: releases, or the
        chains of a run, each with a number of `draws`.
        """
        accesses, plan = tuple(accesses), None if plan is None else tuple(plan)
        new = self._new(terms.id, step, terms.epsilon, terms.delta)
        with self._transaction("IMMEDIATE") as db:
            if self._is_new(db, new):
                _insert(db, "budgets", *astuple(new))
            self._check_division(db, terms.id)
            claimed = Claims(terms, self._claims(db, terms.id))
            claimed.check_chains(step, 1, limit, draws)
            at_once = claimed.grant(step, accesses, plan, draws)
            fixed = None if at_once is None else dumps(plan or accesses)
            words = "; ".join(listed(accesses))
            _insert(
                db, "claims", None, terms.id, step, dumps(accesses), words, new.created, new.process, fixed, bool(at_once)
            )  # fmt: skip

    def _check_division(self, db: sqlite3.Connection, budget: str) -> None:
        """Raise if copies of a budget, in other processes, are divided otherwise: a record would be in groups of both."""
        used = (b for (b,) in db.execute("SELECT DISTINCT budget FROM claims"))
        if any(
            whole_of(b) == whole_of(budget) and division_of(b) != division_of(budget) for b in used
        ):
            raise PrivacyBudgetExhausted(
                "Another copy of this budget has been spent undivided, or was divided by split_by() among other groups: they share one claim "
                "on the account. Divide it once, before it is copied. Nothing was accessed."
            )

    def record(
        self,
        *,
        epsilon: float | None = None,
        delta: float = 0.0,
        rho: float | None = None,
        mu: float | None = None,
        note: str,
    ) -> None:
        """Claim a release of the same data that another tool makes; do so before it is made.

        It is a claim like that of a budget. Give exactly one of `epsilon`, `rho` and `mu`, as proved for the account's adjacency.

        Parameters
        ----------
        epsilon : float, optional
            Of (epsilon, delta)-DP. On a Gaussian account `delta` must be 0, as no ``mu`` follows from both.
        delta : float
            Of the release; with `rho` or `mu` on a basic account, the delta at which their epsilon is claimed.
        rho : float, optional
            Of zCDP (:class:`~pymc_dp.privacy.ZeroConcentratedDP`); not on a Gaussian account.
        mu : float, optional
            Of Gaussian DP; of Gaussian noise, sensitivity over standard deviation.
        note : str
            What is released and by which tool, for the listing. It must not depend on the data.

        Raises
        ------
        PrivacyBudgetExhausted
            If the account does not pay for the release: nothing is recorded, and it must not be made.
        ValueError
            If the guarantee is not exactly one of these, or has no price on this account.

        Examples
        --------
        >>> ledger = dp.Ledger(epsilon=2.0, delta=1e-6)
        >>> ledger.record(rho=0.02, delta=1e-7, note="age histogram, OpenDP")
        >>> round(ledger.spent(), 2)
        1.0
        """
        mechanism = stated(epsilon, rho, mu)
        note = " ".join(str(note or "").split())
        if not note:
            raise ValueError("note is empty: state what is released, and by which tool.")
        terms = self._terms_of(mechanism, float(delta))
        new = self._new(f"recorded {uuid.uuid4().hex[:16]}", f"the release {note!r}", *terms)
        with self._transaction("IMMEDIATE") as db:
            self._is_new(db, new)
            _insert(db, "budgets", *astuple(replace(new, what=note)))

    def _terms_of(self, mechanism: Mechanism, delta: float) -> tuple[float, float, float | None]:
        """Epsilon, delta and ``mu`` that a release of another tool claims."""
        is_gaussian, mu, cost = self.account.is_gaussian, mechanism.gaussian_mu, Cost.of([(mechanism, 1)])  # fmt: skip
        if is_gaussian and (delta or mu is None):
            lacks = (
                f"none follows from delta = {delta!r}" if delta else f"{mechanism.name} has no mu"
            )
            raise ValueError(
                f"The account in {self.path} adds up squares of mu, and {lacks}: give the mu of the release (of Gaussian noise: sensitivity / "
                "standard deviation), or its pure epsilon, without delta."
            )
        if isinstance(mechanism, PureDP):
            return *check_epsilon_delta(mechanism.epsilon, delta), mu
        if is_gaussian:
            return cost.epsilon(self.account.delta, "gaussian"), self.account.delta, mu
        if not 0 < delta < 1:
            raise ValueError(f"{mechanism.name} has no finite epsilon at delta = {delta:g}: give the delta that it is to be claimed at.")  # fmt: skip
        return cost.epsilon(delta), delta, None

    def note_callback(self, budget: str) -> None:
        """Record that the budget has been called as a callback, for chains in other processes."""
        with self._transaction("IMMEDIATE") as db:
            db.execute("INSERT OR IGNORE INTO callbacks VALUES (?)", (budget,))

    def has_callback(self, budget: str) -> bool:
        """Whether the budget has been called as a callback, in any process."""
        query = "SELECT 1 FROM callbacks WHERE budget = ?"
        with self._reading() as db:
            return db.execute(query, (budget,)).fetchone() is not None

    def spent(self) -> float:
        """Epsilon of all budgets together, at the account's delta.

        With Gaussian composition, for a number of budgets that was fixed before: if releases decide when to stop, the
        account's epsilon holds, and no smaller one (:mod:`pymc_dp.privacy.accounting.adaptive`).
        """
        spent, account = self.account.spent(self.budget_claims()), self.account
        if "mu" not in spent:
            return spent["epsilon"]
        if spent["mu"] in (0.0, math.inf):
            return spent["mu"]
        together = Cost.of([(Gaussian(1 / spent["mu"]), 1)])
        return min(account.epsilon, together.epsilon(account.delta, "gaussian"))

    def _new(
        self, budget: str, what: str, epsilon: float, delta: float, mu: float | None = None
    ) -> BudgetClaim:
        """The claim of a budget as it is made now, by this process."""
        user = ""
        with suppress(OSError, KeyError, ImportError):  # a container may have users without a name
            user = f"{getpass.getuser()}@"
        who = f"{user}{socket.gethostname()}:{os.getpid()}"
        if not self.account.is_gaussian:
            mu = None
        elif mu is None:
            mu = _gaussian_mu(epsilon, delta)
        return BudgetClaim(whole_of(budget), epsilon, delta, mu, now(), who, what)


def _opened(
    epsilon: float, delta: float, adjacency: str | None, composition: str | None
) -> Account:
    """Terms of a new account."""
    epsilon, delta = check_epsilon_delta(epsilon, delta)
    mu = None
    if composition == "gaussian":
        accountant_of("gaussian", delta)  # refuses delta = 0
        mu = _gaussian_mu(epsilon, delta)
    return Account(epsilon, delta, str(adjacency or "substitute"), composition or "basic", mu)


def _gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest ``mu`` that a budget allows, if all in it composes in Gaussian DP, or by pure epsilons where delta is 0."""
    if epsilon == math.inf:
        return math.inf
    if delta == 0:
        return PureDP(epsilon).gaussian_mu
    return math.sqrt(AdaptiveComposition.opened(epsilon, delta, "gaussian").limit)


def _read(text: str) -> Accesses:
    return tuple(Cost.of(loads(text)).counts.items())  # refuses invalid mechanisms and counts


def _insert(db: sqlite3.Connection, table: str, *values: Any) -> None:
    db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
