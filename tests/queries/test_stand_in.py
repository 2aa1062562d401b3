"""Stand-ins from ranges: positions, copulas, what is released, what it costs, and use in a plan of scores."""

import itertools
import math
import warnings

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pymc as pm
import pytest

from scipy import stats

from pymc_dp import DPScore, PrivacyBudget, Simulator, codec, plan, sample
from pymc_dp.errors import PrivacyBudgetExhausted, UnsupportedModel
from pymc_dp.model.record_function import RecordFunction
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.mechanisms import noise_law
from pymc_dp.privacy.mechanisms.mechanism import Adjacency, Gaussian
from pymc_dp.queries import Ranges, private_stand_in
from pymc_dp.queries.copula import (
    Margin,
    bin_edges,
    correlations_of,
    limit_probabilities,
    nearest_probabilities,
    smooth_probabilities,
)
from pymc_dp.queries.stand_in import _products_of, release_stand_in, uniform_stand_in
from pymc_dp.queries.stand_in_design import StandInDesign, design_stand_in
from pymc_dp.scores.releases import PrivateScores

RANGES = Ranges(age=(18, 100), sex=("f", "m"), ill=[0, 1], x=[(-4, 4), [1, 2, 3]])


def made(n, rng, rho=0.6):
    """Dependent columns of all kinds."""
    z = rng.multivariate_normal(np.zeros(5), rho + (1 - rho) * np.eye(5), size=n)
    return {
        "age": 50 + 10 * z[:, 0], "sex": np.where(z[:, 1] > 0.3, "m", "f"), "ill": (z[:, 2] > 1.5).astype(int),
        "x": np.column_stack([z[:, 3], 1 + (z[:, 4] > -0.5) + (z[:, 4] > 0.5)]),
    }  # fmt: skip


# Ranges


def test_positions():
    data = {
        "age": [18.0, 100.0, 59.0, 1e9, math.nan], "sex": np.array(["f", "m", "f", "other", "f"]), "ill": [0, 1, 0, 1, 7],
        "x": np.array([[0.0, 3], [-4, 2], [4, 1], [-9, 0], [math.nan, math.nan]]),
    }  # fmt: skip
    found = RANGES.places(data)
    assert found[:, 0].tolist() == [0, 1, 0.5, 1, 1]
    assert found[:, 1].tolist() == [0, 1, 0, 1, 0] and found[:, 2].tolist() == [0, 1, 0, 1, 1]
    assert found[:, 3].tolist() == [0.5, 0, 1, 0, 1] and found[:, 4].tolist() == [2, 1, 0, 2, 2]
    data["x"] = data["x"].tolist()
    assert np.array_equal(RANGES.places(data), found)
    rows = RANGES.rows(found[:3])
    assert rows["age"].tolist() == [18, 100, 59] and rows["sex"].tolist() == ["f", "m", "f"]
    assert rows["x"].tolist() == data["x"][:3]


#: Values that are neither in the range from 0 to 10, nor one of the categories.
HOSTILE = [
    None, math.nan, pd.NA, pd.NaT, np.datetime64("NaT", "ns"), "0", "", b"0", [0], [], (0,), {}, np.zeros(1), np.zeros((2, 2)), np.array("0"), 1j,
    pd.Timestamp(0), object(), Decimal("NaN"), Decimal("sNaN"), 10**400, math.inf, Decimal("1e999"), Fraction(10**400), np.longdouble("1e4000"), 11,
]  # fmt: skip


@pytest.mark.parametrize("container", [list, tuple, pd.Series, "array"])
@pytest.mark.parametrize("given", [(0, 10), [0, 1, 2], ("f", "m", "other")])
def test_line_6_one_record_of_any_kind_is_the_last_category(given, container):
    """No entry raises or warns, and none changes the positions of others."""
    good = ["f", "m", "other"] if isinstance(given[0], str) else [0, True, 2.0]
    others = Ranges(x=given).places({"x": good})[:, 0]
    for value in HOSTILE:
        values = np.empty(4, dtype=object)
        values[:3] = good
        values[3] = value
        data = {"x": values if container == "array" else container(list(values))}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = Ranges(x=given).places(data)[:, 0]
        assert np.array_equal(found[:3], others) and found[3] == (
            2 if isinstance(given, list) or len(given) == 3 else 1
        )


