"""DPSGHMC inside ``pm.sample``, and the arguments that it refuses."""

import math
import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from pymc_dp import DPSGHMC, PrivacyBudget, release
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.randomness.bits import OperatingSystemBits
from tests.steps.sghmc_building import (
    MEAN,
    QUIET,
    N,
    compiled_once,  # noqa: F401 - a fixture of all tests
    constant,
    make,
    sampled_path,
    start,
)

# ---------------------------------------------------------------- in pm.sample


def hosted(model, budget, **options):
    defaults = {
        "step_size": 0.002, "n_steps": 3, "gradient_clip_bound": 2.0, "batch_size": 40, "friction": 50.0,
    }  # fmt: skip
    return DPSGHMC(budget=budget, model=model, **defaults | options)


@pytest.mark.slow
def test_stops_when_spent_and_loses_no_draw(normal_model):
    budget = PrivacyBudget(2.0, 1e-5, chains=2, accountant="rdp")
    step = hosted(normal_model, budget)
    planned = int(budget.expected_draws())
    with normal_model:
        idata = pm.sample(
            draws=planned + 400, tune=0, chains=2, step=step, callback=budget, cores=1, **QUIET
        )
    assert idata.posterior.sizes["chain"] == 2
    assert idata.posterior.sizes["draw"] == planned == min(budget.report().draws)
    assert not np.any(idata.sample_stats["exhausted"])
    assert 1.9 < float(idata.sample_stats["epsilon_spent"][:, -1].max()) <= 2.0
    assert budget.spent() <= 2.0
    values = np.asarray(idata.sample_stats["noise_multiplier"])
    np.testing.assert_allclose(
        values, [[step.noise_multiplier(t) for t in range(1, planned + 1)]] * 2
    )
    assert float(idata.posterior["mu"][:, -1].min()) > 0.05  # on its way from 0 to 1.1
    public = release(idata, normal_model, budget)
    assert "mu" in public.posterior and "residual" not in public.posterior


def test_pickles_hold_no_private_state(normal_model):
    budget = PrivacyBudget(2.0, 1e-5, chains=2, accountant="rdp")
    step = start(hosted(normal_model, budget, refresh_momentum=False))
    point = normal_model.initial_point()
    for _ in range(3):
        point, _ = step.step(point)
    assert isinstance(step._bits, OperatingSystemBits) and not vars(step._bits)
    dump = cloudpickle.dumps(step)  # as for a process that is spawned
    shipped = pickle.loads(dump)
    assert shipped.budget.ledger.path == budget.ledger.path
    with pytest.raises(PrivacyBudgetExhausted, match="claimed nothing"):
        shipped.transition(np.zeros(1))
    start(shipped).step(point)
    assert len(budget.ledger.claims()) == 2
    start(shipped)
    with pytest.raises(PrivacyBudgetExhausted, match="chains=2"):
        shipped.step(point)


def test_momentum_does_not_pass_to_the_next_chain():
    step = make(MEAN, refresh_momentum=False)
    sampled_path(step, [0.0], seed=1)
    start(step, 2)
    assert step._momentum is None


def test_a_draw_that_is_not_finite_repeats_the_state():
    """Far too long steps: no warning, no nan; without privacy and with it."""
    for options in (
        {"gradient_clip_bound": math.inf, "step_size": constant(50.0), "friction": 0.0, "n_steps": 400},
        {"step_size": constant(50.0), "friction": 30.0, "n_steps": 400, "budget": PrivacyBudget(math.inf, 1e-5, chains=1)},
    ):  # fmt: skip
        step = start(make(MEAN, **options))
        point = MEAN.initial_point()
        for _ in range(3):
            point, (statistics,) = step.step(point)
            assert np.isfinite(point["mu"]).all()
        assert not statistics["accepted"]


REFUSED = [
    ("n_steps", [0], "n_steps"),
    ("gradient_clip_bound", [0.0, math.inf, math.nan], "gradient_clip_bound"),
    ("friction", [-1.0, math.inf], "friction"),
    ("friction", [0.0], "not private"),
    ("noise_estimate", [3.0], "not private"),
    ("noise_estimate", [-0.1, 4.0], "noise_estimate"),
    ("temperature", [0.0, 1.5], "temperature"),
    ("record_trajectories", [True], "budget=None"),
    ("step_size", [0.0], "step_size"),
    ("step_size", [lambda t: math.nan], "for draw 1"),
    ("step_size", [lambda t: np.random.default_rng().uniform(0.1, 0.2)], "draw alone"),
    ("sampling_probability", [0.0, 1.1], "sampling_probability"),
    ("batch_size", [0, N + 1], "batch_size"),
    ("mass_matrix", [[-1.0]], "mass_matrix"),
    ("mass_matrix", [[1.0, 1.0]], "shape"),
]


def test_refused():
    budget = PrivacyBudget(1.0, 1e-5, chains=1)
    for name, values, match in REFUSED:
        for value in values:
            with pytest.raises(ValueError, match=match):
                make(MEAN, budget=budget, **{name: value})
    for batch in ((10, 0.1), (None, None)):
        with pytest.raises(ValueError, match="Give batch_size"):
            make(MEAN, budget=budget, batch_size=batch[0], sampling_probability=batch[1])
    with pytest.raises(ValueError, match="not proved"):  # where a record may be added
        make(MEAN, budget=PrivacyBudget(1.0, 1e-5, chains=1, adjacency="add_remove"), batch_size=6)
    assert not budget.ledger.claims()


def test_settled():
    step = make(MEAN, budget=PrivacyBudget(math.inf, 1e-5, chains=1))
    for name in (
        "budget", "step_size", "n_steps", "gradient_clip_bound", "batch_size", "sampling_probability", "friction",
        "noise_estimate", "temperature", "coordinates", "likelihood", "part", "label", "reproducible", "token",
    ):  # fmt: skip
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(step, name, getattr(step, name))
