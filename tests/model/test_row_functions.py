"""Loops over blocks of rows, in threads: the same sums and log-likelihoods as record by record."""

from __future__ import annotations

import math

from contextlib import contextmanager

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from threadpoolctl import threadpool_limits

from pymc_dp.model import RecordLikelihood
from pymc_dp.model.sums import batch_likelihood as batches
from pymc_dp.model.sums import row_functions as blocks
from pymc_dp.model.sums.exact_sums import grid, sum_of_steps
from tests.model.test_likelihood import PYTHON
from tests.terms import clipped_grad_steps

# PyMC may compile its initial point to C, and pip-installed PyTensor finds no BLAS for that.
pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.slow,
]

LENGTHS = [1, 7, 63, 64, 65, 128, 200, 513]  # blocks are of 64 rows


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """A loop for all data, blocks of 64 rows, and a thread for so few rows."""
    monkeypatch.setattr(blocks, "LARGE", 0)
    monkeypatch.setattr(batches, "MANY", 0)
    monkeypatch.setattr(blocks, "BLOCK", 1)
    monkeypatch.setattr(blocks, "PER_THREAD", 1)
    monkeypatch.setattr(blocks, "blas_threads", lambda: 1)


@contextmanager
def patched(name, value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, name, value)
        yield


def free(vectors: np.ndarray, mode: str = "NUMBA") -> RecordLikelihood:
    """A model in which vectors are the gradients of records, to the bit."""
    with pm.Model() as model:
        t = pm.Normal("t", shape=vectors.shape[1])
        # PyMC would take what is not a number for missing: these come in afterwards.
        others = np.random.default_rng(0).normal(size=vectors.shape)
        pm.CustomDist(
            "y", t, logp=lambda y, t: (y * t).sum(-1), observed=others, signature="(k)->(k)"
        )
    likelihood = RecordLikelihood(model, compile_kwargs={"mode": mode})
    likelihood.clipped_grad(np.zeros(vectors.shape[1]), 1.0)
    likelihood.logp_at(np.zeros(vectors.shape[1]), [0])
    overwrite(likelihood, vectors)
    return likelihood


def overwrite(likelihood: RecordLikelihood, vectors: np.ndarray) -> None:
    """Other data, as many as one likes: nothing that is compiled knows their number."""
    (first,), (second,) = likelihood._gradients.groups, likelihood._batch.groups
    for function in (first._function, second._function):
        ((_, axis),) = function.data
        assert axis == 0
        function._data = [(vectors.copy(), 0)]
        function._n_rows = len(vectors)
    second.n_records = second._n_rows = len(vectors)
    likelihood.__dict__["n_records"] = len(vectors)
    likelihood._gradients.n_records = likelihood._batch.n_records = len(vectors)


def some(n: int, d: int) -> np.ndarray:
    """Vectors of which some are clipped; some are not finite, in blocks of all places."""
    vectors = np.random.default_rng(n + d).standard_cauchy(size=(n, d))
    vectors[70:71, 0], vectors[-1:, d - 1], vectors[3:4] = np.nan, np.inf, -np.inf
    return vectors


@pytest.fixture(
    scope="module", params=[pytest.param(3, marks=pytest.mark.slow), 12], ids=["columns", "rows"]
)
def likelihood(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "LARGE", 0)
        return free(np.ones((50, request.param)))


def test_sums_are_those_of_single_records(likelihood):
    d = likelihood.n_dim
    for n in LENGTHS:
        overwrite(likelihood, some(n, d))
        assert likelihood._gradients.groups[0].has_loop
        for bound in (0.7, 1e5):
            each = [clipped_grad_steps(likelihood, np.zeros(d), bound, [i])[0] for i in range(n)]
            for n_threads in (1, 2, 3, 50):
                with patched("blas_threads", lambda n_threads=n_threads: n_threads):
                    steps, _ = clipped_grad_steps(likelihood, np.zeros(d), bound)
                assert steps.dtype == np.int64
                assert np.array_equal(steps, np.sum(each, axis=0))


