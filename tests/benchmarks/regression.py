"""Logistic regression: the problem on which times and memory of samplers are compared."""

from __future__ import annotations

import math

from dataclasses import dataclass

import numpy as np
import pymc as pm

BATCH = 1000


@dataclass
class Problem:
    """Logistic regression with its data and the truth."""

    model: pm.Model
    x: np.ndarray
    sign: np.ndarray
    truth: np.ndarray

    @property
    def n(self) -> int:
        return len(self.x)

    @property
    def d(self) -> int:
        return self.x.shape[1]

    @property
    def batch(self) -> int:
        return min(BATCH, self.n // 5)

    @property
    def bound(self) -> float:
        """Longest gradients that are not clipped, about."""
        return math.sqrt(self.d)


def problem(n: int, d: int, seed: int = 1) -> Problem:
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(0).standard_normal(d) / math.sqrt(d)
    x = rng.standard_normal((n, d))
    y = rng.random(n) < 1 / (1 + np.exp(-x @ truth))
    return Problem(modelled(x, y), x, np.where(y, 1.0, -1.0), truth)


def modelled(x: np.ndarray, y: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2.5, shape=x.shape[1])
        pm.Bernoulli("y", logit_p=x @ beta, observed=y.astype(int))
    return model
