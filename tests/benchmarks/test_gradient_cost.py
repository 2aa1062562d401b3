"""What a sum of clipped gradients costs in time, next to the same written by hand in NumPy.

``python -m tests.benchmarks.test_gradient_cost`` prints a table. Measurements alternate in one process and medians are compared,
since machines differ and are shared; BLAS has one thread, as in a chain among others. By hand means: a matrix with a gradient for
each record, norms, clipping, and a floating-point sum, without the rounding that makes ours exact. As tests they run by name only
(``pytest tests/benchmarks``) and assert nothing on time.
"""

from __future__ import annotations

import sys
import time

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytest

from threadpoolctl import threadpool_limits

from pymc_dp.model import RecordLikelihood

BATCH = 500
BOUND = 1.0
ByHand = Callable[[np.ndarray, float], np.ndarray]


def clipped(gradients: np.ndarray, bound: float) -> np.ndarray:
    norms = np.sqrt(np.einsum("ij,ij->i", gradients, gradients))
    return np.minimum(1.0, bound / norms) @ gradients


def logistic_regression(n: int) -> tuple[RecordLikelihood, ByHand]:
    """20 covariates."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 20))
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ rng.normal(0, 0.3, 20)))).astype(int)
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=x @ pm.Normal("beta", 0, 2.5, shape=20), observed=y)

    def by_hand(theta, bound):
        residual = y - 1 / (1 + np.exp(-x @ theta))
        return clipped(residual[:, None] * x, bound)

    return RecordLikelihood(model), by_hand


def banana(n: int) -> tuple[RecordLikelihood, ByHand]:
    """Two observed variables, two parameters."""
    rng = np.random.default_rng(2)
    x1, x2 = rng.normal(0, 20**0.5, size=n), rng.normal(0, 2.5**0.5, size=n)
    with pm.Model() as model:
        t = pm.Flat("t", shape=2)
        pm.Normal("x1", t[0], 20**0.5, observed=x1)
        pm.Normal("x2", t[1] + 20 * t[0] ** 2, 2.5**0.5, observed=x2)

    def by_hand(theta, bound):
        second = (x2 - theta[1] - 20 * theta[0] ** 2) / 2.5
        first = (x1 - theta[0]) / 20 + second * 40 * theta[0]
        return clipped(np.stack([first, second], axis=1), bound)

    return RecordLikelihood(model), by_hand


def gaussian(n: int) -> tuple[RecordLikelihood, ByHand]:
    """30 independent means."""
    y = np.random.default_rng(3).normal(size=(n, 30))
    scale = np.sqrt(np.linspace(1, 20, 30))
    with pm.Model() as model:
        pm.Normal("y", pm.Flat("theta", shape=30), scale, observed=y)
    likelihood = RecordLikelihood(model, public=[scale])
    return likelihood, lambda theta, bound: clipped((y - theta) / scale**2, bound)


def linear_regression(n: int) -> tuple[RecordLikelihood, ByHand]:
    """20 covariates and an unknown scale."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(n, 20)), rng.normal(size=n)
    with pm.Model() as model:
        pm.Normal("y", x @ pm.Flat("beta", shape=20), pm.HalfNormal("sigma"), observed=y)

    def by_hand(theta, bound):
        residual = (y - x @ theta[:20]) / np.exp(theta[20])
        gradients = np.empty((n, 21))
        gradients[:, :20] = (residual / np.exp(theta[20]))[:, None] * x
        gradients[:, 20] = residual**2 - 1
        return clipped(gradients, bound)

    return RecordLikelihood(model), by_hand


def group_effects(n: int) -> tuple[RecordLikelihood, ByHand]:
    """Poisson regression with an intercept for each of 50 groups."""
    rng = np.random.default_rng(5)
    group, x, y = rng.integers(50, size=n), rng.normal(size=n), rng.poisson(1.0, size=n)
    with pm.Model() as model:
        a = pm.Normal("a", shape=50)
        pm.Poisson("y", pm.math.exp(a[group] + pm.Normal("slope") * x), observed=y)

    def by_hand(theta, bound):
        residual = y - np.exp(theta[group] + theta[50] * x)
        gradients = np.zeros((n, 51))
        gradients[np.arange(n), group] = residual
        gradients[:, 50] = residual * x
        return clipped(gradients, bound)

    return RecordLikelihood(model), by_hand


