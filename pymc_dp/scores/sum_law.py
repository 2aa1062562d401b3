r"""Posterior given noisy sums of records: the sums without noise are normal.

For a sum ``S`` of the features of ``N`` records, with ``m`` and ``V`` mean and covariance of a record's
(:mod:`pymc_dp.scores.feature_law`),

.. math:: S \mid \theta \sim N\{N m(\theta),\; N V(\theta) + N^2 V_m + E + \Sigma\},

where :math:`\Sigma` is the covariance of the noise, :math:`V_m` that of the simulation error of ``m``, and ``E``
that of the error of a stand-in (:meth:`ScoreFeatures.stand_in_error`). Several sums are of the same records: features at
all references stand side by side, so ``V`` has the covariances between sums. No
evaluation depends on ``N``. The density of ``S`` is bounded in :math:`\theta`, so the posterior is proper if the
prior is. The error is that of the central limit theorem, of order :math:`1 / \sqrt{N}`: against enumeration, a shift below
0.02 standard deviations where 8 of the rarer outcomes are expected (epsilon up to 1).

l2 noise is a scale mixture of normals: its variance ``v`` is a further parameter, with
:math:`v / s^2` twice a Gamma((d + 1) / 2) variable. Its logarithm has the log-density
:math:`(d + 1) / 2 \log v - v / (2 s^2)`. So parameters and log-variances have one density, and NUTS samples it. Its force
is the gradient, or, where points move, the expected one: NUTS accepts by the density alone, and leapfrog steps with any force
that is a function of the position preserve volume and can be reversed, so the density is invariant in both cases.

References
----------
Wood (2010), Statistical inference for noisy nonlinear ecological dynamic systems,
https://doi.org/10.1038/nature09319; Price, Drovandi, Lee, Nott (2018), Bayesian synthetic likelihood,
https://doi.org/10.1080/10618600.2017.1302882.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from scipy.optimize import minimize

from pymc_dp.display import Shown, one_line
from pymc_dp.model.simulation import differences
from pymc_dp.planning.local_information import averaged, local_information
from pymc_dp.planning.simulator import Simulator
from pymc_dp.scores.feature_law import Enumerated, FeatureMoments, feature_law
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.score_features import ScoreFeatures, simulated_moments

#: Simulated records for the mean at the centre: in units of the number of records, and of rows, and at most; at most for
#: the search of the centre. Their error is the root of the number of records over theirs, in deviations of the sum.
_PER_RECORD, _PER_ROW, _SOME, _MOST, FEW = 4, 2000, 400_000, 4_000_000, 200_000
#: How often the mode is searched, at least and at most, until it is found so near (in standard deviations) to the one before;
#: and in how many steps.
_N_CENTRES, _MOST_CENTRES, _NEAR, _N_STEPS = 2, 6, 0.5, 30
#: Positions that span the posterior, and their spread in its standard deviations.
_N_POSITIONS, _SPREAD = 32, 1.5
#: Positions that are tried for the first one of a chain.
_MAX_TRIES = 20
#: Draws of each normal law for a weighted one.
_N_WEIGHTED = 2
#: Width of features above which their covariance is that at the centre, for its computing time.
_MOST_WIDTH = 50
#: Distance of a log-variance from that of the mean variance beyond which the density, below e^-80, counts as zero.
_FAR = 80.0


Prior = tuple[Callable[[np.ndarray], Any], Callable[[np.ndarray], np.ndarray]]


class SumState(NamedTuple):
    """Parameters, and the log-variance of each release's noise."""

    theta: np.ndarray
    log_variances: np.ndarray

    def __repr__(self) -> str:
        return one_line(self)


class NormalLaw(NamedTuple):
    """Normal law of the parameters at a mode, and the matrix that maps an error of the sums to one of the mean."""

    mean: np.ndarray
    covariance: np.ndarray
    gain: np.ndarray
    has_scores: np.ndarray

    def __repr__(self) -> str:
        return one_line(self)

    def distance(self, theta: np.ndarray) -> float:
        """Root mean square distance from the mean, in standard deviations, over the parameters with scores."""
        squares = (theta - self.mean) ** 2 / np.diag(self.covariance)
        return float(np.sqrt(squares[self.has_scores].mean()))


