"""SimulatedRecords: the model's likelihood, derivatives and law, and nothing of what was observed."""

from __future__ import annotations

import functools

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from scipy import stats

from pymc_dp import UnsupportedModel
from pymc_dp.model import RecordLikelihood
from pymc_dp.model.graphs import drawing
from pymc_dp.model.graphs.captured import check_functions
from pymc_dp.model.graphs.data_variables import observed_arrays
from pymc_dp.model.graphs.drawing import Drawing
from pymc_dp.model.graphs.public_arrays import PublicArrays
from pymc_dp.model.simulation import SimulatedRecords
from tests.model.example_models import FAMILIES, N

RNG = np.random.default_rng(311)
X = RNG.normal(size=(N, 2))
WHO = np.array([0, 0, 1, 2, 2, 2, 1])
SEED = 4

BY_NAME = {f.name: f for f in FAMILIES}


def position(model, seed=1):
    point = model.initial_point(random_seed=0)
    theta = np.concatenate([np.ravel(point[v.name]) for v in model.value_vars]).astype(float)
    return theta + 0.1 * np.random.default_rng(seed).normal(size=len(theta))


def differences(function, theta, h=1e-6):
    """Central differences; the last axis runs over the parameters."""
    columns = [
        (function(theta + h * e) - function(theta - h * e)) / (2 * h) for e in np.eye(len(theta))
    ]
    return np.stack(columns, axis=-1)


