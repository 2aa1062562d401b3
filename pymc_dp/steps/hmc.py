"""DP HMC: Hamiltonian Monte Carlo on noisy gradients, with an exact private test; DP MALA."""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from pymc_dp.acceptance import AcceptanceRule, Barker, check_rule
from pymc_dp.arguments import as_float, as_integer, as_positive_float
from pymc_dp.privacy.mechanisms.mechanism import Gaussian, Mechanism
from pymc_dp.steps.accept_reject import (
    PLANNING_DRAWS,
    AcceptRejectStep,
    Move,
    State,
    follows_sensitivity,
)
from pymc_dp.steps.noisy_gradients import Coordinates, NoisyGradient, check_gradient_noise
from pymc_dp.steps.options import DecisionOptions


class Phase(NamedTuple):
    """A point of a path: position, ``(n_dim,)``, momentum and (noisy) gradient of the log-posterior, both ``(d,)``."""

    theta: np.ndarray
    momentum: np.ndarray
    gradient: np.ndarray


class Trajectory(NamedTuple):
    """A recorded path with its step size after jitter: only for data that need no protection.

    Momenta and gradients are in coordinates in which the mass matrix is the identity; `accepted` states whether the end
    of the path became the next state.
    """

    phases: list[Phase]
    step_size: float
    accepted: bool


def leapfrog(
    start: Phase,
    gradient_at: Callable[[np.ndarray, bool], np.ndarray],
    coordinates: Coordinates,
    step_size: float,
    n_leapfrog: int,
) -> Iterator[Phase]:
    """The phases of a leapfrog path after each step, one gradient each; ends early if the state is not finite.

    ``gradient_at`` is called with a position and whether it is the last one.
    """
    phase = start
    for step in range(1, n_leapfrog + 1):
        with np.errstate(over="ignore", invalid="ignore"):
            momentum = phase.momentum + step_size / 2 * phase.gradient
            theta = coordinates.moved(phase.theta, step_size * momentum)
            gradient = gradient_at(theta, step == n_leapfrog)
            phase = Phase(theta, momentum + step_size / 2 * gradient, gradient)
        yield phase
        if not (np.isfinite(theta).all() and np.isfinite(phase.momentum).all()):
            return


