"""What the log-likelihood of a batch of records costs in time, next to that of all records.

``python -m tests.benchmarks.test_indexing_cost`` prints a table. Measurements of all sizes of the data, and of batches and full
vectors, alternate in one process and medians are compared, since machines differ and are shared; batches are drawn anew each
time, so that their rows are not in the cache; BLAS has one thread, as in a chain among others. As tests they run by name only
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
SIZES = (10_000, 100_000, 1_000_000)


def logistic_regression(n: int) -> RecordLikelihood:
    """20 covariates."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 20))
    y = rng.random(n) < 1 / (1 + np.exp(-x @ rng.normal(0, 0.3, 20)))
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=x @ pm.Normal("beta", 0, 2.5, shape=20), observed=y.astype(int))
    return RecordLikelihood(model)


def group_effects(n: int) -> RecordLikelihood:
    """Poisson regression with an intercept for each of 50 groups."""
    rng = np.random.default_rng(2)
    group, x, y = rng.integers(50, size=n), rng.normal(size=n), rng.poisson(1.0, size=n)
    with pm.Model() as model:
        a = pm.Normal("mu") + pm.HalfNormal("tau") * pm.Normal("z", shape=50)
        pm.Poisson("y", pm.math.exp(a[group] + pm.Normal("slope") * x), observed=y)
    return RecordLikelihood(model)


def softmax_regression(n: int) -> RecordLikelihood:
    """5 covariates, 4 classes."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(n, 5)), rng.integers(4, size=n)
    with pm.Model() as model:
        pm.Categorical("y", logit_p=x @ pm.Normal("beta", shape=(5, 4)), observed=y)
    return RecordLikelihood(model)


def persons(n: int) -> RecordLikelihood:
    """Linear regression with 1 to 9 rows for each of n / 5 persons."""
    rng = np.random.default_rng(4)
    records = np.repeat(np.arange(n // 5), rng.integers(1, 10, size=n // 5))
    rng.shuffle(records)
    x, y = rng.normal(size=(len(records), 5)), rng.normal(size=len(records))
    with pm.Model() as model:
        pm.Normal("y", x @ pm.Normal("beta", shape=5), pm.HalfNormal("s"), observed=y)
    return RecordLikelihood(model, records=records)


CASES: dict[str, Callable[[int], RecordLikelihood]] = {
    "logistic regression, d = 20": logistic_regression,
    "group effects": group_effects,
    "softmax regression": softmax_regression,
    "persons of 1 to 9 rows": persons,
}


def measure(make: Callable[[int], RecordLikelihood], rounds: int = 600) -> np.ndarray:
    """Medians in seconds: one row per size of the data, with a batch, all records, and the first batch (once)."""
    rng = np.random.default_rng(5)
    likelihoods = [make(n) for n in SIZES]
    times = np.full((rounds, len(SIZES), 3), np.nan)
    for k, likelihood in enumerate(likelihoods):
        begin = time.perf_counter()
        likelihood.logp_at(np.zeros(likelihood.n_dim), np.arange(BATCH))
        times[:, k, 2] = time.perf_counter() - begin
    for i in range(rounds):
        for k, likelihood in enumerate(likelihoods):
            theta = rng.normal(0, 0.3, size=likelihood.n_dim)
            index = rng.integers(likelihood.n_records, size=BATCH)
            begin = time.perf_counter()
            likelihood.logp_at(theta, index)
            times[i, k, 0] = time.perf_counter() - begin
            if i % 20 == 0:
                begin = time.perf_counter()
                likelihood.logp(theta)
                times[i, k, 1] = time.perf_counter() - begin
    return np.nanmedian(times, axis=0)


@pytest.fixture(autouse=True)
def one_thread():
    with threadpool_limits(1):
        yield


@pytest.mark.parametrize("n", SIZES[:2])
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_batch(make, n, benchmark):
    likelihood, rng = make(n), np.random.default_rng(6)
    theta = np.zeros(likelihood.n_dim)
    likelihood.logp_at(theta, [0])  # compiles

    def setup():
        return (theta, rng.integers(likelihood.n_records, size=BATCH)), {}

    assert benchmark.pedantic(likelihood.logp_at, setup=setup, rounds=300).shape == (BATCH,)


def main() -> int:
    """Print the table."""
    print(
        f"Batches of {BATCH} records, medians; PyMC {pm.__version__}, Python {sys.version.split()[0]}"
    )
    print(f"{'':30s}{'N':>10s}{'batch [us]':>12s}{'all [us]':>12s}{'first batch [s]':>17s}")
    for name, make in CASES.items():
        with threadpool_limits(1):
            medians = measure(make)
        for n, (batch, full, first) in zip(SIZES, medians, strict=True):
            print(f"{name:30s}{n:10d}{batch * 1e6:12.1f}{full * 1e6:12.0f}{first:17.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
