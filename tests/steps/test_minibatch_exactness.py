"""Samplers on batches: exact where they say so, and where they say "approximate", biased by no more than is stated.

DP-Fast MH and TunaMH are held against three things. Their law of acceptance is found by giving them every outcome of their own
randomness, and must be that of independent Poisson counts and in detailed balance, to rounding. How often they accept, left
alone, must agree with it. And their chains must have the posterior. Barker's test on all records has only the last to show. For the
penalty and Barker's test on batches the invariant law is computed and compared with the posterior; run this file as a
module (``python -m tests.steps.test_minibatch_exactness``) for a table.
"""

from __future__ import annotations

import contextlib
import functools
import math

from dataclasses import dataclass, field

import numpy as np
import pymc as pm
import pytest

from scipy import interpolate, ndimage, optimize, stats

from pymc_dp import (
    Barker,
    DPBarker,
    DPFastMH,
    DPPenalty,
    GuidedWalk,
    Metropolis,
    OneComponent,
    Penalty,
    PrivacyBudget,
    RandomWalk,
    TunaMH,
)
from pymc_dp.correction import CorrectedBarker
from pymc_dp.privacy.batches import without_replacement
from pymc_dp.privacy.families import PoissonMinibatchFamily
from pymc_dp.steps import accept_reject, fast_mh
from pymc_dp.steps.accept_reject import Move, State
from tests.steps.targets import BANANA, GAUSSIAN, LOGIT, compiled_once
from tests.steps.test_exactness import HUGE, LIMIT, batch_means, check, private_step, reference, run

# ---------------------------------------------------------------- a step whose randomness is given


@dataclass
class Given:
    """What a step of the DP-Fast MH family does with a batch that it is given."""

    rate: float | None = None  # expected number of places; None if no batch was asked for
    places: int | None = None  # number of places that were filled; None if all records decide
    rule: object = None
    log_ratio: float = math.nan


def move_between(step, old, new, distance=None):
    """A proposal as :meth:`transition` would make it."""
    states = [
        State(theta, step.likelihood.log_prior(theta))
        for theta in (np.asarray(old, dtype=float), np.asarray(new, dtype=float))
    ]
    if distance is None:
        distance = float(np.linalg.norm(states[1].theta - states[0].theta))
    return Move(*states, states[1].prior - states[0].prior, distance)


def decision_for(step, move):
    """What is charged for a move, as :meth:`transition` finds it."""
    return None if step.family is None else step.family.at(move.distance, abs(move.prior))


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
        step.accept(move, decision)
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


def driven(step, move, decision):
    """The law of a step's decision, from nothing but what the step does with given randomness.

    The probability that a record's place is kept is found by bisection over its uniform number, to 2**-53.
    """
    n = step.likelihood.n_records
    empty = drive(step, move, decision)
    kept, weights = np.zeros(n), np.zeros(n)
    for i in range(n):

        def added(u, i=i):
            return drive(step, move, decision, [i], u).log_ratio - empty.log_ratio

        weights[i] = added(0.0)
        if weights[i] == 0:
            continue  # whether it is kept cannot be seen, and does not matter
        low, high = 0, 2**53
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if added(middle * 2.0**-53) else (low, middle)
        kept[i] = low * 2.0**-53
    rng = np.random.default_rng(0)
    for size in (2, 3, 7):  # places do not interact
        places, u = rng.integers(n, size=size), rng.random(size)
        counted = places[u < kept[places]]
        expected = empty.log_ratio + weights[counted].sum()
        assert drive(step, move, decision, places, u).log_ratio == pytest.approx(expected, abs=1e-9)
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
    if step is not TunaMH:
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
    "Metropolis": {"step": TunaMH},
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
        accepted = sum(step.accept(move, decision) for _ in range(N_TRIES))
        if stats.binomtest(accepted, N_TRIES, p).pvalue < LIMIT:
            raise AssertionError(f"wrong law: {accepted / N_TRIES:.3f} in place of {p:.3f}")