def check_derivatives(simulated, theta, data):
    gradients = simulated.gradients(theta, data)
    assert gradients.shape == (simulated.n_records, simulated.n_dim)
    expected = differences(lambda t: simulated.logp(t, data), theta)
    np.testing.assert_allclose(gradients, expected, rtol=1e-5, atol=1e-6)
    curvature = simulated.curvature(theta, data)
    expected = -differences(lambda t: simulated.gradients(t, data).sum(axis=0), theta)
    np.testing.assert_allclose(curvature, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(curvature, curvature.T)


def check_model_own_likelihood(model, **options):
    simulated = SimulatedRecords(model, public_covariates=True, **options)
    likelihood = RecordLikelihood(model, **options)
    assert (simulated.n_records, simulated.n_dim) == (likelihood.n_records, likelihood.n_dim)
    theta = position(model)
    np.testing.assert_allclose(
        simulated.logp(theta, observed_arrays(model)), likelihood.logp(theta), rtol=1e-9, atol=1e-12
    )
    return simulated, theta


# ---------------------------------------------------------------- the likelihood, and its derivatives


#: Compiled as RecordLikelihood is, whose tests go through all of them: one of scalars, of rows, and of groups.
SOME = ["logistic", *(pytest.param(n, marks=pytest.mark.slow) for n in ("trailing axes", "coords"))]


@pytest.mark.parametrize("name", SOME)
def test_likelihood_and_derivatives(name):
    simulated, theta = check_model_own_likelihood(BY_NAME[name].build())
    data = simulated.draw(theta, np.random.default_rng(SEED))
    assert np.isfinite(simulated.logp(theta, data)).all()
    check_derivatives(simulated, theta, data)


def two_tables(first, second):
    """Two observed variables of different length, on the same parameters."""
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", shape=2), pm.HalfNormal("sigma")
        pm.Normal("y", mu, 1.0, observed=first)
        pm.Normal("z", mu[0], sigma, observed=second)
    return model


@pytest.mark.slow
def test_records_of_several_rows_and_variables():
    y, z = RNG.normal(size=(N, 2)), RNG.normal(size=4)
    records = {"y": WHO, "z": np.array([3, 0, 0, 2])}
    simulated, theta = check_model_own_likelihood(two_tables(y, z), records=records)
    assert simulated.n_records == 4
    data = simulated.draw(theta, np.random.default_rng(SEED))
    assert [a.shape for a in data] == [(N, 2), (4,)]
    check_derivatives(simulated, theta, data)


def check_pooled(simulated, theta, monkeypatch):
    """Those of 60 data sets, each by itself: the same bits, in chunks of 64 records and in one."""
    rng = np.random.default_rng(SEED)
    n = simulated.n_records
    sets = [
        (simulated.draw(theta, rng), rng.choice(n, rng.integers(1, n + 1), replace=False))
        for _ in range(60)
    ]
    theta = theta + 0.01
    logp = np.concatenate([simulated.logp(theta, *one) for one in sets])
    gradients = np.vstack([simulated.gradients(theta, *one) for one in sets])
    assert len(logp) > 64
    for chunk in (1, 2**16):
        monkeypatch.setattr("pymc_dp.model.sums.gradients.CHUNK", chunk)
        pooled = simulated.pooled(iter(sets))
        simulated.logp(theta, simulated.draw(theta + 1, rng))  # other data: copies were pooled
        np.testing.assert_array_equal(pooled.logp(theta), logp)
        np.testing.assert_array_equal(pooled.gradients(theta), gradients)


def test_pooled_records(monkeypatch):
    model = BY_NAME["logistic"].build()
    simulated = SimulatedRecords(model, public_covariates=True)
    check_pooled(simulated, position(model), monkeypatch)
    # Other outcomes in the same rows.
    theta, rng = position(model), np.random.default_rng(SEED)
    rows, (before, after) = simulated.rows, ([simulated.draw(theta, rng) for _ in range(3)] for _ in range(2))  # fmt: skip
    for chunk in (1, 2**16):
        monkeypatch.setattr("pymc_dp.model.sums.gradients.CHUNK", chunk)
        moved = simulated.pooled((data, rows) for data in before).with_outcomes(
            [np.concatenate(y) for y in zip(*after, strict=True)]
        )
        for found, of in ((moved.logp, simulated.logp), (moved.gradients, simulated.gradients)):
            each = np.concatenate([of(theta, data) for data in after])
            np.testing.assert_array_equal(found(theta), each)


@pytest.mark.slow
def test_pooled_records_of_several_rows_and_variables(monkeypatch):
    """Of the second variable, one record has no row, and another has two; then of some records only."""
    model = two_tables(RNG.normal(size=(N, 2)), RNG.normal(size=4))
    records = {"y": WHO, "z": np.array([3, 0, 0, 2])}
    simulated = SimulatedRecords(model, public_covariates=True, records=records)
    check_pooled(simulated, position(model), monkeypatch)
    check_pooled(simulated.keeping(np.array([3, 1, 0])), position(model), monkeypatch)


def test_kinks_have_the_right_curvature():
    """Where all coefficients are zero, softplus as it is compiled elsewhere has kinks."""
    simulated = SimulatedRecords(BY_NAME["logistic"].build(), public_covariates=True)
    x, theta = BY_NAME["logistic"].data["X"], np.zeros(3)
    data = simulated.draw(theta, np.random.default_rng(SEED))
    np.testing.assert_allclose(simulated.curvature(theta, data), x.T @ x / 4, rtol=1e-7)
    np.testing.assert_allclose(simulated.gradients(theta, data), (data[0] - 0.5)[:, None] * x)


# ---------------------------------------------------------------- the law of what is drawn

MANY = 20_000


def law_model(n=MANY, change=0.0):
    """The second observed variable depends on the first; a scale, and a bounded parameter."""
    with pm.Model(coords={"row": np.arange(n)}) as model:
        mu, sigma = pm.Normal("mu", 0, 5), pm.HalfNormal("sigma", 3)
        slope = pm.Uniform("slope", -1, 3)
        pm.Deterministic("twice", 2 * mu)
        pm.Potential("pull", -(mu**2) / 100)
        x = pm.Normal("x", mu, sigma, observed=pm.Data("x_data", np.zeros(n) + change, dims="row"))
        pm.Normal("y", slope * x, 0.5, observed=np.arange(n) / n + change, dims="row")
    return model


@pytest.fixture(scope="module")
def law():
    return SimulatedRecords(law_model())


#: mu, log(sigma), and the slope's place between -1 and 3.
THETA = np.array([1.5, np.log(2.0), np.log((0.5 + 1) / (3 - 0.5))])


@pytest.mark.slow
def test_law(law):
    x, y = law.draw(THETA, np.random.default_rng(SEED))
    assert stats.kstest((x - 1.5) / 2.0, stats.norm.cdf).pvalue > 1e-4
    residual = (y - 0.5 * x) / 0.5
    assert stats.kstest(residual, stats.norm.cdf).pvalue > 1e-4
    assert abs(np.mean(residual * (x - 1.5) / 2)) < 4 / np.sqrt(MANY)
    # Score and curvature agree as they do under the model's law, and under no other.
    data = [x, y]
    gradients = law.gradients(THETA, data)
    fisher = gradients.T @ gradients
    z = gradients.sum(axis=0) / np.sqrt(np.diag(fisher))
    assert np.abs(z).max() < 4
    scale = np.sqrt(np.diag(fisher))
    np.testing.assert_allclose(
        law.curvature(THETA, data) / np.outer(scale, scale),
        fisher / np.outer(scale, scale),
        atol=6 * np.sqrt(3 / MANY),
    )
    with pytest.raises(AssertionError):
        wrong = law.gradients(THETA, [x, law.draw(THETA, np.random.default_rng(SEED + 1))[1]])
        assert np.abs(wrong.mean(axis=0)).max() < 0.01 and abs(np.mean(wrong[:, 2] ** 2)) < 1


#: Distributions of a parameter that is 1.5, and SciPy's: first by standard draws, then by PyMC's quantile functions.
LAWS = [
    (lambda t: pm.Laplace.dist(t, 2, shape=5), stats.laplace(1.5, 2)),
    (lambda t: pm.Logistic.dist(t, 2, shape=5), stats.logistic(1.5, 2)),
    (lambda t: pm.Gumbel.dist(t, 2, shape=5), stats.gumbel_r(1.5, 2)),
    (lambda t: pm.LogNormal.dist(t, 2, shape=5), stats.lognorm(2, scale=np.exp(1.5))),
    (lambda t: pm.Weibull.dist(t, 2, shape=5), stats.weibull_min(1.5, scale=2)),
    (lambda t: pm.Exponential.dist(scale=t, shape=5), stats.expon(scale=1.5)),
    (lambda t: pm.StudentT.dist(nu=3.5, mu=t, sigma=2, shape=5), stats.t(3.5, 1.5, 2)),
    (lambda t: pm.Gamma.dist(t, 0.5, shape=5), stats.gamma(1.5, scale=2)),
    (lambda t: pm.Beta.dist(t, 0.8, shape=5), stats.beta(1.5, 0.8)),
    (lambda t: pm.InverseGamma.dist(3, t, shape=5), stats.invgamma(3, scale=1.5)),
    (lambda t: pm.Cauchy.dist(t, 2, shape=5), stats.cauchy(1.5, 2)),
    (lambda t: pm.HalfCauchy.dist(t, shape=5), stats.halfcauchy(scale=1.5)),
    (lambda t: pm.Pareto.dist(t, 0.3, shape=5), stats.pareto(1.5, scale=0.3)),
    (lambda t: pm.Moyal.dist(t, 2, shape=5), stats.moyal(1.5, 2)),
]


def check_laws(laws):
    """Those of draws; and of 400 sets of numbers, each gives another 400th of the law."""
    t, theta, rng = pt.dscalar(), [np.array(1.5)], np.random.default_rng(SEED)
    law = Drawing([t], [build(t) for build, _ in laws])
    generators, numbers = law.generators(rng), law.numbers(400, rng)
    drawn = zip(*(law(generators, theta) for _ in numbers), strict=True)
    sets = zip(*(law.of(z, theta) for z in numbers), strict=True)
    for (_, expected), y, q in zip(laws, drawn, sets, strict=True):
        assert stats.kstest(np.ravel(y), expected.cdf).pvalue > 1e-4
        place = 400 * np.sort(expected.cdf(q), axis=0) - np.arange(400)[:, None]
        assert -1e-4 < place.min() and place.max() < 1 + 1e-4


@pytest.mark.parametrize("part", [(0, 6), (6, 9), pytest.param((9, 14), marks=pytest.mark.slow)])
def test_laws_with_fixed_numbers(part):
    check_laws(LAWS[slice(*part)])


def test_exchanged_parameters_are_found(monkeypatch):
    right = drawing._icdf
    monkeypatch.setattr(drawing, "_icdf", lambda *args: right(*args[:-2], *args[:-3:-1]))
    with pytest.raises(AssertionError):
        check_laws(LAWS[7:8])


@pytest.mark.slow
def test_only_the_generator_decides(law):
    first, again, other = (
        law.draw(THETA, np.random.default_rng(s)) for s in (SEED, SEED, SEED + 1)
    )
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.any(a == c)


@pytest.mark.slow
def test_integers_stay_integers():
    with pm.Model() as model:
        pm.Poisson("y", pm.Exponential("rate", 1), observed=np.arange(N))
    simulated = SimulatedRecords(model)
    (y,) = simulated.draw(np.array([np.log(7.0)]), np.random.default_rng(SEED))
    assert y.dtype == observed_arrays(model)[0].dtype
    (many,) = zip(*(simulated.draw(np.array([np.log(7.0)]), np.random.default_rng(s)) for s in range(300)), strict=True)  # fmt: skip
    assert abs(np.mean(many) - 7) < 4 * np.sqrt(7 / (300 * N))


# ---------------------------------------------------------------- nothing depends on what was observed


def everything(model, theta, **options):
    """All that a plan sees, to the last bit."""
    simulated = SimulatedRecords(model, **options)
    data = simulated.draw(theta, np.random.default_rng(SEED))
    functions = (simulated.logp, simulated.gradients, simulated.curvature)
    return [*data, *(f(theta, data) for f in functions)]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
def test_what_was_observed_does_not_matter():
    """A constant, and a pm.Data, of a variable that enters the parameters of the other."""
    one, other = (everything(law_model(50, change), THETA) for change in (0.0, 17.25))
    assert same(one, other)


def discrete_model(counts, levels):
    """Observed integers, for which PyMC could compute parts of the likelihood in advance."""
    with pm.Model() as model:
        pm.Poisson("y", pm.Exponential("m", 1), observed=counts)
        pm.Bernoulli("z", logit_p=pm.Normal("a"), observed=pm.Data("levels", levels))
    return model


@pytest.mark.slow
def test_observed_integers_do_not_matter():
    a = discrete_model(np.arange(N), np.arange(N) % 2)
    b = discrete_model(np.full(N, 90), np.ones(N, dtype=int))
    assert same(*(everything(m, np.array([0.3, -0.5])) for m in (a, b)))


@pytest.mark.slow
def test_leak_would_be_found():
    """Control: the comparison finds the difference of models that differ in a covariate."""
    models = []
    for shift in (0.0, 1e-9):
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("mu") * (X[:, 0] + shift), 1.0, observed=np.zeros(N))
        models.append(model)
    one, other = (everything(m, np.array([0.5]), public_covariates=True) for m in models)
    assert not same(one, other)


