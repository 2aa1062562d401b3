"""Batches: exact laws, right in the tails, in time proportional to the batch.

Each of the statistical tests fails by chance once in a million times.
"""

import itertools
import math
import tracemalloc

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from hypothesis import given
from hypothesis import strategies as st
from scipy.special import pdtrc
from scipy.stats import chisquare, kstest

from pymc_dp.privacy.randomness import batches
from pymc_dp.privacy.randomness.batches import (
    poisson,
    poisson_count,
    uniforms,
    with_replacement,
    without_replacement,
)
from pymc_dp.privacy.randomness.bits import OperatingSystemBits, SeededBits

SEED = 20
FALSE_ALARM = 1e-6
DRAWS = 20_000


def seeded(*key):
    return SeededBits(np.random.default_rng([SEED, *key]))


class Fixed:
    """A bit source that plays back given words."""

    secret = False

    def __init__(self, *words):
        self.left = list(words)

    def word(self):
        return self.left.pop(0)

    def words(self, n):
        return np.array([self.word() for _ in range(n)], dtype=np.uint64)


class Halves(Fixed):
    """Plays back half words, two to a word."""

    def words(self, n):
        return np.array([self.word() for _ in range(2 * n)], dtype=np.uint32).view(np.uint64)


class Counting:
    """Counts the words that are asked for."""

    secret = False

    def __init__(self, bits):
        self.bits, self.asked = bits, 0

    def word(self):
        return int(self.words(1)[0])

    def words(self, n):
        self.asked += n
        return self.bits.words(n)


def p_value(outcomes, law):
    """Chi-square test of outcomes against a dictionary of probabilities."""
    index = {outcome: i for i, outcome in enumerate(law)}
    counts = np.bincount([index[tuple(o.tolist())] for o in outcomes], minlength=len(law))
    return chisquare(counts, len(outcomes) * np.array(list(law.values()))).pvalue


def subsets(n, size):
    every = list(itertools.combinations(range(n), size))
    return dict.fromkeys(every, 1 / len(every))


def inclusion(n, p):
    """Law of independent inclusion."""
    every = itertools.chain.from_iterable(itertools.combinations(range(n), k) for k in range(n + 1))
    return {s: p ** len(s) * (1 - p) ** (n - len(s)) for s in every}


# ------------------------------------------------------------------------------------------------- bits


def test_words_come_in_one_request(monkeypatch):
    asked = []
    monkeypatch.setattr("os.urandom", lambda n: asked.append(n) or bytes(range(n)))
    words = OperatingSystemBits().words(5)
    assert asked == [40]
    assert words.dtype == np.uint64
    assert words.tobytes() == bytes(range(40))


def test_seeded_words_are_those_drawn_one_by_one():
    one, many = seeded(), seeded()
    words = many.words(7)
    assert words.dtype == np.uint64
    assert words.tolist() == [one.word() for _ in range(7)]


@pytest.mark.parametrize("bits", [OperatingSystemBits(), seeded()], ids=["secret", "seeded"])
def test_no_words(bits):
    assert bits.words(0).shape == (0,)


def test_uniforms():
    assert uniforms(3, Fixed(0, 2**64 - 1, 2**63 + 2047)).tolist() == [0, 1 - 2.0**-53, 0.5]
    values = uniforms(DRAWS, seeded(1))
    assert values.dtype == np.float64
    assert kstest(values, "uniform").pvalue > FALSE_ALARM
    assert not np.any(values * 2.0**53 % 1)


# --------------------------------------------------------------------------------------------- fixed size


@pytest.mark.parametrize("narrow", [2**24, 1])
def test_subsets_of_records_are_uniform(monkeypatch, narrow):
    """With half a word or a whole word for each value."""
    monkeypatch.setattr(batches, "_NARROW", narrow)
    bits = seeded(3)
    drawn = [without_replacement(6, 3, bits) for _ in range(DRAWS)]
    assert p_value(drawn, subsets(6, 3)) > FALSE_ALARM


def test_draws_in_excess_would_show():
    """Drawing more than is missing and keeping the smallest is not uniform: the test sees it."""
    rng = np.random.default_rng(SEED)
    drawn = []
    while len(drawn) < DRAWS:
        values = np.unique(rng.integers(6, size=5))[:3]
        drawn += [values] if len(values) == 3 else []
    assert p_value(drawn, subsets(6, 3)) < FALSE_ALARM


