"""The log-likelihood of some records, from the rows of these records alone.

`rows_at` walks from a log-likelihood up to the data, operation by operation, and keeps track of the
axis that runs over the rows. Each rule expresses an operation's rows at `index` in terms of its
inputs' rows; stored data become ``data[index]``. Taking rows of a variable is correct wherever it is
done. Where an operation has no rule, the walk stops (`Blocked`).

`independence` uses the same walk to prove that records are independent.
"""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Alloc, AllocEmpty, ARange, ExtractDiag, Join, Split
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp, SearchsortedOp
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.rewriting.ofg import inline_ofg_node
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.sort import SortOp
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import IncSubtensor

from pymc_dp.model.graphs.data_variables import joined
from pymc_dp.model.graphs.index_entries import (
    Blocked,
    block,
    bounds,
    has_rows,
    is_range,
    new_axes,
    subtensor_entries,
)
from pymc_dp.model.graphs.parameter_checks import SELECTIONS

SOLVE = "(m,m),(m,n)->(m,n)"  # signature of all solvers, which treat right-hand sides one by one


@dataclass(frozen=True)
class Gathered:
    """Rows of a stored array as an input of a graph: ``data.take(index, axis)``."""

    data: Variable
    axis: int
    rows: Variable


def rows_at(outputs: Sequence[Variable], index: Variable) -> tuple[list[Variable], list[Gathered]]:
    """Graphs of ``output[index]`` in which the data are indexed before anything is computed.

    The outputs are from `freeze`, with the rows on their leading axis; the index is a vector of int64, in any order.
    The second value has further inputs of the graphs: NumPy takes rows in half the time of Numba. Raises `Blocked` if
    an operation works on all rows at once, or has no rule.
    """
    walk = RowWalk(index)
    return [walk(output, 0, index) for output in outputs], walk.gathered


