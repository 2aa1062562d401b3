"""The eight benchmark models of Räisä's thesis, with draws from their exact posteriors.

O. Räisä, *Differentially private Metropolis-Hastings algorithms* (Master's thesis, University of Helsinki, 2021),
chapter 5 and Table 5.1: bananas that are flat, tempered or narrow, Gaussian distributions in 30 dimensions and with
correlation 0.999, and a circle. Vectors have the order of ``RecordLikelihood.ravel``: nothing is transformed.

Models and table are from the text; proposals, noise and clip bounds are from the parameter files of the author's program
(https://github.com/oraisa/masters-thesis), since the text has none. They contradict each other in these points:

- The prior variance of the correlated Gaussian is 100 in the table. The program's sampler uses 100 as the standard
  deviation, its reference draws use it as the variance. We follow the text; with 200 000 records the posterior means
  differ by less than 1e-4 standard deviations.
- The program lists spreads of starting points that it does not use. It uses those of the text: the mean standard
  deviation of the posterior. Here it is exact, there it is that of 1000 reference draws.
- The text has no reference draws for the circle, and calls them difficult. They are not: with ``u = x**2 + y**2`` the
  area is ``du dphi / 2``, so ``u`` is normal, truncated at zero.

Data come from NumPy's generator, so they are not the thesis's. This affects the bananas: their width in theta2 depends
on the mean of x1. Starting points depend on the true parameters and, by their spread, on the data: a comparison of
samplers may use these, a private analysis may not.
"""

import math

from dataclasses import dataclass

import numpy as np
import pymc as pm

from scipy.stats import truncnorm

import pymc_dp as dp


@dataclass(frozen=True)
class Experiment:
    """A model with the thesis's settings of the DP penalty.

    Subclasses draw `data`, records along the leading axis, from a seed; write a `model` of them, whose likelihood is not
    tempered, since steps do that; draw from the tempered posterior (`exact`); and know its `log_density` up to a constant
    and its standard deviations (`sds`). Chains begin at `starts`.
    """

    name: str  # in the author's program
    title: str  # in the thesis
    n_dim: int
    n_records: int
    tau: float  # noise, in sensitivities, by the root of the number of records
    scale: float  # standard deviation of the random walk
    clip_bound: float  # per unit of Euclidean distance, before tempering
    n_tempered: int | None = None  # effective number of records of the tempered likelihood

    @property
    def temperature(self):
        """Factor of the log-likelihood."""
        return 1.0 if self.n_tempered is None else self.n_tempered / self.n_records

    @property
    def delta(self):
        """Delta of the thesis."""
        return 0.1 / self.n_records

    @property
    def settings(self):
        """Options of `pymc_dp.DPPenalty`, without the temperature, for one chain (a new proposal each time).

        The program's noise on the log-ratio has standard deviation ``tau sqrt(n) 2 T b M``: the sensitivity
        ``2 T b M`` times ``noise_multiplier``.
        """
        return {
            "clip_bound": self.clip_bound,
            "proposal": dp.RandomWalk(self.scale),
            "noise_multiplier": self.tau * math.sqrt(self.n_records),
        }


@dataclass(frozen=True)
class Banana(Experiment):
    """Normal records whose second mean is a curve: ``x2 ~ N(theta2 + a theta1**2, ...)``.

    The prior has the same curve, so that ``phi = (theta1, theta2 + a theta1**2, theta3, ...)`` is normal a
    priori and, as the map has Jacobian 1, a posteriori (Theorem 5.2 of the thesis).
    """

    curvature: float = 20.0  # a
    correlation: float | None = None  # of x1 and x2; then all variances are 1
    prior_variance: float = 1000.0

    @property
    def truth(self):
        """True parameters."""
        return np.concatenate([[0.0, 3.0], np.zeros(self.n_dim - 2)])

    @property
    def covariance(self):
        """Covariance of a record."""
        if self.correlation is None:
            return np.diag(np.concatenate([[20.0, 2.5], np.ones(self.n_dim - 2)]))
        return np.array([[1.0, self.correlation], [self.correlation, 1.0]])

    def straight(self, theta):
        """Map ``theta`` to ``phi``."""
        phi = np.array(theta, dtype=float)
        phi[..., 1] += self.curvature * phi[..., 0] ** 2
        return phi

    def bent(self, phi):
        """Map ``phi`` to ``theta``."""
        theta = np.array(phi, dtype=float)
        theta[..., 1] -= self.curvature * theta[..., 0] ** 2
        return theta

    def data(self, seed):
        """Draw the records, shape (n_records, n_dim)."""
        z = np.random.default_rng(seed).standard_normal((self.n_records, self.n_dim))
        return self.straight(self.truth) + z @ np.linalg.cholesky(self.covariance).T

    def model(self, data):
        """Write the model: the second column given the first, and the others."""
        # In two dimensions four times faster than a matrix, and ten times faster than pm.MvNormal.
        first, second = np.ascontiguousarray(data[:, 0]), np.ascontiguousarray(data[:, 1])
        a, prior = self.curvature, math.sqrt(self.prior_variance)
        sd1, sd2 = np.sqrt(np.diag(self.covariance)[:2])
        with pm.Model() as model:
            theta1 = pm.Normal("theta1", 0.0, prior)
            theta2 = pm.Normal("theta2", -a * theta1**2 if a else 0.0, prior)
            x1 = pm.Normal("x1", theta1, sd1, observed=first)
            mean = theta2 + a * theta1**2 if a else theta2
            if self.correlation is not None:
                mean = mean + self.correlation * sd2 / sd1 * (x1 - theta1)
                sd2 = sd2 * math.sqrt(1 - self.correlation**2)
            pm.Normal("x2", mean, sd2, observed=second)
            if self.n_dim > 2:
                rest = pm.Normal("theta_rest", 0.0, prior, shape=self.n_dim - 2)
                pm.Normal("x_rest", rest, 1.0, observed=np.ascontiguousarray(data[:, 2:]))
        return model

    def posterior(self, data):
        """Mean and precision matrix of ``phi``."""
        likelihood = self.temperature * len(data) * np.linalg.inv(self.covariance)
        precision = likelihood + np.eye(self.n_dim) / self.prior_variance
        return np.linalg.solve(precision, likelihood @ data.mean(axis=0)), precision

    def exact(self, data, n_draws, rng):
        """Draw independently from the tempered posterior, shape (n_draws, n_dim)."""
        mean, precision = self.posterior(data)
        z = rng.standard_normal((n_draws, self.n_dim))
        return self.bent(mean + np.linalg.solve(np.linalg.cholesky(precision).T, z.T).T)

    def log_density(self, data, theta):
        """Log-density of `exact` up to a constant, at points of shape (..., n_dim)."""
        mean, precision = self.posterior(data)
        d = self.straight(theta) - mean
        return -0.5 * np.einsum("...i,ij,...j", d, precision, d)

    def sds(self, data):
        """Posterior standard deviations, shape (n_dim,), exactly."""
        mean, precision = self.posterior(data)
        covariance, a = np.linalg.inv(precision), self.curvature
        variances = np.diag(covariance).copy()
        # phi2 - a phi1**2: variance of a square, and its covariance with phi2.
        variances[1] += a**2 * (2 * covariance[0, 0] ** 2 + 4 * mean[0] ** 2 * covariance[0, 0])
        variances[1] -= 4 * a * mean[0] * covariance[0, 1]
        return np.sqrt(variances)

    def starts(self, data, n_chains, rng):
        """Draw starting points around the truth, all components with the mean posterior sd."""
        z = rng.standard_normal((n_chains, self.n_dim))
        return self.truth + self.sds(data).mean() * z


