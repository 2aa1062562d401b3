"""Noisy scores on the benchmark models of Räisä's thesis: maximum mean discrepancy from exact draws.

    python experiments/scores_mmd.py             # all models
    python experiments/scores_mmd.py hard-2d     # by name
    python experiments/scores_mmd.py --print     # the table of docs/noisy_scores.md

Writes ``scores_mmd.json`` beside this file; all models take about ten minutes of one core. In each run the data
are drawn anew, ``dp.private_scores`` makes its releases at epsilon = 1 and the thesis's delta from PyMC's
initial point, and two chains of 500 draws are compared with 1000 draws of the exact posterior. The circle is
left out: its likelihood is no density of the records, so none can be drawn from it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import sys

from pathlib import Path

import arviz as az
import numpy as np

import pymc_dp as dp

sys.path.insert(0, str(Path(__file__).parent))

from benchmark_models import EXPERIMENTS, Circle, Experiment
from mmd import mmd
from scores_experiments import chains

STORE = Path(__file__).with_suffix(".json")
EPSILON, N_RUNS, N_CHAINS, N_DRAWS = 1.0, 5, 2, 500
MODELS = [name for name, model in EXPERIMENTS.items() if not isinstance(model, Circle)]


def one_run(experiment: Experiment, seed: int) -> tuple[float, float]:
    """Discrepancy, and effective draws of the least parameter."""
    data = experiment.data(seed)
    simulator = dp.Simulator(experiment.model(data), temperature=experiment.temperature)
    budget = dp.PrivacyBudget(EPSILON, experiment.delta, chains=1)
    scores = dp.private_scores(simulator, budget=budget, random_seed=seed)
    step = dp.DPScore(scores, simulator=simulator)
    draws = chains(step, N_CHAINS, N_DRAWS, seed)
    exact = experiment.exact(data, N_CHAINS * N_DRAWS, np.random.default_rng([seed, N_CHAINS]))
    n_effective = float(az.ess(az.convert_to_dataset(draws)).x.values.min())
    return mmd(draws.reshape(exact.shape), exact), n_effective


def table(stored: dict[str, dict[str, list[float]]]) -> list[str]:
    """The table of the documentation."""
    lines = [
        "| model | records | parameters | median MMD | largest | effective draws of 1000 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in stored.items():
        experiment, values = EXPERIMENTS[name], np.array(found["mmd"])
        lines.append(
            f"| {experiment.title.split(', d')[0]} | {experiment.n_records} | {experiment.n_dim} | "
            f"{np.median(values):.3f} | {values.max():.3f} | {np.median(found['ess']):.0f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", choices=[*MODELS, []])
    parser.add_argument("--print", action="store_true", help="print what is stored")
    arguments = parser.parse_args()
    stored = json.loads(STORE.read_text()) if STORE.exists() else {}
    if arguments.print:
        print("\n".join(table(stored)))
        return
    for name in arguments.models or MODELS:
        runs = [one_run(EXPERIMENTS[name], seed) for seed in range(1, N_RUNS + 1)]
        found = {k: [round(v, 4) for v in x] for k, x in zip(("mmd", "ess"), zip(*runs), strict=True)}  # fmt: skip
        print(name, found, flush=True)
        stored = {n: (stored | {name: found})[n] for n in MODELS if n in stored | {name: found}}
        STORE.write_text(json.dumps(stored, indent=1))


if __name__ == "__main__":
    main()
