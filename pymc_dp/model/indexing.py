"""The log-likelihood of some records, from the rows of these records alone.

`rows_at` walks from a log-likelihood down to the data, operation by operation, and keeps track of
which axis runs over the rows. Every rule says what an operation's rows at `index` are in terms of
its inputs' rows; data at the bottom become ``data[index]``. Taking rows of any variable is right
wherever it is done, so that the walk decides about cost only: where it meets an operation it has no
rule for, it stops (`Blocked`).
"""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Any, NoReturn

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Alloc, AllocEmpty, ExtractDiag, Join, Split
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp, SearchsortedOp
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.rewriting.ofg import inline_ofg_node
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.sort import SortOp
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import IncSubtensor, indices_from_subtensor
from pytensor.tensor.type_other import SliceType

from pymc_dp.model.parameter_checks import SELECTIONS
from pymc_dp.model.roots import is_array_root, stored

__all__ = ["SOLVE", "Blocked", "Gathered", "RowWalk", "rows_at", "subtensor_entries"]

SOLVE = "(m,m),(m,n)->(m,n)"  # of all solvers: for the columns of the right-hand side, one by one


class Blocked(Exception):
    """An index cannot be pushed past an operation, whose name is the argument."""


@dataclass(frozen=True)
class Gathered:
    """Rows of a stored array that a graph wants as an input: ``data.take(index, axis)``."""

    data: Variable
    axis: int
    rows: Variable


def rows_at(outputs: Sequence[Variable], index: Variable) -> tuple[list[Variable], list[Gathered]]:
    """Graphs of ``output[index]`` in which data are indexed first, and all else comes after that.

    Parameters
    ----------
    outputs : sequence of Variable
        Tensors with the rows on their leading axis, from `freeze`.
    index : Variable
        Vector of int64: row numbers from 0, in any order.

    Returns
    -------
    graphs : list of Variable
    gathered : list of Gathered
        Further inputs of these graphs. NumPy picks rows in half the time that Numba takes.

    Raises
    ------
    Blocked
        If some operation in between works on all rows at once, or is not known.
    """
    walk = RowWalk(index)
    return [walk(output, 0, index) for output in outputs], walk.gathered


