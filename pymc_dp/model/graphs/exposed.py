"""A model's log-likelihood as a function of its arrays, each known to be private or public.

PyMC evaluates expressions of constants (``x - x.mean()``) while it derives a log-likelihood. So each
array is replaced by a shared variable before: then nothing is evaluated, and every array that a
record's log-likelihood depends on is one of its ancestors.
"""

from __future__ import annotations

import threading

from collections.abc import Iterator, Sequence, Set
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
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Join
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.rewriting.basic import unconditional_constant_folding
from pytensor.tensor.subtensor import IncSubtensor
from pytensor.tensor.type import TensorType

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.data_variables import (
    is_array_root,
    observed_arrays,
    observed_values,
    rebuilt,
    stored,
    upstream,
    value_inputs,
)
from pymc_dp.model.graphs.parameter_checks import INCREMENTS, SELECTIONS
from pymc_dp.model.graphs.public_arrays import (
    PublicArrays,
    inner_graphs,
    is_stored_object,
    is_structural,
    is_transparent,
)

__all__ = ["Exposed", "expose", "in_sight", "is_custom", "refuse_hidden", "with_inner"]


_ONE_AT_A_TIME = threading.RLock()  # `in_sight` changes PyTensor for all threads


@dataclass(frozen=True)
class Exposed:
    """Log-likelihoods in which the arrays of a model are shared variables.

    `graphs` has the elementwise log-likelihood of each observed variable, at its value in `values`.
    `private` has all arrays in the graphs except those declared public and patterns made without data,
    and `names` their descriptions, for messages.
    """

    graphs: list[Variable] = field(default_factory=list)
    values: list[Variable] = field(default_factory=list)
    private: list[SharedVariable] = field(default_factory=list)
    names: dict[Variable, str] = field(default_factory=dict, repr=False)

    def arrays_of(self, graphs: Sequence[Variable]) -> list[Variable]:
        """Arrays that other graphs of the model depend on, except scalars and patterns."""
        return _arrays(graphs, lengths={len(stored(v)) for v in self.private if v.ndim} - {1})

    def shared(self, variable: Variable, public: PublicArrays | tuple = ()) -> SharedVariable:
        """Make a shared variable in place of an array: a private one unless the array is public."""
        data = np.array(stored(variable), order="C")  # by rows, as functions of rows read them
        own = pytensor.shared(data, shape=data.shape, name=variable.name, borrow=True)
        if variable not in public:
            self.private.append(own)
            self.names[own] = _array_name(variable)
        return own

    def in_place_of(
        self, arrays: Sequence[Variable], public: PublicArrays
    ) -> dict[Variable, Variable]:
        """Shared variables for arrays, by array. Public constants stay: some distributions accept nothing else."""
        changed = (v for v in arrays if not (isinstance(v, Constant) and v in public))
        return {v: self.shared(v, public) for v in changed}


def expose(model: pm.Model, public: PublicArrays) -> Exposed:
    """Derive the log-likelihoods of a model from its own graph, without evaluating an array.

    UnsupportedModel is raised if a private array or an observed variable is among the ancestors of a
    prior or a potential, or an array is hidden in an inner graph.
    """
    lengths = {len(array) for array in observed_arrays(model)} - {1}
    with in_sight(lengths):
        _check_priors(model, public, lengths)
        return _exposed(model, public, lengths)


@contextmanager
def in_sight(lengths: set[int]) -> Iterator[None]:
    """Keep PyMC from evaluating expressions of data while it derives log-densities.

    This includes constants that functions of the user have captured.
    """

    def may_be_data(v: Variable) -> bool:
        if not is_array_root(v) or stored(v).size <= 1:
            return False
        array = stored(v)
        # A few integers may be a shape.
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
    exposed = Exposed()
    old = dict(zip(model.observed_RVs, observed_values(model), strict=True))
    for rv, value in old.items():
        _check_likelihood(rv, [rv, value], free, public)
    arrays = _arrays([v for pair in old.items() for v in pair], free, lengths, single=True)
    replaced = exposed.in_place_of(arrays, public)
    replaced.update((rv, rv) for rv in free)  # their ancestors belong to the prior
    new = {}
    for rv, value in old.items():
        new_rv, new_value = rebuilt([rv, value], dict(replaced))
        if is_array_root(value):  # not shared with other uses of the same array
            new_value = exposed.shared(value)
        new[new_rv] = new_value
        replaced[rv] = new_rv
    graphs = _log_likelihoods(model, new)
    for rv, graph in zip(old, graphs, strict=True):  # a logp function may add operations
        _check_likelihood(rv, [graph], set(), public)
    captured = {}
    if is_custom([*old], free):
        # Arrays that a logp function has captured are not among its parameters.
        captured = exposed.in_place_of(_arrays(graphs, set(exposed.private), lengths), public)
    exposed.graphs.extend(graph_replace(graphs, captured, strict=False))
    exposed.values.extend(new.values())
    return exposed


