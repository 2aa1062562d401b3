"""The file of an account: SQLite transactions, and what they read."""

from __future__ import annotations

import os
import shutil
import sqlite3
import uuid

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import astuple
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pymc_dp.display import Shown
from pymc_dp.errors import LedgerError
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.budget.accounts import Account, Claim, Claimed, Plan, read

__all__ = ["LedgerFile", "now", "remove"]

_SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY CHECK (id = 1), epsilon REAL NOT NULL, delta REAL NOT NULL,
                      adjacency TEXT NOT NULL, renyi_order REAL, created TEXT NOT NULL);
CREATE TABLE claims (id INTEGER PRIMARY KEY, budget TEXT NOT NULL, step TEXT NOT NULL, accesses TEXT NOT NULL,
                     created TEXT NOT NULL, process TEXT NOT NULL);
CREATE TABLE plans (budget TEXT PRIMARY KEY, accesses TEXT NOT NULL, whole INTEGER NOT NULL, created TEXT NOT NULL);
CREATE TABLE callbacks (budget TEXT PRIMARY KEY);
"""


class LedgerFile(Shown):
    """Storage of a :class:`~pymc_dp.privacy.budget.ledger.Ledger`."""

    path: str
    temporary: bool

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


def now() -> str:
    """Return the date and time, for the listing."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _open_account(db: sqlite3.Connection, account: Account) -> None:
    for statement in _SCHEMA.split(";"):
        db.execute(statement)
    db.execute("INSERT INTO account VALUES (1, ?, ?, ?, ?, ?)", (*astuple(account), now()))


def remove(folder: str, owner: int) -> None:
    """Remove the folder of a temporary ledger."""
    if os.getpid() == owner:  # a forked worker must not remove its parent's file
        shutil.rmtree(folder, ignore_errors=True)
