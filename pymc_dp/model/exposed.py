"""A model's log-likelihood as a function of its arrays, each known to be private or public.

PyMC evaluates what involves constants only (``x - x.mean()``) on the way to a log-likelihood. So each
array is replaced by a shared variable before the log-likelihood is derived: then nothing is
evaluated, and every array that a record's log-likelihood depends on is one of its ancestors.
"""

from __future__ import annotations

import threading

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor

from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.shape_utils import change_dist_size
from pymc.logprob.basic import transformed_conditional_logp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.basic import Join
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.rewriting.basic import unconditional_constant_folding
from pytensor.tensor.subtensor import IncSubtensor
from pytensor.tensor.type import TensorType

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.parameter_checks import INCREMENTS, SELECTIONS
from pymc_dp.model.public_arrays import (
    PublicArrays,
    inner_graphs,
    is_stored_object,
    is_structural,
    is_transparent,
)
from pymc_dp.model.roots import is_array_root, observed_arrays, stored, upstream, value_inputs

__all__ = ["Exposed", "array_name", "expose"]


_ONE_AT_A_TIME = threading.RLock()  # PyTensor's rewriting is the same for all threads


@dataclass(frozen=True)
class Exposed:
    """Log-likelihoods in which the arrays of a model are shared variables.

    Attributes
    ----------
    graphs : list of Variable
        Elementwise log-likelihood of each observed variable.
    values : list of Variable
        Values of the observed variables in these graphs.
    private : list of SharedVariable
        Every array in the graphs that was not declared public and is no pattern made without data.
    names : dict of Variable to str
        The private arrays in words, for messages.
    """

    graphs: list[Variable]
    values: list[Variable]
    private: list[SharedVariable]
    names: dict[Variable, str] = field(repr=False)

    def arrays_of(self, graphs: Sequence[Variable]) -> list[Variable]:
        """Arrays that other graphs of the model depend on, but for scalars and patterns."""
        return _arrays(graphs, lambda _: False, {len(stored(v)) for v in self.private if v.ndim})


def expose(model: pm.Model, public: PublicArrays) -> Exposed:
    """Derive the log-likelihoods of a model from its own graph, without evaluating an array.

    Parameters
    ----------
    model : pymc.Model
    public : PublicArrays
        What the user has declared public.

    Raises
    ------
    UnsupportedModel
        If a private array or an observed variable is among the ancestors of a prior or a
        potential, or an array is hidden in an inner graph.
    """
    lengths = {len(array) for array in observed_arrays(model)} - {1}
    with _in_sight(lengths):
        _check_priors(model, public, lengths)
        return _exposed(model, public, lengths)


@contextmanager
def _in_sight(lengths: set[int]) -> Iterator[None]:
    """PyMC evaluates constants while it derives log-densities, of what functions have captured too: not data."""

    def may_be_data(v: Variable) -> bool:
        if not is_array_root(v) or stored(v).size <= 1:
            return False
        array = stored(v)
        # A few whole numbers may be a shape.
        is_shape = array.dtype.kind in "iu" and array.ndim == 1 and len(array) <= 4
        return not lengths.isdisjoint(array.shape) or not (is_shape or is_structural(array))

    def transform(fgraph: Any, node: Apply) -> Any:
        if all(isinstance(v, Constant) for v in node.inputs) and any(map(may_be_data, node.inputs)):
            return False
        return evaluate(fgraph, node)

    with _ONE_AT_A_TIME:
        evaluate = unconditional_constant_folding.transform
        unconditional_constant_folding.transform = transform
        try:
            yield
        finally:
            unconditional_constant_folding.transform = evaluate


