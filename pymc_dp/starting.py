"""A private way from the prior to where the posterior is: a few Newton steps on noisy sums of gradients."""

from __future__ import annotations

import operator
import warnings

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm

from pymc.initial_point import make_initial_point_fn

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.records import RecordLikelihood
from pymc_dp.model.simulated import SimulatedRecords
from pymc_dp.privacy.accounting import calibrate
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms import Adjacency, Gaussian
from pymc_dp.privacy.noise import OperatingSystemBits
from pymc_dp.steps.gradients import Coordinates, NoisyGradient

__all__ = ["PrivateStart", "local_precision", "private_start"]

#: Part of the simulated records' gradients that are within the clip bound, so that there is no
#: telling bias near the end, and records far from the model have little to say before.
_WITHIN = 0.95
#: Records that are simulated at each position, at least.
_SIMULATED = 4000
#: Least precision in any direction, where neither prior nor data tell: a standard deviation of 100.
_LEAST = 1e-4


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
        Covariance of ``theta`` that comes from the noise on its gradients.
    path : list of array of shape (n_dim,)
        All positions.
    noise_multiplier : float
        Of each of the gradients.
    """

    point: dict[str, np.ndarray]
    theta: np.ndarray
    precision: np.ndarray
    noise: np.ndarray
    path: list[np.ndarray] = field(repr=False)
    noise_multiplier: float


def private_start(
    *,
    budget: PrivacyBudget,
    share: float = 0.15,
    steps: int = 24,
    temperature: float = 1.0,
    start: Mapping[str, Any] | None = None,
    public_covariates: bool = False,
    stand_in: pm.Model | None = None,
    records: Any = None,
    random_seed: Any = None,
    model: pm.Model | None = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> PrivateStart:
    r"""Find the bulk of a posterior with a share of the budget, before chains run on the rest.

    A chain that starts in the tail spends its budget on the way. Here each step releases a sum of
    clipped gradients with Gaussian noise, and moves by

    .. math:: H^{-1} \Big(T \sum_i \operatorname{clip}_b(\nabla \ell_i(\theta)) + T N(0, \sigma^2) + \nabla \log p(\theta)\Big)

    in coordinates in which :math:`H`, the precision of the posterior, is a multiple of the identity.
    It is that of records drawn from the model at the present position, which costs nothing; so is
    the clip bound (95 % of these records are within), and what clipping takes from their gradients
    on average, which is given back to the sum: else skewed gradients would be off by many posterior
    standard deviations. A record that fits the present position badly is clipped, so that steps are
    short far away: at most about the root of the dimension, in units of what one record tells. The
    mean of the second half of the path is returned: so much noise is in it as if there had been half
    as many steps, all of them near the end.

    Parameters
    ----------
    budget : PrivacyBudget
        Pays, once for all its chains; the claim is in its ledger and report.
    share : float
        In (0, 1): so much of the budget; ``1 / share`` such starts would use it up.
    steps : int
        Number of gradients, at least 2.
    temperature : float
        Power of the likelihood, as for the sampler that follows.
    start : dict of str to array, optional
        Public guess, by names as in ``initvals``; PyMC's initial point by default. Must not come from
        the data.
    public_covariates : bool
        Whether arrays of the model that have rows, besides what is observed, are public: the model
        is then simulated with them.
    stand_in : pm.Model, optional
        Model of the same parameters with public or made-up data of any number of rows, to simulate
        from if covariates are private. What is observed in it is only looked at if it cannot be
        drawn (a ``pm.CustomDist`` without ``random``).
    records, compile_kwargs
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
        they are public, or the stand-in has other parameters.
    UnsupportedModel
        If records cannot be drawn from the model, and there is no stand-in.
    PrivacyBudgetExhausted
        If the budget does not pay for it.

    References
    ----------
    Noisy Newton steps in a public metric: section 3.8 of the project's mathematics; the sum is that
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
    if not 0 < share < 1:
        raise ValueError(f"share must lie in (0, 1), got {share!r}.")
    if operator.index(steps) < 2:
        raise ValueError(f"steps must be at least 2, got {steps!r}.")
    if not 0 < temperature <= 1:
        raise ValueError(f"temperature must lie in (0, 1], got {temperature!r}.")
    model = pm.modelcontext(model)
    rng = np.random.default_rng(random_seed)
    likelihood = RecordLikelihood(model, records=records, compile_kwargs=compile_kwargs)
    simulated = simulation(model, records, public_covariates, stand_in)
    theta = likelihood.ravel(_initial(model, start))
    # Compiled, and tried out, before anything is paid for.
    _plan(likelihood, simulated, theta, temperature, np.random.default_rng(0))
    likelihood.clipped_grad_steps(theta, 1.0, directions=np.eye(likelihood.n_dim))

    noise_multiplier = calibrate(
        lambda z: [(Gaussian(z), steps / share)],
        budget.epsilon,
        budget.delta,
        accountant=budget.accountant,
    )
    sides = {Adjacency.SUBSTITUTE: 2.0, Adjacency.ADD_REMOVE: 1.0}[budget.adjacency]
    budget.spend("private start", ((Gaussian(noise_multiplier), steps),))
    bits, path, noises = OperatingSystemBits(), [theta], []
    n = temperature * likelihood.n_records
    for _ in range(steps):
        mass, bound, excess = _plan(likelihood, simulated, path[-1], temperature, rng)
        coordinates = Coordinates(mass, np.arange(likelihood.n_dim), likelihood.n_dim)
        gradient = NoisyGradient(likelihood, coordinates, bound, temperature)
        sigma = noise_multiplier * sides * bound
        move = gradient(path[-1], sigma, bits) / n + excess
        for _ in range(60):  # back to where the prior is positive, a public matter
            theta = coordinates.moved(path[-1], move)
            if np.isfinite(likelihood.log_prior(theta)):
                break
            move = move / 2
        path.append(theta)
        noises.append(np.linalg.inv(mass) * (sigma / likelihood.n_records) ** 2)
    last = steps // 2
    theta = np.mean(path[-last:], axis=0)
    precision = local_precision(likelihood, simulated, theta, temperature, rng)[0]
    return PrivateStart(
        point=likelihood.unravel(theta),
        theta=theta,
        precision=precision,
        noise=np.mean(noises[-last:], axis=0) / last,
        path=path,
        noise_multiplier=noise_multiplier,
    )


