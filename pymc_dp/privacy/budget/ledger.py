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
from pathlib import Path
from typing import Any

from pymc_dp.errors import LedgerError, PrivacyBudgetExhausted
from pymc_dp.ledger_file import (
    TEMPORARY,
    Account,
    BudgetClaim,
    LedgerFile,
    in_words,
    now,
    remove,
    whole_of,
)
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import Cost, accountant_of, check_epsilon_delta
from pymc_dp.privacy.budget.claims import Asked, BudgetTerms, Claim, Claimed, Plan, read, written
from pymc_dp.privacy.budget.report_parts import listed
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Adjacency, Gaussian
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
            raise TypeError(f"path must be that of a file, got a {type(path).__name__}.")
        asked = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency, "composition": composition}  # fmt: skip
        self.temporary = path is None
        if path is None:
            path = Path(tempfile.mkdtemp(prefix="pymc_dp_")) / "temporary.ledger"
            self._finalizer = weakref.finalize(self, remove, str(path), os.getpid())
        self.path = str(Path(path).absolute())
        if not Path(self.path).exists():
            self._create(_opened(self.path, epsilon, delta, adjacency, composition))
        super().__init__(self.path)
        for name, value in asked.items():
            if value is not None and value != (found := getattr(self.account, name)):
                raise LedgerError(
                    f"The account in {self.path} was opened with {name} = {found}, not {value}. "
                    "The terms of an account cannot be changed; data that are spent stay spent."
                )

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_finalizer"}

    @classmethod
    def for_budget(
        cls,
        ledger: str | os.PathLike | Ledger | None,
        epsilon: float,
        delta: float,
        adjacency: str,
        accountant: str,
    ) -> Ledger:
        """Return the ledger of a budget: a ledger, or one opened from a path; LedgerError if the budget exceeds its account."""
        if not isinstance(ledger, str | os.PathLike | Ledger | None):
            raise TypeError(
                f"ledger must be the path of a file, or a Ledger, got a {type(ledger).__name__}."
            )
        if not isinstance(ledger, Ledger):
            exists = ledger is not None and Path(ledger).exists()
            terms = (None, None) if exists else (epsilon, delta)
            ledger = cls(ledger, epsilon=terms[0], delta=terms[1], adjacency=adjacency)
        if ledger.temporary and ledger not in TEMPORARY:
            TEMPORARY.append(ledger)
        account = ledger.account
        if account.adjacency != adjacency:
            raise LedgerError(
                f"The account in {ledger.path} is for adjacency {account.adjacency!r}, not {adjacency!r}."
            )
        if account.is_gaussian and delta > 0 and accountant != "gaussian":
            raise LedgerError(
                f"The account in {ledger.path} adds up squares of mu, so everything in its budgets must compose in Gaussian DP: make the budget "
                f"with accountant='gaussian', not {accountant!r}. For an account that adds up epsilons, open one with composition='basic'."
            )
        for name, value, total in (
            ("epsilon", epsilon, account.epsilon),
            ("delta", delta, account.delta),
        ):
            if value > total:
                raise LedgerError(
                    f"A budget of {name} = {value:g} exceeds the account in {ledger.path}, opened with {name} = {total:g}. "
                    "The terms of an account cannot be raised."
                )
        return ledger

    def claimed(self, budget: str) -> Claimed:
        """Claims of a budget so far, and its plan."""
        with self._reading() as db:
            return self._claimed(db, budget)

    def claims(self, budget: str | None = None) -> list[Claim]:
        """All claims so far, or those of one budget."""
        with self._reading() as db:
            return self._claims(db, budget)

    def _claims(self, db: sqlite3.Connection, budget: str | None) -> list[Claim]:
        query = "SELECT budget, step, accesses, created, process FROM claims WHERE budget = ? OR ? IS NULL ORDER BY id"
        rows = db.execute(query, (budget, budget))
        with self._usable(Exception):  # invalid contents
            claims = [Claim(b, s, read(a), c, p) for b, s, a, c, p in rows]
            for claim in claims:
                Cost.of(claim.accesses)  # refuses invalid mechanisms and counts
        return claims

    def _claimed(self, db: sqlite3.Connection, budget: str) -> Claimed:
        claims = self._claims(db, budget)
        query = "SELECT accesses, whole FROM plans WHERE budget = ?"
        row = db.execute(query, (budget,)).fetchone()
        with self._usable(Exception):  # invalid contents
            return Claimed(claims, None if row is None else Plan(read(row[0]), bool(row[1])))

    def _open(self, db: sqlite3.Connection, new: BudgetClaim) -> bool:
        """Whether a budget is yet to claim its epsilon and delta; an error if the account does not pay for them."""
        account, claims = self._account(db), self._budgets(db)
        for claim in claims:
            if claim.id == new.id:
                if (claim.epsilon, claim.delta) != (new.epsilon, new.delta):
                    raise PrivacyBudgetExhausted("This budget has claimed another epsilon or delta.")  # fmt: skip
                return False
        if account.admits(claims, new):
            return True
        asked = account.spent([new])
        raise PrivacyBudgetExhausted(
            f"The account in {self.path} allows epsilon = {account.epsilon:g} at delta = {account.delta:g}. Spent by {len(claims)} budget(s): "
            f"{in_words(account.spent(claims))}; left: {in_words(account.left(claims))}. Asked for by {new.what}: {in_words(asked)}, as a budget "
            "claims all of itself at its first access. Make a PrivacyBudget of at most what is left. Nothing was accessed."
        )

    def check(self, budget: str, what: str, epsilon: float, delta: float) -> None:
        """Raise unless the account pays for a budget, or has paid for it; nothing is claimed."""
        with self._reading() as db:
            self._open(db, _new(budget, what, epsilon, delta, self.account))

    def claim(
        self,
        budget: str,
        step: str,
        accesses: Accesses,
        *,
        epsilon: float,
        delta: float,
        accountant: str,
        limit: int,
        draws: float | None = None,
        plan: Accesses | None = None,
        at_once: bool = False,
    ) -> int:
        """Claim accesses of a step, and with the first of them the whole budget, or raise without claiming anything.

        `limit` is the largest number of claims of this step, `draws` the number of iterations, for the message if they do not
        fit. If all claims of a `plan` may be claimed together, the first claims all of them, if they fit only so or `at_once`.
        Returns the number of earlier claims of this step.
        """
        accesses, plan = tuple(accesses), None if plan is None else tuple(plan)
        new = _new(budget, step, epsilon, delta, self.account)
        with self._transaction("IMMEDIATE") as db:
            if self._open(db, new):
                _insert(db, "budgets", new.id, epsilon, delta, new.mu, new.created, new.process, step)  # fmt: skip
            claimed = self._claimed(db, budget)
            before = sum(c.step == step for c in claimed.claims)
            if before >= limit:
                raise PrivacyBudgetExhausted(
                    f"{before} chain(s) of {step} have already run, as many as its budget is shared over (chains={limit}). Make the "
                    "budget for more chains before the first one runs. A finished or interrupted chain is not refunded."
                )
            by = f"one chain of {step}{'' if draws is None else f' ({draws:g} draws)'}"
            terms = BudgetTerms.of_budget(epsilon, delta, accountant)
            run = None if plan is None else Cost.of(plan)
            is_whole = claimed.grant(terms, Asked(Cost.of(accesses), by, draws, run, at_once))
            if is_whole is not None:
                _insert(db, "plans", budget, written(plan or accesses), is_whole, new.created)
            words = "; ".join(listed(accesses))
            _insert(db, "claims", None, budget, step, written(accesses), words, new.created, new.process)  # fmt: skip
            return before

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

        It is a claim like that of a budget: added to the claims so far, never returned, and refused if the account
        does not pay for it. Give exactly one of `epsilon`, `rho` and `mu`, as proved for the account's adjacency.

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
        what = f"the release {note!r}"
        new = _new(f"recorded {uuid.uuid4().hex[:16]}", what, *terms[:2], self.account, terms[2])
        with self._transaction("IMMEDIATE") as db:
            self._open(db, new)
            _insert(db, "budgets", new.id, new.epsilon, new.delta, new.mu, new.created, new.process, note)  # fmt: skip

    def _terms_of(self, mechanism: Any, delta: float) -> tuple[float, float, float | None]:
        """Epsilon, delta and ``mu`` that a release of another tool claims."""
        is_pure = isinstance(mechanism, PureDP)
        if not self.account.is_gaussian:
            if is_pure:
                return *check_epsilon_delta(mechanism.epsilon, delta), None
            if not 0 < delta < 1:
                raise ValueError(f"{mechanism.name} has no finite epsilon at delta = {delta:g}: give the delta that it is to be claimed at.")  # fmt: skip
            return Cost.of([(mechanism, 1)]).epsilon(delta), delta, None
        if delta:
            raise ValueError(
                f"The account in {self.path} adds up squares of mu, and none follows from delta = {delta!r}: give the mu of the release (of "
                "Gaussian noise: sensitivity / standard deviation), or its pure epsilon, without delta."
            )
        if is_pure:
            return mechanism.epsilon, 0.0, mechanism.gaussian_mu
        if mechanism.gaussian_mu is None:
            raise ValueError(
                f"The account in {self.path} adds up squares of mu, and {mechanism.name} has no mu. Give the mu of the release (of Gaussian "
                "noise: sensitivity / standard deviation), or its pure epsilon."
            )
        at = self.account.delta
        return Cost.of([(mechanism, 1)]).epsilon(at, "gaussian"), at, mechanism.gaussian_mu

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

        With basic composition it is the sum of their epsilons, whatever decides about the next one. With Gaussian composition it
        is that of the sum of the squares so far, for a number of budgets that was fixed before; if releases decide
        when to stop, the account's epsilon holds, and no smaller one (:mod:`pymc_dp.privacy.accounting.adaptive`).
        """
        claims, account = self.budget_claims(), self.account
        found = account.spent(claims)
        if not account.is_gaussian or not claims:
            return found.get("epsilon", 0.0)
        if found["mu"] == math.inf:
            return math.inf
        share = Gaussian(1 / found["mu"])
        return min(account.epsilon, Cost.of([(share, 1)]).epsilon(account.delta, "gaussian"))


def _opened(
    path: str,
    epsilon: float | None,
    delta: float | None,
    adjacency: str | None,
    composition: str | None,
) -> Account:
    """Terms of a new account."""
    if epsilon is None or delta is None:
        raise LedgerError(
            f"There is no file {path}, so it holds no account yet: give epsilon and delta to open one."
        )
    epsilon, delta = check_epsilon_delta(epsilon, delta)
    adjacency, composition = adjacency or "substitute", composition or "basic"
    if adjacency not in list(Adjacency):
        raise ValueError(f"adjacency must be 'substitute' or 'add_remove', got {adjacency!r}.")
    if composition not in ("basic", "gaussian"):
        raise ValueError(f"composition must be 'basic' or 'gaussian', got {composition!r}.")
    mu = None
    if composition == "gaussian":
        accountant_of("gaussian", delta)  # refuses delta = 0
        mu = _gaussian_mu(epsilon, delta)
    return Account(epsilon, delta, str(Adjacency(adjacency).value), composition, mu)


def _gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest ``mu`` that a budget allows, if all in it composes in Gaussian DP, or by pure epsilons where delta is 0."""
    if epsilon == math.inf:
        return math.inf
    if delta == 0:
        return PureDP(epsilon).gaussian_mu
    return math.sqrt(AdaptiveComposition.opened(epsilon, delta, "gaussian").limit)


def _new(
    budget: str, what: str, epsilon: float, delta: float, account: Account, mu: float | None = None
) -> BudgetClaim:
    """The claim of a budget as it is made now, by this process."""
    if account.is_gaussian and mu is None:
        mu = _gaussian_mu(epsilon, delta)
    user = ""
    with suppress(OSError, KeyError, ImportError):  # a container may have users without a name
        user = f"{getpass.getuser()}@"
    who = f"{user}{socket.gethostname()}:{os.getpid()}"
    return BudgetClaim(whole_of(budget), epsilon, delta, mu, now(), who, what)


def _insert(db: sqlite3.Connection, table: str, *values: Any) -> None:
    db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
