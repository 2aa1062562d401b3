"""Any number that plans, starts, runs and distributions may be given: taken or refused by name, before anything is compiled or claimed."""

from __future__ import annotations

import functools
import math
import operator
import re

from numbers import Real

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import pymc_dp as dp

from pymc_dp.planning import simulator
from pymc_dp.privatized import augmentation
from pymc_dp.scores import start as starts
from tests.properties.test_mechanism_properties import NUMBERS, OTHER

QUICK = settings(
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


class Taken(Exception):
    """All settings were checked."""


def taken(*args, **kwargs):
    raise Taken


@functools.cache
def model():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 1), 1, observed=np.zeros(10))
    return model


def planned(step, **options):
    budget = dp.PrivacyBudget(1.0, 1e-6, chains=1)
    dp.plan(step=step, budget=budget, model=model(), covariates=model(), **options)


def start(**options):
    """The part of a private start that takes these numbers; whoever asks."""
    starts.start_accesses(
        dp.PrivacyBudget(1.0, 1e-6, chains=1), **{"share": 0.15, "number": 2} | options
    )
    raise Taken


def run(**options):
    terms = {"epsilon": 1.0, "delta": 1e-6, "model": model(), "covariates": model()}
    dp.sample(**terms | options)


def privatized(epsilon):
    dp.PrivatizedRecords(model().free_RVs, epsilon=epsilon, model=model())


def part(value):
    return isinstance(value, Real) and 0 < value <= 1


def inside(value):
    return isinstance(value, Real) and 0.001 <= value < 1


def positive(value):
    return isinstance(value, Real) and 0 < value < math.inf


def at_least(least):
    def holds(value):
        try:
            return operator.index(value) >= least
        except TypeError:
            return False

    return holds


def either(holds):
    return lambda value: value is None or holds(value)


#: Who takes a number, as which argument, and which numbers are to be taken.
CASES = {
    "simulator temperature": (functools.partial(dp.Simulator, model()), "temperature", part),
    "simulator n_records": (functools.partial(dp.Simulator, model()), "n_records", either(at_least(1))),
    "plan temperature": (functools.partial(planned, dp.DPPenalty), "temperature", part),
    "plan max_draws": (functools.partial(planned, dp.DPPenalty), "max_draws", either(at_least(10))),
    "plan n_records": (functools.partial(planned, dp.DPPenalty), "n_records", either(at_least(1))),
    "private_start share": (start, "share", inside),
    "sample epsilon": (run, "epsilon", lambda v: positive(v) and 1e-2 < v < 1e3),
    "sample delta": (run, "delta", lambda v: isinstance(v, Real) and (v == 0 or 1e-12 < v < 1)),
    "sample chains": (run, "chains", lambda v: v is None or (at_least(1)(v) and v < 1e6)),
    "sample draws": (run, "draws", either(at_least(1))),
    "PrivatizedRecords epsilon": (privatized, "epsilon", either(positive)),
}  # fmt: skip
#: Where a number may be taken that need not be: huge and tiny ones, of which no budget or calibration makes sense.
OPEN = {
    "sample epsilon", "sample delta", "sample chains", "quadratic_exponents",
}  # fmt: skip


@pytest.fixture(autouse=True)
def before_anything_is_done(monkeypatch):
    monkeypatch.setattr(simulator, "RecordLikelihood", taken)
    monkeypatch.setattr(augmentation, "modelcontext", taken)
    monkeypatch.setattr(dp.Ledger, "claim", lambda *_, **__: pytest.fail("claimed"))


def attempt(name, value):
    function, argument, holds = CASES[name]
    try:
        function(**{argument: value})
    except Taken:
        assert holds(value) or name in OPEN
        return
    except (ValueError, TypeError, dp.errors.PymcDPError) as error:
        assert not holds(value), f"{value!r} should be taken: {error}"
        said = str(error)
    assert re.search(argument, said), f"does not name {argument}: {said}"
    forms = {repr(value), str(value)}
    if isinstance(value, Real):
        forms |= {f"{value:g}", f"{float(value)}"}
    assert any(form in said for form in forms), f"does not say {value!r}: {said}"


@pytest.mark.parametrize("name", CASES)
@QUICK
@example(math.nan)
@example(-1)
@example(0)
@example(1)
@example(10)
@example(0.5)
@given(value=NUMBERS)
def test_numbers(name, value):
    attempt(name, value)


@pytest.mark.parametrize("name", CASES)
@settings(QUICK, max_examples=12)
@given(value=OTHER)
def test_arguments_that_are_not_numbers(name, value):
    attempt(name, value)


@functools.cache
def log_probability(name):
    """Of a release, given what it is of and its noise."""
    discrete = name == "RandomizedResponse"
    value, location = (pt.lscalar() if discrete else pt.dscalar() for _ in range(2))
    noise = pt.dscalar()
    law = getattr(dp, name).dist(location, noise)
    return pm.compile([value, location, noise], pm.logp(law, value))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DiscreteLaplace", "DiscreteGaussian", "RandomizedResponse"])
@settings(QUICK, max_examples=60)
@example(noise=0.0, value=1)
@example(noise=-1.0, value=1)
@example(noise=math.nan, value=1)
@given(noise=st.floats(), value=st.integers(0, 1))
def test_noise_of_releases(name, noise, value):
    """A log-probability; or none, as is PyMC's way to refuse. Those of two answers by randomized response sum to one."""
    law = log_probability(name)
    found = float(law(value, 1, noise))
    if noise < 0 or math.isnan(noise) or (noise == 0 and name != "RandomizedResponse"):
        assert found == -math.inf
    elif 1e-100 < noise < 1e100:
        assert found <= 1e-12
        if name == "RandomizedResponse":
            assert math.exp(found) + math.exp(law(1 - value, 1, noise)) == pytest.approx(1)
