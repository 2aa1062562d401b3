"""The mode JAX: sums that are those of Numba, in any blocks; double precision or an error.

Two compilers do not round exponentials and logarithms alike. So about one whole number of a record in a million differs
by a step between JAX and Numba, and a sum of some thousands of them may differ by a few steps; sums of JAX do not
differ from each other.
"""

from __future__ import annotations

import sys

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp

from pymc_dp.data import Records
from pymc_dp.errors import UnsupportedModel
from pymc_dp.model import RecordLikelihood
from pymc_dp.model.blocked_likelihood import BlockedLikelihood

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
N, D = 3001, 4
JAX = {"mode": "JAX"}
FEW_STEPS = 3
EDGES = np.array([0.2, 0.5, 1.0])


def columns():
    rng = np.random.default_rng(1)
    return {
        "x": rng.normal(size=(N, D)),
        "z": rng.normal(size=N),
        "group": rng.integers(0, 5, N),
        "yes": (rng.random(N) < 0.4).astype(np.int8),
        "count": rng.poisson(1.5, N),
        "kind": rng.integers(0, 3, N),
    }


def slopes(d=D):
    return pm.Normal("slopes", 0, 1, shape=d)


def normal(z):
    pm.Normal("y", pm.Normal("m", 0, 1), pm.HalfNormal("s", 1), observed=z)


def logistic(x, yes):
    pm.Bernoulli("y", logit_p=x @ slopes(), observed=yes)


def poisson(x, count):
    pm.Poisson("y", pm.math.exp(0.3 * x @ slopes()), observed=count)


def indices(x, group, z):
    pm.Normal("y", pm.Normal("level", 0, 1, shape=5)[group] + x[:, 0] * slopes(1), 1, observed=z)


def hierarchical(x, group, count):
    scale = pm.HalfNormal("scale", 1)
    level = pm.Normal("level", 0, scale, shape=5)
    pm.NegativeBinomial(
        "y",
        mu=pm.math.exp(level[group] + scale * x[:, 1]),
        alpha=pm.HalfNormal("a", 1),
        observed=count,
    )


def several(x, z, yes):
    effects = slopes()
    pm.Bernoulli("one", logit_p=x @ effects, observed=yes)
    pm.Normal("two", x[:, 1] * effects[0], pm.HalfNormal("s", 1), observed=z)


def categorical(x, kind):
    pm.Categorical("y", p=pm.math.softmax(x @ pm.Normal("b", 0, 1, shape=(D, 3)), axis=-1), observed=kind)  # fmt: skip


def multivariate(x):
    chol, *_ = pm.LKJCholeskyCov("c", n=D, eta=2, sd_dist=pm.Exponential.dist(1.0, shape=D))
    pm.MvNormal("y", slopes(), chol=chol, observed=x)


MODELS = [logistic, poisson, indices, several, categorical, multivariate]


def columns_of(function):
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return {name: columns()[name] for name in names}


def whole(function, **options):
    with pm.Model() as model:
        function(**columns_of(function))
    return RecordLikelihood(model, private=False, **options)


def points(likelihood):
    """Two positions near each other, directions, and some records."""
    rng = np.random.default_rng(2)
    d, n = likelihood.n_dim, likelihood.n_records
    old = rng.normal(size=d) * 0.3
    return old, old + rng.normal(size=d) * 0.1, rng.normal(size=(d, 3)), rng.integers(0, n, 150)


def reduced(likelihood):
    """All reductions in whole numbers, and the log-likelihoods of some records."""
    old, new, directions, index = points(likelihood)
    bound = 0.5
    change = likelihood.clipped_change(new, old, bound)
    steps = [
        change * 2.0**31,  # exponent of the grid: -31
        likelihood.clipped_grad_steps(old, 1.5)[0],
        likelihood.clipped_grad_steps(old, 0.7, directions=directions, keeps_logp=True)[0],
        likelihood.clipped_grad_steps(old, 0.7, directions=np.full(len(old), 0.5))[0],
        likelihood.clipped_grad_steps(old, 0.7, index)[0],
        likelihood.clipped_grad_steps(old, 0.7, index, directions=directions)[0],
        likelihood.clipped_grad_steps(old, 0.7, index[:1])[0],
        likelihood.clipped_grad_steps(old, 0.7, unbiased=likelihood.is_binary)[0],
        likelihood.product_steps(old, directions, 1.1)[0],
        likelihood.norm_counts(old, directions, EDGES),
    ]
    return steps, likelihood.logp_at(np.array([old, new]), index)


def check_same(found, expected):
    """Exactly."""
    for a, b in zip(found[0], expected[0], strict=True):
        assert np.array_equal(a, b)
    assert np.array_equal(found[1], expected[1])


def check_same_but_for_rounding(found, expected):
    for a, b in zip(found[0], expected[0], strict=True):
        assert np.abs(a - b).max() <= FEW_STEPS and np.abs(b).max() > 100 * FEW_STEPS
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-12)


@pytest.mark.jax
@pytest.mark.parametrize("function", MODELS)
def test_sums_are_those_of_numba_and_do_not_depend_on_places(function):
    pytest.importorskip("jax")
    found, numba = whole(function, compile_kwargs=JAX), whole(function)
    check_same_but_for_rounding(reduced(found), reduced(numba))
    old, _, matrix, _ = points(found)
    logp, each = found.logp(old), found._gradients.each(old, None, matrix)
    assert logp.dtype == each.dtype == np.float64
    order = np.random.default_rng(3).permutation(N)
    for length in (1, 2, 3, 7, 8, 31, 64, 65, 127, 200, N):
        part = order[length : 2 * length] if length < N else order
        assert np.array_equal(found.logp_at(old, part), logp[part])
        assert np.array_equal(found._gradients.each(old, part, matrix), each[part])
    parts = np.array_split(order, 7)
    steps = [found.clipped_grad_steps(old, 0.7, part, directions=matrix)[0] for part in parts]
    assert np.array_equal(sum(steps), found.clipped_grad_steps(old, 0.7, directions=matrix)[0])
    np.testing.assert_allclose(found.log_prior(old), numba.log_prior(old), rtol=1e-12)
    np.testing.assert_allclose(found.grad_log_prior(old), numba.grad_log_prior(old), rtol=1e-12)


