"""Arrays in the graphs of a model, also inside of operations, and which of them may be data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

import numpy as np

from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.shape_utils import change_dist_size
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Join
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import IncSubtensor, Subtensor
from pytensor.tensor.type import TensorType

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.data_variables import is_array_root, stored, upstream, value_inputs
from pymc_dp.model.graphs.parameter_checks import INCREMENTS, SELECTIONS
from pymc_dp.model.graphs.public_arrays import (
    PublicArrays,
    inner_graphs,
    is_stored_object,
    is_structural,
    is_transparent,
)


def array_name(variable: Variable) -> str:
    """Description of an array: its name, or its shape."""
    shape = stored(variable).shape
    return f"the array {variable.name!r}" if variable.name else f"an array of shape {shape}"


def is_custom(graphs: Sequence[Variable], stop: Set[Variable], transform: Any = None) -> bool:
    """Whether a random variable or a transform is the user's own and may have captured arrays."""
    operations = {type(node.op) for node in nodes_of(with_inner(graphs, stop))}
    if any(issubclass(kind, CustomDistRV) for kind in operations):
        return True
    makers = [*operations, *_makers(transform)]
    modules = {(maker.__module__ or "").split(".")[0] for maker in makers}
    return not modules <= {"abc", "builtins", "pymc", "pytensor"}


def _makers(transform: Any) -> list[Any]:
    """Types and functions of which a transform is made."""
    objects = [transform]
    for each in objects:  # chains of transforms may be nested
        objects += getattr(each, "transform_list", ())
    objects += [part for each in objects for part in getattr(each, "__dict__", {}).values()]
    return [each if callable(each) else type(each) for each in objects if each is not None]


def arrays_in(
    graphs: Sequence[Variable],
    stop: Set[Variable] = frozenset(),
    lengths: Set[int] = frozenset(),
    single: bool = False,
) -> list[Variable]:
    """Arrays on which the values of graphs depend, except scalars and patterns made without data.

    A pattern that is as long as the data counts as a column of the data, and so do two different integers, unless they
    are only used as an index. With `single`, vectors with one entry count, too.
    """
    found = upstream(graphs, stop)
    inside = set(graphs)  # inputs of operations other than Join
    computed_with = set(graphs)  # variables that are used other than as an index
    for node in nodes_of(found):
        computed_with.update(_inputs_but_indices(node))
        if not (isinstance(node.op, Join) or any(map(is_length, node.outputs))):
            inside.update(_inputs_but_indices(node))
    arrays = []
    for v in ancestors(graphs):
        if v in found and is_array_root(v):
            single_counts, is_index = single and v in inside, v not in computed_with
            if is_data(stored(v), lengths, single_counts, is_index):
                arrays.append(v)
    return arrays


def is_data(
    array: np.ndarray, lengths: Set[int], single: bool = True, is_index: bool = False
) -> bool:
    """Whether an array counts as data, see `arrays_in`."""
    if array.ndim == 0 or array.size == 0:
        return False
    if array.size == 1:
        # A vector with one entry may be data: pm.gp.HSGP computes its centre from them.
        return single and (array.dtype.kind in "bO" or array.item() not in (0, 1))
    return not is_structural(array) or _may_be_column(array, lengths, is_index)


def _may_be_column(array: np.ndarray, lengths: Set[int], is_index: bool) -> bool:
    is_counting = array.dtype.kind in "iu" and len(set(array.ravel()[:2].tolist())) > 1
    if is_counting and is_index:
        return False
    return not lengths.isdisjoint(array.shape) or (is_counting and array.size == 2)


def _inputs_but_indices(node: Apply) -> list[Variable]:
    """Inputs on which the values of a node depend, other than as indices of another input."""
    indices: list[Variable] = []
    if isinstance(node.op, SELECTIONS):
        indices = node.inputs[1:]
    elif isinstance(node.op, INCREMENTS | IncSubtensor):
        indices = node.inputs[2:]
    return [v for v in value_inputs(node) if v not in indices]


def is_length(variable: Variable) -> bool:
    """Whether a variable is an entry of a few integers, as PyTensor writes ``constant.shape[0]``."""
    if variable.owner is None or not isinstance(variable.owner.op, Subtensor) or variable.ndim:
        return False
    x, *_ = variable.owner.inputs
    return isinstance(x, Constant) and x.dtype == "int64" and x.ndim == 1 and stored(x).size <= 4


def nodes_of(found: Set[Variable]) -> set[Apply]:
    """The nodes that compute some variables."""
    return {v.owner for v in found if v.owner is not None}


def _inner(
    graphs: Sequence[Variable], stop: Set[Variable] = frozenset()
) -> Iterator[list[Variable]]:
    """Outputs of the inner graphs of operations, at all depths."""
    for node in nodes_of(upstream(graphs, stop)):
        for outputs in inner_graphs(_fresh(node)):
            yield outputs
            yield from _inner(outputs)


def with_inner(graphs: Sequence[Variable], stop: Set[Variable]) -> set[Variable]:
    """Variables on which graphs and their inner graphs depend."""
    return upstream(graphs, stop).union(*map(upstream, _inner(graphs, stop)))


def inner_arrays(
    what: str, graphs: Sequence[Variable], stop: Set[Variable], public: PublicArrays
) -> list[Variable]:
    """Private arrays in inner graphs; refuses what `refuse_hidden` refuses."""
    refuse_hidden(what, graphs, stop)
    return [v for outputs in _inner(graphs, stop) for v in arrays_in(outputs) if v not in public]


def refuse_hidden(
    what: str, graphs: Sequence[Variable], stop: Set[Variable] = frozenset()
) -> set[Variable]:
    """Refuse operations and stored objects that may hold data; return all ancestors, those in inner graphs included."""
    found = with_inner(graphs, stop)
    if any(map(is_stored_object, found)):
        raise UnsupportedModel(
            f"{what} has a sparse matrix or another stored object that is not an array, whose rows cannot be followed. "
            "Use dense arrays."
        )
    for op in {node.op for node in nodes_of(found)}:
        if not (isinstance(op, RandomVariable | SymbolicRandomVariable) or is_transparent(op)):
            raise UnsupportedModel(
                f"{what} has the operation {type(op).__name__}, which cannot be inspected: it may have captured data. Write it "
                "with PyTensor's own operations (or with a pm.CustomDist whose logp function uses these)."
            )
    return found


def _fresh(node: Apply) -> Any:
    """The operation of a node; that of a pm.CustomDist is rebuilt from the user's function.

    Once PyMC has compiled a model, expressions of constants in its inner graphs are evaluated.
    """
    if not isinstance(node.op, CustomSymbolicDistRV):
        return node.op
    (rv,) = (v for v in node.outputs if isinstance(v.type, TensorType))
    size = [rv.shape[k] for k in range(rv.ndim - node.op.ndim_supp)]
    return change_dist_size(rv, size).owner.op
