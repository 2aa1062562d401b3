"""Small models of many kinds, each built from a dict of arrays with one row per record.

A model of one record is built from one row of each array, so that the likelihood of every record
can be had from PyMC alone and compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
import pytensor.tensor as pt

N = 7  # records
RNG = np.random.default_rng(7)
X = RNG.normal(size=(N, 3))
Z = RNG.normal(size=N)
Y2 = RNG.normal(size=(N, 2))
POSITIVE = RNG.gamma(2.0, size=N)
UNIT = RNG.uniform(0.05, 0.95, size=N)
BINARY = np.array([0, 1, 1, 0, 1, 0, 1])
COUNTS = np.array([0, 3, 1, 7, 2, 0, 4])
LEVELS = np.array([0, 1, 2, 0, 2, 1, 0])

Data = dict[str, np.ndarray]


@dataclass(frozen=True)
class PerProposalCost:
    """A model as a function of its data, which it adds to the model on the context stack."""

    name: str
    fill: Callable[[Data], None]
    data: Data
    coords: dict = field(default_factory=dict)

    def build(self, rows: slice = slice(None)) -> pm.Model:
        """The model of some records."""
        with pm.Model(coords=self.coords) as model:
            self.fill({name: array[rows] for name, array in self.data.items()})
        return model


FAMILIES: list[PerProposalCost] = []


def family(name: str, *, coords: dict | None = None, **data: np.ndarray):
    def register(fill):
        FAMILIES.append(PerProposalCost(name, fill, data, coords or {}))
        return fill

    return register


@family("normal regression", X=X, y=Z)
def _(d):
    beta = pm.Normal("beta", shape=3)
    sigma = pm.HalfNormal("sigma")
    pm.Normal("y", d["X"] @ beta, sigma, observed=d["y"])


@family("logistic", X=X, y=BINARY)
def _(d):
    pm.Bernoulli("y", logit_p=d["X"] @ pm.Normal("beta", shape=3), observed=d["y"])


@family("bernoulli, p from invlogit", X=X, y=BINARY)
def _(d):
    p = pm.Deterministic("p", pm.math.invlogit(d["X"] @ pm.Normal("beta", shape=3)))
    pm.Bernoulli("y", p=p, observed=d["y"])


@family("bernoulli, identity link", x=UNIT, y=BINARY)
def _(d):
    slope = pm.Normal("slope", 0.5, 0.1)
    pm.Bernoulli("y", p=0.3 + 0.2 * slope * d["x"], observed=d["y"])


@family("poisson", X=X, y=COUNTS)
def _(d):
    pm.Poisson("y", pt.exp(d["X"] @ pm.Normal("beta", 0, 0.3, shape=3)), observed=d["y"])


@family("negative binomial with exposure", x=Z, exposure=POSITIVE, y=COUNTS)
def _(d):
    mu = d["exposure"] * pt.exp(pm.Normal("a") + pm.Normal("b", 0, 0.3) * d["x"])
    pm.NegativeBinomial("y", mu=mu, alpha=pm.Exponential("alpha", 1), observed=d["y"])


@family("several observed", x=Z, y=BINARY, z=Y2)
def _(d):
    theta = pm.Normal("theta", shape=2)
    pm.Normal("x", theta[0], 2.0, observed=d["x"])
    pm.Normal("z", theta, 1.0, observed=d["z"])
    pm.Bernoulli("y", logit_p=theta[1] * d["x"], observed=d["y"])


@family("trailing axes", y=RNG.normal(size=(N, 2, 3)))
def _(d):
    pm.StudentT("y", nu=4, mu=pm.Normal("mu", shape=3), sigma=1.5, observed=d["y"])


@family("pm.Data", X=X, y=Z)
def _(d):
    x, y = pm.Data("X", d["X"]), pm.Data("y_data", d["y"])
    pm.Normal("y", pt.dot(x, pm.Normal("beta", shape=3)), 1.0, observed=y)


@family("coords", coords={"feature": list("abc")}, X=X, y=Z)
def _(d):
    x = pm.Data("X", d["X"], dims=("record", "feature"))
    beta = pm.Normal("beta", dims="feature")
    pm.Normal("y", (x * beta).sum(-1), pm.HalfCauchy("s", 1), observed=d["y"], dims="record")


@family("custom logp", x=Z, y=Y2)
def _(d):
    def logp(value, a, x):
        return -pt.abs(value - a * x[..., None]).sum(-1)

    a = pm.Normal("a", shape=2)
    pm.CustomDist("y", a, d["x"], logp=logp, observed=d["y"], signature="(k),()->(k)")


@family("normal mixture", y=Z)
def _(d):
    w = pm.Dirichlet("w", np.ones(2))
    mu = pm.Normal("mu", 0, 1.5, shape=2, initval=np.arange(2))
    pm.NormalMixture("y", w, mu=mu, sigma=pm.HalfNormal("s", shape=2), observed=d["y"])


@family("mixture of regressions", x=Z, y=COUNTS)
def _(d):
    parts = [pm.Poisson.dist(pt.exp(pm.Normal("a") * d["x"])), pm.Geometric.dist(0.3)]
    pm.Mixture("y", pm.Dirichlet("w", np.ones(2)), parts, observed=d["y"] + 1)


@family("zero inflated", x=Z, y=COUNTS)
def _(d):
    psi = pm.math.invlogit(pm.Normal("a") * d["x"])
    pm.ZeroInflatedPoisson("y", psi=psi, mu=pm.Exponential("mu", 1), observed=d["y"])


@family("censored", x=Z, y=np.clip(Z * 2, -1, 1))
def _(d):
    latent = pm.Normal.dist(pm.Normal("a") * d["x"], pm.HalfNormal("s"))
    pm.Censored("y", latent, lower=-1, upper=1, observed=d["y"])


@family("truncated", x=Z, y=UNIT)
def _(d):
    latent = pm.Normal.dist(pm.Normal("a") * d["x"], pm.HalfNormal("s"))
    pm.Truncated("y", latent, lower=0, upper=1, observed=d["y"])


@family("hierarchical", group=LEVELS, x=Z, y=COUNTS)
def _(d):
    mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
    a = pm.Normal("a", mu, tau, shape=3)
    slope = pm.Uniform("slope", -1, 1)
    pm.Poisson("y", pt.exp(a[d["group"]] + slope * d["x"]), observed=d["y"])


@family("multivariate normal, chol", y=Y2)
def _(d):
    chol = 1.5 * np.eye(2)
    pm.MvNormal("y", pm.Normal("mu", shape=2), chol=chol, observed=d["y"])


@family("multivariate normal, LKJ", y=Y2)
def _(d):
    chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))
    pm.MvNormal("y", np.zeros(2), chol=chol, observed=d["y"])


@family("categorical softmax", X=X, y=LEVELS)
def _(d):
    p = pm.math.softmax(d["X"] @ pm.Normal("beta", shape=(3, 3)), axis=-1)
    pm.Categorical("y", p=p, observed=d["y"])


@family("ordered logistic", x=Z, y=LEVELS)
def _(d):
    cuts = pm.Normal(
        "cuts", shape=2, transform=pm.distributions.transforms.ordered, initval=np.arange(2)
    )
    pm.OrderedLogistic("y", eta=pm.Normal("a") * d["x"], cutpoints=cuts, observed=d["y"])


@family("student t", X=X, y=Z)
def _(d):
    nu = pm.Gamma("nu", 2, 0.1)
    pm.StudentT("y", nu=nu, mu=d["X"] @ pm.Normal("b", shape=3), sigma=1, observed=d["y"])


@family("beta and gamma", x=Z, p=UNIT, y=POSITIVE)
def _(d):
    mean = pm.math.invlogit(pm.Normal("a") * d["x"])
    pm.Beta("p", mu=mean, nu=pm.Exponential("nu", 0.1) + 1, observed=d["p"])
    pm.Gamma("y", alpha=pm.Exponential("shape", 1), beta=pt.softplus(d["x"]), observed=d["y"])


@family("binomial", n=COUNTS + 2, x=Z, y=COUNTS)
def _(d):
    pm.Binomial("y", n=d["n"], logit_p=pm.Normal("a") * d["x"], observed=d["y"])


@family("multinomial", n=np.full(N, 3), x=Z, y=np.eye(3, dtype=int)[LEVELS] * 2 + [0, 1, 0])
def _(d):
    p = pm.math.softmax(d["x"][:, None] * pm.Normal("a", shape=3), axis=-1)
    pm.Multinomial("y", n=d["n"], p=p, observed=d["y"])


@family("dirichlet", y=RNG.dirichlet(np.ones(3), size=N))
def _(d):
    pm.Dirichlet("y", a=pm.Exponential("a", 1, shape=3), observed=d["y"])


@family("time series, one per record", y=RNG.normal(size=(N, 5)).cumsum(axis=1))
def _(d):
    rho = pm.Normal("rho", 0.3, 0.1, shape=2)
    pm.AR("y", rho, sigma=1.0, constant=True, init_dist=pm.Normal.dist(0, 1), observed=d["y"])


@family("potential without data", y=Z)
def _(d):
    mu = pm.Normal("mu", shape=2)
    pm.Potential("sum to zero", -(mu.sum() ** 2))
    pm.Normal("y", mu[0], 1.0, observed=d["y"])
