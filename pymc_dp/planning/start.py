"""A private start: a few Newton steps on noisy sums of clipped gradients, from a guess to the posterior."""

from __future__ import annotations

import warnings

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_dp.arguments import as_float, as_integer
from pymc_dp.display import Shown
from pymc_dp.model.terms import ClippedScores
from pymc_dp.planning.local_information import (
    NewtonStep,
    local_information,
    metrics_agree,
    newton_step,
)
from pymc_dp.planning.newton_moves import ExpandThenBisect, MoveErrors, PolyakAverage
from pymc_dp.planning.simulator import Guess, Simulator
from pymc_dp.privacy.accounting.calibration import calibrate
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Adjacency, Gaussian
from pymc_dp.progress import note, showing
from pymc_dp.queries.noisy_total import noisy_total
from pymc_dp.steps.noisy_gradients import Coordinates, check_gradient_noise

#: Moves up to this length count as converged in any case, in posterior standard deviations.
_NEGLIGIBLE = 0.1
#: Largest number of halvings of a move that leaves the trust region.
_MAX_HALVINGS = 40


@dataclass(frozen=True)
class PrivateStart(Shown):
    """A point in the bulk of the posterior, and its scales there: public, since a budget paid for it.

    Parameters
    ----------
    point : dict of str to array
        Values of the model's value variables, for ``initvals`` of ``pm.sample``.
    theta : array of shape (n_dim,)
        The point as a vector: all value variables, on the unconstrained scale, in the order of the model.
    precision : array of shape (n_dim, n_dim)
        Precision of the posterior there, estimated from records drawn from the model.
    noise : array of shape (n_dim, n_dim)
        Covariance of ``theta`` caused by the noise on the gradients.
    path : list of array of shape (n_dim,)
        All positions.
    noise_multiplier : float
        Standard deviation of the noise on each gradient, in units of its sensitivity.
    n_converged_steps : int
        Number of last steps that were no longer than the noise explains.
    budget_id : str or None
        Identity of the budget that paid; no other budget accepts this start. None for a start that is made
        by hand, from public information only.

    Examples
    --------
    By hand, from what is known without the data:

    >>> start = dp.planning.PrivateStart(
    ...     point={"mu": np.array(30.0)},
    ...     theta=np.array([30.0]),
    ...     precision=np.eye(1),
    ...     noise=np.zeros((1, 1)),
    ...     path=[],
    ...     noise_multiplier=0.0,
    ... )
    """

    point: dict[str, np.ndarray]
    theta: np.ndarray
    precision: np.ndarray
    noise: np.ndarray
    path: list[np.ndarray] = field(repr=False)
    noise_multiplier: float
    n_converged_steps: int = 1
    budget_id: str | None = None