def _exposed(model: pm.Model, public: PublicArrays, lengths: set[int]) -> Exposed:
    free = set(model.free_RVs)
    exposed = Exposed([], [], [], {})

    def exchange(graphs: Sequence[Variable], stop: Callable, single: bool = True) -> dict:
        found = _arrays(graphs, stop, lengths, single)
        # What is public and constant may stay: some distributions do not take anything else.
        found = [v for v in found if not (isinstance(v, Constant) and v in public)]
        return {variable: _stand_for(variable, public, exposed) for variable in found}

    old = [(rv, model.rvs_to_values[rv]) for rv in model.observed_RVs]
    for rv, value in old:
        _check_operations(f"the likelihood of {rv.name!r}", [rv, value], free.__contains__)
        if inner := _inner_arrays([rv, value], free.__contains__, public):
            raise UnsupportedModel(
                f"{rv.name!r} has {array_name(inner[0])} inside {type(rv.owner.op).__name__}, where its rows cannot be "
                "told apart. Pass it to pm.CustomDist as a parameter, or declare it with public=[...]."
            )
    replaced = exchange([v for pair in old for v in pair], free.__contains__)
    replaced.update((rv, rv) for rv in free)  # what is above them is the prior's
    new = []
    for rv, value in old:
        new_rv, new_value = _rebuilt([rv, value], replaced)
        if is_array_root(value):  # an array of its own, whatever else uses the same one
            new_value = _stand_for(value, None, exposed)
        new.append((new_rv, new_value))
        replaced[rv] = new_rv
    values = {rv: model.rvs_to_values[rv] for rv in model.free_RVs} | dict(new)
    transforms = {rv: model.rvs_to_transforms[rv] for rv in model.free_RVs}
    graphs = transformed_conditional_logp(
        rvs=[rv for rv, _ in new],
        rvs_to_values=values,
        rvs_to_transforms=transforms | {rv: None for rv, _ in new},
        jacobian=False,
    )
    for (rv, _), graph in zip(old, graphs, strict=True):  # a logp function may add operations
        _check_operations(f"the likelihood of {rv.name!r}", [graph])
    if _is_custom([rv for rv, _ in old], free.__contains__):
        # What a logp function has captured is not among its parameters.
        captured = exchange(graphs, set(exposed.private).__contains__, single=False)
        graphs = graph_replace(graphs, captured, strict=False) if captured else graphs
    exposed.graphs.extend(graphs)
    exposed.values.extend(value for _, value in new)
    return exposed


def array_name(variable: Variable) -> str:
    """An array in words: its name, or its shape."""
    shape = stored(variable).shape
    return f"the array {variable.name!r}" if variable.name else f"an array of shape {shape}"


def _check_priors(model: pm.Model, public: PublicArrays, lengths: set[int]) -> None:
    free, observed = set(model.free_RVs), set(model.observed_RVs)
    # Data are data, whatever pattern they look like.
    roots = filter(is_array_root, upstream(model.rvs_to_values[rv] for rv in observed))
    data = {v for v in roots if stored(v).ndim}
    densities = model.logp(vars=model.free_RVs, sum=False, jacobian=True)
    terms = dict(zip(model.free_RVs, densities, strict=True))
    for factor in (*model.free_RVs, *model.potentials):

        def stop(v: Variable, factor: Variable = factor) -> bool:
            return v in free and v is not factor

        what = f"the {'prior of' if factor in free else 'potential'} {factor.name!r}"
        found = upstream([factor], stop)
        arrays = [v for v in found if v in data]
        if factor.name in public.priors and not arrays and found.isdisjoint(observed):
            continue
        _check_operations(what, [factor], stop)
        arrays += [v for v in _arrays([factor], stop, lengths, single=True) if v not in public]
        arrays += _inner_arrays([factor], stop, public)
        if factor in free:
            # What a logp function or a transform has captured shows in the log-density only.
            term = terms[factor]
            _check_operations(what, [term])
            arrays += _inner_arrays([term], public=public)
            # In the log-density of PyMC's own, public arrays may have become other constants.
            if found.isdisjoint(filter(public.__contains__, found)) or _is_custom(
                [factor], stop, model.rvs_to_transforms[factor]
            ):
                arrays += [v for v in _arrays([term], lengths=lengths) if v not in public]
        if not arrays and found.isdisjoint(observed):
            continue
        seen = array_name(arrays[0]) if arrays else "an observed variable"
        cure = "Write the prior without data."
        if factor not in free:
            cure = (
                "Observe the records instead: pm.Censored for censored ones, or a pm.CustomDist with one "
                "log-likelihood per record."
            )
        raise UnsupportedModel(
            f"{what} depends on data, namely on {seen}. If it holds no data of records, declare it with "
            f"public=[{factor.name!r}]. A record may act through the likelihood only, where it is clipped and accounted for. {cure}"
        )


def _check_operations(
    what: str, graphs: Sequence[Variable], stop: Callable[[Variable], bool] = lambda _: False
) -> None:
    """Refuse operations that may hold data, and stored objects that are no arrays."""
    found = upstream(graphs, stop)
    if any(map(is_stored_object, found)):
        raise UnsupportedModel(
            f"{what} has a sparse matrix or another stored object that is no array, whose rows cannot be told apart. "
            "Use dense arrays."
        )
    for op in {v.owner.op for v in found if v.owner is not None}:
        if not (isinstance(op, RandomVariable | SymbolicRandomVariable) or is_transparent(op)):
            raise UnsupportedModel(
                f"{what} has the operation {type(op).__name__}, which cannot be looked into: it may have captured data. Write it "
                "with PyTensor's own operations (or pm.CustomDist with a logp function of these)."
            )
        for inner in inner_graphs(op):
            _check_operations(what, inner)


