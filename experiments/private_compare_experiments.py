"""Coverage of intervals of ``private_compare``: the table of docs/comparing_models.md.

Two logistic regressions, with four coefficients (the fourth is 0.05) and without the fourth, are fitted once, without
privacy, to 20 000 records: their posteriors are the normal approximations at the mode. Each data set has 20 000 further
records with new public covariates, on which the models are compared 10 times, at epsilon = 0.5 and delta = 1e-6 under
substitution. Results of a data set are the difference without privacy, and lists over these releases.
"""

import numpy as np
import xarray as xr

from runner import Experiment, Options, Stored, table
from scores_experiments import logistic, logistic_posterior, model_of

import pymc_dp as dp

from pymc_dp.comparison import private_compare
from pymc_dp.model.predictive_densities import log_predictive, positions

EPSILON, DELTA, LEVEL = 0.5, 1e-6, 0.9
N_RECORDS, N_SETS, N_RELEASES, N_DRAWS = 20_000, 20, 10, 100
TRUTH = np.array([-0.5, 0.8, -0.4, 0.05])
#: What is kept of a release.
OF_RESULT = ("difference", "noise_sd", "sampling_sd", "bound", "clipped", "is_clear")
#: Numbers of covariates of the two models.
MODELS = {"four": 3, "three": 2}


def data_set(n_records: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Covariates and outcomes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_records, 3))
    return x, logistic(rng, TRUTH[0] + x @ TRUTH[1:])


def fitted(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> dict[str, xr.Dataset]:
    """Draws of the posterior."""
    draws = rng.multivariate_normal(*logistic_posterior(x, y), (4, 250))
    return {"posterior": xr.Dataset({"b": (("chain", "draw", "coefficient"), draws)})}


def run(name: str, seed: int, options: Options) -> Stored:
    """The difference without privacy, and the releases."""
    seed, n_records = seed + 1, 2000 if options.small else N_RECORDS
    x, y = data_set(n_records, 0)
    rng = np.random.default_rng(0)
    released = {name: fitted(x[:, :d], y, rng) for name, d in MODELS.items()}
    x, y = data_set(n_records, seed)
    models, logs = {}, []
    for name, d in MODELS.items():
        model = model_of("logistic", x[:, :d], y)
        models[name] = simulator = dp.Simulator(model, covariates="public")
        b = released[name]["posterior"]["b"].to_numpy().reshape(1000, -1)
        theta = positions(simulator.model, {"b": b[np.linspace(0, 999, N_DRAWS).astype(int)]})
        logs.append(log_predictive(map(simulator.likelihood.logp, theta)))
    each = logs[0] - logs[1]
    releases: dict[str, list] = {}
    for k in range(2 if options.small else N_RELEASES):
        budget = dp.PrivacyBudget(EPSILON, DELTA, chains=1)
        result = private_compare(
            released, models, budget=budget, n_draws=N_DRAWS, random_seed=[seed, k]
        )
        low, high = result.interval(LEVEL)
        # The same interval under simulated noise: its coverage of this data set, without the chance of one draw.
        noise = result.noise.draw(20_000, np.random.default_rng([seed, k]))[:, 0] * result.bound
        errors = np.clip(each, -result.bound, result.bound).sum() + noise - each.sum()
        covers = (errors + low <= result.difference) & (result.difference <= errors + high)
        values = {"low": low, "high": high, "expected_coverage": float(covers.mean())}
        values |= {column: getattr(result, column) for column in OF_RESULT}
        for column, value in values.items():
            releases.setdefault(column, []).append(value)
    spread = float(each.std() * np.sqrt(len(each)))
    return {"exact": float(each.sum()), "exact_sampling_sd": spread} | releases


def summary(stored: Stored) -> dict[str, float]:
    """Figures over all data sets and releases."""
    found = {column: np.array(values) for column, values in stored["nested"].items()}
    exact = found["exact"][:, None]
    medians = ("exact", "noise_sd", "sampling_sd", "exact_sampling_sd", "bound", "clipped")
    covers = (found["low"] <= exact) & (exact <= found["high"])
    return {
        "coverage": covers.mean(),
        "expected_coverage": found["expected_coverage"].mean(),
        "right_sign": np.mean(found["difference"] * exact > 0),
        "is_clear": found["is_clear"].mean(),
        "sets": len(exact),
        "releases": covers.size,
    } | {column: np.median(found[column]) for column in medians}


def tables(stored: Stored) -> list[str]:
    s = summary(stored)
    sampling = f"{s['sampling_sd']:.1f}, {s['exact_sampling_sd']:.1f}"
    rows = [
        [f"difference without privacy, median of {s['sets']} data sets", f"{s['exact']:.1f}"],
        [f"noise (sd), median of {s['releases']} releases", f"{s['noise_sd']:.2f}"],
        ["variation between data sets (sd): from the noisy squares, from the records", sampling],
        ["coverage of the difference without privacy by 90 % intervals", f"{s['coverage']:.1%}"],
        ["the same, expected on these data sets (with simulated noise)", f"{s['expected_coverage']:.1%}"],
        ["releases with the sign of the difference without privacy", f"{s['right_sign']:.1%}"],
        ["releases that distinguish the models (more than two standard errors)", f"{s['is_clear']:.0%}"],
        ["clip bound, and records expected to be clipped", f"{s['bound']:.3f}, {s['clipped']:.2%}"],
    ]  # fmt: skip
    return table(["figure", "value"], rows)


EXPERIMENT = Experiment(__file__, run, {"nested": N_SETS}, tables)

if __name__ == "__main__":
    EXPERIMENT.main()
