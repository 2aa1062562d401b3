"""DPHMC: the chain is exact, its paths can be run backwards, every access is paid for, and it lives in ``pm.sample``.

Four arguments. (1) Chains with noise as large as the gradient, with many records' gradients clipped, and with gradients
that are used again have exactly the posterior; as a second way to the same law, the kernel on positions and noise is
written again in NumPy and agrees with the step number by number. (2) Recorded paths lead back to where they came from.
(3) An instrumented likelihood counts what is looked at, and that is what was charged. (4) The host. Each argument comes
with broken samplers that it must find out.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import pickle

from collections.abc import Callable
from dataclasses import dataclass

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from scipy import stats
from scipy.special import expit

from pymc_dp import (
    DPHMC,
    Barker,
    DPPenalty,
    Lazy,
    Metropolis,
    Penalty,
    PrivacyBudget,
    RandomWalk,
    release,
    sample,
)
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.allowance import Allowance
from pymc_dp.privacy.composition import renyi_to_epsilon
from pymc_dp.privacy.families import DecisionFamily
from pymc_dp.privacy.mechanisms import Decision, Gaussian
from pymc_dp.privacy.noise import OperatingSystemBits
from pymc_dp.steps import accept_reject, base, gradients, hmc
from pymc_dp.steps.accept_reject import State
from pymc_dp.steps.gradients import Coordinates, Phase, leapfrog
from tests.steps.targets import (
    BANANA,
    CIRCLE,
    GAUSSIAN,
    LOGIT,
    NARROW,
    QUARTIC,
    QUARTIC_PARTS,
    TWO_VARIABLES,
    WIDE,
    compiled_once,
    quartic_moment,
)
from tests.steps.test_exactness import HUGE, check, reference

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
        step.temperature * step.gradient_noise_multiplier * step._sides * step.gradient_clip_bound
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


# ---------------------------------------------------------------- 1. invariance

PATH = {"step_size": 0.7, "leapfrog_steps": 3}
RING = {"step_size": 0.17, "leapfrog_steps": 8, "mass": "identity", "noise": 2.0}

CASES = {
    "gaussian": (GAUSSIAN, PATH),
    "gaussian, penalty, no reuse": (GAUSSIAN, PATH | {"rule": Penalty(1.0), "reuse_gradient": False}),
    "gaussian, MALA": (GAUSSIAN, {"step_size": 0.9, "leapfrog_steps": 1}),
    "banana, jitter": (BANANA, PATH | {"step_size_jitter": 0.4}),
    "banana, tempered, lazy": (BANANA, PATH | {"temperature": 0.4, "laziness": 0.7}),
    "banana, max_distance": (BANANA, PATH | {"max_distance": 2.0}),
    "logit, noise multiplier": (LOGIT, PATH | {"noise_multiplier": 0.1 / HUGE, "mass": "dense", "leapfrog_steps": 2}),
    "logit, MALA, tempered": (LOGIT, {"step_size": 1.0, "leapfrog_steps": 1, "temperature": 0.4}),
    "narrow, dense mass": (NARROW, PATH | {"mass": "dense"}),
    "wide": (WIDE, {"step_size": 0.16, "leapfrog_steps": 5}),
    "circle": (CIRCLE, RING),
    "quartic": (QUARTIC, {"step_size": 0.8, "leapfrog_steps": 2, "clipped": 0, "gradient_clip_bound": 0.1, "gradient_noise_multiplier": 6.0}),
}  # fmt: skip


QUICK = ("gaussian", "gaussian, MALA")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in CASES]
)
def test_posterior(name, seed=1):
    """Noise as large as the gradient, half of all records clipped."""
    target, options = CASES[name]
    n = N_DRAWS * (1 if name in QUICK else 3 if name == "circle" else 2)
    check_chain(*chain(target, n=n, seed=seed, **options))


@pytest.mark.parametrize(
    "target", [GAUSSIAN, *(pytest.param(t, marks=pytest.mark.slow) for t in (BANANA, LOGIT))], ids=lambda t: t.name
)  # fmt: skip
def test_noise_and_clipping_are_what_they_are_said_to_be(target):
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
        **{"step_size": 0.9, "leapfrog_steps": 2} | options,
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


def test_one_of_two_steps(seed=1):
    """A gradient is used again as long as nobody else has moved, and not after that."""
    check_chain(*compound(DPHMC, seed))


# ---------------------------------------------------------------- broken chains


class WithFriction(DPHMC):
    """Momentum is lost on the way, as in a draft of the published sampler."""

    def transition(self, theta):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hmc, "leapfrog", functools.partial(leapfrog_with_friction, friction=0.9))
            return super().transition(theta)


def leapfrog_with_friction(begin, gradient_at, coordinates, step_size, n_steps, friction):
    phase = begin
    for _ in range(n_steps):
        (phase,) = leapfrog(phase, gradient_at, coordinates, step_size, 1)
        phase = phase._replace(momentum=friction * phase.momentum)
        yield phase


class NoiseOfTheState(DPHMC):
    """Noise that is larger on one side: no fault, but the law of the noise is another one."""

    def _gradient_at(self, theta, logp=None):
        first = self.coordinates.part[0]
        scale = (theta[first] - self.centre[first]) / self.spread[first]
        noise = self.gradient_noise_multiplier * self._sides * self.gradient_clip_bound
        return self._gradient(
            theta, noise * math.exp(np.clip(0.5 * scale, -1, 1)), self._bits, logp=logp
        )


class KeepsTheEndGradient(DPHMC):
    """After a rejection the next path begins with the gradient at the end of the last one."""

    def _decide_on(self, old, path, records):
        accepted, distance = super()._decide_on(old, path, records)
        if not accepted:
            old.gradient = path[-1].gradient
        return accepted, distance


class KeepsTheFirstGradient(DPHMC):
    """After an acceptance the next path begins with the gradient of where the last one began."""

    def _decide_on(self, old, path, records):
        accepted, distance = super()._decide_on(old, path, records)
        if accepted:
            self._current.gradient = path[0].gradient
        return accepted, distance


class NoiseOfTheStart(DPHMC):
    """All noise of a path by where it began."""

    def transition(self, theta):
        scale = (theta[0] - self.centre[0]) / self.spread[0]
        self._factor = math.exp(np.clip(scale, -1.5, 1.5))
        return super().transition(theta)

    def _gradient_at(self, theta, logp=None):
        noise = self.gradient_noise_multiplier * self._sides * self.gradient_clip_bound
        return self._gradient(theta, noise * self._factor, self._bits, logp=logp)


class WithoutKineticEnergy(DPHMC):
    """Decides from the posterior alone."""

    def settle(self, move):
        move.prior = move.new.prior - move.old.prior
        return super().settle(move)


class StepOfTheState(DPHMC):
    """Longer steps on one side."""

    def transition(self, theta):
        scale, true = (theta[0] - self.centre[0]) / self.spread[0], self.step_size
        try:
            self.__dict__["step_size"] = true * (1.6 if scale > 0 else 0.4)
            return super().transition(theta)
        finally:
            self.__dict__["step_size"] = true


class Eager(DPHMC):
    """Decides as if the log-ratio were larger than it is."""

    def decide(self, rule, log_ratio):
        return super().decide(rule, log_ratio + 2)


class FewerRecords(DPHMC):
    """Decides from clipped log-ratios: what a tight clip bound does."""

    def log_ratio(self, move):
        change = self._records(move.new) - self._records(move.old)
        return float(np.clip(change, -0.03, 0.03).sum()) + move.prior


class StaleGradient(DPHMC):
    """Goes on with its gradient although another step has moved."""

    def current(self, theta):
        last = getattr(self, "_last", None)
        state = super().current(theta)
        if state.gradient is None and last is not None:
            state.gradient = last
        return state

    def _decide_on(self, old, path, records):
        accepted, distance = super()._decide_on(old, path, records)
        self._last = path[-1 if accepted else 0].gradient
        return accepted, distance


LONG = {"step_size": 0.5, "leapfrog_steps": 5, "noise": 0.5}

BROKEN = {
    "friction": {"step": WithFriction, **LONG},
    "noise of the start": {"step": NoiseOfTheStart},
    "keeps the end gradient": {"step": KeepsTheEndGradient},
    "keeps the first gradient": {"step": KeepsTheFirstGradient},
    "no kinetic energy": {"step": WithoutKineticEnergy, **LONG},
    "step of the state": {"step": StepOfTheState, **LONG},
    "eager": {"step": Eager, "step_size": 1.0},
    "clipped decisions": {"step": FewerRecords},
}

#: The others are planted in the kernel below, too, which the step is shown to be: here with the slow tests.
QUICKLY_FOUND = ("keeps the end gradient", "step of the state", "clipped decisions")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICKLY_FOUND else pytest.mark.slow) for n in BROKEN],
)
def test_broken_chains_fail(name, monkeypatch, seed=1):
    """The very check that the chains above pass."""
    exact = reference(GAUSSIAN, 1.0)
    step = BROKEN[name]["step"]
    monkeypatch.setattr(step, "centre", exact.mean(axis=0), raising=False)
    monkeypatch.setattr(step, "spread", exact.std(axis=0), raising=False)
    found = run(
        build(GAUSSIAN, **PATH | BROKEN[name]),
        exact[seed],
        N_DRAWS // (1 if name == "no kinetic energy" else 2),
        seed,
    )
    with pytest.raises(AssertionError, match="wrong law"):
        check_chain(found, exact)


def test_noise_of_the_position_is_no_fault(monkeypatch, seed=1):
    """Positions keep their law; that of the noise is not what it was, which shows that the latter is looked at."""
    exact = reference(GAUSSIAN, 1.0)
    monkeypatch.setattr(NoiseOfTheState, "centre", exact.mean(axis=0), raising=False)
    monkeypatch.setattr(NoiseOfTheState, "spread", exact.std(axis=0), raising=False)
    found = run(build(GAUSSIAN, step=NoiseOfTheState, **PATH), exact[seed], N_DRAWS // 2, seed)
    check(found.draws, exact)
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
            budget=PrivacyBudget(math.inf, 1e-6, chains=1), step_size=0.6, leapfrog_steps=3, clip_bound=HUGE,
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


@pytest.mark.slow
def test_more_digits():
    z, error = quartic_z_scores(8000, 5000, 2)
    assert np.all(2 * stats.norm.sf(np.abs(z)) > 1e-4 / 7)
    assert error[1] < 3e-4 and error[2] < 8e-4


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


# ---------------------------------------------------------------- 2. paths lead back


def recorded(target, mass, *, noise=1.0, n=20, seed=3, **options):
    """A step without a budget and its paths, from exact draws."""
    step = build(target, mass=mass, noise=noise, budget=None, record_trajectories=True, **options)
    start(step, seed)
    for theta in reference(target, 1.0)[:n]:
        step.transition(theta)
    assert len(step.trajectories) == n
    return step


def back_along(step, trajectory, mover=leapfrog):
    """Turn the momentum at the end of a path, and feed its gradients in reverse order."""
    end, others = trajectory.phases[-1], [f.gradient for f in trajectory.phases[-2::-1]]
    turned = Phase(end.theta, -end.momentum, end.gradient)
    feed = iter(others)
    return [
        turned,
        *mover(turned, lambda *_: next(feed), step.coordinates, trajectory.step_size, len(others)),
    ]


def largest_gap(step, trajectory, **options):
    """Distance between a path and the one back, relative to its size."""
    there, back = trajectory.phases, back_along(step, trajectory, **options)[::-1]
    size = max(np.abs(f.theta).max() for f in there), max(np.abs(f.momentum).max() for f in there)
    return max(
        max(
            np.abs(f.theta - b.theta).max() / size[0],
            np.abs(f.momentum + b.momentum).max() / size[1],
        )
        for f, b in zip(there, back, strict=True)
    )


@pytest.mark.parametrize("mass", ["diagonal", "dense", "identity"])
@pytest.mark.parametrize(
    "target", [BANANA, pytest.param(WIDE, marks=pytest.mark.slow)], ids=lambda t: t.name
)
def test_paths_lead_back(target, mass):
    """To 12 digits, with noise and half of all gradients clipped."""
    options = {"step_size": 0.25, "leapfrog_steps": 7, "step_size_jitter": 0.3}
    step = recorded(target, mass, **options)
    for trajectory in step.trajectories:
        assert len(trajectory.phases) == 8
        assert largest_gap(step, trajectory) < 1e-12
    broken = functools.partial(leapfrog_with_friction, friction=0.999)
    assert largest_gap(step, step.trajectories[0], mover=broken) > 1e-6


@pytest.mark.parametrize("mass", ["diagonal", "dense"])
def test_log_ratios_there_and_back_are_negatives(mass, monkeypatch):
    """To rounding, with records' log-ratios clipped or not; distances, that decide on costs, are equal to the last digit."""
    step = recorded(BANANA, mass, step_size=0.5, leapfrog_steps=5)
    for bound in (HUGE, 0.02):
        step.__dict__["clip_bound"] = bound
        seen = []
        monkeypatch.setattr(
            accept_reject, "decide", lambda rule, x, bits, s=seen: s.append(x) or False
        )
        for trajectory in step.trajectories:
            there, back = trajectory.phases, back_along(step, trajectory)
            back[-1] = back[-1]._replace(
                theta=there[0].theta
            )  # equal but for rounding, as shown above
            distances = []
            for path in (there, back):
                old = State(path[0].theta, step.likelihood.log_prior(path[0].theta))
                distances.append(step._decide_on(old, path)[1])
            assert distances[0] == distances[1] > 0
            assert seen[-2] == pytest.approx(-seen[-1], rel=1e-11, abs=1e-10)
        assert np.std(seen) > 0.1


