"""A model of records that nobody has seen, and of what was released about them."""

from __future__ import annotations

import warnings

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pymc.distributions.distribution import support_point
from pymc.logprob.utils import replace_rvs_by_values
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.additive import additive, with_constants
from pymc_dp.model.compiling import NumbaFunction, freeze
from pymc_dp.model.drawing import Drawing
from pymc_dp.model.parameter_checks import strip_checks
from pymc_dp.model.roots import INTERPRETED, downstream

__all__ = ["LatentRecords"]

_COMPILED = {"mode": "NUMBA", "on_unused_input": "ignore"}

Point = Mapping[str, np.ndarray]  # values of the model's variables, as PyMC passes them to steps


class LatentRecords:
    """Records as unobserved variables, on which all that is observed depends through sums.

    Records come and go as values: what PyMC calls so, transformed to the whole line where a
    distribution has bounds.

    Parameters
    ----------
    model : pymc.Model
    values : sequence of Variable
        Value variables of the records.
    terms : sequence of str
        Names of Deterministics with a row for each record, whose sums enter the release.
    nearness : bool
        Let `outer` tell how near what is observed is to where its distribution is centred, which
        makes sense where its probability is 0, too.

    Attributes
    ----------
    names : tuple of str
        The value variables of the records.
    n_records : int
    outer : callable
        Compiled function of the sums of all terms, and of `parameters`: log-probability of all that
        depends on the records, up to a constant.
    parameters : tuple of str
    start : dict of str to array
        PyMC's initial values.

    Raises
    ------
    ValueError
        If the variables have different numbers of rows, or there is no such Deterministic.
    UnsupportedModel
        If records are not independent given the parameters; if nothing depends on them, or does so
        other than through sums over records.
    """

    def __init__(
        self,
        model: pm.Model,
        values: Sequence[Variable],
        terms: Sequence[str],
        nearness: bool = False,
    ) -> None:
        with warnings.catch_warnings():
            # PyTensor may say that BLAS is missing, and Numba that it is not used well.
            warnings.simplefilter("ignore")
            start = model.initial_point(random_seed=0)
            self.names = tuple(v.name for v in values)
            self.n_records = _n_records(
                {model.values_to_rvs[v].name: start[v.name] for v in values}
            )
            self.start: Point = start
            self._inputs = tuple(start)
            self._compile(model, values, terms, start, _nearness if nearness else _factors)
            self._check_rows(model, values, terms, start)

    def _compile(
        self,
        model: pm.Model,
        values: Sequence[Variable],
        terms: Sequence[str],
        start: Point,
        objective: Callable[[pm.Model, Sequence[str]], list[Variable]],
    ) -> None:
        inputs = {
            name: pt.tensor(name, dtype=value.dtype, shape=np.shape(value))
            for name, value in start.items()
        }
        records = [inputs[name] for name in self.names]
        self._draw = Drawing([*inputs.values()], _draws(model, values, inputs))
        graphs = model.logp(vars=[model.values_to_rvs[v] for v in values], sum=False)
        self._own = pytensor.function(
            [*inputs.values()],
            _in_terms_of(model, graphs, inputs),
            mode=INTERPRETED,
            on_unused_input="ignore",
        )
        stand_ins = _stand_ins(model, terms, inputs, self.n_records)
        total = _total(objective, model, values, inputs, [*stand_ins])
        split = additive(total, [*records, *stand_ins], self.n_records)
        (matrix,) = graph_replace([split.terms], stand_ins, strict=False)
        above = set(ancestors([split.outer]))
        self.parameters = tuple(name for name, v in inputs.items() if v in above)
        self.outer = pytensor.function(
            [split.sums, *(inputs[name] for name in self.parameters)], split.outer, **_COMPILED
        )
        proposed = [v.clone() for v in records]
        swap = dict(zip(records, proposed, strict=True))
        pair = freeze([matrix, *graph_replace([matrix], swap, strict=False)])
        self._terms = NumbaFunction([*inputs.values(), *proposed], pair)

    def generators(self, rng: np.random.Generator) -> list[np.random.Generator]:
        """What `draw` takes its random numbers from."""
        return self._draw.generators(rng)

    def draw(self, point: Point, generators: list[np.random.Generator]) -> Sequence[np.ndarray]:
        """Values of all records, given the parameters: one array for each of `names`."""
        return self._draw(generators, [np.asarray(point[name]) for name in self._inputs])

    def terms(self, point: Point, proposed: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """What each record adds to the sums, now and as proposed: shape ``(n_records, k)`` each."""
        return self._terms(*(np.asarray(point[name]) for name in self._inputs), *proposed)

    def is_possible(self, point: Point) -> bool:
        """Whether what is observed has a positive probability."""
        now, _ = self.terms(point, [point[name] for name in self.names])
        value = self.outer(now.sum(axis=0), *(point[name] for name in self.parameters))
        return bool(np.isfinite(value))

    def set_initial(self, model: pm.Model, point: Point) -> None:
        """Let chains of a model start with these records."""
        values = [v for v in model.value_vars if v.name in self.names]
        rvs = [model.values_to_rvs[v] for v in values]
        untransformed = pytensor.function(
            model.value_vars,
            model.replace_rvs_by_values(rvs),
            mode=INTERPRETED,
            on_unused_input="ignore",
        )
        for rv, initial in zip(rvs, untransformed(*(point[n] for n in self._inputs)), strict=True):
            model.set_initval(rv, initial)

    def _check_rows(
        self, model: pm.Model, values: Sequence[Variable], terms: Sequence[str], start: Point
    ) -> None:
        """Try out that each record's probability and terms are functions of this record."""
        rng = np.random.default_rng(20240219)  # fixed: refusals must not differ between runs
        generators = self.generators(rng)
        one, other = (self.draw(start, generators) for _ in range(2))
        stay = rng.permutation(self.n_records) % 2 == 0
        mixed = [np.where(along(stay, v), v, w) for v, w in zip(one, other, strict=True)]
        before, after = (
            self._own(*({**start, **dict(zip(self.names, x, strict=True))}.values()))
            for x in (one, mixed)
        )
        for value, a, b in zip(values, before, after, strict=True):
            if len(np.atleast_1d(a)) != self.n_records or not _same(a[stay], b[stay]):
                raise UnsupportedModel(
                    f"the records of {model.values_to_rvs[value].name!r} are not independent given "
                    "the parameters: the probability of some changes with others. Only what is "
                    "drawn row by row, along its leading axis, can be a variable of the records."
                )
        now, then = (self.terms(start, x)[1] for x in (one, mixed))
        # Here, so that Numba compiles it where its warnings are not shown.
        self.outer(now.sum(axis=0), *(start[name] for name in self.parameters))
        if not _same(now[stay], then[stay]):
            raise UnsupportedModel(
                f"the terms {list(terms)} of some records change with other records: each row must "
                "be computed from one record."
            )


def along(mask: np.ndarray, array: np.ndarray) -> np.ndarray:
    """A mask of records, to be broadcast with an array of records."""
    return mask.reshape(-1, *[1] * (array.ndim - 1))


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.allclose(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)


def _n_records(arrays: Point) -> int:
    shapes = {name: np.shape(array) for name, array in arrays.items()}
    lengths = {shape[0] if shape else 0 for shape in shapes.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            "the variables of the records need a leading axis that runs over the records, of the "
            f"same length; they have shapes {shapes}"
        )
    return lengths.pop()


def _in_terms_of(
    model: pm.Model, graphs: Sequence[Variable], inputs: Mapping[str, Variable]
) -> list[Variable]:
    return graph_replace(list(graphs), {v: inputs[v.name] for v in model.value_vars}, strict=False)


def _draws(
    model: pm.Model, values: Sequence[Variable], inputs: Mapping[str, Variable]
) -> list[Variable]:
    """Graphs of draws from the model of the records, as values, given the other variables."""
    rvs = [model.values_to_rvs[v] for v in values]
    known = {rv: value for rv, value in model.rvs_to_values.items() if rv not in rvs}
    draws = replace_rvs_by_values(
        rvs,
        rvs_to_values=known,
        rvs_to_transforms={rv: model.rvs_to_transforms.get(rv) for rv in known},
    )
    outputs = []
    for value, rv, draw in zip(values, rvs, draws, strict=True):
        transform = model.rvs_to_transforms[rv]
        if transform is not None:
            draw = transform.forward(draw, *draw.owner.inputs)
        outputs.append(draw.astype(value.dtype))
    return _in_terms_of(model, outputs, inputs)


def _stand_ins(
    model: pm.Model, names: Sequence[str], inputs: Mapping[str, Variable], n_records: int
) -> dict[Variable, Variable]:
    """Inputs in place of named terms, and what these are."""
    unknown = [name for name in names if name not in [d.name for d in model.deterministics]]
    if unknown:
        raise ValueError(f"terms must be names of pm.Deterministic variables; {unknown} are not")
    known = {v: inputs[v.name] for v in model.value_vars}
    graphs = model.replace_rvs_by_values([model[name] for name in names])
    graphs = with_constants(graphs, known) if names else []
    for name, graph in zip(names, graphs, strict=True):
        if graph.type.shape[:1] != (n_records,):
            raise ValueError(
                f"the terms {name!r} must have a row for each of {n_records} records, but have "
                f"shape {graph.type.shape}"
            )
    return {
        pt.tensor(name, dtype=graph.dtype, shape=graph.type.shape): graph
        for name, graph in zip(names, graphs, strict=True)
    }


def _factors(model: pm.Model, own: Sequence[str]) -> list[Variable]:
    """Log-probabilities of everything but the records."""
    others = [rv for rv in model.basic_RVs if model.rvs_to_values[rv].name not in own]
    return model.logp(vars=[*others, *model.potentials], sum=False)


def _nearness(model: pm.Model, own: Sequence[str]) -> list[Variable]:
    """For all that is observed, minus its squared distance from where its distribution is centred."""
    centres = model.replace_rvs_by_values([support_point(rv) for rv in model.observed_RVs])
    values = (model.rvs_to_values[rv] for rv in model.observed_RVs)
    return [-((v - centre) ** 2) for v, centre in zip(values, centres, strict=True)]


def _total(
    objective: Callable[[pm.Model, Sequence[str]], list[Variable]],
    model: pm.Model,
    values: Sequence[Variable],
    inputs: Mapping[str, Variable],
    stand_ins: Sequence[Variable],
) -> Variable:
    """The sum of those graphs that depend on records."""
    if stand_ins:
        zeros = {v.name: np.zeros(v.type.shape, dtype=v.dtype) for v in stand_ins}
        model = pm.do(model, zeros, make_interventions_shared=True)
    own = [v.name for v in values]
    known = {v: inputs[v.name] for v in model.value_vars} | {model[v.name]: v for v in stand_ins}
    graphs = graph_replace(objective(model, own), known, strict=False)
    dependent = downstream(graphs, [*(inputs[name] for name in own), *stand_ins])
    graphs = [graph for graph in graphs if graph in dependent]
    if not graphs:
        raise UnsupportedModel(
            f"nothing that is observed depends on {own}: the release should be an observed "
            "variable with a statistic of the records among its parameters."
        )
    graphs, _ = strip_checks(graphs, dependent, [*inputs.values(), *stand_ins], private=False)
    return with_constants([reduce(add, [g.astype("float64").sum() for g in graphs])])[0]