def test_ranges_in_a_file():
    again = codec.loads(codec.dumps(RANGES))
    assert again.columns == RANGES.columns and list(again) == list(RANGES)


@pytest.mark.parametrize(
    "given", [(3, 1), (0, math.inf), ("a",), [1, 1], "text", 5, [(0, 1), 5], (1, 2, 3)]
)
def test_what_is_no_range(given):
    with pytest.raises(ValueError, match="must be a range"):
        Ranges(x=given)


def test_data_that_do_not_fit():
    for data, match in (
        ({"x": np.zeros(3)}, "do not have"),
        ({"age": np.zeros((3, 2))}, "1 column"),
        ({"age": np.array(["a"])}, "not numbers"),
    ):
        with pytest.raises(ValueError, match=match):
            Ranges(age=(0, 1)).places(data)


# Laws


@pytest.mark.parametrize("is_category", [True, False])
def test_margins(is_category):
    """Positions have the law; scores are centred ranks of a continuous law, with mean 0 and variance 1."""
    p = np.array([0.1, 0.0, 0.5, 0.4])
    margin, z = Margin(p, is_category), np.random.default_rng(1).normal(size=40_000)
    places = margin.places(z)
    bins = places.astype(int) if is_category else (4 * places).astype(int)
    error = 4 * np.sqrt(p * (1 - p) / len(z))
    assert np.all(np.abs(np.bincount(bins, minlength=4) / len(z) - p) <= error)
    scores = margin.scores(places)
    assert scores.mean() == pytest.approx(0, abs=4 / math.sqrt(len(z)))
    variance = 1 - (p**3).sum() if is_category else 1  # of middle ranks
    assert scores.var() == pytest.approx(variance, abs=0.03)
    assert np.abs(scores).max() <= math.sqrt(3)


def test_margin_with_limits():
    """Positions at a limit are exactly there; their scores are middle ranks."""
    p = np.array([0.3, 0.1, 0.0, 0.1, 0.3, 0.2])
    margin, z = Margin(p, False, has_limits=True), np.random.default_rng(1).normal(size=40_000)
    places = margin.places(z)
    shares = np.mean(places == 0), *(np.histogram(places[(places > 0) & (places < 1)], 4, (0, 1))[0] / len(z)), np.mean(places == 1)  # fmt: skip
    error = 4 * np.sqrt(p * (1 - p) / len(z))
    assert np.all(np.abs(shares - p) <= error)
    np.testing.assert_array_equal(np.bincount(margin.bins_of(places)) / len(z), shares)
    scores = margin.scores(places)
    assert scores.mean() == pytest.approx(0, abs=4 / math.sqrt(len(z)))
    assert scores.var() == pytest.approx(1 - 0.3**3 - 0.2**3, abs=0.03)
    assert set(scores[places == 0]) == {math.sqrt(12) * (0.15 - 0.5)}
    assert set(scores[places == 1]) == {math.sqrt(12) * (0.9 - 0.5)} == {margin.largest_score}
    ranks = np.linspace(0.01, 0.99, 99)
    smooth = margin.smooth_places(ranks)
    assert np.all((smooth == 0) == (ranks <= 0.3)) and np.all((smooth == 1) == (ranks >= 0.8))
    without = Margin(np.array([0.0, 0.5, 0.5, 0.0]), False, has_limits=True)
    np.testing.assert_allclose(without.places(z), Margin(np.ones(2), False).places(z))


def test_bins_that_are_counted_are_those_of_the_margin():
    """With the smallest and the largest position that are not at a limit."""
    places = np.array([0.0, np.nextafter(0, 1), 0.001, 0.25, 0.6, 0.999, np.nextafter(1, 0), 1.0])
    counted = np.searchsorted(bin_edges(0, 4), places, side="right")
    assert counted.tolist() == [0, 1, 1, 2, 3, 4, 4, 5]
    assert counted.tolist() == Margin(np.ones(6), False, has_limits=True).bins_of(places).tolist()
    assert np.searchsorted(bin_edges(3, 4), [0, 1, 2], side="right").tolist() == [0, 1, 2]