@pytest.mark.parametrize("mass", ["diagonal", "dense"])
def test_volume_is_preserved(mass):
    """The Jacobian determinant of a path, with its noise held fixed, is 1, although gradients are clipped."""
    step = build(BANANA, mass=mass, step_size=0.4, leapfrog_steps=4)
    coordinates, exact = step.coordinates, reference(BANANA, 1.0)
    rng = np.random.default_rng(5)

    def end(origin, z, noise, mover):
        feed = iter(noise)

        def gradient_at(theta, is_last=False):
            return step._gradient(theta, 0.0, None) + next(feed)

        theta = coordinates.moved(origin, z[:2])
        (*_, last) = mover(
            Phase(theta, z[2:], gradient_at(theta)), gradient_at, coordinates, 0.4, 4
        )
        return np.append(
            coordinates._back @ last.theta if mass == "dense" else coordinates._back * last.theta,
            last.momentum,
        )

    def determinant(i, mover=leapfrog):
        z, noise, h = (
            np.append(np.zeros(2), rng.standard_normal(2)),
            rng.standard_normal((5, 2)),
            1e-4,
        )
        moves = [
            (end(exact[i], z + h * e, noise, mover) - end(exact[i], z - h * e, noise, mover))
            / (2 * h)
            for e in np.eye(4)
        ]
        return np.linalg.det(np.array(moves))

    found = np.array([determinant(i) for i in range(15)])
    # Differences meet kinks, where a record begins to be clipped: rarely, and by little.
    assert np.abs(found - 1).max() < 5e-3 and np.median(np.abs(found - 1)) < 1e-5
    friction = functools.partial(leapfrog_with_friction, friction=0.99)
    assert determinant(0, friction) == pytest.approx(0.99 ** (2 * 4), abs=1e-4)


