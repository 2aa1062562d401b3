"""Walks over the graphs of a model: which variables a value depends on, and how a graph is rebuilt.

PyMC does not mark data: a design matrix may be a ``pm.Data`` container, a NumPy array turned into a
constant, or part of a constant. `exposed` decides which arrays are private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import numpy as np
import pymc as pm
import pytensor

from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.basic import Alloc, Split
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.type import TensorType

from pymc_dp.model.withheld import evaluate

#: Makes the new outputs of a node from the node and its new inputs; None for the default.
Rule = Callable[[Apply, list[Variable]], Sequence[Variable] | None]


def is_array_root(variable: Variable) -> bool:
    """Whether a variable is a stored array (a constant or a shared variable) of tensor type."""
    return isinstance(variable, Constant | SharedVariable) and isinstance(variable.type, TensorType)


def stored(root: Variable) -> np.ndarray:
    """The array in a constant or shared variable (not a copy: never write to it)."""
    if isinstance(root, Constant):
        return np.asarray(root.data)
    return np.asarray(root.get_value(borrow=True))


def interpreted(inputs: Sequence[Variable], outputs: Any) -> Callable:
    """A function that runs graphs with NumPy: for a few calls, faster than compilation."""
    mode = Mode(linker="py", optimizer=None)
    return pytensor.function(list(inputs), outputs, mode=mode, on_unused_input="ignore")


def evaluate_without_inputs(outputs: Sequence[Variable], where: str) -> list[np.ndarray]:
    """Values of graphs without inputs, interpreted; errors are those of `evaluate`."""
    return evaluate(where, lambda: interpreted([], list(outputs))())


def observed_values(model: pm.Model) -> list[Variable]:
    """Value variables of the observed variables, in order."""
    return [model.rvs_to_values[rv] for rv in model.observed_RVs]


def observed_arrays(model: pm.Model) -> list[np.ndarray]:
    """Values of the observed variables, in order."""
    values = observed_values(model)
    symbolic = [value for value in values if not is_array_root(value)]
    computed = iter(evaluate_without_inputs(symbolic, "when its observed data were computed"))
    return [stored(value) if is_array_root(value) else next(computed) for value in values]


def value_inputs(node: Apply) -> list[Variable]:
    """Inputs of a node on which its values depend, and not only its shape.

    The number of rows is public under substitution. So a shape known before evaluation adds no dependence; a shape
    computed from values does.
    """
    if isinstance(node.op, Shape | Shape_i):
        return _deciding_shape(node.inputs[0])
    if isinstance(node.op, Reshape | SpecifyShape | Alloc | Split):
        value, *shape = node.inputs
        return [value, *(v for v in shape if not _is_written(v, node))]
    if isinstance(node.op, RandomVariable) or getattr(node.op, "extended_signature", None):
        size = node.op.size_param(node)
        return [v for v in node.inputs if not (v is size and isinstance(v, Constant))]
    return node.inputs


def _is_written(length: Variable, node: Apply) -> bool:
    """Whether a length is a literal of the program: a number, or an entry of a vector with one entry per axis."""
    if isinstance(node.op, Split):  # its inputs are the axis and the lengths of the parts
        return isinstance(length, Constant) and stored(length).size <= 4
    if length.owner is not None and isinstance(length.owner.op, Subtensor):
        length, *_ = length.owner.inputs
        return isinstance(length, Constant) and length.type.shape == (len(node.inputs) - 1,)
    return isinstance(length, Constant)


def _deciding_shape(variable: Variable) -> list[Variable]:
    """Variables whose values determine a shape, such as the arguments of ``unique`` and masks."""
    node = variable.owner
    if node is None:
        return []
    if isinstance(node.op, Elemwise | DimShuffle | Dot):
        return [v for each in node.inputs for v in _deciding_shape(each)]
    if isinstance(node.op, AdvancedSubtensor):
        # PyTensor counts the entries that a constant mask selects.
        masks = [v for v in node.inputs[1:] if getattr(v.type, "dtype", "") == "bool"]
        if masks:
            return masks
    return [variable] if None in getattr(variable.type, "shape", (None,)) else []


def joined(node: Apply) -> list[Variable]:
    """Arrays that a Join concatenates; in PyTensor 2 its first input is the axis."""
    return [v for v in node.inputs if v.ndim]


def upstream(starts: Iterable[Variable], stop: Set[Variable] = frozenset()) -> set[Variable]:
    """`starts` and all variables on which their values depend; `stop` and its ancestors are left out."""
    found: set[Variable] = set()
    stack = list(starts)
    while stack:
        variable = stack.pop()
        if variable in found or variable in stop:
            continue
        found.add(variable)
        if variable.owner is not None:
            stack.extend(value_inputs(variable.owner))
    return found


def downstream(outputs: Sequence[Variable], sources: Iterable[Variable]) -> set[Variable]:
    """Variables in the graphs of `outputs` whose values depend on one of `sources`."""
    reached = set(sources)
    for node in toposort(outputs):
        if not reached.isdisjoint(value_inputs(node)):
            reached.update(node.outputs)
    return reached


def rebuilt(
    outputs: Sequence[Variable], new: dict[Variable, Variable], rule: Rule = lambda *_: None
) -> list[Variable]:
    """Graphs with replacements, in which every node that depends on one is rebuilt.

    Unlike ``graph_replace`` this infers static shapes and broadcasting again: a node remembers the shapes that were
    known when it was made. All new variables are added to `new`. The rule is called with each node whose outputs are
    not all in `new`, inputs first, and with its new inputs; it returns replacements of the outputs, or None for the
    same operation on these inputs.
    """
    for node in toposort(outputs):
        if new.keys() >= set(node.outputs):
            continue
        inputs = [new.get(v, v) for v in node.inputs]
        made = rule(node, inputs)
        if made is None:
            if all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
                continue
            made = node.op.make_node(*inputs).outputs
            for old, variable in zip(node.outputs, made, strict=True):
                variable.name = old.name
        for old, variable in zip(node.outputs, made, strict=True):
            new.setdefault(old, variable)
    return [new.get(v, v) for v in outputs]
