"""Private samplers on a logistic regression, and their counterparts by hand.

Batches are tempered to 100 records, so that they are about as large as asked for, whatever the number of records.
"""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dp import DPHMC, DPSGHMC, DPBarker, DPFastMH, DPPenalty, PrivacyBudget
from tests.benchmarks.by_hand import (
    SCALE,
    Iteration,
    batch_by_hand,
    decision_by_hand,
    hmc_by_hand,
    moved,
    sghmc_by_hand,
)
from tests.benchmarks.regression import Problem


class Circle:
    """Moves of one length in a random direction."""

    max_distance = SCALE

    def start(self, n_dim):
        return self

    def propose(self, theta, rng):
        return moved(theta, rng), SCALE

    def decided(self, accepted):
        pass


def budget() -> PrivacyBudget:
    return PrivacyBudget(1e6, 1e-6, chains=1)


def deciding(kind: type, batches: str | None = None, **options: Any) -> Callable[[Problem], Any]:
    """A random walk with moves of one length, so that each price is found once, as in a long chain."""

    def build(p: Problem) -> Any:
        batch = {} if batches is None else {batches: p.batch, "temperature": 100 / p.n}
        return kind(
            budget=budget(), model=p.model, clip_bound=1.0, proposal=Circle(), **batch, **options
        )

    return build


def hmc(steps: int) -> Callable[[Problem], DPHMC]:
    return lambda p: DPHMC(
        budget=budget(), model=p.model, step_size=0.2 / math.sqrt(p.n), n_leapfrog=steps,
        clip_bound=p.bound, gradient_clip_bound=p.bound, gradient_noise_multiplier=0.1 * math.sqrt(p.n),
    )  # fmt: skip


def sghmc(p: Problem) -> DPSGHMC:
    size = 0.1 / math.sqrt(p.n)
    return DPSGHMC(
        budget=budget(), model=p.model, step_size=lambda t: size, n_steps=5, gradient_clip_bound=p.bound,
        friction=0.5 / size, batch_size=p.batch,
    )  # fmt: skip


@dataclass(frozen=True)
class Sampler:
    """How to build its step, and one iteration by hand."""

    build: Callable[[Problem], Any]
    by_hand: Callable[[Problem, Any], Iteration]


SAMPLERS = {
    "DPPenalty": Sampler(deciding(DPPenalty), decision_by_hand),
    "DPPenalty, batch": Sampler(deciding(DPPenalty, "batch_size"), lambda p, _: batch_by_hand(p, False)),
    "DPBarker": Sampler(deciding(DPBarker), decision_by_hand),
    "DPFastMH, batch": Sampler(deciding(DPFastMH, "batch_rate"), lambda p, _: batch_by_hand(p, True)),
    "DPFastMH, full batch": Sampler(deciding(DPFastMH, full_batch_at=1), decision_by_hand),
    "DPHMC, L = 1": Sampler(hmc(1), hmc_by_hand),
    "DPHMC, L = 5": Sampler(hmc(5), hmc_by_hand),
    "DPSGHMC, 5 batches": Sampler(sghmc, sghmc_by_hand),
}  # fmt: skip


def started(step: Any, p: Problem) -> Iteration:
    """A call that makes one iteration of the step's chain, which has begun."""
    step.set_rng(np.random.default_rng(3))
    step.stop_tuning()
    point = [step.likelihood.unravel(p.truth)]

    def iterate() -> None:
        point[0], (statistics,) = step.step(point[0])
        assert not statistics["exhausted"]

    iterate()
    return iterate


def under_way(sampler: str, p: Problem) -> tuple[Any, Iteration]:
    """A step, and a call that makes one iteration of its chain."""
    step = SAMPLERS[sampler].build(p)
    return step, started(step, p)
