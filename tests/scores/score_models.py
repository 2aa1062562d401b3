"""Small models with scores written by hand, releases made of them without the package, and the exact posterior by quadrature."""

from __future__ import annotations

import functools
import itertools
import math

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import arviz as az
import numpy as np
import pymc as pm

from scipy import fft, sparse, stats
from scipy.special import digamma, expit, gammaln, logsumexp, xlogy

from pymc_dp import DPScore, PrivateScores
from pymc_dp.planning.simulator import Simulator
from pymc_dp.queries import Release
from tests.terms import score_release

#: Largest deviation of a mean, in its standard errors.
LARGEST_Z = 4.5


@dataclass(frozen=True, eq=False)
class Case:
    """A model of independent records, by hand; parameters are normal on the unconstrained scale.

    Parameters
    ----------
    name : str
    n : int
        Number of records.
    build : callable
        Makes the PyMC model of given observations.
    shapes : dict
        Value variables.
    prior : tuple of array
        Means and standard deviations.
    values : array
        Support of a record: all of it if discrete, else a fine regular grid.
    logp, score, draw : callable
        ``logp(theta, y)``; ``score(theta, y)`` of shape ``(n, d)``; ``draw(theta, n, rng)``.
    """

    name: str
    n: int
    build: Callable
    shapes: dict
    prior: tuple[np.ndarray, np.ndarray]
    values: np.ndarray
    logp: Callable
    score: Callable
    draw: Callable

    @property
    def is_discrete(self) -> bool:
        return self.values.dtype.kind == "i"

    def model(self, n: int | None = None) -> pm.Model:
        with pm.Model() as model:
            self.build(np.zeros(n or self.n, dtype=self.values.dtype))
        return model


def _bernoulli(y):
    pm.Bernoulli("y", logit_p=pm.Normal("t", 0.3, 1.2), observed=y)


def _poisson(y):
    pm.Poisson("y", pm.math.exp(pm.Normal("t", 0.5, 0.7)), observed=y)


def _mean(y):
    pm.Normal("y", pm.Normal("t", 0.2, 1.0), 1.0, observed=y)


def _location_scale(y):
    mu, sigma = pm.Normal("t", 0.2, 1.0), pm.LogNormal("sigma", 0.1, 0.4)
    pm.Normal("y", mu, sigma, observed=y)


def _score_of_location_scale(theta, y):
    z = (y - theta[0]) * np.exp(-theta[1])
    return np.column_stack([z * np.exp(-theta[1]), z**2 - 1])


CASES = {
    case.name: case
    for case in (
        Case(
            "bernoulli", 12, _bernoulli, {"t": ()}, (np.array([0.3]), np.array([1.2])), np.arange(2),
            lambda t, y: y * t[0] - np.logaddexp(0, t[0]),
            lambda t, y: (y - expit(t[0]))[:, None],
            lambda t, n, rng: rng.binomial(1, expit(t[0]), n),
        ),
        Case(
            "poisson", 10, _poisson, {"t": ()}, (np.array([0.5]), np.array([0.7])), np.arange(60),
            lambda t, y: y * t[0] - np.exp(t[0]) - gammaln(y + 1),
            lambda t, y: (y - np.exp(t[0]))[:, None],
            lambda t, n, rng: rng.poisson(np.exp(t[0]), n),
        ),
        Case(
            "mean", 5, _mean, {"t": ()}, (np.array([0.2]), np.array([1.0])), np.arange(-10, 10, 0.005),
            lambda t, y: stats.norm.logpdf(y, t[0]),
            lambda t, y: (y - t[0])[:, None],
            lambda t, n, rng: rng.normal(t[0], 1, n),
        ),
        Case(
            "student", 5, lambda y: pm.StudentT("y", nu=4, mu=pm.Normal("t", 0.2, 1.0), observed=y),
            {"t": ()}, (np.array([0.2]), np.array([1.0])), np.arange(-40, 40, 0.01),
            lambda t, y: stats.t.logpdf(y, 4, t[0]),
            lambda t, y: (5 * (y - t[0]) / (4 + (y - t[0]) ** 2))[:, None],
            lambda t, n, rng: t[0] + rng.standard_t(4, n),
        ),
        Case(
            "gamma", 5, lambda y: pm.Gamma("y", pm.math.exp(pm.Normal("t", 0.5, 0.4)), 1.0, observed=y),
            {"t": ()}, (np.array([0.5]), np.array([0.4])), np.arange(0.0025, 40, 0.005),
            lambda t, y: stats.gamma.logpdf(y, np.exp(t[0])),
            lambda t, y: (np.exp(t[0]) * (np.log(y) - digamma(np.exp(t[0]))))[:, None],
            lambda t, n, rng: rng.gamma(np.exp(t[0]), size=n),
        ),
        Case(
            "location_scale", 4, _location_scale, {"t": (), "sigma_log__": ()},
            (np.array([0.2, 0.1]), np.array([1.0, 0.4])), np.arange(-24, 24, 0.02),
            lambda t, y: stats.norm.logpdf(y, t[0], np.exp(t[1])),
            _score_of_location_scale,
            lambda t, n, rng: rng.normal(t[0], np.exp(t[1]), n),
        ),
    )
}  # fmt: skip


