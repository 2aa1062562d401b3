"""Comparison of two models: values, sensitivities, noise, accounts, clip bound, refusals, words."""

import math
import sys

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from scipy import stats

from pymc_dp import PrivacyBudget, Simulator
from pymc_dp.comparison import ClipForecast, PrivateComparison, private_compare
from pymc_dp.comparison.difference_clipping import simulated_differences
from pymc_dp.errors import PrivacyBudgetExhausted, PrivacyLeakWarning, UnsupportedModel
from pymc_dp.model import RecordLikelihood, predictive_densities
from pymc_dp.model.graphs.row_subsets import Blocked
from pymc_dp.model.predictive_densities import (
    Differences,
    PredictiveDensities,
    log_predictive,
    positions,
)
from pymc_dp.model.sums import batch_likelihood
from pymc_dp.model.sums.exact_sums import GRID_BITS, sums_with_squares
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.accounting.noise_choice import least_noise
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.privacy.mechanisms.mechanism import Gaussian
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw

# The posteriors of these tests are made up, and carry no privacy report.
pytestmark = pytest.mark.filterwarnings("ignore:The posterior:pymc_dp.errors.PrivacyLeakWarning")

N = 200
Y = np.random.default_rng(3).normal(0.2, 1.0, size=N)
UNIT = 2**GRID_BITS


