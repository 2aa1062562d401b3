r"""The l2 mechanism: a vector released with noise of density proportional to ``exp(-|x| / scale)``.

Pure differential privacy in the Euclidean norm: ``epsilon`` is the L2 sensitivity over the scale. Its
Rényi curve and its privacy loss distribution are known exactly, in any dimension.

**Privacy loss.** Let the noise have dimension ``d``, and let the neighbours' sums differ by a vector
of length ``D``, the sensitivity. At an output, let ``a`` and ``b`` be the distances to the two sums, in
units of ``D``. The loss is :math:`L = \epsilon (b - a)`. In the confocal coordinates
:math:`\xi = a + b \ge 1` and :math:`\eta = b - a \in [-1, 1]`, with the two sums as foci, the volume
element is proportional to
:math:`(\xi^2 - \eta^2) [(\xi^2 - 1)(1 - \eta^2)]^{(d - 3)/2} d\xi\, d\eta`, and the density of the
noise to :math:`e^{-\epsilon (\xi - \eta) / 2}`. Integrated over :math:`\xi`, the loss is
:math:`\epsilon \eta` with

.. math:: p(\eta) \propto e^{\epsilon \eta / 2} (R - \eta^2) (1 - \eta^2)^{(d - 3)/2}, \qquad
          R = 1 + (d - 1) \frac{2}{\epsilon} \frac{K_{d/2}(\epsilon/2)}{K_{d/2 - 1}(\epsilon/2)}

by the integral representation of the modified Bessel function :math:`K`. (For ``d = 1``, where the
law is Laplace's, this is a limit with atoms at both ends.) The other neighbour's law is the mirror
image, so both directions cost the same.

**Rényi divergence.** :math:`E\, e^{(\alpha - 1) \epsilon \eta}` is a ratio of two integrals of the
same kind: with :math:`F_c(k) = {}_0F_1(c; k^2/4)` and :math:`r` the ratio of Bessel functions above,

.. math:: D_\alpha = \frac{1}{\alpha - 1} \log \frac{J((2 \alpha - 1) \epsilon / 2)}{J(\epsilon / 2)},
          \qquad J(k) = \frac{2 r}{\epsilon} F_{d/2}(k) + \frac{1}{d} F_{d/2 + 1}(k) .

**Shorter differences cost less.** Condition on the line through an output that is parallel to the
difference of the sums. On it the noise has a log-concave density, of which the hockey-stick
divergence to its own translate grows with the translation; so does the average over lines, at
every order, and with it the Rényi divergence.
"""

from __future__ import annotations

import math

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from scipy.special import hyp0f1, ive, kve, loggamma, ndtri_exp

from pymc_dp.arguments import as_integer, as_positive_float
from pymc_dp.privacy.mechanisms.decision_suprema import interpolate_profile
from pymc_dp.privacy.mechanisms.mechanism import Mechanism

#: Relative and absolute allowance for floating-point errors, to the safe side.
_SAFETY, _ROUNDING = 1 + 1e-9, 1e-14
#: Angles at which tails of the loss are compared with those of a Gaussian.
_N_ANGLES = 20_000
#: Losses at which the privacy profile is computed.
_N_KNOTS = 4001
#: Logarithm of the smallest probability that is compared: rarer ones underflow.
_LOG_SMALLEST = -600.0