class RowWalk:
    """Rows of variables, each made once."""

    def __init__(self, index: Variable) -> None:
        self._index = index
        self._made: dict[tuple[Variable, int, Variable], Variable] = {}
        self.gathered: list[Gathered] = []
        self._owners: dict[Variable, Variable | None] = {index: None}  # None: one entry for each

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
            _block(node.op)
        return self._through(node.op, node, axis, index)

    def _derived(self, index: Variable, owners: Variable | None) -> Variable:
        self._owners[index] = owners
        return index

    def _owner(self, index: Variable) -> Variable:
        """Which of the rows asked for, counted from 0, each entry of an index belongs to."""
        return pt.arange(index.shape[0]) if self._owners[index] is None else self._owners[index]

    def _aligned(self, variable: Variable, axis: int, index: Variable) -> Variable:
        """Rows of what is broadcast along `axis`, counted from the end (negative), if too short."""
        if -axis > variable.ndim or variable.type.shape[axis] == 1:
            return variable
        return self(variable, variable.ndim + axis, index)

    def _split(self, variable: Variable, node: Apply, axis: int, index: Variable) -> Variable:
        x, *others = node.inputs
        self._check_other_axis(node, axis)
        parts = node.op.make_node(self(x, axis, index), *others).outputs
        return parts[node.outputs.index(variable)]

    def _check_other_axis(self, node: Apply, axis: int) -> None:
        """Stop if an operation works along the rows; PyTensor 2 has its axis among the inputs."""
        along = getattr(node.op, "axis", None)
        if along is None and isinstance(node.inputs[1], Constant):
            along = int(node.inputs[1].data)
        if along is None or along % node.inputs[0].ndim == axis:
            _block(node.op)

    @singledispatchmethod
    def _through(self, op: Op, node: Apply, axis: int, index: Variable) -> Variable:
        _block(op)

    @_through.register
    def _(self, op: Elemwise, node: Apply, axis: int, index: Variable) -> Variable:
        return op(*(self._aligned(v, axis - v.ndim, index) for v in node.inputs))

    @_through.register
    def _(self, op: DimShuffle, node: Apply, axis: int, index: Variable) -> Variable:
        return op(self(node.inputs[0], op.new_order[axis], index))

    @_through.register
    def _(self, op: CAReduce | Argmax, node: Apply, axis: int, index: Variable) -> Variable:
        (x,) = node.inputs
        kept = [k for k in range(x.ndim) if k not in op.axis]  # an output with an axis has some
        return op(self(x, kept[axis], index))

    @_through.register
    def _(
        self, op: Softmax | LogSoftmax | CumOp, node: Apply, axis: int, index: Variable
    ) -> Variable:
        (x,) = node.inputs
        # An integer, a tuple, or None for all axes.
        if op.axis is None or axis in np.atleast_1d(op.axis) % x.ndim:
            _block(op)
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
    def _(self, op: Join, node: Apply, axis: int, index: Variable) -> Variable:
        parts = [v for v in node.inputs if v.ndim]  # PyTensor 2 has the axis among them
        along = op.axis if len(parts) == len(node.inputs) else node.inputs[0].data
        if along % node.outputs[0].ndim == axis:
            _block(op)
        return pt.join(int(along), *(self(v, axis, index) for v in parts))

    @_through.register
    def _(self, op: SpecifyShape, node: Apply, axis: int, index: Variable) -> Variable:
        return self(node.inputs[0], axis, index)

    @_through.register
    def _(self, op: Reshape, node: Apply, axis: int, index: Variable) -> Variable:
        x, new = node.inputs[0], list(node.outputs[0].type.shape)
        old = x.type.shape
        if None in old or None in new:
            _block(op)
        # The axis with as many entries before it (the last such: those of length 1 come first).
        n_before = math.prod(new[:axis])
        source = max(k for k in range(x.ndim) if math.prod(old[:k]) <= n_before)
        if old[source] < new[axis] and math.prod(old[:source]) == n_before:
            return self._merged(x, source, new, axis, index)
        length, remainder = divmod(old[source], new[axis])
        if remainder or math.prod(old[:source]) != n_before:
            _block(op)
        if length > 1:  # there, a row is a block of so many entries
            owners = pt.repeat(self._owner(index), length)
            index = self._derived((index[:, None] * length + np.arange(length)).ravel(), owners)
        new[axis] = -1
        return pt.reshape(self(x, source, index), new)

    def _merged(
        self, x: Variable, first: int, new: list[int], axis: int, index: Variable
    ) -> Variable:
        """Rows of a reshaped array whose axis runs over several axes of the old one."""
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
        if axis == left.ndim - 1:  # all but the last axis of the left factor come first
            return op(left, self(right, right.ndim - 1, index))
        return op(self(left, axis, index), right)

    @_through.register
    def _(self, op: BatchedDot, node: Apply, axis: int, index: Variable) -> Variable:
        if axis > 0:
            _block(op)
        return op(*(self(v, 0, index) for v in node.inputs))

    @_through.register
    def _(self, op: ExtractDiag, node: Apply, axis: int, index: Variable) -> Variable:
        (x,) = node.inputs
        kept = [k for k in range(x.ndim) if k not in (op.axis1, op.axis2)]
        if axis == len(kept):  # the diagonal, which is the last axis
            _block(op)
        return op(self(x, kept[axis], index))

    @_through.register
    def _(self, op: Blockwise, node: Apply, axis: int, index: Variable) -> Variable:
        n_batch = op.batch_ndim(node)
        if axis < n_batch:  # inputs have all batch dimensions, of length 1 if need be
            return op(*(self._aligned(v, axis - v.ndim, index) for v in node.inputs))
        name = op.outputs_sig[0][axis - n_batch]
        places = [
            (k, d) for k, sig in enumerate(op.inputs_sig) for d, n in enumerate(sig) if n == name
        ]
        kinds = [kind.__name__ for kind in type(op.core_op).__mro__]  # their module has moved
        solves = op.signature == SOLVE and "SolveBase" in kinds
        if len(places) != 1 or not (isinstance(op.core_op, Dot) or solves):
            _block(op.core_op)
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
        if _bounds(op, entries[axis], x.type.shape[axis]) != (0, x.type.shape[axis], 1):
            _block(op)
        target = self(x, axis, index)[tuple(entries)]
        after = sum(isinstance(entry, slice) for entry in entries[:axis])
        y = self._aligned(y, after - target.ndim, index)
        return (pt.set_subtensor if op.set_instead_of_inc else pt.inc_subtensor)(target, y)

    @_through.register(SELECTIONS)
    def _(self, op: Op, node: Apply, axis: int, index: Variable) -> Variable:
        x, *indices = node.inputs
        entries = subtensor_entries(op, x, indices)
        slices = [k for k, entry in enumerate(entries) if isinstance(entry, slice)]
        others = [k for k in range(x.ndim) if k not in slices]
        # NumPy puts the axes of index arrays in their place, or in front if slices are in between.
        n_new = max((entries[k].ndim for k in others), default=0)
        together = bool(others) and others[-1] - others[0] < len(others)
        first = others[0] if together else 0
        if first <= axis < first + n_new:
            return self._selected(node, entries, axis, axis - first - n_new, index)
        source = slices[axis if axis < first else axis - n_new]
        start, _, step = _bounds(op, entries[source], x.type.shape[source])
        entries[source] = slice(None)
        if (start, step) != (0, 1):
            index = self._derived(start + step * index, self._owners[index])
        return self(x, source, index)[tuple(entries)]

    def _selected(
        self, node: Apply, entries: list[Any], axis: int, from_end: int, index: Variable
    ) -> Variable:
        """``x[group]``: rows are chosen by index arrays, along the axis `from_end` of these."""
        x, n_rows = node.inputs[0], node.outputs[0].type.shape[axis]
        moving = [
            k
            for k, e in enumerate(entries)
            if not isinstance(e, slice) and e.ndim >= -from_end and e.type.shape[from_end] != 1
        ]
        lengths = {k: x.type.shape[k] or n_rows for k in moving}
        table = x.owner is None and any(_is_range(entries[k], from_end) for k in moving)
        if table or (x.owner and (max(lengths.values()) >= n_rows or _holds_data(x))):
            # Here x has a row for each record, as in x[arange(n), y], or is computed from data of
            # groups. Of these rows, too, only some should be computed: x[i] = x[i.ravel()][j].
            k = max(moving, key=lambda k: (_is_range(entries[k], from_end), lengths[k]))
            shape: list[Any] = [1] * entries[k].ndim
            if _is_range(entries[k], from_end):
                flat, shape[from_end] = index, index.shape[0]
            else:
                chosen = self._aligned(entries[k], from_end, index)
                owners = self._owner(index).reshape((-1, *[1] * (-from_end - 1)))
                flat = self._derived(chosen.ravel(), pt.broadcast_to(owners, chosen.shape).ravel())
                # Lengths of 1 have to stay known.
                shape = [n if n == 1 else chosen.shape[d] for d, n in enumerate(chosen.type.shape)]
            try:
                x = self(x, k, flat)
            except Blocked:
                if lengths[k] >= n_rows:
                    raise
            else:
                entries[k] = pt.arange(flat.shape[0]).reshape(shape)
                moving.remove(k)
        for k in moving:
            entries[k] = self._aligned(entries[k], from_end, index)
        return self._picked(x, entries, axis, from_end, index)

    def _picked(
        self, x: Variable, entries: list[Any], axis: int, from_end: int, index: Variable
    ) -> Variable:
        """``x[entries]``, which has rows on `axis`: the axis `from_end` of the index arrays."""
        return x[tuple(entries)]


