"""How far one record can move a clamped statistic: certified L1 and L2 sensitivities."""

from __future__ import annotations

import math

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from pymc_dp.privacy.bernstein import EPS
from pymc_dp.privacy.farthest_pair import distance, evaluate, farthest_pair
from pymc_dp.privacy.mechanisms import Adjacency, real, reals, whole

__all__ = ["Sensitivity", "quadratic_exponents", "sensitivity_of", "sensitivity_of_table"]


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """A certified sensitivity: ``attained <= truth <= value``, in real arithmetic."""

    value: float  #: upper bound, rounded up: scale the noise by it
    attained: float  #: distance of the two `records`, rounded down; ``value - attained`` is the gap
    records: np.ndarray = field(repr=False)  #: two records that far apart (one, if one was added)
    order: int  #: 1 or 2, of the norm
    adjacency: Adjacency  #: which data sets count as neighbours

    def __post_init__(self) -> None:
        self.records.flags.writeable = False

    def __str__(self) -> str:
        gap = self.value - self.attained
        return f"L{self.order} sensitivity at most {self.value!r} ({self.adjacency}), of which {self.attained!r} is attained: gap {gap:.1e}"


def quadratic_exponents(n_columns: int) -> np.ndarray:
    """Exponents of all first and second moments of a record: what a linear regression is fitted from.

    Parameters
    ----------
    n_columns : int
        Length of a record, covariates and response together.

    Returns
    -------
    array of int, shape (n_columns * (n_columns + 3) / 2, n_columns)
        One row a monomial: ``z_1, z_2, ..., z_1**2, z_1 * z_2, ..., z_2**2, ...``.
    """
    n_columns = whole("n_columns", n_columns, 1)
    one = np.eye(n_columns, dtype=int)
    first, second = np.triu_indices(n_columns)
    return np.concatenate([one, one[first] + one[second]])


