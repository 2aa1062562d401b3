"""The experiments of Lode's thesis on private stochastic gradient HMC, with our sampler.

T. Lode, *Sub-sampled and differentially private Hamiltonian Monte Carlo*, shows the phase space of
trajectories on batches, samples a normal mean (Table 6.1), classifies radon measurements (Table
6.2) and accounts for a run (Table 6.3)::

    python experiments/sghmc_experiments.py --radon radon.csv.gz
    python experiments/sghmc_experiments.py --quick        # all of it in small, nothing stored
    python experiments/sghmc_experiments.py --print        # the tables of docs/sghmc.md

Writes ``sghmc_experiments.json`` beside this file and figures into ``docs/_static``; takes about 15
minutes. The data are public or simulated and all randomness comes from seeds, so that results can be
reproduced. This breaks the guarantee. Leave out ``reproducible`` for real data.

*Radon*: the columns ``log_radon, log_uppm, floor_measure`` of posteriordb's ``radon_all``, 12 573
rows. The five classes are the values 0, 1, 2, 3, 9 of ``floor_measure``. Covariates are centred and
scaled by constants that are assumed to be public, to a standard deviation of about 1/2.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import gzip
import json
import logging
import math
import platform
import sys
import time

from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.linalg import solve_discrete_lyapunov
from scipy.optimize import minimize
from scipy.special import log_softmax

import pymc_dp as dp

from pymc_dp.privacy import SampledGaussian, epsilon_of

HERE = Path(__file__).resolve().parent
DELTA = 1e-5


def run(model, draws, seed, *, start=None, epsilon=math.inf, budget=None, **options):
    """Sample one chain; returns draws of the one parameter as (draws, ...), and the step."""
    step = dp.DPSGHMC(budget=budget, model=model, reproducible=True, **options)
    idata = pm.sample(
        draws=draws, tune=0, chains=1, cores=1, step=step, model=model, random_seed=seed, callback=budget,
        initvals=start, progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
    (name,) = (v.name for v in model.free_RVs)
    return np.asarray(idata.posterior[name], dtype=float)[0], step


# ------------------------------------------------------------------ a normal mean (section 6.1, 6.2)
N, SD, BATCH = 500, 2.0, 50


@lru_cache
def normal_data(seed=2):
    """500 values of N(1, 4)."""
    return np.random.default_rng(seed).normal(1.0, SD, N)


@lru_cache
def normal_model(seed=2):
    """Model of these values; their mean has the prior N(0, 1)."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, SD, observed=normal_data(seed))
    return model


def normal_posterior(seed=2):
    """Return mean and precision of the posterior."""
    precision = 1 + N / SD**2
    return float(normal_data(seed).sum() / SD**2 / precision), precision


def batch_variance(size=BATCH, seed=2):
    """Variance of the gradient from a batch of fixed size, at any mean."""
    if size == N:
        return 0.0
    return (
        (N / size) ** 2 * size * (1 - size / N) * float(np.var(normal_data(seed), ddof=1)) / SD**4
    )


def law(precision, step_size, friction, noise_estimate, variance, n_steps, *, refresh=True):
    """Covariance of momentum and position that the linear recursion of the sampler leaves invariant.

    `variance` is that of the batches' gradients. With `refresh` momentum is that at the end of a draw.
    """
    once = np.array([[1 - step_size * friction, -step_size * precision], [0, 1]])
    once[1] += step_size * once[0]
    kick = np.array([1, step_size])
    added = (2 * (friction - noise_estimate) * step_size + step_size**2 * variance) * np.outer(
        kick, kick
    )
    move, noise = np.eye(2), np.zeros((2, 2))
    for _ in range(n_steps):
        move, noise = once @ move, once @ noise @ once.T + added
    if refresh:
        noise = noise + np.outer(move[:, 0], move[:, 0])
        move = move @ np.diag([0.0, 1.0])
    if max(abs(np.linalg.eigvals(move))) >= 1:
        return None
    return solve_discrete_lyapunov(move, noise)


