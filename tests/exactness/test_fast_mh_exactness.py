"""DP-Fast MH is exact: single decisions, and chains.

It is compared with three things. Its law of acceptance is found by giving it every outcome of its own randomness, and must be
that of independent Poisson counts and in detailed balance, to rounding. How often it accepts, with its own randomness, must agree
with that law. And its chains must have the posterior; so must those of Barker's test on all records.
"""

from __future__ import annotations

import functools
import inspect
import math
import textwrap

from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytest

from scipy import stats

from pymc_dp import (
    DPBarker,
    DPFastMH,
    GuidedWalk,
    OneComponent,
    Penalty,
    PrivacyBudget,
    RandomWalk,
)
from pymc_dp.privacy.randomness.batches import without_replacement
from pymc_dp.steps import Metropolis, accept_reject, fast_mh
from tests.exactness.targets import (
    BANANA,
    GAUSSIAN,
    LOGIT,
    compiled_once,
    decide_on,
    decision_for,
    move_between,
)
from tests.exactness.test_exactness import (
    LIMIT,
    check,
    private_step,
    reference,
    run,
)

# ---------------------------------------------------------------- a step whose randomness is given


@dataclass
class Given:
    """What a step of the DP-Fast MH family does with a batch that it is given."""

    rate: float | None = None  # expected number of places; None if no batch was asked for
    places: int | None = None  # number of places that were filled; None if all records decide
    rule: object = None
    log_ratio: float = math.nan


def drive(step, move, decision, places=(), u=0.0):
    """One decision on given places of the batch, with given uniform numbers: what goes into the last draw."""
    places = np.asarray(places, dtype=np.int64)
    given = Given()

    def count(rate, bits):
        assert bits is step._bits
        given.rate = rate
        return len(places)

    def fill(n_records, size, bits):
        assert (n_records, size) == (step.likelihood.n_records, len(places))
        assert bits is step._bits
        given.places = size
        return places

    def numbers(n, bits):
        assert n == len(places) and bits is step._bits
        return np.array(np.broadcast_to(u, len(places)), dtype=float)

    def judge(rule, log_ratio, bits):
        assert bits is step._bits
        given.rule, given.log_ratio = rule, log_ratio
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_mh, "poisson_count", count)
        patch.setattr(fast_mh, "with_replacement", fill)
        patch.setattr(fast_mh, "uniforms", numbers)
        patch.setattr(accept_reject, "decide", judge)
        decide_on(step, move, decision)
    return given


@dataclass
class Counts:
    """Each record counts an independent Poisson number of times, each time adding its weight to the log-ratio."""

    rates: np.ndarray
    weights: np.ndarray
    offset: float
    rule: object

    def acceptance(self):
        """Exact up to counts that together have probability 1e-14 or less."""
        x, p = np.array([self.offset]), np.ones(1)
        for rate, weight in zip(self.rates, self.weights, strict=True):
            j = np.arange(int(stats.poisson.isf(1e-15, rate)) + 2)
            x, p = np.add.outer(x, j * weight).ravel(), np.outer(p, stats.poisson.pmf(j, rate)).ravel()  # fmt: skip
        return float(p @ np.exp(self.rule.log_probabilities(x)[0]))


def kept_part(given, empty, record):
    """Probability that a place of this record counts, by bisection over its uniform number; 0 if that changes nothing."""
    if given([record]).log_ratio == empty.log_ratio:
        return 0.0
    low, high = 0, 2**53
    while low < high:
        middle = (low + high) // 2
        counts = given([record], middle * 2.0**-53).log_ratio != empty.log_ratio
        low, high = (middle + 1, high) if counts else (low, middle)
    return low * 2.0**-53


def driven(step, move, decision):
    """The law of a step's decision, from nothing but what the step does with given randomness."""
    n, given = step.likelihood.n_records, functools.partial(drive, step, move, decision)
    empty = given()
    weights = np.array([given([i]).log_ratio - empty.log_ratio for i in range(n)])
    kept = np.array([kept_part(given, empty, i) for i in range(n)])
    rng = np.random.default_rng(0)
    for size in (2, 3, 7):  # places do not interact
        places, u = rng.integers(n, size=size), rng.random(size)
        counted = places[u < kept[places]]
        expected = empty.log_ratio + weights[counted].sum()
        assert given(places, u).log_ratio == pytest.approx(expected, abs=1e-9)
    return Counts(empty.rate * kept / n, weights, empty.log_ratio, empty.rule)


