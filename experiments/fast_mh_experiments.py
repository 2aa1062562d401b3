"""The experiments of the DP-Fast MH paper, at equal composed epsilon: tables of docs/fast_mh.md.

Zhang and Zhang (2023), *DP-Fast MH*, https://arxiv.org/abs/2303.06171, compare private samplers on a mixture of two
normal distributions (their Figures 1 and 2) and on a logistic regression for images of sevens and nines (Figure 3). They
fix the cost of *one* iteration. Here epsilon is that of a whole chain, for every sampler. README.md explains all choices.
"""

import math
import time

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from benchmark_models import one_chain
from runner import Experiment, Options, Stored, table
from scipy.special import expit

import pymc_dp as dp

DELTA = 1e-5
DRAWS = 10_000


# --------------------------------------------------------------------------------------- problems
@dataclass(frozen=True)
class Problem:
    """A model with its data, and public settings for sampling it."""

    model: pm.Model
    records: int
    dim: int
    temperature: float
    longest: float  # largest scale of the random walk
    batch: int  # records per iteration: batch size, or batch rate of DP-Fast MH
    measure: Callable[[np.ndarray], dict[str, float]]  # of draws, shape (n, dim): numbers by name
    discard: float = 0.1  # fraction of a chain that is not used
    clip_bound: float = 1.5
    draws: int = DRAWS

    @property
    def longest_of_barker(self):
        """Longest move of Barker's rule on batches."""
        reach = self.records * self.temperature * self.clip_bound
        return math.sqrt(self.batch) / reach * (1 - 1e-9)


@dataclass(frozen=True)
class Sampler:
    """A step class with its options; those that depend on the problem are filled in by build()."""

    label: str
    step: type
    options: dict[str, object] = field(default_factory=dict)
    private: bool = True


SAMPLERS = {
    "fast": Sampler("DPFastMH", dp.DPFastMH),
    "fast_penalty": Sampler("DPFastMH, lazy penalty", dp.DPFastMH, {"rule": dp.Penalty(2.0), "laziness": 0.5}),
    "full": Sampler("DPFastMH, full batch", dp.DPBarker),
    "penalty": Sampler("DPPenalty", dp.DPPenalty),
    "penalty_batch": Sampler("DPPenalty, batches", dp.DPPenalty, {"laziness": 0.5}),
    "barker_batch": Sampler("DPBarker, batches", dp.DPBarker),
    "tuna": Sampler("TunaMH, not private", dp.DPFastMH, {"rule": dp.steps.Metropolis()}, private=False),
    "metropolis": Sampler("Metropolis", dp.DPPenalty, {"noise_scale": 0.0}, private=False),
}  # fmt: skip
PRIVATE = tuple(name for name, sampler in SAMPLERS.items() if sampler.private)


def build(problem, name, epsilon, scale, **changes):
    """Make a budget for one chain, and a step; epsilon None for no privacy."""
    sampler, cap = SAMPLERS[name], None
    options = dict(sampler.options)
    if sampler.step is dp.DPFastMH:
        options["batch_rate"] = float(problem.batch)
    if name.endswith("batch"):
        options["batch_size"] = problem.batch
    if name == "barker_batch":  # needs short moves
        cap = problem.longest_of_barker
    budget = epsilon and dp.PrivacyBudget(epsilon=epsilon, delta=DELTA, chains=1)
    return budget, sampler.step(
        model=problem.model, clip_bound=problem.clip_bound, temperature=problem.temperature, budget=budget,
        reproducible=True, proposal=dp.RandomWalk(scale, max_distance=cap), **options | changes,
    )  # fmt: skip


def affordable_scale(problem, name, epsilon, **changes):
    """Length of the moves, by public calculation: the longest for which 10 000 can be paid, at most ``longest``."""
    longest = problem.longest
    if name == "barker_batch":
        # About one proposal in seven is redrawn for being too long; more would only take time.
        longest = min(longest, problem.longest_of_barker / (math.sqrt(problem.dim) + 0.75))
    scale = longest
    for _ in range(6 if epsilon else 0):
        budget, _ = build(problem, name, epsilon, scale, **changes)
        try:
            ratio = budget.expected_draws() / problem.draws
        except dp.PrivacyBudgetExhausted:  # not one draw
            ratio = 1e-4
        if abs(ratio - 1) < 0.01 or (scale == longest and ratio > 1):
            break
        # The cost of a decision is about proportional to its square.
        scale = min(longest, scale * math.sqrt(ratio))
    return scale


