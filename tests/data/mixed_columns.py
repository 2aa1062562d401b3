"""Columns of several types, and models of them, for tests of records in several places."""

import numpy as np
import pymc as pm


def columns(n, d):
    """A matrix of `d` floats, an index and an outcome."""
    rng = np.random.default_rng(1)
    return {
        "x": rng.normal(size=(n, d)),
        "group": rng.integers(0, 2, n),
        "y": rng.integers(0, 2, n).astype(np.int8),
    }


def model(x, group, y):
    """Logistic regression with two levels."""
    slope = pm.Normal("slope", 0, 1, shape=x.shape[1])
    level = pm.Normal("level", 0, 1, shape=2)
    pm.Bernoulli("outcome", logit_p=level[group] + x @ slope, observed=y)


def fed(function, columns):
    """The model that a function builds of ``pm.Data`` with the names of some columns, and none of their values."""
    with pm.Model() as found:
        data = {n: pm.Data(n, np.zeros((1, *c.shape[1:]), c.dtype)) for n, c in columns.items()}
        function(**data)
    return found
