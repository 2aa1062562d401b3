"""Sums and counts of functions of records: values, sensitivities, noise, accounts, refusals."""

import math
import sys
import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pytensor import scan
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import wrap_py
from scipy import stats

from pymc_dp import PrivacyBudget, private_counts, private_sum
from pymc_dp.errors import ModelError, PrivacyBudgetExhausted, UnsupportedModel
from pymc_dp.model.record_function import Ball, Bins, Box, RecordFunction
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.budget.ledger import Ledger

RNG = np.random.default_rng(3)
N = 5000  # more than a block
DATA = {"x": RNG.normal(size=N), "k": RNG.integers(0, 4, size=N), "z": RNG.normal(size=(N, 3))}


def features(x, k, z, w):
    """Of one record: numbers, an outcome, products, and a sum over its own coordinates."""
    return pt.concatenate([pt.stack([x, x**2, pt.eq(k, 2) * 1.0, (z * w).sum()]), z])


def wanted(data, w):
    rows = zip(data["x"], data["k"], data["z"], strict=True)
    return np.array([[x, x**2, k == 2, z @ w, *z] for x, k, z in rows], dtype=float)


def budget_for(epsilon=math.inf, adjacency="substitute", delta=1e-6):
    return PrivacyBudget(epsilon, delta, chains=1, adjacency=adjacency)


def in_ball(vectors, bound):
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * np.minimum(1.0, bound / np.maximum(norms, 1e-300))


def test_sums_of_clipped_vectors():
    """Against a loop over single records in NumPy, up to the steps of the grid."""
    w, vectors = np.array([1.0, -2.0, 0.5]), wanted(DATA, np.array([1.0, -2.0, 0.5]))
    centre, widths = RNG.normal(size=7) * 0.1, RNG.uniform(0.5, 2, size=7)
    options = {"public": {"w": w}, "centre": centre}
    ball = private_sum(features, DATA, bound=1.5, budget=budget_for(), **options)
    box = private_sum(features, DATA, bound=widths, budget=budget_for(), **options)
    for found, clipped in (
        (ball, in_ball(vectors - centre, 1.5)),
        (box, np.clip(vectors - centre, -widths, widths)),
    ):
        assert found.total == pytest.approx(clipped.sum(axis=0), abs=1e-3 + N * 2e-9)
        assert found.sum == pytest.approx(clipped.sum(axis=0) + N * centre, abs=2e-2)
        assert found.mean == pytest.approx(found.sum / N)
    counted = private_counts(
        lambda x, k: [x, k], DATA, edges=[[-1.0, 0.0, 2.0], np.arange(0.5, 3)], budget=budget_for()
    )
    edges = [-np.inf, -1.0, 0.0, 2.0, np.inf]
    assert counted.counts[0].tolist() == np.histogram(DATA["x"], edges)[0].tolist()
    assert counted.counts[1].tolist() == np.bincount(DATA["k"]).tolist()


def test_functions_that_are_not_defined_at_0():
    """They are tried on a made-up row first, which must not warn."""
    found = private_sum(lambda x: pm.math.log(x**2), DATA, bound=3.0, budget=budget_for())
    assert found.total == pytest.approx(np.clip(np.log(DATA["x"] ** 2), -3, 3).sum(), abs=1e-3)


def test_a_scalar_and_a_table():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"x": DATA["x"], "unused": "text"})
    found = private_sum(lambda x: pm.math.exp(-x), table, bound=3.0, budget=budget_for())
    assert found.total.shape == ()
    assert found.total == pytest.approx(np.minimum(np.exp(-DATA["x"]), 3.0).sum(), abs=1e-3)


