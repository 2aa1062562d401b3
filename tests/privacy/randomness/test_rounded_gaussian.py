"""Rounded Gaussian noise: decided bit by bit as real arithmetic would, and of the right law.

Each of the statistical tests fails by chance once in a million times. The checks take the module as
an argument, so that they can be shown to find planted faults.
"""

import inspect
import math
import types

from decimal import Context, Decimal, Inexact, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import product

import mpmath
import numpy as np
import pytest

from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest, norm

from pymc_dp.privacy.randomness import rounded_gaussian as gaussian_noise
from pymc_dp.privacy.randomness.bits import OperatingSystemBits, SeededBits
from pymc_dp.privacy.randomness.rounded_gaussian import (
    LARGEST_SCALE,
    LARGEST_SUM,
    noisy_sum,
    rounded_gaussian,
)

SEED = 20
FALSE_ALARM = 1e-6
DRAWS = 20_000
SMALL = (0.3, 1.0, 3.7)
LARGE = (2.0**28, 1e12 / 3, 2.0**45, math.pi * 2.0**48, LARGEST_SCALE)
# Bits of u, x and v that are drawn at first. Two more words of each can follow here.
FIRST = (31, 64, 32)
LONG = tuple(n + 128 for n in FIRST)


def seeded(*key):
    return SeededBits(np.random.default_rng([SEED, *key]))