CASES: dict[str, tuple[Callable[[int], tuple[RecordLikelihood, ByHand]], int]] = {
    "logistic regression, d = 20": (logistic_regression, 100_000),
    "banana, d = 2": (banana, 100_000),
    "Gaussian, d = 30": (gaussian, 200_000),
    "linear regression, d = 21": (linear_regression, 100_000),
    "group effects, d = 51": (group_effects, 100_000),
}


def seconds(function: Callable, *args) -> float:
    begin = time.perf_counter()
    function(*args)
    return time.perf_counter() - begin


def measure(name: str, rounds: int = 40) -> tuple[float, float, float]:
    """Medians in seconds: ours, by hand, and the first call (once)."""
    make, n = CASES[name]
    likelihood, by_hand = make(n)
    rng = np.random.default_rng(6)
    times = np.empty((rounds, 2))
    first = seconds(likelihood.clipped_grad, np.zeros(likelihood.n_dim), BOUND)
    for row in times:
        theta = rng.normal(0, 0.1, size=likelihood.n_dim)
        row[:] = seconds(likelihood.clipped_grad, theta, BOUND), seconds(by_hand, theta, BOUND)
    ours, other = np.median(times, axis=0)
    return ours, other, first


def measure_batches(
    sizes: tuple[int, ...] = (100_000, 1_000_000), rounds: int = 400
) -> list[float]:
    """Medians in seconds for a batch of the logistic regression, for each number of records."""
    rng = np.random.default_rng(7)
    likelihoods = [logistic_regression(n)[0] for n in sizes]
    times = np.empty((rounds, len(sizes)))
    for likelihood in likelihoods:
        likelihood.clipped_grad(np.zeros(likelihood.n_dim), BOUND, [0])  # compiles
    for row in times:
        for k, likelihood in enumerate(likelihoods):
            theta = rng.normal(0, 0.3, size=likelihood.n_dim)
            index = rng.integers(likelihood.n_records, size=BATCH)
            row[k] = seconds(likelihood.clipped_grad, theta, BOUND, index)
    return np.median(times, axis=0).tolist()


@pytest.fixture(autouse=True)
def one_thread():
    with threadpool_limits(1):
        yield


@pytest.mark.parametrize("name", CASES)
def test_sum(name, benchmark):
    make, _ = CASES[name]
    likelihood, by_hand = make(20_000)
    theta = np.full(likelihood.n_dim, 0.1)
    likelihood.clipped_grad(theta, BOUND)  # compiles
    found = benchmark(likelihood.clipped_grad, theta, BOUND)
    np.testing.assert_allclose(found, by_hand(theta, BOUND), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("n", [10_000, 100_000])
def test_batch(n, benchmark):
    likelihood, _ = logistic_regression(n)
    rng, theta = np.random.default_rng(8), np.zeros(likelihood.n_dim)
    likelihood.clipped_grad(theta, BOUND, [0])  # compiles

    def setup():
        return (theta, BOUND, rng.integers(n, size=BATCH)), {}

    assert benchmark.pedantic(likelihood.clipped_grad, setup=setup, rounds=300).shape == (20,)


def main() -> int:
    """Print the tables."""
    print(f"Clipped gradients, medians; PyMC {pm.__version__}, Python {sys.version.split()[0]}")
    print(f"{'':30s}{'N':>10s}{'ours [ms]':>12s}{'NumPy [ms]':>12s}{'ratio':>8s}{'first [s]':>11s}")
    with threadpool_limits(1):
        for name, (_, n) in CASES.items():
            ours, other, first = measure(name)
            print(
                f"{name:30s}{n:10d}{ours * 1e3:12.2f}{other * 1e3:12.2f}{ours / other:8.2f}{first:11.1f}"
            )
        few, many = measure_batches()
    print(
        f"Batches of {BATCH}: {few * 1e6:.0f} us of 100 000 records, {many * 1e6:.0f} us of 10**6"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