@pytest.mark.parametrize(
    "name", ["Barker", pytest.param("lazy penalty", marks=pytest.mark.slow), "Metropolis"]
)
def test_frequency_of_acceptance(name):
    """With its own randomness a step accepts as often as the enumeration says."""
    check_frequencies(few_records(**RULES[name]))


class Rewritten(DPFastMH):
    """The test written again by hand, in pieces, so that each can be broken."""

    def places(self, rate):
        return fast_mh.poisson_count(rate, self._bits)

    def records(self, n, size):
        return fast_mh.with_replacement(n, size, self._bits)

    def keeps(self, most, pull):
        """Probability of keeping."""
        return (2 * self.batch_rate + most - pull) / (2 * (self.batch_rate + most))

    def weights(self, most, pull):
        rate = 2 * self.batch_rate + most
        return np.log((rate + pull) / (rate - pull))

    def total(self, weights, prior, size, rate):
        return weights.sum() + prior

    def accept(self, move, decision):
        n = self.likelihood.n_records
        bound = self._slope * move.distance if decision is None else decision.log_ratio_bound
        rate = self.batch_rate + n * bound
        size = self.places(rate)
        index = self.records(n, size)
        pull = n * self.temperature * self.changes(move, index)
        kept = fast_mh.uniforms(len(index), self._bits) < self.keeps(n * bound, pull)
        weights = self.weights(n * bound, pull)[kept]
        return self.decide(self.rule, float(self.total(weights, move.prior, len(index), rate)))


class WrongSign(Rewritten):
    def weights(self, most, pull):
        return -super().weights(most, pull)


class HalfTheWeight(Rewritten):
    """As if ``2 artanh`` were ``artanh``."""

    def weights(self, most, pull):
        return super().weights(most, pull) / 2


class KeepsTheOthers(Rewritten):
    """Keeps with ``1 + u`` in place of ``1 - u``."""

    def keeps(self, most, pull):
        return super().keeps(most, -pull)


class KeepsAll(Rewritten):
    """Nothing is thinned out."""

    def keeps(self, most, pull):
        return np.ones_like(pull)


class PlainEstimate(KeepsAll):
    """The usual estimate from a batch, with no correction for its error."""

    def weights(self, most, pull):
        return pull

    def total(self, weights, prior, size, rate):
        return weights.sum() / max(size, 1) + prior


class PriorInTheBatch(Rewritten):
    """The prior counts with each place that is kept, of which about half are expected to be."""

    def total(self, weights, prior, size, rate):
        return weights.sum() + prior * len(weights) / (rate / 2)


class SizeOfTheRate(Rewritten):
    """As many places as are expected, not a Poisson number."""

    def places(self, rate):
        return round(rate)


class NoRecordTwice(Rewritten):
    """Places are filled without replacement."""

    def records(self, n, size):
        return without_replacement(n, min(n, size), self._bits)


MUTANTS = [
    WrongSign, HalfTheWeight, KeepsTheOthers, KeepsAll, PlainEstimate, PriorInTheBatch, SizeOfTheRate, NoRecordTwice,
]  # fmt: skip
#: One fault of each part: weights, what is kept, the prior, the size.
QUICKLY_FOUND = (HalfTheWeight, KeepsTheOthers, PriorInTheBatch, SizeOfTheRate)


def test_rewritten():
    """Unbroken, it passes: what fails below fails for its fault."""
    check_frequencies(few_records(step=Rewritten))


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(m, marks=[] if m in QUICKLY_FOUND else pytest.mark.slow) for m in MUTANTS],
)
def test_broken_decisions_are_found(mutant):
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
            sum(step.accept(move, decision) for _ in range(N_TRIES)) / N_TRIES
            for move in (there, back)
        )
        error = math.sqrt(forth * (1 - forth) / N_TRIES + odds**2 * again * (1 - again) / N_TRIES)
        if stats.norm.sf(abs(forth - odds * again) / error) < LIMIT / 2:
            raise AssertionError(f"no balance: {forth:.3f} and {odds * again:.3f}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Barker", "lazy penalty"])
