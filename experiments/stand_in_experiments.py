"""Posteriors with private covariates of which only ranges are known: a table of docs/private_covariates.md.

    python experiments/stand_in_experiments.py [NAME ...] --data fetter_mortgages.csv
    python experiments/stand_in_experiments.py --print

Writes ``stand_in_experiments.json`` beside this file, in 40 minutes of one core. Two kinds of data at (1, 1e-6), the
stand-in included:

- *simulated*: three covariates whose normal scores correlate 0.8, the third one an indicator that is 1 for one record
  in 20; logistic regression with coefficients of standard deviation 1/2, prior N(0, 1.5);
- *mortgages*: see ``scores_mortgages.py``, which says where the data are.

Each with the stand-in from ranges, and with one whose columns are independent and whose marginal laws are those of
the data (or their means and standard deviations, simulated), which somebody would have to know.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymc as pm

import pymc_dp as dp

from pymc_dp.queries import Ranges

sys.path.insert(0, str(Path(__file__).parent))

from scores_experiments import DELTA, N_CHAINS, N_DRAWS, chains, model_of, without_privacy
from scores_mortgages import table_of

STORE = Path(__file__).with_suffix(".json")
EPSILON, CORRELATION, RARE = 1.0, 0.8, 1.645

#: Ranges of the columns of ``x``.
RANGES = {
    "simulated": Ranges(x=[(-4, 4), (-4, 4), [0, 1]]),
    "mortgages": Ranges(x=[[0, 1], [0, 1], (-1, 1)]),
}
#: Data, records, stand-in, data sets.
SETTINGS = {
    "simulated_ranges": ("simulated", 2000, "ranges", 60),
    "simulated_independent": ("simulated", 2000, "independent", 30),
    "mortgages_ranges": ("mortgages", 20_000, "ranges", 30),
    "mortgages_independent": ("mortgages", 20_000, "independent", 30),
}
Data = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def simulated(n_records: int, rng: np.random.Generator) -> Data:
    """Covariates, outcomes and coefficients."""
    law = CORRELATION + (1 - CORRELATION) * np.eye(3)
    x = rng.multivariate_normal(np.zeros(3), law, size=n_records)
    x[:, 2] = x[:, 2] > RARE
    truth = rng.normal(size=4) * 0.5
    p = 1 / (1 + np.exp(-truth[0] - x @ truth[1:]))
    return x, (rng.random(n_records) < p).astype(int), truth


def independent(model: pm.Model, x: np.ndarray, rng: np.random.Generator) -> pm.Model:
    """A stand-in with the marginal laws of the covariates, but without their dependence."""
    return pm.do(model, {"x": np.column_stack([rng.permutation(column) for column in x.T])})


def one_set(data: Data, ranges: Ranges, kind: str, seed: int) -> dict[str, float]:
    """Coverage (if the truth is known), width and shift of one data set."""
    x, y, truth = data
    model = model_of("logistic", x, y)
    covariates = ranges if kind == "ranges" else independent(model, x, np.random.default_rng(seed))
    simulator = dp.Simulator(model, covariates=covariates)
    budget = dp.PrivacyBudget(EPSILON, DELTA, chains=1)
    scores = dp.private_scores(simulator, budget=budget, random_seed=seed)
    draws = chains(dp.DPScore(scores, simulator=simulator), N_CHAINS, N_DRAWS, seed)
    mode, sd = without_privacy(simulator, simulator.position() if truth is None else truth)
    found = {
        "ratio": float(np.mean(draws.std(axis=(0, 1)) / sd)),
        "shift": float(np.sqrt(np.mean(((draws.mean(axis=(0, 1)) - mode) / sd) ** 2))),
    }
    if truth is not None:
        low, high = np.quantile(draws, [0.05, 0.95], axis=(0, 1))
        found["coverage"] = float(np.mean((low < truth) & (truth < high)))
    return {name: round(value, 5) for name, value in found.items()}


def experiment(
    name: str, n_sets: int, draw: Callable[[int, np.random.Generator], Data]
) -> dict[str, list[float]]:
    """Results of so many data sets."""
    data, n_records, kind, _ = SETTINGS[name]
    found: dict[str, list[float]] = {}
    for seed in range(n_sets):
        drawn = draw(n_records, np.random.default_rng(seed))
        for key, value in one_set(drawn, RANGES[data], kind, seed).items():
            found.setdefault(key, []).append(value)
    return found


def table(stored: dict[str, dict[str, list[float]]]) -> list[str]:
    """The table of the documentation."""
    lines = [
        "| data | records | stand-in | sd ratio | shift (rms, in sds without privacy) | coverage | data sets |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in stored.items():
        data, n_records, kind, _ = SETTINGS[name]
        made = "from ranges" if kind == "ranges" else "independent columns"
        shift = np.sqrt(np.mean(np.square(found["shift"])))
        covered = f"{np.mean(found['coverage']):.3f}" if "coverage" in found else ""
        lines.append(
            f"| {data} | {n_records} | {made} | {np.mean(found['ratio']):.2f} | {shift:.2f} | {covered} | {len(found['shift'])} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("settings", nargs="*", choices=[*SETTINGS, []])
    parser.add_argument("--data", type=Path, help="fetter_mortgages.csv")
    parser.add_argument("--sets", type=int, help="data sets of each setting; nothing is stored")
    parser.add_argument("--print", action="store_true", help="print what is stored")
    arguments = parser.parse_args()
    if arguments.print:
        print("\n".join(table(json.loads(STORE.read_text()))))
        return
    warnings.simplefilter("ignore", dp.errors.PrivacyLeakWarning)
    for name in arguments.settings or SETTINGS:
        draw = simulated
        if SETTINGS[name][0] == "mortgages":
            if arguments.data is None:
                parser.error("--data is needed: see scores_mortgages.py.")
            x, y = table_of(arguments.data)

            def draw(n: int, rng: np.random.Generator) -> Data:
                rows = rng.permutation(len(y))[:n]
                return x[rows], y[rows], None

        found = experiment(name, arguments.sets or SETTINGS[name][3], draw)
        print(table({name: found})[-1], flush=True)
        if arguments.sets is None:
            stored = json.loads(STORE.read_text()) if STORE.exists() else {}
            stored = {
                n: (stored | {name: found})[n] for n in SETTINGS if n in stored | {name: found}
            }
            STORE.write_text(json.dumps(stored, indent=1))


if __name__ == "__main__":
    main()
