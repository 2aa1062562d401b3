"""Plans: made without private data, and true to what happens."""

import math
import re

from pathlib import Path

import numpy as np
import pymc as pm
import pytest

from pymc_dp import (
    DPBarker,
    DPControlVariate,
    DPFastMH,
    DPPenalty,
    PrivacyBudget,
    PrivacyBudgetExhausted,
)
from pymc_dp.acceptance import Barker, Lazy, Penalty
from pymc_dp.pilot import Pilot
from pymc_dp.preparation import prepare
from pymc_dp.privacy.mechanisms import Decision, Gaussian
from pymc_dp.tuning import plan

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
def planned():
    return plan(budget=budget(), at=GUESS, model=logistic(), public_covariates=True, random_seed=1)


@pytest.mark.slow
def test_what_was_observed_does_not_matter(planned):
    for y in (np.zeros(N), np.random.default_rng(5).random(N) < 0.9):
        other = plan(
            budget=budget(), at=GUESS, model=logistic(y), public_covariates=True, random_seed=1
        )
        assert other.chosen == planned.chosen and other.candidates == planned.candidates
        found, expected = (p.settings["proposal"].scale for p in (other, planned))
        np.testing.assert_array_equal(found, expected)
    another = plan(
        budget=budget(), at=GUESS, model=logistic(), public_covariates=True, random_seed=2
    )
    assert another.chosen != planned.chosen  # other records were drawn


@pytest.mark.slow
def test_a_plan_at_a_draw_from_the_prior():
    """Records at parameters that the prior has drawn, before there are any data."""
    options = {"model": logistic(), "public_covariates": True, "random_seed": 3}
    drawn = plan(budget=budget(), at="prior", **options)
    beta = drawn.position["beta"]
    assert 0.5 < beta.std() < 6 and "one draw from the prior" in str(drawn)
    same = plan(budget=budget(), at={"beta": beta}, **options)
    assert same.chosen == drawn.chosen
    other = plan(budget=budget(), at="prior", **(options | {"random_seed": 4}))
    assert not np.allclose(other.position["beta"], beta)
    with pytest.raises(ValueError, match="or 'prior', got 'posterior'"):
        plan(budget=budget(), at="posterior", **options)


def test_a_draw_from_the_prior_is_transformed():
    with pm.Model() as model:
        pm.Normal("y", 0, pm.HalfNormal("sigma", 2), observed=np.zeros(5))
    prepared = prepare(budget=budget(), model=model)
    draws = np.array([prepared.position("prior", seed)[0] for seed in range(100)])
    assert abs(np.mean(np.exp(2 * draws)) - 4) < 4 * math.sqrt(
        2 * 16 / 100
    )  # sigma**2, from its log


def test_private_covariates_are_refused():
    with pytest.raises(ValueError, match="public_covariates"):
        plan(budget=budget(), at=GUESS, model=logistic())


@pytest.mark.slow
def test_a_stand_in_has_any_number_of_rows(planned):
    small = logistic(x=X[:1000])
    found = plan(budget=budget(), at=GUESS, model=logistic(), stand_in=small, random_seed=1)
    assert found.n_records == N
    ratio = found.settings["proposal"].scale / found.chosen.length**2
    expected = planned.settings["proposal"].scale / planned.chosen.length**2
    np.testing.assert_allclose(np.diag(ratio), np.diag(expected), rtol=0.2)


@pytest.mark.slow
def test_nothing_is_claimed_and_the_budget_pays_as_expected(planned):
    for terms in ({}, {"adjacency": "add_remove"}, {"chains": 5, "epsilon": 1.0}):
        purse = budget(**terms)
        options = {"n_records": N} if "adjacency" in terms else {}
        made = plan(
            budget=purse,
            at=GUESS,
            model=logistic(),
            public_covariates=True,
            random_seed=1,
            **options,
        )
        assert purse.ledger.claims() == []
        made.build(purse, logistic())
        assert purse.expected_draws() == pytest.approx(made.chosen.draws, rel=0.03) or (
            made.chosen.draws == 20_000 < purse.expected_draws()
        )


@pytest.mark.slow
def test_what_is_claimed_already_is_not_there_any_more(planned):
    access = ((Gaussian(2.0), 1),)
    purse = budget()
    purse.spend("something", access)
    options = {"at": GUESS, "model": logistic(), "public_covariates": True, "random_seed": 1}
    after = plan(budget=purse, **options)
    assert after.chosen.effective_draws < 0.9 * planned.chosen.effective_draws
    before = plan(budget=budget(), besides=access, **options)
    assert before.chosen == after.chosen


@pytest.mark.slow
def test_effort_is_limited():
    short = plan(
        budget=budget(),
        at=GUESS,
        model=logistic(),
        public_covariates=True,
        random_seed=1,
        max_draws=50,
    )
    assert 10 <= short.chosen.draws <= 50


@pytest.mark.slow
def test_other_rules_than_the_penalty(planned):
    """Draws are as many as the budget then allows; a penalty rule would have made more of it, and batches change the cost by a few per cent."""
    made = {DPPenalty: planned}
    for step in (DPBarker, DPFastMH):
        purse = budget()
        options = {"at": GUESS, "public_covariates": True, "random_seed": 1}
        made[step] = plan(budget=purse, step=step, model=logistic(), **options)
        built = made[step].build(purse, logistic())
        assert type(built) is step and step.__name__ in str(made[step])
        assert purse.expected_draws() == pytest.approx(made[step].chosen.draws, rel=0.03)
        assert made[step].chosen.error > planned.chosen.error
    fast, barker = made[DPFastMH].chosen, made[DPBarker].chosen
    assert 0.9 < fast.draws / barker.draws < 1.1  # lazy ones even gain a little
    assert fast.clip_bound == barker.clip_bound and fast.noise_scale is None
    rate = made[DPFastMH].settings["batch_rate"]
    typical = float(built.expected_batch(math.sqrt(3)))  # of three standard deviations, in all
    assert typical == pytest.approx(2 * rate, rel=1e-9) and typical < N / 4


