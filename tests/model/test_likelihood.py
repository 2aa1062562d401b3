"""RecordLikelihood against PyMC: the model rebuilt on every single record."""

from __future__ import annotations

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
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from scipy import stats

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model import RecordLikelihood
from pymc_dp.model.sums.exact_sums import clipped_changes
from tests.model.example_models import FAMILIES
from tests.terms import clipped_grad_steps

# PyMC may compile its initial point to C, and pip-installed PyTensor finds no BLAS for that.
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

PYTHON = Mode(linker="py", optimizer=None)  # the reference: no rewrites, no compiler


def thetas(likelihood: RecordLikelihood, model: pm.Model, n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    start = likelihood.ravel(model.initial_point())
    return [start + rng.normal(scale=0.4, size=start.shape) for _ in range(n)]


def linear(n: int, *, mode=PYTHON, **kwargs) -> RecordLikelihood:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.linspace(-1, 1, n))
    return RecordLikelihood(model, compile_kwargs={"mode": mode}, **kwargs)


# --- theta --------------------------------------------------------------------------------------


def test_ravel_and_unravel_are_inverse_and_ordered_like_the_value_variables():
    with pm.Model() as model:
        a = pm.Normal("a", shape=(2, 3))
        b = pm.HalfNormal("b")
        pm.Normal("y", a.sum(), b, observed=np.zeros(3))
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": PYTHON})
    theta = np.arange(7.0)
    point = likelihood.unravel(theta)

    assert list(point) == ["a", "b_log__"] == [v.name for v in model.value_vars]
    np.testing.assert_array_equal(point["a"], np.arange(6.0).reshape(2, 3))
    assert point["b_log__"].shape == () and point["b_log__"] == 6.0
    np.testing.assert_array_equal(likelihood.ravel(point), theta)
    np.testing.assert_array_equal(likelihood.ravel(dict(reversed(point.items()))), theta)
    assert dict(likelihood.slices) == {"a": slice(0, 6), "b_log__": slice(6, 7)}
    point["a"][:] = 0  # a copy
    np.testing.assert_array_equal(theta, np.arange(7.0))


def test_theta_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"shape \(1,\), not \(2,\)"):
        linear(3).logp(np.zeros(2))
    with pytest.raises(ValueError, match=r"shape \(1,\), not \(2,\)"):
        linear(3).logp_at(np.zeros(2), [0])


# --- frozen, and portable -----------------------------------------------------------------------


def test_read_only_and_strided_points_are_not_compiled_for_again():
    likelihood = RecordLikelihood(next(f for f in FAMILIES if f.name == "logistic").build())
    theta = np.linspace(0.5, 1.0, likelihood.n_dim)
    index = np.arange(3)
    expected = likelihood.logp(theta), likelihood.logp_at(theta, index), likelihood.log_prior(theta)
    read_only, strided = theta.copy(), np.repeat(theta, 2)[::2]
    read_only.flags.writeable = False
    with install_recorder("numba:compile") as recorder:
        for point in (read_only, strided, theta.astype("float32")):
            found = likelihood.logp(point), likelihood.logp_at(point, index), likelihood.log_prior(point)  # fmt: skip
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)
    assert not recorder.buffer


def test_frozen():
    with pm.Model() as model:
        data = pm.Data("data", np.arange(3.0))
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=data)
    likelihood = RecordLikelihood(model)
    before = likelihood.logp(np.zeros(1))
    with model:
        pm.set_data({"data": np.full(3, 9.0)})
    np.testing.assert_array_equal(likelihood.logp(np.zeros(1)), before)
    before[:] = 0.0  # what is handed out is not what is used next time
    assert likelihood.logp(np.zeros(1))[2] != 0.0
    with pytest.raises(AttributeError, match="frozen"):
        likelihood.n_records = 4
    with pytest.raises(TypeError):
        likelihood.slices["mu"] = slice(0, 2)


