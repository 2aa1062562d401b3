"""A private way from the prior to where the posterior is: a few Newton steps on noisy sums of gradients."""

from __future__ import annotations

import warnings

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm

from scipy import stats

from pymc_dp.costs import sides_of
from pymc_dp.newton import NewtonStep, alike, newton_step, surroundings
from pymc_dp.preparation import Prepared, prepare
from pymc_dp.privacy.accounting import calibrate
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms import Gaussian, real, whole
from pymc_dp.privacy.noise import OperatingSystemBits
from pymc_dp.steps.gradients import Coordinates, NoisyGradient, check_gradient_noise

__all__ = ["PrivateStart", "find_start", "private_start", "start_accesses"]

#: A move that is near in any case, in posterior standard deviations.
_NEAR = 0.1


@dataclass(frozen=True)
class PrivateStart:
    """Where chains begin, and the scales of the posterior there: public, as it was paid for.

    Parameters
    ----------
    point : dict of str to array
        Values of the model's value variables: pass it as ``initvals`` to ``pm.sample``.
    theta : array of shape (n_dim,)
        The same as a vector.
    precision : array of shape (n_dim, n_dim)
        Of the posterior around it, from records drawn from the model there.
    noise : array of shape (n_dim, n_dim)
        Covariance of ``theta`` that comes from the noise on gradients.
    path : list of array of shape (n_dim,)
        All positions.
    noise_multiplier : float
        Of each of the gradients.
    at_rest : int
        How many of the last steps moved no more than noise explains.
    budget_id : str or None
        The budget that paid: it is used with no other one. None for a start that is made by hand,
        which must be of public things.
    """

    point: dict[str, np.ndarray]
    theta: np.ndarray
    precision: np.ndarray
    noise: np.ndarray
    path: list[np.ndarray] = field(repr=False)
    noise_multiplier: float
    at_rest: int = 1
    budget_id: str | None = None


