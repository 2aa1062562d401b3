"""A public surrogate of a posterior, from one noisy sum of gradients, and what it leaves to each record."""

from __future__ import annotations

import math

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_dp.model.simulated import SimulatedRecords
from pymc_dp.steps.gradients import Coordinates

__all__ = ["LEAST", "MANY", "Expansion", "Features", "Position", "Surrogate"]

#: Simulated records from which coefficients are estimated: at least, and for each coefficient.
_RECORDS, _RECORDS_EACH = 5000, 50
#: Simulated records on which what is cut off is averaged, at most.
MANY = 200_000
#: Least bound on what is left of a record, in log-likelihood: about rounding errors.
LEAST = 1e-10
#: Steps of chains that adapt to the surrogate one after the other, until one is long enough.
_LENGTHS, _ENOUGH = (250, 500, 1000, 2000, 4000, 8000), 100
#: Draws at which bounds are known, about.
_WEIGHED = 500
#: Directions in which features vary less than so (relative to the others) are no features.
_RELATIVE = 1e-6


class Expansion(NamedTuple):
    """What predicts a record's log-likelihood ratio to the reference, and bounds the rest of it.

    Parameters
    ----------
    intercept : float
    slope : array of shape (d,)
        Of the record's clipped gradient at the reference.
    bound : float
        What is left is clipped to it.
    """

    intercept: float
    slope: np.ndarray
    bound: float