def test_what_there_are_no_plans_for():
    with pytest.raises(ValueError, match=r"DPSGHMC, got 'DPControlVariate'.*plan_surrogate"):
        plan(budget=budget(), step=DPControlVariate, model=logistic())
    with pytest.raises(ValueError, match="'substitute' only"):
        plan(budget=budget(adjacency="add_remove"), step=DPFastMH, model=logistic())
    with pytest.raises(ValueError, match="'gaussian' has no bound for the batches of DPFastMH"):
        plan(budget=budget(accountant="gaussian"), step=DPFastMH, model=logistic())


@pytest.mark.slow
def test_too_small_a_budget():
    with pytest.raises(PrivacyBudgetExhausted, match="does not pay for ten draws in each of 50"):
        plan(
            budget=budget(0.01, chains=50),
            at=GUESS,
            model=logistic(),
            public_covariates=True,
            random_seed=1,
        )


def test_it_says_what_it_rests_on(planned):
    text = str(planned)
    assert "private data were not looked at" in text and f"{N} records" in text
    assert f"{planned.chosen.draws:.0f} draws" in text
    assert all(c.clipped <= 0.1 for c in planned.candidates)
    assert planned.chosen in planned.candidates
    assert sorted(planned.candidates, key=lambda c: c.error) == list(planned.candidates)
    vague = plan(budget=budget(), model=logistic(), public_covariates=True, random_seed=1)
    assert "initial point" in str(vague) and "initial point" not in text


class TestPilot:
    """What the plan believes, against closed forms."""

    @pytest.fixture(scope="class")
    @staticmethod
    def pilot():
        model, _ = correlated()
        prepared = prepare(budget=budget(), model=model)
        return Pilot(prepared, np.array([1.0, -1.0]), np.random.default_rng(4))

    def test_posterior(self, pilot):
        _, covariance = correlated()
        assert list(pilot.shapes) == ["local"] and pilot.notes == []
        np.testing.assert_allclose(pilot.shapes["local"], covariance, rtol=0.15)

    @pytest.mark.parametrize("length", [0.5, 1.0, 2.0])
    def test_log_ratios(self, pilot, length):
        """For a normal posterior of dimension d: mean -m**2 / 2 and variance m**2 for each squared distance m**2."""
        moves = pilot.moves("local", length)
        standard = (moves.ratios + moves.distances**2 / 2) / moves.distances
        assert abs(standard.mean()) < 4 / math.sqrt(len(standard))
        assert standard.std() == pytest.approx(1, abs=4 / math.sqrt(2 * len(standard)))
        assert np.mean(moves.distances**2) == pytest.approx(length**2, rel=0.6)
        assert moves.slowest == pytest.approx(length**2 / 2, rel=0.3)

    def test_clipping(self, pilot):
        moves = pilot.moves("local", 1.0)
        for within in (0.9, 0.99):
            bound, clipped, bias = moves.clipping(within)
            assert clipped == pytest.approx(1 - within, abs=1e-3)
            # A change per standard deviation of the proposal is normal, of this variance on average.
            spread = math.sqrt(moves.slowest * moves.weight / 3000)
            assert 0.5 < bound / spread / {0.9: 1.64, 0.99: 2.58}[within] < 2
            assert 0 < bias < 3 * (1 - within) * math.sqrt(3000) * spread / bound
        assert moves.clipping(1.0)[1:] == (0.0, 0.0)

    @pytest.mark.slow
    def test_where_the_posterior_is_curved_there_is_a_chain(self):
        with pm.Model() as model:
            a = pm.Normal("a", 0, 10)
            b = pm.Normal("b", 0, 10)
            pm.Normal("x", a, 1, observed=np.zeros(100))
            pm.Normal("y", b + 20 * a**2, 0.3, observed=np.zeros(100))
        prepared = prepare(budget=budget(), model=model)
        pilot = Pilot(prepared, np.zeros(2), np.random.default_rng(4))
        assert list(pilot.shapes) == ["local", "pilot"] and len(pilot.notes) == 1
        variance = 0.03**2 + 400 * 2 * 0.1**4  # of b: of what is left, and of the square
        assert pilot.shapes["pilot"][1, 1] == pytest.approx(variance, rel=1.0)
        assert pilot.shapes["pilot"][1, 1] > 10 * pilot.shapes["local"][1, 1]


def test_the_table_of_rules_in_the_documentation():
    """Why lazy rules are among the candidates: accepted moves per unit of privacy."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights /= weights.sum()

    def efficiency(rule, length=0.7):
        accepted = weights @ [rule.probability(x) for x in -(length**2) / 2 + length * nodes]
        return accepted / float(Decision(rule, 4 * length / math.sqrt(1e5)).renyi([12.0])[0])

    rules = [Barker(), Penalty(1.4), Penalty(2.0), Penalty(2.5)]
    page = (Path(__file__).parents[1] / "docs" / "planning.md").read_text()
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


@pytest.mark.slow
def test_most_records_do_not_change():
    """The quantiles of their changes are 0, which is no clip bound."""
    x = np.zeros((N, 1))
    x[: N // 50] = 5.0
    purse = budget(20.0)
    model = logistic(x=x)
    found = plan(
        budget=purse, at={"beta": [0.1]}, model=model, public_covariates=True, random_seed=1
    )
    assert found.chosen.clip_bound > 0
    found.build(purse, model)
