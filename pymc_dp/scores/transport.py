r"""Metropolis-Hastings moves in coordinates in which the posterior of a smooth law of the sums is nearly normal.

With the residual :math:`r(\theta)` of the sums, its derivative :math:`-J(\theta)`, a centre ``c``,
:math:`A = T J(c)' \Sigma^{-1}`, and gradient ``g`` and minus the second derivative ``P`` of the log-prior at
``c``, the coordinates are

.. math:: \varphi(\theta) = L' \{P (\theta - c) - g - A\, r(\theta)\}, \qquad L L' = \{P + A J(c)\}^{-1},

where :math:`\Sigma` is the covariance of the sums and ``T`` the temperature: linear where the law of the sums
is, and curved as the posterior is elsewhere (a banana is straight in them). A proposal is a preconditioned
Crank-Nicolson move from :math:`\varphi` to :math:`\varphi^*`, and :math:`\theta^*` the solution of
:math:`\varphi(\theta^*) = \varphi^*` that Newton's method finds from the centre. It is accepted with probability

.. math:: \min\Big\{1, \frac{\pi(\theta^*)\, |\varphi'(\theta)|}{\pi(\theta)\, |\varphi'(\theta^*)|}\,
          e^{(|\varphi^*|^2 - |\varphi|^2) / 2}\Big\},

which leaves the density :math:`\pi` invariant whatever the coordinates. The equation may have several
solutions: a move is made only if Newton's method finds the present position, too, so that the solutions it
finds are in one-to-one correspondence with their coordinates.

References
----------
Bardsley, Solonen, Haario, Laine (2014), Randomize-then-optimize, https://doi.org/10.1137/140964023: proposals
by solving equations. Zappa, Holmes-Cerfon, Goodman (2018), https://doi.org/10.1002/cpa.21783: the check that a
solution is found again.
"""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_dp.display import one_line

__all__ = ["Law", "Place", "Transport"]

#: Newton steps, each at most so often halved, until coordinates are so near.
_N_STEPS, _MAX_HALVINGS, _TOLERANCE = 30, 10, 1e-7
#: Distance, in coordinates, up to which a position is found again.
_SAME = 1e-5

#: Autoregressive coefficients of proposals: independent ones are mostly accepted.
_COEFFICIENTS = (0.0,) * 8 + (0.7, 0.95)

#: ``A r`` at a position, shape ``(n_dim,)``, and ``A J`` there, shape ``(n_dim, n_dim)``; None where there is none.
Law = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray] | None]


class Place(NamedTuple):
    """A position, its coordinates, and the logarithm of the determinant of their derivative."""

    theta: np.ndarray
    coordinates: np.ndarray
    log_det: float

    def __repr__(self) -> str:
        return one_line(self)


class Transport:
    """The coordinates.

    Parameters
    ----------
    law : callable
        See `Law`.
    centre : array of shape (n_dim,)
    prior_gradient : array of shape (n_dim,)
        At the centre.
    prior_precision : array of shape (n_dim, n_dim)
        The same, positive definite.
    """

    def __init__(
        self,
        law: Law,
        centre: np.ndarray,
        prior_gradient: np.ndarray,
        prior_precision: np.ndarray,
    ) -> None:
        self._law, self._centre = law, centre
        found = law(centre)
        assert found is not None
        precision = prior_precision + found[1]
        self._root = np.linalg.cholesky(np.linalg.inv((precision + precision.T) / 2)).T
        self._precision, self._gradient = prior_precision, prior_gradient

    def at(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Coordinates of a position, and their derivative; None where the law has none."""
        found = self._law(theta) if np.isfinite(theta).all() else None
        if found is None:
            return None
        residual, slope = found
        value = self._precision @ (theta - self._centre) - self._gradient - residual
        return self._root @ value, self._root @ (self._precision + slope)

    def place(self, theta: np.ndarray) -> Place | None:
        """A position with its coordinates; None if it is not found again."""
        found = self.at(theta)
        if found is None:
            return None
        again = self.solve(found[0])
        if again is None or np.abs(found[1] @ (again.theta - theta)).max() > _SAME:
            return None
        return Place(theta, found[0], float(np.linalg.slogdet(found[1])[1]))

    def move(
        self, place: Place, log_density: Callable[[np.ndarray], float], rng: np.random.Generator
    ) -> Place:
        """Propose a place, and accept or reject; the same object if it is rejected."""
        coefficient = _COEFFICIENTS[rng.integers(len(_COEFFICIENTS))]
        old, fresh = place.coordinates, rng.standard_normal(len(place.theta))
        new = self.solve(coefficient * old + math.sqrt(1 - coefficient**2) * fresh)
        if new is None:
            return place
        log_ratio = (
            log_density(new.theta) - new.log_det + new.coordinates @ new.coordinates / 2
            - log_density(place.theta) + place.log_det - old @ old / 2
        )  # fmt: skip
        return new if np.log(rng.random()) < log_ratio else place

    def solve(self, coordinates: np.ndarray) -> Place | None:
        """The position with these coordinates that Newton's method finds from the centre; None if it fails."""
        theta = self._centre
        found = self.at(theta)
        for _ in range(_N_STEPS):
            assert found is not None
            error = coordinates - found[0]
            if np.abs(error).max() < _TOLERANCE:
                return Place(theta, found[0], float(np.linalg.slogdet(found[1])[1]))
            try:
                step = np.linalg.solve(found[1], error)
            except np.linalg.LinAlgError:
                return None
            for halvings in range(_MAX_HALVINGS + 1):
                new = self.at(theta + step / 2**halvings)
                if new is not None and np.sum((coordinates - new[0]) ** 2) < error @ error:
                    break
            else:
                return None
            theta, found = theta + step / 2**halvings, new
        return None
