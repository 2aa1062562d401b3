r"""Second moments of clipped scores: they correct the covariates of a stand-in.

With private covariates, records are simulated with the rows of a stand-in. If these have other correlations than
the data, the information :math:`I` of a record is wrong, and so are the widths of the posterior; and an error of
the reference shifts it. The information is the second moment of the scores, so a part of the budget pays for
a noisy sum of :math:`s_i s_i'`, with :math:`s_i = \operatorname{clip}_r(W' \nabla \ell_i(\theta_0))`, and the
rows of the stand-in are weighted so that simulated scores have these moments: with :math:`g_j` the mean of
:math:`s s'` for row ``j`` and :math:`\hat g` the noisy mean,

.. math:: w_j \propto e^{\lambda' g_j}, \qquad
          \lambda = \arg\min \log \frac{1}{n} \sum_j e^{\lambda' (g_j - \hat g)} + \frac{\lambda' V \lambda}{2},

where :math:`V` is the covariance of the noise over ``tau^2``. Without ``V`` these are the weights nearest to equal
ones (in relative entropy) that have the moments; with it moments are shrunk towards those of the stand-in.
Then rows are kept at random, with probabilities in proportion to their weights.

**Sensitivity.** :math:`s s'` has Frobenius norm :math:`|s|^2 \le r^2`, and two such matrices have a Frobenius
inner product of at least 0. So replacing a record changes the sum by at most :math:`\sqrt{2} r^2`, removing one by
at most :math:`r^2`. Entries are truncated to multiples of ``r^2 2^-30``: norms only become shorter, and the inner
product is at least ``-r^4 2^-23`` (for up to 4096 entries), for which the sensitivity has a factor ``1 + 2^-20``.

References
----------
Hainmueller (2012), Entropy balancing for causal effects, https://doi.org/10.1093/pan/mpr025.
"""

from __future__ import annotations

import math

import numpy as np

from scipy import optimize

from pymc_dp.model.reductions import Reductions
from pymc_dp.model.sums.vector_sums import products
from pymc_dp.planning.simulator import Simulator
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Gaussian
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.privacy.randomness.bits import BitSource
from pymc_dp.queries.stand_in import StandIn
from pymc_dp.scores.releases import ScoreMoments

__all__ = [
    "MOST_PRODUCTS",
    "corrected",
    "moment_sensitivity",
    "n_products",
    "release_moments",
    "row_weights",
]

#: Largest number of products that is released.
MOST_PRODUCTS = 4096
#: Allowance for the truncation of products.
_TRUNCATION = 1 + 2.0**-20
#: Standard deviation of the true moments around those of the stand-in, in units of one record's: ``tau``.
_PRIOR_SD = 0.5
#: Data sets that are simulated for the moments of each row.
_N_SETS = 20
#: Quantile of the weights that counts as the largest: rows of this weight are kept.
_LARGEST = 0.98
#: Rows that a stand-in must keep.
_LEAST_ROWS = 50


def n_products(d: int) -> int:
    """Number of products of `d` coordinates."""
    return d * (d + 1) // 2


def moment_sensitivity(factor: float, bound: float) -> float:
    """L2 sensitivity of the sum of products.

    Parameters
    ----------
    factor : float
        Of the adjacency: 2 if a record is replaced, 1 if it is removed.
    bound : float
        Largest norm of a score.
    """
    return math.sqrt(factor) * bound**2 * _TRUNCATION


def release_moments(
    likelihood: Reductions,
    theta: np.ndarray,
    directions: np.ndarray,
    bound: float,
    mechanism: Gaussian | L2Laplace,
    factor: float,
    bits: BitSource,
) -> ScoreMoments:
    """Release the noisy sum; paid for by the caller."""
    d = directions.shape[1]
    law = NoiseLaw.of(mechanism, moment_sensitivity(factor, bound), d * (d + 1) // 2)
    total = likelihood.noisy(law, bits, "product_steps", theta, directions, bound)
    return ScoreMoments(theta, directions, bound, law.kind, law.scale, total)


def row_weights(
    moments: ScoreMoments, simulator: Simulator, n_records: int, rng: np.random.Generator
) -> np.ndarray:
    """Weights of the simulated records with which their scores have the moments, with sum 1."""
    simulated = simulator.simulated
    means = np.zeros((simulated.n_records, len(moments.total)))
    for _ in range(_N_SETS):
        data = simulated.draw(moments.theta, rng)
        scores = simulated.gradients(moments.theta, data, None, moments.directions)
        means += products(scores, moments.bound) / _N_SETS
    differences = means - moments.total / n_records
    penalty = (moments.noise_sd / (n_records * _PRIOR_SD)) ** 2

    def loss(tilt: np.ndarray) -> tuple[float, np.ndarray]:
        powers = differences @ tilt
        weights = np.exp(powers - powers.max())
        value = powers.max() + np.log(weights.mean()) + penalty * tilt @ tilt / 2
        return value, weights @ differences / weights.sum() + penalty * tilt

    tilt = optimize.minimize(loss, np.zeros(means.shape[1]), jac=True, method="L-BFGS-B").x
    powers = means @ tilt
    weights = np.exp(powers - powers.max())
    return weights / weights.sum()


def corrected(
    simulator: Simulator,
    moments: ScoreMoments | None,
    n_records: int,
    stand_in: StandIn | None = None,
) -> Simulator:
    """The simulator with the stand-in that was released, and its rows whose scores have the released moments.

    The rows are the same in each call: their choice has a public seed.
    """
    if stand_in is not None:
        simulator = simulator.standing_in(stand_in)
    if moments is None or simulator.moments is moments:
        return simulator
    simulator, rng = simulator.whole, np.random.default_rng(0)
    weights = row_weights(moments, simulator, n_records, rng)
    kept = rng.random(len(weights)) * np.quantile(weights, _LARGEST) < weights
    if kept.sum() < min(_LEAST_ROWS, len(weights)):
        kept[np.argsort(weights)[-_LEAST_ROWS:]] = True
    return simulator.keeping(np.flatnonzero(kept), moments)