def normal(y, name="y"):
    """Unknown mean, known standard deviation."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal(name, mu, 1, observed=y)
    return model


def scaled(y):
    """Unknown standard deviation, known mean."""
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 5)
        pm.Normal("y", 0, sigma, observed=y)
    return model


def made_up(**draws):
    """A posterior of four chains."""
    arrays = {n: (("chain", "draw"), np.reshape(x, (4, -1))) for n, x in draws.items()}
    return {"posterior": xr.Dataset(arrays)}


MU = np.random.default_rng(4).normal(0.2, 0.1, size=80)
SIGMA = np.random.default_rng(5).uniform(0.9, 1.2, size=80)
RELEASED = {"a": made_up(mu=MU), "b": made_up(sigma=SIGMA)}


def models_of(y, first=normal, second=scaled):
    return {"a": first(y), "b": second(y)}


@pytest.fixture(scope="module")
def simulators():
    """Compiled once."""
    return {name: Simulator(model) for name, model in models_of(Y).items()}


def budget_for(epsilon=math.inf, adjacency="substitute", delta=1e-6, **options):
    return PrivacyBudget(epsilon, delta, chains=1, adjacency=adjacency, **options)


def wanted(y, mu=MU, sigma=SIGMA):
    """Differences by SciPy, record by record."""
    first = [np.log(np.mean(stats.norm.pdf(value, mu, 1))) for value in y]
    second = [np.log(np.mean(stats.norm.pdf(value, 0, sigma))) for value in y]
    return np.array(first) - np.array(second)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_sums_of_clipped_differences(simulators, adjacency, monkeypatch):
    """Against a loop over single records, in blocks; all draws of the posteriors are used."""
    monkeypatch.setattr(predictive_densities, "_BLOCK", 7)
    d, bound = wanted(Y), 0.1
    budget = budget_for(adjacency=adjacency)
    if adjacency == "add_remove":  # the number must be public to simulate records
        simulators = models_of(Y)
    found = private_compare(RELEASED, simulators, budget=budget, bound=bound)
    clipped = np.clip(d, -bound, bound)
    assert 0.05 < np.mean(clipped != d) < 0.95
    assert found.difference == pytest.approx(clipped.sum(), abs=1e-5)
    assert found.squares == pytest.approx((clipped**2).sum(), abs=1e-5)
    expected = clipped.std() * math.sqrt(N) if found.n_records else np.linalg.norm(clipped)
    assert found.sampling_sd == pytest.approx(expected, rel=1e-3)
    assert found.n_records == (N if adjacency == "substitute" else None)
    assert found.names == ("a", "b")


def test_several_models_are_compared_with_the_first():
    """In one release: each pair is that of a comparison of two, and sensitivities add up in squares."""

    def shifted(y):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 10)
            pm.Normal("y", mu, 2, observed=y)
        return model

    models, released = models_of(Y) | {"c": shifted(Y)}, RELEASED | {"c": made_up(mu=MU)}
    found = private_compare(released, models, budget=budget_for(), bound=0.1)
    assert [c.names for c in found.comparisons] == [("a", "b"), ("a", "c")]
    for name in ("b", "c"):
        two = {n: models[n] for n in ("a", name)}
        alone = private_compare({n: released[n] for n in two}, two, budget=budget_for(), bound=0.1)
        assert found[name].difference == pytest.approx(alone.difference, abs=1e-5)
        assert found[name].squares == pytest.approx(alone.squares, abs=1e-5)
        assert str(alone).startswith(alone.words) and found[name].words in str(found)
    with pytest.raises(KeyError, match="none of b, c, which a is compared with"):
        found["a"]


@pytest.mark.parametrize(
    ("noise", "adjacency", "factor"),
    [("gaussian", "substitute", 2.0), ("l2", "add_remove", math.sqrt(17) / 4)],
)
def test_several_pairs_have_the_noise_of_their_sensitivity(adjacency, factor, noise):
    models = models_of(Y) | {"c": normal(Y), "d": scaled(Y)}
    released = RELEASED | {"c": RELEASED["a"], "d": RELEASED["b"]}
    budget = budget_for(1.0, adjacency)
    found = private_compare(released, models, budget=budget, bound=0.1, noise=noise)
    ((mechanism, count),) = budget.one_off_accesses["private comparison"]
    assert count == 1 and budget.spent() == pytest.approx(1.0, rel=1e-3)
    wanted_sd = factor * math.sqrt(3) * mechanism.noise_sd * 0.1
    assert [c.noise_sd for c in found.comparisons] == pytest.approx([wanted_sd] * 3)
    assert found.comparisons[0].noise.n_dim == 6
    assert noise == "gaussian" or mechanism.n_dim == 6
    exact = wanted(Y)
    assert found["b"].difference == pytest.approx(np.clip(exact, -0.1, 0.1).sum(), abs=6 * wanted_sd)  # fmt: skip
    assert abs(found["c"].difference) < 6 * wanted_sd
    if noise == "gaussian":
        low, high = found["b"].interval(0.9)
        assert high - low == pytest.approx(2 * 1.645 * wanted_sd, rel=0.01)


def test_draws_are_evenly_spaced(simulators):
    found = private_compare(RELEASED, simulators, budget=budget_for(), bound=10.0, n_draws=5)
    chosen = np.linspace(0, 79, 5).astype(int)
    expected = wanted(Y, MU[chosen], SIGMA[chosen]).sum()
    assert found.difference == pytest.approx(expected, abs=1e-3)


def test_units_are_summed_before_they_are_clipped():
    records = np.random.default_rng(6).integers(0, 30, size=N)
    found = private_compare(
        RELEASED, models_of(Y), budget=budget_for(), bound=0.3, records=records
    )  # fmt: skip
    draws = np.column_stack([stats.norm.logpdf(Y[:, None], MU, 1), stats.norm.logpdf(Y[:, None], 0, SIGMA)])  # fmt: skip
    units = np.array([draws[records == r].sum(axis=0) for r in np.unique(records)])
    logs = [np.log(np.exp(part).mean(axis=1)) for part in np.split(units, 2, axis=1)]
    expected = np.clip(logs[0] - logs[1], -0.3, 0.3).sum()
    assert found.n_records == len(units) and found.difference == pytest.approx(expected, abs=1e-5)


def test_positions():
    """Draws on the unconstrained scale, also where one parameter bounds another."""
    with pm.Model() as model:
        low = pm.HalfNormal("low", 1)
        pm.Uniform("u", low, low + 3, shape=2)
        pm.Normal("z", 0, 1)
    rng = np.random.default_rng(1)
    low = rng.uniform(0.5, 1, size=6)
    u = low[:, None] + rng.uniform(0.1, 2.9, size=(6, 2))
    theta = positions(model, {"low": low, "u": u, "z": rng.normal(size=6)})
    part = (u - low[:, None]) / 3
    assert theta[:, 0] == pytest.approx(np.log(low))
    assert theta[:, 1:3] == pytest.approx(np.log(part / (1 - part)))
    with pytest.raises(ValueError, match="lack u"):
        positions(model, {"low": low, "z": low})
    with pytest.raises(ValueError, match="other shapes"):
        positions(model, {"low": low, "u": low, "z": low})
    with pytest.raises(ValueError, match="boundary"):
        positions(model, {"low": low, "u": u - 5, "z": low})


# Sensitivity


def pair(t, log_square_scale):
    """Steps of one record with this difference, in Python's integers; bound 1."""
    steps = sums_with_squares(np.array([t]), np.zeros(1), float(UNIT), log_square_scale)
    return np.array([int(step) for step in steps], dtype=object)


