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
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.math import Softplus
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from pymc_dp.model.roots import INTERPRETED, is_array_root, stored

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
def _reciprocals_of_data(_: FunctionGraph, node: Apply) -> list[Variable] | None:
    """``x / c -> x * (1 / c)`` for arrays: wide likelihoods and their gradients wait for divisions."""
    if not isinstance(node.op.scalar_op, ps.TrueDiv) or node.outputs[0].dtype != "float64":
        return None
    x, c = node.inputs
    if isinstance(c, Constant) and stored(c).size > 1:
        with np.errstate(all="ignore"):  # a warning would tell something of the data
            return [x * pt.constant(1.0 / stored(c).astype("float64"))]
    if all(n == 1 for n in c.type.shape) or not _is_data(c) or _is_data(x):
        return None
    return [x * pt.reciprocal(c.astype("float64"))]


def _is_data(variable: Variable) -> bool:
    """Whether a variable is a function of stored arrays alone."""
    roots = (v for v in ancestors([variable]) if v.owner is None)
    return all(isinstance(v, Constant) or is_array_root(v) for v in roots)


_ADDITIONAL = SequentialGraphRewriter(
    in2out(_reciprocals_of_data, name="reciprocals_of_data"),
    in2out(_lift_from_switch, name="lift_from_switch"),
    in2out(_softplus_without_branches, name="softplus_without_branches"),
)


def freeze(
    outputs: Sequence[Variable],
    changing: Sequence[Variable] = (),
    private: Sequence[Variable] = (),
) -> list[Variable]:
    """Simplify graphs, and put their data into shared variables that nothing else refers to.

    Parameters
    ----------
    outputs : sequence of Variable
    changing : sequence of shared variables
        These stay what they are.
    private : sequence of shared variables, of known shape
        Data whose values must not decide how graphs are simplified: PyTensor rewrites a constant
        whose entries are all equal, or 0, so that one record would choose the formula for all.

    Returns
    -------
    list of Variable
        Public arrays are constants while graphs are simplified; what depends on data alone
        (``log(y!)``) is computed here. All become shared variables after that, but for small public
        ones: compiled code would otherwise hold them, and so would Numba's cache on disk.
    """
    graphs = list(outputs)
    is_shared = [v for v in ancestors(graphs) if isinstance(v, SharedVariable)]
    kept = {*changing, *private}
    frozen = {v: pt.constant(np.array(stored(v))) for v in is_shared if is_array_root(v) and v not in kept}  # fmt: skip
    if frozen:
        graphs = graph_replace(graphs, frozen, strict=False)
    # Without shape inference, PyTensor 2.38 rewrites some mixtures for ever.
    stages = ("ShapeOpt", "canonicalize", "stabilize", "specialize")
    # Powers stay powers until the graph is compiled: what they become has no gradient.
    exclude = ("local_pow_to_nested_squaring",)
    graphs = rewrite_graph(graphs, include=stages, exclude=exclude, custom_rewrite=_ADDITIONAL)
    if private:
        graphs = _computed(graphs, set(private))
    constants = [
        v
        for v in ancestors(graphs)
        if isinstance(v, Constant)
        and isinstance(v.type, TensorType)
        and stored(v).size > MAX_CONSTANT
    ]
    shared = {v: pytensor.shared(stored(v), shape=stored(v).shape) for v in constants}
    return graph_replace(graphs, shared, strict=False) if shared else graphs


def _computed(graphs: list[Variable], private: set[Variable]) -> list[Variable]:
    """Graphs in which shared variables stand for what is computed from private arrays alone."""
    nodes = list(toposort(graphs))
    known = {v for v in ancestors(graphs) if v in private or isinstance(v, Constant)}
    for node in nodes:
        if known.issuperset(node.inputs):
            known.update(node.outputs)
    others = [node for node in nodes if node.outputs[0] not in known]
    wanted = dict.fromkeys([*graphs, *(v for node in others for v in node.inputs)])
    ends = [v for v in wanted if v in known and v.owner and isinstance(v.type, TensorType)]
    values = pytensor.function([], ends, mode=INTERPRETED)() if ends else []
    new: dict[Variable, Variable] = {
        v: pytensor.shared(np.array(value, v.dtype), shape=np.shape(value))
        for v, value in zip(ends, values, strict=True)
    }
    for node in others:
        inputs = [new.get(v, v) for v in node.inputs]
        new.update(zip(node.outputs, node.clone_with_new_inputs(inputs, strict=False).outputs, strict=True))  # fmt: skip
    return [new.get(v, v) for v in graphs]


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