@pytest.mark.jax
@pytest.mark.parametrize("function", [logistic, hierarchical, several])
def test_sums_of_blocks(function):
    """In blocks of several lengths, and in another order; from a pickle."""
    pytest.importorskip("jax")
    data = columns_of(function)
    example = {name: c[:128] for name, c in data.items()}
    found = BlockedLikelihood(function, Records(data), example=example, compile_kwargs=JAX)
    expected = reduced(found)
    numba = BlockedLikelihood(function, Records(data), example=example)
    check_same_but_for_rounding(expected, reduced(numba))
    for length in (37, 64, 1000):
        found.records = Records(data, block_rows=length)
        check_same(reduced(found), expected)
    check_same(reduced(cloudpickle.loads(cloudpickle.dumps(found))), expected)
    order = np.random.default_rng(4).permutation(N)
    found.records = Records({name: c[order] for name, c in data.items()}, block_rows=200)
    old, new, directions, _ = points(found)
    change = found.clipped_change(new, old, 0.5)
    assert change * 2.0**31 == expected[0][0]
    steps = found.clipped_grad_steps(old, 0.7, directions=directions)[0]
    assert np.array_equal(steps, expected[0][2])


@pytest.mark.jax
def test_rows_of_the_same_record():
    """Records with several rows each."""
    pytest.importorskip("jax")
    records = np.random.default_rng(5).integers(0, 400, N)
    records[:400] = np.arange(400)
    found, expected = (whole(logistic, records=records, **o) for o in ({"compile_kwargs": JAX}, {}))
    check_same_but_for_rounding(reduced(found), reduced(expected))
    assert found.n_records == 400


@pytest.fixture
def single_precision():
    jax = pytest.importorskip("jax")
    yield lambda: jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_enable_x64", True)


@pytest.mark.jax
def test_single_precision_is_an_error(single_precision):
    likelihood = whole(normal, compile_kwargs=JAX)
    theta, index = np.zeros(2), np.arange(3)
    likelihood.clipped_grad_steps(theta, 1.0)
    single_precision()
    for evaluated in (
        lambda: likelihood.clipped_grad_steps(theta, 1.0),
        lambda: likelihood.logp_at(theta, index),
        lambda: likelihood.log_prior(theta),
        lambda: likelihood.grad_log_prior(theta),
        lambda: whole(normal, compile_kwargs=JAX),
    ):
        with pytest.raises(UnsupportedModel, match="jax_enable_x64"):
            evaluated()


def test_without_jax(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytensor.link.jax.dispatch", None)
    with pytest.raises(UnsupportedModel, match="extra 'jax'"):
        whole(normal, compile_kwargs=JAX)


QUIET = {
    "random_seed": 1,
    "progressbar": False,
    "compute_convergence_checks": False,
    "cores": 1,
}


@pytest.mark.jax
@pytest.mark.parametrize("kind", ["penalty", "fast_mh", "hmc"])
def test_steps(kind):
    """The steps compile their likelihood with `compile_kwargs`, and run."""
    pytest.importorskip("jax")
    draws = []
    with pm.Model() as model:
        logistic(**columns_of(logistic))
    for options in (JAX, {"mode": "NUMBA"}):
        budget = dp.PrivacyBudget(50.0, 1e-5, chains=1)
        common = {"budget": budget, "clip_bound": 2.0, "model": model, "compile_kwargs": options}
        walk = dp.RandomWalk(0.02)
        step = {
            "penalty": lambda: dp.DPPenalty(proposal=walk, **common),
            "fast_mh": lambda: dp.DPFastMH(proposal=walk, batch_rate=50.0, **common),
            "hmc": lambda: dp.DPHMC(
                step_size=0.01,
                n_leapfrog=3,
                gradient_clip_bound=2.0,
                gradient_noise_multiplier=5.0,
                **common,
            ),
        }[kind]()
        draws.append(dp.sample(step=step, model=model, draws=30, **QUIET)["posterior"]["slopes"])
        assert 0 < budget.spent() <= 50.0
    found, expected = (d.to_numpy() for d in draws)
    assert np.isfinite(found).all() and len(np.unique(found[..., 0])) > 1
    assert found.shape == expected.shape


@pytest.mark.jax
def test_scores():
    """The default sampler, by a simulator."""
    pytest.importorskip("jax")
    with pm.Model() as model:
        logistic(**columns_of(logistic))
    simulator = dp.Simulator(model, covariates="public", compile_kwargs=JAX)
    scores = dp.private_scores(
        simulator, budget=dp.PrivacyBudget(1e6, 1e-5, chains=1), random_seed=1
    )
    release, likelihood = scores.releases[-1], whole(logistic)
    steps, exponent = likelihood.clipped_grad_steps(
        release.theta, release.bound, directions=release.directions
    )
    assert np.abs(release.total - np.ldexp(steps.astype(float), exponent)).max() < 8 * release.scale
    step = dp.DPScore(scores, simulator=simulator)
    found = dp.sample(step=step, draws=50, chains=1, **QUIET)["posterior"]["slopes"].to_numpy()
    assert np.abs(found.mean(axis=(0, 1))).max() < 0.5