@functools.cache
def simulator_of(name: str, n: int | None = None) -> Simulator:
    """The model of a case, compiled once."""
    return Simulator(CASES[name].model(n))


def clipped(vectors: np.ndarray, bound: float) -> np.ndarray:
    """Rows of at most this length."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * np.minimum(1, bound / np.maximum(norms, 1e-300))


def noise_of(kind: str, scale: float, shape: tuple[int, int], rng: np.random.Generator):
    """Rows of noise: Gaussian, or of uniform direction and a length with the law Gamma(d)."""
    noise = rng.standard_normal(shape)
    if kind == "l2":
        noise *= (rng.gamma(shape[1], size=shape[0]) / np.linalg.norm(noise, axis=1))[:, None]
    return scale * noise


def log_noise(releases: Iterable[Release], residual: np.ndarray) -> np.ndarray:
    """Log-density of the noise of all releases, up to a constant, at residuals along the last axis."""
    value, start = np.zeros(residual.shape[:-1]), 0
    for r in releases:
        part = residual[..., start : start + len(r.total)]
        square = (part**2).sum(axis=-1)
        value -= (
            square / (2 * r.noise.scale**2)
            if r.noise.kind == "gaussian"
            else np.sqrt(square) / r.noise.scale
        )
        start += len(r.total)
    return value


def public(case: Case, releases, n: int | None = None) -> PrivateScores:
    """Scores of which nobody says what they cost."""
    return PrivateScores(tuple(releases), case.shapes, n or case.n, "substitute", ())


def template(
    case: Case, kind: str, k: float, theta: np.ndarray, fraction: float, n=None, **options
):
    """A release with zeros as its sum: whitened coordinates, a bound that clips a fraction, noise sd `k` times root `n`."""
    rng = np.random.default_rng(0)
    theta = np.asarray(theta, dtype=float)
    scores = case.score(theta, case.draw(theta, 100_000, rng))
    d = scores.shape[1]
    directions = np.linalg.inv(np.linalg.cholesky(scores.T @ scores / len(scores))).T
    bound = float(np.quantile(np.linalg.norm(scores @ directions, axis=1), 1 - fraction))
    sd = k * math.sqrt(n or case.n)
    scale = sd if kind == "gaussian" else sd / math.sqrt(d + 1)
    return score_release(theta, directions, bound, kind, scale, np.zeros(d), **options)


def features(case: Case, releases, y: np.ndarray) -> np.ndarray:
    """Clipped scores, by hand, of all releases side by side; or plus and minus half the difference of two."""
    parts = []
    for term in (r.term for r in releases):
        scores = case.score(term.theta, y)
        if term.clipping == "midpoint":
            one, zero = (case.score(term.theta, np.full_like(y, k)) for k in (1, 0))
            scores = np.where(y == 1, 1, -1)[:, None] * (one - zero) / 2
        parts.append(clipped(scores @ term.directions, term.bound))
    return np.hstack(parts)


def released(case: Case, releases, theta: np.ndarray, rng: np.random.Generator, n=None):
    """The same releases with noisy sums of records simulated at a position."""
    y = case.draw(theta, n or case.n, rng)
    found = []
    for r in releases:
        noise = noise_of(r.noise.kind, r.noise.scale, (1, len(r.total)), rng)[0]
        found.append(replace(r, total=features(case, [r], y).sum(axis=0) + noise))
    return found


# ---------------------------------------------------------------------- quadrature


def grid(case: Case, n: int) -> np.ndarray:
    """Positions in a regular grid, of the prior's range, shape ``(n**d, d)``."""
    mean, sd = case.prior
    axes = [np.linspace(m - 6 * s, m + 6 * s, n) for m, s in zip(mean, sd, strict=True)]
    return np.array(list(itertools.product(*axes)))


