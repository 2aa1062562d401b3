"""DPSGHMC on two models with linear gradients: how to build a step, and watch its randomness."""

import numpy as np
import pymc as pm
import pytest

from pymc_dp import DPSGHMC
from pymc_dp.model import RecordLikelihood
from pymc_dp.steps import base, sghmc
from pymc_dp.steps import noisy_gradients as gradients

QUIET = {"progressbar": False, "compute_convergence_checks": False}
LIMIT = 5.0  # standard deviations; some 200 comparisons
DENSE = np.array([[2.0, 0.6], [0.6, 0.5]])

# ---------------------------------------------------------------- two models with linear gradients

N = 60
W = np.column_stack([np.ones(N), np.random.default_rng(21).normal(0.5, 1.0, N)])
Y = W @ [0.4, -0.8] + np.random.default_rng(22).normal(0, 1.5, N)
REGRESSION_SD, PRIOR_SD = 1.5, 2.0

with pm.Model() as REGRESSION:
    pm.Normal("y", W @ pm.Normal("beta", 0, PRIOR_SD, shape=2), REGRESSION_SD, observed=Y)

X = np.random.default_rng(23).normal(0.7, 2.0, N)
MEAN_SD = 2.0

with pm.Model() as MEAN:
    pm.Normal("y", pm.Normal("mu", 0, 1), MEAN_SD, observed=X)


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch):
    """Steps on the models above share their compiled likelihoods, which hold no state."""
    monkeypatch.setattr(base, "RecordLikelihood", shared_likelihood)


LIKELIHOODS = {}


def shared_likelihood(model, **options):
    if model not in (REGRESSION, MEAN) or any(v is not None for v in options.values()):
        return RecordLikelihood(model, **options)
    if id(model) not in LIKELIHOODS:
        LIKELIHOODS[id(model)] = RecordLikelihood(model)
    return LIKELIHOODS[id(model)]


def constant(step_size):
    return lambda t: step_size


def make(model, kind=DPSGHMC, **options):
    """A step that records its paths; without privacy by default."""
    defaults = {
        "budget": None, "step_size": constant(0.05), "n_steps": 5, "gradient_clip_bound": 100.0, "friction": 3.0,
        "reproducible": True,
    }  # fmt: skip
    options = defaults | options
    if not {"batch_size", "sampling_probability"} & set(options):
        options["sampling_probability"] = 1.0
    options.setdefault("record_trajectories", options["budget"] is None)
    return kind(model=model, **options)


def start(step, seed=0):
    """As PyMC begins a chain."""
    step.set_rng(np.random.default_rng(seed))
    step.stop_tuning()
    return step


def sampled_path(step, theta, draws=1, seed=0):
    """Positions and momenta (steps + 1, 2, d) of draws that follow on each other."""
    start(step, seed)
    point = step.likelihood.unravel(np.asarray(theta, dtype=float))
    for _ in range(draws):
        point, _ = step.step(point)
    return [[(p.theta, p.momentum) for p in t.phases] for t in step.trajectories]


def record_randomness(monkeypatch):
    """Batches and noise on their sums, in the order they are drawn; and the noise's standard deviation."""
    batches, noises, scales = [], [], []
    noisy_sum = gradients.noisy_sum

    def noise(steps, exponent, scale, bits):
        total = noisy_sum(steps, exponent, scale, bits)
        noises.append(total - np.ldexp(steps.astype(float), exponent))
        scales.append(scale)
        return total

    monkeypatch.setattr(gradients, "noisy_sum", noise)
    for name in ("poisson", "without_replacement"):
        drawn = getattr(sghmc, name)
        monkeypatch.setattr(
            sghmc, name, lambda *a, d=drawn: (batches.append(d(*a)), batches[-1])[1]
        )
    return batches, noises, scales