@dataclass(frozen=True)
class L2Laplace(Mechanism):
    r"""A vector released with noise of density proportional to ``exp(-epsilon |x| / sensitivity)``.

    Pure ``epsilon``-DP. The length of the noise is ``Gamma(n_dim)`` times ``sensitivity / epsilon``, its
    direction uniform, and the standard deviation of each coordinate
    ``sqrt(n_dim + 1) * sensitivity / epsilon``.

    Parameters
    ----------
    epsilon : float
        L2 sensitivity over the scale of the noise, at most 500.
    n_dim : int
        Dimension of the vector.

    Raises
    ------
    ValueError
        If an argument is out of range.

    References
    ----------
    Hardt, Talwar (2010), On the geometry of differential privacy,
    https://doi.org/10.1145/1806689.1806786; Joseph, Kulesza, Yu (2025), Private means and the l2
    mechanism, https://arxiv.org/abs/2502.15929. The Rényi curve and the law of the loss are derived
    in the docstring of this module.

    Examples
    --------
    >>> round(
    ...     dp.privacy.epsilon_of([(dp.privacy.L2Laplace(1.0, n_dim=4), 1)], delta=1e-6), 2
    ... )
    0.99
    >>> round(
    ...     dp.privacy.epsilon_of(
    ...         [(dp.privacy.Gaussian(dp.privacy.L2Laplace(1.0, n_dim=4).noise_sd), 1)],
    ...         delta=1e-6,
    ...     ),
    ...     2,
    ... )
    1.99
    """

    epsilon: float
    n_dim: int

    LARGEST_EPSILON: ClassVar[float] = 500.0

    def __post_init__(self) -> None:
        self._set(epsilon=as_positive_float("epsilon of l2 noise", self.epsilon))
        self._set(n_dim=as_integer("n_dim", self.n_dim, 1))
        if self.epsilon > self.LARGEST_EPSILON:
            raise ValueError(f"The epsilon of l2 noise must be at most {self.LARGEST_EPSILON:g}, got {self.epsilon!r}.")  # fmt: skip

    @property
    def name(self) -> str:
        """Name with epsilon and dimension."""
        return f"l2 noise(epsilon={self.epsilon:.6g}, n_dim={self.n_dim})"

    @property
    def noise_sd(self) -> float:
        """Standard deviation of each coordinate, in units of the sensitivity."""
        return math.sqrt(self.n_dim + 1) / self.epsilon

    @property
    def pure_epsilon(self) -> float:
        """Epsilon of the noise."""
        return self.epsilon

    @cached_property
    def gaussian_mu(self) -> float:
        """Smallest ``mu`` such that the release is ``mu``-GDP, rounded up.

        Likelihood ratios are monotone in ``eta``, so the tests to compare are ``eta > h``: ``mu`` is the
        largest difference of the probits of their probabilities under the two neighbours.
        """
        probit, other = _probits(self.epsilon, self.n_dim)
        return float(np.max(probit - other)) * (1 + 1e-6)

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        """Exact Rényi divergence, at most epsilon."""
        top = _log_moment((2 * orders - 1) * self.epsilon / 2, self.epsilon, self.n_dim)
        bottom = _log_moment(np.array([self.epsilon / 2]), self.epsilon, self.n_dim)
        error = _ROUNDING * (1 + np.abs(top) + np.abs(bottom))
        exact = (top - bottom + error) / (orders - 1) * _SAFETY
        return np.minimum(exact, self.epsilon)

    def privacy_profile(self, epsilons: npt.ArrayLike) -> np.ndarray:
        r""":math:`E (1 - e^{t - L})_+` at each ``t``: exact at 4001 values of ``t``, above it between them."""
        profile = interpolate_profile(*_profile(self.epsilon, self.n_dim), np.asarray(epsilons))
        return np.minimum(profile, 1.0)

    def for_group(self, size: int) -> L2Laplace | None:
        """Return the release with ``size`` times the sensitivity, exact, if its epsilon is in range.

        Shorter differences cost less, see :meth:`~pymc_dp.privacy.Mechanism.for_group`.
        """
        epsilon = self.epsilon * size
        return L2Laplace(epsilon, self.n_dim) if epsilon <= self.LARGEST_EPSILON else None


def _bessel_ratio(d: int, z: float) -> float:
    """``K_{d/2}(z) / K_{d/2 - 1}(z)``, by the upward recurrence, which is stable."""
    order, ratio = (-0.5, 1.0) if d % 2 else (0.0, float(kve(1, z) / kve(0, z)))
    while order < d / 2 - 1:
        order += 1
        ratio = 2 * order / z + 1 / ratio
    return ratio


