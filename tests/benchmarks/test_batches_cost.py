"""What a batch of records costs to draw with secret bits, next to NumPy's generator.

``python -m tests.benchmarks.test_batches_cost`` prints a table. All ways and all numbers of records alternate in one process and
medians are compared, since machines differ and are shared. As tests they run by name only (``pytest tests/benchmarks``) and assert
nothing on time.
"""

from __future__ import annotations

import sys
import time

from collections.abc import Callable

import numpy as np
import pytest

from pymc_dp.privacy.randomness.batches import (
    poisson,
    poisson_count,
    uniforms,
    with_replacement,
    without_replacement,
)

BATCH = 1000
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
RATES = (0.001, 1.0, 40.0, 1e4, 1e7, 1e9)
RNG = np.random.default_rng(1)

CASES: dict[str, Callable[[int], np.ndarray]] = {
    "without replacement": lambda n: without_replacement(n, BATCH),
    "with replacement": lambda n: with_replacement(n, BATCH),
    "Poisson": lambda n: poisson(n, BATCH / n),
    "choice": lambda n: RNG.choice(n, BATCH, replace=False),
    "choice, shuffle=False": lambda n: RNG.choice(n, BATCH, replace=False, shuffle=False),
}


def measure(calls: list[Callable[[], object]], rounds: int = 300, repeats: int = 10) -> np.ndarray:
    """Medians in seconds, one per call."""
    times = np.empty((rounds, len(calls)))
    for i in range(rounds):
        for k, call in enumerate(calls):
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            times[i, k] = (time.perf_counter() - begin) / repeats
    return np.median(times, axis=0)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("draw", CASES.values(), ids=CASES)
def test_batch(draw, n, benchmark):
    assert benchmark.pedantic(draw, (n,), rounds=300).ndim == 1


@pytest.mark.parametrize("rate", RATES)
def test_count(rate, benchmark):
    assert benchmark.pedantic(poisson_count, (rate,), rounds=300) >= 0


def main() -> int:
    """Print the tables."""
    print(
        f"Batches of {BATCH} records, medians in us; NumPy {np.__version__}, Python {sys.version.split()[0]}"
    )
    medians = measure([lambda d=d, n=n: d(n) for d in CASES.values() for n in SIZES])
    print(f"{'':24s}" + "".join(f"{f'N = {n:.0e}':>12s}" for n in SIZES))
    for name, row in zip(CASES, medians.reshape(len(CASES), -1), strict=True):
        print(f"{name:24s}" + "".join(f"{x * 1e6:12.1f}" for x in row))
    medians = measure([lambda r=r: poisson_count(r) for r in RATES])
    print("\n" + f"{'rate':24s}" + "".join(f"{r:12g}" for r in RATES))
    print(f"{'Poisson number':24s}" + "".join(f"{x * 1e6:12.1f}" for x in medians))
    print(f"\n{BATCH} uniforms: {measure([lambda: uniforms(BATCH)])[0] * 1e6:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
