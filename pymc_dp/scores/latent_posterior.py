r"""Exact posterior given noisy sums of clipped scores, by data augmentation.

The target, with ``D`` the latent records, ``f(D_i)`` their features, ``S`` the releases and ``g`` the density
of the noise, is

.. math:: p(\theta, D \mid S) \propto p(\theta) \prod_i p(D_i \mid \theta)\; g\Big(S - \sum_i f(D_i)\Big) .

Each of three moves leaves it invariant:

1. *Records*: for each in turn, :math:`D_i^* \sim p(\cdot \mid \theta)`, accepted with probability
   :math:`\min\{1, g(r - f_i^* + f_i) / g(r)\}`, where :math:`r = S - \sum_i f_i`. (Metropolis-Hastings
   with the full conditional of the record without the release as proposal.)
2. *Parameters*: NUTS on :math:`p(\theta) \prod_i p(D_i \mid \theta)`, which is the full conditional of
   :math:`\theta`, as ``S`` depends on ``D`` alone.
3. *Both*: :math:`\theta^* \sim q(\theta, \cdot)` and a fresh data set :math:`D^* \sim p(\cdot \mid \theta^*)`,
   accepted with probability :math:`\min\{1, q(\theta^*, \theta) p(\theta^*) g(S - \sum_i f_i^*) /
   [q(\theta, \theta^*) p(\theta) g(S - \sum_i f_i)]\}`: the densities of the records cancel. Moves 1 and 2 are slow where the noise exceeds the spread of the sum (autocorrelation
   :math:`k^2 / (1 + k^2)`, with ``k`` their ratio), and this one is fast there.

Clipping is part of the model of the release, so it costs information and causes no bias.

If covariates are those of a stand-in with errors that are known (:meth:`ScoreFeatures.stand_in_error`, a covariance
:math:`R R'`), the sum is :math:`\sum_i f_i + R z` with a standard normal ``z``: drawn afresh in move 3, and moved by
itself by preconditioned Crank-Nicolson moves.

References
----------
Ju, Awan, Gong, Rao (2022), Data augmentation MCMC for Bayesian inference from privatized data,
https://arxiv.org/abs/2206.00710 (move 1).
"""

from __future__ import annotations

import math

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pymc_dp.display import Shown
from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.model.simulation import SimulatedRecords
from pymc_dp.scores.record_sweep import sweep
from pymc_dp.scores.score_features import ScoreFeatures

#: Autoregressive coefficients of the proposals of move 3, and of errors of a stand-in (Cotter, Roberts, Stuart, White 2013,
#: https://doi.org/10.1214/13-STS421).
_COEFFICIENTS = (0.0, 0.7, 0.95)


@dataclass
class LatentState(Shown):
    """State of a chain: parameters, latent records and their features."""

    theta: np.ndarray
    data: list[list[np.ndarray]]
    features: list[np.ndarray] = field(repr=False)
    residual: np.ndarray
    error: np.ndarray = field(default_factory=lambda: np.zeros(0))


