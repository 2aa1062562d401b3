"""Golden integers: what each term of each source sums to, frozen before there was one engine for all.

Columns are multiples of 1/8, so that gradients are exact on every machine; exponentials are rounded to a grid that is
2**22 times as coarse as their last bit. ``python -m tests.model.test_golden`` prints the table.
"""

import json

from pathlib import Path

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp

from pymc_dp.data import Records, Shards, Sites
from pymc_dp.model import BlockedLikelihood, ClippedScores, RecordLikelihood
from pymc_dp.model.predictive_densities import Differences, PredictiveDensities
from pymc_dp.model.record_function import Ball, Bins, Box, RecordFunction
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.privacy.randomness.bits import SeededBits
from tests.data.mixed_columns import fed
from tests.seeded_bits import seeded_for
from tests.terms import clipped_grad_steps, norm_counts, product_steps
from tests.test_sites import served

N, D = 203, 2
GOLDEN = Path(__file__).with_name("golden.json")


def columns():
    rng = np.random.default_rng(46)
    x = rng.integers(-16, 17, (N, D)) / 8
    return {"x": x, "y": rng.integers(-24, 25, N) / 8, "z": (rng.random(N) < 0.3).astype(int)}


def regression(x, y, z):
    b = pm.Normal("b", 0, 1, shape=D)
    pm.Normal("level", pm.math.dot(x, b), 1.0, observed=y)


def logistic(x, y, z):
    b = pm.Normal("b", 0, 1, shape=D)
    pm.Bernoulli("event", logit_p=pm.math.dot(x, b), observed=z)


def in_memory(function):
    with pm.Model() as model:
        function(**columns())
    return RecordLikelihood(model)


def sums(likelihood, name):
    """Whole numbers of each kind of term."""
    old, new, w = (
        np.array([0.25, -0.5]),
        np.array([0.5, -0.125]),
        np.array([[1.0, 0.5], [0.25, -1.0]]),
    )
    found = {
        "change": np.ldexp(likelihood.clipped_change(new, old, 0.375), 32),
        "scores": clipped_grad_steps(likelihood, old, 1.5)[0],
        "scores along directions": clipped_grad_steps(likelihood, old, 0.7, directions=w)[0],
        "scores in scales": clipped_grad_steps(likelihood, old, 0.7, directions=w[0])[0],
        "norms": norm_counts(likelihood, old, w, np.array([0.5, 1.0, 3.0])),
        "products": product_steps(likelihood, old, w, 1.1)[0],
    }
    if name == "logistic":
        found["unbiased scores"] = clipped_grad_steps(
            likelihood, old, 0.7, directions=w, clipping="outcome_free"
        )[0]
    if not isinstance(getattr(likelihood, "records", None), Sites):
        index = np.array([3, 5, 3, N - 1, 0])
        found["scores of some"] = clipped_grad_steps(likelihood, old, 0.7, index, directions=w)[0]
    return {kind: np.atleast_1d(steps).astype(int).tolist() for kind, steps in found.items()}


def noisy(likelihood):
    """Sums with noise, of bits that are seeded."""
    found = {}
    for kind in "gaussian", "l2":
        law, bits = NoiseLaw(kind, 3.0, 2), SeededBits(np.random.default_rng(7))
        found[kind] = likelihood.noisy(
            ClippedScores(np.array([0.25, -0.5]), 1.5), law, bits
        ).tolist()
    return found


def functions():
    """Whole numbers of the terms of a user's function, and of the difference of two models."""
    f = RecordFunction(lambda x, y: [x[0], y**2], columns())
    persons = RecordFunction(lambda y: y, columns(), records=np.arange(N) // 2)
    edges = [np.array([-1.0, 0.0, 1.0]), np.array([0.5])]
    one, two = in_memory(regression), in_memory(lambda x, y, z: regression(2 * x, y, z))
    draws = np.array([[0.25, -0.5], [0.125, 0.0]])
    densities = PredictiveDensities((one, draws), (two, draws))
    return {
        "ball": f.total(Ball(np.array([0.5, 1.0]), 3.0)).tolist(),
        "ball of persons": persons.total(Ball(np.array([0.5]), 3.0)).tolist(),
        "box": f.total(Box(np.array([0.5, 1.0]), np.array([1.0, 6.0]))).tolist(),
        "bins": f.total(Bins(edges)).tolist(),
        "differences": densities.total(Differences((0.75,), "add_remove")).tolist(),
    }


def releases():
    """What users get, with seeded bits of the operating system (`seeded_bits`)."""
    data, account = columns(), {"epsilon": 1.0, "delta": 1e-6, "chains": 1}
    total = dp.private_sum(lambda y: [y, y**2], data, bound=9.0, budget=dp.PrivacyBudget(**account))
    box = dp.private_sum(
        lambda y: [y, y**2], data, bound=[3.0, 9.0], budget=dp.PrivacyBudget(**account)
    )
    counts = dp.private_counts(
        lambda y: y, data, edges=[0.0, 1.0], budget=dp.PrivacyBudget(**account)
    )
    return {
        "sum": total.total.tolist(),
        "box": box.total.tolist(),
        "counts": counts.counts[0].tolist(),
    }


def table():
    """All that is frozen."""
    models = {"regression": regression, "logistic": logistic}
    found = {name: sums(in_memory(model), name) for name, model in models.items()}
    with seeded_for("releases"):
        found["releases"] = releases()
    return found | {"noisy": noisy(in_memory(regression)), "functions": functions()}


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("function", [regression, logistic])
def test_in_memory_and_in_blocks(golden, function):
    name = function.__name__
    assert sums(in_memory(function), name) == golden[name]
    blocked = BlockedLikelihood(fed(function, columns()), Records(columns(), block_rows=64))
    assert sums(blocked, name) == golden[name]


def test_with_noise(golden):
    assert noisy(in_memory(regression)) == golden["noisy"]
    blocked = BlockedLikelihood(fed(regression, columns()), Records(columns(), block_rows=50))
    assert noisy(blocked) == golden["noisy"]


def test_functions_and_differences(golden):
    assert functions() == golden["functions"]


def test_releases(golden):
    with seeded_for("releases"):
        assert releases() == golden["releases"]


@pytest.mark.slow
def test_parquet_and_shards(golden, tmp_path):
    pa, distributed = pytest.importorskip("pyarrow"), pytest.importorskip("distributed")
    import pyarrow.parquet as pq

    table = {"y": columns()["y"], "z": columns()["z"]} | {f"x{k}": columns()["x"][:, k] for k in range(D)}  # fmt: skip
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=60)
    arguments = {"x": [f"x{k}" for k in range(D)], "y": "y", "z": "z"}
    on_disk = Records.from_parquet(tmp_path / "a.parquet", arguments=arguments, block_rows=50)
    blocked = BlockedLikelihood(fed(regression, columns()), on_disk)
    assert sums(blocked, "regression") == golden["regression"]
    with distributed.Client(processes=False, n_workers=2, dashboard_address=":0") as client:
        model, shards = fed(logistic, columns()), Shards(on_disk.split(3), client=client)
        sharded = BlockedLikelihood(model, shards)
        assert sums(sharded, "logistic") == golden["logistic"]


def test_sites(golden):
    model, parts = fed(logistic, columns()), Records(columns(), block_rows=64).split(3)
    with served(parts, model) as connections:
        likelihood = BlockedLikelihood(model, Sites(connections, timeout=600.0))
        expected = {k: v for k, v in golden["logistic"].items() if k != "scores of some"}
        assert sums(likelihood, "logistic") == expected


if __name__ == "__main__":
    print(json.dumps(table(), indent=1))
