"""Rounded l2 noise: its law in one and more dimensions, rounding, neighbours, planted faults."""

import math

from itertools import product

import mpmath
import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from pymc_dp.privacy.randomness import rounded_l2 as module_under_test
from pymc_dp.privacy.randomness.bits import OperatingSystemBits, SeededBits
from tests.privacy.randomness.test_rounded_gaussian import with_fault

#: Probability of a false alarm of each test.
LEVEL = 1e-4


def draws(module, scale, d, n, seed):
    bits = SeededBits(np.random.default_rng((65, seed)))
    return np.array([module.rounded_l2(scale, d, bits) for _ in range(n)])


def fits(counts, probabilities):
    """Whether counts of cells, and of everything else, have these probabilities."""
    n = sum(counts)
    expected = n * np.array(probabilities)
    assert expected.min() > 5
    return stats.chisquare(counts, expected * n / expected.sum()).pvalue > LEVEL


def fits_laplace(module, scale=1.3, n=4000):
    """In one dimension cells have the probabilities of a Laplace law."""
    values = draws(module, scale, 1, n, 1)[:, 0]
    law = stats.laplace(scale=scale)
    cells = np.arange(-4, 5)
    inside = law.cdf(cells + 0.5) - law.cdf(cells - 0.5)
    counts = [int(np.sum(values == c)) for c in cells]
    return fits([*counts, n - sum(counts)], [*inside, 1 - inside.sum()])


def fits_cells(module, scale=0.8, n=4000):
    """In two dimensions squares have the integrals of the density."""
    values = draws(module, scale, 2, n, 2)
    cells = list(product(range(-1, 2), repeat=2))
    constant = 1 / (2 * math.pi * scale**2)
    inside = [
        constant
        * integrate.dblquad(
            lambda y, x: math.exp(-math.hypot(x, y) / scale),
            a - 0.5, a + 0.5, b - 0.5, b + 0.5, epsabs=1e-8,
        )[0]
        for a, b in cells
    ]  # fmt: skip
    counts = [int(np.sum(np.all(values == c, axis=1))) for c in cells]
    return fits([*counts, n - sum(counts)], [*inside, 1 - sum(inside)])


def fits_continuum(module, d=5, scale=2.0**30 + 0.3, n=2500):
    """With many steps the length is Gamma(d), and the direction uniform."""
    values = draws(module, scale, d, n, 3) / scale
    length = np.linalg.norm(values, axis=1)
    ball = ((values[:, 0] / length) + 1) / 2  # of a uniform direction: Beta
    return (
        stats.kstest(length, stats.gamma(d).cdf).pvalue > LEVEL
        and stats.kstest(ball, stats.beta((d - 1) / 2, (d - 1) / 2).cdf).pvalue > LEVEL
        and abs(stats.spearmanr(length, ball).statistic) < 4 / math.sqrt(n)
    )


@pytest.mark.parametrize("fits", [fits_laplace, fits_cells, fits_continuum])
def test_law(fits):
    assert fits(module_under_test)


