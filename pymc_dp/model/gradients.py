"""Sums over records of gradients, each clipped and rounded to a dyadic grid."""

from __future__ import annotations

import math
import warnings

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import toposort
from pytensor.scalar import ScalarMaximum
from pytensor.tensor.elemwise import Elemwise

from pymc_dp.errors import PerformanceWarning
from pymc_dp.model.batches import BatchLikelihood, group_by_label
from pymc_dp.model.clipped_vectors import add_columns, add_rows
from pymc_dp.model.clipping import grid
from pymc_dp.model.compiling import compile_frozen
from pymc_dp.model.indexing import Blocked
from pymc_dp.model.row_gradients import row_gradients
from pymc_dp.model.table_gradients import TableGradients
from pymc_dp.model.units import per_record

__all__ = ["RecordGradients", "check_bound"]

N_TRIALS = 3  # random points at which gradients are compared with differences
CHUNK = 2**16  # numbers per chunk, which with its data stays in the cache
MAX_EXPONENT = 400  # of a grid whose unit compiled code may square
MAX_ROWS = 2**20  # per chunk: sums of so many whole numbers below 2**31 are exact in float64


class RecordGradients:
    """Clipped sums of the records' gradients.

    Nothing is compiled before the first use. What is compiled then is a gradient for each row in one
    reverse pass. Where the walk to the data is blocked, gradients are put together from directional
    derivatives of all records, with a warning. On simulated records gradients are compared with
    differences of the log-likelihoods; on private ones nothing is tried out, as a warning would then
    depend on their values.

    Parameters
    ----------
    likelihood : BatchLikelihood
    start : array of shape (n_dim,)
        Point near which gradients are tried out.
    theta : Variable
        Vector of all parameters.
    log_prior : Variable
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
        likelihood: BatchLikelihood,
        start: np.ndarray,
        theta: Variable,
        log_prior: Variable,
        rows: Sequence[Variable],
        labels: Sequence[np.ndarray],
        n_records: int,
        options: dict[str, Any],
        simulated: bool = False,
    ) -> None:
        self._likelihood, self._start, self._n_records = likelihood, start, n_records
        self._simulated = simulated
        self._graphs: tuple | None = theta, rows, labels, options
        self._tables: list[TableGradients] = []
        self._by_column = False
        self._derivative: Callable | None = None  # of all records in one direction
        self._prior: tuple | None = theta, log_prior, options
        self._grad_log_prior: Callable | None = None

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """`RecordLikelihood.grad_log_prior`."""
        if self._grad_log_prior is None:
            assert self._prior is not None
            variable, log_prior, options = self._prior
            gradient = pt.grad(log_prior, variable, disconnected_inputs="ignore")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # see `_build`
                self._grad_log_prior = compile_frozen([variable], gradient, options)
                self._grad_log_prior(theta)
            self._prior = None
        return self._grad_log_prior(theta)

    def clipped_steps(
        self,
        bound: float,
        theta: np.ndarray,
        index: np.ndarray | None,
        directions: np.ndarray | None,
        logp: np.ndarray | None = None,
    ) -> tuple[np.ndarray, int]:
        """`RecordLikelihood.clipped_grad_steps`; arguments are trusted."""
        exponent, limit = grid(bound)
        n_columns = len(theta) if directions is None else directions.shape[-1]
        steps = np.zeros(n_columns, dtype=np.int64)
        nothing, extreme = limit == 0 or n_columns == 0, abs(exponent) > MAX_EXPONENT
        if self._graphs is not None:
            self._build()
        in_blocks = index is None and not nothing and not extreme
        in_blocks = in_blocks and len(self._tables) == 1 and self._tables[0].has_loop
        also = None
        if logp is not None:
            also = self._likelihood.filling(theta, logp) if in_blocks else None
            if also is None:
                logp[:] = self._likelihood.all_records(theta)
        if nothing:
            return steps, exponent
        unit, length = math.ldexp(1.0, -exponent), math.ldexp(bound, -exponent)
        # The norm comes out of n squares and as many additions, a root, a division and two products
        # with relative errors of 2**-53 each, which is less than (n / 2 + 5) * 2**-53 in all: with
        # this much to spare, twice that, no vector of whole numbers is longer than the bound.
        length *= 1 - (n_columns + 16) * 2.0**-52
        left = 1.0 if extreme else unit
        if in_blocks:
            steps = self._tables[0].clipped_sum(theta, directions, unit, length, also)
            return steps, exponent
        ahead = np.empty(0, dtype=np.uint8)  # these are all here
        for vectors in self._vectors(theta, index, directions):
            factors, total = np.empty(len(vectors)), np.zeros(n_columns)
            if extreme:
                with np.errstate(over="ignore", invalid="ignore"):
                    vectors = vectors * unit
            # By what the model is like, never by chunk, as the two differ in rounding.
            if self._by_column:
                add_columns(np.ascontiguousarray(vectors.T), left, length, factors, total, ahead)
            else:
                add_rows(np.ascontiguousarray(vectors), left, length, factors, total, ahead)
            steps += total.astype(np.int64)
        return steps, exponent

    def plain_sum(
        self, theta: np.ndarray, index: np.ndarray | None, directions: np.ndarray | None
    ) -> np.ndarray:
        """Sum of all finite gradients."""
        total = np.zeros(len(theta) if directions is None else directions.shape[-1])
        if self._graphs is not None:
            self._build()
        for vectors in self._vectors(theta, index, directions):
            finite = np.isfinite(vectors).all(axis=1)
            with np.errstate(over="ignore", invalid="ignore"):
                total += vectors.sum(axis=0) if finite.all() else vectors[finite].sum(axis=0)
        return total

    def each(self, theta: np.ndarray, index: np.ndarray | None = None) -> np.ndarray:
        """Gradient of each record, not clipped, as rows of a matrix."""
        if self._graphs is not None:
            self._build()
        parts = [*self._vectors(theta, index, None)]
        return np.concatenate(parts) if parts else np.zeros((0, len(theta)))

    def refresh(self) -> None:
        """See `BatchLikelihood.refresh`."""
        for table in self._tables:
            table.refresh()

    def _vectors(
        self, theta: np.ndarray, index: np.ndarray | None, directions: np.ndarray | None
    ) -> Iterator[np.ndarray]:
        """``directions.T @ gradient`` of some records after others, as rows of a matrix."""
        n_records = self._n_records if index is None else len(index)
        if n_records == 0:
            return
        if not self._tables:
            assert self._derivative is not None
            yield from _directional(self._derivative, theta, index, directions)
            return
        tables = [table.at(theta, directions) for table in self._tables]
        width = max(table.width for table in self._tables)
        # Multiples of 64, so that rows have the same place in vector instructions in all chunks.
        length = min(max(64, CHUNK // width // 64 * 64), MAX_ROWS)
        for begin in range(0, n_records, length):
            chunk = slice(begin, min(begin + length, n_records))
            records = chunk if index is None else index[chunk]
            with np.errstate(invalid="ignore", over="ignore"):
                yield reduce(add, [table(records) for table in tables])

    def _build(self) -> None:
        assert self._graphs is not None
        theta, rows, labels, options = self._graphs
        self._graphs = None
        rows = _with_middles(rows)
        with warnings.catch_warnings():
            # Numba says where it cannot compile, or not well, which is no reason to give up.
            warnings.simplefilter("ignore")
            try:
                index = pt.vector("index", dtype="int64")
                self._tables = [
                    TableGradients(
                        row_gradients(theta, members, index),
                        theta,
                        index,
                        label,
                        self._n_records,
                        options,
                    )
                    for label, members in group_by_label(rows, labels)
                ]
                self._by_column = all(table.by_column for table in self._tables)
                if not self._simulated or self._agrees():
                    return
                obstacle = "some operation that gives a row other values when it is alone"
            except Blocked as error:
                obstacle = f"the operation {error}"
            except Exception as error:  # the way round is there for any model
                obstacle = f"some operation (there was a {type(error).__name__})"
            self._tables, self._by_column = [], False
            logp = per_record(rows, labels, self._n_records)
            self._derivative = compile_frozen(*_derivative(theta, logp), options)
        warnings.warn(
            "Gradients of records will be right, but take a pass over all data for each direction, and "
            f"the memory of a matrix of all of them: {obstacle}, between the data and the "
            "likelihood, works on all rows at once, as far as can be told. Compute it in NumPy if "
            "no parameters are involved; otherwise use elementwise operations, matrix products and "
            "indexing.",
            PerformanceWarning,
            stacklevel=6,
        )

    def _agrees(self) -> bool:
        # Fixed: how gradients are computed must not differ between runs.
        rng = np.random.default_rng(20240218)
        for _ in range(N_TRIALS):
            theta = self._start + rng.normal(scale=0.3, size=self._start.shape)
            direction = rng.normal(size=theta.shape)
            index = np.append(rng.integers(self._n_records, size=30), [self._n_records - 1, 0])
            (found,) = self._vectors(theta, index, direction[:, None])
            with np.errstate(all="ignore"):
                at = {
                    h: self._likelihood.full(theta + h * direction)[index]
                    for h in (-2e-4, -1e-4, 1e-4, 2e-4)
                }
                near, far = (at[1e-4] - at[-1e-4]) / 2e-4, (at[2e-4] - at[-2e-4]) / 4e-4
                # Differences of differences tell what they are worth; the last term is rounding.
                tolerance = np.abs(far - near) + 1e-6 * (1 + np.abs(near) + 1e-4 * np.abs(at[1e-4]))
                wrong = np.abs(found[:, 0] - near) > tolerance
            if wrong.any():
                return False
        return True


def check_bound(bound: float) -> None:
    """Refuse what is no bound of clipped gradients."""
    if not 0 <= bound < math.inf:
        raise ValueError(f"bound must be 0 or more, and finite, not {bound}")


def _with_middles(graphs: Sequence[Variable]) -> list[Variable]:
    """Graphs whose derivative is the middle one where ``maximum(a, b)`` has a kink.

    PyTensor has 1, and for the absolute value the middle. `freeze` writes softplus with both, and
    their kinks cancel in this way only. They are met: where all coefficients are 0, and many a
    chain starts, so are all predictors.
    """
    new: dict[Variable, Variable] = {}
    for node in toposort(graphs):
        outputs = node.clone_with_new_inputs([new.get(v, v) for v in node.inputs]).outputs
        is_maximum = isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, ScalarMaximum)
        if is_maximum and outputs[0].dtype == "float64":
            a, b = outputs[0].owner.inputs
            outputs = [pt.switch(pt.eq(a, b), 0.5 * (a + b), outputs[0])]
        new.update(zip(node.outputs, outputs, strict=True))
    return [new.get(graph, graph) for graph in graphs]


def _derivative(theta: Variable, logp: Variable) -> tuple[list[Variable], Variable]:
    """Derivative of each record's log-likelihood along a direction, in two reverse passes.

    The gradient of ``weights @ logp`` is linear in the weights: the derivative of its product with
    the direction, with respect to the weights, is what each record contributes.
    """
    direction, weights = (pt.vector(name, dtype="float64") for name in ("direction", "weights"))
    gradient = pt.grad((weights * logp).sum(), theta)
    along = pt.grad((gradient * direction).sum(), weights, disconnected_inputs="ignore")
    return [theta, direction], graph_replace(along, {weights: pt.ones(logp.shape)}, strict=False)


def _directional(
    derivative: Callable,
    theta: np.ndarray,
    index: np.ndarray | None,
    directions: np.ndarray | None,
) -> Iterator[np.ndarray]:
    if directions is None:
        directions = np.ones(len(theta))
    if directions.ndim == 1:
        directions = np.diag(directions)
    columns = []
    for direction in directions.T:
        column = derivative(theta, direction.copy())
        columns.append(column if index is None else column[index])
    matrix = np.stack(columns, axis=1) if columns else np.zeros((0, 0))
    for begin in range(0, len(matrix), MAX_ROWS):
        yield matrix[begin : begin + MAX_ROWS]
