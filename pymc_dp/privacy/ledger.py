"""What was claimed, on disk: one SQLite file per data set.

A chain writes its whole claim in one transaction *before* it touches the data. Claims are never
refunded: a program that is killed leaves them spent, and of two programs that race for the last
share one is refused. What is admitted is decided in :mod:`pymc_dp.privacy.accounts`.

``python -m pymc_dp.privacy.ledger FILE`` lists an account.
"""

from __future__ import annotations

import json
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
from pymc_dp.privacy.accounts import Accesses, Account, Asked, Claim, Claimed, Plan, Terms
from pymc_dp.privacy.adaptive import AdaptiveComposition
from pymc_dp.privacy.composition import Cost, check_accountant
from pymc_dp.privacy.mechanisms import Mechanism, from_json, to_json

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
        SQLite file; created if absent. Default: a temporary file, removed when the program ends,
        which protects against everything but a restart.
    epsilon, delta : float, optional
        Total that may ever be spent, needed when the file is created. On an existing file they must
        agree with it.
    adjacency : str, optional
        Adjacency of all claims, ``"substitute"`` unless given when the file is created.
    accountant : str
        When the file is created: ``"gaussian"`` for an account that composes Gaussian DP adaptively, any
        other for one Rényi order (:mod:`pymc_dp.privacy.adaptive`). The file keeps which.

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

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_finalizer"}

    def _create(
        self, epsilon: float | None, delta: float | None, adjacency: str | None, accountant: str
    ) -> None:
        """Make the file under another name and put it in its place, so that a ledger is never empty."""
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
                    for statement in _SCHEMA.split(";"):
                        db.execute(statement)
                    values = (*astuple(account), _now())
                    db.execute("INSERT INTO account VALUES (1, ?, ?, ?, ?, ?)", values)
                with suppress(FileExistsError):  # another program has opened an account meanwhile
                    os.link(draft, place)
            finally:
                Path(draft).unlink(missing_ok=True)

    @contextmanager
    def _usable(self, *errors: type[Exception]) -> Iterator[None]:
        """Say of such errors which file to look at, and for what."""
        try:
            yield
        except errors as error:
            raise LedgerError(
                f"The ledger {self.path} cannot be used ({type(error).__name__}: {error}). Without a ledger no data are touched: "
                "check that the file is a pymc_dp ledger and of no later version than this one, that it and its folder are "
                "writable, and that the disk is not full. If it is damaged, restore a copy that has all claims."
            ) from error

    def _reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """One state of the file, also while another program writes, and if it cannot be written to."""
        return self._transaction("DEFERRED")

    @contextmanager
    def _transaction(self, lock: str, draft: str = "") -> Iterator[sqlite3.Connection]:
        """Open, lock ("IMMEDIATE": against every other writer), and commit or roll back as a whole."""
        # An account that is gone is no new one: only a draft is made if it is missing.
        file = f"{Path(draft or self.path).as_uri()}?mode={'rwc' if draft else 'rw'}"
        # A connection per transaction: none is ever shared across a fork.
        options: Any = {"timeout": 120, "isolation_level": None, "uri": True}
        with self._usable(sqlite3.Error), closing(sqlite3.connect(file, **options)) as db:
            # A temporary ledger ends with its program: there is nothing to be saved from a power cut.
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
        with self._usable(Exception):  # contents that make no sense
            return Account(*db.execute(query).fetchone())

    def _claimed(self, db: sqlite3.Connection) -> Claimed:
        rows = db.execute("SELECT budget, step, accesses, created, process FROM claims ORDER BY id")
        plans = db.execute("SELECT budget, accesses, whole FROM plans")
        with self._usable(Exception):  # contents that make no sense
            claims = [Claim(b, s, _read(a), c, p) for b, s, a, c, p in rows]
            claimed = Claimed(claims, {b: Plan(_read(a), bool(w)) for b, a, w in plans})
            Cost.of(claimed.total.counts.items())  # refuses what is no mechanism or no count
        return claimed

    def claimed(self) -> Claimed:
        """All claims so far, and the plans that they are part of."""
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
    ) -> int:
        """Claim accesses, or raise without claiming anything.

        Parameters
        ----------
        budget, step : str
            Who claims.
        accesses : sequence of (Mechanism, float)
            What is claimed.
        epsilon, delta, accountant
            Terms of the budget (they bind its own claims; the account binds all).
        limit : int
            Largest number of claims of this step on this budget.
        draws : float, optional
            Number of iterations claimed, for the message if they do not fit.
        plan : sequence of (Mechanism, float), optional
            All that the run claims which this claim is a part of, if it is to be claimed at once: then this
            claim, if it is the budget's first, claims all of it.

        Returns
        -------
        int
            How many claims this step had before.
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
            terms = Terms.of_budget(epsilon, delta, accountant)
            asked = Asked(Cost.of(accesses), by, draws, "draws by one chain")
            whole = None if plan is None else Cost.of(plan)
            at_once = claimed.grant(account.terms, terms, budget, asked, whole)
            if at_once is not None:
                values: tuple = (budget, _written(plan or accesses), at_once, _now())
                names = "budget, accesses, whole, created"
                db.execute(f"INSERT INTO plans ({names}) VALUES (?, ?, ?, ?)", values)
            who = f"{socket.gethostname()}:{os.getpid()}"
            values = (budget, step, _written(accesses), _now(), who)
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
        """Raise unless the account pays for what is asked for (by each of some chains); nothing is claimed.

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
        """Record that the budget answers as a callback, for chains in other processes to see."""
        with self._transaction("IMMEDIATE") as db:
            db.execute("INSERT OR IGNORE INTO callbacks VALUES (?)", (budget,))

    def has_callback(self, budget: str) -> bool:
        """Whether the budget has answered as a callback, in whatever process."""
        query = "SELECT 1 FROM callbacks WHERE budget = ?"
        with self._reading() as db:
            return db.execute(query, (budget,)).fetchone() is not None

    @property
    def n_budgets(self) -> int:
        """Number of budgets that have claimed something."""
        return len({claim.budget for claim in self.claims()})

    def spent(self) -> float:
        """Epsilon of all claims together, at the account's delta: it holds whatever it was that decided to stop here."""
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
            f"one after the other, claims are added up by {account.adaptive.name}",
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


def _written(accesses: Accesses) -> str:
    return json.dumps([(to_json(m), k) for m, k in accesses])


def _listed(accesses: Accesses) -> str:
    return "; ".join(f"{count:g} x {mechanism.name}" for mechanism, count in accesses)


def _read(text: str) -> tuple[tuple[Mechanism, float], ...]:
    return tuple((from_json(m), float(k)) for m, k in json.loads(text))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker must not take the file away from its parent
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    """Command line: list the account in a file."""
    if len(arguments) != 1:
        print("usage: python -m pymc_dp.privacy.ledger FILE", file=sys.stderr)
        return 2
    try:
        print(Ledger(arguments[0]))
    except LedgerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
