r"""Log predictive densities of each record under several models: the source of a comparison.

For public draws :math:`\theta_k` of two posteriors, record ``i`` has the difference

.. math:: d_i = \log \frac1K \sum_k p(y_i \mid \theta^A_k, A) - \log \frac1K \sum_k p(y_i \mid \theta^B_k, B),

a function of this record alone, which :class:`Differences` clips, squares and sums.
"""

from __future__ import annotations

import math

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm

from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.model.graphs.data_variables import interpreted
from pymc_dp.model.sums.exact_sums import GRID_BITS, sums_with_squares
from pymc_dp.model.terms import Source, Term, is_replaced

#: Records whose log-likelihoods are held at a time.
_BLOCK = 2**14


@dataclass(frozen=True, eq=False)
class Differences(Term):
    r"""``(t, t**2 / c)`` with ``t = clip(d / bound, -1, 1)``, of differences in log predictive density.

    Of a record, from one model to each of some others, a pair of numbers and a bound for each. The block has the log
    predictive densities of its records for each model. A difference that is not a number (of two infinities) counts as
    0. The scale ``c`` of the squares is 1 if records are replaced, 4 if they are added or removed.
    """

    bounds: tuple[float, ...]
    adjacency: str
    exponent = -GRID_BITS

    @property
    def n_dim(self) -> int:
        """Two for each pair of models."""
        return 2 * len(self.bounds)

    @property
    def log_square_scale(self) -> int:
        """Base-2 logarithm of ``c``."""
        return 0 if is_replaced(self.adjacency) else 2

    def of(self, block: Sequence[np.ndarray]) -> np.ndarray:
        r"""Numbers of a record are :math:`T = \operatorname{round}(L t)`, :math:`Q = \lfloor T^2 / (c L) \rfloor`, with :math:`L = 2^{30}`."""
        first, *others = block
        pairs = zip(others, self.bounds, strict=True)
        scale = 2.0**GRID_BITS
        return np.ravel([sums_with_squares(first, other, scale / b, self.log_square_scale) for other, b in pairs])  # fmt: skip

    def sensitivity(self, adjacency: str) -> float:
        r"""For one pair 2 if a record is replaced, :math:`\sqrt{17}/4` if it is added or removed; squared lengths add up.

        With :math:`v(t) = (t, t^2/c)`, *replacing* a record changes the sum by :math:`v(t) - v(s)`. With
        :math:`\delta = |t - s|` and :math:`m = |t + s|`, :math:`\delta + m = 2 \max(|t|, |s|) \le 2`, so that

        .. math:: |v(t) - v(s)|^2 = \delta^2 (1 + m^2/c^2) \le (2 - m)^2 (1 + m^2/c^2).

        For :math:`c = 1`, 4 minus the right side is :math:`m (4 - 5m + 4m^2 - m^3) \ge 2m`, as the cubic has its least
        value on [0, 2], which is 2, at 1 and 2. So the sensitivity is 2, attained by 1 and -1: the squares cost
        nothing. *Removing* a record changes the sum by :math:`|v(t)| \le \sqrt{1 + 1/c^2}`, attained by 1.

        In whole numbers, removing: :math:`Q \le L/c`, so the norm is at most :math:`L \sqrt{1 + 1/c^2}`. Replacing
        (:math:`c = 1`): if :math:`m = 0`, :math:`Q` does not change. Otherwise :math:`m L \ge 1`, and rounding down
        adds at most 1 to the change of :math:`Q`, hence at most :math:`2 L m (2 - m) + 1` to the square of the norm,
        which is less than the slack :math:`2 m L^2`. So the change is at most :math:`2 L`, exactly.
        """
        if adjacency != self.adjacency:
            raise ValueError(f"The scale of the squares is that of {self.adjacency}, not {adjacency}.")  # fmt: skip
        one = 2.0 if is_replaced(adjacency) else math.nextafter(math.sqrt(17) / 4, 2.0)
        n = len(self.bounds)
        return one if n == 1 else math.nextafter(one * math.sqrt(n), math.inf)


def log_predictive(logp: Iterable[np.ndarray]) -> np.ndarray:
    """Logarithm of each record's mean likelihood, of log-likelihoods of shape ``(n,)`` at each draw."""
    n_draws, total = 0, np.array(-np.inf)
    with np.errstate(invalid="ignore"):
        for n_draws, values in enumerate(logp, 1):
            total = np.logaddexp(total, values)
    return total - math.log(n_draws)


class PredictiveDensities(Source):
    """Log predictive densities of each record, under several models of the same records.

    A model is given as its likelihood, and public draws of its posterior on the unconstrained scale, shape
    ``(n_draws, n_dim)``. ValueError if they do not observe the same records; UnsupportedModel if log-likelihoods of
    single records cannot be computed.
    """

    def __init__(self, *models: tuple[Likelihood, np.ndarray]) -> None:
        self._models = models
        for likelihood, draws in models:
            if likelihood.row_keys != models[0][0].row_keys:
                raise ValueError(
                    "The two models do not observe the same records: they need observed variables of the same names, with the same values "
                    "on the same scale and of the same type, in the same order, and the same records=."
                )
            likelihood.logp_at(draws, np.zeros(0, dtype=np.int64))  # raises, but reads no record

    def map(self, term: Term, index: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """See `Source`: a block has an array of densities for each model."""
        n_records = self._models[0][0].n_records
        for begin in range(0, n_records, _BLOCK):
            part = np.arange(begin, min(begin + _BLOCK, n_records))
            yield term.of([log_predictive(m.logp_at(draws, part)) for m, draws in self._models])


def positions(model: pm.Model, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Draws of a model's free variables, as vectors of its value variables; ValueError if they do not fit its variables."""
    free = model.free_RVs
    if missing := [rv.name for rv in free if rv.name not in values]:
        raise ValueError(f"The draws lack {', '.join(missing)}, free variables of the model; they have {', '.join(values) or 'none'}.")  # fmt: skip
    graphs = []
    for rv in free:
        transform = model.rvs_to_transforms[rv]
        graphs.append(rv * 1 if transform is None else transform.forward(rv, *rv.owner.inputs))
    function = interpreted(free, graphs)  # the variables themselves are the inputs
    arrays = [np.asarray(values[rv.name], dtype=rv.dtype) for rv in free]
    rows = []
    for draw in zip(*arrays, strict=True):
        try:
            rows.append(np.concatenate([np.ravel(part) for part in function(*draw)]))
        except (TypeError, ValueError):
            shapes = {rv.name: np.shape(part) for rv, part in zip(free, draw, strict=True)}
            raise ValueError(f"The draws have other shapes than the model's free variables: {shapes}.") from None  # fmt: skip
    theta = np.array(rows, dtype=np.float64)
    if not np.isfinite(theta).all():
        raise ValueError("A draw is not finite, or on the boundary of a variable's domain: are these draws of this model?")  # fmt: skip
    return theta