def private_start(
    *,
    budget: PrivacyBudget,
    share: float = 0.15,
    steps: int = 24,
    temperature: float = 1.0,
    start: Mapping[str, Any] | None = None,
    public_covariates: bool = False,
    stand_in: pm.Model | None = None,
    stand_in_records: Any = None,
    records: Any = None,
    public: Sequence[Any] = (),
    n_records: int | None = None,
    random_seed: Any = None,
    model: pm.Model | None = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> PrivateStart:
    r"""Find the bulk of a posterior with a share of the budget, before chains run on the rest.

    A chain that starts in the tail spends its budget on the way. Here each step releases a sum of
    clipped gradients with Gaussian noise, and moves by

    .. math:: H^{-1} \Big(T \sum_i \operatorname{clip}_b(\nabla \ell_i(\theta)) + T N(0, \sigma^2) + \nabla \log p(\theta)\Big)

    in coordinates in which the precision of the posterior is a multiple of the identity. Everything
    else comes from records drawn from the model at the present position, which costs nothing: this
    precision; what clipping takes from the gradients on average, which is given back to the sum (else
    skewed gradients would be off by many posterior standard deviations); :math:`H`, which says how much
    of a move is still seen in clipped gradients; and the clip bound, for which noise, clipping, and
    that no model is quite true, together cost least. A record that fits the present position badly is
    clipped, so that steps are short far away: about the root of the dimension, in units of what one
    record tells. They double as long as most records agree, are halved from where they went too far on
    (bisection), and where the precision would change by more than a factor of six.

    Hyperparameters, those of which no record tells directly and which have no others in their prior,
    go to where their density is highest with all others integrated out, and not to the joint mode,
    which in a hierarchical model is where all groups are equal: the gradient of the log-prior is
    averaged over what the others may be.

    As soon as moves are explained by the noise, they get weights 1, 1/2, 1/3, ..., which makes of each
    position the mean of where the steps so far have led to. The last one is returned: as much noise is
    in it as if all these steps had been one. If they are fewer than a quarter of all, a warning says so.

    Parameters
    ----------
    budget : PrivacyBudget
        Pays, once for all its chains; the claim is in its ledger and report.
    share : float
        From 0.001 to below 1: so much of the budget; ``1 / share`` such starts would use it up.
    steps : int
        Number of gradients, at least 2.
    temperature : float
        Power of the likelihood, as for the sampler that follows.
    start : dict of str to array, optional
        Public guess, by names as in ``initvals``; PyMC's initial point by default. Must not come from
        the data.
    public_covariates : bool
        Whether arrays of the model that have rows, besides what is observed, are public, and
        `records`, and the number of rows under add/remove: the model is then simulated with them.
    stand_in : pm.Model, optional
        Model of the same parameters with public or made-up data of any number of rows, to simulate
        from if covariates are private. What is observed in it is only looked at if it cannot be
        drawn (a ``pm.CustomDist`` without ``random``).
    stand_in_records : array of int, or dict of str to such arrays, optional
        Who each row of the stand-in belongs to; needed if `records` is given.
    n_records : int, optional
        Public number of records; the model's by default. Under add/remove that is private: then a
        good guess is needed here, and a stand-in, unless `public_covariates`.
    records, public, compile_kwargs
        See :class:`~pymc_dp.RecordLikelihood`.
    random_seed : int or Generator, optional
        Of the simulations. Noise on gradients is secret in any case.
    model : pm.Model, optional
        The model, else the one on the context stack.

    Returns
    -------
    PrivateStart

    Raises
    ------
    ValueError
        If an argument is out of its range, the model has covariates and it was not said whether
        they are public, the start is impossible, or the stand-in has other parameters.
    UnsupportedModel
        If records cannot be drawn from the model, and there is no stand-in.
    PrivacyBudgetExhausted
        If the budget does not pay for it.

    Warns
    -----
    UserWarning
        If the path has not come to rest in its last quarter.

    References
    ----------
    Noisy Newton steps in a public metric: explained in the page on planning; the sum is that
    of :class:`~pymc_dp.DPHMC`.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> y = np.random.default_rng(1).normal(30.0, 2.0, size=5000)
    >>> with pm.Model():
    ...     mu, sigma = pm.Normal("mu", 0, 100), pm.HalfNormal("sigma", 10)
    ...     _ = pm.Normal("y", mu, sigma, observed=y)
    ...     budget = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=4)
    ...     begin = dp.private_start(budget=budget, start={"mu": 20.0, "sigma": 5.0})
    >>> bool(abs(begin.point["mu"] - y.mean()) < 0.5)
    True
    """
    prepared = prepare(
        budget=budget, model=model, temperature=temperature, public_covariates=public_covariates, stand_in=stand_in,
        stand_in_records=stand_in_records, records=records, public=public, n_records=n_records, compile_kwargs=compile_kwargs,
    )  # fmt: skip
    return find_start(prepared, budget, share, start, steps, random_seed)


def find_start(
    prepared: Prepared,
    budget: PrivacyBudget,
    share: float,
    start: Mapping[str, Any] | None,
    steps: int = 24,
    random_seed: Any = None,
) -> PrivateStart:
    """:func:`private_start` of a model that is compiled already."""
    _, likelihood, _, temperature, n_records = prepared
    rng = np.random.default_rng(random_seed)
    theta = prepared.position(start)
    accesses = start_accesses(budget, share, steps)
    noise_multiplier = accesses[0][0].noise_multiplier
    sides = sides_of(budget)
    noise = sides * noise_multiplier / n_records

    def plan(theta: np.ndarray) -> NewtonStep:
        around = surroundings(prepared, theta, rng)
        variance = noise**2 * n_records / (steps / 2)
        return newton_step(around, temperature, variance, n_records)

    # Compiled, and tried out, before anything is paid for.
    settings = plan(theta)
    coordinates = Coordinates(settings.mass, np.arange(len(theta)), len(theta))
    NoisyGradient(likelihood, coordinates, settings.bound, temperature).compile(None)
    budget.spend("private start", accesses, likelihood.data_keys, likelihood.n_records)
    bits, path, mean = OperatingSystemBits(), [theta], _Mean(len(theta))
    last, stride, turned = np.zeros(len(theta)), 0.5, False
    for _ in range(steps):
        coordinates = Coordinates(settings.mass, np.arange(len(theta)), len(theta))
        gradient = NoisyGradient(
            likelihood, coordinates, settings.bound, temperature, settings.grad_log_prior
        )
        sigma = noise_multiplier * sides * settings.bound
        total = gradient(theta, sigma, bits) / (temperature * n_records)
        move = settings.newton @ (total + settings.excess)
        own = (noise * settings.bound) ** 2 * settings.newton @ settings.newton
        simulation_error = settings.newton @ settings.error @ settings.newton
        slack = _NEAR**2 / (temperature * n_records)
        move = move * mean.weight(move, own, simulation_error, slack, coordinates)
        # Where nearly all records are clipped, and agree, there is a long way to go; if back, half of it.
        back = last @ move < 0
        turned = (turned or back) and stride > 1
        if np.linalg.norm(total) < settings.bound / 2 or mean.length:
            stride = 1.0
        else:
            stride = stride / 2 if turned else 1.0 if back else 2 * stride
        last, move = move, stride * move
        for _ in range(40):
            new = coordinates.moved(theta, move)
            # Everything that may shorten a move is of the model, not of the data.
            if np.isfinite(likelihood.log_prior(new)):
                try:
                    there = plan(new)
                except ValueError:  # parameters that nothing can be drawn with are one, too
                    there = settings
                if there is not settings and alike(settings.mass, there.mass):
                    theta, settings = new, there
                    break
            move, stride = move / 2, 1.0
        path.append(theta)
    if mean.length - 1 < steps / 4:
        moved = f"until {mean.length} steps before its end" if mean.length > 0 else "to its end"
        warnings.warn(
            f"The private start has not come to rest: of {steps} steps it was moving, by more than noise explains, {moved}. Chains from "
            "there may begin in the tail. Give a start= that is nearer, by public knowledge, or private_start more steps=.",
            stacklevel=3,
        )
    return PrivateStart(
        point=likelihood.unravel(theta),
        theta=theta,
        precision=surroundings(prepared, theta, rng).precision,
        noise=mean.noise,
        path=path,
        noise_multiplier=noise_multiplier,
        at_rest=mean.length,
        budget_id=budget.id,
    )


class _Mean:
    """Weights with which positions become the mean of where the last steps led to.

    Such a mean begins where moves are no longer than noise explains; the first of them does not count,
    as it may have come from far away. Longer moves make it begin again. (Either side alike, so that
    this brings in no bias.)
    """

    def __init__(self, n_dim: int) -> None:
        self.length = 0
        #: Covariances of the mean: from the noise, and from errors of the simulation too.
        self.noise = self._all = np.zeros((n_dim, n_dim))

    def weight(
        self,
        move: np.ndarray,
        noise: np.ndarray,
        error: np.ndarray,
        slack: float,
        coordinates: Coordinates,
    ) -> float:
        """Weight of the next move, which is given in the coordinates, with the covariances of its errors."""
        d, basis = len(move), coordinates.directions
        assert basis is not None
        back = np.linalg.inv(basis)
        scatter = noise + error + back @ self._all @ back.T + slack * np.eye(d)
        near = move @ np.linalg.solve(scatter, move) <= stats.chi2.isf(1e-4, d)
        self.length = self.length + 1 if near else 0
        weight = 1 / max(1, self.length - 1)
        self.noise = (1 - weight) ** 2 * self.noise + weight**2 * basis @ noise @ basis.T
        self._all = (1 - weight) ** 2 * self._all + weight**2 * basis @ (noise + error) @ basis.T
        return weight


def start_accesses(
    budget: PrivacyBudget, share: float, steps: int = 24
) -> tuple[tuple[Gaussian, int], ...]:
    """What `private_start` is going to claim: as part of what composes adaptively, as other claims follow."""
    if not 0.001 <= real(share) < 1:
        raise ValueError(f"share must be from 0.001 to below 1, got {share!r}.")
    steps = whole("steps", steps, 2)
    noise_multiplier = calibrate(
        lambda z: [(Gaussian(z), steps / share)],
        budget.epsilon,
        budget.delta,
        accountant=budget.terms.adaptive.reading,
    )
    check_gradient_noise(1.0, noise_multiplier, private=True)
    return ((Gaussian(noise_multiplier), steps),)
