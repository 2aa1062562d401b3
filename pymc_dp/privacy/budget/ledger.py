"""Claims on disk: one SQLite file per data set.

A chain writes its whole claim in one transaction *before* it accesses the data. Claims are never refunded:
those of a killed program stay spent, and of two programs that race for the last share one is refused.
:mod:`pymc_dp.privacy.budget.accounts` decides which claims are admitted. ``pymc-dp-ledger FILE`` lists an account.
"""

from __future__ import annotations

import math
import os
import shutil
import socket
import sqlite3
import sys
import tempfile
import uuid
import weakref

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import astuple
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pymc_dp.errors import LedgerError, PrivacyBudgetExhausted
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import Cost, check_accountant
from pymc_dp.privacy.budget.accounts import (
    Account,
    Asked,
    BudgetTerms,
    Claim,
    Claimed,
    Plan,
    read,
    written,
)
from pymc_dp.privacy.mechanisms.mechanism import Accesses

__all__ = ["Accesses", "Account", "Claim", "Ledger"]

_SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY CHECK (id = 1), epsilon REAL NOT NULL, delta REAL NOT NULL,
                      adjacency TEXT NOT NULL, renyi_order REAL, created TEXT NOT NULL);
CREATE TABLE claims (id INTEGER PRIMARY KEY, budget TEXT NOT NULL, step TEXT NOT NULL, accesses TEXT NOT NULL,
                     created TEXT NOT NULL, process TEXT NOT NULL);
