"""Walks over the graphs of a model: what a variable's values depend on, and which arrays hold them.

PyMC does not mark data: a design matrix may be a ``pm.Data`` container, a NumPy array turned into a
constant, or part of a constant. Which arrays are private is decided in `exposed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

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

__all__ = ["INTERPRETED", "downstream", "is_array_root", "observed_arrays", "stored", "upstream", "value_inputs"]  # fmt: skip

# Runs graphs with NumPy, without compiling anything: build-time checks evaluate a graph a few
# times, which never pays for a compilation.
INTERPRETED = Mode(linker="py", optimizer=None)


def is_array_root(variable: Variable) -> bool:
    """Whether a variable is a stored array (a constant or a shared variable) of tensor type."""
    return isinstance(variable, Constant | SharedVariable) and isinstance(variable.type, TensorType)


def stored(root: Variable) -> np.ndarray:
    """The array a root holds (not a copy: never write to it)."""
    if isinstance(root, Constant):
        return np.asarray(root.data)
    return np.asarray(root.get_value(borrow=True))


def observed_arrays(model: pm.Model) -> list[np.ndarray]:
    """The values of the observed variables, in their order."""
    values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    symbolic = [value for value in values if not is_array_root(value)]
    evaluated = iter(
        evaluate(
            "when its observed data were computed",
            lambda: pytensor.function([], symbolic, mode=INTERPRETED)() if symbolic else (),
        )
    )
    return [stored(value) if is_array_root(value) else next(evaluated) for value in values]


def value_inputs(node: Apply) -> list[Variable]:
    """The inputs of a node that its values depend on, and not only its shape.

    How many rows there are is public under substitution. So a shape that is known beforehand decides
    nothing; one that is computed from values does.
    """
    if isinstance(node.op, Shape | Shape_i):
        return _deciding_shape(node.inputs[0])
    if isinstance(node.op, Reshape | SpecifyShape | Alloc | Split):
        value, *shape = node.inputs
        if isinstance(node.op, Split):  # into parts of these lengths
            return [v for v in node.inputs if v is value or not _is_short(v)]
        return [value, *(v for v in shape if not _is_literal(v, len(shape)))]
    if isinstance(node.op, RandomVariable) or getattr(node.op, "extended_signature", None):
        size = node.op.size_param(node)
        return [v for v in node.inputs if v is not size or not isinstance(v, Constant)]
    return node.inputs


def _is_literal(length: Variable, n_axes: int) -> bool:
    """Whether a length stands in the program: a number, or one of as many numbers as there are axes."""
    if length.owner is not None and isinstance(length.owner.op, Subtensor):
        length, *_ = length.owner.inputs
        return isinstance(length, Constant) and length.type.shape == (n_axes,)
    return isinstance(length, Constant)


def _is_short(lengths: Variable) -> bool:
    return isinstance(lengths, Constant) and stored(lengths).size <= 4


def _deciding_shape(variable: Variable) -> list[Variable]:
    """Variables whose values decide about a shape, as those of ``unique`` and of masks do."""
    node = variable.owner
    if node is None:
        return []
    if isinstance(node.op, Elemwise | DimShuffle | Dot):
        return [v for each in node.inputs for v in _deciding_shape(each)]
    if isinstance(node.op, AdvancedSubtensor):
        # PyTensor counts the entries that a constant mask lets through.
        masks = [v for v in node.inputs[1:] if getattr(v.type, "dtype", "") == "bool"]
        if masks:
            return masks
    return [variable] if None in getattr(variable.type, "shape", (None,)) else []


def upstream(
    starts: Iterable[Variable], stop: Callable[[Variable], bool] = lambda _: False
) -> set[Variable]:
    """Everything the values of `starts` depend on.

    Variables where `stop` holds are left out, and nothing is looked for behind them.
    """
    found: set[Variable] = set()
    stack = list(starts)
    while stack:
        variable = stack.pop()
        if variable in found or stop(variable):
            continue
        found.add(variable)
        if variable.owner is not None:
            stack.extend(value_inputs(variable.owner))
    return found


def downstream(outputs: Sequence[Variable], sources: Iterable[Variable]) -> set[Variable]:
    """The variables in the graphs of `outputs` whose value depends on one of `sources`."""
    reached = set(sources)
    for node in toposort(outputs):
        if not reached.isdisjoint(value_inputs(node)):
            reached.update(node.outputs)
    return reached
