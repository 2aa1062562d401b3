"""Likelihood of private records and prior of their model: what steps, releases and checks ask, wherever records are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pymc_dp.model.sums.batch_likelihood import checked_index
from pymc_dp.model.terms import ClippedChange, ClippedScores, Source, Term


class Likelihood(Source):
    """Private records of a model, of which sums of terms are asked, and the prior.

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
    >>> likelihood: dp.model.Likelihood = dp.model.RecordLikelihood(model)
    >>> likelihood.clipped_change(np.array([1.0]), np.array([0.0]), bound=0.25)
    -25.0
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
    #: Whether records are elsewhere, and asked by the process that is connected to them only.
    is_remote: bool = False
    #: What the guarantee assumes because of where the records are.
    assumed: str = ""
    #: Laws of noise that can be added to sums.
    noise_laws: tuple[str, ...] = ("l2", "gaussian")

    def total(self, term: Term, index: np.ndarray | None = None) -> np.ndarray:
        """Sum of a term over all records, or over some: private, exact, in whole numbers of ``2.0**term.exponent``.

        Parameters
        ----------
        term : Term
            What each record contributes.
        index : array of int, shape (n,), optional
            Records from 0 to ``n_records - 1``, with repetitions or without; all by default.

        Returns
        -------
        array of int64, shape (n_dim of the term,)
            Floats if a bound is infinite.

        Raises
        ------
        ValueError
            If a position has another shape than ``(n_dim,)``, or `clipping` is not "norm", but not `is_binary`.
        IndexError
            If there is no such record, or `index` is not a vector of integers.
        UnsupportedModel
            By the first call, if gradients of single rows cannot be computed.
        """
        self.check_term(term)
        return super().total(term, None if index is None else checked_index(index, self.n_records))

    def check_term(self, term: Term) -> None:
        """Raise ValueError if a term does not fit the model."""
        for theta in term.positions:
            if theta.shape != (self.n_dim,):
                raise ValueError(f"theta must have shape ({self.n_dim},), not {theta.shape}")
        if getattr(term, "clipping", "norm") != "norm" and not self.is_binary:
            raise ValueError("This clipping needs one Bernoulli outcome for each record.")

    def clipped_change(self, new: np.ndarray, old: np.ndarray, bound: float) -> float:
        """Sum of :class:`ClippedChange` over all records; rounded once if it exceeds ``2**22 * bound``.

        Parameters
        ----------
        new, old : array of float64, shape (n_dim,)
            The two positions, on the unconstrained scale.
        bound : float
            Largest contribution of a record, at least 0. ``inf`` gives an ordinary sum, for runs that are not private.

        Returns
        -------
        float
        """
        return float(self._rounded(ClippedChange(new, old, bound))[0])

    def clipped_grad(
        self, theta: np.ndarray, bound: float, index: np.ndarray | None = None,
        *, directions: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Sum of :class:`ClippedScores` over all records, or over some; rounded once where it exceeds ``2**22 * bound``.

        Parameters
        ----------
        theta : array of float64, shape (n_dim,)
            Position, on the unconstrained scale.
        bound : float
            Largest Euclidean norm of a record's vector, at least 0. ``inf`` gives an ordinary sum without clipping,
            of vectors that are finite, for runs that are not private.
        index : array of int, shape (n,), optional
            Records from 0 to ``n_records - 1``, with repetitions or without; all by default.
        directions : array of float64, shape (n_dim, k) or (n_dim,), optional
            A record's vector is ``directions.T @ gradient``; a vector means a diagonal matrix, None the identity.

        Returns
        -------
        array of float64, shape (k,)
        """
        return self._rounded(ClippedScores(theta, bound, directions), index)

    def _rounded(self, term: Term, index: np.ndarray | None = None) -> np.ndarray:
        return np.ldexp(self.total(term, index).astype(np.float64), term.exponent)

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
    def rehearsal(self) -> Likelihood:
        """What to call to compile terms before anything is paid for: it reads no record."""

    @abstractmethod
    def forget(self, but: np.ndarray | None = None) -> None:
        """Forget the log-likelihoods that are kept for the next :class:`ClippedChange`, except those at a position."""

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

    @abstractmethod
    def _checked(self, theta: np.ndarray) -> np.ndarray:
        """A copy of a position, of shape ``(n_dim,)``."""
