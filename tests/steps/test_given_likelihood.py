"""A step that is given a compiled likelihood: of its own model only."""

import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from pymc_dp import DPHMC, DPSGHMC, DPPenalty, PrivacyBudget, RandomWalk
from pymc_dp.model import RecordLikelihood

STEPS = {
    DPPenalty: {"clip_bound": 1.0, "proposal": RandomWalk(0.1)},
    DPHMC: {"clip_bound": 1.0, "step_size": 0.1, "n_leapfrog": 1, "gradient_clip_bound": 1.0, "gradient_noise_multiplier": 9.0},
    DPSGHMC: {"step_size": 0.1, "n_steps": 1, "gradient_clip_bound": 1.0, "friction": 50.0, "sampling_probability": 1.0},
}  # fmt: skip


def mean_of(y):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("y", mu, 1, observed=y)
    return model


@pytest.fixture(scope="module")
def model():
    return mean_of(np.random.default_rng(1).normal(size=60))


@pytest.fixture(scope="module")
def likelihood(model):
    return RecordLikelihood(model)


def copied(value):
    return pickle.loads(cloudpickle.dumps(value))


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("private", [True, False])
def test_of_another_model(kind, private, likelihood):
    """Refused before anything is registered, though names, shapes and even data are the same."""
    budget = PrivacyBudget(100.0, 1e-6, chains=1)
    for other in (mean_of(np.zeros(60)), mean_of(np.random.default_rng(1).normal(size=60))):
        for given in (likelihood, copied(likelihood)):
            with pytest.raises(ValueError, match="from another model"):
                kind(
                    budget=budget if private else None, model=other, likelihood=given, **STEPS[kind]
                )
    assert not budget.steps and not budget.ledger.claims()


@pytest.mark.parametrize("kind", STEPS)
def test_of_the_same_model_or_a_copy_of_it(kind, model, likelihood):
    """As worker processes get them."""
    for own in (model, copied(model)):
        for given in (likelihood, copied(likelihood)):
            budget = PrivacyBudget(100.0, 1e-6, chains=1)
            step = kind(budget=budget, model=own, likelihood=given, **STEPS[kind])
            assert step.likelihood is given and len(budget.steps) == 1
            assert copied(step).likelihood.n_records == 60