TABLE_6_1 = {
    "posterior": (1.0011, None),
    "HMC": (0.9932, 0.0789),
    "naive, q = 0.01": (71707, 5079),
    "friction, q = 0.01": (0.4203, 32.7348),
    "naive, q = 0.1, beta = 0.002": (1.0537, 0.0307),
    "friction, q = 0.1": (1.0596, 2.1496),
}


def normal_mean(quick):
    """Table 6.1: its settings, where they are given, and ours."""
    centre, precision = normal_posterior()
    draws = 60 if quick else 500
    rows = [{"what": "posterior", "mean": centre, "sd": precision**-0.5}]

    def add(what, friction, bound, **options):
        chain, _ = run(
            normal_model(), draws, 1, friction=friction, gradient_clip_bound=bound, start={"mu": 0.0}, **options
        )  # fmt: skip
        late = chain[draws // 2 :]
        lost = bool(np.abs(late).max() > 1e100)
        mean, sd = (None, None) if lost else (float(late.mean()), float(late.std(ddof=1)))
        rows.append({"what": what, "mean": mean, "sd": sd})

    for name, q in (("q = 0.01", 5), ("q = 0.1", 50)):
        same = {"batch_size": q, "n_steps": N // q}
        add(f"naive, {name}", 0.0, math.inf, step_size=1.0, **same)
        add(f"friction, {name}", 0.005, 0.7, step_size=1.0, **same)
        add(f"friction, {name}, T = q", 0.005, 0.7, step_size=1.0, temperature=q / N, **same)
    add("naive, q = 0.1, beta = 0.002", 0.0, math.inf, step_size=0.002, batch_size=50, n_steps=10)
    add(
        "ours, q = 0.1",
        30.0,
        2.0,
        step_size=_constant(0.02),
        batch_size=50,
        n_steps=10,
        noise_estimate=11.0,
    )
    add("ours, q = 1", 30.0, 2.0, step_size=_constant(0.02), batch_size=N, n_steps=10)
    return {"settings": {"draws": draws, "used": "second half", "start": 0.0}, "rows": rows}


class _constant:
    """Step size that is the same for all draws."""

    def __init__(self, step_size):
        self.step_size = step_size

    def __call__(self, draw):
        return self.step_size


# -------------------------------------------------------------------------------- bias of the steps
KINDS_OF_BIAS = {  # records in a batch, whether noise_estimate includes their noise, whether each draw has a new momentum
    "all records": (N, False, True),
    "all, momentum kept": (N, False, False),
    "batches": (BATCH, False, True),
    "batches, B right": (BATCH, True, True),
}


def bias(quick):
    """Standard deviation of the draws over that of the posterior, calculated and measured."""
    centre, precision = normal_posterior()
    friction, rows = 25.0, []
    for step_size, draws in {0.06: 1500, 0.04: 1500, 0.02: 1500, 0.01: 3000, 0.005: 4500}.items():
        draws = 90 if quick else draws
        row = {"step size": step_size, "in frequencies": step_size * math.sqrt(precision), "draws": draws, "kinds": {}}  # fmt: skip
        for kind, (batch, right, refresh) in KINDS_OF_BIAS.items():
            variance = batch_variance(batch)
            estimate = step_size * variance / 2 if right else 0.0
            if estimate > friction:
                continue
            exact = law(precision, step_size, friction, estimate, variance, 10, refresh=refresh)
            chain, _ = run(
                normal_model(), draws, 1, start={"mu": centre}, step_size=_constant(step_size), friction=friction,
                noise_estimate=estimate, gradient_clip_bound=50.0, batch_size=batch, n_steps=10, refresh_momentum=refresh,
            )  # fmt: skip
            squares = ((chain - centre) ** 2).reshape(30, -1).mean(axis=1) * precision
            sd = math.sqrt(squares.mean())
            row["kinds"][kind] = {
                "calculated": math.sqrt(exact[1, 1] * precision),
                "measured": sd,
                "error": float(squares.std(ddof=1)) / math.sqrt(30) / (2 * sd),
            }
        rows.append(row)
    clipping = clipping_bias(90 if quick else 1500)
    return {"friction": friction, "n_steps": 10, "rows": rows, "clipping": clipping}


def clipping_bias(draws):
    """The same model and a skewed one: waiting times, whose tail is clipped."""
    rows = []
    skewed = np.random.default_rng(3).exponential(2.0, N) - 1.0
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, SD, observed=skewed)
    precision = 1 + N / SD**2
    for name, made, data in (("normal", normal_model(), normal_data()), ("skewed", model, skewed)):
        for bound in (2.0, 1.0, 0.7, 0.35):
            centre = data.sum() / SD**2 / precision
            chain, _ = run(
                made, draws, 1, start={"mu": centre}, step_size=_constant(0.02), friction=25.0,
                gradient_clip_bound=bound, batch_size=N, n_steps=10,
            )  # fmt: skip
            rows.append({
                "data": name, "bound": bound, "clipped": float(np.mean(np.abs(data - centre) / SD**2 > bound)),
                "mean": float((chain.mean() - centre) * math.sqrt(precision)), "sd": float(chain.std() * math.sqrt(precision)),
            })  # fmt: skip
    return rows


# ------------------------------------------------------------------------------------- phase space
PHASE_STEP = 0.02


def phase_kinds():
    """Friction, estimate of the batches' noise, batch size."""
    right = PHASE_STEP * batch_variance() / 2
    return {
        "all records, no friction": (0.0, 0.0, N),
        "batches, no friction": (0.0, 0.0, BATCH),
        "batches, too little friction": (right / 10, right / 10, BATCH),
        "batches, friction": (right, right, BATCH),
    }


def energies(kind, steps, replicates, seed=0):
    """Return paths (replicates, steps + 1, 2) of (whitened position, momentum); energy is half the square."""
    friction, estimate, batch = phase_kinds()[kind]
    centre, precision = normal_posterior()
    step = dp.DPSGHMC(
        budget=None, model=normal_model(), step_size=_constant(PHASE_STEP), n_steps=steps, friction=friction,
        noise_estimate=estimate, gradient_clip_bound=math.inf, batch_size=batch, record_trajectories=True, reproducible=True,
    )  # fmt: skip
    paths = []
    for i in range(replicates):
        rng = np.random.default_rng([seed, i])
        step.set_rng(rng)
        step.stop_tuning()
        step.step({"mu": np.array(centre + rng.standard_normal() / math.sqrt(precision))})
        phases = step.trajectories[-1].phases
        paths.append(
            [((p.theta[0] - centre) * math.sqrt(precision), p.momentum[0]) for p in phases]
        )
    return np.array(paths)


def expected_energy(kind, steps):
    """Mean energy after 0, 1, ... steps from equilibrium, by the recursion of second moments."""
    friction, estimate, batch = phase_kinds()[kind]
    _, precision = normal_posterior()
    once = np.array([[1 - PHASE_STEP * friction, -PHASE_STEP * precision], [0, 1]])
    once[1] += PHASE_STEP * once[0]
    kick = np.array([1, PHASE_STEP])
    added = 2 * (friction - estimate) * PHASE_STEP + PHASE_STEP**2 * batch_variance(batch)
    second, found = np.diag([1, 1 / precision]), []
    for _ in range(steps + 1):
        found.append((second[0, 0] + precision * second[1, 1]) / 2)
        second = once @ second @ once.T + added * np.outer(kick, kick)
    return np.array(found)


def phase(quick):
    """Energy along paths with and without friction."""
    steps, replicates = (300, 4) if quick else (2000, 24)
    shown = sorted({int(i) for i in np.geomspace(1, steps, 40)} | {0})
    result = {
        "step size": PHASE_STEP,
        "batch": BATCH,
        "steps": steps,
        "paths": replicates,
        "shown": shown,
        "kinds": {},
    }
    for kind, (friction, _, _) in phase_kinds().items():
        paths = energies(kind, steps, replicates)
        energy = (paths**2).sum(axis=2) / 2
        result["kinds"][kind] = {
            "friction": friction,
            "mean energy": energy.mean(axis=0)[shown].tolist(),
            "expected": expected_energy(kind, steps)[shown].tolist(),
            "last quarter": float(energy[:, -steps // 4 :].mean()),
        }
        if kind in ("batches, no friction", "batches, friction"):
            result["kinds"][kind]["path"] = paths[0, ::4][:500].round(2).tolist()
    return result


# -------------------------------------------------------------------------------------- accounting
PUBLISHED_DELTAS = {1e-6: (0.881, 2.254), 1e-5: (0.763, 2.061), 1e-4: (0.629, 1.848), 1e-3: (0.473, 1.607), 1e-2: (0.273, 1.324)}  # fmt: skip
PUBLISHED_DRAWS = {100: 0.609, 200: 0.763, 500: 1.040, 1000: 1.324}
PUBLISHED_RUNS = {9.789: (1.7, 0.15, 1.0), 19.811: (2.0, 0.05, 0.7), 2.248: (3.0, 0.7, 0.8)}


def thesis_step(beta, friction, bound, adjacency="add_remove", **batch):
    """The step whose noise multiplier is that of the thesis: at temperature T = q."""
    budget = dp.PrivacyBudget(math.inf, DELTA, chains=1, adjacency=adjacency)
    return dp.DPSGHMC(
        budget=budget, model=normal_model(), step_size=beta, n_steps=10, gradient_clip_bound=bound, friction=friction,
        temperature=0.01, **(batch or {"sampling_probability": 0.01}),
    )  # fmt: skip


def charged(step, draws):
    """All accesses of so many draws, as they are charged."""
    schedule = step.schedule()
    return [access for t in range(1, draws + 1) for access in schedule(t)]


def accounting(quick):
    """Table 6.3, and other runs of the thesis."""
    step = thesis_step(3.0, 1.0, 0.7)
    table = [
        {
            "delta": delta,
            "published": pld,
            "published, moments": moments,
            "ours": epsilon_of(charged(step, 200), delta),
        }
        for delta, (pld, moments) in PUBLISHED_DELTAS.items()
    ]
    if quick:
        return {"by delta": table}
    lengths = [
        {"gradients": 10 * t, "published": e, "ours": epsilon_of(charged(step, t), DELTA)}
        for t, e in PUBLISHED_DRAWS.items()
    ]
    runs = [
        {"beta": beta, "friction": c, "bound": b, "published": e, "ours": epsilon_of(charged(thesis_step(beta, c, b), 1500), DELTA)}
        for e, (beta, c, b) in PUBLISHED_RUNS.items()
    ]  # fmt: skip
    fixed = thesis_step(3.0, 1.0, 0.7, "substitute", batch_size=N // 100)
    turned = [  # a vector of norm at most L, reversed by one record, changes by 2 L
        (SampledGaussian(step.noise_multiplier(t) / 2, 0.01, "poisson", "add_remove"), 10)
        for t in range(1, 201)
    ]
    return {
        "by delta": table, "by length": lengths, "runs": runs,
        "as it was run": {
            "fixed batches, one record replaced": epsilon_of(charged(fixed, 200), DELTA),
            "clipping of the batch": epsilon_of(turned, DELTA),
        },
    }  # fmt: skip


# ------------------------------------------------------------------------------------------- radon
TABLE_6_2 = {
    "SGD": (0.731, 0.001), "DP SGD, epsilon 10.727": (0.711, 0.004), "HMC, normal prior": (0.731, 0.004), "HMC, flat prior": (0.732, 0.002),
    "DP SGHMC, normal prior, epsilon 9.789": (0.730, 0.003), "DP SGHMC, flat prior, epsilon 9.789": (0.726, 0.006),
    "naive SGHMC, normal prior": (0.716, 0.021), "naive SGHMC, flat prior": (0.722, 0.013),
}  # fmt: skip
CLASSES = (0, 1, 2, 3, 9)
CENTRES, SCALES = np.array([0.9, 0.6]), np.array([2.2, 1.0])


def read_radon(path):
    """Design matrix and classes."""
    with gzip.open(path, "rt") as file:
        data = np.genfromtxt(file, delimiter=",", names=True)
    x = (np.column_stack([data["log_radon"], data["log_uppm"]]) - CENTRES) / SCALES
    return np.column_stack([np.ones(len(x)), x]), np.searchsorted(CLASSES, data["floor_measure"])


class Radon:
    """Four fifths of the records for training, one fifth for testing, the same split for every method."""

    def __init__(self, path, seed):
        x, y = read_radon(path)
        order = np.random.default_rng(seed).permutation(len(y))
        cut = len(y) * 4 // 5
        self.x, self.y, self.x_test, self.y_test = (
            x[order[:cut]],
            y[order[:cut]],
            x[order[cut:]],
            y[order[cut:]],
        )

    def model(self, flat=False):
        """Softmax regression."""
        with pm.Model() as model:
            theta = (
                pm.Uniform("theta", -1000, 1000, shape=(3, 5), default_transform=None)
                if flat
                else pm.Normal("theta", 0, 10, shape=(3, 5))
            )
            pm.Categorical("y", logit_p=pt.dot(self.x, theta), observed=self.y)
        return model

    def accuracy(self, theta):
        """Fraction of the test records whose class has the highest probability."""
        return float(np.mean(np.argmax(self.x_test @ theta, axis=1) == self.y_test))

    def log_loss(self, theta):
        """Mean log-loss of the test records."""
        return float(
            -np.mean(
                log_softmax(self.x_test @ theta, axis=1)[np.arange(len(self.y_test)), self.y_test]
            )
        )

    def likeliest(self):
        """Posterior mode under the normal prior: the target of all methods."""

        def loss(flat):
            theta = flat.reshape(3, 5)
            logp = log_softmax(self.x @ theta, axis=1)
            residual = np.exp(logp)
            residual[np.arange(len(self.y)), self.y] -= 1
            value = -logp[np.arange(len(self.y)), self.y].sum() + (flat**2).sum() / 200
            return value, (self.x.T @ residual).ravel() + flat / 100

        return minimize(
            loss, np.zeros(15), jac=True, method="L-BFGS-B", options={"maxiter": 2000}
        ).x.reshape(3, 5)


RADON_DRAWS, RADON_STEPS, RADON_PART = 300, 10, 0.05


def radon_step_size(epsilon, draws=RADON_DRAWS):
    """Longest steps for which the draws fit the budget, with friction 1 / (2 step size).

    The noise multiplier is then ``q / (step_size * clip bound)``; a public calculation.
    """
    low, high = 0, 1500

    def fits(k):
        access = SampledGaussian(1.01**k, RADON_PART, "poisson", "add_remove")
        return epsilon_of([(access, draws * RADON_STEPS)], DELTA) <= epsilon

    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return RADON_PART / (1.01**high * (1 + 1e-9))


def radon(path, quick, store=lambda found: None):
    """Table 6.2: accuracy of the mean of the last quarter of the draws."""
    seeds = range(1) if quick else range(5)
    rows = []

    def add(what, epsilon, results):
        accuracy, loss = (np.array(each) for each in zip(*results, strict=True))
        rows.append({"what": what, "epsilon": epsilon, "accuracy": float(accuracy.mean()), "sd": float(accuracy.std(ddof=1)) if len(accuracy) > 1 else 0.0, "log-loss": float(loss.mean())})  # fmt: skip
        print(rows[-1], flush=True)
        store(found)

    found = {
        "settings": {
            "delta": DELTA, "splits": len(seeds), "draws": RADON_DRAWS, "n_steps": RADON_STEPS, "sampling probability": RADON_PART, "clip bound": 1.0,
            "adjacency": "add_remove", "prediction": "posterior mean of theta, last quarter of the draws",
        },
        "rows": rows,
    }  # fmt: skip
    data = [Radon(path, seed) for seed in seeds]

    def judged(d, theta):
        return d.accuracy(theta), d.log_loss(theta)

    add(
        "most frequent class",
        None,
        [judged(d, np.outer([1, 0, 0], np.log(np.bincount(d.y) / len(d.y)))) for d in data],
    )
    add("posterior mode, not private", None, [judged(d, d.likeliest()) for d in data])

    def chains(flat=False, **options):
        draws = options.pop("draws")
        for seed, d in zip(seeds, data, strict=True):
            model = d.model(flat)
            budget = None
            if "epsilon" in options:
                budget = dp.PrivacyBudget(
                    options["epsilon"], DELTA, chains=1, adjacency="add_remove"
                )
            rest = {k: v for k, v in options.items() if k != "epsilon"}
            chain, step = run(
                model, draws, seed, start={"theta": np.zeros((3, 5))}, budget=budget, **rest
            )
            yield judged(d, chain[-(len(chain) // 4) :].mean(axis=0)), step, len(chain)

    for epsilon in (1.0,) if quick else (0.03, 0.1, 0.3, 1.0, 3.0, 10.0):
        size = radon_step_size(epsilon)
        done = [*chains(
            epsilon=epsilon, draws=RADON_DRAWS, step_size=_constant(size), n_steps=RADON_STEPS, gradient_clip_bound=1.0, friction=0.5 / size,
            sampling_probability=RADON_PART,
        )]  # fmt: skip
        assert all(n == RADON_DRAWS for _, _, n in done)
        add("DPSGHMC, T = 1", epsilon, [result for result, _, _ in done])
    draws = 100 if quick else 1500
    spent = None
    for flat, prior in ((False, "normal"), (True, "flat")):
        done = [*chains(
            flat, epsilon=math.inf, draws=draws, step_size=1.7, n_steps=10, gradient_clip_bound=1.0, friction=0.15,
            sampling_probability=0.01, temperature=0.01,
        )]  # fmt: skip
        if spent is None:
            spent = epsilon_of(charged(done[0][1], draws), DELTA)
        add(
            f"DPSGHMC, settings of the thesis, T = q = 0.01, {prior} prior",
            spent,
            [result for result, _, _ in done],
        )
    done = [
        *chains(
            draws=draws,
            step_size=1.7,
            n_steps=10,
            gradient_clip_bound=math.inf,
            friction=0.0,
            sampling_probability=0.01,
            temperature=0.01,
        )
    ]
    add("naive, same settings, normal prior", None, [result for result, _, _ in done])
    return found


# ----------------------------------------------------------------------------------------- figures
def draw_phase(found, path):
    """Paths in phase space, and energy."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"axes.spines.right": False, "axes.spines.top": False, "axes.grid": True, "grid.alpha": 0.25, "figure.constrained_layout.use": True, "font.size": 10, "axes.titlelocation": "left", "axes.titlesize": "medium"})  # fmt: skip
    colours = dict(zip(found["kinds"], ("#222222", "#D55E00", "#E69F00", "#0072B2"), strict=True))
    figure, axes = plt.subplots(1, 3, figsize=(12, 4), width_ratios=[1, 1, 1.35])
    circle = np.linspace(0, 2 * math.pi, 100)
    for axis, kind in zip(axes, ("batches, no friction", "batches, friction"), strict=False):
        points = np.array(found["kinds"][kind]["path"])
        axis.plot(*points.T, ".", color=colours[kind], markersize=3)
        axis.plot(2 * np.cos(circle), 2 * np.sin(circle), color="#222222", linewidth=1)
        most = 1.08 * max(3.6, np.abs(points).max())
        axis.set(xlabel="position, in posterior sd from the mean", title=f"One path: {kind}", xlim=(-most, most), ylim=(-most, most), aspect="equal")  # fmt: skip
    axes[0].set_ylabel("momentum")
    axis = axes[2]
    steps = np.array(found["shown"])
    for kind, each in found["kinds"].items():
        axis.plot(steps, each["expected"], color=colours[kind], linewidth=1)
        axis.plot(steps, each["mean energy"], "o", color=colours[kind], markersize=3.5, label=kind)
    axis.set(xscale="symlog", yscale="log", xlabel="step", ylabel="mean energy", title="Energy: measured (dots), calculated (lines)")  # fmt: skip
    axis.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=90)
    plt.close(figure)


def draw_radon(found, path):
    """Accuracy and log-loss against epsilon."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"axes.spines.right": False, "axes.spines.top": False, "axes.grid": True, "grid.alpha": 0.25, "figure.constrained_layout.use": True, "font.size": 10, "axes.titlelocation": "left", "axes.titlesize": "medium"})  # fmt: skip
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8))
    rows = {row["what"]: row for row in found["rows"]}
    ours = [row for row in found["rows"] if row["what"] == "DPSGHMC, T = 1"]
    theirs = rows["DPSGHMC, settings of the thesis, T = q = 0.01, normal prior"]
    for axis, key in zip(axes, ("accuracy", "log-loss"), strict=True):
        x = [row["epsilon"] for row in ours]
        axis.errorbar(x, [row[key] for row in ours], [row["sd"] for row in ours] if key == "accuracy" else None, color="#0072B2", marker="o", label="DPSGHMC, whole data (T = 1)")  # fmt: skip
        axis.plot(
            theirs["epsilon"],
            theirs[key],
            "^",
            color="#D55E00",
            label="DPSGHMC, settings of the thesis (T = 0.01)",
        )
        if key == "accuracy":
            axis.plot(
                9.789, 0.730, "*", color="#D55E00", markersize=10, label="thesis, as published"
            )
        for what, dash, left in (
            ("posterior mode, not private", "-.", True),
            ("most frequent class", ":", False),
        ):
            axis.axhline(rows[what][key], color="#777777", linestyle=dash, linewidth=1)
            axis.annotate(what, (0 if left else 1, rows[what][key]), (3 if left else -3, 3), ("axes fraction", "data"), "offset points", ha="left" if left else "right", fontsize="small", color="#777777")  # fmt: skip
        axis.set(xscale="log", xlabel="epsilon (delta = 1e-5, add/remove)", ylabel=f"test {key}")
        axis.set_xticks([0.03, 0.1, 0.3, 1, 3, 10], ["0.03", "0.1", "0.3", "1", "3", "10"])
        axis.minorticks_off()
    axes[0].legend(frameon=False, fontsize="small", loc="center right")
    figure.savefig(path, dpi=90)
    plt.close(figure)


# ------------------------------------------------------------------------------------------ tables
def number(value, digits=3):
    """Text of a number in a table."""
    if value is None:
        return ""
    return f"{value:.3g}" if abs(value) >= 1000 else f"{value:.{digits}f}"


def table(name, heads, rows):
    """Lines of a table, between marks."""
    lines = [
        f"<!-- {name}: python experiments/sghmc_experiments.py --print -->",
        "| " + " | ".join(heads) + " |",
    ]
    lines.append("| " + " | ".join(["---"] + ["---:"] * (len(heads) - 1)) + " |")
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), "<!-- end -->"]


def tables(found):
    """All tables of the page, as lines by name."""
    made = {}
    rows = []
    for row in found["bias"]["rows"]:
        cells = [row["kinds"].get(kind) for kind in KINDS_OF_BIAS]
        shown = [
            c and f"{c['calculated']:.3f} ({c['measured']:.3f} +- {c['error']:.3f})" for c in cells
        ]
        rows.append(
            [
                f"{row['step size']:g}",
                number(row["in frequencies"], 2),
                *(each or "" for each in shown),
            ]
        )
    made["bias"] = table("bias", ["step size", "in posterior sd", *KINDS_OF_BIAS], rows)
    made["clipping"] = table(
        "clipping", ["data", "clip bound", "records clipped", "mean, in posterior sd off", "sd, over the posterior's"],
        [[row["data"], f"{row['bound']:g}", f"{row['clipped']:.0%}", number(row["mean"], 2), number(row["sd"], 2)] for row in found["bias"]["clipping"]],
    )  # fmt: skip
    rows = []
    for row in found["normal mean"]["rows"]:
        published = TABLE_6_1.get(row["what"], (None, None))
        here = [number(row[key]) or "> 1e100" for key in ("mean", "sd")]
        rows.append([row["what"], *here, *map(number, published)])
    made["normal mean"] = table(
        "normal mean", ["sampler", "mean", "sd", "thesis: mean", "sd"], rows
    )
    accounts = found["accounting"]
    made["by delta"] = table(
        "by delta", ["delta", "thesis, PLD", "thesis, moments", "ours, as charged"],
        [[f"{row['delta']:g}", number(row["published"]), number(row["published, moments"]), number(row["ours"])] for row in accounts["by delta"]],
    )  # fmt: skip
    rows = [
        [f"3, 1, 0.7; {row['gradients']} gradients", number(row["published"]), number(row["ours"])]
        for row in accounts["by length"]
    ]
    rows += [
        [
            f"{row['beta']:g}, {row['friction']:g}, {row['bound']:g}; 15000 gradients",
            number(row["published"]),
            number(row["ours"]),
        ]
        for row in accounts["runs"]
    ]
    rows += [
        [f"3, 1, 0.7; 2000 gradients; {name}", "0.763", number(value)]
        for name, value in accounts["as it was run"].items()
    ]
    made["other runs"] = table("other runs", ["beta, friction, clip bound", "thesis", "ours"], rows)
    made["energy"] = table(
        "energy", ["path", "friction", f"mean energy at step {found['phase']['shown'][-1]}", "calculated"],
        [[kind, number(each["friction"], 1), number(each["mean energy"][-1], 2), number(each["expected"][-1], 2)] for kind, each in found["phase"]["kinds"].items()],
    )  # fmt: skip
    if "radon" in found:
        made["radon"] = table(
            "radon", ["method", "epsilon", "accuracy", "sd over splits", "log-loss"],
            [[row["what"], "" if row["epsilon"] is None else f"{row['epsilon']:.3g}", number(row["accuracy"]), number(row["sd"]), number(row["log-loss"])] for row in found["radon"]["rows"]]
            + [[f"thesis: {name}", "", number(a), number(s), ""] for name, (a, s) in TABLE_6_2.items()],
        )  # fmt: skip
    return made


def rounded(value):
    """Rounded to four digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


PARTS = {"accounting": accounting, "phase": phase, "bias": bias, "normal mean": normal_mean}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--radon", type=Path, help="radon.csv.gz; else that part is kept as it is")
    parser.add_argument("--only", choices=[*PARTS, "radon"], help="one part; the others are kept")
    parser.add_argument(
        "--quick", action="store_true", help="in small, into a folder of your choice or nowhere"
    )
    parser.add_argument(
        "--print", action="store_true", help="only print the tables of stored results"
    )
    parser.add_argument(
        "--draw", action="store_true", help="only draw the figures of stored results"
    )
    parser.add_argument("--results", type=Path)
    parser.add_argument("--figures", type=Path)
    arguments = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    stored = arguments.results or (None if arguments.quick else HERE / "sghmc_experiments.json")
    figures = arguments.figures or (None if arguments.quick else HERE.parent / "docs" / "_static")
    results = json.loads(stored.read_text()) if stored is not None and stored.exists() else {}

    def store(part, found):
        packages = ("numpy", "scipy", "pymc", "pytensor", "pymc-dp")
        found["versions"] = {"python": platform.python_version()} | {
            p: version(p) for p in packages
        }
        results[part] = rounded(found)
        if stored is not None:
            stored.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")

    if not (arguments.print or arguments.draw):
        for part, make in PARTS.items():
            if arguments.only in (None, part):
                started = time.perf_counter()
                store(part, make(arguments.quick))
                print(f"{part}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        if arguments.radon and arguments.only in (None, "radon"):
            store(
                "radon",
                radon(arguments.radon, arguments.quick, lambda found: store("radon", found)),
            )
    if arguments.print:
        for lines in tables(results).values():
            print("\n".join(lines), end="\n\n")
        return
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        if "phase" in results:
            draw_phase(results["phase"], figures / "sghmc_phase.png")
        if "radon" in results and not arguments.quick:
            draw_radon(results["radon"], figures / "sghmc_radon.png")


if __name__ == "__main__":
    main()