def test_units_are_summed_before_they_are_clipped():
    records = RNG.integers(10, 60, size=N)
    found = private_sum(lambda x: x, DATA, bound=5.0, budget=budget_for(), records=records)
    sums = np.array([DATA["x"][records == r].sum() for r in np.unique(records)])
    assert found.n_records == len(sums) == 50
    assert found.total == pytest.approx(np.clip(sums, -5, 5).sum(), abs=1e-3)
    counts = private_counts(
        lambda x: x, DATA, edges=[0.0], budget=budget_for(), records=records
    ).counts
    assert counts[0].tolist() == [(sums < 0).sum(), (sums >= 0).sum()]
    # In blocks: a sum of 2**23 units and more in one piece would not be exact.
    many = RecordFunction(lambda x: x, {"x": np.zeros(20_000)}, records=np.arange(20_000) // 2)
    lengths = [len(block) for block in many._vectors()]
    assert sum(lengths) == 10_000 and max(lengths) <= 2**13


# Sensitivity

BAD = np.array([0.0, 1e-300, 1.0, 1e6, 1e200, np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("shape", ["ball", "box"])
@pytest.mark.parametrize("d", [1, 2, 7])
def test_neighbours_change_a_sum_by_the_sensitivity(shape, d):
    """Whole steps, so the norms are exact; the bound is attained, and never exceeded."""
    rng, largest = np.random.default_rng(d), {}
    limit = 1.0 if shape == "ball" else math.sqrt(d)
    far, centre = np.full(d, 1e6), np.zeros(d)
    term = Ball(centre, 2.0) if shape == "ball" else Box(centre, np.full(d, 2.0))
    for trial in range(40):
        data = rng.normal(size=(30, d)) * 10.0 ** rng.uniform(-1, 2)
        other = data.copy()
        data[0], other[0] = rng.choice(BAD, d), rng.normal(size=d) * rng.choice(BAD[:5])
        if trial == 0:
            data[0], other[0] = far, -far
        steps = []
        for rows in (data, other, data[1:]):
            function = RecordFunction(lambda z: z, {"z": rows})
            steps.append(function.total(term).astype(object))  # Python's integers
        for name, (a, b) in {"substitute": (0, 1), "add_remove": (0, 2)}.items():
            change = math.sqrt(sum((steps[a] - steps[b]) ** 2)) * 2.0**term.exponent
            largest[name] = max(largest.get(name, 0.0), change)
    assert limit == term.sensitivity("add_remove") and 2 * limit == term.sensitivity("substitute")
    assert largest["substitute"] <= 2 * limit and largest["add_remove"] <= limit
    assert largest["substitute"] == pytest.approx(2 * limit, rel=1e-8)
    assert largest["add_remove"] == pytest.approx(limit, rel=1e-8)


def test_neighbours_change_counts_by_the_sensitivity():
    rng, largest = np.random.default_rng(5), {1: 0.0, 2: 0.0}
    term = Bins([[0.0], [-1.0, 1.0], [0.5]])
    for _ in range(50):
        rows = rng.normal(size=(20, 3))
        other = rows.copy()
        other[4] = rng.choice(BAD, 3)
        three = rows, other, np.delete(rows, 4, axis=0)
        counts = [RecordFunction(lambda z: z, {"z": r}).total(term) for r in three]
        for factor, k in ((2, 1), (1, 2)):
            largest[factor] = max(largest[factor], np.linalg.norm(counts[0] - counts[k]))
    assert largest == {1: math.sqrt(3), 2: math.sqrt(6)}
    assert (term.sensitivity("add_remove"), term.sensitivity("substitute")) == (*largest.values(),)


@pytest.mark.parametrize(
    ("adjacency", "bound"), [("substitute", 0.5), ("add_remove", [0.5, 0.5, 2.0])]
)
def test_noise_is_that_of_the_claim(adjacency, bound):
    """Claimed noise times sensitivity is the standard deviation of what is added, in 60 releases."""
    rng, errors = np.random.default_rng(7), []
    for _ in range(60):
        data = {"z": rng.normal(size=(10, 3))}
        clipped = (
            np.clip(data["z"], *np.outer([-1, 1], bound))
            if np.ndim(bound)
            else in_ball(data["z"], bound)
        )
        budget = budget_for(1.0, adjacency)
        found = private_sum(lambda z: z, data, bound=bound, budget=budget)
        errors.append((found.total - clipped.sum(axis=0)) / bound)
    ((mechanism, _),) = budget.one_off_accesses["private sum"]
    factor = 2.0 if adjacency == "substitute" else 1.0
    sd = factor * mechanism.noise_sd * (math.sqrt(3) if np.ndim(bound) else 1.0)
    assert found.noise_sd == pytest.approx(sd * np.broadcast_to(bound, 3))
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(sd, rel=4 / math.sqrt(2 * 180))
    drawn = found.draw_noise(20_000, np.random.default_rng(1)) / found.noise_sd
    for column, error in zip(drawn.T, np.array(errors).T / sd, strict=True):
        assert stats.ks_2samp(column, error).pvalue > 1e-4


# Account


@pytest.mark.parametrize("epsilon, delta", [(1.0, 1e-6), (0.5, 0.0)])
def test_all_of_the_budget_is_claimed(epsilon, delta):
    budget = budget_for(epsilon, delta=delta)
    found = private_counts(lambda k: k, DATA, edges=np.arange(0.5, 3), budget=budget)
    (claim,) = budget.ledger.claims(budget.id)
    assert claim.step == "private counts"
    cost = Cost.of(claim.accesses).epsilon(delta, "best")
    assert 0.98 * epsilon < cost <= epsilon and budget.spent() == pytest.approx(cost, rel=0.01)
    assert found.report.epsilon <= epsilon
    with pytest.raises(PrivacyBudgetExhausted, match="Nothing was accessed"):
        private_sum(lambda x: x, DATA, bound=1.0, budget=budget)


def test_nothing_is_accessed_before_the_claim(tmp_path, monkeypatch):
    account = Ledger(tmp_path / "account", epsilon=1.0, delta=1e-6)
    seen = []

    class Watched(RecordFunction):
        def _blocks(self):
            seen.append(len(account.claims()))
            return super()._blocks()

    monkeypatch.setattr(sys.modules["pymc_dp.queries.private_sum"], "RecordFunction", Watched)
    data = {"x": RNG.normal(size=50)}
    first = PrivacyBudget(0.8, 1e-6, chains=1, ledger=account)
    private_sum(lambda x: x, data, bound=1.0, budget=first)
    assert seen == [1]
    too_much = PrivacyBudget(0.8, 1e-6, chains=1, ledger=account)
    with pytest.raises(PrivacyBudgetExhausted):
        private_counts(lambda x: x, data, edges=[0.0], budget=too_much)
    assert seen == [1]


def test_the_number_is_private_under_add_remove():
    found = private_sum(
        lambda x: [x, 1 + 0 * x], DATA, bound=[3.0, 1.0], budget=budget_for(1.0, "add_remove")
    )
    assert found.n_records is None and "total" in str(found)
    with pytest.raises(ValueError, match=r"1 \+ 0 \* x"):
        _ = found.mean
    assert found.total[1] == pytest.approx(N, abs=5 * found.noise_sd[1])


# Refusals


def holding_all_data(x, kind):
    """What a function may capture, and how it hides it: sums of all records reach each row."""
    y, v, state = pt.constant(DATA["x"]), pt.scalar("v"), iter(DATA["x"])
    counter = pytensor.shared(0.0)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        counter.default_update = counter + 1.0
    inner = OpFromGraph([v], [v + y.sum()])
    one = [pt.dscalar]
    return {
        "OpFromGraph": lambda: inner(x),
        "nested": lambda: OpFromGraph([v], [inner(v)])(x),
        "scan": lambda: scan(lambda k: x + (y * k).sum(), sequences=pt.arange(2.0), return_updates=False)[-1],
        "as_op": lambda: wrap_py(one, one)(lambda a: np.array(a + DATA["x"].sum()))(x),
        "memory": lambda: wrap_py(one, one)(lambda a: np.array(next(state)))(x),
        "random": lambda: x + pm.Normal.dist(),
        "zeros": lambda: x + pt.constant(np.zeros(N)).sum(),
        "shared": lambda: x + pytensor.shared(DATA["z"][:2]).sum(),
        "counter": lambda: 0 * x + counter,
    }[kind]()  # fmt: skip


HIDDEN = ("OpFromGraph", "nested", "scan", "as_op", "memory", "random", "zeros", "shared")


@pytest.mark.parametrize("kind", HIDDEN)
@pytest.mark.parametrize("release", [private_sum, private_counts])
def test_line_3_functions_that_hold_other_records_are_refused(kind, release):
    """By the proof for models, before a claim: neighbours' sums were 0 and 50, where 2 was claimed."""
    budget, options = (
        budget_for(1.0),
        {"bound": 1.0} if release is private_sum else {"edges": [0.0]},
    )
    with pytest.raises(UnsupportedModel, match=r"The function (has|holds|draws)"):
        release(lambda x: holding_all_data(x, kind), DATA, budget=budget, **options)
    assert budget.spent() == 0


def test_line_3_a_shared_number_does_not_change_between_blocks():
    function = RecordFunction(lambda x: holding_all_data(x, "counter"), {"x": DATA["x"]})
    assert function.total(Box(np.zeros(1), np.ones(1))) == 0


def test_errors_on_the_data_have_no_words():
    """An index from the data that is out of range: the message would show it."""
    data = {"k": np.array([0, 1, 17])}
    with pytest.raises(ModelError) as error:
        private_sum(
            lambda k, w: w[k], data, bound=1.0, budget=budget_for(1.0), public={"w": np.ones(3)}
        )
    assert "17" not in str(error.value) and "withheld" in str(error.value)
