"""Private posterior predictive checks: sensitivity by neighbours, noise, order of claim and access, refusals, p-values."""

import json
import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from scipy import stats

from pymc_dp import Simulator
from pymc_dp.checks import GroupMeans, predictive_check, private_ppc
from pymc_dp.checks.predictive_check import _joined, p_value_of
from pymc_dp.checks.predictive_law import replicated_sums
from pymc_dp.checks.statistics_of_records import NAMED, Block, block_of, block_of_function
from pymc_dp.errors import ModelError, PrivacyBudgetExhausted, UnsupportedModel
from pymc_dp.model.record_function import Box, RecordFunction
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.score_step import DPScore
from tests.terms import score_release

N = 300
RNG = np.random.default_rng(4)
SIMULATED = {
    "y": RNG.poisson(2.0, size=2000),
    "prediction": RNG.normal(2, 1, size=2000),
    "g": RNG.integers(0, 3, size=2000),
}
VALUES = [0, 1, 2, 3, 100, -100, 0.3, np.nan, np.inf, -np.inf, *RNG.normal(2, 2, size=20)]


def budget_of(epsilon=1.0, adjacency="substitute"):
    return PrivacyBudget(epsilon, 1e-6, chains=1, adjacency=adjacency)


def all_blocks():
    named = [block_of(name, name, "y", SIMULATED) for name in NAMED]
    values = np.stack([SIMULATED["y"], SIMULATED["y"] * SIMULATED["prediction"]], axis=1)
    own = block_of_function("own", lambda y, prediction: [y, y * prediction], ["y", "prediction"], values)  # fmt: skip
    return [*named, block_of("groups", GroupMeans("g", [0, 1, 2]), "y", SIMULATED), own]


def steps_of(blocks, adjacency, rows):
    """Exact sum of each record, as whole numbers of grid steps."""
    sizes = [b.diameter if adjacency == "substitute" else b.length for b in blocks]
    names = sorted({name for b in blocks for name in b.columns})
    table = {
        name: np.array(x, float)
        for name, x in zip(("y", "prediction", "g"), zip(*rows, strict=True), strict=True)
    }
    of = RecordFunction(_joined(blocks, sizes), {name: table[name] for name in names})
    found = []
    for i in range(len(rows)):
        of._columns = [table[name][i : i + 1] for name in names]
        found.append(of.total(Box(np.zeros(of.n_dim), np.ones(of.n_dim))))
    return found


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_neighbours_change_each_statistic_by_at_most_one(adjacency):
    """All pairs of single records, exact; the largest change is attained."""
    rng, unit = np.random.default_rng(5), 2**30
    rows = [(y, rng.choice([-50.0, 2.0, 2.5, 60.0]), rng.integers(0, 4)) for y in VALUES]
    rows += [(100, 2.0, 1), (-100, 2.0, 1), (100, 60.0, 1), (-100, 60.0, 1), (100, -60.0, 1)]
    for block in all_blocks():
        steps = steps_of([block], adjacency, rows)
        changes = [
            sum(int(x) ** 2 for x in (a - b if adjacency == "substitute" else a))
            for a in steps
            for b in steps
        ]
        assert max(changes) <= unit**2, block.name
        if block.name != "own":
            assert math.sqrt(max(changes)) > 0.999 * unit, block.name


def test_a_wrong_diameter_is_found():
    block = block_of("mean", "mean", "y", SIMULATED)
    wrong = Block(**vars(block) | {"diameter": 1.9})
    steps = steps_of([wrong], "substitute", [(100, 0, 0), (-100, 0, 0)])
    assert abs(int(steps[0][0]) - int(steps[1][0])) > 2**30


# One model for all


@pytest.fixture(scope="module")
def simulator():
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        mu, log_sigma = pm.Normal("mu", 0, 0.3), pm.Normal("log_sigma", 0, 0.2)
        pm.Normal("y", mu, pm.math.exp(log_sigma), observed=rng.normal(size=N))
    return Simulator(model)


@pytest.fixture(scope="module")
def scores(simulator):
    return scores_of(simulator, np.array([3.0, -2.0]))


def scores_of(simulator, total, scale=4.0, adjacency="substitute"):
    theta = simulator.position()
    release = score_release(theta, np.eye(2), 3.0, "gaussian", scale, total)
    shapes = {name: () for name in simulator.likelihood.unravel(theta)}
    report = budget_of(1.0, adjacency).report()
    return PrivateScores((release,), shapes, N, adjacency, (report,))


