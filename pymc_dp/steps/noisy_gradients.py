"""What gradient samplers share: coordinates, and the gradient of the posterior from a noisy sum of clipped scores."""

from __future__ import annotations

import math

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from scipy.linalg import solve_triangular

from pymc_dp.arguments import as_clip_bound, as_float, as_floats, cholesky
from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.model.terms import ClippedScores
from pymc_dp.privacy.randomness.bits import BitSource
from pymc_dp.privacy.randomness.rounded_gaussian import noisy_sum

#: Largest noise multiplier: noise is counted in steps of the grid, 2**31 of which make a clip bound.
MOST_NOISE = 1e6


class Coordinates:
    r"""Coordinates ``w`` in which the mass matrix is the identity: ``theta = A w``, ``A A' = Mass^-1``.

    Momenta ``p ~ N(0, Mass)`` become ``A' p``, standard normal; gradients ``g`` become ``A' g``. Norms
    are taken in ``w``: a clip bound for gradients is log-likelihood per unit of ``w``, which is one
    posterior standard deviation if the mass matrix is the inverse of the posterior's covariance. They are
    the coordinates of ``theta`` at the positions `part`.
    """

    def __init__(self, mass_matrix: npt.ArrayLike | None, part: np.ndarray, n_dim: int) -> None:
        d = len(part)
        self.part = part
        given = np.ones(d) if mass_matrix is None else mass_matrix
        mass = as_floats("entries of mass_matrix", given)
        if mass.shape not in ((d,), (d, d)):
            raise ValueError(
                f"mass_matrix must have shape ({d},) or ({d}, {d}), for the parameters this step moves; its shape is {mass.shape}."
            )
        self._dense = mass.ndim == 2
        if self._dense:
            root = cholesky("mass_matrix", mass)
            self._back = np.ascontiguousarray(root.T)
            self._basis = solve_triangular(root, np.eye(d), lower=True).T
        elif ((mass > 0) & (mass < math.inf)).all():
            self._back = np.sqrt(mass)
            self._basis = 1 / self._back
        else:
            raise ValueError("The diagonal of mass_matrix must be positive and finite.")
        #: For :meth:`RecordLikelihood.clipped_grad`.
        self.directions: np.ndarray | None = None
        if not np.array_equal(part, np.arange(n_dim)):
            self.directions = np.zeros((n_dim, d))
            self.directions[part] = self._basis if self._dense else np.diag(self._basis)
        elif mass_matrix is not None:
            self.directions = self._basis

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

    with ``1 / k`` the part of the records that is expected in a batch, and ``T`` the temperature. Records are
    summed as whole steps of a dyadic grid, and the noise is rounded to that grid, so that the result is a
    function of the Gaussian mechanism on a sum that changes by at most ``2 b`` if a record is replaced, by
    ``b`` if one is removed.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        coordinates: Coordinates,
        clip_bound: float,
        temperature: float,
        grad_log_prior: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._likelihood, self._coordinates = likelihood, coordinates
        self._clip_bound, self._temperature = clip_bound, temperature
        self._grad_log_prior = grad_log_prior or likelihood.grad_log_prior

    def compile(self, index: np.ndarray | None) -> None:
        """Compile, for all records or batches, what would otherwise be compiled in every worker."""
        theta = np.zeros(self._likelihood.n_dim)
        self._grad_log_prior(theta)
        term = self._term(theta, 1.0, keeps_logp=index is None)
        self._likelihood.rehearsal.total(term, index)

    def _term(self, theta: np.ndarray, bound: float, keeps_logp: bool) -> ClippedScores:
        return ClippedScores(theta, bound, self._coordinates.directions, keeps_logp=keeps_logp)

    def __call__(
        self,
        theta: np.ndarray,
        noise_sd: float,
        bits: BitSource,
        *,
        index: np.ndarray | None = None,
        part: float = 1.0,
        keeps_logp: bool = False,
    ) -> np.ndarray:
        """Draw one, after the access has been charged."""
        term = self._term(theta, self._clip_bound, keeps_logp)
        steps = self._likelihood.total(term, index)
        total = np.zeros(term.n_dim)
        if math.isinf(self._clip_bound):
            total, steps = steps, np.zeros(term.n_dim, dtype=np.int64)
        exponent = term.exponent if self._clip_bound < math.inf else math.frexp(noise_sd)[1] - 40
        if noise_sd:
            total += noisy_sum(steps, exponent, noise_sd, bits)
        else:
            total += np.ldexp(steps.astype(float), exponent)
        prior = self._coordinates.pull(self._grad_log_prior(theta))
        return self._temperature / part * total + prior


def as_gradient_bound(bound: float, private: bool) -> float:
    """Return the clip bound of gradients as a float; ValueError if it is out of range."""
    why = "without it one record could move a gradient anywhere."
    return as_clip_bound("gradient_clip_bound", bound, private, why)


def check_gradient_noise(clip_bound: float, noise_multiplier: float, private: bool) -> None:
    """Raise ValueError unless clip bound and noise are in range and, in a private run, give privacy."""
    as_gradient_bound(clip_bound, private)
    if not 0 <= as_float(noise_multiplier) <= MOST_NOISE:
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
