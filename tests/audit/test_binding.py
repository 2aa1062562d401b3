"""Starts, plans, steps and draws belong to the budget that paid for them."""

from __future__ import annotations

import gc
import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp

from pymc_dp import DPPenalty, PrivacyBudget, RandomWalk, codec, release
from pymc_dp.errors import PrivacyLeak
from pymc_dp.model.identity import model_token
from pymc_dp.privacy.budget.draws import TOKEN
from pymc_dp.privacy.mechanisms.mechanism import Gaussian
from pymc_dp.steps import base
from tests.audit.audited_samplers import build, sample
from tests.exactness.targets import compiled_once

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")


def one_mean(n=60):
    y = np.random.default_rng(1).normal(0.5, 1.0, n)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 5), 1.0, observed=y)
    return model


def budget_of(epsilon=3.0, chains=2, **options):
    return PrivacyBudget(epsilon, 1e-6, chains=chains, **options)


@pytest.fixture(scope="module")
def model():
    model = one_mean()
    with compiled_once("binding", only=model):
        yield model


@pytest.fixture(scope="module")
def bought():
    """A start, and the budget that paid for it."""
    simulator, budget = dp.Simulator(one_mean(20_000)), budget_of(4.0, 1)
    start = dp.scores.private_start(simulator, budget=budget, random_seed=1)
    return simulator, budget, start


def penalty(model, budget, **options):
    settings = {"clip_bound": 1.0, "proposal": RandomWalk(0.05)} | options
    if budget is None:
        settings["noise_scale"] = 1.0
    return DPPenalty(budget=budget, model=model, **settings)


def draw(model, step, budget=None, **options):
    return sample(model, step, budget, draws=15, chains=2, **options)


# ---------------------------------------------------------------- what was bought


def nothing_spent(budget):
    return not budget.ledger.claims() and not budget.steps


class TestBought:
    """A start that one budget paid for is refused with another one, at no cost."""

    def test_a_start_paid_by_another_budget(self, bought, monkeypatch):
        simulator, _, start = bought

        def refuse(*args, **kwargs):
            raise AssertionError("something was compiled")

        monkeypatch.setattr(base, "RecordLikelihood", refuse)
        monkeypatch.setattr("pymc_dp.planning.simulator.RecordLikelihood", refuse)
        other = budget_of(0.1, 1)
        for given in ({"model": simulator.model}, {"simulator": simulator}):
            with pytest.raises(PrivacyLeak, match="This private start was paid for by another"):
                dp.plan(budget=other, start=start, step=DPPenalty, **given)
        assert nothing_spent(other)

    def test_the_budget_that_paid_may_use_it(self, bought):
        simulator, budget, start = bought
        made = dp.plan(
            budget=budget, start=start, step=DPPenalty, simulator=simulator, random_seed=1
        )
        assert made.budget is budget
        assert start.budget_id == pickle.loads(pickle.dumps(start)).budget_id == budget.id
        idata = sample(simulator.model, made.build(), budget, draws=10)
        report = dp.PrivacyReport.of(release(idata, simulator.model, budget))
        assert set(report.one_off_accesses) == {"private start"}


# ---------------------------------------------------------------- draws


@pytest.fixture(scope="module")
def paid(model):
    """A budget all of whose chains have run, with that run: an attacker's favourite."""
    budget = budget_of()
    return budget, draw(model, penalty(model, budget), budget)


