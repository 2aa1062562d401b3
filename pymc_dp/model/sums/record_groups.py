"""Compiled gradients of the records in one group of observed variables, with respect to theta."""

from __future__ import annotations

import math

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import Subtensor

from pymc_dp.model.graphs.data_variables import interpreted
from pymc_dp.model.graphs.ordered_products import product
from pymc_dp.model.graphs.row_gradients import RowGradients
from pymc_dp.model.sums.batch_likelihood import Gathered, RowGraphs, RowsOfGroup
from pymc_dp.model.sums.clipped_vectors import (
    add_columns,
    add_rows,
    columns_times_matrix,
    no_callback,
    sum_of_blocks,
    times_scales,
    unchanged,
)
from pymc_dp.model.sums.row_functions import RowFunction


class RecordGroupGradients(RowsOfGroup):
    """Gradients of the records in one group of observed variables; `index` is an input of `rows`."""

    def __init__(self, rows: RowGradients, index: Variable, graphs: RowGraphs) -> None:
        theta, _, (label,), n_records, options = graphs
        super().__init__(label, n_records)
        n_rows = n_records if self._one_each else 0  # 0: rows are asked for by number only
        inputs = [theta, *rows.inputs]
        self._function = RowFunction(inputs, index, rows.gathered, rows.gradients, n_rows, options)
        self.by_column = rows.by_column
        self._quantities = _Quantities(rows, theta, options)
        self.width = max(self._function.width, self._quantities.size)
        self.width *= max(1, math.ceil(len(label) / n_records))

    def load(self, arrays: Mapping[Variable, np.ndarray], n_records: int) -> None:
        """See `RecordGroups.load`."""
        self.n_records = n_records
        self._function.load(arrays, n_records)

    def at(
        self, theta: np.ndarray, directions: np.ndarray | None
    ) -> Callable[[Gathered], np.ndarray]:
        """Function that maps records, as they were gathered, to ``directions.T @ gradient``."""
        values, jacobian = self._quantities(theta, directions)

        def chain(gradients: np.ndarray) -> np.ndarray:
            if jacobian is None:
                return gradients
            if jacobian.ndim == 1:
                return gradients * jacobian
            if self.by_column:
                return columns_times_matrix(np.ascontiguousarray(gradients.T), jacobian).T
            return product(np.ascontiguousarray(gradients), jacobian)

        def vectors(gathered: Gathered) -> np.ndarray:
            rows, counts = gathered
            if (
                counts is not None and not counts.any()
            ):  # compiled functions may fail on empty arrays
                return chain(np.zeros((len(counts), self._quantities.size)))
            gradients = self._function([theta, *values], rows)
            gradients = gradients.T if self.by_column else gradients
            return chain(gradients if counts is None else _add_up(gradients, counts))

        return vectors

    @property
    def has_loop(self) -> bool:
        """Whether `clipped_sum` can be used, and is faster than sums over chunks."""
        return self._quantities.size > 0 and self._function.has_loop

    def clipped_sum(
        self,
        theta: np.ndarray,
        directions: np.ndarray | None,
        unit: float,
        bound: float,
        callback: tuple[Callable, tuple] | None,
    ) -> np.ndarray:
        """Sum over all records in whole steps, by a compiled loop: see `sum_of_blocks`."""
        values, jacobian = self._quantities(theta, directions)
        n_columns = self._quantities.size if jacobian is None else jacobian.shape[-1]
        if jacobian is None:
            convert, jacobian = unchanged, np.empty(0)
        elif self.by_column:
            convert = columns_times_matrix
            jacobian = np.diag(jacobian).copy() if jacobian.ndim == 1 else jacobian
        else:
            convert = times_scales if jacobian.ndim == 1 else product
        add_vectors = add_columns if self.by_column else add_rows
        function, arguments = callback or (no_callback, ())
        loop = sum_of_blocks(convert, add_vectors, function)
        clipping = n_columns, unit, bound
        parts = self._function.loop(
            loop, [theta, *values], self.width, jacobian, clipping, arguments
        )
        return np.sum(parts, axis=0)


class _Quantities:
    """The quantities of `RowGradients`, as functions of theta, and their derivatives."""

    def __init__(self, rows: RowGradients, theta: Variable, options: dict[str, Any]) -> None:
        sizes = [math.prod(v.type.shape) for v in rows.inputs]
        ends = np.cumsum([0, *sizes])
        self.size, (n_dim,) = int(ends[-1]), theta.type.shape
        self._jacobian = np.zeros((self.size, n_dim))
        self._computed = np.ones(self.size, dtype=bool)
        others = []
        for quantity, begin, end in zip(rows.quantities, ends[:-1], ends[1:], strict=True):
            if not _is_selection(quantity, theta):
                others.append(quantity)
                continue
            # Entries of theta: which ones, is seen with the numbers 0, 1, ... in place of theta.
            select = interpreted([theta], quantity)
            places = select(np.arange(float(n_dim))).ravel().astype(int)
            self._jacobian[np.arange(begin, end), places] = 1.0
            self._computed[begin:end] = False
        self._is_identity = np.array_equal(self._jacobian, np.eye(n_dim))
        self._each = np.eye(int(self._computed.sum()))
        outputs, each = list(rows.quantities), pt.matrix("each", dtype="float64")
        if others:
            flat = pt.concatenate([q.ravel().astype("float64") for q in others])
            weights = pt.vector("weights", dtype="float64")
            pulled = pt.grad(None, theta, known_grads={flat: weights}, disconnected_inputs="ignore")
            outputs.append(vectorize_graph(pulled, {weights: each}))
        self._function = pytensor.function([theta, each], outputs, **options)
        self._function.trust_input = True

    def __call__(
        self, theta: np.ndarray, directions: np.ndarray | None
    ) -> tuple[list[np.ndarray], np.ndarray | None]:
        """Values, and their derivatives: a matrix, the diagonal of a matrix, or None for the identity."""
        # Copies: Numba compiles again for other layouts.
        values = [np.array(value, order="C") for value in self._function(theta, self._each)]
        derivatives = values.pop() if len(self._each) else None
        if self._is_identity and (directions is None or directions.ndim == 1):
            return values, directions
        jacobian = self._jacobian
        if derivatives is not None:
            jacobian = jacobian.copy()
            jacobian[self._computed] = derivatives
        if directions is not None:
            jacobian = jacobian * directions if directions.ndim == 1 else jacobian @ directions
        return values, np.ascontiguousarray(jacobian)


def _is_selection(quantity: Variable, theta: Variable) -> bool:
    """Whether a quantity consists of entries of theta."""
    nodes = [v.owner for v in ancestors([quantity]) if v.owner is not None]
    return all(
        isinstance(node.op, Subtensor | Reshape | DimShuffle | SpecifyShape)
        for node in nodes
        if theta in ancestors(node.outputs)
    )


def _add_up(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sums of consecutive rows of a matrix, `counts` rows each."""
    sums = np.zeros((len(counts), rows.shape[1]))
    some = counts > 0
    if some.any():
        starts = np.cumsum(counts) - counts
        sums[some] = np.add.reduceat(rows, starts[some], axis=0)
    return sums
