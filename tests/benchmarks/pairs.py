"""Parts of the package, each beside something that does the same, or less, in the same run.

``python -m tests.benchmarks.pairs`` prints microseconds and ratios. Both of a pair alternate in one process, on one thread, and
medians are compared, since machines differ and are shared. `PAIRS` has a function for each, which makes the two calls. Whole
iterations, compiling, memory and efficiency are in ``python -m tests.benchmarks``.
"""

from __future__ import annotations

import functools
import math
import os
import sys

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt

from threadpoolctl import threadpool_limits

import pymc_dp as dp

from pymc_dp import Barker, Penalty
from pymc_dp.model import RecordLikelihood
from pymc_dp.privacy import (
    Decision,
    Gaussian,
    PoissonMinibatchDecision,
    SampledDecision,
    SampledGaussian,
    calibrate,
    epsilon_of,
    max_draws,
)
from pymc_dp.privacy.accounting import composition, pld
from pymc_dp.privacy.mechanisms import decision_suprema as decisions
from pymc_dp.privacy.mechanisms import poisson_minibatch as minibatch
from pymc_dp.privacy.randomness.batches import poisson, with_replacement, without_replacement
from pymc_dp.privacy.randomness.bits import OperatingSystemBits
from pymc_dp.privacy.randomness.rounded_gaussian import noisy_sum, rounded_gaussian
from pymc_dp.steps import Lazy
from tests.benchmarks.cost import medians
from tests.benchmarks.regression import problem

Call = Callable[[], Any]
RNG = np.random.default_rng(1)
BATCH = 500


# ------------------------------------------------------------------------- secret bits, and NumPy's generator
def drawn(ours: Callable[[int], Any], other: Callable[[int], Any], n: int) -> tuple[Call, Call]:
    return lambda: ours(n), lambda: other(n)


BITS = OperatingSystemBits()
DRAWS: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {
    "batch without replacement": (lambda n: without_replacement(n, 1000), lambda n: RNG.choice(n, 1000, replace=False)),
    "batch with replacement": (lambda n: with_replacement(n, 1000), lambda n: RNG.integers(n, size=1000)),
    "Poisson batch": (lambda n: poisson(n, 1000 / n), lambda n: RNG.integers(n, size=RNG.poisson(1000))),
    "rounded Gaussian": (lambda n: rounded_gaussian(2.0**40, n, BITS), lambda n: RNG.normal(size=n)),
    "noisy sum": (lambda n: noisy_sum(np.zeros(n, dtype=np.int64), -40, 1.0, BITS), lambda n: RNG.normal(size=n)),
    # 1.4 proposals, of two words each.
    "rounded Gaussian, beside its bits": (
        lambda n: rounded_gaussian(2.0**40, n, BITS),
        lambda n: os.urandom(16 * int(1.4 * n + 2 * n**0.5 + 4)),
    ),
}  # fmt: skip


# ------------------------------------------------------------------------- likelihoods and gradients
@functools.lru_cache
def logistic_regression(n: int) -> tuple[RecordLikelihood, Callable]:
    """20 covariates; gradients by hand."""
    p = problem(n, 20)

    def by_hand(theta: np.ndarray) -> np.ndarray:
        return (p.sign / (1 + np.exp(p.sign * (p.x @ theta))))[:, None] * p.x

    return RecordLikelihood(p.model), by_hand


@functools.lru_cache
def group_effects(n: int) -> tuple[RecordLikelihood, Callable]:
    """Poisson regression with an intercept for each of 50 groups; gradients by hand."""
    rng = np.random.default_rng(5)
    group, x, y = rng.integers(50, size=n), rng.normal(size=n), rng.poisson(1.0, size=n)
    with pm.Model() as model:
        a = pm.Normal("a", shape=50)
        pm.Poisson("y", pm.math.exp(a[group] + pm.Normal("slope") * x), observed=y)

    def by_hand(theta: np.ndarray) -> np.ndarray:
        residual = y - np.exp(theta[group] + theta[50] * x)
        gradients = np.zeros((n, 51))
        gradients[np.arange(n), group] = residual
        gradients[:, 50] = residual * x
        return gradients

    return RecordLikelihood(model), by_hand


