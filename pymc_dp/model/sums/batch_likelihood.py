"""Log-likelihoods of a batch of records, at the cost of the batch, or of all records in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.compiling import quiet_compilers
from pymc_dp.model.graphs.data_variables import stored
from pymc_dp.model.graphs.row_subsets import Blocked, rows_at
from pymc_dp.model.sums.row_functions import LARGE, RowFunction, compiled_loop, is_numba

__all__ = ["BatchLikelihood", "RecordGroups", "RowGraphs", "RowsByRecord", "checked_index"]

WIDE = 8  # numbers per record above which intermediate arrays are larger than the result


def checked_index(index: np.ndarray, n_records: int) -> np.ndarray:
    """A contiguous vector of int64, of records from 0 to ``n_records - 1``; else IndexError."""
    index = np.asarray(index)
    if index.ndim != 1 or (index.dtype.kind not in "iu" and index.size):
        raise IndexError(
            f"index must be a vector of integers, not {index.dtype}, {index.ndim}-dimensional"
        )
    # Compiled code checks no bounds. Negative numbers are large as unsigned ones. Numba compiles
    # again for other memory layouts and for read-only arrays, so this is always a copy.
    index = np.array(index, dtype=np.int64, order="C")
    if index.size and index.view(np.uint64).max() >= n_records:
        raise IndexError(f"index must be from 0 to {n_records - 1}, the last record")
    return index


@contextmanager
def refuse_blocked() -> Iterator[None]:
    """Raise UnsupportedModel in place of `Blocked`."""
    try:
        yield
    except Blocked as error:
        raise UnsupportedModel(
            "the likelihoods of some records, or their gradients, cannot be computed without those of the "
            f"others: the operation {error}, between the data and the likelihood, works on all rows at once "
            "or is not supported. Compute it in NumPy if no parameters are involved; otherwise use elementwise "
            "operations, matrix products and indexing."
        ) from None


class RowGraphs(NamedTuple):
    """Row-wise log-likelihoods of observed variables as functions of theta, from `freeze`.

    A label is the record that each row belongs to, from 0 to ``n_records - 1``. The options are those
    of ``pytensor.function``.
    """

    theta: Variable
    rows: list[Variable]
    labels: Sequence[np.ndarray]
    n_records: int
    options: dict[str, Any]


class RecordGroups:
    """Functions of groups of observed variables whose rows belong to the same records.

    They are compiled at the first use, which raises UnsupportedModel if rows cannot be computed alone.
    """

    def __init__(self, graphs: RowGraphs) -> None:
        self._n_records = graphs.n_records
        self._graphs: RowGraphs | None = graphs
        self._compiled_groups: list[Any] = []

    @property
    def _groups(self) -> list[Any]:
        if self._graphs is not None:
            with quiet_compilers(), refuse_blocked():
                self._compiled_groups = [self._compile(group) for group in _by_label(self._graphs)]
            self._graphs = None
        return self._compiled_groups

    def _compile(self, group: RowGraphs) -> Any:
        raise NotImplementedError

    def load(self, arrays: Mapping[Variable, np.ndarray], n_records: int) -> None:
        """Compute with these arrays, by variable, of so many records with one row each."""
        self._n_records = n_records
        for group in self._groups:
            group.load(arrays, n_records)

    def refresh(self) -> None:
        """Read the stored data again, after those of simulated records have changed."""
        for group in self._compiled_groups:
            group._function.refresh()


def _by_label(graphs: RowGraphs) -> list[RowGraphs]:
    groups: list[RowGraphs] = []
    for row, label in zip(graphs.rows, graphs.labels, strict=True):
        rows = next((g.rows for g in groups if np.array_equal(label, g.labels[0])), None)
        if rows is None:
            rows = []
            groups.append(graphs._replace(rows=rows, labels=[label]))
        rows.append(row)
    return groups


class BatchLikelihood(RecordGroups):
    """Log-likelihood of each record of a batch; `full` is that of all records as a function of theta."""

    def __init__(self, full: Callable[[np.ndarray], np.ndarray], graphs: RowGraphs) -> None:
        super().__init__(graphs)
        self.full, n_records = full, graphs.n_records
        above = set(ancestors(graphs.rows))
        numbers = sum(stored(v).size for v in above if isinstance(v, SharedVariable))
        # Matrix products of the data do not create wide intermediate arrays.
        wide = any(v.owner and isinstance(v.owner.op, Elemwise) and v.type.ndim > 1 for v in above)
        one_each = all(np.array_equal(label, np.arange(n_records)) for label in graphs.labels)
        large = wide and one_each and numbers > max(LARGE, WIDE * n_records)
        self._prefers_blocks = large and is_numba(full)

    def __call__(self, thetas: Sequence[np.ndarray], index: np.ndarray) -> list[np.ndarray]:
        """Log-likelihoods at each of some points, ``-inf`` where they are not numbers; arguments are not checked."""
        groups = self._groups
        if len(index) == 0:
            return [np.empty(0) for _ in thetas]
        with np.errstate(invalid="ignore"):
            each = [group(thetas, index) for group in groups]
            totals = [reduce(add, terms) for terms in zip(*each, strict=True)]
        for total in totals:
            total[np.isnan(total)] = -np.inf
        return totals

    def all_records(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihoods of all records: in blocks if intermediate arrays would be large."""
        if self._prefers_blocks and self.has_blocks:
            return self._groups[0].all_rows(theta)
        return self.full(theta)

    def block_callback(self, theta: np.ndarray, logp: np.ndarray) -> tuple[Callable, tuple] | None:
        """A compiled function of the limits of a block, and its further arguments, to fill in `logp`.

        For another loop over blocks of all records, which has just read their data. None if there
        are no blocks.
        """
        return self._groups[0].block_callback(theta, logp) if self.has_blocks else None

    @property
    def has_blocks(self) -> bool:
        """Whether log-likelihoods of all records can be computed in blocks."""
        return len(self._groups) == 1 and self._groups[0].has_loop

    def _compile(self, group: RowGraphs) -> RecordGroup:
        return RecordGroup(group)