# ---------------------------------------------------------------- 4. what is accessed is what is paid for


class Leak(AssertionError):
    """More was accessed than was paid for."""


class Watched:
    """A likelihood that notes what is asked of it."""

    def __init__(self, likelihood, events):
        self._likelihood, self._events = likelihood, events

    def __getattr__(self, name):
        return getattr(self._likelihood, name)

    def clipped_grad_steps(self, *args, **kwargs):
        self._events.append(("gradient", None))
        return self._likelihood.clipped_grad_steps(*args, **kwargs)

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
    pay, noisy, draw, settle = (
        Allowance.charge,
        gradients.noisy_sum,
        accept_reject.decide,
        step.settle,
    )

    def charge(self, accesses):
        granted = pay(self, accesses)
        if self is step._allowance:
            events.append(("charge" if granted else "refusal", tuple(accesses)))
        return granted

    def noisy_sum(steps, exponent, scale, bits):
        events.append(("noise", scale))
        return noisy(steps, exponent, scale, bits)

    def decide(rule, x, bits):
        events.append(("decision", rule))
        return draw(rule, x, bits)

    def settled(move):
        events.append(("move", move.distance))
        return settle(move)

    step.settle = settled
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Allowance, "charge", charge)
            patch.setattr(gradients, "noisy_sum", noisy_sum)
            patch.setattr(accept_reject, "decide", decide)
            yield events
    finally:
        del step.settle
        object.__setattr__(step, "likelihood", watched._likelihood)
        step._gradient._likelihood = watched._likelihood


