r"""l2 noise for sums that lie on a grid, with no floating-point error in its law.

The noise has density proportional to ``exp(-|x| / scale)`` in ``d`` dimensions (Hardt, Talwar 2010,
https://doi.org/10.1145/1806689.1806786). Each of its coordinates, a real number, is rounded to a whole
number of grid steps. As the sum ``S`` is whole, ``S + round(Z) == round(S + Z)``: the release is a
post-processing of the ideal mechanism, and every bound on that one holds without a correction.

The ideal noise is a scale mixture of Gaussians: with ``G`` a vector of ``d`` standard normal numbers
and ``Q`` the sum of squares of ``d + 1`` others, ``Z = scale * sqrt(Q) * G``. (``v = scale**2 Q`` has
density proportional to :math:`v^{(d - 1)/2} e^{-v / (2 s^2)}`, and
:math:`\int v^{-1/2} e^{-|x|^2 / (2 v) - v / (2 s^2)} dv \propto e^{-|x| / s}`.) All these numbers are
drawn exactly: of each, as many bits as the rounding of the result depends on. Arithmetic is that of
whole numbers. A vector of 100 coordinates takes some milliseconds, once for each release.
"""

from __future__ import annotations

import math

from dataclasses import dataclass

import numpy as np

from pymc_dp.arguments import as_positive_float
from pymc_dp.privacy.randomness.bits import BitSource
from pymc_dp.privacy.randomness.rounded_gaussian import LARGEST_SCALE, REJECTED, proposed_whole_part

#: The length has a Gamma(d) law: scales at which it leaves the integers after the largest sum with
#: probability below exp(-2000), for up to a thousand coordinates.
LARGEST_L2_SCALE = LARGEST_SCALE / 32


@dataclass
class _Normal:
    """Absolute value of a standard normal number: in ``[whole + x / 2**n, whole + (x + 1) / 2**n]``, with a sign."""

    sign: int
    whole: int
    x: int
    n: int

    def refine(self, bits: BitSource) -> None:
        """Draw 64 more bits."""
        self.x = self.x << 64 | bits.word()
        self.n += 64

    def ends(self, n: int) -> tuple[int, int]:
        """Lower and upper end in units of ``2**-n``, with ``n`` at least its own."""
        low = (self.whole << self.n) + self.x
        return low << n - self.n, low + 1 << n - self.n


def rounded_l2(scale: float, size: int, bits: BitSource) -> np.ndarray:
    """One vector of real l2 noise, each coordinate rounded to the nearest int64; exactly this law.

    The scale is sensitivity over epsilon in grid steps; it is checked before bits are drawn. Time depends on the noise
    (never on the data): do not publish it.
    """
    as_positive_float("scale in grid steps", scale)
    if scale > LARGEST_L2_SCALE:
        raise ValueError(f"The scale must be at most 2**50 grid steps, got {scale!r}: use a coarser grid.")  # fmt: skip
    mixture = [_normal(bits) for _ in range(size + 1)]
    coordinates = [_normal(bits) for _ in range(size)]
    result = np.empty(size, dtype=np.int64)
    for i, coordinate in enumerate(coordinates):
        while (value := _rounded(scale, mixture, coordinate)) is None:
            for number in (*mixture, coordinate):
                number.refine(bits)
        result[i] = coordinate.sign * value
    return result


def _normal(bits: BitSource) -> _Normal:
    """Draw a standard normal number (Karney 2016), as far as its acceptance depends on its bits.

    Acceptance holds for all continuations of the bits that are drawn, so that later bits of ``x``
    are independent and uniform.
    """
    while True:
        first, n = bits.word(), 64
        u, x, v = first >> 1, bits.word(), bits.word()
        while True:
            whole = proposed_whole_part((u, n - 1), (x, n), (v, n))
            if whole is not None:
                break
            u, x, v = (z << 64 | bits.word() for z in (u, x, v))
            n += 64
        if whole != REJECTED:
            return _Normal(1 if first & 1 else -1, whole, x, n)


def _rounded(scale: float, mixture: list[_Normal], coordinate: _Normal) -> int | None:
    """Nearest whole number to ``scale * sqrt(Q) * |G|``, if it is the same for all continuations of the bits."""
    n = max(number.n for number in (*mixture, coordinate))
    numerator, denominator = scale.as_integer_ratio()
    found = []
    for end in (0, 1):
        squares = sum(number.ends(n)[end] ** 2 for number in mixture)  # in units of 4**-n
        product = (2 * numerator * coordinate.ends(n)[end]) ** 2 * squares
        # floor((sqrt(t) + 1) / 2) of a rational t is that of isqrt(floor(t)).
        t = product // (denominator**2 << 4 * n)
        found.append((math.isqrt(t) + 1) // 2)
    return found[0] if found[0] == found[1] else None
