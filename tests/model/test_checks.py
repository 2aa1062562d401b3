"""Every refusal, each next to a model like it that is accepted."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pytensor.compile.mode import Mode

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model import RecordLikelihood, likelihood
from pymc_dp.model.graphs.parameter_checks import holds

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning"),
]

N = 8
RNG = np.random.default_rng(11)
SECRET = 31.4159  # in every data set, and in no message
X = RNG.normal(size=(N, 3))
Y = np.append(RNG.normal(size=N - 1), SECRET)
B = np.array([0, 1, 1, 0, 1, 0, 0, 1])


def nothing_observed(fine):
    mu = pm.Normal("mu")
    if fine:
        pm.Normal("y", mu, 1, observed=Y)
    else:
        pm.Potential("likelihood", pm.logp(pm.Normal.dist(mu, 1), Y).sum())


def nothing_free(fine):
    mu = pm.Normal("mu") if fine else 0.0
    pm.Normal("y", mu, 1, observed=Y)


def discrete(fine):
    k = pm.Poisson("k", 3) if not fine else pm.Exponential("k", 3)
    pm.Normal("y", k, 1, observed=Y)


def missing(fine):
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1, observed=Y if fine else np.ma.masked_array(Y, B == 1))


def single_number(fine):
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1, observed=np.array([SECRET]) if fine else SECRET)


def potential_with_data(fine):
    mu = pm.Normal("mu", shape=3)
    pm.Normal("y", X @ mu, 1, observed=Y)
    pm.Potential("penalty", -pt.sum(mu**2) if fine else -pt.sum((X[:, 1] * mu[0]) ** 2))


def potential_with_other_data(fine):
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1, observed=Y)
    weights = np.ones(1) if fine else np.linspace(1, 2, N - 1)
    pm.Potential("likelihood", -pt.sum((mu - weights) ** 2))


def prior_with_container(fine):
    x = pm.Data("x", X)
    scale = 1.0 if fine else pt.abs(x).mean()
    pm.Normal("y", x @ pm.Normal("beta", 0, scale, shape=x.shape[1]), 1, observed=Y)


def hyperprior_with_array(fine):
    tau = pm.HalfNormal("tau", 1.0 if fine else pt.constant(Y).std())
    pm.Normal("y", pm.Normal("mu", 0, tau), 1, observed=Y)


def other_numbers_of_rows(fine):
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1, observed=Y)
    pm.Normal("z", mu, 1, observed=Y if fine else Y[1:])


def one_time_series(fine):
    y = Y.reshape(2, -1) if fine else Y
    pm.AR("y", pm.Normal("rho", shape=1), sigma=1.0, init_dist=pm.Normal.dist(), observed=y)


def one_random_walk(fine):
    y = Y.reshape(2, -1) if fine else Y
    walk = dict(mu=pm.Normal("drift"), sigma=1.0, init_dist=pm.Normal.dist())
    pm.GaussianRandomWalk("y", **walk, observed=y)


def one_vector(fine):
    cov = np.eye(N) + 0.5
    y = Y[None] if fine else Y
    pm.MvNormal("y", pm.Normal("mu") * np.ones(N), cov=cov, observed=y)


def custom_scalar(fine):
    def logp(value, mu):
        terms = -((value - mu) ** 2)
        return terms if fine else terms.sum()

    pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=Y)


def custom_other_axis(fine):
    def logp(value, mu):
        return (-((value - mu) ** 2)).sum(axis=1 if fine else 0)

    pm.CustomDist("y", pm.Normal("mu", shape=3), logp=logp, observed=X, signature="(k)->(k)")


def entry_per_record(fine):
    a = pm.Normal("a", shape=N)
    # as many coefficients as records, or groups as records, is a coincidence and fine
    design = np.random.default_rng(0).normal(size=(N, N))
    mean = pt.dot(pt.constant(design[:, :N]), a) if fine else a[::-1] * X[:, 0]
    pm.Normal("y", mean, 1, observed=Y)


def entry_per_group(fine):
    a = pm.Normal("a", shape=N)
    pm.Normal("y", (a[: N - 1] if fine else a)[np.array([0, 1, 2, 2, 4, 5, 6, 3])], 1, observed=Y)


def centred(fine):
    x = pm.Data("x", X)
    centre = 0.25 if fine else x.mean(axis=0)
    pm.Normal("y", (x - centre) @ pm.Normal("beta", shape=3), 1, observed=Y)


def rescaled_by_maximum(fine):
    x = pm.Data("x", X[:, 0])
    x = x / (2.0 if fine else pt.abs(x).max())
    pm.Normal("y", x * pm.Normal("beta"), 1, observed=Y)


def neighbours(fine):
    y = pm.Data("series", Y)
    before = pt.concatenate([[0.0], y[:-1]]) if not fine else X[:, 0]
    pm.Normal("y", before * pm.Normal("rho"), 1, observed=y)


def lagged_container(fine):
    y = pm.Data("series", Y)
    pm.Normal("y", (X[1:, 0] if fine else y[:-1]) * pm.Normal("rho"), 1, observed=y[1:])


def lagged_constant(fine):
    y = pt.constant(Y)
    pm.Normal("y", (X[1:, 0] if fine else y[:-1]) * pm.Normal("rho"), 1, observed=y[1:])


def lagged_array(fine):
    before = X[1:, 0] if fine else Y[:-1]
    pm.Normal("y", before * pm.Normal("rho"), 1, observed=Y[1:])


def random_subset(fine):
    y = Y if fine else pm.Minibatch(Y, batch_size=4)
    pm.Normal("y", pm.Normal("mu"), 1, observed=y, total_size=None if fine else N)


def joined_parameter_check(fine):
    x = pt.constant(X[:, 0])
    slope = pm.Normal("slope", initval=1.0)
    scale = slope * x
    scale = pm.logprob.utils.CheckParameterValue("scale")(
        scale, pt.all(scale < 9) if fine else pt.sum(scale) < 1e9
    )
    pm.Normal("y", scale, 1, observed=Y)


REFUSALS = [
    (nothing_observed, "no observed variables"),
    (nothing_free, "no free random variables"),
    (discrete, r"\['k'\] are discrete"),
    (missing, "missing observations"),
    (single_number, "single number"),
    (potential_with_data, "potential 'penalty' depends on data"),
    (potential_with_other_data, "potential 'likelihood' depends on data"),
    (prior_with_container, "prior of 'beta' depends on data"),
    (hyperprior_with_array, "prior of 'tau' depends on data"),
    (other_numbers_of_rows, "different numbers of rows"),
    (one_time_series, "one number for all its rows"),
    (one_random_walk, "one number for all its rows"),
    (one_vector, "one number for all its rows"),
    (custom_scalar, "one number for all its rows"),
    (custom_other_axis, "one entry per row"),
    (entry_per_record, "'a' has an entry for each record"),
    (entry_per_group, "'a' has an entry for each record"),
    (centred, "depends on all of the array 'x'"),
    (rescaled_by_maximum, "depends on all of the array 'x'"),
    (neighbours, "entries of the array 'series' reach several"),
    (lagged_container, "entries of the array 'series' reach several"),
    (lagged_array, "holds observations of other rows"),
    (lagged_constant, "reach several|holds observations of other rows"),
    (random_subset, "draws random numbers"),
    (joined_parameter_check, "joins the data of several records"),
]


@pytest.mark.parametrize("fine", [True, False], ids=["accepted", "refused"])
@pytest.mark.parametrize(("fill", "message"), REFUSALS, ids=lambda v: getattr(v, "__name__", ""))
def test_refusals(fill, message, fine):
    with pm.Model() as model:
        fill(fine)
    expected = nullcontext() if fine else pytest.raises(UnsupportedModel, match=message)
    with expected as error:
        RecordLikelihood(model, compile_kwargs={"mode": Mode("py", None)})
    if not fine:
        assert "31.4" not in str(error.value)


@pytest.mark.parametrize("mode", ["JAX", "PYTORCH", "MLX", Mode("jax")])
def test_compilers_whose_roundings_depend_on_places_are_refused_first(mode, monkeypatch):
    """Before a graph of the model is looked at."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=Y)
    for name in ("expose", "PublicArrays", "check_ranges"):
        monkeypatch.delattr(likelihood, name)
    with pytest.raises(ValueError, match=r"\w+Linker\), which may round .* give 'NUMBA', or leave"):
        RecordLikelihood(model, compile_kwargs={"mode": mode})