class DPHMC(AcceptRejectStep):
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

    **Invariance, with noise and with clipped gradients.** Each kick and each drift of the leapfrog
    integrator preserves volume whatever function of the position ``G`` is, a gradient or not. Extend
    the state to ``(theta, xi)``, ``xi`` the noise of the gradient at ``theta``, drawn from one law that
    does not depend on the state. A path uses ``xi_0, ..., xi_L``, its reversal ``xi_L, ..., xi_0``: their
    densities (or, on a grid, probabilities) cancel whatever that law is, and the ratio that remains is
    ``exp(lambda)``. So clipping of *gradients* and their noise cost acceptance, never correctness;
    where records' *log-ratios* are clipped the chain is approximate, see :class:`~pymc_dp.DPPenalty`.

    **The gradient of the current state is reused** (``reuse_gradient``): after a rejection ``(theta_0,
    xi_0)`` is kept, after an acceptance the path's last gradient is the next one's first. ``k``
    iterations take ``k L + 1`` gradients instead of ``k (L + 1)``. In a model with further steps this
    one moves from a state whose gradient is not known, and takes ``L + 1``.

    **Privacy.** Each gradient is the Gaussian mechanism with noise multiplier ``sigma_g / (2 b_g)``
    (substitution; ``sigma_g / b_g`` for add/remove), counted as released; each decision costs what one
    of sensitivity ``2 T b M`` does. ``M`` differs from path to path, but is a function of released
    gradients: a Rényi filter composes the charges (see :class:`~pymc_dp.DPPenalty`).

    One step, ``n_leapfrog=1``, is DP MALA: a Langevin proposal with an exact test.

    Parameters
    ----------
    step_size : float
        ``eta``, in units of the coordinates in which the mass matrix is the identity: a fraction of a
        posterior standard deviation if that is the inverse of the posterior covariance.
    n_leapfrog : int
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
        :class:`~pymc_dp.Barker` (default) or :class:`~pymc_dp.Penalty`; :class:`~pymc_dp.steps.Metropolis`
        only without a budget.
    noise_multiplier : float, optional
        Instead of `rule`: the penalty rule with noise proportional to the sensitivity, as in the
        papers (their ``tau sqrt(n)``).
    laziness : float
        Weight ``w`` in (0, 1] of the lazy rule. (Gradients are paid for in any case.)
    step_size_jitter : float
        In [0, 1): each path has a step size uniform on ``eta (1 +- jitter)``, from public randomness.
        It avoids paths that close on themselves.
    max_distance : float, optional
        Public cap: paths that end farther away are rejected without a decision. (In both directions,
        so the chain stays exact.) Far from the posterior gradients are large and paths are long, and
        one decision on such a path can use up a budget.
    reuse_gradient : bool
        Whether to reuse the gradient of the current state.
    record_trajectories : bool
        Keep every path in :attr:`trajectories`, for teaching; only without a budget.
    **options
        See :class:`~pymc_dp.steps.AcceptRejectStep`.

    Raises
    ------
    ValueError
        If an argument is out of its range or would make the run not private.

    References
    ----------
    Räisä, Koskela, Honkela (2021), Differentially private Hamiltonian Monte Carlo,
    https://arxiv.org/abs/2106.09376; Räisä (2021), Differentially private Metropolis-Hastings
    algorithms, chapter 4, which leaves reuse open. Its Langevin sampler needs a bound on the proposal
    ratio that grows with the number of records; with ``L = 1`` here there is no such ratio. Friction
    inside a tested proposal, as in a draft of that work, is not reversible and not offered.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> y = np.random.default_rng(1).normal(size=(5000, 2))
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10, shape=2)
    ...     _ = pm.Normal("y", mu, 1, observed=y)
    ...     budget = dp.PrivacyBudget(epsilon=4.0, delta=1e-6, chains=2)
    ...     step = dp.DPHMC(
    ...         budget=budget, step_size=0.004, n_leapfrog=5, clip_bound=4.0,
    ...         gradient_clip_bound=4.0, gradient_noise_multiplier=20.0,
    ...     )
    >>> budget.expected_draws() > 5
    True

    DP MALA, with a step of 1.5 posterior standard deviations (of ``1 / sqrt(5000)`` each):

    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10, shape=2)
    ...     _ = pm.Normal("y", mu, 1, observed=y)
    ...     budget = dp.PrivacyBudget(epsilon=4.0, delta=1e-6, chains=2)
    ...     mala = dp.DPHMC(
    ...         budget=budget, mass_matrix=[5000.0, 5000.0], step_size=1.5, n_leapfrog=1,
    ...         clip_bound=0.06, gradient_clip_bound=0.06, gradient_noise_multiplier=20.0,
    ...     )
    >>> budget.expected_draws() > 10
    True
    """  # fmt: skip

    name = "dp_hmc"

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        step_size: float,
        n_leapfrog: int,
        gradient_clip_bound: float,
        gradient_noise_multiplier: float,
        mass_matrix: npt.ArrayLike | None = None,
        rule: AcceptanceRule | None = None,
        noise_multiplier: float | None = None,
        step_size_jitter: float = 0.0,
        max_distance: float | None = None,
        reuse_gradient: bool = True,
        record_trajectories: bool = False,
        **options: Unpack[DecisionOptions],
    ):
        private = options["budget"] is not None
        self.step_size = as_positive_float("step_size", step_size)
        self.step_size_jitter = as_float(step_size_jitter)
        if not 0 <= self.step_size_jitter < 1:
            raise ValueError(f"step_size_jitter must lie in [0, 1), got {step_size_jitter!r}.")
        self.max_distance = math.inf if max_distance is None else as_float(max_distance)
        if not self.max_distance > 0:
            raise ValueError(f"max_distance must be positive, got {max_distance!r}.")
        self.n_leapfrog = as_integer("n_leapfrog", n_leapfrog, 1)
        check_gradient_noise(gradient_clip_bound, gradient_noise_multiplier, private)
        self.gradient_clip_bound = float(gradient_clip_bound)
        self.gradient_noise_multiplier = float(gradient_noise_multiplier)
        if not follows_sensitivity("rule", rule, noise_multiplier, options["clip_bound"]):
            rule = Barker() if rule is None else rule
            check_rule(rule, private)
        #: Paths in the order they were made, if `record_trajectories`.
        self.trajectories = recorded_paths(record_trajectories, private)
        self.reuse_gradient = bool(reuse_gradient)
        super().__init__(vars, **options)
        self.coordinates = Coordinates(mass_matrix, self.part, self.likelihood.n_dim)
        self._gradient = NoisyGradient(
            self.likelihood, self.coordinates, self.gradient_clip_bound, self.temperature
        )
        self._gradient.compile(None)
        self.rule = None if rule is None else self.lazy(rule)
        self.family = self._decisions(rule, noise_multiplier, self._typical_distances())
        self.register()

    def _typical_distances(self) -> tuple[float, ...]:
        """Lengths of paths in free flight: a good approximation up to a quarter of an orbit."""
        momenta = np.random.default_rng(0).standard_normal((PLANNING_DRAWS, len(self.part)))
        length = self.step_size * self.n_leapfrog
        lengths = np.minimum(length * np.linalg.norm(momenta, axis=1), self.max_distance)
        return tuple(lengths.tolist())

    # ------------------------------------------------------------------ cost

    @property
    def _reuses(self) -> bool:
        """Whether the gradient at the current state is kept for the next iteration."""
        return self.reuse_gradient and len(self.part) == self.likelihood.n_dim

    def _gradients(self, count: int) -> tuple[tuple[Mechanism, int], ...]:
        if not (count and self.gradient_noise_multiplier):
            return ()
        return ((Gaussian(self.gradient_noise_multiplier), count),)

    def mechanisms(self) -> tuple[tuple[Mechanism, int], ...]:
        """Gradients along the path, and one decision, whose cost follows the path's distance."""
        gradients = self._gradients(self.n_leapfrog + (not self._reuses))
        return (*gradients, *super().mechanisms())

    def starting(self) -> tuple[tuple[Mechanism, int], ...]:
        """The gradient at a chain's first state."""
        return self._gradients(int(self._reuses))

    # ------------------------------------------------------------------ transition

    def transition(self, theta: np.ndarray) -> tuple[np.ndarray, bool, float]:
        """Charge for a path and follow it; charge for the decision and decide."""
        old = self.current(theta)
        if not self.reuse_gradient:
            old.gradient = None
        self.charge(self._gradients(self.n_leapfrog + (old.gradient is None)))
        if old.gradient is None:
            old.gradient = self._gradient_at(theta)
        jitter = self.step_size_jitter
        step_size = self.step_size * (1 + jitter * self.rng.uniform(-1, 1) if jitter else 1)
        start = Phase(theta, self.rng.standard_normal(len(self.part)), old.gradient)

        def gradient_at(position: np.ndarray, is_last: bool) -> np.ndarray:
            # Log-likelihoods come along with the last gradient, and are used after the decision is paid.
            distance = self.coordinates.distance(theta, position)
            return self._gradient_at(position, is_last and 0 < distance <= self.max_distance)

        path = [start, *leapfrog(start, gradient_at, self.coordinates, step_size, self.n_leapfrog)]
        move = self._move_along(old, path)
        if move is None:
            result = theta, False, 0.0
        else:
            rule = self.charge_decision(move).rule
            result = self.choose(move, rule, self.log_ratio(move))
        if self.trajectories is not None:
            self.trajectories.append(Trajectory(path, step_size, result[1]))
        return result

    def _gradient_at(self, theta: np.ndarray, keeps_logp: bool = False) -> np.ndarray:
        noise_sd = 0.0
        if self.gradient_noise_multiplier:
            sensitivity = self.sensitivity_factor * self.gradient_clip_bound
            noise_sd = self.gradient_noise_multiplier * sensitivity
        return self._gradient(theta, noise_sd, self._bits, keeps_logp=keeps_logp)

    def _move_along(self, old: State, path: list[Phase]) -> Move | None:
        """Move from first to last phase; None if too long or not finite (which the released gradients show)."""
        first, last = path[0], path[-1]
        with np.errstate(over="ignore", invalid="ignore"):
            distance = self.coordinates.distance(first.theta, last.theta)
            kinetic = (first.momentum @ first.momentum - last.momentum @ last.momentum) / 2
        if not (0 < distance <= self.max_distance and np.isfinite((distance, kinetic)).all()):
            return None
        prior = self.likelihood.log_prior(last.theta)
        new = State(last.theta, prior, last.gradient)
        return Move(old, new, prior - old.prior + kinetic, distance)


def recorded_paths(record_trajectories: bool, private: bool) -> list[Trajectory] | None:
    """Empty list for the paths of a run, None if they are not recorded; ValueError if the run is private."""
    if record_trajectories and private:
        raise ValueError(
            "record_trajectories shows gradients and momenta, for data that need no protection: it needs budget=None."
        )
    return [] if record_trajectories else None