def _log_likelihoods(model: pm.Model, observed: dict[Variable, Variable]) -> Sequence[Variable]:
    """Elementwise log-likelihoods of random variables, given as keys, at their values."""
    return transformed_conditional_logp(
        rvs=[*observed],
        rvs_to_values={rv: model.rvs_to_values[rv] for rv in model.free_RVs} | observed,
        rvs_to_transforms={rv: model.rvs_to_transforms[rv] for rv in model.free_RVs}
        | dict.fromkeys(observed),
        jacobian=False,
    )


def _array_name(variable: Variable) -> str:
    """Description of an array: its name, or its shape."""
    shape = stored(variable).shape
    return f"the array {variable.name!r}" if variable.name else f"an array of shape {shape}"


def _check_likelihood(
    rv: Variable, graphs: Sequence[Variable], stop: Set[Variable], public: PublicArrays
) -> None:
    """Refuse operations and inner graphs that may hold data."""
    if inner := _inner_arrays(f"the likelihood of {rv.name!r}", graphs, stop, public):
        raise UnsupportedModel(
            f"{rv.name!r} has {_array_name(inner[0])} inside {type(rv.owner.op).__name__}, where its rows cannot be "
            "followed. Pass it to pm.CustomDist as a parameter, or declare it with public=[...]."
        )


def _check_priors(model: pm.Model, public: PublicArrays, lengths: set[int]) -> None:
    observed = set(model.observed_RVs)
    # Observed arrays are data, even if they equal a pattern.
    data = {v for v in filter(is_array_root, upstream(observed_values(model))) if v.ndim}
    densities = model.logp(vars=model.free_RVs, sum=False, jacobian=True)
    terms = dict(zip(model.free_RVs, densities, strict=True))
    for factor in (*model.free_RVs, *model.potentials):
        stop = set(model.free_RVs) - {factor}
        found = upstream([factor], stop)
        if factor.name in public.priors and found.isdisjoint(data | observed):
            continue
        what = f"the {'prior of' if factor in terms else 'potential'} {factor.name!r}"
        seen = [*(found & data), *_inner_arrays(what, [factor], stop, public)]
        seen += _private(_arrays([factor], stop, lengths, single=True), public)
        if factor in terms:
            # Arrays that a logp function or a transform has captured are in the log-density only.
            seen += _inner_arrays(what, [terms[factor]], set(), public)
            may_capture = is_custom([factor], stop, model.rvs_to_transforms[factor])
            # In log-densities of PyMC's own distributions, public arrays may have become other constants.
            if may_capture or not any(map(public.__contains__, found)):
                seen += _private(_arrays([terms[factor]], lengths=lengths), public)
        _refuse_data(what, factor, [*seen, *(found & observed)], factor in terms)


def _refuse_data(what: str, factor: Variable, seen: Sequence[Variable], is_prior: bool) -> None:
    if not seen:
        return
    data = _array_name(seen[0]) if is_array_root(seen[0]) else "an observed variable"
    cure = (
        "Write the prior without data."
        if is_prior
        else "Observe the records instead: with pm.Censored for censored ones, or with a pm.CustomDist that has one "
        "log-likelihood per record."
    )
    raise UnsupportedModel(
        f"{what} depends on data, namely on {data}. If it holds no data of records, declare it with "
        f"public=[{factor.name!r}]. Data may enter the likelihood only, where they are clipped and accounted for. {cure}"
    )


def is_custom(graphs: Sequence[Variable], stop: Set[Variable], transform: Any = None) -> bool:
    """Whether a random variable or a transform is defined by the user, and may have captured arrays."""
    operations = {type(node.op) for node in _nodes(with_inner(graphs, stop))}
    if any(issubclass(kind, CustomDistRV) for kind in operations):
        return True
    makers = [*operations, *_makers(transform)]
    modules = {(maker.__module__ or "").split(".")[0] for maker in makers}
    return not modules <= {"abc", "builtins", "pymc", "pytensor"}


def _makers(transform: Any) -> list[Any]:
    """The types and functions of which a transform is made."""
    objects = [transform]
    for each in objects:  # chains of transforms may be nested
        objects += getattr(each, "transform_list", ())
    objects += [part for each in objects for part in getattr(each, "__dict__", {}).values()]
    return [each if callable(each) else type(each) for each in objects if each is not None]


def _private(arrays: Sequence[Variable], public: PublicArrays) -> list[Variable]:
    return [v for v in arrays if v not in public]


