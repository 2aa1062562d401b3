"""Coverage, width and fit check of posteriors given noisy scores, on data that follow the model and that do not.

    python experiments/scores_experiments.py logistic_300 misfit_t4    # settings by name, or all of them
    python experiments/scores_experiments.py --sets 2 ...              # in small, nothing stored
    python experiments/scores_experiments.py --print                   # the tables of docs/noisy_scores.md

Writes ``scores_experiments.json`` beside this file: data sets that it has already are not made again. All settings
take about three hours of one core. In each set
true parameters, covariates and outcomes are drawn anew, and ``dp.private_scores`` makes its releases at
delta = 1e-6 under substitution from PyMC's initial point, with fit check. Two chains of ``dp.DPScore`` are
compared with the posterior without privacy, in its normal approximation at the mode.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import time
import warnings

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm

from scipy import optimize

import pymc_dp as dp

from pymc_dp.scores import check_fit

STORE = Path(__file__).with_suffix(".json")
DELTA, N_CHAINS, N_DRAWS = 1e-6, 2, 600
#: Rows of a stand-in, with independent covariates.
N_STAND_IN = 2000
PRIOR_SD = 1.5


@dataclass(frozen=True)
class Setting:
    """Data sets of one kind, and the model that is fitted to them.

    Parameters
    ----------
    family : str
        Of the model.
    n_records, epsilon, n_sets
    n_dim : int
        Regression coefficients, the intercept among them.
    truth : str
        Law of the outcomes, if it is not the family.
    correlation : float, optional
        Of private covariates, for which a stand-in has independent ones; public covariates if None.
    """

    family: str
    n_records: int
    epsilon: float
    n_sets: int
    n_dim: int = 4
    truth: str = ""
    correlation: float | None = None


SETTINGS = {
    "logistic_300": Setting("logistic", 300, 1.0, 200),
    "logistic_1000": Setting("logistic", 1000, 1.0, 200),
    "logistic_3000": Setting("logistic", 3000, 1.0, 200),
    "logistic_20000": Setting("logistic", 20_000, 1.0, 200),
    "logistic_300_small": Setting("logistic", 300, 0.1, 30),
    "logistic_100_small": Setting("logistic", 100, 0.1, 30),
    "logistic_d10": Setting("logistic", 1000, 1.0, 20, n_dim=10),
    "logistic_d10_4": Setting("logistic", 1000, 4.0, 20, n_dim=10),
    "logistic_d50": Setting("logistic", 10_000, 1.0, 3, n_dim=50),
    "correlated_1000": Setting("logistic", 1000, 1.0, 200, correlation=0.5),
    "poisson_1000": Setting("poisson", 1000, 1.0, 200),
    "normal_1000": Setting("normal", 1000, 1.0, 100),
    "student_1000": Setting("student", 1000, 1.0, 100),
    "negative_binomial_1000": Setting("negative_binomial", 1000, 1.0, 90),
    "normal_30000": Setting("normal", 30_000, 4.0, 50),
    "poisson_30000": Setting("poisson", 30_000, 4.0, 40),
    "logistic_30000": Setting("logistic", 30_000, 4.0, 50),
    "misfit_t4": Setting("normal", 30_000, 4.0, 50, truth="t4"),
    "misfit_gamma": Setting("normal", 30_000, 4.0, 50, truth="gamma"),
    "misfit_outliers": Setting("normal", 30_000, 4.0, 50, truth="outliers"),
    "misfit_overdispersed": Setting("poisson", 30_000, 4.0, 50, truth="overdispersed"),
    "misfit_curved": Setting("logistic", 30_000, 4.0, 50, truth="curved"),
}

LIKELIHOODS = {
    "logistic": lambda mean, y: pm.Bernoulli("y", logit_p=mean, observed=y),
    "poisson": lambda mean, y: pm.Poisson("y", pm.math.exp(mean), observed=y),
    "normal": lambda mean, y: pm.Normal("y", mean, pm.HalfNormal("sigma", 2), observed=y),
    "student": lambda mean, y: pm.StudentT(
        "y", nu=5, mu=mean, sigma=pm.HalfNormal("sigma", 2), observed=y
    ),
    "negative_binomial": lambda mean, y: pm.NegativeBinomial(
        "y", pm.math.exp(mean), pm.Exponential("alpha", 0.2), observed=y
    ),
}


def negative_binomial(rng: np.random.Generator, mean: np.ndarray, alpha: float) -> np.ndarray:
    return rng.negative_binomial(alpha, alpha / (alpha + mean))


#: Outcomes given generator, linear predictor, scale and covariates.
Law = Callable[[np.random.Generator, np.ndarray, float, np.ndarray], np.ndarray]
LAWS: dict[str, Law] = {
    "logistic": lambda rng, eta, s, x: (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(int),
    "poisson": lambda rng, eta, s, x: rng.poisson(np.exp(eta)),
    "normal": lambda rng, eta, s, x: eta + s * rng.standard_normal(len(eta)),
    "student": lambda rng, eta, s, x: eta + s * rng.standard_t(5, len(eta)),
    "negative_binomial": lambda rng, eta, s, x: negative_binomial(rng, np.exp(eta), s),
    "t4": lambda rng, eta, s, x: eta + s * rng.standard_t(4, len(eta)),
    "gamma": lambda rng, eta, s, x: eta + s * (rng.gamma(2.0, size=len(eta)) - 2) / np.sqrt(2),
    "outliers": lambda rng, eta, s, x: (
        eta + s * rng.standard_normal(len(eta)) * np.where(rng.random(len(eta)) < 0.01, 10, 1)
    ),
    "overdispersed": lambda rng, eta, s, x: negative_binomial(rng, np.exp(eta), 3.0),
    "curved": lambda rng, eta, s, x: LAWS["logistic"](rng, eta + 0.5 * (x[:, 0] ** 2 - 1), s, x),
}


def model_of(family: str, x: np.ndarray, y: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        b = pm.Normal("b", 0, PRIOR_SD, shape=x.shape[1] + 1)
        LIKELIHOODS[family](b[0] + pm.math.dot(pm.Data("x", x), b[1:]), y)
    return model


def simulated(
    setting: Setting, rng: np.random.Generator
) -> tuple[dp.Simulator, dict[str, np.ndarray]]:
    """A data set in a compiled model, and its true parameters."""
    k = setting.n_dim - 1
    # Coefficients with the same spread of the linear predictor for all numbers of covariates.
    truth = {"b": rng.normal(size=k + 1) * np.sqrt(0.75 / max(k, 3))}
    scale = float(np.exp(rng.normal() * 0.3))
    if setting.family in ("normal", "student"):
        truth["sigma"] = np.array(scale)
    if setting.family == "negative_binomial":
        scale = 3 * scale
        truth["alpha"] = np.array(scale)
    rho = setting.correlation or 0.0
    x = rng.multivariate_normal(
        np.zeros(k), rho + (1 - rho) * np.eye(k), size=setting.n_records, method="cholesky"
    )
    y = LAWS[setting.truth or setting.family](rng, truth["b"][0] + x @ truth["b"][1:], scale, x)
    model, covariates = model_of(setting.family, x, y), "public"
    if setting.correlation is not None:
        rows = np.random.default_rng(5).normal(size=(N_STAND_IN, k))
        covariates = model_of(setting.family, rows, np.zeros(N_STAND_IN, int))
    return dp.Simulator(model, covariates=covariates), truth


def without_privacy(simulator: dp.Simulator, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mode and standard deviations of the posterior, in its normal approximation at the mode."""
    likelihood, h = simulator.likelihood, 1e-4

    def loss(theta: np.ndarray) -> float:
        return -float(likelihood.logp(theta).sum() + likelihood.log_prior(theta))

    def gradient(theta: np.ndarray) -> np.ndarray:
        return -likelihood.gradients(theta).sum(axis=0) - likelihood.grad_log_prior(theta)

    mode = optimize.minimize(loss, start, jac=gradient, method="BFGS").x
    steps = h * np.eye(len(mode))
    hessian = np.array([(gradient(mode + e) - gradient(mode - e)) / (2 * h) for e in steps])
    inverse = np.linalg.inv(hessian)
    move = inverse @ gradient(mode)
    assert np.abs(move).max() < 0.01 * np.sqrt(np.diag(inverse).min())
    return mode - move, np.sqrt(np.diag(inverse))


