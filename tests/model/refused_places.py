"""Models that would show positions, numbers or initial values of records, and accepted ones: entries of the table."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from tests.model.table_entries import (
    COUNTS,
    INITIAL,
    POSITION,
    POSITIVE,
    POTENTIAL,
    PRIOR,
    N,
    X,
    Y,
    Z,
    entry,
)

# --- positions and numbers of rows, which are private under add/remove --------------------------

ADD_REMOVE = {"adjacency": "add_remove", "refused": POSITION}


@entry("even and odd rows", **ADD_REMOVE, y=Y)
def _(d):
    a, b = pm.Normal("a"), pm.Normal("b")
    pm.Normal("y", a + b * (pt.arange(len(d["y"])) % 2), 1.0, observed=d["y"])


@entry("parameters of even and odd rows", **ADD_REMOVE, y=Y)
def _(d):
    pm.Normal("y", pm.Normal("b", shape=2)[pt.arange(N) % 2], 1.0, observed=d["y"])


@entry("the number of rows in a likelihood", **ADD_REMOVE, x=Z, y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    pm.Normal("y", pm.Normal("b") * x, 1.0 / x.shape[0], observed=d["y"])


@entry("the number of rows by a sum of ones", **ADD_REMOVE, x=Z, y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    pm.Normal(
        "y", pm.Normal("a") + pm.Normal("b") * pt.ones_like(x).sum() + x, 1.0, observed=d["y"]
    )


@entry("the number of rows by a product of ones", **ADD_REMOVE, x=Z, y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    ones = pt.ones_like(x)
    pm.Normal("y", pm.Normal("a") / pt.dot(ones, ones) + x, 1.0, observed=d["y"])


@entry("the number of rows of a constant", **ADD_REMOVE, x=Z, y=Y)
def _(d):
    x = pt.as_tensor(d["x"])
    pm.Normal("y", pm.Normal("b") * x, 1.0 / x.shape[0], observed=d["y"])


@entry("the number of rows of a constant whose values are not used", **ADD_REMOVE, x=Z, y=COUNTS)
def _(d):
    mu = pm.math.exp(pm.Normal("a") / pt.as_tensor(d["x"]).size)
    pm.ZeroInflatedPoisson("y", psi=0.5, mu=mu, observed=d["y"])


@entry("the number of rows by a range, in a hurdle", **ADD_REMOVE, x=Z, y=COUNTS)
def _(d):
    x = pm.Data("x", d["x"])
    mu = pm.math.exp(pm.Normal("a") * x / pt.arange(x.shape[0])[-1])
    pm.HurdlePoisson("y", psi=0.5, mu=mu, observed=d["y"])


@entry("the number of rows as a number of columns", **ADD_REMOVE, x=Z, y=Y)
def _(d):
    x = pm.Data("x", np.stack([d["x"], d["x"]]))
    pm.Normal("y", pm.Normal("a") * x[0] / x.shape[1], 1.0, observed=d["y"])


@entry("the number of some persons", **ADD_REMOVE, y=Y)
def _(d):
    pm.Normal("y", pm.Normal("a") / pm.Data("some", d["y"][:9]).shape[0], 1.0, observed=d["y"])


@entry("the number of rows as the size of a distribution", **ADD_REMOVE, x=X, y=Y)
def _(d):
    def dist(a, size):
        try:
            a = a * pt.as_tensor_variable(size)[0]
        except TypeError:  # PyMC calls it without a size as well
            pass
        return pm.Normal.dist(a, 1.0, size=size)

    size = pm.Data("x", d["x"]).shape[:1]
    pm.CustomDist("y", pm.Normal("a"), dist=dist, size=size, observed=d["y"])


@entry("the number of rows in a prior", **ADD_REMOVE, x=Z, y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    pm.Normal("y", pm.Normal("b", 0, 1 / pt.sqrt(x.shape[0])) * x, 1.0, observed=d["y"])


@entry("the number of rows in a potential", **ADD_REMOVE, x=X, y=Y)
def _(d):
    b, x = pm.Normal("b", shape=3), pm.Data("x", d["x"])
    pm.Potential("p", -((2.0 * x).size * b).sum())
    pm.Normal("y", x @ b, 1.0, observed=d["y"])


@entry("a time trend by row number", **ADD_REMOVE, y=Y)
def _(d):
    pm.Normal("y", pm.Normal("b") * np.arange(N), 1.0, observed=d["y"])


@entry("a public array with a row for each record", **ADD_REMOVE, public=[Z], y=Y)
def _(d):
    pm.Normal("y", pm.Normal("b") * Z, 1.0, observed=d["y"])


# --- lengths that no parameter has --------------------------------------------------------------

LENGTH = POTENTIAL + ".*which no parameter has|" + POTENTIAL + ".*whose length no parameter has"


@entry("line 8: one censoring time, as often as persons are censored", refused=LENGTH, y=POSITIVE)
def _(d):
    a, b = pm.Exponential("a", 1), pm.Exponential("b", 1)
    pm.Weibull("y", a, b, observed=d["y"])
    pm.Potential("censored", -((np.full(5, 2.5) / b) ** a))


@entry("nobody is censored", refused=LENGTH, y=POSITIVE)
def _(d):
    a, b = pm.Exponential("a", 1), pm.Exponential("b", 1)
    pm.Weibull("y", a, b, observed=d["y"])
    pm.Potential("censored", -((np.full(0, 2.5) / b) ** a))


@entry("one censoring time, repeated in the graph", refused=LENGTH, y=POSITIVE)
def _(d):
    a, b = pm.Exponential("a", 1), pm.Exponential("b", 1)
    pm.Weibull("y", a, b, observed=d["y"])
    pm.Potential("censored", -((pt.full((5,), 2.5) / b) ** a))


@entry("one censoring time, times the number of the censored", refused=LENGTH, y=POSITIVE)
def _(d):
    b, times = pm.Exponential("b", 1), pm.Data("times", d["y"][:5])
    pm.Exponential("y", 1 / b, observed=d["y"])
    pm.Potential("censored", -times.shape[0] * 2.5 / b)


@entry("a parameter, as often as persons are censored", refused=LENGTH, y=POSITIVE)
def _(d):
    b = pm.Exponential("b", 1, shape=2)
    pm.Exponential("y", b[0], observed=d["y"])
    pm.Potential("censored", -(2.5 * b[np.zeros(5, dtype=int)]))


@entry("a pattern of private length in a prior", refused=PRIOR, y=Y)
def _(d):
    pm.Normal("y", pm.Normal("a", pt.as_tensor(np.full(5, 2.5)).sum(), 1.0), 1.0, observed=d["y"])


@entry("an integer with an axis in a prior", refused=PRIOR, y=Y)
def _(d):
    a = pm.Normal("a", np.array([int(d["y"][0] > 0) + 5]), 1.0)
    pm.Normal("y", a[0], 1.0, observed=d["y"])


@entry("a truth value with an axis in a prior", refused=PRIOR, y=Y)
def _(d):
    a = pm.Normal("a", pt.switch(np.array([d["y"].mean() > 0]), 1.0, -1.0), 1.0)
    pm.Normal("y", a[0], 1.0, observed=d["y"])


@entry("patterns as long as parameters", y=Y)
def _(d):
    chol, *_ = pm.LKJCholeskyCov("c", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=2))
    a = pm.MvNormal("a", np.zeros(2), chol=chol, shape=(3, 2), initval=np.zeros((3, 2)))
    cuts = pm.Normal(
        "cuts", np.zeros(4), transform=pm.distributions.transforms.ordered, initval=np.arange(4)
    )
    pm.Potential("p", -((a[np.arange(3), np.zeros(3, dtype=int)] * np.ones(3)).sum() ** 2))
    pm.Normal("y", a[0, 0] + cuts[0], 1.0, observed=d["y"])


# --- initial values, and functions that draw ----------------------------------------------------


@entry("an initial value in the graph", refused=INITIAL, x=Z, y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    pm.Normal("y", pm.Normal("b", initval=x.max()) * x, 1.0, observed=d["y"])


@entry("initial values", refused=INITIAL, y=Y)
def _(d):
    pm.Normal("y", pm.Normal("b", shape=3, initval=d["y"][:3])[0], 1.0, observed=d["y"])


@entry("initial values that are declared", public=["b"], y=Y)
def _(d):
    b = pm.Normal("b", shape=3, initval=np.array([0.2, -0.7, 1.9]))
    pm.Normal("y", b[0], 1.0, observed=d["y"])


@entry("an initial value by a function that captures data", refused=INITIAL, y=Y)
def _(d):
    b = pm.CustomDist(
        "b", logp=lambda v: -(v**2), support_point=lambda rv, size: pt.as_tensor(d["y"]).mean()
    )
    pm.Normal("y", b, 1.0, observed=d["y"])


@entry("a prior that is drawn by a function that captures data", refused="is drawn by", y=Y)
def _(d):
    b = pm.CustomDist("b", logp=lambda v: -(v**2), random=lambda rng=None, size=None: d["y"][0])
    pm.Normal("y", b, 1.0, observed=d["y"])
