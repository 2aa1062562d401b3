"""DP SGHMC: stochastic gradient HMC with friction; private by its own noise, biased."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import numpy.typing as npt

from pymc_dp.arguments import as_batch_size, as_float, as_fraction, as_integer, as_positive_float
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.mechanism import Adjacency, Gaussian, Mechanism
from pymc_dp.privacy.mechanisms.subsampled import SampledGaussian, Sampling
from pymc_dp.privacy.randomness.batches import poisson, without_replacement
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.hmc import Phase, Trajectory, recorded_paths
from pymc_dp.steps.noisy_gradients import MOST_NOISE, Coordinates, NoisyGradient, as_gradient_bound
from pymc_dp.steps.options import StepOptions

Schedule = Callable[[int], float]

#: Noise multipliers are charged as the next smaller number of a geometric grid with this ratio, so
#: that a long schedule has few costs: this overstates the cost as 0.5 % less noise would, on average.
_RATIO = 1.01


@dataclass(frozen=True)
class CubeRoot:
    """``beta * t**(-1/3)``."""

    beta: float

    def __call__(self, draw: int) -> float:
        """Step size of draw ``t = 1, 2, ...``."""
        return float(self.beta * draw ** (-1 / 3))


@dataclass(frozen=True)
class NoiseSchedule:
    """Step size, noise and accesses of each draw.

    `added` is ``2 (C - B)``, the variance of the momentum noise per unit of time; `temperature` the power of the
    likelihood; `sensitivity` that of the sum over a batch under `adjacency` (None without a budget); `n_steps` the
    gradients per draw; `probability` the probability ``q`` that a record is in a batch. The schedule holds no reference
    to the step: PyMC rebuilds a step from its arguments, among them the budget, which holds this schedule and is
    pickled before the step exists.
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
        """Step size of a draw; ValueError unless it is positive, finite and a function of the draw."""
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
        """Standard deviation of the noise on the sum over a batch: ``sqrt(2 (C - B) / eta_t) q / T``."""
        added = self.added / self.step_size_at(draw)
        return math.sqrt(added) * self.probability / self.temperature

    def noise_multiplier(self, draw: int) -> float:
        """Noise over sensitivity, 0 without noise or without a clip bound; ValueError if it is out of range."""
        noise = self.noise_sd(draw) / self.sensitivity
        least = 0 if self.adjacency is None else math.ulp(0.0)
        if not least <= noise <= MOST_NOISE:
            bound = self.sensitivity / (1 if self.adjacency is Adjacency.ADD_REMOVE else 2)
            raise ValueError(
                f"The noise multiplier of gradients must be positive, and at most 1e6, but is {noise:g} for draw {draw}: from friction - "
                f"noise_estimate = {self.added / 2!r}, step_size = {self.step_size_at(draw)!r}, gradient_clip_bound = {bound!r}, "
                f"temperature = {self.temperature!r} and a part {self.probability:g} of the records."
            )
        return noise

    def __call__(self, draw: int) -> tuple[tuple[Mechanism, int], ...]:
        """Accesses of draw ``t = 1, 2, ...``; none without noise or without a clip bound."""
        noise = self.noise_multiplier(draw)
        if noise == 0:
            return ()
        noise = min(noise, _RATIO ** math.floor(math.log(noise) / math.log(_RATIO)))
        release: Mechanism = Gaussian(noise)
        if self.probability < 1:
            adjacency = Adjacency.SUBSTITUTE if self.adjacency is None else self.adjacency
            release = SampledGaussian(noise, self.probability, self.sampling, adjacency)
        return ((release, self.n_steps),)


