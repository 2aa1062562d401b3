"""Pairs of calls: timings of ours, with the ratio to the other in the same run; nothing here depends on time."""

from __future__ import annotations

import numpy as np
import pytest

from threadpoolctl import threadpool_limits

from tests.benchmarks.cost import medians
from tests.benchmarks.pairs import BATCH, PAIRS


@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
@pytest.mark.parametrize("name", PAIRS)
def test_pair(name, benchmark):
    with threadpool_limits(1):
        ours, other = PAIRS[name]()
        if benchmark.enabled:
            one, two = medians([ours, other], 0.5)
            benchmark.extra_info["ratio"] = round(one / two, 3)
        found = benchmark.pedantic(ours, rounds=3, warmup_rounds=1)
        if name.startswith("clipped gradients"):
            np.testing.assert_allclose(found, other(), rtol=1e-5, atol=1e-3)
        if name.startswith(f"batch of {BATCH}"):
            assert len(found) == BATCH
