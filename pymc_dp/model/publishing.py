"""Which variables of a model may be published: an allow-list, read off their graphs.

A Deterministic is a function of the chain, which is paid for, and of whatever arrays are in its
graph. So it may be published if these are all public, and is withheld if one is not, or if an
operation cannot be looked into. What cannot be seen is a number that was computed from the data
before it came into the graph (``pm.Deterministic("top", mu + y.max())`` with a NumPy array).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pymc as pm

from pytensor.graph.basic import Variable

from pymc_dp.model.public_arrays import (
    PublicArrays,
    inner_graphs,
    is_stored_object,
    is_structural,
    is_transparent,
)
from pymc_dp.model.roots import is_array_root, observed_arrays, stored

__all__ = ["publishable", "record_dims", "record_lengths", "withheld"]


def publishable(
    model: pm.Model,
    public: PublicArrays | Sequence[Any] = (),
    *,
    lengths: Iterable[int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> set[str]:
    """Names of the Deterministics and free variables that may be published.

    Parameters
    ----------
    model : pm.Model
    public : sequence of str or array, or PublicArrays
        Arrays that are declared public.
    lengths : iterable of int, optional
        Of axes that run over records; those of the data by default. None are known where the number
        of records is private.
    shapes : mapping of str to sequence of int, optional
        Shapes of the variables in a result, without chains and draws.

    Returns
    -------
    set of str
        Deterministics in whose graph, down to the free variables and the graphs inside of
        operations included, every array is public (or structural, see
        :func:`~pymc_dp.model.public_arrays.is_structural`) and nothing is observed; and of these
        and the free variables those that have no axis as long as the data.
    """
    names = {v.name for v in (*model.free_RVs, *model.deterministics)}
    return names - set(withheld(model, public, lengths=lengths, shapes=shapes))


def withheld(
    model: pm.Model,
    public: PublicArrays | Sequence[Any] = (),
    *,
    lengths: Iterable[int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, str]:
    """Return the others, and why: as :func:`publishable`."""
    if not isinstance(public, PublicArrays):
        public = PublicArrays(model, public)
    lengths = record_lengths(model, public) if lengths is None else set(lengths)
    found = {}
    for variable in (*model.free_RVs, *model.deterministics):
        reason = None
        if variable not in model.free_RVs:
            reason = _private_part(model, variable, public)
        shape = (shapes or {}).get(variable.name, variable.type.shape)
        long = next((n for n in shape if n in lengths and n != 1), None)
        if reason is None and long is not None:
            reason = f"has an axis of length {long}, as the data have"
        if reason is not None:
            found[variable.name] = reason
    return found


def record_lengths(model: pm.Model, public: PublicArrays | Sequence[Any] = ()) -> set[int]:
    """Lengths of axes that run over records: of what is observed, and of private containers."""
    if not isinstance(public, PublicArrays):
        public = PublicArrays(model, public)
    lengths = {len(array) for array in observed_arrays(model) if array.ndim}
    for variable in model.data_vars:
        if is_array_root(variable) and _is_private(variable, public):
            shape = stored(variable).shape
            # The rows, whichever axis they are on; of other arrays than the likelihood's the first.
            if lengths.isdisjoint(shape):
                lengths.add(shape[0])
    return lengths


def record_dims(
    model: pm.Model, lengths: Iterable[int], public: PublicArrays | Sequence[Any] = ()
) -> set[str]:
    """Names of dimensions whose labels are those of records: the first of what is observed or private, and those as long."""
    if not isinstance(public, PublicArrays):
        public = PublicArrays(model, public)
    lengths = set(lengths)
    private = [v for v in model.data_vars if not is_array_root(v) or _is_private(v, public)]
    dims = {
        str(dims[0])
        for variable in (*model.observed_RVs, *private)
        if (dims := model.named_vars_to_dims.get(variable.name))
    }
    return dims | {str(d) for d, c in model.coords.items() if c is not None and len(c) in lengths}


def _private_part(model: pm.Model, variable: Variable, public: PublicArrays) -> str | None:
    """What of a variable's graph is not public; None if all of it is."""
    free, observed = {*model.free_RVs, *model.value_vars}, set(model.observed_RVs)
    values = {model.rvs_to_values[rv] for rv in observed}
    seen: set[Variable] = set()
    stack = [variable]
    while stack:
        each = stack.pop()
        if each in seen or each in free:
            continue
        seen.add(each)
        if each in observed or each in values:
            return "is computed from what is observed"
        if each.owner is not None:
            if not is_transparent(each.owner.op):
                return f"is computed by an operation that cannot be looked into ({type(each.owner.op).__name__})"
            stack.extend(each.owner.inputs)
            for graph in inner_graphs(each.owner.op):
                stack.extend(graph)
        elif _is_private(each, public):
            return f"is computed from {_described(each)}, which is not declared public"
    return None


def _is_private(root: Variable, public: PublicArrays) -> bool:
    if is_array_root(root):
        return root not in public and not is_structural(stored(root))
    return is_stored_object(root)


def _described(root: Variable) -> str:
    shape = f"an array of shape {stored(root).shape}" if is_array_root(root) else "a stored value"
    return f"{root.name!r}, {shape}" if root.name else shape
