"""A record's numbers are the same in any place, in blocks and batches of any length and for any threads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pymc as pm
import pytest

from scipy.linalg import solve_triangular

from pymc_dp.model import RecordLikelihood
from pymc_dp.model.graphs.ordered_products import (
    OrderedDot,
    product,
    product_of_rows,
    substitute,
)
from pymc_dp.model.sums import batch_likelihood as batches
from pymc_dp.model.sums import gradients
from pymc_dp.model.sums import row_functions as blocks
from pymc_dp.model.terms import CLIPPINGS
from tests.model import accepted_models, refused_places  # noqa: F401 (they fill the table)
from tests.model.table_entries import TABLE, Entry, N
from tests.terms import clipped_grad_steps

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.filterwarnings("ignore:Scan return signature will change:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:pytensor.as_op is deprecated:FutureWarning"),
]
COPIES = 9  # of the table's few records, so that each has many places
LENGTHS = [*range(1, 18), 31, 32, 33, 63, 64, 65, 100, 127, 200]  # of blocks


def many(entry: Entry) -> tuple[pm.Model, np.ndarray | None]:
    """The model of an entry with copies of its records, if it can have others, and its record labels."""
    data = {k: np.concatenate([a] * COPIES) if len(a) == N else a for k, a in entry.data.items()}
    if any(len(a) != N for a in entry.data.values()) or "numbers from 0" in entry.name:
        return entry.build(), entry.records
    records = entry.records
    if records is not None:
        n = 1 + max(records)
        records = np.concatenate([records + n * k for k in range(COPIES)])
    return entry.build(data), records


def wide(d: int, mode: str = "NUMBA") -> RecordLikelihood:
    rng = np.random.default_rng(d)
    x, y = rng.normal(size=(397, d)), rng.random(397) < 0.5
    with pm.Model() as model:
        eta = pm.Normal("a") + x @ pm.Normal("b", shape=d)
        pm.Bernoulli("y", logit_p=eta, observed=y.astype(int))
    return RecordLikelihood(model, compile_kwargs={"mode": mode})


def softmax(d: int) -> RecordLikelihood:
    rng = np.random.default_rng(d)
    x, y = rng.normal(size=(397, d)), rng.integers(3, size=397)
    with pm.Model() as model:
        pm.Categorical("y", logit_p=x @ pm.Normal("b", shape=(d, 3)), observed=y)
    return RecordLikelihood(model)


def multivariate(d: int) -> RecordLikelihood:
    rng = np.random.default_rng(d)
    y = rng.normal(size=(397, d))
    with pm.Model() as model:
        sd = pm.Exponential.dist(1.0, shape=d)
        chol, *_ = pm.LKJCholeskyCov("c", n=d, eta=2.0, sd_dist=sd)
        pm.MvNormal("y", pm.Normal("m", shape=d), chol=chol, observed=y)
    return RecordLikelihood(model)


def covariance(d: int) -> RecordLikelihood:
    rng = np.random.default_rng(d)
    y = rng.normal(size=(397, d))
    with pm.Model() as model:
        cov = np.eye(d) * pm.HalfNormal("s") + 0.3
        pm.MvNormal("y", pm.Normal("m", shape=d), cov=cov, observed=y)
    return RecordLikelihood(model)


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=np.float64).view(np.int64)


def same(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.array_equal(bits(found), bits(expected))


def check_same_bits(
    likelihood: RecordLikelihood, scale: float = 0.3, with_scales: bool = True
) -> None:
    """`with_scales`: also with a vector of directions, for which a loop is compiled, too."""
    rng = np.random.default_rng(3)
    theta = likelihood._start + rng.normal(scale=scale, size=likelihood.n_dim)
    n, d = likelihood.n_records, likelihood.n_dim
    logp = likelihood.logp(theta)
    order, cuts = rng.permutation(n), np.unique(np.minimum(np.cumsum([0, *LENGTHS, n]), n))
    parts = [order[a:b] for a, b in pairwise(cuts)]
    for part in (*parts, order, np.arange(n)):
        same(likelihood.logp_at(theta, part), logp[part])
    directions = [None, rng.normal(size=d), rng.normal(size=(d, d))]
    directions = directions if with_scales else directions[::2]
    every = [likelihood._gradients.each(theta, None, matrix) for matrix in directions]
    for matrix, each in zip(directions, every, strict=True):
        for part in (*parts, order):
            same(likelihood._gradients.each(theta, part, matrix), each[part])
    bound = float(np.median(np.linalg.norm(every[0], axis=1))) or 1.0
    sums = [clipped_grad_steps(likelihood, theta, bound, directions=m)[0] for m in directions]
    for matrix in directions:
        for clipping in CLIPPINGS if likelihood.is_binary else ("norm",):
            options = {"directions": matrix, "clipping": clipping}
            total, *steps = (
                clipped_grad_steps(likelihood, theta, bound, part, **options)[0]
                for part in (None, *parts)
            )
            assert np.array_equal(np.sum(steps, axis=0), total)
    for n_threads in (1, 2):
        for length in LENGTHS:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(blocks, "LARGE", 0)
                patch.setattr(batches, "MANY", 0)
                patch.setattr(blocks, "PER_THREAD", 1)
                patch.setattr(blocks, "block_length", lambda _, length=length: length)
                patch.setattr(gradients, "CHUNK", 64 * length)
                patch.setattr(blocks, "blas_threads", lambda n_threads=n_threads: n_threads)
                same(likelihood.logp(theta), logp)
                if length not in (1, 7, 64, 200):
                    continue
                for matrix, total in zip(directions, sums, strict=True):
                    likelihood.forget()
                    found, _ = clipped_grad_steps(
                        likelihood, theta, bound, directions=matrix, keeps_logp=True
                    )
                    assert np.array_equal(found, total)
                    (filled,) = likelihood._latest._found.values()
                    same(filled, logp)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make, d", [(wide, 20), (multivariate, 8), (softmax, 20), (covariance, 20)]
)
def test_models_with_many_columns(make, d):
    # Scales multiply one entry each: no other operation depends on the number of columns.
    check_same_bits(make(d), scale=0.1, with_scales=make is wide)


#: Every tenth model: one takes 5 to 15 seconds, most of it for compilation.
SOME = sorted((e for e in TABLE if e.refused is None), key=lambda e: e.name)[::10]


@pytest.mark.slow
@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in SOME])
def test_accepted_models(entry):
    model, records = many(entry)
    check_same_bits(RecordLikelihood(model, records=records, public=entry.public))


SHAPES = [(9, 20, 20), (17, 20, 3), (3, 20, 81), (5, 7, 33), (7, 0, 3), (0, 3, 2), (6, 1, 1)]


@pytest.mark.parametrize(("n", "width", "p"), SHAPES)
@pytest.mark.parametrize("lanes", [False, True])
def test_products_of_numba_and_numpy_are_the_same(n, width, p, lanes):
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=(n, width)), rng.normal(size=(width, p))
    storage = [[None]]
    OrderedDot(lanes=lanes).perform(None, (x, y), storage)
    compiled = product_of_rows if lanes else product
    same(compiled(x, y), storage[0][0])
    same(compiled(np.asfortranarray(x), np.asfortranarray(y)), storage[0][0])
    np.testing.assert_allclose(storage[0][0], x @ y, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("lower", "unit_diagonal"), [(True, False), (False, True)])
def test_solutions_of_numba_and_numpy_are_the_same(lower, unit_diagonal):
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(6, 6)) + 4 * np.eye(6), rng.normal(size=(6, 19))
    found = substitute(a, b, lower, unit_diagonal)
    same(found, substitute.py_func(a, b, lower, unit_diagonal))
    expected = solve_triangular(a, b, lower=lower, unit_diagonal=unit_diagonal)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    if not unit_diagonal:
        a[3, 3] = 0.0
        assert np.isnan(substitute(a, b, lower, unit_diagonal)[3:]).all()
