r"""Barker's test on a log-ratio that is estimated on a batch: the correction distribution.

Barker's rule accepts if ``lambda + V > 0`` with ``V ~ Logistic(0, 1)``. A batch gives ``lambda*``
instead, about ``N(lambda, v)`` with a sampling variance ``v``. Let ``V`` be the sum of ``N(0, C)``
and a correction, ``C >= v``. A part of the noise with variance ``v`` is in ``lambda*`` already, so

.. math:: \lambda^* + N(0, C - v) + V_\mathrm{corr} > 0

is the same test. No exact ``V_corr`` exists, as its characteristic function would be
:math:`\pi t\, e^{C t^2 / 2} / \sinh(\pi t)`, which is not bounded. The one used here is a symmetric
mixture of normal distributions, fitted once (``tools/fit_corrected_barker.py``). The distribution
function of its sum with ``N(0, C)`` is within 1.0e-6 of the logistic one for ``C = 1``, within
7.61e-4 for ``C = 2`` (2.4e-3 in the literature). Detailed balance holds up to that error, not
exactly. Nothing is drawn from the mixture: the decision is drawn from its probability

.. math:: a(x, v) = \sum_k w_k\, \Phi\bigl((x - \mu_k) / \sqrt{C - v + \tau_k^2}\bigr).

An error of 1e-7 is possible at ``C = 1``, but the density of ``V_corr`` is so rough then that one
record moves log-odds 1.7 times as far at ``v = 1`` (:func:`slopes`).

References
----------
Seita, Pan, Chen, Canny (2017), An efficient minibatch acceptance test for Metropolis-Hastings,
https://arxiv.org/abs/1610.06848. Heikkilä, Jälkö, Dikmen, Honkela (2019), Differentially private
Markov chain Monte Carlo, https://arxiv.org/abs/1901.10275.
"""

from __future__ import annotations

import json
import math

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scipy.special import ndtr

from pymc_dp.acceptance import BaseRule

#: Coefficients of the mixtures, written by tools/fit_corrected_barker.py.
FILE = Path(__file__).with_suffix(".json")
#: Values of C for which there is a fit.
_NOISE_VARIANCES = (1.0, 2.0)
#: From here on log-odds have slope one.
CUT = 20.0


class Mixture(NamedTuple):
    """Symmetric mixture of normal distributions; `sup_error` is the error of its sum with ``N(0, C)``."""

    means: np.ndarray
    variances: np.ndarray
    weights: np.ndarray
    sup_error: float

    def upper_tail(self, x: Any, variance: float) -> Any:
        """Probability that the mixture plus ``N(0, variance)`` exceeds ``x``, a float or a column."""
        return ndtr((self.means - x) / np.sqrt(variance + self.variances)) @ self.weights


def component_shapes(x: np.ndarray, means: np.ndarray, sds: np.ndarray) -> tuple[np.ndarray, ...]:
    """Upper tail, density and derivative of the density of every component (columns) at every x (rows)."""
    z = (x[:, None] - means) / sds
    density = np.exp(-0.5 * z * z) / (math.sqrt(2 * math.pi) * sds)
    return ndtr(-z), density, -z * density / sds


@lru_cache
def mixture(noise_variance: float) -> Mixture:
    """The stored mixture for this ``C``."""
    stored = json.loads(FILE.read_text(encoding="utf-8"))[str(float(noise_variance))]
    means, variances, weights = (np.array(stored[name]) for name in Mixture._fields[:3])
    return Mixture(means, variances, weights, stored["sup_error"])


def _checked(noise_variance: float, batch_variance: float, name: str) -> float:
    if noise_variance not in _NOISE_VARIANCES:
        raise ValueError(f"The noise variance must be 1.0 or 2.0, got {noise_variance!r}.")
    if not 0 <= batch_variance <= noise_variance + 1e-9:  # a private value: not in the message
        raise ValueError(f"The {name} must lie between 0 and the noise variance, {noise_variance}.")
    return min(float(batch_variance), float(noise_variance))


