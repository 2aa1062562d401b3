r"""Posterior given noisy sums of many records: the sums without noise are normal.

For a sum ``S`` of the features of ``N`` records, with ``m`` and ``V`` mean and covariance of a record's,

.. math:: S \mid \theta \sim N\{N m(\theta),\; N V + N^2 V_m + E + \Sigma\},

where :math:`\Sigma` is the covariance of the noise, :math:`V_m` that of the simulation error of ``m``, and ``E``
that of the error of a stand-in (:meth:`ScoreFeatures.stand_in_error`). The
mean at a centre :math:`\theta_c` is that of many simulated records, with their scores, whose mean is known
to be zero, as control variates; elsewhere

.. math:: m(\theta) - m(\theta_c) = \frac{\sum_i w_i g_i}{\sum_i w_i} - \frac{1}{n} \sum_i g_i,
          \qquad w_i = e^{\ell_i(\theta) - \ell_i(\theta_c)}, \quad g_i = f_i + (C - C_n) F_n^{-1} s_i,

over fewer records simulated at the centre, with scores ``s_i`` there of second moment ``F_n``. ``C`` is the
covariance of feature and score, the derivative of the mean at the centre, by the many records, and ``C_n`` by
the fewer ones: so the error of the latter is of second order in the change of the records' law. The centre is the mode, found by the law around the first one. No
evaluation depends on ``N``. The density of ``S`` is bounded in :math:`\theta`, so the posterior is proper if the
prior is. The error is that of the central limit theorem, of order :math:`1 / \sqrt{N}`.

l2 noise is a scale mixture of normals: its variance ``v`` is a further parameter, with
:math:`v / s^2` twice a Gamma((d + 1) / 2) variable. Its logarithm has the log-density
:math:`(d + 1) / 2 \log v - v / (2 s^2)`. So parameters and log-variances have one smooth density, and NUTS samples it.

References
----------
Wood (2010), Statistical inference for noisy nonlinear ecological dynamic systems,
https://doi.org/10.1038/nature09319; Price, Drovandi, Lee, Nott (2018), Bayesian synthetic likelihood,
https://doi.org/10.1080/10618600.2017.1302882.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scipy.optimize import minimize

from pymc_dp.display import Shown, one_line
from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.model.simulation import SimulatedRecords, differences
from pymc_dp.scores.moments import simulated_moments
from pymc_dp.scores.score_features import ScoreFeatures

#: Number of simulated records whose weights are computed at each position, and of data sets that have them.
_N_WEIGHTED, _MOST_SETS = 10_000, 100
#: Simulated records for the mean at the centre: in units of the number of records, and at most; at most for the
#: search of the centre.
_PER_RECORD, _MOST, _FEW = 4, 4_000_000, 200_000
#: Relative cutoff of singular values: hyperparameters have no scores.
_SINGULAR = 1e-10
#: How often the mode is searched, and in how many steps.
_N_CENTRES, _N_STEPS = 2, 30
#: Distance of a log-variance from that of the mean variance beyond which the density, below e^-80, counts as zero.
_FAR = 80.0


class SumState(NamedTuple):
    """Parameters, and the log-variance of each release's noise."""

    theta: np.ndarray
    log_variances: np.ndarray

    def __repr__(self) -> str:
        return one_line(self)