def test_limit_keeps_balance(name):
    check_balance(one_way(full_batch_at=LIMIT_AT, **RULES[name]))


class DrawnSizeDecides(Rewritten):
    """All records where the batch *drawn* reaches the limit, as in Algorithm 2 of the paper.

    Not reversible, other than Theorem 3 of the paper says: whether ``B < K`` has the same probability both ways, but
    given ``B < K`` the counts of records are not independent any more, and the factor ``exp(lambda)`` is lost.
    """

    def accept(self, move, decision):
        bound = decision.log_ratio_bound
        size = self.places(self.batch_rate + self.likelihood.n_records * bound)
        if size >= LIMIT_AT:
            return self.decide(self.rule, self.log_ratio(move))
        self.places = lambda rate: size
        try:
            return super().accept(move, decision)
        finally:
            del self.places


class RateDecides(Rewritten):
    """All records where the batch *expected* reaches the limit, as in the code of the paper: public, and exact."""

    def accept(self, move, decision):
        if self.batch_rate + self.likelihood.n_records * decision.log_ratio_bound >= LIMIT_AT:
            return self.decide(self.rule, self.log_ratio(move))
        return super().accept(move, decision)


def test_limit_on_the_expected_size_keeps_balance():
    check_balance(one_way(step=RateDecides))


def test_limit_on_the_drawn_size_does_not():
    with pytest.raises(AssertionError, match="no balance"):
        check_balance(one_way(step=DrawnSizeDecides))


# ---------------------------------------------------------------- chains


@dataclass
class Seen:
    """How the decisions of a chain were made."""

    rates: list = field(default_factory=list)
    sizes: list = field(default_factory=list)
    looked: list = field(default_factory=list)  # at how many different records
    full: int = 0
    roundings: list = field(default_factory=list)


@contextlib.contextmanager
def watched(step):
    """Count how decisions come about, and insist that no record is clipped."""
    seen = Seen()
    count, changes, clipped = fast_mh.poisson_count, step.changes, accept_reject.clipped_changes

    def count_places(rate, bits):
        size = count(rate, bits)
        seen.rates.append(rate), seen.sizes.append(size)
        return size

    def note_records(move, index):
        seen.looked.append(len(np.unique(index)))
        return changes(move, index)

    def check_changes(new, old, bound):
        assert np.abs(new - old).max(initial=0) < bound
        return clipped(new, old, bound)

    class Full(type(step)):
        def log_ratio(self, move):
            seen.full += 1
            change = np.abs(self._records(move.new) - self._records(move.old)).max()
            assert change < self.clip_bound * move.distance
            return super().log_ratio(move)

        def accept(self, move, decision):
            bound = getattr(decision, "log_ratio_bound", None)
            if bound is not None:
                seen.roundings.append(bound / (self._slope * move.distance))
            return super().accept(move, decision)

    kind = type(step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_mh, "poisson_count", count_places)
        patch.setattr(accept_reject, "clipped_changes", check_changes)
        step.changes, step.__class__ = note_records, Full
        try:
            yield seen
        finally:
            step.__class__ = kind
            del step.changes


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


