"""The file of an account, what was claimed on it, and the command ``pymc-dp-ledger``.

An account is ``(epsilon, delta)``, and each budget claims its own ``(epsilon, delta)`` from it, whole, in the
transaction of its first access. Two compositions of these claims are valid whatever decided about the next one
(*filters*), also for budgets that are used side by side: epsilons and deltas add up ("basic"), or squares of the
``mu`` of Gaussian DP do ("gaussian"). Reading an account needs neither PyMC nor SciPy.

References
----------
Rogers, Roth, Ullman, Vadhan (2016), Privacy odometers and filters, https://arxiv.org/abs/1605.08294. Vadhan, Zhang (2023), Concurrent
composition theorems for differential privacy, https://arxiv.org/abs/2207.08335. Haney et al. (2023), Concurrent composition for
interactive differential privacy with adaptive privacy-loss parameters, https://arxiv.org/abs/2309.05901.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sqlite3
import sys
import uuid

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pymc_dp.arguments import check_epsilon_delta
from pymc_dp.display import MOST_ROWS, Shown, Table, one_line
from pymc_dp.errors import LedgerError

#: Temporary ledgers of the budgets of this program. They last as long as it does, for pickled copies of a budget.
TEMPORARY: list[LedgerFile] = []
#: Format of the file; one of another format is refused.
_FORMAT = 3
#: Part of the squares of ``mu`` that is not spent: a computed ``mu`` is below the exact one by less than half of this.
_ROUNDING = 1e-8
_KINDS = {"adjacency": ("substitute", "add_remove"), "composition": ("basic", "gaussian")}
_SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY CHECK (id = 1), epsilon REAL NOT NULL, delta REAL NOT NULL,
                      adjacency TEXT NOT NULL, composition TEXT NOT NULL, mu REAL, created TEXT NOT NULL);
CREATE TABLE budgets (id TEXT PRIMARY KEY, epsilon REAL NOT NULL, delta REAL NOT NULL, mu REAL, created TEXT NOT NULL,
                      process TEXT NOT NULL, what TEXT NOT NULL);
CREATE TABLE claims (id INTEGER PRIMARY KEY, budget TEXT NOT NULL, step TEXT NOT NULL, accesses TEXT NOT NULL,
                     words TEXT NOT NULL, created TEXT NOT NULL, process TEXT NOT NULL, plan TEXT, at_once INTEGER NOT NULL);
CREATE TABLE callbacks (budget TEXT PRIMARY KEY)
"""


@dataclass(frozen=True)
class BudgetClaim(Shown):
    """Claim of a budget, or of a release by another tool, on an account; final."""

    id: str
    epsilon: float
    delta: float
    mu: float | None
    created: str
    process: str
    what: str

    def __post_init__(self) -> None:
        check_epsilon_delta(self.epsilon, self.delta)
        if self.mu is not None and not self.mu > 0:
            raise ValueError(f"mu must be positive, got {self.mu!r}.")


@dataclass(frozen=True)
class Account:
    """Total that all programs together may spend on a data set.

    With composition ``"basic"`` epsilons and deltas of claims add up, with ``"gaussian"`` squares of `mu`.
    """

    epsilon: float
    delta: float
    adjacency: str
    composition: str = "basic"
    mu: float | None = None

    def __post_init__(self) -> None:
        check_epsilon_delta(self.epsilon, self.delta)
        for name, known in _KINDS.items():
            if (found := getattr(self, name)) not in known:
                raise ValueError(f"{name} must be {known[0]!r} or {known[1]!r}, got {found!r}.")
        if self.is_gaussian != (self.mu is not None and self.mu > 0):
            raise ValueError(f"mu = {self.mu!r} with composition {self.composition!r}")

    @property
    def is_gaussian(self) -> bool:
        """Whether the composition is of squares of ``mu``."""
        return self.composition == "gaussian"

    def spent(self, claims: Sequence[BudgetClaim]) -> dict[str, float]:
        """Sum of the claims: epsilon and delta, or ``mu`` (the root of the sum of its squares)."""
        if self.is_gaussian:
            return {"mu": math.sqrt(math.fsum(c.mu**2 for c in claims if c.mu))}
        if any(c.epsilon == math.inf for c in claims):
            return {"epsilon": math.inf, "delta": float(_sum(c.delta for c in claims))}
        return {n: float(_sum(getattr(c, n) for c in claims)) for n in ("epsilon", "delta")}

    def left(self, claims: Sequence[BudgetClaim]) -> dict[str, float]:
        """Remainder that may still be claimed."""
        if self.epsilon == math.inf:
            return (
                {"mu": math.inf} if self.is_gaussian else {"epsilon": math.inf, "delta": self.delta}
            )
        if self.mu is not None:
            rest = self.mu**2 * (1 - _ROUNDING) - self.spent(claims)["mu"] ** 2
            return {"mu": math.sqrt(max(rest, 0.0)) if claims else self.mu}
        totals = {"epsilon": self.epsilon, "delta": self.delta}
        return {n: float(_exact(x) - _sum(getattr(c, n) for c in claims)) for n, x in totals.items()}  # fmt: skip

    def admits(self, claims: Sequence[BudgetClaim], new: BudgetClaim) -> bool:
        """Whether a budget may claim its full epsilon and delta after these claims.

        The first claim needs no composition, and nothing else fits after one that takes all. Epsilons and deltas are
        added exactly, as the rational numbers of their shortest decimal texts: ten budgets of 0.1 are 1. (A float
        differs from its text by a relative 2**-53 at most, and accountants round epsilon up by more.)
        """
        if self.epsilon == math.inf:
            return True
        if not claims:
            return new.epsilon <= self.epsilon and new.delta <= self.delta
        every = [*claims, new]
        if self.mu is not None:
            squares = math.fsum(math.inf if c.mu is None else c.mu**2 for c in every)
            return squares <= self.mu**2 * (1 - _ROUNDING)
        totals = {"epsilon": self.epsilon, "delta": self.delta}
        return all(_sum(getattr(c, n) for c in every) <= _exact(x) for n, x in totals.items())