@showing
def private_start(
    simulator: Simulator,
    *,
    budget: PrivacyBudget,
    guess: Guess = None,
    share: float = 0.15,
    n_steps: int = 24,
    random_seed: Any = None,
    progressbar: bool | str = True,
) -> PrivateStart:
    r"""Find the bulk of a posterior with a share of the budget, before chains run on the rest.

    A chain that starts in the tail spends its budget on the way. Each step here releases one sum of
    clipped gradients with Gaussian noise, and moves by

    .. math:: H^{-1} \Big(T \sum_i \operatorname{clip}_b(\nabla \ell_i(\theta)) + T N(0, \sigma^2) + T N e + \nabla \log p(\theta)\Big)

    in coordinates in which the posterior's precision is a multiple of the identity. Everything else
    is computed from records drawn from the model at the current position, at no cost in privacy: this
    precision; the mean score :math:`e` that clipping removes from a record (without this correction,
    skewed gradients would shift the result by many posterior standard deviations); :math:`H`, the
    fraction of a move that clipped gradients still show; and the clip bound, which minimizes the sum
    of the errors from noise, from clipping, and from a misspecified model.

    A record that does not fit the current position is clipped, so steps are short far away from the
    posterior. The step size doubles while most clipped gradients point the same way, and is halved after
    each reversal (bisection). A move is halved while it would change the precision by more than a
    factor of six.

    Hyperparameters (parameters that do not enter the likelihood, nor have parents in the prior) move
    towards their marginal mode: the gradient of the log-prior is averaged over the parameters below
    them. The joint mode of a hierarchical model is where all groups are equal.

    As soon as the noise explains the moves, they get weights 1, 1/2, 1/3, ..., so that each position
    is the average of the preceding steps (Polyak averaging). The last position is returned; its noise
    is that of one step with the gradients of all averaged steps.

    Parameters
    ----------
    simulator : Simulator
        The model, and how its records are simulated.
    budget : PrivacyBudget
        Pays, once for all its chains; the claim is in its ledger and report.
    guess : dict of str to array, optional
        Public starting values, by names as in ``initvals``; by default PyMC's initial point. Must not
        be computed from the data.
    share : float
        Part of the budget, from 0.001 to below 1; ``1 / share`` such starts would use it up.
    n_steps : int
        Number of gradients, at least 2.
    random_seed : int or Generator, optional
        For the simulations. The noise on gradients is secret in any case.
    progressbar : bool
        Show what is being done, and what part of the budget is being spent. By default True.

    Returns
    -------
    PrivateStart

    Raises
    ------
    ValueError
        If an argument is out of its range, or the prior is zero at the guess.
    UnsupportedModel
        If derivatives of simulated records are not finite at the guess.
    PrivacyBudgetExhausted
        If the budget does not pay for it.

    Warns
    -----
    UserWarning
        If fewer than a quarter of the steps are in the final average.

    References
    ----------
    Noisy Newton steps in a public metric are explained in the page on planning; the sum is that
    of :class:`~pymc_dp.DPHMC`. Polyak, Juditsky (1992), https://doi.org/10.1137/0330046.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> y = np.random.default_rng(1).normal(30.0, 2.0, size=5000)
    >>> with pm.Model():
    ...     mu, sigma = pm.Normal("mu", 0, 100), pm.HalfNormal("sigma", 10)
    ...     _ = pm.Normal("y", mu, sigma, observed=y)
    ...     simulator = dp.Simulator()
    >>> budget = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=4)
    >>> start = dp.planning.private_start(
    ...     simulator, budget=budget, guess={"mu": 20.0, "sigma": 5.0}
    ... )
    >>> bool(abs(start.point["mu"] - y.mean()) < 0.5)
    True
    """
    simulator.check_budget(budget)
    rng = np.random.default_rng(random_seed)
    theta = simulator.position(guess)
    accesses = start_accesses(budget, share, n_steps)
    note("compiling the gradients")
    newton = NoisyNewton(simulator, theta, accesses[0][0], n_steps, budget.adjacency, rng)
    likelihood = simulator.likelihood
    likelihood.check_reachable(with_noise=True)
    note(f"spending {share:.0%} of epsilon = {budget.epsilon:g} on a private start")
    budget.spend("private start", accesses, likelihood.containers, likelihood.n_records)
    start = newton.run(budget.id)
    _warn_unless_converged(start.n_converged_steps, n_steps)
    return start