class RowWalk:
    """Graphs of rows of variables, each made once."""

    def __init__(self, index: Variable) -> None:
        self._index = index
        self._made: dict[tuple[Variable, int, Variable], Variable] = {}
        self.gathered: list[Gathered] = []
        self._owners: dict[Variable, Variable | None] = {index: None}  # None: entry k for row k

    def __call__(self, variable: Variable, axis: int, index: Variable) -> Variable:
        """Graph of ``take(variable, index, axis)``."""
        key = variable, axis, index
        if key not in self._made:
            self._made[key] = self._make(variable, axis, index)
        return self._made[key]

    def _make(self, variable: Variable, axis: int, index: Variable) -> Variable:
        node = variable.owner
        if isinstance(variable, SharedVariable) and index is self._index:
            shape = [None if k == axis else n for k, n in enumerate(variable.type.shape)]
            rows = pt.tensor(dtype=variable.dtype, shape=shape)
            self.gathered.append(Gathered(variable, axis, rows))
            return rows
        if node is None or variable.type.shape[axis] == 1:
            return self._picked(variable, [*[slice(None)] * axis, index], axis, -1, index)
        if isinstance(node.op, Split):
            return self._split(variable, node, axis, index)
        if len(node.outputs) > 1:
            block(node.op)
        return self._through(node.op, node, axis, index)

    def _derived(self, index: Variable, owners: Variable | None) -> Variable:
        self._owners[index] = owners
        return index

    def _owner(self, index: Variable) -> Variable:
        """The requested row, from 0, to which each entry of an index belongs."""
        return pt.arange(index.shape[0]) if self._owners[index] is None else self._owners[index]

    def _aligned(self, variable: Variable, axis: int, index: Variable) -> Variable:
        """Rows of a variable along `axis`, counted from the end (negative); the variable itself if it broadcasts there."""
        if -axis > variable.ndim or variable.type.shape[axis] == 1:
            return variable
        return self(variable, variable.ndim + axis, index)

    def _split(self, variable: Variable, node: Apply, axis: int, index: Variable) -> Variable:
        x, *others = node.inputs
        self._check_other_axis(node, axis)
        parts = node.op.make_node(self(x, axis, index), *others).outputs
        return parts[node.outputs.index(variable)]

    def _check_other_axis(self, node: Apply, axis: int) -> None:
        """Stop if an operation works along the rows; in PyTensor 2 its axis is an input."""
        along = getattr(node.op, "axis", None)
        if along is None and isinstance(node.inputs[1], Constant):
            along = int(node.inputs[1].data)
        if along is None or along % node.inputs[0].ndim == axis:
            block(node.op)

    @singledispatchmethod
    def _through(self, op: Op, node: Apply, axis: int, index: Variable) -> Variable:
        block(op)

    @_through.register
    def _(self, op: Elemwise, node: Apply, axis: int, index: Variable) -> Variable:
        return op(*(self._aligned(v, axis - v.ndim, index) for v in node.inputs))

    @_through.register
    def _(self, op: DimShuffle, node: Apply, axis: int, index: Variable) -> Variable:
        return op(self(node.inputs[0], op.new_order[axis], index))

    @_through.register
    def _(self, op: CAReduce | Argmax, node: Apply, axis: int, index: Variable) -> Variable:
        (x,) = node.inputs
        kept = [k for k in range(x.ndim) if k not in op.axis]  # not None: the output has axes left
        return op(self(x, kept[axis], index))

    @_through.register
    def _(
        self, op: Softmax | LogSoftmax | CumOp, node: Apply, axis: int, index: Variable
    ) -> Variable:
        (x,) = node.inputs
        # An integer, a tuple, or None for all axes.
        if op.axis is None or axis in np.atleast_1d(op.axis) % x.ndim:
            block(op)
        return op(self(x, axis, index))

    @_through.register
    def _(self, op: SortOp, node: Apply, axis: int, index: Variable) -> Variable:
        x, *others = node.inputs
        self._check_other_axis(node, axis)
        return op(self(x, axis, index), *others)

    @_through.register
    def _(self, op: SearchsortedOp, node: Apply, axis: int, index: Variable) -> Variable:
        return op(node.inputs[0], self(node.inputs[1], axis, index), *node.inputs[2:])

    @_through.register
    def _(self, op: Alloc, node: Apply, axis: int, index: Variable) -> Variable:
        value, *shape = node.inputs
        shape[axis] = index.shape[0]
        return op(self._aligned(value, axis - len(shape), index), *shape)

    @_through.register
    def _(self, op: AllocEmpty, node: Apply, axis: int, index: Variable) -> Variable:
        shape = list(node.inputs)
        shape[axis] = index.shape[0]
        return op(*shape)

    @_through.register
    def _(self, op: ARange, node: Apply, axis: int, index: Variable) -> Variable:
        start, _, step = node.inputs
        if not op.dtype.startswith("int"):
            block(op)  # NumPy may round numbers in between in another way
        return (start + step * index).astype(op.dtype)

    @_through.register
    def _(self, op: Join, node: Apply, axis: int, index: Variable) -> Variable:
        parts = joined(node)
        along = op.axis if len(parts) == len(node.inputs) else node.inputs[0].data
        if along % node.outputs[0].ndim == axis:
            block(op)
        return pt.join(int(along), *(self(v, axis, index) for v in parts))

    @_through.register
    def _(self, op: SpecifyShape, node: Apply, axis: int, index: Variable) -> Variable:
        return self(node.inputs[0], axis, index)

    @_through.register
    def _(self, op: Reshape, node: Apply, axis: int, index: Variable) -> Variable:
        x, new = node.inputs[0], list(node.outputs[0].type.shape)
        old = x.type.shape
        if None in old or None in new:
            block(op)
        # The axis with the same number of entries before it: the last one, as others have length 1.
        n_before = math.prod(new[:axis])
        source = max(k for k in range(x.ndim) if math.prod(old[:k]) <= n_before)
        if old[source] < new[axis] and math.prod(old[:source]) == n_before:
            return self._merged(x, source, new, axis, index)
        length, remainder = divmod(old[source], new[axis])
        if remainder or math.prod(old[:source]) != n_before:
            block(op)
        if length > 1:  # in x, a row is a block of `length` entries
            owners = pt.repeat(self._owner(index), length)
            index = self._derived((index[:, None] * length + np.arange(length)).ravel(), owners)
        new[axis] = -1
        return pt.reshape(self(x, source, index), new)

    def _merged(
        self, x: Variable, first: int, new: list[int], axis: int, index: Variable
    ) -> Variable:
        """Rows of a reshaped array whose axis spans several axes of the original."""
        inner, last = 1, first + 1
        while last < x.ndim and x.type.shape[first] * inner < new[axis]:
            inner, last = inner * x.type.shape[last], last + 1
        if x.type.shape[first] * inner != new[axis]:
            raise Blocked("Reshape")
        rows = self(x, first, self._derived(index // inner, self._owners[index]))
        shape = x.type.shape
        rows = rows.reshape([*shape[:first], -1, inner, *shape[last:]])
        rows = rows[(*[slice(None)] * first, pt.arange(index.shape[0]), index % inner)]
        return pt.reshape(rows, [*new[:axis], -1, *new[axis + 1 :]])

    @_through.register
    def _(self, op: Dot, node: Apply, axis: int, index: Variable) -> Variable:
        left, right = node.inputs
        if axis == left.ndim - 1:  # the axes of the left factor come first, without its last
            return op(left, self(right, right.ndim - 1, index))
        return op(self(left, axis, index), right)

    @_through.register
    def _(self, op: BatchedDot, node: Apply, axis: int, index: Variable) -> Variable:
        if axis > 0:
            block(op)
        return op(*(self(v, 0, index) for v in node.inputs))

    @_through.register
    def _(self, op: ExtractDiag, node: Apply, axis: int, index: Variable) -> Variable:
        (x,) = node.inputs
        kept = [k for k in range(x.ndim) if k not in (op.axis1, op.axis2)]
        if axis == len(kept):  # the diagonal, which is the last axis
            block(op)
        return op(self(x, kept[axis], index))

    @_through.register
    def _(self, op: Blockwise, node: Apply, axis: int, index: Variable) -> Variable:
        n_batch = op.batch_ndim(node)
        if axis < n_batch:  # all inputs have these dimensions, of length 1 if broadcast
            return op(*(self._aligned(v, axis - v.ndim, index) for v in node.inputs))
        name = op.outputs_sig[0][axis - n_batch]
        places = [
            (k, d) for k, sig in enumerate(op.inputs_sig) for d, n in enumerate(sig) if n == name
        ]
        if len(places) != 1 or not _is_product_or_solver(op):
            block(op.core_op)
        [(position, dimension)] = places
        inputs = list(node.inputs)
        inputs[position] = self(inputs[position], n_batch + dimension, index)
        return op(*inputs)

    @_through.register
    def _(self, op: OpFromGraph, node: Apply, axis: int, index: Variable) -> Variable:
        return self(inline_ofg_node(node)[0], axis, index)

    @_through.register
    def _(self, op: IncSubtensor, node: Apply, axis: int, index: Variable) -> Variable:
        x, y, *indices = node.inputs
        entries = subtensor_entries(op, x, indices)
        if bounds(op, entries[axis], x.type.shape[axis]) != (0, x.type.shape[axis], 1):
            block(op)
        target = self(x, axis, index)[tuple(entries)]
        after = sum(isinstance(entry, slice) for entry in entries[:axis])
        y = self._aligned(y, after - target.ndim, index)
        return (pt.set_subtensor if op.set_instead_of_inc else pt.inc_subtensor)(target, y)

    @_through.register(SELECTIONS)
    def _(self, op: Op, node: Apply, axis: int, index: Variable) -> Variable:
        x, *indices = node.inputs
        entries = subtensor_entries(op, x, indices)
        new = new_axes(entries)
        if axis in new:
            return self._selected(node, entries, axis, axis - new.stop, index)
        slices = [k for k, entry in enumerate(entries) if isinstance(entry, slice)]
        source = slices[axis if axis < new.start else axis - len(new)]
        start, _, step = bounds(op, entries[source], x.type.shape[source])
        entries[source] = slice(None)
        if (start, step) != (0, 1):
            index = self._derived(start + step * index, self._owners[index])
        return self(x, source, index)[tuple(entries)]

    def _selected(
        self, node: Apply, entries: list[Any], axis: int, from_end: int, index: Variable
    ) -> Variable:
        """``x[group]``: index arrays select the rows, along their axis `from_end`."""
        x, n_rows = node.inputs[0], node.outputs[0].type.shape[axis] or math.inf
        moving = [k for k, entry in enumerate(entries) if has_rows(entry, from_end)]
        first = _first_axis(x, entries, moving, from_end, n_rows)
        if first is not None:
            try:
                x, entries[first] = self._rows_of(x, first, entries[first], from_end, index)
            except Blocked:
                if (x.type.shape[first] or n_rows) >= n_rows:
                    raise
            else:
                moving.remove(first)
        for k in moving:
            entries[k] = self._aligned(entries[k], from_end, index)
        return self._picked(x, entries, axis, from_end, index)

    def _rows_of(
        self, x: Variable, axis: int, entry: Variable, from_end: int, index: Variable
    ) -> tuple[Variable, Variable]:
        """Only the selected rows of x, and an index into these: ``x[i] = x[i.ravel()][j]``."""
        if is_range(entry, from_end):
            shape: list[Any] = [1] * entry.ndim
            flat, shape[from_end] = index, index.shape[0]
        else:
            chosen = self._aligned(entry, from_end, index)
            owners = self._owner(index).reshape((-1, *[1] * (-from_end - 1)))
            flat = self._derived(chosen.ravel(), pt.broadcast_to(owners, chosen.shape).ravel())
            # Lengths of 1 must stay known, for broadcasting.
            shape = [n if n == 1 else chosen.shape[d] for d, n in enumerate(chosen.type.shape)]
        return self(x, axis, flat), pt.arange(flat.shape[0]).reshape(shape)

    def _picked(
        self, x: Variable, entries: list[Any], axis: int, from_end: int, index: Variable
    ) -> Variable:
        """``x[entries]``, with rows on `axis`, which is the axis `from_end` of the index arrays."""
        return x[tuple(entries)]


def _first_axis(
    x: Variable, entries: Sequence[Any], moving: Sequence[int], from_end: int, n_rows: float
) -> int | None:
    """The axis along which only the selected rows of x should be computed, or taken; None if there is none.

    Such an x has a row for each record, as in ``x[arange(n), y]``, or is computed from data of groups.
    """
    lengths = {k: x.type.shape[k] or n_rows for k in moving}
    ranges = [k for k in moving if is_range(entries[k], from_end)]
    if x.owner is None:
        selects = bool(ranges)
    else:
        has_data = (isinstance(v, SharedVariable) for v in ancestors([x]))
        selects = max(lengths.values()) >= n_rows or any(has_data)
    return max(moving, key=lambda k: (k in ranges, lengths[k])) if selects else None


def _is_product_or_solver(op: Blockwise) -> bool:
    """Whether an operation treats columns one by one."""
    kinds = [
        kind.__name__ for kind in type(op.core_op).__mro__
    ]  # their module depends on the version
    return isinstance(op.core_op, Dot) or (op.signature == SOLVE and "SolveBase" in kinds)