def test_pickling():
    likelihood = linear(50, mode="NUMBA", records=np.arange(50) // 5)
    copy = cloudpickle.loads(cloudpickle.dumps(likelihood))
    for theta in (np.zeros(1), np.ones(1)):
        np.testing.assert_array_equal(copy.logp(theta), likelihood.logp(theta))
        assert copy.log_prior(theta) == likelihood.log_prior(theta)
    new, old = np.ones(1), np.zeros(1)
    assert copy.clipped_change(new, old, 0.3) == likelihood.clipped_change(new, old, 0.3)
    again = cloudpickle.loads(cloudpickle.dumps(likelihood))
    assert likelihood._latest._found and not again._latest._found
    assert (copy.n_records, copy.n_dim) == (10, 1)
    with pytest.raises(AttributeError, match="frozen"):
        copy.n_dim = 2


def test_compiled_code_holds_no_data():
    # Numba writes compiled functions to a cache on disk.
    function = linear(50, mode="NUMBA")._batch.full
    roots = [v for v in function.maker.fgraph.variables if v.owner is None]
    assert any(isinstance(v, SharedVariable) and v.get_value().size == 50 for v in roots)
    assert all(v.data.size < 50 for v in roots if isinstance(v, Constant))


def test_constant_divisors_become_factors():
    scales, y = np.linspace(0.5, 20, 12), np.random.default_rng(3).normal(size=(30, 12))
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("t", shape=12), scales, observed=y)
    likelihood = RecordLikelihood(model, public=[scales], compile_kwargs={"mode": PYTHON})
    theta = np.linspace(-1, 1, 12)
    expected = stats.norm(theta, scales).logpdf(y).sum(axis=1)
    np.testing.assert_allclose(likelihood.logp(theta), expected, rtol=1e-13)
    found = likelihood.clipped_grad(theta, np.inf)
    np.testing.assert_allclose(found, ((y - theta) / scales**2).sum(axis=0), rtol=1e-12)
    functions = likelihood._batch.full, likelihood._gradients.groups[0]._function.function
    for node in (n for f in functions for n in f.maker.fgraph.toposort()):
        assert "true_div" not in str(node.op)


# --- parameter checks ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [PYTHON, "NUMBA"])
def test_a_check_on_data_rejects_the_record_concerned_alone(mode):
    x = np.array([0.1, 0.5, 2.0, -1.0])
    with pm.Model() as model:
        slope = pm.Normal("slope", initval=0.4)
        pm.Bernoulli("y", p=slope * x, observed=[1, 0, 1, 0])
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": mode})
    expected = [np.log(0.09), np.log1p(-0.45), -np.inf, -np.inf]
    np.testing.assert_allclose(likelihood.logp(np.array([0.9])), expected)
    assert np.isfinite(likelihood.log_prior(np.array([0.9])))


def test_a_check_inside_a_mixture_rejects_the_whole_record():
    x = np.array([1.0, -1.0, 1.0])
    with pm.Model() as model:
        scale = pm.Normal("scale", 1.0, 0.1)
        parts = [pm.Normal.dist(0, 1), pm.Normal.dist(0, scale * x + 0.5)]
        pm.Mixture("y", [0.5, 0.5], parts, observed=np.zeros(3))
    logp = RecordLikelihood(model, compile_kwargs={"mode": PYTHON}).logp(np.array([1.0]))
    assert np.isfinite(logp[0])
    assert logp[1] == -np.inf


def test_a_check_without_data_is_part_of_the_prior():
    with pm.Model() as model:
        sigma = pm.Normal("sigma", 1.0, 1.0)
        tau = pm.Normal("tau", 1.0, 1.0)
        pm.Normal("mu", 0.0, tau)
        pm.Normal("y", 0.0, sigma, observed=np.arange(3.0))
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": PYTHON})
    point = {"sigma": 2.0, "tau": 2.0, "mu": 0.0}
    theta = likelihood.ravel(point)
    assert np.isfinite(likelihood.log_prior(theta))
    for bad in ("sigma", "tau"):  # one of the likelihood, one of another prior
        theta = likelihood.ravel(point | {bad: -2.0})
        assert likelihood.log_prior(theta) == -np.inf
        assert likelihood.logp(theta).shape == (3,)  # and no exception


def test_not_a_number_counts_as_impossible():
    def logp(value, a):
        return pt.sqrt(a * value)

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("a", 1.0), logp=logp, observed=np.array([4.0, -1.0]))
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": PYTHON})
    np.testing.assert_array_equal(likelihood.logp(np.ones(1)), [2.0, -np.inf])
    np.testing.assert_array_equal(likelihood.logp(-np.ones(1)), [-np.inf, 1.0])


# --- privacy units ------------------------------------------------------------------------------


def two_tables():
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("visits", mu, 1.0, observed=rng.normal(size=5))
        pm.Normal("tests", mu, 2.0, observed=rng.normal(size=(3, 2)))
    return model


