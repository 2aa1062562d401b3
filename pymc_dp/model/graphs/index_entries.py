"""Index expressions of graphs: what each axis of an array is indexed by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.tensor.subtensor import indices_from_subtensor
from pytensor.tensor.type_other import SliceType

from pymc_dp.model.graphs.data_variables import is_array_root, stored

__all__ = [
    "Blocked",
    "block",
    "bounds",
    "has_rows",
    "is_range",
    "new_axes",
    "subtensor_entries",
]


class Blocked(Exception):
    """There is no rule for the rows of an operation, whose name is the argument."""


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


def bounds(op: Op, entry: Any, length: int | None) -> tuple[int, int, int]:
    """First, last (excluded) and step of a slice of constants."""
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
    """Whether an entry of an index is an array with more than one entry along an axis."""
    if isinstance(entry, slice) or entry.ndim < -from_end:
        return False
    return entry.type.shape[from_end] != 1


def is_range(array: Variable, from_end: int) -> bool:
    """Whether an array is 0, 1, ... along one axis, and has length 1 along the others."""
    if not is_array_root(array) or stored(array).shape[from_end] != stored(array).size:
        return False
    return np.array_equal(stored(array).ravel(), np.arange(stored(array).size))
