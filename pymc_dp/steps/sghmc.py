"""DP SGHMC: stochastic gradient HMC with friction; private by its own noise, biased."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pymc_dp.privacy.batches import poisson, without_replacement
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms import Mechanism, real, whole
from pymc_dp.privacy.sampled import Sampling
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.gradients import Coordinates, NoisyGradient, Phase, Trajectory, check_clip_bound
from pymc_dp.steps.schedules import CubeRoot, NoiseSchedule, Schedule

__all__ = ["DPSGHMC"]


class DPSGHMC(DPStep):
    r"""Stochastic gradient HMC on clipped per-record gradients. **Biased**: there is no acceptance test.

    A draw (number ``t``) takes ``J`` steps of

    .. math:: g &= \tfrac{T}{q} \sum_{i \in B} \operatorname{clip}_b(\nabla \ell_i(\theta)) + \nabla \log p(\theta) \\
              v &\leftarrow v + \eta_t g - \eta_t C v + N(0, 2 (C - \hat B) \eta_t), \qquad
              \theta \leftarrow \theta + \eta_t v,

    each on a new batch ``B``, in coordinates in which the mass matrix is the identity (friction and
    noise are ``C Mass`` in others). Friction takes energy out, at the rate at which the noise, and the
    randomness of batches, puts it in; so it must *slow* the momentum down.

    The posterior is approximated, with a bias from four sources: clipping, which changes the target
    (gradients clipped to ``b`` are those of another posterior); the step size; the noise of batches,
    unless `noise_estimate` is right; and steps that are few: if each draw begins with a new momentum, its
    variance tends to ``J / (J + 1)`` of the posterior's as ``eta_t`` falls, so let ``J`` grow or keep the
    momentum. For exact draws use :class:`~pymc_dp.DPHMC`.

    **Privacy** comes from the noise that the sampler has anyway. As a Gaussian mechanism on the sum of
    the clipped gradients of a batch it has standard deviation ``sqrt(2 (C - B) / eta_t) q / T``, so its
    noise multiplier is

    .. math:: z_t = \sqrt{2 (C - \hat B) / \eta_t} \; q / (T b)

    for add/remove, and half of that for substitution, where a record moves the sum by up to ``2 b``. All
    ``J`` gradients of all draws count as released. Small steps and large batches make ``z_t`` large; it
    is a statistic of each draw, ``noise_multiplier``. The noise is drawn from secret randomness, on the
    grid of the sum, see :mod:`~pymc_dp.privacy.gaussian_noise`.

    Parameters
    ----------
    vars : list of variables, optional
        Variables to update, all by default.
    budget : PrivacyBudget or None
        What may be spent. None, which must be said, runs without privacy.
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
    records, public, reproducible, model, compile_kwargs
        See :class:`~pymc_dp.steps.base.DPStep`.

    Raises
    ------
    ValueError
        If an argument is out of its range, would make the run not private, or its cost is not proved
        for the budget's adjacency.

    References
    ----------
    Chen, Fox, Guestrin (2014), Stochastic gradient Hamiltonian Monte Carlo,
    https://arxiv.org/abs/1402.4102. Lode, Sub-sampled and differentially private Hamiltonian Monte
    Carlo, which has friction with the other sign, clips the gradient of the batch where one record can
    turn it, and draws batches without replacement but accounts for Poisson sampling.

    Examples
    --------
    >>> import pymc as pm, numpy as np
    >>> from pymc_dp import DPSGHMC, PrivacyBudget
    >>> y = np.random.default_rng(1).normal(size=5000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     _ = pm.Normal("y", mu, 1, observed=y)
    ...     budget = PrivacyBudget(epsilon=4.0, delta=1e-6, chains=1)
    ...     step = DPSGHMC(
    ...         budget=budget, step_size=lambda t: 0.002, n_steps=10, gradient_clip_bound=3.0,
    ...         batch_size=500, friction=50.0,
    ...     )
    >>> float(round(step.noise_multiplier(1), 2))
    3.73
    """  # fmt: skip

    name = "dp_sghmc"
    stats_dtypes_shapes: ClassVar[dict[str, tuple[type, list]]] = {
        **DPStep.stats_dtypes_shapes,
        "noise_multiplier": (np.float64, []),
    }
    settled = (
        *DPStep.settled, "step_size", "n_steps", "gradient_clip_bound", "batch_size", "sampling_probability",
        "friction", "noise_estimate", "temperature", "coordinates",
    )  # fmt: skip

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
        records: Any = None,
        public: Sequence[Any] = (),
        reproducible: bool = False,
        model: Any = None,
        blocked: bool = True,
        rng: Any = None,
        compile_kwargs: dict | None = None,
    ):
        private = budget is not None
        if not (callable(step_size) or 0 < real(step_size) < math.inf):
            raise ValueError(f"step_size must be positive and finite, got {step_size!r}.")
        n_steps = whole("n_steps", n_steps, 1)
        check_clip_bound(
            "gradient_clip_bound", gradient_clip_bound, private, "without it one record could move a gradient anywhere."
        )  # fmt: skip
        if not 0 <= real(noise_estimate) <= real(friction) <= 1e100:
            raise ValueError(
                f"friction must be at most 1e100 and noise_estimate from 0 to friction, got {friction!r} and {noise_estimate!r}."
            )
        if private and noise_estimate == friction:
            raise ValueError(
                f"With friction = {friction:g} and noise_estimate = {noise_estimate:g} no noise is added, which is not private at any "
                "epsilon. Give more friction, or budget=None for a run without privacy (without friction: the naive variant)."
            )
        if not 0 < real(temperature) <= 1:
            raise ValueError(f"temperature must lie in (0, 1], got {temperature!r}.")
        if record_trajectories and private:
            raise ValueError(
                "record_trajectories shows gradients and momenta, for data that need no protection: it needs budget=None."
            )
        super().__init__(
            vars, budget=budget, records=records, public=public, reproducible=reproducible, model=model, blocked=blocked,
            rng=rng, compile_kwargs=compile_kwargs,
        )  # fmt: skip
        self.step_size: Schedule = step_size if callable(step_size) else CubeRoot(float(step_size))
        self.n_steps, self.temperature = n_steps, float(temperature)
        self.gradient_clip_bound = float(gradient_clip_bound)
        self.friction, self.noise_estimate = float(friction), float(noise_estimate)
        self.refresh_momentum = bool(refresh_momentum)
        self.batch_size, self.sampling_probability = self._checked_batch(
            batch_size, sampling_probability
        )
        self.noise_multiplier(1)  # refused before anything is compiled or charged
        self.coordinates = Coordinates(mass_matrix, self.part, self.likelihood.n_dim)
        self._gradient = NoisyGradient(
            self.likelihood, self.coordinates, self.gradient_clip_bound, self.temperature
        )
        self._gradient.compile(np.zeros(1, dtype=int))
        #: Paths in the order they were made, if `record_trajectories`.
        self.trajectories: list[Trajectory] | None = [] if record_trajectories else None
        self._register()

    def _checked_batch(
        self, size: int | None, probability: float | None
    ) -> tuple[int | None, float]:
        """Fixed size (None for Poisson sampling or all records) and probability to be looked at."""
        if (size is None) == (probability is None):
            raise ValueError(
                "Give batch_size, for batches of fixed size without replacement, or sampling_probability, for Poisson sampling."
            )
        if probability is not None:
            if not 0 < real(probability) <= 1:
                raise ValueError(f"sampling_probability must lie in (0, 1], got {probability!r}.")
            return None, float(probability)
        n_records = self.likelihood.n_records
        size = whole("batch_size", size)
        if not 1 <= size <= n_records:
            raise ValueError(
                f"batch_size must be from 1 to the number of records, {n_records}, got {size!r}."
            )
        return (None, 1.0) if size == n_records else (size, size / n_records)

    def _step_size_at(self, draw: int) -> float:
        return self._terms().step_size_at(draw)

    # ------------------------------------------------------------------ what it costs

    def _noise_sd(self, draw: int) -> float:
        return self._terms().noise_sd(draw)

    def noise_multiplier(self, draw: int) -> float:
        """Noise of a draw (1, 2, ...) relative to the sensitivity of a batch's sum, under the budget's adjacency.

        0 where there is no noise or no clip bound.
        """
        return self._terms().noise_multiplier(draw)

    def mechanisms(self) -> tuple[tuple[Mechanism, int], ...]:
        """One noisy gradient of a batch for each step of the first draw."""
        return () if self.budget is None else self.schedule()(1)

    def schedule(self) -> Callable[[int], tuple[tuple[Mechanism, int], ...]]:
        """The noise multiplier follows the step size."""
        return self._terms()

    def _terms(self) -> NoiseSchedule:
        return NoiseSchedule(
            self.step_size, 2 * (self.friction - self.noise_estimate), self.temperature, self._sides * self.gradient_clip_bound,
            self.n_steps, self.sampling_probability, Sampling.WITHOUT_REPLACEMENT if self.batch_size else Sampling.POISSON,
            self.budget.adjacency if self.budget is not None else None,
        )  # fmt: skip

    def public_stats(self) -> dict[str, Any]:
        """Noise multiplier of the draw: a function of the schedule."""
        return {"noise_multiplier": self.noise_multiplier(max(self._n_steps, 1))}

    # ------------------------------------------------------------------ how it moves

    def _reset_chain(self) -> None:
        super()._reset_chain()
        self._momentum: np.ndarray | None = None

    def transition(self, theta: np.ndarray) -> tuple[np.ndarray, bool, float]:
        """Pay for a draw's gradients, and take its steps; accepted unless they leave the numbers."""
        draw = self._n_steps + 1
        if self.budget is not None:
            self.charge(self.schedule()(draw))
        step_size, noise_sd = self._step_size_at(draw), self._noise_sd(draw)
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
            # Far too long steps. Everything is released with its noise, so that stopping short of
            # what is no number shows nothing that was not paid for.
            self._momentum = None
            return theta, False, 0.0
        with np.errstate(over="ignore"):
            return end.theta, True, self.coordinates.distance(theta, end.theta)

    def _step(self, phase: Phase, step_size: float, noise_sd: float) -> Phase:
        with np.errstate(over="ignore", invalid="ignore"):
            # The noise of the momentum comes with the gradient: eta T / q times the noise of the sum.
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
        n_records = self.likelihood.n_records
        if self.batch_size is not None:
            return without_replacement(n_records, self.batch_size, self._bits)
        if self.sampling_probability < 1:
            return poisson(n_records, self.sampling_probability, self._bits)
        return None
