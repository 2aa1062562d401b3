"""Batches of record numbers, drawn with secret bits in time proportional to the batch.

A random batch amplifies privacy only against those who cannot know it. A generator with a seed or
with a state that results can reveal, such as that of ``pm.Minibatch``, is of no use: an access with
a known batch costs what it would cost without sampling. Sizes, rates and probabilities are public.
"""

from __future__ import annotations

import math

import numpy as np

from scipy.special import ndtri, pdtr, pdtrc

from pymc_dp.privacy.mechanisms import positive, probability, whole
from pymc_dp.privacy.noise import BitSource, OperatingSystemBits

__all__ = ["poisson", "poisson_count", "uniforms", "with_replacement", "without_replacement"]

_SECRET = OperatingSystemBits()
# Up to here half a word per value pays: less than one value in 256 is drawn again.
_NARROW = 2**24
_LARGEST_RATE = 1e10
# Above, the series behind pdtrc ends before it has converged, from 4.5 standard deviations on.
_LARGEST_SERIES_RATE = 1e5


def uniforms(n: int, bits: BitSource = _SECRET) -> np.ndarray:
    """``n`` independent uniform multiples of 2**-53 in [0, 1)."""
    return (bits.words(_whole("number of values", n)) >> np.uint64(11)) * 2.0**-53


def with_replacement(n_records: int, size: int, bits: BitSource = _SECRET) -> np.ndarray:
    """``size`` independent record numbers, each exactly uniform on ``0 .. n_records - 1``."""
    n_records, size = _records(n_records), _whole("batch size", size)
    return _below(n_records, size, bits).astype(np.int64)


def without_replacement(n_records: int, size: int, bits: BitSource = _SECRET) -> np.ndarray:
    """``size`` different record numbers in ascending order, all sets exactly equally likely.

    The set is that of the first ``size`` distinct values of an endless sequence of uniform draws:
    as many are drawn at a time as are missing, so none is in excess and order does not matter. If
    more than half of the records are wanted, those left out are drawn.
    """
    n_records, size = _records(n_records), _whole("batch size", size)
    if size > n_records:
        raise ValueError(f"{n_records} records cannot give {size} without replacement.")
    complement = 2 * size > n_records
    wanted = n_records - size if complement else size
    values = _distinct(_below(n_records, wanted, bits))
    while len(values) < wanted:
        more = _below(n_records, wanted - len(values), bits)
        values = _distinct(np.concatenate([values, more]))
    return _others(n_records, values) if complement else values.astype(np.int64)


def poisson(n_records: int, sampling_probability: float, bits: BitSource = _SECRET) -> np.ndarray:
    """Record numbers in ascending order, every record independently with the same probability.

    They are the distinct values among a Poisson number of draws with replacement: how often each
    record is drawn is then an independent Poisson number, and the rate ``-ln(1 - p)`` makes it
    positive with probability ``p``. Above one half, the records left out are drawn, as ``1 - p`` has
    no rounding error there. Time and memory are proportional to the expected batch.

    Rounding of the rate changes the probability by less than 1e-15 of itself, however small it is,
    and alike for all records; for the number of draws see :func:`poisson_count`. The rest is exact.
    """
    n_records = _records(n_records)
    p = probability("sampling probability", sampling_probability)
    drawn = 1 - p if p > 0.5 else p
    count = poisson_count(-n_records * math.log1p(-drawn), bits) if drawn else 0
    values = _distinct(_below(n_records, count, bits))
    return _others(n_records, values) if p > 0.5 else values.astype(np.int64)


def poisson_count(rate: float, bits: BitSource = _SECRET) -> int:
    """Poisson number: the distribution function is inverted at a uniform number of 128 bits.

    What is inverted is the nearer tail, so both are right down to 2**-128, with a relative error of
    less than 1e-11. In the middle, rounding moves the distribution function by about 1e-16: the
    total variation distance from the Poisson law is below ``5e-16 * (1 + sqrt(rate))``. Takes a few
    microseconds at any rate up to 1e10, the largest; milliseconds once in 30 000 times above 1e5.
    """
    rate = positive("rate", rate)
    if rate > _LARGEST_RATE:
        raise ValueError(f"The rate must be at most {_LARGEST_RATE:.0e}, got {rate!r}.")
    word = int.from_bytes(bits.words(2).tobytes(), "little")
    upper = word >= 2**127
    tail = ((2**128 - 1 - word if upper else word) + 0.5) * 2.0**-128
    z = -float(ndtri(tail)) if upper else float(ndtri(tail))
    if z > 4 and rate > _LARGEST_SERIES_RATE:
        return _far_count(rate, tail)

    def enough(count: float) -> bool:
        return pdtrc(count, rate) <= tail if upper else pdtr(count, rate) >= tail

    # Cornish and Fisher's expansion is nearly always right: two values then confirm it.
    count = max(0.0, (rate + z * math.sqrt(rate) + (z * z - 1) / 6 + 0.5) // 1)
    while not enough(count):
        count += 1
    while count > 0 and enough(count - 1):
        count -= 1
    return int(count)


def _far_count(rate: float, tail: float) -> int:
    """Least number exceeded with probability ``tail`` at most, if 4 deviations above the mean or more."""
    deviation = math.sqrt(rate)
    start = math.floor(rate + 3.5 * deviation)
    # Probabilities of the numbers above start, relative to that of start.
    ratios = np.cumprod(rate / (start + np.arange(1.0, 14 * deviation)))
    beyond = np.cumsum(ratios[::-1])  # smallest first; the last one belongs to start
    within = np.searchsorted(beyond, tail / pdtrc(start, rate) * beyond[-1], side="right")
    return start + len(beyond) - int(within)


def _below(n: int, size: int, bits: BitSource) -> np.ndarray:
    """``size`` uniform unsigned integers below ``n``.

    Words beyond the last whole multiple of ``n`` would favour small remainders: they are replaced.
    """
    kind: type[np.unsignedinteger] = np.uint32 if n <= _NARROW else np.uint64
    per_word = 1 if kind is np.uint64 else 2
    end = 2 ** (64 // per_word)
    last = end - end % n - 1
    words = bits.words(-(-size // per_word)).view(kind)[:size]
    while words.max(initial=0) > last:
        words = words[words <= last]
        more = bits.words(-(-(size - len(words)) // per_word)).view(kind)
        words = np.concatenate([words, more])[:size]
    return words % kind(n)


def _distinct(values: np.ndarray) -> np.ndarray:
    """Sort in place and keep one of each; several times faster than :func:`numpy.unique`."""
    values.sort()
    first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def _others(n: int, values: np.ndarray) -> np.ndarray:
    """All integers below ``n`` but these, ascending."""
    left = np.ones(n, dtype=bool)
    left[values] = False
    return np.flatnonzero(left)


def _records(n_records: int) -> int:
    n_records = _whole("number of records", n_records)
    if not 1 <= n_records <= 2**63:
        raise ValueError(f"The number of records must be from 1 to 2**63, got {n_records}.")
    return n_records


def _whole(what: str, value: int) -> int:
    try:
        value = whole(f"The {what}", value)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if value < 0:
        raise ValueError(f"The {what} must not be negative, got {value}.")
    return value