class LatentPosterior(Shown):
    """The target on parameters and records, and its moves."""

    def __init__(
        self,
        features: ScoreFeatures,
        simulated: SimulatedRecords,
        prior: Likelihood,
        n_records: int,
        error_root: np.ndarray | None = None,
    ) -> None:
        self._error_root = np.zeros((len(features.total), 0)) if error_root is None else error_root
        self._features, self._simulated, self._prior = features, simulated, prior
        m = simulated.n_records
        self._weights = [np.ones(m) for _ in range(-(-n_records // m))]
        # The records that do not count are spread over the rows, which may be sorted.
        unused = m * len(self._weights) - n_records
        self._weights[-1][np.random.default_rng(0).permutation(m)[:unused]] = 0.0
        self._rows = simulated.labels
        self._never = [np.where(w > 0, 0.0, np.inf) for w in self._weights]

    @property
    def weights(self) -> list[np.ndarray]:
        """Weights of latent records, block by block: 1 for each that counts, 0 for surplus ones."""
        return self._weights

    def compile(self, theta: np.ndarray) -> None:
        """Compile all functions here rather than in every worker."""
        rng = np.random.default_rng(0)
        if (state := self.draw(theta, rng)) is not None:
            self.update_records(state, rng)
            self.log_density(theta, state)

    def draw(self, theta: np.ndarray, rng: np.random.Generator) -> LatentState | None:
        """A state with records drawn from the model; None where they cannot be drawn."""
        if not np.isfinite(self._prior.log_prior(theta)):
            return None
        data, features = [], []
        for weights in self._weights:
            block = self._drawn(theta, rng)
            if block is None:
                return None
            data.append(block)
            features.append(self._features.of(block) * weights[:, None])
        residual = self._features.total - np.sum([f.sum(axis=0) for f in features], axis=0)
        error = rng.standard_normal((self._error_root.shape[1],))
        residual -= self._error_root @ error
        return LatentState(theta, data, features, residual, error)

    def _drawn(self, theta: np.ndarray, rng: np.random.Generator) -> list[np.ndarray] | None:
        try:
            with np.errstate(all="ignore"):
                return self._simulated.draw(theta, rng)
        except ValueError:  # NumPy's, for parameters that are out of range
            return None

    def update_records(self, state: LatentState, rng: np.random.Generator) -> float:
        """Move 1 and the error of the stand-in, in place; returns the mean acceptance probability of records."""
        if len(state.error):
            self._update_error(state, rng)
        rates = []
        for data, features, never in zip(state.data, state.features, self._never, strict=True):
            proposed = self._drawn(state.theta, rng)
            if proposed is None:
                return 0.0
            log_uniforms = never - rng.standard_exponential(len(never))
            accepted, rate = sweep(
                features, self._features.of(proposed), state.residual, log_uniforms,
                self._features.ends, self._features.scales, self._features.is_gaussian,
            )  # fmt: skip
            rates.append(rate)
            for i, (values, new, label) in enumerate(zip(data, proposed, self._rows, strict=True)):
                mask = accepted[label]
                data[i] = np.where(mask.reshape(-1, *[1] * (values.ndim - 1)), new, values)
        return float(np.mean(rates))

    def _update_error(self, state: LatentState, rng: np.random.Generator) -> None:
        for coefficient in _COEFFICIENTS:
            move = math.sqrt(1 - coefficient**2) * rng.standard_normal(len(state.error))
            error = coefficient * state.error + move
            residual = state.residual - self._error_root @ (error - state.error)
            log_ratio = self._features.log_noise(residual) - self._features.log_noise(
                state.residual
            )
            if np.log(rng.random()) < log_ratio:
                state.error, state.residual = error, residual

    def log_density(self, theta: np.ndarray, state: LatentState) -> tuple[float, np.ndarray]:
        """Log-density of parameters given a state's records, and its gradient."""
        value, gradient = self._prior.log_prior(theta), self._prior.grad_log_prior(theta)
        if not np.isfinite(value):
            return -np.inf, gradient
        with np.errstate(all="ignore"):
            for data, weights in zip(state.data, self._weights, strict=True):
                more, slope = self._simulated.weighted_sum(theta, data, weights)
                value, gradient = value + more, gradient + slope
        return value, gradient

    def update_both(
        self, state: LatentState, walk: Walk, rng: np.random.Generator
    ) -> tuple[LatentState, bool]:
        """Move 3."""
        theta, log_hastings = walk.proposal(state.theta, rng)
        log_prior = self._prior.log_prior(theta)
        new = self.draw(theta, rng)
        if new is None:
            return state, False
        log_ratio = (
            log_hastings
            + log_prior + self._features.log_noise(new.residual)
            - self._prior.log_prior(state.theta) - self._features.log_noise(state.residual)
        )  # fmt: skip
        is_accepted = bool(np.log(rng.random()) < log_ratio)
        return (new if is_accepted else state), is_accepted


class Walk(NamedTuple):
    """Preconditioned Crank-Nicolson proposals (pCN), reversible with respect to a normal law."""

    mean: np.ndarray
    root: np.ndarray

    def proposal(self, theta: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """Proposed position, and the log Hastings ratio of the proposal densities."""
        coefficient = _COEFFICIENTS[rng.integers(len(_COEFFICIENTS))]
        move = math.sqrt(1 - coefficient**2) * self.root @ rng.standard_normal(len(theta))
        new = self.mean + coefficient * (theta - self.mean) + move
        return new, (self._square(new) - self._square(theta)) / 2

    def _square(self, theta: np.ndarray) -> float:
        z = np.linalg.solve(self.root, theta - self.mean)
        return float(z @ z)
