"""The comparison of samplers in Räisä's thesis: eight models, one epsilon for a whole chain.

O. Räisä, *Differentially private Metropolis-Hastings algorithms* (Master's thesis, University of
Helsinki, 2021), chapters 5 and 6::

    python experiments/comparison_experiments.py            # all that is not stored yet; half an hour in total
    python experiments/comparison_experiments.py --print    # medians beside the published ones

Writes ``comparison_experiments.json`` beside this file after each cell, that is a model, a sampler
and an epsilon. ``comparing_samplers.ipynb`` shows it.

**Models**, data and exact draws are those of ``benchmark_models.py``; for some
models another seed is the first (`FIRST_SEED`), so that bananas are as wide as the thesis's. The
data are simulated, so decisions may be drawn from seeds and the results can be reproduced; that breaks the
guarantee. Leave out ``reproducible`` for real data.

**Settings** are those of the parameter files of the author's program
(https://github.com/oraisa/masters-thesis), which were tuned at epsilon 4: proposals, noise, clip
bounds, batch sizes. ``DPBarker`` on batches has no clip bound there. The variance of its estimate must
not exceed 1: ours is the largest bound that guarantees this, for moves that are cut off at a length
which one in twenty exceeds. ``penalty_two``, which the thesis does not have, is its DP penalty with our
default noise of 2 for every length of the move.

**Runs.** The measure is the thesis's: the MMD of the second half of a chain and 1000 exact draws, with a
Gaussian kernel whose width is the median distance. Chain ``i`` of all samplers begins at the same point.
A cell has 20 chains, fewer where they take long (`SECONDS`), but at least three. Chains are cut off at
a number of draws, and of gradients, that depends on the dimensions (`MOST`), although budgets pay for up
to a thousand times as many (``bought``). Where a budget pays for that many, larger ones are not run:
nothing else in a chain depends on epsilon. Not all models have all epsilons (`SOME`), to
save time; ``--epsilon`` and ``--seconds`` run more.

**Fractions of clipped records** are computed afterwards on some of the records, from proposals at states of the
second half. No private run could show them.

*Clipping*, after Figure 6.2: random walks and HMC without noise, on two of the models, with clip bounds
from harmful to harmless. Their moves are fitted to the exact posterior, so that they converge.

*Published* numbers cannot be computed: they were read off Figures 6.3 and 6.4 (quartiles and medians
of the boxes), or counted with the author's program (iterations), and are copied from the old file
when a new one is written. ``--published`` reads them from two files of comma-separated values.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import csv
import json
import logging
import math
import time

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from unittest import mock

import numpy as np
import pymc as pm

from benchmark_models import EXPERIMENTS, Experiment
from mmd import mmd

import pymc_dp as dp

from pymc_dp.steps import base

STORE = Path(__file__).with_suffix(".json")
#: Seeds for which the mean of x1, and so the width of the banana, is that of the thesis's data.
FIRST_SEED = {"easy-2d": 68, "hard-2d": 13, "easy-10d": 14}
EPSILONS = (1.0, 2.0, 4.0, 6.0)
#: Models without all epsilons, to save time; those of the circle are smaller.
SOME = {
    "tempered-2d": (1.0, 2.0, 4.0), "hard-2d": (1.0, 2.0, 4.0), "hard-gauss-2d": (1.0, 2.0, 4.0),
    "easy-10d": (1.0, 4.0), "tempered-10d": (1.0, 4.0), "gauss-30d": (1.0, 4.0), "circle": (0.5, 1.0),
}  # fmt: skip
SECONDS, FEWEST, RUNS = 4.0, 3, 20  # CPU time per cell, after which no further chain begins
#: Dimensions: draws, gradients.
MOST = {2: (5000, 20_000), 10: (3000, 3000), 30: (1000, 900)}
#: Records, states and paths from which fractions of clipped records are computed.
RECORDS, STATES, PATHS = 2000, 8, 4

SAMPLERS = {
    "penalty": "DPPenalty",
    "guided": "DPPenalty, guided walk",
    "penalty_two": "DPPenalty, noise 2",
    "hmc": "DPHMC",
    "batch": "DPPenalty, batches",
    "batch_guided": "DPPenalty, batches, guided walk",
    "barker_batch": "DPBarker, batches",
}
# tau, scale, clip bound
GUIDED = {
    "easy-2d": (0.1, 0.008, 1.8), "easy-10d": (0.1, 0.0015, 3.0), "tempered-2d": (0.2, 0.04, 3.5),
    "tempered-10d": (0.1, 0.04, 3.0), "gauss-30d": (0.2, 8.4e-4, 3.0), "hard-2d": (0.1, 0.0015, 8.5),
    "hard-gauss-2d": (0.1, 2e-4, 45.0), "circle": (4.0, 0.3, 0.002),
}  # fmt: skip
# tau of decisions, of gradients; steps, step size; clip bounds of log-ratios, of gradients
HMC = {
    "easy-2d": (0.1, 0.4, 10, 5e-4, 2.0, 1.0), "easy-10d": (0.05, 0.2, 10, 1.5e-4, 2.5, 3.0),
    "tempered-2d": (0.2, 0.6, 10, 0.01, 2.5, 2.0), "tempered-10d": (0.08, 0.2, 10, 0.015, 2.5, 3.5),
    "gauss-30d": (0.05, 0.1, 5, 2.5e-4, 2.5, 6.0), "hard-2d": (0.15, 0.25, 5, 4.5e-4, 5.0, 2.8),
    "hard-gauss-2d": (0.05, 0.2, 8, 7e-5, 30.0, 29.0), "circle": (0.6, 1.9, 40, 0.07, 0.001, 0.0015),
}  # fmt: skip
# tau, scale, clip bound, batch size
BATCH = {
    "easy-2d": (0.7, 0.001, 1.0, 1000), "easy-10d": (0.6, 1e-4, 3.0, 1000),
    "tempered-2d": (1.5, 0.025, 4.0, 1000), "tempered-10d": (0.7, 0.02, 2.0, 1200),
}  # fmt: skip
BATCH_GUIDED = {
    "easy-2d": (0.7, 0.001, 1.0, 1000), "easy-10d": (0.5, 3.2e-4, 2.0, 1000),
    "tempered-2d": (2.0, 0.04, 4.0, 1000), "tempered-10d": (0.8, 0.028, 2.0, 1200),
}  # fmt: skip
# scale, batch size
BARKER_BATCH = {
    "easy-2d": (8e-4, 1300), "easy-10d": (8e-4, 2600), "tempered-2d": (0.12, 1300), "tempered-10d": (0.04, 2600),
}  # fmt: skip


def settings(experiment, sampler):
    """Step class and options of the thesis; None where it did not run the sampler."""
    name, root = experiment.name, math.sqrt(experiment.n_records)
    if sampler in ("penalty", "penalty_two"):
        options = experiment.settings
        if sampler == "penalty_two":
            del options["noise_multiplier"]
        return dp.DPPenalty, options
    if sampler == "guided":
        tau, scale, clip = GUIDED[name]
        walk = dp.GuidedWalk(scale)
        return dp.DPPenalty, {"clip_bound": clip, "proposal": walk, "noise_multiplier": tau * root}
    if sampler == "hmc":
        tau, tau_g, steps, size, clip, clip_g = HMC[name]
        return dp.DPHMC, {
            "step_size": size, "n_leapfrog": steps, "clip_bound": clip, "gradient_clip_bound": clip_g,
            "gradient_noise_multiplier": tau_g * root, "noise_multiplier": tau * root,
        }  # fmt: skip
    if name not in BATCH:
        return None
    if sampler == "barker_batch":
        scale, size = BARKER_BATCH[name]
        longest = (math.sqrt(experiment.n_dim) + 1.1) * scale  # about 1 in 20 is drawn again
        reach = experiment.n_records * experiment.temperature * longest
        clip, walk = math.sqrt(size) / reach, dp.RandomWalk(scale, max_distance=longest)
        return dp.DPBarker, {"clip_bound": clip, "proposal": walk, "batch_size": size}
    tau, scale, clip, size = (BATCH if sampler == "batch" else BATCH_GUIDED)[name]
    walk = (dp.RandomWalk if sampler == "batch" else dp.GuidedWalk)(scale)
    # The thesis gives the variance of this noise in squares of the sensitivity.
    return dp.DPPenalty, {
        "clip_bound": clip, "proposal": walk, "noise_multiplier": math.sqrt(tau), "batch_size": size,
    }  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A benchmark model with its data, exact draws and the points where chains begin."""

    experiment: Experiment
    seed: int = 1

    @cached_property
    def data(self):
        """Records."""
        return self.experiment.data(self.seed)

    @cached_property
    def model(self):
        """PyMC model of all records."""
        return self.experiment.model(self.data)

    @cached_property
    def likelihood(self):
        """Compiled once for all steps: it has no state, and compiling takes longer than most chains."""
        return dp.model.RecordLikelihood(self.model)

    @cached_property
    def exact(self):
        """Exact draws with which chains are compared."""
        return self.experiment.exact(self.data, 1000, np.random.default_rng(1))

    @cached_property
    def mean(self):
        """Posterior mean, from so many exact draws that their error is below 0.01 standard deviations."""
        return self.experiment.exact(self.data, 50_000, np.random.default_rng(2)).mean(axis=0)

    @cached_property
    def starts(self):
        """One point per run, the same for all samplers."""
        return self.experiment.starts(self.data, RUNS, np.random.default_rng(3))

    def step(self, step_class, options, budget):
        """Build a step on the compiled likelihood."""
        with mock.patch.object(base, "RecordLikelihood", lambda *_, **__: self.likelihood):
            return step_class(
                model=self.model, budget=budget, temperature=self.experiment.temperature,
                reproducible=True, **options,
            )  # fmt: skip

    def sample(self, step, budget, draws, run):
        """Run one chain as a user would; returns draws, shape (n, d), and PyMC's result."""
        idata = pm.sample(
            draws=draws, tune=0, chains=1, cores=1, step=step, callback=budget, model=self.model,
            random_seed=1000 + run, initvals=self.likelihood.unravel(self.starts[run]),
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
        names = [v.name for v in self.model.free_RVs]
        found = [idata.posterior[v].to_numpy()[0].reshape(idata.posterior.sizes["draw"], -1) for v in names]  # fmt: skip
        return np.hstack(found), idata


def epsilons_of(name):
    return SOME.get(name, EPSILONS)


def case_of(name):
    return Case(EXPERIMENTS[name], FIRST_SEED.get(name, 1))


# ---------------------------------------------------------------------------------------- measures
def compared(case, draws):
    """MMD of the second half, and the error of its mean: as distance, and in posterior sds."""
    kept = draws[len(draws) // 2 :]
    off = kept.mean(axis=0) - case.mean
    shift = math.sqrt(np.mean((off / case.experiment.sds(case.data)) ** 2))
    error = float(np.linalg.norm(off))
    return {"mmd": mmd(kept, case.exact), "error": error, "shift": shift}


def some_records(case, rng):
    size = min(RECORDS, case.experiment.n_records)
    return rng.choice(case.experiment.n_records, size=size, replace=False)


def clipped_ratios(case, moves, clip_bound, rng):
    """Fraction of records whose log-ratio is clipped, over moves ``(old, new, distance)``."""
    index = some_records(case, rng)
    shares = []
    for old, new, distance in moves:
        here, there = case.likelihood.logp_at(np.array((old, new)), index)
        shares.append(np.mean(np.abs(there - here) > clip_bound * distance))
    return float(np.mean(shares))


def clipped_gradients(case, points, bound, rng):
    """Fraction of records whose gradient is clipped, by differences of their log-likelihoods."""
    index, d = some_records(case, rng), case.experiment.n_dim
    h = 1e-3 * case.experiment.sds(case.data).min()  # log-likelihoods are quadratic, or nearly so
    shares = []
    for theta in points:
        ends = case.likelihood.logp_at(np.vstack([theta + h * np.eye(d), theta - h * np.eye(d)]), index)  # fmt: skip
        norm = np.linalg.norm((ends[:d] - ends[d:]) / (2 * h), axis=0)
        shares.append(np.mean(norm > bound))
    return float(np.mean(shares))


def clipped(case, step_class, options, states, rng):
    """Fractions of clipped log-ratios, and of clipped gradients, on moves from some states of a chain."""
    states = states[np.linspace(0, len(states) - 1, STATES).astype(int)]
    if step_class is not dp.DPHMC:
        walk = options["proposal"].start(case.experiment.n_dim)
        moves = [(theta, *walk.propose(theta, rng)) for theta in states]
        return {"clipped": clipped_ratios(case, moves, options["clip_bound"], rng)}
    # The same paths with the same noise, from a step that may show them.
    step = case.step(step_class, options | {"record_trajectories": True}, None)
    step.set_rng(rng)
    for theta in states[::-1][:PATHS]:
        step.transition(theta)
    paths = [trajectory.phases for trajectory in step.trajectories]
    moves = [
        (path[0].theta, path[-1].theta, step.coordinates.distance(path[0].theta, path[-1].theta))
        for path in paths
    ]
    points = [phase.theta for path in paths for phase in path[:: max(1, len(path) // 5)]]
    return {
        "clipped": clipped_ratios(case, moves, options["clip_bound"], rng),
        "clipped gradients": clipped_gradients(case, points, options["gradient_clip_bound"], rng),
    }


# ---------------------------------------------------------------------------------------- runs
def most_draws(experiment, sampler):
    """Draws after which a chain is cut off, even if the budget pays for more."""
    draws, gradients = MOST[experiment.n_dim]
    return min(draws, gradients // HMC[experiment.name][2]) if sampler == "hmc" else draws


def run(case, sampler, epsilon, number, most=None):
    """Run one private chain: its results, and its draws."""
    step_class, options = settings(case.experiment, sampler)
    budget = dp.PrivacyBudget(epsilon=epsilon, delta=case.experiment.delta, chains=1)
    step = case.step(step_class, options, budget)
    bought = budget.expected_draws()
    most = most or most_draws(case.experiment, sampler)
    # A filter stops chains a little before or after what is expected.
    draws, idata = case.sample(step, budget, int(min(most, 1.3 * bought + 50)), number)
    if len(draws) < 4:
        raise dp.PrivacyBudgetExhausted(f"{len(draws)} draws are too few to be compared.")
    stats = idata.sample_stats
    found = {"bought": bought, "draws": len(draws), "accepted": float(np.mean(stats["accepted"]))}
    found |= compared(case, draws)
    rng = np.random.default_rng(number)
    found |= clipped(case, step_class, options, draws[len(draws) // 2 :], rng)
    return found, draws


def unfinished(row, seconds=SECONDS, runs=RUNS):
    """Whether a cell needs more runs."""
    number = row["runs"] + row["failed"]
    return number < FEWEST or (number < runs and row["CPU seconds"] < seconds)


def cell(case, sampler, epsilon, row=None, most=None, seconds=SECONDS, runs=RUNS):
    """Repeat a run, from the end of the row: a list of results for each key."""
    row = {"runs": 0, "failed": 0, "CPU seconds": 0.0} | (row or {})
    while unfinished(row, seconds, runs):
        began = time.process_time()
        try:
            found, _ = run(case, sampler, epsilon, row["runs"] + row["failed"], most)
        except dp.PrivacyBudgetExhausted:  # a result, too
            row["failed"] += 1
        else:
            row["bought"] = found.pop("bought")
            row |= {key: [*row.get(key, ()), value] for key, value in found.items()}
            row["runs"] += 1
        row["CPU seconds"] += time.process_time() - began
    return row


def independent(case, repeats=10):
    """MMD of other exact draws, as many as the reference has."""
    rng = np.random.default_rng(4)
    samples = (case.experiment.exact(case.data, 1000, rng) for _ in range(repeats))
    return [mmd(sample, case.exact) for sample in samples]


# ---------------------------------------------------------------------------------------- clipping
BOUNDS = (0.1, 0.2, 0.4, 0.8, 2.5)
# Runs; draws of the random walk, of HMC; HMC's step size and steps. Steps are shorter than half of the least
# posterior standard deviation, paths about as long as the largest.
CLIPPING = {"easy-2d": (3, 3000, 500, 2e-3, 8), "easy-10d": (1, 2000, 200, 1e-3, 7)}


def clipping_run(case, kind, bound, number):
    """Run one chain without privacy, with clipped log-ratios: MMD and the fraction that was clipped."""
    rng = np.random.default_rng(number)
    _, walk_draws, path_draws, size, steps = CLIPPING[case.experiment.name]
    if kind == "random walk":
        d = case.experiment.n_dim
        walk = dp.RandomWalk(2.38**2 / d * np.cov(case.exact.T))
        options = {"clip_bound": bound, "proposal": walk, "noise_scale": 0.0}
        step, draws = case.step(dp.DPPenalty, options, None), walk_draws
    else:
        options = {
            "clip_bound": bound, "step_size": size, "n_leapfrog": steps, "gradient_noise_multiplier": 0.0,
            "gradient_clip_bound": math.inf, "rule": dp.steps.Metropolis(), "record_trajectories": True,
        }  # fmt: skip
        step, draws = case.step(dp.DPHMC, options, None), path_draws
    draws, _ = case.sample(step, None, draws, number)
    if kind == "random walk":
        share = clipped(case, dp.DPPenalty, options, draws[len(draws) // 2 :], rng)["clipped"]
    else:
        paths = [t.phases for t in step.trajectories[len(draws) // 2 :: 25]]
        ends = [(path[0].theta, path[-1].theta) for path in paths]
        moves = [(old, new, step.coordinates.distance(old, new)) for old, new in ends]
        share = clipped_ratios(case, moves, bound, rng)
    return {"clipped": share} | compared(case, draws)


# ---------------------------------------------------------------------------------------- storing
#: Names in the files that `published` reads.
ALGORITHMS = {
    "penalty": "dpps", "guided": "dppa", "hmc": "hmc", "batch": "mdpps", "batch_guided": "mdppa", "barker_batch": "barker",
}  # fmt: skip


def published(quartiles, iterations):
    """Quartiles, and iterations by each way of accounting, from two files."""
    back = {code: sampler for sampler, code in ALGORITHMS.items()}
    found = {
        "source": "O. Räisä, Differentially private Metropolis-Hastings algorithms, Master's thesis, University of Helsinki, 2021. "
        "MMD: lower quartile, median and upper quartile of the boxes, read off Figures 6.3 and 6.4. Iterations: counted with "
        "the author's program, https://github.com/oraisa/masters-thesis, by each of its ways of accounting.",
        "mmd": {}, "iterations": {},
    }  # fmt: skip

    def key(row):
        sampler, epsilon = back[row["algorithm"]], float(row["epsilon"])
        return f"{row['experiment']}, {sampler}, epsilon {epsilon:g}"

    with open(quartiles) as file:
        for row in csv.DictReader(file):
            found["mmd"][key(row)] = [float(row[q]) for q in ("q25", "median", "q75")]
    with open(iterations) as file:
        for row in csv.DictReader(file):
            found["iterations"].setdefault(key(row), {})[row["accounting"]] = int(row["iterations"])
    return found


def write(results, path=STORE):
    """A line for each cell, with four digits."""

    def short(value):
        text = json.dumps(value, ensure_ascii=False)
        return json.dumps(
            json.loads(text, parse_float=lambda x: float(f"{float(x):.4g}")), ensure_ascii=False
        )

    def place(key):
        model, sampler, epsilon = key.split(", ")
        return [*EXPERIMENTS].index(model), [*SAMPLERS].index(sampler), float(epsilon.split()[1])

    parts = []
    for name, part in results.items():
        lines = []
        if name == "runs":
            part = {key: part[key] for key in sorted(part, key=place)}
        if name == "independent":
            part = {key: part[key] for key in EXPERIMENTS if key in part}
        for key, value in part.items():
            if name == "published" and isinstance(value, dict):
                inner = [f"   {json.dumps(k)}: {short(v)}" for k, v in value.items()]
                lines.append(f"  {json.dumps(key)}: {{\n" + ",\n".join(inner) + "\n  }")
            else:
                lines.append(f"  {json.dumps(key)}: {short(value)}")
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def run_all(results, names, epsilons=None, samplers=SAMPLERS, path=STORE, seconds=SECONDS):
    """Run all that is not in the results yet."""
    for name in names:
        case = case_of(name)
        if name not in results["independent"]:
            results["independent"][name] = independent(case)
        for sampler in samplers:
            if settings(case.experiment, sampler) is None:
                continue
            for epsilon in epsilons or epsilons_of(name):
                key = f"{name}, {sampler}, epsilon {epsilon:g}"
                row = results["runs"].get(key)
                if stored_row(results, name, sampler, epsilon) if row is None else not unfinished(row, seconds):  # fmt: skip
                    continue
                if sampler == "hmc":  # gradients are compiled here, and not in the first run
                    case.step(*settings(case.experiment, sampler), None)
                row = results["runs"][key] = cell(case, sampler, epsilon, row, seconds=seconds)
                write(results, path)
                shown = np.median(row["mmd"]).round(3) if row["runs"] else "none"
                print(f"{row['CPU seconds']:5.1f} s", key, row["runs"], "runs, MMD", shown, flush=True)  # fmt: skip


def clip_all(results, path=STORE):
    """Run all of the clipping experiment that is not in the results yet."""
    for name in CLIPPING:
        case = case_of(name)
        for kind in ("random walk", "HMC"):
            for bound in BOUNDS:
                key = f"{name}, {kind}, bound {bound:g}"
                if key not in results["clipping"]:
                    began = time.process_time()
                    runs = [clipping_run(case, kind, bound, i) for i in range(CLIPPING[name][0])]
                    results["clipping"][key] = {k: [r[k] for r in runs] for k in runs[0]}
                    write(results, path)
                    print(f"{time.process_time() - began:5.1f} s", key, flush=True)


def stored_row(results, name, sampler, epsilon):
    """Return the cell, or that of a smaller epsilon which already paid for the longest chain."""
    most = most_draws(EXPERIMENTS[name], sampler)
    for e in (e for e in epsilons_of(name) if e <= epsilon):
        row = results["runs"].get(f"{name}, {sampler}, epsilon {e:g}")
        if row and (e == epsilon or row.get("bought", 0) >= most):
            return row
    return None


def print_tables(results):
    quoted = results.get("published", {}).get("mmd", {})
    print("| model | sampler | runs | ours at 1 | published | ours at 4 | published |")
    print("| --- " * 7 + "|")
    for name, experiment in EXPERIMENTS.items():
        for sampler, label in SAMPLERS.items():
            cells, number = [], []
            for epsilon in (1.0, 4.0):
                row = stored_row(results, name, sampler, epsilon)
                cells.append(f"{np.median(row['mmd']):.3f}" if row and row["runs"] else "none")
                number.append(str(row["runs"] if row else 0))
                old = quoted.get(f"{name}, {sampler}, epsilon {epsilon:g}")
                cells.append(f"{old[1]:.3f}" if old else "")
            if settings(experiment, sampler):
                line = [experiment.title, label, ", ".join(number), *cells]
                print("| " + " | ".join(line) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--print", action="store_true", help="only print medians of what is stored")
    parser.add_argument("--only", nargs="*", default=list(EXPERIMENTS), help="names of models")
    parser.add_argument("--samplers", nargs="*", default=list(SAMPLERS), choices=list(SAMPLERS))
    parser.add_argument("--part", choices=["runs", "clipping"], help="only one of the two")
    parser.add_argument("--epsilon", type=float, nargs="*", help="only these")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="CPU time per cell; more than stored for more runs")  # fmt: skip
    parser.add_argument("--published", nargs=2, metavar=("MMD", "ITERATIONS"), help="two files")
    parser.add_argument("--results", type=Path, default=STORE)
    arguments = parser.parse_args()
    logging.getLogger("pymc").setLevel("ERROR")
    path = arguments.results
    results = json.loads(path.read_text()) if path.exists() else {}
    results["settings"] = {
        "epsilons": {n: epsilons_of(n) for n in EXPERIMENTS}, "delta": "0.1 / n", "most runs": RUNS, "fewest runs": FEWEST,
        "CPU seconds per cell": SECONDS, "dimensions: most draws, most gradients": MOST, "seeds of the data": {n: FIRST_SEED.get(n, 1) for n in EXPERIMENTS},
    }  # fmt: skip
    for part in ("independent", "runs", "clipping", "published"):
        results.setdefault(part, {})
    if arguments.published:
        results["published"] = published(*arguments.published)
    if not arguments.print:
        write(results, path)
        if arguments.part != "clipping":
            run_all(results, arguments.only, arguments.epsilon, arguments.samplers, path, arguments.seconds)  # fmt: skip
        if arguments.part != "runs":
            clip_all(results, path)
    print_tables(results)


if __name__ == "__main__":
    main()
