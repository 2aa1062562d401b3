"""Noisy scores on real data: home ownership and mortgage subsidies, against the posterior without privacy.

    pip download causaldata==0.1.5 --no-deps && tar xf causaldata-0.1.5.tar.gz    # nothing is installed
    python experiments/scores_mortgages.py --data causaldata-0.1.5/causaldata/mortgages/fetter_mortgages.csv

Half an hour of one core. Home ownership of 214 144 men in the United States census is regressed (logistic) on race,
service in a war and date of birth. Each run takes a random part of the men, and makes the releases at epsilon = 1,
delta = 1e-6 under substitution from PyMC's initial point, with fit check; runs with all men differ in noise and
simulations alone.

Data: Fetter (2013), How do mortgage subsidies affect home ownership?, https://doi.org/10.1257/pol.5.2.111, in the
Python package causaldata. ``--small`` makes up 2000 men.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from runner import Experiment, Options, Stored, table
from scores_experiments import compared, model_of, p_value, posterior, without_privacy

import pymc_dp as dp

EPSILON = 1.0
#: Runs for each number of men.
RUNS = {"2000": 50, "20000": 50, "214144": 20}
#: Quarters of a year, in a unit that is near their spread: 25 years.
QUARTERS = 100.0


@lru_cache
def table_of(path: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Covariates and outcomes; without a file of men that are made up."""
    if path is None:
        rng = np.random.default_rng(0)
        x = np.column_stack([rng.random((2000, 2)) < [0.1, 0.5], rng.uniform(-1, 1, size=2000)])
        return x, (rng.random(2000) < 0.4 + 0.3 * x[:, 1]).astype(int)
    rows = pd.read_csv(path)
    x = np.column_stack([rows.nonwhite, rows.vet_wwko, rows.qob_minus_kw / QUARTERS])
    return x, rows.home_ownership.to_numpy(int)


def run(name: str, seed: int, options: Options) -> Stored:
    """Width and shift against the posterior without privacy, and the fit check."""
    x, y = table_of(options.data)
    rows = np.random.default_rng(seed).permutation(len(y))[: int(name)]
    simulator = dp.Simulator(model_of("logistic", x[rows], y[rows]), covariates="public")
    scores, draws = posterior(simulator, EPSILON, seed)
    mode, sd = without_privacy(simulator, simulator.position())
    largest = np.max(draws.std(axis=(0, 1)) / sd)
    checked = {"largest_ratio": largest, "p_value": p_value(scores, simulator, draws, seed)}
    return compared(draws, mode, sd) | checked


def tables(stored: Stored) -> list[str]:
    rows = []
    for n_records, found in stored.items():
        shift = np.sqrt(np.mean(np.square(found["shift"])))
        ratio, largest = (f"{np.mean(found[key]):.3f}" for key in ("ratio", "largest_ratio"))
        rejected = f"{np.mean(np.array(found['p_value']) < 0.01):.0%}"
        rows.append([n_records, ratio, largest, f"{shift:.2f}", rejected, len(found["shift"])])
    shift = "shift (rms, in sds without privacy)"
    return table(["men", "sd ratio", "largest of four", shift, "rejected", "runs"], rows)


EXPERIMENT = Experiment(
    __file__, run, RUNS, tables, small=("2000",), needs=dict.fromkeys(RUNS, "fetter_mortgages.csv")
)

if __name__ == "__main__":
    EXPERIMENT.main()
