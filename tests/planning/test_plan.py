"""Plans: made without private data, and true to what happens."""

import math
import re

from pathlib import Path

import numpy as np
import pymc as pm
import pytest

from pymc_dp import (
    DPBarker,
    DPFastMH,
    DPPenalty,
    PrivacyBudget,
    PrivacyBudgetExhausted,
    Simulator,
    plan,
)
from pymc_dp.acceptance import Barker, Lazy, Penalty
from pymc_dp.planning import Candidate, Forecast
from pymc_dp.planning.simulated_runs import PlanningProblem, chosen
from pymc_dp.privacy.mechanisms.mechanism import Decision, Gaussian

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

N = 4000
X = np.column_stack([np.ones(N), np.random.default_rng(1).normal(size=(N, 2))])


def logistic(y=None, x=X):
    y = np.random.default_rng(2).random(len(x)) < 0.3 if y is None else y
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2.5, shape=x.shape[1])
        pm.Bernoulli("y", logit_p=x @ beta, observed=y.astype(int))
    return model


def correlated(n=3000):
    """Known posterior: normal, of variance 1 / n, with correlation 0.9."""
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    y = np.random.default_rng(3).multivariate_normal([1.0, -1.0], covariance, size=n)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 100, shape=2)
        pm.MvNormal("y", mu, covariance, observed=y)
    return model, covariance / n


def budget(epsilon=4.0, chains=2, **kwargs):
    return PrivacyBudget(epsilon, 1e-6, chains=chains, **kwargs)


GUESS = {"beta": np.array([-0.8, 0.1, 0.0])}


@pytest.fixture(scope="module")
def simulator():
    """The model, compiled once for the tests that do not exchange its data."""
    return Simulator(logistic(), covariates="public")


def penalty_plan(simulator=None, own_budget=None, **options):
    """A plan for DPPenalty at the guess."""
    options = {"step": DPPenalty, "guess": GUESS, "random_seed": 1} | options
    return plan(budget=own_budget or budget(), simulator=simulator, **options)


@pytest.fixture(scope="module")
def planned(simulator):
    return penalty_plan(simulator)


@pytest.mark.slow
def test_what_was_observed_does_not_matter(planned):
    for y in (np.zeros(N), np.random.default_rng(5).random(N) < 0.9):
        other = penalty_plan(model=logistic(y), covariates="public")
        assert other.chosen == planned.chosen and other.candidates == planned.candidates
        found, expected = (p.settings["proposal"].scale for p in (other, planned))
        np.testing.assert_array_equal(found, expected)
    another = penalty_plan(model=logistic(), covariates="public", random_seed=2)
    assert another.chosen != planned.chosen  # other records were drawn


@pytest.mark.slow
def test_a_stand_in_has_any_number_of_rows(planned):
    small = logistic(x=X[:1000])
    found = penalty_plan(model=logistic(), covariates=small)
    assert found.n_records == N
    ratio, expected = (
        p.settings["proposal"].scale / p.chosen.settings["length"] ** 2 for p in (found, planned)
    )
    np.testing.assert_allclose(np.diag(ratio), np.diag(expected), rtol=0.2)


@pytest.mark.slow
def test_nothing_is_claimed_and_the_budget_pays_as_expected(simulator):
    for terms in ({}, {"adjacency": "add_remove"}, {"chains": 5, "epsilon": 1.0}):
        own_budget = budget(**terms)
        made = penalty_plan(simulator, own_budget)
        assert own_budget.ledger.claims() == []
        made.build()
        draws = made.chosen.forecast.draws
        assert own_budget.expected_draws() == pytest.approx(draws, rel=0.03) or (
            draws == 20_000 < own_budget.expected_draws()
        )


@pytest.mark.slow
def test_earlier_claims_are_subtracted(simulator, planned):
    access = ((Gaussian(2.0), 1),)
    own_budget = budget()
    own_budget.spend("something", access)
    after = penalty_plan(simulator, own_budget)
    expected = planned.chosen.forecast
    assert after.chosen.forecast.effective_draws < 0.9 * expected.effective_draws
    before = penalty_plan(simulator, other_accesses=access)
    assert before.chosen == after.chosen


@pytest.mark.slow
def test_other_rules_than_the_penalty(simulator, planned):
    """Draws are as many as the budget then allows; a penalty rule would have made more of it."""
    made = {DPPenalty: planned}
    for step in (DPBarker, DPFastMH):
        own_budget = budget()
        made[step] = penalty_plan(simulator, own_budget, step=step)
        built = made[step].build()
        assert type(built) is step and step.__name__ in str(made[step])
        expected = made[step].chosen.forecast
        assert own_budget.expected_draws() == pytest.approx(expected.draws, rel=0.03)
        assert expected.error > planned.chosen.forecast.error
    assert "noise_scale" not in made[DPFastMH].chosen.settings
    assert built.expected_batch(math.sqrt(3)) < N  # of three standard deviations, in all


@pytest.mark.slow
def test_too_small_a_budget(simulator):
    with pytest.raises(PrivacyBudgetExhausted, match="does not pay for ten draws in each of 50"):
        penalty_plan(simulator, budget(0.01, chains=50))


@pytest.mark.slow
def test_it_says_what_it_rests_on(simulator, planned):
    text = str(planned)
    assert "private data were not looked at" in text and f"{N} records" in text
    assert f"{planned.chosen.forecast.draws:.0f} draws" in text
    assert all(c.forecast.clipped <= 0.1 for c in planned.candidates)
    assert planned.chosen in planned.candidates
    assert sorted(planned.candidates, key=lambda c: c.forecast.error) == list(planned.candidates)
    vague = penalty_plan(simulator, guess=None)
    assert "initial point" in str(vague) and "initial point" not in text