def by_container(y, z):
    data = pm.Data("y_data", y)
    pm.Normal("y", pm.Normal("mu"), 1.0, observed=data)
    pm.Normal("z", pm.Normal("b") * data, 1.0, observed=z)


def by_column(y, z):
    table = pm.Data("table", np.column_stack([y, z]))
    pm.Normal("y", pm.Normal("mu"), 1.0, observed=table[:, 0])
    pm.Normal("z", pm.Normal("b") * table[:, 0], 1.0, observed=table[:, 1])


@pytest.mark.parametrize("fill", [by_container, by_column])
@pytest.mark.parametrize("public", [True, False])
def test_observed_data_in_other_parameters_are_refused(fill, public):
    """Even if covariates are public: what is observed is not."""
    with pm.Model() as model:
        fill(X[:, 0], X[:, 1])
    with pytest.raises(UnsupportedModel, match="with the random variable itself"):
        SimulatedRecords(model, public_covariates=public, public_data=public)


@pytest.mark.parametrize("z", [X[:, 0], X[:, 1]])
def test_covariates_of_several_outcomes_are_in_containers(z):
    """A raw array may be another outcome, which no container shows: refused whatever its values are (line 5)."""

    def simulated(covariate, **options):
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("mu"), 1.0, observed=X[:, 0])
            pm.Normal("z", pm.Normal("b") * covariate(z), 1.0, observed=X[:, 1])
        return SimulatedRecords(model, public_covariates=True, **options)

    with pytest.raises(UnsupportedModel, match=r"Write pm.Data\(\"x\", x\)"):
        simulated(np.asarray)
    simulated(np.asarray, public=[z])
    simulated(lambda z: pm.Data("z_data", z))


