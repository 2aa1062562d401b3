"""The comparison of samplers in Räisä's thesis: eight models, one epsilon for a whole chain.

O. Räisä, *Differentially private Metropolis-Hastings algorithms* (Master's thesis, University of Helsinki, 2021),
chapters 5 and 6. ``comparing_samplers.ipynb`` shows the results; README.md explains all choices.
"""

import math
import time

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from unittest import mock

import numpy as np

from benchmark_models import EXPERIMENTS, Experiment, one_chain
from mmd import mmd
from runner import Experiment as Runner
from runner import Options, Stored, table

import pymc_dp as dp

from pymc_dp.steps import base

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
        """Run one chain as a user would; returns draws, shape (n, d), and whether they were accepted."""
        start = self.likelihood.unravel(self.starts[run])
        idata = one_chain(self.model, step, budget, draws, 1000 + run, start)
        parts = [idata.posterior[v.name].to_numpy()[0] for v in self.model.free_RVs]
        found = np.hstack([part.reshape(len(part), -1) for part in parts])
        return found, np.asarray(idata.sample_stats["accepted"])


def epsilons_of(name):
    return SOME.get(name, EPSILONS)


@lru_cache(1)
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
    # Log-likelihoods are quadratic, or nearly so.
    h = 1e-3 * case.experiment.sds(case.data).min() * np.eye(d)
    shares = []
    for theta in points:
        ends = case.likelihood.logp_at(np.vstack([theta + h, theta - h]), index)
        norm = np.linalg.norm((ends[:d] - ends[d:]) / (2 * h[0, 0]), axis=0)
        shares.append(np.mean(norm > bound))
    return float(np.mean(shares))


def walk_moves(case, proposal, states, rng):
    """Proposals of a random walk from some states of a chain."""
    states = states[np.linspace(0, len(states) - 1, STATES).astype(int)]
    walk = proposal.start(case.experiment.n_dim)
    return [(theta, *walk.propose(theta, rng)) for theta in states]


def path_moves(step, paths):
    """Ends of paths of HMC, and their distance."""
    ends = [(path[0].theta, path[-1].theta) for path in paths]
    return [(old, new, step.coordinates.distance(old, new)) for old, new in ends]