# ---------------------------------------------------------------- detailed balance of single moves

#: Contributions of one record per unit of distance: at the bound, beyond it, within it.
FEW = {2: np.array([1.0, -0.4]), 3: np.array([0.9, -2.5, 0.8])}
RATE, BOUND, TEMPERATURE = 0.25, 1.0, 0.6
PAIRS = [(0.0, 1.3), (0.1, 0.75), (0.6, -0.5)]


def few_records(n=3, *, step=DPFastMH, private=True, bound=BOUND, **kwargs):
    """A step on two or three records, whose log-likelihoods are linear: every ratio is known."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.4, 0.6)
        pm.CustomDist("y", mu, logp=lambda value, mu: value * mu, observed=FEW[n])
    options = {"clip_bound": bound, "proposal": RandomWalk(0.5), "batch_rate": RATE, "temperature": TEMPERATURE}  # fmt: skip
    budget = PrivacyBudget(math.inf, 1e-6, chains=1) if private else None
    options |= {"budget": budget, "reproducible": True}
    with compiled_once("few records", *FEW[n]):
        method = step(model=model, **(options | kwargs))
    method.set_rng(np.random.default_rng(12))
    method.stop_tuning()
    method._open()
    return method


def written_by_hand(step, move, decision):
    """The law of a decision, from the definition: rates, weights and prior."""
    n, d = step.likelihood.n_records, move.distance
    u = np.clip(FEW[n] * (move.new.theta - move.old.theta) / (BOUND * d), -1, 1)
    c = TEMPERATURE * BOUND * d
    u, c = (u, c) if decision is None else (u * c / decision.log_ratio_bound, decision.log_ratio_bound)  # fmt: skip
    here, back = 2 * RATE + n * c * (1 - u), 2 * RATE + n * c * (1 + u)
    prior = stats.norm.logpdf([move.new.theta[0], move.old.theta[0]], 0.4, 0.6) @ [1, -1]
    rule = step.rule
    return Counts(here / (2 * n), np.log(back / here), float(prior), rule)


RULES = {
    "Barker": {},
    "lazy Barker": {"laziness": 0.4},
    "lazy penalty": {"rule": Penalty(1.2), "laziness": 0.7},
    "penalty": {"rule": Penalty(0.8), "private": False},
    "Metropolis": {"rule": Metropolis(), "private": False},
    "lazy Metropolis": {"rule": Metropolis(), "laziness": 0.6, "private": False},
}


@pytest.mark.parametrize("n", FEW)
@pytest.mark.parametrize("name", RULES)
def test_law_of_a_decision(name, n):
    """By enumeration of the step's own randomness: independent Poisson counts, and detailed balance to 1e-10."""
    step = few_records(n, **RULES[name])
    for old, new in PAIRS:
        there, back = (move_between(step, [a], [b]) for a, b in ((old, new), (new, old)))
        charged = decision_for(step, there)
        assert charged == decision_for(step, back)
        if charged is not None:  # what is charged is what is done: the bound is rounded up
            rounding = charged.log_ratio_bound / (TEMPERATURE * BOUND * there.distance)
            assert 1 < rounding < step.family.RATIO + 1e-6
        laws = [driven(step, move, charged) for move in (there, back)]
        for move, law in zip((there, back), laws, strict=True):
            expected = written_by_hand(step, move, charged)
            assert law.rule == expected.rule
            assert law.offset == pytest.approx(expected.offset, abs=1e-12)
            np.testing.assert_allclose(law.weights, expected.weights, rtol=0, atol=1e-7)
            np.testing.assert_allclose(law.rates, expected.rates, rtol=1e-8)
        forth, again = (law.acceptance() for law in laws)
        odds = math.exp(step.log_ratio(there))
        assert odds * again == pytest.approx(forth, rel=1e-10)
        assert abs(math.log(odds)) > 0.05  # there is something to balance


#: Decisions drawn for each move.
N_TRIES = 6000


