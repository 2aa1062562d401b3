"""Plans for DPSGHMC: its stationary law in a normal approximation, in closed form."""

from __future__ import annotations

import math

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from pymc_dp.blind_plans import MOST_CLIPPED, Terms, Weighed
from pymc_dp.costs import LEAST_DRAWS, decisions
from pymc_dp.newton import MISFIT
from pymc_dp.path_plans import Slope, slopes
from pymc_dp.pilot import Pilot
from pymc_dp.privacy.accounting import max_draws
from pymc_dp.privacy.mechanisms import Adjacency, Gaussian
from pymc_dp.privacy.sampled import Sampling
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.schedules import Constant, NoiseSchedule

__all__ = ["SGHMCCandidate", "plan_sghmc", "stationary"]

# What is tried out, in units of the posterior's standard deviations and oscillations.
_FRICTIONS = (1.0, 2.0, 4.0)
_STEP_SIZES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
_PARTS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
#: Candidates whose cost is computed and not estimated.
_CLOSELY = 24
#: Least batch, in records: what is random in it is taken to be nearly normal.
_SMALLEST = 100
#: Smaller batches are taken if the error is larger by no more than this factor.
_NEARLY = 1.05


@dataclass(frozen=True)
class SGHMCCandidate(Weighed):
    """One choice of settings for :class:`~pymc_dp.DPSGHMC`, and what is expected of it.

    Parameters
    ----------
    step_size : float
        In time of which a quarter of an orbit takes pi / 2.
    n_steps : int
        Of each draw.
    friction, noise_estimate : float
    sampling_probability : float
        Part of the records in a batch.
    gradient_clip_bound : float
        Log-likelihood of a record per posterior standard deviation.
    noise_multiplier : float
    clipped : float
        Part of the records whose gradients are clipped.
    draws : float
        Of each chain.
    effective_draws : float
        Of all chains together, in the slowest direction.
    bias : float
        Error of the posterior mean that comes from clipping, in posterior standard deviations.
    spread : float
        Error of the worst posterior standard deviation, relative to it.
    """

    COLUMNS: ClassVar[str] = (
        "step size  steps  friction   batch  clip bound  clipped  noise  draws  effective  bias  spread  error"
    )

    step_size: float
    n_steps: int
    friction: float
    noise_estimate: float
    sampling_probability: float
    gradient_clip_bound: float
    noise_multiplier: float
    clipped: float
    draws: float
    effective_draws: float
    bias: float
    spread: float

    @property
    def length(self) -> float:
        """Time from draw to draw."""
        return self.step_size * self.n_steps

    @property
    def lasting(self) -> float:
        """Errors of mean and standard deviation."""
        return math.hypot(self.bias, self.spread)

    @property
    def title(self) -> str:
        """What moves, and how far."""
        return f"{self.n_steps} step(s) of {self.step_size:g} for each draw, standard deviations off by {self.spread:.0%}"

    @property
    def row(self) -> str:
        """Line of a table with these `COLUMNS`."""
        return (
            f"{self.step_size:9.2g}{self.n_steps:7d}{self.friction:10.2g}{self.sampling_probability:8.2g}{self.gradient_clip_bound:12.3g}"
            f"{self.clipped:9.2%}{self.noise_multiplier:7.3g}{self.draws:7.0f}{self.effective_draws:11.0f}{self.bias:6.2f}"
            f"{self.spread:8.2f}{self.error:7.2f}"
        )


def plan_sghmc(
    step: type[DPStep], pilot: Pilot, terms: Terms
) -> tuple[dict[str, Any], list[SGHMCCandidate]]:
    """Settings of :class:`DPSGHMC`, and candidates, the chosen first."""
    chains = terms.budget.chains
    rough = sorted(_candidates(pilot, terms), key=lambda c: c.error)
    candidates = []
    for candidate in rough[:_CLOSELY]:
        ((release, count),) = _schedule(candidate, terms)(1)
        draws = decisions(terms.left, count * terms.price(release), chains, terms.max_draws)
        part = draws / candidate.draws
        if draws >= LEAST_DRAWS:
            effective = candidate.effective_draws * part
            candidates.append(replace(candidate, draws=draws, effective_draws=effective))
    if not candidates:
        return {}, []
    least = min(c.error for c in candidates)
    good = [c for c in candidates if c.error <= _NEARLY * least]
    best = min(good, key=lambda c: (c.sampling_probability * c.n_steps * c.draws, c.error))
    # Its cost is known beforehand, so that every accountant can say how long it lasts, if nothing is claimed before.
    lasts = max_draws(
        _schedule(best, terms)(1), terms.budget.epsilon, terms.budget.delta, chains, besides=terms.budget.claimed_before(terms.besides).counts.items(),
        accountant=terms.budget.accountant_after(terms.besides),
    )  # fmt: skip
    draws = min(float(lasts), terms.max_draws)
    chosen = replace(best, draws=draws, effective_draws=best.effective_draws * draws / best.draws)
    settings: dict[str, Any] = {
        "step_size": Constant(chosen.step_size),
        "n_steps": chosen.n_steps,
        "gradient_clip_bound": chosen.gradient_clip_bound,
        "friction": chosen.friction,
        "noise_estimate": chosen.noise_estimate,
        "mass_matrix": np.linalg.inv(pilot.spread),
        "refresh_momentum": False,
        "temperature": terms.temperature,
    }
    if terms.budget.adjacency is Adjacency.SUBSTITUTE and chosen.sampling_probability < 1:
        settings["batch_size"] = round(chosen.sampling_probability * terms.n_records)
    else:
        settings["sampling_probability"] = chosen.sampling_probability
    return settings, [chosen, *(c for c in candidates if c is not best)]


