r"""Posterior given noisy sums of many records: the sums without noise are normal.

For a sum ``S`` of the features of ``N`` records, with ``m`` and ``V`` mean and covariance of a record's,

.. math:: S \mid \theta \sim N\{N m(\theta),\; N V + N^2 V_m + E + \Sigma\},

where :math:`\Sigma` is the covariance of the noise, :math:`V_m` that of the simulation error of ``m``, and ``E``
that of the error of a stand-in (:meth:`ClippedScores.stand_in_error`). The
mean at a centre :math:`\theta_c` is that of many simulated records, with their scores, whose mean is known
to be zero, as control variates; elsewhere

.. math:: m(\theta) - m(\theta_c) = \frac{\sum_i w_i g_i}{\sum_i w_i} - \frac{1}{n} \sum_i g_i,
          \qquad w_i = e^{\ell_i(\theta) - \ell_i(\theta_c)}, \quad g_i = f_i + (C - C_n) F_n^{-1} s_i,

over fewer records simulated at the centre, with scores ``s_i`` there of second moment ``F_n``. ``C`` is the
covariance of feature and score, the derivative of the mean at the centre, by the many records, and ``C_n`` by
the fewer ones: so the error of the latter is of second order in the change of the records' law. The centre is the mode, found by the law around the first one. No
evaluation depends on ``N``. The density of ``S`` is bounded in :math:`\theta`, so the posterior is proper if the
prior is. The error is that of the central limit theorem, of order :math:`1 / \sqrt{N}`.

Parameters are moved in coordinates in which this posterior is nearly normal
(:mod:`pymc_dp.scores.transport`), and by Hamiltonian trajectories: in a fifth of the iterations, or in all of
them if the former are mostly rejected.

l2 noise is a scale mixture of normals: its variance ``v`` is a further parameter, with
:math:`v / s^2` twice a Gamma((d + 1) / 2) variable, updated by a random walk on its logarithm.

References
----------
Wood (2010), Statistical inference for noisy nonlinear ecological dynamic systems,
https://doi.org/10.1038/nature09319; Price, Drovandi, Lee, Nott (2018), Bayesian synthetic likelihood,
https://doi.org/10.1080/10618600.2017.1302882.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_dp.display import Shown
from pymc_dp.model.reductions import Reductions
from pymc_dp.model.simulation import SimulatedRecords, differences
from pymc_dp.scores.clipped_scores import ClippedScores
from pymc_dp.scores.hamiltonian import hamiltonian_move
from pymc_dp.scores.moments import simulated_moments
from pymc_dp.scores.noncentring import PartialNoncentring
from pymc_dp.scores.transport import Law, Place, Transport

__all__ = ["NormalSums", "SumState"]

#: Number of simulated records whose weights are computed at each position, and of data sets that have them.
_N_WEIGHTED, _MOST_SETS = 10_000, 100
#: Simulated records for the mean at the centre: in units of the number of records, and at most; at most for the
#: search of the centre.
_PER_RECORD, _MOST, _FEW = 4, 4_000_000, 200_000
#: Standard deviation of the random walk on the logarithm of the variance of l2 noise.
_VARIANCE_STEP = 0.7
#: Relative cutoff of singular values: hyperparameters have no scores.
_SINGULAR = 1e-10
#: How often the mode is searched.
_N_CENTRES = 2
#: Least precision of the prior in the coordinates of the transport.
_LEAST_PRECISION = 1e-6


@dataclass
class SumState(Shown):
    """Parameters, and the logarithm of the variance of the noise of each release.

    Parameters
    ----------
    theta : array of shape (n_dim,)
    log_variances : array of shape (n_releases,)
    place : Place, optional
        The position in the coordinates of :class:`~pymc_dp.scores.transport.Transport`, if it is known.
    """

    theta: np.ndarray
    log_variances: np.ndarray
    place: Place | None = None


class NormalSums(Shown):
    """The target, and its moves.

    Parameters
    ----------
    features : ClippedScores
    simulated : SimulatedRecords
    prior : Reductions
        The model whose prior counts.
    n_records : int
    temperature : float
        Power of the density of the sums.
    centre : array of shape (n_dim,)
        Position in the bulk of the posterior, where records are simulated.
    root : array of shape (n_dim, n_dim)
        Root of the covariance of the posterior, approximately.
    noncentring : PartialNoncentring, optional
        Moves of hyperparameters.
    rng : numpy.random.Generator
    """

    def __init__(
        self,
        features: ClippedScores,
        simulated: SimulatedRecords,
        prior: Reductions,
        n_records: int,
        temperature: float,
        centre: np.ndarray,
        root: np.ndarray,
        noncentring: PartialNoncentring | None,
        rng: np.random.Generator,
    ) -> None:
        self._noncentring = noncentring
        self._features, self._simulated, self._prior = features, simulated, prior
        self._n, self._temperature, self._root = n_records, temperature, root
        if noncentring is None:  # else the mode is no centre
            centre = self._central(centre, rng)
        self._simulate(centre, _MOST, rng)

    def _central(self, centre: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The mode, found by the law around the given centre, and around what was found there."""
        for _ in range(_N_CENTRES):
            self._simulate(centre, _FEW, rng)
            mode = self._transport.solve(np.zeros(len(centre)))
            if mode is None or not self.is_possible(mode.theta):
                break
            centre = mode.theta
        return centre

    def _make_transport(self, centre: np.ndarray) -> Transport:
        prior = self._prior
        precision = self._temperature * np.linalg.inv(
            self._covariance(self.first(centre).log_variances)
        )
        found = self.with_slope(centre)
        assert found is not None
        curvature = -differences(prior.grad_log_prior, centre)
        values, vectors = np.linalg.eigh(curvature)
        prior_precision = (vectors * np.maximum(values, _LEAST_PRECISION)) @ vectors.T
        law = self._combined(found[1].T @ precision)
        return Transport(law, centre, prior.grad_log_prior(centre), prior_precision)

    def _simulate(self, centre: np.ndarray, most: int, rng: np.random.Generator) -> None:
        """Draw records at the centre, at most so many: mean and covariance of their features."""
        simulated = self._simulated
        n_sets = min(-(-_N_WEIGHTED // simulated.n_records), _MOST_SETS)
        sets = [simulated.draw(centre, rng) for _ in range(n_sets)]
        #: Records of each set that are weighted: all, unless one set has more than enough. Equal ones are one, and
        #: count as often as there are.
        some = simulated.some(_N_WEIGHTED, rng) if n_sets == 1 else np.arange(simulated.n_records)
        values = np.vstack([self._features.of(data)[some] for data in sets])
        self._weighted = simulated.pooled((data, some) for data in sets)
        first, self._counts = self._different(values, centre)
        values = values[first]
        numbers, rows = np.divmod(first, len(some))
        self._weighted = simulated.pooled(
            (sets[k], some[rows[numbers == k]]) for k in np.unique(numbers)
        )
        self._base = self._weighted.logp(centre)
        shares = self._counts / self._counts.sum()
        values = values - shares @ values
        n_sets = -(-min(_PER_RECORD * self._n, most) // simulated.n_records)
        moments = simulated_moments(simulated, centre, n_sets, self._features.of, rng)
        #: Mean feature at the centre.
        self._mean = moments.mean
        scores = self._weighted.gradients(centre)
        scores = scores - shares @ scores
        weighted = (scores * shares[:, None]).T
        lacking = moments.slopes.T - weighted @ values
        more = np.linalg.lstsq(weighted @ scores, lacking, rcond=_SINGULAR)[0]
        #: Features of the weighted records, minus their mean; their derivative is that of many records.
        self._values = values + scores @ more
        self._centre = centre
        simulation_error = moments.unexplained / moments.n
        self._spread = self._n * moments.covariance + self._n**2 * simulation_error
        self._spread += self._features.stand_in_error(centre, self._n, rng)
        self._transport = self._make_transport(centre)

    def _different(self, values: np.ndarray, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of weighted records that differ, in ascending order, and how many are equal to each.

        Equal are those with the same features, and the same scores and log-likelihoods at two positions.
        """
        seen = [values]
        for theta in (centre, centre + self._root.sum(axis=1)):
            seen += [self._weighted.gradients(theta), self._weighted.logp(theta)[:, None]]
        rows = np.ascontiguousarray(np.hstack(seen))
        keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
        _, first, counts = np.unique(keys, return_index=True, return_counts=True)
        order = np.argsort(first)
        return first[order], counts[order].astype(float)

    def first(self, theta: np.ndarray) -> SumState:
        """State with the expected variance of the noise."""
        return SumState(theta, np.log(self._features.release_variances()))

    def is_possible(self, theta: np.ndarray) -> bool:
        """Whether the density is positive."""
        return bool(np.isfinite(self._prior.log_prior(theta))) and self.residual(theta) is not None

    def _covariance(self, log_variances: np.ndarray) -> np.ndarray:
        return self._spread + np.diag(
            np.repeat(np.exp(log_variances), np.diff(self._features.ends))
        )

    def _weights(self, theta: np.ndarray) -> np.ndarray | None:
        """Weights of the simulated records; None where none is finite."""
        ratios = self._weighted.logp(theta) - self._base
        with np.errstate(all="ignore"):
            weights = self._counts * np.exp(ratios - ratios.max())
        total = weights.sum()
        return weights / total if np.isfinite(total) else None

    def residual(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Sums minus their means, and the weights of the simulated records; None where none is finite."""
        weights = self._weights(theta)
        if weights is None:
            return None
        mean = self._mean + weights @ self._values
        return self._features.total - self._n * mean, weights

    def with_slope(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Sums minus their means, and the derivative of the means."""
        return self._combined(np.eye(len(self._mean)))(theta)

    def _combined(self, pull: np.ndarray) -> Law:
        """The same of linear combinations, the rows of a matrix: there are fewer of these than of sums."""
        values = self._values @ pull.T
        at_centre = pull @ (self._features.total - self._n * self._mean)

        def law(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
            weights = self._weights(theta)
            if weights is None:
                return None
            mean = weights @ values
            # The covariance of features and scores under the weights.
            scores = self._weighted.gradients(theta)
            slope = values.T @ (weights[:, None] * scores) - np.outer(mean, weights @ scores)
            return at_centre - self._n * mean, self._n * slope

        return law

    def log_density(self, theta: np.ndarray, inverse: np.ndarray) -> float:
        """Log-density of the parameters given the variances of the noise."""
        value = self._prior.log_prior(theta)
        found = self.residual(theta) if np.isfinite(value) else None
        if found is None:
            return -np.inf
        return float(value - self._temperature * found[0] @ inverse @ found[0] / 2)

    def with_gradient(self, theta: np.ndarray, inverse: np.ndarray) -> tuple[float, np.ndarray]:
        """The same, and its gradient."""
        value, gradient = self._prior.log_prior(theta), self._prior.grad_log_prior(theta)
        found = self.residual(theta) if np.isfinite(value) else None
        if found is None:
            return -np.inf, gradient
        residual, weights = found
        pulled = inverse @ residual
        # Derivative of the mean: the covariance of features and scores under the weights.
        terms = weights * ((self._values - weights @ self._values) @ pulled)
        slope = terms @ self._weighted.gradients(theta)
        factor = self._temperature
        return value - factor * residual @ pulled / 2, gradient + factor * self._n * slope

    @property
    def has_hyperparameters(self) -> bool:
        """Whether there are parameters on which no score depends."""
        return self._noncentring is not None

    def update_parameters(
        self, state: SumState, step_size: float, rng: np.random.Generator
    ) -> float:
        """Move the parameters, in place; acceptance probability."""
        inverse = np.linalg.inv(self._covariance(state.log_variances))
        state.theta, probability = hamiltonian_move(
            state.theta,
            lambda theta: self.with_gradient(theta, inverse),
            self._root,
            step_size,
            rng,
        )
        if self._noncentring is not None:
            state.theta = self._noncentring.metropolis(
                state.theta, lambda theta: self.log_density(theta, inverse), rng
            )
        return probability

    def update_by_transport(self, state: SumState, rng: np.random.Generator) -> bool:
        """Move the parameters in the coordinates of the transport, in place; whether the move was accepted."""
        if state.place is None or state.place.theta is not state.theta:
            state.place = self._transport.place(state.theta)
        if (place := state.place) is None:
            return False
        inverse = np.linalg.inv(self._covariance(state.log_variances))
        new = self._transport.move(place, lambda theta: self.log_density(theta, inverse), rng)
        state.theta, state.place = new.theta, new
        return new is not place

    def update_variances(self, state: SumState, rng: np.random.Generator) -> None:
        """Move the variances of l2 noise, in place."""
        found = None if self._features.is_gaussian.all() else self.residual(state.theta)
        if found is None:
            return
        for k in np.flatnonzero(~self._features.is_gaussian):
            new = state.log_variances.copy()
            new[k] += _VARIANCE_STEP * rng.standard_normal()
            now, then = (
                self._variance_density(x, int(k), found[0]) for x in (state.log_variances, new)
            )
            if np.log(rng.random()) < then - now:
                state.log_variances = new

    def _variance_density(self, log_variances: np.ndarray, k: int, residual: np.ndarray) -> float:
        """Log-density of the logarithm of a variance of l2 noise."""
        d = self._features.ends[k + 1] - self._features.ends[k]
        log_variance, scale = log_variances[k], self._features.scales[k]
        prior = (d + 1) / 2 * log_variance - np.exp(log_variance) / (2 * scale**2)
        covariance = self._covariance(log_variances)
        quadratic = residual @ np.linalg.solve(covariance, residual)
        likelihood = -(quadratic + np.linalg.slogdet(covariance)[1]) / 2
        return float(prior + self._temperature * likelihood)
