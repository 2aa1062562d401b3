"""Gradients of the rows' log-likelihoods, as a graph: one reverse pass, whatever the parameters.

A gradient of the sum of all log-likelihoods adds up over the rows at the places where a parameter
meets the data: in ``x @ beta``, in ``a[group]``, in ``y - mu``. `row_gradients` puts a
perturbation there that has rows, of value 0: the derivative with respect to it is the gradient of
each row, not yet added up. These places are found by the walk that finds the rows of a batch.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot

from pymc_dp.model.indexing import SOLVE, Blocked, Gathered, RowWalk
from pymc_dp.model.roots import INTERPRETED

__all__ = ["RowGradients", "row_gradients"]


NARROW = 8  # entries up to which gradients are stored by column


@dataclass(frozen=True)
class RowGradients:
    """Graph of a gradient for each row, with respect to quantities without rows.

    Attributes
    ----------
    gradients : Variable
        Matrix: for each row of the index, the entries of all `quantities`, raveled; or transposed.
    by_column : bool
        Whether it is transposed, which is quicker if there are few entries.
    quantities : list of Variable
        Functions of theta (and of data that are not rows, such as covariates of groups): what
        meets the rows. ``theta[:3]``, ``1 / sigma**2``, the Cholesky factor of a covariance.
    inputs : list of Variable
        What stands for these quantities in the graph of `gradients`.
    gathered : list of Gathered
        Rows of the data, further inputs.
    """

    gradients: Variable
    by_column: bool
    quantities: list[Variable]
    inputs: list[Variable]
    gathered: list[Gathered]


def row_gradients(theta: Variable, outputs: Sequence[Variable], index: Variable) -> RowGradients:
    """Gradients of ``output[index]``, added up over outputs.

    Parameters
    ----------
    theta : Variable
        Vector of all parameters.
    outputs : sequence of Variable
        Row-wise log-likelihoods, from `freeze`.
    index : Variable
        Vector of int64: row numbers from 0, in any order.

    Raises
    ------
    Blocked
        If some operation in between works on all rows at once, or is not known.
    """
    walk = _GradientWalk(theta, index)
    total = reduce(add, [walk(output, 0, index) for output in outputs])
    n_rows = index.shape[0]
    sensitivities = pt.grad(
        total.sum(),
        [site.perturbation for site in walk.sites],
        disconnected_inputs="ignore",
        return_disconnected="disconnected",
    )
    parts: dict[Variable, Variable] = {}
    for site, sensitivity in zip(walk.sites, sensitivities, strict=True):
        if isinstance(sensitivity.type, DisconnectedType):
            continue
        part = site.pull_back(sensitivity).astype("float64")
        owners = walk.owners(site.index)
        if owners is not None:  # several entries for each row
            part = pt.inc_subtensor(pt.zeros((n_rows, part.shape[1]))[owners], part)
        parts[site.quantity] = parts[site.quantity] + part if site.quantity in parts else part
    if not parts:
        return RowGradients(pt.zeros((n_rows, 0)), False, [], [], walk.gathered)
    # Some parts are the same for all rows, so that only their shape in theory has rows.
    matrices = [
        pt.alloc(part, n_rows, math.prod(walk.inputs[q].type.shape)) for q, part in parts.items()
    ]
    by_column = sum(m.type.shape[1] for m in matrices) <= NARROW
    if by_column:
        matrices = [m.T for m in matrices]
    axis = 0 if by_column else 1
    matrix = pt.concatenate(matrices, axis=axis) if len(matrices) > 1 else matrices[0]
    matrix = _without_perturbations(matrix, [site.perturbation for site in walk.sites])
    inputs = [walk.inputs[q] for q in parts]
    return RowGradients(matrix, by_column, list(parts), inputs, walk.gathered)


def _without_perturbations(output: Variable, perturbations: Sequence[Variable]) -> Variable:
    """The graph at perturbations of 0, which are without rows then.

    All nodes are made anew, as PyTensor has to know where it broadcasts.
    """
    new: dict[Variable, Variable] = {
        p: pt.zeros([n or 1 for n in p.type.shape], p.dtype) for p in perturbations
    }
    for node in toposort([output]):
        inputs = [new.get(v, v) for v in node.inputs]
        if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            new.update(zip(node.outputs, node.op.make_node(*inputs).outputs, strict=True))
    return new.get(output, output)


@dataclass(frozen=True)
class _Site:
    """A place where a quantity meets rows, perturbed for each row."""

    quantity: Variable
    perturbation: Variable
    pull_back: Callable[[Variable], Variable]  # to a matrix, (entries of the index, quantity)
    index: Variable


class _GradientWalk(RowWalk):
    """Rows of variables, with a perturbation wherever something without rows comes in."""

    def __init__(self, theta: Variable, index: Variable) -> None:
        super().__init__(index)
        self._theta = theta
        self.inputs: dict[Variable, Variable] = {}
        self.sites: list[_Site] = []

    def owners(self, index: Variable) -> Variable | None:
        return self._owners[index]

    def _is_quantity(self, variable: Variable) -> bool:
        if getattr(variable.type, "dtype", "bool") not in ("float64", "float32"):
            return False  # such as a comparison of parameters: its derivative is 0
        above = set(ancestors([variable]))
        rows = {self._index, *(g.rows for g in self.gathered), *self.inputs.values()}
        return self._theta in above and above.isdisjoint(rows)

    def _input(self, quantity: Variable) -> Variable:
        if quantity not in self.inputs:
            shape = quantity.type.shape
            if None in shape:  # such as that of dims
                (n_dim,) = self._theta.type.shape
                evaluate = pytensor.function([self._theta], quantity.shape, mode=INTERPRETED)
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
        """A variable plus 0 for each row, on `axis`."""
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
            # With an index in front, those behind slices move to the front, too.
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
        """Rows as columns of a right-hand side: a batch of systems, if the matrix is a quantity."""
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
