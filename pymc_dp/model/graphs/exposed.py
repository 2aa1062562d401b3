"""A model's log-likelihood as a function of its arrays, each known to be private or public.

PyMC evaluates expressions of constants (``x - x.mean()``) while it derives a log-likelihood. So each
array is replaced by a shared variable before: then nothing is evaluated, and every array that a
record's log-likelihood depends on is one of its ancestors.
"""

from __future__ import annotations

import threading

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pymc.distributions.custom import CustomSymbolicDistRV
from pymc.logprob.basic import transformed_conditional_logp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.rewriting.basic import unconditional_constant_folding
from pytensor.tensor.shape import Shape, Shape_i

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.data_variables import (
    downstream,
    is_array_root,
    observed_arrays,
    observed_values,
    rebuilt,
    stored,
)
from pymc_dp.model.graphs.graph_arrays import array_name, arrays_in, inner_arrays, is_custom
from pymc_dp.model.graphs.index_entries import Blocked
from pymc_dp.model.graphs.parameter_checks import strip_checks
from pymc_dp.model.graphs.prior_data import check_priors, constant_lengths, lengths_in
from pymc_dp.model.graphs.public_arrays import PublicArrays, is_structural
from pymc_dp.model.graphs.row_subsets import RowWalk

_ONE_AT_A_TIME = threading.RLock()  # `in_sight` changes PyTensor for all threads


@dataclass(frozen=True)
class Exposed:
    """Log-likelihoods in which the arrays of a model are shared variables.

    `graphs` has the elementwise log-likelihood of each observed variable, at its value in `values`. `private` has all
    arrays in the graphs except those declared public and patterns made without data, `names` their descriptions, for
    messages, and `origin` the model's own variables. `by_number` lists factors that depend on the number of rows. Axes whose length is in `unknown` have no
    static length, so that it does not become a number in the graphs.
    """

    graphs: list[Variable] = field(default_factory=list)
    values: list[Variable] = field(default_factory=list)
    private: list[SharedVariable] = field(default_factory=list)
    names: dict[Variable, str] = field(default_factory=dict, repr=False)
    origin: dict[Variable, Variable] = field(default_factory=dict, repr=False)
    by_number: list[str] = field(default_factory=list)
    unknown: Set[int] = frozenset()

    def arrays_of(self, graphs: Sequence[Variable]) -> list[Variable]:
        """Arrays that other graphs of the model depend on, except scalars and patterns."""
        return arrays_in(graphs, lengths={len(stored(v)) for v in self.private if v.ndim} - {1})

    def shared(self, variable: Variable, public: PublicArrays | tuple = ()) -> SharedVariable:
        """A shared variable in place of an array: private unless the array is public."""
        data = np.array(stored(variable), order="C")  # by rows, as functions of rows read them
        shape = tuple(None if n in self.unknown else n for n in data.shape)
        own = pytensor.shared(data, shape=shape, name=variable.name, borrow=True)
        if variable not in public:
            self.private.append(own)
            self.names[own], self.origin[own] = array_name(variable), variable
        return own

    def in_place_of(
        self, arrays: Sequence[Variable], public: PublicArrays
    ) -> dict[Variable, Variable]:
        """Shared variables in place of arrays. Public constants stay: some distributions accept nothing else."""
        changed = (v for v in arrays if not (isinstance(v, Constant) and v in public))
        return {v: self.shared(v, public) for v in changed}


def expose(model: pm.Model, public: PublicArrays) -> Exposed:
    """Derive the log-likelihoods of a model from its own graph, without evaluating an array.

    Raises UnsupportedModel if a private array or an observed variable is an ancestor of a prior, a potential or an
    initial value, or if an array is hidden in an inner graph.
    """
    lengths = {len(array) for array in observed_arrays(model)} - {1}
    with in_sight(lengths):
        by_number = check_priors(model, public, lengths)
        exposed = _exposed(model, public, lengths)
    for k, (rv, graph) in enumerate(zip(model.observed_RVs, exposed.graphs, strict=True)):
        # PyMC evaluates shapes while it derives a log-density; a logp function may add others.
        stop = {*model.free_RVs, *_sizes(rv)}
        roots = {*exposed.private, *filter(public.excludes, _measured([rv], model.free_RVs))}
        rows = (lengths | {len(stored(v)) for v in roots if v.ndim}) - {1}
        used = lengths_in([rv], public.excludes, stop)
        used |= lengths_in([graph], {*exposed.private}.__contains__)
        if not rows.isdisjoint(constant_lengths([rv], stop)) or (
            not rows.isdisjoint(used) and _uses_number(model, public, rows, k)
        ):
            by_number.append(f"the likelihood of {rv.name!r}")
    exposed.by_number.extend(by_number)
    return exposed


