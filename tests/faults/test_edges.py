"""Records that are not numbers, one record, one and two hundred parameters, budgets that buy nothing or anything."""

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_dp import (
    DPHMC,
    DPSGHMC,
    DPBarker,
    DPFastMH,
    DPPenalty,
    Ledger,
    PrivacyBudget,
    PrivacyReport,
    RandomWalk,
    sample,
)
from pymc_dp.errors import PrivacyBudgetExhausted
from tests.exactness.targets import compiled_once
from tests.faults.watching import accesses, watched
from tests.hosting.test_hosting import QUIET, run

WALK = {"clip_bound": 1.0, "proposal": RandomWalk(0.05)}
HAMILTONIAN = {
    "step_size": 0.05, "n_leapfrog": 2, "clip_bound": 1.0, "gradient_clip_bound": 1.0,
    "gradient_noise_multiplier": 10.0, "max_distance": 0.5,
}  # fmt: skip
LANGEVIN = {
    "step_size": 0.01,
    "n_steps": 2,
    "gradient_clip_bound": 1.0,
    "friction": 50.0,
    "sampling_probability": 1.0,
}
STEPS = {
    "penalty": (DPPenalty, WALK),
    "barker": (DPBarker, WALK),
    "fast": (DPFastMH, WALK),
    "hmc": (DPHMC, HAMILTONIAN),
    "sghmc": (DPSGHMC, LANGEVIN),
}


# ---------------------------------------------------------------- one record that is not a number

_Y = np.random.default_rng(31).normal(0.3, 1.0, size=40)
#: Records whose likelihood is not a number, nothing, and infinite.
_BAD = {101.0: math.nan, 102.0: -math.inf, 103.0: math.inf}


def _model(values, where=lambda mu: pt.ge(mu, -math.inf)):
    def logp(value, mu):
        result = -((value - mu) ** 2) / 2
        for bad, becomes in _BAD.items():
            result = pt.switch(pt.eq(value, bad) & where(mu), becomes, result)
        return result

    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 3)
        pm.CustomDist("y", mu, logp=logp, observed=values)
    return model


def _chain(kind, options, model, key, epsilon=12.0, **more):
    with compiled_once("edges", key, only=model):
        budget = PrivacyBudget(epsilon, 1e-5, chains=1, adjacency="add_remove")
        step = kind(budget=budget, model=model, **options, **more)
        idata = run(model, budget, step, chains=1, draws=60, random_seed=7)
    assert budget.spent() <= epsilon
    return idata


@pytest.mark.slow
@pytest.mark.parametrize("name", ["barker", "hmc"])
def test_records_that_are_never_numbers(name):
    """The chain is that of the other records, to the last bit; nothing is said of it, and nothing raised."""
    kind, options = STEPS[name]
    chains = [
        _chain(kind, options, _model(values), key, reproducible=True)
        for key, values in {"bad": np.append(_Y, list(_BAD)), "good": _Y}.items()
    ]
    bad, good = (idata.posterior["mu"].values[0] for idata in chains)
    assert len(bad) == len(good) >= 2 and np.isfinite(bad).all() and len(np.unique(good)) > 1
    assert np.array_equal(bad, good)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast", "sghmc"])
def test_records_that_stop_being_numbers(name):
    """On the way, at some parameters: they count for no more than the clip bound, and the chain goes on."""
    kind, options = STEPS[name]
    model = _model(np.append(_Y, list(_BAD)), where=lambda mu: pt.ge(mu, 0.02))
    if kind is DPFastMH:
        with compiled_once("edges", "stops", only=model):
            budget = PrivacyBudget(12.0, 1e-5, chains=1)
            step = kind(budget=budget, model=model, **options, batch_rate=2.0)
            idata = run(model, budget, step, chains=1, draws=60)
    else:
        idata = _chain(kind, options, model, "stops", reproducible=True)
    mu = idata.posterior["mu"].values[0]
    assert len(mu) >= 2 and np.isfinite(mu).all() and len(np.unique(mu)) > 1