@pytest.mark.parametrize("narrow", [2**24, 1])
def test_pairs_with_replacement(monkeypatch, narrow):
    monkeypatch.setattr(batches, "_NARROW", narrow)
    bits = seeded(4, narrow)
    law = dict.fromkeys(itertools.product(range(5), repeat=2), 1 / 25)
    assert p_value([with_replacement(5, 2, bits) for _ in range(DRAWS)], law) > FALSE_ALARM


def test_remainders_of_few_bits_would_show():
    biased = np.random.default_rng(SEED).integers(2**5, size=(DRAWS, 1)) % 5
    assert p_value(biased, {(i,): 1 / 5 for i in range(5)}) < FALSE_ALARM


def test_half_words_beyond_the_last_multiple_are_replaced():
    """2**32 leaves 4 when divided by 6."""
    bits = Halves(2**32 - 1, 2**32 - 4, 2**32 - 5, 7, 8, 2**32 - 2, 2**32 - 3, 0, 9, 10)
    assert with_replacement(6, 4, bits).tolist() == [5, 1, 2, 3]
    assert not bits.left


@pytest.mark.parametrize("n", [2**24 + 1, 10**9, 3 * 2**61 + 1])
def test_words_beyond_the_last_multiple_are_replaced(n):
    first = 2**64 - 2**64 % n
    bits = Fixed(2**64 - 1, first, first - 1, n + 3, 2**64 - 1, 5, 6)
    assert with_replacement(n, 4, bits).tolist() == [n - 1, 3, 5, 6]
    assert not bits.left


@pytest.mark.parametrize("n", [1, 2, 2**24, 2**25, 2**63])
def test_no_word_is_refused_when_multiples_fit(n):
    bits = Fixed(2**64 - 1, 2**64 - 1)
    assert with_replacement(n, 2, bits).tolist() == [n - 1, n - 1]


@given(n=st.integers(1, 3000) | st.integers(3001, 2**63), share=st.floats(0, 1, exclude_min=True))
def test_batches_are_sorted_distinct_and_in_range(n, share):
    size = math.floor(share * min(n, 3000))
    draws = (without_replacement(n, size), poisson(n, size / n or 1e-20), with_replacement(n, size))
    for k, batch in enumerate(draws):
        assert batch.dtype == np.int64 and (batch.shape == (size,) or k == 1)
        assert np.all((batch >= 0) & (batch < n))
        assert k == 2 or np.all(np.diff(batch) > 0)


def test_all_records():
    assert np.array_equal(without_replacement(7, 7), np.arange(7))
    assert np.array_equal(poisson(7, 1.0, Fixed()), np.arange(7))


# ------------------------------------------------------------------------------------- Poisson inclusion


# Above one half it is drawn who is left out.
@pytest.mark.slow
@pytest.mark.parametrize("p", [0.2, 0.7])
def test_inclusion_is_independent(p):
    bits = seeded(5, int(10 * p))
    drawn = [poisson(4, p, bits) for _ in range(DRAWS)]
    assert p_value(drawn, inclusion(4, p)) > FALSE_ALARM


def test_dependence_would_show():
    """Batches of fixed size include each record with the same probability, but not independently."""
    bits = seeded(6)
    drawn = [without_replacement(4, 2, bits) for _ in range(DRAWS)]
    assert p_value(drawn, inclusion(4, 0.5)) < FALSE_ALARM


@pytest.mark.parametrize("p", [1e-20, 1e-12, 1e-3, 0.3, 0.5, 0.75, 1 - 1e-9])
def test_the_probability_is_right_to_rounding(p):
    """A single record is drawn (above one half: left out) if the uniform number is in a tail of mass p (1 - p)."""
    drawn = 1 - Fraction(p) if p > 0.5 else Fraction(p)
    for factor, happens in ((1 - Fraction(1, 10**15), True), (1 + Fraction(1, 10**15), False)):
        word = 2**128 - 1 - int(drawn * factor * 2**128)
        batch = poisson(1, p, Fixed(*split(word), *[0] * 50))
        assert batch.tolist() == ([0] if happens != (p > 0.5) else [])


def test_tiny_probabilities():
    assert poisson(1000, 5e-324).size == 0
    sizes = [poisson(2**63 - 1, 1e-18, bits).size for bits in [seeded(7)] for _ in range(2000)]
    assert abs(np.mean(sizes) - 9.2234) < 5 * math.sqrt(9.2234 / 2000)


# ---------------------------------------------------------------------------------------- Poisson number


def split(word):
    """Two words of the number that is inverted."""
    return np.frombuffer(word.to_bytes(16, "little"), dtype=np.uint64).tolist()


def count_at(rate, word):
    return poisson_count(rate, Fixed(*split(word)))


