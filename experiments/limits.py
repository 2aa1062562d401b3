"""How much wider a private posterior is, by number of records, number of parameters, and epsilon.

    python experiments/limits.py            # makes what is missing in limits.json: ten minutes
    python experiments/limits.py --print    # the table of docs/limits.md
    python experiments/limits.py --figure   # draws docs/_static/limits.png from limits.json

Forecasts are those of ``dp.plan`` for logistic regressions, at delta = 1e-6 under substitution, with the true
parameters as guess: means over data sets and coefficients. True parameters and covariates are drawn as in
``scores_experiments.py``, whose measured ratios the figure shows as well.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import sys

from pathlib import Path

import numpy as np

import pymc_dp as dp

from pymc_dp.errors import PymcDPError

sys.path.insert(0, str(Path(__file__).parent))

import scores_experiments

STORE = Path(__file__).with_suffix(".json")
FIGURE = Path(__file__).resolve().parents[1] / "docs" / "_static" / "limits.png"
RECORDS = (100, 300, 1000, 3000, 10_000, 100_000)
DIMENSIONS = (4, 10, 20)
EPSILONS = (0.1, 1.0, 4.0)
N_SETS = 3


def forecasts(n_records: int, n_dim: int, n_sets: int = N_SETS) -> dict[str, list[float | None]]:
    """Ratios of standard deviations for each epsilon, one for each data set; None where a plan is refused."""
    found: dict[str, list[float | None]] = {f"{epsilon:g}": [] for epsilon in EPSILONS}
    for seed in range(n_sets):
        setting = scores_experiments.Setting("logistic", n_records, 1.0, n_sets, n_dim=n_dim)
        simulator, truth = scores_experiments.simulated(setting, np.random.default_rng(seed))
        for epsilon in EPSILONS:
            found[f"{epsilon:g}"].append(forecast(simulator, truth, epsilon, seed))
    return found


def forecast(
    simulator: dp.Simulator, truth: dict[str, np.ndarray], epsilon: float, seed: int
) -> float | None:
    """Mean ratio of the coefficients that a plan expects."""
    budget = dp.PrivacyBudget(epsilon, scores_experiments.DELTA, chains=1)
    try:
        plan = dp.plan(
            simulator=simulator, budget=budget, guess=truth, random_seed=seed, progressbar=False
        )
    except (PymcDPError, ValueError) as error:
        print(f"{simulator.n_records} records, epsilon = {epsilon:g}: {error}")
        return None
    return round(float(np.mean(plan.sd_ratios["b"])), 4)


def measured(n_dim: int, epsilon: float) -> list[tuple[int, float]]:
    """Numbers of records and mean ratios that ``scores_experiments.py`` has measured."""
    found = json.loads(scores_experiments.STORE.read_text())
    return sorted(
        (setting.n_records, float(np.mean(found[name]["ratio"])))
        for name, setting in scores_experiments.SETTINGS.items()
        if setting.family == "logistic" and not setting.truth and setting.correlation is None
        if (setting.n_dim, setting.epsilon) == (n_dim, epsilon) and name in found
    )  # fmt: skip


def stored() -> dict[str, dict[str, list[float | None]]]:
    """Results by "records parameters" and epsilon."""
    return json.loads(STORE.read_text()) if STORE.exists() else {}


def lines() -> dict[tuple[int, float], list[tuple[int, float]]]:
    """Forecasts by dimension and epsilon: numbers of records and mean ratios."""
    found = stored()
    return {
        (n_dim, epsilon): [
            (n, float(np.mean(ratios)))
            for n in RECORDS
            if None not in (ratios := found[f"{n} {n_dim}"][f"{epsilon:g}"])
        ]
        for n_dim in DIMENSIONS
        for epsilon in EPSILONS
    }


def table() -> str:
    """Forecasts, in Markdown."""
    head = ["parameters", "epsilon", *(f"{n} records" for n in RECORDS)]
    rows = [
        [str(n_dim), f"{epsilon:g}", *(f"{ratio:.2f}" for _, ratio in line)]
        for (n_dim, epsilon), line in lines().items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def figure(path: Path) -> None:
    """Draw forecasts as lines, and what was measured as points."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn, axes = plt.subplots(
        1, len(EPSILONS), figsize=(9, 3.2), sharey=True, layout="constrained"
    )
    for axis, epsilon in zip(axes, EPSILONS, strict=True):
        for i, n_dim in enumerate(DIMENSIONS):
            n, ratio = zip(*lines()[n_dim, epsilon], strict=True)
            axis.loglog(n, ratio, color=f"C{i}", label=f"{n_dim} parameters")
            for at, value in measured(n_dim, epsilon):
                axis.plot(at, value, "o", color=f"C{i}")
        axis.axhline(1, color="grey", linewidth=0.8, linestyle=":")
        axis.set(title=f"epsilon = {epsilon:g}", xlabel="records")
        axis.set_yticks([1, 1.5, 2, 3, 5, 10], ["1", "1.5", "2", "3", "5", "10"])
        axis.minorticks_off()
    axes[0].set_ylabel("posterior sd / sd without privacy")
    axes[-1].plot([], [], "o", color="grey", label="measured")
    axes[-1].legend(frameon=False, fontsize="small")
    drawn.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--figure", action="store_true", help="draw the figure from stored results")
    parser.add_argument("--print", action="store_true", help="print the table of stored results")
    arguments = parser.parse_args()
    if arguments.figure:
        figure(FIGURE)
    if arguments.print:
        print(table())
    if arguments.figure or arguments.print:
        return
    found = stored()
    for n_dim in DIMENSIONS:
        for n_records in RECORDS:
            if (key := f"{n_records} {n_dim}") not in found:
                found[key] = forecasts(n_records, n_dim)
                STORE.write_text(json.dumps(found, indent=1) + "\n")
                print(key, found[key], flush=True)


if __name__ == "__main__":
    main()
