"""Log-likelihoods of a batch of records, at the price of the batch."""

from __future__ import annotations

import warnings

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Variable

from pymc_dp.errors import PerformanceWarning
from pymc_dp.model.compiling import compile_frozen
from pymc_dp.model.indexing import Blocked, Gathered, rows_at
from pymc_dp.model.roots import stored

__all__ = ["BatchLikelihood", "RowsOfRecords", "checked_index", "group_by_label"]

N_TRIALS = 3  # random points at which batches are compared with the full vector


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

    Nothing is compiled before the first use. What is compiled then is tried out against the
    log-likelihood of all records; where an index does not reach the data, or the two do not agree,
    batches are taken from that one, with a warning.

    Parameters
    ----------
    full : callable
        The log-likelihood of all records as a function of theta.
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
    ) -> None:
        self._full, self._start, self._n_records = full, start, n_records
        self._graphs: tuple | None = theta, rows, labels, options
        self._tables: list[_Table] = []  # stays empty if batches come from the full vector

    def __call__(self, thetas: Sequence[np.ndarray], index: np.ndarray) -> list[np.ndarray]:
        """Log-likelihoods at each of some points, ``-inf`` where they are not numbers; arguments are trusted."""
        if self._graphs is not None:
            self._build()
        if len(index) == 0:
            return [np.empty(0) for _ in thetas]
        if not self._tables:
            return [self._full(theta)[index] for theta in thetas]
        return _totals(self._tables, thetas, index)

    def _build(self) -> None:
        assert self._graphs is not None
        theta, rows, labels, options = self._graphs
        self._graphs = None
        try:
            with warnings.catch_warnings():
                # Numba says where it cannot compile, or not well, which is no reason to give up.
                warnings.simplefilter("ignore")
                tables = _tables(theta, rows, labels, self._n_records, options)
                agrees = self._agrees(lambda theta, index: _totals(tables, [theta], index)[0])
            if agrees:
                self._tables = tables
                return
            obstacle = "some operation that gives a row other values when it is alone"
        except Blocked as error:
            obstacle = f"the operation {error}"
        except Exception as error:  # batches are there to save time, and must not end a run
            obstacle = f"some operation (there was a {type(error).__name__})"
        warnings.warn(
            "The log-likelihood of a batch of records will be right, but take as long as that of "
            f"all records: {obstacle}, between the data and the likelihood, works on all rows at "
            "once, as far as can be told. Compute it in NumPy if no parameters are involved; "
            "otherwise use elementwise operations, matrix products and indexing.",
            PerformanceWarning,
            stacklevel=4,
        )

    def _agrees(self, batch: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> bool:
        # Fixed: whether batches are cheap must not differ between runs.
        rng = np.random.default_rng(20240218)
        for _ in range(N_TRIALS):
            theta = self._start + rng.normal(scale=0.3, size=self._start.shape)
            index = np.append(rng.integers(self._n_records, size=30), [self._n_records - 1, 0])
            expected = self._full(theta)[index]
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
    function : callable
        Log-likelihoods of some rows, given theta, the numbers of the rows, and what is gathered.
    gathered : sequence of Gathered
    label : integer array
        The record each row belongs to.
    n_records : int
    """

    def __init__(
        self, function: Callable, gathered: Sequence[Gathered], label: np.ndarray, n_records: int
    ) -> None:
        self._function = function
        self._data = [(stored(g.data), g.axis) for g in gathered]
        self._find = RowsOfRecords(label, n_records)

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
        gathered = [data.take(rows, axis) for data, axis in self._data]
        return [self._function(theta, rows, *gathered) for theta in thetas]


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
    index = pt.vector("index", dtype="int64")
    options = options | {"on_unused_input": "ignore"}  # not everything observed has parameters
    tables = []
    for label, members in group_by_label(rows, labels):
        graphs, gathered = rows_at(members, index)
        inputs = [theta, index, *(g.rows for g in gathered)]
        function = compile_frozen(inputs, reduce(add, graphs), options)
        tables.append(_Table(function, gathered, label, n_records))
    return tables


def _totals(
    tables: Sequence[_Table], thetas: Sequence[np.ndarray], index: np.ndarray
) -> list[np.ndarray]:
    with np.errstate(invalid="ignore"):
        each = [table(thetas, index) for table in tables]
        totals = [reduce(add, terms) for terms in zip(*each, strict=True)]
    for total in totals:
        total[np.isnan(total)] = -np.inf
    return totals
