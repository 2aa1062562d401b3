"""Refusals of data in priors, potentials and initial values, where nothing is clipped or accounted for.

Numbers of rows are data as well. That of the observed rows is public under substitution, and private
under add/remove (`check_priors` returns where it is used). Any other length, such as the number of
censored persons, is private unless a parameter has it: so a pattern such as ``np.full(n, 2.5)`` must
have a length that is a dimension of a parameter, or follows from one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, NoReturn

import numpy as np
import pymc as pm

from pymc.distributions.distribution import support_point
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Second
from pytensor.tensor.basic import Alloc, ARange
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.captured import check_functions
from pymc_dp.model.graphs.data_variables import (
    evaluate_without_inputs,
    is_array_root,
    observed_values,
    stored,
    upstream,
    value_inputs,
)
from pymc_dp.model.graphs.graph_arrays import (
    array_name,
    arrays_in,
    inner_arrays,
    is_custom,
    is_data,
    is_length,
)
from pymc_dp.model.graphs.index_entries import subtensor_entries
from pymc_dp.model.graphs.public_arrays import PublicArrays, are_equal

_CURES = {
    "prior of": "Write the prior without data.",
    "potential": "Observe the records instead: with pm.Censored for censored ones, or with a pm.CustomDist that has one "
    "log-likelihood per record.",
    "initial value of": "PyMC starts there, and plans and references show it: write initial values without data.",
}  # fmt: skip


def check_priors(model: pm.Model, public: PublicArrays, lengths: set[int]) -> list[str]:
    """Refuse data in priors, potentials and initial values; return the factors that use the number of observed rows."""
    check = _PriorCheck(model, public, lengths)
    densities = model.logp(vars=model.free_RVs, sum=False, jacobian=True)
    for rv, density in zip(model.free_RVs, densities, strict=True):
        check.prior(rv, density)
        check.initial_value(rv)
    for potential in model.potentials:
        check.graph("potential", potential, [potential])
    return check.by_number


class _PriorCheck:
    """Refuse everything that priors, potentials and initial values depend on, unless it is public."""

    def __init__(self, model: pm.Model, public: PublicArrays, lengths: set[int]) -> None:
        self._model, self._public, self._lengths = model, public, lengths
        # Observed arrays are data, even if they equal a pattern.
        self._data = {v for v in filter(is_array_root, upstream(observed_values(model))) if v.ndim}
        self._observed = set(model.observed_RVs)
        self._public_lengths: set[int] | None = None
        self.by_number: list[str] = []

    def prior(self, rv: Variable, density: Variable) -> None:
        """Check a prior: the parameters of its distribution, and its log-density."""
        found = self.graph("prior of", rv, [rv])
        if rv.name in self._public.priors:
            return
        # Arrays that a logp function or a transform has captured are in the log-density only.
        what = f"the prior of {rv.name!r}"
        seen = inner_arrays(what, [density], set(), self._public)
        custom = is_custom([rv], self._others(rv), self._model.rvs_to_transforms[rv])
        # In log-densities of PyMC's own distributions, public arrays may have become other constants.
        if custom or not any(map(self._public.__contains__, found)):
            seen += filter(self._public.excludes, arrays_in([density], lengths=self._lengths))
        if custom:
            self._check_lengths("prior of", rv, [density], set())
            check_functions(what, [rv], self._public, self._lengths)
        for v in seen:
            _refuse("prior of", rv, array_name(v))

    def initial_value(self, rv: Variable) -> None:
        """Check the initial value that a user gave, as a value or by a function."""
        value = self._model.rvs_to_initial_values.get(rv)
        if isinstance(value, Variable):
            self.graph("initial value of", rv, [value])
        elif isinstance(value, np.ndarray):
            self._check_value(rv, value)
        elif value != "prior" and is_custom([rv], self._others(rv)):
            try:
                value = support_point(rv)
            except NotImplementedError:  # PyMC draws from the prior instead
                return
            self.graph("initial value of", rv, [value])

    def _check_value(self, rv: Variable, value: np.ndarray) -> None:
        # PyMC makes floats of np.arange(3).
        is_whole = bool((value == np.rint(value)).all())
        values = value.astype("int64") if is_whole else value
        private = is_data(values, self._lengths, is_index=is_whole)  # 0, 1, 2, ... is no data
        is_declared = rv.name in self._public.priors or value in self._public
        observed = any(are_equal(value, stored(v)) for v in self._data)
        if observed or (private and not is_declared):
            _refuse("initial value of", rv, f"an array of shape {value.shape}")

    def graph(self, kind: str, factor: Variable, graphs: Sequence[Variable]) -> set[Variable]:
        """Check the graph of a factor or of its initial value; return its ancestors."""
        others = self._others(factor)
        found = upstream(graphs, others)
        if not found.isdisjoint(self._observed):
            _refuse(kind, factor, "an observed variable")
        seen = [*(found & self._data)]
        if not seen and factor.name in self._public.priors:
            return found
        what = f"the {kind} {factor.name!r}"
        seen += inner_arrays(what, graphs, others, self._public)
        arrays = arrays_in(graphs, others, self._lengths, single=True)
        seen += filter(self._public.excludes, arrays)
        for v in seen:
            _refuse(kind, factor, array_name(v))
        self._check_lengths(kind, factor, graphs, others)
        return found

    def _others(self, factor: Variable) -> set[Variable]:
        return set(self._model.free_RVs) - {factor}

    def _check_lengths(
        self, kind: str, factor: Variable, graphs: Sequence[Variable], stop: Set[Variable]
    ) -> None:
        """Refuse lengths that are not public; remember a factor that uses the number of observed rows."""
        used = lengths_in(graphs, self._is_private, stop)
        if not used.isdisjoint(self._lengths):
            self.by_number.append(f"the {kind} {factor.name!r}")
        for length in used - self._lengths:
            if not self._is_public(length):
                _refuse(kind, factor, "the length of an array, which no parameter has")
        for name, shape in _patterns(graphs, stop, self._public):
            if not all(self._is_public(n) for n in shape):
                _refuse(kind, factor, f"{name}, whose length no parameter has")

    def _is_private(self, v: Variable) -> bool:
        return v in self._observed or self._public.excludes(v)

    def _is_public(self, length: int) -> bool:
        if self._public_lengths is None:
            self._public_lengths = _public_lengths(self._model)
        return length in self._public_lengths


def _refuse(kind: str, factor: Variable, data: str) -> NoReturn:
    raise UnsupportedModel(
        f"the {kind} {factor.name!r} depends on data, namely on {data}. If it holds no data of records, declare it with "
        f"public=[{factor.name!r}]. Data may enter the likelihood only, where they are clipped and accounted for. {_CURES[kind]}"
    )


def _public_lengths(model: pm.Model) -> set[int]:
    """Lengths of parameters, and those that PyMC derives from them: of transforms and packed triangles."""
    unknown = [rv.shape for rv in model.free_RVs if None in rv.type.shape]
    shapes = [rv.type.shape for rv in model.free_RVs if None not in rv.type.shape]
    if unknown:
        graphs = rewrite_graph(unknown, include=("ShapeOpt", "canonicalize"), clone=True)
        shapes += evaluate_without_inputs(graphs, "when shapes of its parameters were computed")
    known = {int(n) for shape in shapes for n in shape}
    packed = {n for n in range(2, 200) if n * (n + 1) // 2 in known or n * (n - 1) // 2 in known}
    known |= packed
    triangles = {k for n in known for k in (n * (n - 1) // 2, n * (n + 1) // 2)}
    return {1, *known, *triangles, *(n + k for n in known for k in (-1, 1))} - {0}


def lengths_in(
    graphs: Sequence[Variable],
    is_private: Callable[[Variable], bool],
    stop: Set[Variable] = frozenset(),
) -> set[int]:
    """Lengths on which the values of graphs depend: of private arrays and of anything computed from them."""
    lengths: set[int] = set()
    seen, stack = set(stop), list(graphs)
    while stack:
        v = stack.pop()
        if v in seen or v.owner is None:
            continue
        seen.add(v)
        shape = v.owner.inputs[0] if isinstance(v.owner.op, Subtensor) and not v.ndim else v
        if is_length(v):
            lengths |= constant_lengths([v], seen - {v})
        elif shape.owner is not None and isinstance(shape.owner.op, Shape | Shape_i):
            (x,) = shape.owner.inputs
            axes = [shape.owner.op.i] if isinstance(shape.owner.op, Shape_i) else [*range(x.ndim)]
            axes = axes if shape is v else [axes[_entry(v)]]
            lengths |= _lengths(x, axes, [r for r in ancestors([x]) if is_private(r)])
            stack.extend(value_inputs(shape.owner))
        elif isinstance(
            getattr(v.owner.op, "scalar_op", None), Second
        ):  # ones_like(x): its shape, other values
            x, value = v.owner.inputs
            lengths |= _lengths(x, [*range(x.ndim)], [r for r in ancestors([x]) if is_private(r)])
            stack.append(value)
        else:
            stack.extend(value_inputs(v.owner))
    return lengths


def constant_lengths(graphs: Sequence[Variable], stop: Set[Variable]) -> set[int]:
    """Lengths of constants, which PyTensor writes as entries of constants: see `is_length`."""
    found = filter(is_length, upstream(graphs, stop))
    entries = (stored(v.owner.inputs[0])[_entry(v)] for v in found)
    return {int(n) for entry in entries for n in np.atleast_1d(entry)}


def _entry(v: Variable) -> Any:
    """The entry of a vector that a variable is; all entries if the index is not constant."""
    x, *indices = v.owner.inputs
    (entry,) = subtensor_entries(v.owner.op, x, indices)
    return int(entry.data) if isinstance(entry, Constant) else slice(None)


def _lengths(x: Variable, axes: Sequence[int], private: Sequence[Variable]) -> set[int]:
    """All possible lengths of some axes, and perhaps more, if the array is private or computed from private ones."""
    if not private:
        return set()
    known = stored(x).shape if is_array_root(x) else x.type.shape
    own = {known[k] for k in axes}
    if None in own:
        own |= {n for r in private if is_array_root(r) for n in stored(r).shape}
    return own - {None, 1}


def _patterns(
    graphs: Sequence[Variable], stop: Set[Variable], public: PublicArrays
) -> Iterator[tuple[str, Sequence[int]]]:
    """Names and shapes of arrays that are not declared public, and of those that the graphs make of public lengths."""
    found = upstream(graphs, stop)
    shapes = {v.owner.inputs[0] for v in found if is_length(v)}
    for v in found - shapes:
        if is_array_root(v):
            array = stored(v)
            if v not in public and array.ndim and (array.size > 1 or array.dtype.kind == "f"):
                yield array_name(v), array.shape
        elif v.owner is not None and isinstance(v.owner.op, Alloc | ARange):
            lengths = v.owner.inputs[isinstance(v.owner.op, Alloc) :]
            if all(isinstance(n, Constant) for n in lengths):
                yield (
                    f"an array of shape {v.type.shape}",
                    [n for n in v.type.shape if n is not None],
                )