class NoisyNewton:
    """The steps of :func:`private_start`; everything that can fail is compiled and tried before payment."""

    def __init__(
        self,
        simulator: Simulator,
        theta: np.ndarray,
        mechanism: Gaussian | L2Laplace,
        n_steps: int,
        adjacency: Adjacency,
        rng: np.random.Generator,
    ) -> None:
        self._simulator, self._theta, self._rng = simulator, theta, rng
        self._mechanism, self._n_steps = mechanism, n_steps
        self._adjacency = adjacency
        #: Standard deviation of the noise on a record's mean gradient, for a clip bound of 1.
        self._noise = adjacency.sensitivity_factor * mechanism.noise_sd / simulator.n_records
        self._settings = self._settings_at(theta)
        directions = self._coordinates(self._settings).directions
        simulator.likelihood.grad_log_prior(theta)
        simulator.likelihood.rehearsal.total(ClippedScores(theta, 1.0, directions))

    def _settings_at(self, theta: np.ndarray) -> NewtonStep:
        simulator, n_records = self._simulator, self._simulator.n_records
        information = local_information(simulator, theta, self._rng)
        variance = self._noise**2 * n_records / (self._n_steps / 2)
        return newton_step(information, simulator.temperature, variance, n_records)

    def _coordinates(self, settings: NewtonStep) -> Coordinates:
        d = len(self._theta)
        return Coordinates(settings.mass, np.arange(d), d)

    def run(self, budget_id: str | None) -> PrivateStart:
        """Make the steps; the caller has paid."""
        simulator, theta, settings = self._simulator, self._theta, self._settings
        weight, d = simulator.temperature * simulator.n_records, len(theta)
        path = [theta]
        average, step_size = PolyakAverage(d), ExpandThenBisect(d)
        for _ in range(self._n_steps):
            coordinates = self._coordinates(settings)
            term = ClippedScores(theta, settings.bound, coordinates.directions)
            total = noisy_total(simulator.likelihood, term, self._mechanism, self._adjacency).total
            prior = coordinates.pull(settings.grad_log_prior(theta))
            mean_gradient = (simulator.temperature * total + prior) / weight
            move = settings.newton @ (mean_gradient + settings.clipped_off)
            errors = MoveErrors(
                noise=(self._noise * settings.bound) ** 2 * settings.newton @ settings.newton,
                simulation=settings.newton @ settings.error @ settings.newton,
                negligible=_NEGLIGIBLE**2 / weight,
            )
            move = move * average.weight(move, errors, coordinates)
            is_far = np.linalg.norm(mean_gradient) >= settings.bound / 2 and average.length <= 2
            move = step_size.after(move, is_far=bool(is_far)) * move
            theta, settings, was_halved = _trusted_move(
                theta,
                move,
                settings,
                coordinates,
                simulator.likelihood.log_prior,
                self._settings_at,
            )
            if was_halved:
                step_size.reset()
            path.append(theta)
        return PrivateStart(
            point=simulator.likelihood.unravel(theta),
            theta=theta,
            precision=local_information(simulator, theta, self._rng).precision,
            noise=average.noise,
            path=path,
            noise_multiplier=self._mechanism.noise_sd,
            n_converged_steps=average.length,
            budget_id=budget_id,
        )


def _trusted_move(
    theta: np.ndarray,
    move: np.ndarray,
    settings: NewtonStep,
    coordinates: Coordinates,
    log_prior: Callable[[np.ndarray], float],
    settings_at: Callable[[np.ndarray], NewtonStep],
) -> tuple[np.ndarray, NewtonStep, bool]:
    """Halve a move until it ends in the trust region; new position, settings there, and whether it was halved.

    In the region the prior is positive, records can be simulated, and the metric is similar: this depends on the model,
    not on the data.
    """
    for n_halvings in range(_MAX_HALVINGS):
        new = coordinates.moved(theta, move)
        if np.isfinite(log_prior(new)):
            try:
                found = settings_at(new)
            except ValueError:  # records cannot be simulated with these parameters
                found = None
            if found is not None and metrics_agree(settings.mass, found.mass):
                return new, found, n_halvings > 0
        move = move / 2
    return theta, settings, True


def _warn_unless_converged(n_converged: int, n_steps: int) -> None:
    if n_converged - 1 >= n_steps / 4:
        return
    if n_converged > 0:
        reason = (
            f"only the last {n_converged} of {n_steps} steps were no longer than noise explains"
        )
    else:
        reason = f"the last of {n_steps} steps was longer than noise explains"
    warnings.warn(
        f"The private start has not converged: {reason}. Chains from there may begin in the tail. Give a guess= that is nearer, from public "
        "knowledge, or private_start more steps (n_steps=).",
        stacklevel=3,
    )


def start_accesses(
    budget: PrivacyBudget, share: float, n_steps: int = 24
) -> tuple[tuple[Gaussian, int], ...]:
    """Accesses that `private_start` claims, with the noise for this share of the adaptively composed budget."""
    if not 0.001 <= as_float(share) < 1:
        raise ValueError(f"share must be from 0.001 to below 1, got {share!r}.")
    n_steps = as_integer("n_steps", n_steps, 2)
    noise_multiplier = calibrate(
        lambda z: [(Gaussian(z), n_steps / share)],
        budget.epsilon,
        budget.delta,
        accountant=budget.terms.adaptive.reading,
    )
    check_gradient_noise(1.0, noise_multiplier, private=True)
    return ((Gaussian(noise_multiplier), n_steps),)