class NormalSums(Shown):
    """Density of positions: parameters followed by the log-variances of the releases with l2 noise."""

    def __init__(
        self,
        features: ScoreFeatures,
        simulated: SimulatedRecords,
        prior: Likelihood,
        n_records: int,
        temperature: float,
        centre: np.ndarray,
        root: np.ndarray,
        has_hyperparameters: bool,
        rng: np.random.Generator,
    ) -> None:
        self._features, self._simulated, self._prior = features, simulated, prior
        self._n, self._temperature, self._root = n_records, temperature, root
        self._l2 = np.flatnonzero(~features.is_gaussian)
        self._expected = np.log(features.release_variances())
        if not has_hyperparameters:
            centre = self._central(centre, rng)
        self._simulate(centre, _MOST, rng)

    def _central(self, centre: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The mode, from the law around the given centre and then around each mode found."""
        n, root = len(centre), self._root
        for _ in range(_N_CENTRES):
            self._simulate(centre, _FEW, rng)
            found = minimize(
                lambda z, at=centre: self._minus(at + root @ z), np.zeros(n), jac=True, method="trust-exact",
                hess=lambda z, at=centre: np.nan_to_num(root.T @ self._curvature(at + root @ z) @ root),
                options={"maxiter": _N_STEPS, "gtol": 0.01},
            )  # fmt: skip
            mode = centre + root @ found.x
            if not self.is_possible(mode):
                break
            centre = mode
        return centre

    def _minus(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Negative log-density at the expected variances, and its gradient in the coordinates of the root."""
        value, gradient = self.log_density(self.position(theta))
        return -value, -self._root.T @ gradient[: len(theta)]

    def _curvature(self, theta: np.ndarray) -> np.ndarray:
        """Hessian of `_minus` in the parameters, without the second derivative of the means."""
        found = self.with_slope(theta)
        assert found is not None
        precision = self._temperature * self._precision(self._expected)[0]
        return found[1].T @ precision @ found[1] - differences(self._prior.grad_log_prior, theta)

    def _simulate(self, centre: np.ndarray, most: int, rng: np.random.Generator) -> None:
        """Draw records at the centre, at most `most`: mean and covariance of their features."""
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
        self._constant = None
        if not len(self._l2):
            self._constant = self._precision(self._expected)

    def _different(self, values: np.ndarray, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Indices of distinct weighted records, ascending, and numbers of equal ones.

        Records are equal if they have the same features, and the same scores and log-likelihoods at two positions.
        """
        seen = [values]
        for theta in (centre, centre + self._root.sum(axis=1)):
            seen += [self._weighted.gradients(theta), self._weighted.logp(theta)[:, None]]
        rows = np.ascontiguousarray(np.hstack(seen))
        keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
        _, first, counts = np.unique(keys, return_index=True, return_counts=True)
        order = np.argsort(first)
        return first[order], counts[order].astype(float)

    def position(self, theta: np.ndarray) -> np.ndarray:
        """Parameters with the expected log-variances of the noise."""
        return np.append(theta, self._expected[self._l2])

    def state(self, position: np.ndarray) -> SumState:
        """Parameters and log-variances at a position."""
        n, log_variances = len(self._centre), self._expected.copy()
        log_variances[self._l2] = position[n:]
        return SumState(position[:n], log_variances)

    @property
    def standard(self) -> tuple[np.ndarray, np.ndarray]:
        """A position in the bulk, and a root of the approximate covariance of positions."""
        widths = np.diff(self._features.ends)[self._l2]
        n = len(self._centre)
        root = np.diag(np.append(np.ones(n), np.sqrt(2 / (widths + 1))))
        root[:n, :n] = self._root
        return self.position(self._centre), root

    def is_possible(self, theta: np.ndarray) -> bool:
        """Whether the density is positive."""
        return bool(np.isfinite(self._prior.log_prior(theta))) and self.residual(theta) is not None

    def _precision(self, log_variances: np.ndarray) -> tuple[np.ndarray, float]:
        """Inverse covariance of the noisy sums, and its log-determinant."""
        noise = np.repeat(np.exp(log_variances), np.diff(self._features.ends))
        inverse = np.linalg.inv(self._spread + np.diag(noise))
        return inverse, float(np.linalg.slogdet(inverse)[1])

    def _weights(self, theta: np.ndarray) -> np.ndarray | None:
        """Importance weights of the simulated records; None where none is finite."""
        ratios = self._weighted.logp(theta) - self._base
        with np.errstate(all="ignore"):
            weights = self._counts * np.exp(ratios - ratios.max())
        total = weights.sum()
        return weights / total if np.isfinite(total) else None

    def residual(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Residual of the sums and the weights of the simulated records; None where none is finite."""
        weights = self._weights(theta)
        if weights is None:
            return None
        mean = self._mean + weights @ self._values
        return self._features.total - self._n * mean, weights

    def with_slope(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Residual of the sums and Jacobian of their means."""
        found = self.residual(theta)
        if found is None:
            return None
        residual, weights = found
        # The covariance of features and scores under the weights.
        scores = self._weighted.gradients(theta)
        slope = self._values.T @ (weights[:, None] * scores)
        slope -= np.outer(weights @ self._values, weights @ scores)
        return residual, self._n * slope

    def log_density(self, position: np.ndarray) -> tuple[float, np.ndarray]:
        """Log-density of a position, up to a constant, and its gradient."""
        nowhere = -np.inf, np.zeros(len(position))
        theta, log_variances = self.state(position)
        if (
            not (np.abs(log_variances - self._expected) < _FAR).all()
            or not np.isfinite(theta).all()
        ):
            return nowhere
        value = self._prior.log_prior(theta)
        found = self.residual(theta) if np.isfinite(value) else None
        if found is None:
            return nowhere
        residual, weights = found
        inverse, log_det = self._constant or self._precision(log_variances)
        pulled = inverse @ residual
        value += self._temperature * (log_det - residual @ pulled) / 2
        # Derivative of the mean: the covariance of features and scores under the weights.
        terms = self._values @ pulled
        slope = (weights * (terms - weights @ terms)) @ self._weighted.gradients(theta)
        gradient = self._prior.grad_log_prior(theta) + self._temperature * self._n * slope
        # Zero weights times infinite scores. (Any force that depends on the position alone is exact.)
        gradient = np.nan_to_num(gradient, posinf=0.0, neginf=0.0)
        if not len(self._l2):
            return value, gradient
        more, slopes = self._noise_density(log_variances)
        squares = np.add.reduceat(pulled**2 - np.diag(inverse), self._features.ends[:-1])
        slopes += self._temperature * np.exp(log_variances) * squares / 2
        return value + more, np.append(gradient, slopes[self._l2])

    def _noise_density(self, log_variances: np.ndarray) -> tuple[float, np.ndarray]:
        """Log-density of the log-variances of l2 noise, and its derivatives."""
        shapes = (np.diff(self._features.ends) + 1) / 2
        ratios = np.exp(log_variances) / (2 * self._features.scales**2)
        return float((shapes * log_variances - ratios)[self._l2].sum()), shapes - ratios
