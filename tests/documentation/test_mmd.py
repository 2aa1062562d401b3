"""The discrepancy that the experiments report, against closed forms."""

import importlib.util
import math

from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "mmd.py"


@pytest.fixture(scope="module")
def module():
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def mmd_of_gaussians(shift, scales, bandwidth):
    """MMD of N(0, scales[0]**2 I) and N(shift, scales[1]**2 I): kernels integrate to Gaussians."""

    def mean_kernel(variance, shift):
        total = bandwidth**2 + variance
        return (bandwidth**2 / total) ** (len(shift) / 2) * math.exp(-(shift @ shift) / (2 * total))

    first, second = (s**2 for s in scales)
    within = mean_kernel(2 * first, 0 * shift) + mean_kernel(2 * second, 0 * shift)
    return math.sqrt(within - 2 * mean_kernel(first + second, shift))


@pytest.mark.parametrize("scales", [(1.0, 1.0), (1.0, 1.7)])
def test_gaussians(module, rng, scales, bandwidth=3.0):
    shift = np.array([1.0, -0.5])
    found = [
        module.mmd(rng.normal(0, scales[0], (400, 2)), rng.normal(shift, scales[1], (600, 2)), bandwidth=bandwidth) ** 2
        for _ in range(40)
    ]  # fmt: skip
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    assert abs(np.mean(found) - mmd_of_gaussians(shift, scales, bandwidth) ** 2) < 5 * error
    if scales[0] == scales[1]:  # negative control: kernels without the 2
        other = mmd_of_gaussians(shift, scales, bandwidth / math.sqrt(2)) ** 2
        assert abs(np.mean(found) - other) > 5 * error


def test_definition(module, rng, monkeypatch):
    """Against loops, in which the diagonal does not count; blocks do not matter."""
    x, y, s = rng.normal(size=(7, 3)), rng.normal(1, 2, size=(5, 3)), 1.3

    def k(a, b):
        return math.exp(-sum((a - b) ** 2) / (2 * s**2))

    total = sum(k(x[i], x[j]) for i in range(7) for j in range(7) if i != j) / 42
    total += sum(k(y[i], y[j]) for i in range(5) for j in range(5) if i != j) / 20
    total -= 2 * sum(k(a, b) for a in x for b in y) / 35
    for block in (module._BLOCK, 11):
        monkeypatch.setattr(module, "_BLOCK", block)
        assert module.mmd(x, y, bandwidth=s) == pytest.approx(math.sqrt(abs(total)), rel=1e-12)
    with pytest.raises(ValueError, match="bandwidth"):
        module.mmd(x, y, bandwidth=-1.0)
    with pytest.raises(ValueError, match="of one shape"):
        module.mmd(x, y[:, :1])


def test_range(module, rng):
    """Of the same law near 0; of laws far apart sqrt(2 - 2 exp(-1/2)), if the bandwidth is their distance."""
    x, y = rng.normal(size=(2, 1000, 2))
    assert module.mmd(x, y) < 0.06
    far = module.mmd(x + 1e4, y)
    assert far == pytest.approx(math.sqrt(2 - 2 * math.exp(-0.5)), rel=1e-3)
    # Published medians are between; 0.8453 is the largest whisker: a square could not reach it.
    assert far**2 < 0.8453 < far
    # Not biased: the estimate that counts the diagonal would be at least this large.
    near = [module.mmd(*rng.normal(size=(2, 100, 2)), bandwidth=1.0) for _ in range(20)]
    assert np.median(near) < math.sqrt(2 / 100 * (1 - 1 / 3))
