"""A PyMC model, compiled to one log-likelihood per record, and to clipped sums of its gradients."""

from __future__ import annotations

import copy
import os
import warnings

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pytensor.graph.replace import graph_replace

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.model.compiled_model import CompiledModel, ModelGraphs
from pymc_dp.model.data_keys import row_keys
from pymc_dp.model.fingerprint import fingerprint
from pymc_dp.model.graphs.compiling import check_compile_kwargs, quiet_compilers
from pymc_dp.model.graphs.data_variables import (
    downstream,
    interpreted,
    is_array_root,
    observed_values,
    stored,
)
from pymc_dp.model.graphs.exposed import expose
from pymc_dp.model.graphs.index_entries import with_bounded_indices
from pymc_dp.model.graphs.public_arrays import PublicArrays
from pymc_dp.model.independence import check_ranges, prove_independence
from pymc_dp.model.sums.batch_likelihood import checked_index
from pymc_dp.model.sums.exact_sums import sum_of_steps
from pymc_dp.model.sums.gradients import Block, LatestValues
from pymc_dp.model.sums.row_functions import rehearsing
from pymc_dp.model.terms import Term
from pymc_dp.model.withheld import evaluate, no_log_of_rewrites

#: Bytes of log-likelihoods that may be kept in any case.
FEW_BYTES = 2**24


