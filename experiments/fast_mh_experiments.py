"""The experiments of the DP-Fast MH paper, at equal composed epsilon.

Zhang and Zhang (2023), *DP-Fast MH*, https://arxiv.org/abs/2303.06171, compare private samplers on a
mixture of two normal distributions (their Figures 1 and 2) and on a logistic regression for images of
sevens and nines (Figure 3). They fix the cost of *one* iteration. Here epsilon is that of a whole
chain, for every sampler::

    python experiments/fast_mh_experiments.py --data mnist_7_9_pca50.npz    # about 20 minutes on two cores
    python experiments/fast_mh_experiments.py --print                       # the tables of docs/fast_mh.md

**Every run has 10 000 draws**, as in the paper. Epsilon determines the length of the moves: the longest
for which 10 000 can be paid, but at most ``longest``, since longer moves are worse even without
privacy. This calibration uses no data.

**Settings were chosen on simulated data**, without privacy: the longest moves, one value for all
samplers, since they hardly differ in it, and the clip bounds, by one rule: the smallest multiple of
0.5 at which fewer than 2 % of the records are clipped. The simulated mixture has the distribution of the
data that are analysed. The simulated images have 50 components with variances in the ratio ``1, 1/2, ...,
1/50`` and the published total of MNIST's pixels (standard deviation 0.3081), coefficients are
drawn from the prior and labels from the model.

**The data are public** and decisions are drawn from seeds, so that results can be reproduced. This
breaks the guarantee, and the reports of the runs state it. Leave out ``reproducible`` for real data.

*Mixture*: ``x ~ N(0, 2) / 2 + N(1, 2) / 2``, 50 000 records, temperature 1/500, flat prior on ``[-3,
3]**2``. The paper's text truncates x to ``[-3, 3]``, its program does not; truncated data would have
a posterior with one mode instead of the two in the paper, so nothing is truncated here, and the clip
bound limits the effect of a record.

*Images*: 12 214 sevens and nines, the first 50 principal components (assumed to be public),
Normal(0, 1) prior. At the paper's temperature 1 no sampler comes near the posterior, so most runs
have temperature 1/100. All chains start at zero.
"""

from __future__ import annotations

import math
import time

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from runner import Experiment, Options, Stored, table
from scipy.special import expit

import pymc_dp as dp

DELTA = 1e-5
DRAWS = 10_000


# --------------------------------------------------------------------------------------- problems
@dataclass(frozen=True)
class Problem:
    """A model with its data, and public settings for sampling it."""

    name: str
    make_model: Callable[[], pm.Model]
    records: int
    dim: int
    temperature: float
    longest: float  # largest scale of the random walk
    batch: int  # records per iteration: batch size, or batch rate of DP-Fast MH
    clip_bound: float = 1.5
    draws: int = DRAWS
    discard: float = 0.1  # fraction of a chain that is not used
    # What to compute from draws, shape (n, dim): numbers by name.
    measure: Callable[[np.ndarray], dict[str, float]] = field(compare=False, default=lambda draws: {})  # fmt: skip


@dataclass(frozen=True)
class Sampler:
    """A step class with its options; those that depend on the problem are filled in by build()."""

    label: str
    step: type
    options: tuple[tuple[str, object], ...] = ()
    private: bool = True


SAMPLERS = {
    "fast": Sampler("DPFastMH", dp.DPFastMH),
    "fast_penalty": Sampler("DPFastMH, lazy penalty", dp.DPFastMH, (("rule", dp.Penalty(2.0)), ("laziness", 0.5))),
    "full": Sampler("DPFastMH, full batch", dp.DPBarker),
    "penalty": Sampler("DPPenalty", dp.DPPenalty),
    "penalty_batch": Sampler("DPPenalty, batches", dp.DPPenalty, (("laziness", 0.5),)),
    "barker_batch": Sampler("DPBarker, batches", dp.DPBarker),
    "tuna": Sampler("TunaMH, not private", dp.DPFastMH, (("rule", dp.steps.Metropolis()),), private=False),
    "metropolis": Sampler("Metropolis", dp.DPPenalty, (("noise_scale", 0.0),), private=False),
}  # fmt: skip
PRIVATE = tuple(name for name, sampler in SAMPLERS.items() if sampler.private)
BARKER_BATCH = SAMPLERS["barker_batch"]


