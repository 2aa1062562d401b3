"""What the gradient samplers share: coordinates, and the noisy sum of clipped gradients."""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scipy.linalg import solve_triangular

from pymc_dp.model.records import RecordLikelihood
from pymc_dp.privacy.gaussian_noise import noisy_sum
from pymc_dp.privacy.mechanisms import real, reals
from pymc_dp.privacy.noise import BitSource

__all__ = [
    "MOST_NOISE",
    "Coordinates",
    "NoisyGradient",
    "Phase",
    "Trajectory",
    "check_clip_bound",
    "check_gradient_noise",
    "leapfrog",
]

#: Largest noise multiplier: noise is counted in steps, 2**31 to a clip bound.
MOST_NOISE = 1e6


class Phase(NamedTuple):
    """A point of a path: where it is, its momentum, and the (noisy) gradient of the log-posterior there."""

    theta: np.ndarray
    momentum: np.ndarray
    gradient: np.ndarray


class Trajectory(NamedTuple):
    """A recorded path, for teaching: for data that need no protection.

    Parameters
    ----------
    phases : list of Phase
        Positions of shape ``(n_dim,)``, momenta and gradients of shape ``(d,)``; the latter two in
        coordinates in which the mass matrix is the identity.
    step_size : float
        Of this path, after jitter.
    accepted : bool
        Whether the path's end became the next state.
    """

    phases: list[Phase]
    step_size: float
    accepted: bool


class Coordinates:
    r"""Coordinates ``w`` in which the mass matrix is the identity: ``theta = A w``, ``A A' = Mass^-1``.

    Momenta ``p ~ N(0, Mass)`` become standard normal ``A' p``, gradients ``g`` become ``A' g``. Norms
    are taken here: a clip bound for gradients is log-likelihood per unit of ``w``, which is a posterior
    standard deviation if the mass matrix is the inverse of the posterior's covariance.

    Parameters
    ----------
    mass_matrix : None, or array_like of shape (d,) or (d, d)
        Identity, diagonal, or symmetric and positive definite.
    part : array of int, shape (d,)
        Positions of the coordinates in ``theta``.
    n_dim : int
        Length of ``theta``.

    Raises
    ------
    ValueError
        If the mass matrix has another shape or is not positive definite.
    """

    def __init__(self, mass_matrix: npt.ArrayLike | None, part: np.ndarray, n_dim: int) -> None:
        d = len(part)
        self.part = part
        mass = np.ones(d) if mass_matrix is None else reals("entries of mass_matrix", mass_matrix)
        if mass.shape not in ((d,), (d, d)):
            raise ValueError(
                f"mass_matrix must have shape ({d},) or ({d}, {d}), for the parameters this step moves; its shape is {mass.shape}."
            )
        self._dense = mass.ndim == 2
        if self._dense:
            if not (np.isfinite(mass).all() and np.allclose(mass, mass.T)):
                raise ValueError("mass_matrix must be symmetric and finite.")
            try:
                root = np.linalg.cholesky(mass)
            except np.linalg.LinAlgError:
                raise ValueError("mass_matrix must be positive definite.") from None
            self._back = np.ascontiguousarray(root.T)
            self._basis = solve_triangular(root, np.eye(d), lower=True).T
        else:
            if not (np.isfinite(mass).all() and (mass > 0).all()):
                raise ValueError("The diagonal of mass_matrix must be positive and finite.")
            self._back = np.sqrt(mass)
            self._basis = 1 / self._back
        #: For :meth:`RecordLikelihood.clipped_grad`.
        self.directions: np.ndarray | None
        if np.array_equal(part, np.arange(n_dim)):
            self.directions = None if mass_matrix is None else self._basis
        else:
            self.directions = np.zeros((n_dim, d))
            self.directions[part] = self._basis if self._dense else np.diag(self._basis)

    def moved(self, theta: np.ndarray, by: np.ndarray) -> np.ndarray:
        """Return ``theta`` moved by ``by``, given in ``w``."""
        new = theta.copy()
        new[self.part] += self._basis @ by if self._dense else self._basis * by
        return new

    def distance(self, old: np.ndarray, new: np.ndarray) -> float:
        """Euclidean distance in ``w``; the same both ways, to the last digit."""
        by = (new - old)[self.part]
        return float(np.linalg.norm(self._back @ by if self._dense else self._back * by))

    def pull(self, gradient: np.ndarray) -> np.ndarray:
        """Gradient in ``theta`` to gradient in ``w``."""
        g = gradient[self.part]
        return self._basis.T @ g if self._dense else self._basis * g


