"""Planned runs, ``dp.sample`` without a step, on the benchmark models and on the mortgage data.

    python examples/control_variate_experiments.py              # all, about two hours on one core
    python examples/control_variate_experiments.py --print      # the tables of docs/control_variates.md

*Models*: the eight of ``benchmark_models.py``, after O. Räisä, *Differentially private
Metropolis-Hastings algorithms* (Master's thesis, 2021), Table 5.1, one chain per run, each on data of
its own seed. Nothing is tuned on the data; where the model is vague, runs begin at PyMC's initial
point. The circle's log-likelihood is that of no distribution, so records cannot be drawn from it: its
plans rest on radii that are made up, drawn from the same law with another seed, and begin at (0, 1),
where the thesis begins.

*Mortgages*: home ownership of 214 144 men, see ``quickstart.py``; all of them, and 20 000. Covariates
are taken to be private: plans rest on a stand-in with made-up covariates, independent of each other
and with frequencies as public statistics could tell them (see `made_up_men`). Compared with the
posterior by NUTS, in its standard deviations.

Writes ``control_variate_experiments.json`` beside this file, after each run: runs that are there
already are not repeated.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import logging
import time
import warnings

from pathlib import Path

import numpy as np
import pymc as pm

from benchmark_models import EXPERIMENTS

import pymc_dp as dp

STORE = Path(__file__).with_suffix(".json")
EPSILONS, RUNS = (4.0, 1.0), 5
#: Seeds for which the mean of x1, and so the width of the banana, is that of the thesis's data.
FIRST_SEED = {"easy-2d": 68, "hard-2d": 13, "easy-10d": 14}


def run_model(name, epsilon, run):
    """Sample one of the benchmark models, and compare it with exact draws."""
    experiment = EXPERIMENTS[name]
    data = experiment.data(FIRST_SEED.get(name, 1))
    options = {"public_covariates": True}
    if name == "circle":
        made_up = experiment.data(1000 + run)[:20_000]
        options = {"stand_in": experiment.model(made_up), "start": {"theta": [0.0, 1.0]}}
    model = experiment.model(data)
    began = time.perf_counter()
    with model:
        released = dp.sample(
            epsilon=epsilon, delta=experiment.delta, chains=1, temperature=experiment.temperature,
            compute_convergence_checks=False, progressbar=False, **options,
        )  # fmt: skip
    seconds = time.perf_counter() - began
    names = [v.name for v in model.free_RVs]
    draws = [released.posterior[v].to_numpy()[0].reshape(released.posterior.sizes["draw"], -1) for v in names]  # fmt: skip
    draws = np.hstack(draws)
    exact = experiment.exact(data, 1000, np.random.default_rng(run))
    shifts = (draws.mean(axis=0) - exact.mean(axis=0)) / exact.std(axis=0)
    return {
        "mmd": dp.mmd(draws, exact),
        "draws": len(draws),
        "shift": float(np.sqrt(np.mean(shifts**2))),
        "sd ratio": float(np.mean(draws.std(axis=0) / exact.std(axis=0))),
        "seconds": seconds,
    }


def made_up_men(n, rng):
    """Covariates of `quickstart.load` for men that do not exist."""
    veteran, nonwhite = rng.random(n) < 0.5, rng.random(n) < 0.1
    quarter = (rng.integers(1, 5, size=n) - 2.5) / 1.5
    return np.column_stack([np.ones(n), veteran - 0.5, nonwhite - 0.1, quarter])


def owners(X, y):
    """Home ownership given the covariates."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2.5, shape=4)
        pm.Bernoulli("owner", logit_p=X @ beta, observed=y)
    return model


def run_mortgages(name, epsilon, run):
    """Sample the mortgage model on all men, or on some, and compare it with NUTS."""
    import quickstart

    X, y = quickstart.load()
    if name == "mortgages 20000":
        some = np.random.default_rng(run).permutation(len(y))[:20_000]
        X, y = X[some], y[some]
    reference = quickstart.exact_posterior(X, y).posterior["beta"].to_numpy().reshape(-1, 4)
    rng = np.random.default_rng(100 + run)
    stand_in = owners(made_up_men(20_000, rng), np.zeros(20_000, dtype=int))
    began = time.perf_counter()
    with owners(X, y):
        released = dp.sample(
            epsilon=epsilon, delta=1e-6, chains=2, stand_in=stand_in, progressbar=False, cores=1
        )
    draws = released.posterior["beta"].to_numpy()
    flat = draws.reshape(-1, 4)
    low, high = np.quantile(flat, [0.05, 0.95], axis=0)
    mean, sd = reference.mean(axis=0), reference.std(axis=0)
    return {
        "shifts": ((flat.mean(axis=0) - mean) / sd).tolist(),
        "sd ratios": (flat.std(axis=0) / sd).tolist(),
        "covered": ((low < mean) & (mean < high)).tolist(),
        "draws": draws.shape[1],
        "seconds": time.perf_counter() - began,
    }