def build(problem, sampler, epsilon, scale, **changes):
    """Make a model, a budget for one chain, and a step; epsilon None for no privacy."""
    options = dict(sampler.options)
    if sampler.step is dp.DPFastMH:
        options["batch_rate"] = float(problem.batch)
    elif sampler.label.endswith("batches"):
        options["batch_size"] = problem.batch
    cap = None
    if sampler == BARKER_BATCH:  # needs short moves
        cap = _longest_of_barker(problem)
    budget = None
    if sampler.private and epsilon is not None:
        budget = dp.PrivacyBudget(epsilon=epsilon, delta=DELTA, chains=1)
    options |= {"budget": budget, "reproducible": True}
    model = problem.make_model()
    step = sampler.step(
        model=model, clip_bound=problem.clip_bound, temperature=problem.temperature,
        proposal=dp.RandomWalk(scale, max_distance=cap), **options | changes,
    )  # fmt: skip
    return model, budget, step


def _longest_of_barker(problem):
    reach = problem.records * problem.temperature * problem.clip_bound
    return math.sqrt(problem.batch) / reach * (1 - 1e-9)


def affordable_scale(problem, sampler, epsilon, **changes):
    """Length of the moves, by public calculation: the longest for which 10 000 can be paid, at most ``longest``."""
    longest = problem.longest
    if sampler == BARKER_BATCH:
        # About one proposal in seven is redrawn for being too long; more would only take time.
        longest = min(longest, _longest_of_barker(problem) / (math.sqrt(problem.dim) + 0.75))
    if not sampler.private or epsilon is None:
        return longest
    scale = longest
    for _ in range(6):
        budget = build(problem, sampler, epsilon, scale, **changes)[1]
        try:
            ratio = budget.expected_draws() / problem.draws
        except dp.PrivacyBudgetExhausted:  # not one draw
            ratio = 1e-4
        if abs(ratio - 1) < 0.01 or (scale == longest and ratio > 1):
            break
        scale = min(
            longest, scale * math.sqrt(ratio)
        )  # the cost of a decision is about proportional to its square
    return scale


