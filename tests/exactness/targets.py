"""Posteriors known exactly, each with an independent sampler: what chains are compared with."""

from __future__ import annotations

import contextlib

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytest

from scipy import stats
from scipy.special import gamma

from pymc_dp.model.compiled_model import CompiledModel
from pymc_dp.steps import base
from pymc_dp.steps.accept_reject import Move, State, Uncharged

_COMPILED: dict = {}


@contextlib.contextmanager
def compiled_once(*key, only=None):
    """Steps built here share one compiled likelihood, which has no state: most of the time of a test would go into it.

    The key says which model it is, with its data; names and records are added to it. Models other than ``only``, if that is given,
    are compiled as usual.
    """
    real = base.RecordLikelihood

    def shared(model, *, records=None, public=(), private=True, **options):
        special = public or any(v is not None for v in options.values())
        if only not in (None, model) or special:
            return real(model, records=records, public=public, private=private, **options)
        names = tuple((v.name, v.type.shape) for v in model.basic_RVs)  # a test may have added some
        # Some modules do not compile: see `interpreted` in tests/conftest.py.
        how = (
            CompiledModel._compile,
            private,
            None if records is None else np.asarray(records).tobytes(),
        )
        whole = (*key, names, *how)
        if whole not in _COMPILED:
            _COMPILED[whole] = real(model, records=records, private=private)
        return _COMPILED[whole]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "RecordLikelihood", shared)
        yield shared


def decide_on(step, move, decision):
    """Whether a step accepts a given move, for which `decision` (None: without a budget) has been charged."""
    charged = Uncharged(step.rule) if decision is None else decision
    step.__dict__.update(propose=lambda theta: move, charge_decision=lambda move: charged)
    try:
        return step.transition(move.old.theta)[1]
    finally:
        del step.__dict__["propose"], step.__dict__["charge_decision"]


@dataclass(frozen=True)
class Target:
    """A model and draws from its posterior.

    Parameters
    ----------
    name : str
    model : callable
        Builds the PyMC model; all parameters live on the real line, so value variables are the parameters.
    exact : callable
        ``exact(temperature, n, rng)``: independent draws, shape (n, d), with the likelihood raised to ``temperature``.
    """

    name: str
    model: Callable[[], pm.Model]
    exact: Callable[[float, int, np.random.Generator], np.ndarray]


def _linear_gaussian(design: np.ndarray, y: np.ndarray, sigma: float, prior_mean, prior_cov):
    """Exact sampler for ``y ~ N(design @ theta, sigma^2)``, ``theta ~ N(prior_mean, prior_cov)``."""

    def exact(temperature, n, rng):
        prior_precision = np.linalg.inv(prior_cov)
        precision = prior_precision + temperature * design.T @ design / sigma**2
        cov = np.linalg.inv(precision)
        mean = cov @ (prior_precision @ prior_mean + temperature * design.T @ y / sigma**2)
        return rng.multivariate_normal(mean, cov, size=n)

    return exact


# ---------------------------------------------------------------- conjugate Gaussian: two means, correlated prior

_Y = np.random.default_rng(11).normal([0.8, -1.5], 12.0, size=(150, 2))
_MEAN, _COV = np.array([0.5, 0.5]), np.array([[1.25, 0.8], [0.8, 1.25]])


def _gaussian_model() -> pm.Model:
    with pm.Model() as model:
        mu = pm.MvNormal("mu", _MEAN, cov=_COV)
        pm.Normal("y", mu, 12.0, observed=_Y)
    return model


GAUSSIAN = Target(
    "gaussian",
    _gaussian_model,
    _linear_gaussian(np.kron(np.ones((150, 1)), np.eye(2)), _Y.ravel(), 12.0, _MEAN, _COV),
)

# ---------------------------------------------------------------- banana (Räisä 2021, Theorem 5.2)

_BEND, _PRIOR_SD, _SD = 0.6, 2.0, np.array([6.0, 5.0])
_X = np.random.default_rng(12).normal([0.1, 0.9], _SD, size=(200, 2))


def _banana_model() -> pm.Model:
    with pm.Model() as model:
        theta1 = pm.Normal("theta1", 0, _PRIOR_SD)
        theta2 = pm.Normal("theta2", -_BEND * theta1**2, _PRIOR_SD)
        pm.Normal("x1", theta1, _SD[0], observed=_X[:, 0])
        pm.Normal("x2", theta2 + _BEND * theta1**2, _SD[1], observed=_X[:, 1])
    return model


def _banana_exact(temperature, n, rng):
    precision = temperature * len(_X) / _SD**2
    total = precision + 1 / _PRIOR_SD**2
    z = precision * _X.mean(axis=0) / total + rng.standard_normal((n, 2)) / np.sqrt(total)
    return np.column_stack([z[:, 0], z[:, 1] - _BEND * z[:, 0] ** 2])


BANANA = Target("banana", _banana_model, _banana_exact)

# ---------------------------------------------------------------- logistic regression in 2-d, by quadrature

_W = np.column_stack([np.ones(100), np.random.default_rng(13).normal(0.5, 1.0, 100)])
_B = (np.random.default_rng(14).random(100) < 1 / (1 + np.exp(-_W @ [-0.6, 1.1]))).astype(int)


def _logit_model() -> pm.Model:
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=2)
        pm.Bernoulli("y", logit_p=_W @ beta, observed=_B)
    return model


