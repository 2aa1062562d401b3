"""Noisy scores on real data: home ownership and mortgage subsidies, against the posterior without privacy.

    pip download causaldata==0.1.5 --no-deps && tar xf causaldata-0.1.5.tar.gz    # nothing is installed
    python experiments/scores_mortgages.py --data causaldata-0.1.5/causaldata/mortgages/fetter_mortgages.csv
    python experiments/scores_mortgages.py --print    # the table of docs/noisy_scores.md

Writes ``scores_mortgages.json`` beside this file in half an hour of one core. Home ownership of 214 144 men in the
United States census is regressed (logistic) on race, service in a war and date of birth. Each run takes a random
part of the men, and makes the releases at epsilon = 1, delta = 1e-6 under substitution from PyMC's initial point,
with fit check; runs with all men differ in noise and simulations alone.

Data: Fetter (2013), How do mortgage subsidies affect home ownership?, https://doi.org/10.1257/pol.5.2.111, in the
Python package causaldata.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import csv
import json
import sys

from pathlib import Path

import numpy as np

import pymc_dp as dp

from pymc_dp.scores import check_fit

sys.path.insert(0, str(Path(__file__).parent))

from scores_experiments import DELTA, N_CHAINS, N_DRAWS, chains, model_of, without_privacy

STORE = Path(__file__).with_suffix(".json")
EPSILON = 1.0
#: Runs for each number of men.
RUNS = {2000: 50, 20_000: 50, 214_144: 20}
#: Quarters of a year, in a unit that is near their spread: 25 years.
QUARTERS = 100.0


def table_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Covariates and outcomes."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    columns = [[float(row[name]) for row in rows] for name in ("nonwhite", "vet_wwko")]
    columns.append([float(row["qob_minus_kw"]) / QUARTERS for row in rows])
    return np.array(columns).T, np.array([int(row["home_ownership"]) for row in rows])


def one_run(x: np.ndarray, y: np.ndarray, n_records: int, seed: int) -> dict[str, float]:
    """Width and shift against the posterior without privacy, and the fit check."""
    rows = np.random.default_rng(seed).permutation(len(y))[:n_records]
    simulator = dp.Simulator(model_of("logistic", x[rows], y[rows]), covariates="public")
    budget = dp.PrivacyBudget(EPSILON, DELTA, chains=1)
    scores = dp.private_scores(simulator, budget=budget, random_seed=seed)
    draws = chains(dp.DPScore(scores, simulator=simulator), N_CHAINS, N_DRAWS, seed)
    fit = check_fit(scores, simulator, draws=draws.reshape(-1, draws.shape[-1]), random_seed=seed)
    assert fit is not None
    mode, sd = without_privacy(simulator, simulator.position())
    ratios = draws.std(axis=(0, 1)) / sd
    shifts = (draws.mean(axis=(0, 1)) - mode) / sd
    return {
        "ratio": float(ratios.mean()),
        "largest_ratio": float(ratios.max()),
        "shift": float(np.sqrt(np.mean(shifts**2))),
        "p_value": fit.p_value,
    }


def table(stored: dict[str, dict[str, list[float]]]) -> list[str]:
    """The table of the documentation."""
    lines = [
        "| men | sd ratio | largest of four | shift (rms, in sds without privacy) | rejected | runs |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for n_records, found in stored.items():
        shift = np.sqrt(np.mean(np.square(found["shift"])))
        rejected = np.mean(np.array(found["p_value"]) < 0.01)
        lines.append(
            f"| {n_records} | {np.mean(found['ratio']):.3f} | {np.mean(found['largest_ratio']):.3f} | {shift:.2f} | {rejected:.0%} | "
            f"{len(found['shift'])} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="fetter_mortgages.csv")
    parser.add_argument("--print", action="store_true", help="print what is stored")
    arguments = parser.parse_args()
    if arguments.print:
        print("\n".join(table(json.loads(STORE.read_text()))))
        return
    if arguments.data is None:
        parser.error(
            "--data is needed: how to download the file is written at the top of this script."
        )
    x, y = table_of(arguments.data)
    stored: dict[str, dict[str, list[float]]] = {}
    for n_records, n_runs in RUNS.items():
        runs = [one_run(x, y, n_records, seed) for seed in range(n_runs)]
        stored[str(n_records)] = {name: [round(run[name], 5) for run in runs] for name in runs[0]}
        print(table({str(n_records): stored[str(n_records)]})[-1], flush=True)
    STORE.write_text(json.dumps(stored, indent=1))


if __name__ == "__main__":
    main()
