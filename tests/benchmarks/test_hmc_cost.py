"""What an iteration of DPHMC costs in time, next to one written by hand in NumPy.

``python -m tests.benchmarks.test_hmc_cost`` prints a table, with the parts of an iteration. Measurements alternate in one
process and medians are compared, since machines differ and are shared; BLAS has one thread, as in a chain among others,
or two in one column: sums of gradients, and likelihoods, take as many if they are large. By hand means: a matrix with a
gradient for each record, norms, clipping and floating-point sums, NumPy's normal numbers, and a decision from clipped
log-ratios. As tests they run by name only (``pytest tests/benchmarks``) and assert nothing on time.
"""

from __future__ import annotations

import math
import sys
import time

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
import pytest

from threadpoolctl import threadpool_limits

from pymc_dp import DPHMC, PrivacyBudget


@dataclass
class Case:
    """A model of the thesis with its settings, the same by hand, and the milliseconds that are aimed at."""

    model: Callable[[], pm.Model]
    gradients: Callable[[np.ndarray], np.ndarray]
    logp: Callable[[np.ndarray], np.ndarray]
    prior: Callable[[np.ndarray], tuple[float, np.ndarray]]
    start: np.ndarray
    settings: dict = field(repr=False)
    aim: float


def flat_banana() -> Case:
    """Two dimensions, 100 000 records, 10 leapfrog steps."""
    bend, variance = 20.0, np.array([20.0, 2.5])
    x = np.random.default_rng(2).normal([0.0, 3.0], np.sqrt(variance), size=(100_000, 2))
    x1, x2 = x.T.copy()

    def model():
        with pm.Model() as model:
            theta1 = pm.Normal("theta1", 0, math.sqrt(1000))
            theta2 = pm.Normal("theta2", -bend * theta1**2, math.sqrt(1000))
            pm.Normal("x1", theta1, math.sqrt(20), observed=x1)
            pm.Normal("x2", theta2 + bend * theta1**2, math.sqrt(2.5), observed=x2)
        return model

    def gradients(t):
        second = (x2 - t[1] - bend * t[0] ** 2) / 2.5
        return np.stack([(x1 - t[0]) / 20 + second * 2 * bend * t[0], second], axis=1)

    def logp(t):
        return -((x1 - t[0]) ** 2) / 40 - (x2 - t[1] - bend * t[0] ** 2) ** 2 / 5

    def prior(t):
        second = (t[1] + bend * t[0] ** 2) / 1000
        return -(t[0] ** 2) / 2000 - 500 * second**2, np.array(
            [-t[0] / 1000 - second * 2 * bend * t[0], -second]
        )

    settings = {"step_size": 5e-4, "n_leapfrog": 10, "clip_bound": 2.0, "gradient_clip_bound": 1.0,
                "gradient_noise_multiplier": 0.4 * math.sqrt(len(x)), "noise_multiplier": 0.1 * math.sqrt(len(x))}  # fmt: skip
    return Case(model, gradients, logp, prior, np.array([0.0, 3.0]), settings, 8.0)


def gaussian() -> Case:
    """30 dimensions, 200 000 records, 5 leapfrog steps."""
    scale = np.append([math.sqrt(20), math.sqrt(2.5)], np.ones(28))
    y = np.random.default_rng(3).normal(size=(200_000, 30)) * scale
    y[:, 1] += 3
    precision, constant = 1 / scale**2, 0.0

    def model():
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("theta", 0, math.sqrt(1000), shape=30), scale, observed=y)
        return model

    def gradients(t):
        return (y - t) * precision

    def logp(t):
        return -0.5 * ((y - t) ** 2 @ precision) + constant

    def prior(t):
        return -(t @ t) / 2000, -t / 1000

    settings = {"step_size": 2.5e-4, "n_leapfrog": 5, "clip_bound": 2.5, "gradient_clip_bound": 6.0,
                "gradient_noise_multiplier": 0.1 * math.sqrt(len(y)), "noise_multiplier": 0.05 * math.sqrt(len(y)),
                "public": [scale]}  # fmt: skip
    start = np.zeros(30)
    start[1] = 3.0
    return Case(model, gradients, logp, prior, start, settings, 35.0)


CASES = {"flat banana, d = 2, L = 10": flat_banana, "Gaussian, d = 30, L = 5": gaussian}


def prepare(case: Case) -> tuple[DPHMC, Callable[[], None]]:
    """The step of a chain that is under way, and a call that makes one iteration."""
    budget = PrivacyBudget(1e6, 1e-6, chains=1)
    step = DPHMC(budget=budget, model=case.model(), **case.settings)
    step.set_rng(np.random.default_rng(3))
    step.stop_tuning()
    point = [step.likelihood.unravel(case.start)]

    def iterate():
        point[0], (statistics,) = step.step(point[0])
        assert not statistics["exhausted"]

    for _ in range(10):
        iterate()
    return step, iterate