def audit(step, events, allowance):
    """Accesses at their true cost; raise Leak unless each was paid before it was made, and all fit into the share."""
    accessed, charged, paid, decision, distance = [], [], 0, None, None
    sensitivity = step._sides * step.gradient_clip_bound
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
                (Decision(what, step._sides * step.temperature * step.clip_bound * distance), 1)
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


PAID = {
    "clip_bound": 0.1, "gradient_clip_bound": 0.05, "gradient_noise_multiplier": 25.0, "max_distance": 3.0
}  # fmt: skip


def paid_step(step=DPHMC, target=BANANA, epsilon=6.0, chains=2, adjacency="substitute", **options):
    budget = PrivacyBudget(epsilon, 1e-5, chains=chains, adjacency=adjacency)
    return build(target, step=step, budget=budget, **PATH | PAID | options)


def exhaust(step, seed=1, limit=2000):
    """All draws of a chain, the state in which it ends, and everything that happened."""
    step.set_rng(np.random.default_rng(seed))
    step.stop_tuning()
    point, n = step.likelihood.unravel(np.array([0.3, 0.5])), 0
    with watching(step) as events:
        while n < limit:
            point, (statistics,) = step.step(point)
            if statistics["exhausted"]:
                break
            n += 1
    return n, point, events


VARIANTS = {
    "Barker": {},
    "penalty, no reuse": {"rule": Penalty(1.2), "reuse_gradient": False},
    "noise multiplier": {"noise_multiplier": 8.0},
    "add_remove, tempered": {
        "adjacency": "add_remove",
        "temperature": 0.7,
        "epsilon": 3.0,
        "laziness": 0.9,
    },
    "MALA, jitter": {"leapfrog_steps": 1, "step_size_jitter": 0.3},
    "max_distance": {"max_distance": 1.0},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] if n == "noise multiplier" else [])
        for n in VARIANTS
    ],
)
def test_accesses_are_what_was_charged(name):
    """Counted, in order, at their true cost: within 2 % of the charge, which is rounded up; together within the budget."""
    step = paid_step(**VARIANTS[name])
    total = 0.0
    for seed in (1, 2):
        n, point, events = exhaust(step, seed)
        allowance = step._allowance
        accessed = audit(step, events, allowance)
        count = {
            kind: sum(k == kind for k, _ in events)
            for kind in ("gradient", "noise", "decision", "move")
        }
        paths = n + (events[-1][0] == "refusal" and isinstance(events[-1][1][0][0], Decision))
        steps = step.leapfrog_steps
        assert (
            count["gradient"]
            == count["noise"]
            == (paths * steps + 1 if step.reuse_gradient else paths * (steps + 1))
        )
        # Paths that are too long need no decision.
        assert 0 < count["decision"] == count["move"] - (paths - n) <= n < 2000
        order = [allowance.filter.share.order]
        cost = sum(k * float(m.renyi(order)[0]) for m, k in accessed)
        assert cost > 0.97 * allowance.filter.spent > 0.8 * allowance.filter.share.rho
        # After the end nothing is touched any more.
        with watching(step) as events:
            for _ in range(20):
                again, (statistics,) = step.step(point)
                assert again is point and statistics["exhausted"]
        assert {kind for kind, _ in events} == {"refusal"}
        total += cost
    assert renyi_to_epsilon(*order, total, 1e-5) <= step.budget.epsilon
    assert step.budget.spent() <= step.budget.epsilon