def minibatch_chain(
    target,
    walk,
    *,
    step=DPFastMH,
    private=True,
    temperature=1.0,
    limit=False,
    margin=MARGIN,
    seed=1,
    n=10_000,
    **kwargs,
):
    """Draws of a chain, exact draws, how decisions were made, and the step."""
    exact = reference(target, temperature)
    proposal = walk(exact.std(axis=0))
    model, records = target.model(), kwargs.get("records")
    with compiled_once(target.name) as compiled:
        likelihood = compiled(model, records=records)
    n_records = likelihood.n_records
    slope, typical = largest_slope(likelihood, proposal, exact)
    bound, rate = margin * slope, PART * n_records
    options = {"clip_bound": bound, "proposal": proposal, "batch_rate": rate, "temperature": temperature}  # fmt: skip
    if step is not TunaMH:
        budget = PrivacyBudget(math.inf, 1e-6, chains=1) if private else None
        options |= {"budget": budget, "reproducible": True}
    if limit:
        options["full_batch_at"] = round(rate + n_records * temperature * bound * typical)
    with compiled_once(target.name):
        method = step(model=model, **options, **kwargs)
    start = np.random.default_rng(seed + 1000).integers(len(exact))
    with watched(method) as seen:
        draws = run(method, exact[start], n, seed)
    return draws, exact, seen, method


BLIND = {
    "random walk": lambda sd: RandomWalk(0.8 * sd, max_distance=2.0 * np.linalg.norm(sd)),
    "one component": lambda sd: OneComponent(1.2 * sd, metric="proposal", max_distance=2.5),
    "guided walk": lambda sd: GuidedWalk(1.1 * sd, metric=sd, max_distance=2.5),
}
CHAINS = {
    "TunaMH": (BANANA, "random walk", {"step": TunaMH}),
    "Barker": (GAUSSIAN, "random walk", {}),
    "lazy penalty, tempered": (LOGIT, "one component", {"rule": Penalty(1.2), "laziness": 0.7, "temperature": 0.4}),
    "penalty": (BANANA, "guided walk", {"rule": Penalty(0.8), "private": False}),
    "persons": (GAUSSIAN, "one component", {"temperature": 0.4, "records": np.random.default_rng(3).integers(100, size=150) + 7}),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [n if n in ("Barker", "TunaMH") else pytest.param(n, marks=pytest.mark.slow) for n in CHAINS],
)
def test_posterior(name):
    """Batches decide, smaller than the data, and the chain has the posterior."""
    target, walk, options = CHAINS[name]
    draws, exact, seen, step = minibatch_chain(target, BLIND[walk], **options)
    check_way(seen, step, len(draws))
    check(draws, exact)


def check_way(seen, step, n, least=0.6):
    """Raise unless so many of the decisions were made from batches, and these left out most of the data."""
    assert len(seen.sizes) + seen.full == n
    assert len(seen.sizes) > least * n
    assert max(seen.rates) < step.likelihood.n_records
    assert np.mean(seen.looked) < 0.5 * step.likelihood.n_records
    if step.family is not None:
        assert isinstance(step.family, PoissonMinibatchFamily)
        assert 1 < min(seen.roundings) < np.median(seen.roundings) < 1.021


def test_posterior_with_a_limit():
    """All records decide about half of the time."""
    draws, exact, seen, _ = minibatch_chain(GAUSSIAN, BLIND["random walk"], limit=True)
    assert len(seen.looked) + seen.full == len(draws)
    assert 0.3 < seen.full / len(draws) < 0.7
    assert np.mean(seen.looked) < 0.5 * len(draws)
    check(draws, exact)


BARKER = {
    "gaussian": (GAUSSIAN, "random walk", {}),
    "banana": (BANANA, "guided walk", {"laziness": 0.8}),
    "logit": (LOGIT, "one component", {"temperature": 0.4}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "banana" else pytest.mark.slow) for n in BARKER]
)
def test_barker_on_all_records(name):
    """Barker's rule on the log-ratio itself: exact with no noise and no correction."""
    target, walk, options = BARKER[name]
    exact = reference(target, options.get("temperature", 1.0))
    method = private_step(target, BLIND[walk](exact.std(axis=0)), step=DPBarker, **options)
    check(run(method, exact[7], 10_000, 3), exact)


