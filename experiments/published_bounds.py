"""Bounds as the papers have them, for comparison: the package's own mechanisms cost less.

Those on mechanisms are stated at whole Rényi orders; between them the cumulant is interpolated (it is convex).
The papers' conversions, :func:`zcdp` and :func:`moments`, are passed as ``accountant=`` to ``max_draws`` and others.
"""

import math

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scipy.special import gammaln, logsumexp

from pymc_dp.arguments import as_integer, as_positive_float, as_probability
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.mechanisms.amplification import between_whole_orders
from pymc_dp.privacy.mechanisms.mechanism import ORDERS, Adjacency, Gaussian, Mechanism

__all__ = ["BarkerRelease", "MinibatchRelease", "moments", "zcdp"]

_HIGHEST = 1000  # the sums have as many terms as the order


def zcdp(cost: Cost, delta: float) -> float:
    """Epsilon from the sum of ``rho`` (Proposition 1.3 of Bun, Steinke 2016, https://doi.org/10.1007/978-3-662-53641-4_24)."""
    return cost.rho + 2 * math.sqrt(-cost.rho * math.log(delta))


def moments(cost: Cost, delta: float) -> float:
    """Epsilon as the moments accountant converts (Proposition 3 of Mironov 2017, https://doi.org/10.1109/CSF.2017.11)."""
    return float(np.min(cost.renyi - math.log(delta) / (ORDERS - 1)))


def without_replacement_cumulant(
    q: float, divergence: Callable[[np.ndarray], np.ndarray]
) -> Callable[[np.ndarray], np.ndarray]:
    """Theorem 9 of Wang, Balle, Kasiviswanathan (2019), for a mechanism without pure DP, at whole orders >= 2.

    `divergence` maps whole orders to the Rényi divergence of the mechanism on its batch. For Gaussians the package's
    ``exchange_cumulant`` is tighter where the divergence matters. https://proceedings.mlr.press/v89/wang19b.html
    """

    def cumulant(orders: np.ndarray) -> np.ndarray:
        j = np.arange(2, int(orders.max()) + 1)
        base = divergence(j)
        first = min(base[0], 700)
        second = math.log(min(4 * math.expm1(first), 2 * math.exp(first)))
        rest = math.log(2) + (j[1:] - 1) * base[1:]
        log_terms = np.concatenate([[second], rest]) + j * math.log(q)
        result = np.empty(len(orders))
        for i, order in enumerate(orders.tolist()):
            k = j[: order - 1]
            choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
            result[i] = np.logaddexp(0, logsumexp(choose + log_terms[: order - 1]))
        return result

    return cumulant


class _BatchRelease(Mechanism):
    """What is released of a batch; proved for substitution."""

    @property
    def adjacencies(self) -> frozenset[Adjacency]:
        """Substitution."""
        return frozenset([Adjacency.SUBSTITUTE])


@dataclass(frozen=True)
class MinibatchRelease(_BatchRelease):
    """The noisy log-ratio of a batch without replacement, as if released (minibatch DP penalty).

    Theorem 3.5 of Räisä (2021): the Gaussian mechanism under Theorem 9 of Wang, Balle, Kasiviswanathan (2019). The
    package's ``SampledGaussian`` bounds the same release more tightly, ``SampledDecision`` charges for the decision only.

    The noise multiplier is the noise's standard deviation over the sensitivity on the batch, the root of the theorem's
    ``tau``; the sampling probability is batch size over number of records.
    """

    noise_multiplier: float
    sampling_probability: float

    def __post_init__(self) -> None:
        self._set(
            noise_multiplier=as_positive_float("noise multiplier", self.noise_multiplier),
            sampling_probability=as_probability("sampling probability", self.sampling_probability),
        )

    @property
    def name(self) -> str:
        """Name with noise multiplier and sampling."""
        return (
            f"noisy log-ratio of a batch (Wang et al. 2019), sigma/sensitivity={self.noise_multiplier:.6g}, "
            f"probability {self.sampling_probability:.4g}"
        )

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Theorem 3.5 at whole orders up to 1000, infinite beyond."""
        release = Gaussian(self.noise_multiplier)
        cumulant = without_replacement_cumulant(self.sampling_probability, release.renyi)
        return between_whole_orders(orders, cumulant, 2, _HIGHEST) / (orders - 1)


@dataclass(frozen=True)
class BarkerRelease(_BatchRelease):
    r"""The noisy log-ratio of DP Barker, as if released; batches have at least 16 records.

    Theorem 3.3 of Räisä (2021), after Heikkilä, Jälkö, Dikmen, Honkela (2019, https://arxiv.org/abs/1901.10275): noise
    variance 2, batches of ``b`` of ``n`` records without replacement, log-likelihood ratios clipped at ``sqrt(b) / n``
    after tempering. With ``q = b / n`` and

    .. math:: \epsilon'(\alpha) = \frac{5}{2b}
        + \frac{1}{2(\alpha - 1)} \ln\frac{2b}{b - 5\alpha} + \frac{2\alpha}{b - 5\alpha}

    the bound is Theorem 9 of Wang et al. (2019), for whole orders above 2 and below ``b / 5``.
    """

    batch_size: int
    n_records: int

    def __post_init__(self) -> None:
        self._set(
            batch_size=as_integer("The batch size", self.batch_size),
            n_records=as_integer("The number of records", self.n_records),
        )
        if not 16 <= self.batch_size <= self.n_records:
            raise ValueError(
                f"The batch size must be at least 16 and at most the number of records ({self.n_records}), got {self.batch_size}."
            )

    @property
    def name(self) -> str:
        """Name with batch size and number of records."""
        return f"noisy log-ratio of DP Barker, batches of {self.batch_size} of {self.n_records}"

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Theorem 3.3 at whole orders from 3 to below ``b / 5`` (at most 1000), infinite beyond."""
        b = self.batch_size

        def divergence(k: np.ndarray) -> np.ndarray:
            left = b - 5.0 * k
            return 5 / (2 * b) + np.log(2 * b / left) / (2 * (k - 1)) + 2 * k / left

        cumulant = without_replacement_cumulant(b / self.n_records, divergence)
        return between_whole_orders(orders, cumulant, 3, min(_HIGHEST, (b - 1) // 5)) / (orders - 1)
