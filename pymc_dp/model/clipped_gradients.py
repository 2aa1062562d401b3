"""The part of `RecordLikelihood` that is about gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_dp.model.batches import checked_index
from pymc_dp.model.gradients import RecordGradients, check_bound

__all__ = ["ClippedGradients"]


class ClippedGradients:
    """Gradients of the log-prior and of the records' log-likelihoods.

    Everything is compiled at first use.
    """

    n_records: int
    n_dim: int
    _gradients: RecordGradients

    def grad_log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of `log_prior`, on the unconstrained scale.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,)

        Returns
        -------
        array of float64, shape (n_dim,)
            Entries that are not finite are returned as they are. Zero where a parameter has left
            its domain, and the log-prior is ``-inf``.
        """
        return self._gradients.log_prior(self._checked(theta))

    def gradients(self, theta: np.ndarray, index: np.ndarray | None = None) -> np.ndarray:
        """Gradient of each record's log-likelihood, or of some records', not clipped: private.

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
        r"""Sum over records of clipped gradients of their log-likelihoods, in whole steps of a grid.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,)
        bound : float
            Largest Euclidean norm of a record's vector, finite, at least 0.
        index : array of int, shape (n,), optional
            Records from 0 to ``n_records - 1``, in any order; those that are repeated count
            repeatedly. All records by default.
        directions : array of float64, shape (n_dim, k) or (n_dim,), optional
            A record's vector is ``directions.T @ gradient``: the columns are directions in the
            space of ``theta``, along which derivatives are taken. A vector stands for a diagonal
            matrix, None for the identity (then ``k = n_dim``). Must not depend on the data, other
            than by what has been paid for.

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

        Warns
        -----
        PerformanceWarning
            By the first call, if an operation in the model stands in the way of computing all
            records' gradients in one pass.

        Notes
        -----
        As in `clipped_sum`, the sum must not round [1]_. A vector longer than `bound` is scaled
        down to it. Each coordinate is then cut off, towards zero, to a multiple of
        :math:`g = 2^{exponent}`, with 2**30 to 2**31 steps within the bound, so that vectors only
        become shorter, by less than ``g`` per coordinate. The margin for rounding errors of the
        norm is taken from the bound: the norm of a record's whole numbers is at most ``bound / g``,
        exactly. These are added as whole numbers. So replacing a record moves the sum by at most
        ``2 * bound`` in Euclidean norm, removing one by at most ``bound``, and the order in which
        vectors are added does not matter. A vector that is not finite, or too long to be squared
        (1e154, or so many steps), counts as zero: a rule that looks at one record alone.

        What is exact is the sum, given the vectors. These are floating-point results, and a matrix
        product may round a row in its last bit by its place among the others: in another order of
        records, or in a batch, a vector may round to a neighbouring step. Replacing a record leaves
        all others in their places, and their vectors the same, whatever the number of threads.

        References
        ----------
        .. [1] Casacuberta, S., Shoemate, M., Vadhan, S. and Wagaman, C. (2022). Widespread
           underestimation of sensitivity in differentially private libraries and how to fix it.
           CCS '22. https://doi.org/10.1145/3548606.3560708
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
            the sum passes ``2**22 * bound``.

        Raises
        ------
        ValueError
            If `bound` is negative or not a number, or `directions` has another shape.
        IndexError
            If there is no such record, or `index` is not a vector of integers.
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

    def _checked(self, theta: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _evaluate(self, function: Callable, *arguments: Any) -> Any:
        raise NotImplementedError
