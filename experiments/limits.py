"""How much wider a private posterior is, by number of records, number of parameters, and epsilon: docs/limits.md.

Forecasts are those of ``dp.plan`` for logistic regressions, at delta = 1e-6 under substitution, with the true
parameters as guess: means over data sets and coefficients. True parameters and covariates are drawn as in
``scores_experiments.py``, whose measured ratios the figure shows as well.
"""

from pathlib import Path

import numpy as np

from runner import Experiment, Options, Stored, save_picture, table
from scores_experiments import DELTA, SETTINGS, Setting, simulated
from scores_experiments import EXPERIMENT as MEASURED

import pymc_dp as dp

from pymc_dp.errors import PymcDPError

FIGURE = Path(__file__).resolve().parents[1] / "docs" / "_static" / "limits.png"
RECORDS = (100, 300, 1000, 3000, 10_000, 100_000)
DIMENSIONS = (4, 10, 20)
EPSILONS = (0.1, 1.0, 4.0)
N_SETS = 3


def run(name: str, seed: int, options: Options) -> Stored:
    """Mean ratio of the coefficients' standard deviations that a plan expects, for each epsilon; None if it is refused."""
    n_records, n_dim = map(int, name.split())
    setting = Setting("logistic", n_records, 1.0, 1, n_dim=n_dim)
    simulator, truth = simulated(setting, np.random.default_rng(seed))
    found: Stored = {}
    for epsilon in EPSILONS:
        budget = dp.PrivacyBudget(epsilon, DELTA, chains=1)
        try:
            plan = dp.plan(simulator=simulator, budget=budget, guess=truth, random_seed=seed, progressbar=False)  # fmt: skip
            found[f"{epsilon:g}"] = float(np.mean(plan.sd_ratios["b"]))
        except (PymcDPError, ValueError):
            found[f"{epsilon:g}"] = None
    return found


def measured(n_dim: int, epsilon: float) -> list[tuple[int, float]]:
    """Numbers of records and mean ratios that ``scores_experiments.py`` has measured."""
    found = MEASURED.stored()
    return sorted(
        (setting.n_records, float(np.mean(found[name]["ratio"])))
        for name, setting in SETTINGS.items()
        if setting.family == "logistic" and not setting.truth and setting.correlation is None
        if (setting.n_dim, setting.epsilon) == (n_dim, epsilon) and name in found
    )  # fmt: skip


def lines(stored: Stored) -> dict[tuple[int, float], list[tuple[int, float]]]:
    """Forecasts by dimension and epsilon: numbers of records and mean ratios."""
    return {
        (n_dim, epsilon): [
            (n, float(np.mean(ratios)))
            for n in RECORDS
            if None not in (ratios := stored[f"{n} {n_dim}"][f"{epsilon:g}"])
        ]
        for n_dim in DIMENSIONS
        for epsilon in EPSILONS
    }


def tables(stored: Stored) -> list[str]:
    rows = [
        [n_dim, f"{epsilon:g}", *(f"{ratio:.2f}" for _, ratio in line)]
        for (n_dim, epsilon), line in lines(stored).items()
    ]
    return table(["parameters", "epsilon", *(f"{n} records" for n in RECORDS)], rows)


def figure(stored: Stored) -> None:
    """Draw forecasts as lines, and what was measured as points."""
    from matplotlib import pyplot as plt

    forecasts, size = lines(stored), (9, 3.2)
    drawn, axes = plt.subplots(1, len(EPSILONS), figsize=size, sharey=True, layout="constrained")
    for axis, epsilon in zip(axes, EPSILONS, strict=True):
        for i, n_dim in enumerate(DIMENSIONS):
            n, ratio = zip(*forecasts[n_dim, epsilon], strict=True)
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
    save_picture(drawn, FIGURE, stored)


SIZES = {f"{n} {d}": N_SETS for d in DIMENSIONS for n in RECORDS}
EXPERIMENT = Experiment(__file__, run, SIZES, tables, small=("300 4",), figure=figure)

if __name__ == "__main__":
    EXPERIMENT.main()
