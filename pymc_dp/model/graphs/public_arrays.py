"""Stored arrays of a model that hold no private data: patterns, and arrays that the user declares public.

A graph shows an array, but not the source of its values. So an array is private unless it is a
pattern that is made without data (`is_structural`), or the user declares it public (`PublicArrays`).
"""

from __future__ import annotations

import math

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pymc as pm

from pytensor.compile.ops import FromFunctionOp
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type_other import NoneTypeT, SliceType

from pymc_dp.model.graphs.data_variables import (
    is_array_root,
    observed_arrays,
    observed_values,
    stored,
)

#: Modules whose operations are functions of their inputs alone. (Calls of other libraries, in ``pytensor.link``, are not.)
_HOST = (
    "pymc.", "pytensor.compile.", "pytensor.graph.", "pytensor.gradient", "pytensor.ifelse", "pytensor.raise_op",
    "pytensor.scalar.", "pytensor.scan.", "pytensor.sparse.", "pytensor.tensor.",
)  # fmt: skip


def is_structural(array: np.ndarray) -> bool:
    """Whether an array is a pattern that programs make without data, such as an index.

    False for objects (sparse matrices). True for

    - at most one entry, and numbers that are all equal;
    - square matrices with one value on and one value off the diagonal (``np.eye``);
    - integers in arithmetic progression (``np.arange``; if there are two entries, only 0, 1 and
      1, 2, in any order);
    - rows or columns of ``np.tril_indices`` or ``np.triu_indices``, with or without the
      diagonal, and the places of a packed triangle's diagonal (``np.arange(1, n + 1).cumsum() - 1``);
    - frequencies of a basis, integer multiples of pi on a grid (``pm.gp.HSGP``).

    Data may equal such a pattern, so the caller must treat observed values as private, whatever they are.
    """
    array = np.asarray(array)
    kind = array.dtype.kind
    if kind not in "biufc":  # a sparse matrix is a single object to NumPy
        return kind != "O" and array.size <= 1
    if _all_equal(array) or _is_like_identity(array):
        return True
    if kind == "f":
        return array.ndim == 2 and _is_grid_of_frequencies(array)
    return kind in "iu" and (_is_progression(array) or _indexes_triangle(array))


def _is_like_identity(array: np.ndarray) -> bool:
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        return False
    off = ~np.eye(len(array), dtype=bool)
    return _all_equal(np.diagonal(array)) and _all_equal(array[off])


def _all_equal(array: np.ndarray) -> bool:
    flat = array.reshape(-1)

    def equal(some: np.ndarray) -> bool:
        return some.size <= 1 or bool((some == some[0]).all() or (some != some).all())

    return equal(flat[:16]) and equal(flat)  # the first entries suffice for most data


def _is_progression(array: np.ndarray) -> bool:
    flat = array.reshape(-1)
    if len(flat) == 2:  # any two numbers are in progression
        return sorted(flat.tolist()) in ([0, 1], [1, 2])
    flat = flat.astype(object) if flat.dtype == np.uint64 else flat.astype(np.int64)
    return bool((flat[2:] - flat[1:-1] == flat[1] - flat[0]).all())


def _is_grid_of_frequencies(array: np.ndarray) -> bool:
    counts = np.rint(array.max(axis=0) / np.pi)
    if not (np.isfinite(counts).all() and (counts >= 1).all() and counts.prod() == len(array)):
        return False
    grid = np.meshgrid(*(np.pi * np.arange(1, n + 1) for n in counts))
    return np.array_equal(array, np.vstack([axis.ravel() for axis in grid]).T)


def _indexes_triangle(array: np.ndarray) -> bool:
    n = math.isqrt(2 * len(array))  # rows of a triangle with this number of entries
    patterns: list[np.ndarray] = [np.arange(1, len(array) + 1).cumsum() - 1]
    patterns += [np.arange(2, len(array) + 2)[::-1].cumsum() - len(array) - 1]
    if n * (n + 1) // 2 == len(array):
        patterns += [*np.tril_indices(n), *np.triu_indices(n)]
        patterns += [*np.tril_indices(n + 1, -1), *np.triu_indices(n + 1, 1)]
    return any(np.array_equal(array, pattern) for pattern in patterns)


