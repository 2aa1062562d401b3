"""The arithmetic of one iteration of each sampler on a logistic regression, by hand in NumPy.

By hand means what somebody would write for this model alone, knowing its closed forms: two products with the covariates for a sum
of clipped gradients, as the gradient of a record is a number times its covariates. NumPy's generator, floating-point sums, no
accounting.
"""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_dp import DPHMC, DPSGHMC
from tests.benchmarks.regression import Problem

Iteration = Callable[[], Any]
#: Length of all moves, so that each price is found once, as in a long chain.
SCALE = 0.01


def logp(z: np.ndarray) -> np.ndarray:
    """Log-likelihood, given the sign of the outcome times the linear predictor."""
    return -np.logaddexp(0, -z)


def moved(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    z = rng.standard_normal(len(theta))
    return theta + SCALE * z / math.sqrt(z @ z)


def decided(log_ratio: float, rng: np.random.Generator) -> bool:
    return rng.random() < 1 / (1 + math.exp(min(700.0, -log_ratio)))


def decision_by_hand(p: Problem, step: Any) -> Iteration:
    rng = np.random.default_rng(4)
    state = [p.truth, logp(p.sign * (p.x @ p.truth))]

    def iterate() -> None:
        theta = moved(state[0], rng)
        new = logp(p.sign * (p.x @ theta))
        change = np.clip(new - state[1], -SCALE, SCALE).sum()
        if decided(change + (state[0] @ state[0] - theta @ theta) / 12.5, rng):
            state[:] = theta, new

    return iterate


def batch_by_hand(p: Problem, poisson: bool) -> Iteration:
    rng, n, state = np.random.default_rng(4), p.n, [p.truth]
    most = 100 * SCALE
    rate = float(p.batch)

    def iterate() -> None:
        theta = moved(state[0], rng)
        if poisson:
            index = rng.integers(n, size=rng.poisson(rate + most))
        else:
            index = rng.choice(n, p.batch, replace=False, shuffle=False)
        x, sign = p.x[index], p.sign[index]
        change = logp(sign * (x @ theta)) - logp(sign * (x @ state[0]))
        change = np.clip(change, -SCALE, SCALE) * 100
        if poisson:
            here, back = 2 * rate + most - change, 2 * rate + most + change
            kept = rng.random(len(index)) * (2 * (rate + most)) < here
            log_ratio = np.log(back[kept] / here[kept]).sum()
        else:
            log_ratio = change.mean() - change.var() / (2 * len(index))
        if decided(log_ratio + (state[0] @ state[0] - theta @ theta) / 12.5, rng):
            state[0] = theta

    return iterate


def clipped(x: np.ndarray, sign: np.ndarray, lengths: np.ndarray, z: np.ndarray, bound: float) -> np.ndarray:  # fmt: skip
    """Sum of clipped gradients, given the sign times the linear predictor, and lengths of covariates."""
    weight = 1 / (1 + np.exp(z))
    return (sign * np.minimum(weight, bound / lengths)) @ x


def hmc_by_hand(p: Problem, step: DPHMC) -> Iteration:
    rng, lengths = np.random.default_rng(4), np.linalg.norm(p.x, axis=1)
    bound, size = p.bound, step.step_size
    noise = step.gradient_noise_multiplier * 2 * bound

    def gradient(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z = p.sign * (p.x @ theta)
        total = clipped(p.x, p.sign, lengths, z, bound) - theta / 6.25
        return total + noise * rng.standard_normal(p.d), z

    g, z = gradient(p.truth)
    state = [p.truth, g, logp(z)]

    def iterate() -> None:
        q, g, old = state
        first = momentum = rng.standard_normal(p.d)
        for _ in range(step.n_leapfrog):
            momentum = momentum + size / 2 * g
            q = q + size * momentum
            g, z = gradient(q)
            momentum = momentum + size / 2 * g
        new, reach = logp(z), bound * np.linalg.norm(q - state[0])
        change = np.clip(new - old, -reach, reach).sum() + (first @ first - momentum @ momentum) / 2
        if decided(change + (state[0] @ state[0] - q @ q) / 12.5, rng):
            state[:] = q, g, new

    return iterate


def sghmc_by_hand(p: Problem, step: DPSGHMC) -> Iteration:
    rng, state = np.random.default_rng(4), [p.truth]
    size, friction, share = step.step_size(1), step.friction, p.batch / p.n

    def iterate() -> None:
        theta, v = state[0], rng.standard_normal(p.d)
        for _ in range(step.n_steps):
            index = rng.choice(p.n, p.batch, replace=False, shuffle=False)
            x, sign = p.x[index], p.sign[index]
            lengths = np.sqrt(np.einsum("ij,ij->i", x, x))
            g = clipped(x, sign, lengths, sign * (x @ theta), p.bound) / share - theta / 6.25
            noise = math.sqrt(2 * friction * size) * rng.standard_normal(p.d)
            v = v + size * (g - friction * v) + noise
            theta = theta + size * v
        state[0] = theta

    return iterate
