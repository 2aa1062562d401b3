"""Audit of DPControlVariate from outside: what is released must not tell which of two data sets was used.

They differ in one record, which lies far out on one side in the one, on the other side in the other. Short runs release a sum of
gradients and draws. Who knows all other records asks on which side the sum is, and on which side the draws. Clopper-Pearson bounds
on both errors of each of these tests give a lower bound on epsilon, and on mu of Gaussian differential privacy: below what the
budget allows, within a factor of three of it, and above it if a fault is planted.

Draws tell little, even if half of the budget is for decisions: no record has its largest influence on all of them. What one
decision tells at most is audited in test_control_variate.py.
"""

from __future__ import annotations

import functools

import numpy as np
import pymc as pm
import pytest

from pymc_dp import (
    DPControlVariate,
    PrivacyBudget,
    RecordLikelihood,
    SurrogateChoice,
    preparation,
    private_surrogate,
    surrogates,
)
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy import memory
from pymc_dp.privacy.accounting import calibrate
from pymc_dp.privacy.mechanisms import Gaussian
from pymc_dp.privacy.noise import SeededBits
from pymc_dp.starting import PrivateStart
from pymc_dp.steps import base
from pymc_dp.steps import features as regression
from pymc_dp.steps import surrogate as chains
from tests.audit import lower_bounds as errors

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
]

EPSILON, DELTA = 2.0, 0.01
N, FAR, REFERENCE = 200, 50.0, -0.1
START = PrivateStart(
    point={"theta": np.array(REFERENCE)}, theta=np.array([REFERENCE]), precision=np.array([[float(N)]]),
    noise=np.zeros((1, 1)), path=[], noise_multiplier=1.0,
)  # fmt: skip


def choice(part):
    """The sum takes this part of the budget. One gradient in three is clipped, and one in ten of what is left."""
    return SurrogateChoice(
        gradient_clip_bound=1.0, gradients_clipped=0.3, within=0.9, part=part, noise=0.2, bias=0.1, draws=20.0,
        effective_draws=7.0, noise_multiplier=calibrate(lambda z: [(Gaussian(z), 1 / part)], EPSILON, DELTA),
    )  # fmt: skip


@functools.cache
def built():
    """Models and likelihoods of both data sets; simulated records, which are the same for both."""
    both = []
    for side in (-1, 1):
        y = np.random.default_rng(5).normal(0.0, 1.0, N)
        y[0] = side * FAR
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("theta", 0, 10), 1.0, observed=y)
        both.append((model, RecordLikelihood(model)))
    return both, preparation.simulation(model, None, False, None)


def chain(model, budget, surrogate, rng):
    """Draws, until the budget is spent; none if it does not pay for a decision."""
    try:
        step = DPControlVariate(budget=budget, surrogate=surrogate, reproducible=True, model=model)
        step.set_rng(rng)
        step.stop_tuning()
        point = {"theta": np.array(REFERENCE)}
        for _ in range(200):
            point, (row,) = step.step(point)
            if row["exhausted"]:
                return
            yield float(point["theta"])
    except PrivacyBudgetExhausted:
        return


def sides(k, seed, part, fault):
    """Of a run on data set ``k``: what speaks for the second one, in the sum and in the draws."""
    both, simulated = built()
    model, likelihood = both[k]
    memory.forget()  # each run is a world of its own
    budget = PrivacyBudget(EPSILON, DELTA, chains=1)
    with pytest.MonkeyPatch.context() as patch:
        for module in (preparation, base):
            patch.setattr(module, "RecordLikelihood", lambda *_, **__: likelihood)
        patch.setattr(preparation, "SimulatedRecords", lambda *_, **__: simulated)
        bits = SeededBits(np.random.default_rng([seed, k, 1]))
        patch.setattr(surrogates, "OperatingSystemBits", lambda: bits)
        patch.setattr(chains, "_LENGTHS", (250,))  # how well the surrogate is explored is no secret
        patch.setattr(regression, "_RECORDS", 200)
        if fault:
            fault(patch, likelihood)
        surrogate = private_surrogate(
            budget=budget, start=START, choice=choice(part), random_seed=1, model=model
        )
        draws = list(chain(model, budget, surrogate, np.random.default_rng([seed, k, 2])))
    assert len(draws) < 200 and budget.spent() <= EPSILON

    features = surrogate.features
    sums = [features.of(x.gradients(features.theta)).sum() for _, x in both]
    beyond = np.mean(draws) - np.mean(surrogate.draws) if draws else 0.0
    return surrogate.total[0] - np.mean(sums), beyond


def lower_bounds(n, seed, part, fault=None):
    """On epsilon and on mu, from `n` runs on each data set."""
    found = np.array([[sides(k, 1000 * seed + run, part, fault) for run in range(n)] for k in (0, 1)])  # fmt: skip
    wrong = zip(np.sum(found[0] > 0, axis=0), np.sum(found[1] <= 0, axis=0), strict=True)
    return np.max([errors.lower_bounds(w, n, DELTA) for w in wrong], axis=0)


def test_runs_tell_no_more_than_allowed():
    epsilon, mu = lower_bounds(250, seed=1, part=0.8)
    allowed = errors.mu_allowed(EPSILON, DELTA)
    assert epsilon <= EPSILON and allowed / 3 < mu <= allowed


def gradient_is_not_clipped(patch, likelihood):
    real = type(likelihood).clipped_grad_steps
    patch.setitem(
        likelihood.__dict__, "clipped_grad_steps", lambda theta, bound, **options: real(likelihood, theta, 1e2, **options)
    )  # fmt: skip


def rest_is_not_clipped(patch, likelihood):
    real = type(likelihood).clipped_sum
    patch.setitem(likelihood.__dict__, "clipped_sum", lambda new, old, bound: real(likelihood, new, old, 1e3))  # fmt: skip


def noise_is_for_a_tenth(patch, likelihood):
    patch.setattr(surrogates, "sides_of", lambda budget: 0.2)


FAULTS = {gradient_is_not_clipped: 0.8, rest_is_not_clipped: 0.5, noise_is_for_a_tenth: 0.8}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault):
    epsilon, mu = lower_bounds(50, 1, FAULTS[fault], fault)
    assert epsilon > EPSILON and mu > errors.mu_allowed(EPSILON, DELTA)
