"""Reductions: the only questions that a step, a release or a check may ask of private records."""

from __future__ import annotations

import math

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pymc_dp.model.sums.batch_likelihood import checked_index
from pymc_dp.model.sums.exact_sums import grid
from pymc_dp.model.sums.gradients import check_bound
from pymc_dp.model.sums.vector_sums import product_exponent

__all__ = ["Reductions"]


class Reductions(ABC):
    """Sums over private records, in whole numbers, of terms that each depend on one record.

    Whole numbers add in any order: the records may be in blocks, on disk or on other machines, and the sum is the
    same to the last bit. A sum is private until noise is added to it.

    Attributes
    ----------
    n_records : int
        Number of privacy units.
    n_dim : int
        Length of ``theta``.
    is_binary : bool
        Whether a record is one Bernoulli outcome.
    shapes : mapping of str to tuple of int
        Of the value variables of the model, in their order.
    fingerprint : str
        Of the operations of the log-likelihood: :func:`~pymc_dp.model.fingerprint.fingerprint`.

    Examples
    --------
    >>> with pm.Model() as model:
    ...     _ = pm.Normal("y", pm.Normal("mu", 0, 10), 1.0, observed=np.zeros(100))
    >>> dp.model.RecordLikelihood(model).clipped_grad(np.array([1.0]), bound=0.5).round(6)
    array([-50.])
    """

    n_records: int
    n_dim: int
    is_binary: bool
    shapes: Mapping[str, tuple[int, ...]]
    fingerprint: str
    public: tuple[str, ...]
    containers: tuple[Any, ...]
    row_keys: Mapping[str, tuple[bytes, ...]]
    model_token: Any
    by_position: Sequence[str] = ()  # see `row_positions`

    def clipped_change(self, new: np.ndarray, old: np.ndarray, bound: float) -> float:
        r"""Sum over records of the clipped change of their log-likelihood between two positions.

        Parameters
        ----------
        new, old : array of float64, shape (n_dim,)
            The two positions, on the unconstrained scale.
        bound : float
            Largest contribution of a record, at least 0. ``inf`` gives an ordinary sum, for runs that are not private.

        Returns
        -------
        float
            Sum of ``clip(l(new) - l(old), -bound, bound)``, on a dyadic grid. Differences that are not numbers (of
            two infinities) count as 0, infinite ones as the bound.

        Raises
        ------
        ValueError
            If `bound` is negative or not a number.

        Notes
        -----
        A floating-point sum rounds after every addition, so that one record can change it by more than its own term,
        and by an amount that depends on the order of the others (Casacuberta et al. 2022, CCS '22,
        https://doi.org/10.1145/3548606.3560708). Here each term is first rounded to a multiple of :math:`g = 2^k`, at
        most ``bound`` in size, with 2**30 to 2**31 steps within the bound. The steps are added as integers, whose sum
        stays below 2**62. So the result does not depend on the order; replacing a record changes it by at most
        ``2 * bound``, removing one by at most ``bound``; and exchanging `new` and `old` only changes its sign, as
        detailed balance requires. (The final conversion rounds once if the sum exceeds ``2**22 * bound``.) The grid
        depends on ``bound`` alone: if it depended on the number of records, adding one record could change the terms
        of all others.
        """
        new, old = self._checked(new), self._checked(old)
        if not bound >= 0:
            raise ValueError(f"bound must be 0 or more, not {bound}")
        if bound == math.inf:
            return self._plain_change(new, old)
        exponent, limit = grid(bound)
        if limit == 0:
            return 0.0
        steps = self._change_steps(new, old, math.ldexp(1.0, -exponent), float(limit))
        return math.ldexp(float(steps), exponent)

    def clipped_grad_steps(
        self, theta: np.ndarray, bound: float, index: np.ndarray | None = None,
        *, directions: np.ndarray | None = None, keeps_logp: bool = False, unbiased: bool = False,
    ) -> tuple[np.ndarray, int]:  # fmt: skip
        r"""Sum over records of clipped gradients of their log-likelihoods, in integer steps of a grid.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,)
            Position, on the unconstrained scale.
        bound : float
            Largest Euclidean norm of a record's vector, finite, at least 0.
        index : array of int, shape (n,), optional
            Records from 0 to ``n_records - 1``, with repetitions or without; all by default.
        directions : array of float64, shape (n_dim, k) or (n_dim,), optional
            A record's vector is ``directions.T @ gradient``: the columns are directions in the space of ``theta``,
            along which derivatives are taken; a vector means a diagonal matrix, None the identity. Must be a function
            of public quantities and of private releases.
        keeps_logp : bool
            Whether to keep log-likelihoods, which read the same data, for `clipped_change`. False by default.
        unbiased : bool
            Whether to scale both outcomes of a record, which is binary, by one factor. False by default.

        Returns
        -------
        steps : array of int64, shape (k,)
        exponent : int
            The sum is ``steps * 2.0**exponent``.

        Raises
        ------
        ValueError
            If `bound` is negative, infinite or not a number, `directions` has another shape, or `unbiased`, but not
            `is_binary`.
        IndexError
            If there is no such record, or `index` is not a vector of integers.
        UnsupportedModel
            By the first call, if gradients of single rows cannot be computed.

        Notes
        -----
        As in `clipped_change`, the sum must not round. A vector longer than `bound` is scaled to that length. Each
        coordinate is then truncated, towards zero, to a multiple of :math:`g = 2^{exponent}`, with 2**30 to 2**31
        steps within the bound, so vectors only become shorter, by less than ``g`` per coordinate. The bound is
        reduced by a margin for rounding errors of the norm: the norm of a record's integers is at most ``bound / g``,
        exactly. With `unbiased`, the factor is that of the longer of the vectors of both outcomes, whose norms are in
        inverse proportion to their probabilities, so that their mean is zero. Integers are added without rounding. So
        replacing a record changes the sum by at most ``2 * bound``, removing one by at most ``bound``, and the order
        of addition does not matter. A vector that is not finite, or too long to be squared (1e154, or as many steps),
        counts as zero: a rule that depends on one record alone.

        The vector of a record is computed with the same roundings in any place, in a batch of any length and for any
        number of threads (see `RowFunction`): sums over the parts of a data set add up to the sum over all of it.
        """
        arguments = self._arguments(theta, index, directions)
        check_bound(bound)
        if unbiased and not self.is_binary:
            raise ValueError("unbiased=True needs one Bernoulli outcome for each record.")
        return self._grad_steps(bound, *arguments, keeps_logp, unbiased), grid(bound)[0]

    def clipped_grad(
        self, theta: np.ndarray, bound: float, index: np.ndarray | None = None,
        *, directions: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Sum over records of clipped gradients of their log-likelihoods.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,)
            Position, on the unconstrained scale.
        index : array of int, shape (n,), optional
            Records from 0 to ``n_records - 1``, with repetitions or without; all by default.
        directions : array of float64, shape (n_dim, k) or (n_dim,), optional
            A record's vector is ``directions.T @ gradient``; a vector means a diagonal matrix, None the identity.
        bound : float
            Largest Euclidean norm of a record's vector, at least 0. ``inf`` gives an ordinary sum without clipping,
            of vectors that are finite, for runs that are not private.

        Returns
        -------
        array of float64, shape (k,)
            ``steps * 2.0**exponent`` of `clipped_grad_steps`, rounded once where it exceeds ``2**22 * bound``.

        Raises
        ------
        ValueError, IndexError, UnsupportedModel
            As `clipped_grad_steps`, but `bound` may be infinite.
        """
        arguments = self._arguments(theta, index, directions)
        if bound == math.inf:
            return self._plain_grad(*arguments)
        check_bound(bound)
        steps = self._grad_steps(bound, *arguments)
        return np.ldexp(steps.astype(np.float64), grid(bound)[0])

    def norm_counts(
        self, theta: np.ndarray, directions: np.ndarray, edges: np.ndarray
    ) -> np.ndarray:
        """Count records by the norm of ``directions.T @ gradient``: private, exact whole numbers.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,)
            Position, on the unconstrained scale.
        directions : array of float64, shape (n_dim, k)
            Columns along which derivatives are taken.
        edges : array of float64, shape (n_bins - 1,)
            Between the bins, ascending.

        Returns
        -------
        array of int64, shape (n_bins,)
            A record's bin depends on that record alone; norms that are not finite count in the last bin. So replacing
            a record changes two counts by 1, and the L2 norm by sqrt(2); removing one changes it by 1.
        """
        theta, _, matrix = self._arguments(theta, None, directions)
        assert matrix is not None
        return self._norm_counts(theta, matrix, np.array(edges, float))

    def product_steps(
        self, theta: np.ndarray, directions: np.ndarray, bound: float
    ) -> tuple[np.ndarray, int]:
        """Sum over records of the products of their clipped vectors, in integer steps of a grid: private.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,)
            Position, on the unconstrained scale.
        directions : array of float64, shape (n_dim, k)
            A record's vector is ``directions.T @ gradient``.
        bound : float
            Largest Euclidean norm of a record's vector.

        Returns
        -------
        steps : array of int64, shape (k * (k + 1) / 2,)
            Of the products of coordinates ``(1, 1), (1, 2), ..., (k, k)``, those of different ones times the root of
            2. A record's products have a norm of at most ``bound**2``.
        exponent : int
            The sum is ``steps * 2.0**exponent``.
        """
        theta, _, matrix = self._arguments(theta, None, directions)
        assert matrix is not None
        check_bound(bound)
        return self._product_steps(theta, matrix, bound), product_exponent(bound)

    #: Whether records are elsewhere, and asked by the process that is connected to them only.
    is_remote: bool = False
    #: What the guarantee assumes because of where the records are.
    assumed: str = ""
    #: Laws of noise that can be added to sums.
    noise_laws: tuple[str, ...] = ("l2", "gaussian")

    def noisy(
        self, law: Any, bits: Any, reduction: str, *arguments: Any, **options: Any
    ) -> np.ndarray:
        """A sum of whole numbers with noise, added exactly; paid for by the caller.

        Parameters
        ----------
        law : NoiseLaw
            Of the noise on the vector.
        bits : BitSource
            Of the noise: the operating system's secret ones, except in tests.
        reduction : {"clipped_grad_steps", "norm_counts", "product_steps"}
            Name of the method that sums.
        *arguments, **options
            Arguments of that method.

        Returns
        -------
        array of float64
        """
        return law.add(*self._steps(reduction, arguments, options), bits)

    def _steps(
        self, reduction: str, arguments: tuple, options: dict[str, Any]
    ) -> tuple[np.ndarray, int]:
        found = getattr(self, reduction)(*arguments, **options)
        return found if isinstance(found, tuple) else (found, 0)

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

    @abstractmethod
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

        Raises
        ------
        IndexError
            If there is no such record, or `index` is not a vector of integers.
        UnsupportedModel
            By the first call, if rows cannot be computed alone.
        """

    def check_reachable(self, *, with_noise: bool = False) -> None:
        """Raise if this process cannot ask for the records, before anything is paid for.

        RuntimeError if they are connected to another process; ValueError if sites tell sums with their own noise only, and
        others than `noisy` will be asked (`with_noise` is False).
        """

    @property
    @abstractmethod
    def rehearsal(self) -> Reductions:
        """What to call to compile reductions before anything is paid for: it reads no record."""

    @abstractmethod
    def forget(self, but: np.ndarray | None = None) -> None:
        """Forget the log-likelihoods that are kept for the next call of `clipped_change`, except those at a position."""

    # ------------------------------------------------------------------ prior

    @property
    @abstractmethod
    def slices(self) -> Mapping[str, slice]:
        """Where each value variable is in ``theta``."""

    @abstractmethod
    def log_prior(self, theta: np.ndarray) -> float:
        """Log-prior density on the unconstrained scale, with Jacobian terms and potentials."""

    @abstractmethod
    def grad_log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of `log_prior`, on the unconstrained scale."""

    @abstractmethod
    def ravel(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """All value variables of a point as one float64 vector of shape ``(n_dim,)``."""

    @abstractmethod
    def unravel(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """The inverse of `ravel`: copies, in the shapes and types of the model."""

    # ------------------------------------------------------------------ what a subclass computes

    @abstractmethod
    def _checked(self, theta: np.ndarray) -> np.ndarray:
        """A copy of a position, of shape ``(n_dim,)``."""

    @abstractmethod
    def _change_steps(self, new: np.ndarray, old: np.ndarray, scale: float, limit: float) -> int:
        """Sum over records of ``rint(scale * change)``, clipped to ``limit``."""

    @abstractmethod
    def _plain_change(self, new: np.ndarray, old: np.ndarray) -> float:
        """Sum over records of the changes that are numbers."""

    @abstractmethod
    def _grad_steps(
        self, bound: float, theta: np.ndarray, index: np.ndarray | None, directions: np.ndarray | None,
        keeps_logp: bool = False, unbiased: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """See `clipped_grad_steps`; arguments are checked."""

    @abstractmethod
    def _plain_grad(
        self, theta: np.ndarray, index: np.ndarray | None, directions: np.ndarray | None
    ) -> np.ndarray:
        """Sum of all finite gradients."""

    @abstractmethod
    def _norm_counts(
        self, theta: np.ndarray, directions: np.ndarray, edges: np.ndarray
    ) -> np.ndarray:
        """See `norm_counts`; arguments are checked."""

    @abstractmethod
    def _product_steps(self, theta: np.ndarray, directions: np.ndarray, bound: float) -> np.ndarray:
        """See `product_steps`; arguments are checked."""