# ---------------------------------------------------------------- covariates


def covariate(kind):
    y = np.zeros(N)
    with pm.Model(coords={"row": np.arange(N)}) as model:
        mu = pm.Normal("mu", shape=3)
        if kind == "constant":
            pm.Normal("y", X @ mu[:2], 1.0, observed=y)
        elif kind == "container":
            pm.Normal("y", pm.Data("age", X[:, 0], dims="row") * mu[0], 1.0, observed=y)
        elif kind == "index":
            pm.Normal("y", mu[WHO], 1.0, observed=y)
        elif kind == "index container":
            pm.Normal("y", mu[pm.Data("group", WHO)], 1.0, observed=y)
        elif kind == "centred":
            x = pt.as_tensor(X[:, 0])
            pm.Normal("y", mu[0] * (x - x.mean()), 1.0, observed=y)
        elif kind == "scale":
            pm.Normal("y", mu[0], np.exp(X[:, 0]), observed=y)
    return model


@pytest.mark.parametrize(
    "kind", ["constant", "container", "index", "index container", "centred", "scale"]
)
def test_private_covariates_are_refused(kind):
    with pytest.raises(ValueError, match='covariates="public"') as refused:
        SimulatedRecords(covariate(kind))
    name = {"container": "age", "index container": "group"}.get(kind)
    assert name is None or name in str(refused.value)
    assert not any(f"{v:.3f}"[:5] in str(refused.value) for v in X.ravel())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["index container", "index", "container", "constant"])
