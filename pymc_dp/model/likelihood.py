"""A PyMC model, compiled to one log-likelihood per record, and to clipped sums of its gradients."""

from __future__ import annotations

import math
import os
import warnings

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pytensor.graph.replace import graph_replace

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.compiled_model import CompiledModel, ModelGraphs
from pymc_dp.model.data_keys import data_keys, row_keys
from pymc_dp.model.graphs.compiling import quiet_compilers
from pymc_dp.model.graphs.data_variables import downstream, interpreted, stored
from pymc_dp.model.graphs.exposed import expose
from pymc_dp.model.graphs.public_arrays import PublicArrays
from pymc_dp.model.independence import check_ranges, prove_independence
from pymc_dp.model.sums.batch_likelihood import checked_index
from pymc_dp.model.sums.exact_sums import grid, sum_of_steps
from pymc_dp.model.sums.gradients import check_bound
from pymc_dp.model.withheld import evaluate, no_log_of_rewrites

__all__ = ["RecordLikelihood"]


class RecordLikelihood(CompiledModel):
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
        constants, arrays (each constant with these values), and names of parameters and potentials,
        whose own arrays are then public. Every other array must be a scalar, a pattern made without
        data (``np.zeros``, ``np.eye``, ``np.arange``), or have a row for each observed row.
    private : bool
        Whether the text of errors raised on the data is withheld. True by default.
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
        Position of each value variable in ``theta``.
    public : tuple of str
        Descriptions of the declared public arrays, without values.
    data_keys : tuple of bytes
        Keys that identify the private arrays within this process, without showing values.
    row_keys : dict of str to tuple of bytes
        The same for the values of each observed variable, and for the record of each row: models with
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
    `parameter_checks`.
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
        self._called: set[tuple[int, str]] = set()  # by process, as each process compiles
        labels = self._assign_records(model, records)
        declared = PublicArrays(model, public)
        self.public = declared.descriptions
        arguments = model, labels, declared, compile_kwargs
        with no_log_of_rewrites():
            self._evaluate(self._build, *arguments, where="when its log-likelihood was derived")

    def _build(
        self,
        model: pm.Model,
        labels: list[np.ndarray],
        declared: PublicArrays,
        compile_kwargs: dict[str, Any] | None,
    ) -> None:
        exposed = expose(model, declared)
        derived = self._derive(model, exposed)
        self.data_keys = data_keys(model, map(stored, exposed.private))
        self.row_keys = row_keys(model, labels)
        inputs = {
            v: pt.tensor(model.values_to_rvs[v].name, shape=shape, dtype=dtype)
            for v, (shape, dtype) in zip(model.value_vars, self._layout, strict=True)
        }
        rows = graph_replace(derived.rows, inputs, strict=False)
        names = [rv.name for rv in model.observed_RVs]
        prove_independence(exposed, rows, [*inputs.values()], names, labels, self.n_records)
        check_ranges(derived.rows, downstream(derived.rows, exposed.private), model.value_vars)
        self._evaluate(
            self._first_evaluation,
            *(derived, labels, compile_kwargs),
            where="when it was first evaluated",
        )

    def _first_evaluation(
        self, graphs: ModelGraphs, labels: list[np.ndarray], compile_kwargs: dict[str, Any] | None
    ) -> None:
        theta, private = graphs.theta, graphs.exposed.private
        rows, log_prior = graphs.of_theta({})
        # Interpreted first: compiled code does not check indices, and would read other memory for a
        # group that does not exist.
        interpreted([theta], rows)(self._start)
        self._compile(theta, rows, log_prior, labels, compile_kwargs, private=private)
        with quiet_compilers():  # Numba compiles at the first call
            self._log_prior(self._start)
            logp = self.logp(self._start)
            if logp.shape != (self.n_records,):
                raise UnsupportedModel("the likelihood does not have one entry per record.")
            self.clipped_sum(logp, logp, 1.0)

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

        Returns
        -------
        array of float64, shape (n_records,)
            Sum over everything observed of a record; ``-inf`` where it is not a number.
        """
        return self._evaluate(self._batch.all_records, self._checked(theta))

    def logp_at(self, theta: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Log-likelihood of some records, without reading the data of others.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,) or (k, n_dim)
            One point, or several points, for which the data are read once.
        index : array of int, shape (n,)
            Records from 0 to ``n_records - 1``, in any order, with repetitions or without.

        Returns
        -------
        array of float64, shape (n,) or (k, n)
            ``logp(theta)[index]``, the same numbers.

        Raises
        ------
        IndexError
            If there is no such record, or `index` is not a vector of integers.
        UnsupportedModel
            By the first call, if rows cannot be computed alone.
        """
        index = checked_index(index, self.n_records)
        if np.ndim(theta) == 2:
            points = [self._checked(point) for point in theta]
            return np.array(self._evaluate(self._batch, points, index))
        return self._evaluate(self._batch, [self._checked(theta)], index)[0]

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
        than its own term, and by an amount that depends on the order of the others (Casacuberta et
        al. 2022, CCS '22, https://doi.org/10.1145/3548606.3560708). Here each
        term is first rounded to a multiple of :math:`g = 2^k`, at most ``bound`` in size, with
        2**30 to 2**31 steps within the bound. The steps are added as integers, whose sum stays
        below 2**62. So the result does not depend on the order; replacing a record changes it by at
        most ``2 * bound``, removing one by at most ``bound``; and exchanging `new` and `old` only
        changes its sign, as detailed balance requires. (The final conversion rounds once if the sum
        exceeds ``2**22 * bound``.) The grid depends on ``bound`` alone: if it depended on the number
        of records, adding one record could change the terms of all others.
        """
        if not bound >= 0:
            raise ValueError(f"bound must be 0 or more, not {bound}")
        if bound == np.inf:
            with np.errstate(invalid="ignore"):
                return float(np.nansum(new - old))
        exponent, limit = grid(bound)
        if limit == 0:
            return 0.0
        total = sum_of_steps(new, old, math.ldexp(1.0, -exponent), float(limit))
        return math.ldexp(float(total), exponent)

    def gradients(self, theta: np.ndarray, index: np.ndarray | None = None) -> np.ndarray:
        """Gradient of the log-likelihood of each record, or of some records, not clipped: private.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,)
        index : array of int, shape (n,), optional
            As in `clipped_grad_steps`.

        Returns
        -------
        array of float64, shape (n, n_dim)
        """
        theta, index, _ = self._arguments(theta, index, None)
        return self._evaluate(self._gradients.each, theta, index)

    def clipped_grad_steps(
        self,
        theta: np.ndarray,
        bound: float,
        index: np.ndarray | None = None,
        *,
        directions: np.ndarray | None = None,
        logp: np.ndarray | None = None,
    ) -> tuple[np.ndarray, int]:
        r"""Sum over records of clipped gradients of their log-likelihoods, in integer steps of a grid.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,)
        bound : float
            Largest Euclidean norm of a record's vector, finite, at least 0.
        index : array of int, shape (n,), optional
            Records from 0 to ``n_records - 1``, in any order; repeated records count repeatedly.
            All records by default.
        directions : array of float64, shape (n_dim, k) or (n_dim,), optional
            A record's vector is ``directions.T @ gradient``: the columns are directions in the
            space of ``theta``, along which derivatives are taken. A vector means a diagonal matrix,
            None the identity (then ``k = n_dim``). Must be a function of public quantities and of
            private releases.
        logp : array of float64, shape (n_records,), optional
            Filled with the log-likelihood of each record.

        Returns
        -------
        steps : array of int64, shape (k,)
        exponent : int
            The sum is ``steps * 2.0**exponent``.

        Raises
        ------
        ValueError
            If `bound` is negative, infinite or not a number, or `directions` has another shape.
        IndexError
            If there is no such record, or `index` is not a vector of integers.
        UnsupportedModel
            By the first call, if gradients of single rows cannot be computed.

        Notes
        -----
        As in `clipped_sum`, the sum must not round. A vector longer than `bound` is scaled to
        that length. Each coordinate is then truncated, towards zero, to a multiple of
        :math:`g = 2^{exponent}`, with 2**30 to 2**31 steps within the bound, so vectors only become
        shorter, by less than ``g`` per coordinate. The bound is reduced by a margin for rounding
        errors of the norm: the norm of a record's integers is at most ``bound / g``, exactly.
        Integers are added without rounding. So replacing a record changes the sum by at most
        ``2 * bound`` in Euclidean norm, removing one by at most ``bound``, and the order of addition
        does not matter. A vector that is not finite, or too long to be squared (1e154, or as many
        steps), counts as zero: a rule that depends on one record alone.

        The vector of a record is computed with the same roundings in any place, in a batch of any
        length and for any number of threads (in Numba, see `RowFunction`): sums over the parts of a
        data set add up to the sum over all of it.
        """
        arguments = self._arguments(theta, index, directions)
        check_bound(bound)
        return self._evaluate(self._gradients.clipped_steps, bound, *arguments, logp)

    def clipped_grad(
        self,
        theta: np.ndarray,
        bound: float,
        index: np.ndarray | None = None,
        *,
        directions: np.ndarray | None = None,
    ) -> np.ndarray:
        """Sum over records of clipped gradients of their log-likelihoods.

        Parameters
        ----------
        theta, index, directions
            As in `clipped_grad_steps`.
        bound : float
            Largest Euclidean norm of a record's vector, at least 0. ``inf`` gives an ordinary sum
            without clipping, of vectors that are finite, for runs that are not private.

        Returns
        -------
        array of float64, shape (k,)
            ``steps * 2.0**exponent`` of `clipped_grad_steps`, with one rounding if a coordinate of
            the sum exceeds ``2**22 * bound``.

        Raises
        ------
        ValueError, IndexError, UnsupportedModel
            As `clipped_grad_steps`, but `bound` may be infinite.
        """
        arguments = self._arguments(theta, index, directions)
        if bound == np.inf:
            return self._evaluate(self._gradients.plain_sum, *arguments)
        check_bound(bound)
        steps, exponent = self._evaluate(self._gradients.clipped_steps, bound, *arguments)
        return np.ldexp(steps.astype(np.float64), exponent)

    def _arguments(
        self, theta: np.ndarray, index: np.ndarray | None, directions: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        theta = self._checked(theta)
        if index is not None:
            index = checked_index(index, self.n_records)
        if directions is not None:
            directions = np.array(directions, dtype=np.float64, order="C")
            if directions.ndim not in (1, 2) or directions.shape[0] != self.n_dim:
                raise ValueError(
                    f"directions must have shape ({self.n_dim},) or ({self.n_dim}, k), "
                    f"not {directions.shape}"
                )
        return theta, index, directions

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
            # Numba compiles at the first call, and warns about slow code.
            warnings.filterwarnings("ignore", message=".*is faster on contiguous arrays")
            return evaluate(where, function, *arguments, private=self._private)