def chain_of(problem, name, epsilon, scale, seed, **changes):
    """Sample one chain as a user would; return figures of the run."""
    budget, step = build(problem, name, epsilon, scale, **changes)
    started = time.process_time()
    start = {"theta": np.zeros(problem.dim)}
    idata = one_chain(problem.model, step, budget, problem.draws, seed, start)
    seconds = time.process_time() - started
    if budget is not None:
        idata = dp.release(idata, problem.model, budget)
    used = getattr(step, "batch_size", None) or step.likelihood.n_records
    if hasattr(step, "expected_batch"):
        distance = np.asarray(idata.sample_stats["step_distance"])[0]
        used = np.mean(step.expected_batch(distance))
    draws = np.asarray(idata.posterior["theta"], dtype=float)[0]
    return {
        "draws": len(draws),
        "accepted": float(np.mean(np.asarray(idata.sample_stats["accepted"]))),
        "records per iteration": float(used),
        "CPU ms per iteration": 1000 * seconds / len(draws),
        "epsilon spent": budget and budget.spent(),
    } | problem.measure(draws[int(problem.discard * len(draws)) :])


def replicate(problem, name, epsilon, seeds, **changes):
    """Run one sampler at one epsilon for all seeds: a row of the results."""
    scale = affordable_scale(problem, name, epsilon, **changes)
    runs = [chain_of(problem, name, epsilon, scale, seed, **changes) for seed in seeds]
    figures = {key: [each[key] for each in runs] for key in runs[0]}
    row = {"sampler": name, "epsilon": epsilon, "temperature": problem.temperature, "scale": scale}
    # The first chain of a process also computes what decisions cost.
    one_of = dict.fromkeys(("draws", "accepted", "records per iteration"), np.mean)
    one_of |= {"CPU ms per iteration": min, "epsilon spent": max if epsilon else lambda _: None}
    return row | changes | figures | {key: of(figures[key]) for key, of in one_of.items()}


def rows_of(jobs, small):
    """Rows of jobs: problem, sampler, epsilon, seeds, changes; in small short chains of the first and the last."""
    if small:
        short = [(replace(p, draws=200), name, e, seeds[:1], c) for p, name, e, seeds, c in jobs]
        jobs = [short[0], short[-1]]
    return [replicate(*job, **changes) for *job, changes in jobs]


# ---------------------------------------------------------------------------------------- mixture
BOX, CELLS, FLOOR = 3.0, 20, 0.01


@lru_cache
def draw_mixture(n=50_000):
    """Draw from the model at theta = (0, 1), the truth."""
    rng = np.random.default_rng(1)
    return rng.normal(size=n) * math.sqrt(2) + (rng.random(n) < 0.5)


def mixture_logp(x, theta):
    """Log-density of N(theta_1, 2) / 2 + N(theta_1 + theta_2, 2) / 2, up to a constant.

    ``pm.NormalMixture`` gives the same chains, in twice the time.
    """
    d = x - theta[0]
    return -(d**2) / 4 + pt.softplus(theta[1] * (2 * d - theta[1]) / 4)


def mixture():
    with pm.Model() as model:
        theta = pm.Uniform("theta", -BOX, BOX, shape=2, default_transform=None)
        pm.CustomDist("x", theta, logp=mixture_logp, observed=draw_mixture())
    exact = mixture_exact()
    return Problem(
        model, records=50_000, dim=2, temperature=1 / 500, longest=0.45, batch=1000,
        measure=lambda draws: {"KL": symmetric_kl(exact, in_cells(draws))},
    )  # fmt: skip