def is_stored_object(root: Variable) -> bool:
    """Whether a variable stores an object other than a number or an array, such as a sparse matrix or a list."""
    if is_array_root(root):
        return stored(root).dtype.kind == "O"  # the dtype of a sparse matrix in NumPy
    if not (isinstance(root, Constant) or hasattr(root, "get_value")):
        return False  # an input of an inner graph
    return not isinstance(root.type, ScalarType | RandomType | NoneTypeT | SliceType)


def is_transparent(op: Any) -> bool:
    """Whether an operation is PyMC's or PyTensor's, without an array or a function of the user.

    Scalar operations of elementwise ones and cores of blockwise ones are checked too, inner graphs are not.
    """
    if isinstance(op, RandomVariable | FromFunctionOp):
        return False
    if not type(op).__module__.startswith(_HOST):
        return False
    inside = (getattr(op, name, None) for name in ("core_op", "scalar_op"))
    if not all(is_transparent(each) for each in inside if each is not None):
        return False
    return not any(_holds_numbers(value) for value in vars(op).values())


def inner_graphs(op: Any) -> list[list[Variable]]:
    """Outputs of the inner graphs of an operation, such as loops and fused scalar operations."""
    graphs = []
    if isinstance(op, HasInnerGraph):
        graphs.append(list(op.fgraph.outputs))
    scalar_op = getattr(op, "scalar_op", None)
    if isinstance(scalar_op, HasInnerGraph):
        graphs.append(list(scalar_op.fgraph.outputs))
    core = getattr(op, "core_op", None)  # of Blockwise
    return graphs + (inner_graphs(core) if core is not None else [])


def _holds_numbers(value: Any) -> bool:
    """Whether an attribute may hold data: an array, or a list with several floats."""
    if isinstance(value, np.ndarray):
        return not is_structural(value)
    if isinstance(value, dict):
        return any(map(_holds_numbers, value.values()))
    if isinstance(value, list | tuple):
        floats = [v for v in value if isinstance(v, float | np.floating)]
        return len(floats) > 1 or any(map(_holds_numbers, value))
    return False


