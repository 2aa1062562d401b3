"""Clipped gradients as control variates: what predicts a record's log-likelihood, and bounds the rest of it."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from pymc_dp.model.simulated import SimulatedRecords
from pymc_dp.steps.gradients import Coordinates
from pymc_dp.steps.noncentring import PartialNoncentring

__all__ = ["LEAST", "MANY", "Expansion", "Features"]

#: Simulated records from which coefficients are estimated: at least, and for each coefficient.
_RECORDS, _RECORDS_EACH = 5000, 50
#: Simulated records on which what is cut off is averaged, at most.
MANY = 200_000
#: Least bound on what is left of a record, in log-likelihood: about rounding errors.
LEAST = 1e-10
#: Largest log-likelihood ratio of a simulated record: beyond, sums that should cancel may be anything.
_LARGEST = 1e8
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
        self._squares = (gradients**2).mean(axis=0)
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

        None where simulated records are impossible, or as good as that.
        """
        records, values, base = self._few
        ratios = self._ratios(theta, records, base)
        if not (np.abs(ratios) < _LARGEST).all():
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

    def noncentring(
        self, total: np.ndarray, n_records: int, temperature: float
    ) -> PartialNoncentring | None:
        """For a posterior with hyperparameters, of which no record tells; None for others."""
        if self._squares.all() or not self._squares.any():
            return None
        assert self.coordinates.directions is not None
        move = self.gain @ (total / n_records - self.mean) + self._mean_gradient
        gradient = np.linalg.solve(self.coordinates.directions.T, move)
        weight = temperature * n_records
        return PartialNoncentring(
            self._simulated.grad_log_prior, self.theta, weight * gradient, weight * self._squares
        )

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
