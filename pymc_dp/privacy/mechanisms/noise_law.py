"""The law of the noise on a released vector: added to the integer sum; the same law is used in simulations."""

from __future__ import annotations

import math

from dataclasses import dataclass

import numpy as np

from pymc_dp.codec import published
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Gaussian
from pymc_dp.privacy.randomness.bits import BitSource
from pymc_dp.privacy.randomness.rounded_gaussian import LARGEST_SCALE, noisy_sum
from pymc_dp.privacy.randomness.rounded_l2 import LARGEST_L2_SCALE, rounded_l2


@published
@dataclass(frozen=True)
class NoiseLaw:
    """Isotropic noise of a released vector.

    The scale is the standard deviation of each coordinate of ``"gaussian"`` noise, or ``s`` of ``"l2"`` noise, of
    density proportional to ``exp(-|x| / s)``.
    """

    kind: str
    scale: float
    n_dim: int

    @classmethod
    def of(
        cls, mechanism: Gaussian | L2Laplace, sensitivity: float, n_dim: int | None = None
    ) -> NoiseLaw:
        """Noise of a mechanism on a vector of this L2 sensitivity; l2 noise has its own `n_dim`."""
        if isinstance(mechanism, L2Laplace):
            return cls("l2", sensitivity / mechanism.epsilon, mechanism.n_dim)
        assert n_dim is not None
        return cls("gaussian", sensitivity * mechanism.noise_multiplier, n_dim)

    @property
    def sd(self) -> float:
        """Standard deviation of each coordinate."""
        return self.scale if self.kind == "gaussian" else math.sqrt(self.n_dim + 1) * self.scale

    def check(self, exponent: int) -> None:
        """Raise ValueError unless it can be added to sums in steps of ``2**exponent``; called before a claim."""
        largest = LARGEST_SCALE if self.kind == "gaussian" else LARGEST_L2_SCALE
        if not 0 < self.scale <= math.ldexp(largest, exponent):
            raise ValueError(
                f"Noise of scale {self.scale:.3g} is too much for sums in steps of 2**{exponent}: the part of the budget that this release "
                "gets is too small. Raise epsilon, or plan fewer releases. Nothing was accessed."
            )

    def add(self, steps: np.ndarray, exponent: int, bits: BitSource) -> np.ndarray:
        """Noisy sum: see :func:`~pymc_dp.privacy.randomness.rounded_gaussian.noisy_sum`. The caller claims its cost."""
        return noisy_sum(
            steps, exponent, self.scale, bits, rounded_l2 if self.kind == "l2" else None
        )

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Simulate noise, public and not rounded, shape ``(n, n_dim)``."""
        vectors = rng.standard_normal((n, self.n_dim))
        if self.kind == "l2":
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors *= rng.gamma(self.n_dim, size=(n, 1))
        return self.scale * vectors