@lru_cache
def mixture_exact(fine=12):
    """Probabilities of the cells under the tempered posterior, by quadrature.

    ``fine**2`` points to a cell; records are counted in bins of width 0.005, which changes the log of the density by
    less than 0.001.
    """
    # All of them: the box has 7 standard deviations.
    counts, edges = np.histogram(draw_mixture(), bins=np.arange(-10, 10.001, 0.005))
    x, counts = ((edges[:-1] + edges[1:]) / 2)[counts > 0], counts[counts > 0]
    nodes = (np.arange(CELLS * fine) + 0.5) * (2 * BOX / (CELLS * fine)) - BOX
    log = np.empty((len(nodes), len(nodes)))
    for i, first in enumerate(nodes):
        d, second = x - first, nodes[:, None]
        log[i] = (-(d**2) / 4 + np.logaddexp(0, second * (2 * d - second) / 4)) @ counts
    density = np.exp((log - log.max()) / 500)
    cells = density.reshape(CELLS, fine, CELLS, fine).sum(axis=(1, 3))
    return cells / cells.sum()


def in_cells(draws):
    """Fraction of the draws in each cell of the box."""
    edges = np.linspace(-BOX, BOX, CELLS + 1)
    return np.histogram2d(draws[:, 0], draws[:, 1], bins=[edges, edges])[0] / len(draws)


def symmetric_kl(p, q):
    """Mean of both Kullback-Leibler divergences, each distribution mixed with 1 % of the uniform one on the cells."""
    p, q = ((1 - FLOOR) * each + FLOOR / each.size for each in (p, q))
    return float(np.sum((p - q) * np.log(p / q)) / 2)


def independent(n, repeats=50):
    """Mean KL of so many independent draws from the exact law."""
    rng = np.random.default_rng(0)
    exact = mixture_exact()
    counts = rng.multinomial(n, exact.ravel(), size=repeats).reshape(repeats, *exact.shape)
    return float(np.mean([symmetric_kl(exact, each / n) for each in counts]))


def mixture_results(small):
    """The mixture: all runs, and references."""
    problem, exact, seeds = mixture(), mixture_exact(), range(4)
    epsilons = (0.05, 0.1, 0.25, 0.5, 1.0)
    jobs = [(problem, name, e, seeds, {}) for name in PRIVATE for e in epsilons]
    rows = rows_of([*jobs, (problem, "tuna", None, seeds, {})], small)
    long, plain = (
        replace(problem, draws=100_000),
        replace(problem, draws=30_000, clip_bound=math.inf),
    )
    references = [(long, "tuna", None, [100], {}), (plain, "metropolis", None, [100], {})]
    tuna, metropolis = rows_of(references, small)
    return {
        "KL of references": {
            "TunaMH, 100 000 draws": tuna["KL"][0],
            "Metropolis on all records without clipping, 30 000 draws": metropolis["KL"][0],
            "uniform draws from the box": symmetric_kl(exact, np.full_like(exact, 1 / exact.size)),
            "staying at the start": symmetric_kl(exact, in_cells(np.zeros((1, 2)))),
        },
        "KL of independent draws": {
            str(n): independent(n) for n in (30, 100, 300, 1000, 3000, 10_000)
        },
        "rows": rows,
    }


