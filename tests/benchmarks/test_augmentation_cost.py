"""What a sweep over latent records costs in time, next to loops that do the same for this model alone.

``python -m tests.benchmarks.test_augmentation_cost`` prints a table. The model is the regression of Ju
et al. (2022): two covariates and an outcome, nine noisy moments. The parameters are drawn from their
conjugate distribution, as by the authors, and once each by PyMC's Metropolis and NUTS. By hand: a loop
over records in Python with NumPy, as the authors' R program has it, and one compiled by Numba.
Measurements alternate in one process. As tests they run by name only (``pytest tests/benchmarks``) and
assert nothing on time.
"""

from __future__ import annotations

import math
import time

from collections.abc import Callable

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from scipy.linalg.lapack import dpotrf, dpotrs, dtrtrs
from threadpoolctl import threadpool_limits

import pymc_dp as dp

CENTRE, SPREAD, BOUND, SCALE = np.array([0.9, -1.17]), math.sqrt(2), 10.0, 13.0
PAIRS = tuple(k[1:] for k in np.triu_indices(4))
RELEASED = np.array([9.9, -13.9, -38.2, 2.2, -2.3, -6.7, 3.4, 3.2, 27.2])


def regression(n: int) -> pm.Model:
    """`n` people; the release is that of 100, scaled up."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=3)
        x = pm.Normal("x", CENTRE, 1, shape=(n, 2))
        y = pm.Normal("y", beta[0] + x @ beta[1:], SPREAD, shape=n)
        xy = pm.math.clip(pt.concatenate([x, y[:, None]], axis=1), -BOUND, BOUND) / BOUND
        z = pt.concatenate([pt.ones((n, 1)), xy], axis=1)
        pm.Laplace("released", (z.T @ z)[PAIRS], SCALE, observed=RELEASED * n / 100)
    return model


def conjugate(point: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Coefficients given the records: a normal distribution, by its precision's Cholesky factor."""
    design = np.empty((len(point["y"]), 3))
    design[:, 0], design[:, 1:] = 1.0, point["x"]
    precision = design.T @ design
    precision *= 1 / SPREAD**2
    precision.ravel()[::4] += 1 / 4
    factor, _ = dpotrf(precision, lower=1)
    mean, _ = dpotrs(factor, (point["y"] @ design) / SPREAD**2, lower=1)
    deviation, _ = dtrtrs(factor, rng.standard_normal(3), lower=1, trans=1)
    return mean + deviation


def ours(n: int, parameters: str = "conjugate") -> Callable[[], None]:
    """An iteration of `PrivatizedRecords` and of a step for the parameters."""
    model, rng = regression(n), np.random.default_rng(1)
    records = dp.PrivatizedRecords([model["x"], model["y"]], model=model, rng=rng)
    point = [model.initial_point()]
    other = None
    if parameters != "conjugate":
        kind = {"Metropolis": pm.Metropolis, "NUTS": pm.NUTS}[parameters]
        other = kind([model["beta"]], model=model, rng=rng, compile_kwargs={"mode": "NUMBA"})

    def iterate() -> None:
        new, _ = records.step(point[0])
        if other is None:
            new["beta"] = conjugate(new, rng)
        else:
            new, _ = other.step(new)
        point[0] = new

    for _ in range(300 if other is not None else 3):
        iterate()
    if other is not None:
        other.stop_tuning()
    return iterate


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


def by_hand(n: int, compiled: bool) -> Callable[[], None]:
    """The same for this model alone."""
    rng = np.random.default_rng(1)
    loop = numba.njit(_loop) if compiled else _loop
    point = {"x": rng.normal(CENTRE, 1, size=(n, 2)), "y": rng.normal(size=n), "beta": np.zeros(3)}

    def iterate() -> None:
        x = rng.normal(CENTRE, 1, size=(n, 2))
        y = rng.normal(point["beta"][0] + x @ point["beta"][1:], SPREAD)
        loop(point["x"], point["y"], x, y, rng.random(n), RELEASED * n / 100, SCALE, *PAIRS)
        point["beta"] = conjugate(point, rng)

    iterate()
    return iterate


def median_times(calls: dict[str, Callable[[], None]], budget: float = 3.0) -> dict[str, float]:
    """Median seconds a call, alternating; `budget` in seconds for each."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    while time.perf_counter() - started < budget * len(calls):
        for name, call in calls.items():
            repeats = 20 if times[name] and times[name][0] < 2e-3 else 1
            before = time.perf_counter()
            for _ in range(repeats):
                call()
            times[name].append((time.perf_counter() - before) / repeats)
    return {name: float(np.median(each)) for name, each in times.items()}


CALLS = {
    "conjugate": lambda: ours(100),
    "Metropolis": lambda: ours(100, "Metropolis"),
    "NUTS": lambda: ours(100, "NUTS"),
    "by hand, Numba": lambda: by_hand(100, True),
    "by hand, Python": lambda: by_hand(100, False),
}


@pytest.mark.parametrize("name", CALLS)
def test_iteration(benchmark, name):
    with threadpool_limits(1):
        benchmark(CALLS[name]())


@pytest.mark.parametrize("n", [100, 10_000])
def test_sweep(benchmark, n):
    with threadpool_limits(1):
        benchmark(ours(n))


def main() -> None:
    """Print the tables."""
    with threadpool_limits(1):
        times = median_times({name: make() for name, make in CALLS.items()})
        print("100 records, a sweep and a draw of the parameters, microseconds (per record):")
        for name, each in times.items():
            print(
                f"  {name:16s} {each * 1e6:8.0f} ({each * 1e4:6.2f})  ratio {each / times['conjugate']:5.1f}"
            )
        sizes = (100, 1000, 10_000, 100_000)
        times = median_times({str(n): ours(n) for n in sizes})
        print("microseconds per record, conjugate draws:")
        for n in sizes:
            print(f"  {n:7d} {times[str(n)] / n * 1e6:6.2f}")


if __name__ == "__main__":
    main()
