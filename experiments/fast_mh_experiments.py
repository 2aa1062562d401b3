"""The experiments of the DP-Fast MH paper, at equal composed epsilon.

Zhang and Zhang (2023), *DP-Fast MH*, https://arxiv.org/abs/2303.06171, compare private samplers on a
mixture of two normal distributions (their Figures 1 and 2) and on a logistic regression for images of
sevens and nines (Figure 3). They fix the cost of *one* iteration. Here epsilon is that of a whole
chain, for every sampler, also on the axes of the figures::

    python experiments/fast_mh_experiments.py --mnist mnist_7_9_pca50.npz
    python experiments/fast_mh_experiments.py --tune      # how the constants below were chosen

Writes ``fast_mh_experiments.json`` beside this file and two figures into ``docs/_static``; takes
about 20 minutes on two cores.

**Every run has 10 000 draws**, as in the paper. Epsilon determines the length of the moves: the longest
for which 10 000 can be paid, but at most ``longest``, since longer moves are worse even without
privacy. This calibration uses no data.

**Settings were chosen on simulated data** (``--tune``): the longest moves, one value for all
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

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as many processes as cores

import argparse
import json
import logging
import math
import multiprocessing
import platform
import time

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import expit

import pymc_dp as dp

HERE = Path(__file__).resolve().parent
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


def run(problem, sampler, epsilon, scale, seed, **changes):
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
    runs = [run(problem, sampler, epsilon, scale, seed, **changes) for seed in seeds]
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


def mixture_jobs(epsilons=(0.05, 0.1, 0.25, 0.5, 1.0), seeds=4, samplers=PRIVATE):
    jobs = [
        (MIXTURE, name, e, range(seeds), e == 0.25)
        for name in samplers for e in epsilons
    ]  # fmt: skip
    jobs.append((MIXTURE, "tuna", None, range(seeds), True))
    jobs.append((replace(MIXTURE, draws=100_000), "tuna", None, [100], False))
    exact = replace(MIXTURE, draws=30_000, clip_bound=math.inf)
    jobs.append((exact, "metropolis", None, [100], False))
    return jobs


def mixture_results(done):
    """Arrange rows and draws of the mixture for the JSON file."""
    exact = mixture_exact()
    rows = [row for row, _ in done]
    long = {row["sampler"]: row for row in rows if row["draws"] > DRAWS}
    rows = [row for row in rows if row["draws"] <= DRAWS]
    return {
        "settings": {
            "records": 50_000, "temperature": "1/500", "delta": DELTA, "draws": DRAWS, "clip bound": MIXTURE.clip_bound,
            "longest scale": MIXTURE.longest, "batch size or rate": MIXTURE.batch, "seed of the data": 1,
            "KL": f"symmetric, {CELLS} x {CELLS} cells on [-3, 3]^2, each law mixed with {FLOOR:.0%} of the uniform law, first tenth of the draws left out",
        },
        "KL of references": {
            "TunaMH, 100 000 draws": long["tuna"]["KL"][0],
            "Metropolis on all records without clipping, 30 000 draws": long["metropolis"]["KL"][0],
            "uniform draws from the box": symmetric_kl(exact, np.full_like(exact, 1 / exact.size)),
            "staying at the start": symmetric_kl(exact, in_cells(np.zeros((1, 2)))),
        },
        "KL of independent draws": {str(n): independent(n) for n in (30, 100, 300, 1000, 3000, 10_000)},
        "rows": rows,
        "cells": {"exact": exact.round(5).tolist()}
        | {row["sampler"]: in_cells(kept[0]).round(5).tolist() for row, kept in done if kept},
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
def read_images(path):
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


def _exact(job):
    path, temperature = job
    return read_images(path).exact(temperature)


def image_results(images, done, exact):
    """Arrange the rows of the images for the JSON file."""
    problem = images.problem()
    return {
        "settings": {
            "records": len(images.y), "test records": len(images.y_test), "prior": "Normal(0, 1)", "temperature": problem.temperature,
            "delta": DELTA, "draws": DRAWS, "clip bound": problem.clip_bound, "longest scale at temperature 1/100": problem.longest,
            "batch size or rate": problem.batch, "prediction": "mean probability over the second half of the draws",
        },
        "exact": exact,
        "plain logistic regression, accuracy": 0.953,
        "most frequent class, accuracy": float(max(np.mean(images.y_test), 1 - np.mean(images.y_test))),
        "rows": [row for row, _ in done],
    }  # fmt: skip


# ---------------------------------------------------------------------------------------- running
def _job(job):
    logging.getLogger("pymc").setLevel(logging.ERROR)
    problem, name, epsilon, seeds, keep, *changes = job
    if isinstance(problem, tuple):  # images are read in each process
        path, temperature = problem
        problem = read_images(path).problem(temperature)
    started = time.perf_counter()
    row, kept = replicate(problem, name, epsilon, seeds, keep, **(changes[0] if changes else {}))
    shown = {k: np.round(v, 4) for k, v in row.items() if k in ("KL", "accuracy")}
    print(f"{time.perf_counter() - started:6.0f} s", problem.name, name, epsilon, changes, shown, flush=True)  # fmt: skip
    return row, kept


def run_all(jobs, processes):
    """Run all jobs; those on all records, which take longest, first."""
    slow = ("full", "penalty", "metropolis")
    order = sorted(range(len(jobs)), key=lambda i: jobs[i][1] not in slow)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        results = pool.map(_job, [jobs[i] for i in order], chunksize=1)
    back = dict(zip(order, results, strict=True))
    return [back[i] for i in range(len(jobs))]


def rounded(value):
    """Rounded to four digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def tune():
    """Print the numbers by which the constants were chosen, on simulated data, without privacy."""
    images, truth = simulated_images(5)
    for problem, data in [
        (replace(MIXTURE, make_model=_simulated_mixture, measure=_simulated_measure), "mixture"),
        (images.problem(), "images"),
    ]:
        where = {"mixture": "the posterior", "images": "the start and the truth"}[data]
        print(f"\n{data}: share of records clipped on moves from {where}")
        rng = np.random.default_rng(0)
        likelihood = dp.model.RecordLikelihood(problem.make_model())
        shares = []
        for i in range(200):
            move = rng.normal(size=problem.dim)
            if data == "mixture":
                cells = rng.choice(CELLS**2, p=mixture_exact(2).ravel())
                start = (np.array(divmod(cells, CELLS)) + 0.5) * (2 * BOX / CELLS) - BOX
            else:
                start = truth * (i % 2)
            move *= problem.longest
            change = likelihood.logp(start + move) - likelihood.logp(start)
            shares.append(np.abs(change) / np.linalg.norm(move))
        shares = np.array(shares)
        for bound in (0.5, 1.0, 1.5, 2.0, 2.5):
            print(f"  clip bound {bound}: {np.mean(shares > bound):.2%}")
        for name, sampler in SAMPLERS.items():
            if name in ("barker_batch", "metropolis"):
                continue  # its longest moves are shorter
            for factor in (0.5, 1.0, 1.5, 2.0):
                scale = factor * problem.longest
                found = [run(problem, sampler, None, scale, seed)[1] for seed in (1, 2, 3)]
                means = {
                    key: round(float(np.mean([each[key] for each in found])), 4)
                    for key in found[0] if key in ("KL", "accuracy", "log-loss", "accepted")
                }  # fmt: skip
                print(f"  {sampler.label}, scale {scale:.3g}: {means}", flush=True)