#: Each rule with each target and each walk, and each target with each walk.
AT_LENGTH = [
    pytest.param(name, target, walk, id=f"{name}-{target.name}-{walk}")
    for i, name in enumerate(("Barker", "lazy penalty", "Metropolis", "Barker on all records"))
    for j, target in enumerate((GAUSSIAN, BANANA, LOGIT))
    for k, walk in enumerate(BLIND)
    if (i + j + k) % 3 == 0
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target", "walk"), AT_LENGTH)
def test_posterior_at_length(name, target, walk):
    """With chains several times as long."""
    temperature = 0.4 if walk == "guided walk" else 1.0
    if name == "Barker on all records":
        exact = reference(target, temperature)
        walk = BLIND[walk](exact.std(axis=0))
        method = private_step(target, walk, step=DPBarker, temperature=temperature)
        draws = run(method, exact[7], 40_000, 3)
    else:
        # Longer chains go farther out, where the slopes of the banana are steeper.
        margin = 2.2 if target is BANANA else MARGIN
        options = RULES[name] | {"temperature": temperature, "margin": margin}
        draws, exact, seen, step = minibatch_chain(target, BLIND[walk], n=40_000, **options)
        check_way(seen, step, len(draws), least=0.3)
    check(draws, exact)


# ---------------------------------------------------------------- approximate: tests on batches without replacement

#: Records, standard normal likelihood. States are in posterior standard deviations from the posterior mean, which is 0.
N = 2000
POWER = 200.0  # temperature times N, unless said
DATA = {
    "normal": stats.norm.ppf,
    "exponential": stats.expon.ppf,
    "log-normal": functools.partial(stats.lognorm.ppf, s=1.0),
    "two values": np.sign,
}


@functools.cache
def data(name):
    """Quantiles of a law, with mean 0 and variance 1: the change of each log-likelihood is all but proportional to them."""
    p = (np.arange(N) + 0.5) / N
    y = DATA[name](p - 0.5 if name == "two values" else p)
    return (y - y.mean()) / y.std()


@functools.cache
def batch_moments(name, size, n_batches):
    """Means and variances of batches: the parts of random partitions, so that their mean is that of the data."""
    rng, parts = np.random.default_rng(0), N // size
    drawn = [
        rng.permutation(data(name))[: parts * size].reshape(parts, size)
        for _ in range(-(-n_batches // parts))
    ]
    batches = np.concatenate(drawn)
    return batches.mean(axis=1), batches.var(axis=1)


def estimates(name, size, power, n_batches, move, middle):
    """Estimated log-ratio and variance for each batch, of moves in posterior sd around a middle (flat prior)."""
    mean, variance = batch_moments(name, size, n_batches)
    finite = (N - size) / (N - 1)
    x = move * (math.sqrt(power) * mean - middle)
    return x, np.broadcast_to(move**2 * power / size * finite * variance, x.shape)


def penalty_test(x, v, corrected=True):
    """Probability of accepting with noise of sd 2."""
    return np.exp(Penalty(2.0).log_probabilities(x - v / 2 if corrected else x)[0])


@functools.cache
def barker_table():
    x, v = np.linspace(0, 30, 601), np.linspace(0, 1, 41)
    return np.array([CorrectedBarker(1.0, each).log_probabilities(x)[1] for each in v])


def barker_test(x, v, corrected=True):
    """Probability of accepting with ``C = 1``, by interpolation."""
    if not corrected:
        return 1 / (1 + np.exp(-x))
    where = [40 * np.minimum(v, 1), 20 * np.minimum(np.abs(x), 30)]
    less = np.exp(ndimage.map_coordinates(barker_table(), where, order=1, mode="nearest"))
    return np.where(x < 0, less, 1 - less)


def longest_move(test, size, power):
    """In posterior sd: for Barker's test such that with two values the variance stays below 1, in a step too."""
    return math.inf if test is penalty_test else 0.7 * math.sqrt(size / power)


def scale_for(test, size, variance, power):
    """Scale of the proposal at which the mean variance of the error has this value."""

    def mean_square(h):
        top = longest_move(test, size, power) / h
        return h**2 * stats.truncnorm.var(-top, top) if math.isfinite(top) else h**2

    wanted = variance * size / power * (N - 1) / (N - size)
    return optimize.brentq(lambda h: mean_square(h) - wanted, 1e-3, 30) if mean_square(30) > wanted else math.nan  # fmt: skip


def invariant_law(test, name, size, scale, *, power=POWER, n_batches=2000, corrected=True):
    """States, and the invariant distribution of a random walk whose moves are decided on batches.

    The acceptance probability is averaged over batches on a coarse grid and interpolated; the rest is linear algebra.
    """
    longest = min(5 * scale, longest_move(test, size, power))
    moves, middles = np.linspace(-longest, longest, 28), np.linspace(-6.5, 6.5, 41)
    accept = np.empty((len(moves), len(middles)))
    for i, move in enumerate(moves):
        x, v = estimates(name, size, power, n_batches, move, middles[:, None])
        accept[i] = test(x, v, corrected).mean(axis=1)
    surface = interpolate.RectBivariateSpline(moves, middles, np.log(accept))
    states = np.linspace(-6, 6, max(201, math.ceil(72 / scale)))
    old, new = np.meshgrid(states, states, indexing="ij")
    move = np.clip(new - old, -longest, longest)
    matrix = np.exp(surface.ev(move, (old + new) / 2) - 0.5 * ((new - old) / scale) ** 2)
    matrix *= (np.abs(new - old) <= longest) & (new != old)
    matrix *= 1 / np.exp(-0.5 * (np.arange(-longest, longest, states[1] - states[0]) / scale) ** 2).sum()  # fmt: skip
    np.fill_diagonal(matrix, 1 - matrix.sum(axis=1))
    system = matrix.T - np.eye(len(states))
    system[-1] = 1  # it sums to one; the equation replaced follows from the others
    return states, np.linalg.solve(system, np.append(np.zeros(len(states) - 1), 1.0))


def bias(*args, **kwargs):
    """Mean and standard deviation of the invariant law: 0 and 1 if it were the posterior."""
    states, law = invariant_law(*args, **kwargs)
    mean = law @ states
    return mean, math.sqrt(law @ (states - mean) ** 2)


@pytest.mark.parametrize(
    ("test", "name", "variance"),
    [
        (penalty_test, "normal", 0.3),
        (penalty_test, "normal", 1.0),
        (penalty_test, "two values", 1.0),
        (barker_test, "normal", 0.1),
        (barker_test, "two values", 0.1),
    ],
)
def test_bias_without_skewness(test, name, variance):
    """Mean and sd of the invariant law within 0.4 % of a posterior sd; without the correction the sd is off by several times that."""
    scale = scale_for(test, 200, variance, POWER)
    mean, sd = bias(test, name, 200, scale)
    assert abs(mean) < 0.004
    assert abs(sd - 1) < 0.004
    _, wrong = bias(test, name, 200, scale, corrected=False)
    assert wrong - 1 > 0.02


@pytest.mark.parametrize(
    ("test", "name", "sign"),
    [
        (penalty_test, "exponential", -1),
        (penalty_test, "log-normal", -1),
        (barker_test, "exponential", 1),
    ],
)
@pytest.mark.parametrize("size", [pytest.param(50, marks=pytest.mark.slow), 200])
def test_bias_with_skewness(test, name, sign, size):
    """Skewed changes shift the mean, by about ``0.4 * skewness * v * sqrt(N T) / m`` posterior sd; the spread stays right."""
    scale = scale_for(test, size, 0.1, POWER)
    mean, sd = bias(test, name, size, scale, n_batches=6000)
    about = sign * 0.4 * stats.skew(data(name)) * 0.1 * math.sqrt(POWER) / size
    assert 0.55 < mean / about < 1.2
    assert abs(sd - 1) < 0.01


@pytest.mark.slow
def test_skewness_shifts_a_chain():
    """The step's own chain has the law that was computed, which is then not the posterior: a third of an sd off."""
    exact, draws = approximate_chain("penalty", "log-normal", 50, 0.5, 60_000)
    assert exact.mean() < -0.3
    check(draws, exact)
    with pytest.raises(AssertionError, match="wrong law"):
        check(draws, np.random.default_rng(0).normal(size=(200_000, 1)))


def approximate_step(step, name, size, scale, **kwargs):
    """A step on these data; in a private run it would clip at the same bound."""
    unit = 1 / math.sqrt(POWER)
    test = penalty_test if issubclass(step, DPPenalty) else barker_test
    longest = longest_move(test, size, POWER)
    with compiled_once(name), pm.Model():
        mu = pm.Normal("mu", 0, 1000)
        pm.Normal("y", mu, 1, observed=data(name))
        return step(
            budget=None,
            # A record's change per unit of distance is its distance from the middle of a move.
            clip_bound=1.42 if name == "two values" else HUGE,
            proposal=RandomWalk(scale * unit, max_distance=None if math.isinf(longest) else longest * unit),
            temperature=POWER / N, batch_size=size, reproducible=True, **kwargs,
        )  # fmt: skip


APPROXIMATE = {
    "penalty": (DPPenalty, "exponential", penalty_test, lambda v: Penalty(math.sqrt(4 + v))),
    "Barker": (DPBarker, "two values", barker_test, lambda v: Barker()),
}


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_decision_on_a_given_batch(kind):
    """Estimate, variance and rule are those that the bias was computed with."""
    step, name, test, _ = APPROXIMATE[kind]
    method, size, unit = approximate_step(step, name, 200, 0.5), 200, 1 / math.sqrt(POWER)
    rng, seen = np.random.default_rng(1), []
    for old, new in ((0.3, 0.9), (-1.0, -1.6), (2.0, 1.5)):
        drawn = rng.choice(N, size=size, replace=False)
        move = move_between(method, [old * unit], [new * unit])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accept_reject, "without_replacement", lambda n, m, bits, i=drawn: i)
            patch.setattr(accept_reject, "decide", lambda rule, x, bits: seen.append((rule, x)))
            method.accept(move, decision_for(method, move))
        y, d = data(name)[drawn], new - old
        x = d * (math.sqrt(POWER) * y.mean() - (old + new) / 2)
        v = d**2 * POWER / size * (N - size) / (N - 1) * y.var()
        rule, log_ratio = seen[-1]
        assert rule.probability(log_ratio) == pytest.approx(
            test(np.array([x]), np.array([v]))[0], abs=1e-4
        )
        if kind == "penalty":
            assert log_ratio == pytest.approx(x - v / 2, abs=1e-4)
        else:
            assert log_ratio == pytest.approx(x, abs=1e-6)
            assert rule.batch_variance == pytest.approx(v, abs=1e-6)


def check_average(step, exact_rule, move, tolerance=0.003, n=4000):
    """Raise unless the probability of accepting, averaged over batches, is that of an exact rule on all records."""
    unit, seen = 1 / math.sqrt(POWER), []
    for old in (-2.0, 0.5):
        pair = move_between(step, [old * unit], [(old + move) * unit])
        decision = decision_for(step, pair)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                accept_reject,
                "decide",
                lambda rule, x, bits: seen.append(rule.probability(x)),
            )
            seen.clear()
            for _ in range(n):
                step.accept(pair, decision)
        v = move**2 * POWER / step.batch_size * (N - step.batch_size) / (N - 1)
        expected = exact_rule(v).probability(-move * (old + move / 2))
        error = np.std(seen) / math.sqrt(n)
        if abs(np.mean(seen) - expected) > tolerance + stats.norm.isf(LIMIT / 2) * error:
            raise AssertionError(f"wrong law: {np.mean(seen):.4f} in place of {expected:.4f}")


class IgnoresTheVariance:
    """Takes the estimate for the log-ratio."""

    def estimated_log_ratio(self, move):
        return super().estimated_log_ratio(move)[0], 0.0


class PenaltyWithoutCorrection(IgnoresTheVariance, DPPenalty):
    pass


class BarkerWithoutCorrection(IgnoresTheVariance, DPBarker):
    pass


class ForgetsHalfTheScale(DPPenalty):
    """Scales the estimate, and not its variance."""

    def estimated_log_ratio(self, move):
        estimate, variance = super().estimated_log_ratio(move)
        return estimate, variance * self.batch_size / self.likelihood.n_records


def average_case(kind, step=None):
    """A step on data without skewness, and moves of variance about 1 for the penalty and 0.4 for Barker."""
    real, _, _, rule = APPROXIMATE[kind]
    move = 1.0 if kind == "penalty" else 0.7 * 0.95
    method = approximate_step(step or real, "two values", 200, 0.5)
    method.set_rng(np.random.default_rng(5))
    method.stop_tuning()
    method._open()
    return method, rule, move


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_average_over_batches(kind):
    """Where nothing is skewed the error of the batch is corrected for: within 0.003, for moves of both directions."""
    method, rule, move = average_case(kind)
    check_average(method, rule, move)


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("penalty", PenaltyWithoutCorrection),
        ("penalty", ForgetsHalfTheScale),
        ("Barker", BarkerWithoutCorrection),
    ],
)
def test_batches_without_correction_are_found(kind, step):
    method, rule, move = average_case(kind, step)
    with pytest.raises(AssertionError, match="wrong law"):
        check_average(method, rule, move)


