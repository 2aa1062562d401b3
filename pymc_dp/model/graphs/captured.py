"""Arrays that a user's function has captured: a model's graph does not show what a function of Python reads.

Walked are closures, defaults, globals that the code names, functions called from it, bound methods,
partial functions and attributes of objects; not the modules of libraries. Values are compared with
those that the user declared public, and with patterns; nothing is called. A single number is not
found, nor what a function reads from a file or makes by ``eval``.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pymc.distributions.custom import CustomDistRV
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.data_variables import is_array_root, stored
from pymc_dp.model.graphs.graph_arrays import is_data, nodes_of, with_inner
from pymc_dp.model.graphs.public_arrays import PublicArrays

_LIBRARIES = sys.stdlib_module_names | {
    "arviz", "numba", "numpy", "pandas", "polars", "pyarrow", "pymc", "pymc_dp", "pytensor", "scipy", "xarray",
}  # fmt: skip


def check_functions(
    what: str, graphs: Sequence[Variable], public: PublicArrays, lengths: set[int]
) -> None:
    """Refuse functions that draw random variables and have captured arrays that are not declared public."""
    for op in {node.op for node in nodes_of(with_inner(graphs, frozenset()))}:
        if isinstance(op, CustomDistRV):
            function = op._random_fn
        elif isinstance(op, RandomVariable) and not _is_of_library(type(op)):
            function = type(op).rng_fn
        else:
            continue
        for array in _captured(function):
            if is_data(array, lengths) and array not in public:
                raise UnsupportedModel(
                    f"{what} is drawn by a function (random= of a pm.CustomDist) that has captured an array of shape {array.shape}. "
                    "Plans call it with nothing paid: pass the array to the distribution as a parameter, or, if it holds no data of "
                    "records, declare it with public=[array]."
                )


def _captured(function: Any) -> Iterator[np.ndarray]:
    """Arrays that a function can reach, without copies; a table that is not in memory as one array of objects."""
    seen: list[Any] = []  # kept alive: their identities are compared
    known: set[int] = set()
    stack = [function]
    while stack:
        each = stack.pop()
        if id(each) in known:
            continue
        known.add(id(each))
        seen.append(each)
        array = _as_array(each)
        if array is None:
            stack.extend(_parts(each))
        else:
            yield array


def _as_array(each: Any) -> np.ndarray | None:
    if isinstance(each, np.ndarray):
        return each
    if isinstance(each, Variable):
        return stored(each) if is_array_root(each) else None
    if isinstance(each, type | types.ModuleType):
        return None
    if isinstance(each, Sequence) and not isinstance(each, str | bytes):
        numbers = len(each) > 1 and all(isinstance(x, int | float | np.number) for x in each)
        return np.asarray(each) if numbers else None
    if hasattr(each, "to_numpy"):
        return np.asarray(each)
    if any(hasattr(each, name) for name in ("__array__", "__arrow_c_stream__", "__dataframe__")):
        return None if isinstance(each, np.generic) else np.array([each, None], dtype=object)
    return None


def _is_of_library(each: Any) -> bool:
    return (getattr(each, "__module__", None) or "builtins").split(".")[0] in _LIBRARIES


def _parts(each: Any) -> Iterator[Any]:
    """Parts of an object: what a function reads, entries of containers, and attributes."""
    if isinstance(each, types.FunctionType):
        if not _is_of_library(each):
            yield from _read_by(each)
    elif isinstance(each, Mapping):
        yield from each.values()
    elif isinstance(each, list | tuple | set | frozenset):
        yield from each
    elif isinstance(each, functools.partial):
        yield from (each.func, *each.args, each.keywords)
    elif isinstance(each, Variable):
        yield from (each.owner.inputs if each.owner is not None else ())
    elif isinstance(each, type):
        if not _is_of_library(each):
            yield from (v for kind in each.__mro__[:-1] for v in vars(kind).values())
    elif not isinstance(each, types.ModuleType):
        yield from (getattr(each, name, None) for name in ("__self__", "__func__", "__wrapped__"))
        yield from vars(each).values() if hasattr(each, "__dict__") else ()
        slots = (name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ()))
        yield from (getattr(each, name, None) for name in slots)
        yield type(each)


def _read_by(function: types.FunctionType) -> Iterator[Any]:
    codes = [function.__code__]
    for code in codes:  # functions that are defined inside have their own code
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    names = {name for code in codes for name in code.co_names}
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing is assigned yet
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__, vars(function))
    for each in (function.__globals__[n] for n in names if n in function.__globals__):
        yield each
        if isinstance(each, types.ModuleType) and each.__name__.split(".")[0] not in _LIBRARIES:
            yield from (vars(each).get(name) for name in names)