def _logit_exact(temperature, n, rng, size=300):
    """Draws from the density on a fine grid, spread out evenly over each cell."""

    def log_density(beta):
        eta = beta @ _W.T
        return (
            temperature * (_B * eta - np.logaddexp(0, eta)).sum(axis=-1)
            - (beta**2).sum(axis=-1) / 8
        )

    sides = [np.linspace(-5, 3, size), np.linspace(-2, 6, size)]
    step = np.array([s[1] - s[0] for s in sides])
    nodes = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1)
    logs = np.stack([log_density(row) for row in nodes])
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    # The grid holds all but a negligible part of the mass.
    assert max(weight[0].sum(), weight[-1].sum(), weight[:, 0].sum(), weight[:, -1].sum()) < 1e-9
    chosen = rng.choice(weight.size, size=n, p=weight.ravel())
    return nodes.reshape(-1, 2)[chosen] + step * (rng.random((n, 2)) - 0.5)


LOGIT = Target("logit", _logit_model, _logit_exact)

# ---------------------------------------------------------------- two variables for two steps

_T = np.column_stack([np.ones(120), np.random.default_rng(15).normal(1.0, 1.0, 120)])
_V = _T @ [0.4, -0.7] + np.random.default_rng(16).normal(0, 5.0, 120)


def _two_variables_model() -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.0)
        b = pm.Normal("b", 0.0, 2.0)
        pm.Normal("v", a + b * _T[:, 1], 5.0, observed=_V)
    return model


#: The parameters are correlated, so updating one on a stale value of the other is seen.
TWO_VARIABLES = Target(
    "two variables",
    _two_variables_model,
    _linear_gaussian(_T, _V, 5.0, np.zeros(2), np.diag([1.0, 4.0])),
)

# ---------------------------------------------------------------- for gradients: narrow, wide, ring and quartic

_NARROW = np.array([[1.0, 0.999], [0.999, 1.0]])
_N = np.random.default_rng(17).multivariate_normal([0.0, 3.0], _NARROW, size=200)


def _narrow_model() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10, shape=2)
        pm.MvNormal("y", mu, cov=_NARROW, observed=_N)
    return model


def _narrow_exact(temperature, n, rng):
    likelihood = temperature * len(_N) * np.linalg.inv(_NARROW)
    cov = np.linalg.inv(likelihood + np.eye(2) / 100)
    return rng.multivariate_normal(cov @ likelihood @ _N.mean(axis=0), cov, size=n)


#: Räisä (2021), correlation 0.999, with fewer records.
NARROW = Target("narrow", _narrow_model, _narrow_exact)


# Räisä (2021), the circle: log p(r | x, y) = -c (x^2 + y^2 - r^2)^2 and a flat prior. He has c = 1e-5 and N = 1e5, we
# 2e-4 and 500, that is a ring that is three times as wide.
_RING = 2e-4
_R = np.random.default_rng(19).normal(3.0, 1.0, 500)


def _circle_model() -> pm.Model:
    with pm.Model() as model:
        x, y = pm.Flat("x"), pm.Flat("y")
        pm.CustomDist(
            "r", x, y, logp=lambda r, x, y: -_RING * (x**2 + y**2 - r**2) ** 2, observed=_R
        )
    return model


def _circle_exact(temperature, n, rng):
    """The angle is uniform and, as area is, the squared radius is normal but for being positive."""
    mean, sd = np.mean(_R**2), (2 * temperature * _RING * len(_R)) ** -0.5
    square = stats.truncnorm.rvs(-mean / sd, np.inf, mean, sd, size=n, random_state=rng)
    angle = rng.uniform(0, 2 * np.pi, n)
    return np.sqrt(square)[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])


CIRCLE = Target("circle", _circle_model, _circle_exact)

#: Weights of the records of the quartic target; they add up to 1.
QUARTIC_PARTS = np.array([0.02, 0.03, 0.05, 0.1, 0.1, 0.15, 0.25, 0.3])


def _quartic_model() -> pm.Model:
    with pm.Model() as model:
        theta = pm.Flat("theta")
        pm.CustomDist(
            "part",
            theta,
            logp=lambda part, theta: -part * (theta**2) ** 2 / 4,
            observed=QUARTIC_PARTS,
        )
    return model


def _quartic_exact(temperature, n, rng):
    """``theta**4 / 4`` has a gamma law."""
    size = (4 * rng.gamma(0.25, 1 / temperature, size=n)) ** 0.25
    return (size * rng.choice([-1.0, 1.0], n))[:, None]


def quartic_moment(k: int) -> float:
    """``E |theta|**k`` under ``exp(-theta**4 / 4)``."""
    return 4 ** (k / 4) * gamma((k + 1) / 4) / gamma(1 / 4)


QUARTIC = Target("quartic", _quartic_model, _quartic_exact)


def move_between(step, old, new, distance=None):
    """A proposal as :meth:`transition` would make it."""
    states = [
        State(theta, step.likelihood.log_prior(theta))
        for theta in (np.asarray(old, dtype=float), np.asarray(new, dtype=float))
    ]
    if distance is None:
        distance = float(np.linalg.norm(states[1].theta - states[0].theta))
    return Move(*states, states[1].prior - states[0].prior, distance)


def decision_for(step, move):
    """What is charged for a move, as :meth:`transition` finds it."""
    return None if step.family is None else step.family.at(move.distance, abs(move.prior))