class RowsByRecord:
    """The rows of each record, from the record that each row belongs to."""

    def __init__(self, label: np.ndarray, n_records: int) -> None:
        self.n_records = n_records
        self.one_each = np.array_equal(label, np.arange(n_records))  # and in this order
        if not self.one_each:
            self._order = np.argsort(label, kind="stable")  # rows, sorted by record
            self._ends = np.cumsum(np.bincount(label, minlength=n_records))

    def __call__(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the rows, record by record, and how many rows each record has."""
        ends = self._ends[index]
        counts = ends - np.where(index > 0, self._ends[index - 1], 0)
        places = np.cumsum(counts)
        rows = self._order[np.arange(places[-1]) + np.repeat(ends - places, counts)]
        return rows, counts


class RecordGroup:
    """Log-likelihoods of the records in one group of observed variables."""

    def __init__(self, graphs: RowGraphs) -> None:
        self._find = RowsByRecord(graphs.labels[0], graphs.n_records)
        index = pt.vector("index", dtype="int64")
        each, gathered = rows_at(graphs.rows, index)
        n_rows = (
            graphs.n_records if self._find.one_each else 0
        )  # 0: rows are asked for by number only
        inputs, total = [graphs.theta], reduce(add, each)
        self._function = RowFunction(inputs, index, gathered, total, n_rows, graphs.options)

    def load(self, arrays: Mapping[Variable, np.ndarray], n_records: int) -> None:
        """See `RecordGroups.load`."""
        self._find.n_records = n_records
        self._function.load(arrays, n_records)

    def __call__(self, thetas: Sequence[np.ndarray], index: np.ndarray) -> list[np.ndarray]:
        if self._find.one_each:
            return self._rows(thetas, index)
        rows, counts = self._find(index)
        if len(rows) == 0:  # compiled functions may fail on empty arrays
            return [np.zeros(len(index)) for _ in thetas]
        owners = np.repeat(np.arange(len(index)), counts)
        return [
            np.bincount(owners, weights=values, minlength=len(index))
            for values in self._rows(thetas, rows)
        ]

    def _rows(self, thetas: Sequence[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
        gathered = self._function.gather(rows)
        return [self._function([theta], gathered) for theta in thetas]

    @property
    def has_loop(self) -> bool:
        """Whether `all_rows` can be used, and is faster than a call for all records at once."""
        return self._function.has_loop

    def all_rows(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihoods of all records, by a compiled loop over blocks."""
        logp = np.empty(self._find.n_records)
        self._function.loop(_fill_all, [theta], self._function.width, logp)
        return logp

    def block_callback(self, theta: np.ndarray, logp: np.ndarray) -> tuple[Callable, tuple]:
        """See `BatchLikelihood.block_callback`."""
        function, inputs = self._function.compiled([theta])
        return _fill, (logp, function, inputs)


@compiled_loop
def _fill(begin: int, end: int, logp: np.ndarray, function: Callable, inputs: tuple) -> None:
    """Fill in the log-likelihood of each record of a block, ``-inf`` where it is not a number."""
    before, after = inputs
    (values,) = function(*before, np.array(begin), np.array(end), *after)
    logp[begin:end] = values
    for i in range(begin, end):
        if np.isnan(logp[i]):
            logp[i] = -np.inf


@compiled_loop
def _fill_all(function: Callable, inputs: tuple, limits: tuple, logp: np.ndarray) -> None:
    """All records: see `RowFunction.loop`."""
    begin, end, length = limits
    for a in range(begin, end, length):
        _fill(a, min(a + length, end), logp, function, inputs)
