"""Claims on disk: one SQLite file per data set.

A chain writes its whole claim in one transaction *before* it accesses the data. Claims are never refunded:
those of a killed program stay spent, and of two programs that race for the last share one is refused.
:mod:`pymc_dp.privacy.budget.accounts` decides which claims are admitted. ``pymc-dp-ledger FILE`` lists an account.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
import sys
import tempfile
import uuid
import weakref

from collections.abc import Sequence
from pathlib import Path

from pymc_dp.display import MOST_ROWS, Table, one_line
from pymc_dp.errors import LedgerError, PrivacyBudgetExhausted
from pymc_dp.privacy.accounting.composition import Cost, check_accountant, check_pure
from pymc_dp.privacy.budget.accounts import (
    Account,
    Asked,
    BudgetTerms,
    Claim,
    Claimed,
    label_of,
    written,
)
from pymc_dp.privacy.budget.ledger_file import LedgerFile, now, remove
from pymc_dp.privacy.budget.report_parts import listed
from pymc_dp.privacy.mechanisms.mechanism import Accesses
from pymc_dp.privacy.mechanisms.stated import stated

__all__ = ["Accesses", "Account", "Claim", "Ledger"]


class Ledger(LedgerFile):
    """Account of a data set: what may be spent on it, and what was claimed.

    Parameters
    ----------
    path : path-like, optional
        SQLite file; created if absent. Default: a temporary file, removed when the program ends.
    epsilon, delta : float, optional
        Total that may ever be spent; required to create the file. On an existing file they must agree with it.
    adjacency : str, optional
        Adjacency of all claims; ``"substitute"`` unless given when the file is created.
    accountant : str
        When the file is created: ``"gaussian"`` for adaptive composition in Gaussian DP, any other for one
        Rényi order (:mod:`pymc_dp.privacy.accounting.adaptive`).

    Raises
    ------
    LedgerError
        If the file cannot be used, or holds an account with other terms.

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
        accountant: str = "best",
    ):
        check_accountant(accountant)
        if not isinstance(path, str | os.PathLike | None):
            raise TypeError(f"path must be that of a file, got a {type(path).__name__}.")
        self.temporary = path is None
        if path is None:
            folder = tempfile.mkdtemp(prefix="pymc_dp_")
            self._finalizer = weakref.finalize(self, remove, folder, os.getpid())
            path = Path(folder) / "temporary.ledger"
        self.path = str(Path(path).absolute())
        if not Path(self.path).exists():
            self._create(epsilon, delta, adjacency, accountant)
        with self._reading() as db:
            self.account = self._account(db)
        asked = (epsilon, delta, adjacency)
        for name, value in zip(("epsilon", "delta", "adjacency"), asked, strict=True):
            if value is not None and value != (found := getattr(self.account, name)):
                raise LedgerError(
                    f"The account in {self.path} was opened with {name} = {found}, not {value}. "
                    "The terms of an account cannot be changed; data that are spent stay spent."
                )

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
            ledger = cls(
                ledger, epsilon=terms[0], delta=terms[1], adjacency=adjacency, accountant=accountant
            )
        account = ledger.account
        if account.adjacency != adjacency:
            raise LedgerError(
                f"The account in {ledger.path} is for adjacency {account.adjacency!r}, not {adjacency!r}."
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

    def claimed(self) -> Claimed:
        """All claims so far, and the plans they belong to."""
        with self._reading() as db:
            return self._claimed(db)

    def claims(self, budget: str | None = None) -> list[Claim]:
        """All claims so far, or those of one budget."""
        return [claim for claim in self.claimed().claims if budget in (None, claim.budget)]

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
        by: str | None = None,
    ) -> int:
        """Claim accesses, or raise without claiming anything.

        Parameters
        ----------
        budget, step : str
            The budget and the step that claim.
        accesses : iterable of (Mechanism, float)
            The claim.
        epsilon, delta, accountant
            Terms of the budget. (They limit its own claims; the account limits all claims.)
        limit : int
            Largest number of claims of this step on this budget.
        draws : float, optional
            Number of iterations claimed, for the message if they do not fit.
        plan : iterable of (Mechanism, float), optional
            All claims of the run, if they may be claimed at once: the first claim of the budget then claims all
            of them, if they fit only so.
        at_once : bool
            Whether the first claim claims all of them in any case, or else nothing.
        by : str, optional
            Who claims, for the message; by default one chain of the step.

        Returns
        -------
        int
            Number of earlier claims of this step.
        """
        accesses, plan = tuple(accesses), None if plan is None else tuple(plan)
        with self._transaction("IMMEDIATE") as db:
            account, claimed = self._account(db), self._claimed(db)
            before = sum(c.budget == budget and c.step == step for c in claimed.claims)
            if before >= limit:
                raise PrivacyBudgetExhausted(
                    f"{before} chain(s) of {step} have already run, as many as its budget is shared over (chains={limit}). Make the "
                    "budget for more chains before the first one runs. A finished or interrupted chain is not refunded."
                )
            by = by or f"one chain of {step}{'' if draws is None else f' ({draws:g} draws)'}"
            terms = BudgetTerms.of_budget(epsilon, delta, accountant)
            run = None if plan is None else Cost.of(plan)
            asked = Asked(Cost.of(accesses), by, draws, "draws by one chain", run, at_once)
            is_whole = claimed.grant(account.terms, terms, budget, asked)
            if is_whole is not None:
                values: tuple = (budget, written(plan or accesses), is_whole, now())
                names = "budget, accesses, whole, created"
                db.execute(f"INSERT INTO plans ({names}) VALUES (?, ?, ?, ?)", values)
            who = f"{socket.gethostname()}:{os.getpid()}"
            values = (budget, step, written(accesses), now(), who)
            names = "budget, step, accesses, created, process"
            db.execute(f"INSERT INTO claims ({names}) VALUES (?, ?, ?, ?, ?)", values)
            return before

    def record(
        self, *, epsilon: float | None = None, delta: float = 0.0, rho: float | None = None, mu: float | None = None,
        note: str,
    ) -> None:  # fmt: skip
        """Claim a release of the same data that another tool makes; do so before it is made.

        It is a claim like any other: added to the claims so far, never returned, and refused if the account
        does not pay for it. Give exactly one of `epsilon`, `rho` and `mu`, as proved for the account's adjacency.

        Parameters
        ----------
        epsilon : float, optional
            Of pure DP (:class:`~pymc_dp.privacy.PureDP`).
        delta : float
            Must be 0: the account composes at its own delta.
        rho : float, optional
            Of zCDP (:class:`~pymc_dp.privacy.ZeroConcentratedDP`); not on an account in Gaussian DP.
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
        >>> ledger.record(rho=0.02, note="age histogram, OpenDP")
        >>> round(ledger.spent(), 2)
        1.17
        """
        mechanism, account = stated(epsilon, delta, rho, mu), self.account
        note = " ".join(str(note or "").split())
        if not note:
            raise ValueError("note is empty: state what is released, and by which tool.")
        check_pure(account.delta, [mechanism], "The release has")
        if account.order is None and mechanism.gaussian_mu is None:
            raise ValueError(
                f"The account in {self.path} composes in Gaussian DP, and {mechanism.name} has no mu there. Give the mu of the release (of Gaussian "
                "noise: sensitivity / standard deviation), or its pure epsilon."
            )
        self.claim(
            f"recorded {uuid.uuid4().hex[:16]}", note, [(mechanism, 1)], epsilon=account.epsilon, delta=account.delta,
            accountant="best" if account.order is not None else "gaussian", limit=1, by=f"the release {note!r}",
        )  # fmt: skip

    def check(
        self,
        accesses: Accesses,
        by: str,
        chains: int | None = None,
        *,
        budget: str = "",
        plan: Accesses | None = None,
    ) -> None:
        """Raise unless the account pays for these accesses (of each of some chains); nothing is claimed.

        Parameters as in :meth:`claim`.
        """
        accesses, plan = tuple(accesses), None if plan is None else tuple(plan)
        claimed, terms = self.claimed(), self.account.terms
        if claimed.is_whole(budget):
            return
        if plan is not None and claimed.admits(terms, budget, Cost.of(plan)):
            return
        units = "chain(s) of this budget, or more of one with a smaller epsilon"
        asked = Asked(Cost.of(accesses) * (chains or 1), by, chains, units)
        claimed.check(terms, budget, asked)

    def note_callback(self, budget: str) -> None:
        """Record that the budget has been called as a callback, for chains in other processes."""
        with self._transaction("IMMEDIATE") as db:
            db.execute("INSERT OR IGNORE INTO callbacks VALUES (?)", (budget,))

    def has_callback(self, budget: str) -> bool:
        """Whether the budget has been called as a callback, in any process."""
        query = "SELECT 1 FROM callbacks WHERE budget = ?"
        with self._reading() as db:
            return db.execute(query, (budget,)).fetchone() is not None

    @property
    def n_budgets(self) -> int:
        """Number of budgets that have claimed something."""
        return len({claim.budget for claim in self.claims()})

    def spent(self) -> float:
        """Epsilon of all claims together, at the account's delta; it holds for any rule of stopping.

        Claims for disjoint groups of records (:meth:`~pymc_dp.PrivacyBudget.split_by`) count once, the largest.
        """
        claimed = self.claimed()
        if claimed.claims and self.account.epsilon == math.inf:
            return math.inf
        return claimed.spent(self.account.terms)

    def __repr__(self) -> str:
        """The account, and what is spent."""
        try:
            account, spent = self.account, f"{self.spent():.4g}"
        except LedgerError:
            return one_line(self, spent="unknown, as the file cannot be read")
        return one_line(
            self, epsilon=f"{account.epsilon:g}", delta=f"{account.delta:g}", spent=spent
        )

    def __str__(self) -> str:
        """Account and latest claims; the command ``pymc-dp-ledger`` lists all."""
        return "\n".join(
            [*self._head(), *("  " + "  ".join(filter(None, row)) for row in self._latest())]
        )

    def _table(self) -> Table:
        return Table("\n".join(self._head()), self._latest())

    def listing(self) -> str:
        """Account and all claims."""
        return "\n".join(
            [*self._head(), *("  " + "  ".join(filter(None, row)) for row in self._rows())]
        )

    def _head(self) -> list[str]:
        account, claimed = self.account, self.claimed()
        return [
            f"Ledger {self.path}",
            f"account: epsilon = {account.epsilon:g}, delta = {account.delta:g}, adjacency: {account.adjacency}",
            f"successive claims are added up by {account.adaptive.name}",
            f"spent:   epsilon = {self.spent():.4g} by {len(claimed.claims)} claim(s)",
        ]

    def _rows(self) -> list[list[str]]:
        """Claims, and plans that were claimed at once."""
        claimed = self.claimed()
        rows = [
            [c.created, c.process, _named(c.budget), f"{c.step}: {'; '.join(listed(c.accesses))}"]
            for c in claimed.claims
        ]
        for budget, plan in claimed.plans.items():
            if plan.whole:
                what = f"all that it claims, at once: {'; '.join(listed(plan.accesses))}"
                rows.append(["", "", _named(budget), what])
        return rows

    def _latest(self) -> list[list[str]]:
        rows = self._rows()
        if len(rows) <= MOST_ROWS:
            return rows
        return [["...", "", f"{len(rows) - MOST_ROWS} earlier", ""], *rows[-MOST_ROWS:]]