def check_frequencies(step):
    """Raise unless a step accepts as often as the law written by hand says, there and back."""
    for old, new in (PAIRS[0], PAIRS[0][::-1]):
        move = move_between(step, [old], [new])
        decision = decision_for(step, move)
        p = written_by_hand(step, move, decision).acceptance()
        accepted = sum(decide_on(step, move, decision) for _ in range(N_TRIES))
        if stats.binomtest(accepted, N_TRIES, p).pvalue < LIMIT:
            raise AssertionError(f"wrong law: {accepted / N_TRIES:.3f} in place of {p:.3f}")


@pytest.mark.parametrize(
    "name", ["Barker", *(pytest.param(n, marks=pytest.mark.slow) for n in ("lazy penalty", "Metropolis"))]
)  # fmt: skip
def test_frequency_of_acceptance(name):
    """With its own randomness a step accepts as often as the enumeration says: what fails below fails for its fault."""
    check_frequencies(few_records(**RULES[name]))


def planted(old, new):
    """How the step decides, with a fault in its own text."""
    source = textwrap.dedent(inspect.getsource(DPFastMH.transition))
    assert source.count(old) == 1, old
    names, scope = vars(fast_mh) | {"without_replacement": without_replacement}, {}
    exec(source.replace(old, new), names, scope)
    return scope["transition"]


