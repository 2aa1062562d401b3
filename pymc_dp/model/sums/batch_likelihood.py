"""Log-likelihoods of a batch of records, at the cost of the batch, or of all records in blocks of rows."""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Variable

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.compiling import compile_frozen, quiet_compilers
from pymc_dp.model.graphs.index_entries import Blocked
from pymc_dp.model.graphs.row_subsets import rows_at
from pymc_dp.model.sums.exact_sums import sum_of_steps
from pymc_dp.model.sums.row_functions import RowFunction, block_length, compiled_loop, is_rehearsal

MANY = 2**19  # numbers, above which a loop over blocks is faster than one call


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
        self.n_records = graphs.n_records
        self._graphs: RowGraphs | None = graphs
        self._compiled_groups: list[Any] = []

    @property
    def groups(self) -> list[Any]:
        """Of observed variables; compiled by the first call."""
        if self._graphs is not None:
            with quiet_compilers(), refuse_blocked():
                self._compiled_groups = [self._compile(group) for group in _by_label(self._graphs)]
            self._graphs = None
        return self._compiled_groups

    def _compile(self, group: RowGraphs) -> Any:
        raise NotImplementedError

    def load(self, arrays: Mapping[Variable, np.ndarray], n_records: int) -> None:
        """Compute with these arrays, by variable, of so many records with one row each."""
        self.n_records = n_records
        for group in self.groups:
            group.load(arrays, n_records)

    def gather(self, index: np.ndarray) -> list[Gathered]:
        """Copies of the rows of some records, for each group."""
        return [group.gather(index) for group in self.groups]

    def join(self, parts: Sequence[list[Gathered]]) -> list[Gathered]:
        """What was gathered several times, of different data even, as if it were gathered at once."""
        return [group.join(of) for group, of in zip(self.groups, zip(*parts, strict=True), strict=True)]  # fmt: skip

    def replaced(
        self, gathered: list[Gathered], arrays: Mapping[Variable, np.ndarray]
    ) -> list[Gathered]:
        """What was gathered, with these arrays in place of some data."""
        return [
            g._replace(rows=group._function.replaced(g.rows, arrays))
            for group, g in zip(self.groups, gathered, strict=True)
        ]

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
    """Log-likelihood of each record, of a batch or of all; `logp` is its graph for all records at once."""

    def __init__(self, logp: Variable, graphs: RowGraphs) -> None:
        super().__init__(graphs)
        self._full_graph = [graphs.theta], logp, graphs.options

    def __call__(self, thetas: Sequence[np.ndarray], index: np.ndarray) -> list[np.ndarray]:
        """Log-likelihoods at each of some points, ``-inf`` where they are not numbers; arguments are not checked."""
        groups = self.groups  # without records, too: this raises if rows cannot be computed alone
        if len(index) == 0:
            return [np.empty(0) for _ in thetas]
        return _totals([group.of(thetas, group.gather(index)) for group in groups])

    def of(self, thetas: Sequence[np.ndarray], gathered: list[Gathered]) -> list[np.ndarray]:
        """The same for records that were gathered."""
        return _totals([group.of(thetas, g) for group, g in zip(self.groups, gathered, strict=True)])  # fmt: skip

    def all_records(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihoods of all records, the same numbers as those of a batch."""
        if not self._by_rows:
            return np.zeros(self.n_records) if is_rehearsal() else self.full(theta)
        return _totals([[group.all_records(theta)] for group in self.groups])[0]

    def clipped_change(self, new: np.ndarray, old: np.ndarray, scale: float, limit: float) -> int:
        """`sum_of_steps` of the log-likelihoods of all records at two points, without an array of them."""
        if not self._by_rows:
            if is_rehearsal():
                return 0
            return sum_of_steps(self.full(new), self.full(old), scale, limit)
        if self.has_blocks:
            return self.groups[0].clipped_change(new, old, scale, limit)
        length = block_length(max(group.width for group in self.groups))
        total = 0
        for begin in range(0, self.n_records, length):
            records = np.arange(begin, min(begin + length, self.n_records))
            total += sum_of_steps(*self([new, old], records), scale, limit)
        return total

    @cached_property
    def full(self) -> Callable[[np.ndarray], np.ndarray]:
        """All records at once, for models whose rows cannot be computed alone.

        The last bits may differ from those of `all_records`.
        """
        with quiet_compilers():
            return compile_frozen(*self._full_graph)

    @cached_property
    def _by_rows(self) -> bool:
        try:
            return len(self.groups) > 0
        except UnsupportedModel:
            return False

    def block_callback(self, theta: np.ndarray, logp: np.ndarray) -> tuple[Callable, tuple] | None:
        """A compiled function of the limits of a block, and its further arguments, to fill in `logp`.

        For another loop over blocks of all records, which has just read their data. None if there
        are no blocks.
        """
        return self.groups[0].block_callback(theta, logp) if self.has_blocks else None

    @property
    def has_blocks(self) -> bool:
        """Whether log-likelihoods of all records can be computed in blocks by a compiled loop."""
        return self._by_rows and len(self.groups) == 1 and self.groups[0].has_loop

    def _compile(self, group: RowGraphs) -> RecordGroup:
        return RecordGroup(group)


def _totals(each: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Sums over groups of observed variables at each point, ``-inf`` where they are not numbers."""
    if len(each) == 1:
        totals = list(each[0])
    else:
        with np.errstate(invalid="ignore"):
            totals = [reduce(add, terms) for terms in zip(*each, strict=True)]
    for total in totals:
        _without_nan(total)
    return totals


@compiled_loop
def _without_nan(values: np.ndarray) -> None:
    """A fixed rule, which depends on one record alone, costs no privacy."""
    for i in range(len(values)):
        if np.isnan(values[i]):
            values[i] = -np.inf


class Gathered(NamedTuple):
    """The rows of some records, in one group of observed variables.

    `rows` are arguments of `RowFunction`, and `counts` how many rows each record has, None if one each.
    """

    rows: list[np.ndarray]
    counts: np.ndarray | None


class RowsOfGroup:
    """The rows of the records in one group of observed variables, from the record that each row belongs to."""

    _function: RowFunction

    def __init__(self, label: np.ndarray, n_records: int) -> None:
        self.n_records = n_records
        self._one_each = np.array_equal(label, np.arange(n_records))  # and in this order
        if not self._one_each:
            self._order = np.argsort(label, kind="stable")  # rows, sorted by record
            self._ends = np.cumsum(np.bincount(label, minlength=n_records))

    def _rows_of(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the rows, record by record, and how many rows each record has."""
        ends = self._ends[index]
        counts = ends - np.where(index > 0, self._ends[index - 1], 0)
        places = np.cumsum(counts)
        rows = self._order[np.arange(places[-1]) + np.repeat(ends - places, counts)]
        return rows, counts

    def gather(self, records: slice | np.ndarray) -> Gathered:
        """The rows of some records, at least one."""
        if self._one_each:
            return Gathered(self._function.gather(records), None)
        if isinstance(records, slice):
            records = np.arange(records.start, records.stop)
        rows, counts = self._rows_of(records)
        return Gathered(self._function.gather(rows), counts)

    def join(self, parts: Sequence[Gathered]) -> Gathered:
        """See `RecordGroups.join`."""
        counts = None if self._one_each else np.concatenate([p.counts for p in parts])
        return Gathered(self._function.join([p.rows for p in parts]), counts)


class RecordGroup(RowsOfGroup):
    """Log-likelihoods of the records in one group of observed variables."""

    def __init__(self, graphs: RowGraphs) -> None:
        (label,) = graphs.labels
        super().__init__(label, graphs.n_records)
        self._label, self._n_rows = None if self._one_each else label, len(label)
        index = pt.vector("index", dtype="int64")
        each, gathered = rows_at(graphs.rows, index)
        inputs, total, n_rows = [graphs.theta], reduce(add, each), self._n_rows
        self._function = RowFunction(inputs, index, gathered, total, n_rows, graphs.options)
        self.width = self._function.width * max(1, math.ceil(n_rows / graphs.n_records))

    def load(self, arrays: Mapping[Variable, np.ndarray], n_records: int) -> None:
        """See `RecordGroups.load`."""
        self._n_rows = self.n_records = n_records
        self._function.load(arrays, n_records)

    def of(self, thetas: Sequence[np.ndarray], gathered: Gathered) -> list[np.ndarray]:
        """See `BatchLikelihood.of`."""
        rows, counts = gathered
        if counts is None:
            return [self._function([theta], rows) for theta in thetas]
        if not counts.any():  # compiled functions may fail on empty arrays
            return [np.zeros(len(counts)) for _ in thetas]
        owners = np.repeat(np.arange(len(counts)), counts)
        return [
            np.bincount(owners, weights=self._function([theta], rows), minlength=len(counts))
            for theta in thetas
        ]

    @property
    def has_loop(self) -> bool:
        """Whether there is a loop, and each record has one row."""
        return self._one_each and self._function.has_loop

    def all_records(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihoods of all records, by a compiled loop over blocks of rows if there are many."""
        if self._function.has_loop and self._n_rows * self._function.width > MANY:
            values = np.empty(self._n_rows)
            self._function.loop(_fill_all, [theta], self._function.width, values)
        else:
            values = self._function([theta], self._function.gather(slice(0, self._n_rows)))
        if self._label is None:
            return values
        # The rows of a record are added in their order, as in a batch.
        return np.bincount(self._label, weights=values, minlength=self.n_records)

    def clipped_change(self, new: np.ndarray, old: np.ndarray, scale: float, limit: float) -> int:
        """`sum_of_steps` for all records: both points block by block, while the data are in the cache."""
        _, before = self._function.compiled([old])
        arguments = before, scale, limit
        return sum(self._function.loop(_change, [new], self._function.width, *arguments))

    def block_callback(self, theta: np.ndarray, logp: np.ndarray) -> tuple[Callable, tuple]:
        """See `BatchLikelihood.block_callback`."""
        function, inputs = self._function.compiled([theta])
        return _fill, (logp, function, inputs)


@compiled_loop
def _fill(begin: int, end: int, logp: np.ndarray, function: Callable, inputs: tuple) -> None:
    """Fill in the log-likelihood of each record of a block, ``-inf`` where it is not a number."""
    logp[begin:end] = _block(begin, end, function, inputs)


@compiled_loop
def _block(begin: int, end: int, function: Callable, inputs: tuple) -> np.ndarray:
    before, after = inputs
    (values,) = function(*before, np.array(begin), np.array(end), *after)
    _without_nan(values)
    return values


@compiled_loop
def _fill_all(function: Callable, inputs: tuple, limits: tuple, logp: np.ndarray) -> None:
    """All records: see `RowFunction.loop`."""
    begin, end, length = limits
    for a in range(begin, end, length):
        _fill(a, min(a + length, end), logp, function, inputs)


@compiled_loop
def _change(
    function: Callable, inputs: tuple, limits: tuple, old: tuple, scale: float, limit: float
) -> int:
    """`sum_of_steps` of the changes from `old`, the inputs of the function at another point."""
    begin, end, length = limits
    total = 0
    for a in range(begin, end, length):
        b = min(a + length, end)
        values = _block(a, b, function, inputs)
        total += sum_of_steps(values, _block(a, b, function, old), scale, limit)
    return total