def test_the_probabilities_of_limits():
    """Those of many records are kept, up to the noise; those of few and of noise are zero."""
    rng = np.random.default_rng(3)
    counts = np.array([900.0, 100, 120, 140, 140, 120, 100, 80, 80, 20])
    found = [limit_probabilities(counts + 20 * rng.standard_normal(10), 1800, 20.0) for _ in range(50)]  # fmt: skip
    found = np.array(found)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert (found[:, 0] - 0.5).std() == pytest.approx(20 / 1800, rel=0.4)
    assert np.mean(found[:, -1] == 0) > 0.9
    between = found[:, 1:-1] / found[:, 1:-1].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(between.mean(axis=0), counts[1:-1] / 880, atol=0.02)
    alone = limit_probabilities(np.array([500.0, 10, -20, 5, 0, 480]), 1000, 20.0)
    assert alone[[0, -1]].sum() > 0.95 and (alone >= 0).all()


def test_the_nearest_probabilities():
    assert nearest_probabilities(np.array([0.5, 0.7]), 0.0) == pytest.approx([0.4, 0.6])
    found = nearest_probabilities(np.array([0.9, -0.3, 0.2]), 0.0)
    assert found == pytest.approx([0.85, 0, 0.15])
    assert nearest_probabilities(np.array([1.2, -0.3]), 0.1)[1] > 0.04  # a category exists


@pytest.mark.parametrize("rho", [-0.7, 0.0, 0.8])
def test_correlations_are_those_with_which_products_agree(rho):
    """Without noise: of a Gaussian copula with a continuous, a skewed and a binary column."""
    margins = [
        Margin(np.full(8, 1 / 8), False),
        Margin(np.array([0.7, 0.2, 0.1]), False),
        Margin(np.array([0.9, 0.1]), True),
    ]
    law = np.array([[1, rho, 0.5 * rho], [rho, 1, 0.5 * rho], [0.5 * rho, 0.5 * rho, 1]])
    z = np.random.default_rng(2).multivariate_normal(np.zeros(3), law, size=200_000)
    scores = [m.scores(m.places(c)) for m, c in zip(margins, z.T, strict=True)]
    means = np.array([np.mean(scores[j] * scores[k]) for j, k in ((0, 1), (0, 2), (1, 2))])
    assert correlations_of(margins, means, 0.0) == pytest.approx(law, abs=0.04)
    shrunk = correlations_of(margins, means, 10.0)
    assert np.abs(shrunk - np.eye(3)).max() < 0.01


# Release


@pytest.mark.parametrize(
    "n_columns, adjacency",
    [(2, Adjacency.SUBSTITUTE), (4, Adjacency.SUBSTITUTE), (4, Adjacency.ADD_REMOVE)],
)
def test_neighbours_change_both_sums_by_their_sensitivity(adjacency, n_columns, monkeypatch):
    """As whole numbers, for the worst records: all columns at their ends, half of them at the other end."""
    rng, sums = np.random.default_rng(4), []

    def add(self, steps, exponent, bits):
        sums.append((steps * 2.0**exponent, self))
        # So the scores are the same for all.
        return np.full(len(steps), 500.0) if len(sums) % 2 else np.zeros(len(steps))

    monkeypatch.setattr(noise_law.NoiseLaw, "add", add)
    ranges = Ranges(x=[(0, 1)] * n_columns)
    design = StandInDesign(2, Gaussian(3.0), Gaussian(5.0))
    places = rng.random((300, n_columns))
    others = [np.zeros(n_columns), np.ones(n_columns), np.arange(n_columns) % 2.0]
    for row in others:
        neighbour = np.vstack([row, places[1:]])
        release_stand_in(neighbour, ranges, design, adjacency, 10)
    release_stand_in(places[1:], ranges, design, adjacency, 10)
    is_replaced = adjacency is Adjacency.SUBSTITUTE
    pairs = [(0, 1), (0, 2), (1, 2)] if is_replaced else [(0, 3), (1, 3), (2, 3)]
    for which, mechanism in ((0, design.counts), (1, design.products)):
        values = [sums[2 * k + which][0] for k in range(4)]
        law = sums[which][1]
        largest = max(np.linalg.norm(values[a] - values[b]) for a, b in pairs)
        claimed = law.scale / mechanism.noise_multiplier
        assert largest <= claimed * (1 + 1e-12)
        if which == 1 or is_replaced:  # counts are claimed as if a record were in two bins
            assert largest == pytest.approx(claimed, rel=1e-5)


