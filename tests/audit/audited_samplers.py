"""Every sampler on any small model, so that audits of what they let out ask the same of all of them."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import warnings

import numpy as np
import pymc as pm
import pytest

from pymc_dp import (
    DPHMC,
    DPSGHMC,
    DPBarker,
    DPFastMH,
    DPPenalty,
    PrivacyBudget,
    RandomWalk,
)
from pymc_dp.steps import accept_reject
from pymc_dp.steps.noisy_gradients import NoisyGradient
from tests.exactness.targets import compiled_once

WALK = {"clip_bound": 0.5, "proposal": RandomWalk(0.1)}
SHORT = {"clip_bound": 0.5, "proposal": RandomWalk(0.02, max_distance=0.1)}
GRADIENT = {"gradient_clip_bound": 1.0}

SAMPLERS = {
    "penalty": (DPPenalty, WALK),
    "penalty on batches": (DPPenalty, SHORT | {"batch_size": 25}),
    "Barker": (DPBarker, WALK),
    "Barker on batches": (DPBarker, SHORT | {"batch_size": 25}),
    "DP-Fast MH": (DPFastMH, SHORT | {"batch_rate": 10.0, "full_batch_at": 35}),
    "HMC": (DPHMC, GRADIENT | {"clip_bound": 0.5, "step_size": 0.05, "n_leapfrog": 2, "gradient_noise_multiplier": 60.0}),
    "SGHMC": (DPSGHMC, GRADIENT | {"step_size": lambda draw: 0.02, "n_steps": 2, "friction": 20.0, "batch_size": 60}),
    "SGHMC on batches": (DPSGHMC, GRADIENT | {"step_size": lambda draw: 0.02, "n_steps": 2, "friction": 20.0, "batch_size": 25}),
}  # fmt: skip


def build(name, model, budget, *key, **options):
    """A step; the key says which model it is, with its data, so that it is compiled once."""
    kind, settings = SAMPLERS[name]
    with compiled_once("leaks", *key):
        return kind(budget=budget, model=model, **(settings | options))


def budget_for(chains=1, epsilon=8.0, **options):
    """Costs of batches take a while to add up by the tightest accountant."""
    return PrivacyBudget(epsilon, 1e-5, chains=chains, accountant="rdp", **options)


def sample(model, step, budget, *, draws=20, chains=1, seed=5, **options):
    settings = {"tune": 0, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
    return pm.sample(
        draws=draws, chains=chains, step=step, callback=budget, random_seed=seed, model=model, **(settings | options),
    )  # fmt: skip


def expanded(value, mu):
    """Log-density of a normal variable; no number where a difference would be infinite."""
    return value * mu - 0.5 * (value**2 + mu**2)


def normal_model(last, n=60):
    """A mean of records that are all the same but for the last one, and may be any number."""
    y = np.append(np.random.default_rng(3).normal(0.3, 1.0, n - 1), last)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        pm.CustomDist("y", mu, logp=expanded, observed=y)
    return model


#: Values of one record. (PyMC would take one that is no number for a missing value.)
EXTREMES = (0.4, 1e300, -1e300, math.inf, -math.inf, 5e-324, 0.0)


@contextlib.contextmanager
def same_releases(seed=9):
    """Decisions and noisy gradients, which are paid for, are the same for all data; what makes them runs as ever."""
    rng, decide, gradient = (
        np.random.default_rng(seed),
        accept_reject.decide,
        NoisyGradient.__call__,
    )

    def decided(rule, x, bits):
        decide(rule, x, bits)
        return bool(rng.random() < 0.5)

    def released(self, theta, *args, **options):
        gradient(self, theta, *args, **options)
        return rng.normal(0.0, 0.1, len(self._coordinates.part))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accept_reject, "decide", decided)
        patch.setattr(NoisyGradient, "__call__", released)
        yield


@pytest.fixture
def everything_logged(caplog):
    """All loggers say all they can; but compilers', who show constants of the code, such as a model's data."""
    compilers = ("numba", "pytensor.link")
    names = [n for n in logging.root.manager.loggerDict if not n.startswith(compilers)]
    loggers = [logging.getLogger(), *map(logging.getLogger, [*names, *compilers])]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING if logger.name in compilers else logging.DEBUG)
    yield caplog
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def listened(action, caplog, capfd):
    """What `action` returned; and all it has logged, warned of and printed."""
    caplog.clear()
    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for module in [
            m for name, m in sys.modules.items() if name.startswith("pymc.progress_bar")
        ]:
            if hasattr(module, "stderr"):  # PyMC 5 keeps the one of the first import
                patch.setattr(module, "stderr", sys.stderr)
        result = action()
    logged = [f"{r.name} {r.levelname} {r.getMessage()} {r.exc_info}" for r in caplog.records]
    warned = [f"{w.category.__name__} {w.message}" for w in caught]
    return result, "\n".join([*logged, *warned, *capfd.readouterr()])
