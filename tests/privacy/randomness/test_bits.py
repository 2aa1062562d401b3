"""Secret bits: exact decisions, fresh in every process."""

import math
import multiprocessing

import pytest

from hypothesis import given
from hypothesis import strategies as st

from pymc_dp.acceptance import Barker
from pymc_dp.privacy.randomness.bits import OperatingSystemBits, bernoulli, decide
from tests.privacy.randomness.test_batches import Fixed


@given(p=st.floats(0, 1), first=st.integers(0, 2**64 - 1), second=st.integers(0, 2**64 - 1))
def test_bernoulli_compares_with_every_bit_of_p(p, first, second):
    """The decision is that of the exact comparison of a 128-bit uniform with p, as rationals."""
    from fractions import Fraction

    numerator = first * 2**64 + second
    low, high = Fraction(numerator, 2**128), Fraction(numerator + 1, 2**128)
    exact = Fraction(p)
    if high <= exact:
        assert bernoulli(p, Fixed(first, second))
    elif low >= exact:
        assert not bernoulli(p, Fixed(first, second))


def test_probabilities_far_below_the_resolution_of_53_bits():
    p = 2.0**-100
    assert bernoulli(p, Fixed(0, 2**28)) is False
    assert bernoulli(p, Fixed(0, 2**28 - 1)) is True
    assert bernoulli(p, Fixed(1)) is False


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_bernoulli_refuses(bad):
    with pytest.raises(ValueError, match="probability"):
        bernoulli(bad, OperatingSystemBits())


def test_extreme_decisions_are_not_rounded_away():
    """Rejecting at a log-ratio of 60 has probability e^-60 under Barker's rule: tiny, but not zero."""
    assert decide(Barker(), 60.0, Fixed(0, 0)) is False
    assert decide(Barker(), 60.0, Fixed(1)) is True
    assert decide(Barker(), -60.0, Fixed(0, 0)) is True
    assert decide(Barker(), math.inf, Fixed()) is True
    assert decide(Barker(), -math.inf, Fixed()) is False


def _word(queue, bits):
    queue.put(bits.word())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_two_processes_share_bits(method):
    context = multiprocessing.get_context(method)
    queue, bits = context.Queue(), OperatingSystemBits()
    workers = [context.Process(target=_word, args=(queue, bits)) for _ in range(2)]
    for worker in workers:
        worker.start()
    words = {queue.get(timeout=600) for _ in workers} | {bits.word()}
    for worker in workers:
        worker.join()
    assert len(words) == 3
