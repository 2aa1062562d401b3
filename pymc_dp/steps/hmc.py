"""DP HMC: Hamiltonian Monte Carlo on noisy gradients, with an exact private test; DP MALA."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pymc_dp.acceptance import AcceptanceRule, Barker, Lazy, Metropolis
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.families import DecisionFamily
from pymc_dp.privacy.mechanisms import Gaussian, Mechanism, real, whole
from pymc_dp.steps.accept_reject import DecidingStep, Move, State
from pymc_dp.steps.gradients import (
    Coordinates,
    NoisyGradient,
    Phase,
    Trajectory,
    check_gradient_noise,
    leapfrog,
)

__all__ = ["DPHMC"]

#: Draws of the momentum, used to plan.
_PLANNING_DRAWS = 2000


class DPHMC(DecidingStep):
    r"""Hamiltonian Monte Carlo on noisy gradients: exact (without clipping of the decision), DP MALA for one step.

    Each iteration draws a momentum ``p ~ N(0, Mass)`` and follows the leapfrog integrator for ``L``
    steps with

    .. math:: G(\theta) = T \Big(\sum_i \operatorname{clip}(\nabla \ell_i(\theta)) + N(0, \sigma_g^2 I)\Big)
              + \nabla \log p(\theta),

    one gradient per position. Then it decides from the clipped, tempered log-ratio

    .. math:: \lambda = T \sum_i \operatorname{clip}(\ell_i(\theta') - \ell_i(\theta), \pm b M(\theta, \theta'))
              + \log p(\theta') - \log p(\theta) + K(p) - K(p')

    with ``K`` the kinetic energy and ``M`` the distance in the metric of the mass matrix, by Barker's
    rule or the penalty rule.

    **Why it is exact, with noise and with clipped gradients.** Each kick and each drift of the leapfrog
    integrator preserves volume whatever function of the position ``G`` is, a gradient or not. Extend
    the state to ``(theta, xi)``, ``xi`` the noise of the gradient at ``theta``, drawn from one law that
    does not depend on the state. A path uses ``xi_0, ..., xi_L``, its reversal ``xi_L, ..., xi_0``: their
    densities (or, on a grid, probabilities) cancel whatever that law is, and what is left of the ratio
    is ``exp(lambda)``. So clipping of *gradients* and their noise cost acceptance, never correctness;
    where records' *log-ratios* are clipped the chain is approximate, see :class:`~pymc_dp.DPPenalty`.

    **The gradient of the current state is reused** (``reuse_gradient``): after a rejection ``(theta_0,
    xi_0)`` is kept, after an acceptance the path's last gradient is the next one's first. ``k``
    iterations take ``k L + 1`` gradients in place of ``k (L + 1)``. In a model with further steps this
    one moves from a state whose gradient is not known, and takes ``L + 1``.

    **Cost.** Each gradient is the Gaussian mechanism with noise multiplier ``sigma_g / (2 b_g)``
    (substitution; ``sigma_g / b_g`` for add/remove), counted as released; each decision costs what one
    of sensitivity ``2 T b M`` does. ``M`` differs from path to path, but is a function of what was paid
    for: a Rényi filter pays as the chain goes.

    One step, ``leapfrog_steps=1``, is DP MALA: a Langevin proposal with an exact test.

    Parameters
    ----------
    vars : list of variables, optional
        Variables to update, all by default.
    budget : PrivacyBudget or None
        What may be spent. None, which must be said, runs without privacy.
    step_size : float
        ``eta``, in units of the coordinates in which the mass matrix is the identity: a fraction of a
        posterior standard deviation if that is the inverse of the posterior covariance.
    leapfrog_steps : int
        ``L``, from 1 on.
    clip_bound : float
        ``b``: most that one record's log-likelihood may change per unit of the path's distance (in the
        metric of the mass matrix). ``math.inf`` only without a budget.
    gradient_clip_bound : float
        ``b_g``: largest norm of one record's gradient (in that metric). ``math.inf``, with a noise
        multiplier of 0, only without a budget.
    gradient_noise_multiplier : float
        Standard deviation of the noise on the sum of gradients, in units of its sensitivity, ``2 b_g``
        (substitution) or ``b_g`` (add/remove). 0 only without a budget. (The papers' ``tau_g sqrt(n)``.)
    mass_matrix : array_like of shape (d,) or (d, d), optional
        Diagonal or dense, public. Identity by default.
    rule : AcceptanceRule
        :class:`~pymc_dp.Barker` (default) or :class:`~pymc_dp.Penalty`; :class:`~pymc_dp.Metropolis`
        only without a budget.
    noise_multiplier : float, optional
        In place of `rule`: the penalty rule with noise proportional to the sensitivity, as in the
        papers (their ``tau sqrt(n)``).
    laziness : float
        Weight ``w`` in (0, 1] of the lazy rule. (Gradients are paid for in any case.)
    step_size_jitter : float
        In [0, 1): each path has a step size uniform on ``eta (1 +- jitter)``, from public randomness,
        which keeps paths from closing on themselves.
    max_distance : float, optional
        Public cap: paths that end farther away are rejected with no look at the data. (Both ways, so
        the chain stays exact.) Far from the posterior gradients are large and paths are long, and one
        decision on such a path can use up a budget.
    reuse_gradient : bool
        Whether to reuse the gradient of the current state.
    temperature : float
        ``T`` in (0, 1], public. 1 targets the posterior.
    record_trajectories : bool
        Keep every path in :attr:`trajectories`, for teaching; only without a budget.
    records, public, reproducible, model, compile_kwargs
        See :class:`~pymc_dp.steps.base.DPStep`.

    Raises
    ------
    ValueError
        If an argument is out of its range or would make the run not private.

    References
    ----------
    Räisä, Koskela, Honkela (2021), Differentially private Hamiltonian Monte Carlo,
    https://arxiv.org/abs/2106.09376; Räisä (2021), Differentially private Metropolis-Hastings
    algorithms, chapter 4, where reuse is left open. Its Langevin sampler needs a bound on the proposal
    ratio that grows with the number of records; with ``L = 1`` here there is no such ratio. Friction
    inside a tested proposal, as in a draft of that work, is not reversible and not offered.

    Examples
    --------
    >>> import pymc as pm, numpy as np
    >>> from pymc_dp import DPHMC, PrivacyBudget
    >>> y = np.random.default_rng(1).normal(size=(5000, 2))
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10, shape=2)
    ...     _ = pm.Normal("y", mu, 1, observed=y)
    ...     budget = PrivacyBudget(epsilon=4.0, delta=1e-6, chains=2)
    ...     step = DPHMC(
    ...         budget=budget, step_size=0.004, leapfrog_steps=5, clip_bound=4.0,
    ...         gradient_clip_bound=4.0, gradient_noise_multiplier=20.0,
    ...     )
    >>> budget.expected_draws() > 5
    True

    DP MALA, with a step of 1.5 posterior standard deviations (of ``1 / sqrt(5000)`` each):

    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10, shape=2)
    ...     _ = pm.Normal("y", mu, 1, observed=y)
    ...     budget = PrivacyBudget(epsilon=4.0, delta=1e-6, chains=2)
    ...     mala = DPHMC(
    ...         budget=budget, mass_matrix=[5000.0, 5000.0], step_size=1.5, leapfrog_steps=1,
    ...         clip_bound=0.06, gradient_clip_bound=0.06, gradient_noise_multiplier=20.0,
    ...     )
    >>> budget.expected_draws() > 10
    True
    """  # fmt: skip

    name = "dp_hmc"
    settled = (
        *DecidingStep.settled, "step_size", "leapfrog_steps", "gradient_clip_bound", "gradient_noise_multiplier",
        "step_size_jitter", "max_distance", "reuse_gradient", "coordinates",
    )  # fmt: skip

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        budget: PrivacyBudget | None,
        step_size: float,
        leapfrog_steps: int,
        clip_bound: float,
        gradient_clip_bound: float,
        gradient_noise_multiplier: float,
        mass_matrix: npt.ArrayLike | None = None,
        rule: AcceptanceRule | None = None,
        noise_multiplier: float | None = None,
        laziness: float = 1.0,
        step_size_jitter: float = 0.0,
        max_distance: float | None = None,
        reuse_gradient: bool = True,
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
        if not 0 < real(step_size) < math.inf:
            raise ValueError(f"step_size must be positive and finite, got {step_size!r}.")
        leapfrog_steps = whole("leapfrog_steps", leapfrog_steps, 1)
        if not 0 <= real(step_size_jitter) < 1:
            raise ValueError(f"step_size_jitter must lie in [0, 1), got {step_size_jitter!r}.")
        if max_distance is not None and not real(max_distance) > 0:
            raise ValueError(f"max_distance must be positive, got {max_distance!r}.")
        check_gradient_noise(gradient_clip_bound, gradient_noise_multiplier, budget is not None)
        rule = _checked_rule(
            rule, noise_multiplier, budget is not None, real(clip_bound) == math.inf
        )
        if record_trajectories and budget is not None:
            raise ValueError(
                "record_trajectories shows gradients and momenta, for data that need no protection: it needs budget=None."
            )
        super().__init__(
            vars, budget=budget, clip_bound=clip_bound, laziness=laziness, temperature=temperature,
            records=records, public=public, reproducible=reproducible, model=model, blocked=blocked, rng=rng,
            compile_kwargs=compile_kwargs,
        )  # fmt: skip
        self.step_size, self.leapfrog_steps = float(step_size), leapfrog_steps
        self.gradient_clip_bound = float(gradient_clip_bound)
        self.gradient_noise_multiplier = float(gradient_noise_multiplier)
        self.step_size_jitter, self.reuse_gradient = float(step_size_jitter), bool(reuse_gradient)
        self.max_distance = math.inf if max_distance is None else float(max_distance)
        n_dim = self.likelihood.n_dim
        self.coordinates = Coordinates(mass_matrix, self.part, n_dim)
        self._gradient = NoisyGradient(
            self.likelihood, self.coordinates, self.gradient_clip_bound, self.temperature
        )
        self._gradient.compile(None)
        self._rule = rule if rule is None or laziness == 1 else Lazy(rule, laziness)
        bounded = math.isfinite(self.clip_bound) and not isinstance(rule, Metropolis)
        self.family = (
            DecisionFamily(
                sensitivity_per_distance=self._sides * self.temperature * self.clip_bound,
                rule=rule,
                noise_multiplier=noise_multiplier,
                laziness=self.laziness,
                distances=self._typical_distances(),
            )
            if bounded
            else None
        )
        #: Paths in the order they were made, if `record_trajectories`.
        self.trajectories: list[Trajectory] | None = [] if record_trajectories else None
        self._register()

    def _typical_distances(self) -> tuple[float, ...]:
        """Lengths of paths in free flight: about what is seen if paths are a quarter of an orbit or less."""
        momenta = np.random.default_rng(0).standard_normal((_PLANNING_DRAWS, len(self.part)))
        length = self.step_size * self.leapfrog_steps
        lengths = np.minimum(length * np.linalg.norm(momenta, axis=1), self.max_distance)
        return tuple(lengths.tolist())

    # ------------------------------------------------------------------ what it costs

    @property
    def _reuses(self) -> bool:
        """Whether the gradient of a state is still known when the next iteration begins."""
        return self.reuse_gradient and len(self.part) == self.likelihood.n_dim

    def _gradients(self, count: int) -> tuple[tuple[Mechanism, int], ...]:
        if not (count and self.gradient_noise_multiplier):
            return ()
        return ((Gaussian(self.gradient_noise_multiplier), count),)

    def mechanisms(self) -> tuple[tuple[Mechanism, int], ...]:
        """Gradients along the path, and one decision, whose cost follows the path's distance."""
        gradients = self._gradients(self.leapfrog_steps + (not self._reuses))
        return (*gradients, *super().mechanisms())

    def starting(self) -> tuple[tuple[Mechanism, int], ...]:
        """The gradient at a chain's first state."""
        return self._gradients(int(self._reuses))

    # ------------------------------------------------------------------ how it moves

    def transition(self, theta: np.ndarray) -> tuple[np.ndarray, bool, float]:
        """Pay for a path, follow it, pay for the decision, decide."""
        old = self.current(theta)
        if not self.reuse_gradient:
            old.gradient = None
        self.charge(self._gradients(self.leapfrog_steps + (old.gradient is None)))
        if old.gradient is None:
            old.gradient = self._gradient_at(theta)
        jitter = self.step_size_jitter
        step_size = self.step_size * (1 + jitter * self.rng.uniform(-1, 1) if jitter else 1)
        start = Phase(theta, self.rng.standard_normal(len(self.part)), old.gradient)
        records: np.ndarray | None = None

        def gradient_at(position: np.ndarray, is_last: bool) -> np.ndarray:
            nonlocal records
            if is_last and 0 < self.coordinates.distance(theta, position) <= self.max_distance:
                records = np.empty(self.likelihood.n_records)  # used once the decision is paid for
            return self._gradient_at(position, records)

        steps = leapfrog(start, gradient_at, self.coordinates, step_size, self.leapfrog_steps)
        path = [start, *steps]
        accepted, distance = self._decide_on(old, path, records)
        if self.trajectories is not None:
            self.trajectories.append(Trajectory(path, step_size, accepted))
        return (path[-1].theta if accepted else theta), accepted, distance

    def _gradient_at(self, theta: np.ndarray, logp: np.ndarray | None = None) -> np.ndarray:
        noise_sd = 0.0
        if self.gradient_noise_multiplier:
            noise_sd = self.gradient_noise_multiplier * self._sides * self.gradient_clip_bound
        return self._gradient(theta, noise_sd, self._bits, logp=logp)

    def _decide_on(
        self, old: State, path: list[Phase], records: np.ndarray | None = None
    ) -> tuple[bool, float]:
        first, last = path[0], path[-1]
        with np.errstate(over="ignore", invalid="ignore"):
            distance = self.coordinates.distance(first.theta, last.theta)
            kinetic = (first.momentum @ first.momentum - last.momentum @ last.momentum) / 2
        if not (0 < distance <= self.max_distance and np.isfinite((distance, kinetic)).all()):
            # Too far, or where there are no numbers any more, as is seen from released gradients.
            return False, 0.0
        prior = self.likelihood.log_prior(last.theta)
        new = State(last.theta, prior, records, last.gradient)
        return self.settle(Move(old, new, prior - old.prior + kinetic, distance)), distance

    def accept(self, move: Move, decision: Any) -> bool:
        """Decide from all records, whose log-likelihoods came with the path's last gradient."""
        rule = self._rule if decision is None else decision.rule
        assert rule is not None  # noise that follows the sensitivity needs decisions with a cost
        return self.decide(rule, self.log_ratio(move))


def _checked_rule(
    rule: AcceptanceRule | None, noise_multiplier: float | None, private: bool, unbounded: bool
) -> AcceptanceRule | None:
    """Return the rule, Barker's by default; None for noise proportional to the sensitivity."""
    if rule is not None and noise_multiplier is not None:
        raise ValueError("Give rule or noise_multiplier, not both.")
    if noise_multiplier is not None:
        if unbounded:
            raise ValueError("noise_multiplier needs a finite clip_bound.")
        return None
    rule = Barker() if rule is None else rule
    # A class has the members of a rule too.
    if isinstance(rule, type) or not isinstance(rule, AcceptanceRule):
        raise TypeError(f"rule must be an acceptance rule such as Barker(), got {rule!r}.")
    if isinstance(rule, Lazy):
        raise ValueError(f"Give the rule {rule.rule.name} and laziness={rule.weight:g}.")
    if private and not rule.private:
        raise ValueError(
            f"The rule {rule.name} is refused in a private run: a rejection can be impossible under one data set and likely under its "
            "neighbour. Use Barker() or Penalty(scale)."
        )
    return rule
