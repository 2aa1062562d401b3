r"""Proposals: symmetric, blind to the data, with a public distance in which the clip bound lives.

A proposal moves a part of the parameter vector. Its distance ``M(theta, theta')`` is symmetric and
bounds, times the clip bound, what one record may contribute to the log-ratio. Proposals draw from a
public generator: the moves cost no privacy.
"""

from __future__ import annotations

import math
import sys

from typing import Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from pymc_dp.privacy.mechanisms import real, reals

__all__ = ["GuidedWalk", "OneComponent", "Proposal", "RandomWalk"]


@runtime_checkable
class Proposal(Protocol):
    """What a step needs from a proposal."""

    def start(self, n_dim: int) -> Proposal:
        """Check the shapes against the number of parameters; return a proposal with a fresh state for one chain."""
        ...

    def propose(self, theta: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """Return the proposed vector (a new array) and its distance ``M > 0`` from ``theta``."""
        ...

    def decided(self, accepted: bool) -> None:
        """Learn the outcome (public once released)."""
        ...


def _scale_array(scale: npt.ArrayLike, n_dim: int, what: str, *, matrix: bool) -> np.ndarray:
    array = reals(f"entries of the {what}", scale)
    shapes = "a scalar, a vector of length" + (" or a covariance matrix of size" if matrix else "")
    if array.ndim > (2 if matrix else 1) or (array.ndim and array.shape != (n_dim,) * array.ndim):
        raise ValueError(
            f"The {what} must be {shapes} {n_dim} (the parameters this step moves); its shape is {array.shape}."
        )
    if not np.all(np.isfinite(array)) or (array.ndim < 2 and not np.all(array > 0)):
        raise ValueError(f"The {what} must be positive and finite, got {scale!r}.")
    return array


class RandomWalk:
    r"""Gaussian random walk on all parameters at once.

    Parameters
    ----------
    scale : float, array_like of shape (d,) or (d, d)
        Standard deviation of each parameter's step (scalar or vector), or covariance matrix of the
        step, on the unconstrained scale.
    metric : {"euclidean", "proposal"} or array_like of shape (d,)
        Distance ``M``. ``"euclidean"``: length of the move, so that the clip bound is
        log-likelihood per unit of parameter. ``"proposal"``: length in standard deviations of the
        proposal (Mahalanobis), so that the clip bound is log-likelihood per standard deviation of
        the proposal. A vector of public parameter scales: length after division by them.
    max_distance : float, optional
        Public cap: longer moves are redrawn, which keeps the walk symmetric.

    Notes
    -----
    Symmetric since the density of the move depends on its length in one fixed metric only,
    truncated or not.
    """

    n_dim: int
    _root: np.ndarray
    _unit: np.ndarray | None

    def __init__(
        self,
        scale: npt.ArrayLike,
        *,
        metric: npt.ArrayLike = "euclidean",
        max_distance: float | None = None,
    ) -> None:
        if isinstance(metric, str) and metric not in ("euclidean", "proposal"):
            raise ValueError(
                f"Unknown metric {metric!r}; choose 'euclidean', 'proposal' or a vector of parameter scales."
            )
        if max_distance is not None and not 0 < real(max_distance) < math.inf:
            raise ValueError(f"max_distance must be positive and finite, got {max_distance!r}.")
        self.scale, self.metric, self.max_distance = scale, metric, max_distance

    def start(self, n_dim: int) -> Self:
        """Check shapes; the walk itself has no state."""
        walk = type(self)(self.scale, metric=self.metric, max_distance=self.max_distance)
        walk.n_dim = n_dim
        scale = _scale_array(self.scale, n_dim, "scale of the proposal", matrix=True)
        if scale.ndim == 2:
            if not np.allclose(scale, scale.T):
                raise ValueError("The covariance matrix of the proposal must be symmetric.")
            try:
                walk._root = np.linalg.cholesky(scale)
            except np.linalg.LinAlgError:
                raise ValueError(
                    "The covariance matrix of the proposal must be positive definite."
                ) from None
        else:
            walk._root = scale
        walk._unit = (
            None
            if isinstance(self.metric, str)
            else _scale_array(self.metric, n_dim, "metric", matrix=False)
        )
        return walk

    def propose(self, theta: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """Draw a move; redraw while it exceeds the cap."""
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(10_000):
                z: np.ndarray = rng.standard_normal(self.n_dim)
                move = self._root @ z if self._root.ndim == 2 else self._root * z
                new = theta + move
                distance = self._distance(new - theta, z)
                if self._fits(distance):
                    return new, distance
        raise self._hopeless()

    def _fits(self, distance: float) -> bool:
        return 0 < distance <= (self.max_distance or sys.float_info.max)

    def _hopeless(self) -> ValueError:
        return ValueError(
            f"10000 proposals in a row were longer than max_distance = {self.max_distance!r} (or had length 0), "
            f"with scale = {self.scale!r} and metric = {self.metric!r}. Raise the cap or shrink the scale, or change the metric."
        )

    def _distance(self, move: np.ndarray, z: np.ndarray) -> float:
        if self._unit is not None:
            return float(np.linalg.norm(move / self._unit))
        return float(np.linalg.norm(z if self.metric == "proposal" else move))

    def decided(self, accepted: bool) -> None:
        """Nothing to learn."""


class OneComponent(RandomWalk):
    """Random walk on one randomly chosen parameter at a time.

    Moves are short, so each costs little privacy; the seeds call it one-component updates (OCU).

    Parameters
    ----------
    scale : float or array_like of shape (d,)
        Standard deviation of each parameter's step.
    metric : {"euclidean", "proposal"} or array_like of shape (d,)
        As for :class:`RandomWalk`.
    max_distance : float, optional
        Public cap on the length of a move.
    """

    _scales: np.ndarray
    _units: np.ndarray
    _component: int

    def start(self, n_dim: int) -> Self:
        """Check shapes; the walk itself has no state."""
        walk = type(self)(self.scale, metric=self.metric, max_distance=self.max_distance)
        walk.n_dim = n_dim
        walk._scales = np.broadcast_to(
            _scale_array(self.scale, n_dim, "scale of the proposal", matrix=False), n_dim
        )
        if isinstance(self.metric, str):
            walk._units = walk._scales if self.metric == "proposal" else np.ones(n_dim)
        else:
            walk._units = np.broadcast_to(
                _scale_array(self.metric, n_dim, "metric", matrix=False), n_dim
            )
        walk._component = 0
        return walk

    def propose(self, theta: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """Draw a parameter and a move along it; redraw the move while it exceeds the cap."""
        j = self._component = int(rng.integers(self.n_dim))
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(10_000):
                new = theta.copy()
                new[j] += self._move(j, rng)
                distance = float(abs(new[j] - theta[j]) / self._units[j])
                if self._fits(distance):
                    return new, distance
        raise self._hopeless()

    def _move(self, j: int, rng: np.random.Generator) -> float:
        return self._scales[j] * rng.standard_normal()


class GuidedWalk(OneComponent):
    r"""Guided walk: one parameter at a time, each with a direction kept after acceptance and flipped after rejection.

    The directions belong to the state, uniform on ``{-1, +1}`` and independent of the parameters
    under the target. A move goes from ``(theta, s)`` to ``(theta + s_j |z|, s)``; followed by the
    flip of ``s_j`` it is an involution that keeps the extended target's measure, and flipping
    ``s_j`` once more after every proposal (accepted: back to ``s_j``; rejected: to ``-s_j``) keeps
    it too. So the walk is not reversible, but leaves the target invariant.

    Parameters
    ----------
    scale, metric, max_distance
        As for :class:`OneComponent`; steps are half-normal.

    References
    ----------
    Gustafson (1998), A guided walk Metropolis algorithm, https://doi.org/10.1023/A:1008880707168.
    """

    _signs: np.ndarray | None

    def start(self, n_dim: int) -> Self:
        """Check shapes; directions are drawn with the first proposal."""
        walk = super().start(n_dim)
        walk._signs = None
        return walk

    def _move(self, j: int, rng: np.random.Generator) -> float:
        if self._signs is None:
            self._signs = rng.choice([-1.0, 1.0], size=self.n_dim)
        return self._signs[j] * self._scales[j] * abs(rng.standard_normal())

    def decided(self, accepted: bool) -> None:
        """Turn round after a rejection."""
        if not accepted and self._signs is not None:
            self._signs[self._component] *= -1
