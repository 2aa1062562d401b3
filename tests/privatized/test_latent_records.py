"""Models of latent records: what is taken apart must make up the model's own log-probability.

The second way to every number is PyMC's: log-probability of all factors but the records' own, as a
function of a point, compiled by PyMC.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from scipy import stats

import pymc_dp as dp

from pymc_dp import UnsupportedModel
from pymc_dp.model.graphs.drawing import Drawing
from pymc_dp.privatized.latent_records import LatentRecords

N = 7
RNG = np.random.default_rng(20240301)
WEIGHTS = RNG.normal(size=N)
GROUP = np.array([0, 2, 1, 1, 0, 2, 2])
PAIRS = np.triu_indices(3)


def latent(model: pm.Model, names, terms=()) -> LatentRecords:
    return LatentRecords(model, [model.rvs_to_values[model[name]] for name in names], terms)


# ---------------------------------------------------------------------- ways to write a statistic


def mean():
    x = pm.Normal("x", pm.Normal("mu"), 1, shape=(N, 2))
    pm.Normal("s", x.mean(axis=0), 0.3, observed=[1.0, -1.0])


def clamped_moments():
    x = pm.Normal("x", pm.Normal("mu"), 1, shape=(N, 3))
    z = pm.math.clip(x, -1, 1)
    pm.Laplace("s", (z.T @ z)[PAIRS], 2.0, observed=np.arange(6.0))


def outer_products():
    x = pm.Normal("x", pm.Normal("mu"), 1, shape=(N, 2))
    y = pm.Normal("y", x.sum(axis=1), 1, shape=N)
    z = pt.concatenate([pt.ones((N, 1)), x, y[:, None]], axis=1)
    pm.Laplace("s", (z[:, :, None] * z[:, None, :]).sum(axis=0), 2.0, observed=np.eye(4))


def vector_products():
    x = pm.Normal("x", pm.Normal("mu"), 1, shape=(N, 2))
    y = pm.Normal("y", x.sum(axis=1), 1, shape=N)
    pm.Laplace("xy", x.T @ y, 2.0, observed=[0.0, 1.0])
    pm.Laplace("yx", y @ x, 2.0, observed=[0.5, 1.0])
    pm.Laplace("yy", pt.dot(y, y), 2.0, observed=3.0)
    pm.Laplace("wy", WEIGHTS @ y, 2.0, observed=3.0)


def function_of_sums():
    x = pm.Normal("x", pm.Normal("mu"), 1, shape=N)
    ratio = (x**2).sum() / (1 + pt.exp(x).sum())
    pm.Laplace("s", ratio * pm.HalfNormal("scale"), 2.0, observed=1.5)


def noise_by_sums():
    x = pm.Normal("x", pm.Normal("mu"), 1, shape=N)
    pm.Normal("s", x.sum(), (x**2).mean(), observed=1.5)  # PyMC checks that the latter is positive


def counts():
    x = pm.Categorical("x", pm.Dirichlet("p", np.ones(3)), shape=N)
    pm.Laplace("s", pt.eq(x[:, None], np.arange(3)).sum(axis=0), 2.0, observed=[1.0, 2.0, 4.0])


def table():
    y = pm.Bernoulli("y", pm.Beta("p", 1, 1), shape=N)
    x = pm.Categorical("x", pt.as_tensor([[0.2, 0.8], [0.6, 0.4]])[y][:, None, :], shape=(N, 4))
    one_by_one = pt.zeros((4, 2, 2))[np.arange(4), x, y[:, None]].inc(1)
    pm.Laplace("s", one_by_one, 2.0, observed=np.ones((4, 2, 2)))


def weighted_table():
    x = pm.Categorical("x", np.ones(3) / 3, shape=N)
    y = pm.Normal("y", x, 1, shape=N)
    pm.Laplace("s", pt.ones(3)[x - 3].inc(pm.math.clip(y, -1, 1)), 2.0, observed=np.ones(3))


def randomized_response():
    x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=N)
    pm.Bernoulli("s", 0.25 + 0.5 * x, observed=[0, 1, 1, 1, 0, 0, 1])


def discrete_noise():
    x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=N)
    y = pm.Categorical("y", np.ones(3) / 3, shape=N)
    dp.DiscreteLaplace("s", x.sum(), scale=1.5, observed=4)
    dp.DiscreteGaussian("t", pt.eq(y[:, None], np.arange(3)).sum(0), sigma=3.0, observed=[1, 2, 3])
    dp.RandomizedResponse("u", y, epsilon=1.0, n_categories=3, observed=[0, 1, 2, 2, 1, 0, 0])


def public_outcome():
    x = pm.Normal("x", pm.Normal("mu", shape=3)[GROUP], 1, shape=N)
    pm.Poisson("y", pt.exp(pm.Normal("b") * x + WEIGHTS), observed=np.arange(N))
    pm.Laplace("s", x.sum(), 2.0, observed=1.5)


def potential():
    x = pm.Normal("x", pm.Normal("mu"), 1, shape=N)
    pm.Potential("s", -abs(pt.sign(x - 0.3).sum()) * 0.5)


def downstream_parameter():
    x = pm.Normal("x", pm.Normal("mu"), 1, shape=N)
    z = pm.Normal("z", x, 0.5, shape=N)
    pm.Laplace("s", z.sum() + x.sum(), 2.0, observed=1.5)


def bounded():
    top = pm.HalfNormal("top")
    x = pm.Uniform("x", 0, top, shape=N)
    y = pm.Exponential("y", 1 / (1 + x), shape=N)
    pm.Laplace("s", (x * y).sum(), 2.0, observed=1.5)


def with_dims():
    pm.modelcontext(None).add_coord("person", np.arange(N))
    w = pm.Data("w", WEIGHTS, dims="person")
    x = pm.Normal("x", pm.Normal("mu") + w, 1, dims="person")
    pm.Laplace("s", pm.Deterministic("stat", (w * x).mean()), 2.0, observed=1.5)


def multivariate():
    x = pm.MvNormal("x", pm.Normal("mu", shape=2), np.eye(2), shape=(N, 2))
    pm.MvNormal("s", x.sum(axis=0), 2 * np.eye(2), observed=[1.0, 2.0])


def objective_perturbation():
    """The minimum of a ridge logistic loss plus noise times the parameter: density by change of variables.

    Of the released minimum the noise is a function, with a derivative: both are of sums over records,
    of gradients and of second derivatives of the loss (Chaudhuri, Monteleoni and Sarwate 2011).
    """
    x = pm.Categorical("x", pm.math.softmax(pm.Normal("tilt") * np.arange(3.0)), shape=N)
    side = pt.as_tensor([-1.0, 0.4, 1.0])[x]  # label times feature, of three kinds of people
    chance = pm.math.sigmoid(-0.6 * side)

    def density(value, gradients, curvatures):
        noise = -(gradients + value)
        return pm.logp(pm.Laplace.dist(0, 0.8), noise) + pt.log(curvatures + 1.0)

    sums = (-side * chance).sum(), (side**2 * chance * (1 - chance)).sum()
    pm.CustomDist("s", *sums, logp=density, observed=0.6)


MODELS = {
    mean: ["x"], clamped_moments: ["x"], outer_products: ["x", "y"],
    vector_products: ["x", "y"], function_of_sums: ["x"], noise_by_sums: ["x"], counts: ["x"], table: ["x", "y"],
    weighted_table: ["x", "y"], randomized_response: ["x"], discrete_noise: ["x", "y"], public_outcome: ["x"], potential: ["x"],
    downstream_parameter: ["x"], bounded: ["x", "y"], with_dims: ["x"], multivariate: ["x"],
    objective_perturbation: ["x"],
}  # fmt: skip


def build(function) -> pm.Model:
    with pm.Model() as model:
        function()
    return model


def random_point(model: pm.Model, seed: int) -> dict[str, np.ndarray]:
    """Values drawn from the prior."""
    rng = np.random.default_rng(seed)
    rvs = model.free_RVs
    draws = pm.draw(rvs, random_seed=int(rng.integers(2**30)))
    point = {}
    for rv, draw in zip(rvs, draws, strict=True):
        transform, value = model.rvs_to_transforms[rv], model.rvs_to_values[rv]
        if transform is not None:
            draw = rng.normal(size=model.initial_point()[value.name].shape)
        point[value.name] = np.asarray(draw, dtype=value.dtype)
    return point


@pytest.mark.slow  # each takes seconds to compile
@pytest.mark.parametrize("function", MODELS, ids=lambda f: f.__name__)
def test_parts_make_up_the_log_probability(function):
    model, names = build(function), MODELS[function]
    records = latent(model, names)
    own = [model[name] for name in names]
    factors = [*(rv for rv in model.basic_RVs if rv not in own), *model.potentials]
    logp = model.compile_fn(
        sum(graph.sum() for graph in model.logp(vars=factors, sum=False)),
        inputs=model.value_vars,
        mode="FAST_COMPILE",
    )
    differences = []
    for seed in (1, 2, 3):
        one, other = random_point(model, seed), random_point(model, seed + 3)
        other |= {k: v for k, v in one.items() if k not in records.names}  # records differ
        now, then = records.terms(one, [other[name] for name in records.names])
        assert now.shape == then.shape
        assert len(now) == records.n_records == N
        parameters = [one[name] for name in records.parameters]
        before, after = (records.outer(t.sum(0), *parameters) for t in (now, then))
        differences.append(after - before)
        np.testing.assert_allclose(after - before, logp(other) - logp(one), rtol=1e-9, atol=1e-9)

        # One record's terms change with that record alone.
        mixed = {k: v.copy() for k, v in one.items()}
        for name in records.names:
            mixed[name][2] = other[name][2]
        changed = (records.terms(one, [mixed[name] for name in records.names])[1] != now).any(1)
        assert set(np.flatnonzero(changed)) <= {2}
    assert max(map(abs, differences)) > 1e-3  # else nothing was tested


@pytest.mark.slow
def test_only_what_is_used_is_added_up():
    model = build(clamped_moments)
    point = random_point(model, 1)
    assert latent(model, ["x"]).terms(point, [point["x"]])[0].shape == (N, 6)


# ---------------------------------------------------------------------- refusals


def maximum():
    x = pm.Normal("x", shape=N)
    pm.Laplace("s", x.max(), 2.0, observed=1.5)


def variance():
    x = pm.Normal("x", shape=N)
    pm.Laplace("s", ((x - x.mean()) ** 2).sum(), 2.0, observed=1.5)


def neighbours():
    x = pm.Normal("x", shape=N)
    pm.Laplace("s", (x[1:] * x[:-1]).sum(), 2.0, observed=1.5)


def pairs():
    x = pm.Normal("x", shape=N)
    pm.Laplace("s", pt.exp(-((x[:, None] - x[None, :]) ** 2)).sum(), 2.0, observed=1.5)


@pytest.mark.parametrize(
    "function",
    [maximum, variance, neighbours, pairs],
    ids=lambda f: f.__name__,
)
def test_functions_without_sums_are_refused(function):
    with pytest.raises(
        UnsupportedModel, match="do not appear to be functions of sums over records"
    ):
        latent(build(function), ["x"])


def test_a_single_record_is_a_sum():
    with pm.Model() as model:
        x = pm.Normal("x", shape=1)
        pm.Laplace("s", x.max() ** 2, 2.0, observed=1.5)
    now, then = latent(model, ["x"]).terms({"x": np.array([1.0])}, [np.array([3.0])])
    np.testing.assert_allclose(then - now, (-abs(9 - 1.5) + abs(1 - 1.5)) / 2)


def random_walk():
    x = pm.GaussianRandomWalk("x", 0, 1, init_dist=pm.Normal.dist(), steps=N - 1)
    pm.Laplace("s", x.sum(), 2.0, observed=1.5)


def joint_vector():
    x = pm.MvNormal("x", np.zeros(N), np.eye(N) + 0.5)
    pm.Laplace("s", x.sum(), 2.0, observed=1.5)


def centred():
    pm.Normal("x", shape=N)
    y = pm.Normal("y", pm.modelcontext(None)["x"].mean(), shape=N)
    pm.Laplace("s", y.sum(), 2.0, observed=1.5)


@pytest.mark.parametrize(
    ("function", "names"),
    [(random_walk, ["x"]), (joint_vector, ["x"]), (centred, ["x", "y"])],
    ids=["random_walk", "joint_vector", "centred"],
)
def test_records_that_depend_on_each_other_are_refused(function, names):
    with pytest.raises(UnsupportedModel, match="not independent"):
        latent(build(function), names)


def test_records_on_which_nothing_depends_are_refused():
    with pm.Model() as model:
        pm.Normal("x", shape=N)
        pm.Laplace("s", pm.Normal("mu"), 2.0, observed=1.5)
    with pytest.raises(UnsupportedModel, match="no observed variable depends on"):
        latent(model, ["x"])


def test_rows_must_agree():
    with pm.Model() as model:
        x = pm.Normal("x", shape=N)
        y = pm.Normal("y", shape=(N - 1, 2))
        z = pm.Normal("z")
        pm.Laplace("s", x.sum() + y.sum() + z, 2.0, observed=1.5)
    for names in (["x", "y"], ["x", "z"], ["z"]):
        with pytest.raises(ValueError, match=r"leading axis.*shapes"):
            latent(model, names)


# ---------------------------------------------------------------------- terms by name


def named():
    x = pm.Normal("x", pm.Normal("mu"), 1, shape=(N, 3))
    parts = pt.concatenate([x[:3], x[3:]], axis=0)  # the walk cannot tell that this is x
    each = pm.Deterministic("each", pt.sort(parts, axis=1)[:, 1])
    pm.Laplace("s", each.sum(), 2.0, observed=1.5)


@pytest.mark.slow
def test_terms_by_name():
    with pm.Model() as model:
        named()
    with pytest.raises(UnsupportedModel, match="contributions="):
        latent(model, ["x"])
    records = latent(model, ["x"], ["each"])
    one, other = random_point(model, 1), random_point(model, 2)
    now, then = records.terms(one, [other["x"]])
    np.testing.assert_allclose(now[:, 0], np.median(one["x"], axis=1))
    difference = records.outer(then.sum(0)) - records.outer(now.sum(0))
    middle = [np.median(p["x"], axis=1).sum() for p in (one, other)]
    np.testing.assert_allclose(difference, (abs(middle[0] - 1.5) - abs(middle[1] - 1.5)) / 2)


def test_wrong_names_of_terms():
    with pm.Model() as model:
        named()
    with pytest.raises(ValueError, match=r"\['other'\] are not"):
        latent(model, ["x"], ["other"])


@pytest.mark.slow
def test_named_terms_must_be_row_by_row():
    with pm.Model() as model:
        x = pm.Normal("x", shape=N)
        pm.Laplace("s", pm.Deterministic("each", pt.sort(x) * WEIGHTS).sum(), 2.0, observed=1.5)
    with pytest.raises(UnsupportedModel, match="'each'"):
        latent(model, ["x"], ["each"])


# ---------------------------------------------------------------------- draws


def drawn(model: pm.Model, names, point, n: int) -> dict[str, np.ndarray]:
    records = latent(model, names)
    generators = records.generators(np.random.default_rng(5))
    draws = [records.draw(point, generators) for _ in range(n)]
    return {name: np.array(values) for name, values in zip(records.names, zip(*draws), strict=True)}


@pytest.mark.slow
def test_draws_follow_the_model():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        x = pm.Normal("x", mu + WEIGHTS, 2, shape=N)
        y = pm.Bernoulli("y", pm.math.sigmoid(x), shape=N)
        u = pm.Uniform("u", 0, 1 + y, shape=N)
        k = pm.Categorical("k", pt.as_tensor([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])[y], shape=N)
        e = pm.Exponential("e", 2.0, shape=N)
        h = pm.HalfNormal("h", 3.0, shape=N)
        g = pm.LogNormal("g", 0.5, 0.3, shape=N)
        pm.Laplace("s", (x + y + u + k + e + h + g).sum(), 2.0, observed=1.5)
    names = ["x", "y", "u", "k", "e", "h", "g"]
    point = model.initial_point() | {"mu": np.array(0.7)}
    found = drawn(model, names, point, 400)
    x, y = found["x"], found["y"]
    _check_uniform(stats.norm.cdf(x, 0.7 + WEIGHTS, 2))
    _check_uniform(1 / (1 + np.exp(-found["u_interval__"])))
    _check_uniform(stats.expon.cdf(np.exp(found["e_log__"]), scale=0.5))
    _check_uniform(stats.halfnorm.cdf(np.exp(found["h_log__"]), scale=3))
    _check_uniform(stats.norm.cdf(found["g_log__"], 0.5, 0.3))
    p = 1 / (1 + np.exp(-x))
    assert abs((y - p).sum()) < 4 * np.sqrt((p * (1 - p)).sum())
    for value, expected in enumerate([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]]):
        counts_ = np.bincount(found["k"][y == value], minlength=3)
        assert stats.chisquare(counts_, np.array(expected) * counts_.sum()).pvalue > 1e-4


def _check_uniform(values: np.ndarray) -> None:
    assert stats.kstest(values.ravel(), "uniform").pvalue > 1e-4


@pytest.mark.slow
def test_draws_of_other_distributions():
    """By NumPy, node by node; PyTensor 2.38 draws Cauchy variables wrongly in Numba."""
    with pm.Model() as model:
        x = pm.Cauchy("x", 3.0, 10.0, shape=N)
        y = pm.Gamma("y", 2.0, 1 + pt.eq(x, 0), shape=N)
        z = pm.Mixture("z", [0.3, 0.7], pm.Normal.dist([-5, 5], 1, shape=(2,)), shape=N)
        pm.Laplace("s", (pt.tanh(x) + y + z).sum(), 2.0, observed=1.5)
    found = drawn(model, ["x", "y", "z"], model.initial_point(), 400)
    _check_uniform(stats.cauchy.cdf(found["x"], 3, 10))
    _check_uniform(stats.gamma.cdf(np.exp(found["y_log__"]), 2))
    z = found["z"]
    _check_uniform(0.3 * stats.norm.cdf(z, -5) + 0.7 * stats.norm.cdf(z, 5))
    assert abs(np.corrcoef(z[:-1].ravel(), z[1:].ravel())[0, 1]) < 0.08  # each time anew


def test_what_is_drawn_may_have_no_randomness():
    x = pt.vector("x", dtype="float64")
    (found,) = Drawing([x], [2 * x])([], [np.ones(2)])
    np.testing.assert_array_equal(found, 2.0)