class NormalSums(Shown):
    """Density of positions: parameters followed by the log-variances of the releases with l2 noise.

    It is set up around its mode, which is searched from the best start; of hyperparameters the marginal one, by the EM
    algorithm: the log-prior is averaged over the other parameters (:mod:`pymc_dp.planning.local_information`).
    """

    def __init__(
        self,
        simulator: Simulator,
        features: ScoreFeatures,
        starts: Sequence[np.ndarray],
        root: np.ndarray,
        rng: np.random.Generator,
        most: int = _MOST,
    ) -> None:
        self.features, self._simulated, self._prior = features, simulator.simulated, simulator.likelihood  # fmt: skip
        self._n, self._temperature, self._root = features.n_records, simulator.temperature, root
        self._given_rows = simulator.has_public_covariates
        self._l2 = np.flatnonzero(~features.is_gaussian)
        self._expected = np.log(features.release_variances())
        self._varies = len(features.total) <= _MOST_WIDTH
        self._set_up(self._central(starts, min(most, FEW), rng), most, rng)
        moments = self._law.at(self.centre)
        assert moments is not None
        slope, covariance = (
            self._n * self._law.slope(self.centre, moments),
            self._root @ self._root.T,
        )
        precision = self._precision(self._expected, self._spread_of(moments))[0]
        gain = self._temperature * covariance @ slope.T @ precision
        #: The normal law at the mode.
        self.approximation = NormalLaw(self.centre, covariance, gain, np.any(slope, axis=0))

    def _central(
        self, starts: Sequence[np.ndarray], most: int, rng: np.random.Generator
    ) -> np.ndarray:
        """The mode, from the best start, by the law around it and then around each mode found; sets the root, too."""
        centre = starts[0]
        if len(starts) > 1:
            self._set_up(centre, most, rng)
            centre = max(starts, key=lambda theta: self.log_density(self.position(theta))[0])
        for k in range(_MOST_CENTRES):
            self._set_up(centre, most, rng)
            prior, root = self._prior_of_others(centre), self._root
            try:
                found = minimize(
                    lambda z, at=centre, prior=prior: self._minus(at + root @ z, prior), np.zeros(len(centre)), jac=True,
                    method="trust-exact", options={"maxiter": _N_STEPS, "gtol": 0.01},
                    hess=lambda z, at=centre, prior=prior: np.nan_to_num(root.T @ self._curvature(at + root @ z, prior) @ root),
                )  # fmt: skip
            except (UnboundLocalError, np.linalg.LinAlgError):  # SciPy's, for extreme curvatures
                break
            mode = centre + root @ found.x
            if not self.is_possible(mode):
                break
            centre = mode
            values, vectors = np.linalg.eigh(root.T @ self._curvature(centre, prior) @ root)
            if values.min() > 0:
                self._root = root @ vectors / np.sqrt(values)
            length = np.linalg.norm(np.linalg.solve(self._root, root @ found.x))
            if k >= _N_CENTRES - 1 and length < _NEAR * math.sqrt(len(centre)):
                break
        return centre

    def _prior_of_others(self, theta: np.ndarray) -> Prior:
        """Log-prior and its gradient, averaged over the parameters below hyperparameters, if there are any."""
        prior = self._prior.log_prior, self._prior.grad_log_prior
        moments = self._law.at(theta)
        assert moments is not None
        below = np.flatnonzero(
            self._law.slope(theta, moments).any(axis=0) | self._simulated.has_parent
        )
        if not 0 < len(below) < len(theta):
            return prior
        covariance = (self._root @ self._root.T)[np.ix_(below, below)]
        return averaged(prior[0], below, covariance), averaged(prior[1], below, covariance)

    def _minus(self, theta: np.ndarray, prior: Prior) -> tuple[float, np.ndarray]:
        """Negative log-density at the expected variances, and its gradient in the coordinates of the root."""
        value, gradient = self.log_density(self.position(theta), prior)
        return -value, -self._root.T @ gradient[: len(theta)]

    def _curvature(self, theta: np.ndarray, prior: Prior) -> np.ndarray:
        """Hessian of `_minus` in the parameters, without the second derivative of the means."""
        moments = self._law.at(theta)
        assert moments is not None
        slope = self._n * self._law.slope(theta, moments)
        precision = self._precision(self._expected, self._spread_of(moments))[0]
        return self._temperature * slope.T @ precision @ slope - differences(prior[1], theta)

    def _set_up(self, centre: np.ndarray, most: int, rng: np.random.Generator) -> None:
        """The law of the features around a centre; where it is not accurate there, the mean is that of more records."""
        simulated = self._simulated
        self.centre = centre
        positions = self._around(centre, rng)
        self._law = feature_law(self.features, simulated, positions, self._given_rows, rng)
        found = self._law.at(centre)
        if found is None:
            raise ValueError("Records cannot be drawn near the reference of the scores: check the model.")  # fmt: skip
        self._shift, self._constant = np.zeros(len(found.mean)), np.zeros_like(found.covariance)
        if isinstance(self._law, Enumerated):
            if not self._law.is_exact:
                self._shift = self._law.mean_of_all(centre) - found.mean
        elif not self._law.is_exact or self._n > simulated.n_records:
            n = max(_PER_RECORD * self._n, min(_PER_ROW * simulated.n_records, _SOME))
            n_sets = -(-min(n, most) // simulated.n_records)
            moments = simulated_moments(simulated, centre, n_sets, self.features.of, rng)
            self._shift = moments.mean - found.mean
            self._constant = self._n**2 * moments.unexplained / moments.n
        self._constant = self._constant + self.features.stand_in_error(centre, self._n, rng)
        self._covariance = found.covariance

    def _around(self, centre: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        """The centre, and positions of a normal law wider than the posterior where records can be drawn."""
        found = [centre]
        for z in rng.standard_normal((_N_POSITIONS - 1, len(centre))):
            theta = centre + _SPREAD * self._root @ z
            try:
                if np.isfinite(self._prior.log_prior(theta)):
                    with np.errstate(all="ignore"):
                        self._simulated.draw(theta, rng)
                    found.append(theta)
            except ValueError:  # NumPy's, for parameters that are out of range
                continue
        return found

    def _spread_of(self, moments: FeatureMoments) -> np.ndarray:
        """Covariance of the sums without noise."""
        return self._n * (moments.covariance if self._varies else self._covariance) + self._constant

    def position(self, theta: np.ndarray) -> np.ndarray:
        """Parameters with the expected log-variances of the noise."""
        return np.append(theta, self._expected[self._l2])

    def state(self, position: np.ndarray) -> SumState:
        """Parameters and log-variances at a position."""
        n, log_variances = len(self.centre), self._expected.copy()
        log_variances[self._l2] = position[n:]
        return SumState(position[:n], log_variances)

    @property
    def standard(self) -> tuple[np.ndarray, np.ndarray]:
        """A position in the bulk, and a root of the approximate covariance of positions."""
        widths = np.diff(self.features.ends)[self._l2]
        n = len(self.centre)
        root = np.diag(np.append(np.ones(n), np.sqrt(2 / (widths + 1))))
        root[:n, :n] = self._root
        return self.position(self.centre), root

    def first(self, rng: np.random.Generator) -> np.ndarray:
        """First position of a chain, from a law wider than the posterior; nearer to the centre if records cannot be drawn there."""
        width = _SPREAD  # so that R-hat can see a failure
        for _ in range(_MAX_TRIES):
            theta = self.centre + width * self._root @ rng.standard_normal(len(self.centre))
            if self.is_possible(theta):
                return self.position(theta)
            width /= 1.5
        raise ValueError("Records cannot be drawn near the reference of the scores: check the model.")  # fmt: skip

    def draws(
        self, n: int, mean: np.ndarray, root: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Parameters, shape ``(n, n_dim)``: weighted draws, drawn again, from the normal law at the mode and another, wide one.

        If the parameters are beyond what clipped scores tell, the normal law at the mode is too narrow.
        """
        laws, size = [(self.centre, self._root), (mean, root)], (_N_WEIGHTED * n, len(mean))
        found = np.vstack([c + rng.standard_normal(size) @ r.T for c, r in laws])
        logs = []
        for c, r in laws:
            z = np.linalg.solve(r, (found - c).T)
            logs.append(-(z**2).sum(axis=0) / 2 - np.linalg.slogdet(r)[1])
        values = np.array([self.log_density(self.position(theta))[0] for theta in found])
        weights = np.exp((values := values - np.logaddexp(*logs)) - values.max())
        places = (np.arange(n) + rng.random()) / n * weights.sum()
        places = np.minimum(np.searchsorted(weights.cumsum(), places), len(found) - 1)
        return found[rng.permutation(places)]

    def is_possible(self, theta: np.ndarray) -> bool:
        """Whether the density is positive."""
        return bool(np.isfinite(self._prior.log_prior(theta))) and self._law.at(theta) is not None

    def _precision(self, log_variances: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, float]:
        """Inverse covariance of the noisy sums, and its log-determinant."""
        noise = np.repeat(np.exp(log_variances), np.diff(self.features.ends))
        inverse = np.linalg.inv(spread + np.diag(noise))
        return inverse, float(np.linalg.slogdet(inverse)[1])

    def residual(self, moments: FeatureMoments) -> np.ndarray:
        """Residual of the sums."""
        return self.features.total - self._n * (moments.mean + self._shift)

    def log_density(
        self, position: np.ndarray, prior: Prior | None = None
    ) -> tuple[float, np.ndarray]:
        """Log-density of a position, up to a constant, and its gradient; with another log-prior, if given."""
        log_prior, grad_log_prior = prior or (self._prior.log_prior, self._prior.grad_log_prior)
        nowhere = -np.inf, np.zeros(len(position))
        theta, log_variances = self.state(position)
        if (
            not (np.abs(log_variances - self._expected) < _FAR).all()
            or not np.isfinite(theta).all()
        ):
            return nowhere
        value = log_prior(theta)
        moments = self._law.at(theta) if np.isfinite(value) else None
        if moments is None:
            return nowhere
        residual, spread = self.residual(moments), self._spread_of(moments)
        inverse, log_det = self._precision(log_variances, spread)
        pulled = inverse @ residual
        value += self._temperature * (log_det - residual @ pulled) / 2
        half = (np.outer(pulled, pulled) - inverse) / 2 if self._varies else None
        slope = self._law.derivative(theta, moments, pulled, half)
        gradient = grad_log_prior(theta) + self._temperature * self._n * slope
        gradient = np.nan_to_num(gradient, posinf=0.0, neginf=0.0)
        if not len(self._l2):
            return value, gradient
        more, slopes = self._noise_density(log_variances)
        squares = np.add.reduceat(pulled**2 - np.diag(inverse), self.features.ends[:-1])
        slopes += self._temperature * np.exp(log_variances) * squares / 2
        return value + more, np.append(gradient, slopes[self._l2])

    def _noise_density(self, log_variances: np.ndarray) -> tuple[float, np.ndarray]:
        """Log-density of the log-variances of l2 noise, and its derivatives."""
        shapes = (np.diff(self.features.ends) + 1) / 2
        ratios = np.exp(log_variances) / (2 * self.features.scales**2)
        return float((shapes * log_variances - ratios)[self._l2].sum()), shapes - ratios


def normal_sums(
    simulator: Simulator, scores: PrivateScores, rng: np.random.Generator, most: int = _MOST
) -> NormalSums:
    """The density given scores, set up around the mode that is found from the reference of the last one."""
    theta = scores.releases[-1].term.theta
    precision = local_information(simulator, theta, rng).precision
    root = np.linalg.inv(np.linalg.cholesky(precision)).T
    features = ScoreFeatures(scores, simulator.simulated)
    return NormalSums(simulator, features, [theta], root, rng, most)