def _named(budget: str) -> str:
    label = label_of(budget)
    return f"budget {budget[:8]}" + (f" (group {label!r})" if label else "")


def main(arguments: Sequence[str]) -> int:
    """List the account in a file (the command ``pymc-dp-ledger``)."""
    parser = argparse.ArgumentParser(
        "pymc-dp-ledger",
        description="List the privacy account of a data set: its total, what is spent, and each claim with its date. The file is not changed.",
        epilog="Open an account in Python: pymc_dp.Ledger('hospital.ledger', epsilon=4.0, delta=1e-6). Give it to a budget: "
        "pymc_dp.PrivacyBudget(..., ledger='hospital.ledger'). Record a release by another tool: Ledger(...).record(...).",
    )
    parser.add_argument("file", metavar="FILE", help="the ledger, such as hospital.ledger")
    try:
        path = parser.parse_args(arguments).file
    except SystemExit as stop:  # after --help, or a wrong argument
        return int(stop.code or 0)
    if not Path(path).is_file():
        print(
            f"There is no file {path}, so it holds no account yet: give the path of a ledger.",
            file=sys.stderr,
        )
        return 1
    try:
        print(Ledger(path).listing())
    except LedgerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def run() -> int:
    """Entry point of ``pymc-dp-ledger``."""
    return main(sys.argv[1:])
