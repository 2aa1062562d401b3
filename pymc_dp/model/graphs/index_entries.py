"""Index expressions of graphs: what each axis of an array is indexed by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.tensor.basic import ARange
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import indices_from_subtensor
from pytensor.tensor.type_other import SliceType

from pymc_dp.model.graphs.data_variables import downstream, is_array_root, rebuilt, stored
from pymc_dp.model.graphs.parameter_checks import INCREMENTS, SELECTIONS


class Blocked(Exception):
    """No rule is known for the rows of an operation; the argument is its name."""


def block(op: Op) -> NoReturn:
    """Raise `Blocked`."""
    raise Blocked(type(op).__name__)


def subtensor_entries(op: Op, x: Variable, indices: Sequence[Variable]) -> list[Any]:
    """The index expression: a slice or an array of integers for each axis of `x`."""
    entries = [
        e.data if isinstance(e, Constant) and isinstance(e.type, SliceType) else e
        for e in indices_from_subtensor(indices, getattr(op, "idx_list", None))
    ]
    for entry in entries:
        if not isinstance(entry, slice) and getattr(entry.type, "dtype", "bool") == "bool":
            block(op)  # masks; PyTensor rewrites them where it can
    return [*entries, *[slice(None)] * (x.ndim - len(entries))]


def with_bounded_indices(graphs: Sequence[Variable], data: Sequence[Variable]) -> list[Variable]:
    """Graphs in which an index that depends on data is clipped to its range: compiled code would read other memory.

    An error would depend on the data: a record with a group that does not exist counts in the last one.
    """
    dependent = downstream(graphs, data)

    def bounded(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        changes = isinstance(node.op, INCREMENTS)
        first = 2 if changes else 1
        if not isinstance(node.op, SELECTIONS | INCREMENTS) or dependent.isdisjoint(
            node.inputs[first:]
        ):
            return None
        x, entries = inputs[0], subtensor_entries(node.op, inputs[0], inputs[first:])
        old = subtensor_entries(node.op, node.inputs[0], node.inputs[first:])
        for k, entry in enumerate(old):
            if not isinstance(entry, slice) and entry in dependent:
                entries[k] = pt.clip(entries[k], -x.shape[k], x.shape[k] - 1)
        chosen = x[tuple(entries)]
        if not changes:
            return [chosen]
        change = pt.set_subtensor if node.op.set_instead_of_inc else pt.inc_subtensor
        return [change(chosen, inputs[1])]

    return rebuilt(graphs, {}, bounded)


def bounds(op: Op, entry: Any, length: int | None) -> tuple[int, int, int]:
    """Start, stop and step of a slice of constants."""
    if not isinstance(entry, slice) or (length is None and entry != slice(None)):
        block(op)
    numbers = []
    for part in (entry.start, entry.stop, entry.step):
        if isinstance(part, Variable) and not isinstance(part, Constant):
            block(op)
        value = part.data if isinstance(part, Constant) else part
        numbers.append(None if value is None else int(value))
    return slice(*numbers).indices(length or 0)


def new_axes(entries: Sequence[Any]) -> range:
    """Axes of ``x[entries]`` from index arrays: NumPy puts them in their place, or first if slices are in between."""
    arrays = [k for k, entry in enumerate(entries) if not isinstance(entry, slice)]
    together = bool(arrays) and arrays[-1] - arrays[0] < len(arrays)
    first = arrays[0] if together else 0
    return range(first, first + max((entries[k].ndim for k in arrays), default=0))


def has_rows(entry: Any, from_end: int) -> bool:
    """Whether an index has an array with more than one entry along an axis."""
    if isinstance(entry, slice) or entry.ndim < -from_end:
        return False
    return entry.type.shape[from_end] != 1


def is_range(array: Variable, from_end: int) -> bool:
    """Whether an array is 0, 1, ... along one axis, and has length 1 along the others."""
    source = array
    while source.owner is not None and isinstance(source.owner.op, DimShuffle | Reshape):
        source = source.owner.inputs[0]
    if source.owner is not None and isinstance(source.owner.op, ARange):
        start, _, step = (getattr(v, "data", None) for v in source.owner.inputs)
        other = [n for k, n in enumerate(array.type.shape) if k != array.ndim + from_end]
        return start == 0 and step == 1 and all(n == 1 for n in other)
    if not is_array_root(array) or stored(array).shape[from_end] != stored(array).size:
        return False
    return np.array_equal(stored(array).ravel(), np.arange(stored(array).size))