@dataclass(frozen=True)
class Circle(Experiment):
    """Log-likelihood ``-a (x**2 + y**2 - r**2)**2`` of a radius, and a flat prior.

    This is a loss rather than a log-density: its integral over ``r`` varies with ``x, y``.
    """

    sharpness: float = 1e-5  # a

    def data(self, seed):
        """Draw the radii, shape (n_records,)."""
        return np.random.default_rng(seed).normal(3.0, 1.0, size=self.n_records)

    def model(self, data):
        """Write the model, with one parameter vector (x, y)."""

        def logp(r, square):
            return -self.sharpness * (square - r**2) ** 2

        with pm.Model() as model:
            theta = pm.Flat("theta", shape=2)
            pm.CustomDist("r", (theta**2).sum(), logp=logp, observed=data)
        return model

    def posterior(self, data):
        """Distribution of ``x**2 + y**2``, by SciPy: normal, truncated at zero."""
        mean = np.mean(data**2)
        sd = 1 / math.sqrt(2 * self.sharpness * self.temperature * len(data))
        return truncnorm(-mean / sd, np.inf, loc=mean, scale=sd)

    def exact(self, data, n_draws, rng):
        """Draw independently from the tempered posterior, shape (n_draws, 2)."""
        radius = np.sqrt(self.posterior(data).rvs(n_draws, random_state=rng))
        angle = rng.uniform(0, 2 * np.pi, size=n_draws)
        return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])

    def log_density(self, data, theta):
        """Log-density of `exact` up to a constant, at points of shape (..., 2)."""
        return self.posterior(data).logpdf(np.sum(np.square(theta), axis=-1))

    def sds(self, data):
        """Posterior standard deviations, shape (2,), exactly: both means are zero."""
        return np.full(2, math.sqrt(self.posterior(data).mean() / 2))

    def starts(self, data, n_chains, rng):
        """Draw starting points around (0, 1), well inside the circle."""
        return np.array([0.0, 1.0]) + rng.standard_normal((n_chains, 2))


# Name, title, dimensions, records; tau, scale, clip bound.
EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Banana("easy-2d", "Flat banana, d = 2", 2, 100_000, 0.1, 0.008, 2.0),
        Banana("easy-10d", "Flat banana, d = 10", 10, 200_000, 0.1, 0.0015, 2.0),
        Banana("tempered-2d", "Tempered banana, d = 2", 2, 100_000, 0.2, 0.035, 5.0, n_tempered=1000),
        Banana("tempered-10d", "Tempered banana, d = 10", 10, 200_000, 0.18, 0.02, 3.0, n_tempered=1000),
        Banana("gauss-30d", "High dimensional Gauss", 30, 200_000, 0.06, 8.4e-4, 3.0, curvature=0.0),
        Banana("hard-2d", "Narrow banana", 2, 150_000, 0.2, 0.0015, 5.5, curvature=350.0),
        Banana("hard-gauss-2d", "Correlated Gauss", 2, 200_000, 0.07, 1.5e-4, 50.0,
               curvature=0.0, correlation=0.999, prior_variance=100.0),
        Circle("circle", "Circle", 2, 100_000, 4.0, 0.2, 0.002),
    )
}  # fmt: skip


def one_chain(model, step, budget, draws, seed, start):
    """Sample one chain as a user would, from a start."""
    return pm.sample(
        draws=draws, tune=0, chains=1, cores=1, step=step, callback=budget, model=model, random_seed=seed,
        initvals=start, progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
