"""A PyMC model, compiled to one log-likelihood per record."""

from __future__ import annotations

import math
import os
import warnings

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.batches import BatchLikelihood, checked_index
from pymc_dp.model.checks import check_graphs, check_model
from pymc_dp.model.clipped_gradients import ClippedGradients
from pymc_dp.model.clipping import grid, quantized_sum
from pymc_dp.model.compiling import compile_frozen, freeze
from pymc_dp.model.data_keys import data_keys
from pymc_dp.model.exposed import expose
from pymc_dp.model.gradients import RecordGradients
from pymc_dp.model.independence import check_ranges, prove_independence
from pymc_dp.model.parameter_checks import strip_checks
from pymc_dp.model.public_arrays import PublicArrays
from pymc_dp.model.roots import INTERPRETED, downstream, stored
from pymc_dp.model.units import assign_rows, per_record
from pymc_dp.model.withheld import evaluate, no_log_of_rewrites

__all__ = ["RecordLikelihood"]


class RecordLikelihood(ClippedGradients):
    """Log-likelihood of each record, and log-prior, of a PyMC model, and their gradients.

    Built once, frozen afterwards: later changes of the model or of its ``pm.Data`` have no effect.
    Can be pickled with cloudpickle.

    Parameters
    ----------
    model : pymc.Model
        Every observed variable has the records on its leading axis, and the likelihood of a record
        depends on its own data only. All parameters are continuous.
    records : array of int, or dict of str to such arrays, optional
        The privacy unit: who each row of the data belongs to, by any integer labels. An array
        serves all observed variables, whose numbers of rows must agree; a dict has an array for
        each observed variable, by name, and these may differ in length. By default every row is a
        record.
    public : sequence of str or array, optional
        What the model holds that is no data of records: names of ``pm.Data`` and of named constants,
        arrays (each constant with these values), and names of parameters and potentials, whose own
        arrays are then public. Everything else must be a scalar, a pattern made without data
        (``np.zeros``, ``np.eye``, ``np.arange``), or have a row for each row of what is observed.
    private : bool
        Whether errors raised on the data keep their words to themselves.
    compile_kwargs : dict, optional
        Passed on to ``pytensor.function``. The mode is ``"NUMBA"`` unless given.

    Attributes
    ----------
    n_records : int
        Number of privacy units. It is public, labels are not.
    n_dim : int
        Length of ``theta``: all value variables of the model (parameters on the unconstrained
        scale), raveled, in the order of ``model.value_vars``.
    slices : mapping of str to slice
        Where each value variable is in ``theta``.
    data_keys : tuple of bytes
        What the private arrays are recognised by in this process; no value can be read off them.

    Raises
    ------
    UnsupportedModel
        If the model cannot be sampled privately as written.
    ValueError
        If `records` or `public` does not fit the model.
    ModelError
        If the model raises on its data.

    Notes
    -----
    Assertions on parameters (``sigma > 0``) do not raise. Those that involve no data make the prior
    ``-inf``, others the log-likelihood of the records concerned: see `parameter_checks`.
    """

    def __init__(
        self,
        model: pm.Model,
        *,
        records: np.ndarray | Mapping[str, np.ndarray] | None = None,
        public: Sequence[Any] = (),
        private: bool = True,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._private = private
        self._called: set[tuple[int, str]] = set()  # by process, each of which compiles
        # In this order: what is wrong with the model should be told before what is wrong with a
        # graph of it, and nothing is compiled for a model that is refused.
        n_rows = check_model(model)
        names = [rv.name for rv in model.observed_RVs]
        labels, n_records = assign_rows(dict(zip(names, n_rows, strict=True)), records)
        declared = PublicArrays(model, public)
        arguments = model, labels, n_records, declared, compile_kwargs
        with no_log_of_rewrites():
            self._evaluate(self._build, *arguments, where="when its log-likelihood was derived")

    def _build(
        self,
        model: pm.Model,
        labels: list[np.ndarray],
        n_records: int,
        declared: PublicArrays,
        compile_kwargs: dict[str, Any] | None,
    ) -> None:
        names = [rv.name for rv in model.observed_RVs]
        exposed = expose(model, declared)
        check_graphs(model, exposed.graphs)
        #: What the user declared public, in words.
        self.public = declared.descriptions

        with warnings.catch_warnings():
            # PyMC's own function for this may be compiled to C, and be told that BLAS is missing.
            warnings.simplefilter("ignore", UserWarning)
            start = model.initial_point(random_seed=0)
        self._names = tuple(v.name for v in model.value_vars)
        arrays = [np.asarray(start[name]) for name in self._names]
        ends = np.cumsum([0, *(a.size for a in arrays)])
        self._layout = tuple((a.shape, a.dtype) for a in arrays)
        self.n_records = n_records
        self.data_keys = data_keys(model, map(stored, exposed.private))
        self.n_dim = int(ends[-1])
        self._slices = {
            name: slice(int(a), int(b))
            for name, a, b in zip(self._names, ends[:-1], ends[1:], strict=True)
        }
        theta = pt.vector("theta", shape=(self.n_dim,), dtype="float64")
        parts, inputs = {}, {}
        for v, (shape, dtype) in zip(model.value_vars, self._layout, strict=True):
            parts[v] = theta[self._slices[v.name]].reshape(shape).astype(dtype)
            inputs[v] = pt.tensor(model.values_to_rvs[v].name, shape=shape, dtype=dtype)

        data_dependent = downstream(exposed.graphs, exposed.private)
        stripped, conditions = strip_checks(exposed.graphs, data_dependent, model.value_vars)
        rows = [_sum_trailing(graph.astype("float64")) for graph in stripped]
        prove_independence(
            exposed,
            graph_replace(rows, inputs, strict=False),
            list(inputs.values()),
            names,
            labels,
            n_records,
        )
        check_ranges(rows, downstream(rows, exposed.private), model.value_vars)
        log_prior = prior_graph(model, conditions)
        *rows, log_prior = graph_replace([*rows, log_prior], parts, strict=False)

        arguments = (
            theta,
            rows,
            exposed.private,
            log_prior,
            labels,
            self.ravel(start),
            compile_kwargs,
        )
        self._evaluate(self._compile, *arguments, where="when it was first evaluated")

    def _compile(
        self,
        theta: Variable,
        rows: list[Variable],
        private: list[Variable],
        log_prior: Variable,
        labels: list[np.ndarray],
        start: np.ndarray,
        compile_kwargs: dict[str, Any] | None,
    ) -> None:
        # Compiled code does not check indices: data of a group that does not exist would read memory.
        pytensor.function([theta], rows, mode=INTERPRETED, on_unused_input="ignore")(start)
        n_records = self.n_records
        rows = freeze(rows, private=private)
        logp = per_record(rows, labels, n_records)
        # A fixed rule that looks at one record alone, so that it does not cost privacy.
        logp = pt.switch(pt.isnan(logp), -np.inf, logp)
        # Flat priors, and some of what is observed, have no parameters.
        options = {"mode": "NUMBA", "on_unused_input": "ignore"} | (compile_kwargs or {})
        self._logp = compile_frozen([theta], logp, options)
        self._batch = BatchLikelihood(self._logp, start, theta, rows, labels, n_records, options)
        (log_prior,) = freeze([log_prior])
        self._log_prior = compile_frozen([theta], log_prior, options)
        self._gradients = RecordGradients(
            self._batch, start, theta, log_prior, rows, labels, n_records, options
        )
        self._clipped_sum = compile_frozen(*quantized_sum(n_records), options)
        with warnings.catch_warnings():
            # Numba compiles at the first call, and says where it cannot, or not well.
            warnings.simplefilter("ignore")
            zeros = np.zeros(n_records)
            self._log_prior(start)
            if self.logp(start).shape != (n_records,):
                raise UnsupportedModel("the likelihood does not have one entry per record.")
            self.clipped_sum(zeros, zeros, 1.0)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            raise AttributeError(f"RecordLikelihood is frozen: {name} cannot be changed")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"RecordLikelihood(n_records={self.n_records}, parameters={list(self._names)})"

    @property
    def slices(self) -> Mapping[str, slice]:
        """Where each value variable is in ``theta``."""
        return MappingProxyType(self._slices)

    def logp(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihood of each record.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,)

        Returns
        -------
        array of float64, shape (n_records,)
            Sum over everything observed of a record; ``-inf`` where it is not a number.
        """
        return self._evaluate(self._batch.all_records, self._checked(theta))

    def logp_at(self, theta: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Log-likelihood of some records, for which no other record's data are read.

        The first call compiles. If a model does not allow reading some rows only, the result is
        taken from `logp`, and the first call says so in a `PerformanceWarning`.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,) or (k, n_dim)
            One point, or several, for which the data are read once.
        index : array of int, shape (n,)
            Records from 0 to ``n_records - 1``, in any order, with repetitions or without.

        Returns
        -------
        array of float64, shape (n,) or (k, n)
            ``logp(theta)[index]``, up to rounding.

        Raises
        ------
        IndexError
            If there is no such record, or `index` is not a vector of integers.
        """
        index = checked_index(index, self.n_records)
        if np.ndim(theta) == 2:
            points = [self._checked(point) for point in theta]
            return np.array(self._evaluate(self._batch, points, index))
        return self._evaluate(self._batch, [self._checked(theta)], index)[0]

    def log_prior(self, theta: np.ndarray) -> float:
        """Log-prior density on the unconstrained scale.

        Jacobian terms and potentials are included.

        Returns
        -------
        float
            ``-inf`` where it is not a number or where a parameter leaves its domain.
        """
        return float(self._log_prior(self._checked(theta)))

    def clipped_sum(self, new: np.ndarray, old: np.ndarray, bound: float) -> float:
        r"""Sum over records of ``clip(new - old, -bound, bound)``, on a dyadic grid.

        Parameters
        ----------
        new, old : arrays of float64, shape (n_records,)
            Log-likelihoods, as `logp` returns them. Differences that are not numbers (of two
            infinities) count as 0, infinite ones as the bound.
        bound : float
            Largest contribution of a record, at least 0. ``inf`` gives an ordinary sum without
            clipping, for runs that are not private.

        Returns
        -------
        float

        Raises
        ------
        ValueError
            If `bound` is negative or not a number.

        Notes
        -----
        A floating-point sum rounds after every addition, so that one record can change it by more
        than its own term, and by an amount that depends on the order of the others [1]_. Here each
        term is first rounded to a multiple of :math:`g = 2^k`, at most ``bound`` in size, with
        2**30 to 2**31 steps within the bound, and the steps are added as whole numbers, below
        2**62 in all. So the result does not depend on the order, replacing a record changes it by
        at most ``2 * bound``, removing one by at most ``bound``, and exchanging `new` and `old`
        changes its sign only, as detailed balance requires. (One rounding is left, that of the
        final conversion, if the sum passes ``2**22 * bound``.) The grid follows from ``bound``
        alone: were it chosen by the number of records, adding one record could move all others.

        References
        ----------
        .. [1] Casacuberta, S., Shoemate, M., Vadhan, S. and Wagaman, C. (2022). Widespread
           underestimation of sensitivity in differentially private libraries and how to fix it.
           CCS '22. https://doi.org/10.1145/3548606.3560708
        """
        if not bound >= 0:
            raise ValueError(f"bound must be 0 or more, not {bound}")
        if bound == np.inf:
            with np.errstate(invalid="ignore"):
                return float(np.nansum(new - old))
        exponent, limit = grid(bound)
        if limit == 0:
            return 0.0
        scale = np.asarray(math.ldexp(1.0, -exponent))
        total = self._clipped_sum(new, old, scale, np.asarray(float(limit)))
        return math.ldexp(float(total), exponent)

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

    def _evaluate(
        self,
        function: Callable,
        *arguments: Any,
        where: str = "when its log-likelihood was evaluated",
    ) -> Any:
        called = os.getpid(), getattr(function, "__name__", type(function).__name__)
        if called in self._called:
            return evaluate(where, function, *arguments, private=self._private)
        self._called.add(called)
        with warnings.catch_warnings():
            # Numba compiles at the first call, and says what it could do better.
            warnings.filterwarnings("ignore", message=".*is faster on contiguous arrays")
            return evaluate(where, function, *arguments, private=self._private)

    def _checked(self, theta: np.ndarray) -> np.ndarray:
        # Compiled functions trust their input, and Numba compiles again for each memory layout and
        # for read-only arrays: a copy has always the same.
        theta = np.array(theta, dtype=np.float64, order="C")
        if theta.shape != (self.n_dim,):
            raise ValueError(f"theta must have shape ({self.n_dim},), not {theta.shape}")
        return theta


def prior_graph(model: pm.Model, conditions: Sequence[Variable]) -> Variable:
    """Log-prior, ``-inf`` where it is not a number or one of the conditions fails."""
    terms = model.logp(vars=[*model.free_RVs, *model.potentials], sum=False)
    terms, own_conditions = strip_checks(terms, set(), model.value_vars)
    log_prior = pt.sum([pt.sum(term.astype("float64")) for term in terms])
    fine = [pt.all(c) for c in (*conditions, *own_conditions)]
    return pt.switch(pt.all([*fine, ~pt.isnan(log_prior)]), log_prior, -np.inf)


def _sum_trailing(graph: Variable) -> Variable:
    return graph.sum(axis=tuple(range(1, graph.ndim))) if graph.ndim > 1 else graph
