"""Variables of a model that may be published: an allow-list, derived from their graphs.

A Deterministic is a function of the chain, whose privacy cost is accounted for, and of the arrays in
its graph. It may be published if these are all public. It is withheld if one is not, or if an
operation cannot be inspected. A number that was computed from the data outside of the graph
(``pm.Deterministic("top", mu + y.max())`` with a NumPy array) is not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pymc as pm

from pytensor.graph.basic import Variable

from pymc_dp.model.graphs.data_variables import (
    is_array_root,
    observed_arrays,
    observed_values,
    stored,
)
from pymc_dp.model.graphs.public_arrays import (
    PublicArrays,
    inner_graphs,
    is_stored_object,
    is_structural,
    is_transparent,
)


def withheld(
    model: pm.Model,
    public: PublicArrays | Sequence[Any] = (),
    *,
    lengths: Iterable[int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, str]:
    """Free variables and Deterministics that must not be published: the reason, by name.

    All others may be: they have no axis as long as the data; and in the graph of a Deterministic, from
    the free variables on and with the inner graphs of operations, every array is public, or structural
    (see :func:`~pymc_dp.model.graphs.public_arrays.is_structural`) without an axis as long as the data, and no variable is observed.

    `lengths` are those of axes that run over records, by default those of the data: they are empty if the
    number of records is private. `shapes` are those of the variables in a result, without the axes of
    chains and draws.
    """
    public = _declared(model, public)
    lengths = record_lengths(model, public) if lengths is None else set(lengths)
    found = {}
    for variable in (*model.free_RVs, *model.deterministics):
        shape = (shapes or {}).get(variable.name, variable.type.shape)
        hidden = None if variable in model.free_RVs else private_part(model, variable, public)
        reason = hidden or _long_axis(shape, lengths)
        if reason is not None:
            found[variable.name] = reason
    return found


def _declared(model: pm.Model, public: PublicArrays | Sequence[Any]) -> PublicArrays:
    return public if isinstance(public, PublicArrays) else PublicArrays(model, public)


def _long_axis(shape: Sequence[int], lengths: set[int]) -> str | None:
    long = next((n for n in shape if n in lengths and n != 1), None)
    return None if long is None else f"has an axis of length {long}, like the data"


def record_lengths(model: pm.Model, public: PublicArrays | Sequence[Any] = ()) -> set[int]:
    """Lengths of axes that run over records: those of observed arrays and of private containers."""
    public = _declared(model, public)
    lengths = {len(array) for array in observed_arrays(model) if array.ndim}
    for variable in model.data_vars:
        if is_array_root(variable) and _is_private(variable, public):
            shape = stored(variable).shape
            # The axis with rows has the length of an observed array; otherwise take the first axis.
            if lengths.isdisjoint(shape):
                lengths.add(shape[0])
    return lengths


def record_dims(
    model: pm.Model, lengths: Iterable[int], public: PublicArrays | Sequence[Any] = ()
) -> set[str]:
    """Names of dimensions that label records: the first of observed and private arrays, and all of their lengths."""
    public = _declared(model, public)
    lengths = set(lengths)
    private = [v for v in model.data_vars if not is_array_root(v) or _is_private(v, public)]
    dims = {
        str(dims[0])
        for variable in (*model.observed_RVs, *private)
        if (dims := model.named_vars_to_dims.get(variable.name))
    }
    return dims | {str(d) for d, c in model.coords.items() if c is not None and len(c) in lengths}


def private_part(model: pm.Model, variable: Variable, public: PublicArrays) -> str | None:
    """Why a variable's graph is not public; None if it is."""
    observed = {*model.observed_RVs, *observed_values(model)}
    seen = {*model.free_RVs, *model.value_vars}
    stack = [variable]
    while stack:
        each = stack.pop()
        if each in seen:
            continue
        seen.add(each)
        if each in observed:
            return "is computed from what is observed"
        if each.owner is None:
            if _is_private(each, public):
                return f"is computed from {_described(each)}, which is not declared public"
            continue
        op = each.owner.op
        if not is_transparent(op):
            return f"is computed by an operation that cannot be inspected ({type(op).__name__})"
        stack.extend(each.owner.inputs)
        for graph in inner_graphs(op):
            stack.extend(graph)
    return None


def _is_private(root: Variable, public: PublicArrays) -> bool:
    if is_array_root(root):
        # Data with a row for each record may look like a pattern, such as a constant column.
        has_rows = not public.lengths.isdisjoint(stored(root).shape)
        return root not in public and (has_rows or not is_structural(stored(root)))
    return is_stored_object(root)


def _described(root: Variable) -> str:
    shape = f"an array of shape {stored(root).shape}" if is_array_root(root) else "a stored value"
    return f"{root.name!r}, {shape}" if root.name else shape
