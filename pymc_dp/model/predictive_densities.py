r"""Log predictive densities of each record under several models: the source of a comparison.

For public draws :math:`\theta_k` of two posteriors, record ``i`` has the difference

.. math:: d_i = \log \frac1K \sum_k p(y_i \mid \theta^A_k, A) - \log \frac1K \sum_k p(y_i \mid \theta^B_k, B),

a function of this record alone, which :class:`~pymc_dp.model.terms.Differences` clips, squares and sums.
"""

from __future__ import annotations

import math

from collections.abc import Iterable, Iterator

import numpy as np

from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.model.terms import Source, Term

#: Records whose log-likelihoods are held at a time.
_BLOCK = 2**14


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
