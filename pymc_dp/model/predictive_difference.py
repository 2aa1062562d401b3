r"""Differences of two models in the log predictive density of each record, and exact sums of these and their squares.

For public draws :math:`\theta_k` of two posteriors, record ``i`` has the difference

.. math:: d_i = \log \frac1K \sum_k p(y_i \mid \theta^A_k, A) - \log \frac1K \sum_k p(y_i \mid \theta^B_k, B),

a function of this record alone. With :math:`t = \operatorname{clip}(d_i / b, -1, 1)` its vector is
:math:`v(t) = (t, t^2/c)`.

**Sensitivity.** *Replacing* a record changes the sum by :math:`v(t) - v(s)`. With :math:`\delta = |t - s|` and
:math:`m = |t + s|`, :math:`\delta + m = 2 \max(|t|, |s|) \le 2`, so that

.. math:: |v(t) - v(s)|^2 = \delta^2 (1 + m^2/c^2) \le (2 - m)^2 (1 + m^2/c^2).

For :math:`c = 1`, 4 minus the right side is :math:`m (4 - 5m + 4m^2 - m^3) \ge 2m`, as the cubic has its least value
on [0, 2], which is 2, at 1 and 2. So the sensitivity is 2, attained by 1 and -1: the squares cost nothing.
*Removing* a record changes the sum by :math:`|v(t)| \le \sqrt{1 + 1/c^2}`, attained by 1. For :math:`c = 4` that is
1.031.

**In whole steps.** Let :math:`L = 2^{30}`. A record's steps are :math:`T = \operatorname{round}(L t)` and
:math:`Q = \lfloor T^2 / (c L) \rfloor`, computed in integers. Removing: :math:`Q \le L/c`, so the norm is at most
:math:`L \sqrt{1 + 1/c^2}`. Replacing (:math:`c = 1`): if :math:`m = 0`, :math:`Q` does not change. Otherwise
:math:`m L \ge 1`, and rounding down adds at most 1 to the change of :math:`Q`, hence at most :math:`2 L m (2 - m) + 1`
to the square of the norm, which is less than the slack :math:`2 m L^2`. So the change is at most :math:`2 L`, exactly.
"""

from __future__ import annotations

import math

from collections.abc import Iterable

import numpy as np

from pymc_dp.model.reductions import Reductions
from pymc_dp.model.sums.exact_sums import GRID_BITS, sums_with_squares

__all__ = ["PredictiveDifference", "log_predictive"]

#: Records whose log-likelihoods are held at a time.
_BLOCK = 2**14


def log_predictive(logp: Iterable[np.ndarray]) -> np.ndarray:
    """Logarithm of each record's mean likelihood, of log-likelihoods of shape ``(n,)`` at each draw."""
    n_draws, total = 0, np.array(-np.inf)
    with np.errstate(invalid="ignore"):
        for n_draws, values in enumerate(logp, 1):
            total = np.logaddexp(total, values)
    return total - math.log(n_draws)


class PredictiveDifference:
    """Difference of two models in the log predictive density of each record; exact sums.

    Parameters
    ----------
    first, second : RecordLikelihood or BlockedLikelihood
        Of the same records.
    first_draws, second_draws : array of shape (n_draws, n_dim)
        Public, on the unconstrained scale of each model.

    Raises
    ------
    ValueError
        If the models do not observe the same records.
    UnsupportedModel
        If log-likelihoods of single records cannot be computed.
    """

    def __init__(
        self,
        first: Reductions,
        second: Reductions,
        first_draws: np.ndarray,
        second_draws: np.ndarray,
    ) -> None:
        if first.row_keys != second.row_keys:
            raise ValueError(
                "The two models do not observe the same records: they need observed variables of the same names, with the same values "
                "on the same scale and of the same type, in the same order, and the same records=."
            )
        self._models = (first, first_draws), (second, second_draws)
        for model, draws in self._models:
            model.logp_at(draws, np.zeros(0, dtype=np.int64))  # raises, but reads no record

    def steps(self, bound: float, log_square_scale: int) -> tuple[np.ndarray, int]:
        """Sums over records of ``(t, t**2 / c)``, with ``t = clip(d / bound, -1, 1)``, in whole steps of a grid.

        Parameters
        ----------
        bound : float
        log_square_scale : int
            Base-2 logarithm of ``c``: 0 or more.

        Returns
        -------
        steps : array of int64, shape (2,)
            Replacing a record changes them by at most ``2 * 2**-exponent`` if ``c = 1``, removing one by at most
            ``sqrt(1 + 1/c**2) * 2**-exponent``, in Euclidean norm. A difference that is not a number (of two
            infinities) counts as 0, an infinite one as the bound.
        exponent : int
            The sums are ``steps * 2.0**exponent``.
        """
        total, n_records = np.zeros(2, dtype=np.int64), self._models[0][0].n_records
        for begin in range(0, n_records, _BLOCK):
            index = np.arange(begin, min(begin + _BLOCK, n_records))
            one, two = (log_predictive(m.logp_at(draws, index)) for m, draws in self._models)
            total += sums_with_squares(one, two, 2.0**GRID_BITS / bound, log_square_scale)
        return total, -GRID_BITS
