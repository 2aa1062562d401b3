"""Step sizes that follow a schedule, and what the noise costs that goes with them."""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import dataclass

from pymc_dp.privacy.mechanisms import Adjacency, Gaussian, Mechanism
from pymc_dp.privacy.sampled import SampledGaussian, Sampling
from pymc_dp.steps.gradients import MOST_NOISE

__all__ = ["Constant", "CubeRoot", "NoiseSchedule", "Schedule"]

Schedule = Callable[[int], float]

#: Noise multipliers are charged for as the next smaller number of a geometric grid with this ratio, so
#: that a long schedule has few costs: 1/2 % of the noise on average.
_RATIO = 1.01


@dataclass(frozen=True)
class CubeRoot:
    """``beta * t**(-1/3)``."""

    beta: float

    def __call__(self, draw: int) -> float:
        """Step size of draw 1, 2, ..."""
        return float(self.beta * draw ** (-1 / 3))


@dataclass(frozen=True)
class Constant:
    """The same for all draws."""

    step_size: float

    def __call__(self, draw: int) -> float:
        """Step size of draw 1, 2, ..."""
        return self.step_size


@dataclass(frozen=True)
class NoiseSchedule:
    """What each draw accesses, as the budget learns it.

    It does not know the step: a budget is pickled among the arguments that a step is made anew
    from, before there is a step.

    Parameters
    ----------
    step_size : callable
        Step size of draw 1, 2, ...
    added : float
        Variance of the noise on the momentum, per unit of time.
    temperature : float
        Power of the likelihood.
    sensitivity : float
        Of the sum over a batch, under the adjacency in use.
    n_steps : int
        Gradients per draw.
    probability : float
        Of a record to be in a batch.
    sampling : Sampling
        How batches are drawn.
    adjacency : Adjacency or None
        Of the budget, if there is one.
    """

    step_size: Schedule
    added: float
    temperature: float
    sensitivity: float
    n_steps: int
    probability: float
    sampling: Sampling
    adjacency: Adjacency | None

    def step_size_at(self, draw: int) -> float:
        """Step size of a draw, which has to be one."""
        step_size, again = float(self.step_size(draw)), float(self.step_size(draw))
        if step_size != again and not math.isnan(step_size):
            raise ValueError(
                f"step_size must be a function of the draw alone, as it is planned with, but gave {step_size!r} and then {again!r} "
                f"for draw {draw}."
            )
        if not (math.isfinite(step_size) and step_size > 0):
            raise ValueError(
                f"step_size must be positive and finite, got {step_size!r} for draw {draw}."
            )
        return step_size

    def noise_sd(self, draw: int) -> float:
        """Standard deviation of the noise, on the sum of the batch."""
        added = self.added / self.step_size_at(draw)
        return math.sqrt(added) * self.probability / self.temperature

    def noise_multiplier(self, draw: int) -> float:
        """Noise relative to the sensitivity, 0 where there is no noise or no clip bound; refused if it cannot be."""
        noise = self.noise_sd(draw) / self.sensitivity
        if not (0 if self.adjacency is None else math.ulp(0.0)) <= noise <= MOST_NOISE:
            bound = self.sensitivity / (1 if self.adjacency is Adjacency.ADD_REMOVE else 2)
            raise ValueError(
                f"The noise multiplier of gradients must be positive, and at most 1e6, but is {noise:g} for draw {draw}: from friction - "
                f"noise_estimate = {self.added / 2!r}, step_size = {self.step_size_at(draw)!r}, gradient_clip_bound = {bound!r}, "
                f"temperature = {self.temperature!r} and a part {self.probability:g} of the records."
            )
        return noise

    def __call__(self, draw: int) -> tuple[tuple[Mechanism, int], ...]:
        """Accesses of draw 1, 2, ...; none where there is no noise or no clip bound."""
        noise = self.noise_multiplier(draw)
        if noise == 0:
            return ()
        noise = min(noise, _RATIO ** math.floor(math.log(noise) / math.log(_RATIO)))
        release: Mechanism = Gaussian(noise)
        if self.probability < 1:
            assert self.adjacency is not None
            release = SampledGaussian(noise, self.probability, self.sampling, self.adjacency)
        return ((release, self.n_steps),)