class TestDraws:
    """The report of a budget goes on its own draws only."""

    @pytest.mark.parametrize("name", ["penalty", "Barker", "DP-Fast MH", "HMC", "SGHMC"])
    def test_every_sampler_is_bound(self, model, paid, name):
        """A run without privacy, and one on epsilon = 50, used to be released as epsilon = 3."""
        budget = budget_of(50.0, 1, accountant="rdp")
        idata = sample(model, build(name, model, budget, "binding"), budget, draws=5)
        release(idata, model, budget)
        with pytest.raises(PrivacyLeak, match="another budget"):
            release(idata, model, paid[0])
        idata = sample(model, build(name, model, None, "binding"), None, draws=5)
        with pytest.raises(PrivacyLeak, match="budget=None"):
            release(idata, model, paid[0])

    def test_the_callback_of_another_budget(self, model, paid):
        for step in (penalty(model, budget_of()), penalty(model, None)):
            with pytest.raises(PrivacyLeak, match="not on the budget that is its callback"):
                draw(model, step, paid[0])

    def test_pickled(self, model):
        """A step, a budget and a result that went through a file still belong together."""
        budget = budget_of()
        step, budget, there = pickle.loads(
            cloudpickle.dumps((penalty(model, budget), budget, model))
        )
        idata = pickle.loads(pickle.dumps(draw(there, step, budget)))
        public = release(idata, there, pickle.loads(cloudpickle.dumps(budget)))
        assert TOKEN in idata.sample_stats and TOKEN not in public.sample_stats
        assert dp.PrivacyReport.of(public).epsilon <= 3.0
        with pytest.raises(PrivacyLeak, match="another budget"):
            release(idata, there, budget_of())


@pytest.fixture(scope="module")
def two():
    y = np.random.default_rng(2).normal(0.5, 2.0, 300)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 5), pm.HalfNormal("sigma", 5), observed=y)
    with compiled_once("binding, two", only=model):
        yield model


class TestSteps:
    """Compound steps, and steps that were replaced."""

    def test_compound(self, two, paid):
        budget = budget_of(20.0)
        steps = [penalty(two, budget, vars=[two[name]]) for name in ("mu", "sigma")]
        idata = draw(two, steps, budget, cores=2)
        assert idata.sample_stats[TOKEN].shape[2:] == (2,)
        release(idata, two, budget)
        with pytest.raises(PrivacyLeak, match="another budget"):
            release(idata, two, paid[0])

    def test_one_of_two_steps_has_another_budget(self, two):
        one, other = budget_of(20.0), budget_of(20.0)
        mu, _ = (penalty(two, one, vars=[two[name]]) for name in ("mu", "sigma"))
        _, sigma = (penalty(two, other, vars=[two[name]]) for name in ("mu", "sigma"))
        idata = draw(two, [mu, sigma])
        for budget in (one, other):
            with pytest.raises(PrivacyLeak, match="another budget"):
                release(idata, two, budget)

    def test_a_step_that_was_replaced(self, model):
        """A reproducible step used to run, and the report of its secret successor was released."""
        budget = budget_of()
        old = penalty(model, budget, reproducible=True)
        penalty(model, budget)
        with pytest.raises(dp.PrivacyBudgetExhausted, match="replaced by a newer step"):
            draw(model, old, budget)


class TestClaims:
    """What is claimed is what is counted, whatever object it comes in."""

    SOLD = ((Gaussian(4.0), 3),)

    def test_an_iterator_is_read_once(self, tmp_path):
        ledger = dp.Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-6)
        budget = budget_of(9.0, ledger=ledger)
        budget.spend("sum", iter(self.SOLD))
        again = budget_of(9.0)
        again.spend("sum", self.SOLD)
        assert budget.one_off_accesses["sum"] == self.SOLD
        assert budget.spent() == again.spent() > 0

    def test_a_class_of_the_same_name_does_not_change_what_was_charged(self):
        gaussian = self.SOLD[0][0]
        text = codec.dumps(gaussian)

        class Gaussian(type(gaussian)):  # found among the subclasses
            pass

        assert type(codec.loads(text)) is not Gaussian
        assert codec.loads(text) == gaussian


class TestModels:
    """What may be published is read off the model, so it must be the one that was sampled."""

    def test_another_model(self, paid):
        budget, idata = paid
        with pytest.raises(PrivacyLeak, match="built on another model"):
            release(idata, one_mean(), budget)

    def test_a_model_at_the_same_address(self):
        """What id() gives is given again as soon as a model is gone."""
        addresses, tokens, n = set(), set(), 0
        while len(addresses) == n:  # until one is given again
            model, n = pm.Model(), n + 1
            addresses.add(id(model))
            tokens.add(model_token(model))
            del model
            gc.collect()
            assert n < 1000
        assert len(tokens) == n