def sensitivity_of(
    exponents: npt.ArrayLike,
    lower: npt.ArrayLike = -1.0,
    upper: npt.ArrayLike = 1.0,
    *,
    order: int = 1,
    weights: npt.ArrayLike = 1.0,
    adjacency: Adjacency | str = Adjacency.SUBSTITUTE,
    tolerance: float = 1e-9,
    max_boxes: int = 100_000,
) -> Sensitivity:
    r"""Sensitivity of sums of monomials over records that are clamped to a box.

    The statistic is :math:`\sum_n t(z_n)` with :math:`t_i(z) = w_i \prod_j z_j^{e_{ij}}` and ``lower <= z <= upper``; the
    result bounds :math:`\sup_{z, z'} \lVert t(z) - t(z') \rVert` (substitution), or :math:`\sup_z \lVert t(z) \rVert`.
    Clamping is part of the mechanism: of records that are not clamped, the bound says nothing.

    Parameters
    ----------
    exponents : array of int, shape (m, d)
        Row i holds the powers of the d columns in term i; :func:`quadratic_exponents` lists those of a linear regression.
    lower, upper : float or array of float, shape (d,), default -1 and 1
        Ends of the box, finite, in the units of the columns; taken as exact. They must not be read off private data.
    order : int
        1 for the L1 norm, of Laplace noise; 2 for the L2 norm, of Gaussian noise. The default, 1, is the larger number.
    weights : float or array of float, shape (m,)
        Factor of each term, taken as exact.
    adjacency : Adjacency or str
        Which data sets count as neighbours.
    tolerance : float
        Relative gap between ``value`` and ``attained`` at which the search stops, 1e-12 to 1.
    max_boxes : int
        Boxes to look at before the search stops, with a larger gap. ``value`` is an upper bound all the same.

    Returns
    -------
    Sensitivity
        Upper bound, and the records, shape (2, d) or (1, d), that prove how tight it is.

    Raises
    ------
    ValueError
        If exponents, ends, weights, order or adjacency are not of the kind above, or if the search would be too large.

    Notes
    -----
    *Addition or removal*: each ``|t_i|`` grows with each ``|z_j|``, so one corner is the largest in all terms at once.

    *Substitution*, why ``value`` is an upper bound:

    1. Fewer variables. Let column j occur linearly in products, and else as its own square only. Given the difference
       ``z_j - z'_j``, and all else, ``t(z) - t(z')`` is affine in the mean of the two, so its norm is convex and largest
       where one of the two is at an end of the box. Where there is no square, the norm is convex in each of the two:
       both are at ends. In a box symmetric in column j a change of its sign changes signs of terms only: one end will do.
    2. An upper bound. The L1 norm is the sum of ``|p|`` over the polynomials ``p = t_i(z) - t_i(z')``; the square of the L2
       norm is one polynomial. In Bernstein form on a box a polynomial is a weighted mean of its coefficients [1]_, so a
       sum of ``|p|`` is at most the largest sum of ``|coefficients|`` with a common index.
    3. A lower bound. Coefficients at corners are values.
    4. Boxes are halved (de Casteljau) until the upper bound is within the tolerance of the best value; the largest bound
       of the boxes that were not halved is the result.
    5. Rounding. Coefficients of a power are rational numbers, rounded once; halving takes means, which do not amplify
       errors. A bound on all these errors is added; it shows in boxes that are narrow for their distance from 0 (a relative
       gap of about 1e-14 times the square of the ratio). ``attained`` is computed with rational numbers.

    For all moments up to order two of 2 or 3 columns this takes some ten milliseconds, of 4 columns a quarter of a second, of 5
    columns two seconds. For 6 columns order 2 takes up to ten seconds, and order 1 stops at ``max_boxes`` after half a
    minute, with a relative gap of 1e-4; 7 columns are refused in boxes that are not symmetric. It can also stop early where
    the farthest pairs form a curve, as for ``x * y`` and ``(x * y)**2``. A statistic that is too large can be split:
    sensitivities of parts (for order 2, their squares) add up to an upper bound, exactly so for parts without a common
    column.

    The bound holds in real arithmetic. Floating-point sums are rounded, in an order that can depend on the data, and can
    move by more [2]_: add on a grid, as :meth:`RecordLikelihood.clipped_sum` does, and add to ``value`` what the grid can
    move the terms of two records.

    References
    ----------
    .. [1] Garloff, J. (1993). The Bernstein algorithm. Interval Computations 2, 154-168. On the form and its stability:
       Farouki, R. T. (2012). The Bernstein polynomial basis: a centennial retrospective. Computer Aided Geometric Design
       29(6). https://doi.org/10.1016/j.cagd.2012.03.001
    .. [2] Casacuberta, S., Shoemate, M., Vadhan, S. and Wagaman, C. (2022). Widespread underestimation of sensitivity in
       differentially private libraries and how to fix it. CCS '22. https://doi.org/10.1145/3548606.3560708

    Examples
    --------
    Regression on two covariates, scaled to [-1, 1] (Ju, Gong, Awan, Rao 2022, section 5,
    https://doi.org/10.48550/arXiv.2206.00710, who add noise for 13):

    >>> print(round(sensitivity_of(quadratic_exponents(3)).attained, 6))
    9.375
    """
    adjacency, order = Adjacency(adjacency), _order(order)
    powers = np.asarray(exponents)
    if powers.ndim != 2 or 0 in powers.shape:
        raise ValueError(f"Exponents must have the shape (terms, columns), got {powers.shape}.")
    if powers.dtype.kind not in "iu":
        raise ValueError(
            f"Exponents must be whole numbers, got an array of {powers.dtype}. Pass integers; other powers are no polynomials."
        )
    if powers.min() < 0:
        raise ValueError(f"Exponents must be at least 0, got {powers.min()}.")
    if not 1e-12 <= real(tolerance) < 1:
        raise ValueError(f"The tolerance must lie in [1e-12, 1), got {tolerance!r}.")
    m, d = powers.shape
    low, high = _exact("lower", lower, d), _exact("upper", upper, d)
    for j, (a, b) in enumerate(zip(low, high)):
        if a > b:
            raise ValueError(
                f"lower must not exceed upper, got {float(a)} > {float(b)} in column {j}. Exchange the two."
            )
    terms = list(zip(_exact("weights", weights, m), powers.tolist()))
    if adjacency == Adjacency.ADD_REMOVE:
        bound, records = Fraction(0), [[max(ends, key=abs) for ends in zip(low, high)]]
    else:
        bound, records = farthest_pair(terms, low, high, order, tolerance, max_boxes)
    attained = distance([evaluate(terms, z) for z in records], order)
    return _certified(max(bound, attained), attained, np.array(records, float), order, adjacency)


