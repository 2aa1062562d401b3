"""Audit of Barker's test and of the samplers on batches: what one decision reveals about a record, against its charge.

As in ``test_decisions``, steps are built on neighbouring data sets, and state and proposal are forced. The decision also depends on
a secret batch: its law is the average over all batches, each given to the step in turn. The Rényi divergences of neighbouring
laws must stay below the charge and come near it, and planted faults must be found.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

from scipy import stats
from scipy.special import logsumexp

from pymc_dp import DPBarker, DPFastMH, DPPenalty, Penalty, PrivacyBudget, RandomWalk
from pymc_dp.privacy.budget.allocation import Allocation
from pymc_dp.privacy.mechanisms.poisson_minibatch import PoissonMinibatchDecision
from pymc_dp.privacy.randomness.bits import OperatingSystemBits
from pymc_dp.steps import Lazy, Metropolis, accept_reject
from tests.audit.test_decisions import ORDERS, Forced, Leak, Observed, compare, patched, sweep
from tests.exactness.targets import compiled_once, decide_on
from tests.exactness.test_fast_mh_exactness import drive, kept_part

BOUND, DISTANCE = 0.5, 0.4
OLD, NEW = 0.1, 0.4
#: Log-ratios of the prior.
RANGE = np.concatenate([np.arange(-6, 10, 0.4), np.arange(10, 40, 3.0)])
#: A record here says nothing about the move; others are clipped to one side or the other.
SILENT, HIGH, LOW = (OLD + NEW) / 2, 1e6, -1e6
VALUES = (HIGH, LOW, SILENT)
N_RECORDS, BATCH = 5, 2


class Walk(Forced):
    """Proposes given moves, with a bound on the distance."""

    max_distance = DISTANCE


def build(y, *, step, adjacency="substitute", private=True, **kwargs):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        pm.Normal("nuisance", 0, 1)
        pm.Normal("y", mu, 1.0, observed=y)
    budget = PrivacyBudget(1e6, 1e-6, chains=4, adjacency=adjacency) if private else None
    options = {"clip_bound": BOUND, "proposal": Walk(DISTANCE)} | kwargs
    with compiled_once("two variables", *y):
        return step(budget=budget, model=model, **options)


def neighbours(others, values=VALUES):
    return [np.array([*others, v]) for v in values]


def all_pairs(seen):
    """Audit every pair; return the largest share of the charge that was needed, by order."""
    return np.max([compare(a, b) for a, b in itertools.combinations(seen, 2)], axis=0)


# ---------------------------------------------------------------- laws of decisions on batches


def law_of(rule, log_ratio):
    """Log-probabilities of accepting and of rejecting."""
    return np.array(rule.log_probabilities(log_ratio))


class Charged(Exception):
    """Ends an iteration where its decision has been charged."""


def charged_moves(step, moves):
    """Every move as an iteration of the step makes it, up to the decision: the mechanism, and what was paid before."""
    asked, charged, pay = [], [], Allocation.charge
    pay_decision = type(step).charge_decision

    def charge(allowance, accesses):
        charged.extend(count * m.renyi(ORDERS) for m, count in accesses)
        return pay(allowance, accesses)

    def asks(self, move):
        decision = pay_decision(self, move)
        asked.append((move, decision, np.sum([np.zeros_like(ORDERS), *charged], axis=0)))
        raise Charged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Allocation, "charge", charge)
        patch.setattr(type(step), "charge_decision", asks)
        step.set_rng(np.random.default_rng(0))
        step.stop_tuning()
        for old, new in moves:
            charged.clear()
            step.proposal.new, step.proposal.distance = new, DISTANCE
            with pytest.raises(Charged):
                step.step(step.likelihood.unravel(old))
    assert len(asked) == len(moves)
    return asked


def on_fixed_size(step, moves):
    """Laws of decisions on batches without replacement: all batches are given, each as likely as the others."""
    n, m = step.likelihood.n_records, step.batch_size
    # The record that changes is the last one, and in the first batch.
    batches = [np.array(b) for b in itertools.combinations(range(n), m)][::-1]
    law, charges, given = [], [], iter(())

    def give(n_records, size, bits):
        assert (n_records, size) == (n, m) and isinstance(bits, OperatingSystemBits)
        return next(given)

    def judge(rule, log_ratio, bits):
        assert isinstance(bits, OperatingSystemBits)
        logs.append(law_of(rule, log_ratio))

    for move, decision, charge in charged_moves(step, moves):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accept_reject, "without_replacement", give)
            patch.setattr(accept_reject, "decide", judge)
            given, logs = iter(batches), []
            for _ in batches:
                decide_on(step, move, decision)
        law.append(logsumexp(logs, axis=0) - math.log(len(batches)))
        charges.append(charge)
    return Observed(np.array(law), np.array(charges))


#: More places than this have no weight, even where each multiplies the odds by the most it can.
MOST = 60
#: Logs of probabilities: of an outcome here, at least, and of what has no weight beside it.
RARE, NOTHING = -55.0, -110.0


def on_poisson(step, moves):
    """Laws of decisions of DP-Fast MH: all sizes of the batch, all places of our record and of the others, which are alike.

    Which places are kept is found by bisection, once; weights are looked up for every move.
    """
    n = step.likelihood.n_records
    law, charges = [], []
    for move, decision, charge in charged_moves(step, moves):
        charges.append(charge)
        given = functools.partial(drive, step, move, decision)
        empty = given()
        if empty.rate is None:  # all records decide
            law.append(law_of(empty.rule, empty.log_ratio))
            continue
        if len(law) == 0:
            kept = [kept_part(given, empty, record) for record in (n - 1, 0)]
            log_weights, log_full = log_weights_of(given, empty.rate, kept, n)
            j, k = np.nonzero(log_weights > NOTHING)
            log_weights = log_weights[j, k]
            assert log_weights.size and j.max(initial=0) < MOST - 1 and k.max(initial=0) < MOST - 1
        ours, other = (given([record]).log_ratio - empty.log_ratio for record in (n - 1, 0))
        terms = logsumexp(law_of(empty.rule, empty.log_ratio + j * ours + k * other) + log_weights, axis=1)  # fmt: skip
        if log_full > -np.inf:
            full = given([0] * (MOST - 1))
            terms = np.logaddexp(terms, log_full + law_of(full.rule, full.log_ratio))
        law.append(terms)
    return Observed(np.array(law), np.array(charges))


def log_weights_of(given, rate, kept, n):
    """Log-probabilities of how many places of ours and of the others count, and that all records decide.

    Up to a limit, if there is one, the batch decides: this is seen from what is done with that many places.
    """
    by_batch = [b for b in range(MOST) if b == 0 or given([0] * b).places == b]
    assert by_batch == list(range(len(by_batch)))
    p, q = kept[0] / n, kept[1] * (n - 1) / n
    j, k = np.meshgrid(np.arange(MOST), np.arange(MOST), indexing="ij")
    if len(by_batch) == MOST:
        with np.errstate(divide="ignore"):
            return stats.poisson.logpmf(j, rate * p) + stats.poisson.logpmf(k, rate * q), -np.inf
    left = np.maximum(len(by_batch) - 1 - j - k, -1)
    rest = stats.poisson.logcdf(left, rate * (1 - p - q))
    log_weights = stats.poisson.logpmf(j, rate * p) + stats.poisson.logpmf(k, rate * q) + rest
    return log_weights, stats.poisson.logsf(len(by_batch) - 1, rate)


# ---------------------------------------------------------------- batches of fixed size

#: Step, options, and the share of the charge that the worst neighbours need at least, at orders up to 16. A record that raises
#: the estimate all the way lowers the variance only if the others agree with it, so the charge is reached one way only, and the
#: other way is worse for lazy decisions. The charge of minibatch Barker adds the largest effects on estimate and variance.
FIXED_SIZE = {
    "penalty": (DPPenalty, {"noise_multiplier": 2.0}, 0.97),
    "lazy penalty, tempered": (DPPenalty, {"noise_scale": 1.0, "laziness": 0.5, "temperature": 0.5}, 0.65),
    "lazy Barker": (DPBarker, {"temperature": 0.5, "laziness": 0.5}, 0.5),
    "Barker, C = 2": (DPBarker, {"temperature": 0.7, "noise_variance": 2.0}, 0.5),
}  # fmt: skip
#: What the other records say: all the same, which is the worst; half against half; nothing.
CROWDS = {
    "one way": [HIGH] * (N_RECORDS - 1),
    "both ways": [HIGH, LOW, LOW, HIGH],
    "silent": [SILENT, 0.6, SILENT, -0.2],
}


def fixed_size(others, values=VALUES, moves=None, **options):
    moves = sweep(OLD, NEW, RANGE) if moves is None else moves
    options = {"batch_size": BATCH} | options
    return [on_fixed_size(build(y, **options), moves) for y in neighbours(others, values)]


def all_but(cases, *slow):
    """Settings; those named with the slow tests."""
    return [pytest.param(n, marks=pytest.mark.slow if n in slow else []) for n in cases]


@pytest.mark.slow
@pytest.mark.parametrize("name", FIXED_SIZE)
def test_batches_of_fixed_size(name):
    """Never above the charge, whatever the other records are; near it where they all agree."""
    step, options, least = FIXED_SIZE[name]
    shares = {
        crowd: all_pairs(fixed_size(others, VALUES[:2] if crowd != "silent" else VALUES, step=step, **options))
        for crowd, others in CROWDS.items()
    }  # fmt: skip
    assert np.all(shares["one way"][ORDERS <= 16] > least)


# ---------------------------------------------------------------- DP-Fast MH

RATE = 2.0
POISSON = {
    "Barker": ({}, 0.94),
    "lazy Barker, tempered": ({"laziness": 0.4, "temperature": 0.4}, 0.94),
    "lazy penalty": ({"rule": Penalty(1.2)}, 0.94),
    "Barker, limit": ({"full_batch_at": 3}, 0.6),
    "lazy penalty, limit": ({"rule": Penalty(1.2), "full_batch_at": 2}, 0.6),
}


def poisson(others, values=VALUES, moves=None, *, step=DPFastMH, **options):
    moves = sweep(OLD, NEW, RANGE) if moves is None else moves
    options = {"batch_rate": RATE} | options
    seen = [on_poisson(build(y, step=step, **options), moves) for y in neighbours(others, values)]
    assert min(each.law.min() for each in seen) > RARE  # nothing was left out
    return seen


@pytest.mark.parametrize("name", all_but(POISSON, "Barker", "lazy penalty", "Barker, limit"))
def test_poisson_batches(name):
    """Never above the charge; near it where the other records say nothing, as the worst case is that they hide nothing."""
    options, least = POISSON[name]
    shares = {
        crowd: all_pairs(poisson([value] * (N_RECORDS - 1), VALUES[:2] if value != SILENT else VALUES, **options))
        for crowd, value in (("silent", SILENT), ("one way", HIGH))
    }  # fmt: skip
    assert np.all(shares["silent"][ORDERS <= 16] > least)


# ---------------------------------------------------------------- planted faults


def with_family(step, **changes):
    """Charges for another family than the one it was built with."""
    family = replace(step.family, **{k: f(step.family) for k, f in changes.items()})
    object.__setattr__(step, "family", family)
    return step


class KeepsItsBatch:
    """Keeps the batch of the first iteration."""

    def changes(self, move, index):
        self._kept = getattr(self, "_kept", index)
        return super().changes(move, self._kept)


class PenaltyOnOneBatch(KeepsItsBatch, DPPenalty):
    pass


class BarkerOnOneBatch(KeepsItsBatch, DPBarker):
    pass


class FastOnFixedRecords(DPFastMH):
    """Fills every place with the same record, in place of a secret one."""

    def changes(self, move, index):
        return super().changes(move, np.full_like(index, self.likelihood.n_records - 1))


class BoundsOfTheData(DPFastMH):
    """Takes the bound that the records need, and clips nothing."""

    def _batch_bound(self, move, decision):
        new, old = self.likelihood.logp(move.new.theta), self.likelihood.logp(move.old.theta)
        change = float(np.abs(new - old).max())
        self._clip = change / move.distance
        return max(self.temperature * change, 1e-3)

    def changes(self, move, index):
        bound = self.clip_bound
        object.__setattr__(self, "clip_bound", self._clip)
        try:
            return super().changes(move, index)
        finally:
            object.__setattr__(self, "clip_bound", bound)


class FreeIfAllDecide(DPFastMH):
    """Charges for batches only."""

    def charge(self, accesses):
        super().charge([(m, k) for m, k in accesses if isinstance(m, PoissonMinibatchDecision)])


EXTREMES = (HIGH, LOW)


def penalty_on_batches(step=DPPenalty, **options):
    return lambda y: build(y, step=step, batch_size=BATCH, noise_scale=1.4, **options)


def barker_on_batches(step=DPBarker, **options):
    return lambda y: build(y, step=step, batch_size=BATCH, temperature=0.7, **options)


def fast(step=DPFastMH, **options):
    return lambda y: build(y, step=step, **({"batch_rate": RATE} | options))


def changed(build_on, **changes):
    return lambda y: with_family(build_on(y), **changes)


def half(name):
    return {name: lambda family: getattr(family, name) / 2}


def by_rule(change):
    """Decisions drawn by another rule than was charged."""
    real = law_of
    return patched(sys.modules[__name__], "law_of", lambda rule, x: real(change(rule), x))


FIXED_SIZE_FAULTS = {
    "fixed batch": penalty_on_batches(PenaltyOnOneBatch),
    "fixed batch, Barker": barker_on_batches(BarkerOnOneBatch),
    "half the sampling": changed(penalty_on_batches(), **half("sampling_probability")),
    "half the sampling, Barker": changed(barker_on_batches(), **half("sampling_probability")),
    "half the sensitivity": changed(penalty_on_batches(), **half("sensitivity_per_distance")),
    "half the sensitivity, Barker": changed(barker_on_batches(), **half("sensitivity_per_distance")),
    "variance not charged": changed(penalty_on_batches(), sensitivity_per_square=lambda f: 0.0),
    "half the variance charged": changed(penalty_on_batches(), **half("sensitivity_per_square")),
    "lazy in the charge only": (penalty_on_batches(laziness=0.5), by_rule(lambda rule: rule.rule)),
    "lazy in the charge only, Barker": changed(barker_on_batches(), laziness=lambda f: 0.5),
    "Metropolis' rule": (penalty_on_batches(), by_rule(lambda rule: Metropolis())),
}  # fmt: skip
POISSON_FAULTS = {
    "half the bound": changed(fast(), **half("bound_per_distance")),
    "known records": fast(FastOnFixedRecords),
    "lazy in the charge only": (fast(laziness=0.5), by_rule(lambda rule: rule.rule)),
    "Metropolis' rule": (fast(), by_rule(lambda rule: Metropolis())),
    "penalty rule, charged as Barker's": (fast(), by_rule(lambda rule: Penalty(0.5))),
    "bounds of the data": fast(BoundsOfTheData),
    "free if all decide": fast(FreeIfAllDecide, batch_rate=N_RECORDS + 1.0),
}
#: Beyond the clip bound, but not so far that a batch would have more places than there are records.
FAULT_VALUES = {"bounds of the data": (SILENT + 1.8, SILENT - 1.8)}


def find(fault, laws, others, values=EXTREMES):
    build_on, plant = fault if isinstance(fault, tuple) else (fault, contextlib.nullcontext)
    moves = sweep(OLD, NEW, np.arange(-6, 12, 0.5))
    with plant():
        seen = [laws(build_on(y), moves) for y in neighbours(others, values)]
    with pytest.raises(Leak):
        all_pairs(seen)


@pytest.mark.parametrize("fault", FIXED_SIZE_FAULTS)
def test_fault_on_batches_of_fixed_size_is_found(fault):
    find(FIXED_SIZE_FAULTS[fault], on_fixed_size, CROWDS["one way"])


@pytest.mark.parametrize("fault", POISSON_FAULTS)
def test_fault_on_poisson_batches_is_found(fault):
    others = [SILENT] * (N_RECORDS - 1)
    find(POISSON_FAULTS[fault], on_poisson, others, FAULT_VALUES.get(fault, EXTREMES))


OTHERS = [0.3, 1.1, -0.4, 0.8, 0.2]


# ---------------------------------------------------------------- refusals


def attempt(y=(*OTHERS, 0.5), *, proposal=None, **kwargs):
    return build(np.array(y), proposal=proposal or RandomWalk(0.1, max_distance=0.3), **kwargs)


LONG_WALK = RandomWalk(0.1, max_distance=1.0)
REFUSED = {
    "batches under add/remove": ({"step": DPPenalty, "batch_size": 3, "adjacency": "add_remove"}, "adjacency 'substitute', not 'add_remove'"),
    "Barker on batches under add/remove": ({"step": DPBarker, "batch_size": 3, "adjacency": "add_remove"}, "adjacency 'substitute', not 'add_remove'"),
    "DP-Fast MH under add/remove": ({"step": DPFastMH, "batch_rate": 1.0, "adjacency": "add_remove"}, "adjacency 'substitute', not 'add_remove'"),
    "Metropolis": ({"step": DPFastMH, "rule": Metropolis()}, "refused in a private run.*budget=None for a run without privacy"),
    "lazy Metropolis": ({"step": DPFastMH, "rule": Lazy(Metropolis(), 0.5)}, "refused in a private run"),
    "penalty that is not lazy": ({"step": DPFastMH, "rule": Penalty(1.0), "laziness": 1}, "Leave out laziness .0.5 then., or use Barker.., or DPPenalty"),
    "batch of one": ({"step": DPPenalty, "batch_size": 1}, "batch_size must be from 2 to the number of records, 6, got 1"),
    "batch too large": ({"step": DPPenalty, "batch_size": 7}, "batch_size must be from 2 to the number of records, 6"),
    "no clip bound": ({"step": DPFastMH, "clip_bound": math.inf, "private": False}, "finite clip_bound"),
    "variance above one": ({"step": DPBarker, "batch_size": 2, "proposal": LONG_WALK}, "max_distance of at most 0.471405"),
    "variance without a bound": ({"step": DPBarker, "batch_size": 4, "proposal": RandomWalk(0.1)}, "no max_distance given.*max_distance of at most 0.666667"),
    "unbounded Barker on batches": ({"step": DPBarker, "batch_size": 4, "clip_bound": math.inf, "private": False}, "max_distance|clip_bound"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    """With a message that says what to do, and that is the same whatever the data are."""
    options, message = REFUSED[name]
    texts = []
    for y in ((*OTHERS, 0.5), (0.0,) * 6):
        with pytest.raises(ValueError, match=message) as caught:
            attempt(y, **options)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_what_a_refusal_recommends_is_accepted():
    with pytest.raises(ValueError, match="max_distance of at most") as caught:
        attempt(step=DPBarker, batch_size=4, proposal=LONG_WALK)
    advice = float(str(caught.value).split("max_distance of at most ")[1].split(",")[0])
    step = attempt(step=DPBarker, batch_size=4, proposal=RandomWalk(0.1, max_distance=advice * (1 - 1e-6)))  # fmt: skip
    assert 0.999 < step._largest_variance() <= 1
    assert isinstance(attempt(step=DPFastMH, rule=Penalty(1.0)).rule, Lazy)
    assert attempt(step=DPFastMH, rule=Metropolis(), private=False).family is None
    assert attempt(step=DPPenalty, batch_size=6).batch_size is None  # all of them
    attempt(step=DPBarker, adjacency="add_remove")