class NoisyGradient:
    r"""Gradient of the log-posterior from clipped records, with Gaussian noise on their sum.

    .. math:: T k \Big(\sum_i \operatorname{clip}_b(A' \nabla \ell_i(\theta)) + N(0, \sigma^2 I)\Big)
              + A' \nabla \log p(\theta)

    with ``k`` one over the part of the records that is looked at. The sum is one of whole steps of
    a dyadic grid and the noise is rounded to that grid, so that what comes out is a function of
    exactly the Gaussian mechanism, which a record moves by ``2 b`` (replaced) or ``b`` (removed).

    Parameters
    ----------
    likelihood : RecordLikelihood
        Where gradients come from.
    coordinates : Coordinates
        In which they are clipped.
    clip_bound : float
        ``b``; infinite for gradients that are not clipped, in runs that are not private.
    temperature : float
        ``T``.
    grad_log_prior : callable, optional
        In the place of the model's own.
    """

    def __init__(
        self,
        likelihood: RecordLikelihood,
        coordinates: Coordinates,
        clip_bound: float,
        temperature: float,
        grad_log_prior: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._likelihood, self._coordinates = likelihood, coordinates
        self._clip_bound, self._temperature = clip_bound, temperature
        self._grad_log_prior = grad_log_prior or likelihood.grad_log_prior

    def compile(self, index: np.ndarray | None) -> None:
        """Compile now, for all records or batches, what would else be compiled in every worker."""
        theta = np.zeros(self._likelihood.n_dim)
        self._grad_log_prior(theta)
        logp = np.empty(self._likelihood.n_records) if index is None else None
        directions = self._coordinates.directions
        self._likelihood.clipped_grad_steps(theta, 1.0, index, directions=directions, logp=logp)

    def __call__(
        self,
        theta: np.ndarray,
        noise_sd: float,
        bits: BitSource,
        *,
        index: np.ndarray | None = None,
        part: float = 1.0,
        logp: np.ndarray | None = None,
    ) -> np.ndarray:
        """Draw one, at a point whose access has been charged.

        Parameters
        ----------
        theta : array of shape (n_dim,)
            Where.
        noise_sd : float
            ``sigma``.
        bits : BitSource
            Randomness of the noise.
        index : array of int, optional
            Records of a batch.
        part : float
            Part of the records that are expected in a batch.
        logp : array of shape (n_records,), optional
            Filled with the log-likelihood of each record, which is private.

        Returns
        -------
        array of shape (d,)
        """
        directions = self._coordinates.directions
        if math.isinf(self._clip_bound):
            total = self._likelihood.clipped_grad(theta, math.inf, index, directions=directions)
            steps, exponent = np.zeros(len(total), dtype=np.int64), math.frexp(noise_sd)[1] - 40
            if logp is not None:
                logp[:] = self._likelihood.logp(theta)
        else:
            total = np.zeros(len(self._coordinates.part))
            steps, exponent = self._likelihood.clipped_grad_steps(
                theta, self._clip_bound, index, directions=directions, logp=logp
            )
        if noise_sd:
            total += noisy_sum(steps, exponent, noise_sd, bits)
        else:
            total += np.ldexp(steps.astype(float), exponent)
        prior = self._coordinates.pull(self._grad_log_prior(theta))
        return self._temperature / part * total + prior


def leapfrog(
    start: Phase,
    gradient_at: Callable[[np.ndarray, bool], np.ndarray],
    coordinates: Coordinates,
    step_size: float,
    n_steps: int,
) -> Iterator[Phase]:
    """Path of the leapfrog integrator: the phases after each step, one gradient each.

    Gradients are asked for with a position and whether it is the last one. Ends early where it
    leaves the numbers.
    """
    phase = start
    for step in range(1, n_steps + 1):
        with np.errstate(over="ignore", invalid="ignore"):
            momentum = phase.momentum + step_size / 2 * phase.gradient
            theta = coordinates.moved(phase.theta, step_size * momentum)
            gradient = gradient_at(theta, step == n_steps)
            phase = Phase(theta, momentum + step_size / 2 * gradient, gradient)
        yield phase
        if not (np.isfinite(theta).all() and np.isfinite(phase.momentum).all()):
            return


def check_clip_bound(what: str, bound: float, private: bool, why: str) -> None:
    """Raise unless records can be clipped to the bound, on a grid; not at all only where nothing is private."""
    if not (1e-100 <= real(bound) <= 1e100 or (real(bound) == math.inf and not private)):
        raise ValueError(
            f"{what} must be positive and finite, from 1e-100 to 1e100, got {bound!r}: {why}"
        )


def check_gradient_noise(clip_bound: float, noise_multiplier: float, private: bool) -> None:
    """Raise unless gradients are private, if they must be; clip bound and noise go together."""
    check_clip_bound(
        "gradient_clip_bound",
        clip_bound,
        private,
        "without it one record could move a gradient anywhere.",
    )
    if not 0 <= real(noise_multiplier) <= MOST_NOISE:
        raise ValueError(
            f"The noise multiplier of gradients must be positive, and at most 1e6, got {noise_multiplier!r}."
        )
    if private and noise_multiplier == 0:
        raise ValueError(
            "Gradients without noise are not private at any epsilon. Give a noise multiplier, or budget=None for a run without privacy."
        )
    if noise_multiplier and math.isinf(clip_bound):
        raise ValueError(
            "Noise relative to an infinite gradient_clip_bound: give a finite bound, or a noise multiplier of 0."
        )