def _log_0f1(c: float, k: np.ndarray) -> np.ndarray:
    """Logarithm of ``0F1(c; k**2 / 4)``, which is ``Gamma(c) (2/k)**(c - 1) I_{c - 1}(k)``."""
    is_small = k * k < 2400 * c  # then 0F1 < exp(600); beyond, I does not underflow
    with np.errstate(divide="ignore"):
        large = loggamma(c) + (c - 1) * np.log(2 / k) + np.log(ive(c - 1, k)) + k
    small = np.log(hyp0f1(c, np.where(is_small, k * k, 0.0) / 4))
    return np.where(is_small, small, large)


def _log_moment(k: np.ndarray, epsilon: float, d: int) -> np.ndarray:
    """Logarithm of ``J(k)``."""
    first = math.log(2 / epsilon * _bessel_ratio(d, epsilon / 2)) + _log_0f1(d / 2, k)
    return np.logaddexp(first, _log_0f1(d / 2 + 1, k) - math.log(d))


def _log_density(angle: np.ndarray, epsilon: float, d: int) -> np.ndarray:
    """Logarithm of the density of the angle whose cosine is ``eta``, not normalised."""
    cosine, sine = np.cos(angle), np.sin(angle)
    excess = (d - 1) * 2 / epsilon * _bessel_ratio(d, epsilon / 2)  # R - 1
    power = (d - 2) * np.log(sine) if d > 2 else 0.0
    return epsilon / 2 * (cosine - 1) + power + np.log(excess + sine**2)


@lru_cache(maxsize=32)
def _quadrature(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return (nodes + 1) / 2, weights / 2


@lru_cache(maxsize=64)
def _profile(epsilon: float, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of ``t`` from 0 to epsilon, and ``E (1 - exp(t - L))_+`` at each, rounded up.

    An integral over the angles up to that where ``L = t``, of terms that are all positive.
    """
    t = np.linspace(0, epsilon, _N_KNOTS)
    if d == 1:
        return t, -np.expm1((t - epsilon) / 2) * _SAFETY
    nodes, weights = _quadrature(100 + d + math.ceil(epsilon))
    last = np.arccos(t / epsilon)
    angles = last[:-1, None] * nodes
    everywhere = _log_density(math.pi * nodes, epsilon, d)
    largest = float(everywhere.max())
    whole = math.pi * float(np.exp(everywhere - largest) @ weights)
    density = np.exp(_log_density(angles, epsilon, d) - largest)
    excess = -np.expm1(t[:-1, None] - epsilon * np.cos(angles))
    values = last[:-1] * ((density * np.maximum(excess, 0.0)) @ weights) / whole
    return t, np.append(values, 0.0) * _SAFETY  # a loss above epsilon is impossible


@lru_cache(maxsize=64)
def _probits(epsilon: float, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Probits of the probabilities that ``eta > h`` under both neighbours, on a grid of ``h >= 0``."""
    if (
        d == 1
    ):  # Laplace's law: P(L > t) = 1 - exp((t - epsilon) / 2) / 2, Q(L > t) = exp(-t) times that of -t
        t = np.linspace(0, epsilon, _N_ANGLES, endpoint=False)
        return -ndtri_exp(np.log(0.5) + (t - epsilon) / 2), ndtri_exp(
            np.log(0.5) - (t + epsilon) / 2
        )
    edges = np.linspace(0, math.pi, 2 * _N_ANGLES + 1)
    nodes, weights = _quadrature(5)
    angles = edges[:-1, None] + np.diff(edges)[:, None] * nodes
    log_density = _log_density(angles, epsilon, d)
    cells = np.exp(log_density - log_density.max()) @ weights
    cells /= cells.sum()
    with np.errstate(divide="ignore"):
        above = np.log(np.cumsum(cells))[:_N_ANGLES]  # of eta > cos(angle), angles up to pi / 2
        below = np.log(np.cumsum(cells[::-1]))  # of eta < -cos(angle), which mirrors the neighbour
    not_above, mirrored = below[-2 : _N_ANGLES - 2 : -1], below[:_N_ANGLES]
    seen = (above > _LOG_SMALLEST) & (mirrored > _LOG_SMALLEST)
    # The smaller of a probability and its complement has the accurate logarithm.
    probit = np.where(above < not_above, ndtri_exp(above), -ndtri_exp(not_above))
    return probit[seen], ndtri_exp(mirrored[seen])