def test_no_neighbours_change_the_products_by_more():
    """Scores of columns with different largest values; those that change them most are found by search."""
    rng, largest = np.random.default_rng(5), np.array([1.7, 1.5, 0.4, 1.0, 1.6])
    signs = np.array(list(itertools.product([-1, 1], repeat=5)))
    corners = np.vstack([signs, signs * rng.random((32, 5))]) * largest
    j, k = np.triu_indices(5, 1)
    products = corners[:, j] * corners[:, k]
    found = np.linalg.norm(products[:, None] - products, axis=2).max()
    term = _products_of(largest)
    radius, sensitivity = term.bound, term.bound * term.sensitivity("substitute")
    assert 0.97 * sensitivity < found <= sensitivity < 2 * radius
    norms = np.linalg.norm(products, axis=1)
    assert norms.max() == pytest.approx(radius)
    assert term.sensitivity("add_remove") == 1.0


@pytest.mark.parametrize("is_joint", [True, False])
def test_law_of_the_data_is_found(is_joint):
    """With little noise: marginal laws, rank correlations of all pairs."""
    data = made(20_000, np.random.default_rng(5))
    budget = PrivacyBudget(20.0, 1e-6, chains=1)
    if is_joint:
        found = private_stand_in(data, RANGES, budget=budget, n_rows=20_000, random_seed=6)
    else:
        places, design = RANGES.places(data), StandInDesign(16, Gaussian(0.3), Gaussian(0.3))
        found = release_stand_in(places, RANGES, design, Adjacency.SUBSTITUTE, 20_000, 6)
    assert (found.cells is not None) == is_joint
    for name in ("age", "ill"):
        assert found.rows[name].mean() == pytest.approx(data[name].mean(), abs=0.05 * np.std(data[name]))  # fmt: skip
    assert np.mean(found.rows["sex"] == "m") == pytest.approx(np.mean(data["sex"] == "m"), abs=0.01)
    columns = [RANGES.places(d) for d in (data, found.rows)]
    ours, theirs = (stats.spearmanr(c).statistic for c in columns)
    assert ours == pytest.approx(theirs, abs=0.05)
    assert len(found.draw(7)["x"]) == 7 and "age" in str(found)


def test_rows_follow_from_what_is_public():
    data = made(2000, np.random.default_rng(7))
    budget = PrivacyBudget(2.0, 1e-6, chains=1)
    found = private_stand_in(data, RANGES, budget=budget, random_seed=3)
    again = codec.loads(codec.dumps(found))
    assert all(np.array_equal(again.rows[name], found.rows[name]) for name in RANGES)
    assert found.report.epsilon <= 2.0


@pytest.mark.parametrize("epsilon, delta", [(1.0, 1e-6), (1.0, 0.0)])
def test_it_costs_the_budget(epsilon, delta):
    data = {"age": np.random.default_rng(8).normal(50, 10, size=4000), "ill": np.ones(4000, int)}
    ranges, budget = Ranges(age=(18, 100), ill=[0, 1]), PrivacyBudget(epsilon, delta, chains=1)
    private_stand_in(data, ranges, budget=budget)
    (claim,) = budget.ledger.claims(budget.id)
    cost = Cost.of(claim.accesses).epsilon(delta, "best")
    assert 0.99 * epsilon < cost <= epsilon
    with pytest.raises(PrivacyBudgetExhausted, match="Nothing was accessed"):
        private_stand_in(data, ranges, budget=budget)


def test_a_share_is_a_part_of_the_squared_mu():
    """Of combinations, and of one column by one."""
    budget = PrivacyBudget(1.0, 1e-6, chains=1)
    for n_columns, n_bins in ((2, [4, 6, 16]), (7, [2, 16, 16])):
        ranges = Ranges(a=[(0, 1)] * n_columns)
        whole, part = (design_stand_in(ranges, budget, 1000, share) for share in (1.0, 0.05))
        squares = [sum(m.gaussian_mu**2 for m, _ in d.accesses) for d in (whole, part)]
        assert squares[1] == pytest.approx(0.05 * squares[0])
        found = [design_stand_in(ranges, budget, n, 0.05).n_bins for n in (200, 2500, 10**5)]
        assert found == n_bins


