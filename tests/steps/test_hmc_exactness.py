"""DPHMC: the chain is exact.

Chains with noise as large as the gradient, with many records' gradients clipped, and with gradients that are used again have
exactly the posterior. As a second way to the same law, the kernel on positions and noise is written again in NumPy and agrees
with the step number by number. Broken samplers must be found.
"""

from __future__ import annotations

import functools
import math

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from scipy import stats
from scipy.special import expit

from pymc_dp import DPHMC, DPPenalty, Penalty, PrivacyBudget, RandomWalk
from pymc_dp.steps import Metropolis, accept_reject, hmc
from pymc_dp.steps import noisy_gradients as gradients
from tests.exactness.targets import (
    BANANA,
    CIRCLE,
    GAUSSIAN,
    LOGIT,
    NARROW,
    QUARTIC,
    QUARTIC_PARTS,
    TWO_VARIABLES,
    compiled_once,
    quartic_moment,
)
from tests.exactness.test_exactness import HUGE, check, reference
from tests.steps.hmc_building import (
    INFINITE,
    N_DRAWS,
    PATH,
    Chain,
    build,
    chain,
    check_chain,
    kept_noise,
    leapfrog_with_friction,
    record_gradients,
    run,
    start,
)

# ---------------------------------------------------------------- 1. invariance

RING = {"step_size": 0.17, "n_leapfrog": 8, "mass": "identity", "noise": 2.0}

