"""Posterior predictive checks: p-values of right models (uniform), with and without conditioning on the scores, and power.

Tables of docs/checking_models.md. In the first one scores are made at a fixed reference, and data are simulated, so that
one compiled model serves all data sets. In the second one, scores and checks are those of ``private_scores`` and
``private_ppc``, and models and data those of scores_experiments.py: regressions of 30 000 records with three covariates,
of which the model is wrong or right.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pymc as pm
import scores_experiments

from runner import Experiment, Options, Stored, table
from scipy import stats

import pymc_dp as dp

from pymc_dp import PrivateScores, Simulator
from pymc_dp.checks.predictive_check import _joined, p_value_of
from pymc_dp.checks.predictive_law import replicated_sums
from pymc_dp.checks.statistics_of_records import block_of
from pymc_dp.model import ClippedScores
from pymc_dp.model.record_function import RecordFunction
from pymc_dp.model.sums.clipped_vectors import clip_rows
from pymc_dp.privacy.accounting.noise_choice import least_noise
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.queries import Release
from pymc_dp.scores.score_step import DPScore

STATISTICS = {
    "normal": ["mean", "variance", "bins"],
    "poisson": ["mean", "variance", "zeros", "rootogram"],
}
#: Where scores are made, and how far true parameters are from there.
REFERENCE = {"normal": ([0.0, 0.0], [0.3, 0.2]), "poisson": ([0.5], [0.3])}
BOUND, DELTA = 3.0, 1e-6


class Setting(NamedTuple):
    """Data sets of one kind."""

    model: str
    truth: str
    n: int
    epsilon: float
    n_sets: int
    naive: bool = False


SETTINGS = {
    "normal_300_records": Setting("normal", "model", 300, 8.0, 500, True),
    "poisson_3000": Setting("poisson", "model", 3000, 1.0, 12),
    "poisson_3000_overdispersed": Setting("poisson", "overdispersed", 3000, 1.0, 12),
    "normal_10000": Setting("normal", "model", 10000, 1.0, 12),
    "normal_10000_outliers": Setting("normal", "outliers", 10000, 1.0, 12),
    "normal_30000_outliers": Setting("normal", "outliers", 30000, 1.0, 8),
}

#: Statistics of regressions, and the settings of scores_experiments.py, by family.
OF_REGRESSIONS = {
    "normal": ["variance", "bins", "residuals"],
    "poisson": ["variance", "rootogram", "residuals"],
    "logistic": {
        "residuals": "residuals",
        "square": lambda y, x, prediction: (y - prediction) * x[0] ** 2,
    },
}
REGRESSIONS = [name for name, s in scores_experiments.SETTINGS.items() if s.n_records == 30_000]
N_REGRESSIONS, N_REPLICATES = 10, 199


def make_simulator(model: str, n: int) -> Simulator:
    """The model, with any data."""
    with pm.Model() as made:
        if model == "normal":
            mu, log_sigma = pm.Normal("mu", 0, 0.3), pm.Normal("log_sigma", 0, 0.2)
            pm.Normal("y", mu, pm.math.exp(log_sigma), observed=np.zeros(n))
        else:
            log_rate = pm.Normal("log_rate", 0.5, 0.3)
            pm.Poisson("y", pm.math.exp(log_rate), observed=np.zeros(n, dtype=int))
    return Simulator(made)


def draw(truth: str, y: np.ndarray, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Data of the model, or changed."""
    if truth == "outliers":  # 1 % of the records, five standard deviations wide
        wide = rng.random(len(y)) < 0.01
        return np.where(wide, 5 * np.exp(theta[1]) * rng.normal(size=len(y)), y)
    if truth == "overdispersed":  # variance 1.3 times the mean
        return rng.negative_binomial(np.exp(theta[0]) / 0.3, 1 / 1.3, size=len(y))
    return y