class HalfTheNoise(DPHMC):
    def _gradient_at(self, theta, logp=None):
        noise = self.gradient_noise_multiplier * self._sides * self.gradient_clip_bound
        return self._gradient(theta, noise / 2, self._bits, logp=logp)


class OneGradientFree(DPHMC):
    def charge(self, accesses):
        super().charge([(m, k - isinstance(m, Gaussian)) for m, k in accesses])


class FirstGradientFree(DPHMC):
    def transition(self, theta):
        state = self.current(theta)
        if state.gradient is None:
            state.gradient = self._gradient_at(theta)
        return super().transition(theta)


class DecisionFree(DPHMC):
    def charge(self, accesses):
        if isinstance(accesses[0][0], Gaussian):
            super().charge(accesses)


class LikelihoodNotPaid(DPHMC):
    def settle(self, move):
        self.likelihood.logp(move.new.theta)
        return super().settle(move)


class DecisionPaidLater(DPHMC):
    def settle(self, move):
        decision = self.family.at(move.distance)
        accepted = self.accept(move, decision)
        self.charge(((decision, 1),))
        return accepted


class GoesOn(DPHMC):
    def charge(self, accesses):
        with contextlib.suppress(base._AllowanceUsedUp):
            super().charge(accesses)


class HalfTheDistance(DPHMC):
    def settle(self, move):
        full, move.distance = move.distance, move.distance / 2
        decision = self.family.at(move.distance)
        self.charge(((decision, 1),))
        move.distance = full
        return self.accept(move, decision)


class ExactEnd(DPHMC):
    """The end of a path gets a second, exact look."""

    def _decide_on(self, old, path, records):
        self._gradient(path[-1].theta, 0.0, self._bits)
        return super()._decide_on(old, path, records)


@pytest.mark.parametrize(
    "fault",
    [HalfTheNoise, OneGradientFree, FirstGradientFree, DecisionFree, LikelihoodNotPaid, DecisionPaidLater, GoesOn, HalfTheDistance, ExactEnd],
)  # fmt: skip
def test_what_is_not_paid_is_found(fault):
    step = paid_step(fault, chains=1)
    _, _, events = exhaust(step, limit=80)
    with pytest.raises(Leak):
        audit(step, events, step._allowance)


@pytest.mark.parametrize("reuse_gradient", [True, False])
def test_what_is_kept_of_a_state_is_of_that_state(reuse_gradient):
    """Log-likelihoods came with the gradient at the end of a path, if they are not of an older state."""
    step = paid_step(epsilon=30.0, chains=1, reuse_gradient=reuse_gradient)
    start(step)
    point, outcomes = step.likelihood.unravel(np.array([0.3, 0.5])), set()
    for _ in range(60):
        point, (statistics,) = step.step(point)
        state, theta = step._current, step.likelihood.ravel(point)
        assert not statistics["exhausted"] and np.array_equal(state.theta, theta)
        np.testing.assert_allclose(state.records, step.likelihood.logp(theta), rtol=1e-12)
        outcomes.add(bool(statistics["accepted"]))
    assert outcomes == {True, False}


def test_gradients_in_a_model_with_another_step():
    """One more gradient whenever the other step has moved, and it is paid."""
    budget = PrivacyBudget(8.0, 1e-5, chains=1)
    model = TWO_VARIABLES.model()
    options = PATH | PAID | {"clip_bound": 0.1, "gradient_clip_bound": 0.1}
    step = build(TWO_VARIABLES, variables=[0], budget=budget, model=model, **options)
    with compiled_once(TWO_VARIABLES.name), model:
        other = DPPenalty(
            [model["b"]], budget=budget, clip_bound=0.1, proposal=RandomWalk(1.0), noise_scale=1.0, reproducible=True
        )  # fmt: skip
    assert step.starting() == () and step.mechanisms()[0][1] == PATH["leapfrog_steps"] + 1
    for method in (step, other):
        start(method)
    point, moved, rejected = step.likelihood.unravel(np.zeros(2)), True, 0
    for _ in range(1000):
        with watching(step) as events:
            point, (statistics,) = step.step(point)
        if statistics["exhausted"]:
            break
        gradients_made = sum(kind == "gradient" for kind, _ in events)
        assert gradients_made == PATH["leapfrog_steps"] + moved
        assert events[0] == ("charge", ((Gaussian(25.0), gradients_made),))
        point, (statistics,) = other.step(point)
        moved = statistics["accepted"]
        rejected += not moved
    assert statistics["exhausted"] and rejected > 3


