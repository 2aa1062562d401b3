"""What an iteration costs in time, next to the bare likelihood that no sampler can do without.

``python -m tests.benchmarks.test_iteration_cost`` prints a table. Measurements of step and likelihood alternate in one
process and medians are compared, since machines differ and are shared; BLAS has one thread, as in a chain among others. As
tests they run by name only (``pytest tests/benchmarks``) and assert nothing on time.
"""

from __future__ import annotations

import math
import sys
import time

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytest

from threadpoolctl import threadpool_limits

from pymc_dp import DPPenalty, PrivacyBudget, RandomWalk
from pymc_dp.model.sums.exact_sums import sum_of_steps

N = 100_000


def logistic_regression() -> tuple[pm.Model, float]:
    """Model and proposal scale: 20 covariates."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(N, 20))
    y = rng.random(N) < 1 / (1 + np.exp(-x @ rng.normal(0, 0.3, 20)))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2.5, shape=20)
        pm.Bernoulli("y", logit_p=x @ beta, observed=y.astype(int))
    return model, 0.002


def flat_banana() -> tuple[pm.Model, float]:
    """Model and proposal scale: Räisä (2021), section 5.4, in two dimensions."""
    bend, sd = 20.0, (math.sqrt(20.0), math.sqrt(2.5))
    x = np.random.default_rng(2).normal([0.0, 3.0], sd, size=(N, 2))
    with pm.Model() as model:
        theta1 = pm.Normal("theta1", 0, math.sqrt(1000))
        theta2 = pm.Normal("theta2", -bend * theta1**2, math.sqrt(1000))
        pm.Normal("x1", theta1, sd[0], observed=x[:, 0])
        pm.Normal("x2", theta2 + bend * theta1**2, sd[1], observed=x[:, 1])
    return model, 0.01


@dataclass(frozen=True)
class Measured:
    """Seconds: to build the step, and medians per iteration, per log-likelihood of all records, per sum of its changes."""

    build: float
    iteration: float
    likelihood: float
    total: float

    @property
    def overhead(self) -> float:
        """Seconds of an iteration beyond the bare likelihood."""
        return self.iteration - self.likelihood


def prepare(make: Callable[[], tuple[pm.Model, float]]):
    """The step of a chain that is under way, a call that makes one iteration, and the time to build the step."""
    model, scale = make()
    start = time.perf_counter()
    budget = PrivacyBudget(1e6, 1e-6, chains=1)
    step = DPPenalty(budget=budget, model=model, clip_bound=1.0, proposal=RandomWalk(scale))
    build = time.perf_counter() - start
    step.set_rng(np.random.default_rng(3))
    step.stop_tuning()
    point = [model.initial_point()]

    def iterate():
        point[0], (statistics,) = step.step(point[0])
        assert not statistics["exhausted"]

    for _ in range(50):
        iterate()
    return step, iterate, build


def measure(make: Callable[[], tuple[pm.Model, float]], rounds: int = 400) -> Measured:
    """Interleaved: an iteration, then the bare compiled function, then the sum over records, and again."""
    step, iterate, build = prepare(make)
    bare, theta = (
        step.likelihood._batch.full,
        step.likelihood.ravel(step.likelihood.unravel(step._current.theta)),
    )
    old = bare(theta)
    calls = (iterate, lambda: bare(theta), lambda: sum_of_steps(old, old, 2.0**33, 1e9))
    times = np.empty((rounds, len(calls)))
    for row in times:
        for k, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            row[k] = time.perf_counter() - begin
    return Measured(build, *np.median(times, axis=0))


CASES = {"logistic regression, d = 20": logistic_regression, "flat banana, d = 2": flat_banana}


@pytest.fixture(autouse=True)
def one_thread():
    with threadpool_limits(1):
        yield


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_iteration(make, benchmark):
    _, iterate, build = prepare(make)
    benchmark.extra_info["build seconds"] = round(build, 3)
    benchmark.pedantic(iterate, rounds=300)


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_bare_likelihood(make, benchmark):
    step, _, _ = prepare(make)
    theta = step._current.theta
    assert benchmark.pedantic(step.likelihood._batch.full, args=(theta,), rounds=300).shape == (N,)


def main() -> int:
    """Print the table."""
    print(
        f"N = {N}, medians in microseconds; PyMC {pm.__version__}, Python {sys.version.split()[0]}"
    )
    print(
        f"{'':30s}{'iteration':>10s}{'bare logp':>10s}{'sum':>8s}{'ratio':>8s}{'excess over 1.15 x bare':>25s}{'build [s]':>11s}"
    )
    for name, make in CASES.items():
        with threadpool_limits(1):
            m = measure(make)
        us = 1e6
        print(
            f"{name:30s}{m.iteration * us:10.0f}{m.likelihood * us:10.0f}{m.total * us:8.0f}{m.iteration / m.likelihood:8.3f}"
            f"{(m.iteration - 1.15 * m.likelihood) * us:25.0f}{m.build:11.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
