"""Any number a user may give: what is promised holds, or it is refused by an error that says what was wrong.

No other exception, no warning (pytest makes errors of them), and no result that is not what the name of the function says.
"""

from __future__ import annotations

import math
import re

from numbers import Real

import numpy as np
import pytest

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from experiments.published_bounds import BarkerRelease, MinibatchRelease
from pymc_dp import Barker, GuidedWalk, Ledger, OneComponent, Penalty, PrivacyBudget, RandomWalk
from pymc_dp.errors import PymcDPError
from pymc_dp.privacy import (
    Decision,
    Filter,
    Gaussian,
    PoissonMinibatchDecision,
    RenyiShare,
    SampledDecision,
    SampledGaussian,
    calibrate,
    delta_of,
    epsilon_of,
    max_draws,
)
from pymc_dp.privacy.randomness.batches import (
    poisson,
    poisson_count,
    with_replacement,
    without_replacement,
)
from pymc_dp.privatized import sensitivity_of_moments, sensitivity_of_table
from pymc_dp.steps import Lazy

QUICK = settings(
    deadline=None,
    derandomize=True,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
ORDERS = np.array([1.5, 2.0, 8.0, 64.0])
DELTA = 1e-5

#: Ordinary, extreme and impossible, in the types that numbers come in.
SPECIAL = [
    0, -1, 1, 2, 0.0, -0.0, 0.5, 1.0, 3.0, -2.5, math.nan, math.inf, -math.inf, 5e-324, 1e-300, 1e-12, 1e12,
    1e300, 1.7e308, 2**70, True, False, np.float32(0.25), np.float64(2.0), np.int64(3), np.uint8(7), np.float64("nan"),
]  # fmt: skip
NUMBERS = st.one_of(
    st.sampled_from(SPECIAL),
    st.floats(),
    st.floats(1e-3, 1e3),
    st.integers(-5, 2000),
    st.floats(0, 1),
)
OTHER = st.sampled_from(["1", "", "nan", None, 1j, b"1", (), [1.0, 2.0], np.array([1.0, 2.0]), object(), {}])  # fmt: skip


def costs(mechanism):
    """Promises of a mechanism: no cost is negative or no number, and they grow with the order."""
    renyi = mechanism.renyi(ORDERS)
    assert np.all(renyi >= 0)
    if not isinstance(mechanism, BarkerRelease):  # the theorem's bound falls at first
        assert np.all(renyi[1:] >= renyi[:-1] * (1 - 1e-9))
    assert mechanism.name
    return renyi


def walks(proposal):
    """Promises of a proposal, if it fits: a finite move of positive length, below the cap."""
    theta = np.zeros(3)
    new, distance = proposal.start(3).propose(theta, np.random.default_rng(1))
    assert new.shape == (3,) and np.all(np.isfinite(new)) and 0 < distance
    assert math.isfinite(distance)
    assert proposal.max_distance is None or distance <= proposal.max_distance


def rules(rule):
    """Promises of a rule: a probability, in detailed balance."""
    for x in (0.3, 5.0):
        a, b = rule.probability(x), rule.probability(-x)
        assert 0 <= b <= a <= 1
        assert b == pytest.approx(math.exp(-x) * a, rel=1e-6, abs=1e-300)


def epsilon(value):
    assert value >= 0


def share(value):
    assert 0 <= value <= 1


def draws(value):
    assert value >= 0 and (value == math.inf or value == int(value))


def budget(made):
    report = made.report()
    assert made.epsilon > 0 and 0 <= made.delta < 1 and made.chains >= 1
    assert report.epsilon <= made.epsilon and made.spent() == 0 and made.remaining() == made.epsilon


def noise(value):
    assert value > 0 and epsilon_of([(Gaussian(value), 10)], DELTA) <= 1


def granted(made):
    """Nothing is ever given back."""
    assert 0 <= made.spent <= made.share.rho


def indices(found):
    assert found.dtype == np.int64 and (found >= 0).all() and (found < 50).all()


def spending(count, kind):
    made = kind()
    made.grant([(Gaussian(9.0), count)])
    return made


def bound(found):
    assert 0 <= found < math.inf


GAUSS = [(Gaussian(9.0), 10)]
X = np.random.default_rng(1).normal(size=(50, 2))
#: What takes a number: how the number is called in messages, what to do with it, what must hold then.
CASES = {
    "Penalty scale": ("scale", Penalty, rules),
    "Lazy weight": ("weight", lambda v: Lazy(Barker(), v), rules),
    "Gaussian": ("noise multiplier", Gaussian, costs),
    "Decision sensitivity": ("sensitivity", lambda v: Decision(Penalty(2.0), v), costs),
    "Decision Barker": ("sensitivity", lambda v: Decision(Barker(), v), costs),
    "SampledGaussian noise": ("noise multiplier", lambda v: SampledGaussian(v, 0.1, "poisson", "substitute"), costs),
    "SampledGaussian probability": ("probability", lambda v: SampledGaussian(2.0, v, "poisson", "add_remove"), costs),
    "SampledDecision sensitivity": ("sensitivity", lambda v: SampledDecision(Barker(), v, 0.1), costs),
    "SampledDecision probability": ("probability", lambda v: SampledDecision(Barker(), 0.5, v), costs),
    "MinibatchRelease noise": ("noise multiplier", lambda v: MinibatchRelease(v, 0.1), costs),
    "MinibatchRelease probability": ("probability", lambda v: MinibatchRelease(2.0, v), costs),
    "BarkerRelease batch_size": ("batch.size", lambda v: BarkerRelease(v, 2000), costs),
    "BarkerRelease n_records": ("records", lambda v: BarkerRelease(50, v), costs),
    "PoissonMinibatch bound": ("bound", lambda v: PoissonMinibatchDecision(Barker(), v, 10.0, 1000), costs),
    "PoissonMinibatch rate": ("batch.rate", lambda v: PoissonMinibatchDecision(Barker(), 1e-3, v, 1000), costs),
    "PoissonMinibatch n_records": ("records", lambda v: PoissonMinibatchDecision(Barker(), 1e-3, 10.0, v), costs),
    "RenyiShare order": ("order", lambda v: RenyiShare(v, 1.0), costs),
    "RenyiShare rho": ("share|rho", lambda v: RenyiShare(4.0, v), costs),
    "Filter count": ("count", lambda v: spending(v, lambda: Filter(RenyiShare(4.0, 1.0))), granted),
    "renyi orders": ("order", lambda v: Gaussian(2.0).renyi(v), lambda r: epsilon(float(r))),
    "epsilon_of delta": ("delta", lambda v: epsilon_of(GAUSS, v), epsilon),
    "epsilon_of count": ("count", lambda v: epsilon_of([(Gaussian(9.0), v)], DELTA), epsilon),
    "delta_of epsilon": ("epsilon", lambda v: delta_of(GAUSS, v), share),
    "delta_of count": ("count", lambda v: delta_of([(Gaussian(9.0), v)], 1.0), share),
    "max_draws epsilon": ("epsilon", lambda v: max_draws(GAUSS, v, DELTA), draws),
    "max_draws delta": ("delta", lambda v: max_draws(GAUSS, 1.0, v), draws),
    "max_draws chains": ("chains", lambda v: max_draws(GAUSS, 1.0, DELTA, v), draws),
    "calibrate epsilon": ("epsilon", lambda v: calibrate(lambda z: [(Gaussian(z), 10)], v, DELTA), lambda z: None),
    "calibrate delta": ("delta", lambda v: calibrate(lambda z: [(Gaussian(z), 10)], 1.0, v), lambda z: None),
    "calibrate low": ("low", lambda v: calibrate(lambda z: [(Gaussian(z), 10)], 1.0, DELTA, low=v), noise),
    "calibrate high": ("high|reaches|multiplier", lambda v: calibrate(lambda z: [(Gaussian(z), 10)], 1.0, DELTA, high=v), noise),
    "budget epsilon": ("epsilon", lambda v: PrivacyBudget(v, DELTA, chains=2), budget),
    "budget delta": ("delta", lambda v: PrivacyBudget(1.0, v, chains=2), budget),
    "budget chains": ("chains", lambda v: PrivacyBudget(1.0, DELTA, chains=v), budget),
    "Ledger epsilon": ("epsilon", lambda v: Ledger(epsilon=v, delta=DELTA), lambda made: epsilon(made.spent())),
    "Ledger delta": ("delta", lambda v: Ledger(epsilon=1.0, delta=v), lambda made: epsilon(made.spent())),
    "RandomWalk scale": ("scale", RandomWalk, walks),
    "RandomWalk metric": ("metric", lambda v: RandomWalk(1.0, metric=v), walks),
    "RandomWalk cap": ("max_distance", lambda v: RandomWalk(0.1, max_distance=v), walks),
    "OneComponent scale": ("scale", OneComponent, walks),
    "OneComponent cap": ("max_distance", lambda v: OneComponent(0.1, max_distance=v), walks),
    "GuidedWalk scale": ("scale", GuidedWalk, walks),
    "GuidedWalk metric": ("metric", lambda v: GuidedWalk(1.0, metric=v), walks),
    "sensitivity order": ("order", lambda v: sensitivity_of_moments(2, order=v), bound),
    "sensitivity columns": ("n_columns", sensitivity_of_moments, bound),
    "sensitivity table": ("table|range", lambda v: sensitivity_of_table([[0.0, v], [1.0, 2.0]]), bound),
    "without_replacement size": ("size|replacement", lambda v: without_replacement(50, v), indices),
    "with_replacement records": ("records", lambda v: with_replacement(v, 5), lambda i: None),
    "poisson probability": ("probability", lambda v: poisson(50, v), indices),
    "poisson_count rate": ("rate", poisson_count, epsilon),
}  # fmt: skip
#: Arguments that may be left out, or may be several numbers.
OPTIONAL = {
    "RandomWalk cap",
    "OneComponent cap",
    "mmd bandwidth",
    "renyi orders",
}
#: One number of many: errors state the shape of the table.
SHAPES = {"sensitivity table"}


def attempt(name, value):
    called, make, promise = CASES[name]
    try:
        made = make(value)
        if promise is walks:
            made.start(3).propose(np.zeros(3), np.random.default_rng(1))
    except (ValueError, TypeError, PymcDPError) as error:
        said = str(error)
        assert re.search(called, said, re.IGNORECASE), f"does not name {called!r}: {said}"
        written = {repr(value), str(value), f"shape is {np.shape(value)}"}
        written |= {"give epsilon and delta"} if value is None else set()
        if isinstance(value, Real):
            written |= {f"{value:g}", f"{value:.6g}", f"{float(value)}"}
        if name not in SHAPES and not any(form in said for form in written):
            raise AssertionError(f"does not say {value!r}: {said}") from error
        return
    promise(made)


@pytest.mark.parametrize("name", CASES)
@QUICK
@example(math.nan)
@example(math.inf)
@example(-1.0)
@example(0)
@example(1.5)
@given(value=NUMBERS)
def test_numbers(name, value):
    attempt(name, value)


@pytest.mark.parametrize("name", sorted(set(CASES) - OPTIONAL))
@settings(QUICK, max_examples=12)
@given(value=OTHER)
def test_arguments_that_are_not_numbers(name, value):
    attempt(name, value)
