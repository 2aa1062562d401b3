"""Posteriors given a noisy release: `pymc_dp.PrivatizedRecords` beside the R package dapper.

    python experiments/peers/dapper_comparison.py regression_1 table    # by name, or all examples
    python experiments/peers/dapper_comparison.py --small    # one release, no R, nothing stored
    python experiments/peers/dapper_comparison.py --print    # the stored results as tables

Writes ``dapper.json`` beside this file; what it has already is not made again. All methods get the
same releases, and all are the sampler of Ju, Gong, Awan and Rao (2022, arXiv:2206.00710). With
dapper (version 1.1.0, https://github.com/mango-empire/dapper) a user writes four functions in R,
among them an exact draw of the parameters given the records: `dapper_peer.R`. Here a user writes
the model, and NUTS draws the parameters. Records need not be what the agency sees: "non-centred",
the records of the regression have errors in place of outcomes, so that coefficients can move while
records stay. dapper has no place for this, as a record's statistic is not a function of parameters.

Examples: the regression of section 5 of that paper, at two values of epsilon; a 2x2 table with
discrete Gaussian noise; and randomized response in both columns of such a table, the example of
dapper's vignette. The true parameters of each release are drawn from the prior, so that intervals
of the exact posterior cover them at their nominal rate.

`Rscript` must be on the PATH and find dapper, whose folder can be named in ``R_LIBS``::

    apt-get install r-base-core r-cran-bayesplot r-cran-checkmate r-cran-furrr r-cran-memoise \\
        r-cran-posterior r-cran-progressr
    git clone https://github.com/mango-empire/dapper && R CMD INSTALL --library=$R_LIBS dapper

Each release is sampled in two chains, one after the other, in a single thread. Seconds are those of
the processor, on which other load has less influence, and include warm-up. "Start" is the time from
the call until sampling starts: building and compiling the model. PyTensor's cache on the disk saves
most of the compilation from the second time on; the very first takes about 25 seconds.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import inspect
import json
import logging
import math
import shutil
import subprocess
import sys
import tempfile
import time
import warnings

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_dp as dp

STORE, PEER = Path(__file__).with_name("dapper.json"), Path(__file__).with_name("dapper_peer.R")
N_RELEASES, N_CHAINS = 20, 2
SENSITIVITY = 13.0  # the paper's; `dp.privatized.sensitivity_of_moments(3)` is 9.375
N_PEOPLE = {"regression": 100, "table": 400, "response": 400}
ENTRIES = tuple(k[1:] for k in np.triu_indices(4))  # of the moments, without the number of people


# What a user writes: these functions, and those of the same names in dapper_peer.R.


def regression(released: np.ndarray, scale: float, **options: Any) -> az.InferenceData:
    with pm.Model():
        beta = pm.Normal("beta", 0, 2, shape=3)
        x = pm.Normal("x", [0.90, -1.17], 1, shape=(100, 2))
        y = pm.Normal("y", beta[0] + x @ beta[1:], math.sqrt(2), shape=100)
        xy = pm.math.clip(pt.concatenate([x, y[:, None]], axis=1), -10, 10) / 10
        z = pt.concatenate([pt.ones((100, 1)), xy], axis=1)
        pm.Laplace("released", (z.T @ z)[ENTRIES], scale, observed=released)
        step = dp.PrivatizedRecords([x, y])
        return pm.sample(step=step, var_names=["beta"], **options)


def non_centred(released: np.ndarray, scale: float, **options: Any) -> az.InferenceData:
    with pm.Model():
        beta = pm.Normal("beta", 0, 2, shape=3)
        x = pm.Normal("x", [0.90, -1.17], 1, shape=(100, 2))
        error = pm.Normal("error", 0, math.sqrt(2), shape=100)
        y = beta[0] + x @ beta[1:] + error
        xy = pm.math.clip(pt.concatenate([x, y[:, None]], axis=1), -10, 10) / 10
        z = pt.concatenate([pt.ones((100, 1)), xy], axis=1)
        pm.Laplace("released", (z.T @ z)[ENTRIES], scale, observed=released)
        step = dp.PrivatizedRecords([x, error])
        return pm.sample(step=step, var_names=["beta"], **options)


def table(released: np.ndarray, scale: float, **options: Any) -> az.InferenceData:
    with pm.Model():
        p = pm.Dirichlet("p", np.ones(4))
        cell = pm.Categorical("cell", p, shape=400)
        counts = pt.zeros(4)[cell].inc(1)
        dp.DiscreteGaussian("released", counts, scale, observed=released)
        step = dp.PrivatizedRecords([cell])
        return pm.sample(step=step, var_names=["p"], **options)


def response(released: np.ndarray, scale: float, **options: Any) -> az.InferenceData:
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
    table = rng.multinomial(N_PEOPLE["table"], p)
    return p, table + rng.choice(noise, size=4, p=weights / weights.sum())


def answers(rng: np.random.Generator, scale: float) -> Release:
    p = rng.dirichlet(np.ones(4))
    cell = rng.choice(4, size=N_PEOPLE["response"], p=p)
    own = np.concatenate([cell // 2, cell % 2])
    return p, np.where(rng.random(len(own)) < 1 / (1 + math.exp(-scale)), own, 1 - own)


@dataclass(frozen=True)
class Example:
    """A model, and releases that it fits.

    Parameters
    ----------
    title : str
    sampled, simulated : callable
        What a user writes here; true parameters and a release.
    scale : float
        Of the noise; for randomized response, epsilon of an answer.
    n_draws, n_warmup : int
        Of each chain, for both.
    """

    title: str
    sampled: Callable[..., az.InferenceData]
    simulated: Callable[[np.random.Generator, float], Release]
    scale: float
    n_draws: int
    n_warmup: int = 1000

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of methods, dapper first."""
        return tuple(METHODS)[: 3 if self.sampled is regression else 2]