#: Each target once: both rules, with and without reuse, and all options between them.
CASES = {
    "gaussian, penalty, no reuse": (GAUSSIAN, PATH | {"rule": Penalty(1.0), "reuse_gradient": False}),
    "banana, tempered, lazy, max_distance": (BANANA, PATH | {"temperature": 0.4, "laziness": 0.7, "max_distance": 2.0}),
    "logit, noise multiplier, dense mass": (LOGIT, PATH | {"noise_multiplier": 0.1 / HUGE, "mass": "dense", "n_leapfrog": 2}),
    "narrow, MALA, jitter": (NARROW, {"mass": "dense", "step_size": 0.9, "n_leapfrog": 1, "step_size_jitter": 0.4}),
    "circle": (CIRCLE, RING),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_posterior(name, seed=1):
    """Noise as large as the gradient, half of all records clipped."""
    target, options = CASES[name]
    check_chain(*chain(target, n=N_DRAWS * (3 if name == "circle" else 1), seed=seed, **options))


@pytest.mark.slow
def test_noise_and_clipping_are_what_they_are_said_to_be(target=BANANA):
    """In units of the posterior the gradient has about sd 1, as its noise, and half of all records are clipped."""
    step, exact = build(target, **PATH), reference(target, 1.0)
    directions, bound = step.coordinates.directions, step.gradient_clip_bound
    total, clipped = [], []
    for theta in exact[:20]:
        each = record_gradients(step.likelihood, theta, directions)
        total.append(
            each.sum(axis=0) + step.coordinates.pull(step.likelihood.grad_log_prior(theta))
        )
        clipped.append(np.mean(np.linalg.norm(each, axis=1) > bound))
    noise = step.gradient_noise_multiplier * 2 * bound
    assert 0.6 < np.sqrt(np.mean(np.square(total))) / noise < 2
    assert 0.4 < np.mean(clipped) < 0.65


def compound(first, seed=1, n=N_DRAWS // 2, **options):
    """Gibbs style: DPHMC moves one variable, another step the other one."""
    exact = reference(TWO_VARIABLES, 1.0)
    budget = PrivacyBudget(math.inf, 1e-6, chains=1)
    model = TWO_VARIABLES.model()
    step = build(
        TWO_VARIABLES,
        variables=[0],
        budget=budget,
        model=model,
        step=first,
        **{"step_size": 0.9, "n_leapfrog": 2} | options,
    )
    with compiled_once(TWO_VARIABLES.name), model:
        other = DPPenalty(
            [model["b"]], budget=budget, clip_bound=HUGE, proposal=RandomWalk(1.5 * exact.std(axis=0)[1]),
            noise_scale=1.0, reproducible=True,
        )  # fmt: skip
    for k, method in enumerate((step, other)):
        start(method, seed + k)
    theta, draws, noise = exact[seed], np.empty((n, 2)), []
    for i in range(n):
        theta, _, _ = step.transition(theta)
        if i % 2:
            noise.append(kept_noise(step))
        theta, _, _ = other.transition(theta)
        draws[i] = theta
    # The noise is compared with where the other step went from there: of that it knows nothing either.
    return Chain(draws, np.array(noise), math.nan), exact


@pytest.mark.slow
def test_one_of_two_steps(seed=1):
    """A gradient is used again until another step has moved, and not after that."""
    check_chain(*compound(DPHMC, seed))


# ---------------------------------------------------------------- broken chains


class WithFriction(DPHMC):
    """Momentum is lost on the way, as in a draft of the published sampler."""

    def transition(self, theta):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hmc, "leapfrog", functools.partial(leapfrog_with_friction, friction=0.9))
            return super().transition(theta)


class KeepsTheEndGradient(DPHMC):
    """After a rejection the next path begins with the gradient at the end of the last one."""

    def choose(self, move, rule, log_ratio):
        theta, accepted, distance = super().choose(move, rule, log_ratio)
        if not accepted:
            move.old.gradient = move.new.gradient
        return theta, accepted, distance


class StepOfTheState(DPHMC):
    """Longer steps on one side."""

    def transition(self, theta):
        scale, true = (theta[0] - self.centre[0]) / self.spread[0], self.step_size
        try:
            self.__dict__["step_size"] = true * (1.6 if scale > 0 else 0.4)
            return super().transition(theta)
        finally:
            self.__dict__["step_size"] = true


class FewerRecords(DPHMC):
    """Decides from clipped log-ratios: what a tight clip bound does."""

    def log_ratio(self, move):
        change = self.likelihood.logp(move.new.theta) - self.likelihood.logp(move.old.theta)
        return float(np.clip(change, -0.03, 0.03).sum()) + move.prior


class StaleGradient(DPHMC):
    """Goes on with its gradient although another step has moved."""

    def current(self, theta):
        last = getattr(self, "_last", None)
        state = super().current(theta)
        if state.gradient is None and last is not None:
            state.gradient = last
        return state

    def choose(self, move, rule, log_ratio):
        theta, accepted, distance = super().choose(move, rule, log_ratio)
        self._last = (move.new if accepted else move.old).gradient
        return theta, accepted, distance


#: More faults are planted in the kernel below, which the step is shown to be.
LONG_PATHS = {"step_size": 0.5, "n_leapfrog": 5, "noise": 0.5}
BROKEN = {
    "friction": {"step": WithFriction, **LONG_PATHS},
    "keeps the end gradient": {"step": KeepsTheEndGradient},
    "step of the state": {"step": StepOfTheState, **LONG_PATHS},
    "clipped decisions": {"step": FewerRecords},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_broken_chains_fail(name, monkeypatch, seed=1):
    """The very check that the chains above pass."""
    exact = reference(GAUSSIAN, 1.0)
    step = BROKEN[name]["step"]
    monkeypatch.setattr(step, "centre", exact.mean(axis=0), raising=False)
    monkeypatch.setattr(step, "spread", exact.std(axis=0), raising=False)
    found = run(build(GAUSSIAN, **PATH | BROKEN[name]), exact[seed], N_DRAWS // 2, seed)
    with pytest.raises(AssertionError, match="wrong law"):
        check_chain(found, exact)


@pytest.mark.slow
def test_a_stale_gradient_fails(seed=1):
    with pytest.raises(AssertionError, match="wrong law"):
        check_chain(*compound(StaleGradient, seed, noise=0.15))


# ---------------------------------------------------------------- the second way: the extended kernel, in NumPy


@dataclass(frozen=True)
class Variant:
    """How :func:`extended_kernel` is changed: the scale of the noise by position, origin and place in the path, and faults."""

    scale: Callable = lambda position, origin, place: 1.0
    friction: float = 1.0
    kinetic: bool = True
    keep: str = "right"
    eager: float = 0.0


QUARTIC_BOUND, QUARTIC_NOISE = 0.12, 1.42


def quartic_gradient(theta, bound=QUARTIC_BOUND):
    """Clipped gradients of all records of the quartic target, added up."""
    cube = -(theta**3)
    return sum(np.clip(part * cube, -bound, bound) for part in QUARTIC_PARTS)


def extended_kernel(theta, xi, momentum, noise, uniform, step_size, variant=Variant()):
    """One iteration on (position, noise of its gradient), for many chains at once, from given random numbers.

    ``noise`` has a row for each leapfrog step; the kicks at a position use the one noise that belongs to it.
    """
    q, p, e = theta, momentum, xi
    for place, each in enumerate(noise):
        p = p + step_size / 2 * (quartic_gradient(q) + e)
        q = q + step_size * p
        e = each * variant.scale(q, theta, place)
        p = (p + step_size / 2 * (quartic_gradient(q) + e)) * variant.friction
    log_ratio = (theta**4 - q**4) / 4
    if variant.kinetic:
        log_ratio = log_ratio + (momentum**2 - p**2) / 2
    accepted = uniform < expit(log_ratio + variant.eager)
    new = np.where(accepted, q, theta)
    if variant.keep == "end":
        kept = quartic_gradient(q) + e - quartic_gradient(new)
    elif variant.keep == "first":
        kept = quartic_gradient(theta) + xi - quartic_gradient(new)
    else:
        kept = np.where(accepted, e, xi)
    return new, kept, accepted


def quartic_step():
    with compiled_once(QUARTIC.name), QUARTIC.model():
        return DPHMC(
            budget=PrivacyBudget(math.inf, 1e-6, chains=1), step_size=0.6, n_leapfrog=3, clip_bound=HUGE,
            gradient_clip_bound=QUARTIC_BOUND, gradient_noise_multiplier=QUARTIC_NOISE / (2 * QUARTIC_BOUND),
            reproducible=True,
        )  # fmt: skip


def test_the_step_is_the_extended_kernel(monkeypatch):
    """Number by number, given the same momenta, noise and uniforms: so what is shown of one holds for the other."""
    step, rng = start(quartic_step()), np.random.default_rng(7)
    given: dict = {}

    class Momenta:
        def standard_normal(self, n):
            return np.array([given["momentum"]])

    def noisy_sum(steps, exponent, scale, bits):
        assert scale == pytest.approx(QUARTIC_NOISE)
        return np.ldexp(steps.astype(float), exponent) + given["noise"].pop(0)

    def decide(rule, x, bits):
        return given["uniform"] < rule.probability(x)

    monkeypatch.setattr(gradients, "noisy_sum", noisy_sum)
    monkeypatch.setattr(accept_reject, "decide", decide)
    step.rng = Momenta()
    theta, xi = 0.3, QUARTIC_NOISE * rng.standard_normal()
    outcomes = []
    for i in range(400):
        momentum, uniform = rng.standard_normal(), rng.random()
        noise = QUARTIC_NOISE * rng.standard_normal(3)
        given.update(momentum=momentum, uniform=uniform, noise=[xi] * (i == 0) + noise.tolist())
        end, accepted, _ = step.transition(np.array([theta]))
        assert not given[
            "noise"
        ]  # one gradient per position, and none at the start of a path but the first
        new, xi, moved = extended_kernel(theta, xi, momentum, noise, uniform, 0.6)
        assert accepted == moved and end[0] == pytest.approx(new, rel=1e-9, abs=1e-9)
        theta = float(end[0])
        outcomes.append(accepted)
    assert 50 < sum(outcomes) < 350


def quartic_z_scores(n_chains, n, seed, variant=Variant(), step_size=0.6):
    """How far moments of independent chains from exact draws are off, in standard errors; and the errors."""
    rng = np.random.default_rng(seed)
    theta = QUARTIC.exact(1.0, n_chains, rng)[:, 0]
    xi = QUARTIC_NOISE * rng.standard_normal(n_chains) * variant.scale(theta, theta, 0)
    sums = np.zeros((7, n_chains))
    for _ in range(n):
        momentum, uniform = rng.standard_normal(n_chains), rng.random(n_chains)
        noise = QUARTIC_NOISE * rng.standard_normal((3, n_chains))
        theta, xi, _ = extended_kernel(theta, xi, momentum, noise, uniform, step_size, variant)
        square, z = theta**2, xi / QUARTIC_NOISE / variant.scale(theta, theta, 0)
        cut = np.minimum(square, 6.25) ** 3
        sums += [theta, square, square**2, cut, z, z * theta, z**2 * square]
    second = quartic_moment(2)
    truth = np.array([0, second, quartic_moment(4), _cut_sixth(), 0, 0, second])
    error = sums.std(axis=1, ddof=1) / n / math.sqrt(n_chains)
    return (sums.mean(axis=1) / n - truth) / error, error


@functools.cache
def _cut_sixth():
    x = (np.arange(4_000_000) + 0.5) * 2e-6
    weight = np.exp(-(x**4) / 4)
    return float(np.minimum(x, 2.5) ** 6 @ weight / weight.sum())


def test_moments_of_the_quartic_target():
    """With noise as large as the gradient and most records clipped: standard errors of E theta^2 and E theta^4 of 0.0013 and 0.0033."""
    z, error = quartic_z_scores(4000, 400, 1)
    assert np.all(2 * stats.norm.sf(np.abs(z)) > 1e-4 / 7)
    assert error[1] < 0.0015 and error[2] < 0.004


def by_size(position, origin, place):
    """A law of the noise that depends on the position it belongs to, and on nothing else."""
    return 0.4 + np.abs(position)


def test_noise_may_depend_on_its_own_position():
    """There and back, a position comes with the same noise, and its density cancels whatever the position."""
    z, _ = quartic_z_scores(4000, 400, 1, Variant(scale=by_size))
    assert np.all(2 * stats.norm.sf(np.abs(z)) > 1e-4 / 7)


KERNEL_FAULTS = {
    "friction 0.9": Variant(friction=0.9),
    "noise by where the path began": Variant(scale=lambda position, origin, place: 0.4 + np.abs(origin)),
    "noise by place in the path": Variant(scale=lambda position, origin, place: 0.5 + place / 2),
    "keeps the end gradient": Variant(keep="end"),
    "keeps the first gradient": Variant(keep="first"),
    "no kinetic energy": Variant(kinetic=False),
    "eager by 0.2": Variant(eager=0.2),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNEL_FAULTS)
def test_wrong_kernels_have_wrong_moments(name):
    z, _ = quartic_z_scores(4000, 200, 3, KERNEL_FAULTS[name])
    assert np.any(2 * stats.norm.sf(np.abs(z)) < 1e-4 / 7)


def test_without_a_budget_nothing_is_needed():
    """Plain HMC: no clipping, no noise, Metropolis' rule."""
    exact = reference(GAUSSIAN, 1.0)
    options = PATH | INFINITE | {"clip_bound": math.inf, "rule": Metropolis(), "budget": None}
    found = run(build(GAUSSIAN, **options, reuse_gradient=False), exact[0], 1500, 1)
    assert found.acceptance > 0.8
    check(found.draws, exact)