def _simulated_mixture():
    return mixture_model(2)


def _simulated_measure(draws):
    return {"KL": symmetric_kl(mixture_exact(2), in_cells(draws))}


# ---------------------------------------------------------------------------------------- figures
# Colours of Okabe and Ito, which nearly everyone can distinguish.
STYLES = {
    "fast": ("#0072B2", "o", "-"),
    "fast_penalty": ("#56B4E9", "s", "-"),
    "full": ("#222222", "D", "--"),
    "penalty": ("#D55E00", "^", "--"),
    "penalty_batch": ("#E69F00", "v", "-"),
    "barker_batch": ("#009E73", "P", "-"),
    "tuna": ("#777777", "*", ":"),
}


def style_figures():
    """Set matplotlib's parameters for the figures; returns pyplot."""
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "axes.grid": True, "axes.spines.right": False, "axes.spines.top": False, "axes.titlelocation": "left",
            "axes.titlesize": "medium", "figure.constrained_layout.use": True, "font.size": 10, "grid.alpha": 0.25,
            "lines.linewidth": 1.5, "lines.markersize": 5,
        }
    )  # fmt: skip
    return plt


def average(key, values):
    """Mean; of divergences, which differ by factors, the geometric mean."""
    return float(np.exp(np.mean(np.log(values))) if key == "KL" else np.mean(values))