EXAMPLES = {
    "regression_1": Example(
        "regression, Laplace noise, epsilon 1", regression, moments, SENSITIVITY, 5000
    ),
    "regression_10": Example(
        "regression, Laplace noise, epsilon 10", regression, moments, SENSITIVITY / 10, 5000
    ),
    "table": Example("2x2 table, discrete Gaussian noise, sigma 5", table, counts, 5.0, 1000, 500),
    "response": Example(
        "2x2 table by randomized response, 3/4", response, answers, math.log(3), 1500, 500
    ),
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


def with_pymc_dp(example: Example, released: np.ndarray, seed: int) -> Found:
    clock: list[float] = []
    began, wall, children = time.process_time(), time.perf_counter(), os.times()
    idata = example.sampled(
        released, example.scale, draws=example.n_draws, tune=example.n_warmup, chains=N_CHAINS,
        cores=1, random_seed=seed, progressbar=False, compute_convergence_checks=False,
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
    other = replace(example, sampled=non_centred, n_draws=500, n_warmup=500)
    return with_pymc_dp(other, released, seed)


METHODS = {
    "dapper": with_dapper,
    "pymc_dp": with_pymc_dp,
    "pymc_dp, non-centred": with_non_centred,
}


def summary(example: Example, draws: np.ndarray, truth: np.ndarray) -> dict[str, list[float]]:
    """Of each parameter: mean, sd, their Monte Carlo errors, ESS, coverage by the 90 % interval."""
    draws = parameters(example, draws)
    mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    data = az.convert_to_dataset(draws)
    squares = az.convert_to_dataset((draws - mean) ** 2)
    low, high = np.quantile(draws, [0.05, 0.95], axis=(0, 1))
    true = parameters(example, truth)
    found = {
        "mean": mean,
        "sd": sd,
        "mean_error": az.mcse(data, method="mean").x.values,
        "sd_error": az.mcse(squares, method="mean").x.values / (2 * sd),
        "ess": az.ess(data).x.values,
        "rhat": az.rhat(data).x.values,
        "covered": ((low < true) & (true < high)).astype(float),
    }
    rounded = {name: [float(f"{v:.5g}") for v in values] for name, values in found.items()}
    return {"draws": draws.shape[0] * draws.shape[1]} | rounded


def one_result(name: str, seed: int, method: str) -> dict[str, Any]:
    """Results of a method for one release."""
    example = EXAMPLES[name]
    rng = np.random.default_rng([seed, *name.encode()])
    truth, released = example.simulated(rng, example.scale)
    draws, seconds = METHODS[method](example, released, seed + 1)
    return summary(example, draws, truth) | {k: round(v, 3) for k, v in seconds.items()}


def run(name: str, seed: int) -> None:
    """Store results of all methods for one release, unless they are stored."""
    for method in EXAMPLES[name].methods:
        stored = json.loads(STORE.read_text()) if STORE.exists() else {"examples": {}}
        found = stored["examples"].setdefault(name, [])
        if len(found) <= seed:
            found.append({})
        if method in found[seed]:
            continue
        found[seed][method] = result = one_result(name, seed, method)
        stored["examples"] = {n: stored["examples"][n] for n in EXAMPLES if n in stored["examples"]}
        stored["versions"] = {n: version(n) for n in ("pymc", "pytensor", "numpy")}
        STORE.write_text(json.dumps(stored, indent=1) + "\n")
        print(name, seed, method, min(result["ess"]), result["sampling"], flush=True)


def n_lines(example: Example, method: str) -> int:
    """Lines of the function that a user writes."""
    if method == "dapper":
        source = PEER.read_text().split(f"\n{example.sampled.__name__} <- ")[1].split("\n}")[0]
        return len(source.split("\n")) + 1
    function = example.sampled if method == "pymc_dp" else non_centred
    return len(inspect.getsource(function).strip().split("\n"))


def column(found: list[dict], method: str, key: str) -> np.ndarray:
    return np.array([release[method][key] for release in found])


def agreement(found: list[dict], method: str) -> dict[str, float]:
    """Differences from dapper's means in sds, ratios of sds; what Monte Carlo error explains."""
    one, other = ({k: column(found, m, k) for k in found[0][m]} for m in ("dapper", method))
    sd = np.sqrt(one["sd"] * other["sd"])
    shift = (other["mean"] - one["mean"]) / sd
    error = np.hypot(one["mean_error"], other["mean_error"]) / sd
    ratio = np.log(other["sd"] / one["sd"])
    ratio_error = np.hypot(one["sd_error"] / one["sd"], other["sd_error"] / other["sd"])
    return {
        "shift": math.sqrt(np.mean(shift**2)),
        "shift_error": math.sqrt(np.mean(error**2)),
        "chi2": np.mean((shift / error) ** 2),
        "ratio": math.exp(np.mean(ratio)),
        "ratio_spread": math.sqrt(np.mean(ratio**2)),
        "ratio_error": math.sqrt(np.mean(ratio_error**2)),
        "ratio_chi2": np.mean((ratio / ratio_error) ** 2),
    }


def coverage(found: list[dict], method: str) -> tuple[float, float]:
    """Rate over releases and parameters; its error, no less than if parameters were independent."""
    each = column(found, method, "covered")
    error = max(each.mean(axis=1).std(), math.sqrt(0.09 / each.shape[1])) / math.sqrt(len(each))
    return each.mean(), error


def row(*cells: Any) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def header(*names: str) -> list[str]:
    return [row(*names), row(*["---"] * len(names))]


def tables(stored: dict[str, Any]) -> list[str]:
    complete = {
        n: [f for f in found if set(f) >= set(EXAMPLES[n].methods)] for n, found in stored.items()
    }
    complete = {n: found for n, found in complete.items() if found}
    lines = header(
        "example", "method", "releases", "means differ by, in sds", "of which Monte Carlo", "chi2",
        "sd ratio", "rms log ratio", "of which Monte Carlo", "chi2",
    )  # fmt: skip
    for name, found in complete.items():
        for method in EXAMPLES[name].methods[1:]:
            numbers = [f"{v:.2f}" for v in agreement(found, method).values()]
            lines.append(row(EXAMPLES[name].title, method, len(found), *numbers))
    names = ["example", "method", "coverage of 90 %", "draws", "ESS", "ESS per second"]
    lines += ["", *header(*names, "sampling, s", "start, s", "lines")]
    for name, found in complete.items():
        for method in EXAMPLES[name].methods:
            ess = column(found, method, "ess").min(axis=1)
            seconds, start = (column(found, method, key) for key in ("sampling", "start"))
            rate, error = coverage(found, method)
            cells = [
                f"{rate:.3f} ± {error:.3f}", found[0][method]["draws"], f"{np.median(ess):.0f}",
                f"{np.median(ess / seconds):.3g}", f"{np.median(seconds):.1f}",
                f"{np.median(start):.1f}", n_lines(EXAMPLES[name], method),
            ]  # fmt: skip
            lines.append(row(EXAMPLES[name].title, method, *cells))
    return lines


def check_r() -> None:
    """Stop if there is no R with dapper, and say how to install it."""
    if shutil.which("Rscript"):
        done = subprocess.run(
            ["Rscript", "-e", 'cat(format(packageVersion("dapper")))'], capture_output=True
        )
        if done.returncode == 0:
            print("dapper", done.stdout.decode(), flush=True)
            return
    how = inspect.getdoc(sys.modules[__name__]).split("::\n\n")[1].split("\n\n")[0]
    sys.exit(f"Rscript with the package dapper was not found. To install them:\n\n{how}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("examples", nargs="*", choices=[*EXAMPLES, []])
    parser.add_argument("--releases", type=int, default=N_RELEASES, help="of each example")
    parser.add_argument("--small", action="store_true", help="no R, few draws, nothing stored")
    parser.add_argument("--print", action="store_true", help="print what is stored")
    arguments = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*BLAS")
    if arguments.small:
        small = Example("", table, counts, 5.0, n_draws=50, n_warmup=20)
        truth, released = counts(np.random.default_rng(1), small.scale)
        draws, seconds = with_pymc_dp(small, released, seed=1)
        print(summary(small, draws, truth) | seconds)
        return
    if arguments.print:
        print("\n".join(tables(json.loads(STORE.read_text())["examples"])))
        return
    check_r()
    for seed in range(arguments.releases):
        for name in arguments.examples or EXAMPLES:
            run(name, seed)


if __name__ == "__main__":
    main()