def chain_of(problem, sampler, epsilon, scale, seed, **changes):
    """Sample one chain as a user would; return draws and figures of the run."""
    model, budget, step = build(problem, sampler, epsilon, scale, **changes)
    started = time.process_time()
    idata = pm.sample(
        draws=problem.draws, tune=0, chains=1, cores=1, step=step, callback=budget, model=model,
        random_seed=seed, initvals={"theta": np.zeros(problem.dim)}, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    seconds = time.process_time() - started
    if budget is not None:
        idata = dp.release(idata, model, budget)
    distance = np.asarray(idata.sample_stats["step_distance"])[0]
    used = getattr(step, "batch_size", None) or step.likelihood.n_records
    if hasattr(step, "expected_batch"):
        used = float(np.mean(step.expected_batch(distance)))
    draws = np.asarray(idata.posterior["theta"], dtype=float)[0]
    kept = draws[int(problem.discard * len(draws)) :]
    return kept, {
        "draws": len(draws),
        "accepted": float(np.mean(np.asarray(idata.sample_stats["accepted"]))),
        "records per iteration": float(used),
        "CPU ms per iteration": 1000 * seconds / len(draws),
        "epsilon spent": None if budget is None else budget.spent(),
    } | problem.measure(kept)  # fmt: skip


def replicate(problem, name, epsilon, seeds, keep=False, **changes):
    """Run one sampler at one epsilon for all seeds: a row of the results (and all draws)."""
    sampler = SAMPLERS[name]
    scale = affordable_scale(problem, sampler, epsilon, **changes)
    runs = [chain_of(problem, sampler, epsilon, scale, seed, **changes) for seed in seeds]
    figures = {key: [each[key] for _, each in runs] for key in runs[0][1]}
    row = {"sampler": name, "epsilon": epsilon, "temperature": problem.temperature, "scale": scale}
    row |= {k: v for k, v in changes.items() if isinstance(v, int | float)}
    for key in ("draws", "accepted", "records per iteration"):
        row[key] = float(np.mean(figures.pop(key)))
    # The first chain of a process also computes what decisions cost.
    row["CPU ms per iteration"] = min(figures.pop("CPU ms per iteration"))
    spent = figures.pop("epsilon spent")
    row["epsilon spent"] = None if spent[0] is None else max(spent)
    row |= figures
    kept = [draws for draws, _ in runs] if keep else None
    return row, kept


# ---------------------------------------------------------------------------------------- mixture
BOX, CELLS, FLOOR = 3.0, 20, 0.01


def draw_mixture(seed, n=50_000):
    """Draw from the model at theta = (0, 1), the truth."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=n) * math.sqrt(2) + (rng.random(n) < 0.5)


def mixture_logp(x, theta):
    """Log-density of N(theta_1, 2) / 2 + N(theta_1 + theta_2, 2) / 2, up to a constant.

    ``pm.NormalMixture`` gives the same chains, in twice the time.
    """
    d = x - theta[0]
    return -(d**2) / 4 + pt.softplus(theta[1] * (2 * d - theta[1]) / 4)


@lru_cache
def mixture_model(seed=1):
    x = draw_mixture(seed)
    with pm.Model() as model:
        theta = pm.Uniform("theta", -BOX, BOX, shape=2, default_transform=None)
        pm.CustomDist("x", theta, logp=mixture_logp, observed=x)
    return model


@lru_cache
def mixture_exact(seed=1, fine=12):
    """Probabilities of the cells under the tempered posterior, by quadrature.

    ``fine**2`` points to a cell; records are counted in bins of width 0.005, which changes the log
    of the density by less than 0.001.
    """
    counts, edges = np.histogram(
        draw_mixture(seed), bins=np.arange(-10, 10.001, 0.005)
    )  # all of them: 7 standard deviations
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


def mixture_measure(draws):
    return {"KL": symmetric_kl(mixture_exact(), in_cells(draws))}


MIXTURE = Problem(
    "mixture", mixture_model, records=50_000, dim=2, temperature=1 / 500, longest=0.45, batch=1000,
    measure=mixture_measure,
)  # fmt: skip


def independent(n, repeats=50):
    """Mean KL of so many independent draws from the exact law."""
    rng = np.random.default_rng(0)
    exact = mixture_exact()
    counts = rng.multinomial(n, exact.ravel(), size=repeats).reshape(repeats, *exact.shape)
    return float(np.mean([symmetric_kl(exact, each / n) for each in counts]))


def done(jobs, draws):
    """Rows and kept draws of jobs: problem, sampler, epsilon, seeds, whether to keep draws, changes."""
    if draws:
        jobs = [(replace(problem, draws=draws), name, e, seeds[:1], *rest) for problem, name, e, seeds, *rest in jobs[:1] + jobs[-1:]]  # fmt: skip
    return [replicate(*job[:5], **(job[5] if len(job) > 5 else {})) for job in jobs]


def mixture_jobs(epsilons=(0.05, 0.1, 0.25, 0.5, 1.0), seeds=4, samplers=PRIVATE):
    jobs = [
        (MIXTURE, name, e, range(seeds), e == 0.25)
        for name in samplers for e in epsilons
    ]  # fmt: skip
    jobs.append((MIXTURE, "tuna", None, range(seeds), True))
    return jobs


def mixture_results(draws=None):
    """The mixture: all runs, and references."""
    exact, found = mixture_exact(), done(mixture_jobs(), draws)
    references = [
        (replace(MIXTURE, draws=100_000), "tuna", None, [100], False),
        (replace(MIXTURE, draws=30_000, clip_bound=math.inf), "metropolis", None, [100], False),
    ]
    (tuna, _), (metropolis, _) = done(references, draws)
    return {
        "settings": {
            "records": 50_000, "temperature": "1/500", "delta": DELTA, "draws": DRAWS, "clip bound": MIXTURE.clip_bound,
            "longest scale": MIXTURE.longest, "batch size or rate": MIXTURE.batch, "seed of the data": 1,
            "KL": f"symmetric, {CELLS} x {CELLS} cells on [-3, 3]^2, each law mixed with {FLOOR:.0%} of the uniform law, first tenth of the draws left out",
        },
        "KL of references": {
            "TunaMH, 100 000 draws": tuna["KL"][0],
            "Metropolis on all records without clipping, 30 000 draws": metropolis["KL"][0],
            "uniform draws from the box": symmetric_kl(exact, np.full_like(exact, 1 / exact.size)),
            "staying at the start": symmetric_kl(exact, in_cells(np.zeros((1, 2)))),
        },
        "KL of independent draws": {str(n): independent(n) for n in (30, 100, 300, 1000, 3000, 10_000)},
        "rows": [row for row, _ in found],
        "cells": {"exact": exact.round(5).tolist()}
        | {row["sampler"]: in_cells(kept[0]).round(5).tolist() for row, kept in found if kept},
    }  # fmt: skip


# ----------------------------------------------------------------------------------------- images
class Images:
    """Training and test data of one classification."""

    def __init__(self, x_train, y_train, x_test, y_test):
        self.x, self.y = np.asarray(x_train, dtype=float), np.asarray(y_train, dtype=int)
        self.x_test, self.y_test = np.asarray(x_test, dtype=float), np.asarray(y_test, dtype=int)

    @lru_cache
    def model(self):
        """Logistic regression."""
        with pm.Model() as model:
            theta = pm.Normal("theta", 0, 1, shape=self.x.shape[1])
            pm.Bernoulli("y", logit_p=self.x @ theta, observed=self.y)
        return model

    def measure(self, draws):
        """Accuracy and mean log-loss of the posterior mean of the predicted probabilities."""
        p = np.mean(
            [expit(self.x_test @ theta) for theta in draws[:: max(1, len(draws) // 500)]], axis=0
        )
        p = np.clip(p, 1e-12, 1 - 1e-12)
        return {
            "accuracy": float(np.mean((p > 0.5) == self.y_test)),
            "log-loss": float(-np.mean(np.log(np.where(self.y_test == 1, p, 1 - p)))),
            "norm of mean": float(np.linalg.norm(draws.mean(axis=0))),
        }

    def problem(self, temperature=0.01, draws=DRAWS):
        """Return the settings that a sampler needs."""
        longest = 0.08 * math.sqrt(0.01 / temperature)  # as the posterior's width
        return Problem(
            "images", self.model, *self.x.shape, temperature, longest, batch=500, draws=draws,
            discard=0.5, measure=self.measure,
        )  # fmt: skip

    def exact(self, temperature):
        """Predictions of the test data by the exact tempered posterior, by NUTS."""
        with pm.Model() as model:
            theta = pm.Normal("theta", 0, 1, shape=self.x.shape[1])
            logp = pm.logp(pm.Bernoulli.dist(logit_p=self.x @ theta), self.y).sum()
            pm.Potential("data", temperature * logp)
            idata = pm.sample(
                400, tune=400, chains=1, cores=1, random_seed=1, progressbar=False, model=model,
                compute_convergence_checks=False,
            )  # fmt: skip
        return self.measure(np.asarray(idata.posterior["theta"], dtype=float)[0])


@lru_cache
def read_images(path: Path | None):
    if path is None:
        return simulated_images(5, 500, 100)[0]
    with np.load(path) as data:
        return Images(*(data[name] for name in ("X_train", "y_train", "X_test", "y_test")))


@lru_cache
def simulated_images(seed, n=12_214, n_test=2037):
    """Images simulated from public facts, see above."""
    rng = np.random.default_rng(seed)
    variances = 1 / np.arange(1, 51)
    variances *= 784 * 0.3081**2 / variances.sum()
    x = rng.normal(size=(n + n_test, 50)) * np.sqrt(variances)
    truth = rng.normal(size=50)
    y = rng.random(n + n_test) < expit(x @ truth)
    return Images(x[:n], y[:n], x[n:], y[n:]), truth


def image_jobs(images, epsilons=(0.1, 0.3, 1.0, 3.0, 10.0), seeds=2, samplers=PRIVATE):
    main, plain = images.problem(), images.problem(temperature=1.0)
    more = {1.0: range(2 * seeds)}  # where samplers are compared in detail
    jobs = [
        (main, name, e, more.get(e, range(seeds)), False) for name in samplers for e in epsilons
    ]
    jobs.append((main, "tuna", None, range(seeds), False))
    jobs += [(plain, name, e, range(seeds), False) for name in ("fast", "penalty") for e in epsilons]  # fmt: skip
    for rate in (10.0, 30.0, 100.0, 2000.0):
        jobs.append((main, "fast", 1.0, more[1.0], False, {"batch_rate": rate}))
    for limit in (490, 510, 530, 560):
        jobs.append((main, "fast", 1.0, more[1.0], False, {"full_batch_at": limit}))
    return jobs


def image_results(images, draws=None):
    """The images: all runs, and the exact posterior."""
    problem = images.problem()
    return {
        "settings": {
            "records": len(images.y), "test records": len(images.y_test), "prior": "Normal(0, 1)", "temperature": problem.temperature,
            "delta": DELTA, "draws": DRAWS, "clip bound": problem.clip_bound, "longest scale at temperature 1/100": problem.longest,
            "batch size or rate": problem.batch, "prediction": "mean probability over the second half of the draws",
        },
        "exact": {name: images.exact(t) for name, t in (("0.01", 0.01), ("1", 1.0))},
        "plain logistic regression, accuracy": 0.953,
        "most frequent class, accuracy": float(max(np.mean(images.y_test), 1 - np.mean(images.y_test))),
        "rows": [row for row, _ in done(image_jobs(images), draws)],
    }  # fmt: skip


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
    mixture, images = stored["mixture"], stored["images"]
    first, second = (
        against_epsilon(mixture, "KL", 2, 0.25),
        against_epsilon(images, "accuracy", 3, 1.0),
    )
    return [*first, "", *second]


def run(name: str, seed: int, options: Options) -> Stored:
    """One part."""
    draws = 200 if options.small else None
    if name == "mixture":
        return mixture_results(draws)
    return image_results(read_images(options.data), draws)


EXPERIMENT = Experiment(
    __file__, run, {"mixture": 0, "images": 0}, tables, needs={"images": "mnist_7_9_pca50.npz"}
)

if __name__ == "__main__":
    EXPERIMENT.main()