@dataclass(frozen=True)
class CorrectedBarker(BaseRule):
    """Barker's test of a log-ratio with known sampling variance ``v`` (`batch_variance`), in [0, C].

    ``a(-x) = 1 - a(x)`` holds exactly. Beyond ``|x| = 20``, where the finite mixture would end, the smaller probability
    is continued like ``exp(-|x|)``: this changes it by less than 1e-12 and bounds the slope of the log-odds on the
    whole line. ``C`` (`noise_variance`) is 1, for smaller errors, or 2, for larger batch variances.

    Not private by itself (``private`` is False): one record changes the batch variance too, so no sensitivity of the
    log-ratio alone bounds what a decision reveals. :func:`slopes` gives the decision by plain Barker to account for.
    The batch variance depends on the records, so no name or message shows it.
    """

    noise_variance: float = 1.0
    batch_variance: float = field(default=0.0, repr=False)
    private: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        checked = _checked(self.noise_variance, self.batch_variance, "batch variance")
        object.__setattr__(self, "batch_variance", checked)

    @property
    def name(self) -> str:
        """Name of the rule, with ``C`` and without the batch variance."""
        return f"corrected Barker(C={self.noise_variance:.4g})"

    def probability(self, log_ratio: float) -> float:
        """Probability of accepting, in [0, 1]; the infinities give the limits."""
        return math.exp(self.log_probabilities(float(log_ratio))[0])

    def log_probabilities(self, log_ratio: Any) -> tuple[Any, Any]:
        """``(log a, log(1 - a))`` for scalars or arrays of log-ratios."""
        law, variance = mixture(self.noise_variance), self.noise_variance - self.batch_variance
        if isinstance(log_ratio, float):  # as each iteration of a chain needs it
            far = max(abs(log_ratio) - CUT, 0.0)
            tail = float(law.upper_tail(min(abs(log_ratio), CUT), variance))
            less, more = math.log(tail) - far, math.log1p(-tail * math.exp(-far))
            return (less, more) if log_ratio < 0 else (more, less)
        x = np.asarray(log_ratio, dtype=float)
        inside, outside = np.minimum(np.abs(x), CUT), np.maximum(np.abs(x) - CUT, 0.0)
        tails = law.upper_tail(inside[..., None], variance)
        lesser, greater = np.log(tails) - outside, np.log1p(-tails * np.exp(-outside))
        return np.where(x < 0, lesser, greater), np.where(x < 0, greater, lesser)


@lru_cache
def slopes(noise_variance: float, largest_batch_variance: float) -> tuple[float, float]:
    r"""Upper bounds on :math:`|\partial_x \mathrm{logit}\, a|` and :math:`|\partial_v \mathrm{logit}\, a|`.

    Over all real ``x`` and all ``v`` up to the largest. A record that moves the log-ratio by at most
    ``D`` and the batch variance by at most ``E`` therefore moves the log-odds of a decision by at
    most ``eta = slopes[0] * D + slopes[1] * E``: the decision reveals no more than one of plain
    :class:`~pymc_dp.acceptance.Barker` with sensitivity ``eta``.

    Both are largest at the largest ``v``. The slopes are ``f / (F (1 - F))`` and
    ``|f'| / (2 F (1 - F))``; a smaller ``v`` averages ``f``, ``f'`` and ``F`` over a normal variable,
    and ``F (1 - F)``, which is concave in ``F``, is then at least the average of its values before.
    """
    v = _checked(noise_variance, largest_batch_variance, "largest batch variance")
    law, step = mixture(noise_variance), 4e-3
    sds = np.sqrt(noise_variance - v + law.variances)
    found = np.array([1.0, 0.0])  # in x: that beyond the cut
    # Averages over v reach beyond the cut: past 8 more their share is below 1e-9.
    for start in range(int(CUT) + 8):
        x = start + step * np.arange(round(1 / step) + 1)
        upper, density, change = (
            shape @ law.weights for shape in component_shapes(x, law.means, sds)
        )
        product, ends = upper * (1 - upper), np.abs([density, change / 2])
        # Between two points a function leaves its chord by step**2 / 8 of its second derivative, and
        # a ratio of chords is largest at an end.
        z = np.abs(x[:-1, None] - law.means) / sds
        far, near = z + step / sds, np.maximum(z - step / sds, 0.0)
        most = step**2 / 8 * np.exp(-0.5 * near**2) / (math.sqrt(2 * math.pi) * sds**3)
        missed = (most * (1 + far**2), most * far * (3 + far**2) / (2 * sds)) @ law.weights
        highest = np.maximum(ends[:, 1:], ends[:, :-1]) + missed
        lost = step**2 / 4 * (highest[1] + highest[0] ** 2)
        for end in (slice(1, None), slice(-1)):
            bounds = (ends[:, end] + missed) / (product[end] - lost)
            found = np.maximum(found, bounds.max(axis=1))
    in_x, in_v = found * (1 + 1e-8)
    return float(in_x), float(in_v)
