"""Sums over records of gradients, each clipped and rounded to a dyadic grid."""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import add

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Apply, Variable
from pytensor.scalar import ScalarMaximum
from pytensor.tensor.elemwise import Elemwise

from pymc_dp.model.graphs.compiling import compile_frozen, quiet_compilers
from pymc_dp.model.graphs.data_variables import rebuilt
from pymc_dp.model.graphs.row_gradients import row_gradients
from pymc_dp.model.sums.batch_likelihood import BatchLikelihood, Gathered, RecordGroups, RowGraphs
from pymc_dp.model.sums.clipped_vectors import (
    add_columns,
    add_rows,
    larger_over_own,
    sum_of_unbiased,
)
from pymc_dp.model.sums.exact_sums import grid
from pymc_dp.model.sums.record_groups import RecordGroupGradients
from pymc_dp.model.sums.vector_sums import count_norms, sum_products

__all__ = ["RecordGradients", "check_bound"]

CHUNK = 2**16  # numbers per chunk, which with its data stays in the cache
MAX_EXPONENT = 400  # of a grid whose unit compiled code may square
MAX_ROWS = 2**20  # per chunk: sums of so many integers below 2**31 are exact in float64


class RecordGradients(RecordGroups):
    """Clipped sums of the records' gradients, all computed in one reverse pass, see `row_gradients`."""

    def __init__(self, likelihood: BatchLikelihood, log_prior: Variable, graphs: RowGraphs) -> None:
        super().__init__(graphs)
        self._likelihood = likelihood
        self._prior: tuple | None = graphs.theta, log_prior, graphs.options
        self._grad_log_prior: Callable | None = None

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """`RecordLikelihood.grad_log_prior`."""
        if self._grad_log_prior is None:
            assert self._prior is not None
            variable, log_prior, options = self._prior
            gradient = pt.grad(log_prior, variable, disconnected_inputs="ignore")
            with quiet_compilers():
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
        unbiased: bool = False,
    ) -> np.ndarray:
        """`RecordLikelihood.clipped_grad_steps`; arguments are not checked."""
        exponent, limit = grid(bound)
        n_columns = len(theta) if directions is None else directions.shape[-1]
        is_zero = limit == 0 or n_columns == 0
        groups = self._groups
        in_blocks = index is None and len(groups) == 1 and groups[0].has_loop
        in_blocks = in_blocks and not (is_zero or unbiased) and abs(exponent) <= MAX_EXPONENT
        callback = None if logp is None else self._fill(logp, theta, in_blocks)
        if is_zero:
            return np.zeros(n_columns, dtype=np.int64)
        unit, length = math.ldexp(1.0, -exponent), math.ldexp(bound, -exponent)
        # The norm is computed from n squares and as many additions, a root, a division and two
        # products with relative errors of 2**-53 each: less than (n / 2 + 5) * 2**-53 in all. With
        # twice this margin, no vector of integers is longer than the bound.
        length *= 1 - (n_columns + 16) * 2.0**-52
        if in_blocks:
            return groups[0].clipped_sum(theta, directions, unit, length, callback)
        vectors = self._vectors(theta, index, directions)
        if unbiased:
            return self._add_up_unbiased(vectors, theta, index, n_columns, unit, length)
        return self._add_up(vectors, n_columns, exponent, length)

    def _fill(
        self, logp: np.ndarray, theta: np.ndarray, in_blocks: bool
    ) -> tuple[Callable, tuple] | None:
        """Fill in log-likelihoods, now or by the callback that is returned."""
        callback = self._likelihood.block_callback(theta, logp) if in_blocks else None
        if callback is None:
            logp[:] = self._likelihood.all_records(theta)
        return callback

    def _add_up(
        self, vectors: Iterator[np.ndarray], n_columns: int, exponent: int, length: float
    ) -> np.ndarray:
        """Sum of the rows of some matrices, clipped to a length, in steps of a grid."""
        steps = np.zeros(n_columns, dtype=np.int64)
        # Decided by the model, not chunk by chunk, because the two differ in rounding.
        by_column = all(group.by_column for group in self._groups)
        for chunk in vectors:
            scaled, unit = chunk, math.ldexp(1.0, -exponent)
            if abs(exponent) > MAX_EXPONENT:
                with np.errstate(over="ignore", invalid="ignore"):
                    scaled, unit = chunk * unit, 1.0
            factors, total = np.empty(len(chunk)), np.zeros(n_columns)
            add_vectors, layout = (add_columns, scaled.T) if by_column else (add_rows, scaled)
            add_vectors(np.ascontiguousarray(layout), unit, length, factors, total)
            steps += total.astype(np.int64)
        return steps

    def _add_up_unbiased(
        self,
        vectors: Iterator[np.ndarray],
        theta: np.ndarray,
        index: np.ndarray | None,
        n_columns: int,
        unit: float,
        length: float,
    ) -> np.ndarray:
        """The same, multiplied by factors that do not depend on outcomes."""
        steps, begin = np.zeros(n_columns, dtype=np.int64), 0
        for chunk in vectors:
            records = np.arange(begin, begin + len(chunk))
            logp = self._likelihood([theta], records if index is None else index[records])[0]
            ratios = larger_over_own(logp)
            steps += sum_of_unbiased(chunk, ratios, unit, length).astype(np.int64)
            begin += len(chunk)
        return steps

    def plain_sum(
        self, theta: np.ndarray, index: np.ndarray | None, directions: np.ndarray | None
    ) -> np.ndarray:
        """Sum of all finite gradients."""
        total = np.zeros(len(theta) if directions is None else directions.shape[-1])
        for vectors in self._vectors(theta, index, directions):
            finite = np.isfinite(vectors).all(axis=1)
            with np.errstate(over="ignore", invalid="ignore"):
                total += vectors.sum(axis=0) if finite.all() else vectors[finite].sum(axis=0)
        return total

    def norm_counts(
        self, theta: np.ndarray, directions: np.ndarray, edges: np.ndarray
    ) -> np.ndarray:
        """`RecordLikelihood.norm_counts`."""
        return count_norms(self._vectors(theta, None, directions), edges)

    def product_steps(self, theta: np.ndarray, directions: np.ndarray, bound: float) -> np.ndarray:
        """`RecordLikelihood.product_steps`."""
        return sum_products(self._vectors(theta, None, directions), directions.shape[-1], bound)

    def each(
        self,
        theta: np.ndarray,
        index: np.ndarray | None = None,
        directions: np.ndarray | None = None,
    ) -> np.ndarray:
        """``directions.T @ gradient`` of each record, not clipped, as rows of a matrix."""
        parts = [*self._vectors(theta, index, directions)]
        n_columns = len(theta) if directions is None else directions.shape[-1]
        return np.concatenate(parts) if parts else np.zeros((0, n_columns))

    def of(self, theta: np.ndarray, gathered: list[Gathered]) -> np.ndarray:
        """Gradients of records that were gathered, as rows of a matrix."""
        gradients = [group.at(theta, None) for group in self._groups]
        with np.errstate(invalid="ignore", over="ignore"):
            return reduce(add, [of(g) for of, g in zip(gradients, gathered, strict=True)])

    @property
    def chunk(self) -> int:
        """Number of records whose gradients are computed at once.

        A multiple of 64, so that each row has the same place in vector instructions in all chunks.
        """
        width = max(group.width for group in self._groups)
        return min(max(64, CHUNK // width // 64 * 64), MAX_ROWS)

    def _vectors(
        self, theta: np.ndarray, index: np.ndarray | None, directions: np.ndarray | None
    ) -> Iterator[np.ndarray]:
        """``directions.T @ gradient`` of each record, as rows of matrices, one for each chunk of records."""
        n_records = self._n_records if index is None else len(index)
        if n_records == 0:
            return
        gradients = [group.at(theta, directions) for group in self._groups]
        for begin in range(0, n_records, length := self.chunk):
            chunk = slice(begin, min(begin + length, n_records))
            records = chunk if index is None else index[chunk]
            with np.errstate(invalid="ignore", over="ignore"):
                gathered = [group.gather(records) for group in self._groups]
                yield reduce(add, [of(g) for of, g in zip(gradients, gathered, strict=True)])

    def _compile(self, group: RowGraphs) -> RecordGroupGradients:
        index = pt.vector("index", dtype="int64")
        gradients = row_gradients(group.theta, _with_middles(group.rows), index)
        return RecordGroupGradients(gradients, index, group)


def check_bound(bound: float) -> None:
    """Raise ValueError unless a number can bound clipped gradients."""
    if not 0 <= bound < math.inf:
        raise ValueError(f"bound must be 0 or more, and finite, not {bound}")


def _with_middles(graphs: Sequence[Variable]) -> list[Variable]:
    """Graphs in which the derivative of ``maximum(a, b)`` at its kink is the middle one, 1/2.

    PyTensor has 1 there, but the middle one for the absolute value. `freeze` writes softplus with
    both, and their kinks cancel only if both have the middle one. Chains do visit the kinks: where
    all coefficients are 0, as at many initial points, all linear predictors are 0.
    """

    def middle(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        is_maximum = isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, ScalarMaximum)
        if not is_maximum or node.outputs[0].dtype != "float64":
            return None
        a, b = inputs
        return [pt.switch(pt.eq(a, b), 0.5 * (a + b), node.op(a, b))]

    return rebuilt(graphs, {}, middle)
