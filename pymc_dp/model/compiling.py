"""Compile graphs whose data are fixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import SequentialGraphRewriter, in2out, node_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.math import Softplus
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from pymc_dp.model.roots import is_array_root, stored

__all__ = ["NumbaFunction", "compile_frozen", "freeze"]

# Arrays longer than this are inputs of the compiled function, not constants in its code.
MAX_CONSTANT = 8


@node_rewriter([Elemwise])
def _lift_from_switch(_: FunctionGraph, node: Apply) -> list[Variable] | None:
    """``switch(c, f(a), f(b)) -> f(switch(c, a, b))``: one evaluation of f instead of two.

    Numba turns the first into a branch per row, and data are hard to predict: a Bernoulli
    likelihood takes twice as long.
    """
    if not isinstance(node.op.scalar_op, ps.Switch):
        return None
    condition, *branches = node.inputs
    nodes = [b.owner for b in branches]
    if any(n is None or not isinstance(n.op, Elemwise) or len(n.inputs) != 1 for n in nodes):
        return None
    if nodes[0].op != nodes[1].op:
        return None
    a, b = (n.inputs[0] for n in nodes)
    if a.dtype != b.dtype:
        return None
    return [nodes[0].op(pt.switch(condition, a, b))]


@node_rewriter([Elemwise])
def _softplus_without_branches(_: FunctionGraph, node: Apply) -> list[Variable] | None:
    """One formula for all of softplus, as accurate as PyTensor's five, a third faster in Numba."""
    if not isinstance(node.op.scalar_op, Softplus) or node.outputs[0].dtype != "float64":
        return None
    (x,) = node.inputs
    return [pt.maximum(x, 0.0) + pt.log1p(pt.exp(-pt.abs(x)))]


@node_rewriter([Elemwise])
def _reciprocals_of_constants(_: FunctionGraph, node: Apply) -> list[Variable] | None:
    """``x / c -> x * (1 / c)`` for arrays: wide likelihoods and their gradients wait for divisions."""
    if not isinstance(node.op.scalar_op, ps.TrueDiv) or node.outputs[0].dtype != "float64":
        return None
    x, c = node.inputs
    if not isinstance(c, Constant) or stored(c).size <= 1:
        return None
    with np.errstate(all="ignore"):  # a warning would tell something of the data
        return [x * pt.constant(1.0 / stored(c).astype("float64"))]


_ADDITIONAL = SequentialGraphRewriter(
    in2out(_reciprocals_of_constants, name="reciprocals_of_constants"),
    in2out(_lift_from_switch, name="lift_from_switch"),
    in2out(_softplus_without_branches, name="softplus_without_branches"),
)


def freeze(outputs: Sequence[Variable], changing: Sequence[Variable] = ()) -> list[Variable]:
    """Simplify graphs, and put their data into shared variables that nothing else refers to.

    All but those shared variables that are `changing`. Data stay constants while the graphs are
    simplified, so that what depends on them alone is computed here (``log(y!)``), and become shared
    variables after that: compiled code would otherwise hold them, and so would Numba's cache on disk.
    """
    graphs = list(outputs)
    is_shared = [v for v in ancestors(graphs) if isinstance(v, SharedVariable)]
    is_shared = [v for v in is_shared if is_array_root(v) and v not in changing]
    frozen = {v: pt.constant(np.array(stored(v))) for v in is_shared}
    if frozen:
        graphs = graph_replace(graphs, frozen, strict=False)
    # Without shape inference, PyTensor 2.38 rewrites some mixtures for ever.
    stages = ("ShapeOpt", "canonicalize", "stabilize", "specialize")
    # Powers stay powers until the graph is compiled: what they become has no gradient.
    exclude = ("local_pow_to_nested_squaring",)
    graphs = rewrite_graph(graphs, include=stages, exclude=exclude, custom_rewrite=_ADDITIONAL)
    constants = [
        v
        for v in ancestors(graphs)
        if isinstance(v, Constant)
        and isinstance(v.type, TensorType)
        and stored(v).size > MAX_CONSTANT
    ]
    shared = {v: pytensor.shared(stored(v), shape=stored(v).shape) for v in constants}
    return graph_replace(graphs, shared, strict=False) if shared else graphs


def compile_frozen(inputs: list[Variable], output: Variable, options: dict[str, Any]) -> Callable:
    """Compile a graph that `freeze` returned, or one without data."""
    function = pytensor.function(inputs, output, **options)
    function.trust_input = True
    return function


class NumbaFunction:
    """A graph compiled by Numba and called directly: PyTensor takes microseconds to hand data over.

    Arguments must have the types of the inputs, and results must not be written to.
    """

    def __init__(self, inputs: list[Variable], outputs: list[Variable]) -> None:
        self.function = pytensor.function(
            inputs, outputs, mode="NUMBA", on_unused_input="ignore", trust_input=True
        )
        self._n_inputs = len(inputs)
        self._compiled: tuple[Callable, list[Any]] | None = None

    def __call__(self, *arguments: Any) -> Sequence[np.ndarray]:
        """Outputs for these inputs."""
        if self._compiled is None:
            hidden = [c.storage[0] for c in self.function.input_storage[self._n_inputs :]]
            self._compiled = self.function.vm.jit_fn, hidden
        function, hidden = self._compiled
        return function(*arguments, *hidden)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_compiled": None}  # for another process to compile itself
