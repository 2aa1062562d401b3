"""Which stored arrays of a model hold no private data: index patterns, and what the user declares.

A graph shows an array, but not where its values come from. So an array is private unless its values
could come from no data (`is_structural`) or the user says that it is public (`PublicArrays`).
"""

from __future__ import annotations

import math

from collections.abc import Sequence
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

from pymc_dp.model.roots import is_array_root, observed_arrays, stored

#: Modules whose operations compute from their inputs alone. (Not among them: calls of JAX functions.)
_HOST = (
    "pymc.", "pytensor.compile.", "pytensor.graph.", "pytensor.gradient", "pytensor.ifelse", "pytensor.raise_op",
    "pytensor.scalar.", "pytensor.scan.", "pytensor.sparse.", "pytensor.tensor.",
)  # fmt: skip

__all__ = ["PublicArrays", "inner_graphs", "is_stored_object", "is_structural", "is_transparent"]  # fmt: skip


def is_structural(array: np.ndarray) -> bool:
    """Whether an array is a pattern that is made without data, such as an index.

    Parameters
    ----------
    array : array

    Returns
    -------
    bool
        True for at most one entry that is no object; for numbers that are all equal; for square matrices with one
        value on and one off the diagonal (``np.eye``); and for integers that are an arithmetic
        progression (``np.arange``; of two entries only 0, 1 and 1, 2, in any order), the rows or
        columns of ``np.tril_indices`` or ``np.triu_indices``, with the diagonal or without it, or
        the places of a packed triangle's diagonal (``np.arange(1, n + 1).cumsum() - 1``); and for
        the frequencies of a basis, whole multiples of pi on a grid (``pm.gp.HSGP`` makes them).

    Notes
    -----
    Data that happen to be such a pattern are taken for one: the caller has to treat the observed
    values as private whatever they look like.
    """
    array = np.asarray(array)
    if array.dtype.kind == "O":  # a sparse matrix is a single object to NumPy
        return False
    if array.size <= 1:
        return True
    if array.dtype.kind not in "biufc":
        return False
    if _all_equal(array):
        return True
    if array.ndim == 2 and array.shape[0] == array.shape[1]:
        off = ~np.eye(len(array), dtype=bool)
        if _all_equal(np.diagonal(array)) and _all_equal(array[off]):
            return True
    if array.dtype.kind == "f" and array.ndim == 2:
        return _is_grid_of_frequencies(array)
    if array.dtype.kind not in "iu":
        return False
    return _is_progression(array) or (array.ndim == 1 and _indexes_triangle(array))


def _all_equal(array: np.ndarray) -> bool:
    flat = array.reshape(-1)

    def equal(some: np.ndarray) -> bool:
        return some.size <= 1 or bool((some == some[0]).all() or (some != some).all())

    return equal(flat[:16]) and equal(flat)  # seldom more than the first


def _is_progression(array: np.ndarray) -> bool:
    flat = array.reshape(-1)
    if len(flat) == 2:  # any two numbers are one
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
    n = math.isqrt(2 * len(array))  # rows of a triangle of so many entries, its diagonal included
    patterns: list[np.ndarray] = [np.arange(1, len(array) + 1).cumsum() - 1]
    patterns += [np.arange(2, len(array) + 2)[::-1].cumsum() - len(array) - 1]
    if n * (n + 1) // 2 == len(array):
        patterns += [*np.tril_indices(n), *np.triu_indices(n)]
        patterns += [*np.tril_indices(n + 1, -1), *np.triu_indices(n + 1, 1)]
    return any(np.array_equal(array, pattern) for pattern in patterns)


def is_stored_object(root: Variable) -> bool:
    """Whether a variable holds a sparse matrix, a list, or whatever else is more than one number and no array."""
    if is_array_root(root):
        return stored(root).dtype.kind == "O"  # what a sparse matrix is to NumPy
    if not (isinstance(root, Constant) or hasattr(root, "get_value")):
        return False  # an input of an inner graph
    return not isinstance(root.type, ScalarType | RandomType | NoneTypeT | SliceType)