def exact_weights(case: Case, releases, positions: np.ndarray) -> np.ndarray:
    """Posterior probabilities of the positions."""
    total = np.concatenate([r.total for r in releases])
    log_prior = -(((positions - case.prior[0]) / case.prior[1]) ** 2).sum(axis=1) / 2
    log_p = np.array([case.logp(t, case.values) for t in positions])
    p = np.exp(log_p - logsumexp(log_p, axis=1, keepdims=True))
    values = features(case, releases, case.values)
    law = _by_enumeration if case.is_discrete else _by_fourier
    log_weights = log_prior + law(p, values, case.n, releases, total)
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()


def _by_enumeration(p, values, n, releases, total):
    """Over all numbers of records that have each of the (few) different features."""
    different, kind = np.unique(np.round(values, 12), axis=0, return_inverse=True)
    m = len(different)
    p = np.stack([p[:, kind.ravel() == j].sum(axis=1) for j in range(m)], axis=1)
    bars = np.array(list(itertools.combinations(range(n + m - 1), m - 1))).reshape(-1, m - 1)
    ends = np.hstack(
        [np.full((len(bars), 1), -1), bars, np.full((len(bars), 1), n + m - 1)],
    )
    counts = np.diff(ends, axis=1) - 1
    terms = gammaln(n + 1) - gammaln(counts + 1).sum(axis=1)
    terms = terms + log_noise(releases, total - counts @ different)
    return np.array([logsumexp(terms + xlogy(counts, q).sum(axis=1)) for q in p])


def _by_fourier(p, values, n, releases, total):
    """Law of the sum of features on a grid, by fast Fourier transforms; each value is split between its neighbours."""
    width = values.shape[1]
    size = 201 if width == 1 else 65
    bounds = np.concatenate([np.full(len(r.total), r.term.bound) for r in releases])
    step = 2 * bounds / (size - 1)
    place = (values + bounds) / step
    low = np.clip(np.floor(place).astype(int), 0, size - 2)
    part = place - low
    full = fft.next_fast_len(n * (size - 1) + 1)
    split = sparse.csr_matrix((len(values), full**width))
    for corner in itertools.product((0, 1), repeat=width):
        weight = np.prod(np.where(corner, part, 1 - part), axis=1)
        cell = np.ravel_multi_index(tuple((low + corner).T), (full,) * width)
        split = split + sparse.csr_matrix((weight, (np.arange(len(values)), cell)), split.shape)
    axes = [np.arange(full) * h - n * b for h, b in zip(step, bounds, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    density = fft.fftn(np.exp(log_noise(releases, total - points)))
    found = []
    for q in p:
        one = fft.fftn(np.asarray(split.T @ q).reshape((full,) * width))
        found.append(np.vdot(one**n, density).real / density.size)
    return np.log(np.maximum(found, 1e-300))


# ---------------------------------------------------------------------- chains


def chain(simulator: Simulator, scores: PrivateScores, n: int, seed: int):
    """Draws of one chain, shape ``(n, n_dim)``, after its warm-up."""
    step = DPScore(scores, simulator=simulator, model=simulator.model)
    step.set_rng(np.random.default_rng(seed))
    return np.array([simulator.likelihood.ravel(step.step({})[0]) for _ in range(n)])


def statistics(draws: np.ndarray, positions: np.ndarray, weights: np.ndarray) -> dict[str, tuple]:
    """Functions of draws, with their exact expectations: moments, and quantiles."""
    found = {}
    for j in range(draws.shape[1]):
        x, t = draws[:, j], positions[:, j]
        mean = weights @ t
        found[f"mean {j}"] = x, mean
        found[f"variance {j}"] = (x - mean) ** 2, weights @ (t - mean) ** 2
        axis = np.unique(t)
        below = np.array([weights[t <= a].sum() for a in axis])
        for level in (0.1, 0.5, 0.9):
            k = int(np.argmin(np.abs(below - level)))
            edge = axis[k] + (axis[1] - axis[0]) / 2
            found[f"quantile {level} {j}"] = (x <= edge).astype(float), below[k]
    if draws.shape[1] == 2:
        found["product"] = draws.prod(axis=1), weights @ positions.prod(axis=1)
    return found


def z_scores(draws, positions, weights) -> dict[str, float]:
    """Deviations of means of a chain from exact expectations, in standard errors."""
    found = {}
    for name, (h, expected) in statistics(draws, positions, weights).items():
        ess = float(az.ess(h[None], method="mean"))
        assert ess > 50, (name, ess)
        found[name] = float((h.mean() - expected) / (h.std() / math.sqrt(ess)))
    return found
