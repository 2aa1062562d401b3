"""Audit of the randomness behind decisions: independent between chains, not a function of the seed, exact to the bit."""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytest

from scipy import stats

import pymc_dp.privacy.randomness.bits as noise

from pymc_dp import DPPenalty, Penalty, PrivacyBudget, RandomWalk
from pymc_dp.privacy.randomness.bits import OperatingSystemBits, SeededBits, bernoulli
from pymc_dp.steps import Metropolis
from tests.audit.test_decisions import BOUND, DISTANCE, LIMIT, OTHERS, Forced, Leak, observe
from tests.exactness.targets import compiled_once

# ---------------------------------------------------------------- two chains do not share randomness


def joint_outcomes(step, n):
    """Outcomes of two chains of one step object that make the same n moves, and the probability of accepting."""
    old, new = np.array([0.1, 0.0]), np.array([0.4, 0.0])
    (accept, _), *_ = observe(step, [(old, new)], DISTANCE).law
    point = step.likelihood.unravel(old)
    outcomes = np.empty((2, n), dtype=bool)
    step.proposal.new, step.proposal.distance = new, DISTANCE
    for chain in outcomes:
        step.set_rng(np.random.default_rng(5))  # public, and the same
        step.stop_tuning()
        for i in range(n):
            chain[i] = step.step(point)[1][0]["accepted"]
    return outcomes, math.exp(accept)


def check_independent(outcomes, p):
    """Exact binomial tests of each chain, and of how often both accept and both reject."""
    one, two = outcomes
    counts = {
        "first": (one, p),
        "second": (two, p),
        "both": (one & two, p * p),
        "neither": (~one & ~two, (1 - p) ** 2),
    }
    for name, (events, chance) in counts.items():
        if stats.binomtest(int(events.sum()), len(events), chance).pvalue < LIMIT:
            raise Leak(f"{name}: {events.mean():.3f} in place of {chance:.3f}")


class SharedBits(DPPenalty):
    """Keys every chain alike."""

    def _reset_chain(self):
        super()._reset_chain()
        self._bits = SeededBits(np.random.default_rng(12345))


class BitsOfTheProposals(DPPenalty):
    """Draws decisions from the generator of the proposals, which the user seeds."""

    def _reset_chain(self):
        super()._reset_chain()
        self._bits = SeededBits(self.rng)


def two_chains(step):
    def build_on(y):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 2)
            pm.Normal("nuisance", 0, 1)
            pm.Normal("y", mu, 1.0, observed=y)
        with compiled_once("nuisance", y.tobytes()):
            return step(
                budget=PrivacyBudget(math.inf, 1e-6, chains=3),
                model=model,
                clip_bound=BOUND,
                proposal=Forced(DISTANCE),
            )

    return joint_outcomes(build_on(OTHERS), 1500)


def test_chains_do_not_share_randomness():
    outcomes, p = two_chains(DPPenalty)
    assert 0.2 < p < 0.8
    check_independent(outcomes, p)


@pytest.mark.parametrize("fault", [SharedBits, BitsOfTheProposals])
def test_shared_randomness_is_found(fault):
    outcomes, p = two_chains(fault)
    with pytest.raises(Leak):
        check_independent(outcomes, p)


def runs(reproducible, seed, n=120):
    """Two runs of a sampler with the same random_seed: outcomes and distances of each."""
    results = []
    for _ in range(2):
        with compiled_once("one variable", OTHERS.tobytes()), pm.Model():
            mu = pm.Normal("mu", 0, 2)
            pm.Normal("y", mu, 1.0, observed=OTHERS)
            budget = PrivacyBudget(math.inf, 1e-6, chains=1)
            step = DPPenalty(
                budget=budget, clip_bound=BOUND, proposal=RandomWalk(0.7), reproducible=reproducible
            )
            idata = pm.sample(
                draws=n, tune=0, chains=1, cores=1, step=step, random_seed=seed, callback=budget,
                progressbar=False, compute_convergence_checks=False,
            )  # fmt: skip
        results.append(
            [np.asarray(idata["sample_stats"][k]).ravel() for k in ("accepted", "step_distance")]
        )
    return results


def test_decisions_do_not_follow_the_seed():
    """Proposals are public and repeat with random_seed; decisions do not."""
    (first, distances), (second, again) = runs(False, 77)
    assert 5 < first.sum() < 115  # 28 expected, standard deviation 4.5
    assert not np.array_equal(first, second)
    assert np.allclose(distances, again, rtol=1e-9)


def test_reproducible_decisions_do():
    (first, distances), (second, again) = runs(True, 77)
    assert np.array_equal(first, second)
    assert np.array_equal(distances, again)


# ---------------------------------------------------------------- bits


class Words:
    """Given words, then zeros; and how many were asked for."""

    secret = False

    def __init__(self, *words):
        self.words, self.used = words, 0

    def word(self):
        self.used += 1
        return self.words[self.used - 1] if self.used <= len(self.words) else 0


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_certain_outcomes_need_no_bits(p):
    bits = Words()
    assert bernoulli(p, bits) is (p == 1)
    assert bits.used == 0


@pytest.mark.parametrize("rule", [Penalty(1.4), Penalty(0.2), Metropolis()], ids=lambda r: r.name)
@pytest.mark.parametrize("x", [-30.0, -2.0, -1e-3, 0.0, 0.3, 4.0, 12.0])
def test_decide_has_the_probability_of_its_rule(rule, x):
    """By bisection over the first word."""
    low, high = 0, 2**64
    first = noise.decide(rule, x, Words())
    while low < high:
        middle = (low + high) // 2
        same = noise.decide(rule, x, Words(middle, 2**63, 2**63)) is first
        low, high = (middle + 1, high) if same else (low, middle)
    accepted = low / 2**64 if first else 1 - low / 2**64
    assert accepted == pytest.approx(rule.probability(x), rel=1e-12, abs=2.0**-63)


def test_words_of_the_operating_system():
    """Uniform in every bit."""
    bits = OperatingSystemBits()
    words = np.array([bits.word() for _ in range(4000)], dtype=np.uint64)
    assert len(np.unique(words)) == len(words)
    ones = [int(((words >> np.uint64(k)) & np.uint64(1)).sum()) for k in range(64)]
    assert min(stats.binomtest(k, len(words)).pvalue for k in ones) > LIMIT
