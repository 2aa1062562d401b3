"""Largest sum of absolute polynomials on a box, bounded from both sides by their Bernstein form."""

from __future__ import annotations

import math

from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

__all__ = ["EPS", "bound_maximum", "power"]

EPS = 2.0**-52
_CHUNK = 2**18  # coefficients that are handled at once: 2 MB
_ROUGH = (0.1, 0.01, 1e-4)  # tolerances of the first searches


class _Boxes(NamedTuple):
    """Boxes that are still open, n of them; a piece is the unit cube in k variables."""

    coefficients: np.ndarray  # on the box: (n, polynomials, degree + 1 of each variable ...)
    corner: np.ndarray  # (n, k)
    width: np.ndarray  # (n, k), powers of two
    piece: np.ndarray  # (n,)


def power(lower: Fraction, upper: Fraction, exponent: int, degree: int) -> np.ndarray:
    """Bernstein coefficients of ``x**exponent`` on ``[lower, upper]``, shape (degree + 1,), each rounded once.

    Coefficient k is the mean, over all choices of ``exponent`` out of ``degree`` factors, of which k are ``upper`` and
    the rest ``lower``, of their product (the polar form). None is larger than the largest ``|x|**exponent``.
    """
    coefficients = np.array(
        [
            float(
                sum(
                    math.comb(k, r)
                    * math.comb(degree - k, exponent - r)
                    * upper**r
                    * lower ** (exponent - r)
                    for r in range(max(0, exponent - degree + k), min(k, exponent) + 1)
                )
                / math.comb(degree, exponent)
            )
            for k in range(degree + 1)
        ]
    )
    coefficients.flags.writeable = False
    return coefficients


def bound_maximum(
    pieces: np.ndarray, *, magnitude: float, error: float, tolerance: float, max_boxes: int
) -> tuple[float, int, np.ndarray]:
    r"""Bound :math:`\max_x \sum_i |p_i(x)|` over pieces, each a family of polynomials on the unit cube.

    A polynomial is a weighted mean of its Bernstein coefficients, with the same weights for all i, so the sum is at most
    :math:`\max_\beta \sum_i |c_{i\beta}|`; at the corners of a box coefficients are values. Boxes are halved until the
    bound is within the tolerance of the best value seen, or ``max_boxes`` is reached. The bound returned is the largest
    of those of all boxes that were not halved further, which together cover the pieces. Its error falls with the square
    of the width, so only boxes about maxima become small.

    Parameters
    ----------
    pieces : array, shape (pieces, polynomials, degree + 1 of each variable ...)
        Bernstein coefficients; degrees at least 2.
    magnitude, error : float
        For every piece and index, no less than :math:`\sum_i |c_{i\beta}|`, and than its error by rounding.
    tolerance : float
        Relative.
    max_boxes : int
        Boxes to look at before the rest are taken as they are.

    Returns
    -------
    bound : float
        Upper bound, errors of rounding included.
    piece : int
        Where the largest value was seen: the number of the piece,
    position : array, shape (k,)
        and the point in the unit cube.
    """
    n, k = len(pieces), pieces.ndim - 2
    degrees = [size - 1 for size in pieces.shape[2:]]
    corners = (slice(None), *np.ix_(*[[0, degree] for degree in degrees]))
    batch = max(1, _CHUNK // pieces[0].size)
    best, piece, position, n_boxes = -1.0, 0, np.zeros(k), 0
    bounds = []
    # Roughly first: with a good value in hand, no box is halved that need not be. Depth first, to save memory.
    for goal in (*(t for t in _ROUGH if t > tolerance), tolerance):
        bound = 0.0
        stack = [_Boxes(pieces, np.zeros((n, k)), np.ones((n, k)), np.arange(n))]
        while stack:
            boxes = _take(stack, batch)
            n_boxes += len(boxes.piece)
            sums = np.abs(boxes.coefficients).sum(axis=1)
            seen = sums[corners].reshape(len(sums), -1)
            i, corner = np.unravel_index(seen.argmax(), seen.shape)
            if seen[i, corner] > best:
                best, piece = float(seen[i, corner]), int(boxes.piece[i])
                ends = np.array(np.unravel_index(corner, (2,) * k), dtype=float)
                position = boxes.corner[i] + ends * boxes.width[i]
            # A halving takes means, which do not amplify errors, and adds its own rounding.
            halvings = -np.log2(boxes.width).sum(axis=1)
            slack = error + halvings * (max(degrees, default=0) + 2) * EPS * magnitude
            upper = sums.reshape(len(sums), -1).max(axis=1) + slack
            # Where no more than rounding is left, halving would not help.
            open_ = (upper > best * (1 + goal) + 4 * slack) & (n_boxes < max_boxes)
            bound = max(bound, upper[~open_].max(initial=0.0))
            order = np.flatnonzero(open_)[np.argsort(upper[open_])]
            stack += _halves(_Boxes(*(a[order] for a in boxes)), sums[order])
        bounds.append(bound)
        if n_boxes >= max_boxes:
            break
    return math.nextafter(min(bounds), math.inf), piece, position


def _take(stack: list[_Boxes], n: int) -> _Boxes:
    """Take the last n boxes, or all there are."""
    parts = [stack.pop()]
    while stack and sum(len(part.piece) for part in parts) < n:
        parts.append(stack.pop())
    boxes = parts[0] if len(parts) == 1 else _Boxes(*map(np.concatenate, zip(*reversed(parts))))
    if len(boxes.piece) > n:
        stack.append(_Boxes(*(a[:-n] for a in boxes)))
    return _Boxes(*(a[-n:] for a in boxes))


@lru_cache
def _halving(degree: int) -> np.ndarray:
    """Matrices from coefficients to those of both halves: de Casteljau's algorithm, binomials over powers of two."""
    left = np.array(
        [[math.comb(i, j) / 2**i for j in range(degree + 1)] for i in range(degree + 1)]
    )
    return np.stack([left, left[::-1, ::-1]])


def _halves(boxes: _Boxes, sums: np.ndarray) -> list[_Boxes]:
    """Halve each box along the variable in which the sums of coefficients bend most: bends are what makes the bound loose."""
    if not len(sums):
        return []
    variables = range(boxes.width.shape[1])
    bends = [np.abs(np.diff(sums, n=2, axis=1 + a)).reshape(len(sums), -1) for a in variables]
    along = np.argmax([bend.max(axis=1) for bend in bends], axis=0)
    halves = []
    for a in np.unique(along):
        part = _Boxes(*(array[along == a] for array in boxes))
        last = np.moveaxis(part.coefficients, 2 + a, -1)
        width, corner = part.width.copy(), part.corner.copy()
        width[:, a] /= 2
        for matrix in _halving(last.shape[-1] - 1):
            coefficients = np.moveaxis(last @ matrix.T, -1, 2 + a)
            halves.append(_Boxes(coefficients, corner.copy(), width, part.piece))
            corner[:, a] += width[:, a]
    return halves
