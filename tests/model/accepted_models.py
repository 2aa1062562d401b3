"""Models that are accepted: entries of the table."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from tests.model.table_entries import (
    BINARY,
    COUNTS,
    GROUP_DATA,
    KNOTS,
    LEVELS,
    PANEL,
    POSITIVE,
    RNG,
    UNIT,
    Y2,
    N,
    X,
    Y,
    Z,
    basis_of,
    entry,
    hsgp,
)


@entry("normal regression", X=X, y=Y)
def _(d):
    pm.Normal("y", d["X"] @ pm.Normal("b", shape=3), pm.HalfNormal("s"), observed=d["y"])


@entry("logistic regression with pm.Data", X=X, y=BINARY)
def _(d):
    x = pm.Data("X", d["X"])
    pm.Bernoulli("y", logit_p=x @ pm.Normal("b", shape=x.shape[1]), observed=pm.Data("yd", d["y"]))


@entry("a constant column", x=np.full(N, 2.0), y=Y)
def _(d):
    pm.Normal("y", pm.Normal("b") * d["x"], 1.0, observed=d["y"])


@entry("censored observations by pm.Censored", x=Z, y=np.clip(Y, -1, 1))
def _(d):
    latent = pm.Normal.dist(pm.Normal("b") * d["x"], 1.0)
    pm.Censored("y", latent, lower=-1, upper=1, observed=d["y"])


@entry("censoring times by row", y=np.minimum(POSITIVE, UNIT * 4), upper=UNIT * 4)
def _(d):
    pm.Censored(
        "y", pm.Weibull.dist(pm.Exponential("a", 1), 2.0), None, d["upper"], observed=d["y"]
    )


@entry("truncated by row", y=np.abs(Y), low=-UNIT)
def _(d):
    pm.Truncated("y", pm.Normal.dist(pm.Normal("m"), 1.0), lower=d["low"], observed=d["y"])


@entry("groups by index", g=LEVELS, y=Y)
def _(d):
    a = pm.Normal("a", pm.Normal("m"), pm.HalfNormal("t"), shape=3)
    pm.Normal("y", a[d["g"]], 1.0, observed=d["y"])


@entry("groups with an offset that is not centred", g=LEVELS, y=COUNTS)
def _(d):
    a = pm.Normal("m") + pm.HalfNormal("t") * pm.Normal("z", shape=3)
    pm.Poisson("y", pt.exp(a[pm.Data("g", d["g"])]), observed=d["y"])


@entry("public data of groups", public=[GROUP_DATA], g=LEVELS, y=Y)
def _(d):
    a = pm.Normal("a") + pm.Normal("b") * GROUP_DATA
    pm.Normal("y", a[d["g"]], 1.0, observed=d["y"])


@entry("ZeroSumNormal", g=LEVELS, y=Y)
def _(d):
    pm.Normal("y", pm.ZeroSumNormal("a", shape=3)[d["g"]], 1.0, observed=d["y"])


@entry("multivariate normal rows", y=Y2)
def _(d):
    pm.MvNormal("y", pm.Normal("m", shape=2), cov=np.eye(2) + 0.5, observed=d["y"])


@entry("multivariate normal rows, public covariance", public=[[[2.0, 0.3], [0.3, 1.0]]], y=Y2)
def _(d):
    pm.MvNormal("y", pm.Normal("m", shape=2), cov=[[2.0, 0.3], [0.3, 1.0]], observed=d["y"])


@entry("multivariate normal rows, LKJ", y=Y2)
def _(d):
    chol, *_ = pm.LKJCholeskyCov("c", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=2))
    pm.MvNormal("y", np.zeros(2), chol=chol, observed=d["y"])


@entry("mixture", y=Y)
def _(d):
    w = pm.Dirichlet("w", np.ones(2))
    pm.NormalMixture("y", w, mu=pm.Normal("m", shape=2), sigma=1.0, observed=d["y"])


@entry("mixture, declared locations", public=["m"], y=Y)
def _(d):
    w = pm.Dirichlet("w", np.ones(2))
    pm.NormalMixture("y", w, mu=pm.Normal("m", [-1.0, 2.0], shape=2), sigma=1.0, observed=d["y"])


@entry("zero-inflated counts", x=Z, y=COUNTS - 1)
def _(d):
    psi = pm.math.invlogit(pm.Normal("a") * d["x"])
    pm.ZeroInflatedPoisson("y", psi=psi, mu=pm.Exponential("m", 1), observed=d["y"])


@entry("hurdle of positive amounts", x=Z, y=POSITIVE)
def _(d):
    pm.HurdleGamma("y", psi=0.9, alpha=pm.Exponential("a", 1), beta=pt.exp(d["x"]), observed=d["y"])


@entry("hurdle of counts", x=Z, y=COUNTS)
def _(d):
    mu = pt.exp(pm.Normal("b") * d["x"])
    pm.HurdlePoisson("y", psi=pm.Beta("p", 1, 1), mu=mu, observed=d["y"])


@entry("negative binomial with exposure", x=Z, e=POSITIVE, y=COUNTS)
def _(d):
    mu = d["e"] * pt.exp(pm.Normal("b") * d["x"])
    pm.NegativeBinomial("y", mu=mu, alpha=pm.Exponential("a", 1), observed=d["y"])


@entry("Student t", X=X, y=Y)
def _(d):
    pm.StudentT("y", nu=pm.Gamma("int", 2, 0.1), mu=d["X"] @ pm.Normal("1|g", shape=3), sigma=1.0, observed=d["y"])  # fmt: skip


@entry("ordered outcomes, public cutpoints", public=[[-1.0, 1.5]], x=Z, y=LEVELS)
def _(d):
    pm.OrderedLogistic("y", eta=pm.Normal("a") * d["x"], cutpoints=[-1.0, 1.5], observed=d["y"])


@entry("softmax of three classes", X=X, y=LEVELS)
def _(d):
    p = pm.math.softmax(d["X"] @ pm.Normal("b", shape=(3, 3)), axis=-1)
    pm.Categorical("y", p=p, observed=d["y"])


@entry("binomial with numbers of trials", n=COUNTS + 3, x=Z, y=COUNTS)
def _(d):
    pm.Binomial("y", n=d["n"], logit_p=pm.Normal("a") * d["x"], observed=d["y"])


@entry("a series on each row", y=PANEL)
def _(d):
    pm.AR("y", pm.Normal("r", shape=1), sigma=1.0, init_dist=pm.Normal.dist(), observed=d["y"])


@entry("a random walk on each row", y=PANEL)
def _(d):
    start = pm.Normal.dist()
    pm.GaussianRandomWalk("y", mu=pm.Normal("m"), sigma=1.0, init_dist=start, observed=d["y"])


@entry("lags within a row", y=PANEL)
def _(d):
    series = pm.Data("series", d["y"])
    pm.Normal("y", pm.Normal("r") * series[:, :-1], 1.0, observed=series[:, 1:])


@entry("lags within a person", records=np.arange(N) // 2, y=Y)
def _(d):
    y = pm.Data("series", d["y"])
    pm.Normal("y", y.reshape((-1, 2))[:, ::-1].flatten() * pm.Normal("r"), 1.0, observed=y)


@entry("rows of a longer container", y=np.append(Y, 0.5), x=Z)
def _(d):
    y = pm.Data("series", d["y"])
    pm.Normal("y", pm.Normal("b") * d["x"], 1.0, observed=y[1:])


@entry("columns of one table", t=X)
def _(d):
    t = pm.Data("t", d["t"])
    pm.Normal("y", pm.Normal("b") * t[:, 0] + t[:, 1], 1.0, observed=t[:, 2])


@entry("a flat panel, reshaped", x=RNG.normal(size=(N, 2, 3)), y=Y2)
def _(d):
    mean = (pm.Data("x", d["x"]).reshape((2 * N, 3)) @ pm.Normal("b", shape=3)).reshape((N, 2))
    pm.Normal("y", mean, 1.0, observed=d["y"])


@entry("a custom likelihood", x=Z, y=Y)
def _(d):
    def logp(value, a, x):
        return -pt.abs(value - a * x)

    pm.CustomDist("y", pm.Normal("a"), d["x"], logp=logp, observed=d["y"])


@entry("a custom likelihood that captures a column", x=Z, y=Y)
def _(d):
    def logp(value, a):
        return -pt.abs(value - a * pt.as_tensor(d["x"]))

    pm.CustomDist("y", pm.Normal("a"), logp=logp, observed=d["y"])


@entry("a custom distribution without captured arrays", y=Y)
def _(d):
    def dist(m, size):
        return pm.Normal.dist(m, 1.0, size=size) + 1.0

    pm.CustomDist("y", pm.Normal("m"), dist=dist, observed=d["y"])


@entry("two observed variables", x=Z, y=BINARY)
def _(d):
    a = pm.Normal("a")
    pm.Normal("x", a, 1.0, observed=d["x"])
    pm.Bernoulli("y", logit_p=a * d["x"], observed=d["y"])


@entry("one observed variable in the mean of another", x=Z, y=Y)
def _(d):
    x = pm.Normal("x", pm.Normal("a"), 1.0, observed=d["x"])
    pm.Normal("y", pm.Normal("b") * x, 1.0, observed=d["y"])


@entry("centred by public numbers", x=Z, y=Y)
def _(d):
    pm.Normal("y", pm.Normal("b") * (pm.Data("x", d["x"]) - 40.0) / 15.0, 1.0, observed=d["y"])


@entry("centred columns that are public", public=["X"], x=X, y=Y)
def _(d):
    x = pm.Data("X", X)
    pm.Normal("y", (x - x.mean(axis=0)) @ pm.Normal("b", shape=3), 1.0, observed=d["y"])


@entry("splines with public knots", public=[KNOTS], x=Z, y=Y)
def _(d):
    basis = pt.maximum(pt.as_tensor(d["x"])[:, None] - KNOTS, 0.0) ** 3
    pm.Normal("y", basis @ pm.Normal("b", shape=4), 1.0, observed=d["y"])


@entry("HSGP with a centre from public bounds", public=[[0.5], [3.0]], x=Z, y=Y)
def _(d):
    gp = hsgp(pm.Gamma("l", 2, 1))
    gp.prior_linearized(np.array([[-2.0], [3.0]]))  # PyMC keeps the centre of its first call
    pm.Normal("y", basis_of(gp, d["x"][:, None]), 1.0, observed=d["y"])


@entry("priors with public arrays", public=["b"], X=X, y=Y)
def _(d):
    b = pm.Normal("b", np.array([0.1, -0.4, 0.9]), np.array([1.0, 2.0, 3.0]))
    pm.Normal("y", d["X"] @ b, 1.0, observed=d["y"])


@entry("priors with zeros, ones and identities", X=X, y=Y)
def _(d):
    b = pm.MvNormal("b", np.zeros(3), cov=2.0 * np.eye(3))
    pm.Normal("y", d["X"] @ b, 1.0, observed=d["y"])


@entry("a potential of parameters", y=Y)
def _(d):
    m = pm.Normal("m", shape=2)
    pm.Potential("sum to zero", -(m.sum() ** 2))
    pm.Normal("y", m[0], 1.0, observed=d["y"])


@entry("a potential with declared weights", public=["penalty"], y=Y)
def _(d):
    m = pm.Normal("m", shape=3)
    pm.Potential("penalty", -((m * np.array([1.0, 2.0, 4.0])).sum() ** 2))
    pm.Normal("y", m[0], 1.0, observed=d["y"])


@entry("a neural network", X=X, y=BINARY)
def _(d):
    hidden = pt.tanh(d["X"] @ pm.Normal("w", shape=(3, 4)))
    pm.Bernoulli("y", logit_p=hidden @ pm.Normal("v", shape=4), observed=d["y"])
