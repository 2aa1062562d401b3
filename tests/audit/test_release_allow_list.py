"""What release() publishes of a model: nothing that shows an array which is not public, no labels of persons."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pytensor.compile.ops import FromFunctionOp
from pytensor.sparse import as_sparse_variable, dense_from_sparse

import pymc_dp as dp

from pymc_dp import PrivacyBudget, PrivacyReport, RandomWalk, release
from pymc_dp.errors import PrivacyLeakWarning
from pymc_dp.model import allow_list as publishing
from pymc_dp.model.allow_list import record_lengths, withheld

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

N, OTHERS = 40, 23
RNG = np.random.default_rng(7)
Y, X, INCOME = RNG.normal(size=N), RNG.normal(size=(N, 3)), RNG.lognormal(10, 1, N)
WEIGHTS = np.array([0.2, 0.3, 0.5])
NAMES = [f"person-{k}" for k in range(N)]


class Secret(pytensor.graph.Op):
    """An operation of the user's own, with the data in it."""

    itypes, otypes = [pt.dscalar], [pt.dvector]

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] + INCOME[:5]


def publishable(model, public=(), **options):
    """Names of the free variables and Deterministics that are not withheld."""
    names = {v.name for v in (*model.free_RVs, *model.deterministics)}
    return names - set(withheld(model, public, **options))


closed_over = FromFunctionOp(lambda b: b + INCOME[:5], [pt.dscalar], [pt.dvector], None)


def looped(array):
    return pytensor.scan(
        lambda k, b: pt.as_tensor(array)[k] + b,
        sequences=[pt.arange(5)],
        non_sequences=[pm.modelcontext(None)["beta"][0]],
        return_updates=False,
    )


def fused(array):
    b = pt.dscalar("b")
    inner = pytensor.compile.builders.OpFromGraph([b], [b + pt.as_tensor(array)])
    return inner(pm.modelcontext(None)["beta"][0])


#: Of a coefficient vector beta, of length 3: computed from an array that is not in the likelihood.
PRIVATE = {
    "a raw column": lambda b: INCOME + 0 * b[0],
    "ten entries of it": lambda b: INCOME[:10] + b[0],
    "its sum": lambda b: (pt.as_tensor(INCOME) * b[0]).sum(),
    "that of a constant column": lambda b: (pt.as_tensor(np.full(N, 2.5)) * b[0]).sum(),
    "a container": lambda b: pm.Data("container", RNG.normal(size=OTHERS)) * b[0],
    "a linear predictor": lambda b: X @ b,
    "observed values": lambda b: pm.modelcontext(None)["y"] - b[0],
    "in a loop": lambda b: looped(INCOME),
    "in a graph in a graph": lambda b: fused(INCOME[:5]),
    "in an operation of the user's": lambda b: Secret()(b[0]),
    "in a function of the user's": lambda b: closed_over(b[0]),
    "groups of persons": lambda b: b[np.array([2, 0, 0, 1, 2, 2, 1])],
    "three numbers": lambda b: pm.math.dot(b, WEIGHTS),
    "sparse": lambda b: dense_from_sparse(as_sparse_variable(sparse())) @ b,
    "drawn anew": lambda b: pm.CustomDist.dist(b[0], dist=lambda m, size: m + pt.as_tensor(INCOME)),
    "as many as the data": lambda b: b[0] * pt.ones(N),
    "as many as the data, by a loop": lambda b: pt.stack([b[0] * float(v) for v in INCOME]),
}  # fmt: skip
#: Nothing but parameters, scalars and patterns.
PUBLIC = {
    "odds": pt.exp,
    "a contrast": lambda b: b[1] - b[0],
    "a share": lambda b: pm.math.softmax(b),
    "scaled": lambda b: 100 * b / 7.3,
    "ranks": lambda b: pt.sort(b)[np.array([0, 1, 2])],
    "cumulated": pt.cumsum,
    "a switch": lambda b: pt.switch(b > 0, b, 0),
    "an outer product": lambda b: pt.outer(b, b) + pt.eye(3),
    "a triangle": lambda b: pm.math.expand_packed_triangular(2, b),
    "in a loop, by numbers": lambda b: looped(np.arange(5)),
    "in a graph in a graph, by numbers": lambda b: fused(np.arange(5)),
}  # fmt: skip


def sparse():
    import scipy.sparse

    return scipy.sparse.csr_matrix(X[:7])


def build(**deterministics):
    with pm.Model(coords={"person": NAMES, "term": ["base", "age", "sex"]}) as model:
        beta = pm.Normal("beta", 0, 1, dims="term")
        pm.Normal("y", pt.as_tensor(X) @ beta, 1.0, observed=Y, dims="person")
        for name, make in deterministics.items():
            pm.Deterministic(name, make(beta))
    return model


@pytest.mark.parametrize("name", PRIVATE)
def test_what_shows_an_array_is_withheld(name):
    model = build(derived=PRIVATE[name])
    assert publishable(model) == {"beta"}
    assert not any(str(v)[:9] in withheld(model)["derived"] for v in (*INCOME, *X.ravel(), *Y))


@pytest.mark.parametrize("name", PUBLIC)
def test_what_shows_none_is_published(name):
    model = build(derived=PUBLIC[name])
    assert publishable(model) == {"beta", "derived"}, withheld(model)


@pytest.mark.parametrize("compute", ["corr", "stds"])
def test_correlations_are_published(compute):
    """PyMC's own Deterministics, with index arrays in them."""
    with build() as model:
        sd = pm.Exponential.dist(1.0, shape=4)
        pm.LKJCholeskyCov("chol", eta=2, n=4, sd_dist=sd, compute_corr=True)
    assert {"chol", f"chol_{compute}"} <= publishable(model)


