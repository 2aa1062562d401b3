"""Clipped sums of records' gradients against single records, and what the sums promise exactly."""

from __future__ import annotations

import math
import warnings

from dataclasses import replace
from fractions import Fraction
from functools import cache

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numba.core.event import install_recorder
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model import RecordLikelihood, ScoreProducts
from pymc_dp.model.graphs.row_subsets import Blocked
from pymc_dp.model.sums import gradients
from pymc_dp.model.sums.exact_sums import grid
from tests.model import test_row_subsets as test_indexing
from tests.model.example_models import FAMILIES, N
from tests.model.test_likelihood import PYTHON, linear, thetas
from tests.terms import clipped_grad_steps

# PyMC may compile its initial point to C, and pip-installed PyTensor finds no BLAS for that.
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

RNG = np.random.default_rng(12)
BY_NAME = {f.name: f for f in FAMILIES}


# --- references ---------------------------------------------------------------------------------


@cache
def single_records(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A point; the log-likelihood of every record there, and its gradient, from PyMC's models of single records."""
    family = BY_NAME[name]
    model = family.build()
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": PYTHON})
    theta = thetas(likelihood, model, 1)[0]
    values, found = [], []
    for i in range(N):
        single = family.build(slice(i, i + 1))
        logp = single.logp(vars=single.observed_RVs, jacobian=False)
        gradient = pt.grad(logp, single.value_vars, disconnected_inputs="ignore")
        function = single.compile_fn([logp, *gradient], mode=PYTHON, on_unused_input="ignore")
        with np.errstate(all="ignore"):
            value, *gradient = function(likelihood.unravel(theta))
        values.append(value)
        found.append(np.concatenate([np.ravel(g) for g in gradient]))
    return theta, np.array(values), np.array(found)


def differences(likelihood: RecordLikelihood, theta: np.ndarray) -> np.ndarray:
    """Gradients of all records by central differences."""
    columns = []
    for step in np.eye(likelihood.n_dim) * 1e-5:
        columns.append((likelihood.logp(theta + step) - likelihood.logp(theta - step)) / 2e-5)
    return np.stack(columns, axis=1)


def clipped(vectors: np.ndarray, bound: float) -> np.ndarray:
    """The documented sum, but for the rounding."""
    vectors = vectors[np.isfinite(vectors).all(axis=1)]
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors * np.minimum(1.0, bound / np.maximum(norms, 1e-300))).sum(axis=0)


def bounds(vectors: np.ndarray) -> list[float]:
    """Bounds at which all, some and no records are clipped."""
    norms = np.linalg.norm(vectors[np.isfinite(vectors).all(axis=1)], axis=1)
    return [norms[norms > 0].min() / 2, float(np.median(norms)), norms.max() * 2, math.inf]


def check(likelihood, theta, expected, rtol=1e-7, indices=((), (3, 0, 3, 3), (2,))):
    """All records and batches, and directions of all kinds, against gradients one by one."""
    d = likelihood.n_dim
    rng = np.random.default_rng(4)
    for directions in (None, rng.normal(size=d), rng.normal(size=(d, 3)), np.eye(d)[:, ::-2]):
        matrix = np.eye(d) if directions is None else directions
        matrix = np.diag(matrix) if matrix.ndim == 1 else matrix
        vectors = expected @ matrix
        if not np.any(vectors):
            continue
        for bound in bounds(vectors):
            for index in (None, *indices):
                rows = vectors if index is None else vectors[list(index)]
                found = likelihood.clipped_grad(theta, bound, index, directions=directions)
                assert found.dtype == np.float64
                scale = np.abs(vectors).max()
                np.testing.assert_allclose(found, clipped(rows, bound), rtol, rtol * scale)
                if bound < math.inf:
                    steps, exponent = clipped_grad_steps(
                        likelihood, theta, bound, index, directions=directions
                    )
                    assert (steps.dtype, exponent) == (np.int64, grid(bound)[0])
                    assert np.array_equal(steps * 2.0**exponent, found)


# --- families -----------------------------------------------------------------------------------


def check_family(family, mode):
    theta, values, expected = single_records(family.name)
    model = family.build()
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": mode})
    assert (likelihood.n_records, likelihood.logp(theta).dtype) == (N, np.float64)
    np.testing.assert_allclose(likelihood.logp(theta), values, rtol=1e-9)
    log_prior = model.compile_logp(vars=[*model.free_RVs, *model.potentials], mode=PYTHON)
    prior = log_prior(likelihood.unravel(theta))
    np.testing.assert_allclose(likelihood.log_prior(theta), prior, rtol=1e-9)
    check(likelihood, theta, expected)
    assert likelihood._gradients.groups
    test_indexing.check(likelihood, model, [[3, 0, 6, 6, 1], [2], []])


