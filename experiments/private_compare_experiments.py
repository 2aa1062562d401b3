"""Coverage of intervals of ``private_compare``: two nested logistic models, compared on held-out records.

    python experiments/private_compare_experiments.py            # all data sets
    python experiments/private_compare_experiments.py --print    # the table of docs/comparing_models.md

Writes ``private_compare_experiments.json`` beside this file in ten minutes of one core. Two logistic regressions, with
four coefficients (the fourth is 0.05) and without the fourth, are fitted once, without privacy, to 20 000 records: their
posteriors are the normal approximations at the mode. Each data set has 20 000 further records with new public
covariates, on which the models are compared 10 times, at epsilon = 0.5 and delta = 1e-6 under substitution.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import warnings

from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

import pymc_dp as dp

from pymc_dp.comparison import private_compare
from pymc_dp.errors import PrivacyLeakWarning
from pymc_dp.model.positions import positions
from pymc_dp.model.predictive_difference import log_predictive

STORE = Path(__file__).with_suffix(".json")
EPSILON, DELTA, LEVEL = 0.5, 1e-6, 0.9
N_RECORDS, N_SETS, N_RELEASES, N_DRAWS = 20_000, 20, 10, 100
TRUTH = np.array([-0.5, 0.8, -0.4, 0.05])
PRIOR_SD = 1.5
#: Numbers of coefficients of the two models.
MODELS = {"four": 4, "three": 3}


def data_set(n_records: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Covariates, the first of which is 1, and outcomes."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n_records), rng.normal(size=(n_records, 3))])
    return x, (rng.random(n_records) < 1 / (1 + np.exp(-x @ TRUTH))).astype(int)


def model_of(x: np.ndarray, y: np.ndarray) -> pm.Model:
    """Logistic regression."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, PRIOR_SD, shape=x.shape[1])
        pm.Bernoulli("y", logit_p=x @ beta, observed=y)
    return model


def posterior(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> dict[str, xr.Dataset]:
    """Draws of the normal approximation at the mode, found by Newton's method."""
    beta = np.zeros(x.shape[1])
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ beta))
        precision = (x * (p * (1 - p))[:, None]).T @ x + np.eye(len(beta)) / PRIOR_SD**2
        beta = beta + np.linalg.solve(precision, x.T @ (y - p) - beta / PRIOR_SD**2)
    draws = rng.multivariate_normal(beta, np.linalg.inv(precision), (4, 250))
    return {"posterior": xr.Dataset({"beta": (("chain", "draw", "coefficient"), draws)})}


def one_set(seed: int, n_records: int = N_RECORDS, n_releases: int = N_RELEASES) -> dict[str, Any]:
    """The difference without privacy, and the releases."""
    x, y = data_set(n_records, 0)
    rng = np.random.default_rng(0)
    released = {name: posterior(x[:, :d], y, rng) for name, d in MODELS.items()}
    x, y = data_set(n_records, seed)
    models = {
        name: dp.Simulator(model_of(x[:, :d], y), covariates="public") for name, d in MODELS.items()
    }
    logs = []
    for name, simulator in models.items():
        beta = released[name]["posterior"]["beta"].to_numpy()
        chosen = np.linspace(0, 999, N_DRAWS).astype(int)
        theta = positions(simulator.model, {"beta": beta.reshape(1000, -1)[chosen]})
        logs.append(log_predictive(map(simulator.likelihood.logp, theta)))
    each = logs[0] - logs[1]
    found: dict[str, Any] = {"exact": float(each.sum()), "sampling_sd": float(each.std() * np.sqrt(len(each))), "releases": []}  # fmt: skip
    for k in range(n_releases):
        budget = dp.PrivacyBudget(EPSILON, DELTA, chains=1)
        with (
            warnings.catch_warnings()
        ):  # posteriors without a report; other budgets on the same data
            warnings.simplefilter("ignore", PrivacyLeakWarning)
            result = private_compare(
                released, models, budget=budget, n_draws=N_DRAWS, random_seed=[seed, k]
            )
        low, high = result.interval(LEVEL)
        # The same interval under simulated noise: its coverage of this data set, without the chance of one draw.
        noise = result.noise.draw(20_000, np.random.default_rng([seed, k]))[:, 0] * result.bound
        errors = np.clip(each, -result.bound, result.bound).sum() + noise - each.sum()
        covers = (errors + low <= result.difference) & (result.difference <= errors + high)
        found["releases"].append(
            {
                "difference": result.difference,
                "low": low,
                "high": high,
                "expected_coverage": float(covers.mean()),
                "noise_sd": result.noise_sd,
                "sampling_sd": result.sampling_sd,
                "bound": result.bound,
                "clipped": result.clipped,
                "is_clear": result.is_clear,
            }
        )
    return found


def summary(stored: list[dict[str, Any]]) -> dict[str, float]:
    """Figures over all releases."""
    pairs = [(found, release) for found in stored for release in found["releases"]]

    def median(name: str) -> float:
        return float(np.median([release[name] for _, release in pairs]))

    return {
        "coverage": float(np.mean([r["low"] <= f["exact"] <= r["high"] for f, r in pairs])),
        "expected_coverage": float(np.mean([r["expected_coverage"] for _, r in pairs])),
        "noise_sd": median("noise_sd"),
        "sampling_sd": median("sampling_sd"),
        "exact_sampling_sd": float(np.median([f["sampling_sd"] for f in stored])),
        "exact": float(np.median([f["exact"] for f in stored])),
        "right_sign": float(np.mean([r["difference"] * f["exact"] > 0 for f, r in pairs])),
        "is_clear": float(np.mean([r["is_clear"] for _, r in pairs])),
        "bound": median("bound"),
        "clipped": median("clipped"),
        "releases": float(len(pairs)),
    }


def table(stored: list[dict[str, Any]]) -> list[str]:
    """The table of the documentation."""
    s = summary(stored)
    return [
        "| figure | value |",
        "| --- | --- |",
        f"| difference without privacy, median of {len(stored)} data sets | {s['exact']:.1f} |",
        f"| noise (sd), median of {s['releases']:.0f} releases | {s['noise_sd']:.2f} |",
        f"| variation between data sets (sd): from the noisy squares, from the records | {s['sampling_sd']:.1f}, {s['exact_sampling_sd']:.1f} |",
        f"| coverage of the difference without privacy by 90 % intervals | {s['coverage']:.1%} |",
        f"| the same, expected on these data sets (with simulated noise) | {s['expected_coverage']:.1%} |",
        f"| releases with the sign of the difference without privacy | {s['right_sign']:.1%} |",
        f"| releases that distinguish the models (more than two standard errors) | {s['is_clear']:.0%} |",
        f"| clip bound, and records expected to be clipped | {s['bound']:.3f}, {s['clipped']:.2%} |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the table of the stored result")
    parser.add_argument("--sets", type=int, default=N_SETS)
    arguments = parser.parse_args()
    if not arguments.print:
        found = []
        for seed in range(1, arguments.sets + 1):
            found.append(one_set(seed))
            print(seed, summary(found), flush=True)
        STORE.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(table(json.loads(STORE.read_text()))))


if __name__ == "__main__":
    main()
