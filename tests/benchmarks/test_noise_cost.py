"""What rounded Gaussian noise costs, next to NumPy's generator and to the bits alone.

``python -m tests.benchmarks.test_noise_cost`` prints a table. All ways and sizes alternate in one process and medians are compared,
since machines differ and are shared. As tests they run by name only (``pytest tests/benchmarks``) and assert nothing on time.
"""

from __future__ import annotations

import os
import sys

from collections.abc import Callable

import numpy as np
import pytest

from pymc_dp.privacy.randomness.bits import OperatingSystemBits
from pymc_dp.privacy.randomness.rounded_gaussian import noisy_sum, rounded_gaussian
from tests.benchmarks.test_batches_cost import measure

SIZES = (1, 20, 300, 3000)
SCALES = (2.0**28, 2.0**45, 2.0**50, 2.0**55)
BITS = OperatingSystemBits()

CASES: dict[str, Callable[[int], object]] = {
    "rounded Gaussian": lambda n: rounded_gaussian(2.0**40, n, BITS),
    "noisy sum": lambda n: noisy_sum(np.zeros(n, dtype=np.int64), -40, 1.0, BITS),
    "new default_rng, normal": lambda n: np.random.default_rng().normal(size=n),
    "normal": lambda n, rng=np.random.default_rng(1): rng.normal(size=n),
    # 1.4 proposals, of two words each.
    "os.urandom of as many bits": lambda n: os.urandom(16 * int(1.4 * n + 2 * n**0.5 + 4)),
}


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("draw", CASES.values(), ids=CASES)
def test_noise(draw, n, benchmark):
    benchmark.pedantic(draw, (n,), rounds=300)


@pytest.mark.parametrize("scale", SCALES)
def test_scale(scale, benchmark):
    values = benchmark.pedantic(rounded_gaussian, (scale, 300, BITS), rounds=100)
    assert values.shape == (300,)


def main() -> int:
    """Print the tables."""
    print(
        f"Medians in us, and their ratio to rounded Gaussians; NumPy {np.__version__}, Python {sys.version.split()[0]}"
    )
    medians = measure([lambda d=d, n=n: d(n) for d in CASES.values() for n in SIZES])
    table = medians.reshape(len(CASES), -1)
    print(f"{'':28s}" + "".join(f"{f'n = {n}':>18s}" for n in SIZES))
    for name, row in zip(CASES, table, strict=True):
        cells = zip(row, row / table[0], strict=True)
        print(f"{name:28s}" + "".join(f"{x * 1e6:10.1f} ({r:5.2f})" for x, r in cells))
    medians = measure([lambda s=s: rounded_gaussian(s, 300, BITS) for s in SCALES], repeats=5)
    print("\n" + f"{'300 numbers, scale':28s}" + "".join(f"{s:18g}" for s in SCALES))
    print(f"{'rounded Gaussian':28s}" + "".join(f"{x * 1e6:18.1f}" for x in medians))
    return 0


if __name__ == "__main__":
    sys.exit(main())
