r"""Second moments of clipped scores: they correct the covariates of a stand-in.

With private covariates, records are simulated with the rows of a stand-in. If these have other correlations than
the data, the information :math:`I` of a record is wrong, and so are the widths of the posterior; and an error of
the reference shifts it. The information is the second moment of the scores, so a part of the budget pays for
a noisy sum of :math:`s_i s_i'`, with :math:`s_i = \operatorname{clip}_r(W' \nabla \ell_i(\theta_0))`, and the
rows of the stand-in are weighted so that simulated scores have these moments: with :math:`g_j` the mean of
:math:`s s'` for row ``j``, of outcomes that are drawn at the best estimate :math:`\hat\theta`, and :math:`\hat g`
the noisy mean,

.. math:: w_j \propto e^{\lambda' g_j}, \qquad
          \lambda = \arg\min \log \frac{1}{n} \sum_j e^{\lambda' (g_j - \hat g)} + \frac{\lambda' V \lambda}{2},

where :math:`V` is the covariance, over ``tau^2``, of the noise and of what the error of :math:`\hat\theta` does to the
moments, :math:`J \Sigma J'` with :math:`J = E[(s s') \nabla \ell']`. Without ``V`` these are the weights nearest to
equal ones (in relative entropy) that have the moments; with it moments are shrunk towards those of the stand-in.
Then rows are kept at random, with probabilities in proportion to their weights.

Far from the data, the moments are those of residuals rather than of covariates. So :math:`\hat\theta` is the mean of
the posterior given all sums, and weights and posterior are computed in turn. Before there are sums, it is the guess, and
:math:`\Sigma` is that of the prior.

**Sensitivity.** :math:`s s'` has Frobenius norm :math:`|s|^2 \le r^2`, and two such matrices have a Frobenius
inner product of at least 0. So replacing a record changes the sum by at most :math:`\sqrt{2} r^2`, removing one by
at most :math:`r^2`. Entries are truncated to multiples of ``r^2 2^-30``: norms only become shorter, and the inner
product is at least ``-r^4 2^-23`` (for up to 4096 entries), for which the sensitivity has a factor ``1 + 2^-20``.

References
----------
Hainmueller (2012), Entropy balancing for causal effects, https://doi.org/10.1093/pan/mpr025.
"""

from __future__ import annotations

import numpy as np

from scipy import optimize

from pymc_dp.model.sums.vector_sums import products
from pymc_dp.planning.simulator import Simulator
from pymc_dp.queries.noisy_total import Release
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.sum_law import FEW, normal_sums

#: Standard deviation of the true moments around those of the stand-in, in units of one record's: ``tau``.
_PRIOR_SD = 0.5
#: Data sets that are simulated for the moments of each row.
_N_SETS = 20
#: Quantile of the weights that counts as the largest: rows of this weight are kept.
_LARGEST = 0.98
#: Rows that a stand-in must keep.
_LEAST_ROWS = 50
#: Times that weights and posterior are computed in turn.
_N_TURNS = 3


def row_weights(
    moments: Release,
    simulator: Simulator,
    n_records: int,
    theta: np.ndarray,
    covariance: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Weights of simulated records, with sum 1, under which their scores have the released moments."""
    simulated = simulator.simulated
    means = np.zeros((simulated.n_records, len(moments.total)))
    slope = np.zeros((len(moments.total), len(theta)))
    for _ in range(_N_SETS):
        data = simulated.draw(theta, rng)
        scores = simulated.gradients(moments.term.theta, data, None, moments.term.directions)
        found = products(scores, moments.term.bound)
        means += found / _N_SETS
        slope += found.T @ simulated.gradients(theta, data) / (len(found) * _N_SETS)
    differences = means - moments.total / n_records
    noise = (moments.noise_sd / n_records) ** 2 * np.eye(len(slope))
    penalty = (noise + slope @ covariance @ slope.T) / _PRIOR_SD**2

    def loss(tilt: np.ndarray) -> tuple[float, np.ndarray]:
        powers = differences @ tilt
        weights = np.exp(powers - powers.max())
        value = powers.max() + np.log(weights.mean()) + tilt @ penalty @ tilt / 2
        return value, weights @ differences / weights.sum() + penalty @ tilt

    tilt = optimize.minimize(loss, np.zeros(means.shape[1]), jac=True, method="L-BFGS-B").x
    powers = means @ tilt
    weights = np.exp(powers - powers.max())
    return weights / weights.sum()


def corrected(
    simulator: Simulator,
    moments: Release,
    n_records: int,
    theta: np.ndarray,
    covariance: np.ndarray,
) -> Simulator:
    """The simulator with those stand-in rows whose scores have the released moments, see :func:`row_weights`.

    The rows are the same in each call: their choice has a public seed.
    """
    simulator, rng = simulator.whole, np.random.default_rng(0)
    weights = row_weights(moments, simulator, n_records, theta, covariance, rng)
    kept = rng.random(len(weights)) * np.quantile(weights, _LARGEST) < weights
    if kept.sum() < min(_LEAST_ROWS, len(weights)):
        kept[np.argsort(weights)[-_LEAST_ROWS:]] = True
    return simulator.keeping(np.flatnonzero(kept))


def corrected_by(simulator: Simulator, scores: PrivateScores) -> Simulator:
    """The simulator with the released stand-in and those rows of it whose scores have the released moments.

    Raises ValueError if the scores belong to other parameters, to another likelihood, or to other rows that they need.
    """
    scores.check_model(simulator.likelihood)
    has_all = simulator.has_real_rows and simulator.n_records == scores.n_records
    if not has_all and any(r.term.clipping == "midpoint" for r in scores.releases):
        raise ValueError(
            f"These scores were centred with the covariates of the {scores.n_records} records, which are public: give the model with all of "
            'these, and covariates="public".'
        )
    if scores.stand_in is not None:
        simulator = simulator.standing_in(scores.stand_in)
    if (moments := scores.moments) is None:
        return simulator
    simulator = simulator.whole
    latest = simulator.latest
    if latest is None or latest[0] is not scores.releases or latest[1] is not moments:
        found = simulator
        for _ in range(_N_TURNS):
            law = normal_sums(found, scores, np.random.default_rng(0), FEW).approximation
            found = corrected(simulator, moments, scores.n_records, law.mean, law.covariance)
        latest = simulator.latest = scores.releases, moments, found
    return latest[2]