def points():
    """Differences within the bound and near its ends, and such as are not finite."""
    rng = np.random.default_rng(8)
    near = np.arange(5) / UNIT
    return [
        *rng.uniform(-1, 1, size=60), *near, *-near, *(1 - near), *(near - 1), 0.5, -0.5, 3.0, -3.0,
        1e300, np.inf, -np.inf, np.nan,
    ]  # fmt: skip


def test_replacing_a_record_changes_the_pair_by_2():
    """Exactly, in whole steps: the squares cost nothing."""
    steps = [pair(t, 0) for t in points()]
    changes = [sum((a - b) ** 2) for a in steps for b in steps]
    assert max(changes) == (2 * UNIT) ** 2


def test_adding_a_record_changes_the_pair_by_its_norm():
    norms = [sum(pair(t, 2) ** 2) for t in points()]
    assert max(norms) * 16 == 17 * UNIT**2


@pytest.mark.slow
def test_neighbours():
    """Through the models: a record that is replaced by any other, and one that is removed."""
    y = Y[:20]
    draws = np.array([[0.1], [0.3]]), np.log([[1.0], [1.2]])
    for new in (50.0, 1e200):
        other = y.copy()
        other[7] = new
        sums = [
            PredictiveDensities(
                *zip(map(RecordLikelihood, (normal(r), scaled(r))), draws, strict=True)
            )
            for r in (y, other, np.delete(y, 7))
        ]
        terms = [Differences((0.01,), adjacency) for adjacency in ("substitute", "add_remove")]
        replaced = [s.total(terms[0]).astype(object) for s in sums[:2]]
        removed = [s.total(terms[1]).astype(object) for s in (sums[0], sums[2])]
        assert 0 < sum((replaced[0] - replaced[1]) ** 2) <= 4 * UNIT**2
        assert 0 < 16 * sum((removed[0] - removed[1]) ** 2) <= 17 * UNIT**2


def test_infinite_likelihoods():
    """Mean over draws if some are impossible; a difference of two infinities counts as 0."""
    found = log_predictive(map(np.array, ([-np.inf, -np.inf, 1.0], [-np.inf, 2.0, np.inf])))
    assert found[0] == -np.inf and found[1] == pytest.approx(2 - math.log(2)) and found[2] == np.inf
    total, squares = sums_with_squares(found, np.array([-np.inf, -np.inf, np.inf]), 1.0, 0)
    assert (total, squares) == (UNIT, UNIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "adjacency", "factor"),
    [("l2", "substitute", 2.0), ("gaussian", "add_remove", math.sqrt(17) / 4)],
)
def test_noise_is_that_of_the_claim(monkeypatch, adjacency, factor, noise):
    """Claimed noise times sensitivity is the standard deviation of what is added, in 60 releases."""
    models, errors = {n: RecordLikelihood(m) for n, m in models_of(Y[:10]).items()}, []
    where = sys.modules["pymc_dp.comparison.private_compare"]
    monkeypatch.setattr(where, "_compiled", lambda name, model, *_: (model, models[name], None))
    given = models_of(Y[:10])
    exact = private_compare(RELEASED, given, budget=budget_for(), bound=0.5, n_draws=3)
    mechanism = least_noise(2, 1.0, 1e-6, noise=noise)  # the same each time
    monkeypatch.setattr(where, "noise_of_all", lambda *_: mechanism)
    for _ in range(60):
        budget = budget_for(1.0, adjacency)
        found = private_compare(RELEASED, given, budget=budget, bound=0.5, n_draws=3, noise=noise)
        pair = found.difference / 0.5, found.squares / (found.square_scale * 0.25)
        errors.append(np.subtract(pair, (exact.difference / 0.5, exact.squares / (found.square_scale * 0.25))))  # fmt: skip
    assert budget.one_off_accesses["private comparison"] == ((mechanism, 1),)
    sd = factor * mechanism.noise_sd
    assert found.noise_sd == pytest.approx(sd * 0.5)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(sd, rel=4 / math.sqrt(2 * 120))
    drawn = found.noise.draw(20_000, np.random.default_rng(1))
    for column, error in zip(drawn.T, np.array(errors).T, strict=True):
        assert stats.ks_2samp(column, error).pvalue > 1e-4


# Account


