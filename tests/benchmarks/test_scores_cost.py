"""What the posterior given noisy scores costs in time: a sweep over latent records, and `dp.sample` next to NUTS.

``python -m tests.benchmarks.test_scores_cost 1000 20000`` prints a table for these numbers of records. The model is
a logistic regression with four coefficients. A sweep includes the draws of the records, and their scores at the
references of two releases. ``dp.sample`` and ``pm.sample`` (NUTS, without privacy) run two chains with as many draws,
one after the other, compilation included. As tests they run by name only (``pytest tests/benchmarks``) and assert nothing on time.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings

from collections.abc import Callable
from dataclasses import replace

import arviz as az
import numpy as np
import pymc as pm
import pytest

from threadpoolctl import threadpool_limits

import pymc_dp as dp

N_TUNE, N_DRAWS = 1000, 1000


def logistic_regression(n: int) -> pm.Model:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 3))
    y = rng.random(n) < 1 / (1 + np.exp(-(0.3 + x @ [0.5, -0.5, 0.2])))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1.5, shape=4)
        eta = b[0] + pm.math.dot(pm.Data("x", x), b[1:])
        pm.Bernoulli("y", logit_p=eta, observed=y.astype(int))
    return model


def two_releases(n: int) -> tuple[dp.Simulator, dp.PrivateScores]:
    simulator = dp.Simulator(logistic_regression(n), covariates="public")
    scores = None
    for _ in range(2):
        budget = dp.PrivacyBudget(4.0, 1e-6, chains=1)
        more = dp.private_scores(simulator, budget=budget, fit_share=0.0, random_seed=1)
        more = replace(more, releases=more.releases[-1:])
        scores = more if scores is None else scores + more
    assert scores is not None and len(scores.releases) == 2
    return simulator, scores


def sweep(n: int) -> Callable[[], float]:
    """One sweep over `n` records."""
    simulator, scores = two_releases(n)
    target = dp.DPScore(scores, simulator=simulator, method="records")._target
    rng = np.random.default_rng(1)
    state = target.draw(scores.releases[-1].theta, rng)
    return lambda: target.update_records(state, rng)


def iteration(n: int) -> Callable[[], object]:
    """One iteration of the sampler for many records, which does not depend on their number."""
    simulator, scores = two_releases(n)
    step = dp.DPScore(scores, simulator=simulator, method="normal")
    step.step({})
    return lambda: step.step({})


def times(n: int) -> dict[str, float]:
    """Seconds of both, and effective draws: the least of the coefficients."""
    quiet = {"progressbar": False, "chains": 2, "cores": 1, "random_seed": 1}
    found = {}
    began = time.perf_counter()
    idata = dp.sample(
        epsilon=1.0,
        delta=1e-6,
        model=logistic_regression(n),
        covariates="public",
        draws=N_DRAWS,
        **quiet,
    )
    found["dp.sample"] = time.perf_counter() - began
    ess = float(az.ess(az.convert_to_dataset(idata))["b"].min())
    began = time.perf_counter()
    with logistic_regression(n):
        # The C backend of an installation without BLAS is slow: both are compiled by Numba.
        idata = pm.sample(tune=N_TUNE, draws=N_DRAWS, compile_kwargs={"mode": "NUMBA"}, **quiet)
    found["NUTS"] = time.perf_counter() - began
    nuts_ess = float(az.ess(az.convert_to_dataset(idata))["b"].min())
    return found | {"effective draws": ess, "NUTS, effective draws": nuts_ess}


@pytest.mark.parametrize("n", [1000, 20_000])
def test_sweep(benchmark, n):
    with threadpool_limits(1):
        benchmark(sweep(n))


def test_iteration_for_many_records(benchmark):
    with threadpool_limits(1):
        benchmark(iteration(1000))


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    print(
        "| records | sweep, ns a record | dp.sample, s | effective draws | NUTS, s | effective draws | ratio of times |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for n in map(int, sys.argv[1:] or ("1000", "20000")):
        with threadpool_limits(1):
            call = sweep(min(n, 20_000))
            each = []
            for _ in range(30):
                began = time.perf_counter()
                call()
                each.append((time.perf_counter() - began) / min(n, 20_000))
            found = times(n)
        ratio = found["dp.sample"] / found["NUTS"]
        print(
            f"| {n} | {1e9 * np.median(each):.0f} | {found['dp.sample']:.1f} | {found['effective draws']:.0f} | "
            f"{found['NUTS']:.1f} | {found['NUTS, effective draws']:.0f} | {ratio:.2f} |", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
