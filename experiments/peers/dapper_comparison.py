"""Posteriors given a noisy release: `pymc_dp.PrivatizedRecords` beside the R package dapper.

Settings are ``"EXAMPLE | METHOD"``. All methods get the same releases, and all are the sampler of Ju, Gong, Awan and
Rao (2022, arXiv:2206.00710). With dapper (version 1.1.0, https://github.com/mango-empire/dapper) a user writes four
functions in R, among them an exact draw of the parameters given the records: `dapper_peer.R`. Here a user writes the
model, and NUTS draws the parameters. Records need not be what the agency sees: "non-centred", the records of the
regression have errors in place of outcomes, so that coefficients can move while records stay. dapper has no place for
this, as a record's statistic is not a function of parameters.

Examples: the regression of section 5 of that paper, at two values of epsilon; a 2x2 table with discrete Gaussian noise;
and randomized response in both columns of such a table, the example of dapper's vignette. The true parameters of each
release are drawn from the prior, so that intervals of the exact posterior cover them at their nominal rate.

`Rscript` must be on the PATH and find dapper, whose folder can be named in ``R_LIBS``::

    apt-get install r-base-core r-cran-bayesplot r-cran-checkmate r-cran-furrr r-cran-memoise \\
        r-cran-posterior r-cran-progressr
    git clone https://github.com/mango-empire/dapper && R CMD INSTALL --library=$R_LIBS dapper

Each release is sampled in two chains, one after the other, in a single thread. Seconds are those of the processor, on
which other load has less influence, and include warm-up. "Start" is the time from the call until sampling starts:
building and compiling the model. PyTensor's cache on the disk saves most of the compilation from the second time on; the
very first takes about 25 seconds. The stored results are of PyMC 5.28.5, PyTensor 2.38.3 and NumPy 2.4.6.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import math
import subprocess
import sys
import tempfile
import time

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_dp as dp

sys.path.insert(0, str(Path(__file__).parents[1]))

import runner

PEER = Path(__file__).with_name("dapper_peer.R")
N_RELEASES, N_CHAINS = 20, 2
SENSITIVITY = 13.0  # the paper's; `dp.privatized.sensitivity_of_moments(3)` is 9.375
N_PEOPLE = {"regression": 100, "table": 400, "response": 400}
ENTRIES = tuple(k[1:] for k in np.triu_indices(4))  # of the moments, without the number of people


# What a user writes: these functions, and those of the same names in dapper_peer.R.


def regression(released, scale: float, centred: bool = True, **options: Any):
    with pm.Model():
        beta = pm.Normal("beta", 0, 2, shape=3)
        x = pm.Normal("x", [0.90, -1.17], 1, shape=(100, 2))
        mean = beta[0] + x @ beta[1:]
        latent = pm.Normal("latent", mean if centred else 0, math.sqrt(2), shape=100)
        y = latent if centred else mean + latent
        xy = pm.math.clip(pt.concatenate([x, y[:, None]], axis=1), -10, 10) / 10
        z = pt.concatenate([pt.ones((100, 1)), xy], axis=1)
        pm.Laplace("released", (z.T @ z)[ENTRIES], scale, observed=released)
        step = dp.PrivatizedRecords([x, latent])
        return pm.sample(step=step, var_names=["beta"], **options)


def table(released, scale: float, **options: Any):
    with pm.Model():
        p = pm.Dirichlet("p", np.ones(4))
        cell = pm.Categorical("cell", p, shape=400)
        counts = pt.zeros(4)[cell].inc(1)
        dp.DiscreteGaussian("released", counts, scale, observed=released)
        step = dp.PrivatizedRecords([cell])
        return pm.sample(step=step, var_names=["p"], **options)


def response(released, scale: float, **options: Any):
    with pm.Model():
        p = pm.Dirichlet("p", np.ones(4))
        cell = pm.Categorical("cell", p, shape=400)
        dp.RandomizedResponse("first", cell // 2, scale, observed=released[:400])
        dp.RandomizedResponse("second", cell % 2, scale, observed=released[400:])
        step = dp.PrivatizedRecords([cell])
        return pm.sample(step=step, var_names=["p"], **options)


Release = tuple[np.ndarray, np.ndarray]


def moments(rng: np.random.Generator, scale: float) -> Release:
    beta = rng.normal(0, 2, size=3)
    x = rng.normal([0.90, -1.17], 1, size=(N_PEOPLE["regression"], 2))
    y = beta[0] + x @ beta[1:] + rng.normal(0, math.sqrt(2), size=len(x))
    z = np.clip(np.column_stack([x, y]), -10, 10) / 10
    z = np.column_stack([np.ones(len(z)), z])
    return beta, rng.laplace((z.T @ z)[ENTRIES], scale)


def counts(rng: np.random.Generator, scale: float) -> Release:
    p = rng.dirichlet(np.ones(4))
    noise = np.arange(-math.ceil(12 * scale), math.ceil(12 * scale) + 1)
    weights = np.exp(-((noise / scale) ** 2) / 2)
    cells = rng.multinomial(N_PEOPLE["table"], p)
    return p, cells + rng.choice(noise, size=4, p=weights / weights.sum())


def answers(rng: np.random.Generator, scale: float) -> Release:
    p = rng.dirichlet(np.ones(4))
    cell = rng.choice(4, size=N_PEOPLE["response"], p=p)
    own = np.concatenate([cell // 2, cell % 2])
    return p, np.where(rng.random(len(own)) < 1 / (1 + math.exp(-scale)), own, 1 - own)


@dataclass(frozen=True)
class Example:
    """A model, and releases that it fits."""

    title: str
    sampled: Callable[..., Any]  # what a user writes here
    simulated: Callable[[np.random.Generator, float], Release]
    scale: float  # of the noise; for randomized response, epsilon of an answer
    n_draws: int  # of each chain, for both
    n_warmup: int = 1000


REGRESSION = "regression, Laplace noise, epsilon"
TABLE, RESPONSE = (
    "2x2 table, discrete Gaussian noise, sigma 5",
    "2x2 table by randomized response, 3/4",
)
EXAMPLES = {
    "regression_1": Example(f"{REGRESSION} 1", regression, moments, SENSITIVITY, 5000),
    "regression_10": Example(f"{REGRESSION} 10", regression, moments, SENSITIVITY / 10, 5000),
    "table": Example(TABLE, table, counts, 5.0, 1000, 500),
    "response": Example(RESPONSE, response, answers, math.log(3), 1500, 500),
}


def parameters(example: Example, draws: np.ndarray) -> np.ndarray:
    """What is compared: coefficients, or probabilities and the log odds ratio."""
    if example.sampled is regression:
        return draws
    log = np.log(draws)
    ratio = log[..., 0] + log[..., 3] - log[..., 1] - log[..., 2]
    return np.concatenate([draws, ratio[..., None]], axis=-1)


Found = tuple[np.ndarray, dict[str, float]]


def with_dapper(example: Example, released: np.ndarray, seed: int) -> Found:
    options = [example.scale, example.n_draws + example.n_warmup, example.n_warmup, N_CHAINS, seed]
    with tempfile.TemporaryDirectory() as folder:
        given, drawn = Path(folder, "release.csv"), Path(folder, "draws.csv")
        np.savetxt(given, released, header="released", comments="")
        command = ["Rscript", PEER, example.sampled.__name__, given, drawn, *options]
        began = time.perf_counter()
        done = subprocess.run([*map(str, command)], capture_output=True, text=True)
        wall = time.perf_counter() - began
        if done.returncode:
            sys.exit(f"Rscript failed:\n{done.stderr}")
        draws = np.loadtxt(drawn, delimiter=",", skiprows=1, ndmin=2)
    cpu, _, acceptance = map(float, done.stdout.split())
    return draws.reshape(N_CHAINS, example.n_draws, -1), {
        "sampling": cpu, "start": 0.0, "wall": wall, "acceptance": acceptance
    }  # fmt: skip


def with_pymc_dp(example: Example, released: np.ndarray, seed: int, **kind: bool) -> Found:
    clock: list[float] = []
    began, wall, children = time.process_time(), time.perf_counter(), os.times()
    idata = example.sampled(
        released, example.scale, draws=example.n_draws, tune=example.n_warmup, chains=N_CHAINS,
        cores=1, random_seed=seed, progressbar=False, compute_convergence_checks=False, **kind,
        callback=lambda trace, draw: clock.append(time.process_time()),
    )  # fmt: skip
    wall, after = time.perf_counter() - wall, os.times()
    compilers = sum(after[2:4]) - sum(children[2:4])
    (name,) = (str(n) for n in idata.posterior.data_vars)
    return idata.posterior[name].values, {
        "sampling": clock[-1] - clock[0], "start": clock[0] - began + compilers, "wall": wall,
        "acceptance": float(idata.sample_stats["record_acceptance_rate"].mean()),
    }  # fmt: skip


def with_non_centred(example: Example, released: np.ndarray, seed: int) -> Found:
    fewer = replace(example, n_draws=500, n_warmup=500)
    return with_pymc_dp(fewer, released, seed, centred=False)


METHODS = {"dapper": with_dapper, "pymc_dp": with_pymc_dp, "pymc_dp, non-centred": with_non_centred}


def summary(example: Example, draws: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """Of each parameter: mean, sd, their Monte Carlo errors, ESS, coverage by the 90 % interval."""
    draws = parameters(example, draws)
    mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    data = az.convert_to_dataset(draws)
    squares = az.convert_to_dataset((draws - mean) ** 2)
    low, high = np.quantile(draws, [0.05, 0.95], axis=(0, 1))
    true = parameters(example, truth)
    return {
        "draws": draws.shape[0] * draws.shape[1],
        "mean": mean,
        "sd": sd,
        "mean_error": az.mcse(data, method="mean").x.values,
        "sd_error": az.mcse(squares, method="mean").x.values / (2 * sd),
        "ess": az.ess(data).x.values,
        "rhat": az.rhat(data).x.values,
        "covered": ((low < true) & (true < high)).astype(float),
    }


def run(name: str, seed: int, options: runner.Options) -> runner.Stored:
    """Results of a method for one release."""
    which, method = name.split(" | ")
    example = EXAMPLES[which]
    if options.small:
        example = replace(example, n_draws=50, n_warmup=20)
    rng = np.random.default_rng([seed, *which.encode()])
    truth, released = example.simulated(rng, example.scale)
    draws, seconds = METHODS[method](example, released, seed + 1)
    return summary(example, draws, truth) | seconds


def tables(stored: runner.Stored) -> list[str]:
    """Coverage, effective draws of the least parameter, and seconds."""
    rows = []
    for name, found in stored.items():
        which, method = name.split(" | ")
        covered, ess = np.array(found["covered"]), np.min(found["ess"], axis=1)
        # The error is no less than if parameters were independent.
        spread = max(covered.mean(axis=1).std(), math.sqrt(0.09 / covered.shape[1]))
        seconds, n = np.array(found["sampling"]), len(covered)
        rows.append([
            EXAMPLES[which].title, method, n, f"{covered.mean():.3f} ± {spread / math.sqrt(n):.3f}", found["draws"][0],
            f"{np.median(ess):.0f}", f"{np.median(ess / seconds):.3g}", f"{np.median(seconds):.1f}",
            f"{np.median(found['start']):.1f}",
        ])  # fmt: skip
    heads = ["example", "method", "releases", "coverage of 90 %", "draws", "ESS", "ESS per second"]
    return runner.table([*heads, "sampling, s", "start, s"], rows)


SETTINGS = [f"{name} | {m}" for name in EXAMPLES for m in ("dapper", "pymc_dp")]
SETTINGS += [f"{name} | pymc_dp, non-centred" for name in ("regression_1", "regression_10")]
EXPERIMENT = runner.Experiment(
    __file__.replace("dapper_comparison", "dapper"), run, tables=tables, small=("table | pymc_dp",),
    settings=dict.fromkeys(SETTINGS, N_RELEASES),
)  # fmt: skip

if __name__ == "__main__":
    EXPERIMENT.main()