def test_starting_gradient_is_planned():
    step = paid_step()
    assert step.starting() == ((Gaussian(25.0), 1),)
    assert step.mechanisms()[0] == (Gaussian(25.0), 3) and isinstance(
        step.mechanisms()[1][0], DecisionFamily
    )
    fresh = paid_step(reuse_gradient=False)
    assert fresh.starting() == () and fresh.mechanisms()[0] == (Gaussian(25.0), 4)


# What a record can do to a sum of gradients, and the noise on it.

ROWS = np.random.default_rng(41).normal(0.3, 1.0, size=(12, 2))


def plain_step(y, adjacency, step=DPHMC, **options):
    with compiled_once("plain", y.tobytes()), pm.Model():
        mu = pm.Normal("mu", 0, 5, shape=2)
        pm.Normal("y", mu, 1.0, observed=y)
        budget = PrivacyBudget(8.0, 1e-5, chains=3, adjacency=adjacency)
        settings = {
            "budget": budget, "mass_matrix": [[5.0, 2.0], [2.0, 4.0]], "step_size": 0.3, "leapfrog_steps": 2, "clip_bound": 0.1,
            "gradient_clip_bound": 0.3, "gradient_noise_multiplier": 30.0, "reproducible": True, "temperature": 0.7,
        }  # fmt: skip
        return step(**settings | options)


def exact_sum(step, theta):
    steps, exponent = step.likelihood.clipped_grad_steps(
        theta, step.gradient_clip_bound, directions=step.coordinates.directions
    )
    return np.ldexp(steps.astype(float), exponent)


@pytest.fixture(scope="module")
def neighbours():
    """Steps on neighbouring data, by adjacency."""
    far = [np.vstack([ROWS, row]) for row in ((1e6, 1e6), (-1e6, -1e6))]
    return {
        "substitute": [plain_step(y, "substitute") for y in far],
        "add_remove": [plain_step(far[0], "add_remove"), plain_step(ROWS, "add_remove")],
    }


def check_noise(step, draw, sensitivity, n=2500, seed=3):
    """Noise has mean 0, and the standard deviation that was charged for this sensitivity: chi-square, in each direction."""
    start(step, seed)
    theta = np.array([0.4, -0.2])
    prior = step.coordinates.pull(step.likelihood.grad_log_prior(theta))
    exact = exact_sum(step, theta)
    noise = np.array([(draw(step, theta) - prior) / step.temperature - exact for _ in range(n)])
    ((charged, _),) = step.starting()
    z = noise / (charged.noise_multiplier * sensitivity)
    for column in (*z.T, (z[:, 0] + z[:, 1]) / math.sqrt(2)):
        tail = stats.chi2.cdf(column @ column, n)
        if min(tail, 1 - tail) < 1e-5 or 2 * stats.norm.sf(abs(column.sum()) / math.sqrt(n)) < 1e-5:
            raise Leak(f"variance {column @ column / n:.3f} of what was charged")


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_noise_has_the_size_that_was_charged(neighbours, adjacency):
    """Relative to what the exact sum of gradients can really change by."""
    one, two = neighbours[adjacency]
    sensitivity = np.linalg.norm(exact_sum(one, np.zeros(2)) - exact_sum(two, np.zeros(2)))
    most = one.gradient_clip_bound * (2 if adjacency == "substitute" else 1)
    assert 0.999 * most < sensitivity <= most
    check_noise(one, lambda step, theta: step._gradient_at(theta), sensitivity)
    assert one.family.sensitivity_per_distance == pytest.approx(0.7 * 0.1 * most / 0.3)
    sd = noise_sd(one) / one.temperature
    for factor in (0.5, 0.93):
        with pytest.raises(Leak):
            check_noise(
                one,
                lambda step, theta, f=factor: step._gradient(theta, f * sd, step._bits),
                sensitivity,
            )


# Paths that leave the numbers, and paths that are too long.


@pytest.mark.parametrize(
    "options",
    [
        {"step_size": 1e200},
        pytest.param({"step_size": 1e30}, marks=pytest.mark.slow),
        {"max_distance": 1e-7},
    ],
    ids=str,
)
@pytest.mark.parametrize("private", [True, False])
def test_wild_paths_are_no_matter_of_the_data(two_variable_model, options, private):
    """Rejected without a look at the data, and without an error, from parameters on the log scale too."""
    budget = PrivacyBudget(8.0, 1e-5, chains=1) if private else None
    settings = (
        {"step_size": 0.1, "leapfrog_steps": 4, "max_distance": 5.0, "mass_matrix": [75.0, 150.0]}
        | PAID
        | options
    )
    step = start(DPHMC(budget=budget, model=two_variable_model, reproducible=True, **settings))
    point = two_variable_model.initial_point()
    with watching(step) as events:
        for _ in range(8):
            after, (statistics,) = step.step(point)
            assert after is point and not statistics["accepted"] and not statistics["exhausted"]
            assert statistics["step_distance"] == 0
    kinds = [kind for kind, _ in events]
    assert set(kinds) == {"gradient", "noise"} | ({"charge"} if private else set())
    if private:
        audit(step, events, step._allowance)