def test_declared_public():
    """By name or by value; a name that the model does not have is refused."""
    model = build(index=lambda b: b @ pt.constant(WEIGHTS, name="weights"))
    assert publishable(model) == {"beta"}
    assert publishable(model, ["weights"]) == publishable(model, [WEIGHTS]) == {"beta", "index"}
    with pytest.raises(ValueError, match="public= names 'nothing'"):
        publishable(model, ["nothing"])


def test_lengths():
    """As long as the rows, as the persons, as any private container; whatever the graph."""
    with build() as model:
        pm.Data("visits", RNG.normal(size=(OTHERS, 3)))
        pm.Data("map", np.ones(11))  # a pattern
        for n in (N, OTHERS, 11, 17):
            pm.Normal(f"z{n}", shape=n)
            pm.Deterministic(f"d{n}", 2 * model[f"z{n}"])
    assert record_lengths(model) == {N, OTHERS}
    short = {"beta", "z11", "d11", "z17", "d17"}
    assert publishable(model) == short
    assert publishable(model, lengths=[17]) == {
        "beta",
        "z11",
        "d11",
        f"z{N}",
        f"d{N}",
        f"z{OTHERS}",
        f"d{OTHERS}",
    }
    assert publishable(model, ["visits"]) == short | {f"z{OTHERS}", f"d{OTHERS}"}
    # A length that the graph does not state is seen in the result.
    assert publishable(model, shapes={"d11": (N,)}) == short - {"d11"}


# ---------------------------------------------------------------- release


@pytest.fixture(scope="module")
def run():
    """A run on a model with all of this in it."""
    income = INCOME.copy()
    with pm.Model(coords={"person": NAMES, "term": ["base", "age", "sex"], "site": ["A", "B", "C", "D"]}) as model:  # fmt: skip
        beta = pm.Normal("beta", 0, 1, dims="term")
        sites = pm.Normal("sites", 0, 1, dims="site")
        pm.Normal("y", pt.as_tensor(X) @ beta + sites.sum(), 1.0, observed=Y, dims="person")
        pm.Deterministic("leak", income + 0 * beta[0], dims="person")
        pm.Deterministic("rows", beta[0] * pt.ones(N), dims="person")
        pm.Deterministic("odds", pt.exp(beta), dims="term")
        pm.Deterministic("score", pm.math.dot(beta, WEIGHTS))
    budget = PrivacyBudget(5.0, 1e-5, chains=1)
    step = dp.DPPenalty(
        budget=budget, clip_bound=1.0, proposal=RandomWalk(0.05), model=model, records=np.arange(N)
    )
    with model:
        idata = pm.sample(
            20, tune=0, chains=1, step=step, callback=budget, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    return idata, model, budget


def shown(released):
    """All values of a result, and its coordinates."""
    values = np.concatenate([np.ravel(v).astype(float) for v in released.posterior.data_vars.values()])  # fmt: skip
    labels = {
        str(label)
        for group in ("posterior", "sample_stats")
        for coordinate in released[group].coords.values()
        for label in np.ravel(coordinate.values)
    }
    return values, labels


def test_labels_of_persons_are_not_published(run):
    """Names of covariates and of sites are, which are of the model."""
    idata, model, budget = run
    with pytest.warns(PrivacyLeakWarning, match="leak, rows would show"):
        kept = release(idata, model, budget, keep=["leak", "rows"])
    for public in (release(idata, model, budget), kept):
        _, labels = shown(public)
        assert labels.isdisjoint(NAMES)
        assert {"base", "age", "sex", "A", "B", "C", "D"} <= labels
    assert PrivacyReport.of(kept).kept == ("leak", "rows")
    assert "NOT PROTECTED" in str(PrivacyReport.of(kept))
    assert "kept at the user's wish" in str(PrivacyReport.of(kept))
    assert kept.attrs["epsilon"] == np.inf and not PrivacyReport.of(kept).protected


def test_public_is_in_the_report(run):
    idata, model, budget = run
    public = release(idata, model, budget, public=[WEIGHTS])
    assert "score" in public.posterior
    report = PrivacyReport.of(public)
    assert report.public == ("an array of shape (3,)",)
    assert "an array of shape (3,)" in str(report)
    assert PrivacyReport.of(release(idata, model, budget)).public == ()


def test_what_is_withheld_is_logged_with_its_reason(run, caplog):
    idata, model, budget = run
    with caplog.at_level("INFO", logger="pymc.dp"):
        release(idata, model, budget)
    assert "Not released: leak is computed from an array of shape (40,)" in caplog.text
    assert "Not released: rows has an axis of length 40" in caplog.text
    assert "Not released: score is computed from an array of shape (3,)" in caplog.text


# ---------------------------------------------------------------- controls

FAULTS = {
    "graphs inside of operations are not looked into": (
        "inner_graphs", lambda op: [], "in a graph in a graph"),
    "operations of others are trusted": (
        "is_transparent", lambda op: True, "in an operation of the user's"),
    "arrays are trusted": ("_is_private", lambda root, public: False, "a raw column"),
    "lengths are not compared": (
        "record_lengths", lambda model, public=(): set(), "as many as the data"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault, monkeypatch):
    name, broken, case = FAULTS[fault]
    monkeypatch.setattr(publishing, name, broken)
    if case == "a raw column":
        monkeypatch.setattr(publishing, "record_lengths", lambda model, public=(): set())
    assert "derived" in publishable(build(derived=PRIVATE[case]))
