r"""Fit check: whether the norms of the records' scores at the reference are like those of the model.

Clipped scores of data that are not from the model have a posterior, too: that of a robust estimator, without a
warning. So a small part of the budget pays for a noisy histogram of the norms
:math:`|W' \nabla \ell_i(\theta_0)|`, before clipping, in public bins. It is compared with its predictive law:
parameters are drawn from the posterior given the noisy sums, counts from the multinomial law at these
parameters, and noise is added. As a function of the parameters the probabilities of the bins are linear around
the posterior mean, where both they and their derivatives (covariances with the score) are those of simulated
records; so nothing depends on the number of records. Counts and sums are taken to be independent given the
parameters, which makes the predictive law a little too wide, and the test conservative.

Two statistics: a chi-square distance, and the largest standardized difference in the number of records beyond
an edge. The p-value is that of the smaller of their two p-values.

A check has a resolution. If a share :math:`\delta` of the ``N`` records does not follow the model, with norms beyond the last
edge, the chi-square test finds it with probability 0.8 from some :math:`\delta_{80}` on. Below it, these records move the
posterior mean, whose derivative by the sums is ``G``, by at most :math:`N \delta_{80} \sum_j b_j |G_j|`, with ``b`` the clip
bounds (twice that for midpoint features, whose mean under the model is not near zero).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.display import Shown
from pymc_dp.model.sums.vector_sums import norm_bins
from pymc_dp.model.terms import ScoreNorms
from pymc_dp.planning.interest import by_parameter
from pymc_dp.planning.simulator import Simulator
from pymc_dp.privacy.mechanisms.mechanism import Adjacency
from pymc_dp.queries.noisy_total import Release
from pymc_dp.scores.check_design import (
    REJECTION_LEVEL,
    largest_shifts,
    unseen_in_words,
    unseen_share,
)
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.score_features import Moments, simulated_moments
from pymc_dp.scores.second_moments import corrected_by
from pymc_dp.scores.sum_law import FEW, NormalLaw, normal_sums

#: Simulated data sets from the predictive law.
_N_REPLICATES = 4000
#: Records simulated for the probabilities of the bins: in units of the number of records, least and most.
_PER_RECORD, _LEAST, _MOST = 4, 100_000, 1_000_000

#: What is called a tail: edges beyond which at most this part of the records is expected; and the least
#: standardized difference there that is named.
_TAIL, _CLEAR = 0.1, 3.0
_HEAVIER = "consider StudentT for Normal, NegativeBinomial for Poisson, and look for outliers"
_LIGHTER = "consider a likelihood with less spread, or another form of the mean"
_OTHER = "consider another likelihood, or another form of the mean"


@dataclass(frozen=True, eq=False)
class FitCheck(Shown):
    """Comparison of a noisy histogram of score norms with what the model predicts: public.

    Parameters
    ----------
    edges : array of shape (n_bins - 1,)
        Between the bins.
    counts : array of shape (n_bins,)
        Noisy numbers of records.
    noise_sd : float
        Standard deviation of the noise on each count.
    expected : array of shape (n_bins,)
        Numbers expected under the model.
    p_value : float
        Probability, if the model is right, of counts that are at least as unlike the expected ones.
    message : str
        The result in words.
    unseen : float
        Share of the records, beyond the last edge, that may not follow the model and go unseen (with probability 0.2).
    unseen_shifts : dict of str to array
        Largest shift of each parameter's posterior mean that they could cause, in its posterior standard deviations.

    Examples
    --------
    >>> edges, counts, expected = np.array([2.0]), np.array([70, 30]), np.array([95, 5])
    >>> check = dp.scores.FitCheck(edges, counts, 2.0, expected, 0.001, "heavy tails")
    >>> check.is_rejected
    True
    """

    edges: np.ndarray
    counts: np.ndarray
    noise_sd: float
    expected: np.ndarray
    p_value: float
    message: str
    unseen: float = 1.0
    unseen_shifts: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def is_rejected(self) -> bool:
        """Whether the p-value is below 0.01."""
        return self.p_value < REJECTION_LEVEL

    def __str__(self) -> str:
        return self.message


def check_fit(
    scores: PrivateScores,
    simulator: Simulator,
    *,
    draws: np.ndarray | None = None,
    approximation: NormalLaw | None = None,
    random_seed: Any = 0,
) -> FitCheck | None:
    """Compare the noisy histogram of scores with the model's predictive law; nothing private is accessed.

    Parameters
    ----------
    scores : PrivateScores
        Released scores, with the histogram of their norms.
    simulator : Simulator
        The model, and how its records are simulated.
    draws : array of shape (n, n_dim), optional
        From the posterior given the scores, on the unconstrained scale; by default from a normal
        approximation.
    approximation : NormalLaw, optional
        That of :class:`~pymc_dp.DPScore`, computed if not given.
    random_seed : int or Generator, optional
        Of the simulations.

    Returns
    -------
    FitCheck or None
        Of the last release with a histogram; None without one.

    Examples
    --------
    >>> with pm.Model():
    ...     _ = pm.Poisson("y", pm.Gamma("rate", 2, 1), observed=np.full(300, 3))
    ...     simulator = dp.Simulator()
    >>> budget = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=1)
    >>> scores = dp.private_scores(simulator, budget=budget)
    >>> dp.scores.check_fit(scores, simulator).p_value > 0
    True
    """
    if (histogram := scores.histogram) is None:
        return None
    simulator = corrected_by(simulator, scores)
    rng = np.random.default_rng(random_seed)
    found = approximation or normal_sums(simulator, scores, rng, FEW).approximation
    if draws is None:
        draws = rng.multivariate_normal(found.mean, found.covariance, _N_REPLICATES)
    draws = np.asarray(draws)[rng.integers(len(draws), size=_N_REPLICATES)]
    at = _RecordLaw(scores, simulator, histogram.term).moments(draws.mean(axis=0), rng)
    probabilities = _probabilities(at, draws - draws.mean(axis=0), rng)
    is_fixed = scores.adjacency == Adjacency.SUBSTITUTE.value
    observed = histogram.total
    total = scores.n_records if is_fixed else max(round(observed.sum()), 1)
    noise = np.rint(histogram.noise.draw(_N_REPLICATES, rng))
    counts = rng.multinomial(total, probabilities) + noise
    both = np.vstack([observed, counts])
    centre = _normalized(at.mean)
    errors = both - (total if is_fixed else both.sum(axis=1, keepdims=True)) * centre
    differences, p_value = _tested(errors)
    unseen = unseen_share(total * centre, _inverse_covariance(errors[1:]))
    ends = np.cumsum([len(r.total) for r in scores.releases])
    gains = np.split(found.gain, ends[:-1], axis=1)
    parts = zip(gains, scores.releases, strict=True)
    of_each = [largest_shifts(g, found.covariance, r.term, unseen * total) for g, r in parts]
    shifts = by_parameter(simulator.model, simulator.likelihood, np.sum(of_each, axis=0))
    message = _in_words(histogram, differences, total * centre, p_value, simulator)
    if p_value >= REJECTION_LEVEL:
        message += f"; {unseen_in_words(unseen, shifts)}"
    return FitCheck(
        histogram.term.edges,
        observed,
        histogram.noise_sd,
        total * centre,
        p_value,
        message,
        unseen,
        shifts,
    )


class _RecordLaw:
    """Law of the bin of a simulated record's norm, linearized at a position."""

    def __init__(self, scores: PrivateScores, simulator: Simulator, term: ScoreNorms) -> None:
        self._simulated = simulated = simulator.simulated
        # The rows of a stand-in are a sample, too: probabilities are no more accurate than from so many records.
        is_sample = isinstance(simulator.covariates, pm.Model)
        self._most = simulated.n_records if is_sample else _MOST
        self._term = term
        self._n = min(max(_PER_RECORD * scores.n_records, _LEAST), _MOST)

    def _bins(self, data: list[np.ndarray]) -> np.ndarray:
        term = self._term
        vectors = self._simulated.gradients(term.theta, data, None, term.directions)
        return np.eye(term.n_dim)[norm_bins(vectors, term.edges)]

    def moments(self, theta: np.ndarray, rng: np.random.Generator) -> Moments:
        """Probabilities of the bins and their derivatives, from records simulated at a position."""
        simulated = self._simulated
        n_sets = -(-self._n // simulated.n_records) if simulated.can_simulate else 1
        found = simulated_moments(simulated, theta, n_sets, self._bins, rng)
        return found._replace(n=min(found.n, self._most))


def _probabilities(at: Moments, shifts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Probabilities of the bins at nearby positions, with simulation error."""
    values, vectors = np.linalg.eigh(at.unexplained / at.n)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    errors = rng.standard_normal((len(shifts), len(root))) @ root.T
    return _normalized(at.mean + shifts @ at.slopes.T + errors)


def _normalized(probabilities: np.ndarray) -> np.ndarray:
    """Clip to positive numbers and scale to sum 1."""
    positive = np.maximum(probabilities, 0.0)
    return positive / positive.sum(axis=-1, keepdims=True)


def _inverse_covariance(errors: np.ndarray) -> np.ndarray:
    return np.linalg.pinv(np.cov(errors, rowvar=False), hermitian=True)


def _tested(errors: np.ndarray) -> tuple[np.ndarray, float]:
    """Standardized differences of the first row beyond each edge, and its p-value among all rows."""
    errors = errors - errors[1:].mean(axis=0)
    inverse = _inverse_covariance(errors[1:])
    beyond = errors[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
    # With little noise a bin may have the same count in all simulations: any other is far off then.
    beyond = beyond / np.maximum(beyond[1:].std(axis=0), 1e-9)
    statistics = (errors @ inverse * errors).sum(axis=1), np.abs(beyond).max(axis=1)
    ranks = [
        len(s) - np.searchsorted(np.sort(s), s) for s in statistics
    ]  # number that is at least as large
    least = np.minimum(*ranks)
    return beyond[0], float(np.mean(least <= least[0]))


def _in_words(
    histogram: Release,
    differences: np.ndarray,
    expected: np.ndarray,
    p_value: float,
    simulator: Simulator,
) -> str:
    """Result and advice as text."""
    if p_value >= REJECTION_LEVEL:
        return f"fit check: the scores are like the model's (p = {p_value:.2g})"
    beyond, found = (
        np.maximum(c[::-1].cumsum()[::-1][1:] / expected.sum(), 0.0)
        for c in (expected, histogram.total)
    )
    # Heavier tails increase the posterior's scale, and the bulk looks narrower: tails are looked at first.
    tail = np.where(beyond <= _TAIL, differences, 0.0)
    if tail.max() > _CLEAR:
        k, what, hint = int(tail.argmax()), "heavier tails than the model", _HEAVIER
    elif tail.min() < -_CLEAR:
        k, what, hint = int(tail.argmin()), "lighter tails than the model", _LIGHTER
    else:
        k, what, hint = int(np.abs(differences).argmax()), "scores unlike the model's", _OTHER
    if isinstance(simulator.covariates, pm.Model):
        hint += " (or the stand-in's covariates are unlike those of the data)"
    return (
        f"fit check: {what}: {found[k]:.2%} of the records have score norms beyond {histogram.term.edges[k]:.3g}, "
        f"where {beyond[k]:.2%} were expected (p = {p_value:.2g}); {hint}. "
        "The posterior is that of a robust estimator."
    )
