"""Shared fixtures: small models whose posterior is known."""

import numpy as np
import pymc as pm
import pytest

from pymc_dp.privacy import memory
from tests.steps.targets import compiled_once


@pytest.fixture(autouse=True)
def data_are_new():
    """Each test has data of its own, though many are the same arrays: what others spent is not remembered."""
    memory.forget()
    yield
    memory.forget()


@pytest.fixture
def normal_model():
    """400 records around 1, unknown mean and known sd; a Deterministic that shows the data and one that does not."""
    y = np.random.default_rng(7).normal(1.0, 1.0, size=400) + 0.123456789
    with pm.Model(coords={"person": [f"patient-{i}" for i in range(400)]}) as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("y", mu, 1, observed=pm.Data("y_data", y, dims="person"), dims="person")
        pm.Deterministic("residual", mu - y)
        pm.Deterministic("squared", mu**2)
    with compiled_once("normal_model", only=model):
        yield model


@pytest.fixture
def two_variable_model():
    """Unknown mean and standard deviation."""
    y = np.random.default_rng(8).normal(0.5, 2.0, size=300)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        sigma = pm.HalfNormal("sigma", 5)
        pm.Normal("y", mu, sigma, observed=y)
    with compiled_once("two_variable_model", only=model):
        yield model