def _exact(x: float) -> Fraction:
    return Fraction(repr(float(x)))


def _sum(values: Iterator[float]) -> Fraction:
    return sum(map(_exact, values), Fraction())


def in_words(terms: dict[str, float]) -> str:
    """Text such as ``epsilon = 0.5, delta = 1e-07``."""
    return ", ".join(f"{name} = {value:.4g}" for name, value in terms.items())


class LedgerFile(Shown):
    """An account in a file, read only."""

    temporary = False

    def __init__(self, path: str) -> None:
        self.path = path
        with self._reading() as db:
            self.account = self._account(db)

    def budget_claims(self) -> list[BudgetClaim]:
        """Claims of budgets, in order."""
        with self._reading() as db:
            return self._budgets(db)

    @property
    def n_budgets(self) -> int:
        """Number of budgets with claims; a budget divided among groups of records counts once."""
        return len(self.budget_claims())

    def _create(self, account: Account) -> None:
        """Write the file under another name, then link it into place, so that a ledger is never empty."""
        place = os.path.realpath(self.path)
        draft = f"{place}.{uuid.uuid4().hex}"
        with self._usable(OSError):
            try:
                with self._transaction("IMMEDIATE", draft) as db:
                    for statement in (*_SCHEMA.split(";"), f"PRAGMA user_version = {_FORMAT}"):
                        db.execute(statement)
                    values = (*astuple(account), now())
                    db.execute("INSERT INTO account VALUES (1, ?, ?, ?, ?, ?, ?)", values)
                with suppress(FileExistsError):  # another program has opened an account meanwhile
                    os.link(draft, place)
            finally:
                Path(draft).unlink(missing_ok=True)

    @contextmanager
    def _usable(self, *errors: type[Exception]) -> Iterator[None]:
        """Turn these errors into a LedgerError that names the file."""
        try:
            yield
        except errors as error:
            raise LedgerError(
                f"The ledger {self.path} cannot be used ({type(error).__name__}: {error}). Without a ledger no data are accessed: "
                "check that the file is a pymc_dp ledger and of no later version than this one, that it and its folder are "
                "writable, and that the disk is not full. If it is damaged, restore a copy that has all claims."
            ) from error

    def _reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """A consistent read of the file, also while another program writes or if it is read-only."""
        return self._transaction("DEFERRED")

    @contextmanager
    def _transaction(self, lock: str, draft: str = "") -> Iterator[sqlite3.Connection]:
        """Open, lock ("IMMEDIATE" excludes all other writers), and commit or roll back as a whole."""
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
                if db.in_transaction:  # SQLite has ended it if the disk is full
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
        (found,) = db.execute("PRAGMA user_version").fetchone()
        if found != _FORMAT:
            raise LedgerError(
                f"The account in {self.path} was written by another version of pymc_dp (format {found}; this one has format {_FORMAT}). Open a "
                "new account in another file, with the epsilon and delta that the data set has left."
            )
        query = "SELECT epsilon, delta, adjacency, composition, mu FROM account"
        with self._usable(Exception):  # invalid contents
            return Account(*db.execute(query).fetchone())

    def _budgets(self, db: sqlite3.Connection) -> list[BudgetClaim]:
        names = "id, epsilon, delta, mu, created, process, what"
        rows = db.execute(f"SELECT {names} FROM budgets ORDER BY rowid")
        with self._usable(Exception):  # invalid contents
            return [BudgetClaim(*row) for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """Account, totals spent and left, and claims (who, when, for what) as plain values."""
        with self._reading() as db:
            budgets = self._budgets(db)
            columns = "budget, step, words, created, process"
            claims = db.execute(f"SELECT {columns} FROM claims ORDER BY id").fetchall()
        names = columns.split(", ")
        return {
            "path": self.path,
            "account": asdict(self.account),
            "spent": self.account.spent(budgets),
            "left": self.account.left(budgets),
            "budgets": [
                asdict(b) | {"claims": [dict(zip(names, c, strict=True)) for c in claims if whole_of(c[0]) == b.id]}
                for b in budgets
            ],
        }  # fmt: skip

    def __repr__(self) -> str:
        """The account and the total spent."""
        try:
            spent = in_words(self.account.spent(self.budget_claims()))
        except (LedgerError, AttributeError):
            return one_line(self, spent="unknown, as the file cannot be read")
        terms = {"epsilon": f"{self.account.epsilon:g}", "delta": f"{self.account.delta:g}"}
        return one_line(self, **terms, spent=f"({spent})")

    def __str__(self) -> str:
        """Account and latest budgets; the command ``pymc-dp-ledger`` lists all."""
        return self._table().text()

    def listing(self) -> str:
        """Account and all budgets."""
        return self._table(most=sys.maxsize).text()

    def _table(self, most: int = MOST_ROWS) -> Table:
        found, account = self.to_dict(), self.account
        rule = "squares of mu add up" if account.is_gaussian else "epsilons and deltas add up"
        own = f", mu = {account.mu:.4g}" if account.mu is not None else ""
        head = [
            f"Ledger {self.path}",
            f"account: epsilon = {account.epsilon:g}, delta = {account.delta:g}{own}, adjacency: {account.adjacency} ({rule})",
            f"spent:   {in_words(found['spent'])} by {len(found['budgets'])} budget(s)",
            f"left:    {in_words(found['left'])}",
        ]
        rows = [_row(budget, account.is_gaussian) for budget in found["budgets"]]
        if len(rows) > most:
            rows = [("...", "", f"{len(rows) - most} earlier", ""), *rows[-most:]]
        return Table("\n".join(head), rows)


def _row(budget: dict[str, Any], is_gaussian: bool) -> tuple[str, str, str, str]:
    """Date, process, cost and purpose of a budget."""
    terms = ("mu",) if is_gaussian else ("epsilon", "delta")
    times: Counter[str] = Counter()
    words: dict[str, str] = {}
    for claim in budget["claims"]:
        group = claim["budget"].partition(":")[2]
        label = f"{claim['step']}{f' (group {group!r})' if group else ''}"
        times[label] += 1
        words.setdefault(label, claim["words"])
    made = [f"{x}{f' ({n} claims)' if n > 1 else ''}: {words[x]}" for x, n in times.items()]
    what = "; ".join(made) or budget["what"]
    cost = in_words({name: budget[name] for name in terms})
    return budget["created"], budget["process"], cost, what


def whole_of(budget: str) -> str:
    """Id under which a budget claims: its groups of records share one claim, as each record is in one group of a division."""
    return budget.partition("/")[0]


def division_of(budget: str) -> str:
    """Division among groups that an id (``id/division:label``) is of; empty for all records."""
    return budget.partition("/")[2].partition(":")[0]


def now() -> str:
    """Current date and time (UTC), for the listing."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def remove(path: str, owner: int) -> None:
    """Remove a temporary ledger with its folder."""
    if os.getpid() == owner:  # a forked worker must not remove its parent's file
        shutil.rmtree(Path(path).parent, ignore_errors=True)


def budgets_without_file() -> int:
    """Number of budgets with claims on temporary ledgers of this program, whatever their data."""
    return sum(ledger.n_budgets for ledger in TEMPORARY)


def main(arguments: Sequence[str]) -> int:
    """List the account in a file (the command ``pymc-dp-ledger``)."""
    parser = argparse.ArgumentParser(
        "pymc-dp-ledger",
        description="List the privacy account of a data set: its total, what was spent, by whom, when and for what, and what is left. The file is not changed.",
        epilog="Open an account in Python: pymc_dp.Ledger('hospital.ledger', epsilon=4.0, delta=1e-6). Give it to a budget: "
        "pymc_dp.PrivacyBudget(..., ledger='hospital.ledger'). Record a release by another tool: Ledger(...).record(...).",
    )
    parser.add_argument("file", metavar="FILE", help="the ledger, such as hospital.ledger")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--version", action="version", version=f"pymc-dp {version('pymc-dp')}")
    try:
        asked = parser.parse_args(arguments)
    except SystemExit as stop:  # after --help, or a wrong argument
        return int(stop.code or 0)
    try:
        print(_printed(Path(asked.file).absolute(), asked.json))
    except LedgerError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _printed(path: Path, as_json: bool) -> str:
    if path.is_dir():
        raise LedgerError(f"{path} is a folder: give the path of a ledger, such as {path / 'hospital.ledger'}.")  # fmt: skip
    if not path.exists():
        raise LedgerError(f"There is no file {path}, so it holds no account yet: give the path of a ledger.")  # fmt: skip
    ledger = LedgerFile(str(path))
    if as_json:
        return json.dumps(ledger.to_dict(), indent=2).replace(": Infinity", ': "inf"')
    return ledger.listing()


def run() -> int:
    """Entry point of ``pymc-dp-ledger``."""
    return main(sys.argv[1:])