def _block(op: Op) -> NoReturn:
    raise Blocked(type(op).__name__)


def subtensor_entries(op: Op, x: Variable, indices: Sequence[Variable]) -> list[Any]:
    """What stands between the brackets: a slice or an array of integers for each axis of `x`."""
    entries = [
        e.data if isinstance(e, Constant) and isinstance(e.type, SliceType) else e
        for e in indices_from_subtensor(indices, getattr(op, "idx_list", None))
    ]
    for entry in entries:
        if not isinstance(entry, slice) and getattr(entry.type, "dtype", "bool") == "bool":
            _block(op)  # masks and new axes: PyTensor rewrites these where it can
    return [*entries, *[slice(None)] * (x.ndim - len(entries))]


def _bounds(op: Op, entry: Any, length: int | None) -> tuple[int, int, int]:
    """First, last (excluded) and step of a slice of constants."""
    if not isinstance(entry, slice) or (length is None and entry != slice(None)):
        _block(op)
    numbers = []
    for part in (entry.start, entry.stop, entry.step):
        if isinstance(part, Variable) and not isinstance(part, Constant):
            _block(op)
        value = part.data if isinstance(part, Constant) else part
        numbers.append(None if value is None else int(value))
    return slice(*numbers).indices(length or 0)


def _holds_data(variable: Variable) -> bool:
    return any(isinstance(v, SharedVariable) for v in ancestors([variable]))


def _is_range(array: Variable, from_end: int) -> bool:
    """Whether an array counts from 0 along one of its axes, and has no others."""
    if not is_array_root(array) or stored(array).shape[from_end] != stored(array).size:
        return False
    return np.array_equal(stored(array).ravel(), np.arange(stored(array).size))
