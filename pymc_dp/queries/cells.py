r"""Probabilities of all combinations of categories, from noisy counts: a log-linear model with a prior.

.. math:: \log p = B \beta - \log \sum_c e^{(B \beta)_c}, \qquad \beta_k \sim N(0, \tau_{o(k)}^2),

where the columns of ``B`` are products of orthogonal contrasts of ``o(k)`` of the categorical variables: main effects, and
interactions of two, three and more. The model is saturated, so that with little noise probabilities are the shares
that were counted. The prior of interactions is the narrower the more variables they have, so that with much noise it is
these that go to zero, and not the margins. Estimates are the mode, and their errors those of the law linearized there.

References
----------
Agresti (2013), Categorical data analysis, chapter 9 (log-linear models); Laplace's approximation: MacKay (1992),
https://doi.org/10.1162/neco.1992.4.3.448.
"""

from __future__ import annotations

import itertools

from collections.abc import Sequence
from functools import reduce

import numpy as np

from scipy import optimize, special

from pymc_dp.queries.copula import nearest_probabilities

__all__ = ["cell_covariance", "cell_probabilities"]

#: Standard deviation of effects of one, two, three variables; of more, the last one. Contrasts have a mean square of 1.
_PRIOR_SDS = (3.0, 0.5, 0.1, 0.05)


def cell_probabilities(noisy: np.ndarray, sizes: Sequence[int], noise_sd: float) -> np.ndarray:
    """Probabilities of combinations.

    Parameters
    ----------
    noisy : array of shape (n_cells,)
        Noisy shares; the last variable changes fastest.
    sizes : sequence of int
        Numbers of categories.
    noise_sd : float
        Standard deviation of their noise.

    Returns
    -------
    array of shape (n_cells,)
    """
    basis, prior_sd = _basis(sizes)

    def residuals(effects: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [(special.softmax(basis @ effects) - noisy) / noise_sd, effects / prior_sd]
        )

    def slope(effects: np.ndarray) -> np.ndarray:
        return np.vstack(
            [_derivative(special.softmax(basis @ effects), basis) / noise_sd, np.diag(1 / prior_sd)]
        )

    axes = range(len(sizes))
    margins = []
    for j in axes:
        shares = noisy.reshape(sizes).sum(axis=tuple(k for k in axes if k != j))
        margins.append(nearest_probabilities(shares, noise_sd * (len(noisy) / sizes[j]) ** 0.5))
    independent = np.log(reduce(np.multiply.outer, margins).ravel())
    first = basis.T @ independent / len(noisy)
    found = optimize.least_squares(residuals, first, slope, method="lm")
    return special.softmax(basis @ found.x)


def cell_covariance(probabilities: np.ndarray, sizes: Sequence[int], noise_sd: float) -> np.ndarray:
    """Covariance of the errors of these probabilities, shape ``(n_cells, n_cells)``."""
    basis, prior_sd = _basis(sizes)
    slope = _derivative(probabilities, basis)
    precision = slope.T @ slope / noise_sd**2 + np.diag(prior_sd**-2)
    return slope @ np.linalg.solve(precision, slope.T)


def _derivative(p: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Of the probabilities by the effects."""
    return p[:, None] * (basis - p @ basis)


def _basis(sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Contrasts of all effects, shape ``(n_cells, n_cells - 1)``, and the prior's standard deviation of each."""
    # The columns of each are 1 and the contrasts, orthogonal with mean square 1.
    parts = []
    for n in sizes:
        part = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))[0] * n**0.5
        parts.append(part * np.sign(part[0, 0]))
    orders = np.array(
        [sum(index > 0 for index in each) for each in itertools.product(*map(range, sizes))]
    )
    sds = np.array([np.inf, *_PRIOR_SDS])[np.minimum(orders, len(_PRIOR_SDS))]
    return reduce(np.kron, parts)[:, 1:], sds[1:]