class Script:
    """Plays back the proposals ``(sign, u, x, v)``, and then words, one by one."""

    secret = False

    def __init__(self, proposals, *more):
        self.proposals, self.more = list(proposals), list(more)

    def words(self, n):
        drawn, self.proposals = self.proposals[: n // 2], self.proposals[n // 2 :]
        assert 2 * len(drawn) == n
        rows = [(sign << 31 | u, v, x >> 32, x % 2**32) for sign, u, x, v in drawn]
        return np.array(rows, dtype=np.uint32).T.ravel().view(np.uint64)

    def word(self):
        return self.more.pop(0)


NOTHING = Script([])  # fails if anything is drawn


# ------------------------------------------------------------------------------------- single proposals


@lru_cache
def law():
    """Distribution function of j, to 300 digits."""
    with mpmath.workdps(300):
        total = mpmath.nsum(lambda i: mpmath.exp(-i * i / 2), [0, 60])
        weights = [mpmath.exp(-mpmath.mpf(i * i) / 2) for i in range(61)]
        return [mpmath.fsum(weights[: i + 1]) / total for i in range(30)]


def acceptance(j, x):
    """``exp(-x (2 j + x) / 2)`` for a Fraction ``x``, to 300 digits."""
    with mpmath.workdps(300):
        exact = mpmath.mpf(x.numerator) / x.denominator
        return mpmath.exp(-exact * (2 * j + exact) / 2)


def judge(scale, sign, u, x, v):
    """What becomes of a proposal, from as many bits as there are: a list of one or no number."""
    with mpmath.workdps(300):
        j = sum(c * 2 ** LONG[0] <= u for c in law())
        if v >= acceptance(j, Fraction(x, 2 ** LONG[1])) * 2 ** LONG[2]:
            return []
    value = math.floor(Fraction(scale) * (j + Fraction(x, 2 ** LONG[1])) + Fraction(1, 2))
    return [-value if sign else value]


def near(value, n, rng):
    """An ``n``-bit number next to a real one: how many leading bits they share is random."""
    value, offset = int(value), int(rng.choice([-1, 1])) << int(rng.integers(4, n - 4))
    inside = [z for z in (value + offset, value - offset) if 0 <= z < 2**n]
    return inside[0] if inside else uniform(n, rng)


def uniform(n, rng):
    return int.from_bytes(rng.bytes(n // 8 + 1), "little") >> (8 - n % 8)


@lru_cache
def hard_proposals(scale):
    """Proposals, many of which hang on late bits of u, x or v, with what becomes of them."""
    rng = np.random.default_rng(SEED)
    cases = []
    for near_u, near_x, near_v, k in product([0, 1], [0, 1], [0, 1], range(10)):
        with mpmath.workdps(300):
            u = near(law()[k] * 2 ** LONG[0], LONG[0], rng) if near_u else uniform(LONG[0], rng)
            j = sum(c * 2 ** LONG[0] <= u for c in law())
            x = uniform(LONG[1], rng)
            if near_x:
                half = math.floor(scale * (j + rng.uniform())) + Fraction(1, 2)
                x = near((half / Fraction(scale) - j) * 2 ** LONG[1], LONG[1], rng)
            v = uniform(LONG[2], rng)
            if near_v:
                p = acceptance(j, Fraction(x, 2 ** LONG[1]))
                v = near(p * 2 ** LONG[2], LONG[2], rng)
            elif near_x:
                v >>= 8  # accepted
        sign = int(rng.integers(2))
        cases.append(((sign, u, x, v), judge(scale, sign, u, x, v)))
    return cases


def script(sign, *numbers):
    """Deliver the bits of ``u, x, v`` in the order in which they are asked for."""
    first = [z >> 128 for z in numbers]
    more = [z >> shift & 2**64 - 1 for shift in (64, 0) for z in numbers]
    return Script([(sign, *first)], *more)


def hard_proposals_are_right(module):
    for scale in (*SMALL, *LARGE, 1e-310, 2.0**-5):
        for case, expected in hard_proposals(scale):
            if module._accepted(scale, 1, script(*case)).tolist() != expected:
                return False
    return True


def test_hard_proposals_are_hard():
    """Each of the three decisions takes its exact way, also with a second and a third word."""
    asked = []
    for scale in SMALL:
        for case, _ in hard_proposals(scale):
            bits = script(*case)
            gaussian_noise._accepted(scale, 1, bits)
            asked.append((6 - len(bits.more)) // 3)
    assert set(asked) == {0, 1, 2}
    assert np.bincount(asked).min() > 20


def test_the_decimal_context_of_the_caller_does_not_matter():
    with localcontext(Context(prec=3, traps=[Inexact])):
        assert hard_proposals_are_right(gaussian_noise)
        assert Decimal(1) / 4 == Decimal("0.25")  # and is left as it was


@pytest.mark.parametrize("scale", [*SMALL, *LARGE])
def test_floating_point_changes_nothing(scale, monkeypatch):
    """With everything decided exactly, the same words give the same numbers."""
    fast = [gaussian_noise._accepted(scale, 100, seeded(1, i)) for i in range(3)]
    exact, calls = gaussian_noise._exact, []
    monkeypatch.setattr(gaussian_noise, "_SLACK", np.inf)
    monkeypatch.setattr(gaussian_noise, "_exact", lambda *a: calls.append(a) or exact(*a))
    slow = [gaussian_noise._accepted(scale, 100, seeded(1, i)) for i in range(3)]
    assert len(calls) == 300
    assert [a.tolist() for a in fast] == [a.tolist() for a in slow]


def test_ties_wait_for_more_bits():
    """``x`` is just below one half: what follows decides, however late."""
    below, ones = 2**63 - 1, 2**64 - 1
    for late in range(4):
        more = [w for _ in range(late) for w in (0, ones, 0)]
        bits = Script([(0, 0, below, 0)], *more, 0, 5, 0)
        assert gaussian_noise._accepted(1.0, 1, bits).tolist() == [0]
        assert bits.more == []
    assert gaussian_noise._accepted(1.0, 1, Script([(0, 0, 2**63, 0)])).tolist() == [1]


def test_the_law_of_j_has_no_end():
    """All ones lie beyond every table: j is 12 here, and more bits would give more."""
    with mpmath.workdps(300):
        u = int((law()[11] + law()[12]) / 2 * 2**159)
    assert u >> 128 == 2**31 - 1
    bits = Script([(1, u >> 128, 0, 0)], *(u >> 64 & 2**64 - 1, 0, 0), *(u & 2**64 - 1, 0, 0))
    assert gaussian_noise._accepted(2.0**40, 1, bits).tolist() == [-12 * 2**40]


@pytest.mark.parametrize("n", [3, 5, 8, 31, 95, 159, 223])
def test_edges(n):
    """What is called clear is clear, and little is not."""
    edges = gaussian_noise._edges(n)
    assert edges == sorted(set(edges))
    with mpmath.workdps(300):
        exact = [c * 2**n for c in law()]
    for i, c in enumerate(exact):
        if 2 * i + 1 < len(edges):
            assert edges[2 * i] < c < edges[2 * i + 1] == edges[2 * i] + 3
        else:  # the last edge stands for all that follow
            assert edges[-1] < c
    assert edges[-1] >= 2**n - 10 or n < 5


def test_exponentials_are_as_right_as_the_slack_supposes():
    exponents = -np.random.default_rng(SEED).uniform(0, 6.5, 2000)
    exact = [mpmath.exp(mpmath.mpf(x)) for x in exponents.tolist()]
    assert (
        max(abs(a - b) / b for a, b in zip(np.exp(exponents).tolist(), exact, strict=True)) < 1e-14
    )


# ---------------------------------------------------------------------------------------- the exact law


def halves(number):
    k, n = number
    return (2 * k, n + 1), (2 * k + 1, n + 1)


def cells(scale, values, total):
    """Probabilities of rounded absolute values: of the Gaussian, by ``total``."""
    ends = np.array([[max(k - 0.5, 0), k + 0.5] for k in values]) / scale
    return (norm.sf(ends[:, 0]) - norm.sf(ends[:, 1])) * math.sqrt(2 * math.pi) / total


@pytest.mark.slow
@pytest.mark.parametrize("scale", SMALL)
def test_all_words(scale):
    """All numbers of a few bits: what they decide is less than the law, and with the rest more.

    Here the rounded Gaussian is compared as it is defined, not by its proposals; bits are added to
    those proposals only that are open, one to each number.
    """
    open_, decided = [((k, 3), (i, 3), (m, 3)) for k, i, m in product(range(8), repeat=3)], {}
    for level in range(3, 7):
        if level > 3:
            open_ = [more for one in open_ for more in product(*map(halves, one))]
        still = []
        for one in open_:
            value = gaussian_noise._outcome(scale, *one)
            if value is None:
                still.append(one)
            else:
                decided[value] = decided.get(value, 0) + 8.0**-level
        open_ = still
    rest = len(open_) * 8.0**-6
    assert rest < 0.25
    assert rest + sum(decided.values()) == 1
    rejected = decided.pop(-1)
    total = sum(math.exp(-i * i / 2) for i in range(40))
    exact = cells(scale, list(decided), total)
    found = np.array(list(decided.values()))
    assert np.all(found < exact)
    assert np.all(exact < found + rest)
    assert rejected < 1 - math.sqrt(math.pi / 2) / total < rejected + rest


@given(
    scale=st.sampled_from([*SMALL, *LARGE]),
    words=st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3),
    bits=st.tuples(st.integers(1, 31), st.integers(1, 64), st.integers(1, 32)),
)
def test_further_bits_never_change_an_outcome(scale, words, bits):
    full = [(w >> 64 - n, n) for w, n in zip(words, FIRST, strict=True)]
    part = [(w >> 64 - n, n) for w, n in zip(words, bits, strict=True)]
    first, then = gaussian_noise._outcome(scale, *part), gaussian_noise._outcome(scale, *full)
    assert first is None or first == then


# ---------------------------------------------------------------------------------------------- samples


def fits_cells(module, scale, key=2):
    """Chi-square test of single numbers, signs included."""
    values = module.rounded_gaussian(scale, DRAWS, seeded(key))
    last = max(1, round(2.5 * scale))
    inner = np.arange(-last, last)
    law = np.diff(norm.cdf(np.concatenate([[-np.inf], (inner + 0.5) / scale, [np.inf]])))
    counts = np.bincount(np.clip(values, -last, last) + last, minlength=len(law))
    return chisquare(counts, DRAWS * law).pvalue > FALSE_ALARM


def fits_pairs(module):
    """Chi-square test of two numbers together, from many small arrays: place and order do not matter."""
    bits = seeded(3)
    pairs = np.array([module.rounded_gaussian(1.0, 2, bits) for _ in range(DRAWS // 5)])
    if pairs.shape != (DRAWS // 5, 2):
        return False
    one = np.diff(norm.cdf([-np.inf, -1.5, -0.5, 0.5, 1.5, np.inf]))
    index = np.clip(pairs, -2, 2) @ [5, 1] + 12
    counts = np.bincount(index, minlength=25)
    return chisquare(counts, len(pairs) * np.outer(one, one).ravel()).pvalue > FALSE_ALARM


def fits_continuum(module, scale, key=4):
    values = module.rounded_gaussian(scale, DRAWS, seeded(key))
    return kstest(values / scale, norm.cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("scale", LARGE)
def test_continuum(scale):
    assert fits_continuum(gaussian_noise, scale)


@pytest.mark.parametrize("shape", [(), 0, 1, 7, (0, 3), (4, 5), (2, 3, 4)])
def test_shapes(shape):
    values = rounded_gaussian(1e6, shape, seeded(8))
    assert values.shape == np.empty(shape).shape
    assert values.dtype == np.int64
    flat = rounded_gaussian(1e6, math.prod(np.atleast_1d(shape)), seeded(8))
    assert values.ravel().tolist() == np.ravel(flat).tolist()


def test_draws_until_there_are_enough():
    """Proposals go on, and those accepted stay in order."""
    no, (a, b, c) = (0, 0, 2**63, 2**32 - 1), [(0, 0, i * 2**60, 0) for i in range(3)]
    bits = Script([no] * 11 + [no] * 10 + [a] + [b] + [no] * 7 + [c])
    assert rounded_gaussian(2.0**30, 3, bits).tolist() == [0, 2**26, 2**27]
    assert bits.proposals == []


def test_operating_system_bits():
    values = rounded_gaussian(2.0**30, (200, 5), OperatingSystemBits())
    assert len(np.unique(values)) == 1000
    assert 0.7 < values.std() / 2.0**30 < 1.3


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1.01 * LARGEST_SCALE])
def test_scales_out_of_range(scale):
    with pytest.raises(ValueError, match="standard deviation"):
        rounded_gaussian(scale, 3, NOTHING)


def test_tiny_scales_give_nothing():
    assert not rounded_gaussian(5e-324, 50, seeded(9)).any()


# ------------------------------------------------------------------------------------------------- sums


@given(
    steps=st.lists(st.integers(-(2**62), 2**62), max_size=5),
    exponent=st.integers(-60, 20),
    log_scale=st.floats(-5, 55),
)
def test_noisy_sum(steps, exponent, log_scale):
    """Integers are added, one rounding follows."""
    in_steps = 2.0**log_scale
    scale = math.ldexp(in_steps, exponent)
    result = noisy_sum(np.array(steps, dtype=np.int64), exponent, scale, seeded(10))
    noise = rounded_gaussian(in_steps, len(steps), seeded(10)).tolist()
    total = [s + z for s, z in zip(steps, noise, strict=True)]
    assert result.dtype == np.float64
    assert result.tolist() == [float(t * Fraction(2) ** exponent) for t in total]


def test_noisy_sum_keeps_the_shape_and_the_sums():
    steps = np.arange(6, dtype=np.int64).reshape(2, 3)
    assert noisy_sum(steps, np.int64(-3), 1e-9, seeded(11)).tolist() == (steps / 8).tolist()
    assert steps.ravel().tolist() == list(range(6))


@pytest.mark.parametrize("steps", [LARGEST_SUM, -LARGEST_SUM])
def test_the_largest_sum(steps):
    result = noisy_sum(np.full(300, steps), 0, LARGEST_SCALE, seeded(12))
    assert np.all(np.abs(result - steps) < 2.0**58)


@pytest.mark.parametrize(
    ("steps", "exponent", "scale", "reported"),
    [
        (np.array([LARGEST_SUM + 1]), 0, 1.0, "2..62"),
        (np.array([0, -(2**63)]), 0, 1.0, "2..62"),
        (np.array([1.0]), 0, 1.0, "float64"),
        (np.array([1], dtype=np.int32), 0, 1.0, "int32"),
        (np.array([1]), 0, math.nan, "nan"),
        (np.array([1]), 0, 0.0, "0.0"),
        (np.array([1]), 0, -1.0, "-1.0"),
        (np.array([1]), -56, 1.0, "grid steps"),
        (np.array([1]), -2000, 1.0, "grid steps"),
        (np.array([1]), 2000, 1.0, "grid steps"),
    ],
)
def test_noisy_sum_refuses(steps, exponent, scale, reported):
    with pytest.raises(ValueError, match=reported):
        noisy_sum(steps, exponent, scale, NOTHING)


# ------------------------------------------------------------------------------------------- wrong ways

PLANTED = {
    "no sign": ("np.repeat([1, -1]", "np.repeat([1, 1]"),
    "another law of j": ("(Decimal(-i * i) / 2).exp()", "(Decimal(-i * i) / 3).exp()"),
    "j from a table that ends": ("range(math.isqrt(5 * n) + 5)", "range(8)"),
    "another acceptance, float": ("(j - 0.5 * minus_x)", "(j - minus_x)"),
    "another acceptance, exact": ("z * (z + (j << n + 1))", "z * (z + (j << n))"),
    "always accepted": ("2.0**32 - v", "2.0**32 + 9 - 0 * v"),
    "x drawn anew when bits are added": (
        "u, x, v = (z << 64 | bits.word() for z in (u, x, v))",
        "u, x, v = (z << 64 | bits.word() for z in (u, 0, v))",
    ),
    "x drawn anew for the exact way": (
        "int(x[k]) << 32 | int(x_tail[k])",
        "int(x_tail[k]) << 32 | int(x[k])",
    ),
    "x without its tail in the rounding": ("rest += tail * (scale * 2.0**-64)", ""),
    "v drawn anew": ("int(v[k])\n", "int(x_tail[k])\n"),
    "rounding in floating point": ("0.5 - (scale * 2.0**-63 + 2.0**-52)", "0.5"),
    "an inexact product": ("fraction, 18)), exponent - 18", "fraction, 28)), exponent - 28"),
    "rounding down": ("+ (denominator << n)) //", ") //"),
    "no slack for the tail of x": ("_SLACK = 8.0", "_SLACK = 0.0"),
    "edges without slack": ("(edge - 1, edge + 2)", "(edge + 1, edge + 2)"),
    "accepted when unclear": ("v[0] + 2 > least", "False"),
    "rejected when unclear": ("v[0] - 1 >= most", "v[0] + 2 > least"),
    "too few digits": ("v[1] // 2 + 20", "12"),
    "too few digits for the law of j": ("prec=n + 20", "prec=40"),
    "the sign taken for a digit": ("int(head[k]) % 2**31", "int(head[k]) // 2"),
    "zeros dropped": ("[values != REJECTED]", "[values > 0]"),
    "rejected kept": ("[values != REJECTED]", ""),
    "those that differ kept, not the first": (
        "_accepted(float(scale), n, bits)[:missing]",
        "np.sort(_accepted(float(scale), n, bits))[:missing]",
    ),
    "the same bits twice": ("reshape(4, n)", "reshape(4, n)[[0, 1, 2, 2]]"),
}


def with_fault(module, old, new):
    """A module in which one piece of code is another one."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, old
    faulty = types.ModuleType("faulty")
    faulty.__dict__["__name__"] = module.__name__  # for its dataclasses
    exec(compile(source.replace(old, new), "faulty", "exec"), faulty.__dict__)
    return faulty


def all_is_well(module):
    return (
        hard_proposals_are_right(module)
        and all(fits_cells(module, scale) for scale in SMALL)
        and fits_pairs(module)
        and fits_continuum(module, 2.0**28)
    )


@pytest.mark.parametrize(("old", "new"), PLANTED.values(), ids=PLANTED)
def test_faults_are_found(old, new):
    assert not all_is_well(with_fault(gaussian_noise, old, new))


def test_nothing_is_found_without_a_fault():
    """Against rational and 300-digit arithmetic, where float decides and where late bits do; and by frequencies."""
    assert all_is_well(gaussian_noise)
    assert all_is_well(with_fault(gaussian_noise, "_SLACK = 8.0", "_SLACK = 9.0"))
