"""Chains in a normal posterior, many at once: how much their draws are worth."""

from __future__ import annotations

import math

from collections.abc import Callable

import numpy as np

from pymc_dp.acceptance import AcceptanceRule

__all__ = ["effective_part"]

_CHAINS = 128
#: Draws of each, in units of what is expected to be one effective draw, and at most.
_WORTH, _MOST = 30, 5000


def effective_part(
    propose: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    rule: AcceptanceRule,
    n_dim: int,
    guess: float,
    n_state: int | None = None,
) -> float:
    """Effective draws per draw, in the slowest direction: from the variance of means.

    A guess from the autocorrelation of neighbours is too hopeful wherever a chain stays at some places longer than at
    others, by a factor of two or more under noise.

    Parameters
    ----------
    propose : callable
        Maps states of shape ``(chains, n_state)`` to proposals, and log-ratios of shape ``(chains,)``.
    rule : AcceptanceRule
    n_dim : int
        The first columns of a state, whose law is standard normal.
    guess : float
        How much it may be.
    n_state : int, optional
        Columns of a state, all of them standard normal.
    """
    rng = np.random.default_rng(1)
    state = rng.standard_normal((_CHAINS, n_state or n_dim))
    n = min(_MOST, math.ceil(_WORTH / guess))
    total = np.zeros((_CHAINS, n_dim))
    for _ in range(n):
        new, ratios = propose(state)
        accepted = np.log(rng.random(_CHAINS)) < rule.log_probabilities(ratios)[0]
        state = np.where(accepted[:, None], new, state)
        total += state[:, :n_dim]
    return min(1.0, 1 / (n * float(np.mean((total / n) ** 2, axis=0).max())))