FAULTS = {
    "wrong sign": ("np.log(backward[kept] / forward[kept])", "np.log(forward[kept] / backward[kept])"),
    "artanh in place of twice that": (".sum()) + move.prior", ".sum() / 2) + move.prior"),
    "keeps the others, with 1 + u": ("(2 * capacity) < forward", "(2 * capacity) < backward"),
    "keeps all": ("(2 * capacity) < forward", "(2 * capacity) < np.inf"),
    "no correction for the batch": ("np.log(backward[kept] / forward[kept]).sum()", "u_total.sum() / max(size, 1)"),
    "prior at each place that is kept": ("+ move.prior", "+ move.prior * kept.sum() / (capacity / 2)"),
    "as many places as expected": ("poisson_count(capacity, self._bits)", "round(capacity)"),
    "no record twice": (
        "with_replacement(n, size, self._bits)", "without_replacement(n, size := min(n, size), self._bits)",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_broken_decisions_are_found(fault):
    mutant = type("Mutant", (DPFastMH,), {"transition": planted(*FAULTS[fault])})
    with pytest.raises(AssertionError, match="wrong law"):
        check_frequencies(few_records(step=mutant))


# ---------------------------------------------------------------- a limit beyond which all records decide

#: All records pull one way: what the others leave out shows.
ONE_WAY = np.array([0.9, 2.5, 0.8])
LIMIT_AT = 2


def one_way(**kwargs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FEW, 3, ONE_WAY)
        return few_records(**kwargs)


def check_balance(step):
    """Raise unless moves there and back are accepted in proportion to the densities, short moves and long ones."""
    for old, new in PAIRS[:2]:
        there, back = (move_between(step, [a], [b]) for a, b in ((old, new), (new, old)))
        decision = decision_for(step, there)
        odds = math.exp(step.log_ratio(there))
        forth, again = (
            sum(decide_on(step, move, decision) for _ in range(N_TRIES)) / N_TRIES
            for move in (there, back)
        )
        error = math.sqrt(forth * (1 - forth) / N_TRIES + odds**2 * again * (1 - again) / N_TRIES)
        if stats.norm.sf(abs(forth - odds * again) / error) < LIMIT / 2:
            raise AssertionError(f"no balance: {forth:.3f} and {odds * again:.3f}")


@pytest.mark.slow
def test_limit_on_the_expected_size_keeps_balance():
    """All records where the batch *expected* reaches the limit, as in the code of the paper: public, and exact."""
    check_balance(one_way(full_batch_at=LIMIT_AT))


class DrawnSizeDecides(DPFastMH):
    """All records where the batch *drawn* reaches the limit, as in Algorithm 2 of the paper.

    Not reversible, other than Theorem 3 of the paper says: whether ``B < K`` has the same probability both ways, but
    given ``B < K`` the counts of records are not independent any more, and the factor ``exp(lambda)`` is lost.
    """

    transition = planted(
        "    index = with_replacement",
        f"    if size >= {LIMIT_AT}:\n        return self.choose(move, decision.rule, self.log_ratio(move))\n    index = with_replacement",
    )  # fmt: skip


def test_limit_on_the_drawn_size_does_not():
    with pytest.raises(AssertionError, match="no balance"):
        check_balance(one_way(step=DrawnSizeDecides))


# ---------------------------------------------------------------- chains


def largest_slope(likelihood, proposal, exact):
    """Largest change of a record's log-likelihood per unit of distance, over many moves, and the rms distance."""
    walk, rng = proposal.start(exact.shape[1]), np.random.default_rng(0)
    slopes, distances = [], []
    for theta in exact[:400]:
        new, distance = walk.propose(theta, rng)
        change = np.abs(likelihood.logp(new) - likelihood.logp(theta)).max()
        slopes.append(change / distance), distances.append(distance)
    return max(slopes), math.sqrt(np.mean(np.square(distances)))


#: Clip bounds are the largest slope seen in a trial, times this: no record is clipped in a chain.
MARGIN = 1.5
#: Part of the expected batch that does not depend on the proposal, divided by the number of records.
PART = 0.15


def minibatch_chain(target, walk, *, private=True, temperature=1.0, seed=1, n=10_000, **options):
    """Draws of a chain, exact draws, and how many different records each decision looked at; none is clipped."""
    exact = reference(target, temperature)
    proposal, model = walk(exact.std(axis=0)), target.model()
    with compiled_once(target.name) as compiled:
        likelihood = compiled(model, records=options.get("records"))
        slope, typical = largest_slope(likelihood, proposal, exact)
        bound, rate = MARGIN * slope, PART * likelihood.n_records
        if options.get("full_batch_at") == "half":
            options["full_batch_at"] = round(rate + likelihood.n_records * temperature * bound * typical)  # fmt: skip
        step = DPFastMH(
            model=model, budget=PrivacyBudget(math.inf, 1e-6, chains=1) if private else None, clip_bound=bound,
            proposal=proposal, batch_rate=rate, temperature=temperature, reproducible=True, **options,
        )  # fmt: skip
    looked, changes, clipped = [], step.changes, accept_reject.clipped_changes

    def note_records(move, index):
        looked.append(len(np.unique(index)))
        return changes(move, index)

    def check_changes(new, old, bound):
        assert np.abs(new - old).max(initial=0) < bound
        return clipped(new, old, bound)

    start = np.random.default_rng(seed + 1000).integers(len(exact))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(step.__dict__, "changes", note_records)
        patch.setattr(accept_reject, "clipped_changes", check_changes)
        draws = run(step, exact[start], n, seed)
    assert np.mean(looked) < 0.5 * likelihood.n_records
    return draws, exact, len(looked) / n


BLIND = {
    "random walk": lambda sd: RandomWalk(0.8 * sd, max_distance=2.0 * np.linalg.norm(sd)),
    "one component": lambda sd: OneComponent(1.2 * sd, metric="proposal", max_distance=2.5),
    "guided walk": lambda sd: GuidedWalk(1.1 * sd, metric=sd, max_distance=2.5),
}
CHAINS = {
    "Barker, all records at half of the moves": (GAUSSIAN, "random walk", {"full_batch_at": "half"}),
    "lazy penalty, tempered": (LOGIT, "one component", {"rule": Penalty(1.2), "laziness": 0.7, "temperature": 0.4}),
    "penalty": (BANANA, "guided walk", {"rule": Penalty(0.8), "private": False}),
    "persons": (GAUSSIAN, "one component", {"temperature": 0.4, "records": np.random.default_rng(3).integers(100, size=150) + 7}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAINS)
def test_posterior(name):
    """Batches decide, smaller than the data, and the chain has the posterior."""
    target, walk, options = CHAINS[name]
    draws, exact, part = minibatch_chain(target, BLIND[walk], **options)
    assert 0.3 < part < 0.7 if "half" in name else part > 0.6
    check(draws, exact)


def test_barker_on_all_records():
    """Barker's rule on the log-ratio itself: exact with no noise and no correction."""
    exact = reference(BANANA, 1.0)
    method = private_step(BANANA, BLIND["guided walk"](exact.std(axis=0)), step=DPBarker, laziness=0.8)  # fmt: skip
    check(run(method, exact[7], 10_000, 3), exact)
