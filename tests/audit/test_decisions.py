"""Audit of decisions on all records from outside: what one decision reveals about a record, against what was charged for it.

A step is built on neighbouring data sets. State and proposal are forced, and the probability of accepting is taken from
the only place where randomness enters, the Bernoulli draw. The Rényi divergences between the two decisions, both
outcomes and both orders, over a fine range of log-ratios, must stay below the charge. The audit is as good as the faults
it finds: each is planted here, and must be found.
"""

from __future__ import annotations

import contextlib
import math
import sys

from dataclasses import dataclass, replace

import numpy as np
import pymc as pm
import pytest

import pymc_dp.privacy.randomness.bits as noise

from pymc_dp import DPBarker, DPPenalty, Penalty, PrivacyBudget
from pymc_dp.model.sums.exact_sums import grid, sum_of_steps
from pymc_dp.privacy.budget.allocation import Allocation
from pymc_dp.privacy.mechanisms import mechanism as mechanisms
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalDecision
from pymc_dp.steps import Metropolis, accept_reject
from tests.audit.replay import Leak
from tests.exactness.targets import compiled_once

ORDERS = np.array([1.1, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0])
#: What the data sets do not share with chance: tests on secret randomness fail by chance with this probability.
LIMIT = 1e-9


#: The Bernoulli draw takes a double: probabilities that underflow, one data set before the other, are taken as equal.
#: All that could tell the data sets apart below this happens with this probability.
UNDERFLOW = 1e-290


# ---------------------------------------------------------------- the audit


class Forced:
    """A proposal of given moves, with given distances."""

    def __init__(self, typical):
        self.new, self.distance = None, typical

    def start(self, n_dim):
        return self

    def propose(self, theta, rng):
        return (theta + self.distance if self.new is None else self.new.copy()), self.distance

    def decided(self, accepted):
        pass


@dataclass
class Observed:
    """Laws of a decision over many moves: log-probabilities (n, 2) of accepting and rejecting, and charges (n, orders)."""

    law: np.ndarray
    charge: np.ndarray


def observe(step, moves, distance):
    """The exact law of each decision, and what it was charged."""
    law, charges = [], []
    drawn, charged = [], []
    pay = Allocation.charge

    def record_draw(p, bits):
        drawn.append(p)
        return True

    def record_charge(self, accesses):
        charged.append(sum(count * mechanism.renyi(ORDERS) for mechanism, count in accesses))
        return pay(self, accesses)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "bernoulli", record_draw)
        patch.setattr(Allocation, "charge", record_charge)
        step.set_rng(np.random.default_rng(0))
        step.stop_tuning()
        for old, new in moves:
            drawn.clear(), charged.clear()
            step.proposal.new, step.proposal.distance = new, distance
            _, (statistics,) = step.step(step.likelihood.unravel(old))
            assert not statistics["exhausted"]
            assert len(drawn) <= 1
            p = drawn[0] if drawn else 1.0
            p = max(p, UNDERFLOW) if p > 0 or drawn else 0.0
            with np.errstate(divide="ignore"):
                yes, no = np.log(p), np.log1p(-p)
            law.append((yes, no) if statistics["accepted"] else (no, yes))
            charges.append(np.sum([np.zeros_like(ORDERS), *charged], axis=0))
    return Observed(np.array(law), np.array(charges))


def renyi(log_p, log_q):
    """Divergence between two decisions, (n, 2) each, at all orders: (n, orders)."""
    log_p, log_q = log_p[:, None, :], log_q[:, None, :]
    alpha = ORDERS[None, :, None]
    with np.errstate(invalid="ignore"):
        terms = np.where(np.isneginf(log_p), -np.inf, alpha * log_p + (1 - alpha) * log_q)
    return np.logaddexp(terms[..., 0], terms[..., 1]) / (ORDERS - 1)


