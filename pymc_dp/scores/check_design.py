"""Design of the fit check: bins for the norms of scores, noise on their counts, and what these say of a clip bound."""

from __future__ import annotations

import math

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scipy.special import chndtrinc
from scipy.stats import chi2, ncx2

from pymc_dp.display import Shown
from pymc_dp.model.record_function import Bins
from pymc_dp.model.terms import ClippedScores
from pymc_dp.planning.local_information import MODEL_MISFIT_FRACTION
from pymc_dp.privacy.accounting.noise_choice import least_noise
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Gaussian
from pymc_dp.queries.noisy_total import Release

#: A p-value below it rejects the model; probability with which a misfit that "would be seen" is rejected.
REJECTION_LEVEL, _SEEN = 0.01, 0.8
#: Candidates for the bins: quantiles of the norms of simulated scores. Fewer bins for few records.
_LEVELS = (
    (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999),
    (0.5, 0.8, 0.95, 0.99, 0.999),
    (0.95, 0.999),
)
#: Alternatives by which bins are chosen: a part of the records beyond the last edge, or all norms longer.
_OUTLIERS, _STRETCH = 0.01, 1.1
#: Values that differ by less, relatively, are equal up to rounding: no edge is put between them.
_RESOLUTION = 1e-6
#: Standard deviations by which a count must differ from the model's before it changes the clip bound.
_CLEAR = 3.0
#: Parameters that are named, those that an unseen misfit could move most.
_N_NAMED = 3
#: Last edge beyond the largest simulated norm, if no other is possible.
_MARGIN = 1.2


@dataclass(frozen=True)
class CheckDesign(Shown):
    """Bins of the fit check, as quantile levels, the noise on their counts, and the share that may go unseen."""

    mechanism: Gaussian | L2Laplace
    levels: tuple[float, ...]
    unseen: float = 1.0


@dataclass(frozen=True, eq=False)
class TailMisfit(Shown):
    """Fraction of the clipped scores about which the model may be wrong, by clip bound."""

    edges: np.ndarray = field(default_factory=lambda: np.zeros(0))
    parts: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def beyond(self, bound: float) -> float:
        """Fraction at the last edge below the bound; at least a tenth."""
        k = int(np.searchsorted(self.edges, bound, side="right"))
        return max(MODEL_MISFIT_FRACTION, float(self.parts[k - 1])) if k else MODEL_MISFIT_FRACTION


def tail_misfit(
    histogram: Release, norms: np.ndarray, vectors: np.ndarray, reference_error: float
) -> TailMisfit:
    """Lower bound of the misfit beyond each edge, relative to the expected count.

    The bound is ``|observed - expected|`` minus three standard errors: from noise, from sampling, and from the error of
    the reference, which is not where the records' law is.
    """
    n_bins = len(histogram.total)
    total = max(histogram.total.sum(), 1.0)
    is_beyond = norms[:, None] >= histogram.term.edges
    expected = is_beyond.mean(axis=0)
    found = histogram.total[::-1].cumsum()[::-1][1:] / total
    # Derivatives of the probabilities are their covariances with the score.
    slopes = np.linalg.norm(is_beyond.T @ vectors / len(vectors), axis=1)
    variances = (
        expected * (1 - expected) / total
        + (np.arange(n_bins - 1, 0, -1) + n_bins * expected**2) * (histogram.noise_sd / total) ** 2
        + slopes**2 * reference_error
    )
    clear = np.abs(found - expected) - _CLEAR * np.sqrt(variances)
    return TailMisfit(histogram.term.edges, clear / np.maximum(expected, 1 / total))


def edges_of(norms: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """Edges near quantiles of norms and between distinct values; equal edges make empty bins."""
    values = np.sort(norms)
    edges = []
    for level in levels:
        value = values[math.ceil(level * len(values)) - 1]
        after = np.searchsorted(values, value * (1 + _RESOLUTION), side="right")
        last = after == len(values)
        edges.append(_MARGIN * values[-1] if last else (values[after - 1] + values[after]) / 2)
    return np.array(edges)


def design_check(
    norms: np.ndarray,
    budget: PrivacyBudget,
    n_records: int,
    before: Accesses,
    noise: str,
) -> CheckDesign:
    """Bins with the greatest power on simulated norms, less the share that may go unseen, and the least noise within the budget."""
    found: list[tuple[float, CheckDesign]] = []
    for levels in _LEVELS:
        n_bins = len(levels) + 1
        mechanism = least_noise(
            n_bins, budget.epsilon, budget.delta, before=before, noise=noise, accountant=budget.accountant
        )  # fmt: skip
        edges = edges_of(norms, levels)
        sd = Bins([edges]).sensitivity(budget.adjacency) * mechanism.noise_sd
        power, unseen = _power(norms, edges, n_records, sd)
        found.append((round(power - unseen, 2), CheckDesign(mechanism, levels, unseen)))
    return max(found, key=lambda candidate: candidate[0])[1]


def unseen_share(expected: np.ndarray, inverse: np.ndarray) -> float:
    """Share of the records that must be in the last bin instead for a chi-square test of all counts to see it, at most 1."""
    shift = np.eye(len(expected))[-1] * expected.sum() - expected
    n = len(expected)
    least = chndtrinc(chi2.isf(REJECTION_LEVEL, n), n, 1 - _SEEN)
    return float(min(1.0, math.sqrt(least / (shift @ inverse @ shift))))


def largest_shifts(
    gain: np.ndarray, covariance: np.ndarray, term: ClippedScores, n_records: float
) -> np.ndarray:
    """Largest shift of each posterior mean, in standard deviations, if so many records do not follow the model.

    A feature of the model has a mean near zero, or, less the midpoint, one within the clip bound; theirs is within the bound.
    """
    change = n_records * term.bound * (2 if term.clipping == "midpoint" else 1)
    return change * np.linalg.norm(gain, axis=1) / np.sqrt(np.diag(covariance))


def unseen_in_words(unseen: float, shifts: Mapping[str, np.ndarray]) -> str:
    """How many records may not follow the model without being seen, and what these could do, for the parameters that move most."""
    largest = {name: float(np.max(shift)) for name, shift in shifts.items() if np.size(shift)}
    names = sorted(largest, key=largest.__getitem__, reverse=True)[:_N_NAMED]
    moved = ", ".join(f"{name} by {largest[name]:.2g}" for name in names)
    return (
        f"up to {unseen:.1%} of the records may not follow the model without being seen, and could move {moved} standard "
        "deviations at most"
    )


def _power(norms: np.ndarray, edges: np.ndarray, n_records: int, sd: float) -> tuple[float, float]:
    """Mean power of a chi-square test of the counts, and the share that it may not see."""

    def probabilities(values: np.ndarray) -> np.ndarray:
        places = np.searchsorted(edges, values, side="right")
        return np.bincount(places, minlength=len(edges) + 1) / len(values)

    expected = probabilities(norms)
    outliers = (1 - _OUTLIERS) * expected
    outliers[-1] += _OUTLIERS
    covariance = n_records * (np.diag(expected) - np.outer(expected, expected))
    inverse = np.linalg.inv(covariance + sd**2 * np.eye(len(expected)))
    n, least = len(expected), chi2.isf(REJECTION_LEVEL, len(expected))
    shifts = [n_records * (p - expected) for p in (outliers, probabilities(_STRETCH * norms))]
    power = float(np.mean([ncx2.sf(least, n, shift @ inverse @ shift) for shift in shifts]))
    return power, unseen_share(n_records * expected, inverse)
