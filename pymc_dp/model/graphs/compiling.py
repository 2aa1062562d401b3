"""Compilation of graphs whose data are fixed."""

from __future__ import annotations

import inspect
import warnings

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt

from pytensor.compile.mode import Mode, get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import SequentialGraphRewriter, in2out, node_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.link.basic import JITLinker
from pytensor.link.numba.linker import NumbaLinker
from pytensor.scalar.math import Softplus
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from pymc_dp.model.graphs.data_variables import interpreted, is_array_root, rebuilt, stored

# Arrays longer than this are inputs of the compiled function, not constants in its code.
MAX_CONSTANT = 8


@contextmanager
def quiet_compilers() -> Iterator[None]:
    """Ignore warnings of compilers: of missing BLAS, object mode or slow code. None needs an action of the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@node_rewriter([Elemwise])
def _lift_from_switch(_: FunctionGraph, node: Apply) -> list[Variable] | None:
    """``switch(c, f(a), f(b)) -> f(switch(c, a, b))``: one evaluation of f instead of two.

    Numba compiles the first to a branch per row, which the processor cannot predict for data: a Bernoulli likelihood
    takes twice as long.
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
    """One formula for softplus: as accurate as PyTensor's five, and a third faster in Numba."""
    if not isinstance(node.op.scalar_op, Softplus) or node.outputs[0].dtype != "float64":
        return None
    (x,) = node.inputs
    return [pt.maximum(x, 0.0) + pt.log1p(pt.exp(-pt.abs(x)))]


@node_rewriter([Elemwise])
def _reciprocals_of_data(_: FunctionGraph, node: Apply) -> list[Variable] | None:
    """``x / c -> x * (1 / c)`` for arrays: divisions dominate the time of likelihoods with many columns."""
    if not isinstance(node.op.scalar_op, ps.TrueDiv) or node.outputs[0].dtype != "float64":
        return None
    x, c = node.inputs
    if isinstance(c, Constant) and stored(c).size > 1:
        with np.errstate(all="ignore"):  # a warning would depend on the data
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
    """Simplify graphs, and move their data to shared variables that nothing else refers to.

    Variables in `changing` stay in the graphs, as their values will change. The values of `private`, shared variables
    of known shape, must not affect how graphs are simplified: PyTensor rewrites a graph where all entries of a constant
    are equal, or 0, so one record could choose the formula for all others. So they stay shared variables during
    rewriting, while public arrays are constants. Functions of data alone (``log(y!)``) are computed once, here.
    Afterwards all arrays are shared variables, except small public ones: compiled code, and with it Numba's cache on
    disk, would hold constants.
    """
    kept = {*changing, *private}
    shared = (v for v in _arrays(outputs, SharedVariable) if v not in kept)
    frozen = {v: pt.constant(np.array(stored(v))) for v in shared}
    graphs = graph_replace(list(outputs), frozen, strict=False)
    # Without shape inference, the rewriting of some mixtures does not end in PyTensor 2.38.
    stages = ("ShapeOpt", "canonicalize", "stabilize", "specialize")
    # Powers stay powers until the graph is compiled: the operation that replaces them has no gradient.
    exclude = ("local_pow_to_nested_squaring",)
    graphs = rewrite_graph(graphs, include=stages, exclude=exclude, custom_rewrite=_ADDITIONAL)
    if private:
        graphs = _computed(graphs, set(private))
    large = (v for v in _arrays(graphs, Constant) if stored(v).size > MAX_CONSTANT)
    moved = {v: _shared(stored(v), v.dtype) for v in large}
    return graph_replace(graphs, moved, strict=False)


def _shared(array: np.ndarray, dtype: str) -> SharedVariable:
    """A shared variable with a copy of an array in C order, which all functions of rows can use."""
    return pytensor.shared(np.array(array, dtype, order="C"), shape=np.shape(array), borrow=True)


def _arrays(graphs: Sequence[Variable], kind: type) -> list[Variable]:
    """Stored arrays in graphs, constants or shared variables."""
    return [v for v in ancestors(graphs) if isinstance(v, kind) and is_array_root(v)]