def compare(one, two):
    """Raise Leak unless the charge covers both orders; return the largest share of the charge that was needed, by order."""
    if not np.array_equal(one.charge, two.charge):
        raise Leak("the charge depends on the data")
    needed = np.maximum(renyi(one.law, two.law), renyi(two.law, one.law))
    worst = np.unravel_index(np.argmax(needed - one.charge), needed.shape)
    if not np.all(needed <= one.charge + 1e-12):
        raise Leak(
            f"order {ORDERS[worst[1]]:g}: {needed[worst]:.4g} charged as {one.charge[worst]:.4g}"
        )
    with np.errstate(invalid="ignore"):
        return np.max(needed / one.charge, axis=0)


def sweep(old, new, log_ratios):
    """Moves that differ in the prior ratio of a nuisance parameter only: the second one, standard normal."""
    moves = []
    for x in log_ratios:
        far = math.sqrt(2 * abs(x))
        a, b = (far, 0.0) if x > 0 else (0.0, far)
        moves.append((np.array([old, a]), np.array([new, b])))
    return moves


#: Log-ratios of the prior: the likelihood adds up to N * bound to them.
RANGE = np.concatenate([np.arange(-6, 12, 0.1), np.arange(12, 60, 1.0)])
OTHERS = np.random.default_rng(31).normal(0.3, 1.0, size=12)
#: Values of the record that changes: far out on either side, and others.
VALUES = (1e6, -1e6, 0.4, -1e300)
BOUND, DISTANCE = 0.5, 0.4


def normal_model(y, **kwargs):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        pm.Normal("nuisance", 0, 1)
        pm.Normal("y", mu, 1.0, observed=y)
    with compiled_once("nuisance", y.tobytes()):
        return build(model, **kwargs)


def build(model, *, step=DPPenalty, adjacency="substitute", **kwargs):
    budget = PrivacyBudget(1e6, 1e-6, chains=4, adjacency=adjacency)
    settings = {"clip_bound": BOUND, "proposal": Forced(DISTANCE)} | kwargs
    if step is not DPBarker and not {"noise_scale", "noise_multiplier"} & settings.keys():
        settings["noise_scale"] = 1.4
    return step(budget=budget, model=model, **settings)


def audit(
    build_on,
    data_sets,
    *,
    moves=None,
    distance=DISTANCE,
    neighbours=None,
    plant=contextlib.nullcontext,
):
    """Audit all pairs of neighbouring data sets; a plant changes the steps or the code they call."""
    moves = sweep(0.1, 0.4, RANGE) if moves is None else moves
    with plant():
        seen = [observe(build_on(data), moves, distance) for data in data_sets]
    shares = []
    for i in range(len(seen)):
        for j in range(i):
            if neighbours is None or neighbours(i, j):
                shares.append(compare(seen[i], seen[j]))
    return np.max(shares, axis=0)


def substitute(values=VALUES):
    return [np.append(OTHERS, v) for v in values]


def on(**kwargs):
    return lambda y: normal_model(y, **kwargs)


# ---------------------------------------------------------------- the real step passes, and not by a wide margin