# ---------------------------------------------------------------- 5. inside pm.sample

QUIET = {"progressbar": False, "compute_convergence_checks": False, "tune": 0}
HOSTED = {
    "mass_matrix": [400.0], "step_size": 0.8, "leapfrog_steps": 2, "clip_bound": 0.05, "gradient_clip_bound": 0.05,
    "gradient_noise_multiplier": 25.0, "max_distance": 4.0,
}  # fmt: skip


def hosted(model, budget, **options):
    return DPHMC(budget=budget, model=model, **HOSTED | options)


@pytest.mark.parametrize(
    "parallel",
    [
        {"cores": 1},
        {"cores": 2, "mp_ctx": "fork"},
        pytest.param({"cores": 2, "mp_ctx": "spawn"}, marks=pytest.mark.slow),
    ],
    ids=lambda p: p.get("mp_ctx", "sequential"),
)
def test_stops_when_spent_and_loses_no_draw(normal_model, parallel):
    budget = PrivacyBudget(6.0, 1e-5, chains=2)
    step = hosted(normal_model, budget)
    with normal_model:
        idata = pm.sample(draws=2000, chains=2, step=step, callback=budget, **QUIET, **parallel)
    assert idata.posterior.sizes["chain"] == 2
    assert 5 < idata.posterior.sizes["draw"] == min(budget.report().draws) < 2000
    assert not np.any(idata.sample_stats["exhausted"])
    spent = idata.sample_stats["epsilon_spent"].values
    assert np.all(np.diff(spent, axis=1) > 0) and 0.8 * 6 < spent[:, -1].max() <= 6
    assert 0.999 * 6 < budget.spent() <= 6
    if parallel["cores"] == 1:
        public = release(idata, normal_model, budget)
        assert set(public.sample_stats.data_vars) == {
            "accepted", "acceptance_rate", "step_distance", "epsilon_spent"
        }  # fmt: skip
        assert set(public.posterior.data_vars) == {"mu", "squared"}
        assert "Gaussian" in str(budget.report())


def test_statistics_are_the_allowed_ones(normal_model):
    step = hosted(normal_model, PrivacyBudget(6.0, 1e-5, chains=1))
    step.set_rng(np.random.default_rng(1))
    step.stop_tuning()
    _, (statistics,) = step.step(normal_model.initial_point())
    assert set(statistics) == set(DPHMC.stats_dtypes_shapes) == {
        "accepted", "acceptance_rate", "step_distance", "epsilon_spent", "exhausted", "budget_token"
    }  # fmt: skip
    assert isinstance(step._bits, OperatingSystemBits) and not vars(step._bits)


def test_copies_have_no_private_state(normal_model):
    """No records, no gradient, no allowance; a copy claims for itself."""
    budget = PrivacyBudget(6.0, 1e-5, chains=2)
    step = hosted(normal_model, budget)
    step.set_rng(np.random.default_rng(1))
    step.stop_tuning()
    point = {"mu": np.array(1.1)}
    while step._current is None or step._current.records is None:
        point, _ = step.step(point)
    assert step._current.records is not None and step._current.gradient is not None
    for twin in (pickle.loads(cloudpickle.dumps(step)), copy.deepcopy(step)):
        assert twin._current is None and twin._allowance is None and not twin._opened
        with pytest.raises(AttributeError, match="Build a new step"):
            twin.gradient_clip_bound = 1e3
    assert len(budget.ledger.claims()) == 1
    twin.step(point)
    assert len(budget.ledger.claims()) == 2


def test_one_call(normal_model):
    public = sample(epsilon=6.0, delta=1e-5, step=DPHMC, chains=2, cores=1, model=normal_model, **HOSTED, **{k: v for k, v in QUIET.items() if k != "tune"})  # fmt: skip
    assert public.posterior.sizes["draw"] > 5 and float(public.posterior.attrs["epsilon"]) <= 6.0


def test_same_seed_same_chain_only_if_reproducible(normal_model):
    def chain_of(reproducible):
        step = hosted(
            normal_model, PrivacyBudget(math.inf, 1e-5, chains=1), reproducible=reproducible
        )
        start(step, 5)
        theta, draws = np.array([1.1]), []
        for _ in range(10):
            theta, _, _ = step.transition(theta)
            draws.append(float(theta[0]))
        return draws

    assert chain_of(True) == chain_of(True)
    assert chain_of(False) != chain_of(False)


@pytest.mark.parametrize(
    "settled",
    ["budget", "step_size", "leapfrog_steps", "clip_bound", "gradient_clip_bound", "gradient_noise_multiplier", "temperature",
     "laziness", "family", "max_distance", "step_size_jitter", "reuse_gradient", "coordinates", "likelihood"],
)  # fmt: skip
def test_what_was_charged_for_cannot_be_changed(settled):
    with pytest.raises(AttributeError, match="Build a new step"):
        setattr(_unchanged(), settled, 1.0)


