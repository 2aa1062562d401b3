"""The posterior of simulated records, and what becomes of proposals there."""

from __future__ import annotations

import math

from dataclasses import dataclass

import numpy as np

from pymc_dp.newton import surroundings
from pymc_dp.preparation import Prepared

__all__ = ["Moves", "Pilot"]

_MOVES = 64  # proposals that are looked at for each length
_CHAIN = 2000  # draws of a chain, where the posterior is not near to normal
_RECORDS = 20_000  # that are looked at


class Pilot:
    """A data set drawn from the model, and its posterior."""

    def __init__(self, prepared: Prepared, theta: np.ndarray, rng: np.random.Generator) -> None:
        _, likelihood, simulated, temperature, n_records = prepared
        self._prior, self._grad_prior = likelihood.log_prior, likelihood.grad_log_prior
        self._simulated, self.rng = simulated, rng
        self._data = simulated.draw(theta, rng)
        self._some = simulated.some(_RECORDS, rng)
        #: Weight of a simulated record: there may be more or fewer of them.
        self.weight = temperature * n_records / len(self._some)
        self.notes: list[str] = []
        precision = surroundings(prepared, theta, rng).precision
        covariance = np.linalg.inv(precision)
        force = self.weight * simulated.gradients(theta, self._data, self._some).sum(axis=0)
        mode = theta + covariance @ (force + self._grad_prior(theta))
        z = rng.standard_normal((_MOVES, len(theta)))
        self.draws = mode + z @ np.linalg.cholesky(covariance).T
        #: Where the posterior is, and its covariance (by name), as far as is known.
        self.centre, self.shapes = mode, {"local": covariance}
        log_weights = np.array([self.target(x) for x in self.draws]) + (z**2).sum(axis=1) / 2
        weights = np.exp(log_weights - log_weights.max())
        if weights.sum() ** 2 / (weights**2).sum() < _MOVES / 3:
            chain = self._chain(mode if np.isfinite(self.target(mode)) else theta, covariance)
            self.draws = chain[rng.integers(len(chain), size=_MOVES)]
            self.centre = chain.mean(axis=0)
            self.shapes["pilot"] = np.cov(chain.T).reshape(covariance.shape) + 1e-12 * covariance
            self.notes.append(
                "the posterior is not near to normal: the plan rests on a short chain on simulated records."
            )
        self.spread = self.shapes.get("pilot", covariance)

    @property
    def is_curved(self) -> bool:
        """Whether the posterior is not near to normal."""
        return "pilot" in self.shapes

    @property
    def n_dim(self) -> int:
        """Number of parameters."""
        return len(self.centre)

    def gradients(self, theta: np.ndarray) -> np.ndarray:
        """Gradients of the log-likelihoods of some records, shape ``(n, n_dim)``."""
        return self._simulated.gradients(theta, self._data, self._some)

    def grad_log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of the log-prior."""
        return self._grad_prior(theta)

    def target(self, theta: np.ndarray) -> float:
        """Log-posterior, tempered."""
        return self.weight * float(self.logp(theta).sum()) + self._prior(theta)

    def logp(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihoods of some records, shape ``(n,)``."""
        return self._simulated.logp(theta, self._data, self._some)

    def _chain(self, theta: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Metropolis with a covariance that is adapted in the first half; the second half."""
        d, rng, chain = len(theta), self.rng, []
        now, scale, root = self.target(theta), 2.4 / math.sqrt(d), np.linalg.cholesky(covariance)
        for k in range(_CHAIN):
            new = theta + scale * root @ rng.standard_normal(d)
            then = self.target(new)
            accepted = math.log(rng.random()) < then - now
            if accepted:
                theta, now = new, then
            chain.append(theta)
            if k < _CHAIN // 2:
                scale *= math.exp((0.8 if accepted else -0.2) * 0.25 / (1 + k / 100))
                if k % 250 == 249:
                    recent = np.cov(np.array(chain[k // 2 :]).T).reshape(d, d)
                    root = np.linalg.cholesky(
                        recent + 1e-3 * covariance * np.trace(recent) / np.trace(covariance)
                    )
        return np.array(chain[_CHAIN // 2 :])

    def moves(self, shape: str, length: float) -> Moves:
        """Proposals from draws of the posterior, and what they change."""
        d = self.n_dim
        root = np.linalg.cholesky(self.shapes[shape]) * length / math.sqrt(d)
        z = self.rng.standard_normal((_MOVES, d))
        sizes = np.linalg.norm(z, axis=1)
        return self.followed(shape, length, self.draws + z @ root.T, sizes)

    def followed(self, shape: str, length: float, ends: np.ndarray, sizes: np.ndarray) -> Moves:
        """What moves from the first of the posterior's draws to `ends` change."""
        changes, ratios = np.empty((len(ends), len(self._some))), np.empty(len(ends))
        for k, (theta, new) in enumerate(zip(self.draws, ends, strict=False)):
            with np.errstate(invalid="ignore"):  # where a likelihood is zero
                changes[k] = self.logp(new) - self.logp(theta)
                ratios[k] = self.weight * changes[k].sum() + self._prior(new) - self._prior(theta)
        distances = np.linalg.norm(self.white((ends - self.draws[: len(ends)]).T), axis=0)
        return Moves(
            shape, length, np.nan_to_num(changes), np.nan_to_num(ratios, nan=-np.inf), sizes, distances,
            length**2 / self.n_dim * self.narrowest(shape), self.weight,
        )  # fmt: skip

    def narrowest(self, shape: str) -> float:
        """Least variance of a covariance in any direction, relative to the posterior's."""
        root = self.white(np.linalg.cholesky(self.shapes[shape]))
        return float(np.linalg.eigvalsh(root @ root.T)[0])

    def white(self, columns: np.ndarray) -> np.ndarray:
        """Vectors in posterior standard deviations."""
        return np.linalg.solve(np.linalg.cholesky(self.spread), columns)


@dataclass(frozen=True)
class Moves:
    """Proposals of one length.

    Parameters
    ----------
    shape, length
        Of the proposals.
    changes : array of shape (n_moves, n)
        Changes of log-likelihoods of some records.
    ratios : array of shape (n_moves,)
        Log-ratios of the (tempered) posterior.
    sizes, distances : array of shape (n_moves,)
        In standard deviations of the proposal, and of the posterior.
    slowest : float
        Least variance of a proposal in any direction, relative to the posterior's.
    weight : float
        Of each of these records in the log-ratio.
    """

    shape: str
    length: float
    changes: np.ndarray
    ratios: np.ndarray
    sizes: np.ndarray
    distances: np.ndarray
    slowest: float
    weight: float

    def clipping(self, within: float) -> tuple[float, float, float]:
        """Clip bound that this part of the changes is within; part of them that is clipped; bias of the mean."""
        bound = float(np.quantile(np.abs(self.changes) / self.sizes[:, None], within))
        return bound, *self.clipped_to(bound)

    def clipped_to(self, bound: float) -> tuple[float, float]:
        """Part of the changes that a bound clips, and bias of the mean."""
        limits = bound * self.sizes[:, None]
        cut = np.clip(self.changes, -limits, limits) - self.changes
        errors = self.weight * cut.sum(axis=1) / self.distances
        return float((cut != 0).mean()), math.sqrt(float(np.mean(errors**2)))
