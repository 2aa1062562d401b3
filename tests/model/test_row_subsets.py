"""Log-likelihoods of some records against those of all."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model import RecordLikelihood
from pymc_dp.model.graphs.row_subsets import Blocked
from pymc_dp.model.sums import batch_likelihood as batches
from tests.model.test_likelihood import PYTHON, thetas

# PyMC may compile its initial point to C, and pip-installed PyTensor finds no BLAS for that.
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

N = 60  # a length that nothing else has
RNG = np.random.default_rng(11)
INDICES = [[3, 0, 59, 59, 1], [2], [], np.arange(N)[::-1], [7] * 70]

X = RNG.normal(size=(N, 4))
Y = RNG.normal(size=N)
SERIES = RNG.normal(size=(N, 5))
PANEL = RNG.normal(size=(N, 5, 3))
BINARY = RNG.integers(2, size=N)
LEVELS = RNG.integers(4, size=N)
GROUPS = RNG.integers(9, size=N)
GROUP_COVARIATES = RNG.normal(size=(9, 3))


def check(likelihood: RecordLikelihood, model: pm.Model, indices=INDICES) -> None:
    for theta in thetas(likelihood, model, 2):
        full = likelihood.logp(theta)
        for index in indices:
            batch = likelihood.logp_at(theta, index)
            expected = full[np.asarray(index, dtype=int)]
            assert batch.dtype == np.float64
            np.testing.assert_allclose(batch, expected, rtol=1e-10, atol=1e-12)
    # Several points at once are what they are one by one.
    points, index = np.array(thetas(likelihood, model, 3)), indices[0]
    together = likelihood.logp_at(points, index)
    assert np.array_equal(together, [likelihood.logp_at(point, index) for point in points])


def check_cheap(likelihood: RecordLikelihood, model: pm.Model) -> None:
    """Batches are right, and nothing with a row for each record is computed."""
    check(likelihood, model)
    assert likelihood._batch.groups
    for table in likelihood._batch.groups:
        for variable in table._function.function.maker.fgraph.variables:
            assert N not in getattr(variable.type, "shape", ()), variable.owner


# --- models of many kinds -----------------------------------------------------------------------

MODELS = {}
PUBLIC = [GROUP_COVARIATES, [-1.0, 0.0, 1.0], [-1, 1]]  # arrays of models other than records
PUBLIC += [np.exp(-(np.subtract.outer(np.arange(9), np.arange(9)) ** 2.0))]


def kind(fill):
    MODELS[fill.__name__] = fill
    return fill


@kind
def categorical_with_a_reference_level():
    eta = pt.concatenate([pt.zeros((N, 1)), X @ pm.Normal("b", shape=(4, 3))], axis=1)
    pm.Categorical("y", logit_p=eta, observed=LEVELS)


@kind
def categorical_with_records_on_the_last_axis_of_the_softmax():
    p = pm.math.softmax(pm.Normal("b", shape=(4, 4)) @ X.T, axis=0)
    pm.Categorical("y", p=p.T, observed=LEVELS)


@kind
def categorical_with_the_same_probabilities_for_all():
    pm.Categorical("y", p=pm.Dirichlet("p", np.ones(4)), observed=LEVELS)


@kind
def categorical_by_group():
    p = pm.math.softmax(pm.Normal("b", shape=(9, 4)), axis=-1)
    pm.Categorical("y", p=p[GROUPS], observed=LEVELS)


@kind
def ordered_probit():
    pm.OrderedProbit("y", eta=pm.Normal("a") * Y, cutpoints=[-1.0, 0.0, 1.0], observed=LEVELS)


@kind
def group_effects_not_centred():
    a = pm.Normal("mu") + pm.HalfNormal("tau") * pm.Normal("z", shape=9)
    pm.Normal("y", a[GROUPS] + pm.Normal("slope", shape=9)[GROUPS] * X[:, 0], observed=Y)


@kind
def group_effects_with_covariates_of_groups():
    a = GROUP_COVARIATES @ pm.Normal("b", shape=3) + pm.Normal("z", shape=9)
    pm.Normal("y", a[GROUPS], 1.0, observed=Y)


@kind
def random_walk_over_groups():
    pm.Normal("y", pt.cumsum(pm.Normal("z", shape=9))[GROUPS], 1.0, observed=Y)


@kind
def what_cannot_be_indexed_but_is_small():
    ordered = pt.sort(GROUP_COVARIATES * pm.Normal("b", shape=3), axis=1)
    pm.Normal("y", ordered[GROUPS, 1], 1.0, observed=Y)


@kind
def gaussian_process_over_groups():
    distance = np.arange(9)[:, None] - np.arange(9)
    chol = pt.linalg.cholesky(pm.HalfNormal("s") * np.exp(-(distance**2)) + 1e-3 * np.eye(9))
    pm.Normal("y", (chol @ pm.Normal("z", shape=9))[GROUPS], 1.0, observed=Y)


@kind
def crossed_effects():
    a, b = pm.Normal("a", shape=(9, 4)), pm.Normal("b", shape=(9, 4))
    pm.Normal("y", a[GROUPS, LEVELS] + (b[GROUPS] * X).sum(-1), 1.0, observed=Y)


@kind
def effects_of_a_matrix_of_items():
    items = RNG.integers(9, size=(N, 5))
    difficulty = GROUP_COVARIATES @ pm.Normal("b", shape=3)
    eta = (pm.Normal("a", shape=9)[items] - difficulty[items]) + Y[:, None]
    pm.Bernoulli("y", logit_p=eta, observed=SERIES > 0)


@kind
def interactions():
    x = pm.Data("X", X)
    pairs = (x[:, :, None] * x[:, None, :] * pm.Normal("b", shape=(4, 4))).sum((1, 2))
    pm.Normal("y", pairs + X[:, 0] * X[:, 1] * pm.Normal("c"), 1.0, observed=Y)


@kind
def splines():
    basis = np.maximum(X[:, :1] - np.linspace(-2, 2, 6), 0) ** 3
    weights = pm.Normal("w", 0, 0.1, shape=6).cumsum()
    pm.Normal("y", pm.math.dot(basis, weights), 1.0, observed=Y)


@kind
def records_on_the_last_axis():
    slopes = pm.Normal("b", shape=(2, 4))
    pm.Normal(
        "y", pt.stack([(slopes @ X.T)[0], X[:, 1] * pm.Normal("c")]).T, 1.0, observed=X[:, :2]
    )


@kind
def panel():
    pm.Normal("y", PANEL @ pm.Normal("b", shape=3), 1.0, observed=SERIES)


@kind
def panel_as_one_matrix_product():
    pm.Normal("y", pt.tensordot(PANEL, pm.Normal("b", shape=3), axes=1), 1.0, observed=SERIES)


@kind
def panel_with_slopes_by_group():
    slopes = pm.Normal("b", shape=(9, 3))[GROUPS]
    pm.Normal("y", (PANEL @ slopes[:, :, None])[:, :, 0], 1.0, observed=SERIES)


@kind
def panel_of_lagged_series():
    series = pm.Data("series", SERIES)
    pm.Normal("y", pm.Normal("rho") * series[:, :-1], 1.0, observed=series[:, 1:])


@kind
def running_sums():
    pm.Normal("y", pt.cumsum(pm.Normal("a") * PANEL[:, :, 0], axis=1), 1.0, observed=SERIES)


@kind
def reshaped():
    x = (X * pm.Normal("a")).reshape((N, 2, 2)).sum((1, 2))
    pm.Normal("y", (X * pm.Normal("b")).flatten().reshape((N, 4)).sum(1) + x, 1.0, observed=Y)


@kind
def columns_set():
    x = pt.set_subtensor(pt.zeros((N, 3))[:, 1:], X[:, :2] * pm.Normal("a"))
    pm.Normal("y", pt.inc_subtensor(x[:, 0], X[:, 3] * pm.Normal("b")).sum(1), 1.0, observed=Y)


@kind
def every_other_row_of_a_longer_table():
    table = np.repeat(X, 2, axis=0)  # public: every record has two rows in it
    mean = (table @ pm.Normal("b", shape=4))[::2]
    pm.Normal("y", mean, 1.0, observed=Y)


@kind
def multivariate_normal_regression():
    chol, *_ = pm.LKJCholeskyCov("c", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))
    pm.MvNormal("y", X @ pm.Normal("b", shape=(4, 2)), chol=chol, observed=SERIES[:, :2])


@kind
def multivariate_normal_with_covariances_of_their_own():
    cov = (1 + Y**2)[:, None, None] * np.eye(2) * pm.HalfNormal("s")
    pm.MvNormal("y", np.zeros(2), cov=cov, observed=SERIES[:, :2])


@kind
def multivariate_student_t():
    pm.MvStudentT("y", nu=5, mu=pm.Normal("m", shape=2), scale=np.eye(2), observed=SERIES[:, :2])


@kind
def mixture_with_weights_by_record():
    w = pm.math.softmax(X @ pm.Normal("b", shape=(4, 2)), axis=-1)
    pm.NormalMixture("y", w, mu=pm.Normal("mu", [-1, 1], shape=2), sigma=1.0, observed=Y)


@kind
def neural_network():
    hidden = pt.tanh(X @ pm.Normal("w1", shape=(4, 6)) + pm.Normal("b1", shape=6))
    hidden = pt.tanh(hidden @ pm.Normal("w2", shape=(6, 3)))
    pm.Bernoulli("y", logit_p=hidden @ pm.Normal("w3", shape=3), observed=BINARY)


@kind
def change_point():
    mean = pt.switch(X[:, 0] > pm.Normal("t"), pm.Normal("a"), pm.Normal("b"))
    pm.Normal("y", mean, 1.0, observed=Y)


@kind
def distribution_given_by_its_random_variable():
    def dist(a, x, size):
        return pm.math.exp(pm.Normal.dist(a * x, 1.0, size=size))

    pm.CustomDist("y", pm.Normal("a"), X[:, 0], dist=dist, observed=np.exp(Y))


@kind
def something_observed_without_parameters():
    pm.Normal("x", 0.0, 1.0, observed=X)
    pm.Normal("y", pm.Normal("a"), 1.0, observed=Y)


def test_a_compiled_model():
    """All are, with their gradients: see test_gradients.py."""
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=X @ pm.Normal("b", shape=4), observed=BINARY)
    check_cheap(RecordLikelihood(model), model)


def test_one_record():
    with pm.Model() as model:
        pm.Normal("y", X[:1] @ pm.Normal("b", shape=4), 1.0, observed=Y[:1])
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": PYTHON})
    check(likelihood, model, [[0], [0, 0, 0], []])


def test_not_a_number_counts_as_impossible():
    def logp(value, a):
        return pt.sqrt(a * value)

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("a", 1.0), logp=logp, observed=np.array([4.0, -1.0, -4.0]))
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": PYTHON})
    np.testing.assert_array_equal(likelihood.logp_at(np.ones(1), [1, 0]), [-np.inf, 2.0])
    np.testing.assert_array_equal(likelihood.logp_at(-np.ones(1), [2, 0]), [2.0, -np.inf])


# --- records of several rows --------------------------------------------------------------------


def persons_in_tables(mode):
    """Twelve persons with rows in several tables."""
    rng = np.random.default_rng(1)
    persons = rng.permutation(np.repeat(np.arange(12), rng.integers(1, 9, size=12)))
    visits, n = RNG.normal(size=(len(persons), 2)), len(persons)
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=2)
        pm.Normal("visits", mu, pm.HalfNormal("s"), observed=visits)
        pm.Normal("lengths", mu[0] * visits[:, 1], 1.0, observed=RNG.normal(size=n))
        # Twice the same test for person 3, and none for others but 5 and 9.
        pm.Normal("tests", mu[1], 2.0, observed=RNG.normal(size=4))
        pm.Normal("ages", mu.sum(), 2.0, observed=RNG.normal(size=12))
    records = {
        "visits": persons,
        "lengths": persons,
        "tests": np.array([3, 9, 3, 5]),
        "ages": np.arange(12),
    }
    return model, RecordLikelihood(model, records=records, compile_kwargs={"mode": mode}), n


@pytest.mark.parametrize("mode", [PYTHON, pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_persons_with_scattered_rows(mode):
    model, likelihood, n = persons_in_tables(mode)
    check(likelihood, model, [[3, 0, 11, 3, 5], [1, 2], [9], [], np.arange(12)[::-1]])
    # Visits and lengths have their rows found once.
    assert len(likelihood._batch.groups) == 3
    for table in likelihood._batch.groups:
        for variable in table._function.function.maker.fgraph.variables:
            assert n not in getattr(variable.type, "shape", ())


def test_only_the_rows_of_the_records_asked_for_are_read():
    persons = RNG.permutation(np.repeat(np.arange(15), 4))
    with pm.Model() as model:
        pm.Normal("y", X @ pm.Normal("b", shape=4), 1.0, observed=Y)
    likelihood = RecordLikelihood(model, records=persons, compile_kwargs={"mode": PYTHON})
    theta, index = thetas(likelihood, model, 1)[0], [11, 2]
    before = likelihood.logp_at(theta, index)
    (table,) = likelihood._batch.groups
    assert len(table._function.data) == 2
    for data, axis in table._function.data:
        assert axis == 0
        data[~np.isin(persons, index)] = np.nan
    np.testing.assert_array_equal(likelihood.logp_at(theta, index), before)
    assert likelihood.logp_at(theta, [3]) == -np.inf


# --- sorted and merged rows -------------------------------------------------------------------------


@kind
def sorting():
    pm.Normal("y", pt.sort(X * pm.Normal("a"), axis=1)[:, 0], 1.0, observed=Y)


@kind
def merging():
    x = pm.Data("x", PANEL) * pm.Normal("s")
    pm.Normal("y", pt.tensordot(x, pm.Normal("b", shape=3), axes=1), 1.0, observed=SERIES)


@kind
def sorting_behind_an_index():
    ordered = pt.sort(X * pm.Normal("a"), axis=1)
    pm.Normal("y", ordered[np.arange(N), LEVELS], 1.0, observed=Y)


def test_a_model_whose_rows_cannot_be_computed_alone_is_refused(monkeypatch):
    def blocked(*_):
        raise Blocked("Twist")

    expected, _ = simple()
    monkeypatch.setattr(batches, "rows_at", blocked)
    likelihood, model = simple()
    theta = thetas(likelihood, model, 1)[0]
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match="the operation Twist,"):
            likelihood.logp_at(theta, [5, 3])
    # All records at once can be.
    np.testing.assert_allclose(likelihood.logp(theta), expected.logp(theta), rtol=1e-12)
    found = likelihood._batch.clipped_change(theta, theta + 0.1, 1.0, 5.0)
    assert found == expected._batch.clipped_change(theta, theta + 0.1, 1.0, 5.0)


def simple(**kwargs) -> tuple[RecordLikelihood, pm.Model]:
    with pm.Model() as model:
        pm.Normal("y", X @ pm.Normal("b", shape=4), pm.HalfNormal("s"), observed=Y)
    return RecordLikelihood(model, compile_kwargs={"mode": PYTHON}, **kwargs), model


def test_the_comparison_of_these_tests_finds_an_index_off_by_one():
    likelihood, model = simple()
    check(likelihood, model)
    (table,) = likelihood._batch.groups
    gather = table.gather
    table.gather = lambda records: gather((records + 1) % N)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        check(likelihood, model)


# --- the rest of the contract -------------------------------------------------------------------


@pytest.mark.parametrize("index", [[0, N], [-1], [[0, 1]], [0.0, 1.0], [True] * N, 3])
def test_wrong_indices(index):
    likelihood, model = simple()
    with pytest.raises(IndexError, match="index must be"):
        likelihood.logp_at(thetas(likelihood, model, 1)[0], index)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.uint64])
def test_indices_of_other_types_and_layouts(dtype):
    likelihood, model = simple()
    check(likelihood, model, [np.arange(N, dtype=dtype)[::-3], np.array([], dtype=dtype)])


@pytest.mark.slow
@pytest.mark.parametrize("used", [pytest.param(False, marks=pytest.mark.slow), True])
def test_pickling(used):
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=X @ pm.Normal("b", shape=4), observed=BINARY)
    likelihood = RecordLikelihood(model, records=np.arange(N) // 5)
    theta = thetas(likelihood, model, 1)[0]
    if used:
        likelihood.logp_at(theta, [0])
    copy = cloudpickle.loads(cloudpickle.dumps(likelihood))
    np.testing.assert_array_equal(copy.logp_at(theta, [3, 1]), likelihood.logp_at(theta, [3, 1]))


def test_data_are_kept_once():
    likelihood, model = simple()
    check(likelihood, model)
    kept = [v.get_value(borrow=True) for v in likelihood._batch.full.get_shared()]
    for data, _ in likelihood._batch.groups[0]._function.data:
        assert any(np.shares_memory(data, array) for array in kept)
    assert likelihood._batch._graphs is None