@functools.cache
def _unchanged():
    return paid_step()


INFINITE = {"gradient_clip_bound": math.inf, "gradient_noise_multiplier": 0.0}
REFUSED = [
    ({"step_size": 0.0}, ValueError, "step_size"),
    ({"step_size": math.nan}, ValueError, "step_size"),
    ({"step_size": math.inf}, ValueError, "step_size"),
    ({"leapfrog_steps": 0}, ValueError, "leapfrog_steps"),
    ({"leapfrog_steps": 2.5}, TypeError, "integer"),
    ({"step_size_jitter": 1.0}, ValueError, "step_size_jitter"),
    ({"step_size_jitter": -0.1}, ValueError, "step_size_jitter"),
    ({"step_size_jitter": math.nan}, ValueError, "step_size_jitter"),
    ({"max_distance": 0.0}, ValueError, "max_distance"),
    ({"max_distance": math.nan}, ValueError, "max_distance"),
    ({"clip_bound": 0.0}, ValueError, "clip_bound"),
    ({"clip_bound": math.inf}, ValueError, "decide everything"),
    ({"clip_bound": math.nan}, ValueError, "clip_bound"),
    ({"gradient_clip_bound": 0.0}, ValueError, "gradient_clip_bound"),
    ({"gradient_clip_bound": -1.0}, ValueError, "gradient_clip_bound"),
    ({"gradient_clip_bound": math.nan}, ValueError, "gradient_clip_bound"),
    ({"gradient_clip_bound": math.inf}, ValueError, "move a gradient anywhere"),
    ({"gradient_noise_multiplier": 0.0}, ValueError, "not private at any epsilon"),
    ({"gradient_noise_multiplier": -1.0}, ValueError, "noise multiplier"),
    ({"gradient_noise_multiplier": math.inf}, ValueError, "noise multiplier"),
    ({"gradient_noise_multiplier": 1e7}, ValueError, "at most 1e6"),
    ({"gradient_noise_multiplier": math.nan}, ValueError, "noise multiplier"),
    ({"rule": Metropolis()}, ValueError, "refused in a private run"),
    ({"rule": Lazy(Barker(), 0.5)}, ValueError, "laziness=0.5"),
    ({"rule": Barker}, TypeError, "acceptance rule"),
    ({"rule": "barker"}, TypeError, "acceptance rule"),
    ({"rule": Barker(), "noise_multiplier": 2.0}, ValueError, "not both"),
    ({"noise_multiplier": 0.0}, ValueError, "positive"),
    ({"laziness": 0.0}, ValueError, "laziness"),
    ({"temperature": 1.5}, ValueError, "temperature"),
    ({"temperature": 0.0}, ValueError, "temperature"),
    ({"record_trajectories": True}, ValueError, "budget=None"),
    ({"blocked": False}, ValueError, "together"),
    ({"budget": 1.0}, TypeError, "PrivacyBudget"),
    ({"mass_matrix": [1.0]}, ValueError, r"shape \(2,\)"),
    ({"mass_matrix": np.ones((2, 3))}, ValueError, r"shape \(2,\)"),
    ({"mass_matrix": [1.0, 0.0]}, ValueError, "positive"),
    ({"mass_matrix": [1.0, math.nan]}, ValueError, "positive and finite"),
    ({"mass_matrix": [[1.0, 2.0], [2.0, 1.0]]}, ValueError, "positive definite"),
    ({"mass_matrix": [[1.0, 0.5], [0.2, 1.0]]}, ValueError, "symmetric"),
    ({"mass_matrix": [[1.0, math.inf], [math.inf, 1.0]]}, ValueError, "finite"),
    ({"budget": None, **INFINITE, "gradient_noise_multiplier": 1.0}, ValueError, "infinite gradient_clip_bound"),
    ({"budget": None, "clip_bound": math.inf, "noise_multiplier": 1.0}, ValueError, "finite clip_bound"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "match"), REFUSED, ids=lambda x: str(x)[:50])
def test_refused(options, error, match):
    budget = PrivacyBudget(6.0, 1e-5, chains=1)
    model = BANANA.model()
    with compiled_once(BANANA.name), pytest.raises(error, match=match):
        DPHMC(model=model, **{"budget": budget} | PATH | PAID | options)
    assert not budget.ledger.claims()


def test_hopeless_budget(normal_model):
    step = hosted(normal_model, PrivacyBudget(0.05, 1e-9, chains=4), clip_bound=5.0)
    with pytest.raises(PrivacyBudgetExhausted, match="fewer than one for each of 4 chains"):
        start(step)


def test_without_a_budget_nothing_is_needed():
    """Plain HMC: no clipping, no noise, Metropolis' rule."""
    exact = reference(GAUSSIAN, 1.0)
    options = PATH | INFINITE | {"clip_bound": math.inf, "rule": Metropolis(), "budget": None}
    found = run(build(GAUSSIAN, **options, reuse_gradient=False), exact[0], 1500, 1)
    assert found.acceptance > 0.8
    check(found.draws, exact)