def against_epsilon(axis, rows, key, samplers=PRIVATE, **style):
    """Draw a figure of each run against epsilon: averages, with the range over the replicates."""
    for i, name in enumerate(samplers):
        mine = sorted((r for r in rows if r["sampler"] == name), key=lambda r: r["epsilon"])
        if not mine:
            continue
        colour, marker, dash = STYLES[name]
        # Side by side, so that none is hidden.
        x = np.array([r["epsilon"] for r in mine]) * 1.03 ** (i - (len(samplers) - 1) / 2)
        values = [np.atleast_1d(r[key]) for r in mine]  # one epsilon may have more replicates
        mean = np.array([average(key, v) for v in values])
        least, most = (np.array([f(v) for v in values]) for f in (np.min, np.max))
        axis.errorbar(
            x, mean, [mean - least, most - mean], color=colour, marker=marker,
            linestyle=dash, elinewidth=1, label=SAMPLERS[name].label, **style,
        )  # fmt: skip
    ticks = sorted({r["epsilon"] for r in rows if r["epsilon"] is not None})
    axis.set(xscale="log", xlabel="composed epsilon")
    axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axis.minorticks_off()


def bars(axis, rows, key, samplers):
    """Draw one figure of each sampler as a bar, with its value."""
    values = [next(r[key] for r in rows if r["sampler"] == name) for name in samplers]
    places = range(len(samplers))[::-1]
    axis.barh(places, values, color=[STYLES[name][0] for name in samplers], height=0.6)
    axis.set_yticks(places, [SAMPLERS[name].label for name in samplers])
    axis.set_axisbelow(True)
    axis.grid(axis="y", visible=False)
    for place, value in zip(places, values, strict=True):
        text = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
        axis.annotate(text, (value, place), (4, 0), textcoords="offset points", va="center", fontsize="small")  # fmt: skip


