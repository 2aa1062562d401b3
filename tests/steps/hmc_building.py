"""DPHMC on known targets: how to build a step, run a chain and watch its accesses."""

from __future__ import annotations

import contextlib
import itertools
import math

from dataclasses import dataclass

import numpy as np
import pytest

from pymc_dp import DPHMC, PrivacyBudget
from pymc_dp.privacy.budget.allocation import Allocation
from pymc_dp.privacy.mechanisms.mechanism import Decision, Gaussian
from pymc_dp.steps import accept_reject, base
from pymc_dp.steps import noisy_gradients as gradients
from pymc_dp.steps.hmc import leapfrog
from pymc_dp.steps.noisy_gradients import Coordinates
from tests.audit.replay import Leak
from tests.exactness.targets import (
    BANANA,
    compiled_once,
)
from tests.exactness.test_exactness import HUGE, check, reference

#: Iterations of a chain.
N_DRAWS = 5000

# ---------------------------------------------------------------- building


def record_gradients(likelihood, theta, directions):
    """Gradient of each record, one by one."""
    return np.array(
        [
            likelihood.clipped_grad(theta, math.inf, np.array([i]), directions=directions)
            for i in range(likelihood.n_records)
        ]
    )


def build(
    target,
    *,
    step=DPHMC,
    noise=1.0,
    clipped=0.5,
    mass="diagonal",
    variables=None,
    budget="infinite",
    model=None,
    **options,
):
    """A private step whose gradients have noise of sd ``noise`` in units in which the posterior is about standard normal
    (so that the gradient itself has about sd 1), and of which ``clipped`` of all records clip at the posterior mean.
    """
    temperature = options.get("temperature", 1.0)
    exact = reference(target, temperature)
    part = slice(None) if variables is None else variables
    cov = np.atleast_2d(np.cov(exact.T))[part][:, part]
    matrix = {"diagonal": 1 / np.diag(cov), "dense": np.linalg.inv(cov), "identity": None}[mass]
    if budget == "infinite":
        budget = PrivacyBudget(math.inf, 1e-6, chains=1)
    model = target.model() if model is None else model
    with compiled_once(target.name), model:
        names = None if variables is None else [model.free_RVs[i] for i in variables]
        likelihood = base.RecordLikelihood(model)
        n_dim = exact.shape[1]
        directions = Coordinates(matrix, np.arange(n_dim)[part], n_dim).directions
        norms = np.linalg.norm(record_gradients(likelihood, exact.mean(axis=0), directions), axis=1)
        bound = np.quantile(norms, 1 - clipped) if clipped else 50 * norms.max()
        settings = {
            "budget": budget,
            "mass_matrix": matrix,
            "clip_bound": HUGE,
            "gradient_clip_bound": bound,
            "gradient_noise_multiplier": noise / (2 * bound * temperature),
            "reproducible": True,
        }
        return step(names, **settings | options)


def start(step, seed=1):
    """Begin a chain."""
    step.set_rng(np.random.default_rng(seed))
    step.stop_tuning()
    step._open()
    return step


@dataclass
class Chain:
    """States, the noise of the gradient that is kept with each of them (in its standard deviations), and acceptance."""

    draws: np.ndarray
    noise: np.ndarray
    acceptance: float


def run(step, theta, n, seed):
    """A chain from ``theta``."""
    start(step, seed)
    draws, noise, accepted = np.empty((n, len(theta))), [], 0
    for i in range(n):
        theta, moved, _ = step.transition(theta)
        draws[i] = theta
        accepted += moved
        if step.reuse_gradient and i % 2:
            noise.append(kept_noise(step))
    return Chain(draws, np.array(noise), accepted / n)


def noise_sd(step):
    """Standard deviation of the noise in a gradient of the log-posterior."""
    return (
        step.temperature
        * step.gradient_noise_multiplier
        * step.sensitivity_factor
        * step.gradient_clip_bound
    )


def kept_noise(step):
    """Noise of the gradient that is kept with the state, in standard deviations."""
    state = step._current
    return (state.gradient - step._gradient(state.theta, 0.0, None)) / noise_sd(step)


def check_chain(chain, exact):
    """Raise unless positions have the law of the exact draws, and the noise that is kept its own, whatever the position."""
    columns = np.column_stack
    found, truth = chain.draws, exact
    if exact.shape[1] == 2 and exact.std() > 1.5:  # the circle
        found, truth = (columns([x, (x**2).sum(axis=1)]) for x in (found, truth))
    check(found, truth)
    if len(chain.noise):
        z, normal = (
            (x - exact.mean(axis=0)) / exact.std(axis=0) for x in (chain.draws[1::2], exact)
        )
        other = np.random.default_rng(2025).standard_normal((len(exact), chain.noise.shape[1]))
        first = (slice(None), slice(3))
        check(
            columns([chain.noise[first], np.abs(chain.noise[first]) * z[first]]),
            columns([other[first], np.abs(other[first]) * normal[first]]),
        )


