"""Sources of random bits.

The bits behind a decision must stay secret. They come from the operating system, one request for each decision,
so that there is no state that could be copied, pickled, seeded or shared between chains. A seeded source exists
for tests and public data; the privacy report then states that the guarantee is broken.
"""

from __future__ import annotations

import math
import os

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from pymc_dp.acceptance import AcceptanceRule


class BitSource(Protocol):
    """Source of independent uniform bits."""

    secret: ClassVar[bool]

    def word(self) -> int:
        """64 uniform bits, as an integer in [0, 2**64)."""
        ...

    def words(self, n: int) -> np.ndarray:
        """``n`` times 64 uniform bits, as unsigned integers."""
        ...


@dataclass(frozen=True)
class OperatingSystemBits:
    """Bits from the operating system's cryptographic generator (:func:`os.urandom`)."""

    secret: ClassVar[bool] = True

    def word(self) -> int:
        """64 uniform bits."""
        return int.from_bytes(os.urandom(8), "little")

    def words(self, n: int) -> np.ndarray:
        """``n`` times 64 uniform bits, in one request; read-only."""
        return np.frombuffer(os.urandom(8 * n), dtype=np.uint64)


@dataclass(frozen=True, eq=False)
class SeededBits:
    """Bits that can be reproduced from the seed: no privacy."""

    generator: np.random.Generator
    secret: ClassVar[bool] = False

    def word(self) -> int:
        """64 uniform bits."""
        return int(self.generator.integers(0, 2**64, dtype=np.uint64))

    def words(self, n: int) -> np.ndarray:
        """``n`` times 64 uniform bits."""
        return self.generator.integers(0, 2**64, size=n, dtype=np.uint64)


def bernoulli(p: float, bits: BitSource) -> bool:
    """Return True with probability exactly ``p``, any double in [0, 1].

    Compares an infinite uniform bit string with the (finite) binary expansion of ``p``, 64 bits at a time, so
    that small probabilities are not rounded to multiples of 2**-53. The first word nearly always decides.
    """
    if not 0 <= p <= 1:
        raise ValueError("A probability must lie in [0, 1].")
    if p == 1:
        return True
    while p > 0:
        p *= 2.0**64  # exact: a power of two
        digit = int(p)
        word = bits.word()
        if word != digit:
            return word < digit
        p -= digit  # exact: drops leading bits
    return False


def decide(rule: AcceptanceRule, log_ratio: float, bits: BitSource) -> bool:
    """Accept or reject by one Bernoulli draw with the smaller of the two probabilities, which is the accurate one."""
    log_accept, log_reject = rule.log_probabilities(log_ratio)
    if log_accept < log_reject:
        return bernoulli(math.exp(log_accept), bits)
    return not bernoulli(math.exp(log_reject), bits)
