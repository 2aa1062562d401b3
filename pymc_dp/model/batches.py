"""Log-likelihoods of a batch of records, at the price of the batch, or of all records in blocks."""

from __future__ import annotations

import warnings

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise

from pymc_dp.errors import PerformanceWarning
from pymc_dp.model.blocks import LARGE, RowFunction, compiled_loop, is_numba
from pymc_dp.model.indexing import Blocked, rows_at
from pymc_dp.model.roots import stored

__all__ = ["BatchLikelihood", "RowsOfRecords", "checked_index", "group_by_label"]

N_TRIALS = 3  # random points at which batches are compared with the full vector
WIDE = 8  # numbers per record, beyond which arrays on the way are larger than the result


def checked_index(index: np.ndarray, n_records: int) -> np.ndarray:
    """A contiguous vector of int64, of records from 0 to ``n_records - 1``.

    Raises
    ------
    IndexError
        If it is not a vector of integers, or there is no such record.
    """
    index = np.asarray(index)
    if index.ndim != 1 or (index.dtype.kind not in "iu" and index.size):
        raise IndexError(
            f"index must be a vector of integers, not {index.dtype}, {index.ndim}-dimensional"
        )
    # Compiled code checks no bounds. As unsigned numbers, negative ones are large. And it compiles
    # again for each memory layout and for read-only arrays: a copy has always the same.
    index = np.array(index, dtype=np.int64, order="C")
    if index.size and index.view(np.uint64).max() >= n_records:
        raise IndexError(f"index must be from 0 to {n_records - 1}, the last record")
    return index