def clipped(case, step_class, options, states, rng):
    """Fractions of clipped log-ratios, and of clipped gradients, on moves from some states of a chain."""
    if step_class is not dp.DPHMC:
        moves = walk_moves(case, options["proposal"], states, rng)
        return {"clipped": clipped_ratios(case, moves, options["clip_bound"], rng)}
    # The same paths with the same noise, from a step that may show them.
    step = case.step(step_class, options | {"record_trajectories": True}, None)
    step.set_rng(rng)
    for theta in states[np.linspace(0, len(states) - 1, STATES).astype(int)][::-1][:PATHS]:
        step.transition(theta)
    paths = [trajectory.phases for trajectory in step.trajectories]
    points = [phase.theta for path in paths for phase in path[:: max(1, len(path) // 5)]]
    bounds = options["clip_bound"], options["gradient_clip_bound"]
    return {
        "clipped": clipped_ratios(case, path_moves(step, paths), bounds[0], rng),
        "clipped gradients": clipped_gradients(case, points, bounds[1], rng),
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
    draws, accepted = case.sample(step, budget, int(min(most, 1.3 * bought + 50)), number)
    if len(draws) < 4:
        raise dp.PrivacyBudgetExhausted(f"{len(draws)} draws are too few to be compared.")
    found = {"bought": bought, "draws": len(draws), "accepted": float(np.mean(accepted))}
    found |= compared(case, draws)
    rng = np.random.default_rng(number)
    found |= clipped(case, step_class, options, draws[len(draws) // 2 :], rng)
    return found, draws


def cell(case, sampler, epsilon, most=None, seconds=SECONDS):
    """Repeat a run: a list of results for each key."""
    row = {"runs": 0, "failed": 0, "CPU seconds": 0.0}
    while (n := row["runs"] + row["failed"]) < FEWEST or (
        n < RUNS and row["CPU seconds"] < seconds
    ):
        began = time.process_time()
        try:
            found, _ = run(case, sampler, epsilon, n, most)
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
        walk = dp.RandomWalk(2.38**2 / case.experiment.n_dim * np.cov(case.exact.T))
        options = {"clip_bound": bound, "proposal": walk, "noise_scale": 0.0}
        step = case.step(dp.DPPenalty, options, None)
        draws, _ = case.sample(step, None, walk_draws, number)
        moves = walk_moves(case, walk, draws[len(draws) // 2 :], rng)
    else:
        options = {
            "clip_bound": bound, "step_size": size, "n_leapfrog": steps, "gradient_noise_multiplier": 0.0,
            "gradient_clip_bound": math.inf, "rule": dp.steps.Metropolis(), "record_trajectories": True,
        }  # fmt: skip
        step = case.step(dp.DPHMC, options, None)
        draws, _ = case.sample(step, None, path_draws, number)
        moves = path_moves(step, [t.phases for t in step.trajectories[len(draws) // 2 :: 25]])
    return {"clipped": clipped_ratios(case, moves, bound, rng)} | compared(case, draws)


# ---------------------------------------------------------------------------------------- storing
#: Names of the samplers in the author's program.
ALGORITHMS = {
    "penalty": "dpps", "guided": "dppa", "hmc": "hmc", "batch": "mdpps", "batch_guided": "mdppa", "barker_batch": "barker",
}  # fmt: skip


def stored_row(results, name, sampler, epsilon):
    """Return the cell, or that of a smaller epsilon which already paid for the longest chain."""
    most = most_draws(EXPERIMENTS[name], sampler)
    for e in (e for e in epsilons_of(name) if e <= epsilon):
        row = results["runs"].get(f"{name}, {sampler}, epsilon {e:g}")
        if row and (e == epsilon or row.get("bought", 0) >= most):
            return row
    return None


def tables(results: Stored) -> list[str]:
    """Medians beside the published ones."""
    rows, quoted = [], results["published"]["mmd"]
    for name, experiment in EXPERIMENTS.items():
        for sampler, label in SAMPLERS.items():
            if settings(experiment, sampler) is None:
                continue
            cells, number = [], []
            for epsilon in (1.0, 4.0):
                row = stored_row(results, name, sampler, epsilon)
                old = quoted.get(f"{name}, {sampler}, epsilon {epsilon:g}")
                cells.append(f"{np.median(row['mmd']):.3f}" if row and row["runs"] else "none")
                cells.append(f"{old[1]:.3f}" if old else "")
                number.append(str(row["runs"] if row else 0))
            rows.append([experiment.title, label, ", ".join(number), *cells])
    both = ["ours at 1", "published", "ours at 4", "published"]
    return table(["model", "sampler", "runs", *both], rows)


def one(name: str, seed: int, options: Options) -> Stored | None:
    """A cell, or a part of the clipping experiment, or the reference of a model."""
    part, _, key = name.partition(" / ")
    model, *which = key.split(", ")
    case = case_of(model)
    if options.small:
        case = Case(replace(EXPERIMENTS[model], n_records=2000), FIRST_SEED.get(model, 1))
    if part == "independent":
        return independent(case)
    if part == "clipping":
        bound, runs = float(which[1].split()[1]), 1 if options.small else CLIPPING[model][0]
        found = [clipping_run(case, which[0], bound, i) for i in range(runs)]
        return {k: [r[k] for r in found] for k in found[0]}
    sampler, epsilon = which[0], float(which[1].split()[1])
    if not options.small and stored_row(EXPERIMENT.stored(), model, sampler, epsilon):
        return None
    if sampler == "hmc":  # gradients are compiled here, and not in the first run
        case.step(*settings(case.experiment, sampler), None)
    return cell(case, sampler, epsilon, *((12, 0.0) if options.small else ()))


def names() -> list[str]:
    """Of all settings."""
    found = [f"independent / {name}" for name in EXPERIMENTS]
    for name, experiment in EXPERIMENTS.items():
        samplers = [s for s in SAMPLERS if settings(experiment, s)]
        found += [f"runs / {name}, {s}, epsilon {e:g}" for s in samplers for e in epsilons_of(name)]
    kinds = ("random walk", "HMC")
    return found + [
        f"clipping / {n}, {k}, bound {b:g}" for n in CLIPPING for k in kinds for b in BOUNDS
    ]


EXPERIMENT = Runner(
    __file__, one, dict.fromkeys(names(), 0), tables,
    small=("independent / easy-2d", "runs / easy-2d, penalty, epsilon 6", "clipping / easy-2d, HMC, bound 0.1"),
)  # fmt: skip

if __name__ == "__main__":
    EXPERIMENT.main()