def exact_tails(rate, k):
    """P(K <= k) and P(K > k), by summing the probabilities of the nearer tail in high precision, as rationals."""
    with mpmath.workdps(60):
        log = k * mpmath.log(rate) - rate - mpmath.loggamma(k + 1)
        at = Fraction(int(mpmath.exp(log) * mpmath.mpf(2) ** 400), 2**400)
    numerator, denominator = Fraction(rate).as_integer_ratio()
    first = term = total = 2**200
    if k < rate:
        while term:
            term, k = term * k * denominator // numerator, k - 1
            total += term
        return at * total / first, 1 - at * total / first
    while term:
        k += 1
        term = term * numerator // (denominator * k)
        total += term
    return 1 - at * (total - first) / first, at * (total - first) / first


@pytest.mark.parametrize("rate", [1e-3, 0.05, 3.0, 40.0, 1e3, 1e5, 2e5, 1e7])
@pytest.mark.parametrize("z", [-11.0, -7.0, -4.5, -2.0, 0.0, 0.3, 2.0, 3.99, 4.1, 4.6, 7.0, 11.0])
def test_the_distribution_function_jumps_where_it_must(rate, z):
    """On either side of a jump, far into the tails: SciPy's own upper tail is wrong here at 1e7."""
    k = max(0, math.floor(rate + z * math.sqrt(rate) + (z * z - 1) / 6))
    below, above = exact_tails(rate, k)
    while min(below, above) < Fraction(1, 2**120):  # small rates
        k -= 1
        below, above = exact_tails(rate, k)
    margin = min(below, above) / 10**11 + Fraction(1, 2**128)
    assert count_at(rate, int((below - margin) * 2**128)) == k
    assert count_at(rate, int((below + margin) * 2**128)) == k + 1


@pytest.mark.parametrize("rate", [1e-12, 1e-3, 0.7, 3.0, 40.0, 1e5, 1.1e5, 1e7, 1e9, 1e10])
def test_counts_grow_with_the_uniform_number(rate):
    """From end to end, through the middle and to where the upper tail is summed."""
    ends = [2**s for s in range(0, 127, 3)]
    middle = [2**127 - 1, 2**127, *(2**128 - 2**113 + i * 2**104 for i in range(-3, 4))]
    words = sorted([0, *ends, *middle, *(2**128 - 1 - w for w in ends), 2**128 - 1])
    counts = [count_at(rate, w) for w in words]
    assert counts == sorted(counts)
    assert counts[0] >= rate - 14 * math.sqrt(rate)
    assert counts[-1] <= rate + 14 * math.sqrt(rate) + 70


@pytest.mark.parametrize("tail", [3e-5, 1e-7, 1e-15, 2.0**-90, 2.0**-129])
def test_both_ways_to_the_upper_tail_agree(tail):
    """At the largest rate at which pdtrc is right everywhere."""
    count = batches._poisson_upper_quantile(1e5, tail)
    assert pdtrc(count, 1e5) <= tail < pdtrc(count - 1, 1e5)


# ------------------------------------------------------------------------------------- costs and secrecy


@pytest.mark.parametrize("n,words", [(10**5, 500), (10**7, 500), (10**9, 1000), (10**12, 1000)])
def test_the_cost_is_that_of_the_batch(n, words):
    """Half a word per value up to 2**24 records, a few for what is drawn again; memory too."""
    tracemalloc.start()
    try:
        for draw in (with_replacement, without_replacement):
            bits = Counting(seeded(9))
            draw(n, 1000, bits)
            assert words <= bits.asked < words + 20
        bits = Counting(seeded(9))
        size = poisson(n, 1000 / n, bits).size
        assert size * words / 1000 <= bits.asked < size * words / 1000 + 20
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_of_most_records_the_others_are_drawn():
    for draw, some in ((without_replacement, 99_000), (poisson, 0.99)):
        bits = Counting(seeded(10))
        left_out = 100_000 - draw(100_000, some, bits).size
        assert left_out / 2 <= bits.asked < left_out / 2 + 40


def test_bits_are_secret_unless_others_are_asked_for():
    assert batches._SECRET == OperatingSystemBits()
    draws = (
        lambda: uniforms(10),
        lambda: with_replacement(10**6, 20),
        lambda: without_replacement(10**6, 20),
        lambda: without_replacement(1000, 900),
        lambda: poisson(10**6, 1e-4),
        lambda: [poisson_count(1e6) for _ in range(20)],
    )
    for draw in draws:
        np.random.seed(1)
        first = draw()
        np.random.seed(1)
        assert not np.array_equal(first, draw())
