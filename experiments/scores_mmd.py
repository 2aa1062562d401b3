"""Noisy scores on the benchmark models of Räisä's thesis: maximum mean discrepancy from exact draws.

In each run the data are drawn anew, ``dp.private_scores`` makes its releases at epsilon = 1 and the thesis's delta from
PyMC's initial point, and two chains of 500 draws are compared with 1000 draws of the exact posterior. The circle is left
out: its likelihood is no density of the records, so none can be drawn from it. A table of docs/noisy_scores.md.
"""

from dataclasses import replace

import numpy as np

from benchmark_models import EXPERIMENTS, Circle
from mmd import mmd
from runner import Experiment, Options, Stored, table
from scores_experiments import N_CHAINS, chains, effective_draws

import pymc_dp as dp

EPSILON, N_RUNS, N_DRAWS = 1.0, 5, 500
MODELS = [name for name, model in EXPERIMENTS.items() if not isinstance(model, Circle)]


def run(name: str, seed: int, options: Options) -> Stored:
    """Discrepancy, and effective draws of the least parameter."""
    experiment, seed = EXPERIMENTS[name], seed + 1
    if options.small:
        experiment = replace(experiment, n_records=30_000)
    data = experiment.data(seed)
    simulator = dp.Simulator(experiment.model(data), temperature=experiment.temperature)
    budget = dp.PrivacyBudget(EPSILON, experiment.delta, chains=1)
    scores = dp.private_scores(simulator, budget=budget, random_seed=seed)
    draws = chains(dp.DPScore(scores, simulator=simulator), seed, N_DRAWS)
    exact = experiment.exact(data, N_CHAINS * N_DRAWS, np.random.default_rng([seed, N_CHAINS]))
    return {"mmd": mmd(draws.reshape(exact.shape), exact), "ess": effective_draws(draws)}


def tables(stored: Stored) -> list[str]:
    rows = []
    for name, found in stored.items():
        e, values = EXPERIMENTS[name], np.array(found["mmd"])
        shown = f"{np.median(values):.3f}", f"{values.max():.3f}", f"{np.median(found['ess']):.0f}"
        rows.append([e.title.split(", d")[0], e.n_records, e.n_dim, *shown])
    heads = ["model", "records", "parameters", "median MMD", "largest", "effective draws of 1000"]
    return table(heads, rows)


EXPERIMENT = Experiment(__file__, run, dict.fromkeys(MODELS, N_RUNS), tables, small=("hard-2d",))

if __name__ == "__main__":
    EXPERIMENT.main()
