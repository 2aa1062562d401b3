"""Graph of the gradients of all rows' log-likelihoods, computed in one reverse pass.

The gradient of the sum of all log-likelihoods sums over rows at the places where a parameter meets
the data: in ``x @ beta``, in ``a[group]``, in ``y - mu``. `row_gradients` adds a perturbation with
rows, of value 0, at these places. The derivative with respect to it is the gradient of each row,
before it is summed. The walk that finds the rows of a batch finds these places.

PyTensor's ``vectorize_graph`` of the gradient of one row gives the same results, but takes 3 to 6
times as long for hierarchical and mixture models, and twice as long to compile.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot

from pymc_dp.model.graphs.data_variables import interpreted, rebuilt
from pymc_dp.model.graphs.index_entries import Blocked
from pymc_dp.model.graphs.row_subsets import SOLVE, Gathered, RowWalk

NARROW = 4  # gradients with at most this number of entries are stored by column, 13 to 27 % faster


@dataclass(frozen=True)
class RowGradients:
    """Graph of a gradient for each row, with respect to quantities without rows.

    `gradients` is a matrix: for each row of the index, the entries of all `quantities`, raveled; or transposed if there
    are few (`by_column`), which is faster. Quantities are functions of theta (and of data without rows, such as public
    covariates of groups) that are combined with rows: ``theta[:3]``, ``1 / sigma**2``, the Cholesky factor of a
    covariance. Inputs of the graph of `gradients` stand for them; `gathered` are further inputs: rows of the data.
    """

    gradients: Variable
    by_column: bool
    quantities: list[Variable]
    inputs: list[Variable]
    gathered: list[Gathered]


def row_gradients(theta: Variable, outputs: Sequence[Variable], index: Variable) -> RowGradients:
    """Gradients of ``output[index]``, summed over outputs, by theta; arguments and `Blocked` as for `rows_at`."""
    walk = _GradientWalk(theta, index)
    total = reduce(add, [walk(output, 0, index) for output in outputs])
    n_rows = index.shape[0]
    parts = walk.pulled_back(total, n_rows)
    if not parts:
        return RowGradients(pt.zeros((n_rows, 0)), False, [], [], walk.gathered)
    # A part that is equal for all rows may not have the rows in its shape yet.
    matrices = [
        pt.alloc(part, n_rows, math.prod(walk.inputs[q].type.shape)) for q, part in parts.items()
    ]
    by_column = sum(m.type.shape[1] for m in matrices) <= NARROW
    matrix = (
        pt.concatenate([m.T for m in matrices], axis=0)
        if by_column
        else pt.concatenate(matrices, axis=1)
    )
    matrix = walk.unperturbed(matrix)
    return RowGradients(
        matrix, by_column, list(parts), [walk.inputs[q] for q in parts], walk.gathered
    )


@dataclass(frozen=True)
class _Site:
    """A place where a quantity is combined with rows, and its perturbation for each row."""

    quantity: Variable
    perturbation: Variable
    pull_back: Callable[[Variable], Variable]  # to a matrix, (entries of the index, quantity)
    index: Variable


class _GradientWalk(RowWalk):
    """Rows of variables, with a perturbation where a quantity without rows is used."""

    def __init__(self, theta: Variable, index: Variable) -> None:
        super().__init__(index)
        self._theta = theta
        self.inputs: dict[Variable, Variable] = {}
        self.sites: list[_Site] = []

    def pulled_back(self, total: Variable, n_rows: Variable) -> dict[Variable, Variable]:
        """Gradient of the total with respect to each quantity, row by row."""
        sensitivities = pt.grad(
            total.sum(),
            [site.perturbation for site in self.sites],
            disconnected_inputs="ignore",
            return_disconnected="disconnected",
        )
        parts: dict[Variable, Variable] = {}
        for site, sensitivity in zip(self.sites, sensitivities, strict=True):
            if isinstance(sensitivity.type, DisconnectedType):
                continue
            part = site.pull_back(sensitivity).astype("float64")
            owners = self._owners[site.index]
            if owners is not None:  # several entries for each row
                part = pt.inc_subtensor(pt.zeros((n_rows, part.shape[1]))[owners], part)
            parts[site.quantity] = parts[site.quantity] + part if site.quantity in parts else part
        return parts

    def unperturbed(self, output: Variable) -> Variable:
        """A graph at perturbations of 0, which have length 1 along the rows and broadcast."""
        perturbations = [site.perturbation for site in self.sites]
        zeros = {p: pt.zeros([n or 1 for n in p.type.shape], p.dtype) for p in perturbations}
        return rebuilt([output], zeros)[0]

    def _is_quantity(self, variable: Variable) -> bool:
        if getattr(variable.type, "dtype", "bool") not in ("float64", "float32"):
            return False  # for instance a comparison of parameters: its derivative is 0
        above = set(ancestors([variable]))
        rows = {self._index, *(g.rows for g in self.gathered), *self.inputs.values()}
        return self._theta in above and above.isdisjoint(rows)

    def _input(self, quantity: Variable) -> Variable:
        if quantity not in self.inputs:
            shape = quantity.type.shape
            if None in shape:  # for instance the length of a dimension
                (n_dim,) = self._theta.type.shape
                evaluate = interpreted([self._theta], quantity.shape)
                shape = tuple(map(int, evaluate(np.zeros(n_dim))))
            self.inputs[quantity] = pt.tensor(dtype=quantity.dtype, shape=shape)
        return self.inputs[quantity]

    def _perturbed(
        self,
        quantity: Variable,
        value: Variable,
        axis: int,
        pull_back: Callable[[Variable], Variable],
        index: Variable,
    ) -> Variable:
        """A variable plus a perturbation that has rows on `axis`."""
        shape = [None if k == axis % value.ndim else n for k, n in enumerate(value.type.shape)]
        perturbation = pt.tensor(dtype=value.dtype, shape=shape)
        self.sites.append(_Site(quantity, perturbation, pull_back, index))
        return value + perturbation

    def _aligned(self, variable: Variable, axis: int, index: Variable) -> Variable:
        value = super()._aligned(variable, axis, index)
        if value is not variable or not self._is_quantity(variable):
            return value
        value = self._input(variable)
        if -axis > value.ndim:
            value = pt.shape_padleft(value, -axis - value.ndim)
        size = math.prod(self._input(variable).type.shape)

        def pull_back(sensitivity: Variable) -> Variable:
            return pt.moveaxis(sensitivity, axis, 0).reshape((-1, size))

        return self._perturbed(variable, value, axis, pull_back, index)

    def _picked(
        self, x: Variable, entries: list[Any], axis: int, from_end: int, index: Variable
    ) -> Variable:
        if not self._is_quantity(x):
            return super()._picked(x, entries, axis, from_end, index)
        n_axes = max(e.ndim for e in entries if not isinstance(e, slice))
        first = axis - from_end - n_axes
        shape = self._input(x).type.shape
        size = math.prod(shape)

        def pull_back(sensitivity: Variable) -> Variable:
            n = index.shape[0]
            rows = pt.arange(n).reshape((-1, *[1] * (-from_end - 1)))
            # With an index in front, NumPy moves the axes of all index arrays to the front.
            moved = pt.moveaxis(sensitivity, range(first, first + n_axes), range(n_axes))
            zeros = pt.zeros((n, *shape))
            return pt.inc_subtensor(zeros[(rows, *entries)], moved).reshape((-1, size))

        value = super()._picked(self._input(x), entries, axis, from_end, index)
        return self._perturbed(x, value, axis, pull_back, index)

    def _through(self, op: Op, node: Apply, axis: int, index: Variable) -> Variable:
        if isinstance(op, Dot):
            left, right = node.inputs
            if axis == left.ndim - 1 and self._is_quantity(left):
                return self._product(op, left, right, index, quantity_first=True)
            if axis < left.ndim - 1 and self._is_quantity(right):
                return self._product(op, right, left, index, quantity_first=False)
        if isinstance(op, Blockwise) and axis >= op.batch_ndim(node):
            return self._blockwise(op, node, axis, index)
        return super()._through(op, node, axis, index)

    def _product(
        self, op: Op, quantity: Variable, other: Variable, index: Variable, quantity_first: bool
    ) -> Variable:
        value, size = self._input(quantity), math.prod(self._input(quantity).type.shape)
        rows = self(other, other.ndim - 1 if quantity_first else 0, index)
        output = op(value, rows) if quantity_first else op(rows, value)
        if quantity_first:
            rows = rows.T

        def pull_back(sensitivity: Variable) -> Variable:
            if quantity.ndim == 1:
                return sensitivity[:, None] * rows
            if quantity_first:
                outer = sensitivity.T[:, :, None] * rows[:, None, :]
            else:
                outer = rows[:, :, None] * sensitivity[:, None, :]
            return outer.reshape((-1, size))

        axis = output.ndim - 1 if quantity_first else 0
        return self._perturbed(quantity, output, axis, pull_back, index)

    def _blockwise(self, op: Blockwise, node: Apply, axis: int, index: Variable) -> Variable:
        """Rows as columns of a right-hand side; a batch of linear systems if the matrix is a quantity."""
        matrix, right = node.inputs[0], node.inputs[-1]
        if op.signature != SOLVE or not self._is_quantity(matrix):
            if isinstance(op.core_op, Dot) and any(map(self._is_quantity, node.inputs)):
                raise Blocked(type(op.core_op).__name__)
            return super()._through(op, node, axis, index)
        if op.batch_ndim(node):
            raise Blocked(type(op.core_op).__name__)
        columns = self(right, 1, index).T[:, :, None]
        batched = op(self._aligned(pt.shape_padleft(matrix), -3, index), columns)
        return batched[:, :, 0].T