@pytest.mark.parametrize("epsilon, delta", [(1.0, 1e-6), (0.5, 0.0)])
def test_all_of_the_budget_is_claimed(simulators, epsilon, delta):
    budget = budget_for(epsilon, delta=delta)
    found = private_compare(RELEASED, simulators, budget=budget, random_seed=1, n_draws=10)
    (claim,) = budget.ledger.claims(budget.id)
    assert claim.step == "private comparison"
    cost = Cost.of(claim.accesses).epsilon(delta, "best")
    assert 0.98 * epsilon < cost <= epsilon and found.report.epsilon <= epsilon
    with pytest.raises(PrivacyBudgetExhausted, match="Nothing was accessed"):
        private_compare(RELEASED, simulators, budget=budget, n_draws=10)


def test_nothing_is_accessed_before_the_claim(simulators, tmp_path, monkeypatch):
    account, seen = Ledger(tmp_path / "account", epsilon=1.0, delta=1e-6), []
    real = RecordLikelihood.logp_at

    def watched(self, theta, index):
        seen.extend([len(account.claims())] * (len(index) > 0))  # an empty index reads no record
        return real(self, theta, index)

    monkeypatch.setattr(RecordLikelihood, "logp_at", watched)
    private_compare(
        RELEASED, simulators, budget=budget_for(0.8, ledger=account), random_seed=1, n_draws=10
    )
    assert seen and {*seen} == {1}
    n = len(seen)
    with pytest.raises(PrivacyBudgetExhausted):
        private_compare(RELEASED, simulators, budget=budget_for(0.8, ledger=account), n_draws=10)
    assert len(seen) == n


def test_rows_that_cannot_be_computed_alone_are_refused_before_the_claim(monkeypatch):
    def blocked(*_):
        raise Blocked("Twist")

    monkeypatch.setattr(batch_likelihood, "rows_at", blocked)
    budget = budget_for(0.8)
    with pytest.raises(UnsupportedModel, match="Twist"):
        private_compare(RELEASED, models_of(Y), budget=budget, n_draws=10, bound=1.0)
    assert not budget.ledger.claims()


def test_the_bound_is_public(simulators):
    """Another data set has the same bound; a smaller budget has a tighter one."""
    first = private_compare(RELEASED, simulators, budget=budget_for(1.0), random_seed=1, n_draws=10)
    other = private_compare(
        RELEASED, models_of(100 + 3 * Y), budget=budget_for(1.0), random_seed=1, n_draws=10
    )
    assert first.bound == other.bound and first.clipping == other.clipping
    assert 0 < first.clipped < 0.2
    wider = private_compare(RELEASED, simulators, budget=budget_for(0.1), random_seed=1, n_draws=10)
    assert wider.bound < first.bound and wider.clipped > first.clipped


def test_few_of_many_records_are_simulated(simulators, monkeypatch):
    """The law of their differences is that of all."""
    draws = [positions(s.model, {v: x[:10] for v, x in (("mu", MU), ("sigma", SIGMA))}) for s in simulators.values()]  # fmt: skip
    found = [simulated_differences([*simulators.values()], draws, np.random.default_rng(1))]
    monkeypatch.setattr(sys.modules[simulated_differences.__module__], "_MOST", 50)
    found.append(simulated_differences([*simulators.values()], draws, np.random.default_rng(2)))
    for all_records, some in zip(*found, strict=True):
        assert len(all_records) == 20_000 and len(some) == 5000
        assert stats.ks_2samp(all_records[::4], some).pvalue > 1e-3
    assert found[0][0].mean() > found[0][1].mean()  # the first model's records favour it


def test_a_posterior_without_a_report(simulators):
    with pytest.warns(PrivacyLeakWarning, match="The posterior 'a' is public, although"):
        found = private_compare(RELEASED, simulators, budget=budget_for(1.0), bound=0.1, n_draws=2)
    assert any("no privacy report" in text for text in found.report.assumptions)


# Refusals


def stand_in(rows):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("z", mu, 1, observed=np.zeros(rows))
    return model