def _schedule(candidate: SGHMCCandidate, terms: Terms) -> NoiseSchedule:
    substitute = terms.budget.adjacency is Adjacency.SUBSTITUTE
    return NoiseSchedule(
        Constant(candidate.step_size), 2 * (candidate.friction - candidate.noise_estimate), terms.temperature,
        terms.sides * candidate.gradient_clip_bound, candidate.n_steps, candidate.sampling_probability,
        Sampling.WITHOUT_REPLACEMENT if substitute else Sampling.POISSON, terms.budget.adjacency,
    )  # fmt: skip


def _candidates(pilot: Pilot, terms: Terms) -> Iterator[SGHMCCandidate]:
    """All choices, with a rough cost: a part ``q`` of the records costs ``q**2`` of what all do, under much noise."""
    chains, n_records = terms.budget.chains, terms.n_records
    sizes = {round(q * n_records) for q in _PARTS if q * n_records >= _SMALLEST or q == 1}
    parts = [size / n_records for size in sorted(sizes)]
    for slope in slopes(pilot, pilot.spread):
        if slope.clipped > MOST_CLIPPED:
            continue
        shift = np.hypot(slope.offset, MISFIT * slope.unknown) / slope.gains
        bias = float(np.sqrt(np.mean(shift**2)))
        for part in parts:
            batch = terms.temperature * (1 - part) / part * slope.moments
            for friction in _FRICTIONS:
                for size in _STEP_SIZES:
                    estimate = size / 2 * float(batch.mean())
                    if estimate > friction / 2:
                        continue
                    steps = max(1, round(friction / size))
                    kick = 2 * (friction - estimate) * size + size**2 * batch
                    law = stationary(slope, size, friction, kick, steps)
                    if law is None:
                        continue
                    variances, slowest = law
                    z = math.sqrt(2 * (friction - estimate) / size) * part
                    z /= terms.temperature * terms.sides * slope.bound
                    amplified = part**2 * z**2 * math.expm1(min(z**-2, 50.0)) if part < 1 else 1.0
                    cost = steps * min(1.0, amplified) * terms.price(Gaussian(z))
                    draws = decisions(terms.left, cost, chains, terms.max_draws)
                    if draws >= LEAST_DRAWS:
                        yield SGHMCCandidate(
                            size, steps, friction, estimate, part, slope.bound, z, slope.clipped, draws,
                            chains * draws / max(slowest, 1.0), bias, float(np.abs(np.sqrt(variances) - 1).max()),
                        )  # fmt: skip


def stationary(
    slope: Slope, step_size: float, friction: float, kick: np.ndarray, n_steps: int
) -> tuple[np.ndarray, float] | None:
    """Stationary variances of a chain that keeps its momentum, where the posterior's are 1.

    Parameters
    ----------
    slope : Slope
        Of the sum of gradients.
    step_size, friction : float
    kick : array of shape (d,)
        Variance of all that is random in a step of the momentum.
    n_steps : int
        Of each draw.

    Returns
    -------
    variances : array of shape (d,)
    slowest : float
        Variance of a mean over many draws, times their number, in the worst direction.

    None where there is no stationary law.
    """
    slowed, eye = 1 - step_size * friction, np.eye(2)
    variances, slowest = np.empty(len(kick)), 0.0
    for j, gain in enumerate(slope.gains):
        force = -step_size * gain
        step = np.array([[1 + step_size * force, step_size * slowed], [force, slowed]])
        if np.abs(np.linalg.eigvals(step)).max() >= 1 - 1e-9:
            return None
        noise = kick[j] * np.outer([step_size, 1], [step_size, 1])
        law = np.linalg.solve(np.eye(4) - np.kron(step, step), noise.ravel()).reshape(2, 2)
        draw = np.linalg.matrix_power(step, n_steps)
        later = draw @ np.linalg.solve(eye - draw, law)  # all autocovariances
        variances[j] = law[0, 0]
        slowest = max(slowest, law[0, 0] + 2 * later[0, 0])
    return variances, slowest
