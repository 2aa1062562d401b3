r"""Proposals: symmetric, blind to the data, with a public distance.

A proposal moves a part of the parameter vector. Its distance ``M(theta, theta')`` is symmetric; the
clip bound times this distance bounds the contribution of one record to the log-ratio. Proposals do
not depend on the data and are drawn from a public generator: they cost no privacy.
"""

from __future__ import annotations

import sys

from typing import Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from pymc_dp.arguments import as_floats, as_positive_float, cholesky
from pymc_dp.display import Shown


@runtime_checkable
class Proposal(Protocol):
    """Methods that a step needs of a proposal.

    Examples
    --------
    >>> isinstance(dp.RandomWalk(0.1), dp.steps.Proposal)
    True
    """

    def start(self, n_dim: int) -> Proposal:
        """Check the shapes against the number of parameters; return a proposal with a fresh state for one chain."""
        ...

    def propose(self, theta: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """Return the proposed vector (a new array) and its distance ``M > 0`` from ``theta``."""
        ...

    def decided(self, accepted: bool) -> None:
        """Note the outcome, which is public once it is released."""
        ...


def _scale_array(scale: npt.ArrayLike, n_dim: int, what: str, *, matrix: bool) -> np.ndarray:
    array = as_floats(f"entries of the {what}", scale)
    shapes = "a scalar, a vector of length" + (" or a covariance matrix of size" if matrix else "")
    if array.ndim > (2 if matrix else 1) or (array.ndim and array.shape != (n_dim,) * array.ndim):
        raise ValueError(
            f"The {what} must be {shapes} {n_dim} (the parameters this step moves); its shape is {array.shape}."
        )
    if not np.all(np.isfinite(array)) or (array.ndim < 2 and not np.all(array > 0)):
        raise ValueError(f"The {what} must be positive and finite, got {scale!r}.")
    return array


class RandomWalk(Shown):
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
        Public cap: longer moves are drawn again, which keeps the walk symmetric.

    Notes
    -----
    The proposal is symmetric: the density of a move depends on its length in one fixed metric only,
    with or without the cap.

    Examples
    --------
    Steps of 0.1 and 2.0, and moves of at most three of their standard deviations:

    >>> walk = dp.RandomWalk([0.1, 2.0], metric="proposal", max_distance=3.0).start(n_dim=2)
    >>> theta, distance = walk.propose(np.zeros(2), np.random.default_rng(1))
    >>> 0 < distance <= 3
    True
    """

    n_dim: int
    _takes_matrix = True
    #: Scales of the steps, or Cholesky factor of their covariance; units of the distance, if it has any.
    _root: np.ndarray
    _unit: np.ndarray | None = None

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
        if max_distance is not None:
            as_positive_float("max_distance", max_distance)
        self.scale, self.metric, self.max_distance = scale, metric, max_distance

    def start(self, n_dim: int) -> Self:
        """Check shapes; the walk itself has no state."""
        walk = type(self)(self.scale, metric=self.metric, max_distance=self.max_distance)
        walk.n_dim = n_dim
        scale = _scale_array(self.scale, n_dim, "scale of the proposal", matrix=self._takes_matrix)
        if scale.ndim == 2:
            scale = cholesky("The covariance matrix of the proposal", scale)
        walk._root = scale if scale.ndim == 2 else np.broadcast_to(scale, n_dim)
        if not isinstance(self.metric, str):
            unit = _scale_array(self.metric, n_dim, "metric", matrix=False)
            walk._unit = np.broadcast_to(unit, n_dim)
        return walk

    def propose(self, theta: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """Draw a move, again while it exceeds the cap."""
        self._choose(rng)
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(10_000):
                move, z = self._draw(rng)
                new = theta + move
                distance = self._distance(new - theta, z)
                if 0 < distance <= (self.max_distance or sys.float_info.max):
                    return new, distance
        raise ValueError(
            f"10000 proposals in a row were longer than max_distance = {self.max_distance!r} (or had length 0), "
            f"with scale = {self.scale!r} and metric = {self.metric!r}. Raise the cap or shrink the scale, or change the metric."
        )

    def _choose(self, rng: np.random.Generator) -> None:
        """The parameters that move: all of them."""

    def _draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """A move, and the standard normal variables from which it was made."""
        z = rng.standard_normal(self.n_dim)
        return self._root @ z if self._root.ndim == 2 else self._root * z, z

    def _distance(self, move: np.ndarray, z: np.ndarray) -> float:
        if self._unit is not None:
            return float(np.linalg.norm(move / self._unit))
        return float(np.linalg.norm(z if self.metric == "proposal" else move))

    def decided(self, accepted: bool) -> None:
        """Do nothing: the walk has no state."""


class OneComponent(RandomWalk):
    """Random walk on one randomly chosen parameter at a time.

    Moves are short, so each costs little privacy. The literature calls it one-component updates (OCU).

    Parameters
    ----------
    scale : float or array_like of shape (d,)
        Standard deviation of each parameter's step.
    metric : {"euclidean", "proposal"} or array_like of shape (d,)
        Distance ``M``: the size of the step (default), the same in its standard deviations, or divided by public
        parameter scales.
    max_distance : float, optional
        Public cap: longer moves are drawn again. None by default.

    Examples
    --------
    >>> walk = dp.OneComponent([0.1, 2.0]).start(n_dim=2)
    >>> theta, distance = walk.propose(np.zeros(2), np.random.default_rng(1))
    >>> int(np.count_nonzero(theta))
    1
    """

    _takes_matrix = False
    _component = 0

    def start(self, n_dim: int) -> Self:
        """Check shapes; the walk itself has no state."""
        walk = super().start(n_dim)
        if isinstance(self.metric, str) and self.metric == "proposal":
            walk._unit = walk._root
        return walk

    def _choose(self, rng: np.random.Generator) -> None:
        """The one parameter that moves, drawn at random."""
        self._component = int(rng.integers(self.n_dim))

    def _draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        move = np.zeros(self.n_dim)
        move[self._component] = self._move(self._component, rng)
        return move, move

    def _move(self, j: int, rng: np.random.Generator) -> float:
        return self._root[j] * rng.standard_normal()


class GuidedWalk(OneComponent):
    r"""Guided walk: one parameter at a time, each with a direction kept after acceptance and flipped after rejection.

    The directions belong to the state, uniform on ``{-1, +1}`` and independent of the parameters
    under the target. A move goes from ``(theta, s)`` to ``(theta + s_j |z|, s)``; followed by the
    flip of ``s_j`` it is an involution that keeps the extended target's measure, and flipping
    ``s_j`` once more after every proposal (accepted: back to ``s_j``; rejected: to ``-s_j``) keeps
    it too. So the walk is not reversible, but leaves the target invariant.

    Parameters
    ----------
    scale : float or array_like of shape (d,)
        Scale of each parameter's step, of half-normal size: the root of its mean square.
    metric : {"euclidean", "proposal"} or array_like of shape (d,)
        Distance ``M``: the size of the step (default), the same in units of its scale, or divided by public
        parameter scales.
    max_distance : float, optional
        Public cap: longer moves are drawn again. None by default.

    References
    ----------
    Gustafson (1998), A guided walk Metropolis algorithm, https://doi.org/10.1023/A:1008880707168.

    Examples
    --------
    >>> walk, rng = dp.GuidedWalk(0.1).start(n_dim=1), np.random.default_rng(1)
    >>> (first, _), (second, _) = (walk.propose(np.zeros(1), rng) for _ in range(2))
    >>> bool(np.sign(first) == np.sign(second))  # until a proposal is rejected
    True
    """

    #: Drawn with the first proposal.
    _signs: np.ndarray | None = None

    def _move(self, j: int, rng: np.random.Generator) -> float:
        if self._signs is None:
            self._signs = rng.choice([-1.0, 1.0], size=self.n_dim)
        return self._signs[j] * self._root[j] * abs(rng.standard_normal())

    def decided(self, accepted: bool) -> None:
        """Reverse the direction after a rejection."""
        if not accepted and self._signs is not None:
            self._signs[self._component] *= -1
