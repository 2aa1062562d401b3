"""Any number that a step may be given: it runs within its budget and clip bounds, or it is refused by name."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pymc_dp import RandomWalk
from pymc_dp.errors import PrivacyBudgetExhausted, PymcDPError
from tests.audit.audited_samplers import budget_for, build, normal_model

MODEL = normal_model(0.4)
SPECIAL = [
    0, -1, 1, 2, 60, 61, 0.0, 0.5, 1.0, 30.0, -2.5, math.nan, math.inf, -math.inf, 5e-324, 1e-300, 1e-12, 1e12, 1e300,
    1.7e308, 2**70, True, False, np.float32(0.25), np.float64(2.0), np.int64(3), np.uint8(7), np.float64("nan"),
]  # fmt: skip
NUMBERS = st.one_of(st.sampled_from(SPECIAL), st.floats(1e-3, 1e3), st.integers(-5, 70))
OTHER = ["1", 1j, [1.0, 2.0], object()]

#: Argument of a sampler, and how messages call it.
CASES = [
    ("penalty", "clip_bound", "clip_bound"),
    ("penalty", "noise_scale", "scale"),
    ("penalty", "noise_multiplier", "noise.multiplier|ratio"),
    ("penalty", "laziness", "laziness"),
    ("penalty", "temperature", "temperature"),
    ("penalty", "batch_size", "batch_size"),
    ("Barker on batches", "noise_variance", "noise.variance"),
    ("Barker on batches", "clip_bound", "clip_bound"),
    ("DP-Fast MH", "batch_rate", "batch_rate|batch rate"),
    ("DP-Fast MH", "full_batch_at", "full_batch_at"),
    ("HMC", "step_size", "step_size"),
    ("HMC", "n_leapfrog", "n_leapfrog"),
    ("HMC", "gradient_clip_bound", "gradient_clip_bound"),
    ("HMC", "gradient_noise_multiplier", "noise multiplier|gradient_noise_multiplier"),
    ("HMC", "mass_matrix", "mass_matrix"),
    ("HMC", "step_size_jitter", "step_size_jitter"),
    ("HMC", "max_distance", "max_distance"),
    ("SGHMC", "step_size", "step_size"),
    ("SGHMC", "n_steps", "n_steps"),
    ("SGHMC", "gradient_clip_bound", "gradient_clip_bound"),
    ("SGHMC", "friction", "friction"),
    ("SGHMC", "noise_estimate", "noise_estimate"),
    ("SGHMC", "batch_size", "batch_size"),
]
#: None has a meaning of its own, or more than one number may be given.
VECTORS = {"mass_matrix"}
#: Python's own errors name what is not a number.
RULES = {"noise_scale", "noise_variance"}


def built(name, argument, value):
    options = {argument: value}
    if argument == "noise_variance":  # where it makes a difference
        options["proposal"] = RandomWalk(0.02, max_distance=0.1)
    return build(name, MODEL, budget_for(epsilon=math.inf), 0.4, **options)


def check(step):
    """What is promised of a step that was taken: draws that are finite. (Of costs see the mechanisms' own tests.)"""
    assert step.likelihood.n_records == 60
    for mechanism, count in (*step.mechanisms(), *step.starting()):
        assert count >= 0 and mechanism.name
    if max(getattr(step, "n_leapfrog", 1), getattr(step, "n_steps", 1)) > 100:
        return  # that would take a while
    step.set_rng(np.random.default_rng(1))
    step.stop_tuning()
    point = MODEL.initial_point()
    for _ in range(3):
        try:
            point, (row,) = step.step(point)
        except PrivacyBudgetExhausted:
            return
        assert np.isfinite(point["mu"]) and row["step_distance"] >= 0


@pytest.mark.parametrize(("name", "argument", "called"), CASES, ids=lambda x: str(x)[:24])
@settings(deadline=None, derandomize=True, max_examples=8, suppress_health_check=list(HealthCheck))
@example(math.nan)
@example(math.inf)
@example(-1.0)
@example(0)
@example(1.5)
@given(value=NUMBERS)
def test_numbers(name, argument, called, value):
    try:
        step = built(name, argument, value)
    except (ValueError, TypeError, PymcDPError) as error:
        said = str(error)
        assert re.search(called, said, re.IGNORECASE), f"does not name {argument}: {said}"
        forms = {repr(value), str(value), f"{value:g}", f"{value:.6g}", f"{float(value)}"}
        forms |= {"without noise"} if value == 0 else set()
        if argument not in VECTORS and not any(form in said for form in forms):
            raise AssertionError(f"does not say {value!r}: {said}") from error
        return
    check(step)


@pytest.mark.parametrize(("name", "argument", "called"), CASES, ids=lambda x: str(x)[:24])
def test_arguments_that_are_not_numbers(name, argument, called):
    named = None if argument in RULES else f"(?i){called}"
    for value in OTHER:
        with pytest.raises((ValueError, TypeError), match=named):
            built(name, argument, value)