class RecordLikelihood(CompiledModel, Likelihood):
    """Log-likelihood of each record, and log-prior, of a PyMC model, and their gradients.

    Frozen once built: later changes of the model or of its ``pm.Data`` have no effect. Can be pickled
    with cloudpickle. Batches and gradients are compiled at their first use.

    Parameters
    ----------
    model : pymc.Model
        Every observed variable has the records on its leading axis, and the likelihood of a record
        depends on its own data only. All parameters are continuous.
    records : array of int, or dict of str to such arrays, optional
        The privacy unit: an integer label for each row of the data, the same for all rows of a
        record. An array is used for all observed variables, whose numbers of rows must agree; a
        dict has an array for each observed variable, by name, and these may differ in length. By
        default every row is a record.
    public : sequence of str or array, optional
        Arrays of the model that do not hold data of records: names of ``pm.Data`` and of named
        constants, arrays (constants that store them or views of them), and names of parameters and potentials,
        whose own arrays are then public. Every other array must be a scalar, a pattern made without
        data (``np.zeros``, ``np.eye``, ``np.arange``), or have a row for each observed row. Patterns in
        priors, potentials and initial values have the length of a dimension of a parameter.
    private : bool
        Whether the text of errors raised on the data is withheld. True by default.
    compile_kwargs : dict, optional
        Passed on to ``pytensor.function``. The mode is ``"NUMBA"`` unless given. Other compilers (JAX,
        MLX, PyTorch) may round a record's terms differently in other places, and are refused.

    Attributes
    ----------
    n_records : int
        Number of privacy units. It is public, labels are not.
    n_dim : int
        Length of ``theta``: all value variables of the model (parameters on the unconstrained
        scale), raveled, in the order of ``model.value_vars``.
    slices : mapping of str to slice
        Position of each value variable in ``theta``.
    public : tuple of str
        Descriptions of the declared public arrays, without values.
    containers : tuple of ndarray
        The arrays that hold the private data, to be compared as objects; none in a pickled copy.
    row_keys : dict of str to tuple of bytes
        Keyed hashes of the values of each observed variable, and of the record of each row: models with
        equal ones observe the same records.

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
    Assertions on parameters (``sigma > 0``) do not raise. One without data makes the prior ``-inf``
    where it fails; one with data makes the log-likelihood of the affected records ``-inf``: see
    `parameter_checks`. An index from the data that is out of range counts as the nearest one within: an error
    would show that there is such a record.

    Examples
    --------
    >>> with pm.Model() as model:
    ...     _ = pm.Normal("y", pm.Normal("mu", 0, 10), 1.0, observed=np.zeros(100))
    >>> likelihood = dp.model.RecordLikelihood(model)
    >>> likelihood.n_records, likelihood.logp(np.zeros(1)).shape
    (100, (100,))
    """

    slices = CompiledModel.slices  # documented with this class

    def __init__(
        self,
        model: pm.Model,
        *,
        records: np.ndarray | Mapping[str, np.ndarray] | None = None,
        public: Sequence[Any] = (),
        private: bool = True,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> None:
        check_compile_kwargs(compile_kwargs)
        self._private = private
        self._called: set[tuple[int, str]] = set()  # by process, as each process compiles
        self._latest, self._rehearses = LatestValues(), False
        labels = self._assign_records(model, records)
        declared = PublicArrays(model, public)
        self.public = declared.descriptions
        arguments = model, labels, declared, compile_kwargs
        with no_log_of_rewrites():
            self._evaluate(self._build, *arguments, where="when its log-likelihood was derived")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"containers": ()}

    def _build(
        self,
        model: pm.Model,
        labels: list[np.ndarray],
        declared: PublicArrays,
        compile_kwargs: dict[str, Any] | None,
    ) -> None:
        exposed = expose(model, declared)
        derived = self._derive(model, exposed)
        self.shapes = {
            name: shape for name, (shape, _) in zip(self._names, self._layout, strict=True)
        }
        self.fingerprint = fingerprint(derived.rows, model.value_vars)
        roots = filter(is_array_root, observed_values(model))
        self.containers = tuple(map(stored, dict.fromkeys([*roots, *exposed.private])))
        self.row_keys = row_keys(model, labels)
        inputs = {
            v: pt.TensorType(dtype, shape)(model.values_to_rvs[v].name)
            for v, (shape, dtype) in zip(model.value_vars, self._layout, strict=True)
        }
        rows = graph_replace(derived.rows, inputs, strict=False)
        names = [rv.name for rv in model.observed_RVs]
        self.by_position = prove_independence(
            exposed, rows, [*inputs.values()], names, labels, self.n_records
        )
        check_ranges(derived.rows, downstream(derived.rows, exposed.private), model.value_vars)
        derived = replace(derived, rows=with_bounded_indices(derived.rows, exposed.private))
        self._first_evaluation(derived, labels, compile_kwargs)

    def _first_evaluation(
        self, graphs: ModelGraphs, labels: list[np.ndarray], compile_kwargs: dict[str, Any] | None
    ) -> None:
        theta, private = graphs.theta, graphs.exposed.private
        # Two vectors of numbers, at most a tenth of the data, unless these are few.
        most = max(FEW_BYTES, sum(stored(v).nbytes for v in private) // 10)
        self._keeps_vectors = 16 * self.n_records <= most
        rows, log_prior = graphs.of_theta({})
        # Interpreted first, on zeros: compiled code does not check lengths, and would read other memory.
        zeros = {v: pytensor.shared(np.zeros(stored(v).shape, v.dtype), shape=v.type.shape) for v in private}  # fmt: skip
        interpreted([theta], graph_replace(rows, zeros, strict=False))(self._start)
        self._compile(theta, rows, log_prior, labels, compile_kwargs, private=private)
        with quiet_compilers():  # Numba compiles at the first call
            self._log_prior(self._start)
            logp = self.rehearsal.logp(self._start)
            if logp.shape != (self.n_records,):
                raise UnsupportedModel("the likelihood does not have one entry per record.")
            sum_of_steps(logp, logp, 1.0, 1.0)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            raise AttributeError(f"RecordLikelihood is frozen: {name} cannot be changed")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"RecordLikelihood(n_records={self.n_records}, parameters={list(self._names)})"

    def logp(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihood of each record.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,)
            Position, on the unconstrained scale.

        Returns
        -------
        array of float64, shape (n_records,)
            Sum over everything observed of a record; ``-inf`` where it is not a number.
        """
        return self._evaluate(self._batch.all_records, self._checked(theta))

    def logp_at(self, theta: np.ndarray, index: np.ndarray) -> np.ndarray:
        """See `Likelihood`: ``logp(theta)[index]``."""
        index = checked_index(index, self.n_records)
        if np.ndim(theta) == 2:
            points = [self._checked(point) for point in theta]
            return np.array(self._evaluate(self._batch, points, index))
        return self._evaluate(self._batch, [self._checked(theta)], index)[0]

    @property
    def rehearsal(self) -> RecordLikelihood:
        """See `Likelihood`: the same with zeros in the place of the records."""
        other = copy.copy(self)
        other.__dict__.update(_rehearses=True, _latest=LatestValues())
        return other

    def forget(self, but: np.ndarray | None = None) -> None:
        """See `Likelihood`."""
        self._latest.forget(but)

    def gradients(self, theta: np.ndarray, index: np.ndarray | None = None) -> np.ndarray:
        """Gradient of the log-likelihood of each record, or of some records, not clipped: private.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,)
            Position, on the unconstrained scale.
        index : array of int, shape (n,), optional
            Records from 0 to ``n_records - 1``, with repetitions or without; all by default.

        Returns
        -------
        array of float64, shape (n, n_dim)
        """
        index = None if index is None else checked_index(index, self.n_records)
        return self._evaluate(self._gradients.each, self._checked(theta), index)

    def map(self, term: Term, index: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """See `Source`: one block."""
        latest = self._latest if self._keeps_vectors else None
        yield self._evaluate(term.of, Block(self._batch, self._gradients, index, latest))

    def _evaluate(
        self,
        function: Callable,
        *arguments: Any,
        where: str = "when its log-likelihood was evaluated",
    ) -> Any:
        called = os.getpid(), getattr(function, "__qualname__", type(function).__name__)
        if called in self._called:
            with rehearsing(self._rehearses):
                return evaluate(where, function, *arguments, private=self._private)
        self._called.add(called)
        with rehearsing(self._rehearses), warnings.catch_warnings():
            # Numba compiles at the first call, and warns about slow code.
            warnings.filterwarnings("ignore", message=".*is faster on contiguous arrays")
            return evaluate(where, function, *arguments, private=self._private)