def is_transparent(op: Any) -> bool:
    """Whether an operation is the host's own, without an array or a function of the user's in it.

    What is inside of it (of an elementwise operation the scalar one, of a batch the core) must be, too;
    graphs inside are the caller's to look into.
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
    """Outputs of graphs inside an operation: loops, fused scalar operations, and the like."""
    graphs = []
    if isinstance(op, HasInnerGraph):
        graphs.append(list(op.fgraph.outputs))
    scalar_op = getattr(op, "scalar_op", None)
    if isinstance(scalar_op, HasInnerGraph):
        graphs.append(list(scalar_op.fgraph.outputs))
    core = getattr(op, "core_op", None)  # of Blockwise
    return graphs + (inner_graphs(core) if core is not None else [])


def _holds_numbers(value: Any) -> bool:
    """Whether an attribute has numbers in it that may be data: an array, or a list of them."""
    if isinstance(value, np.ndarray):
        return not is_structural(value)
    if isinstance(value, dict):
        return any(map(_holds_numbers, value.values()))
    if isinstance(value, list | tuple):
        floats = [v for v in value if isinstance(v, float | np.floating)]
        return len(floats) > 1 or any(map(_holds_numbers, value))
    return False


class PublicArrays:
    """Arrays that the user declares public, such as a design matrix that everybody may know.

    A constant or shared variable of the model's graphs is public if it is declared by its name, or
    if its shape and values are those of a declared array. What is computed from a declared array
    before it is in the graph (``X[:, 0]`` in NumPy) is another array: declare it, too. The name of
    a free variable or potential declares all arrays of its prior, or of its own graph.

    Parameters
    ----------
    model : pm.Model
    declared : sequence of str or array
        Names of ``pm.Data`` containers, of named constants, of free variables and of potentials;
        and arrays.

    Attributes
    ----------
    priors : frozenset of str
        Free variables and potentials whose own arrays are public.
    descriptions : tuple of str
        Names, and shapes of arrays, for the report; no values.

    Raises
    ------
    ValueError
        If the model has no array of such a name, or if what is declared is observed.
    """

    def __init__(self, model: pm.Model, declared: Sequence[Any] = ()) -> None:
        if isinstance(declared, str | np.ndarray | Variable):
            raise ValueError(
                f"public= must be a sequence of names and arrays, got a single {type(declared).__name__}: put it in a list."
            )
        named = _named_arrays(model) if any(isinstance(d, str) for d in declared) else {}
        own = {v.name for v in (*model.free_RVs, *model.potentials)}
        self.priors = frozenset(d for d in declared if isinstance(d, str) and d in own)
        self._variables: set[Variable] = set()
        self._arrays: list[np.ndarray] = []
        descriptions = []
        for entry in declared:
            if isinstance(entry, str) and entry in self.priors:
                descriptions.append(f"arrays of {entry}")
            elif isinstance(entry, str):
                if entry not in named:
                    raise ValueError(
                        f"public= names {entry!r}, but the model has no pm.Data, named constant, free variable or potential of "
                        f"that name. It has: {', '.join(sorted({*named, *own})) or 'none'}."
                    )
                self._variables.update(named[entry])
                self._arrays += [stored(variable) for variable in named[entry]]
                descriptions.append(entry)
            else:
                array = stored(entry) if isinstance(entry, Variable) else np.asarray(entry)
                self._arrays.append(array)
                descriptions.append(f"an array of shape {array.shape}")
        self.descriptions: tuple[str, ...] = tuple(descriptions)
        observed = observed_arrays(model) if self._arrays else []
        if any(_same(a, b) and not is_structural(a) for a in self._arrays for b in observed):
            raise ValueError(
                f"public= has what is observed among {', '.join(descriptions)}: the values of an observed variable are what is protected. "
                "Leave them out."
            )

    def __contains__(self, variable: object) -> bool:
        """Whether a variable is a stored array that is declared public."""
        if not (isinstance(variable, Variable) and is_array_root(variable)):
            return False
        array = stored(variable)
        return variable in self._variables or any(_same(array, a) for a in self._arrays)


def _named_arrays(model: pm.Model) -> dict[str, list[Variable]]:
    """Stored arrays in the model's graphs that have a name, by it."""
    outputs = [*model.basic_RVs, *model.deterministics, *model.potentials]
    outputs += [v for v in model.named_vars.values() if v not in outputs]
    named: dict[str, list[Variable]] = {}
    for variable in ancestors(outputs):
        if variable.name and is_array_root(variable):
            named.setdefault(variable.name, []).append(variable)
    return named


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    if one is other:
        return True
    if one.dtype.kind == "O" or other.dtype.kind == "O":  # sparse matrices: declared by name only
        return False
    numbers = one.dtype.kind in "fc" and other.dtype.kind in "fc"
    return one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=numbers))