def by_hand(case: Case) -> Callable[[], None]:
    """The same iteration in NumPy."""
    rng, s = np.random.default_rng(4), case.settings
    bound, eta, b = s["gradient_clip_bound"], s["step_size"], s["clip_bound"]
    noise = s["gradient_noise_multiplier"] * 2 * bound

    def gradient(theta):
        g = case.gradients(theta)
        norms = np.sqrt(np.einsum("ij,ij->i", g, g))
        total = np.minimum(1.0, bound / np.maximum(norms, 1e-300)) @ g
        return total + noise * rng.standard_normal(len(theta)) + case.prior(theta)[1]

    state = [case.start, gradient(case.start), case.logp(case.start)]

    def iterate():
        theta, g, logp = state
        first = p = rng.standard_normal(len(theta))
        q = theta
        for _ in range(s["n_leapfrog"]):
            p = p + eta / 2 * g
            q = q + eta * p
            g = gradient(q)
            p = p + eta / 2 * g
        new, distance = case.logp(q), float(np.linalg.norm(q - theta))
        change = np.clip(new - logp, -b * distance, b * distance).sum()
        scale = s["noise_multiplier"] * 2 * b * distance
        log_ratio = change + case.prior(q)[0] - case.prior(theta)[0] + (first @ first - p @ p) / 2
        if math.log(rng.random()) < log_ratio + scale * rng.standard_normal() - scale**2 / 2:
            state[:] = q, g, new

    for _ in range(3):
        iterate()
    return iterate


def timed(call: Callable, spent: list[float]) -> Callable:
    """The same call, which adds up its time."""

    def wrapped(*args, **kwargs):
        begin = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            spent[0] += time.perf_counter() - begin

    return wrapped


def parts(step: DPHMC, iterate: Callable[[], None], rounds: int) -> dict[str, float]:
    """Seconds per iteration: sums of clipped gradients, noise on them, decision (with its likelihood), and the rest."""
    from pymc_dp.steps import noisy_gradients as gradients

    spent = {name: [0.0] for name in ("gradients", "noise", "decision")}
    likelihood, whole = step.likelihood, [0.0]

    class Timed:
        clipped_grad_steps = staticmethod(timed(likelihood.clipped_grad_steps, spent["gradients"]))

        def __getattr__(self, name):
            return getattr(likelihood, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step._gradient, "_likelihood", Timed())
        patch.setattr(gradients, "noisy_sum", timed(gradients.noisy_sum, spent["noise"]))
        for name in ("log_ratio", "decide"):
            patch.setitem(step.__dict__, name, timed(getattr(step, name), spent["decision"]))
        run = timed(iterate, whole)
        for _ in range(rounds):
            run()
    found = {name: t[0] / rounds for name, t in spent.items()}
    return found | {"rest": whole[0] / rounds - sum(found.values())}


@pytest.fixture(autouse=True)
def one_thread():
    with threadpool_limits(1):
        yield


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_iteration(make, benchmark):
    _, iterate = prepare(make())
    benchmark.pedantic(iterate, rounds=20)


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_by_hand(make, benchmark):
    benchmark.pedantic(by_hand(make()), rounds=5)


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_both_compute_the_same(make):
    """What is compared in time is the same: a sum of clipped gradients, and log-likelihoods but for a constant."""
    case = make()
    step, _ = prepare(case)
    rng = np.random.default_rng(5)
    one, two = case.start + 0.01 * rng.standard_normal((2, len(case.start)))
    bound = case.settings["gradient_clip_bound"]
    g = case.gradients(one)
    g *= np.minimum(1.0, bound / np.linalg.norm(g, axis=1))[:, None]
    assert np.allclose(
        step.likelihood.clipped_grad(one, bound), g.sum(axis=0), rtol=1e-6, atol=1e-3
    )
    changes = [logp(one) - logp(two) for logp in (step.likelihood.logp, case.logp)]
    assert np.allclose(*changes, rtol=1e-8, atol=1e-8)
    assert np.allclose(step.likelihood.grad_log_prior(one), case.prior(one)[1])


def main(rounds: int = 60) -> int:
    """Print the table."""
    print(f"medians in milliseconds; PyMC {pm.__version__}, Python {sys.version.split()[0]}")
    print(
        f"{'':30s}{'aim':>6s}{'DPHMC':>8s}{'2 threads':>11s}{'by hand':>9s}{'ratio':>7s}   mean of gradients, noise, decision, rest"
    )
    for name, make in CASES.items():
        with threadpool_limits(1):
            case = make()
            step, iterate = prepare(case)
            calls = (1, iterate), (2, iterate), (1, by_hand(case))
            times = np.empty((rounds, 3))
            for row in times:
                for k, (n_threads, call) in enumerate(calls):
                    with threadpool_limits(n_threads):
                        begin = time.perf_counter()
                        call()
                        row[k] = time.perf_counter() - begin
            ours, two, hand = np.median(times, axis=0) * 1e3
            shares = parts(step, iterate, rounds)
        print(
            f"{name:30s}{case.aim:6.0f}{ours:8.2f}{two:11.2f}{hand:9.2f}{ours / hand:7.2f}   "
            + ", ".join(f"{t * 1e3:.2f}" for t in shares.values())
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