def one_in_six(cases):
    """Five of six cases are slow tests, and those that take seconds."""
    long = {"multivariate_normal_with_covariances_of_their_own"}
    return [
        pytest.param(
            c, marks=pytest.mark.slow if k % 6 or getattr(c, "__name__", "") in long else []
        )
        for k, c in enumerate(cases)
    ]


LONG = {"mixture of regressions", "multivariate normal, LKJ"}
SHORT = [f.name for f in FAMILIES if f.name not in LONG]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in BY_NAME if n not in SHORT[::4]])
def test_every_record_as_if_it_were_alone(name):
    check_family(BY_NAME[name], PYTHON)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT[::4])  # each takes half a minute to compile
def test_every_record_as_if_it_were_alone_compiled(name):
    check_family(BY_NAME[name], "NUMBA")


def check_model(fill, mode):
    with pm.Model() as model:
        fill()
    public = test_indexing.PUBLIC
    likelihood = RecordLikelihood(model, public=public, compile_kwargs={"mode": mode})
    for theta in thetas(likelihood, model, 2):
        expected = differences(likelihood, theta)
        check(likelihood, theta, expected, rtol=1e-5, indices=[(3, 0, 59, 59)])
    assert likelihood._gradients.groups
    # The rows of a panel that is merged are taken within the function.
    is_cheap = fill.__name__ != "merging"
    (test_indexing.check_cheap if is_cheap else test_indexing.check)(likelihood, model)


@pytest.mark.parametrize(
    "fill", one_in_six(test_indexing.MODELS.values()), ids=test_indexing.MODELS
)
def test_models(fill):
    check_model(fill, PYTHON)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*test_indexing.MODELS][::16]
)  # each takes half a minute to compile
def test_models_compiled(name):
    check_model(test_indexing.MODELS[name], "NUMBA")


@pytest.mark.slow
def test_the_comparison_of_these_tests_finds_a_wrong_record():
    theta, _, expected = single_records("logistic")
    likelihood = RecordLikelihood(BY_NAME["logistic"].build(), compile_kwargs={"mode": PYTHON})
    check(likelihood, theta, expected)
    expected = expected.copy()
    expected[2] += 1e-4
    with pytest.raises(AssertionError, match="Mismatched elements"):
        check(likelihood, theta, expected)


def regression(n=60, mode=PYTHON, **kwargs) -> RecordLikelihood:
    with pm.Model() as model:
        x = test_indexing.X[:n]
        pm.Normal(
            "y", x @ pm.Normal("b", shape=4), pm.HalfNormal("s"), observed=test_indexing.Y[:n]
        )
    return RecordLikelihood(model, compile_kwargs={"mode": mode}, **kwargs)


