"""How far one record can move the statistics that agencies release: moments, and counts.

Each sensitivity is the smallest correct one (in real arithmetic), rounded up to a float. Noise is scaled by it:
Laplace noise by order 1, Gaussian noise by order 2. Floating-point sums over records are rounded in an order
that can depend on the data, and can move by more (Casacuberta, Shoemate, Vadhan, Wagaman 2022,
https://doi.org/10.1145/3548606.3560708): add whole numbers, or multiples of a power of two, and add to the
sensitivity what rounding to them can move two records.
"""

from __future__ import annotations

import math

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from pymc_dp.arguments import as_float, as_floats, as_integer
from pymc_dp.privacy.mechanisms.mechanism import Adjacency


def sensitivity_of_moments(
    n_columns: int, *, order: int = 1, adjacency: Adjacency | str = Adjacency.SUBSTITUTE
) -> float:
    r"""Sensitivity of all first and second moments of columns that are clamped to [-1, 1].

    The statistic is :math:`\sum_n t(z_n)`, where :math:`t(z)` holds :math:`z_j` and :math:`z_j z_k` for all
    :math:`j \le k \le d`: a linear regression is fitted from it. A column in another interval must be clamped
    and scaled to [-1, 1] first, with public ends.

    Parameters
    ----------
    n_columns : int
        Number of columns ``d`` of a record, covariates and response together.
    order : {1, 2}
        Order of the norm.
    adjacency : {"substitute", "add_remove"}
        Which data sets count as neighbours.

    Returns
    -------
    float
        For substitution :math:`d (d + 2)^2 / (2 (d + 1))` if the order is 1, and
        :math:`2 \sqrt{\lfloor (d + 1)^2 / 4 \rfloor}` if it is 2.
        For addition or removal :math:`d (d + 3) / 2`, and its square root.

    Raises
    ------
    TypeError, ValueError
        If an argument is not one of the above.

    Notes
    -----
    *Addition or removal.* Each of the :math:`d (d + 3) / 2` terms is at most 1 in size, and all are for ones.

    *Substitution: reduction to one record.* Given :math:`z_j - z_j'` and all other columns, each term is the
    absolute value of an affine function of :math:`z_j + z_j'`. So the norm is convex in it, and largest where
    :math:`z_j` or :math:`z_j'` is at an end of [-1, 1]. Changing the sign of a column in both records changes
    no absolute value, so that end may be 1. If the other value is :math:`-a_j` where :math:`z_j = 1`, and
    :math:`-b_k` where :math:`z_k' = 1`, the product of these two columns contributes :math:`|a_j - b_k|`.
    Exchanging the values of column ``k`` between the two records makes it :math:`1 - a_j b_k`, which is no
    less, as :math:`1 - ab \mp (a - b) = (1 \mp a)(1 \pm b) \ge 0`, and changes nothing else. So
    :math:`z = (1, \dots, 1)` and :math:`z' = -a`.

    *Order 1.* With :math:`s = \sum_j a_j` the distance is :math:`d + s + d(d + 1)/2 - (s^2 + \sum_j a_j^2) / 2
    \le d + s + d(d + 1)/2 - s^2 (1 + 1/d) / 2`, which is largest at :math:`s = d / (d + 1)`. It is attained by
    :math:`a_j = 1 / (d + 1)`.

    *Order 2.* The square of the distance is :math:`\sum_j [(1 + a_j)^2 + (1 - a_j^2)^2] + \sum_{j < k} (1 - a_j
    a_k)^2`, where the bracket is at most :math:`2 (1 + a_j)`, as the difference is :math:`(1 + a_j)(1 - a_j)
    a_j^2`, with equality for :math:`a_j = \pm 1`. This bound is convex in each :math:`a_j`, so largest at some
    :math:`a \in \{-1, 1\}^d`: if ``m`` entries of it are 1, it is :math:`4 m (d + 1 - m)`, which is largest at
    :math:`m = \lfloor (d + 1) / 2 \rfloor`.

    Examples
    --------
    Regression on two covariates. Ju, Gong, Awan, Rao (2022, section 5,
    https://doi.org/10.48550/arXiv.2206.00710) add noise for 13:

    >>> dp.privatized.sensitivity_of_moments(3)
    9.375
    """
    d = as_integer("n_columns", n_columns, 1)
    adjacency, order = Adjacency(adjacency), _checked_order(order)
    if adjacency is Adjacency.ADD_REMOVE:
        return _rounded_up(Fraction(d * (d + 3), 2), order)
    if order == 1:
        return _rounded_up(Fraction(d * (d + 2) ** 2, 2 * (d + 1)), order)
    return _rounded_up(Fraction(4 * ((d + 1) ** 2 // 4)), order)


def sensitivity_of_table(
    table: npt.ArrayLike, *, order: int = 1, adjacency: Adjacency | str = Adjacency.SUBSTITUTE
) -> float:
    """Sensitivity of sums of terms of which a record has finitely many values, such as counts.

    Parameters
    ----------
    table : array of float, shape (k, m)
        The m terms of each of the k *possible* records. (Those of the actual records are private.)
    order : {1, 2}
        Order of the norm.
    adjacency : {"substitute", "add_remove"}
        Which data sets count as neighbours.

    Returns
    -------
    float
        Largest distance between two rows, or largest norm of a row: exact for order 1 and whole numbers, otherwise
        rounded up, by a relative amount of ``m + 5`` units in the last place at most.

    Raises
    ------
    ValueError
        If the table is not finite, has no rows, has entries above 1e150, or has so many rows that the
        comparison of all pairs would take minutes; if the order or the adjacency is not one of the above.

    Examples
    --------
    One count for each of three categories:

    >>> dp.privatized.sensitivity_of_table([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    2.0
    """
    adjacency, order = Adjacency(adjacency), _checked_order(order)
    rows = _checked_table(table)
    (k, m), largest = rows.shape, float(np.abs(rows).max())
    origins, spread = np.zeros((1, m)), largest
    if adjacency is Adjacency.SUBSTITUTE:
        if k * k * m > 1e10:
            raise ValueError(
                f"{k} possible records are too many to compare all pairs. Drop duplicates, or split the terms into parts, "
                "whose sensitivities (for order 2: their squares) add up to an upper bound."
            )
        origins, spread = rows, float(np.ptp(rows, axis=0).max())
    # In units of a power of two squares neither overflow nor vanish, and the division is exact.
    _, exponent = math.frexp(spread)
    changes = (np.abs(np.ldexp(rows - origin, -exponent)) for origin in origins)
    power = Fraction(max(float((change**order).sum(axis=1).max()) for change in changes))
    if np.all(rows == np.rint(rows)) and m * (2 * largest) ** order < 2**53:  # nothing was rounded
        return math.ldexp(_rounded_up(power, order), exponent)
    # One rounding for each difference and square, m - 1 for the sum: each by a part of 2**-53 at most.
    power *= 1 + Fraction(m + 4, 2**52)
    return math.nextafter(math.ldexp(_rounded_up(power, order), exponent), math.inf)


def _checked_table(table: npt.ArrayLike) -> np.ndarray:
    rows = as_floats("table's entries", table)
    if rows.ndim != 2 or 0 in rows.shape or not np.isfinite(rows).all():
        raise ValueError(
            f"The table must be finite, of the shape (possible records, terms), got {rows.shape}."
        )
    largest = float(np.abs(rows).max())
    if largest > 1e150:
        raise ValueError(f"The table's entries must be at most 1e150 in size, got {largest!r}.")
    return rows


def _checked_order(order: int) -> int:
    if as_float(order) not in (1, 2):
        raise ValueError(f"The order of the norm must be 1 or 2, got {order!r}.")
    return int(order)


def _rounded_up(power: Fraction, order: int) -> float:
    """Return ``power ** (1 / order)``, never below the exact value."""
    value = float(power) if order == 1 else math.sqrt(power)
    while Fraction(value) ** order < power:
        value = math.nextafter(value, math.inf)
    return value
