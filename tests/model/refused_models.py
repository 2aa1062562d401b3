"""Models that are refused, and accepted ones that differ from them in one detail: entries of the table."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.scalar as ps
import pytensor.tensor as pt
import scipy.sparse

from pymc.logprob.utils import CheckParameterValue
from pytensor import scan, sparse
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import as_op
from pytensor.gradient import disconnected_grad
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise

from tests.model.table_entries import (
    ALL,
    BINARY,
    COUNTS,
    CURVE,
    GROUP_DATA,
    KNOTS,
    LEVELS,
    POINTS,
    POSITIVE,
    POTENTIAL,
    PRIOR,
    RNG,
    SEVERAL,
    UNIT,
    WHOLE,
    N,
    X,
    Y,
    Z,
    basis_of,
    entry,
    hsgp,
)

CENSORED = BINARY == 1


@entry(
    "survival idiom: a potential of the censored", refused=POTENTIAL + ".*pm.Censored", y=POSITIVE
)
def _(d):
    a, b = pm.Exponential("a", 1), pm.Exponential("b", 1)
    pm.Weibull("y", a, b, observed=d["y"][~CENSORED])
    pm.Potential("censored", -((d["y"][CENSORED] / b) ** a).sum())


@entry("survival idiom, by row", refused=POTENTIAL, y=POSITIVE)
def _(d):
    a, b = pm.Exponential("a", 1), pm.Exponential("b", 1)
    pm.Weibull("y", a, b, observed=d["y"][~CENSORED])
    pm.Potential("censored", -((d["y"][CENSORED] / b) ** a))


@entry("a potential of data that are reshaped", refused=POTENTIAL, y=Y)
def _(d):
    m = pm.Normal("m")
    pm.Normal("y", m, 1.0, observed=d["y"])
    pm.Potential("p", -((d["y"].reshape(2, -1) - m) ** 2).sum())


@entry("a potential of a sum in the graph", refused=POTENTIAL, y=Y)
def _(d):
    m = pm.Normal("m")
    pm.Normal("y", m, 1.0, observed=d["y"])
    pm.Potential("p", m * pt.as_tensor(d["y"]).sum())


@entry("a potential of pm.Data of another length", refused=POTENTIAL, y=Y)
def _(d):
    m = pm.Normal("m")
    pm.Normal("y", m, 1.0, observed=d["y"])
    pm.Potential("p", -((pm.Data("others", d["y"][:5]) - m) ** 2).sum())


@entry("a potential of an observed variable", refused=POTENTIAL, y=Y)
def _(d):
    m = pm.Normal("m")
    y = pm.Normal("y", m, 1.0, observed=d["y"])
    pm.Potential("p", -((y - m) ** 2).sum())


@entry("a prior of group means", refused=PRIOR, g=LEVELS, y=Y)
def _(d):
    means = np.array([d["y"][d["g"] == k].mean() for k in range(3)])
    pm.Normal("y", pm.Normal("a", means, 1.0)[d["g"]], 1.0, observed=d["y"])


@entry("a prior of a mean in the graph", refused=PRIOR, y=Y)
def _(d):
    pm.Normal("y", pm.Normal("a", pt.as_tensor(d["y"]).mean(), 1.0), 1.0, observed=d["y"])


@entry("a prior of pm.Data", refused=PRIOR, x=Z, y=Y)
def _(d):
    pm.Normal("y", pm.Normal("a", 0, pm.Data("x", d["x"]).std()), 1.0, observed=d["y"])


@entry("a custom prior that captures data", refused=PRIOR, y=Y)
def _(d):
    def logp(value):
        return -((value - pt.as_tensor(d["y"])) ** 2).sum()

    pm.Normal("y", pm.CustomDist("a", logp=logp), 1.0, observed=d["y"])


@entry("a custom prior distribution that captures data", refused=PRIOR, y=Y)
def _(d):
    def dist(size):
        return pm.Normal.dist(pt.as_tensor(d["y"]).mean(), 1.0, size=size)

    pm.Normal("y", pm.CustomDist("a", dist=dist), 1.0, observed=d["y"])


@entry("a custom likelihood that captures all of a column", refused=ALL, x=Z, y=Y)
def _(d):
    def logp(value, a):
        x = pt.as_tensor(d["x"])
        return -pt.abs(value - a * (x - x.mean()))

    pm.CustomDist("y", pm.Normal("a"), logp=logp, observed=d["y"])


@entry("a custom likelihood that captures other numbers", refused=ALL, y=Y)
def _(d):
    def logp(value, a):
        return -pt.abs(value - a * pt.as_tensor(d["y"][:5]).sum())

    pm.CustomDist("y", pm.Normal("a"), logp=logp, observed=d["y"])


@entry("a custom distribution that captures data", refused="inside", y=Y)
def _(d):
    def dist(m, size):
        return pm.Normal.dist(m + pt.as_tensor(d["y"]).mean(), 1.0, size=size)

    pm.CustomDist("y", pm.Normal("m"), dist=dist, observed=d["y"])


@entry("centred in the graph", refused=ALL, x=Z, y=Y)
def _(d):
    x = pt.as_tensor(d["x"])
    pm.Normal("y", pm.Normal("b") * (x - x.mean()), 1.0, observed=d["y"])


@entry("centred pm.Data", refused=ALL, x=X, y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    pm.Normal("y", (x - x.mean(axis=0)) @ pm.Normal("b", shape=3), 1.0, observed=d["y"])


@entry("a constant column, centred", refused=ALL, x=np.full(N, 2.0), y=Y)
def _(d):
    x = pt.as_tensor(d["x"])
    pm.Normal("y", pm.Normal("b") * (x - x.mean()), 1.0, observed=d["y"])


@entry("scaled by a maximum", refused=ALL, x=POSITIVE, y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    pm.Normal("y", pm.Normal("b") * x / x.max(), 1.0, observed=d["y"])


@entry("dependence that is switched on far away", refused=ALL, x=Z, y=Y)
def _(d):
    b, x = pm.Normal("b"), pm.Data("x", d["x"])
    pm.Normal("y", b * x + pt.switch(b > 50, x.sum(), 0.0), 1.0, observed=d["y"])


@entry("HSGP centred on the data", refused="an array of shape .1,.|X_center", x=Z, y=Y)
def _(d):
    gp = hsgp(pm.Gamma("l", 2, 1))
    pm.Normal("y", gp.prior("f", d["x"][:, None]), 1.0, observed=d["y"])


@entry("HSGP centred on pm.Data in two dimensions", refused=ALL, x=X[:, :2], y=Y)
def _(d):
    gp = pm.gp.HSGP(m=[3, 3], L=[3.0, 3.0], cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
    pm.Normal("y", basis_of(gp, pm.Data("x", d["x"])), 1.0, observed=d["y"])


@entry("HSGP with a boundary from the data", refused=ALL, public=[[0.5]], x=Z, y=Y)
def _(d):
    gp = pm.gp.HSGP(m=[4], c=1.5, cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
    gp.prior_linearized(np.array([[-2.0], [3.0]]))
    pm.Normal("y", basis_of(gp, d["x"][:, None]), 1.0, observed=d["y"])


@entry("splines with knots that are not declared", refused=ALL, x=Z, y=Y)
def _(d):
    basis = pt.maximum(pt.as_tensor(d["x"])[:, None] - KNOTS, 0.0) ** 3
    pm.Normal("y", basis @ pm.Normal("b", shape=4), 1.0, observed=d["y"])


@entry("data of groups that are not declared", refused=ALL, g=LEVELS, y=Y)
def _(d):
    a = pm.Normal("a") + pm.Normal("b") * GROUP_DATA
    pm.Normal("y", a[d["g"]], 1.0, observed=d["y"])


@entry(
    "a Gaussian process over the records", refused="one number for all its rows|" + WHOLE, x=Z, y=Y
)
def _(d):
    gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Gamma("l", 2, 1)))
    gp.marginal_likelihood("y", X=d["x"][:, None], y=d["y"], sigma=1.0)


@entry("a latent Gaussian process over the records", refused=".", x=Z, y=Y)
def _(d):
    gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Gamma("l", 2, 1)))
    pm.Normal("y", gp.prior("f", X=d["x"][:, None]), 1.0, observed=d["y"])


@entry("one time series", refused="one number for all its rows", y=Y)
def _(d):
    pm.AR("y", pm.Normal("r", shape=1), sigma=1.0, init_dist=pm.Normal.dist(), observed=d["y"])


@entry("lags of one series", refused=SEVERAL, y=np.append(Y, 0.5))
def _(d):
    y = pm.Data("series", d["y"])
    pm.Normal("y", y[:-1] * pm.Normal("r"), 1.0, observed=y[1:])


@entry("lags sliced in NumPy", refused="observations of other rows", y=np.append(Y, 0.5))
def _(d):
    pm.Normal("y", d["y"][:-1] * pm.Normal("r"), 1.0, observed=d["y"][1:])


@entry("lags across persons", refused=SEVERAL, records=np.roll(np.arange(N) // 2, 1), y=Y)
def _(d):
    y = pm.Data("series", d["y"])
    pm.Normal("y", y.reshape((-1, 2))[:, ::-1].flatten() * pm.Normal("r"), 1.0, observed=y)


@entry("reversed rows", refused=SEVERAL, x=Z, y=Y)
def _(d):
    pm.Normal("y", pm.Data("x", d["x"])[::-1] * pm.Normal("b"), 1.0, observed=d["y"])


@entry("rows chosen by private numbers", refused=ALL, i=RNG.permutation(N), x=Z, y=Y)
def _(d):
    x, i = pm.Data("x", d["x"]), pm.Data("i", d["i"])
    pm.Normal("y", x[i] * pm.Normal("b"), 1.0, observed=d["y"])


@entry("sorted rows", refused=WHOLE, x=Z, y=Y)
def _(d):
    pm.Normal("y", pt.sort(pm.Data("x", d["x"])) * pm.Normal("b"), 1.0, observed=d["y"])


@entry("running sums", refused=WHOLE, x=Z, y=Y)
def _(d):
    pm.Normal("y", pt.cumsum(pm.Data("x", d["x"])) * pm.Normal("b"), 1.0, observed=d["y"])


@entry("a softmax over the records", refused=WHOLE, x=Z, y=Y)
def _(d):
    pm.Normal("y", pm.math.softmax(d["x"] * pm.Normal("b"), axis=0), 1.0, observed=d["y"])


@entry("an entry for each record", refused="'a' has an entry for each record", y=Y)
def _(d):
    pm.Normal("y", pm.Normal("a", shape=N), 1.0, observed=d["y"])


@entry("an entry for each record, by number", refused="'a' has an entry for each record", y=Y)
def _(d):
    pm.Normal("y", pm.Normal("a", shape=N)[np.arange(N)], 1.0, observed=d["y"])


@entry("total_size", refused="draws random numbers", y=Y)
def _(d):
    y = pm.Minibatch(d["y"], batch_size=5)
    pm.Normal("y", pm.Normal("m"), 1.0, observed=y, total_size=N)


@entry("a potential by a function of Python", refused="cannot be inspected", y=Y)
def _(d):
    @as_op(itypes=[pt.dscalar], otypes=[pt.dscalar])
    def loglik(m):
        return np.asarray(-((d["y"] - m) ** 2).sum())

    m = pm.Normal("m")
    pm.Normal("y", m, 1.0, observed=d["y"])
    pm.Potential("p", loglik(m))


@entry("a scale by a function of Python", refused="cannot be inspected", y=Y)
def _(d):
    @as_op(itypes=[pt.dscalar], otypes=[pt.dscalar])
    def scale(m):
        return np.asarray(np.abs(d["y"] - m).max())

    m = pm.Normal("m")
    pm.Normal("y", m, scale(m), observed=d["y"])


@entry("a sparse design matrix", refused="sparse matrix", x=np.abs(X), y=Y)
def _(d):
    x = sparse.as_sparse_variable(scipy.sparse.csr_matrix(d["x"]))
    pm.Normal("y", sparse.dot(x, pm.Normal("b", shape=(3, 1)))[:, 0], 1.0, observed=d["y"])


@entry("a transform that captures data", refused=PRIOR, y=Y)
def _(d):
    def bounds(*_):
        return pt.as_tensor(d["y"]).min() - 5.0, None

    above = pm.distributions.transforms.Interval(bounds_fn=bounds)
    pm.Normal("y", pm.Normal("a", transform=above), 1.0, observed=d["y"])


@entry("transforms without data", y=Y)
def _(d):
    a = pm.Normal("a", transform=pm.distributions.transforms.Interval(lower=-50.0, upper=50.0))
    b = pm.Uniform("b", -50.0, 50.0)
    pm.Normal("y", a + b, pm.HalfNormal("s"), observed=d["y"])


@entry("a number of different values", refused=ALL, x=COUNTS, y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    pm.Normal("y", pm.Normal("b") * pt.unique(x).shape[0], 1.0, observed=d["y"])


@entry("a number of rows that pass", refused=ALL, x=Z, y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    pm.Normal("y", pm.Normal("b") * x[x > 0].shape[0], 1.0, observed=d["y"])


@entry("a prior of the number of different values", refused=PRIOR, x=COUNTS, y=Y)
def _(d):
    b = pm.Normal("b", pt.unique(pt.as_tensor(d["x"])).shape[0], 1.0)
    pm.Normal("y", b, 1.0, observed=d["y"])


@entry("as many coefficients as columns", x=X, y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    b = pm.Normal("b", shape=x.shape[1])
    pm.Normal("y", (2.0 * x) @ b + pt.zeros(x.shape[0]), 1.0, observed=d["y"])


# --- shapes that are computed from data ---------------------------------------------------------


@entry("a sum of as many ones as the data say", refused=ALL, n=COUNTS, y=Y)
def _(d):
    n = pm.Data("n", d["n"])
    pm.Normal("y", pm.Normal("b") * pt.ones(n.max()).sum(), 1.0, observed=d["y"])


@entry("a reshape by numbers from the data", refused=ALL, n=COUNTS, y=Y)
def _(d):
    n = pm.Data("n", d["n"])
    blocks = pt.zeros(60).reshape((n.min() + 1, -1)).shape[1]
    pm.Normal("y", pm.Normal("b") * blocks, 1.0, observed=d["y"])


@entry("as many parameters as the data say", refused=PRIOR, n=COUNTS, y=Y)
def _(d):
    a = pm.Normal("a", shape=pm.Data("n", d["n"]).max())
    pm.Normal("y", a.sum(), 1.0, observed=d["y"])


@entry("a potential of as many zeros as the data say", refused=POTENTIAL, n=COUNTS, y=Y)
def _(d):
    m = pm.Normal("m")
    pm.Normal("y", m, 1.0, observed=d["y"])
    pm.Potential("p", -m * pt.zeros(pm.Data("n", d["n"]).max()).shape[0])


# --- what a function of the user's captures -----------------------------------------------------


@entry("a custom prior with an operation of its own", refused="cannot be inspected", y=Y)
def _(d):
    @as_op(itypes=[pt.dscalar], otypes=[pt.dscalar])
    def loglik(m):
        return np.asarray(-((d["y"] - m) ** 2).sum())

    m = pm.CustomDist("m", logp=lambda value: loglik(value))
    pm.Normal("y", m, 1.0, observed=d["y"])


@entry("a custom likelihood with an operation of its own", refused="cannot be inspected", y=Y)
def _(d):
    @as_op(itypes=[pt.dscalar], otypes=[pt.dscalar])
    def scale(m):
        return np.asarray(np.abs(d["y"] - m).max())

    def logp(value, m):
        return -pt.abs(value - m) / scale(m.squeeze())

    pm.CustomDist("y", pm.Normal("m"), logp=logp, observed=d["y"])


@entry("a check of all records, of scalar type", refused="joins the data of several", x=Z, y=Y)
def _(d):
    def logp(value, b, x):
        either = ps.or_(*map(pt.scalar_from_tensor, (pt.all(x < 4.0), pt.any(b > 1e6))))
        return CheckParameterValue("x < 4")(-((value - b * x) ** 2), either)

    pm.CustomDist("y", pm.Normal("b"), d["x"], logp=logp, observed=d["y"])


@entry("a scalar operation of its own", refused="cannot be inspected", x=POSITIVE, y=Y)
def _(d):
    total = d["x"].sum()

    class AddTotal(ps.UnaryScalarOp):
        def impl(self, x):
            return x + total

    add = Elemwise(AddTotal(ps.upgrade_to_float, name="add_total"))
    pm.Normal("y", add(pm.Normal("m")), 1.0, observed=d["y"])


@entry("a loop that captures data", refused="inside|" + PRIOR, y=Y)
def _(d):
    def logp(value):
        y = pt.as_tensor(d["y"])
        steps = scan(lambda k: -((y[k] - value) ** 2), sequences=pt.arange(N), return_updates=False)
        return steps.sum()

    pm.Normal("y", pm.CustomDist("m", logp=logp), 1.0, observed=d["y"])


@entry("a loop inside of a likelihood that captures a column", refused="inside", x=Z, y=Y)
def _(d):
    def logp(value, b):
        x = pt.as_tensor(d["x"])
        steps = scan(lambda k: x[k] ** 2, sequences=pt.arange(N), return_updates=False)
        return -((value - b * steps.sum()) ** 2)

    pm.CustomDist("y", pm.Normal("b"), logp=logp, observed=d["y"])


@entry("an inner graph of a likelihood that captures a column", refused="inside", x=Z, y=Y)
def _(d):
    def logp(value, b):
        inner = pt.vector()
        total = OpFromGraph([inner], [inner * pt.as_tensor(d["x"]).sum()])
        return -((value - total(b.reshape((1,)))) ** 2)

    pm.CustomDist("y", pm.Normal("b"), logp=logp, observed=d["y"])


@entry("a chain of chains of transforms that captures data", refused=PRIOR, y=Y, public=["prior"])
def _(d):
    transforms = pm.distributions.transforms

    def bounds(*_):
        return pt.as_tensor(d["y"]).min() - 5.0, None

    inner = transforms.Chain([transforms.Interval(bounds_fn=bounds)])
    mu = pm.Data("prior", np.array([0.3, 0.7]))  # public arrays in the same prior
    a = pm.Normal("a", mu, transform=transforms.Chain([inner]), shape=2)
    pm.Normal("y", a[0], 1.0, observed=d["y"])


# --- data that look like patterns ---------------------------------------------------------------


@entry("a potential of an observed container of zeros", refused=POTENTIAL, y=np.zeros(N))
def _(d):
    m, y = pm.Normal("m"), pm.Data("values", d["y"])
    pm.Normal("y", m, 1.0, observed=y)
    pm.Potential("p", m * y.sum())


@entry("a potential of equal numbers, one for each record", refused=POTENTIAL, x=np.ones(N), y=Y)
def _(d):
    m = pm.Normal("m")
    pm.Normal("y", m, 1.0, observed=d["y"])
    pm.Potential("p", m * pm.Data("x", d["x"]).sum())


@entry("numbers from 0 upwards, centred", refused=ALL, x=np.arange(N), y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    pm.Normal("y", pm.Normal("b") * (x - x.mean()), 1.0, observed=d["y"])


@entry("a covariate of two groups", refused=ALL, g=np.arange(N) % 2, y=Y)
def _(d):
    treated = pm.Normal("b") * pt.as_tensor(np.array([0, 1]))
    pm.Normal("y", treated[d["g"]], 1.0, observed=d["y"])


@entry("a number with an axis in a prior", refused=PRIOR, y=Y)
def _(d):
    a = pm.Normal("a", np.array([d["y"].mean()]), 1.0)
    pm.Normal("y", a[0], 1.0, observed=d["y"])


@entry("a square table by its columns", refused="is square", x=RNG.normal(size=(N, N)), y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    pm.Normal("y", pm.Normal("b", shape=N - 1) @ x[1:], 1.0, observed=d["y"])


@entry("numbers from 0 upwards, as an index", g=LEVELS, y=Y)
def _(d):
    p = pm.math.softmax(pm.Normal("a", shape=3))
    table = pt.log(p)[None, :] * pt.as_tensor(d["y"])[:, None]
    pm.CustomDist(
        "y", table[pt.as_tensor(np.arange(N)), d["g"]], logp=lambda v, t: t + 0 * v, observed=d["y"]
    )


@entry("the largest entry of a row", x=X, y=Y)
def _(d):
    a = pm.Normal("a", shape=3)
    pm.Normal("y", a[pt.argmax(pm.Data("x", d["x"]), axis=1)], 1.0, observed=d["y"])


# --- several tables -----------------------------------------------------------------------------

REVERSED = {"y": np.arange(N), "other": np.arange(N)[::-1]}
TWICE = {"y": np.arange(N), "other": np.arange(2 * N) // 2}
LONG = RNG.normal(size=2 * N)


@entry("another table's rows, in another order", refused=SEVERAL, records=REVERSED, x=Z, y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    pm.Normal("y", pm.Normal("b") * x, 1.0, observed=d["y"])
    pm.Normal("other", 0.0, 1.0, observed=x)


@entry("a column of two tables, in different orders", refused=SEVERAL, records=REVERSED, x=Z, y=Y)
def _(d):
    b = pm.Normal("b")
    pm.Normal("y", b * d["x"], 1.0, observed=d["y"])
    pm.Normal("other", b * d["x"].copy(), 1.0, observed=d["y"][::-1].copy())


@entry("the first rows of another table", refused=SEVERAL, records=TWICE, x=LONG, y=Y)
def _(d):
    x = pm.Data("x", d["x"])
    pm.Normal("y", pm.Normal("b") * x[:N], 1.0, observed=d["y"])
    pm.Normal("other", 0.0, 1.0, observed=x)


@entry(
    "the first rows of a column of another table",
    refused=SEVERAL, records=TWICE, z=LONG, x=LONG[::-1].copy(), y=Y,
)  # fmt: skip
def _(d):
    pm.Normal("y", pm.Normal("b") * pm.Data("z", d["z"])[:N], 1.0, observed=d["y"])
    pm.Normal("other", 0.0, 1.0, observed=d["x"])


# --- constants that PyMC or PyTensor evaluate on the way ----------------------------------------


@entry("a prior of a log-density in it", refused=PRIOR, y=Y)
def _(d):
    def logp(value):
        return pm.logp(pm.Normal.dist() + pt.as_tensor(d["y"]).mean(), value)

    pm.Normal("y", pm.CustomDist("m", logp=logp), 1.0, observed=d["y"])


@entry("a likelihood of a log-density in it", refused=ALL + "|" + WHOLE, x=Z, y=POSITIVE)
def _(d):
    def logp(value, b):
        x = pt.as_tensor(d["x"])
        return pm.logp(pt.exp(pm.Normal.dist(b + x - x.mean(), 1.0, shape=N)), value)

    pm.CustomDist("y", pm.Normal("b"), logp=logp, observed=d["y"])


@entry("a number of rows that pass a mask of NumPy", refused=ALL, x=Z, y=Y)
def _(d):
    x = d["x"]
    pm.Normal("y", pm.Normal("b") * pt.as_tensor(x)[x > 0].shape[0], 1.0, observed=d["y"])


@entry("parts as long as the data say", refused=ALL + "|" + WHOLE, n=COUNTS, y=Y)
def _(d):
    parts = pt.split(pt.ones(60) * pm.Normal("b"), pt.as_tensor(d["n"]), n_splits=N)
    pm.Normal("y", parts[0].sum(), 1.0, observed=d["y"])


@entry("a declared prior of an observed variable", refused=PRIOR, public=["b"], y=Y)
def _(d):
    y = pm.Data("values", d["y"])
    pm.Normal("y", pm.Normal("b", y.mean(), 1.0), 1.0, observed=y)


@entry("an operation that says it works by columns", refused=WHOLE, x=Z, y=Y)
def _(d):
    a, b = pt.matrix(shape=(2, 2)), pt.matrix(shape=(2, N))
    core = OpFromGraph([a, b], [a @ b - b.mean(axis=1, keepdims=True)])
    solve = Blockwise(core, signature="(m,m),(m,n)->(m,n)")
    x = pt.stack([pm.Data("x", d["x"]), pt.zeros(N)])
    pm.Normal("y", pm.Normal("b") * solve(pt.eye(2), x)[0], 1.0, observed=d["y"])


@entry("a curve between points", refused="pm.Interpolated", public=[POINTS, CURVE], y=UNIT)
def _(d):
    pm.Normal("m")
    pm.Interpolated("y", POINTS, CURVE, observed=d["y"])


@entry("pieces of time", x=POSITIVE, y=Y)
def _(d):
    piece = pt.searchsorted(pt.arange(4) * 1.0, pm.Data("x", d["x"]))
    pm.Normal("y", pm.Normal("b", shape=5)[piece], 1.0, observed=d["y"])


@entry("a gradient that is cut", x=Z, y=Y)
def _(d):
    b = pm.Normal("b")
    pm.Normal("y", b * d["x"] + disconnected_grad(b), 1.0, observed=d["y"])


# --- what may fail for one record ---------------------------------------------------------------


@entry("an index that may be out of range", refused="bound it", x=Z, y=Y)
def _(d):
    a, b = pm.Normal("a", shape=3), pm.Normal("b")
    pm.Normal("y", a[pt.floor(pt.abs(b * d["x"])).astype("int64")], 1.0, observed=d["y"])


@entry("an index that is bounded", x=Z, y=Y)
def _(d):
    a, b = pm.Normal("a", shape=3), pm.Normal("b")
    place = pt.clip(pt.floor(pt.abs(b * d["x"])).astype("int64"), 0, 2)
    pm.Normal("y", a[place], 1.0, observed=d["y"])


@entry("an index that may not be a number", refused="bound it", x=Z, y=Y)
def _(d):
    """``exp(800) * 0`` is not a number, and becomes the smallest integer."""
    a, b = pm.Normal("a", shape=3), pm.Normal("b")
    place = pt.clip(pt.exp(b) * d["x"], 0, 2).astype("int64")
    pm.Normal("y", a[place], 1.0, observed=d["y"])


@entry("an index that wraps around", refused="bound it", x=Z, y=Y)
def _(d):
    """As an unsigned integer, -1 is 255."""
    a, b = pm.Normal("a", shape=3), pm.Normal("b")
    place = pt.clip((b * d["x"]).astype("int64"), -1, 2).astype("uint8")
    pm.Normal("y", a[place], 1.0, observed=d["y"])


@entry("a change point", x=Z, y=Y)
def _(d):
    a, when = pm.Normal("a", shape=2), pm.Normal("when")
    pm.Normal("y", a[(pt.as_tensor(d["x"]) > when).astype("int64")], 1.0, observed=d["y"])


@entry("two change points", x=Z, y=Y)
def _(d):
    a, when = pm.Normal("a", shape=3), pm.Normal("when", shape=2)
    pm.Normal("y", a[(pt.as_tensor(d["x"])[:, None] > when).sum(axis=1)], 1.0, observed=d["y"])


@entry(
    "an inverse of each record's matrix", refused="MatrixInverse", x=RNG.normal(size=(N, 2, 2)), y=Y
)
def _(d):
    inverse = pt.linalg.inv(d["x"] - pm.Normal("b") * pt.eye(2))
    pm.Normal("y", inverse[:, 0, 0], 1.0, observed=d["y"])


@entry("singular values of each record's matrix", refused="SVD", x=RNG.normal(size=(N, 2, 2)), y=Y)
def _(d):
    values = pt.linalg.svd(d["x"] * pt.exp(pm.Normal("b")), compute_uv=False)
    pm.Normal("y", values[:, 0], 1.0, observed=d["y"])


@entry("a public number in a prior and in what is observed", y=Y)
def _(d):
    unit = pm.Data("unit", 2.0)
    pm.Normal("y", pm.Normal("b", 0.0, unit), 1.0, observed=pm.Data("values", d["y"]) / unit)
