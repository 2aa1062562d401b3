"""Posterior of simulated data, and acceptance and clipping of proposals under it."""

from __future__ import annotations

import math

from dataclasses import dataclass

import numpy as np

from pymc_dp.planning.local_information import local_information
from pymc_dp.planning.simulator import Simulator

#: Number of proposals of each length.
_N_MOVES = 64
#: Draws of the chain that is run if the posterior is not approximately normal.
_N_CHAIN = 2000
#: Largest number of simulated records that are evaluated.
_MAX_RECORDS = 20_000


class SimulatedPosterior:
    """A data set drawn from the model, and its posterior."""

    def __init__(self, simulator: Simulator, theta: np.ndarray, rng: np.random.Generator) -> None:
        likelihood, simulated = simulator.likelihood, simulator.simulated
        self._log_prior = likelihood.log_prior
        self._simulated, self.rng = simulated, rng
        self._data = simulated.draw(theta, rng)
        self._some = simulated.some(_MAX_RECORDS, rng)
        #: Weight of a simulated record: there may be more or fewer of them.
        self.weight = simulator.temperature * simulator.n_records / len(self._some)
        self.notes: list[str] = []
        precision = local_information(simulator, theta, rng).precision
        covariance = np.linalg.inv(precision)
        force = self.weight * simulated.gradients(theta, self._data, self._some).sum(axis=0)
        mode = theta + covariance @ (force + likelihood.grad_log_prior(theta))
        z = rng.standard_normal((_N_MOVES, len(theta)))
        self.draws = mode + z @ np.linalg.cholesky(covariance).T
        self.shapes = {"local": covariance}
        log_weights = np.array([self.target(x) for x in self.draws]) + (z**2).sum(axis=1) / 2
        weights = np.exp(log_weights - log_weights.max())
        if weights.sum() ** 2 / (weights**2).sum() < _N_MOVES / 3:
            chain = self._chain(mode if np.isfinite(self.target(mode)) else theta, covariance)
            self.draws = chain[rng.integers(len(chain), size=_N_MOVES)]
            self.shapes["chain"] = np.cov(chain.T).reshape(covariance.shape) + 1e-12 * covariance
            self.notes.append(
                "the posterior is not approximately normal: the plan uses a short chain on simulated records."
            )
        self.spread = self.shapes.get("chain", covariance)

    @property
    def n_dim(self) -> int:
        """Number of parameters."""
        return len(self.spread)

    def target(self, theta: np.ndarray) -> float:
        """Tempered log-posterior."""
        return self.weight * float(self.logp(theta).sum()) + self._log_prior(theta)

    def logp(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihoods of the evaluated records, shape ``(n,)``."""
        return self._simulated.logp(theta, self._data, self._some)

    def _chain(self, theta: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Second half of an adaptive Metropolis chain whose covariance adapts in the first half."""
        d, rng, chain = len(theta), self.rng, []
        now, scale, root = self.target(theta), 2.4 / math.sqrt(d), np.linalg.cholesky(covariance)
        for k in range(_N_CHAIN):
            new = theta + scale * root @ rng.standard_normal(d)
            then = self.target(new)
            accepted = math.log(rng.random()) < then - now
            if accepted:
                theta, now = new, then
            chain.append(theta)
            if k < _N_CHAIN // 2:
                scale *= math.exp((0.8 if accepted else -0.2) * 0.25 / (1 + k / 100))
                if k % 250 == 249:
                    recent = np.cov(np.array(chain[k // 2 :]).T).reshape(d, d)
                    root = np.linalg.cholesky(
                        recent + 1e-3 * covariance * np.trace(recent) / np.trace(covariance)
                    )
        return np.array(chain[_N_CHAIN // 2 :])

    def moves(self, shape: str, length: float) -> Moves:
        """Random walk moves from draws of the posterior."""
        d = self.n_dim
        root = np.linalg.cholesky(self.shapes[shape]) * length / math.sqrt(d)
        z = self.rng.standard_normal((_N_MOVES, d))
        sizes = np.linalg.norm(z, axis=1)
        ends = self.draws + z @ root.T
        changes, ratios = np.empty((len(ends), len(self._some))), np.empty(len(ends))
        for k, (theta, new) in enumerate(zip(self.draws, ends, strict=True)):
            with np.errstate(invalid="ignore"):  # where a likelihood is zero
                changes[k] = self.logp(new) - self.logp(theta)
                ratios[k] = (
                    self.weight * changes[k].sum() + self._log_prior(new) - self._log_prior(theta)
                )
        distances = np.linalg.norm(self.white((ends - self.draws).T), axis=0)
        return Moves(
            shape, length, np.nan_to_num(changes), np.nan_to_num(ratios, nan=-np.inf), sizes, distances,
            length**2 / self.n_dim * self.narrowest(shape), self.weight,
        )  # fmt: skip

    def narrowest(self, shape: str) -> float:
        """Smallest ratio, over all directions, of the variance of a covariance to that of the posterior."""
        root = self.white(np.linalg.cholesky(self.shapes[shape]))
        return float(np.linalg.eigvalsh(root @ root.T)[0])

    def white(self, columns: np.ndarray) -> np.ndarray:
        """Columns in posterior standard deviations."""
        return np.linalg.solve(np.linalg.cholesky(self.spread), columns)


@dataclass(frozen=True)
class Moves:
    """Simulated proposals of one root mean square length."""

    shape: str
    length: float
    changes: np.ndarray
    ratios: np.ndarray
    sizes: np.ndarray
    distances: np.ndarray
    slowest: float
    weight: float

    def clipping(self, quantile: float) -> tuple[float, float, float]:
        """Clip bound at a quantile of the changes, fraction of changes it clips, and bias of a posterior mean."""
        bound = float(np.quantile(np.abs(self.changes) / self.sizes[:, None], quantile))
        limits = bound * self.sizes[:, None]
        removed = np.clip(self.changes, -limits, limits) - self.changes
        errors = self.weight * removed.sum(axis=1) / self.distances
        return bound, float((removed != 0).mean()), math.sqrt(float(np.mean(errors**2)))