def chains(step: dp.DPScore, n_chains: int, n_draws: int, seed: int) -> np.ndarray:
    """Draws on the unconstrained scale, shape ``(n_chains, n_draws, n_dim)``."""
    found = []
    for k in range(n_chains):
        step.set_rng(np.random.default_rng([seed, k]))
        points = [step.step({})[0] for _ in range(n_draws)]
        found.append([step.simulator.likelihood.ravel(p) for p in points])
    return np.array(found)


def one_set(setting: Setting, seed: int) -> dict[str, float]:
    """Coverage, width, shift and fit check of one data set."""
    rng = np.random.default_rng(seed)
    simulator, truth = simulated(setting, rng)
    budget = dp.PrivacyBudget(setting.epsilon, DELTA, chains=1)
    began = time.perf_counter()
    scores = dp.private_scores(simulator, budget=budget, random_seed=seed)
    step = dp.DPScore(scores, simulator=simulator)
    draws = chains(step, N_CHAINS, N_DRAWS, seed)
    seconds = time.perf_counter() - began
    fit = check_fit(scores, simulator, draws=draws.reshape(-1, draws.shape[-1]), random_seed=seed)
    assert fit is not None
    true = np.concatenate([v if n == "b" else np.log(v) for n, v in truth.items()], axis=None)
    mode, sd = without_privacy(simulator, true)
    low, high = np.quantile(draws, [0.05, 0.95], axis=(0, 1))
    own = draws.std(axis=(0, 1))
    return {
        "coverage": float(np.mean((low < true) & (true < high))),
        "ratio": float(np.mean(own / sd)),
        "shift": float(np.sqrt(np.mean((draws.mean(axis=(0, 1)) - mode) ** 2 / sd**2))),
        "distance": float(np.max(np.abs(draws.mean(axis=(0, 1)) - mode) / own)),
        "p_value": fit.p_value,
        "ess": float(az.ess(az.convert_to_dataset(draws)).x.values.min()),
        "seconds": seconds,
    }