SETTINGS = {
    "noise scale": {"noise_scale": 1.4},
    "little noise": {"noise_scale": 0.3},
    "noise multiplier": {"noise_multiplier": 4.0},
    "lazy": {"noise_scale": 1.4, "laziness": 0.5},
    "tempered": {"noise_scale": 1.0, "temperature": 0.3},
    "lazy, tempered, noise multiplier": {
        "noise_multiplier": 6.0,
        "laziness": 0.3,
        "temperature": 0.5,
    },
    "Barker": {"step": DPBarker},
    "lazy Barker, tempered": {"step": DPBarker, "laziness": 0.5, "temperature": 0.6},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_substitution(name):
    """Never above the charge; within 2 % of it for the worst neighbours: nothing is wasted and the audit has power."""
    moves = (
        sweep(0.1, 0.4, np.concatenate([RANGE, np.arange(-3, 5, 0.04)]))
        if name == "little noise"
        else None
    )
    share = audit(on(**SETTINGS[name]), substitute(VALUES[:3]), moves=moves)
    assert np.all(share[ORDERS <= 16] > 0.98)


def test_other_distances():
    """The charge follows the distance of each proposal, long or short."""
    steps = [normal_model(y) for y in substitute((1e6, -1e6))]
    for distance in (1e-3, 0.0371, 0.9, 3.0):
        share = compare(*(observe(step, sweep(0.1, 0.4, RANGE), distance) for step in steps))
        assert np.all(share[ORDERS <= 16] > 0.98)


def test_every_order_of_the_accountant_is_covered(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ORDERS", mechanisms.ORDERS[::7])
    audit(on(), substitute())


@pytest.mark.parametrize("step", [DPPenalty, DPBarker])
def test_add_or_remove(step):
    """Half the sensitivity, for a data set with or without one record."""
    data = [np.append(OTHERS, v) for v in VALUES] + [OTHERS]
    last = len(data) - 1
    share = audit(
        on(step=step, adjacency="add_remove"), data, neighbours=lambda i, j: last in (i, j)
    )
    assert np.all(share[ORDERS <= 16] > 0.98)
    with pytest.raises(Leak):  # substituting is twice as much as is promised here
        audit(on(step=step, adjacency="add_remove"), data[:2])


PERSON = np.array([3, 0, 1, 0, 3, 2, 3, 1, 2, 2, 1, 3])


def persons(values=(1e6, -1e6, 0.0)):
    """All rows of person 3 change."""
    return [np.where(PERSON == 3, v, OTHERS) for v in values]


@pytest.mark.slow
def test_person_with_several_rows():
    share = audit(on(records=PERSON), persons())
    assert np.all(share[ORDERS <= 16] > 0.98)


def infinite_model(y, **kwargs):
    """Log-likelihoods that overflow: infinite, or not a number, for a record with a value out of range."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        pm.Normal("nuisance", 0, 1)
        pm.CustomDist("y", mu, logp=lambda value, mu: value * mu, observed=y)
    with compiled_once("infinite", y.tobytes()):
        return build(model, **kwargs)


EXTREMES = (math.inf, -math.inf, 1e308, -1e308, 0.4, 1e6)
EXTREME_MOVES = [
    move
    for old, new in ((0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (10.0, 20.0), (0.0, 20.0), (-20.0, 0.0))
    for move in sweep(old, new, np.arange(-6, 14, 0.25))
]


def test_record_that_is_not_finite():
    """One record with likelihood 0, infinity or no number at all counts like any other."""
    share = audit(infinite_model, substitute(EXTREMES), moves=EXTREME_MOVES)
    assert np.all(share[ORDERS <= 16] > 0.98)


def test_impossible_prior():
    """Moves into or between states that the prior excludes are decided by public facts."""

    def bounded(y):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 2)
            nuisance = pm.Normal("nuisance", 0, 1)
            pm.Potential("wall", pm.math.switch(nuisance > 1, -np.inf, 0.0))
            pm.Normal("y", mu, 1.0, observed=y)
        return build(model)

    inside, outside, beyond = np.array([0.1, 0.0]), np.array([0.4, 2.0]), np.array([0.2, 3.0])
    audit(
        bounded,
        substitute(),
        moves=[(inside, outside), (outside, inside), (outside, beyond), (inside, inside + 0.1)],
    )


# ---------------------------------------------------------------- planted faults


def patched(target, name, value):
    @contextlib.contextmanager
    def plant():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target, name, value)
            yield

    return plant


def with_rule(change):
    """A step that draws its decision by another rule than was charged."""
    return patched(
        accept_reject, "decide", lambda rule, x, bits: noise.decide(change(rule), x, bits)
    )


def clipped_sum(new, old, bound):
    """What the sum should be."""
    if bound == math.inf:
        return float(np.nansum(new - old))
    exponent, limit = grid(bound)
    return math.ldexp(sum_of_steps(new, old, 2.0**-exponent, float(limit)), exponent)


class Tampered:
    """A likelihood with another sum of changes."""

    def __init__(self, likelihood, clipped_sum):
        self._likelihood, self._sum = likelihood, clipped_sum

    def clipped_change(self, new, old, bound):
        new, old = self._likelihood.logp(new), self._likelihood.logp(old)
        return self._sum(new, old, bound)

    def __getattr__(self, name):
        return getattr(self._likelihood, name)


def with_sum(clipped_sum, make=normal_model, **kwargs):
    def build_on(y):
        step = make(y, **kwargs)
        object.__setattr__(step, "likelihood", Tampered(step.likelihood, clipped_sum))
        return step

    return build_on


def clips_the_sum(new, old, bound):
    limit = bound * len(new)
    return float(np.clip(np.sum(new - old), -limit, limit))


def sums_what_is_no_number(new, old, bound):
    with np.errstate(all="ignore"):
        return float(np.sum(np.clip(new - old, -bound, bound)))


def drops_infinities(new, old, bound):
    """Looks harmless, but a single infinity decides for all records."""
    with np.errstate(all="ignore"):
        return (
            float(np.clip(np.nansum(new - old), -1e9, 1e9))
            if np.any(np.isinf(new))
            else clipped_sum(new, old, bound)
        )


def forgets_temperature(new, old, bound):
    return clipped_sum(new, old, bound) / 0.3


def metropolis_test(rule, x, bits):
    """Accept if log(u) < x."""
    return noise.bernoulli(math.exp(min(0.0, x)), bits)


def half_the_charge(y):
    step = normal_model(y)
    half = step.family.sensitivity_per_distance / 2
    object.__setattr__(step, "family", replace(step.family, sensitivity_per_distance=half))
    return step


def charges_the_cell_below(self, distance, offset=0.0):
    sensitivity = self.sensitivity_per_distance * distance
    return self._cell(math.floor(math.log(sensitivity) / math.log(self.RATIO)))


class ChargesNothing(DPPenalty):
    def charge(self, accesses):
        pass


class ChargesByTheData(DPPenalty):
    """Charges for the clip bound that the data needed."""

    def transition(self, theta):
        family = self.family
        change = np.abs(self.likelihood.logp(theta) - self.likelihood.logp(theta + 0.1)).max()
        try:
            least = replace(
                family, sensitivity_per_distance=min(family.sensitivity_per_distance, change)
            )
            object.__setattr__(self, "family", least)
            return super().transition(theta)
        finally:
            object.__setattr__(self, "family", family)


FAULTS = {
    "no noise": {"plant": with_rule(lambda rule: Penalty(1e-6))},
    "half the noise": {"plant": with_rule(lambda rule: replace(rule, scale=rule.scale / 2))},
    "a little less noise": {"plant": with_rule(lambda rule: replace(rule, scale=rule.scale * 0.95))},
    "Metropolis' rule": {"plant": with_rule(lambda rule: Metropolis())},
    "a plain Metropolis test": {"plant": patched(accept_reject, "decide", metropolis_test)},
    "not lazy": {"plant": with_rule(lambda rule: rule.rule), "build_on": on(laziness=0.5)},
    "clips the sum": {"build_on": with_sum(clips_the_sum)},
    "does not clip": {"build_on": with_sum(lambda new, old, bound: clipped_sum(new, old, math.inf))},
    "clips at twice the bound": {"build_on": with_sum(lambda new, old, bound: clipped_sum(new, old, 2 * bound))},
    "sums what is no number": {
        "build_on": with_sum(sums_what_is_no_number, infinite_model),
        "data_sets": substitute(EXTREMES),
        "moves": EXTREME_MOVES,
    },
    "an infinite record decides": {
        "build_on": with_sum(drops_infinities, infinite_model),
        "data_sets": substitute(EXTREMES),
        "moves": EXTREME_MOVES,
    },
    "rows, not persons": {"build_on": on(), "data_sets": persons()},
    "rows of the wrong person": {"build_on": on(records=np.roll(PERSON, 1)), "data_sets": persons()},
    "temperature in the charge only": {"build_on": with_sum(forgets_temperature, temperature=0.3)},
    "charge for adding or removing": {"build_on": half_the_charge},
    "charge rounded down": {"plant": patched(PerProposalDecision, "at", charges_the_cell_below)},
    "no charge": {"build_on": on(step=ChargesNothing)},
    "charge by the data": {"build_on": on(step=ChargesByTheData), "data_sets": substitute((1e6, 0.4))},
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault):
    arguments = {"build_on": on(), "data_sets": substitute((1e6, -1e6))} | FAULTS[fault]
    with pytest.raises(Leak):
        audit(**arguments)
