"""A step of one's own, written with public names only: the code of the how-to page, and what its base classes promise."""

import ast
import math

from pathlib import Path

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp

from pymc_dp.steps import AcceptRejectStep, Move, PerProposalDecision, State
from tests.exactness.targets import BANANA, compiled_once
from tests.exactness.test_exactness import HUGE, check, reference, run

# The how-to page copies from here,


class MyBarker(AcceptRejectStep):
    """Random walk on all parameters at once, decided by Barker's rule."""

    name = "my_barker"

    def __init__(self, vars=None, *, budget, clip_bound, scale, **options):
        super().__init__(vars, budget=budget, clip_bound=clip_bound, **options)
        self.scale = float(scale)
        chi_square = np.random.default_rng(0).chisquare(len(self.part), size=2000)
        lengths = self.scale * np.sqrt(chi_square)
        self.family = PerProposalDecision(
            sensitivity_per_distance=self.sensitivity_per_distance,
            rule=dp.Barker(),
            noise_multiplier=None,
            laziness=self.laziness,
            distances=tuple(lengths),  # their public law, to plan with
        )
        self.register()  # declares to the budget what an iteration costs

    @classmethod
    def plan(cls, problem):
        """What dp.plan() tries on simulated records, with clip bounds for each."""
        variances = np.linalg.eigvalsh(problem.covariance)
        sd = np.sqrt(variances[0] / len(variances))
        scales = [length * sd for length in problem.lengths]
        return {"scale": scales, "laziness": (0.2, 0.5, 1.0)}

    def transition(self, theta):
        """Propose, charge, decide."""
        proposed = theta.copy()
        proposed[self.part] += self.scale * self.rng.standard_normal(len(self.part))
        old = self.current(theta)
        new = State(proposed, self.likelihood.log_prior(proposed))
        distance = float(np.linalg.norm(proposed - theta))  # public, as the proposal is
        move = Move(old, new, new.prior - old.prior, distance)
        decision = self.charge_decision(move)  # paid before any record is read
        log_ratio = self.log_ratio(move)  # each record clipped to clip_bound * distance
        return self.choose(move, decision.rule, log_ratio)  # one secret Bernoulli draw


# to here.

QUIET = {"progressbar": False, "compute_convergence_checks": False}


def test_it_uses_public_names_only():
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {m for m in modules if m.startswith("pymc_dp")} == {"pymc_dp.steps"}
    (step,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "MyBarker")
    used = {n.attr for n in ast.walk(step) if isinstance(n, ast.Attribute)} - {"__init__"}
    assert "charge_decision" in used and not [name for name in used if name.startswith("_")]


def test_it_runs_within_its_budget(normal_model):
    budget = dp.PrivacyBudget(3.0, 1e-5, chains=2)
    step = MyBarker(budget=budget, clip_bound=2.0, scale=0.03, model=normal_model)
    with normal_model:
        idata = pm.sample(2000, tune=0, chains=2, cores=1, step=step, callback=budget, **QUIET)
    draws = idata.posterior.sizes["draw"]
    assert 20 < draws == min(budget.report().draws) < 2000
    assert budget.spent() <= 3.0
    assert set(dp.release(idata, normal_model, budget).posterior.data_vars) == {"mu", "squared"}


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_it_costs_what_the_sampler_of_the_package_costs(normal_model, adjacency):
    mine, theirs = (
        kind(
            budget=dp.PrivacyBudget(3.0, 1e-5, chains=2, adjacency=adjacency),
            clip_bound=2.0,
            model=normal_model,
            temperature=0.5,
            laziness=0.7,
            **options,
        )
        for kind, options in (
            (MyBarker, {"scale": 0.03}),
            (dp.DPBarker, {"proposal": dp.RandomWalk(0.03)}),
        )
    )
    assert mine.family.at(0.05, 1.0) == theirs.family.at(0.05, 1.0)


@pytest.mark.slow
def test_it_has_the_posterior():
    exact = reference(BANANA, 1.0)
    with compiled_once(BANANA.name), BANANA.model():
        budget = dp.PrivacyBudget(math.inf, 1e-6, chains=1)
        step = MyBarker(
            budget=budget, clip_bound=HUGE, scale=0.8 * exact.std(axis=0).min(), reproducible=True
        )
    check(run(step, exact[3], 10_000, 2), exact)


@pytest.mark.slow
def test_it_is_planned_as_the_sampler_of_the_package(normal_model):
    terms = {"epsilon": 3.0, "delta": 1e-5, "chains": 1, "model": normal_model, "random_seed": 1}
    mine, theirs = (dp.plan(step=step, **terms) for step in (MyBarker, dp.DPBarker))
    assert type(mine.build()) is MyBarker
    found, expected = (p.chosen.forecast.error for p in (mine, theirs))
    assert found == pytest.approx(expected, rel=0.15)


def test_what_is_fixed_and_what_is_not(normal_model):
    step = MyBarker(budget=None, clip_bound=2.0, scale=0.03, model=normal_model)
    with pytest.raises(AttributeError, match="Build a new step"):
        step.scale = 0.1
    step.note = "set after register()"
    step.note = "may be changed"


def test_arguments_that_are_missing_or_unknown(normal_model):
    with pytest.raises(TypeError, match=r"^MyBarker needs budget, scale; budget=PrivacyBudget\("):
        MyBarker(clip_bound=1.0, model=normal_model)
    with pytest.raises(TypeError, match="MyBarker has no argument clip: leave out"):
        MyBarker(budget=None, clip_bound=1.0, scale=1.0, clip=2.0, model=normal_model)