@pytest.mark.slow
def test_directions(likelihood):
    d = likelihood.n_dim
    overwrite(likelihood, some(200, d))
    rng, theta = np.random.default_rng(1), np.zeros(likelihood.n_dim)
    before = [data.copy() for data, _ in likelihood._gradients.groups[0]._function.data]
    for directions in (rng.normal(size=d), rng.normal(size=(d, 2)), np.zeros((d, 0))):
        found, exponent = clipped_grad_steps(likelihood, theta, 0.7, directions=directions)
        expected, _ = clipped_grad_steps(likelihood, theta, 0.7, range(200), directions=directions)
        assert exponent == -31 and np.array_equal(found, expected)
    for (data, _), copy in zip(likelihood._gradients.groups[0]._function.data, before, strict=True):
        np.testing.assert_array_equal(data, copy)


def test_log_likelihoods_are_those_of_single_records(likelihood):
    d, rng = likelihood.n_dim, np.random.default_rng(2)
    assert likelihood._batch.has_blocks
    for n in LENGTHS:
        overwrite(likelihood, some(n, d))
        theta = rng.normal(size=d)
        with np.errstate(invalid="ignore"):
            expected = likelihood._gradients.groups[0]._function.data[0][0] @ theta
        expected[np.isnan(expected)] = -np.inf
        for n_threads in (1, 2, 50):
            with patched("blas_threads", lambda n_threads=n_threads: n_threads):
                found = likelihood.logp(theta)
            np.testing.assert_allclose(found, expected, rtol=1e-9)


def kept(likelihood, theta):
    """Log-likelihoods that came with the last gradients."""
    return likelihood._latest._found[np.asarray(theta, dtype=float).tobytes()]


def test_log_likelihoods_beside_gradients(likelihood):
    """The same numbers, whichever way they come."""
    d, rng = likelihood.n_dim, np.random.default_rng(3)
    for n in LENGTHS:
        overwrite(likelihood, some(n, d))
        theta, logp = rng.normal(size=d), np.empty(n)
        (expected, _), alone = clipped_grad_steps(likelihood, theta, 0.7), likelihood.logp(theta)
        for n_threads in (1, 2, 50):
            logp[:] = np.nan
            with patched("blas_threads", lambda n_threads=n_threads: n_threads):
                found, _ = clipped_grad_steps(likelihood, theta, 0.7, keeps_logp=True)
            logp[:] = kept(likelihood, theta)
            assert np.array_equal(found, expected)
            assert np.array_equal(logp, alone)


@pytest.mark.slow
def test_a_copy(likelihood):
    d = likelihood.n_dim
    overwrite(likelihood, some(200, d))
    copy, theta = cloudpickle.loads(cloudpickle.dumps(likelihood)), np.full(d, 0.1)
    assert copy._gradients.groups[0].has_loop and copy._batch.has_blocks
    with patched("blas_threads", lambda: 2):
        for bound in (0.7, 1e5):
            found, expected = (clipped_grad_steps(x, theta, bound)[0] for x in (copy, likelihood))
            assert np.array_equal(found, expected)
        assert np.array_equal(copy.logp(theta), likelihood.logp(theta))


def regression(mode="NUMBA", **kwargs) -> RecordLikelihood:
    """Two parameters, a covariate, and two arrays without rows."""
    rng = np.random.default_rng(5)
    x, y, (one, two) = rng.normal(size=150), rng.normal(size=(150, 9)), rng.normal(size=(2, 9))
    with pm.Model() as model:
        t = (pm.Normal("slope") * x)[:, None]
        pm.Normal("y", pm.Normal("b", shape=9) + t * one + t**2 * two, 1.0, observed=y)
    return RecordLikelihood(model, public=[one, two], compile_kwargs={"mode": mode}, **kwargs)


