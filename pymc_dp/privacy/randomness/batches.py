"""Batches of record numbers, drawn with secret bits in time proportional to the batch.

A batch amplifies privacy only while it is secret: an access to a known batch costs as much as one without
sampling. So generators with a seed, or with a state that results reveal, such as that of ``pm.Minibatch``,
cannot be used. Sizes, rates and probabilities are public.
"""

from __future__ import annotations

import math

import numpy as np

from scipy.special import ndtri, pdtr, pdtrc

from pymc_dp.arguments import as_integer, as_positive_float, as_probability
from pymc_dp.privacy.randomness.bits import BitSource, OperatingSystemBits

_SECRET = OperatingSystemBits()
# Up to this number half a word per value is faster: less than one value in 256 is drawn again.
_NARROW = 2**24
_LARGEST_RATE = 1e10
# Above this rate, SciPy's series for pdtrc stops before it has converged, from 4.5 standard deviations on.
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

    The set of the first ``size`` distinct values of a sequence of uniform draws. Each round draws as many
    values as are missing, so none is discarded and order does not matter. For more than half of the records,
    the complement is drawn.
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

    They are the distinct values among a Poisson number of draws with replacement. The numbers of times that
    records are drawn are then independent Poisson numbers, and with the rate ``-ln(1 - p)`` each is positive
    with probability ``p``. Above one half the complement is drawn, as ``1 - p`` has no rounding error there.
    Time and memory are proportional to the expected batch.

    Rounding of the rate changes the probability by a relative 1e-15 at most, equally for all records; for the
    number of draws see :func:`poisson_count`. The rest is exact.
    """
    n_records = _records(n_records)
    p = as_probability("sampling probability", sampling_probability)
    drawn = 1 - p if p > 0.5 else p
    count = poisson_count(-n_records * math.log1p(-drawn), bits) if drawn else 0
    values = _distinct(_below(n_records, count, bits))
    return _others(n_records, values) if p > 0.5 else values.astype(np.int64)


def poisson_count(rate: float, bits: BitSource = _SECRET) -> int:
    """Poisson number, by inversion of the distribution function at a uniform number of 128 bits.

    The nearer tail is inverted, so both are accurate down to 2**-128, with a relative error below 1e-11. In the
    centre rounding changes the distribution function by about 1e-16: the total variation distance from the
    Poisson law is below ``5e-16 * (1 + sqrt(rate))``. Takes a few microseconds at any rate up to the largest,
    1e10; milliseconds once in 30 000 calls above 1e5.
    """
    rate = as_positive_float("rate", rate)
    if rate > _LARGEST_RATE:
        raise ValueError(f"The rate must be at most {_LARGEST_RATE:.0e}, got {rate!r}.")
    word = int.from_bytes(bits.words(2).tobytes(), "little")
    upper = word >= 2**127
    tail = ((2**128 - 1 - word if upper else word) + 0.5) * 2.0**-128
    z = -float(ndtri(tail)) if upper else float(ndtri(tail))
    if z > 4 and rate > _LARGEST_SERIES_RATE:
        return _poisson_upper_quantile(rate, tail)

    def enough(count: float) -> bool:
        return pdtrc(count, rate) <= tail if upper else pdtr(count, rate) >= tail

    # The Cornish-Fisher expansion is nearly always exact; two evaluations then confirm it.
    count = max(0.0, (rate + z * math.sqrt(rate) + (z * z - 1) / 6 + 0.5) // 1)
    while not enough(count):
        count += 1
    while count > 0 and enough(count - 1):
        count -= 1
    return int(count)


def _poisson_upper_quantile(rate: float, tail: float) -> int:
    """Smallest number exceeded with probability at most ``tail``, if it is 4 deviations above the mean or more."""
    deviation = math.sqrt(rate)
    start = math.floor(rate + 3.5 * deviation)
    # Probabilities of the numbers above start, relative to that of start.
    ratios = np.cumprod(rate / (start + np.arange(1.0, 14 * deviation)))
    beyond = np.cumsum(ratios[::-1])  # smallest first; the last one belongs to start
    within = np.searchsorted(beyond, tail / pdtrc(start, rate) * beyond[-1], side="right")
    return start + len(beyond) - int(within)


def _below(n: int, size: int, bits: BitSource) -> np.ndarray:
    """``size`` uniform unsigned integers below ``n``.

    Words above the last whole multiple of ``n`` would favour small remainders: they are drawn again.
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
    """Sort in place and drop duplicates; several times faster than :func:`numpy.unique`."""
    values.sort()
    first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def _others(n: int, values: np.ndarray) -> np.ndarray:
    """All integers below ``n`` except these, ascending."""
    others = np.ones(n, dtype=bool)
    others[values] = False
    return np.flatnonzero(others)


def _records(n_records: int) -> int:
    n_records = _whole("number of records", n_records)
    if not 1 <= n_records <= 2**63:
        raise ValueError(f"The number of records must be from 1 to 2**63, got {n_records}.")
    return n_records


def _whole(what: str, value: int) -> int:
    try:
        value = as_integer(f"The {what}", value)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if value < 0:
        raise ValueError(f"The {what} must not be negative, got {value}.")
    return value