def experiment(
    setting: Setting, n_sets: int, stored: dict[str, list[float]] | None = None
) -> dict[str, list[float]]:
    """Results of so many data sets, of which those that are stored are not made again."""
    found = {name: list(column) for name, column in (stored or {}).items()}
    for seed in range(len(found.get("coverage", [])), n_sets):
        for name, value in one_set(setting, seed).items():
            found.setdefault(name, []).append(round(value, 5))
    return found


def tables(stored: dict[str, dict[str, list[float]]]) -> list[str]:
    """The tables of the documentation."""
    lines = [
        "| model | records | parameters | epsilon | sd ratio | coverage | data sets |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in stored.items():
        setting = SETTINGS[name]
        if setting.truth:
            continue
        coverage = np.array(found["coverage"])
        family = setting.family.replace("_", " ")
        if setting.correlation is not None:
            family += ", stand-in"
        n_dim = setting.n_dim + (family not in ("logistic", "logistic, stand-in", "poisson"))
        # Not below that of independent parameters: a few sets may all cover the same number.
        error = max(coverage.std(), np.sqrt(0.9 * 0.1 / n_dim)) / np.sqrt(len(coverage))
        lines.append(
            f"| {family} | {setting.n_records} | {n_dim} | {setting.epsilon:g} | {np.mean(found['ratio']):.2f} | "
            f"{coverage.mean():.3f} ± {error:.3f} | {len(coverage)} |"
        )
    lines += [
        "",
        "| model | data | rejected | largest distance (median) | data sets |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, found in stored.items():
        setting = SETTINGS[name]
        if setting.n_records < 30_000:
            continue
        rejected = np.mean(np.array(found["p_value"]) < 0.01)
        lines.append(
            f"| {setting.family} | {setting.truth or 'of the model'} | {rejected:.0%} | {np.median(found['distance']):.1f} | {len(found['distance'])} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("settings", nargs="*", choices=[*SETTINGS, []])
    parser.add_argument("--sets", type=int, help="data sets of each setting; nothing is stored")
    parser.add_argument("--print", action="store_true", help="print what is stored")
    arguments = parser.parse_args()
    stored = json.loads(STORE.read_text()) if STORE.exists() else {}
    if arguments.print:
        print("\n".join(tables(stored)))
        return
    warnings.simplefilter("ignore", dp.errors.PrivacyLeakWarning)
    for name in arguments.settings or SETTINGS:
        before = None if arguments.sets else stored.get(name)
        found = experiment(SETTINGS[name], arguments.sets or SETTINGS[name].n_sets, before)
        means = {k: round(float(np.mean(v)), 3) for k, v in found.items()}
        print(name, means, f"rejected {np.mean(np.array(found['p_value']) < 0.01):.3f}", flush=True)
        if arguments.sets is None:
            stored = json.loads(STORE.read_text()) if STORE.exists() else {}
            stored = {
                n: (stored | {name: found})[n] for n in SETTINGS if n in stored | {name: found}
            }
            STORE.write_text(json.dumps(stored, indent=1))


if __name__ == "__main__":
    main()
