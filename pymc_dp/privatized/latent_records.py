"""A model of latent records, and of a release about them."""

from __future__ import annotations

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
from pymc_dp.model.graphs.compiling import (
    NumbaFunction,
    freeze,
    quiet_compilers,
    with_constants,
)
from pymc_dp.model.graphs.data_variables import downstream, interpreted
from pymc_dp.model.graphs.drawing import Drawing
from pymc_dp.model.graphs.parameter_checks import strip_checks
from pymc_dp.privatized.record_sums import split_into_sums

_COMPILED = {"mode": "NUMBA", "on_unused_input": "ignore"}

Point = Mapping[str, np.ndarray]  # values of the model's variables, as PyMC passes them to steps


class LatentRecords:
    """Records as unobserved variables, on which the observed variables depend only through sums over records.

    Records are PyMC's value variables `names`, transformed to the real line if a distribution has bounds.
    `contributions` are names of Deterministics with a row for each record, whose sums enter the release. `outer` is the
    log-probability, up to a constant, of all variables that depend on the records, as a compiled function of the sums
    of all terms and of `parameters`. With `nearness` it is minus the squared distance of the observed values from the
    centres of their distributions, which makes sense where their probability is 0. `start` has PyMC's initial values.

    Raises ValueError if the variables have different numbers of rows, or there is no such Deterministic;
    UnsupportedModel if records are not independent given the parameters, if nothing depends on them, or if something
    depends on them other than through sums over records.
    """

    def __init__(
        self,
        model: pm.Model,
        values: Sequence[Variable],
        contributions: Sequence[str],
        nearness: bool = False,
    ) -> None:
        with quiet_compilers():
            start = model.initial_point(random_seed=0)
            self.names = tuple(v.name for v in values)
            self.n_records = _n_records(
                {model.values_to_rvs[v].name: start[v.name] for v in values}
            )
            self.start: Point = start
            self._inputs = tuple(start)
            self._compile(model, values, contributions, start, _nearness if nearness else _factors)
            self._check_rows(model, values, contributions, start)

    def _compile(
        self,
        model: pm.Model,
        values: Sequence[Variable],
        contributions: Sequence[str],
        start: Point,
        objective: Callable[[pm.Model, Sequence[str]], list[Variable]],
    ) -> None:
        inputs = {
            name: pt.TensorType(value.dtype, np.shape(value))(name) for name, value in start.items()
        }
        records = [inputs[name] for name in self.names]
        self._draw = Drawing([*inputs.values()], _draws(model, values, inputs))
        graphs = model.logp(vars=[model.values_to_rvs[v] for v in values], sum=False)
        self._own = interpreted([*inputs.values()], _in_terms_of(model, graphs, inputs))
        stand_ins = _stand_ins(model, contributions, inputs, self.n_records)
        total = _total(objective, model, values, inputs, [*stand_ins])
        split = split_into_sums(total, [*records, *stand_ins], self.n_records)
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
        """Generators for `draw`."""
        return self._draw.generators(rng)

    def draw(self, point: Point, generators: list[np.random.Generator]) -> Sequence[np.ndarray]:
        """Draws of all records given the parameters: one array for each of `names`."""
        return self._draw(generators, [np.asarray(point[name]) for name in self._inputs])

    def terms(self, point: Point, proposed: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Terms of each record in the sums, current and proposed: shape ``(n_records, k)`` each."""
        return self._terms(*(np.asarray(point[name]) for name in self._inputs), *proposed)

    def is_possible(self, point: Point) -> bool:
        """Whether the observed values have positive probability."""
        now, _ = self.terms(point, [point[name] for name in self.names])
        value = self.outer(now.sum(axis=0), *(point[name] for name in self.parameters))
        return bool(np.isfinite(value))

    def set_initial(self, model: pm.Model, point: Point) -> None:
        """Make these records the model's initial values."""
        values = [v for v in model.value_vars if v.name in self.names]
        rvs = [model.values_to_rvs[v] for v in values]
        untransformed = interpreted(model.value_vars, model.replace_rvs_by_values(rvs))
        for rv, initial in zip(rvs, untransformed(*(point[n] for n in self._inputs)), strict=True):
            model.set_initval(rv, initial)

    def _check_rows(
        self,
        model: pm.Model,
        values: Sequence[Variable],
        contributions: Sequence[str],
        start: Point,
    ) -> None:
        """Check on draws that each record's probability and terms are functions of that record alone."""
        rng = np.random.default_rng(20240219)  # fixed, so that refusals are the same in all runs
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
                    "the parameters: the probability of some changes with others. Variables of the "
                    "records must be drawn row by row along their leading axis."
                )
        now, then = (self.terms(start, x)[1] for x in (one, mixed))
        # Called here, so that Numba compiles it while warnings are suppressed.
        self.outer(now.sum(axis=0), *(start[name] for name in self.parameters))
        if not _same(now[stay], then[stay]):
            raise UnsupportedModel(
                f"the contributions {list(contributions)} of some records change with other records: each row must "
                "be computed from one record."
            )


def along(mask: np.ndarray, array: np.ndarray) -> np.ndarray:
    """Reshape a mask of records to broadcast with an array of records."""
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
    """Graphs of draws of the records, as value variables, given the other variables."""
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
    """Inputs that replace named terms, mapped to the graphs of these terms."""
    unknown = sorted(set(names).difference(d.name for d in model.deterministics))
    if unknown:
        raise ValueError(
            f"contributions must be names of pm.Deterministic variables; {unknown} are not"
        )
    known = {v: inputs[v.name] for v in model.value_vars}
    graphs = model.replace_rvs_by_values([model[name] for name in names])
    graphs = with_constants(graphs, known) if names else []
    stand_ins = {}
    for name, graph in zip(names, graphs, strict=True):
        shape = graph.type.shape
        if shape[:1] != (n_records,):
            raise ValueError(
                f"the contributions {name!r} must have a row for each of {n_records} records, but have "
                f"shape {shape}"
            )
        stand_ins[pt.TensorType(graph.dtype, shape)(name)] = graph
    return stand_ins


def _factors(model: pm.Model, own: Sequence[str]) -> list[Variable]:
    """Log-probabilities of all variables but the records."""
    others = [rv for rv in model.basic_RVs if model.rvs_to_values[rv].name not in own]
    return model.logp(vars=[*others, *model.potentials], sum=False)


def _nearness(model: pm.Model, own: Sequence[str]) -> list[Variable]:
    """Minus the squared distance of each observed value from the centre of its distribution."""
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
    """Sum of the graphs that depend on records."""
    if stand_ins:
        zeros = {v.name: np.zeros(v.type.shape, dtype=v.dtype) for v in stand_ins}
        model = pm.do(model, zeros, make_interventions_shared=True)
    own = [v.name for v in values]
    known = {v: inputs[v.name] for v in model.value_vars} | {model[v.name]: v for v in stand_ins}
    graphs = graph_replace(objective(model, own), known, strict=False)
    dependent = downstream(graphs, [*map(inputs.__getitem__, own), *stand_ins])
    graphs = [graph for graph in graphs if graph in dependent]
    if not graphs:
        raise UnsupportedModel(
            f"no observed variable depends on {own}: the release should be an observed variable "
            "with a statistic of the records among its parameters."
        )
    graphs, _ = strip_checks(graphs, dependent, [*inputs.values(), *stand_ins], private=False)
    return with_constants([reduce(add, [g.astype("float64").sum() for g in graphs])])[0]