def check(scores, simulator, budget, **kwargs):
    kwargs = {"statistics": ["mean", "variance", "bins"], "n_replicates": 40} | kwargs
    return private_ppc(scores, simulator=simulator, budget=budget, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_the_noise_is_that_of_the_claim(simulator, adjacency):
    """Sensitivity is the root of the number of statistics; released values are without bias."""
    budget = budget_of(1.0, adjacency)
    if adjacency == "add_remove":
        simulator = Simulator(simulator.model, covariates="public")
    ppc = check(scores_of(simulator, np.zeros(2), adjacency=adjacency), simulator, budget)
    ((mechanism, count),) = budget.one_off_accesses["private ppc"]
    assert count == 1
    least = NoiseLaw.of(mechanism, math.sqrt(3), ppc.noise.n_dim)
    assert ppc.noise.kind == least.kind and ppc.noise.n_dim == least.n_dim
    assert least.scale <= ppc.noise.scale < least.scale * (1 + 1e-8)
    assert budget.spent() == pytest.approx(1.0, rel=1e-3)
    y = simulator.model.rvs_to_values[simulator.model["y"]].data
    assert abs(ppc["mean"].value[0] - y.mean()) < 6 * ppc["mean"].noise_sd[0]
    counts = ppc["bins"]
    assert abs(counts.value.sum() - N) < 6 * counts.noise_sd[0] * math.sqrt(len(counts.value))
    size = math.sqrt(2) if adjacency == "substitute" else 1.0
    assert counts.noise_sd.mean() == pytest.approx(size * ppc.noise.sd, rel=0.2)


def test_line_12_the_allowance_covers_all_coordinates(simulator, scores, monkeypatch):
    """Vectors at a distance of 1, of which each coordinate is truncated: 7 grid steps further apart with 47 coordinates."""
    d, laws, real = 47, [], NoiseLaw.of
    monkeypatch.setattr(NoiseLaw, "of", lambda *a: laws.append(a[1]) or real(*a))
    check(scores, simulator, budget_of(), statistics={"own": lambda y: [y * k for k in range(1, d + 1)]})  # fmt: skip
    one = np.full((1, d), 0.75)
    rows = one, one - 1 / math.sqrt(d)
    term = Box(np.zeros(d), np.ones(d))
    steps = [RecordFunction(lambda z: z, {"z": z}).total(term) for z in rows]
    change = math.sqrt(sum(int(x) ** 2 for x in steps[0] - steps[1])) * 2.0**-30
    assert 1 + 2.0**-30 < change <= laws[-1]


@pytest.mark.slow
def test_without_protection_the_statistics_are_those_of_the_data(simulator, scores):
    ppc = check(scores, simulator, budget_of(math.inf), statistics={"own": lambda y: [y > 0, y**2], "m": "mean", "v": "variance", "b": "bins"})  # fmt: skip
    y = simulator.model.rvs_to_values[simulator.model["y"]].data
    assert ppc["own"].value[0] == pytest.approx(np.mean(y > 0), abs=1e-4)
    assert ppc["m"].value[0] == pytest.approx(y.mean(), abs=0.02)
    assert ppc["v"].value[0] == pytest.approx(y.var(), rel=0.05)
    assert ppc["b"].value.sum() == pytest.approx(N, abs=1e-2)
    assert json.loads(json.dumps(ppc.to_dict()))["m"]["p_value"] == ppc["m"].p_value
    assert "variance" not in str(ppc) and "own" in str(ppc)
    with pytest.raises(KeyError, match="none of own"):
        ppc["other"]


def test_nothing_is_accessed_before_the_claim(simulator, scores, monkeypatch):
    """If the ledger refuses, no sum was computed; the refusal names no value."""
    accessed = []
    real = RecordFunction.total
    monkeypatch.setattr(RecordFunction, "total", lambda *a: accessed.append(1) or real(*a))

    def refused(*args, **more):
        raise PrivacyBudgetExhausted("no")

    monkeypatch.setattr(PrivacyBudget, "spend", refused)
    with pytest.raises(PrivacyBudgetExhausted):
        check(scores, simulator, budget_of())
    assert not accessed


@pytest.mark.slow
def test_the_design_does_not_depend_on_the_data(simulator, scores, monkeypatch):
    """Bounds and bins are the same for other data: only the claim comes before the access."""
    found = []
    real = predictive_check._blocks
    monkeypatch.setattr(predictive_check, "_blocks", lambda *a: found.append(real(*a)) or found[-1])
    with pm.Model() as other:
        mu, log_sigma = pm.Normal("mu", 0, 0.3), pm.Normal("log_sigma", 0, 0.2)
        pm.Normal("y", mu, pm.math.exp(log_sigma), observed=np.full(N, 1e6))
    for s in (simulator, Simulator(other)):
        check(scores, s, budget_of(), random_seed=3)
    assert [b.labels for b in found[0]] == [b.labels for b in found[1]]


@pytest.mark.slow
def test_refusals(simulator, scores):
    y = np.zeros(N)
    used = budget_of()
    used.spend("other", ((budget_noise(), 1),), (), N)
    with pytest.raises(PrivacyBudgetExhausted, match="used already"):
        check(scores, simulator, used)
    fresh = budget_of()
    cases = [
        ({"statistics": "mean"}, TypeError, "list of names"),
        ({"statistics": []}, ValueError, "at least one"),
        ({"statistics": ["mean", "mean"]}, ValueError, "different"),
        ({"statistics": ["median"]}, ValueError, "got 'median'"),
        ({"statistics": ["rootogram"]}, ValueError, "counts"),
        ({"statistics": ["residuals"]}, ValueError, "prediction"),
        ({"statistics": [GroupMeans("g", [0])]}, ValueError, "no pm.Data"),
        ({"statistics": {"own": lambda y: (y * y_outside(y)).sum()}}, UnsupportedModel, "array"),
        ({"n_replicates": 5}, ValueError, "n_replicates"),
    ]
    for kwargs, error, match in cases:
        with pytest.raises(error, match=match):
            check(scores, simulator, fresh, **kwargs)
    with pytest.raises(ValueError, match="must agree"):
        check(scores, simulator, budget_of(1.0, "add_remove"))
    with pm.Model() as longer:
        mu, log_sigma = pm.Normal("mu"), pm.Normal("log_sigma")
        pm.Normal("y", mu, pm.math.exp(log_sigma), observed=np.append(y, 1.0))
    with pytest.raises(ValueError, match="301"):
        check(scores, Simulator(longer), fresh)
    with pytest.raises(TypeError, match="PrivacyBudget"):
        check(scores, simulator, 1.0)
    assert not fresh.one_off_accesses


def budget_noise():
    from pymc_dp.privacy import Gaussian

    return Gaussian(100.0)


def y_outside(y):
    return np.arange(5.0)


def test_p_values_are_those_of_ranks():
    rows = np.arange(100.0)[:, None]
    assert p_value_of(rows, False) == pytest.approx(0.02)
    rng = np.random.default_rng(1)
    found = [p_value_of(rng.normal(size=(100, 4)), True) for _ in range(300)]
    assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_the_law_given_the_scores(simulator):
    """If the statistic is the sum of features itself, and the scores are exact, replicates are the scores."""
    scores = scores_of(simulator, np.array([12.0, -9.0]), scale=3.0)
    step = DPScore(scores, simulator=simulator)
    rng = np.random.default_rng(3)
    states = step.states(1)
    given = replicated_sums(step, states, step.target.features.of, 200, rng)
    naive = replicated_sums(step, states, step.target.features.of, 200, rng, given_scores=False)
    residual = scores.releases[0].total - given
    assert (np.abs(residual) < 15).all()  # five standard deviations of the noise
    assert (naive.std(axis=0) > 2 * given.std(axis=0)).all()


@pytest.mark.slow
def test_errors_on_the_data_have_no_words(scores):
    """An index from the data that is out of range: the message would show it. The claim stays."""
    with pm.Model() as model:
        mu, log_sigma = pm.Normal("mu", 0, 0.3), pm.Normal("log_sigma", 0, 0.2)
        pm.Normal("y", mu, pm.math.exp(log_sigma), observed=np.append(np.zeros(N - 1), 17171.0))
    budget = budget_of()

    def looked_up(y):
        return pt.arange(60)[pt.abs(y).astype("int64")]

    with pytest.raises(ModelError) as error:
        check(scores, Simulator(model), budget, statistics={"own": looked_up})
    assert "17171" not in str(error.value) and error.value.__cause__ is None
    assert "private ppc" in budget.one_off_accesses