def write(results):
    """A line for each run, with five digits."""
    lines = []
    for key in sorted(results):
        short = json.dumps(
            json.loads(json.dumps(results[key]), parse_float=lambda x: float(f"{float(x):.5g}"))
        )
        lines.append(f" {json.dumps(key)}: {short}")
    STORE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def run_all(names, epsilons, runs):
    logging.getLogger("pymc").setLevel("ERROR")
    warnings.simplefilter("ignore")
    results = json.loads(STORE.read_text()) if STORE.exists() else {}
    for run in range(runs):
        for epsilon in epsilons:
            for name in names:
                key = f"{name}, epsilon {epsilon:g}, run {run}"
                if key not in results:
                    runner = run_mortgages if name.startswith("mortgages") else run_model
                    try:
                        results[key] = runner(name, epsilon, run)
                    except dp.PrivacyBudgetExhausted as error:  # a result, too
                        results[key] = {"failed": str(error)}
                    print(key, results[key], flush=True)
                    write(results)


def print_tables(results):
    def found(name, epsilon, what):
        keys = [k for k in results if k.startswith(f"{name}, epsilon {epsilon:g},")]
        return [results[k][what] for k in keys if "failed" not in results[k]]

    print("<!-- models: python examples/control_variate_experiments.py --print -->")
    print("| model | runs at 4, at 1 | MMD at epsilon = 4 | MMD at epsilon = 1 | draws at 1 |")
    print("| --- " * 5 + "|")
    for name, experiment in EXPERIMENTS.items():
        numbers = [sum(k.startswith(f"{name}, epsilon {e},") for k in results) for e in (4, 1)]
        line = [experiment.title, f"{numbers[0]}, {numbers[1]}"]
        for epsilon in (4.0, 1.0):
            values = found(name, epsilon, "mmd")
            line.append(f"{np.median(values):.3f}" if values else "none")
        values = found(name, 1.0, "draws")
        line.append(f"{np.median(values):.0f}" if values else "none")
        print("| " + " | ".join(line) + " |")
    print("\n<!-- mortgages: python examples/control_variate_experiments.py --print -->")
    print(
        "| men | epsilon | runs | draws | shifts (rms, largest) | sd ratios (5 %, 95 %) | covered |"
    )
    print("| --- " * 7 + "|")
    for name, men in (("mortgages", "214 144"), ("mortgages 20000", "20 000")):
        for epsilon in (4.0, 1.0):
            shifts, ratios, covered = (
                np.array(found(name, epsilon, what)) for what in ("shifts", "sd ratios", "covered")
            )
            if len(shifts):
                low, high = np.quantile(ratios, [0.05, 0.95])
                print(
                    f"| {men} | {epsilon:g} | {len(shifts)} | {np.median(found(name, epsilon, 'draws')):.0f} | "
                    f"{np.sqrt(np.mean(shifts**2)):.2f}, {np.abs(shifts).max():.2f} | {low:.2f} to {high:.2f} | "
                    f"{covered.sum()} of {covered.size} |"
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--print", action="store_true", help="print the tables of what is stored")
    parser.add_argument("--only", nargs="*", help="names of models, 'mortgages', 'mortgages 20000'")
    parser.add_argument("--epsilon", type=float, nargs="*", default=EPSILONS)
    parser.add_argument("--runs", type=int, default=RUNS)
    arguments = parser.parse_args()
    if not arguments.print:
        names = arguments.only or [*EXPERIMENTS, "mortgages", "mortgages 20000"]
        run_all(names, arguments.epsilon, arguments.runs)
    print_tables(json.loads(STORE.read_text()))


if __name__ == "__main__":
    main()