def _computed(graphs: list[Variable], private: set[Variable]) -> list[Variable]:
    """Graphs with shared variables for everything computed from private arrays alone."""
    ends = _ends(graphs, private)
    values = interpreted([], ends)()
    new: dict[Variable, Variable] = {
        v: _shared(value, v.dtype) for v, value in zip(ends, values, strict=True)
    }
    return rebuilt(graphs, new)


def _ends(graphs: list[Variable], private: set[Variable]) -> list[Variable]:
    """The last variables of graphs that depend on private arrays and constants alone."""
    known = private.union(v for v in ancestors(graphs) if isinstance(v, Constant))
    used = dict.fromkeys(graphs)
    for node in toposort(graphs):
        if known.issuperset(node.inputs):
            known.update(node.outputs)
        else:
            used.update(dict.fromkeys(node.inputs))
    return [v for v in used if v in known and v.owner and isinstance(v.type, TensorType)]


class StrictNumbaLinker(NumbaLinker):
    """Numba without PyTensor's fast-math flags, which may round a loop's vectorised part unlike its remainder."""

    def fgraph_convert(self, *args: Any, **kwargs: Any) -> Any:
        with pytensor.config.change_flags(numba__fastmath=False):
            return super().fgraph_convert(*args, **kwargs)

    def jit_compile(self, fn: Callable) -> Callable:
        with pytensor.config.change_flags(numba__fastmath=False):
            return super().jit_compile(fn)


def check_compile_kwargs(options: Any) -> None:
    """Raise for options that ``pytensor.function`` lacks, and for compilers whose rounding is not controlled."""
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise TypeError(f'compile_kwargs must be a dict, such as {{"mode": "NUMBA"}}, got {options!r}.')  # fmt: skip
    known = [*inspect.signature(pytensor.function).parameters][2:]
    if unknown := sorted(set(map(str, options)) - set(known)):
        raise TypeError(f"compile_kwargs has {', '.join(unknown)}, which pytensor.function does not have: leave out.")  # fmt: skip
    try:
        linker = get_mode(options.get("mode", "NUMBA")).linker
    except Exception:
        raise ValueError(
            f"compile_kwargs has the mode {options['mode']!r}, which PyTensor does not have: give one such as 'NUMBA', or leave out."
        ) from None
    if isinstance(linker, JITLinker) and not isinstance(linker, NumbaLinker):
        raise ValueError(
            f"compile_kwargs has the mode {options['mode']!r} ({type(linker).__name__}), which may round a record differently in another "
            "place: give 'NUMBA', or leave out."
        )


def strict(mode: Any) -> Any:
    """Compilation mode; with Numba, the result for a row does not depend on its position."""
    mode = get_mode(mode)
    if type(mode.linker) is NumbaLinker:
        return Mode(StrictNumbaLinker(), mode.provided_optimizer)
    return mode


def compile_frozen(inputs: list[Variable], output: Variable, options: dict[str, Any]) -> Callable:
    """Compile a graph that `freeze` returned, or one without data."""
    function = pytensor.function(inputs, output, **options)
    function.trust_input = True
    return function


class NumbaFunction:
    """A graph compiled by Numba and called without PyTensor, which takes microseconds to pass data.

    Arguments must have the types of the inputs, and results must not be modified.
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
        return self.__dict__ | {"_compiled": None}  # each process compiles its own


def with_constants(
    graphs: Sequence[Variable], known: Mapping[Variable, Variable] | None = None
) -> list[Variable]:
    """Simplified graphs with constants for shared variables, so that shapes are known; `known` has further replacements."""
    new = dict(known or {})
    for variable in _arrays(graphs, SharedVariable):
        new.setdefault(variable, pt.constant(stored(variable).copy()))
    graphs = rebuilt(graphs, new)  # nodes remember the shapes that were known when they were made
    return rewrite_graph(graphs, include=("ShapeOpt", "canonicalize"))
