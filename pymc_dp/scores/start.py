"""A private start: a point in the bulk of the posterior, from a few noisy sums, before chains run on the rest of a budget."""

from __future__ import annotations

import warnings

from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dp.arguments import as_float
from pymc_dp.display import Shown
from pymc_dp.planning.simulator import Guess, Simulator
from pymc_dp.privacy.accounting.calibration import calibrate
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.mechanism import Gaussian
from pymc_dp.progress import note, showing
from pymc_dp.queries.noisy_total import Release, check_can_be_made
from pymc_dp.scores.design import number_of_first_sums
from pymc_dp.scores.search import after_sums, first_reference, released_sum


@dataclass(frozen=True)
class PrivateStart(Shown):
    """A point in the bulk of the posterior: public, since a budget paid for it.

    Parameters
    ----------
    point : dict of str to array
        Values of the model's value variables, for ``initvals`` of ``pm.sample``.
    theta : array of shape (n_dim,)
        The point as a vector: all value variables, on the unconstrained scale, in the order of the model.
    covariance : array of shape (n_dim, n_dim)
        Of the parameters given the noisy sums.
    budget_id : str or None
        Identity of the budget that paid; no other budget accepts this start. None for a start that is made
        by hand, from public information only.

    Examples
    --------
    By hand, from what is known without the data:

    >>> start = dp.scores.PrivateStart(
    ...     point={"mu": np.array(30.0)}, theta=np.array([30.0]), covariance=np.eye(1)
    ... )
    """

    point: dict[str, np.ndarray]
    theta: np.ndarray
    covariance: np.ndarray
    budget_id: str | None = None


@showing
def private_start(
    simulator: Simulator,
    *,
    budget: PrivacyBudget,
    guess: Guess = None,
    share: float = 0.15,
    random_seed: Any = None,
    progressbar: bool | str = True,
) -> PrivateStart:
    """Find the bulk of a posterior with a share of the budget, before chains run on the rest.

    A chain that starts in the tail spends its budget on the way. Here a few noisy sums of clipped scores are released, with
    Gaussian noise, each at the best reference given those before, as first sums of :func:`~pymc_dp.private_scores`. The start
    is the mode of the posterior given these sums (of hyperparameters, the marginal one); with a warning, if the posterior is
    still wide, the best reference for a further sum.

    Parameters
    ----------
    simulator : Simulator
        The model, and how its records are simulated.
    budget : PrivacyBudget
        Pays, once for all its chains; the claim is in its ledger and report.
    guess : dict of str to array, optional
        Public values at which the first sum is released, by names as in ``initvals``; by default PyMC's initial point, or under
        wide priors where draws of them make it best. Must not be computed from the data.
    share : float
        Part of the budget, from 0.001 to below 1; ``1 / share`` such starts would use it up.
    random_seed : int or Generator, optional
        For the simulations. The noise is secret in any case.
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
        If the parameters may still be far away, given the sums.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> y = np.random.default_rng(1).normal(30.0, 2.0, size=5000)
    >>> with pm.Model():
    ...     mu, sigma = pm.Normal("mu", 0, 100), pm.HalfNormal("sigma", 10)
    ...     _ = pm.Normal("y", mu, sigma, observed=y)
    ...     simulator = dp.Simulator()
    >>> budget = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=4)
    >>> start = dp.scores.private_start(
    ...     simulator, budget=budget, guess={"mu": 20.0, "sigma": 5.0}
    ... )
    >>> bool(abs(start.point["mu"] - y.mean()) < 0.5)
    True
    """
    simulator.check_budget(budget)
    rng = np.random.default_rng(random_seed)
    simulated = first_reference(simulator, guess, rng)
    one = start_accesses(budget, share, 1)[0][0]
    number = number_of_first_sums(simulated, one, budget.adjacency)
    accesses = start_accesses(budget, share, number)
    check_can_be_made(accesses, budget.adjacency)
    likelihood, releases = simulator.likelihood, list[Release]()
    note("compiling the scores")
    likelihood.rehearsal.total(simulated.term(1.0))
    likelihood.check_reachable(with_noise=True)
    note(f"spending {share:.0%} of epsilon = {budget.epsilon:g} on a private start")
    budget.spend("private start", accesses, likelihood.containers, likelihood.n_records)
    for _ in range(number):
        releases.append(released_sum(simulator, simulated, accesses[0][0], budget.adjacency))
        simulated = after_sums(simulator, releases, simulated, budget.adjacency, rng)
    if not simulated.is_near():
        warnings.warn(
            f"The private start has not arrived: given {number} noisy sums, parameters lie up to {simulated.distance:.2g} standard deviations of a "
            "record apart. Chains from there may begin in the tail. Give narrower priors, or a guess= that is nearer, from public knowledge.",
            stacklevel=3,
        )
    theta, draws, root = simulated.theta, simulated.draws, simulated.root
    covariance = root @ root.T if draws is None else np.atleast_2d(np.cov(draws.T))
    return PrivateStart(likelihood.unravel(theta), theta, covariance, budget.id)


def start_accesses(budget: PrivacyBudget, share: float, number: int) -> tuple[tuple[Gaussian, int]]:
    """Accesses of a private start, with the noise for this share of the adaptively composed budget."""
    if not 0.001 <= as_float(share) < 1:
        raise ValueError(f"share must be from 0.001 to below 1, got {share!r}.")
    noise_multiplier = calibrate(
        lambda z: [(Gaussian(z), number / share)], budget.epsilon, budget.delta,
        accountant=budget.terms.adaptive.reading,
    )  # fmt: skip
    return ((Gaussian(noise_multiplier), number),)