@pytest.mark.slow
def test_a_model():
    likelihood, theta = regression(), np.linspace(-0.5, 0.5, 10)
    steps, exponent = clipped_grad_steps(likelihood, theta, 1.0)
    expected, _ = clipped_grad_steps(likelihood, theta, 1.0, range(150))
    assert exponent == -30 and np.array_equal(steps, expected)
    assert likelihood._gradients.groups[0].has_loop
    np.testing.assert_allclose(likelihood.logp(theta), likelihood._batch.full(theta), rtol=1e-12)
    assert np.array_equal(clipped_grad_steps(likelihood, theta, 1.0, keeps_logp=True)[0], steps)
    np.testing.assert_allclose(kept(likelihood, theta), likelihood._batch.full(theta), rtol=1e-12)


@pytest.mark.parametrize(
    "records", [None, pytest.param(np.arange(150) // 5, marks=pytest.mark.slow)]
)
def test_without_numba_or_with_records_of_several_rows_there_is_no_loop(records):
    mode = PYTHON if records is None else "NUMBA"
    likelihood, theta = regression(mode, records=records), np.full(10, 0.2)
    steps, _ = clipped_grad_steps(likelihood, theta, 1.0)
    n = likelihood.n_records
    each = [clipped_grad_steps(likelihood, theta, 1.0, [i])[0] for i in range(n)]
    assert np.all(np.abs(steps - np.sum(each, axis=0)) <= 3 * n)
    assert np.array_equal(clipped_grad_steps(likelihood, theta, 1.0, keeps_logp=True)[0], steps)
    assert np.array_equal(kept(likelihood, theta), likelihood.logp(theta))
    assert not likelihood._gradients.groups[0].has_loop and not likelihood._batch.has_blocks
    new, old = theta + 0.1, theta - 0.1
    arguments = 2.0**28, 2.0**27
    expected = sum_of_steps(likelihood.logp(new), likelihood.logp(old), *arguments)
    assert likelihood._batch.clipped_change(new, old, *arguments) == expected


@pytest.mark.parametrize("n_threads", [1, 2, 50])
def test_clipped_changes_without_an_array_of_them(likelihood, n_threads):
    d, rng = likelihood.n_dim, np.random.default_rng(4)
    for n in LENGTHS:
        overwrite(likelihood, some(n, d))
        new, old = rng.normal(size=(2, d))
        for bound in (0.1, 5.0, 1e5):
            exponent, limit = grid(bound)
            with patched("blas_threads", lambda: n_threads):
                found = likelihood._batch.clipped_change(new, old, 2.0**-exponent, float(limit))
            assert math.ldexp(found, exponent) == likelihood.clipped_change(new, old, bound)
            likelihood.forget()


def test_few_rows_need_no_loop(likelihood, monkeypatch):
    d = likelihood.n_dim
    overwrite(likelihood, some(200, d))
    monkeypatch.setattr(blocks, "LARGE", 200 * d)
    assert not likelihood._gradients.groups[0].has_loop
    monkeypatch.setattr(blocks, "LARGE", 200 * d - 1)
    assert likelihood._gradients.groups[0].has_loop


def test_an_error_in_a_thread_is_seen(likelihood):
    def loop(function, inputs, limits):
        if limits[0]:
            raise ZeroDivisionError
        return limits[1]

    overwrite(likelihood, some(128, likelihood.n_dim))
    function = likelihood._gradients.groups[0]._function
    assert function.loop(loop, [], 1) == [128]
    with patched("blas_threads", lambda: 2), pytest.raises(ZeroDivisionError):
        function.loop(loop, [], 1)


def test_as_many_threads_as_blas_may_use(monkeypatch):
    monkeypatch.undo()
    for n in (1, 2):
        with threadpool_limits(n, user_api="blas"):
            assert blocks.blas_threads() <= n
    assert math.isfinite(blocks.blas_threads())
