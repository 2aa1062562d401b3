"""What an iteration on a batch of 1000 records costs in time, next to the likelihood of the batch and to all records.

``python -m tests.benchmarks.test_minibatch_cost`` prints a table. Iterations of all samplers and sizes of the data alternate in
one process and medians are compared, since machines differ and are shared; BLAS has one thread, as in a chain among others.
All proposals have the same length, so that each price is found once, as in a long chain. As tests they run by name only
(``pytest tests/benchmarks``) and assert nothing on time.
"""

from __future__ import annotations

import math
import sys
import time

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytest

from threadpoolctl import threadpool_limits

from pymc_dp import DPBarker, DPFastMH, DPPenalty, Penalty, PrivacyBudget
from pymc_dp.steps import Metropolis

BATCH = 1000
SIZES = (10_000, 100_000, 1_000_000)
SCALE = 0.01


def flat_banana(n: int) -> pm.Model:
    """Räisä (2021), section 5.4, in two dimensions."""
    bend, sd = 20.0, (math.sqrt(20.0), math.sqrt(2.5))
    x = np.random.default_rng(2).normal([0.0, 3.0], sd, size=(n, 2))
    with pm.Model() as model:
        theta1 = pm.Normal("theta1", 0, math.sqrt(1000))
        theta2 = pm.Normal("theta2", -bend * theta1**2, math.sqrt(1000))
        pm.Normal("x1", theta1, sd[0], observed=x[:, 0])
        pm.Normal("x2", theta2 + bend * theta1**2, sd[1], observed=x[:, 1])
    return model


class Circle:
    """Moves of length SCALE in a random direction, in two dimensions."""

    max_distance = SCALE

    def start(self, n_dim):
        return self

    def propose(self, theta, rng):
        z = rng.standard_normal(len(theta))
        return theta + SCALE * z / math.sqrt(z @ z), SCALE

    def decided(self, accepted):
        pass


def charged(step: type, **kwargs: object) -> Callable:
    return lambda **common: step(budget=PrivacyBudget(1e6, 1e-6, chains=1), **common, **kwargs)


SAMPLERS: dict[str, Callable] = {
    "DPPenalty, batch": charged(DPPenalty, batch_size=BATCH),
    "DPBarker, batch": charged(DPBarker, batch_size=BATCH),
    "DPFastMH, Barker": charged(DPFastMH, batch_rate=BATCH),
    "DPFastMH, lazy penalty": charged(DPFastMH, batch_rate=BATCH, rule=Penalty(2.0)),
    "TunaMH, not private": lambda **common: DPFastMH(
        budget=None, rule=Metropolis(), batch_rate=BATCH, **common
    ),
    "DPPenalty, all records": charged(DPPenalty),
}


def prepare(make: Callable, n: int):
    """A call that makes one iteration of a chain that is under way, and its step."""
    model = flat_banana(n)
    # Tempered to 100 records; the bound clips none of them, and adds about one place to a batch.
    step = make(model=model, clip_bound=1.0, proposal=Circle(), temperature=100 / n)
    step.set_rng(np.random.default_rng(3))
    step.stop_tuning()
    point = [model.initial_point()]

    def iterate():
        point[0], (statistics,) = step.step(point[0])
        assert not statistics["exhausted"]

    for _ in range(50):
        iterate()
    return iterate, step


def measure(rounds: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Median seconds of an iteration, by sampler and size; of the two likelihoods of a batch, by size."""
    prepared = [[prepare(make, n) for n in SIZES] for make in SAMPLERS.values()]
    iterations = np.empty((rounds, len(SAMPLERS), len(SIZES)))
    batches = np.empty((rounds, len(SIZES)))
    rng, theta = np.random.default_rng(4), np.zeros((2, 2))
    for i in range(rounds):
        for j, row in enumerate(prepared):
            for k, (iterate, _) in enumerate(row):
                begin = time.perf_counter()
                iterate()
                iterations[i, j, k] = time.perf_counter() - begin
        for k, (_, step) in enumerate(prepared[0]):
            index = rng.integers(SIZES[k], size=BATCH)
            begin = time.perf_counter()
            step.likelihood.logp_at(theta, index)
            batches[i, k] = time.perf_counter() - begin
    return np.median(iterations, axis=0), np.median(batches, axis=0)


@pytest.fixture(autouse=True)
def one_thread():
    with threadpool_limits(1):
        yield


@pytest.mark.parametrize("n", SIZES[:2])
@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_iteration(make, n, benchmark):
    iterate, _ = prepare(make, n)
    benchmark.pedantic(iterate, rounds=300)


def main() -> int:
    """Print the table."""
    with threadpool_limits(1):
        iterations, batches = measure()
    print(
        f"2-d banana, batches of {BATCH}, medians in microseconds; PyMC {pm.__version__}, Python {sys.version.split()[0]}"
    )
    print(f"{'':30s}" + "".join(f"{f'N = {n}':>14s}" for n in SIZES) + "   (ratio to the batch's likelihood)")  # fmt: skip
    print(f"{'likelihood of batch, twice':30s}" + "".join(f"{t * 1e6:14.0f}" for t in batches))
    for name, row in zip(SAMPLERS, iterations, strict=True):
        print(
            f"{name:30s}"
            + "".join(f"{t * 1e6:14.0f}" for t in row)
            + "   ("
            + ", ".join(f"{t / b:.1f}" for t, b in zip(row, batches, strict=True))
            + ")"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
