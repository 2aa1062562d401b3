"""Graphs that compute in double precision, whatever the types of their data.

PyTensor's logarithm of a column of float32, or of small integers, is a float32: what is computed from such columns alone
would be rounded to 24 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar import Cast, Switch
from pytensor.tensor.elemwise import CAReduce, Elemwise

from pymc_dp.model.graphs.data_variables import rebuilt

#: Operations that compute nothing, by name, as their modules depend on the version.
_MOVES = {
    "Alloc", "Join", "Split", "DimShuffle", "Reshape", "SpecifyShape", "Subtensor", "AdvancedSubtensor", "AdvancedSubtensor1",
}  # fmt: skip
_SHORT = ("float32", "float16")


def in_doubles(graphs: Sequence[Variable]) -> list[Variable]:
    """The graphs in float64 in place of float32, also where a float32 is computed from integers alone.

    Conversions that the model asks for stay, as do PyMC's own constants (``log(2.0)``): equal for all records, and as
    in PyMC's log-likelihood.
    """
    known: set[Variable] = set()  # computed from numbers alone

    def rule(node: Apply, inputs: list[Variable]) -> Sequence[Variable] | None:
        if all(
            v in known or (isinstance(v, Constant) and np.size(v.data) == 1) for v in node.inputs
        ):
            known.update(node.outputs)
            return None
        return _rule(node, inputs)

    return rebuilt(graphs, {}, rule)


def _rule(node: Apply, inputs: list[Variable]) -> Sequence[Variable] | None:
    op, kinds = node.op, [getattr(v.type, "dtype", "") for v in inputs]
    if isinstance(op, Elemwise):
        if isinstance(op.scalar_op, Cast) or not node.outputs[0].dtype.startswith("float"):
            return None
        first = (
            1 if isinstance(op.scalar_op, Switch) else 0
        )  # what may be converted, after the condition
        mixed = "float64" in kinds[first:]
        short = [k in _SHORT if mixed else k != "float64" for k in kinds]
        longer = [
            v.astype("float64") if s and j >= first else v
            for j, (v, s) in enumerate(zip(inputs, short, strict=True))
        ]
        return op(*longer, return_list=True) if any(short[first:]) else None
    if type(op).__name__ in _MOVES or not any(getattr(v.type, "dtype", "") in _SHORT for v in node.outputs):  # fmt: skip
        return None
    longer = [v.astype("float64") if k in _SHORT else v for v, k in zip(inputs, kinds, strict=True)]
    if isinstance(op, CAReduce) and getattr(op, "dtype", None) in _SHORT:
        op = type(op)(axis=op.axis)  # of the type of its input
    return op(*longer, return_list=True)