def _uses_number(model: pm.Model, public: PublicArrays, rows: set[int], place: int) -> bool:
    """Whether rows of a log-likelihood depend on the number of rows: on one of the lengths in `rows`, on any axis.

    These lengths are not static here, so they are in the graph of the rows if its values need them. Lengths that only
    fill arrays, as in many log-densities of PyMC, are not: a row of ``alloc(x, n)`` is x.
    """
    with in_sight(rows):
        exposed = _exposed(model, public, rows, unknown=rows)
    dependent = downstream(exposed.graphs, exposed.private)
    index = pt.vector("index", dtype="int64")
    try:
        stripped, _ = strip_checks(exposed.graphs, dependent, model.value_vars)
        row = RowWalk(index)(canonical(stripped)[place], 0, index)
    except (Blocked, UnsupportedModel):  # a model that is refused is so by its proof
        return True
    return not {*exposed.private}.isdisjoint(ancestors([row]))


def _measured(graphs: Sequence[Variable], stop: Iterable[Variable]) -> list[Variable]:
    """Arrays whose shapes, or shapes derived from them, are in graphs."""
    nodes = (v.owner for v in ancestors(graphs, blockers=stop) if v.owner is not None)
    shaped = [n.inputs[0] for n in nodes if isinstance(n.op, Shape | Shape_i)]
    return [v for v in ancestors(shaped) if is_array_root(v) and v.ndim]


def canonical(graphs: Sequence[Variable]) -> list[Variable]:
    """Graphs of PyTensor's canonical operations, with shapes computed from those of arrays."""
    stages = ("ShapeOpt", "canonicalize", "stabilize", "specialize")
    exclude = ("local_pow_to_nested_squaring", "constant_folding")
    return rewrite_graph(list(graphs), include=stages, exclude=exclude)


def _sizes(rv: Variable) -> set[Variable]:
    """Sizes of PyMC's random variables, which for observed ones are the shapes of what is observed.

    A user's function ``dist(..., size)`` is left out: it may compute with its size.
    """
    sizes = set()
    for node in {v.owner for v in ancestors([rv]) if v.owner is not None}:
        op = getattr(node.op, "base_rv_op", node.op)  # of a truncated one
        # PyMC's own distributions that are made of others have a signature.
        has_size = isinstance(op, RandomVariable) or getattr(op, "extended_signature", None)
        if has_size and not isinstance(op, CustomSymbolicDistRV):
            sizes.add(op.size_param(node))
    return sizes - {None}


@contextmanager
def in_sight(lengths: set[int]) -> Iterator[None]:
    """Keep PyMC from evaluating expressions of data, also of captured constants, while it derives log-densities."""

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


def _exposed(
    model: pm.Model, public: PublicArrays, lengths: set[int], unknown: Set[int] = frozenset()
) -> Exposed:
    free = set(model.free_RVs)
    exposed = Exposed(unknown=unknown)
    old = dict(zip(model.observed_RVs, observed_values(model), strict=True))
    for rv, value in old.items():
        _check_likelihood(rv, [rv, value], free, public)
    arrays = arrays_in([v for pair in old.items() for v in pair], free, lengths, single=True)
    if unknown:  # also of arrays whose values are not used
        arrays += [v for v in _measured([*old, *old.values()], free) if v not in arrays]
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
        captured = exposed.in_place_of(arrays_in(graphs, set(exposed.private), lengths), public)
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


def _check_likelihood(
    rv: Variable, graphs: Sequence[Variable], stop: Set[Variable], public: PublicArrays
) -> None:
    """Refuse operations and inner graphs that may hold data."""
    if inner := inner_arrays(f"the likelihood of {rv.name!r}", graphs, stop, public):
        raise UnsupportedModel(
            f"{rv.name!r} has {array_name(inner[0])} inside {type(rv.owner.op).__name__}, where its rows cannot be "
            "followed. Pass it to pm.CustomDist as a parameter, or declare it with public=[...]."
        )