def approximate_chain(kind, name, size, scale, n):
    """Draws from the invariant law that was computed, and of a chain; in posterior sd."""
    step, _, test, _ = APPROXIMATE[kind]
    states, law = invariant_law(test, name, size, scale)
    rng, unit = np.random.default_rng(3), 1 / math.sqrt(POWER)
    exact = rng.choice(states, p=np.maximum(law, 0) / np.maximum(law, 0).sum(), size=200_000)
    exact += (states[1] - states[0]) * (rng.random(len(exact)) - 0.5)
    method = approximate_step(step, name, size, scale)
    return exact[:, None], run(method, exact[:1] * unit, n, 4) / unit


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["penalty", pytest.param("Barker", marks=pytest.mark.slow)])
def test_chain_on_batches(kind):
    """The chain has the invariant law that was computed, and mean and variance within 5 % of the posterior's."""
    exact, draws = approximate_chain(kind, APPROXIMATE[kind][1], 200, 1.0 if kind == "penalty" else 0.6, 12_000)  # fmt: skip
    check(draws, exact)
    mean, error, _ = batch_means(np.column_stack([draws, draws**2]))
    assert np.all(np.abs(mean - [0, 1]) < 0.05 + stats.norm.isf(LIMIT / 2) * error)


def print_table(n_batches=20_000):
    """Table of docs/guarantees.md: 2000 records without tempering, by the mean variance of the error of batches."""
    print("| contributions | `m` | `v = 0.1` | 0.3 | 1 | 3 | sd |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    rows = [("normal", 200), ("exponential", 50), ("exponential", 200), ("exponential", 500), ("log-normal", 200)]  # fmt: skip

    def found(test, name, size, variance):
        scale = scale_for(test, size, variance, float(N))
        return bias(test, name, size, scale, power=float(N), n_batches=n_batches)

    for name, size in rows:
        means, sds = zip(*(found(penalty_test, name, size, v) for v in (0.1, 0.3, 1.0, 3.0)), strict=True)  # fmt: skip
        barker, sd = found(barker_test, name, size, 0.1)
        cells = [f"{mean:+.3f}" for mean in means]
        cells[0] += f" ({barker:+.3f})"
        cells.append(f"{max(*sds, sd) - 1:+.1%}".replace("%", " %"))
        skewness = f"{name} (skewness {stats.skew(data(name)):.1f})"
        print(f"| {skewness} | {size} | {' | '.join(cells)} |")


if __name__ == "__main__":
    print_table()
