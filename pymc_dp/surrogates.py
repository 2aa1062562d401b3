"""Release a surrogate: one noisy sum of gradients, for a sampler that decides about the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymc as pm

from pymc_dp.costs import check_draws, check_filter, sides_of
from pymc_dp.preparation import prepare
from pymc_dp.privacy.binding import check_paid
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.gaussian_noise import noisy_sum
from pymc_dp.privacy.mechanisms import Gaussian
from pymc_dp.privacy.noise import OperatingSystemBits
from pymc_dp.remainders import best_within
from pymc_dp.starting import PrivateStart
from pymc_dp.steps.features import Features
from pymc_dp.steps.surrogate import Surrogate
from pymc_dp.surrogate_plans import Setting, SurrogateChoice, plan_for, setting_at

__all__ = ["private_surrogate", "release_surrogate"]


def private_surrogate(
    *,
    budget: PrivacyBudget,
    start: PrivateStart,
    choice: SurrogateChoice | None = None,
    noise_aware: bool = True,
    temperature: float = 1.0,
    max_draws: int = 1000,
    public_covariates: bool = False,
    stand_in: pm.Model | None = None,
    stand_in_records: Any = None,
    records: Any = None,
    public: Sequence[Any] = (),
    n_records: int | None = None,
    random_seed: Any = None,
    model: pm.Model | None = None,
) -> Surrogate:
    """Release a noisy sum of gradients at a private start, and make of it a surrogate of the posterior.

    Parameters
    ----------
    budget : PrivacyBudget
        Pays, once for all its chains; the claim is in its ledger and report.
    start : PrivateStart
        The reference.
    choice : SurrogateChoice, optional
        One of a plan made at this start; by default the best one, with bounds on what is left of
        records that are chosen when the sum, and so the cost of decisions, is known.
    noise_aware : bool
        Whether the noise is part of the posterior's uncertainty.
    temperature, max_draws, public_covariates, stand_in, stand_in_records, records, public, n_records
        As for :func:`~pymc_dp.plan_surrogate`.
    random_seed : int or Generator, optional
        Of simulations. Noise on gradients is secret in any case.
    model : pm.Model, optional

    Returns
    -------
    Surrogate
        For :class:`~pymc_dp.DPControlVariate`. Public, as it was paid for.

    Raises
    ------
    PrivacyBudgetExhausted, ValueError
        As :func:`~pymc_dp.plan_surrogate`.
    PrivacyLeak
        If another budget paid for the start, or for the one that the choice was made at.

    References
    ----------
    Explained in the page on control variates: coefficients by regression instead of a Taylor
    expansion, and the noise integrated out given the law of the sum.
    """
    check_filter(budget)
    check_paid("private start", getattr(start, "budget_id", None), budget.id)
    check_paid("choice (by its private start)", getattr(choice, "budget_id", None), budget.id)
    max_draws = check_draws(max_draws)
    prepared = prepare(
        budget=budget, model=model, temperature=temperature, public_covariates=public_covariates, stand_in=stand_in,
        stand_in_records=stand_in_records, records=records, public=public, n_records=n_records,
    )  # fmt: skip
    setting = setting_at(prepared, start, random_seed)
    if choice is not None:
        return release_surrogate(setting, budget, choice, noise_aware)
    choice = plan_for(setting, budget, max_draws).chosen
    return release_surrogate(setting, budget, choice, noise_aware, max_draws)


def release_surrogate(
    setting: Setting,
    budget: PrivacyBudget,
    choice: SurrogateChoice,
    noise_aware: bool = True,
    max_draws: int | None = None,
) -> Surrogate:
    """Claim, and release the sum; with `max_draws`, choose the bounds on what is left for so many, at most."""
    likelihood, coordinates, theta = setting.likelihood, setting.coordinates, setting.theta
    bound, directions = choice.gradient_clip_bound, setting.coordinates.directions
    features = Features(setting.simulated, theta, coordinates, bound, choice.within, setting.rng)
    noise_sd = sides_of(budget) * bound * choice.noise_multiplier
    # Compiled before anything is paid for.
    likelihood.clipped_grad_steps(theta * 0, bound, directions=directions)
    accesses = ((Gaussian(choice.noise_multiplier), 1),)
    budget.spend("sum of gradients", accesses, likelihood.data_keys, likelihood.n_records)
    steps, exponent = likelihood.clipped_grad_steps(theta, bound, directions=directions)
    total = noisy_sum(steps, exponent, noise_sd, OperatingSystemBits())
    surrogate = Surrogate(
        features, total, noise_sd, setting.n_records, setting.temperature, setting.rng, noise_aware=noise_aware,
        budget_id=budget.id,
    )  # fmt: skip
    if max_draws is not None:
        surrogate.hold(best_within(setting.simulated, surrogate, budget, max_draws))
    return surrogate