class Features:
    r"""Clipped gradients at a reference as control variates: regression on simulated records.

    At each position the log-likelihood ratio ``r = l(theta) - l(reference)`` of a record is predicted by
    ``intercept + slope' f`` with ``f`` the record's clipped gradient at the reference. The coefficients
    are those of least squares over simulated records, so they are public. Of a model with as many
    sufficient statistics as parameters nothing is left (a normal mean, also where it is a curved
    function of the parameters); of others what least squares cannot reach. A Taylor polynomial, whose
    slope is the move itself, leaves more: what clipping took from ``f``, and curvature.

    Parameters
    ----------
    simulated : SimulatedRecords
    theta : array of shape (n_dim,)
        The reference.
    coordinates : Coordinates
        In which gradients are clipped.
    clip_bound : float
    within : float
        The bound on what is left is this quantile of its sizes among simulated records.
    rng : numpy.random.Generator
    most : int
        Simulated records on which what is cut off is averaged.

    Attributes
    ----------
    values : array of shape (n, d)
        Features of the simulated records.
    gain : array of shape (d, d)
        What takes features to gradients.
    cut_gradient : array of shape (d,)
        Mean size of what clipping takes from gradients.
    """

    def __init__(
        self,
        simulated: SimulatedRecords,
        theta: np.ndarray,
        coordinates: Coordinates,
        clip_bound: float,
        within: float,
        rng: np.random.Generator,
        *,
        most: int = MANY,
    ) -> None:
        self.theta, self.coordinates, self.clip_bound = theta, coordinates, clip_bound
        self.within = within
        self._simulated, self._data = simulated, simulated.draw(theta, rng)
        self._many = simulated.some(most, rng)
        gradients = simulated.gradients(theta, self._data, self._many)
        self.values = self.of(gradients)
        self._base = simulated.logp(theta, self._data, self._many)
        vectors = gradients @ coordinates.directions
        # Few that are spread evenly over lengths of gradients: chance would decide how many of them are
        # clipped, and with that about the bounds on what is left (by a factor of five, for 0.2 % clipped).
        order = np.argsort(np.linalg.norm(vectors, axis=1))
        n = min(max(_RECORDS, _RECORDS_EACH * (1 + len(theta))), len(order))
        few = np.sort(order[((np.arange(n) + rng.random()) * len(order) / n).astype(int)])
        #: Numbers of these, features, and log-likelihoods at the reference.
        self._few = self._many[few], self.values[few], self._base[few]
        both = np.hstack([self.values, vectors - self.values])
        self._mean_ratio = _least_squares((both - both.mean(axis=0))[few])[0]
        self._slopes = _least_squares(self.values[few])[1:]
        self.mean = self.values.mean(axis=0)
        self.gain = (self._slopes @ vectors[few]).T
        self._mean_gradient = vectors.mean(axis=0)
        self.cut_gradient = np.abs(vectors - self.values).mean(axis=0)

    def of(self, gradients: np.ndarray) -> np.ndarray:
        """Features of records with these gradients at the reference, shape ``(n, d)``.

        Zero where a gradient is not finite, as in :meth:`RecordLikelihood.clipped_grad_steps`.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            vectors = gradients @ self.coordinates.directions
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        finite = np.isfinite(norms)
        vectors[~finite[:, 0]] = 0.0
        return vectors * (self.clip_bound / np.maximum(np.where(finite, norms, 0), self.clip_bound))

    def at(self, theta: np.ndarray) -> Expansion | None:
        """Coefficients and bound, from so few simulated records that it may be asked for often.

        None where simulated records are impossible.
        """
        records, values, base = self._few
        ratios = self._ratios(theta, records, base)
        if not np.isfinite(ratios).all():
            return None
        slope = self._slopes @ ratios
        intercept = float(self._mean_ratio @ ratios - slope @ self.mean)
        left = ratios - intercept - values @ slope
        place = min(len(left), math.ceil(self.within * len(left))) - 1
        bound = max(float(np.partition(np.abs(left), place)[place]), LEAST)
        return Expansion(intercept, slope, bound)

    def log_prior(self, theta: np.ndarray) -> float:
        """Log-prior of the model that records were simulated with."""
        return self._simulated.log_prior(theta)

    def newton(self, total: np.ndarray, n_records: int) -> np.ndarray:
        """Where a sum of so many features points to, were the likelihood normal."""
        move = self.gain @ (total / n_records - self.mean) + self._mean_gradient
        return self.coordinates.moved(self.theta, move)

    def expected(self, n_records: int) -> np.ndarray:
        """Sum of so many features that points to the reference."""
        off = np.linalg.lstsq(self.gain, self._mean_gradient, rcond=_RELATIVE)[0]
        return n_records * (self.mean - off)

    def left(self, theta: np.ndarray, expansion: Expansion) -> tuple[np.ndarray, np.ndarray]:
        """Of many simulated records: log-likelihood ratios, and what is left of them, not clipped."""
        ratios = self._ratios(theta, self._many, self._base)
        return ratios, ratios - expansion.intercept - self.values @ expansion.slope

    def cut(self, theta: np.ndarray, expansion: Expansion) -> float:
        """Mean of what the bound cuts off, from many simulated records: zero if it cuts off nothing."""
        _, left = self.left(theta, expansion)
        return float(np.mean(left - np.clip(left, -expansion.bound, expansion.bound)))

    def _ratios(self, theta: np.ndarray, records: np.ndarray, base: np.ndarray) -> np.ndarray:
        every = len(records) == self._simulated.n_records  # in order: quicker without numbers
        with np.errstate(all="ignore"):
            return self._simulated.logp(theta, self._data, None if every else records) - base


def _least_squares(values: np.ndarray) -> np.ndarray:
    """What takes responses to intercept and slopes on these values."""
    scale = np.abs(values).max()
    design = np.column_stack([np.ones(len(values)), values / scale])
    inverse = np.linalg.pinv(design, rcond=_RELATIVE)
    inverse[1:] /= scale
    return inverse


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
    ) -> None:
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
        """A step: around the centre, or from where it is; far, or near."""
        d = len(old.theta)
        z = self._root @ rng.standard_normal(d)
        uniform, far, central = rng.random(), rng.random(), rng.random() < 0.5
        if central:
            keep = (0.0, 0.7, 0.95)[int(3 * far)]
            theta = self._centre + keep * (old.theta - self._centre) + math.sqrt(1 - keep**2) * z
        else:
            theta = old.theta + 2.4 / math.sqrt(d) * 10 ** -(1.5 * far) * z
        new = self.at(theta)
        if new is None:
            return old
        change = new.density - old.density
        if central:
            change += self._squared(new.theta) / 2 - self._squared(old.theta) / 2
        return new if math.log(uniform) < change else old

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