def test_persons_make_a_dependence_between_rows_harmless():
    # y[1] given y[0], y[3] given y[2], ...: two rows a person, who see each other only.
    def build():
        with pm.Model() as model:
            y = pm.Data("series", Y)
            partner = y.reshape((-1, 2))[:, ::-1].flatten()
            pm.Normal("y", partner * pm.Normal("rho"), 1, observed=y)
        return model

    persons = np.repeat(np.arange(N // 2), 2)
    options = {"mode": Mode("py", None)}
    assert RecordLikelihood(build(), records=persons, compile_kwargs=options).n_records == N // 2
    with pytest.raises(UnsupportedModel, match="reach several records"):
        RecordLikelihood(build(), compile_kwargs=options)
    with pytest.raises(UnsupportedModel, match="reach several records"):
        RecordLikelihood(build(), records=np.roll(persons, 1), compile_kwargs=options)


# --- parameter checks that hold by construction ---------------------------------------------------

V = pt.vector("v")
SOFTMAX = pm.math.softmax(pt.matrix("m"), axis=-1)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (pt.sigmoid(V) >= 0, True),
        (pt.sigmoid(V) <= 1, True),
        (1 - pt.sigmoid(V) >= 0, True),
        (1 - pt.sigmoid(V) > 0, False),
        (1 - pt.exp(-pt.exp(V)) <= 1, True),
        (1 - pt.exp(-pt.exp(V)) >= 0, True),
        (pt.exp(V) >= 0, True),
        (pt.exp(V) > 0, False),
        (2 * pt.exp(V) + 1 > 1, False),
        (2 * pt.exp(V) + 1 >= 1, True),
        (pt.sigmoid(V) * pt.exp(V) >= 0, True),
        (-pt.exp(V) <= 0, True),
        (0.5 * pt.erfc(V) <= 1, True),
        (0.5 * pt.erfc(V) < 1, False),
        (pt.clip(V, 0, 1) <= 1, True),
        (pt.switch(V > 0, pt.exp(V), 3) >= 0, True),
        (pt.switch(V > 0, pt.exp(V), V) >= 0, False),
        (pt.concatenate([V, pt.sigmoid(V)]) >= 0, False),
        (pt.concatenate([pt.exp(V), pt.sigmoid(V)]) >= 0, True),
        (V >= 0, False),
        (pt.exp(V) * V >= 0, False),
        (1 / V > 0, False),
        (SOFTMAX <= 1, True),
        (pt.isclose(SOFTMAX.sum(-1), 1), True),
        (pt.isclose(SOFTMAX.sum(0), 1), False),
        (pt.isclose(SOFTMAX.sum(-1), 2), False),
        (pt.isclose(V.sum(-1), 1), False),
    ],
)
def test_conditions_that_hold_by_construction(condition, expected):
    assert holds(condition) is expected


def test_intervals_do_not_look_at_data():
    data = pt.constant(np.array([1.0, 2.0]))
    assert holds(pt.exp(V) * data >= 0)
    assert not holds(pt.exp(V) * data >= 0, {data})
