"""What a budget of epsilon = 4 buys on the models of Table 5.1: effective draws per unit of rho, and distance to the posterior.

One chain of each sampler and model, until the budget is spent or it has as many draws as there is time for; the first fifth is left
out. Settings are those of the thesis's program where it has any (https://github.com/oraisa/masters-thesis); nothing is tuned here.
Rho of the whole budget is that of the Gaussian release with its epsilon and delta; a chain has spent the part of it that its filter
has granted, or its count. (Not all of epsilon: its conversion has a constant, which short chains would seem to pay.) Seeds decide,
so that a run can be repeated; that breaks the guarantee.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
import sys
import warnings

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm

from threadpoolctl import threadpool_limits

import pymc_dp as dp

from pymc_dp.privacy import Gaussian, SampledGaussian, calibrate
from tests.benchmarks.cost import Table

EXPERIMENTS_FOLDER = Path(__file__).resolve().parents[2] / "experiments"
EPSILON = 4.0
#: Draws of SGHMC, which its noise is planned for.
PLANNED = 200


def thesis() -> Any:
    """The module with the thesis's models and settings, which lies among the experiments."""
    if str(EXPERIMENTS_FOLDER) not in sys.path:
        sys.path.append(str(EXPERIMENTS_FOLDER))
    return importlib.import_module("comparison_experiments")


def deciding(kind: type, **options: Any) -> Callable:
    """The thesis's random walk and clip bound."""

    def build(e: Any, budget: dp.PrivacyBudget, model: pm.Model, start: dict) -> Any:
        settings = {k: e.settings[k] for k in ("clip_bound", "proposal")}
        return kind(budget=budget, model=model, temperature=e.temperature, reproducible=True, **settings, **options)  # fmt: skip

    return build


def published(e: Any, budget: dp.PrivacyBudget, model: pm.Model, start: dict) -> dp.DPPenalty:
    return dp.DPPenalty(budget=budget, model=model, temperature=e.temperature, reproducible=True, **e.settings)  # fmt: skip


def hmc(e: Any, budget: dp.PrivacyBudget, model: pm.Model, start: dict) -> dp.DPHMC:
    tau, tau_g, steps, size, bound, gradient_bound = thesis().HMC[e.name]
    root = math.sqrt(e.n_records)
    return dp.DPHMC(
        budget=budget, model=model, step_size=size, n_leapfrog=steps, clip_bound=bound, gradient_clip_bound=gradient_bound,
        gradient_noise_multiplier=tau_g * root, noise_multiplier=tau * root, temperature=e.temperature, reproducible=True,
    )  # fmt: skip


def sghmc(e: Any, budget: dp.PrivacyBudget, model: pm.Model, start: dict) -> dp.DPSGHMC:
    """Draws of 10 batches of a tenth; steps as long as they can be paid for, in lengths of the thesis's random walk."""
    draws, steps, part = PLANNED, 10, 0.1
    bound = thesis().HMC[e.name][-1] * e.scale
    z = calibrate(
        lambda z: [
            (SampledGaussian(z, part, "without_replacement", "substitute"), draws * steps)
        ],
        0.99 * EPSILON, e.delta, low=0.1, high=1e3,
    )  # fmt: skip
    size = min(0.5, part / (2 * e.temperature * bound * 1.01 * z))
    return dp.DPSGHMC(
        budget=budget, model=model, step_size=lambda t: size, n_steps=steps, gradient_clip_bound=bound, friction=0.5 / size,
        batch_size=int(part * e.n_records), mass_matrix=np.full(e.n_dim, e.scale**-2), temperature=e.temperature,
        reproducible=True,
    )  # fmt: skip


SAMPLERS: dict[str, Callable] = {
    "DPPenalty, published": published,
    "DPPenalty, noise 2, lazy": deciding(dp.DPPenalty, laziness=0.5),
    "DPBarker": deciding(dp.DPBarker),
    "DPFastMH": deciding(dp.DPFastMH),
    "DPHMC": hmc,
    "DPSGHMC": sghmc,
}


def limit(e: Any, name: str, small: bool) -> int:
    """Draws that there is time for: of decisions, about 2e9 numbers are read."""
    if small:
        return 20
    most = int(np.clip(2e9 / (e.n_records * e.n_dim), 300, 1000))
    return {"DPHMC": most // 5, "DPSGHMC": PLANNED}.get(name, most)


def chain(e: Any, name: str, most: int) -> dict[str, float | None]:
    """Effective draws per unit of rho, MMD to exact draws, the number of draws, and the part of the budget spent."""
    data = e.data(thesis().FIRST_SEED.get(e.name, 1))
    budget = dp.PrivacyBudget(EPSILON, e.delta, chains=1)
    model = e.model(data)
    likelihood = dp.model.RecordLikelihood(e.model(data[:10]))  # of the same parameters
    point = likelihood.unravel(e.starts(data, 1, np.random.default_rng(1))[0])
    step = SAMPLERS[name](e, budget, model, point)
    step.set_rng(np.random.default_rng(2))
    step.stop_tuning()
    draws = []
    while len(draws) < most:
        point, (statistics,) = step.step(point)
        if statistics["exhausted"]:
            break
        draws.append(likelihood.ravel(point))
    kept = np.array(draws[len(draws) // 5 :])
    part = spent(step)
    exact = e.exact(data, 1000, np.random.default_rng(3))
    return {
        "effective draws per unit of rho": effective(kept) / (part * whole(e.delta)),
        f"MMD within epsilon = {EPSILON:g}": thesis().mmd(kept, exact) if kept.std(axis=0).min() > 0 else None,
        "draws": float(len(draws)),
        "part of the budget spent": part,
    }  # fmt: skip


@functools.lru_cache
def whole(delta: float) -> float:
    """Rho of the budget."""
    return 0.5 / calibrate(lambda z: [(Gaussian(z), 1)], EPSILON, delta) ** 2


def spent(step: Any) -> float:
    """Part of the budget."""
    allowance = step._allocation
    if allowance.filter is not None:
        return float(allowance.filter.spent / allowance.filter.share.rho)
    if allowance.progress:
        return float(allowance.progress[allowance.used - 1])
    return float(allowance.used / allowance.iterations)


def effective(draws: np.ndarray) -> float:
    """Of the mean, in the slowest parameter; none of a chain that never moved, or hardly began."""
    if len(draws) < 10 or draws.std(axis=0).min() == 0:
        return 0.0
    return min(float(az.ess(column[None, :], method="mean")) for column in draws.T)


def efficiency(small: bool = False) -> dict[str, Table]:
    """Every sampler on every model."""
    logging.getLogger("pymc.dp").setLevel(logging.ERROR)
    experiments = thesis().EXPERIMENTS
    if small:
        experiments = {"easy-2d": replace(experiments["easy-2d"], n_records=20_000)}
    found: dict[str, Table] = {}
    for name in [*SAMPLERS][: 2 if small else None]:
        for e in experiments.values():
            print(f"{e.name}: {name}", file=sys.stderr)
            with threadpool_limits(1), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                values = chain(e, name, limit(e, name, small))
            for title, value in values.items():
                found.setdefault(title, {}).setdefault(name, {})[e.name] = value
    return found
