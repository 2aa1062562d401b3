"""Intervals from synthetic data that are simulated from a private posterior: the table of docs/after_the_release.md.

A quarter of an hour of one core. Data sets are those of the setting ``logistic_1000`` of ``scores_experiments.py``:
logistic regression, 1000 records, epsilon = 1, public covariates. From draws of the private posterior synthetic data
sets are simulated, with new covariates of the same law, and an analyst fits the same model to each, without privacy, by
Newton's method and the normal approximation at the mode.

What is expected: let V be the variance of the private posterior, and v that of the analyst's posterior of one set. A
synthetic data set is simulated at a draw, whose variance is V, and its mode differs from this draw with variance v. So
modes have the variance V + v, and the mixture of the analyst's posteriors has V + 2 v. The mean of the private
posterior differs from the truth with variance V, and the mode of a single set with 2 V + v. Ends of the mixture's
intervals, and the mean of the modes, have a Monte Carlo error, since there are few sets.
"""

import numpy as np
import scores_experiments as scores

from runner import Experiment, Options, Stored, table
from scipy import stats

SETTING = scores.SETTINGS["logistic_1000"]
#: Synthetic data sets, records in each for one private record, and draws from the analyst's posterior of each.
N_SYNTHETIC, TIMES, N_OF_EACH = 50, 20, 200
LEVEL = 0.9

ANALYSES = {
    "private": "private posterior",
    "mixture_large": "mixture, 50 sets of 20 N records",
    "mixture_small": "mixture, 50 sets of N records",
    "rubin_small": "combining rule, 50 sets of N records",
    "single_small": "one set of N records, as if it were real",
    "single_large": "one set of 20 N records, as if it were real",
}


def fits(draws: np.ndarray, n: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Modes, variances and draws of the analyst's posteriors, of one synthetic set for each draw."""
    found = []
    for b in draws:
        x = rng.normal(size=(n, len(b) - 1))
        found.append(scores.logistic_posterior(x, scores.logistic(rng, b[0] + x @ b[1:])))
    of_each = [rng.multivariate_normal(*fit, size=N_OF_EACH, method="cholesky") for fit in found]
    modes, covariances = map(np.array, zip(*found))
    return modes, np.diagonal(covariances, axis1=1, axis2=2), np.array(of_each)


def degrees(between: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Of freedom of the combining rule (Raghunathan, Reiter and Rubin 2003)."""
    return (N_SYNTHETIC - 1) * (1 - within / ((1 + 1 / N_SYNTHETIC) * between)) ** 2


def combined(modes: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Interval of the combining rule for fully synthetic data: variance (1 + 1 / m) between - within."""
    between, within = modes.var(axis=0, ddof=1), variances.mean(axis=0)
    variance = np.maximum((1 + 1 / len(modes)) * between - within, 0)
    half = stats.t.ppf(0.5 + LEVEL / 2, degrees(between, within)) * np.sqrt(variance)
    return modes.mean(axis=0) - half, modes.mean(axis=0) + half


def quantile_variance(relative: np.ndarray) -> np.ndarray:
    """Variance, in that of the private posterior, of an end of the mixture's interval: it has few components.

    With F the distribution function of a component at the quantile, a random number since its mode is one,
    Var(F) / (m f^2) for m components, with f the mixture's density.
    """
    z, found = stats.norm.ppf(0.5 + LEVEL / 2), []
    for r in np.atleast_1d(relative):
        correlation = (1 + r) / (1 + 2 * r)  # of two draws from one component
        law = stats.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]])
        density = stats.norm.pdf(z) / np.sqrt(1 + 2 * r)
        found.append((law.cdf([z, z]) - stats.norm.cdf(z) ** 2) / (N_SYNTHETIC * density**2))
    return np.array(found)


def expected(relative: np.ndarray) -> dict[str, tuple[float, float]]:
    """Width, in that of the private posterior, and coverage of each analysis, in normal approximation.

    `relative` is v / V for a set of N records, in each data set; see the head of this file.
    """
    m, z = N_SYNTHETIC, stats.norm.ppf(0.5 + LEVEL / 2)
    t = stats.t.ppf(0.5 + LEVEL / 2, degrees(1 + relative, relative))
    large, small = relative / TIMES, relative
    laws = {  # half-width, and variance of the truth's distance from an end of the interval, or its centre
        "private": (z + 0 * small, 1 + 0 * small),
        "mixture_large": (z * np.sqrt(1 + 2 * large), 1 + quantile_variance(large)),
        "mixture_small": (z * np.sqrt(1 + 2 * small), 1 + quantile_variance(small)),
        # Its t quantile allows for the error of the estimated variance: the coverage is the level.
        "rubin_small": (rule := t * np.sqrt(1 + (1 + small) / m), (rule / z) ** 2),
        "single_small": (z * np.sqrt(small), 2 + small),
        "single_large": (z * np.sqrt(large), 2 + large),
    }
    return {
        name: (float(np.mean(half / z)), float(np.mean(2 * stats.norm.cdf(half / np.sqrt(v)) - 1)))
        for name, (half, v) in laws.items()
    }


def run(name: str, seed: int, options: Options) -> Stored:
    """Width and coverage of the intervals of each analysis, for one data set; `relative` is the root of v / V."""
    rng = np.random.default_rng(seed)
    simulator, truth = scores.simulated(SETTING, rng)
    _, draws = scores.posterior(simulator, SETTING.epsilon, seed)
    draws = draws.reshape(-1, draws.shape[-1])
    chosen = draws[rng.choice(len(draws), size=N_SYNTHETIC, replace=False)]
    n = 100 if options.small else SETTING.n_records
    tails = [0.5 - LEVEL / 2, 0.5 + LEVEL / 2]
    small, large = fits(chosen, n, rng), fits(chosen, TIMES * n, rng)
    intervals = {
        "private": np.quantile(draws, tails, axis=0),
        "mixture_large": np.quantile(large[2], tails, axis=(0, 1)),
        "mixture_small": np.quantile(small[2], tails, axis=(0, 1)),
        "rubin_small": combined(*small[:2]),
        "single_small": np.quantile(small[2][0], tails, axis=0),
        "single_large": np.quantile(large[2][0], tails, axis=0),
    }
    own = np.diff(intervals["private"], axis=0)[0]
    _, sd = scores.without_privacy(simulator, truth["b"])
    found = {"relative": float(np.mean(sd / draws.std(axis=0)))}
    for analysis, (low, high) in intervals.items():
        found[f"{analysis} width"] = float(np.mean((high - low) / own))
        found[f"{analysis} coverage"] = float(np.mean((low < truth["b"]) & (truth["b"] < high)))
    return found


def tables(stored: Stored) -> list[str]:
    rows, found = [], stored["logistic_1000"]
    by_formula = expected(np.array(found["relative"]) ** 2)
    for name, words in ANALYSES.items():
        width, covered = np.median(found[f"{name} width"]), np.mean(found[f"{name} coverage"])
        wanted, level = by_formula[name]
        rows.append([words, f"{width:.2f}", f"{wanted:.2f}", f"{covered:.0%}", f"{level:.0%}"])
    return table(["intervals", "width (median)", "expected", "coverage", "expected"], rows)


EXPERIMENT = Experiment(__file__, run, {"logistic_1000": SETTING.n_sets}, tables)

if __name__ == "__main__":
    EXPERIMENT.main()