@pytest.mark.parametrize("mode", [PYTHON, "NUMBA"])
def test_rows_add_up_over_persons_and_tables(mode):
    model = two_tables()
    persons = {"visits": np.array([70, -3, 70, 8, 8]), "tests": np.array([8, 9, 70])}
    likelihood = RecordLikelihood(model, records=persons, compile_kwargs={"mode": mode})
    theta = np.array([0.3])
    visits, tests = model.compile_logp(vars=model.observed_RVs, sum=False, mode=PYTHON)({"mu": 0.3})
    tests = tests.sum(axis=1)
    expected = [
        visits[1],
        visits[3] + visits[4] + tests[0],
        tests[1],
        visits[[0, 2]].sum() + tests[2],
    ]
    assert likelihood.n_records == 4  # -3, 8, 9, 70
    np.testing.assert_allclose(likelihood.logp(theta), expected, rtol=1e-12)


@pytest.mark.slow
def test_a_table_of_few_persons():
    # Whatever half of all persons is swapped, both persons or none may be in it.
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("visits", mu, 1.0, observed=np.linspace(0, 1, 20))
        pm.Normal("tests", mu, 1.0, observed=np.array([0.5, 0.25]))
    for first in range(10):
        persons = {"visits": np.arange(20), "tests": np.array([first, 19 - first])}
        likelihood = RecordLikelihood(model, records=persons, compile_kwargs={"mode": PYTHON})
        assert likelihood.n_records == 20


def test_one_array_of_persons_serves_all_variables():
    rows = linear(6).logp(np.array([0.5]))
    persons = linear(6, records=[5, 5, 1, 1, 1, 5])
    assert persons.n_records == 2
    np.testing.assert_allclose(
        persons.logp(np.array([0.5])), [rows[2:5].sum(), rows[[0, 1, 5]].sum()]
    )


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (np.arange(5), r"shape \(6,\), not \(5,\)"),
        (np.zeros((6, 1), dtype=int), r"shape \(6,\), not \(6, 1\)"),
        (np.full(6, 123.5), "integers, not of type float64"),
        (np.array(list("abcdef")), "integers, not of type <U1"),
        ({"z": np.arange(6)}, r"keys \['y'\]"),
        ({"y": np.arange(6), "z": np.arange(6)}, r"keys \['y'\]"),
    ],
)
def test_wrong_records_are_refused_without_showing_them(records, message):
    with pytest.raises(ValueError, match=message) as error:
        linear(6, records=records)
    assert "123.5" not in str(error.value)


def test_tables_of_different_lengths_need_persons():
    with pytest.raises(UnsupportedModel, match="records="):
        RecordLikelihood(two_tables())


# --- the clipped sum ----------------------------------------------------------------------------

BOUNDS = st.floats(1e-12, 1e12)
ANY = st.floats(allow_nan=True, allow_infinity=True)
VECTORS = arrays(np.float64, 5, elements=ANY)


@cache
def small() -> RecordLikelihood:
    return linear(5, mode="NUMBA")


def clipped_sum(likelihood, new, old, bound):
    """The clipped change of a likelihood whose records have these values at 1 and 0."""
    values = {1.0: new, 0.0: old}
    likelihood.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(likelihood._batch, "all_records", lambda theta: values[theta[0]])
        found = likelihood.clipped_change(np.ones(1), np.zeros(1), bound)
    likelihood.forget()
    return found


def test_many_records_with_few_numbers_are_evaluated_in_blocks(monkeypatch):
    """Vectors of log-likelihoods would take more than a tenth of the data: the sum is the same without them."""
    kept = linear(5000, mode="NUMBA")
    monkeypatch.setattr("pymc_dp.model.likelihood.FEW_BYTES", 0)
    likelihood, new, old = linear(5000, mode="NUMBA"), np.full(1, 0.3), np.full(1, 0.1)
    monkeypatch.setattr(likelihood._batch, "all_records", None)
    assert likelihood.clipped_change(new, old, 0.2) == kept.clipped_change(new, old, 0.2) != 0
    steps = clipped_grad_steps(likelihood, new, 0.5, keeps_logp=True)[0]
    assert np.array_equal(steps, clipped_grad_steps(kept, new, 0.5)[0])
    assert kept._latest._found and not likelihood._latest._found