def _arrays(
    graphs: Sequence[Variable],
    stop: Set[Variable] = frozenset(),
    lengths: Set[int] = frozenset(),
    single: bool = False,
) -> list[Variable]:
    """Arrays that the values of graphs depend on, except scalars and patterns made without data.

    A pattern that is as long as the data counts as a column of the data, and so do two different
    integers, unless they are used as an index only. With `single`, vectors with one float count, too.
    """
    found = upstream(graphs, stop)
    inside = set(graphs)  # inputs of operations other than Join
    computed_with = set(graphs)  # variables that are used other than as an index
    for node in _nodes(found):
        computed_with.update(_inputs_but_indices(node))
        if not isinstance(node.op, Join):
            inside.update(value_inputs(node))
    arrays = []
    for v in ancestors(graphs):
        if v in found and is_array_root(v):
            single_counts, is_index = single and v in inside, v not in computed_with
            if _is_data(stored(v), lengths, single_counts, is_index):
                arrays.append(v)
    return arrays


def _is_data(array: np.ndarray, lengths: Set[int], single: bool, is_index: bool) -> bool:
    if array.ndim == 0 or array.size == 0:
        return False
    if array.size == 1:
        # A vector with one entry may be data: pm.gp.HSGP computes its centre from them.
        return single and array.dtype.kind == "f" and array.item() not in (0.0, 1.0)
    return not is_structural(array) or _may_be_column(array, lengths, is_index)


def _may_be_column(array: np.ndarray, lengths: Set[int], is_index: bool) -> bool:
    is_counting = array.dtype.kind in "iu" and len(set(array.ravel()[:2].tolist())) > 1
    if is_counting and is_index:
        return False
    return not lengths.isdisjoint(array.shape) or (is_counting and array.size == 2)


def _inputs_but_indices(node: Apply) -> list[Variable]:
    """Inputs that the values of a node depend on, other than those that index another input."""
    indices: list[Variable] = []
    if isinstance(node.op, SELECTIONS):
        indices = node.inputs[1:]
    elif isinstance(node.op, INCREMENTS | IncSubtensor):
        indices = node.inputs[2:]
    return [v for v in value_inputs(node) if v not in indices]


def _nodes(found: Set[Variable]) -> set[Apply]:
    return {v.owner for v in found if v.owner is not None}


def _inner(
    graphs: Sequence[Variable], stop: Set[Variable] = frozenset()
) -> Iterator[list[Variable]]:
    """Outputs of the inner graphs of operations, and of those inside of these."""
    for node in _nodes(upstream(graphs, stop)):
        for outputs in inner_graphs(_fresh(node)):
            yield outputs
            yield from _inner(outputs)


def with_inner(graphs: Sequence[Variable], stop: Set[Variable]) -> set[Variable]:
    """What graphs depend on, and what their inner graphs do."""
    return upstream(graphs, stop).union(*map(upstream, _inner(graphs, stop)))


def _inner_arrays(
    what: str, graphs: Sequence[Variable], stop: Set[Variable], public: PublicArrays
) -> list[Variable]:
    """Private arrays in inner graphs; what `refuse_hidden` refuses is refused."""
    refuse_hidden(what, graphs, stop)
    return [v for outputs in _inner(graphs, stop) for v in _private(_arrays(outputs), public)]


def refuse_hidden(
    what: str, graphs: Sequence[Variable], stop: Set[Variable] = frozenset()
) -> set[Variable]:
    """Refuse operations and stored objects that may hold data; all that graphs depend on, inner graphs included."""
    found = with_inner(graphs, stop)
    if any(map(is_stored_object, found)):
        raise UnsupportedModel(
            f"{what} has a sparse matrix or another stored object that is not an array, whose rows cannot be followed. "
            "Use dense arrays."
        )
    for op in {node.op for node in _nodes(found)}:
        if not (isinstance(op, RandomVariable | SymbolicRandomVariable) or is_transparent(op)):
            raise UnsupportedModel(
                f"{what} has the operation {type(op).__name__}, which cannot be inspected: it may have captured data. Write it "
                "with PyTensor's own operations (or with a pm.CustomDist whose logp function uses these)."
            )
    return found


def _fresh(node: Apply) -> Any:
    """The operation of a node; that of a pm.CustomDist is made anew from the user's function.

    Once PyMC has compiled a model, expressions of constants in its inner graphs are evaluated.
    """
    if not isinstance(node.op, CustomSymbolicDistRV):
        return node.op
    (rv,) = (v for v in node.outputs if isinstance(v.type, TensorType))
    size = [rv.shape[k] for k in range(rv.ndim - node.op.ndim_supp)]
    return change_dist_size(rv, size).owner.op