CREATE TABLE plans (budget TEXT PRIMARY KEY, accesses TEXT NOT NULL, whole INTEGER NOT NULL, created TEXT NOT NULL);
CREATE TABLE callbacks (budget TEXT PRIMARY KEY);
"""


class Ledger:
    """Account of a data set.

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
        self.temporary = path is None
        if path is None:
            folder = tempfile.mkdtemp(prefix="pymc_dp_")
            self._finalizer = weakref.finalize(self, _remove, folder, os.getpid())
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

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_finalizer"}

    def _create(
        self, epsilon: float | None, delta: float | None, adjacency: str | None, accountant: str
    ) -> None:
        """Make the file under another name, then link it to its place, so that a ledger is never empty."""
        if epsilon is None or delta is None:
            raise LedgerError(
                f"There is no file {self.path}, so it holds no account yet: give epsilon and delta to open one."
            )
        order = AdaptiveComposition.opened(epsilon, delta, accountant).order
        account = Account(epsilon, delta, adjacency or "substitute", order)
        place = os.path.realpath(self.path)
        draft = f"{place}.{uuid.uuid4().hex}"
        with self._usable(OSError):
            try:
                with self._transaction("IMMEDIATE", draft) as db:
                    _open_account(db, account)
                with suppress(FileExistsError):  # another program has opened an account meanwhile
                    os.link(draft, place)
            finally:
                Path(draft).unlink(missing_ok=True)

    @contextmanager
    def _usable(self, *errors: type[Exception]) -> Iterator[None]:
        """Turn such errors into a LedgerError that names the file."""
        try:
            yield
        except errors as error:
            raise LedgerError(
                f"The ledger {self.path} cannot be used ({type(error).__name__}: {error}). Without a ledger no data are accessed: "
                "check that the file is a pymc_dp ledger and of no later version than this one, that it and its folder are "
                "writable, and that the disk is not full. If it is damaged, restore a copy that has all claims."
            ) from error

    def _reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """A consistent state of the file, also while another program writes, and if it is read-only."""
        return self._transaction("DEFERRED")

    @contextmanager
    def _transaction(self, lock: str, draft: str = "") -> Iterator[sqlite3.Connection]:
        """Open, lock ("IMMEDIATE": against every other writer), and commit or roll back as a whole."""
        # A missing account is an error: only a draft is created if it is missing.
        file = f"{Path(draft or self.path).as_uri()}?mode={'rwc' if draft else 'rw'}"
        # A connection per transaction: none is ever shared across a fork.
        options: Any = {"timeout": 120, "isolation_level": None, "uri": True}
        with self._usable(sqlite3.Error), closing(sqlite3.connect(file, **options)) as db:
            # A temporary ledger ends with its program: it need not survive a power cut.
            db.execute(f"PRAGMA synchronous = {'OFF' if self.temporary else 'FULL'}")
            db.execute(f"BEGIN {lock}")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def _account(self, db: sqlite3.Connection) -> Account:
        tables = {n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "account" not in tables:
            raise LedgerError(
                f"The file {self.path} exists but holds no account ({len(tables)} other tables): it is another program's, or a ledger that was "
                "emptied. Restore a copy, or give another path; remove the file only if nothing was ever spent on these data."
            )
        if "renyi_order" not in {row[1] for row in db.execute("PRAGMA table_info(account)")}:
            raise LedgerError(
                f"The account in {self.path} was opened by an earlier version of pymc_dp, which did not fix how claims compose "
                "adaptively: more than the stated delta may have been claimed on it. Open a new one, whose terms allow for what was claimed here."
            )
        query = "SELECT epsilon, delta, adjacency, renyi_order FROM account"
        with self._usable(Exception):  # invalid contents
            return Account(*db.execute(query).fetchone())

    def _claimed(self, db: sqlite3.Connection) -> Claimed:
        rows = db.execute("SELECT budget, step, accesses, created, process FROM claims ORDER BY id")
        plans = db.execute("SELECT budget, accesses, whole FROM plans")
        with self._usable(Exception):  # invalid contents
            claims = [Claim(b, s, read(a), c, p) for b, s, a, c, p in rows]
            claimed = Claimed(claims, {b: Plan(read(a), bool(w)) for b, a, w in plans})
            Cost.of(claimed.total.counts.items())  # refuses invalid mechanisms and counts
        return claimed

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
            by = f"one chain of {step}{'' if draws is None else f' ({draws:g} draws)'}"
            terms = BudgetTerms.of_budget(epsilon, delta, accountant)
            run = None if plan is None else Cost.of(plan)
            asked = Asked(Cost.of(accesses), by, draws, "draws by one chain", run, at_once)
            is_whole = claimed.grant(account.terms, terms, budget, asked)
            if is_whole is not None:
                values: tuple = (budget, written(plan or accesses), is_whole, _now())
                names = "budget, accesses, whole, created"
                db.execute(f"INSERT INTO plans ({names}) VALUES (?, ?, ?, ?)", values)
            who = f"{socket.gethostname()}:{os.getpid()}"
            values = (budget, step, written(accesses), _now(), who)
            names = "budget, step, accesses, created, process"
            db.execute(f"INSERT INTO claims ({names}) VALUES (?, ?, ?, ?, ?)", values)
            return before

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
        if plan is not None and terms.admits(claimed.total, Cost.of(plan)):
            return
        units = "chain(s) of this budget, or more of one with a smaller epsilon"
        asked = Asked(Cost.of(accesses) * (chains or 1), by, chains, units)
        terms.check(claimed.total, claimed.closes(terms), asked)

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
        """Epsilon of all claims together, at the account's delta; it holds for any rule of stopping."""
        claimed = self.claimed()
        if claimed.claims and self.account.epsilon == math.inf:
            return math.inf
        terms = self.account.terms
        return terms.spent(claimed.total, claimed.closes(terms))[0]

    def __str__(self) -> str:
        """Listing of the account."""
        account, claimed = self.account, self.claimed()
        claims = claimed.claims
        lines = [
            f"Ledger {self.path}",
            f"account: epsilon = {account.epsilon:g}, delta = {account.delta:g}, adjacency: {account.adjacency}",
            f"successive claims are added up by {account.adaptive.name}",
            f"spent:   epsilon = {self.spent():.4g} by {len(claims)} claim(s)",
        ]
        for claim in claims:
            who = f"{claim.created}  {claim.process}  budget {claim.budget[:8]}"
            lines.append(f"  {who}  {claim.step}: {_listed(claim.accesses)}")
        for budget, plan in claimed.plans.items():
            if plan.whole:
                what = f"all that it claims, at once: {_listed(plan.accesses)}"
                lines.append(f"  budget {budget[:8]}  {what}")
        return "\n".join(lines)


def _listed(accesses: Accesses) -> str:
    return "; ".join(f"{count:g} x {mechanism.name}" for mechanism, count in accesses)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _open_account(db: sqlite3.Connection, account: Account) -> None:
    for statement in _SCHEMA.split(";"):
        db.execute(statement)
    db.execute("INSERT INTO account VALUES (1, ?, ?, ?, ?, ?)", (*astuple(account), _now()))


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker must not remove its parent's file
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    """List the account in a file (the command ``pymc-dp-ledger``)."""
    if len(arguments) != 1:
        print("usage: pymc-dp-ledger FILE", file=sys.stderr)
        return 2
    try:
        print(Ledger(arguments[0]))
    except LedgerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def run() -> int:
    """Entry point of ``pymc-dp-ledger``."""
    return main(sys.argv[1:])