def _is_custom(
    graphs: Sequence[Variable], stop: Callable[[Variable], bool], transform: Any = None
) -> bool:
    """Whether a random variable or a transform is not PyMC's own, and may have captured arrays."""
    makers = [transform]
    for chain in makers:  # which may have chains in it
        makers += getattr(chain, "transform_list", ())
    makers += [part for each in makers for part in getattr(each, "__dict__", {}).values()]
    makers = [part if callable(part) else type(part) for part in makers if part is not None]
    stack = list(graphs)
    while stack:
        nodes = {v.owner for v in upstream(stack, stop) if v.owner is not None}
        makers += [type(node.op) for node in nodes]
        inner = [n.op for n in nodes if isinstance(n.op, HasInnerGraph)]
        stack, stop = [v for op in inner for v in op.fgraph.outputs], lambda _: False
    return any(
        (isinstance(maker, type) and issubclass(maker, CustomDistRV))
        or (maker.__module__ or "").split(".")[0] not in ("abc", "builtins", "pymc", "pytensor")
        for maker in makers
    )


def _stand_for(variable: Variable, public: PublicArrays | None, exposed: Exposed) -> SharedVariable:
    data = np.array(stored(variable))
    own = pytensor.shared(data, shape=data.shape, name=variable.name)
    if public is None or variable not in public:
        exposed.private.append(own)
        exposed.names[own] = array_name(variable)
    return own


def _arrays(
    graphs: Sequence[Variable],
    stop: Callable[[Variable], bool] = lambda _: False,
    lengths: Iterable[int] = (),
    single: bool = False,
) -> list[Variable]:
    """Arrays that the values of graphs depend on, but for scalars and patterns made without data.

    A pattern that is as long as the data counts as a column of the data, and so do two different
    whole numbers, unless they are used as an index only.
    """
    found = upstream(graphs, stop)
    inside: set[Variable] = set()  # of something that is not joined to other entries
    computed_with = set(graphs)  # used for anything else than to choose entries
    for node in {v.owner for v in found if v.owner is not None}:
        inputs = value_inputs(node)
        if not isinstance(node.op, Join):
            inside.update(inputs)
        computed_with.update(v for v in inputs if v not in _index_inputs(node))
    inside.update(graphs)
    lengths = set(lengths) - {1}
    arrays = []
    for variable in ancestors(graphs):
        if variable not in found or not is_array_root(variable):
            continue
        array = stored(variable)
        if array.ndim == 0 or array.size == 0:
            continue
        if array.size == 1:
            # A number with an axis is more than a literal: pm.gp.HSGP computes its centre from data.
            is_data = single and array.dtype.kind == "f" and variable in inside
            is_data = is_data and array.item() not in (0.0, 1.0)
        else:
            counts = array.dtype.kind in "iu" and len(set(array.ravel()[:2].tolist())) > 1
            is_index = counts and variable not in computed_with
            could_be_data = not lengths.isdisjoint(array.shape) or (counts and array.size == 2)
            is_data = not is_structural(array) or (could_be_data and not is_index)
        if is_data:
            arrays.append(variable)
    return arrays


def _index_inputs(node: Apply) -> list[Variable]:
    """Inputs of a node that choose entries of another one."""
    if isinstance(node.op, SELECTIONS):
        return node.inputs[1:]
    return node.inputs[2:] if isinstance(node.op, INCREMENTS | IncSubtensor) else []


def _inner_arrays(
    graphs: Sequence[Variable],
    stop: Callable[[Variable], bool] = lambda _: False,
    public: PublicArrays | Sequence[Variable] = (),
) -> list[Variable]:
    """Arrays that inner graphs have captured."""
    nodes = {v.owner for v in upstream(graphs, stop) if v.owner is not None}
    outputs = [v for node in nodes for graph in inner_graphs(_fresh(node)) for v in graph]
    if not outputs:
        return []
    deeper = _inner_arrays(outputs, public=public)
    return [v for v in _arrays(outputs) if v not in public] + deeper


def _fresh(node: Apply) -> Any:
    """The operation of a node, for pm.CustomDist from the user's function again.

    PyMC evaluates what involves constants only in the inner graph of a model that it has compiled.
    """
    if not isinstance(node.op, CustomSymbolicDistRV):
        return node.op
    (rv,) = (v for v in node.outputs if isinstance(v.type, TensorType))
    size = [rv.shape[k] for k in range(rv.ndim - node.op.ndim_supp)]
    return change_dist_size(rv, size).owner.op


def _rebuilt(outputs: Sequence[Variable], new: dict[Variable, Variable]) -> list[Variable]:
    """Graphs with replacements; nodes are made anew, since they remember shapes that were known."""
    new = dict(new)
    for node in toposort(outputs):
        if all(v in new for v in node.outputs):
            continue
        inputs = [new.get(v, v) for v in node.inputs]
        if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            made = node.op.make_node(*inputs).outputs
            for old, variable in zip(node.outputs, made, strict=True):
                variable.name = old.name
                new.setdefault(old, variable)
    return [new.get(v, v) for v in outputs]