def test_the_table_has_the_settings_that_vary(planned):
    """As many rows as it says, in text and HTML; a rule without noise has no column for it."""
    rows = [line.split() for line in str(planned).splitlines()]
    header = rows.index(["length", "laziness", "noise", "scale", "clip", "bound", "clipped", "bias", "draws", "effective", "error"])  # fmt: skip
    table = rows[header + 1 : header + 9]
    for row, candidate in zip(table, planned.candidates, strict=False):
        settings, forecast = candidate.settings, candidate.forecast
        assert float(row[0]) == settings["length"] and row[-1] == f"{forecast.error:.2f}"
        assert float(row[3]) == pytest.approx(settings["clip_bound"], rel=1e-3)
    shown = planned._repr_html_()
    assert shown.count("<tr>") == 9 and "<th>clip bound</th>" in shown


def test_of_equal_candidates_the_one_that_clips_least_is_chosen():
    made = [
        Candidate({"number": k}, Forecast(50.0, 1e12, clipped, bias=error))
        for k, (clipped, error) in enumerate(
            [(0.02, 1.0), (0.0, 1.06), (0.01, 1.049), (0.01, 1.04)]
        )
    ]
    assert chosen(made).settings == {"number": 3}
    assert chosen(made[:2]).settings == {"number": 0}


def problem(model, theta):
    """What a step is planned with."""
    return PlanningProblem(budget(), Simulator(model), theta, (), 20_000, np.random.default_rng(4))


@pytest.fixture(scope="module")
def normal():
    return problem(correlated()[0], np.array([1.0, -1.0]))


@pytest.mark.parametrize("step", [DPBarker, DPFastMH])
@pytest.mark.parametrize("length", [0.5, 1.0, 2.0])
def test_draws_and_clipping(normal, step, length):
    """Forecasts against closed forms: of Barker's rule in a normal posterior, of normal scores; batches accept less."""
    assert normal.notes == []
    np.testing.assert_allclose(normal.covariance, correlated()[1], rtol=0.15)
    proposal = next(w for w, x in normal.random_walks.items() if x["length"] == length)
    values = {"proposal": proposal, "clip_bound": 0.99, "laziness": 1.0}
    forecast = normal._candidate(step, values).forecast
    z = np.random.default_rng(5).standard_normal((100_000, 3))
    squares = length**2 / 2 * (z[:, :2] ** 2).sum(axis=1)
    decay = np.mean(squares / (1 + np.exp(squares / 2 - np.sqrt(squares) * z[:, 2]))) / 4
    ratio = forecast.effective_draws / (2 * forecast.draws) / (decay / (2 - decay))
    assert abs(ratio - 1) < 0.25 if step is DPBarker else 0.2 < ratio < 1.25
    removed = np.maximum(np.abs(z) - 2.576, 0.0)
    assert forecast.bias == pytest.approx(math.sqrt(np.mean(removed**2)), rel=0.3)
    assert forecast.clipped == pytest.approx(0.01, abs=2e-3)


@pytest.mark.slow
def test_where_the_posterior_is_curved_there_is_a_chain():
    with pm.Model() as model:
        a = pm.Normal("a", 0, 10)
        b = pm.Normal("b", 0, 10)
        pm.Normal("x", a, 1, observed=np.zeros(100))
        pm.Normal("y", b + 20 * a**2, 0.3, observed=np.zeros(100))
    curved = problem(model, np.zeros(2))
    assert len(curved.notes) == 1
    variance = 0.03**2 + 400 * 2 * 0.1**4  # of b: of what is left, and of the square
    assert curved.covariance[1, 1] == pytest.approx(variance, rel=1.0)
    assert curved.covariance[1, 1] > 10 * 0.03**2


def test_the_table_of_rules_in_the_documentation():
    """Why lazy rules are among the candidates: accepted moves per unit of privacy."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights /= weights.sum()

    def efficiency(rule, length=0.7):
        accepted = weights @ [rule.probability(x) for x in -(length**2) / 2 + length * nodes]
        return accepted / float(Decision(rule, 4 * length / math.sqrt(1e5)).renyi([12.0])[0])

    rules = [Barker(), Penalty(1.4), Penalty(2.0), Penalty(2.5)]
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    lines = [
        line.split("|")[2:-1]
        for line in page.splitlines()
        if re.match(r"\| (Barker|penalty)", line)
    ]
    assert len(lines) == len(rules)
    for rule, line in zip(rules, lines, strict=True):
        found = [efficiency(r) for r in (rule, *(Lazy(rule, w) for w in (0.5, 0.25, 0.1)))]
        expected = np.array(found) / efficiency(Barker())
        np.testing.assert_allclose([float(x) for x in line], expected, atol=0.011)


def test_the_default_is_a_plan_of_scores(simulator):
    """Of any budget, its claims and its law of noise."""
    own = budget(chains=1)
    made = plan(budget=own, simulator=simulator, guess=GUESS, noise="gaussian", random_seed=1)
    assert made.budget is own and isinstance(made.design.main, Gaussian)
    assert own.ledger.claims() == [] and 1 < made.sd_ratios["beta"].max() < 1.5
    scores = made.release()
    assert scores.reports[0].epsilon == pytest.approx(4.0, rel=1e-3)
    with pytest.raises(PrivacyBudgetExhausted):
        made.release()
