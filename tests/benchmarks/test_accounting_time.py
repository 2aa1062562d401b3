"""What a question to the accountant costs in time, next to dp_accounting's answer to a simpler one.

``python -m tests.benchmarks.test_accounting_time`` prints a table. Every question is new: nothing it needs is in a cache.
The yardstick is one epsilon of 1000 Poisson-sampled Gaussian releases by dp_accounting alone, at its default grid.
"""

from __future__ import annotations

import functools
import math
import sys
import time

from collections.abc import Callable

import pytest

from pymc_dp import Barker, Penalty
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
from pymc_dp.steps import Lazy


def batch(z: float, q: float) -> SampledGaussian:
    """Gaussian release of a batch without replacement."""
    return SampledGaussian(z, q, "without_replacement", "substitute")


def poisson(z: float, q: float) -> SampledGaussian:
    """Gaussian release of a Poisson batch."""
    return SampledGaussian(z, q, "poisson", "add_remove")


HMC = [(Decision(Penalty(1.4), 0.044), 1), (Gaussian(126.5), 10)]
QUESTIONS: dict[str, Callable[[], object]] = {
    "draws of penalty decisions": lambda: max_draws(
        [(Decision(Lazy(Penalty(2.0), 0.5), 0.05), 1)], 1.0, 1e-6, 4
    ),
    "draws of HMC": lambda: max_draws(HMC, 1.0, 1e-6, 4, per_chain=[HMC[1]]),
    "draws of batches without replacement": lambda: max_draws([(batch(0.84, 0.01), 1)], 4.0, 1e-6),
    "draws of Poisson batches": lambda: max_draws([(poisson(0.84, 0.01), 1)], 4.0, 1e-6),
    "draws of sampled decisions": lambda: max_draws(
        [(SampledDecision(Penalty(1.4), 1.0, 0.01), 1)], 4.0, 1e-6
    ),
    "draws of DP-Fast MH": lambda: max_draws(
        [(PoissonMinibatchDecision(Barker(), 0.01, 500, 50_000), 1)], 4.0, 1e-6
    ),
    "epsilon of 1000 Poisson batches": lambda: epsilon_of([(poisson(1.1, 0.01), 1000)], 1e-6),
    "noise multiplier of Gaussians": lambda: calibrate(lambda z: [(Gaussian(z), 100)], 1.0, 1e-6),
    "noise multiplier of batches": lambda: calibrate(
        lambda z: [(batch(z, 0.01), 1000)], 2.0, 1e-6, low=0.1, high=100
    ),
    "noise scale of decisions": lambda: calibrate(
        lambda s: [(Decision(Penalty(s), 0.04), 1000)], 2.0, 1e-6, low=0.05, high=50
    ),
    "batch size": lambda: calibrate(
        lambda m: [(batch(1.0, m / 100_000), 1000)],
        1.0, 1e-6, low=1, high=10_000, largest=True, whole=True,
    ),
    "SGHMC, 200 noise levels": lambda: epsilon_of(
        [(poisson(math.sqrt(2 / (0.49 * 3 * t ** (-1 / 3))), 0.01), 10) for t in range(1, 201)],
        1e-6,
    ),
}  # fmt: skip


def forget() -> None:
    """Empty every cache of the accountants."""
    for module in (composition, decisions, minibatch, pld):
        for value in vars(module).values():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


def yardstick() -> float:
    """Epsilon by dp_accounting alone."""
    from dp_accounting.pld import privacy_loss_distribution

    release = privacy_loss_distribution.from_gaussian_mechanism(1.1, sampling_prob=0.01)
    return release.self_compose(1000).get_epsilon_for_delta(1e-6)


def seconds(question: Callable[[], object], repeats: int = 3) -> float:
    """Least of a few times, each with empty caches."""
    times = []
    for _ in range(repeats):
        forget()
        start = time.perf_counter()
        question()
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.parametrize("name", QUESTIONS)
def test_question(benchmark, name):
    benchmark.pedantic(QUESTIONS[name], setup=forget, rounds=3)


def main() -> int:
    """Print the table."""
    unit = seconds(yardstick)
    print(f"dp_accounting, epsilon of 1000 Poisson batches: {unit:.3f} s")
    print(f"{'question':<40} {'seconds':>8} {'ratio':>7}")
    for name, question in QUESTIONS.items():
        taken = seconds(question)
        print(f"{name:<40} {taken:8.3f} {taken / unit:7.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