MODELS = {
    "logistic regression, d = 20": logistic_regression,
    "group effects, d = 51": group_effects,
}


def clipped_sums(make: Callable, n: int, bound: float = 1.0) -> tuple[Call, Call]:
    """Sums of clipped gradients: exact ones, and a floating-point sum of a matrix by hand."""
    likelihood, by_hand = make(n)
    theta = np.full(likelihood.n_dim, 0.1)

    def other() -> np.ndarray:
        g = by_hand(theta)
        norms = np.sqrt(np.einsum("ij,ij->i", g, g))
        return np.minimum(1.0, bound / np.maximum(norms, 1e-300)) @ g

    return lambda: likelihood.clipped_grad(theta, bound), other


def batch_of_records(make: Callable, n: int) -> tuple[Call, Call]:
    """Log-likelihoods of a batch, drawn anew so that its rows are not in the cache, and of all records."""
    likelihood, _ = make(n)
    theta = np.full(likelihood.n_dim, 0.1)
    return lambda: likelihood.logp_at(theta, RNG.integers(n, size=BATCH)), lambda: likelihood.logp(
        theta
    )


# ------------------------------------------------------------------------- accountants
def batch(z: float, q: float) -> SampledGaussian:
    return SampledGaussian(z, q, "without_replacement", "substitute")


def poisson_batch(z: float, q: float) -> SampledGaussian:
    return SampledGaussian(z, q, "poisson", "add_remove")


HMC = [(Decision(Penalty(1.4), 0.044), 1), (Gaussian(126.5), 10)]
QUESTIONS: dict[str, Call] = {
    "draws of penalty decisions": lambda: max_draws([(Decision(Lazy(Penalty(2.0), 0.5), 0.05), 1)], 1.0, 1e-6, 4),
    "draws of HMC": lambda: max_draws(HMC, 1.0, 1e-6, 4, per_chain=[HMC[1]]),
    "draws of batches without replacement": lambda: max_draws([(batch(0.84, 0.01), 1)], 4.0, 1e-6),
    "draws of sampled decisions": lambda: max_draws([(SampledDecision(Penalty(1.4), 1.0, 0.01), 1)], 4.0, 1e-6),
    "draws of DP-Fast MH": lambda: max_draws([(PoissonMinibatchDecision(Barker(), 0.01, 500, 50_000), 1)], 4.0, 1e-6),
    "epsilon of 1000 Poisson batches": lambda: epsilon_of([(poisson_batch(1.1, 0.01), 1000)], 1e-6),
    "noise multiplier of batches": lambda: calibrate(lambda z: [(batch(z, 0.01), 1000)], 2.0, 1e-6, low=0.1, high=100),
    "noise scale of decisions": lambda: calibrate(
        lambda s: [(Decision(Penalty(s), 0.04), 1000)], 2.0, 1e-6, low=0.05, high=50
    ),
    "SGHMC, 200 noise levels": lambda: epsilon_of(
        [(poisson_batch(math.sqrt(2 / (0.49 * 3 * t ** (-1 / 3))), 0.01), 10) for t in range(1, 201)], 1e-6
    ),
}  # fmt: skip


def forget() -> None:
    """Empty every cache of the accountants."""
    for module in (composition, decisions, minibatch, pld):
        for value in vars(module).values():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


def asked(question: Call) -> tuple[Call, Call]:
    """A new question; and one epsilon of 1000 Poisson-sampled Gaussian releases by dp_accounting alone, at its default grid."""
    from dp_accounting.pld import privacy_loss_distribution

    def ours() -> Any:
        forget()
        return question()

    def other() -> float:
        release = privacy_loss_distribution.from_gaussian_mechanism(1.1, sampling_prob=0.01)
        return release.self_compose(1000).get_epsilon_for_delta(1e-6)

    return ours, other


