"""Partially non-centred moves of hyperparameters."""

from __future__ import annotations

import math

from collections.abc import Callable

import numpy as np

__all__ = ["PartialNoncentring"]

#: Step of the differences for a prior's curvature, in standard deviations of the likelihood.
_STEP = 0.1
#: Largest shift of a mean by the prior, in the same unit: a prior that is not normal could shift it anywhere.
_MAX_SHIFT = 10.0
#: Moves in each iteration of a chain.
_N_MOVES = 10
#: Optimal scale of a random walk, times the root of the dimension (Roberts, Gelman, Gilks 1997), and the
#: decades below it from which scales are drawn.
_OPTIMAL, _DECADES = 2.4, 1.5
#: Autoregressive coefficients of moves of the children.
_COEFFICIENTS = (0.0, 0.7, 0.95)


class PartialNoncentring:
    r"""Partially non-centred coordinates: hyperparameters and their children are nearly independent.

    If groups are similar, their parameters are as close together as the standard deviation between
    groups is small: a funnel. A chain that moves parameters and hyperparameters separately stays in
    its neck for a long time. So hyperparameters ``h`` are moved while

    .. math:: z_j = (\theta_j - m_j(h)) / s_j(h)

    are constant, with ``m_j`` and ``s_j`` the mean and standard deviation of ``theta_j`` given ``h`` and
    the data, as if prior and likelihood were normal and the other parameters known. For every model
    this is a change of coordinates at each ``h``, so with its Jacobian the moves are exact.

    Parameters
    ----------
    grad_log_prior : callable
    theta : array of shape (n_dim,)
        Where the likelihood is approximated.
    gradient : array of shape (n_dim,)
        Of the log-likelihood there.
    precision : array of shape (n_dim,)
        Of the likelihood there, for each parameter. Those with precision 0 are hyperparameters.
    scale : array of shape (n_dim,)
        Standard deviations of the posterior, approximately: scales of the moves.

    Attributes
    ----------
    hyper : array of int
        Which parameters are hyperparameters.

    References
    ----------
    Papaspiliopoulos, Roberts, Sköld (2007), A general framework for the parametrization of
    hierarchical models, https://doi.org/10.1214/088342307000000014: partially non-centred.
    """

    def __init__(
        self,
        grad_log_prior: Callable[[np.ndarray], np.ndarray],
        theta: np.ndarray,
        gradient: np.ndarray,
        precision: np.ndarray,
        scale: np.ndarray,
    ) -> None:
        has_likelihood = precision > 0
        self.hyper, self._children = np.flatnonzero(~has_likelihood), np.flatnonzero(has_likelihood)
        self._grad_log_prior, self._theta = grad_log_prior, theta
        self._gradient, self._precision = gradient[has_likelihood], precision[has_likelihood]
        self._scale = _OPTIMAL / math.sqrt(len(self.hyper)) * scale[self.hyper]

    def metropolis(
        self,
        theta: np.ndarray,
        log_density: Callable[[np.ndarray], float],
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Moves of the hyperparameters and of their children in turn, accepted by a target's log-density."""
        value = log_density(theta)
        for i in range(_N_MOVES):
            u = rng.random()
            if i % 2:
                new, log_hastings = self.refresh(
                    theta, _COEFFICIENTS[int(len(_COEFFICIENTS) * u)], rng
                )
            else:
                by = 10 ** -(_DECADES * u) * self._scale * rng.standard_normal(len(self.hyper))
                new, log_hastings = self.move(theta, by)
            new_value = log_density(new) if np.isfinite(new).all() else -np.inf
            if np.log(rng.random()) < new_value - value + log_hastings:
                theta, value = new, new_value
        return theta

    def move(self, theta: np.ndarray, by: np.ndarray) -> tuple[np.ndarray, float]:
        """Move hyperparameters: the new position, and the logarithm of the Jacobian.

        The reverse is the move by ``-by``, up to rounding, with minus this logarithm.
        """
        new = theta.copy()
        new[self.hyper] += by
        with np.errstate(all="ignore"):  # not finite: the density is zero
            (mean, sd), (new_mean, new_sd) = self._given(theta), self._given(new)
            new[self._children] = new_mean + new_sd / sd * (theta[self._children] - mean)
            return new, float(np.log(new_sd / sd).sum())

    def refresh(
        self, theta: np.ndarray, keep: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        """Preconditioned Crank-Nicolson move of the children, with coefficient `keep`: the new position, and the log Hastings ratio."""
        new, n = theta.copy(), len(self._children)
        with np.errstate(all="ignore"):
            mean, sd = self._given(theta)
            z = (theta[self._children] - mean) / sd
            new_z = keep * z + math.sqrt(1 - keep**2) * rng.standard_normal(n)
            new[self._children] = mean + sd * new_z
            return new, float(new_z @ new_z - z @ z) / 2

    def _given(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the children, given the hyperparameters."""
        children, likelihood_sd = self._children, 1 / np.sqrt(self._precision)
        at, step = self._theta.copy(), np.zeros(len(theta))
        at[self.hyper] = theta[self.hyper]
        step[children] = _STEP * likelihood_sd
        # All at once: given the hyperparameters, priors are mostly independent.
        below, above = (self._grad_log_prior(at + by)[children] for by in (-step, step))
        curvature = (below - above) / (2 * step[children])
        precision = self._precision + np.maximum(curvature, 0)
        shift = ((below + above) / 2 + self._gradient) / (precision * likelihood_sd)
        mean = self._theta[children] + likelihood_sd * np.clip(shift, -_MAX_SHIFT, _MAX_SHIFT)
        return mean, 1 / np.sqrt(precision)