@given(seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_rounding_is_that_of_exact_numbers(seed):
    """With few bits the result is open, or what 60 digits give at both ends and in between."""
    rng = np.random.default_rng((66, seed))
    normals = [
        module_under_test._Normal(1, int(rng.integers(3)), int(rng.integers(2**n)), n)
        for n in (int(rng.integers(4, 60)) for _ in range(4))
    ]
    scale = float(np.exp(rng.uniform(-1, 20)))
    *mixture, coordinate = normals
    found = module_under_test._rounded(scale, mixture, coordinate)
    with mpmath.workdps(60):

        def value(part):
            at = [mpmath.mpf(z.whole) + (z.x + mpmath.mpf(part)) / mpmath.mpf(2) ** z.n for z in normals]  # fmt: skip
            return mpmath.mpf(scale) * mpmath.sqrt(sum(a * a for a in at[:-1])) * at[-1]

        ends = {int(mpmath.floor(value(part) + 0.5)) for part in (0, 0.5, 1)}
    assert found is None or ends == {found}
    assert found is not None or value(1) > value(0)


def test_few_bits_leave_the_result_open_and_more_decide():
    bits = SeededBits(np.random.default_rng(1))
    normals = [module_under_test._Normal(1, 1, 3, 4) for _ in range(3)]
    assert module_under_test._rounded(2.0**40, normals[:2], normals[2]) is None
    for number in normals:
        number.refine(bits)
    assert module_under_test._rounded(2.0**40, normals[:2], normals[2]) is not None


def largest_log_ratio(module, epsilon=1.0, sensitivity=4, n=15_000):
    """Estimated loss, in standard errors above epsilon, over the cells of two neighbours' releases."""
    noise = draws(module, sensitivity / epsilon, 1, n, 4)[:, 0]
    one, other = noise, noise[::-1] + sensitivity
    worst = -math.inf
    for cell in range(-6, 11):
        a, b = np.sum(one == cell), np.sum(other == cell)
        if min(a, b) > 30:
            worst = max(worst, (abs(math.log(a / b)) - epsilon) / math.sqrt(1 / a + 1 / b))
    return worst


@pytest.mark.slow
def test_neighbours_are_within_epsilon():
    assert largest_log_ratio(module_under_test) < 4


PLANTED = {
    "as many squares as coordinates": ("range(size + 1)]", "range(size)]"),
    "no mixture": ("squares = sum(", "squares = len(mixture) * 4**n + 0 * sum("),
    "one sign": ("1 if first & 1 else -1", "1"),
    "a digit taken for the sign": ("1 if first & 1 else -1", "1 if first >> 63 else -1"),
    "rounding down": ("(math.isqrt(t) + 1) // 2", "math.isqrt(t) // 2"),
    "rejected kept": ("if whole != REJECTED", "if True"),
    "a squared scale": ("(2 * numerator * ", "(2 * numerator * numerator * "),
}


def all_is_well(module):
    return fits_laplace(module) and fits_cells(module) and fits_continuum(module)


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), PLANTED.values(), ids=PLANTED)
def test_faults_are_found(old, new):
    try:
        well = all_is_well(with_fault(module_under_test, old, new))
    except (OverflowError, ValueError):  # of a shift, or of a conversion to int64
        well = False
    assert not well


@pytest.mark.slow
def test_half_the_noise_is_found():
    module = with_fault(module_under_test, "numerator, denominator = scale.as_integer_ratio()", "numerator, denominator = (scale / 2).as_integer_ratio()")  # fmt: skip
    assert largest_log_ratio(module) > 6


@pytest.mark.slow
def test_nothing_is_found_without_a_fault():
    assert all_is_well(
        with_fault(module_under_test, "u, x, v = first >> 1,", "u, x, v = first // 2,")
    )


def test_secret_bits():
    assert module_under_test.rounded_l2(1e6, 3, OperatingSystemBits()).shape == (3,)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan, 2.0**51])
def test_scales_out_of_range(scale):
    with pytest.raises(ValueError, match="scale"):
        module_under_test.rounded_l2(scale, 2, None)


class TestMoreBits:
    """A draw needs more than 64 bits of a number about once in 1e18: here numbers begin with none."""

    def test_of_the_numbers(self, monkeypatch):
        made = []

        def coarse(bits):
            made.append(module_under_test._Normal(1 - 2 * (len(made) % 2), len(made) % 3, 0, 0))
            return made[-1]

        monkeypatch.setattr(module_under_test, "_normal", coarse)
        found = module_under_test.rounded_l2(7.3, 3, SeededBits(np.random.default_rng(5)))
        assert all(number.n >= 64 for number in made)
        size = np.array([number.whole + number.x / 2**number.n for number in made])
        signs = np.array([number.sign for number in made[4:]])
        exact = signs * np.rint(7.3 * np.sqrt(np.sum(size[:4] ** 2)) * size[4:])
        assert np.array_equal(found, exact)

    def test_of_their_acceptance(self, monkeypatch):
        decide, asked = module_under_test.proposed_whole_part, []

        def undecided_at_first(u, x, v):
            asked.append((u, x, v))
            return None if len(asked) == 1 else decide(u, x, v)

        monkeypatch.setattr(module_under_test, "proposed_whole_part", undecided_at_first)
        module_under_test._normal(SeededBits(np.random.default_rng(6)))
        for (short, n), (long, m) in zip(*asked[:2], strict=True):
            assert m == n + 64 and long >> 64 == short  # the first bits are kept