class BatchLikelihood:
    """Log-likelihood of each record of a batch.

    Nothing is compiled before the first use. Where an index does not reach the data, batches are taken
    from the log-likelihood of all records, with a warning. On simulated records what was compiled is
    compared with that log-likelihood; on private ones nothing is tried out, as a warning would then
    depend on their values.

    Parameters
    ----------
    full : callable
        The log-likelihood of all records as a function of theta: an attribute, too.
    start : array of shape (n_dim,)
        Point near which batches are tried out.
    theta : Variable
        Vector of all parameters.
    rows : sequence of Variable
        Row-wise log-likelihood of each observed variable, from `freeze`.
    labels : sequence of integer arrays
        The record each row belongs to, from 0 to the number of records.
    n_records : int
    options : dict
        Passed on to ``pytensor.function``.
    simulated : bool
        Whether the records are simulated.
    """

    def __init__(
        self,
        full: Callable[[np.ndarray], np.ndarray],
        start: np.ndarray,
        theta: Variable,
        rows: Sequence[Variable],
        labels: Sequence[np.ndarray],
        n_records: int,
        options: dict[str, Any],
        simulated: bool = False,
    ) -> None:
        self.full, self._start, self._n_records = full, start, n_records
        self._simulated = simulated
        self._graphs: tuple | None = theta, rows, labels, options
        above = set(ancestors(rows))
        numbers = sum(stored(v).size for v in above if isinstance(v, SharedVariable))
        # Matrix products of the data leave no wide arrays behind.
        wide = any(v.owner and isinstance(v.owner.op, Elemwise) and v.type.ndim > 1 for v in above)
        one_each = all(np.array_equal(label, np.arange(n_records)) for label in labels)
        large = wide and one_each and numbers > max(LARGE, WIDE * n_records)
        self._prefers_blocks = large and is_numba(full)
        self._in_blocks: bool | None = None  # whether that is possible, once it was tried
        self._tables: list[_Table] = []  # stays empty if batches come from the full vector
        self._obstacle = ""  # why, until the first batch

    def __call__(self, thetas: Sequence[np.ndarray], index: np.ndarray) -> list[np.ndarray]:
        """Log-likelihoods at each of some points, ``-inf`` where they are not numbers; arguments are trusted."""
        if self._graphs is not None:
            self._build()
        if self._obstacle:
            warnings.warn(
                "The log-likelihood of a batch of records will be right, but take as long as that of "
                f"all records: {self._obstacle}, between the data and the likelihood, works on all "
                "rows at once, as far as can be told. Compute it in NumPy if no parameters are "
                "involved; otherwise use elementwise operations, matrix products and indexing.",
                PerformanceWarning,
                stacklevel=5,
            )
            self._obstacle = ""
        if len(index) == 0:
            return [np.empty(0) for _ in thetas]
        if not self._tables:
            return [self.full(theta)[index] for theta in thetas]
        return _totals(self._tables, thetas, index)

    def all_records(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihoods of all records: in blocks, if there would be large arrays on the way."""
        if self._prefers_blocks and self._has_blocks():
            return self._tables[0].all_rows(theta)
        return self.full(theta)

    def filling(self, theta: np.ndarray, logp: np.ndarray) -> tuple[Callable, tuple] | None:
        """A compiled function of the limits of a block, and its further arguments, to fill in `logp`.

        For another loop over blocks of all records, which has read their data; None if there are no
        blocks.
        """
        return self._tables[0].filling(theta, logp) if self._has_blocks() else None

    def refresh(self) -> None:
        """Take the data from where they are stored, again: those of simulated records change."""
        for table in self._tables:
            table.refresh()

    def _has_blocks(self) -> bool:
        if self._graphs is not None:
            self._build()
        if self._in_blocks is None:
            self._in_blocks = False
            if len(self._tables) == 1 and (table := self._tables[0]).has_loop:
                with warnings.catch_warnings(), suppress(Exception):
                    warnings.simplefilter("ignore")  # see `_build`
                    table.all_rows(self._start)  # compiles
                    self._in_blocks = not self._simulated or self._agrees(
                        lambda theta, index: table.all_rows(theta)[index]
                    )
        return self._in_blocks

    def _build(self) -> None:
        assert self._graphs is not None
        theta, rows, labels, options = self._graphs
        self._graphs = None
        try:
            with warnings.catch_warnings():
                # Numba says where it cannot compile, or not well, which is no reason to give up.
                warnings.simplefilter("ignore")
                tables = _tables(theta, rows, labels, self._n_records, options)
                if self._simulated and not self._agrees(
                    lambda theta, index: _totals(tables, [theta], index)[0]
                ):
                    self._obstacle = "some operation that gives a row other values when it is alone"
                    return
                self._tables = tables
        except Blocked as error:
            self._obstacle = f"the operation {error}"
        except Exception as error:  # batches are there to save time, and must not end a run
            self._obstacle = f"some operation (there was a {type(error).__name__})"

    def _agrees(self, batch: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> bool:
        # Fixed: whether batches are cheap must not differ between runs.
        rng = np.random.default_rng(20240218)
        for _ in range(N_TRIALS):
            theta = self._start + rng.normal(scale=0.3, size=self._start.shape)
            index = np.append(rng.integers(self._n_records, size=30), [self._n_records - 1, 0])
            expected = self.full(theta)[index]
            if not np.allclose(batch(theta, index), expected, rtol=1e-9, atol=1e-9):
                return False
        return True


class RowsOfRecords:
    """Where the rows of each record are.

    Parameters
    ----------
    label : integer array
        The record each row belongs to.
    n_records : int
    """

    def __init__(self, label: np.ndarray, n_records: int) -> None:
        self.n_records = n_records
        self.one_each = np.array_equal(label, np.arange(n_records))  # and in this order
        if not self.one_each:  # where each record's rows are, once rows are sorted by record
            self._order = np.argsort(label, kind="stable")
            self._ends = np.cumsum(np.bincount(label, minlength=n_records))

    def __call__(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the rows, record by record, and how many rows each record has."""
        ends = self._ends[index]
        counts = ends - np.where(index > 0, self._ends[index - 1], 0)
        places = np.cumsum(counts)
        rows = self._order[np.arange(places[-1]) + np.repeat(ends - places, counts)]
        return rows, counts


class _Table:
    """The observed variables whose rows belong to the same records.

    Parameters
    ----------
    members : sequence of Variable
        Log-likelihoods of all rows, as functions of `theta`.
    theta : Variable
    label : integer array
        The record each row belongs to.
    n_records : int
    options : dict
    """

    def __init__(
        self,
        members: Sequence[Variable],
        theta: Variable,
        label: np.ndarray,
        n_records: int,
        options: dict[str, Any],
    ) -> None:
        self._find = RowsOfRecords(label, n_records)
        index = pt.vector("index", dtype="int64")
        graphs, gathered = rows_at(members, index)
        n_rows = n_records if self._find.one_each else 0  # or else they are asked for by numbers
        self._function = RowFunction([theta], index, gathered, reduce(add, graphs), n_rows, options)

    def __call__(self, thetas: Sequence[np.ndarray], index: np.ndarray) -> list[np.ndarray]:
        if self._find.one_each:
            return self._rows(thetas, index)
        rows, counts = self._find(index)
        if len(rows) == 0:  # compiled functions need not stand empty arrays
            return [np.zeros(len(index)) for _ in thetas]
        owners = np.repeat(np.arange(len(index)), counts)
        return [
            np.bincount(owners, weights=values, minlength=len(index))
            for values in self._rows(thetas, rows)
        ]

    def _rows(self, thetas: Sequence[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
        gathered = self._function.gather(rows)
        return [self._function([theta], gathered) for theta in thetas]

    def refresh(self) -> None:
        """See `BatchLikelihood.refresh`."""
        self._function.refresh()

    @property
    def has_loop(self) -> bool:
        """Whether there is a quicker way, `all_rows`, to the log-likelihoods of all records."""
        return self._function.has_loop

    def all_rows(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihoods of all records, by a compiled loop."""
        logp = np.empty(self._find.n_records)
        self._function.loop(_fill_all, [theta], self._function.width, logp)
        return logp

    def filling(self, theta: np.ndarray, logp: np.ndarray) -> tuple[Callable, tuple]:
        """Function of the limits of a block, and of further arguments, that fills in `logp`."""
        return _fill, (logp, *self._function.compiled([theta]))


def group_by_label(
    rows: Sequence[Variable], labels: Sequence[np.ndarray]
) -> list[tuple[np.ndarray, list[Variable]]]:
    """Observed variables whose rows belong to the same records, together."""
    groups: list[tuple[np.ndarray, list[Variable]]] = []
    for row, label in zip(rows, labels, strict=True):
        for other, members in groups:
            if np.array_equal(label, other):
                members.append(row)
                break
        else:
            groups.append((label, [row]))
    return groups


def _tables(
    theta: Variable,
    rows: Sequence[Variable],
    labels: Sequence[np.ndarray],
    n_records: int,
    options: dict[str, Any],
) -> list[_Table]:
    options = options | {"on_unused_input": "ignore"}  # not everything observed has parameters
    return [
        _Table(members, theta, label, n_records, options)
        for label, members in group_by_label(rows, labels)
    ]


@compiled_loop
def _fill(
    begin: int, end: int, logp: np.ndarray, function: Callable, before: tuple, after: tuple
) -> None:
    """Put in the log-likelihood of each record of a block, ``-inf`` where it is not a number."""
    (values,) = function(*before, np.array(begin), np.array(end), *after)
    logp[begin:end] = values
    for i in range(begin, end):
        if np.isnan(logp[i]):
            logp[i] = -np.inf


@compiled_loop
def _fill_all(
    function: Callable,
    before: tuple,
    after: tuple,
    begin: int,
    end: int,
    length: int,
    logp: np.ndarray,
) -> None:
    """All records: see `RowFunction.loop`."""
    for a in range(begin, end, length):
        _fill(a, min(a + length, end), logp, function, before, after)


def _totals(
    tables: Sequence[_Table], thetas: Sequence[np.ndarray], index: np.ndarray
) -> list[np.ndarray]:
    with np.errstate(invalid="ignore"):
        each = [table(thetas, index) for table in tables]
        totals = [reduce(add, terms) for terms in zip(*each, strict=True)]
    for total in totals:
        total[np.isnan(total)] = -np.inf
    return totals