@pytest.mark.parametrize("mode", [PYTHON, pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_where_softplus_was_rewritten_with_kinks(mode):
    # All predictors are 0 at the initial point of most regressions.
    x, y = test_indexing.X, test_indexing.BINARY
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=x @ pm.Normal("b", shape=4), observed=y)
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": mode})
    found = likelihood.clipped_grad(np.zeros(4), math.inf)
    np.testing.assert_allclose(found, (y - 0.5) @ x, rtol=1e-12)


# --- records of several rows --------------------------------------------------------------------


@pytest.mark.parametrize("mode", [PYTHON, pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_persons_with_rows_in_several_tables(mode):
    model, likelihood, _ = test_indexing.persons_in_tables(mode)
    theta = thetas(likelihood, model, 1)[0]
    indices = [(3, 0, 11, 3, 5), (1, 2), (9,), np.arange(12)[::-1]]
    check(likelihood, theta, differences(likelihood, theta), rtol=1e-6, indices=indices)
    assert len(likelihood._gradients.groups) == 3


def test_clipping_is_for_records_and_not_for_rows():
    persons = np.arange(60) // 5
    rows, records = regression(), regression(records=persons)
    theta = np.full(5, 0.3)
    each = differences(rows, theta)
    together = np.add.reduceat(each, np.arange(0, 60, 5))
    bound = float(np.median(np.linalg.norm(together, axis=1)))
    found = records.clipped_grad(theta, bound)
    np.testing.assert_allclose(found, clipped(together, bound), rtol=1e-5, atol=1e-6)
    assert not np.allclose(found, clipped(each, bound), rtol=1e-2)


# --- what is exact ------------------------------------------------------------------------------


def free(vectors: np.ndarray) -> RecordLikelihood:
    """A model in which any vectors are the gradients of records, to the bit."""
    d = vectors.shape[1]

    def logp(value, t):
        return (value * t).sum(-1)

    with pm.Model() as model:
        t = pm.Normal("t", shape=d)
        # PyMC would take what is not a number for missing: vectors come in afterwards.
        others = np.random.default_rng(0).normal(size=vectors.shape)
        pm.CustomDist("y", t, logp=logp, observed=others, signature="(k)->(k)")
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": PYTHON})
    likelihood.clipped_grad(np.zeros(d), 1.0)
    overwrite(likelihood, vectors)
    return likelihood


def overwrite(likelihood: RecordLikelihood, vectors: np.ndarray) -> None:
    (table,) = likelihood._gradients.groups
    ((data, _),) = table._function.data
    data[:] = vectors.reshape(data.shape)


ANY = st.floats(allow_nan=True, allow_infinity=True)
BOUNDS = st.floats(1e-290, 1e300)


@cache
def shared() -> RecordLikelihood:
    return free(np.random.default_rng(2).normal(size=(6, 5)))


def steps_of(vectors: np.ndarray, bound: float, index=None) -> tuple[np.ndarray, int]:
    """Through all that comes after compiled code, which is the same for any data."""
    overwrite(shared(), vectors)
    return clipped_grad_steps(shared(), np.zeros(5), bound, index)


def squared(steps: np.ndarray, exponent: int) -> Fraction:
    return sum(int(s) ** 2 for s in steps) * Fraction(2) ** (2 * exponent)


MATRICES = arrays(np.float64, (6, 5), elements=ANY)


@settings(max_examples=300, deadline=None)
@given(MATRICES, BOUNDS)
def test_no_record_is_longer_than_the_bound(vectors, bound):
    for i in range(6):
        steps, exponent = steps_of(vectors, bound, [i])
        assert squared(steps, exponent) <= Fraction(bound) ** 2


@pytest.mark.parametrize("d", [1, 2, 5, 60, 500])
def test_no_record_is_longer_than_the_bound_if_just_clipped(d):
    # Hypothesis seldom finds vectors whose norm rounds to the bound, or just above it.
    rng = np.random.default_rng(d)
    vectors = rng.normal(size=(200, d))
    vectors[:100] = np.abs(vectors[:1])
    norms = np.linalg.norm(vectors, axis=1)
    vectors *= (1 + rng.integers(-20, 20, size=200) * 2.0**-52)[:, None] / norms[:, None]
    likelihood = free(vectors)
    for bound in (1.0, 1 + 2.0**-52, 1 - 2.0**-53, 0.3):
        lengths = []
        for i in range(200):
            steps, exponent = clipped_grad_steps(likelihood, np.zeros(d), bound, [i])
            lengths.append(squared(steps, exponent) / Fraction(bound) ** 2)
        assert max(lengths) <= 1
        # And hardly shorter: within a step per coordinate.
        assert min(lengths) > 1 - 1e-7 * math.sqrt(d)


@settings(max_examples=200, deadline=None)
@given(MATRICES, BOUNDS, arrays(np.float64, 5, elements=ANY), st.integers(0, 5))
def test_replacing_a_record_moves_the_sum_by_twice_the_bound_at_most(vectors, bound, other, i):
    one, exponent = steps_of(vectors, bound)
    vectors[i] = other
    two, _ = steps_of(vectors, bound)
    assert squared(one - two, exponent) <= 4 * Fraction(bound) ** 2


@settings(max_examples=200, deadline=None)
@given(MATRICES, BOUNDS, st.permutations(range(6)), st.integers(1, 5))
def test_the_order_does_not_matter(vectors, bound, order, cut):
    expected, exponent = steps_of(vectors, bound)
    for permuted in (steps_of(vectors, bound, order), steps_of(vectors[order], bound)):
        assert np.array_equal(permuted[0], expected) and permuted[1] == exponent
    steps_of(vectors, bound)  # puts them back
    parts = [steps_of(vectors, bound, part)[0] for part in (order[:cut], order[cut:])]
    assert np.array_equal(parts[0] + parts[1], expected)


@settings(max_examples=200, deadline=None)
@given(MATRICES, st.floats(1e-3, 1e3))
def test_a_vector_that_is_not_finite_counts_as_none(vectors, bound):
    bad = ~np.isfinite(vectors).all(axis=1)
    expected, _ = steps_of(np.where(bad[:, None], 0.0, vectors), bound)
    assert np.array_equal(steps_of(vectors, bound)[0], expected)


def test_without_a_bound_vectors_that_are_not_finite_count_as_none_either():
    vectors = np.array([[1.0, 2.0], [np.inf, 0.0], [1e-3, np.nan], [4.0, -8.0], [0, 0]])
    likelihood = free(vectors)
    assert likelihood.clipped_grad(np.zeros(2), math.inf).tolist() == [5.0, -6.0]
    assert likelihood.clipped_grad(np.zeros(2), math.inf, [3, 1, 3]).tolist() == [8.0, -16.0]


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [2, 2**9, 2**16])
def test_chunks_do_not_matter(monkeypatch, chunk):
    vectors = np.random.default_rng(3).standard_cauchy(size=(1000, 4))
    vectors[::77] = np.nan
    likelihood = free(vectors)
    expected = clipped_grad_steps(likelihood, np.zeros(4), 0.7)[0]
    monkeypatch.setattr(gradients, "CHUNK", chunk)
    assert np.array_equal(clipped_grad_steps(likelihood, np.zeros(4), 0.7)[0], expected)
    order = np.random.default_rng(4).permutation(1000)
    assert np.array_equal(clipped_grad_steps(likelihood, np.zeros(4), 0.7, order)[0], expected)
    assert np.array_equal(clipped_grad_steps(free(vectors[order]), np.zeros(4), 0.7)[0], expected)


@pytest.mark.slow
def test_more_records_than_a_float_can_add_up():
    # Sums of int64 beyond 2**53, where floats would leave out every other step.
    likelihood = free(np.ones((20, 1)))
    index = np.zeros(2**23 + 1, dtype=int)
    steps, _ = clipped_grad_steps(likelihood, np.zeros(1), 0.75, index)
    one, _ = clipped_grad_steps(likelihood, np.zeros(1), 0.75, [0])
    assert int(steps[0]) == int(one[0]) * (2**23 + 1) > 2**53


def test_without_the_margin_some_records_would_be_too_long():
    """The negative control of the tests of length: they see a bound passed by one step."""
    vectors = np.random.default_rng(3).normal(size=(500, 3))
    likelihood, too_long = free(vectors), 0
    for i in range(500):
        steps, exponent = clipped_grad_steps(likelihood, np.zeros(3), 0.1 * (1 + 2.0**-28), [i])
        too_long += squared(steps, exponent) > Fraction(0.1) ** 2
    assert too_long > 400


@pytest.mark.parametrize("mode", [PYTHON, pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_impossible_records_count_as_none(mode):
    def logp(value, a):
        return pt.sqrt(a * value)

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("a", 1.0), logp=logp, observed=np.array([4.0, -1.0, 0.0]))
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": mode})
    for bound in (10.0, math.inf):
        # Derivatives: 1, that of a root of a negative number, 0 / 0.
        np.testing.assert_allclose(likelihood.clipped_grad(np.ones(1), bound), [1.0], rtol=1e-8)
        assert likelihood.clipped_grad(np.ones(1), bound, [1, 2]) == [0.0]


# --- where the walk is blocked ------------------------------------------------------------------


def test_a_model_whose_gradients_cannot_be_computed_by_row_is_refused(monkeypatch):
    def blocked(*_):
        raise Blocked("Twist")

    monkeypatch.setattr(gradients, "row_gradients", blocked)
    likelihood = regression()
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match="the operation Twist,"):
            clipped_grad_steps(likelihood, np.full(5, 0.2), 1.0)


def test_a_missing_part_is_found_by_the_comparison(monkeypatch):
    """Control: `check` finds gradients without the derivative of one quantity."""
    original = gradients.row_gradients

    def wrong(*args):
        rows = original(*args)
        axis = 0 if rows.by_column else 1
        parts = pt.split(rows.gradients, [rows.gradients.shape[axis] - 1, 1], n_splits=2, axis=axis)
        parts = pt.concatenate([parts[0], 0 * parts[1]], axis=axis)
        return replace(rows, gradients=parts)

    monkeypatch.setattr(gradients, "row_gradients", wrong)
    likelihood, theta = regression(), np.full(5, 0.2)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        check(likelihood, theta, differences(likelihood, theta), rtol=1e-5)


@pytest.mark.parametrize("mode", [PYTHON, pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_all_rows_of_one_record(mode):
    """A time series of one person: the gradient of the sum."""
    with pm.Model() as model:
        rho = pm.Normal("rho", shape=1)
        y = np.cumsum(test_indexing.Y)
        pm.Normal("y", rho * np.append(0.0, y[:-1]), pm.HalfNormal("s"), observed=y)
    options = {"records": np.zeros(60, dtype=int), "compile_kwargs": {"mode": mode}}
    likelihood, theta = RecordLikelihood(model, **options), np.array([0.7, 0.1])
    assert likelihood.n_records == 1
    expected = differences(likelihood, theta)
    check(likelihood, theta, expected, rtol=1e-5, indices=((), (0,), (0, 0)))
    np.testing.assert_allclose(
        likelihood.logp_at(theta, [0, 0]), likelihood.logp(theta)[[0, 0]], rtol=1e-12
    )


@pytest.mark.parametrize("power", [2, 3, 4, 5, -3, 2.5])
def test_powers(power):
    """PyTensor computes whole powers by squaring, in an operation that has no gradient."""
    with pm.Model() as model:
        t = pm.Normal("t", 1, 1)
        pm.Normal("y", t**power, 1, observed=np.arange(5.0))
        pm.Potential("p", -(t**power) / 50)
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": PYTHON})
    x, y = 0.7, np.arange(5.0)
    slope = power * x ** (power - 1)
    found = likelihood.clipped_grad(np.array([x]), math.inf), likelihood.grad_log_prior(np.array([x]))  # fmt: skip
    np.testing.assert_allclose(found[0], [np.sum(y - x**power) * slope], rtol=1e-12)
    np.testing.assert_allclose(found[1], [1 - x - slope / 50], rtol=1e-12)


# --- arguments ----------------------------------------------------------------------------------


def test_edges_of_the_bound():
    likelihood = regression()
    theta = np.full(5, 0.2)
    for bound in (0.0, 1e-310):
        steps, exponent = clipped_grad_steps(likelihood, theta, bound)
        assert (steps.tolist(), exponent, steps.dtype) == ([0] * 5, 0, np.int64)
        assert likelihood.clipped_grad(theta, bound).tolist() == [0.0] * 5
    plain = likelihood.clipped_grad(theta, math.inf)
    np.testing.assert_allclose(likelihood.clipped_grad(theta, 1e4), plain, rtol=1e-4)
    for bound in (-1.0, math.nan):
        with pytest.raises(ValueError, match="bound must be 0 or more"):
            likelihood.clipped_grad(theta, bound)
    for bound in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="bound must be 0 or more"):
            ScoreProducts(theta, np.eye(5), bound)


def test_wrong_arguments():
    likelihood = regression()
    theta = np.full(5, 0.2)
    for directions in (np.zeros(4), np.zeros((4, 5)), np.zeros((5, 1, 1)), np.zeros(())):
        with pytest.raises(ValueError, match="directions must have shape"):
            likelihood.clipped_grad(theta, 1.0, directions=directions)
    with pytest.raises(ValueError, match=r"shape \(5,\), not \(4,\)"):
        likelihood.clipped_grad(np.zeros(4), 1.0)
    for index in ([60], [-1], [0.5], [[1]]):
        with pytest.raises(IndexError):
            likelihood.clipped_grad(theta, 1.0, index)
    assert likelihood.clipped_grad(theta, 1.0, []).tolist() == [0.0] * 5
    assert likelihood.clipped_grad(theta, 1.0, directions=np.zeros((5, 0))).shape == (0,)


# --- the prior ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [PYTHON, pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_gradient_of_the_prior(mode):
    model = BY_NAME["potential without data"].build()
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": mode})
    expected = model.compile_fn(
        pt.grad(model.logp(vars=[*model.free_RVs, *model.potentials]), model.value_vars),
        mode=PYTHON,
    )
    for theta in thetas(likelihood, model, 2):
        parts = expected(likelihood.unravel(theta))
        found = likelihood.grad_log_prior(theta)
        assert found.shape == (likelihood.n_dim,)
        np.testing.assert_allclose(found, np.concatenate([np.ravel(p) for p in parts]), rtol=1e-9)


@pytest.mark.parametrize("mode", [PYTHON, pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_flat_priors(mode):
    with pm.Model() as model:
        t = pm.Flat("t", shape=2)
        pm.Normal("x1", t[0], 20**0.5, observed=test_indexing.Y)
        pm.Normal("x2", t[1] + 20 * t[0] ** 2, 2.5**0.5, observed=test_indexing.X[:, 0])
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": mode})
    theta = np.array([0.3, -1.0])
    assert likelihood.log_prior(theta) == 0.0
    assert likelihood.grad_log_prior(theta).tolist() == [0.0, 0.0]
    second = (test_indexing.X[:, 0] + 1.0 - 20 * 0.3**2) / 2.5
    expected = np.stack([(test_indexing.Y - 0.3) / 20 + second * 12, second], axis=1)
    check(likelihood, theta, expected, rtol=1e-6)


# --- compiled once, without data, and portable --------------------------------------------------


@pytest.mark.slow
def test_read_only_and_strided_arguments_are_not_compiled_for_again():
    likelihood = RecordLikelihood(BY_NAME["several observed"].build())
    theta, index, directions = (
        np.array([0.5, 1.0]),
        np.arange(3),
        np.array([[1.0, 0.5], [2.0, 0.0]]),
    )
    prior = likelihood.grad_log_prior(theta)
    whole = likelihood.clipped_grad(theta, 0.5, directions=directions)
    batch = likelihood.clipped_grad(theta, 0.5, index, directions=directions)

    def variants(array):
        read_only, strided = array.copy(), np.repeat(array, 2, axis=0)[::2]
        read_only.flags.writeable = False
        return read_only, strided, np.asfortranarray(array)

    with install_recorder("numba:compile") as recorder, warnings.catch_warnings():
        warnings.simplefilter("error")
        for t, i, d in zip(*map(variants, (theta, index, directions)), strict=True):
            assert np.array_equal(likelihood.grad_log_prior(t), prior)
            assert np.array_equal(likelihood.clipped_grad(t, 0.5, directions=d), whole)
            assert np.array_equal(likelihood.clipped_grad(t, 0.5, i, directions=d), batch)
            likelihood.clipped_grad(t, 0.5, i[:1])
            likelihood.clipped_grad(t, 0.5, i, directions=d[:, 0])
            likelihood.clipped_grad(t, math.inf)
    assert not recorder.buffer


@pytest.mark.parametrize("used", [pytest.param(False, marks=pytest.mark.slow), True])
def test_pickling(used):
    likelihood = linear(50, mode="NUMBA", records=np.arange(50) // 5)
    if used:
        likelihood.clipped_grad(np.zeros(1), 1.0)
    copy = cloudpickle.loads(cloudpickle.dumps(likelihood))
    for theta in (np.zeros(1), np.ones(1)):
        for bound in (0.3, math.inf):
            np.testing.assert_array_equal(
                copy.clipped_grad(theta, bound), likelihood.clipped_grad(theta, bound)
            )
        np.testing.assert_array_equal(copy.grad_log_prior(theta), likelihood.grad_log_prior(theta))


def test_compiled_code_holds_no_data():
    # Numba writes compiled functions to a cache on disk.
    with pm.Model() as model:
        mu = pm.Normal("b") * test_indexing.X[:, 0]
        pm.Normal("y", mu, 1.0, observed=test_indexing.Y)
    likelihood = RecordLikelihood(model)
    likelihood.clipped_grad(np.zeros(1), 1.0)
    (table,) = likelihood._gradients.groups
    for function in (table._function.function, table._quantities._function):
        for root in function.maker.fgraph.variables:
            if root.owner is None:
                assert not isinstance(root, Constant) or np.size(root.data) < 50
                assert not isinstance(root, SharedVariable)


def test_only_the_rows_of_the_records_asked_for_are_read():
    persons = RNG.permutation(np.repeat(np.arange(15), 4))
    likelihood = regression(records=persons)
    theta, index = np.full(5, 0.2), [11, 2]
    before = likelihood.clipped_grad(theta, 1.0, index)
    (table,) = likelihood._gradients.groups
    for data, axis in table._function.data:
        assert axis == 0
        data[~np.isin(persons, index)] = np.nan
    np.testing.assert_array_equal(likelihood.clipped_grad(theta, 1.0, index), before)
    assert likelihood.clipped_grad(theta, 1.0, [3]).tolist() == [0.0] * 5


def test_nothing_is_compiled_before_the_first_use(monkeypatch):
    compiled = []
    monkeypatch.setattr(gradients, "RecordGroupGradients", lambda *a: compiled.append(a))
    regression()
    assert not compiled
