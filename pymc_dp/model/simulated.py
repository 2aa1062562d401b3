"""Records drawn from a model, and what they say of the parameters: for plans that see no private data."""

from __future__ import annotations

import warnings

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pymc.logprob.utils import replace_rvs_by_values
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_dp.errors import PerformanceWarning, UnsupportedModel
from pymc_dp.model.batches import BatchLikelihood
from pymc_dp.model.checks import check_graphs, check_model
from pymc_dp.model.compiling import compile_frozen, freeze
from pymc_dp.model.drawing import Drawing
from pymc_dp.model.exposed import Exposed, expose
from pymc_dp.model.gradients import RecordGradients
from pymc_dp.model.parameter_checks import strip_checks
from pymc_dp.model.public_arrays import PublicArrays
from pymc_dp.model.records import prior_graph
from pymc_dp.model.roots import downstream, observed_arrays, stored, upstream
from pymc_dp.model.units import assign_rows, per_record
from pymc_dp.model.withheld import evaluate, no_log_of_rewrites

__all__ = ["SimulatedRecords", "differences"]


class SimulatedRecords:
    """Data sets that a model could have produced: as many records, with the same covariates.

    What was observed is not looked at, and may differ.

    Parameters
    ----------
    model : pymc.Model
    records : array of int, or dict of str to such arrays, optional
        The privacy unit, as for :class:`~pymc_dp.RecordLikelihood`.
    public : sequence of str or array, optional
        As for :class:`~pymc_dp.RecordLikelihood`.
    public_covariates : bool
        Whether arrays of the model that have rows, besides what is observed, may be looked at, and
        `records`.
    public_data : bool
        Whether what is observed may be looked at, too: it is then the data set where none can be
        drawn.

    Attributes
    ----------
    n_records, n_dim : int
    governed : array of bool, shape (n_dim,)
        Parameters that have others in their prior.

    Raises
    ------
    ValueError
        If the model has covariates that are not public, or `records` is given and not public.
    UnsupportedModel
        If an observed variable cannot be drawn from, or another one's parameters have its data.
    """

    def __init__(
        self,
        model: pm.Model,
        *,
        records: np.ndarray | dict[str, np.ndarray] | None = None,
        public: Sequence[Any] = (),
        public_covariates: bool = False,
        public_data: bool = False,
    ) -> None:
        n_rows = check_model(model)
        if records is not None and not public_covariates:
            raise ValueError(
                "records= says which rows belong together, and a plan may look at that only if it is public: say "
                "public_covariates=True, or pass stand_in=, a model with data that are public or made up."
            )
        names = [rv.name for rv in model.observed_RVs]
        labels, self.n_records = assign_rows(dict(zip(names, n_rows, strict=True)), records)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a BLAS that is missing
            start = model.initial_point(random_seed=0)
        sizes = [np.size(start[v.name]) for v in model.value_vars]
        ends = np.cumsum([0, *sizes])
        self.n_dim = int(ends[-1])
        free = set(model.free_RVs)
        has_parents = [not free.isdisjoint(upstream(rv.owner.inputs)) for rv in model.free_RVs]
        self.governed = np.repeat(has_parents, sizes)
        theta = pt.vector("theta", shape=(self.n_dim,), dtype="float64")
        parts = {
            v: theta[a:b].reshape(np.shape(start[v.name])).astype(v.dtype)
            for v, a, b in zip(model.value_vars, ends[:-1], ends[1:], strict=True)
        }
        factors = [v.name for v in (*model.free_RVs, *model.potentials)]
        declared = PublicArrays(model, factors if public_data else public)
        with no_log_of_rewrites():  # the model may be that of the private data
            where, own = "when its log-likelihood was derived", not public_data
            exposed = evaluate(where, expose, model, declared, private=own)
        check_graphs(model, exposed.graphs)
        stripped, conditions = strip_checks(
            exposed.graphs, downstream(exposed.graphs, exposed.private), model.value_vars
        )
        arrays = observed_arrays(model)
        self._shared = [pytensor.shared(np.zeros_like(a), shape=a.shape) for a in arrays]
        rows = [graph.astype("float64") for graph in stripped]
        rows = [g.sum(axis=tuple(range(1, g.ndim))) if g.ndim > 1 else g for g in rows]
        new = parts | dict(zip(exposed.values, self._shared, strict=True))
        rows = graph_replace(rows, new, strict=False)
        draws = graph_replace(_draws(model), parts, strict=False)
        left = [v for v in exposed.private if v in upstream(rows, set(self._shared).__contains__)]
        left += [v for v in exposed.arrays_of(draws) if v not in declared]
        _check_public(left, exposed, model, public_covariates)
        self._data = arrays if public_data else None
        (log_prior,) = graph_replace([prior_graph(model, conditions)], parts, strict=False)
        origin = np.concatenate([np.ravel(start[v.name]) for v in model.value_vars]).astype(float)
        with warnings.catch_warnings():
            # Numba compiles at the first call, and says where it cannot, or not well.
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", PerformanceWarning)
            self._drawing: Drawing | None = Drawing([theta], draws)
            self._loaded: Sequence[np.ndarray] | None = None
            try:
                sample = self.draw(origin, np.random.default_rng(0))
            except NotImplementedError as error:
                if not public_data:
                    raise UnsupportedModel(
                        f"records cannot be drawn from the model ({error}): give its pm.CustomDist a random=, or "
                        "pass stand_in=, a model of the same parameters with public or made-up data."
                    ) from None
                self._drawing = None
                sample = self.draw(origin, np.random.default_rng(0))
            self._load(sample)
            self._compile(origin, theta, rows, log_prior, labels)

    def _compile(
        self,
        origin: np.ndarray,
        theta: Variable,
        rows: list[Variable],
        log_prior: Variable,
        labels: list[np.ndarray],
    ) -> None:
        options = {"mode": "NUMBA", "on_unused_input": "ignore"}
        rows, (log_prior,) = freeze(rows, self._shared), freeze([log_prior])
        logp = per_record(rows, labels, self.n_records)
        logp = pt.switch(pt.isnan(logp), -np.inf, logp)
        full = compile_frozen([theta], logp, options)
        common = origin, theta
        self._batch = BatchLikelihood(
            full, *common, rows, labels, self.n_records, options, simulated=True
        )
        self._gradients = RecordGradients(
            self._batch, *common, log_prior, rows, labels, self.n_records, options, simulated=True
        )
        self._log_prior = compile_frozen([theta], log_prior, options)
        some = np.zeros(2, dtype=np.int64)
        self._log_prior(origin)
        self._batch.all_records(origin)
        self._batch([origin], some)
        self._gradients.each(origin, some)

    def _load(self, data: Sequence[np.ndarray]) -> None:
        """Make these the data of what was compiled."""
        if data is self._loaded:
            return
        for variable, array in zip(self._shared, data, strict=True):
            variable.set_value(np.array(array, variable.dtype, order="C"), borrow=True)
        if self._loaded is not None:
            self._batch.refresh()
            self._gradients.refresh()
        self._loaded = data

    @property
    def are_drawn(self) -> bool:
        """Whether records come from the model, and are not those of a stand-in that cannot draw."""
        return self._drawing is not None

    def some(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Numbers of `n` records, or of all if there are no more."""
        return np.sort(rng.permutation(self.n_records)[:n])

    def draw(self, theta: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        """Draw a data set: values of the observed variables, in their order.

        Parameters
        ----------
        theta : array of shape (n_dim,)
            Parameters, as :meth:`RecordLikelihood.ravel` orders them.
        rng : numpy.random.Generator
        """
        if self._drawing is None:
            assert self._data is not None
            return self._data
        drawn = self._drawing(self._drawing.generators(rng), [np.asarray(theta, dtype=float)])
        return [np.array(y, v.dtype, order="C") for y, v in zip(drawn, self._shared, strict=True)]

    def log_prior(self, theta: np.ndarray) -> float:
        """Log-prior density on the unconstrained scale, see :meth:`RecordLikelihood.log_prior`."""
        return float(self._log_prior(np.array(theta, dtype=float)))

    def grad_log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of :meth:`log_prior`, shape ``(n_dim,)``."""
        return self._gradients.log_prior(np.array(theta, dtype=float))

    def logp(
        self, theta: np.ndarray, data: Sequence[np.ndarray], index: np.ndarray | None = None
    ) -> np.ndarray:
        """Log-likelihood of each record of a data set, or of those with some numbers, shape ``(n,)``."""
        self._load(data)
        theta = np.array(theta, dtype=float)
        return self._batch.all_records(theta) if index is None else self._batch([theta], index)[0]

    def gradients(
        self, theta: np.ndarray, data: Sequence[np.ndarray], index: np.ndarray | None = None
    ) -> np.ndarray:
        """Gradients of these records' log-likelihoods, shape ``(n, n_dim)``."""
        self._load(data)
        return self._gradients.each(np.array(theta, dtype=float), index)

    def curvature(self, theta: np.ndarray, data: Sequence[np.ndarray]) -> np.ndarray:
        """Minus the Hessian of the log-likelihood of all records, by differences, shape ``(n_dim, n_dim)``."""
        self._load(data)
        theta = np.array(theta, dtype=float)
        return -differences(lambda t: self._gradients.plain_sum(t, None, None), theta)


def differences(gradient: Callable[[np.ndarray], np.ndarray], theta: np.ndarray) -> np.ndarray:
    """Symmetric matrix of second derivatives, by central differences of a gradient."""
    rows = []
    for e, h in zip(np.eye(len(theta)), 1e-4 * (1 + np.abs(theta)), strict=True):
        rows.append((gradient(theta + h * e) - gradient(theta - h * e)) / (2 * h))
    hessian = np.array(rows)
    return (hessian + hessian.T) / 2


def _draws(model: pm.Model) -> list[Variable]:
    """Observed variables as random ones, in terms of the values of the free ones."""
    free = {rv: model.rvs_to_values[rv] for rv in model.free_RVs}
    return replace_rvs_by_values(
        list(model.observed_RVs), rvs_to_values=free, rvs_to_transforms=model.rvs_to_transforms
    )


def _check_public(
    left: Sequence[Variable], exposed: Exposed, model: pm.Model, public_covariates: bool
) -> None:
    """Raise if there are private arrays left where what is observed was replaced."""
    inside = upstream([*exposed.values, *(model.rvs_to_values[rv] for rv in model.observed_RVs)])
    arrays = observed_arrays(model)
    # The same NumPy array used twice makes two constants.
    if any(v in inside or any(np.array_equal(stored(v), a) for a in arrays) for v in left):
        raise UnsupportedModel(
            "what is observed also enters the parameters of an observed variable, where it cannot be drawn anew: "
            "write these with the random variable itself instead of its data (and keep covariates in another "
            "pm.Data than what is observed), or pass stand_in=, a model of the same parameters that is written so."
        )
    if left and not public_covariates:
        names = sorted({v.name for v in left if v.name}) or [f"{len(left)} without a name"]
        raise ValueError(
            f"the model has covariates ({', '.join(names)}), and a plan may look at them only if they "
            "are public: say public_covariates=True, or pass stand_in=, a model of the same "
            "parameters with covariates that are public or made up."
        )
