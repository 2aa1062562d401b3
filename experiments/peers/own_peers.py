"""What runs in the environment of pymc_dp: the package itself, and PyMC without privacy."""

import logging
import time

from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from peer_tasks import DELTA, PRIOR_SD, Problem, Task

import pymc_dp as dp

#: Chains and draws of the private posteriors that are measured; one of each is made at the defaults for its time.
#: Quantiles of n independent draws make 90 % intervals that cover 0.9 (n - 1) / (n + 1): 0.888 of 150.
CHAINS, DRAWS = 2, 1000


def model_of(task: Task, problem: Problem) -> pm.Model:
    """What a user writes, for any of the tasks."""
    with pm.Model() as model:
        b = pm.Normal("b", 0, PRIOR_SD, shape=task.n_dim)
        columns = [1.0]
        for covariate, values in zip(task.covariates, problem.z.T, strict=True):
            columns += covariate.columns(pm.Data(covariate.name, values), pt.eq)
        eta = sum(b[k] * column for k, column in enumerate(columns))
        if task.family == "logistic":
            pm.Bernoulli("y", logit_p=eta, observed=problem.y)
        elif task.family == "poisson":
            pm.Poisson("y", pm.math.exp(eta), observed=problem.y)
        elif task.family == "negative binomial":
            pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=pm.HalfNormal("alpha", 2), observed=problem.y)  # fmt: skip
        else:
            pm.Normal("y", eta, pm.HalfNormal("sigma", 2), observed=problem.y)
    return model


def pymc_dp(
    task: Task, problem: Problem, epsilon: float, seed: int, public: bool = False, **how: int
) -> np.ndarray:
    covariates = "public" if public else dp.Ranges(**{c.name: c.range for c in task.covariates})
    idata = dp.sample(
        epsilon=epsilon, delta=DELTA, model=model_of(task, problem), covariates=covariates, random_seed=seed,
        progressbar=False, **how,
    )  # fmt: skip
    return idata.posterior["b"].values.reshape(-1, task.n_dim)


def nuts(task: Task, problem: Problem, epsilon: float, seed: int, **how: int) -> np.ndarray:
    idata = pm.sample(
        model=model_of(task, problem),
        random_seed=seed,
        progressbar=False,
        compute_convergence_checks=False,
        **how,
    )
    return idata.posterior["b"].values.reshape(-1, task.n_dim)


def advi(task: Task, problem: Problem, epsilon: float, seed: int, **how: int) -> np.ndarray:
    found = pm.fit(
        model=model_of(task, problem), method="advi", random_seed=seed, progressbar=False
    )
    return found.sample(2000, random_seed=seed).posterior["b"].values.reshape(-1, task.n_dim)


METHODS = {
    "pymc_dp": pymc_dp,
    "pymc_dp, public covariates": partial(pymc_dp, public=True),
    "NUTS": nuts,
    "ADVI": advi,
}


def run(name: str, *given: Any, **how: int) -> tuple[np.ndarray, float]:
    """Draws of the coefficients, and seconds from the call to the result, with compilation."""
    logging.disable(logging.WARNING)
    began = time.perf_counter()
    return METHODS[name](*given, **how), time.perf_counter() - began
