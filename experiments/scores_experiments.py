"""Coverage, width and fit check of posteriors given noisy scores, on data that follow the model and that do not.

All settings take about three hours of one core. In each set true parameters, covariates and outcomes are drawn anew, and
``dp.private_scores`` makes its releases at delta = 1e-6 under substitution from PyMC's initial point, with fit check. Two
chains of ``dp.DPScore`` are compared with the posterior without privacy, in its normal approximation at the mode. Other
scripts draw and compare as this one does. Tables of docs/noisy_scores.md.
"""

import time

from collections.abc import Callable
from dataclasses import dataclass, replace

import arviz as az
import numpy as np
import pymc as pm

from peers.peer_tasks import fit
from runner import Experiment, Options, Stored, table
from scipy import optimize

import pymc_dp as dp

from pymc_dp.scores import check_fit

DELTA, N_CHAINS, N_DRAWS = 1e-6, 2, 600
#: Rows of a stand-in, with independent covariates.
N_STAND_IN = 2000
PRIOR_SD = 1.5


@dataclass(frozen=True)
class Setting:
    """Data sets of one kind, and the model that is fitted to them."""

    family: str
    n_records: int
    epsilon: float
    n_sets: int
    n_dim: int = 4  # regression coefficients, the intercept among them
    truth: str = ""  # law of the outcomes, if it is not the family
    correlation: float | None = None  # of private covariates, with an independent stand-in


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


def logistic(rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
    return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(int)


#: Outcomes given generator, linear predictor, scale and covariates.
Law = Callable[[np.random.Generator, np.ndarray, float, np.ndarray], np.ndarray]
LAWS: dict[str, Law] = {
    "logistic": lambda rng, eta, s, x: logistic(rng, eta),
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
    "curved": lambda rng, eta, s, x: logistic(rng, eta + 0.5 * (x[:, 0] ** 2 - 1)),
}


def model_of(family: str, x: np.ndarray, y: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        b = pm.Normal("b", 0, PRIOR_SD, shape=x.shape[1] + 1)
        LIKELIHOODS[family](b[0] + pm.math.dot(pm.Data("x", x), b[1:]), y)
    return model


def simulated(setting: Setting, rng: np.random.Generator) -> tuple[dp.Simulator, dict]:
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


def logistic_posterior(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mode and covariance of the posterior of a logistic regression."""
    return fit("logistic", np.column_stack([np.ones(len(x)), x]), y, PRIOR_SD)


def chains(step: dp.DPScore, seed: int, n_draws: int = N_DRAWS) -> np.ndarray:
    """Draws on the unconstrained scale, shape ``(n_chains, n_draws, n_dim)``."""
    found = []
    for k in range(N_CHAINS):
        step.set_rng(np.random.default_rng([seed, k]))
        points = [step.step({})[0] for _ in range(n_draws)]
        found.append([step.simulator.likelihood.ravel(p) for p in points])
    return np.array(found)


def posterior(simulator: dp.Simulator, epsilon: float, seed: int):
    """Noisy scores of the data, and draws given them."""
    budget = dp.PrivacyBudget(epsilon, DELTA, chains=1)
    scores = dp.private_scores(simulator, budget=budget, random_seed=seed)
    return scores, chains(dp.DPScore(scores, simulator=simulator), seed)


def compared(draws: np.ndarray, mode: np.ndarray, sd: np.ndarray) -> dict[str, float]:
    """Width and shift against the posterior without privacy."""
    shifts = (draws.mean(axis=(0, 1)) - mode) / sd
    return {"ratio": np.mean(draws.std(axis=(0, 1)) / sd), "shift": np.sqrt(np.mean(shifts**2))}


def effective_draws(draws: np.ndarray) -> float:
    """Of the least parameter."""
    return float(az.ess(az.convert_to_dataset(draws)).x.values.min())


def coverage(draws: np.ndarray, truth: np.ndarray) -> float:
    """Part of the true parameters in 90 % intervals."""
    low, high = np.quantile(draws, [0.05, 0.95], axis=(0, 1))
    return float(np.mean((low < truth) & (truth < high)))


def p_value(scores: dp.PrivateScores, simulator: dp.Simulator, draws: np.ndarray, seed: int):
    """Of the fit check."""
    flat = draws.reshape(-1, draws.shape[-1])
    return check_fit(scores, simulator, draws=flat, random_seed=seed).p_value


def run(name: str, seed: int, options: Options) -> Stored:
    """Coverage, width, shift and fit check of one data set."""
    setting = SETTINGS[name]
    if options.small:
        setting = replace(setting, n_records=200)
    simulator, truth = simulated(setting, np.random.default_rng(seed))
    began = time.perf_counter()
    scores, draws = posterior(simulator, setting.epsilon, seed)
    seconds = time.perf_counter() - began
    true = np.concatenate([v if n == "b" else np.log(v) for n, v in truth.items()], axis=None)
    mode, sd = without_privacy(simulator, true)
    return {
        "coverage": coverage(draws, true),
        **compared(draws, mode, sd),
        "distance": np.max(np.abs(draws.mean(axis=(0, 1)) - mode) / draws.std(axis=(0, 1))),
        "p_value": p_value(scores, simulator, draws, seed),
        "ess": effective_draws(draws),
        "seconds": seconds,
    }


def tables(stored: Stored) -> list[str]:
    """The tables of the documentation: widths and coverage, and rejected misfits."""
    widths, misfits = [], []
    for name, found in stored.items():
        setting, n_sets = SETTINGS[name], len(found["coverage"])
        if setting.n_records >= 30_000:
            rejected = np.mean(np.array(found["p_value"]) < 0.01)
            distance = f"{np.median(found['distance']):.1f}"
            truth = setting.truth or "of the model"
            misfits.append([setting.family, truth, f"{rejected:.0%}", distance, n_sets])
        if setting.truth:
            continue
        covered = np.array(found["coverage"])
        n_dim = setting.n_dim + (setting.family not in ("logistic", "poisson"))
        # Not below that of independent parameters: a few sets may all cover the same number.
        error = max(covered.std(), np.sqrt(0.9 * 0.1 / n_dim)) / np.sqrt(n_sets)
        family = setting.family.replace("_", " ") + ", stand-in" * (setting.correlation is not None)
        ratio, rate = f"{np.mean(found['ratio']):.2f}", f"{covered.mean():.3f} ± {error:.3f}"
        widths.append(
            [family, setting.n_records, n_dim, f"{setting.epsilon:g}", ratio, rate, n_sets]
        )
    heads = ["model", "records", "parameters", "epsilon", "sd ratio", "coverage", "data sets"]
    others = ["model", "data", "rejected", "largest distance (median)", "data sets"]
    return [*table(heads, widths), "", *table(others, misfits)]


EXPERIMENT = Experiment(
    __file__, run, {name: setting.n_sets for name, setting in SETTINGS.items()}, tables,
    small=("logistic_1000",),
)  # fmt: skip

if __name__ == "__main__":
    EXPERIMENT.main()
