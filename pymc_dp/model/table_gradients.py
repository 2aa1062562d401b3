"""Gradients of the records in one table: compiled, and with respect to theta."""

from __future__ import annotations

import math

from collections.abc import Callable
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

from pymc_dp.model.batches import RowsOfRecords
from pymc_dp.model.compiling import compile_frozen
from pymc_dp.model.roots import INTERPRETED, stored
from pymc_dp.model.row_gradients import RowGradients

__all__ = ["TableGradients"]


class TableGradients:
    """Gradients of the records in observed variables whose rows belong to the same records.

    Parameters
    ----------
    rows : RowGradients
    theta, index : Variable
        What the graphs are functions of.
    label : integer array
        The record each row belongs to.
    n_records : int
    options : dict
    """

    def __init__(
        self,
        rows: RowGradients,
        theta: Variable,
        index: Variable,
        label: np.ndarray,
        n_records: int,
        options: dict[str, Any],
    ) -> None:
        options = options | {"on_unused_input": "ignore"}
        # Numba compiles again for read-only arrays, and for other layouts.
        self._data = [(np.require(stored(g.data), None, ["C", "W"]), g.axis) for g in rows.gathered]
        self._rows = RowsOfRecords(label, n_records)
        self._numbers = np.arange(n_records if self._rows.one_each else 0)
        inputs = [theta, index, *rows.inputs, *(g.rows for g in rows.gathered)]
        self._function = compile_frozen(inputs, rows.gradients, options)
        self.by_column = rows.by_column
        self._quantities = _Quantities(rows, theta, options)
        per_row = sum(data.size // data.shape[axis] for data, axis in self._data)
        n_rows = max(1, math.ceil(len(label) / n_records))
        self.width = max(1, per_row, self._quantities.size) * n_rows

    def at(
        self, theta: np.ndarray, directions: np.ndarray | None
    ) -> Callable[[slice | np.ndarray], np.ndarray]:
        """Function of records, given by numbers or as a slice, to ``directions.T @ gradient``."""
        values, chain = self._quantities(theta, directions)

        def vectors(records: slice | np.ndarray) -> np.ndarray:
            if self._rows.one_each:
                return chain(self._gradients(theta, values, records))
            if isinstance(records, slice):
                records = np.arange(records.start, records.stop)
            rows, counts = self._rows(records)
            return chain(_add_up(self._gradients(theta, values, rows), counts))

        return vectors

    def _gradients(
        self, theta: np.ndarray, values: list[np.ndarray], rows: slice | np.ndarray
    ) -> np.ndarray:
        if isinstance(rows, slice):
            index = self._numbers[rows]
            gathered = [
                data[rows] if axis == 0 else data.take(index, axis) for data, axis in self._data
            ]
        else:
            index, gathered = rows, [data.take(rows, axis) for data, axis in self._data]
        if len(index) == 0:  # compiled functions need not stand empty arrays
            return np.zeros((0, self._quantities.size))
        gradients = self._function(theta, index, *values, *gathered)
        return gradients.T if self.by_column else gradients


class _Quantities:
    """What meets the data, as functions of theta, and their derivatives."""

    def __init__(self, rows: RowGradients, theta: Variable, options: dict[str, Any]) -> None:
        sizes = [math.prod(v.type.shape) for v in rows.inputs]
        ends = np.cumsum([0, *sizes])
        self.size, (n_dim,) = int(ends[-1]), theta.type.shape
        self._by_column = rows.by_column
        self._jacobian = np.zeros((self.size, n_dim))
        self._computed = np.ones(self.size, dtype=bool)
        others = []
        for quantity, begin, end in zip(rows.quantities, ends[:-1], ends[1:], strict=True):
            if not _is_selection(quantity, theta):
                others.append(quantity)
                continue
            # Entries of theta: where they come from, theta itself can say.
            select = pytensor.function([theta], quantity, mode=INTERPRETED)
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
    ) -> tuple[list[np.ndarray], Callable[[np.ndarray], np.ndarray]]:
        """Values, and the function that takes gradients with respect to them to ours."""
        # Copies: Numba compiles again for other layouts.
        values = [np.array(value, order="C") for value in self._function(theta, self._each)]
        derivatives = values.pop() if len(self._each) else None
        if self._is_identity and (directions is None or directions.ndim == 1):
            if directions is None:
                return values, lambda gradients: gradients
            return values, lambda gradients: gradients * directions
        jacobian = self._jacobian
        if derivatives is not None:
            jacobian = jacobian.copy()
            jacobian[self._computed] = derivatives
        if directions is not None:
            jacobian = jacobian * directions if directions.ndim == 1 else jacobian @ directions
        if self._by_column:  # as they lie in memory
            return values, lambda gradients: (jacobian.T @ gradients.T).T
        return values, lambda gradients: gradients @ jacobian


def _is_selection(quantity: Variable, theta: Variable) -> bool:
    """Whether something consists of entries of theta."""
    nodes = [v.owner for v in ancestors([quantity]) if v.owner is not None]
    return all(
        isinstance(node.op, Subtensor | Reshape | DimShuffle | SpecifyShape)
        for node in nodes
        if theta in ancestors(node.outputs)
    )


def _add_up(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sums of so many rows of a matrix after one another."""
    sums = np.zeros((len(counts), rows.shape[1]))
    some = counts > 0
    if some.any():
        starts = np.cumsum(counts) - counts
        sums[some] = np.add.reduceat(rows, starts[some], axis=0)
    return sums