class Case:
    """One compiled model."""

    def __init__(self, setting: Setting) -> None:
        self.s, self.simulator = setting, make_simulator(setting.model, setting.n)
        self.simulated, rng = self.simulator.simulated, np.random.default_rng(0)
        self.reference, self.scale = map(np.array, REFERENCE[setting.model])
        d = len(self.reference)
        columns = [
            self.simulated.draw(self.reference + 0.1 * rng.normal(size=d), rng)[0]
            for _ in range(20)
        ]
        columns = {"y": np.concatenate(columns)}
        self.blocks = [block_of(name, name, "y", columns) for name in STATISTICS[setting.model]]
        self.sizes = [b.diameter for b in self.blocks]
        self.function = RecordFunction(_joined(self.blocks, self.sizes), columns)

    def law(self, d: int, size: float) -> NoiseLaw:
        """Noise of a sum of `d` numbers, which one record changes by at most `size`."""
        return NoiseLaw.of(least_noise(d, self.s.epsilon, DELTA, noise="auto"), size, d)

    def p_values(self, seed: int) -> dict[str, float]:
        """p-values of each statistic, for one data set."""
        s, rng, d = self.s, np.random.default_rng(seed), len(self.reference)
        theta = self.reference + self.scale * rng.normal(size=d)
        y = draw(s.truth, self.simulated.draw(theta, rng)[0], theta, rng)
        data = [y.astype(self.simulated._shared[0].dtype)]
        total = clip_rows(self.simulated.gradients(self.reference, data), BOUND).sum(axis=0)
        term, law = ClippedScores(self.reference, BOUND, np.eye(d)), self.law(d, 2 * BOUND)
        release = Release(term, law, total + law.draw(1, rng)[0])
        shapes = dict.fromkeys(self.simulator.likelihood.unravel(self.simulator.position()), ())
        scores = PrivateScores((release,), shapes, s.n, "substitute", ())
        step = DPScore(scores, simulator=self.simulator)
        states = step.states(seed)
        noise = self.law(self.function.n_dim, np.sqrt(len(self.blocks)))
        released = self.function.of({"y": y}).sum(axis=0) + noise.draw(1, rng)

        def statistics(simulated: list[np.ndarray]) -> np.ndarray:
            return self.function.of({"y": simulated[0]})

        found, n = {}, 99 if s.naive else 199
        for given in (True, False) if s.naive else (True,):
            sums = replicated_sums(step, states, statistics, n, rng, given_scores=given)
            rows, begin = np.vstack([released, sums + noise.draw(len(sums), rng)]), 0
            for block, size in zip(self.blocks, self.sizes, strict=True):
                value = block.value(size * rows[:, begin : begin + block.n_dim], s.n)
                begin += block.n_dim
                name = block.name + ("" if given else ", new records")
                found[name] = p_value_of(value, block.ordered)
        return found


@lru_cache
def case_of(name: str) -> Case:
    """Compiled once in each process."""
    return Case(SETTINGS[name])


def regression(name: str, seed: int, n_records: int) -> dict[str, float]:
    """p-values of each statistic, for one data set of scores_experiments.py."""
    setting = replace(scores_experiments.SETTINGS[name], n_records=n_records)
    simulator, _ = scores_experiments.simulated(setting, np.random.default_rng(seed))

    first, second = (dp.PrivacyBudget(setting.epsilon, DELTA, chains=1) for _ in range(2))
    scores = dp.private_scores(simulator, budget=first, random_seed=seed)
    checked = dp.private_ppc(
        scores, simulator=simulator, statistics=OF_REGRESSIONS[setting.family], budget=second,
        n_replicates=N_REPLICATES, random_seed=seed,
    )  # fmt: skip
    return {s.name: s.p_value for s in checked.statistics}


def run(name: str, seed: int, options: Options) -> Stored:
    if name in SETTINGS:
        return case_of(name).p_values(seed)
    return regression(name, seed, 2000 if options.small else 30_000)


def rejections(p: list[float]) -> list[str]:
    """Parts of the p-values up to 5 and 1 %."""
    return [f"{np.mean(np.array(p) <= level):.0%}" for level in (0.05, 0.01)]


def tables(stored: Stored) -> list[str]:
    first, second = [], []
    for name, s in SETTINGS.items():
        for statistic, p in stored[name].items():
            ks = f"{stats.kstest(p, 'uniform').pvalue:.2g}" if s.truth == "model" else ""
            what = f"{s.model}, {s.n}", s.truth, statistic
            first.append([*what, *rejections(p), ks, len(p)])
    for name in REGRESSIONS:
        setting = scores_experiments.SETTINGS[name]
        for statistic, p in stored[name].items():
            what = setting.family, setting.truth or "model", statistic
            second.append([*what, *rejections(p), len(p)])
    heads, end = ["model", "data", "statistic", "p <= 0.05", "p <= 0.01"], ["data sets"]
    uniform = ["uniform (Kolmogorov-Smirnov)"]
    return [*table([*heads, *uniform, *end], first), "", *table([*heads, *end], second)]


EXPERIMENT = Experiment(
    __file__, run, {n: s.n_sets for n, s in SETTINGS.items()} | dict.fromkeys(REGRESSIONS, N_REGRESSIONS), tables,
    small=("normal_300_records", "poisson_3000", "misfit_curved"),
)  # fmt: skip

if __name__ == "__main__":
    EXPERIMENT.main()
