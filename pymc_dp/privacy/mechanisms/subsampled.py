"""Accesses to a random batch of the records."""

from __future__ import annotations

import math

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from pymc_dp.acceptance import AcceptanceRule
from pymc_dp.arguments import as_positive_float, as_probability
from pymc_dp.privacy.mechanisms import amplification
from pymc_dp.privacy.mechanisms.decision_suprema import (
    decision_profile,
    decision_renyi,
    interpolate_profile,
)
from pymc_dp.privacy.mechanisms.mechanism import Adjacency, Decision, Gaussian, Mechanism


class Sampling(StrEnum):
    """How a batch is drawn, with secret randomness.

    Examples
    --------
    >>> [sampling.value for sampling in dp.privacy.Sampling]
    ['poisson', 'without_replacement']
    """

    POISSON = "poisson"  #: each record independently, with the same probability
    WITHOUT_REPLACEMENT = "without_replacement"  #: a batch of fixed size, all equally likely


@dataclass(frozen=True)
class SampledGaussian(Mechanism):
    r"""A sum over a random batch of the records, released with Gaussian noise.

    Three combinations are proved:

    * Poisson sampling, add/remove: exact, both as a Rényi divergence and as a privacy loss
      distribution (through ``dp_accounting``).
    * Without replacement, substitution: the least of the Rényi divergence of a dominating pair
      (Balle et al. 2018 for its profile, Zhu et al. 2022 for composing it) and an expansion in the
      sampling probability after Birrell et al. (2024). Both are tighter than Wang et al. (2019)
      (``experiments/published_bounds.py``). Its privacy loss distribution is that of the dominating
      pair.
    * Poisson sampling, substitution: the same bounds hold, as the proofs only use that the three possible
      batches are pairwise within one sensitivity.

    Sampling without replacement under add/remove is refused: the probability that a record is in the batch
    would depend on the number of records, which is not public there.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise divided by the L2 sensitivity of the *sum over a batch*
        under the adjacency in use: for records clipped to norm ``C`` that is ``C`` under
        add/remove, ``2 * C`` under substitution.
    sampling_probability : float
        Probability of a given record to be in the batch, in (0, 1]: the batch size divided by the
        number of records if sampling is without replacement.
    sampling : {"poisson", "without_replacement"}
        How batches are drawn. The two have different costs.
    adjacency : {"substitute", "add_remove"}
        Which data sets count as neighbours.

    References
    ----------
    Mironov, Talwar, Zhang (2019), https://arxiv.org/abs/1908.10530. Balle, Barthe, Gaboardi
    (2018), https://arxiv.org/abs/1807.01647. Zhu, Dong, Wang (2022),
    https://proceedings.mlr.press/v151/zhu22c.html. Birrell, Ebrahimi, Behnia, Pacheco (2024),
    https://arxiv.org/abs/2408.10456. On pairs that do not compose: Lebeda, Regehr, Kamath, Steinke (2024),
    https://arxiv.org/abs/2405.20769.

    Examples
    --------
    A thousand noisy sums over batches of 1 % of the records:

    >>> access = dp.privacy.SampledGaussian(1.0, 0.01, "poisson", "add_remove")
    >>> round(dp.privacy.epsilon_of([(access, 1000)], delta=1e-6), 2)
    2.13
    """

    noise_multiplier: float
    sampling_probability: float
    sampling: Sampling
    adjacency: Adjacency

    def __post_init__(self) -> None:
        self._set(
            noise_multiplier=as_positive_float("noise multiplier", self.noise_multiplier),
            sampling_probability=as_probability("sampling probability", self.sampling_probability),
            sampling=Sampling(self.sampling),
            adjacency=Adjacency(self.adjacency),
        )
        if self.adjacency is Adjacency.ADD_REMOVE and self.sampling is not Sampling.POISSON:
            raise ValueError(
                "Sampling without replacement is not proved for adjacency 'add_remove': the probability to be in a batch of fixed "
                "size depends on the number of records, which is not public there. Use Poisson sampling, or adjacency 'substitute'."
            )

    @property
    def name(self) -> str:
        """Name with noise multiplier and sampling."""
        return (
            f"Gaussian(sigma/sensitivity={self.noise_multiplier:.6g}) on a batch, {self.sampling.replace('_', ' ')}, "
            f"probability {self.sampling_probability:.4g}"
        )

    @property
    def adjacencies(self) -> frozenset[Adjacency]:
        """The adjacency of the constructor."""
        return frozenset([self.adjacency])

    @property
    def gaussian_mu(self) -> float | None:
        """That of the release on all records if the probability is 1, else None."""
        return 1 / self.noise_multiplier if self.sampling_probability == 1 else None

    @property
    def zcdp(self) -> float | None:
        """That of the release on all records if the probability is 1, else None."""
        return Gaussian(self.noise_multiplier).zcdp if self.sampling_probability == 1 else None

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Upper bound on the Rényi divergence at each order."""
        q, mu = self.sampling_probability, 1 / self.noise_multiplier
        unsampled = Gaussian(self.noise_multiplier).renyi(orders)
        if q == 1 or mu > 1e100:  # the other bounds would overflow
            return unsampled
        if self.adjacency is Adjacency.ADD_REMOVE:
            cumulant = amplification.poisson_cumulant(orders, q, mu)
        else:
            cumulant = np.minimum(
                amplification.exchange_cumulant(orders, q, mu),
                amplification.between_whole_orders(
                    orders, lambda k: amplification.taylor_cumulant(k, q, mu), 2, 256
                ),
            )
        return np.minimum(cumulant / (orders - 1), unsampled)

    def privacy_profile(self, epsilons: npt.ArrayLike) -> np.ndarray:
        """Hockey-stick divergence over all pairs of neighbours, exact at epsilon >= 0.

        Under add/remove the larger direction is that of the mixture against the plain Gaussian, which is also
        the worst case under substitution.
        """
        epsilons = np.asarray(epsilons, dtype=float)
        if self.sampling_probability == 1:
            return Gaussian(self.noise_multiplier).privacy_profile(epsilons)
        return amplification.dominating_profile(
            epsilons, self.sampling_probability, 1 / self.noise_multiplier
        )

    def directed_profiles(self, epsilons: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray] | None:
        """Hockey-stick divergences when a record is removed and when it is added, exact; None under substitution.

        One pair of distributions is the worst at every epsilon, so each direction composes separately.
        """
        if self.adjacency is not Adjacency.ADD_REMOVE or self.sampling_probability == 1:
            return None
        return amplification.poisson_profiles(
            np.asarray(epsilons, dtype=float), self.sampling_probability, 1 / self.noise_multiplier
        )


@dataclass(frozen=True)
class SampledDecision(Mechanism):
    r"""One accept/reject bit drawn from a log-ratio that is estimated on a batch without replacement.

    With probability ``q`` the record is in the batch. Let ``p0`` be the acceptance probability of
    the batch with another record in its place, ``p1`` and ``p1'`` those with either of its values:
    the two laws of the bit are ``(1 - q) p0 + q p1`` and ``(1 - q) p0 + q p1'``, and the three
    log-ratios are pairwise within one sensitivity. Over all such triples and all log-ratios the
    divergence is largest where ``p1`` and ``p1'`` are a full sensitivity apart and ``p0`` equals one
    of them (:func:`~pymc_dp.privacy.mechanisms.decision_suprema.decision_pairs`): a maximisation over one variable.

    Proved for substitution only: under add/remove the probability ``q`` is not public.

    Parameters
    ----------
    rule : AcceptanceRule
        How the decision is drawn from the log-ratio of the batch.
    sensitivity : float
        Largest change of the log-ratio when one record *of the batch* changes, > 0. For the
        minibatch penalty of Räisä (2021), section 3.4, with ``c`` the clip bound times distance and
        temperature: ``2 N c / m + 2 (m - 1) / m * (N c / m)**2`` (the source has 3 in place of the
        second 2, which is not needed).
    sampling_probability : float
        Batch size divided by the number of records, in (0, 1].

    Examples
    --------
    >>> decision = dp.privacy.SampledDecision(dp.Barker(), 0.2, sampling_probability=0.1)
    >>> bool(decision.renyi(2.0) < dp.privacy.Decision(dp.Barker(), 0.2).renyi(2.0))
    True
    """

    rule: AcceptanceRule
    sensitivity: float
    sampling_probability: float

    def __post_init__(self) -> None:
        self._set(
            sensitivity=Decision(self.rule, self.sensitivity).sensitivity,  # with its checks
            sampling_probability=as_probability("sampling probability", self.sampling_probability),
        )

    @property
    def name(self) -> str:
        """Name with rule, sensitivity and sampling."""
        return (
            f"decision by {self.rule.name} on a batch without replacement, probability {self.sampling_probability:.4g}, "
            f"sensitivity {self.sensitivity:.4g}"
        )

    @property
    def adjacencies(self) -> frozenset[Adjacency]:
        """Substitution."""
        return frozenset([Adjacency.SUBSTITUTE])

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Upper bound at each order: the minimum of the supremum over log-ratios and the closed form."""
        found = decision_renyi(
            self.rule, self.sensitivity, tuple(orders.tolist()), self.sampling_probability
        )
        rho = Decision(self.rule, self.sensitivity).zcdp  # of a decision on all records
        return np.minimum(found, math.inf if rho is None else orders * rho)

    def privacy_profile(self, epsilons: npt.ArrayLike) -> np.ndarray:
        """Supremum over the log-ratio at each epsilon."""
        profile = decision_profile(self.rule, self.sensitivity, self.sampling_probability)
        return interpolate_profile(*profile, np.asarray(epsilons, dtype=float))
