"""Sums over records of gradients, each clipped and rounded to a dyadic grid."""

from __future__ import annotations

import math
import warnings

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_dp.errors import PerformanceWarning
from pymc_dp.model.batches import group_by_label
from pymc_dp.model.clipping import grid
from pymc_dp.model.compiling import compile_frozen
from pymc_dp.model.indexing import Blocked
from pymc_dp.model.roots import INTERPRETED
from pymc_dp.model.row_gradients import row_gradients
from pymc_dp.model.table_gradients import TableGradients

__all__ = ["RecordGradients"]

N_TRIALS = 3  # random points at which gradients of rows are compared with directional derivatives
CHUNK = 2**16  # numbers per chunk, which with its data stays in the cache
MAX_ROWS = 2**20  # per chunk: sums of so many whole numbers below 2**31 are exact in float64


class RecordGradients:
    """Clipped sums of the records' gradients.

    Nothing is compiled before the first use. What is compiled then, a gradient for each row in one
    reverse pass, is compared with directional derivatives of the log-likelihood of all records.
    Where the walk to the data is blocked, or the two do not agree, sums are made of directional
    derivatives, with a warning.

    Parameters
    ----------
    start : array of shape (n_dim,)
        Point near which gradients are tried out.
    theta : Variable
        Vector of all parameters.
    logp : Variable
        Log-likelihood of all records.
    log_prior : Variable
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
        start: np.ndarray,
        theta: Variable,
        logp: Variable,
        log_prior: Variable,
        rows: Sequence[Variable],
        labels: Sequence[np.ndarray],
        n_records: int,
        options: dict[str, Any],
    ) -> None:
        self._start, self._n_records = start, n_records
        self._graphs: tuple | None = theta, logp, rows, labels, options
        self._tables: list[TableGradients] = []
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
    ) -> tuple[np.ndarray, int]:
        """`RecordLikelihood.clipped_grad_steps`; arguments are trusted, except for the bound."""
        if not 0 <= bound < math.inf:
            raise ValueError(f"bound must be 0 or more, and finite, not {bound}")
        exponent, limit = grid(bound)
        n_columns = len(theta) if directions is None else directions.shape[-1]
        steps = np.zeros(n_columns, dtype=np.int64)
        if limit == 0:
            return steps, exponent
        unit, length = math.ldexp(1.0, -exponent), math.ldexp(bound, -exponent)
        # The norm comes out of n squares and as many additions, a root, a division and two products
        # with relative errors of 2**-53 each, which is less than (n / 2 + 5) * 2**-53 in all: with
        # this much to spare, twice that, no vector of whole numbers is longer than the bound.
        length *= 1 - (n_columns + 16) * 2.0**-52
        for vectors in self._vectors(theta, index, directions):
            total = np.zeros(n_columns)
            _add_clipped(vectors, unit, length, total)
            steps += total.astype(np.int64)
        return steps, exponent

    def plain_sum(
        self, theta: np.ndarray, index: np.ndarray | None, directions: np.ndarray | None
    ) -> np.ndarray:
        """Sum of all finite gradients."""
        total = np.zeros(len(theta) if directions is None else directions.shape[-1])
        for vectors in self._vectors(theta, index, directions):
            finite = np.isfinite(vectors).all(axis=1)
            total += vectors.sum(axis=0) if finite.all() else vectors[finite].sum(axis=0)
        return total

    def _vectors(
        self, theta: np.ndarray, index: np.ndarray | None, directions: np.ndarray | None
    ) -> Iterator[np.ndarray]:
        """``directions.T @ gradient`` of some records after others, as rows of a matrix."""
        if self._graphs is not None:
            self._build()
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
        theta, logp, rows, labels, options = self._graphs
        self._graphs = None
        derivative = _derivative(theta, logp)
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
                reference = compile_frozen(*derivative, {"mode": INTERPRETED})
                if self._agrees(reference):
                    return
                obstacle = "some operation that gives a row other values when it is alone"
            except Blocked as error:
                obstacle = f"the operation {error}"
            except Exception as error:  # the way round is there for any model
                obstacle = f"some operation (there was a {type(error).__name__})"
            self._tables = []
            self._derivative = compile_frozen(*derivative, options)
        warnings.warn(
            "Gradients of records will be right, but take a pass over all data for each direction, "
            f"twice: {obstacle}, between the data and the likelihood, works on all rows at once, as "
            "far as can be told. Compute it in NumPy if no parameters are involved; otherwise use "
            "elementwise operations, matrix products and indexing.",
            PerformanceWarning,
            stacklevel=5,
        )

    def _agrees(self, derivative: Callable) -> bool:
        # Fixed: how gradients are computed must not differ between runs.
        rng = np.random.default_rng(20240218)
        for _ in range(N_TRIALS):
            theta = self._start + rng.normal(scale=0.3, size=self._start.shape)
            direction = rng.normal(size=theta.shape)
            index = np.append(rng.integers(self._n_records, size=30), [self._n_records - 1, 0])
            with np.errstate(all="ignore"):
                expected = derivative(theta, direction)[index]
            (found,) = self._vectors(theta, index, direction[:, None])
            fine = np.isfinite(expected)
            if not np.allclose(found[fine, 0], expected[fine], rtol=1e-7, atol=1e-7):
                return False
        return True


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


@numba.njit(nogil=True)
def _add_clipped(
    vectors: np.ndarray, unit: float, length: float, total: np.ndarray
) -> None:  # pragma: no cover (compiled)
    """Add up ``trunc(clip(unit * vector))``, where vectors longer than `length` are scaled down.

    All in a fixed order of operations, vector by vector: what a vector adds does not depend on its
    place. (Four sums of squares, not one, since each addition waits for the one before it.)
    """
    n_vectors, n = vectors.shape
    for i in range(n_vectors):
        a = b = c = d = 0.0
        for j in range(0, n - 3, 4):
            a += (vectors[i, j] * unit) ** 2
            b += (vectors[i, j + 1] * unit) ** 2
            c += (vectors[i, j + 2] * unit) ** 2
            d += (vectors[i, j + 3] * unit) ** 2
        for j in range(n - n % 4, n):
            a += (vectors[i, j] * unit) ** 2
        norm = math.sqrt((a + b) + (c + d))
        if not norm < math.inf:
            continue
        factor = unit if norm <= length else unit * (length / norm)
        for j in range(n):
            total[j] += np.trunc(vectors[i, j] * factor)