# ------------------------------------------------------------------------- latent records
CENTRE, SPREAD, BOUND, SCALE = np.array([0.9, -1.17]), math.sqrt(2), 10.0, 13.0
PAIRS_OF_COLUMNS = tuple(k[1:] for k in np.triu_indices(4))
RELEASED = np.array([9.9, -13.9, -38.2, 2.2, -2.3, -6.7, 3.4, 3.2, 27.2])


def _loop(x, y, new_x, new_y, u, released, scale, rows, columns):
    z, w, k = np.ones(4), np.ones(4), len(released)
    total = np.zeros(k)
    for i in range(len(y)):
        z[1], z[2], z[3] = x[i, 0], x[i, 1], y[i]
        for j in range(1, 4):
            z[j] = min(max(z[j], -10.0), 10.0) / 10
        for j in range(k):
            total[j] += z[rows[j]] * z[columns[j]]
    value = -np.abs(released - total).sum() / scale
    new = np.empty(k)
    for i in range(len(y)):
        z[1], z[2], z[3] = x[i, 0], x[i, 1], y[i]
        w[1], w[2], w[3] = new_x[i, 0], new_x[i, 1], new_y[i]
        for j in range(1, 4):
            z[j] = min(max(z[j], -10.0), 10.0) / 10
            w[j] = min(max(w[j], -10.0), 10.0) / 10
        for j in range(k):
            new[j] = total[j] + w[rows[j]] * w[columns[j]] - z[rows[j]] * z[columns[j]]
        new_value = -np.abs(released - new).sum() / scale
        if math.log(u[i]) < new_value - value:
            value = new_value
            total[:] = new
            x[i], y[i] = new_x[i], new_y[i]


def sweep(n: int) -> tuple[Call, Call]:
    """Of the regression of Ju et al. (2022), two covariates and nine noisy moments: ours, and a loop for this model by Numba."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=3)
        x = pm.Normal("x", CENTRE, 1, shape=(n, 2))
        y = pm.Normal("y", beta[0] + x @ beta[1:], SPREAD, shape=n)
        xy = pm.math.clip(pt.concatenate([x, y[:, None]], axis=1), -BOUND, BOUND) / BOUND
        z = pt.concatenate([pt.ones((n, 1)), xy], axis=1)
        pm.Laplace("released", (z.T @ z)[PAIRS_OF_COLUMNS], SCALE, observed=RELEASED * n / 100)
    records = dp.PrivatizedRecords([x, y], model=model, rng=np.random.default_rng(1))
    state, loop = [model.initial_point()], numba.njit(_loop)
    point = {"x": RNG.normal(CENTRE, 1, size=(n, 2)), "y": RNG.normal(size=n)}

    def ours() -> None:
        state[0], _ = records.step(state[0])

    def other() -> None:
        new_x = RNG.normal(CENTRE, 1, size=(n, 2))
        new_y = RNG.normal(new_x.sum(axis=1), SPREAD)
        loop(
            point["x"],
            point["y"],
            new_x,
            new_y,
            RNG.random(n),
            RELEASED * n / 100,
            SCALE,
            *PAIRS_OF_COLUMNS,
        )

    return ours, other


# ------------------------------------------------------------------------- all of them
PAIRS: dict[str, Callable[[], tuple[Call, Call]]] = {
    **{f"{name}, n = {n}": functools.partial(drawn, *both, n) for name, both in DRAWS.items() for n in (3000, 10**6)},
    **{f"clipped gradients, {name}": functools.partial(clipped_sums, make, 50_000) for name, make in MODELS.items()},
    **{f"batch of {BATCH}, {name}": functools.partial(batch_of_records, make, 50_000) for name, make in MODELS.items()},
    **{name: functools.partial(asked, question) for name, question in QUESTIONS.items()},
    "sweep over 100 records": functools.partial(sweep, 100),
}  # fmt: skip


def main() -> int:
    """Print the table."""
    print("| ours | us | ratio to the other |\n| --- | ---: | ---: |")
    for name, make in PAIRS.items():
        with threadpool_limits(1):
            ours, other = medians([*make()], 2.0)
        print(f"| {name} | {ours * 1e6:.1f} | {ours / other:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
