"""What `RecordLikelihood` and `SimulatedRecords` share: the parameters as a vector, and compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_dp.model.checks import check_graphs, check_model, has_binary_outcome
from pymc_dp.model.graphs.compiling import compile_frozen, freeze, quiet_compilers
from pymc_dp.model.graphs.data_variables import downstream
from pymc_dp.model.graphs.double_precision import in_doubles
from pymc_dp.model.graphs.exposed import Exposed
from pymc_dp.model.graphs.parameter_checks import strip_checks
from pymc_dp.model.identity import model_token
from pymc_dp.model.privacy_unit import assign_rows, per_record
from pymc_dp.model.sums.batch_likelihood import BatchLikelihood, RowGraphs
from pymc_dp.model.sums.gradients import RecordGradients


@dataclass(frozen=True)
class ModelGraphs:
    """Graphs of a model, without parameter checks, in terms of the value variables.

    `theta` is the vector of all parameters, and `parts` has each value variable as a part of it. `rows` has the
    row-wise log-likelihood of each observed variable; `log_prior` is ``-inf`` where it is not a number, or where a
    condition on parameters fails.
    """

    exposed: Exposed
    theta: Variable
    parts: dict[Variable, Variable]
    rows: list[Variable]
    log_prior: Variable

    def of_theta(self, new: Mapping[Variable, Variable]) -> tuple[list[Variable], Variable]:
        """Graphs of `rows` and `log_prior` as functions of `theta`, with further replacements."""
        graphs = [*self.rows, self.log_prior]
        *rows, log_prior = graph_replace(graphs, self.parts | dict(new), strict=False)
        return rows, log_prior


class CompiledModel:
    """A model's log-prior, the log-likelihoods of its records, and their gradients.

    Subclasses call `_assign_records`, `_derive` and `_compile`, in this order: errors in the model are reported before
    errors in its graphs, and nothing is compiled for a model that is refused.
    """

    n_records: int
    n_dim: int
    is_binary: bool

    def _assign_records(
        self, model: pm.Model, records: np.ndarray | Mapping[str, np.ndarray] | None
    ) -> list[np.ndarray]:
        """Check the variables of a model; record number of each observed row."""
        self.model_token = model_token(model)
        names = [rv.name for rv in model.observed_RVs]
        n_rows = check_model(model)
        labels, self.n_records = assign_rows(dict(zip(names, n_rows, strict=True)), records)
        self.is_binary = has_binary_outcome(model) and n_rows == [self.n_records]
        return labels

    def _derive(self, model: pm.Model, exposed: Exposed) -> ModelGraphs:
        check_graphs(model, exposed.graphs)
        with quiet_compilers():  # PyMC may compile the initial point to C
            start = model.initial_point(random_seed=0)
        self._names = tuple(v.name for v in model.value_vars)
        arrays = [np.asarray(start[name]) for name in self._names]
        self._layout = tuple((a.shape, a.dtype) for a in arrays)
        ends = np.cumsum([0, *(a.size for a in arrays)])
        self.n_dim = int(ends[-1])
        self._slices = {
            name: slice(int(a), int(b))
            for name, a, b in zip(self._names, ends[:-1], ends[1:], strict=True)
        }
        self._start = self.ravel(start)
        theta = pt.vector("theta", shape=(self.n_dim,), dtype="float64")
        parts = {
            v: theta[self._slices[v.name]].reshape(shape).astype(dtype)
            for v, (shape, dtype) in zip(model.value_vars, self._layout, strict=True)
        }
        dependent = downstream(exposed.graphs, exposed.private)
        stripped, conditions = strip_checks(exposed.graphs, dependent, model.value_vars)
        rows = [_sum_trailing(graph.astype("float64")) for graph in stripped]
        return ModelGraphs(exposed, theta, parts, rows, _prior_graph(model, conditions))

    def _compile(
        self,
        theta: Variable,
        rows: Sequence[Variable],
        log_prior: Variable,
        labels: Sequence[np.ndarray],
        compile_kwargs: Mapping[str, Any] | None = None,
        *,
        changing: Sequence[Variable] = (),
        private: Sequence[Variable] = (),
    ) -> None:
        """Compile functions of `theta`; `changing` and `private` are passed to `freeze`."""
        if self.n_records == 1:  # any function of the data is a sum over one record
            rows, labels = [pt.sum([pt.sum(row) for row in rows])[None]], [np.zeros(1, dtype=int)]
        rows = freeze(in_doubles(rows), changing, private)
        (log_prior,) = freeze(in_doubles([log_prior]))
        logp = per_record(rows, labels, self.n_records)
        # A fixed rule, which depends on one record alone, costs no privacy.
        logp = pt.switch(pt.isnan(logp), -np.inf, logp)
        # Flat priors, and some observed variables, have no parameters.
        options = {"mode": "NUMBA", "on_unused_input": "ignore"} | dict(compile_kwargs or {})
        graphs = RowGraphs(theta, rows, labels, self.n_records, options)
        self._batch = BatchLikelihood(logp, graphs)
        self._gradients = RecordGradients(log_prior, graphs)
        self._log_prior = compile_frozen([theta], log_prior, options)

    @property
    def slices(self) -> Mapping[str, slice]:
        """Where each value variable is in ``theta``."""
        return MappingProxyType(self._slices)

    def log_prior(self, theta: np.ndarray) -> float:
        """Log-prior density of an unconstrained position, with Jacobian terms and potentials; ``-inf`` outside of the domain."""
        return float(self._log_prior(self._checked(theta)))

    def grad_log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of `log_prior`, shape ``(n_dim,)``, perhaps not finite; 0 where a parameter is outside its domain."""
        return self._gradients.log_prior(self._checked(theta))

    def ravel(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """All value variables of a point as one float64 vector of shape ``(n_dim,)``."""
        return np.concatenate(
            [np.ravel(point[name]) for name in self._names], dtype=np.float64, casting="unsafe"
        )

    def unravel(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """The inverse of `ravel`: copies, in the shapes and types of the model."""
        theta = self._checked(theta)
        return {
            name: theta[part].reshape(shape).astype(dtype)
            for (name, part), (shape, dtype) in zip(self._slices.items(), self._layout, strict=True)
        }

    def _checked(self, theta: np.ndarray) -> np.ndarray:
        # Compiled functions do not check their input, and Numba compiles again for other memory
        # layouts and for read-only arrays: so this is always a copy.
        theta = np.array(theta, dtype=np.float64, order="C")
        if theta.shape != (self.n_dim,):
            raise ValueError(f"theta must have shape ({self.n_dim},), not {theta.shape}")
        return theta


def _prior_graph(model: pm.Model, conditions: Sequence[Variable]) -> Variable:
    """Log-prior, ``-inf`` where it is not a number or a condition fails."""
    terms = model.logp(vars=[*model.free_RVs, *model.potentials], sum=False)
    terms, own_conditions = strip_checks(terms, set(), model.value_vars)
    log_prior = pt.sum([pt.sum(term.astype("float64")) for term in terms])
    holds = [pt.all(c) for c in (*conditions, *own_conditions)]
    return pt.switch(pt.all([*holds, ~pt.isnan(log_prior)]), log_prior, -np.inf)


def _sum_trailing(graph: Variable) -> Variable:
    return graph.sum(axis=tuple(range(1, graph.ndim))) if graph.ndim > 1 else graph