def exact(new, old, bound, bits=30):
    """The documented value, in rational arithmetic."""
    grid = Fraction(1)
    while Fraction(bound) / grid >= 2 ** (bits + 1):
        grid *= 2
    while Fraction(bound) / grid < 2**bits:
        grid /= 2
    limit = Fraction(bound) // grid
    total = 0
    with np.errstate(all="ignore"):
        differences = new - old
    for difference in differences:
        if np.isnan(difference):
            continue
        if np.isinf(difference):
            steps = limit if difference > 0 else -limit
        else:
            steps = max(-limit, min(limit, round(Fraction(difference) / grid)))  # half to even
        total += steps
    return total * grid


@settings(max_examples=300, deadline=None)
@given(VECTORS, VECTORS, BOUNDS)
def test_clipped_sum_is_exact(new, old, bound):
    assert Fraction(clipped_sum(small(), new, old, bound)) == exact(new, old, bound)


@settings(max_examples=300, deadline=None)
@given(VECTORS, VECTORS, BOUNDS, ANY, ANY, st.integers(0, 4))
def test_a_record_moves_the_clipped_sum_by_twice_the_bound_at_most(new, old, bound, a, b, i):
    other_new, other_old = new.copy(), old.copy()
    other_new[i], other_old[i] = a, b
    one, other = (
        Fraction(clipped_sum(small(), n, o, bound)) for n, o in [(new, old), (other_new, other_old)]
    )
    assert abs(one - other) <= 2 * Fraction(bound)


@settings(max_examples=100, deadline=None)
@given(VECTORS, VECTORS, BOUNDS)
def test_clipped_sum_changes_sign_when_the_states_are_exchanged(new, old, bound):
    assert clipped_sum(small(), new, old, bound) == -clipped_sum(small(), old, new, bound)


@settings(max_examples=200, deadline=None)
@given(VECTORS, VECTORS, BOUNDS)
def test_clipped_changes_are_the_terms_of_the_sum(new, old, bound):
    """Batches are clipped and rounded like all records, one by one."""
    changes = clipped_changes(new, old, bound)
    assert changes.shape == (5,)
    assert np.all(np.abs(changes) <= bound)
    assert sum(map(Fraction, changes.tolist())) == exact(new, old, bound)
    assert np.array_equal(changes, -clipped_changes(old, new, bound))
    assert np.array_equal(changes[[2, 0]], clipped_changes(new[[2, 0]], old[[2, 0]], bound))


def test_clipped_changes_without_a_bound():
    new, old = np.array([1.0, -np.inf, -np.inf]), np.array([3.0, -np.inf, 2.0])
    assert clipped_changes(new, old, np.inf).tolist() == [-2.0, 0.0, -np.inf]


def test_clipped_sum_does_not_depend_on_the_order():
    likelihood, rng = linear(10_001, mode="NUMBA"), np.random.default_rng(5)
    new, old = rng.standard_cauchy(size=(2, 10_001))
    new[::100], old[::50] = -np.inf, -np.inf
    values = set()
    for _ in range(5):
        order = rng.permutation(10_001)
        values.add(clipped_sum(likelihood, new[order], old[order], 0.7))
    assert len(values) == 1
    with np.errstate(invalid="ignore"):
        plain = np.nansum(np.clip(new - old, -0.7, 0.7))
    assert abs(values.pop() - plain) < 1e-4


def test_the_grid_does_not_depend_on_the_number_of_records():
    # Under add/remove adjacency one record more must leave the terms of all others as they were.
    terms = np.random.default_rng(5).normal(size=8)
    few, many = linear(5), linear(8)
    padded = np.concatenate([terms[:5], np.zeros(3)])
    assert clipped_sum(few, terms[:5], np.zeros(5), 0.7) == clipped_sum(
        many, padded, np.zeros(8), 0.7
    )


def test_edges_of_the_bound():
    new, old = (
        np.array([1.0, -2.0, np.inf, np.nan, -np.inf]),
        np.array([0.5, 0.0, 0.0, 0.0, -np.inf]),
    )
    assert clipped_sum(small(), new, old, 0.0) == 0.0
    assert clipped_sum(small(), new, old, 1e-310) == 0.0
    assert clipped_sum(small(), new, old, 1e300) == pytest.approx(1e300)
    new[2] = 1e30
    assert clipped_sum(small(), new, old, np.inf) == 0.5 - 2.0 + 1e30
    for bound in (-1.0, np.nan):
        with pytest.raises(ValueError, match="bound"):
            clipped_sum(small(), new, old, bound)