def test_refused_before_anything_is_claimed():
    data, budget = {"age": np.zeros(10)}, PrivacyBudget(1.0, 0.01, chains=1, adjacency="add_remove")
    with pytest.raises(ValueError, match="public guess"):
        private_stand_in(data, Ranges(age=(0, 1)), budget=budget)
    with pytest.raises(ValueError, match="do not have"):
        private_stand_in(data, Ranges(sex=[0, 1]), budget=budget, n_records=10)
    assert budget.spent() == 0


# In a plan of scores


def regression(n, rng, observed=None):
    z = rng.multivariate_normal(np.zeros(2), 0.7 + 0.3 * np.eye(2), size=n)
    ill = (z[:, 1] > 1).astype(int)
    y = (rng.random(n) < 1 / (1 + np.exp(-0.3 - 0.5 * z[:, 0] + 0.5 * ill))).astype(int)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1.5, shape=3)
        eta = b[0] + b[1] * pm.Data("x", z[:, 0]) + b[2] * pm.Data("ill", ill)
        pm.Bernoulli("y", logit_p=eta, observed=y if observed is None else observed)
    return model


COVARIATES = Ranges(x=(-4, 4), ill=[0, 1])


@pytest.mark.slow
def test_one_call_within_one_epsilon():
    """The stand-in is claimed first and is part of the plan; draws have its rows, and go on from a file."""
    model = regression(3000, np.random.default_rng(9))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = sample(
            epsilon=2.0, delta=1e-6, model=model, covariates=COVARIATES, draws=400, chains=2,
            random_seed=1, progressbar=False,
        )  # fmt: skip
    scores = PrivateScores.of(idata)
    assert str(scores.reports[0]).index("stand-in  ") < str(scores.reports[0]).index("scores  ")
    assert scores.reports[0].epsilon <= 2.0 and scores.moments is None  # combinations need none
    assert (
        scores.stand_in is not None
        and scores.stand_in.cells is not None
        and "made from their ranges" in str(idata.attrs)
    )
    rows = scores.stand_in.rows
    assert np.corrcoef(rows["x"], rows["ill"])[0, 1] > 0.2
    mean = idata.posterior["b"].mean(("chain", "draw")).values
    assert mean == pytest.approx([0.3, 0.5, -0.5], abs=0.6)
    with pm.Model() as other:  # without data, with another prior
        b = pm.Normal("b", 0, 3.0, shape=3)
        eta = b[0] + b[1] * pm.Data("x", rows["x"]) + b[2] * pm.Data("ill", rows["ill"])
        pm.Bernoulli("y", logit_p=eta, observed=np.zeros(3000, int))
    step = DPScore(scores, covariates="public", model=other)
    draws = np.array([step.step({})[0]["b"] for _ in range(400)])
    assert draws.mean(axis=0) == pytest.approx(mean, abs=0.3)
    for model_rows, words in (
        (rows["x"], "made from their ranges"),
        (rows["x"][::-1], "covariates of the model are public"),
    ):
        other["x"].set_value(model_rows)
        step = DPScore(scores, covariates="public", model=other)
        assert (step.simulator.simulated.error is not None) == ("ranges" in words)  # its errors
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = sample(step=step, draws=20, chains=1, progressbar=False)
        assert words in again.attrs["privacy_report"]


@pytest.mark.parametrize(
    "change, error, match",
    [
        ({"covariates": Ranges(z=(0, 1))}, ValueError, "pm.Data are x, ill"),
        ({"covariates": Ranges(x=(-4, 4))}, ValueError, "ill"),
        ({"covariates": COVARIATES, "records": np.arange(40)}, ValueError, "single rows"),
        ({"covariates": COVARIATES, "adjacency": "add_remove"}, ValueError, "private_stand_in"),
    ],
)
def test_refused_plans(change, error, match):
    model = regression(40, np.random.default_rng(1))
    with pytest.raises((error, UnsupportedModel), match=match):
        plan(epsilon=1.0, delta=1e-3, model=model, **change)