@pytest.mark.parametrize(
    "released, models, options, error, match",
    [
        (RELEASED, {"a": normal(Y)}, {}, ValueError, "same names, two or more"),
        (RELEASED, {"a": normal(Y), "c": scaled(Y)}, {}, ValueError, "got a, b and a, c"),
        ([1, 2], models_of(Y), {}, TypeError, "released must map names"),
        (RELEASED, {"a": normal(Y), "b": 3}, {}, TypeError, "must be a pm.Model or a Simulator"),
        (RELEASED, {"a": normal(Y), "b": scaled(Y + 1)}, {}, ValueError, "same records"),
        (RELEASED, {"a": normal(Y), "b": scaled(Y[::-1])}, {}, ValueError, "same records"),
        (RELEASED, {"a": normal(Y), "b": scaled(Y[:9])}, {}, ValueError, "same records"),
        (RELEASED, {"a": normal(Y, "other"), "b": scaled(Y)}, {}, ValueError, "same names"),
        ({"a": RELEASED["b"], "b": RELEASED["b"]}, models_of(Y), {}, ValueError, "lack mu"),
        (RELEASED, models_of(Y), {"bound": 0.0}, ValueError, "bound must be positive"),
        (RELEASED, models_of(Y), {"n_draws": 0}, ValueError, "n_draws must be at least 1"),
        (RELEASED, models_of(Y), {"noise": "laplace"}, ValueError, "noise must be"),
        (RELEASED, models_of(Y), {"covariates": {"a": normal(Y)}}, ValueError, "all names of models"),
        (RELEASED, models_of(Y), {"covariates": {"a": stand_in(9), "b": scaled(Y)}}, ValueError, "stand-ins of the same rows"),
    ],
)  # fmt: skip
def test_refused_arguments(released, models, options, error, match):
    """Before anything is claimed."""
    budget = budget_for(1.0)
    with pytest.raises(error, match=match):
        private_compare(released, models, budget=budget, **({"bound": 1.0} | options))
    assert budget.spent() == 0 and not budget.ledger.claims(budget.id)


def test_simulators_have_their_own_arguments(simulators):
    with pytest.raises(ValueError, match="has its own covariates"):
        private_compare(RELEASED, simulators, budget=budget_for(1.0), covariates="public")


def test_units_must_agree():
    """One person's rows would be in several differences."""
    labels = np.arange(N) // 2, np.roll(np.arange(N) // 2, 1)
    models = {
        name: Simulator(model, records=rows, covariates="public")
        for (name, model), rows in zip(models_of(Y).items(), labels, strict=True)
    }
    with pytest.raises(ValueError, match="same records="):
        private_compare(RELEASED, models, budget=budget_for(1.0))


def test_the_number_must_be_public_to_choose_a_bound(simulators):
    budget = budget_for(1.0, "add_remove")
    with pytest.raises(ValueError, match="number of records"):
        private_compare(RELEASED, simulators, budget=budget)
    assert budget.spent() == 0


# Result


def result(difference, squares, **options):
    clipping = ClipForecast(2.0, 0.02, (0.5, -0.25), 0.0, 0.1)
    report = budget_for(1.0).report()
    defaults = {"noise": NoiseLaw.of(Gaussian(3.0), 2.0, 2), "clipping": clipping}
    return PrivateComparison(
        ("a", "b"), difference, squares, 2.0, square_scale=1.0, n_records=100, report=report,
        **(defaults | options),
    )  # fmt: skip


def test_intervals():
    gaussian = result(3.0, 50.0)
    assert gaussian.noise_sd == 12.0
    half = 12 * stats.norm.isf(0.05)
    assert gaussian.interval() == pytest.approx((3 - half - 0.25, 3 + half + 0.5), rel=0.01)
    l2 = result(0.0, 50.0, noise=NoiseLaw("l2", 1.5, 2), clipping=None)
    low, high = l2.interval(0.8)
    noise = 2 * l2.noise.draw(100_000, np.random.default_rng(9))[:, 0]
    assert np.mean((noise > low) & (noise < high)) == pytest.approx(0.8, abs=0.006)
    with pytest.raises(ValueError, match="level must lie in"):
        l2.interval(90)


def test_words():
    noisy = str(result(3.1, 20.0))
    assert "cannot tell apart at this budget: the difference is 3.1, its standard error 13, 12 of it noise" in noisy  # fmt: skip
    assert "2.00% of the records are expected to be clipped" in noisy and "held out" in noisy
    small = NoiseLaw.of(Gaussian(0.1), 2.0, 2)
    few = result(3.1, 20.0, noise=small)
    assert "on these records" in str(few) and not few.is_clear
    assert "b predicts better than a" in str(result(-31.0, 20.0, noise=small))


def test_negative_squares():
    """Less than what noise can hide is not distinguished from it."""
    found = result(3.0, -40.0)
    assert found.sampling_sd == pytest.approx(math.sqrt(12.0 * 2.0))
    assert found.standard_error > found.noise_sd
