"""Two records of a box whose monomials are farthest apart, and a bound that no pair exceeds."""

from __future__ import annotations

import math

from fractions import Fraction
from itertools import islice, product

import numpy as np

from pymc_dp.privacy.bernstein import EPS, bound_maximum, power

__all__ = ["Terms", "distance", "evaluate", "farthest_pair"]

#: Weight and exponents of each monomial.
Terms = list[tuple[Fraction, list[int]]]

_LARGEST = 2**25  # Bernstein coefficients to start from: 256 MB
_OVERHEAD = 1000  # coefficients that take as long as setting up a piece

_Polynomial = list[tuple[float, list[int], list[int]]]  # weights, exponents of z and of z'
_Powers = dict[int, tuple[float, float, np.ndarray]]

# Where the two records of a pair are in one column.
_Ends = tuple[int, int]
_LOWER, _UPPER, _FREE = 0, 1, 2


def evaluate(terms: Terms, z: list[Fraction]) -> list[Fraction]:
    """Terms of one record, exactly."""
    return [weight * math.prod(map(pow, z, powers)) for weight, powers in terms]


def distance(rows: list[list[Fraction]], order: int) -> Fraction:
    """Norm of the difference of two rows, or of one row, to the power of the order; exactly."""
    changes = [a - b for a, b in zip(*rows)] if len(rows) == 2 else rows[0]
    return sum((abs(x) ** order for x in changes), Fraction(0))


def farthest_pair(
    terms: Terms,
    low: list[Fraction],
    high: list[Fraction],
    order: int,
    tolerance: float,
    max_boxes: int,
) -> tuple[Fraction, list[list[Fraction]]]:
    """Bound the largest distance of two records, and find a pair nearly that far apart.

    The proof is in the notes of :func:`pymc_dp.privacy.sensitivity_of`.

    Returns
    -------
    bound : Fraction
        No less than the distance, to the power of the order, of any two records in the box.
    records : list of two records
        Floats, within the box.
    """
    # Columns are scaled into [-1, 1], those that cannot move become factors, terms that cannot move cancel.
    size = [max(abs(a), abs(b)) for a, b in zip(low, high)]
    factors = [abs(f) for f in evaluate(terms, size)]
    used = [any(es[j] for f, (_, es) in zip(factors, terms) if f > 0) for j in range(len(low))]
    moving = [j for j, (a, b) in enumerate(zip(low, high)) if a < b and used[j]]
    kept = [(f, [es[j] for j in moving]) for f, (_, es) in zip(factors, terms)]
    kept = [(f, es) for f, es in kept if f > 0 and any(es)]
    if not kept:
        return Fraction(0), [low, low]
    unit = max(f for f, _ in kept)
    polynomials = _polynomials([(f / unit, es) for f, es in kept], order)
    columns = [
        _Column(low[j] / size[j], high[j] / size[j], [es for _, es in kept], i, order)
        for i, j in enumerate(moving)
    ]
    ends = [column.ends for column in columns]
    # The two records may change names: in one column one order of them is enough.
    ends[0] = [e for i, e in enumerate(ends[0]) if e[::-1] not in ends[0][:i]]
    n_pieces = math.prod(len(choices) for choices in ends)
    n_coefficients = len(polynomials) * math.prod(
        (column.degree + 1) ** choices[0].count(_FREE) for column, choices in zip(columns, ends)
    )
    n_numbers = n_pieces * max(n_coefficients, _OVERHEAD)
    if n_numbers > _LARGEST:
        raise ValueError(
            f"{len(kept)} terms of {len(moving)} columns are too many: the search starts from {n_numbers:.1e} "
            f"numbers, the limit is {_LARGEST:.1e}. Split the terms into parts: sensitivities of parts (for order 2, their "
            "squares) add up to an upper bound."
        )

    powers = [
        column.powers({es[i] for p in polynomials for _, *both in p for es in both})
        for i, column in enumerate(columns)
    ]
    pieces = [_coefficients(polynomials, powers, piece) for piece in product(*ends)]
    magnitude = sum(abs(w) for polynomial in polynomials for w, *_ in polynomial)
    # Roundings of a coefficient: two a factor, one a monomial that is added, one a polynomial that is added.
    error = 4 * (len(moving) + len(kept) + 1) * EPS * magnitude
    bound, piece, position = bound_maximum(
        np.stack(pieces),
        magnitude=magnitude,
        error=error,
        tolerance=tolerance,
        max_boxes=max_boxes,
    )
    records, free = [list(low), list(low)], iter(position.tolist())
    for j, pair in zip(moving, next(islice(product(*ends), piece, None))):
        for record, end in zip(records, pair):
            share = Fraction(next(free) if end == _FREE else end)
            record[j] = Fraction(float(low[j] + (high[j] - low[j]) * share))  # stays in the box
    return Fraction(bound) * unit**order, records


def _polynomials(terms: Terms, order: int) -> list[_Polynomial]:
    """``t_i(z) - t_i(z')`` for the L1 norm; the sum of their squares for the L2 norm."""
    none = [0] * len(terms[0][1])
    if order == 1:
        return [[(float(w), es, none), (-float(w), none, es)] for w, es in terms]
    squares: _Polynomial = []
    for w, es in terms:
        twice, square = [2 * e for e in es], float(w * w)
        squares += [(square, twice, none), (-2 * square, es, es), (square, none, twice)]
    return [squares]


class _Column:
    """One column of two records, scaled to ``[low, high]`` within [-1, 1].

    Attributes
    ----------
    ends : list of pairs
        Where the two records can be when they are farthest apart: step 1 of the proof.
    degree : int
        Largest exponent of one of the two.
    """

    def __init__(
        self, low: Fraction, high: Fraction, exponents: list[list[int]], j: int, order: int
    ) -> None:
        fixed = [_UPPER] if low == -high else [_LOWER, _UPPER]
        if all(es[j] <= 1 for es in exponents):
            self.ends = [(a, b) for a in fixed for b in (_LOWER, _UPPER)]
        elif all(es[j] <= 1 or es[j] == sum(es) == 2 for es in exponents):
            self.ends = [(a, _FREE) for a in fixed] + [(_FREE, a) for a in fixed]
        else:
            self.ends = [(_FREE, _FREE)]
        self.degree = order * max(es[j] for es in exponents)
        self._box = low, high

    def powers(self, exponents: set[int]) -> _Powers:
        """Each power at the lower end, at the upper end, and its Bernstein coefficients, shape (degree + 1,)."""
        low, high = self._box
        return {
            e: (float(low**e), float(high**e), power(low, high, e, self.degree)) for e in exponents
        }


def _coefficients(
    polynomials: list[_Polynomial], columns: list[_Powers], piece: tuple[_Ends, ...]
) -> np.ndarray:
    """Bernstein coefficients of all polynomials on one piece, shape (polynomials, degree + 1 ...)."""
    sums = []
    for polynomial in polynomials:
        total = np.zeros(())
        for weight, *both in polynomial:
            term = np.array(weight)
            for powers, ends, exponents in zip(columns, piece, zip(*both)):
                for end, e in zip(ends, exponents):
                    term = np.multiply.outer(term, powers[e][end])
            total = total + term
        sums.append(total)
    return np.array(sums)