# ----------------------------------------------------------------------------------------- images
class Images:
    """Training and test data of one classification."""

    def __init__(self, x_train, y_train, x_test, y_test):
        self.x, self.y = np.asarray(x_train, dtype=float), np.asarray(y_train, dtype=int)
        self.x_test, self.y_test = np.asarray(x_test, dtype=float), np.asarray(y_test, dtype=int)

    def model(self, temperature=None):
        """Logistic regression, of records or with a tempered potential."""
        with pm.Model() as model:
            theta = pm.Normal("theta", 0, 1, shape=self.x.shape[1])
            if temperature is None:
                pm.Bernoulli("y", logit_p=self.x @ theta, observed=self.y)
            else:
                logp = pm.logp(pm.Bernoulli.dist(logit_p=self.x @ theta), self.y).sum()
                pm.Potential("data", temperature * logp)
        return model

    def measure(self, draws):
        """Accuracy and mean log-loss of the posterior mean of the predicted probabilities."""
        chosen = draws[:: max(1, len(draws) // 500)]
        p = np.mean([expit(self.x_test @ theta) for theta in chosen], axis=0)
        p = np.clip(p, 1e-12, 1 - 1e-12)
        return {
            "accuracy": float(np.mean((p > 0.5) == self.y_test)),
            "log-loss": float(-np.mean(np.log(np.where(self.y_test == 1, p, 1 - p)))),
        }

    def problem(self, temperature):
        """Return the settings that a sampler needs."""
        longest = 0.08 * math.sqrt(0.01 / temperature)  # as the posterior's width
        return Problem(self.model(), *self.x.shape, temperature, longest, 500, self.measure, 0.5)

    def exact(self, temperature):
        """Predictions of the test data by the exact tempered posterior, by NUTS."""
        idata = pm.sample(
            400, tune=400, chains=1, cores=1, random_seed=1, progressbar=False, model=self.model(temperature),
            compute_convergence_checks=False,
        )  # fmt: skip
        return self.measure(np.asarray(idata.posterior["theta"], dtype=float)[0])


def read_images(path: Path | None):
    """Data of a file, or some that are simulated from public facts, see above."""
    if path is not None:
        with np.load(path) as data:
            return Images(*(data[name] for name in ("X_train", "y_train", "X_test", "y_test")))
    rng, n = np.random.default_rng(5), 500
    variances = 1 / np.arange(1, 51)
    variances *= 784 * 0.3081**2 / variances.sum()
    x = rng.normal(size=(n + 100, 50)) * np.sqrt(variances)
    truth = rng.normal(size=50)
    y = rng.random(n + 100) < expit(x @ truth)
    return Images(x[:n], y[:n], x[n:], y[n:])


def image_results(images, small):
    """The images: all runs, and the exact posterior."""
    main, plain = images.problem(0.01), images.problem(1.0)
    epsilons, few, many = (0.1, 0.3, 1.0, 3.0, 10.0), range(2), range(4)
    jobs = [
        (main, name, e, many if e == 1 else few, {})  # where samplers are compared in detail
        for name in PRIVATE
        for e in epsilons
    ]
    jobs.append((main, "tuna", None, few, {}))
    jobs += [(plain, name, e, few, {}) for name in ("fast", "penalty") for e in epsilons]
    changes = [{"batch_rate": rate} for rate in (10.0, 30.0, 100.0, 2000.0)]
    changes += [{"full_batch_at": limit} for limit in (490, 510, 530, 560)]
    jobs += [(main, "fast", 1.0, many, change) for change in changes]
    exact = {name: images.exact(t) for name, t in (("0.01", 0.01), ("1", 1.0))}
    return {"exact": exact, "rows": rows_of(jobs, small)}


# ---------------------------------------------------------------------------------------- tables
def average(key, values):
    """Mean; of divergences, which differ by factors, the geometric mean."""
    return float(np.exp(np.mean(np.log(values))) if key == "KL" else np.mean(values))


def against_epsilon(part, key, digits, at):
    """A row for each sampler: averages for each epsilon, and records per iteration at one of them."""
    usual = [r for r in part["rows"] if not {"batch_rate", "full_batch_at"} & {*r}]
    usual = [r for r in usual if r["temperature"] < 1]
    epsilons = sorted({r["epsilon"] for r in usual if r["epsilon"]})
    rows = []
    for name, sampler in SAMPLERS.items():
        mine = {r["epsilon"]: r for r in usual if r["sampler"] == name}
        if mine:  # a chain without privacy is the same for all
            shown = [average(key, mine.get(e, mine.get(None))[key]) for e in epsilons]
            used = mine.get(at, mine.get(None))["records per iteration"]
            rows.append([sampler.label, *(f"{value:.{digits}f}" for value in shown), round(used)])
    heads = [f"{key}, epsilon = {epsilons[0]:g}", *(f"{e:g}" for e in epsilons[1:])]
    return table(["sampler", *heads, "records per iteration"], rows, "---:")


def tables(stored: Stored) -> list[str]:
    """The tables of the page: divergence on the mixture, accuracy on the images."""
    first = against_epsilon(stored["mixture"], "KL", 2, 0.25)
    return [*first, "", *against_epsilon(stored["images"], "accuracy", 3, 1.0)]


def run(name: str, seed: int, options: Options) -> Stored:
    if name == "mixture":
        return mixture_results(options.small)
    return image_results(read_images(options.data), options.small)


EXPERIMENT = Experiment(
    __file__, run, {"mixture": 0, "images": 0}, tables, needs={"images": "mnist_7_9_pca50.npz"}
)

if __name__ == "__main__":
    EXPERIMENT.main()