def draw_mixture_figure(results, path):
    """KL against epsilon, data and time per iteration, and densities at epsilon = 0.25."""
    plt = style_figures()
    figure = plt.figure(figsize=(12, 7.2))
    top, bottom = figure.subfigures(2, 1, height_ratios=[1.25, 1])
    axes = top.subplots(1, 3, width_ratios=[1.5, 1, 1])
    rows = results["rows"]
    private = [r for r in rows if r["epsilon"] is not None]
    against_epsilon(axes[0], private, "KL")
    (tuna,) = (average("KL", r["KL"]) for r in rows if r["sampler"] == "tuna")
    one = results["KL of independent draws"]
    lines = [(tuna, "TunaMH, not private")] + [(one[n], f"{n} independent draws") for n in ("100", "1000")]  # fmt: skip
    for value, text in lines:
        axes[0].axhline(value, color="#777777", linestyle=":", linewidth=1)
        left = not text.startswith("100 ")  # where there is no curve
        axes[0].annotate(text, (0 if left else 1, value), (3 if left else -2, 3), ("axes fraction", "data"), "offset points", ha="left" if left else "right", fontsize="small", color="#777777")  # fmt: skip
    axes[0].set(yscale="log", ylim=(0.015, 5), ylabel="symmetric KL divergence from the exact law", title="Accuracy of 10 000 draws")  # fmt: skip
    axes[0].legend(frameon=False, fontsize="small")
    middle = [r for r in rows if r["epsilon"] in (0.25, None)]
    everyone = [*PRIVATE, "tuna"]
    bars(axes[1], middle, "records per iteration", everyone)
    axes[1].set(title="Records per iteration", xlabel="of 50 000", xscale="log", xlim=(300, 300_000))  # fmt: skip
    bars(axes[2], middle, "CPU ms per iteration", everyone)
    axes[2].set(title="CPU time per iteration", xlabel="milliseconds", xlim=(0, 2))
    axes[2].set_yticklabels([])

    shown = ["exact", "fast", "full", "penalty", "penalty_batch", "barker_batch"]
    grids = bottom.subplots(1, len(shown), sharey=True)
    cells = {name: np.array(results["cells"][name]) for name in shown}
    most = cells["exact"].max() * 1.3
    for axis, name in zip(grids, shown, strict=True):
        axis.imshow(cells[name].T, origin="lower", extent=(-3, 3, -3, 3), cmap="Blues", vmin=0, vmax=most)  # fmt: skip
        title = "exact" if name == "exact" else SAMPLERS[name].label
        axis.set(xlabel="theta 1", xlim=(-1.5, 2.4), ylim=(-3, 3))
        axis.set_title(title, fontsize="small")
        axis.grid(False)
    grids[0].set_ylabel("theta 2")
    bottom.suptitle("Draws of one chain at epsilon = 0.25", fontsize="medium")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_images_figure(results, path):
    """Accuracy and records against epsilon, effects of K and the batch rate, and temperature 1."""
    plt = style_figures()
    figure, axes = plt.subplots(2, 2, figsize=(11.5, 8))
    rows = results["rows"]
    special = [r for r in rows if "batch_rate" in r or "full_batch_at" in r]
    plain = [r for r in rows if r["temperature"] == 1.0]
    main = [r for r in rows if r not in special and r not in plain]
    private = [r for r in main if r["epsilon"] is not None]
    (tuna,) = (r for r in main if r["sampler"] == "tuna")
    exact = results["exact"]

    axis = axes[0, 0]
    against_epsilon(axis, private, "accuracy")
    axis.axhline(exact["0.01"]["accuracy"], color="#777777", linestyle=":", linewidth=1)
    axis.annotate("exact posterior", (0, exact["0.01"]["accuracy"]), (3, 3), ("axes fraction", "data"), "offset points", fontsize="small", color="#777777")  # fmt: skip
    axis.set(ylabel="test accuracy", title="Accuracy, temperature 1/100")
    axis.legend(frameon=False, fontsize="small", loc="lower right")

    axis = axes[0, 1]
    against_epsilon(axis, private, "records per iteration")
    axis.axhline(tuna["records per iteration"], color="#777777", linestyle=":", linewidth=1)
    axis.annotate("TunaMH, not private", (0, tuna["records per iteration"]), (3, 3), ("axes fraction", "data"), "offset points", fontsize="small", color="#777777")  # fmt: skip
    axis.set(yscale="log", ylim=(300, 20_000), ylabel="records per iteration, of 12 214", title="Records looked at, temperature 1/100")  # fmt: skip

    axis = axes[1, 0]
    usual, full = (
        next(r for r in private if r["sampler"] == name and r["epsilon"] == 1.0)
        for name in ("fast", "full")
    )
    for mine, key, (colour, marker, _), text in [
        ([*(r for r in special if "batch_rate" in r), usual], "batch_rate", STYLES["fast"], "batch rate varied, no K"),
        ([r for r in special if "full_batch_at" in r], "full_batch_at", STYLES["penalty"], "K varied, batch rate 500"),
        ([full], None, STYLES["full"], "full batch"),
    ]:  # fmt: skip
        mine = sorted(mine, key=lambda r: r["records per iteration"])
        x = [r["records per iteration"] * (0.96 if key == "full_batch_at" else 1.0) for r in mine]
        values = np.array([r["accuracy"] for r in mine])
        mean = values.mean(axis=1)
        axis.errorbar(x, mean, [mean - values.min(axis=1), values.max(axis=1) - mean], color=colour, marker=marker, elinewidth=1, label=text)  # fmt: skip
        places = {}  # runs in the same place share a label
        for r, place, y in zip(mine, x, mean, strict=True):
            if key is not None:
                value = r.get(key, results["settings"]["batch size or rate"])
                places.setdefault((place, y), []).append(f"{value:g}")
        for place, names in places.items():
            right = key == "batch_rate"
            axis.annotate(", ".join(sorted(names)), place, (5 if right else -5, -12 if right or place[0] > 1e4 else 6), textcoords="offset points", fontsize="small", color=colour, ha="left" if right else "right")  # fmt: skip
    axis.set(xscale="log", xlabel="records per iteration", ylabel="test accuracy", title="DPFastMH at epsilon = 1: batch rate and K")  # fmt: skip
    axis.set(ylim=(0.905, 0.945))
    axis.legend(frameon=False, fontsize="small", loc="lower right")

    axis = axes[1, 1]
    for source, t, face in [(private, "0.01", None), (plain, "1", "white")]:
        some = [r for r in source if r["sampler"] in ("fast", "penalty")]
        before = len(axis.containers)
        against_epsilon(axis, some, "log-loss", samplers=("fast", "penalty"), mfc=face)
        for container in axis.containers[before:]:
            container.set_label(f"{container.get_label()}, T = {t}")
        axis.axhline(exact[t]["log-loss"], color="#777777", linestyle=":" if t == "1" else "-.", linewidth=1)  # fmt: skip
        axis.annotate(f"exact posterior, T = {t}", (0, exact[t]["log-loss"]), (3, 3), ("axes fraction", "data"), "offset points", fontsize="small", color="#777777")  # fmt: skip
    axis.set(yscale="log", ylabel="test log-loss", title="Log-loss: what accuracy does not show")
    ticks = [0.1, 0.15, 0.2, 0.3, 0.5, 0.7]
    axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axis.yaxis.set_minor_locator(plt.NullLocator())
    axis.set_ylim(0.12, 0.75)
    axis.legend(frameon=False, fontsize="small", loc="upper right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mnist", help="file with X_train, y_train, X_test, y_test")
    parser.add_argument("--only", choices=["mixture", "images"], help="one part; the other is kept as it is")  # fmt: skip
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=HERE / "fast_mh_experiments.json")
    parser.add_argument("--figures", type=Path, default=HERE.parent / "docs" / "_static")
    parser.add_argument("--tune", action="store_true", help="only show how constants were chosen")
    parser.add_argument("--draw", action="store_true", help="only draw the figures of stored results")  # fmt: skip
    arguments = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    if arguments.tune:
        tune()
        return
    results = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}

    def store(part, found):
        packages = ("numpy", "scipy", "pymc", "pytensor", "pymc-dp")
        found["versions"] = {"python": platform.python_version()} | {p: version(p) for p in packages}  # fmt: skip
        results[part] = rounded(found)
        arguments.results.write_text(json.dumps(results, indent=1) + "\n")

    if not arguments.draw and arguments.only != "images":
        store("mixture", mixture_results(run_all(mixture_jobs(), arguments.processes)))
    if not arguments.draw and arguments.only != "mixture" and arguments.mnist:
        path = arguments.mnist
        images = read_images(path)
        with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
            exact = pool.map(_exact, [(path, 0.01), (path, 1.0)])
        exact = dict(zip(("0.01", "1"), exact, strict=True))
        jobs = [((path, job[0].temperature), *job[1:]) for job in image_jobs(images)]
        store("images", image_results(images, run_all(jobs, arguments.processes), exact))
    arguments.figures.mkdir(parents=True, exist_ok=True)
    if "mixture" in results:
        draw_mixture_figure(results["mixture"], arguments.figures / "fast_mh_mixture.png")
    if "images" in results:
        draw_images_figure(results["images"], arguments.figures / "fast_mh_mnist.png")


if __name__ == "__main__":
    main()