def chain(target, *, seed=1, n=N_DRAWS, **options):
    """Draws of a chain that begins with an exact draw, and exact draws."""
    exact = reference(target, options.get("temperature", 1.0))
    step = build(target, **options)
    begin = exact[np.random.default_rng(seed + 1000).integers(len(exact))]
    found = run(step, begin, n, seed)
    assert 0.1 < found.acceptance < 0.95
    # Nothing comes near the clip bound of the decision.
    rows = found.draws[:: n // 100]
    for old, new in itertools.pairwise(rows):
        change = np.abs(step.likelihood.logp(new) - step.likelihood.logp(old)).max()
        assert change <= 0.5 * HUGE * step.coordinates.distance(old, new)
    return found, exact


# ---------------------------------------------------------------- settings of several tests

PATH = {"step_size": 0.7, "n_leapfrog": 3}
INFINITE = {"gradient_clip_bound": math.inf, "gradient_noise_multiplier": 0.0}


def leapfrog_with_friction(begin, gradient_at, coordinates, step_size, n_steps, friction):
    phase = begin
    for _ in range(n_steps):
        (phase,) = leapfrog(phase, gradient_at, coordinates, step_size, 1)
        phase = phase._replace(momentum=friction * phase.momentum)
        yield phase


PAID = {
    "clip_bound": 0.1, "gradient_clip_bound": 0.05, "gradient_noise_multiplier": 25.0, "max_distance": 3.0
}  # fmt: skip


def paid_step(step=DPHMC, target=BANANA, epsilon=6.0, chains=2, adjacency="substitute", **options):
    budget = PrivacyBudget(epsilon, 1e-5, chains=chains, adjacency=adjacency)
    return build(target, step=step, budget=budget, **PATH | PAID | options)


# ---------------------------------------------------------------- accesses


class Watched:
    """A likelihood that notes what is asked of it."""

    def __init__(self, likelihood, events):
        self._likelihood, self._events = likelihood, events

    def __getattr__(self, name):
        return getattr(self._likelihood, name)

    def total(self, *args):
        self._events.append(("gradient", None))
        return self._likelihood.total(*args)

    def clipped_grad(self, *args, **kwargs):
        raise Leak("an exact sum of gradients")

    def logp(self, theta):
        self._events.append(("logp", None))
        return self._likelihood.logp(theta)


@contextlib.contextmanager
def watching(step):
    """All that matters, in order: charges, gradients, noise, likelihoods, decisions with their distance."""
    events: list = []
    watched = Watched(step.likelihood, events)
    object.__setattr__(step, "likelihood", watched)
    step._gradient._likelihood = watched
    pay, noisy, draw = Allocation.charge, gradients.noisy_sum, accept_reject.decide
    charge_decision = step.charge_decision

    def charge(self, accesses):
        granted = pay(self, accesses)
        if self is step._allocation:
            events.append(("charge" if granted else "refusal", tuple(accesses)))
        return granted

    def noisy_sum(steps, exponent, scale, bits):
        events.append(("noise", scale))
        return noisy(steps, exponent, scale, bits)

    def decide(rule, x, bits):
        events.append(("decision", rule))
        return draw(rule, x, bits)

    def note_move(move):
        events.append(("move", move.distance))
        return charge_decision(move)

    step.charge_decision = note_move
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Allocation, "charge", charge)
            patch.setattr(gradients, "noisy_sum", noisy_sum)
            patch.setattr(accept_reject, "decide", decide)
            yield events
    finally:
        del step.charge_decision
        object.__setattr__(step, "likelihood", watched._likelihood)
        step._gradient._likelihood = watched._likelihood


def audit(step, events, allowance):
    """Accesses at their true cost; raise Leak unless each was paid before it was made, and all fit into the share."""
    accessed, charged, paid, decision, distance = [], [], 0, None, None
    sensitivity = step.sensitivity_factor * step.gradient_clip_bound
    open_sum = False
    for kind, what in events:
        if kind == "charge":
            charged.extend(what)
            for mechanism, count in what:
                if isinstance(mechanism, Gaussian):
                    paid += count
                else:
                    decision = mechanism
        elif kind == "gradient":
            if paid == 0 or open_sum:
                raise Leak("a gradient that was not paid")
            paid, open_sum = paid - 1, True
        elif kind == "noise":
            accessed.append((Gaussian(what / sensitivity), 1))
            open_sum = False
        elif kind == "move":
            distance = what
        elif kind == "logp" and decision is None:
            raise Leak("a likelihood before the decision was paid")
        elif kind == "decision":
            if decision is None:
                raise Leak("a decision that was not paid")
            accessed.append(
                (
                    Decision(
                        what,
                        step.sensitivity_factor * step.temperature * step.clip_bound * distance,
                    ),
                    1,
                )
            )
            decision = None
    if open_sum:
        raise Leak("a gradient without noise")
    share, order = allowance.filter.share, [allowance.filter.share.order]
    cost = sum(k * float(m.renyi(order)[0]) for m, k in accessed)
    claimed = sum(k * float(m.renyi(order)[0]) for m, k in charged)
    if not cost * (1 - 1e-9) <= allowance.filter.spent <= share.rho:
        raise Leak(
            f"accesses cost {cost:.4g}, charged {allowance.filter.spent:.4g} of {share.rho:.4g}"
        )
    assert claimed == pytest.approx(allowance.filter.spent, rel=1e-9)
    return accessed
