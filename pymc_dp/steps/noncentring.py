"""Moves of hyperparameters that take along what they govern."""

from __future__ import annotations

import math

from collections.abc import Callable

import numpy as np

__all__ = ["PartialNoncentring"]

#: In standard deviations of the likelihood: how far to both sides a prior's curvature is seen, and
#: how far off a prior may move a mean (one that is not as assumed here could move it anywhere).
_STEP, _FAR = 0.1, 10.0


class PartialNoncentring:
    r"""Coordinates in which hyperparameters say little of the parameters that they govern.

    Where groups are alike, their parameters lie as close together as the standard deviation between
    groups is small: a funnel, which a chain that moves parameters and hyperparameters by steps of their
    own does not leave for a long time. So hyperparameters ``h`` are moved while

    .. math:: z_j = (\theta_j - m_j(h)) / s_j(h)

    stay what they are, with mean and standard deviation of ``theta_j`` given ``h`` and the data, were
    prior and likelihood normal and the other parameters known. Whatever the model, that is a change of
    coordinates at each ``h``, so moves need only its Jacobian to be exact.

    Parameters
    ----------
    grad_log_prior : callable
    theta : array of shape (n_dim,)
        Where the likelihood is looked at.
    gradient : array of shape (n_dim,)
        Of the log-likelihood there.
    precision : array of shape (n_dim,)
        Of the likelihood there, of each parameter. Those with none are hyperparameters.

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
    ) -> None:
        told = precision > 0
        self.hyper, self._told = np.flatnonzero(~told), np.flatnonzero(told)
        self._grad_log_prior, self._theta = grad_log_prior, theta
        self._gradient, self._precision = gradient[told], precision[told]

    def move(self, theta: np.ndarray, by: np.ndarray) -> tuple[np.ndarray, float]:
        """Move hyperparameters: where to, and the logarithm of the Jacobian.

        The move back is that by ``-by``, to the last digits, with minus that logarithm.
        """
        new = theta.copy()
        new[self.hyper] += by
        with np.errstate(all="ignore"):  # where there are no numbers, the density is zero
            (mean, sd), (new_mean, new_sd) = self._given(theta), self._given(new)
            new[self._told] = new_mean + new_sd / sd * (theta[self._told] - mean)
            return new, float(np.log(new_sd / sd).sum())

    def refresh(
        self, theta: np.ndarray, keep: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        """Draw what is governed anew, but for a part to keep: where that leads to, and the logarithm of the odds of the way back."""
        new, n = theta.copy(), len(self._told)
        with np.errstate(all="ignore"):
            mean, sd = self._given(theta)
            z = (theta[self._told] - mean) / sd
            new_z = keep * z + math.sqrt(1 - keep**2) * rng.standard_normal(n)
            new[self._told] = mean + sd * new_z
            return new, float(new_z @ new_z - z @ z) / 2

    def _given(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of what is governed, given the hyperparameters."""
        told, likelihood_sd = self._told, 1 / np.sqrt(self._precision)
        at, step = self._theta.copy(), np.zeros(len(theta))
        at[self.hyper] = theta[self.hyper]
        step[told] = _STEP * likelihood_sd
        # Of all at once: priors given hyperparameters are mostly independent.
        below, above = (self._grad_log_prior(at + by)[told] for by in (-step, step))
        curvature = (below - above) / (2 * step[told])
        precision = self._precision + np.maximum(curvature, 0)
        shift = ((below + above) / 2 + self._gradient) / (precision * likelihood_sd)
        mean = self._theta[told] + likelihood_sd * np.clip(shift, -_FAR, _FAR)
        return mean, 1 / np.sqrt(precision)