def test_line_9_a_release_that_spends_everything_and_raises():
    """One range at delta = 0: the stand-in and the start left 4e-10 of epsilon to the main sum, of which noise was 2**62 steps."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, size=1000)
    with pm.Model():
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
        y = (rng.random(1000) < 1 / (1 + np.exp(-x))).astype(int)
        pm.Bernoulli("y", logit_p=a + b * pm.Data("x", x), observed=y)
        found = plan(epsilon=1.0, delta=0, covariates=Ranges(x=(-1, 1)), random_seed=1)
    assert found.design.main.epsilon >= 0.1
    poor = replace(found.design, main=replace(found.design.main, epsilon=4e-10))
    with pytest.raises(ValueError, match=r"too much for sums.*Nothing was accessed"):
        replace(found, design=poor)
    poor = replace(found.design, main=replace(found.design.main, epsilon=0.05))
    with pytest.raises(ValueError, match=r"would get epsilon = 0\.05 of 1.*Nothing was accessed"):
        replace(found, design=poor)
    assert found.budget.spent() == 0
    assert np.isfinite(found.release(progressbar=False).releases[-1].total).all()
    assert 0.99 < found.budget.spent() <= 1


def test_a_made_up_simulator_has_no_private_row():
    model = regression(60, np.random.default_rng(1))
    simulator = Simulator(model, covariates=COVARIATES)
    made_up = {v.name: v.get_value() for v in simulator.covariates.data_vars}
    wanted = uniform_stand_in(COVARIATES, 60).rows
    assert all(np.array_equal(made_up[name], wanted[name]) for name in COVARIATES)
    assert RecordFunction(lambda x: x, {"x": model["x"].get_value()}).n_records == 60


def test_parameters_of_simulated_records_have_the_order_of_the_model():
    """pm.do changes the order of the variables; log-likelihoods and scores are those of the named parameters."""
    rng = np.random.default_rng(4)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        x = pm.Data("x", rng.normal(size=50))
        tau = pm.Normal("tau")  # a parameter alone, before and after others
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("z", tau, sigma, observed=rng.normal(size=50))
        pm.Normal("y", b[0] + b[1] * x, sigma, observed=rng.normal(size=50))
    simulator = Simulator(model, covariates=Ranges(x=(-4, 4)))
    simulator = simulator.standing_in(uniform_stand_in(Ranges(x=(-4, 4)), 50))
    theta = simulator.likelihood.ravel({"b": [3.0, -2.0], "tau": 5.0, "sigma_log__": -1.0})
    z, y = simulator.simulated.draw(theta, rng)
    rows = simulator.covariates["x"].get_value()
    assert np.std(z - 5) == pytest.approx(np.exp(-1), rel=0.5)
    assert np.std(y - 3 + 2 * rows) == pytest.approx(np.exp(-1), rel=0.5)
    wanted = stats.norm.logpdf(z, 5, np.exp(-1)) + stats.norm.logpdf(y, 3 - 2 * rows, np.exp(-1))
    np.testing.assert_allclose(simulator.simulated.logp(theta, [z, y]), wanted)


@pytest.mark.parametrize("law", [stats.norm(0.5, 1), stats.expon(-4, 2), stats.uniform(-4, 8)])
def test_smooth_counts_are_nearer_to_the_data(law):
    """On average over noise; those without noise are kept, and so is a spike."""
    edges, rng = np.linspace(-4, 4, 17), np.random.default_rng(5)
    counts = np.histogram(law.rvs(3000, random_state=rng).clip(-4, 4), edges)[0].astype(float)
    errors = []
    for _ in range(20):
        noisy = counts + 60 * rng.standard_normal(16)
        found = smooth_probabilities(noisy, 3000, 60.0), nearest_probabilities(noisy / 3000, 0.0)
        errors.append([np.abs(p - counts / 3000).sum() for p in found])
    smooth, nearest = np.mean(errors, axis=0)
    assert smooth < 0.9 * nearest  # 0.38 to 0.83 with ten other seeds
    np.testing.assert_allclose(smooth_probabilities(counts, 3000, 1.0), counts / 3000, atol=0.005)
    counts[3] += 3000
    spike = smooth_probabilities(counts, 6000, 20.0)
    assert spike[3] == pytest.approx(counts[3] / 6000, abs=0.03)
    assert spike.sum() == pytest.approx(1) and (spike >= 0).all()
