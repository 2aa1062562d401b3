"""A public surrogate of a posterior, from one noisy sum of gradients."""

from __future__ import annotations

import math

from dataclasses import dataclass

import numpy as np

from pymc_dp.steps.features import Expansion, Features

__all__ = ["Position", "Surrogate"]

#: Steps of chains that adapt to the surrogate one after the other, until one is long enough.
_LENGTHS, _ENOUGH = (250, 500, 1000, 2000, 4000, 8000), 100
#: Draws at which bounds are known, about.
_WEIGHED = 500


@dataclass(frozen=True)
class Position:
    """A position, the surrogate's log-density, and the coefficients there."""

    theta: np.ndarray
    density: float
    expansion: Expansion


class Surrogate:
    r"""Public approximation of a posterior, from a released sum of features; and draws from it.

    With ``N`` records, ``S`` the sum of their features with noise of standard deviation ``sigma``, and
    :math:`\alpha, \beta` intercept and slope at ``theta``, its log-density is

    .. math:: \log p(\theta) + T \{N \alpha + \beta' \hat s\} + T^2 \beta' C \beta / 2,

    where :math:`N(\hat s, C)` is the law of the sum without noise, given ``S`` and that records are as
    those simulated at the reference. That integrates the noise out: the posterior is that given the
    noisy sum. (Exactly, if the sum is normal. The quadratic term in place of ``C``, ``sigma**2 I``, and
    ``S`` itself, is its limit for small noise; it biases the mean where the noise is not small, and
    has no limit where the noise exceeds the data.)

    Parameters
    ----------
    features : Features
    total : array of shape (d,)
        ``S``.
    noise_sd : float
        ``sigma``.
    n_records : int
    temperature : float
    rng : numpy.random.Generator
        Of the draws.
    noise_aware : bool
        If not, the noise is ignored.
    budget_id : str, optional
        The budget that paid for the sum: steps on another one refuse the surrogate. None if it was
        made by hand, which must be of public things.

    Attributes
    ----------
    draws : array of shape (n, n_dim)
        From a chain on the surrogate.
    bounds : array of shape (m,)
        On what is left of a record, at some of these draws, evenly spread.
    """

    def __init__(
        self,
        features: Features,
        total: np.ndarray,
        noise_sd: float,
        n_records: int,
        temperature: float,
        rng: np.random.Generator,
        *,
        noise_aware: bool = True,
        budget_id: str | None = None,
    ) -> None:
        self.budget_id = budget_id
        self.features, self.total, self.noise_sd = features, total, noise_sd
        self.n_records, self.temperature, self.noise_aware = n_records, temperature, noise_aware
        d = len(total)
        self._sum, self._covariance = total, np.zeros((d, d))
        if noise_aware and noise_sd > 0:
            spread = n_records * np.cov(features.values, rowvar=False).reshape(d, d)
            noise = temperature * noise_sd**2
            both = spread + noise * np.eye(d)
            centre = noise * features.expected(n_records)
            self._sum = np.linalg.solve(both, spread @ total + centre)
            self._covariance = noise_sd**2 * np.linalg.solve(both, spread)
        self._noncentring = features.noncentring(self._sum, n_records, temperature)
        self._explore(rng)

    def at(self, theta: np.ndarray) -> Position | None:
        """Log-density, and what is left there; None where it is zero."""
        prior = self.features.log_prior(theta)
        if not math.isfinite(prior):
            return None
        expansion = self.features.at(theta)
        if expansion is None:
            return None
        slope, t = expansion.slope, self.temperature
        with np.errstate(over="ignore", invalid="ignore"):
            density = prior + t * (
                self.n_records * expansion.intercept
                + slope @ self._sum
                + t / 2 * slope @ self._covariance @ slope
            )
        return Position(theta, float(density), expansion) if math.isfinite(density) else None

    def move(self, position: Position, rng: np.random.Generator) -> Position:
        """Some steps of a chain that is reversible with respect to the surrogate."""
        for _ in range(self.n_steps):
            position = self._metropolis(position, rng)
        return position

    def hold(self, within: float) -> None:
        """Set the part of simulated records that bounds on what is left hold, before a step is built.

        The surrogate's own law stays the same; that of a step does not.
        """
        self.features.within = within
        self._weigh()

    def _weigh(self) -> None:
        places = [self.at(theta) for theta in self.draws[:: math.ceil(len(self.draws) / _WEIGHED)]]
        self.bounds = np.array([p.expansion.bound for p in places if p is not None])

    def _metropolis(self, old: Position, rng: np.random.Generator) -> Position:
        """A step: around a centre, or from where it is; far, or near."""
        d = len(old.theta)
        z = self._root @ rng.standard_normal(d)
        uniform, far, central = rng.random(), rng.random(), rng.random() < 0.5
        keep, near, change = (0.0, 0.7, 0.95)[int(3 * far)], 10 ** -(1.5 * far), 0.0
        if self._noncentring is not None and rng.random() < 0.5:
            if central:
                theta, change = self._noncentring.refresh(old.theta, keep, rng)
            else:
                hyper = self._noncentring.hyper
                by = 2.4 / math.sqrt(len(hyper)) * near * z[hyper]
                theta, change = self._noncentring.move(old.theta, by)
        elif central:
            theta = self._centre + keep * (old.theta - self._centre) + math.sqrt(1 - keep**2) * z
            change = (self._squared(theta) - self._squared(old.theta)) / 2
        else:
            theta = old.theta + 2.4 / math.sqrt(d) * near * z
        new = self.at(theta)
        if new is None:
            return old
        return new if math.log(uniform) < new.density - old.density + change else old

    def _squared(self, theta: np.ndarray) -> float:
        z = np.linalg.solve(self._root, theta - self._centre)
        return float(z @ z)

    def _explore(self, rng: np.random.Generator) -> None:
        """Find centre and spread of the surrogate, and how many steps make draws nearly independent."""
        d, reference = len(self.total), self.features.theta
        basis = self.features.coordinates.directions
        assert basis is not None
        self._root: np.ndarray = basis / math.sqrt(self.temperature * self.n_records)
        covariance: np.ndarray = self._root @ self._root.T
        self._centre: np.ndarray = self.features.newton(self.total, self.n_records)
        position = self.at(self._centre) or self.at(reference)
        assert position is not None  # the reference is possible
        for length in _LENGTHS:
            path = []
            for _ in range(length):
                position = self._metropolis(position, rng)
                path.append(position)
            path = path[length // 4 :]
            thetas = np.array([p.theta for p in path])
            time = _autocorrelation_time(thetas)
            independent = len(thetas) / time
            if length >= 2000 and independent > _ENOUGH:
                break
            weight = 1 / (1 + independent / (10 * d))  # of what is thought to begin with
            self._centre = weight * self._centre + (1 - weight) * thetas.mean(axis=0)
            spread = np.cov(thetas, rowvar=False).reshape(d, d)
            covariance = weight * covariance + (1 - weight) * spread
            self._root = np.linalg.cholesky(covariance)
        self.draws = thetas
        self._weigh()
        self.n_steps = int(np.clip(1.5 * time, 4, 200))


def _autocorrelation_time(draws: np.ndarray) -> float:
    """Integrated, in the slowest coordinate."""
    import arviz as az

    n = len(draws)
    sizes = [float(az.ess(column[None, :])) for column in draws.T]
    return max(n / size if size > 1 else n for size in sizes)  # not a number if it never moved