def test_public_covariates_are_used(kind):
    simulated = SimulatedRecords(covariate(kind), public_covariates=True)
    theta = np.array([100.0, 200.0, 300.0])
    (y,) = simulated.draw(theta, np.random.default_rng(SEED))
    mean = {"container": 100 * X[:, 0], "constant": X @ theta[:2]}.get(kind, theta[WHO])
    assert np.abs(y - mean).max() < 5


def test_labels_of_records_are_private():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.zeros(N))
    with pytest.raises(ValueError, match="which rows belong together"):
        SimulatedRecords(model, records=WHO)


# ---------------------------------------------------------------- what cannot be drawn


def custom(random=None):
    def logp(value, mu):
        return -((value - mu) ** 2)

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu"), logp=logp, random=random, observed=X[:, 0])
    return model


@pytest.mark.slow
def test_without_random_numbers_the_data_must_be_public():
    with pytest.raises(UnsupportedModel, match=r"give its pm.CustomDist a random=, or pass covariates=stand_in_model"):  # fmt: skip
        SimulatedRecords(custom())
    simulated = SimulatedRecords(custom(), public_covariates=True, public_data=True)
    (y,) = simulated.draw(np.array([0.3]), np.random.default_rng(SEED))
    np.testing.assert_array_equal(y, X[:, 0])
    np.testing.assert_allclose(simulated.gradients(np.array([0.3]), [y])[:, 0], 2 * (y - 0.3))


def test_custom_random_numbers():
    def random(mu, rng=None, size=None):
        return rng.normal(mu, np.sqrt(0.5), size=size)

    simulated = SimulatedRecords(custom(random), public_covariates=True, public_data=True)
    draws = [simulated.draw(np.array([8.0]), np.random.default_rng(s))[0] for s in range(200)]
    assert abs(np.mean(draws) - 8) < 4 * np.sqrt(0.5 / (200 * N))