class DPSGHMC(DPStep):
    r"""Stochastic gradient HMC on clipped per-record gradients. **Biased**: there is no acceptance test.

    A draw (number ``t``) takes ``J`` steps of

    .. math:: g &= \tfrac{T}{q} \sum_{i \in B} \operatorname{clip}_b(\nabla \ell_i(\theta)) + \nabla \log p(\theta) \\
              v &\leftarrow v + \eta_t g - \eta_t C v + N(0, 2 (C - \hat B) \eta_t), \qquad
              \theta \leftarrow \theta + \eta_t v,

    each on a new batch ``B``, in coordinates in which the mass matrix is the identity (friction and
    noise are ``C Mass`` in others). Friction removes energy at the rate at which the noise and the
    randomness of batches add it; so it must *slow* the momentum down.

    The posterior is approximated, with a bias from four sources: clipping, which changes the target
    (gradients clipped to ``b`` are those of another posterior); the step size; the noise of batches,
    unless `noise_estimate` is right; and the number of steps: if each draw begins with a new momentum,
    the variance of draws tends to ``J / (J + 1)`` of the posterior's as ``eta_t`` falls, so let ``J``
    grow or keep the momentum. For exact draws use :class:`~pymc_dp.DPHMC`.

    **Privacy** comes from the noise that the sampler needs anyway. As a Gaussian mechanism on the sum
    of the clipped gradients of a batch it has standard deviation ``sqrt(2 (C - B) / eta_t) q / T``, so
    its noise multiplier is

    .. math:: z_t = \sqrt{2 (C - \hat B) / \eta_t} \; q / (T b)

    for add/remove, and half of that for substitution, where a record changes the sum by up to ``2 b``.
    All ``J`` gradients of all draws count as released. Small steps and large batches make ``z_t``
    large; it is a statistic of each draw, ``noise_multiplier``. The noise is drawn from secret
    randomness, on the grid of the sum, see :mod:`~pymc_dp.privacy.randomness.rounded_gaussian`.

    Parameters
    ----------
    step_size : float or callable
        ``beta`` of the default schedule ``eta_t = beta * t**(-1/3)``, with ``t = 1, 2, ...`` the number
        of the draw; or a function of ``t``, such as ``lambda t: 0.01``. Public.
    n_steps : int
        ``J``, steps per draw.
    gradient_clip_bound : float
        ``b``: largest norm of one record's gradient. ``math.inf`` only without a budget.
    batch_size : int, optional
        Records per step, drawn without replacement; for budgets for ``"substitute"``.
    sampling_probability : float, optional
        ``q`` in (0, 1]: every record is in the batch with this probability (Poisson sampling). Give one
        of the two; 1, or a batch of all records, for no sampling.
    friction : float
        ``C`` > 0, per unit of time. 0, with no noise, only without a budget: the *naive* variant, whose
        energy grows with the noise of the batches.
    noise_estimate : float
        Estimate ``B`` >= 0 of the noise of batches, public, below `friction`.
    mass_matrix : array_like of shape (d,) or (d, d), optional
        Diagonal or dense, public. Identity by default.
    refresh_momentum : bool
        Whether each draw begins with a new momentum.
    temperature : float
        ``T`` in (0, 1], public. 1 targets the posterior.
    record_trajectories : bool
        Keep every path in :attr:`trajectories`, for teaching; only without a budget.
    **options
        See :class:`~pymc_dp.steps.DPStep`.

    Raises
    ------
    ValueError
        If an argument is out of its range, would make the run not private, or its cost is not proved
        for the budget's adjacency.

    References
    ----------
    Chen, Fox, Guestrin (2014), Stochastic gradient Hamiltonian Monte Carlo,
    https://arxiv.org/abs/1402.4102. Lode, Sub-sampled and differentially private Hamiltonian Monte
    Carlo, which has friction with the other sign, clips the gradient of the whole batch, whose direction
    one record can change, and draws batches without replacement but accounts for Poisson sampling.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> y = np.random.default_rng(1).normal(size=5000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     _ = pm.Normal("y", mu, 1, observed=y)
    ...     budget = dp.PrivacyBudget(epsilon=4.0, delta=1e-6, chains=1)
    ...     step = dp.DPSGHMC(
    ...         budget=budget, step_size=lambda t: 0.002, n_steps=10,
    ...         gradient_clip_bound=3.0, batch_size=500, friction=50.0,
    ...     )
    >>> float(round(step.noise_multiplier(1), 2))
    3.73
    """  # fmt: skip

    name = "dp_sghmc"
    stats_dtypes_shapes: ClassVar[dict[str, tuple[type, list]]] = {
        **DPStep.stats_dtypes_shapes,
        "noise_multiplier": (np.float64, []),
    }

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        budget: PrivacyBudget | None,
        step_size: float | Schedule,
        n_steps: int,
        gradient_clip_bound: float,
        friction: float,
        batch_size: int | None = None,
        sampling_probability: float | None = None,
        noise_estimate: float = 0.0,
        mass_matrix: npt.ArrayLike | None = None,
        refresh_momentum: bool = True,
        temperature: float = 1.0,
        record_trajectories: bool = False,
        **options: Unpack[StepOptions],
    ):
        private = budget is not None
        if not callable(step_size):
            step_size = CubeRoot(as_positive_float("step_size", step_size))
        self.step_size: Schedule = step_size
        self.n_steps = as_integer("n_steps", n_steps, 1)
        self.gradient_clip_bound = as_gradient_bound(gradient_clip_bound, private)
        _check_friction(friction, noise_estimate, private)
        self.friction, self.noise_estimate = float(friction), float(noise_estimate)
        self.temperature = as_fraction("temperature", temperature)
        #: Paths in the order they were made, if `record_trajectories`.
        self.trajectories = recorded_paths(record_trajectories, private)
        self.refresh_momentum = bool(refresh_momentum)
        super().__init__(vars, budget=budget, **options)
        self.batch_size, self.sampling_probability = _batch_law(
            batch_size, sampling_probability, self.likelihood.n_records
        )
        self._schedule = NoiseSchedule(
            step_size=self.step_size,
            added=2 * (self.friction - self.noise_estimate),
            temperature=self.temperature,
            sensitivity=self.sensitivity_factor * self.gradient_clip_bound,
            n_steps=self.n_steps,
            probability=self.sampling_probability,
            sampling=Sampling.WITHOUT_REPLACEMENT if self.batch_size else Sampling.POISSON,
            adjacency=None if budget is None else budget.adjacency,
        )
        self.noise_multiplier(1)  # refused before anything is compiled or charged
        self.coordinates = Coordinates(mass_matrix, self.part, self.likelihood.n_dim)
        self._gradient = NoisyGradient(
            self.likelihood, self.coordinates, self.gradient_clip_bound, self.temperature
        )
        self._gradient.compile(np.zeros(1, dtype=int))
        self.register()

    # ------------------------------------------------------------------ cost

    def mechanisms(self) -> tuple[tuple[Mechanism, int], ...]:
        """One noisy gradient of a batch for each step of the first draw."""
        return () if self.budget is None else self.schedule()(1)

    def schedule(self) -> Callable[[int], tuple[tuple[Mechanism, int], ...]]:
        """The noise multiplier follows the step size."""
        return self._schedule

    def noise_multiplier(self, draw: int) -> float:
        """Noise of a draw (1, 2, ...) relative to the sensitivity of a batch's sum, under the budget's adjacency.

        0 without noise or without a clip bound.
        """
        return self._schedule.noise_multiplier(draw)

    def public_stats(self) -> dict[str, Any]:
        """Noise multiplier of the draw: a function of the schedule."""
        return {"noise_multiplier": self.noise_multiplier(max(self._n_steps, 1))}

    # ------------------------------------------------------------------ transition

    def _reset_chain(self) -> None:
        super()._reset_chain()
        self._momentum: np.ndarray | None = None

    def transition(self, theta: np.ndarray) -> tuple[np.ndarray, bool, float]:
        """Charge for the gradients of a draw, and take its steps; accepted if the end is finite."""
        draw = self._n_steps + 1
        if self.budget is not None:
            self.charge(self.schedule()(draw))
        step_size, noise_sd = self._schedule.step_size_at(draw), self._schedule.noise_sd(draw)
        if self._momentum is None or self.refresh_momentum:
            self._momentum = self.rng.standard_normal(len(self.part))
        path = [Phase(theta, self._momentum, np.full(len(self.part), np.nan))]
        for _ in range(self.n_steps):
            path.append(self._step(path[-1], step_size, noise_sd))
        end = path[-1]
        self._momentum = end.momentum
        if self.trajectories is not None:
            self.trajectories.append(Trajectory(path, step_size, True))
        if not (np.isfinite(end.theta).all() and np.isfinite(end.momentum).all()):
            # The steps are far too long. All gradients are released with their noise, so this outcome
            # shows nothing that was not paid for.
            self._momentum = None
            return theta, False, 0.0
        with np.errstate(over="ignore"):
            return end.theta, True, self.coordinates.distance(theta, end.theta)

    def _step(self, phase: Phase, step_size: float, noise_sd: float) -> Phase:
        """One step on a new batch. The noise on the sum, times ``eta T / q``, is the noise on the momentum."""
        with np.errstate(over="ignore", invalid="ignore"):
            gradient = self._gradient(
                phase.theta,
                noise_sd,
                self._bits,
                index=self._batch(),
                part=self.sampling_probability,
            )
            momentum = phase.momentum + step_size * (gradient - self.friction * phase.momentum)
            theta = self.coordinates.moved(phase.theta, step_size * momentum)
        return Phase(theta, momentum, gradient)

    def _batch(self) -> np.ndarray | None:
        """Indices of the records of a new batch; None for all records."""
        n_records = self.likelihood.n_records
        if self.batch_size is not None:
            return without_replacement(n_records, self.batch_size, self._bits)
        if self.sampling_probability < 1:
            return poisson(n_records, self.sampling_probability, self._bits)
        return None


def _batch_law(
    size: int | None, probability: float | None, n_records: int
) -> tuple[int | None, float]:
    """Batch size (None for Poisson sampling or all records) and probability that a record is in the batch."""
    if (size is None) == (probability is None):
        raise ValueError(
            "Give batch_size, for batches of fixed size without replacement, or sampling_probability, for Poisson sampling."
        )
    if probability is not None:
        return None, as_fraction("sampling_probability", probability)
    size = as_batch_size(size, 1, n_records)
    return size, (size or n_records) / n_records


def _check_friction(friction: float, noise_estimate: float, private: bool) -> None:
    if not 0 <= as_float(noise_estimate) <= as_float(friction) <= 1e100:
        raise ValueError(
            f"friction must be at most 1e100 and noise_estimate from 0 to friction, got {friction!r} and {noise_estimate!r}."
        )
    if private and noise_estimate == friction:
        raise ValueError(
            f"With friction = {friction:g} and noise_estimate = {noise_estimate:g} no noise is added, which is not private at any "
            "epsilon. Give more friction, or budget=None for a run without privacy (without friction: the naive variant)."
        )