class PublicArrays:
    """Arrays that the user declares public, such as a public design matrix.

    A constant or shared variable of the model's graphs is public if it is declared by its name, or if it stores a
    declared array or a view of it (``X[:, 0]``): the same memory. PyTensor's constants store the user's arrays
    themselves; ``pm.Data`` stores a copy, and is declared by its name. Values are compared only for arrays without an
    axis as long as the data, such as bounds or data of groups: for arrays with a row for each record, which may be
    private, the comparison would show that they are equal. An array that NumPy computes from a declared one must be
    declared as well. The name of a free variable or potential declares all arrays of its prior, or of its graph:
    `priors` has these names. `descriptions` has names, and shapes of arrays, for the report, without values.

    Raises ValueError if the model has no array of such a name, or if a declared container is observed.
    """

    def __init__(self, model: pm.Model, declared: Sequence[Any] = ()) -> None:
        if isinstance(declared, str | np.ndarray | Variable):
            raise ValueError(
                f"public= must be a sequence of names and arrays, got a single {type(declared).__name__}: pass a list."
            )
        names = [entry for entry in declared if isinstance(entry, str)]
        named = _named_arrays(model)
        factors = {v.name for v in (*model.free_RVs, *model.potentials)}
        self.priors = frozenset(factors.intersection(names))
        self._variables: set[Variable] = set()
        self._arrays: list[np.ndarray] = []
        self.descriptions: tuple[str, ...] = ()
        for entry in declared:
            if isinstance(entry, str):
                self._declare(entry, named, factors)
            else:
                array = stored(entry) if isinstance(entry, Variable) else np.asarray(entry)
                self._add([array], f"an array of shape {array.shape}")
        self.lengths = {len(a) for a in observed_arrays(model) if a.ndim} - {1}
        if self._has_observed(model):
            raise ValueError(
                f"public= has observed values, among {', '.join(self.descriptions)}: the values of an observed variable are "
                "protected. Remove them from public=."
            )

    def _has_observed(self, model: pm.Model) -> bool:
        """Whether a declared container is an observed one, whatever their values."""
        observed = set(filter(is_array_root, ancestors(observed_values(model))))
        pairs = product(self._arrays, map(stored, observed))
        return not self._variables.isdisjoint(observed) or any(np.shares_memory(*p) for p in pairs)

    def _declare(self, name: str, named: dict[str, list[Variable]], factors: set[str]) -> None:
        if name in factors:
            self._add([], f"arrays of {name}")
        elif name in named:
            self._variables.update(named[name])
            self._add(map(stored, named[name]), name)
        else:
            raise ValueError(
                f"public= names {name!r}, but the model has no pm.Data, named constant, free variable or potential of "
                f"that name. It has: {', '.join(sorted({*named, *factors})) or 'none'}."
            )

    def _add(self, arrays: Iterable[np.ndarray], description: str) -> None:
        self._arrays += arrays
        self.descriptions += (description,)

    def __contains__(self, variable: object) -> bool:
        """Whether an array, or a variable that stores one, is declared public."""
        if isinstance(variable, np.ndarray):
            return self._has(variable)
        if not (isinstance(variable, Variable) and is_array_root(variable)):
            return False
        return variable in self._variables or self._has(stored(variable))

    def _has(self, array: np.ndarray) -> bool:
        """Whether an array is a declared one or a view of it; or equal to one, if no axis is as long as the data."""
        if any(is_view(array, declared) for declared in self._arrays):
            return True
        is_other = self.lengths.isdisjoint(array.shape)
        return is_other and any(are_equal(array, declared) for declared in self._arrays)

    def excludes(self, variable: Variable) -> bool:
        """Whether a variable stores an array, or more than a number, that is not declared public."""
        return is_array_root(variable) and variable.ndim > 0 and variable not in self


def _named_arrays(model: pm.Model) -> dict[str, list[Variable]]:
    """Stored arrays in the model's graphs, by name."""
    outputs = [*model.basic_RVs, *model.deterministics, *model.potentials]
    outputs += [v for v in model.named_vars.values() if v not in outputs]
    named: dict[str, list[Variable]] = {}
    for variable in ancestors(outputs):
        if variable.name and is_array_root(variable):
            named.setdefault(variable.name, []).append(variable)
    return named


def is_view(array: np.ndarray, whole: np.ndarray) -> bool:
    """Whether an array is another one or a view of it: by memory, never by values."""
    if array is whole:
        return True
    (low, high), (begin, end) = map(_memory, (array, whole))
    if (low, high, array.shape, array.strides) == (begin, end, whole.shape, whole.strides):
        return True
    is_block = (
        whole.flags.c_contiguous or whole.flags.f_contiguous
    )  # all memory between its ends is its own
    return is_block and begin <= low < high <= end


def _memory(array: np.ndarray) -> tuple[int, int]:
    """Addresses of the first byte of an array and after its last byte."""
    ends = [s * (n - 1) for n, s in zip(array.shape, array.strides, strict=True) if n]
    begin = array.__array_interface__["data"][0] + sum(e for e in ends if e < 0)
    return begin, begin + sum(map(abs, ends)) + array.itemsize if array.size else begin


def are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether shapes and entries are equal, NaN with NaN. Sparse matrices equal only themselves."""
    if one is other:
        return True
    if one.shape != other.shape or "O" in (one.dtype.kind, other.dtype.kind):
        return False
    numbers = one.dtype.kind in "fc" and other.dtype.kind in "fc"
    pairs = ((one.flat[:1], other.flat[:1]), (one, other))  # the first entries often differ
    return all(np.array_equal(a, b, equal_nan=numbers) for a, b in pairs)