@pytest.mark.parametrize("how", ["closure", "default", "method", "global", "list"])
def test_functions_that_draw_have_captured_no_data(how):
    """A plan calls ``random=`` with nothing spent: line 4."""
    y = X[:, 0].copy()

    class Method:
        stored = y

        def draw(self, mu, rng=None, size=None):
            return rng.choice(self.stored, size=size)

    draws = {
        "closure": lambda mu, rng=None, size=None: rng.choice(y, size=size),
        "default": lambda mu, rng=None, size=None, others=y: rng.choice(others, size=size),
        "method": Method().draw,
        "global": lambda mu, rng=None, size=None: (lambda: rng.choice(X[:, 0], size=size))(),
        "list": functools.partial(lambda values, mu, rng=None, size=None: values[0], list(y)),
    }
    with pytest.raises(UnsupportedModel, match=r"'y' is drawn by a function .* captured an array"):
        SimulatedRecords(custom(draws[how]))
    frozen = stats.norm()  # an object of a library, without data
    check_functions("y", custom(lambda mu, **_: frozen.rvs() + mu).observed_RVs, PublicArrays(pm.Model()), {N})  # fmt: skip
    public = PublicArrays(pm.Model(), [y, X])
    check_functions("y", custom(draws[how]).observed_RVs, public, {N})


@pytest.mark.parametrize("side", ["lower", "upper"])
def test_line_15_censoring_bounds_carry_no_outcome(side):
    """Bounds that are infinite for some rows are refused where they are public: line 15."""
    sign = 1 if side == "upper" else -1
    follow_up = sign * np.linspace(1.0, 2.0, N)
    y = sign * np.minimum(np.abs(X[:, 0]) * 2, np.abs(follow_up))
    bound = np.where(y == follow_up, follow_up, sign * np.inf)
    assert 0 < np.isinf(bound).sum() < N

    def model(limit):
        with pm.Model() as model:
            latent = pm.Normal.dist(pm.Normal("m"), 1.0)
            limits = {"lower": None, "upper": None, side: pm.Data("limit", limit)}
            pm.Censored("y", latent, **limits, observed=y)
        return model

    with pytest.raises(UnsupportedModel, match=f"{side}=follow_up") as refused:
        SimulatedRecords(model(bound), public_covariates=True)
    assert not any(f"{v:.4f}" in str(refused.value) for v in y)
    SimulatedRecords(model(follow_up), public_covariates=True)
    assert not RecordLikelihood(model(bound), compile_kwargs={"mode": "FAST_COMPILE"}).by_position


@pytest.mark.parametrize("wrong", ["minibatch", "nothing observed", "discrete"])
def test_still_refused(wrong):
    with pm.Model() as model:
        mu = pm.Normal("mu")
        if wrong == "minibatch":
            batch = pm.Minibatch(X[:, 0], batch_size=3)
            pm.Normal("y", mu, 1.0, observed=batch, total_size=N)
        elif wrong == "discrete":
            pm.Normal("y", pm.Poisson("k", 2.0), 1.0, observed=X[:, 0])
    with pytest.raises(UnsupportedModel):
        SimulatedRecords(model)
    with pytest.raises(UnsupportedModel):
        RecordLikelihood(model)


@pytest.mark.slow
def test_two_variables_that_were_observed_to_be_the_same():
    """PyMC has one constant for both; what is simulated differs."""
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Normal("x", a, 1.0, observed=np.zeros(50))
        pm.Normal("y", b, 0.1, observed=np.zeros(50))
    simulated = SimulatedRecords(model)
    theta = np.array([1.0, -1.0])
    x, y = data = simulated.draw(theta, np.random.default_rng(1))
    expected = np.stack([x - 1.0, (y + 1.0) / 0.01], axis=1)
    np.testing.assert_allclose(simulated.gradients(theta, data), expected, rtol=1e-9)


def test_sums_and_products_are_computed_by_arrays_where_numpy_draws():
    """Of more than two arguments PyTensor computes them element by element, a hundred times slower."""
    with pm.Model() as model:
        b, columns = pm.Normal("b", shape=4), pm.Data("x", np.ones((4, N)))
        eta = 2 * b[0] * columns[0] + 3 * b[1] * columns[1] + b[2] * columns[2] * columns[3] + b[3]
        pm.Poisson("y", pm.math.exp(eta), observed=np.ones(N, int))
    simulated = SimulatedRecords(model, public_covariates=True)
    nodes = simulated._drawing._function.maker.fgraph.toposort()
    names = {type(getattr(node.op, "scalar_op", None)).__name__ for node in nodes}
    assert {"Add", "Mul"} <= names
    arguments = [len(node.inputs) for node in nodes if hasattr(node.op, "scalar_op")]
    assert max(arguments) <= 2
