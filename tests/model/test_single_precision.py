"""Columns of float32: sums are those of float64 columns with the rounded numbers, to the last integer."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_dp.data import Records
from pymc_dp.model.blocked_likelihood import BlockedLikelihood
from pymc_dp.model.graphs.double_precision import in_doubles
from tests.data.mixed_columns import fed
from tests.model.test_blocked_likelihood import assert_equal, reduced

N = 1003
ARGUMENTS = {"x": ["x0", "x1", "x2"], "w": "w", "k": "k", "y": "y"}


def columns():
    rng = np.random.default_rng(1)
    found = {f"x{k}": rng.normal(size=N) for k in range(3)}
    return found | {
        "w": rng.gamma(2.0, size=N) + 0.01,
        "k": rng.integers(0, 2, N).astype(np.int16),
        "y": rng.gamma(2.0, size=N),
    }


def rounded():
    return {n: c.astype("f4").astype("f8") if c.dtype == "f8" else c for n, c in columns().items()}


def model(x, w, k, y):
    """Products with float64, and functions of columns alone, which PyTensor would compute in float32."""
    slope, scale = pm.Normal("slope", 0, 1, shape=3), pm.HalfNormal("scale", 1)
    alone = pm.math.exp(0.5 * x[:, 0]) + pm.math.sqrt(w) + pm.math.log(k + 2) + x.sum(axis=1)
    mu = x @ slope + 0.1 * alone + pm.math.switch(k > 0, w, 0.5)
    pm.Normal("outcome", mu, scale + w * w, observed=y)


@pytest.mark.slow
def test_sums_are_those_of_the_rounded_numbers(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns()), tmp_path / "a.parquet", row_group_size=300)
    options = {"arguments": ARGUMENTS, "block_rows": 128}
    sources = [
        Records(columns(), single_precision=True, **options),
        Records.from_parquet(tmp_path / "a.parquet", single_precision=True, **options),
    ]
    expected, plain = (
        reduced(BlockedLikelihood(fed(model, sources[0].take([0])), Records(data, **options)))
        for data in (rounded(), columns())
    )
    likelihood = BlockedLikelihood(fed(model, sources[0].take([0])), sources[0])
    for source in sources:
        likelihood.records = source
        assert_equal(reduced(likelihood), expected)
    assert plain[0][0] != expected[0][0]  # they are not those of the columns


def test_blocks_hold_float32():
    records = Records(columns(), arguments=ARGUMENTS, single_precision=True, block_rows=100)
    assert {n: d.str[1:] for n, (d, _) in records.layout.items()} == {
        "x": "f4", "w": "f4", "k": "i2", "y": "f4",
    }  # fmt: skip
    block = next(records.blocks())
    for name, column in (("w", columns()["w"]), ("y", columns()["y"])):
        assert np.array_equal(block[name], column[:100].astype("f4"))
    assert np.array_equal(records.take([7, 3])["x"][:, 1], columns()["x1"][[7, 3]].astype("f4"))
    assert records.split(2)[1].layout == records.layout
    default = Records(columns(), arguments=ARGUMENTS)
    assert default.layout["x"][0] == default.layout["w"][0] == np.float64


def test_what_is_too_large_becomes_infinite_without_a_warning():
    """A warning would depend on the data."""
    data = {"a": np.array([1e300, 1.0]), "b": np.array([2**60, 3])}
    records = Records(data, arguments={"m": ["a", "b"], "a": "a"}, single_precision=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (block,) = records.blocks()
    assert block["m"].tolist() == [[np.inf, float(2**60)], [1.0, 3.0]]
    assert block["a"].tolist() == [np.inf, 1.0]


def graphs():
    f4, i4, cond = pt.vector("f", dtype="f4"), pt.vector("i", dtype="i4"), pt.vector("c", dtype="?")
    matrix, f8 = pt.matrix("m", dtype="f4"), pt.vector("d", dtype="f8")
    return [
        pt.log(f4), f4 * f4, pt.exp(pt.sqrt(f4) * 0.5), pt.log(i4), 1 / i4, matrix.sum(axis=1), f4 @ f4,
        pt.switch(cond, f4, np.float32(0.1)), pt.switch(cond, f8, pt.constant(np.float32([0.5]))), pm.math.softmax(f4),
        pt.cumsum(f4), pt.max(matrix, axis=1) * f4,
    ]  # fmt: skip


@pytest.mark.parametrize("graph", graphs())
def test_graphs_compute_in_doubles(graph):
    (found,) = in_doubles([graph])
    assert found.dtype == "float64" and found.type.ndim == graph.type.ndim
    again = in_doubles([found])[0]
    assert again is found
