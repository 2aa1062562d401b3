"""Lengths and weights of the moves of a private start."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from scipy import stats

from pymc_dp.steps.noisy_gradients import Coordinates

#: Probability with which the noise alone makes a move longer than what counts as converged.
_FALSE_ALARM = 1e-4


class ExpandThenBisect:
    """Multiple of a Newton step: doubled while moves agree, halved after the first reversal."""

    def __init__(self, n_dim: int) -> None:
        self._value = 0.5
        self._is_bisecting = False
        self._last_move = np.zeros(n_dim)

    def after(self, move: np.ndarray, *, is_far: bool) -> float:
        """Multiple for this move; `is_far`: nearly all records are clipped, and their gradients agree.

        Successive moves have different coordinates: only the sign of their product counts, and trusted moves keep the
        metric similar.
        """
        is_reversal = bool(self._last_move @ move < 0)
        self._last_move = move
        self._is_bisecting = (self._is_bisecting or is_reversal) and self._value > 1
        if not is_far:
            # Steps that overshoot, as the metric is not that of the data.
            self._value = 0.5 if is_reversal else 1.0
        elif self._is_bisecting:
            self._value /= 2
        elif is_reversal:
            self._value = 1.0
        else:
            self._value *= 2
        return self._value

    def reset(self) -> None:
        """Return to single Newton steps, after a move that left the trust region."""
        self._value = 1.0


class MoveErrors(NamedTuple):
    """Covariances of a Newton move from noise and from simulation, and a negligible variance, in its coordinates."""

    noise: np.ndarray
    simulation: np.ndarray
    negligible: float


class PolyakAverage:
    """Polyak averaging: weights of moves such that each position is the average of the preceding steps.

    The average begins when moves are no longer than noise explains; the first of them is left out, since it may have
    come from far away. A longer move restarts it. (Both directions count equally, so this causes no bias.)
    """

    def __init__(self, n_dim: int) -> None:
        self.length = 0
        self.noise = np.zeros((n_dim, n_dim))
        #: The same from noise and simulation together.
        self._covariance = self.noise

    def weight(self, move: np.ndarray, errors: MoveErrors, coordinates: Coordinates) -> float:
        """Weight of the next move, given in these coordinates."""
        d = len(move)
        basis = cast(np.ndarray, coordinates.directions)
        inverse = np.linalg.inv(basis)
        error = errors.noise + errors.simulation
        covariance = error + inverse @ self._covariance @ inverse.T + errors.negligible * np.eye(d)
        is_explained = move @ np.linalg.solve(covariance, move) <= stats.chi2.isf(_FALSE_ALARM, d)
        self.length = self.length + 1 if is_explained else 0
        weight = 1 / max(1, self.length - 1)
        self.noise = (1 - weight) ** 2 * self.noise + weight**2 * basis @ errors.noise @ basis.T
        self._covariance = (
            1 - weight
        ) ** 2 * self._covariance + weight**2 * basis @ error @ basis.T
        return weight