def simulation(
    model: pm.Model, records: Any, public_covariates: bool, stand_in: pm.Model | None
) -> SimulatedRecords:
    """Records to plan with: of the model, or of its stand-in."""
    if stand_in is None:
        return SimulatedRecords(model, records=records, public_covariates=public_covariates)
    shapes = [{v.name: v.type.shape for v in m.value_vars} for m in (model, stand_in)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"stand_in must have the parameters of the model, {shapes[0]}, but has {shapes[1]} (values on "
            "the unconstrained scale, with their shapes)."
        )
    return SimulatedRecords(stand_in, public_covariates=True, public_data=True)


def local_precision(
    likelihood: RecordLikelihood,
    simulated: SimulatedRecords,
    theta: np.ndarray,
    temperature: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Precision of the posterior around a position, and gradients there of the records it is based on.

    Where the posterior is not concave, the curvature's size counts.

    Returns
    -------
    precision : array of shape (n_dim, n_dim)
    gradients : array of shape (n, n_dim)
    """
    n_sets = -(-_SIMULATED // simulated.n_records)
    curvature, gradients = np.zeros((simulated.n_dim, simulated.n_dim)), []
    for _ in range(n_sets):
        data = simulated.draw(theta, rng)
        curvature += simulated.curvature(theta, data)
        gradients.append(simulated.gradients(theta, data))
    rows = np.concatenate(gradients)
    per_record = curvature / len(rows)
    precision = temperature * likelihood.n_records * per_record - _hessian(likelihood, theta)
    if not (np.isfinite(precision).all() and np.isfinite(rows).all()):
        raise UnsupportedModel(
            f"the derivatives of simulated records are not finite at {likelihood.unravel(theta)}: give a start."
        )
    values, vectors = np.linalg.eigh(precision)
    values = np.maximum(np.abs(values), max(_LEAST, 1e-12 * np.abs(values).max()))
    return (vectors * values) @ vectors.T, rows


def _plan(
    likelihood: RecordLikelihood,
    simulated: SimulatedRecords,
    theta: np.ndarray,
    temperature: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, float, np.ndarray]:
    """Metric in which the precision is 1 for each (tempered) record; the clip bound; what it cuts off on average."""
    precision, rows = local_precision(likelihood, simulated, theta, temperature, rng)
    mass = precision / (temperature * likelihood.n_records)
    white = np.linalg.solve(np.linalg.cholesky(mass), rows.T).T
    norms = np.linalg.norm(white, axis=1)
    bound = float(np.quantile(norms, _WITHIN))
    if not bound > 0:
        raise UnsupportedModel(
            "the log-likelihood of simulated records does not change with the parameters."
        )
    # Less noise than in the mean of what is left, as unclipped gradients are 0 on average.
    excess = ((1 - np.minimum(1, bound / np.maximum(norms, bound)))[:, None] * white).mean(axis=0)
    return mass, bound, excess


def _hessian(likelihood: RecordLikelihood, theta: np.ndarray) -> np.ndarray:
    """Of the log-prior, by differences of its gradient."""
    rows = []
    for e, h in zip(np.eye(len(theta)), 1e-4 * (1 + np.abs(theta)), strict=True):
        there, back = (likelihood.grad_log_prior(theta + s * h * e) for s in (1, -1))
        rows.append((there - back) / (2 * h))
    hessian = np.array(rows)
    return (hessian + hessian.T) / 2


def _initial(model: pm.Model, start: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    """PyMC's initial point, but for what is given."""
    overrides = dict(start or {})
    unknown = sorted(overrides.keys() - {v.name for v in (*model.free_RVs, *model.value_vars)})
    if unknown:
        raise ValueError(f"start has {', '.join(unknown)}, which the model does not.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a BLAS that is missing
        return make_initial_point_fn(model=model, overrides=overrides, return_transformed=True)(0)