# ---------------------------------------------------------------- few and many


@pytest.fixture
def smallest():
    """One record, one parameter (with an axis of its own)."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=1)
        pm.Normal("y", mu[0], 1, observed=[0.7])
    with compiled_once("smallest", only=model):
        yield model


@pytest.mark.parametrize("name", ["barker", "fast", pytest.param("hmc", marks=pytest.mark.slow)])
def test_one_record_and_one_parameter(smallest, name):
    kind, options = STEPS[name]
    with smallest:
        step = kind(budget=PrivacyBudget(12.0, 1e-5, chains=2), **options)
        public = sample(step=step, cores=1, draws=2, **QUIET)
    assert public.posterior["mu"].shape == (2, 2, 1)
    assert public.posterior.attrs["epsilon"] <= 12.0


@pytest.fixture
def wide():
    """Two hundred parameters."""
    values = np.random.default_rng(32).normal(size=(300, 200))
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1, shape=200)
        pm.Normal("y", theta, 1.0, observed=values)
    with compiled_once("200 parameters", only=model):
        yield model


MANY = {
    "penalty at once": (DPPenalty, {"clip_bound": 1.0, "proposal": RandomWalk(0.005)}),
    "hmc": (DPHMC, {**HAMILTONIAN, "step_size": 0.002}),
}


@pytest.mark.parametrize(
    "name",
    [
        "penalty at once",
        pytest.param("hmc", marks=pytest.mark.slow),
    ],
)
def test_two_hundred_parameters(wide, name):
    """All of them move, within the budget."""
    kind, options = MANY[name]
    with wide:
        budget = PrivacyBudget(8.0, 1e-5, chains=2)
        step = kind(budget=budget, reproducible=True, **options)
        public = sample(step=step, cores=1, random_seed=8, **QUIET)
    theta = public.posterior["theta"].values
    assert theta.shape[0] == 2 and theta.shape[1] >= 2 and theta.shape[2] == 200
    assert np.isfinite(theta).all() and (theta[:, 1:] != theta[:, :-1]).any(axis=(0, 1)).all()
    assert public.posterior.attrs["epsilon"] == math.inf  # reproducible
    assert PrivacyReport.of(public).epsilon <= 8.0


# ---------------------------------------------------------------- budgets


@pytest.mark.parametrize(
    "epsilon, delta", [(5e-324, 1e-5), (1e-9, 1e-5), (1.0, 5e-324), (1e-9, 1e-300)]
)
@pytest.mark.parametrize("name", ["penalty", "sghmc"])
def test_empty_budget(normal_model, tmp_path, name, epsilon, delta):
    """Too small for a single draw: said with the numbers, before anything is read or claimed."""
    kind, options = STEPS[name]
    log, path = tmp_path / "accesses", tmp_path / "a.ledger"
    with watched(log), normal_model:
        budget = PrivacyBudget(epsilon, delta, chains=2, ledger=path)
        step = kind(budget=budget, **options)
        log.unlink(missing_ok=True)  # what was read while compiling was read at made-up points
        with pytest.raises(PrivacyBudgetExhausted, match=r"fewer than one.*Use a smaller"):
            run(normal_model, budget, step)
        with pytest.raises(PrivacyBudgetExhausted, match="fewer than one"):
            step.set_rng(np.random.default_rng(1))
            step.step(normal_model.initial_point())
    assert not accesses(log) and not Ledger(path).claims()


def test_boundless_budget(normal_model):
    """Absurd, but a number: it buys many draws."""
    budget = PrivacyBudget(1e308, 1e-5, chains=1)
    step = DPPenalty(budget=budget, model=normal_model, **WALK)
    public = sample(step=step, draws=5, cores=1, **QUIET)
    assert public.posterior.sizes["draw"] == 5
