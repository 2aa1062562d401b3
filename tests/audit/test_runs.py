"""Audit of whole runs from outside, for every kind of sampler: which of two data sets was it?

They differ in one record, which lies far out on one side in the one, on the other side in the other. Who knows all other records,
and everything public (proposals and momenta follow the seed), sees what a run releases and decides by the likelihood ratio, the
best test there is, as far as it can be calculated. Its errors in many short runs bound epsilon, and mu of Gaussian differential
privacy, from below: the bounds must not exceed what the budget allows. They come within a factor of three of it for samplers that
look at all records, so the attack is worth something, and exceed it where a fault is planted.

Single decisions are audited exactly, for smaller faults, in ``test_decisions`` and ``test_neighbouring_batches``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

from scipy import stats
from scipy.special import expit, ndtr

from pymc_dp import DPHMC, DPSGHMC, DPBarker, DPFastMH, DPPenalty, Ledger, Penalty, PrivacyBudget
from pymc_dp.model import RecordLikelihood
from pymc_dp.privacy.randomness.bits import SeededBits
from pymc_dp.steps import accept_reject, base, sghmc
from pymc_dp.steps import noisy_gradients as gradients
from tests.audit.lower_bounds import lower_bounds, mu_allowed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
]

DELTA = 0.01
FAR, PRIOR_SD = 1e3, 10.0


@functools.cache
def records(n: int, rows: int, side: int) -> np.ndarray:
    """Values of `n` persons with as many rows each: one up, one down, and the first one far out."""
    return np.repeat(np.where(np.arange(n) == 0, side * FAR, (-1.0) ** np.arange(n)), rows)


@functools.cache
def built(n: int, rows: int, side: int):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("theta", 0, PRIOR_SD), 1.0, observed=records(n, rows, side))
    return model, RecordLikelihood(model)


class Seen:
    """Steps of one length, up or down: proposals are public, and written down."""

    def __init__(self, length):
        self.max_distance, self.moves = length, []

    def start(self, n_dim):
        return self

    def propose(self, theta, rng):
        new = theta + self.max_distance * (1 if rng.random() < 0.5 else -1)
        self.moves.append((theta[0], new[0], self.max_distance))
        return new, self.max_distance

    def decided(self, accepted):
        pass


# ---------------------------------------------------------------- what the attacker calculates


def changes(case, moves, side):
    """Clipped log-ratio of each person, for moves (old, new, distance): an array (moves, persons)."""
    old, new, distance = moves[..., None]
    change = (new - old) * (records(case.n, case.rows, side) - (new + old) / 2)
    return np.clip(
        change.reshape(len(old), case.n, -1).sum(axis=2),
        *(case.clip_bound * distance * [-1, 1]).T[..., None],
    )


def by_decisions(run, case):
    """Log-likelihood ratio of the decisions; on batches, as if only the first person came and went."""
    moves = np.array(run.moves).T
    prior = (moves[0] ** 2 - moves[1] ** 2) / (2 * PRIOR_SD**2)
    accepted = np.array([row.accepted for row in run.rows])
    logp = []
    for side in (-1, 1):
        first, *others = changes(case, moves, side).T
        rest = sum(others) + prior
        p = case.part * case.law(rest + first / case.part) + (1 - case.part) * case.law(rest)
        logp.append(np.log(np.where(accepted, p, 1 - p)).sum())
    return logp[1] - logp[0]


def penalty_law(scale):
    """Probability of accepting: the mean of ``min(1, exp(x + noise))``, normal with mean ``-scale**2 / 2``."""
    return lambda x: ndtr(x / scale - scale / 2) + np.exp(x) * ndtr(-x / scale - scale / 2)


def lazy_barker_law(x):
    return 0.5 * expit(x)


def mean_gradients(case, theta, batch=slice(None)):
    """Of both data sets, without noise."""
    bound = case.gradient_bound
    clipped = [np.clip(records(case.n, 1, side)[batch] - theta, -bound, bound).sum() for side in (-1, 1)]  # fmt: skip
    return np.array(clipped) / case.part - theta / PRIOR_SD**2


def by_first_gradients(run, case):
    """Of DP MALA: the momentum follows the seed, so that where a path ends shows the gradient where it began, but for its sign."""
    rng, total, known = np.random.default_rng(run.seed), 0.0, False
    for row in run.rows:
        momentum = rng.standard_normal(1)[0]
        if not known:  # it is not drawn again before the chain has moved
            ends = np.array([-1, 1]) * row.distance
            seen = 2 * (ends - case.step_size * momentum) / case.step_size**2
            sd = case.multiplier * 2 * case.gradient_bound
            low, high = (
                np.logaddexp.reduce(stats.norm.logpdf(seen, m, sd))
                for m in mean_gradients(case, row.old)
            )
            total += high - low
        known = not row.accepted
    return total


def by_all_gradients(run, case):
    """Of DP SGHMC with one step a draw: the path shows the noisy gradient."""
    rng, eta, total = np.random.default_rng(run.seed), case.step_size, 0.0
    batches = iter(run.batches or itertools.repeat(slice(None)))
    for row, batch in zip(run.rows, batches, strict=False):
        momentum = rng.standard_normal(1)[0]
        seen = ((row.new - row.old) / eta - momentum) / eta + case.friction * momentum
        low, high = mean_gradients(case, row.old, batch)
        total += (high - low) * (seen - (high + low) / 2)
    return total


# ---------------------------------------------------------------- samplers


@dataclass(frozen=True)
class Case:
    """A sampler and the attack on it: what it does, how many records there are, and how often it is run on either data set."""

    step: type
    options: dict
    attack: Callable
    law: Callable | None = None
    n: int = 11
    rows: int = 1
    part: float = 1.0
    clip_bound: float = 1.0
    length: float = 0.2
    gradient_bound: float = 1.0
    step_size: float = 0.1
    friction: float = 1.0
    multiplier: float = 3.0
    runs: int = 200
    tight: bool = True

    def build(self, model, budget):
        options = dict(self.options)
        walk = None
        if self.law is not None:
            walk = Seen(self.length)
            options |= {"clip_bound": self.clip_bound, "proposal": walk}
        if self.attack is by_all_gradients:
            options["friction"] = self.friction
        return self.step(budget=budget, model=model, **options), walk


PENALTY = Case(DPPenalty, {"noise_scale": 2.0}, by_decisions, penalty_law(2.0))
HMC = Case(
    DPHMC,
    {
        "step_size": 0.05, "n_leapfrog": 1, "gradient_clip_bound": 1.0, "gradient_noise_multiplier": 3.0,
        "rule": Penalty(0.5), "clip_bound": 0.3,
    },
    by_first_gradients, step_size=0.05, runs=400,
)  # fmt: skip
SGHMC = {"step_size": lambda t: 0.01, "n_steps": 1, "gradient_clip_bound": 1.0}
CASES = {
    "penalty": PENALTY,
    "Barker, lazy": Case(DPBarker, {"laziness": 0.5}, by_decisions, lazy_barker_law),
    "fast MH": Case(DPFastMH, {"batch_rate": 4.0}, by_decisions, expit, n=41, runs=40, tight=False),
    "Barker, batches": Case(
        DPBarker, {"batch_size": 10}, by_decisions, expit, n=40, part=0.25, length=0.079,
        runs=40, tight=False,
    ),
    "HMC": HMC,
    "SGHMC": Case(DPSGHMC, SGHMC | {"sampling_probability": 1.0}, by_all_gradients, step_size=0.01, friction=0.4),
    "SGHMC, batches": Case(
        DPSGHMC, SGHMC | {"sampling_probability": 0.2}, by_all_gradients, n=41, step_size=0.01, friction=1.1, runs=40, tight=False,
    ),
}  # fmt: skip


# ---------------------------------------------------------------- runs


def release(case, side, seed, epsilon, *, chains=1, tune=0, most=3000, plant=None):
    """One run with all its chains, as long as the budget pays: what it releases, to those who know the seed."""
    model, likelihood = built(case.n, case.rows, side)
    run = SimpleNamespace(seed=seed, rows=[], moves=[], batches=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "RecordLikelihood", lambda *_, **__: likelihood)
        if plant is not None:
            plant(patch, run, likelihood)
        budget = PrivacyBudget(epsilon, DELTA, chains=chains)
        step, walk = case.build(model, budget)
        # Secret to the attacker, but no luck of the day.
        step._bits = SeededBits(np.random.default_rng([seed, side + 3]))
        for chain in range(chains):
            step.set_rng(np.random.default_rng(seed if chains == 1 else [seed, chain]))
            point = {"theta": np.array(0.0)}
            for _ in range(tune):
                point, _ = step.step(point)
            step.stop_tuning()
            if walk is not None:
                walk.moves.clear()
            for number in range(most):
                old, (point, (seen,)) = float(point["theta"]), step.step(point)
                if seen["exhausted"]:
                    break
                run.rows.append(
                    SimpleNamespace(
                        number=number, old=old, new=float(point["theta"]), accepted=int(seen["accepted"]),
                        distance=seen["step_distance"],
                    )
                )  # fmt: skip
            if walk is not None:
                run.moves += walk.moves[: number + (number + 1 == most and not seen["exhausted"])]
        assert plant is not None or budget.spent() <= epsilon
    return run


def attack(case, n, seed, epsilon, **options):
    """Lower bounds on epsilon and on mu from `n` runs on each data set."""
    wrong = []
    for side in (-1, 1):
        runs = (release(case, side, 10**6 * seed + 2 * k + side, epsilon, **options) for k in range(n))  # fmt: skip
        wrong.append(sum(side * case.attack(run, case) <= 0 for run in runs))
    return lower_bounds(tuple(wrong), n, DELTA)


@pytest.mark.parametrize("name", CASES)
def test_lower_bounds_of_runs_stay_below_epsilon(name, seed=1):
    epsilon = 4.0
    found, mu = attack(CASES[name], CASES[name].runs, seed, epsilon)
    assert found <= epsilon and mu <= mu_allowed(epsilon, DELTA)
    if CASES[name].tight:
        assert mu > mu_allowed(epsilon, DELTA) / 3


# ---------------------------------------------------------------- planted faults


def no_noise(patch, run, likelihood):
    patch.setattr(accept_reject, "decide", lambda rule, x, bits: x > 0)


def does_not_clip(patch, run, likelihood):
    real = type(likelihood).clipped_change
    patch.setitem(likelihood.__dict__, "clipped_change", lambda new, old, bound: real(likelihood, new, old, 1e3 * bound))  # fmt: skip


def clips_the_sum(patch, run, likelihood):
    def clipped_change(new, old, bound):
        change, limit = likelihood.logp(new) - likelihood.logp(old), bound * likelihood.n_records
        return float(np.clip(change.sum(), -limit, limit))

    patch.setitem(likelihood.__dict__, "clipped_change", clipped_change)


def charges_nothing(patch, run, likelihood):
    patch.setattr(base.DPStep, "charge", lambda self, accesses: None)


def tuning_is_free(patch, run, likelihood):
    real = base.DPStep.charge
    patch.setattr(
        base.DPStep,
        "charge",
        lambda self, accesses: None if self._tuning else real(self, accesses),
    )


def a_budget_for_each_chain(patch, run, likelihood):
    plan = PrivacyBudget.plan

    def for_one(self):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "chains", 1)
            return plan(self)

    patch.setattr(PrivacyBudget, "plan", for_one)
    patch.setattr(Ledger, "claim", lambda *_, **__: 0)


def batches_follow_the_seed(patch, run, likelihood):
    rng, run.batches = np.random.default_rng([run.seed, 1]), []

    def known(n, part, bits):
        run.batches.append(np.flatnonzero(rng.random(n) < part))
        return run.batches[-1]

    patch.setattr(sghmc, "poisson", known)


def gradients_with_a_tenth_of_the_noise(patch, run, likelihood):
    real = gradients.noisy_sum
    patch.setattr(gradients, "noisy_sum", lambda steps, exponent, sd, bits: real(steps, exponent, sd / 10, bits))  # fmt: skip


def gradients_are_not_clipped(patch, run, likelihood):
    real = type(likelihood).total

    def wide(term, index=None):
        wider = dataclasses.replace(term, bound=1e2 * term.bound)
        return real(likelihood, wider, index) << (wider.exponent - term.exponent)

    patch.setitem(likelihood.__dict__, "total", wide)


def where_it_starts(run, case):
    return run.rows[0].old


def where_it_ends(run, case):
    return run.rows[-1].new


def rows_are_records(patch, run, likelihood):
    """Planted by the case."""


# The attacker knows of the fault.
QUIET_HMC = replace(HMC, options=HMC.options | {"gradient_noise_multiplier": 10.0}, multiplier=1.0)
# Each with the number of runs on either data set, and what else they need.
FAULTS = {
    no_noise: (PENALTY, 60, {}),
    does_not_clip: (PENALTY, 60, {}),
    clips_the_sum: (PENALTY, 60, {}),
    rows_are_records: (replace(PENALTY, attack=where_it_ends, n=3, rows=40), 60, {}),
    charges_nothing: (PENALTY, 60, {"most": 500}),
    tuning_is_free: (replace(PENALTY, attack=where_it_starts, n=1), 40, {"tune": 1000}),
    a_budget_for_each_chain: (PENALTY, 60, {"chains": 60}),
    batches_follow_the_seed: (
        replace(
            CASES["SGHMC, batches"], options=SGHMC | {"sampling_probability": 0.01}, part=0.01, n=101, friction=200.0,
        ),
        40,
        {},
    ),
    gradients_with_a_tenth_of_the_noise: (QUIET_HMC, 60, {}),
    gradients_are_not_clipped: (CASES["SGHMC"], 60, {}),
}  # fmt: skip


#: The fault that takes a minute.
LONGEST = batches_follow_the_seed


@pytest.mark.parametrize("fault", [f if f is not LONGEST else pytest.param(f, marks=pytest.mark.long) for f in FAULTS])  # fmt: skip
def test_planted_fault_is_found(fault, seed=1):
    case, runs, options = FAULTS[fault]
    epsilon, _ = attack(case, runs, seed, 1.0, plant=fault, **options)
    assert epsilon > 1.0