def sensitivity_of_table(
    table: npt.ArrayLike,
    *,
    order: int = 1,
    adjacency: Adjacency | str = Adjacency.SUBSTITUTE,
) -> Sensitivity:
    """Sensitivity of sums of terms that take finitely many values, such as counts.

    Parameters
    ----------
    table : array of float, shape (k, m)
        The m terms of each record there can be, not of the records there are: those are private.
    order, adjacency
        As for :func:`sensitivity_of`.

    Returns
    -------
    Sensitivity
        Largest distance of two rows (or largest norm of a row) and these rows, shape (2, m) or (1, m). Whole numbers are
        added exactly; otherwise ``value`` allows for the rounding of the sums.

    Raises
    ------
    ValueError
        If the table is not finite, has no rows, or has so many that comparing all pairs would take minutes.

    Examples
    --------
    >>> print(sensitivity_of_table(np.eye(3)).value)
    2.0
    """
    adjacency, order = Adjacency(adjacency), _order(order)
    rows = reals("table's entries", table)
    if rows.ndim != 2 or 0 in rows.shape or not np.isfinite(rows).all():
        raise ValueError(
            f"The table must be finite, of the shape (possible records, terms), got {rows.shape}."
        )
    substitute = adjacency == Adjacency.SUBSTITUTE
    (k, m), largest = rows.shape, float(np.abs(rows).max())
    if substitute and k * k * m > 1e10:
        raise ValueError(
            f"{k} possible records are too many to compare all pairs. Drop duplicates, or split the terms into parts."
        )
    if largest > 1e300:
        raise ValueError(f"The table's entries must be at most 1e300 in size, got {largest!r}.")
    # By a power of two, so that squares neither overflow nor vanish beside the largest.
    _, exponent = math.frexp(np.ptp(rows, axis=0).max() if substitute else largest)
    best, pair = -1.0, [0]
    for i, base in enumerate(rows if substitute else np.zeros((1, m))):
        distances = (np.abs(np.ldexp(rows - base, -exponent)) ** order).sum(axis=1)
        j = int(distances.argmax())
        if distances[j] > best:
            best, pair = float(distances[j]), [j, i] if substitute else [j]
    attained = distance([[Fraction(x) for x in row] for row in rows[pair].tolist()], order)
    bound = attained
    if not (np.all(rows == np.rint(rows)) and m * Fraction(2 * largest) ** order < 2**53):
        # The distances above have m + 3 roundings at most: another row may be farther by twice that.
        bound = attained * (1 + (m + 4) * Fraction(2 * EPS))
    return _certified(bound, attained, rows[pair], order, adjacency)


def _order(order: int) -> int:
    if real(order) not in (1, 2):
        raise ValueError(f"The order of the norm must be 1 or 2, got {order!r}.")
    return int(order)


def _exact(what: str, values: npt.ArrayLike, n: int) -> list[Fraction]:
    """Read n finite floats as rational numbers; a scalar stands for n."""
    array = reals(f"values of {what}", values)
    if array.shape not in ((), (n,)) or not np.isfinite(array).all():
        raise ValueError(f"{what} must be finite, one number or {n}, got {values!r}.")
    return [Fraction(x) for x in np.broadcast_to(array, n).tolist()]


def _certified(
    bound: Fraction, attained: Fraction, records: np.ndarray, order: int, adjacency: Adjacency
) -> Sensitivity:
    """Take roots, rounded outwards."""
    try:
        value, reached = (float(x if order == 1 else _root(x)) for x in (bound, attained))
    except OverflowError:
        raise ValueError(
            f"The sensitivity is beyond the range of floating point, at {records.tolist()}. Choose other units for the columns."
        ) from None
    while Fraction(value) ** order < bound:
        value = math.nextafter(value, math.inf)
    while Fraction(reached) ** order > attained:
        reached = math.nextafter(reached, 0)
    return Sensitivity(value, reached, records, order, adjacency)


def _root(x: Fraction) -> Fraction:
    """Square root to about 64 bits, of any size: squares can be out of the range of floating point."""
    shift = 64 - (x.numerator.bit_length() - x.denominator.bit_length()) // 2
    scaled = x * Fraction(4) ** shift
    return math.isqrt(scaled.numerator // scaled.denominator) / Fraction(2) ** shift
