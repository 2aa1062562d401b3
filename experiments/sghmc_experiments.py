"""The experiments of Lode's thesis on private stochastic gradient HMC, with our sampler: tables of docs/sghmc.md.

T. Lode, *Sub-sampled and differentially private Hamiltonian Monte Carlo*, shows the phase space of trajectories on
batches, samples a normal mean (Table 6.1), classifies radon measurements (Table 6.2) and accounts for a run (Table 6.3).

The data are public or simulated and all randomness comes from seeds, so that results can be reproduced. This breaks the
guarantee. Leave out ``reproducible`` for real data.

*Radon*: the columns ``log_radon, log_uppm, floor_measure`` of posteriordb's ``radon_all``, 12 573 rows; ``--small``
makes up 600. The five classes are the values 0, 1, 2, 3, 9 of ``floor_measure``. Covariates are centred and scaled by
constants that are assumed to be public, to a standard deviation of about 1/2.
"""

import gzip
import math

from bisect import bisect_left
from functools import lru_cache
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from benchmark_models import one_chain
from runner import Experiment, Options, Stored, table
from scipy.linalg import solve_discrete_lyapunov
from scipy.optimize import minimize
from scipy.special import log_softmax

import pymc_dp as dp

from pymc_dp.privacy import SampledGaussian, epsilon_of

DELTA = 1e-5


def chain_of(model, draws, seed, start, *, budget=None, **options):
    """Sample one chain; returns draws of the one parameter as (draws, ...), and the step."""
    step = dp.DPSGHMC(budget=budget, model=model, reproducible=True, **options)
    idata = one_chain(model, step, budget, draws, seed, start)
    (name,) = (v.name for v in model.free_RVs)
    return np.asarray(idata.posterior[name], dtype=float)[0], step


# ------------------------------------------------------------------ a normal mean (section 6.1, 6.2)
N, SD, BATCH = 500, 2.0, 50


@lru_cache
def normal_data():
    """500 values of N(1, 4)."""
    return np.random.default_rng(2).normal(1.0, SD, N)


@lru_cache
def normal_model():
    """Model of these values; their mean has the prior N(0, 1)."""
    return mean_model(normal_data())


def mean_model(data):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, SD, observed=data)
    return model


def normal_posterior():
    """Return mean and precision of the posterior."""
    precision = 1 + N / SD**2
    return float(normal_data().sum() / SD**2 / precision), precision


def batch_variance(size=BATCH):
    """Variance of the gradient from a batch of fixed size, at any mean."""
    variance = float(np.var(normal_data(), ddof=1)) / SD**4
    return (N / size) ** 2 * size * (1 - size / N) * variance


def recursion(precision, step_size, friction, noise_estimate, variance):
    """A step of the sampler, which is linear: matrix for momentum and position, and covariance of what is added.

    `variance` is that of the batches' gradients.
    """
    once = np.array([[1 - step_size * friction, -step_size * precision], [0, 1]])
    once[1] += step_size * once[0]
    kick = np.array([1, step_size])
    added = 2 * (friction - noise_estimate) * step_size + step_size**2 * variance
    return once, added * np.outer(kick, kick)


def law(precision, step_size, friction, noise_estimate, variance, n_steps, *, refresh=True):
    """Covariance of momentum and position that a draw leaves invariant; with `refresh` momentum is that at its end."""
    once, added = recursion(precision, step_size, friction, noise_estimate, variance)
    move, noise = np.eye(2), np.zeros((2, 2))
    for _ in range(n_steps):
        move, noise = once @ move, once @ noise @ once.T + added
    if refresh:
        noise = noise + np.outer(move[:, 0], move[:, 0])
        move = move @ np.diag([0.0, 1.0])
    return solve_discrete_lyapunov(move, noise)


TABLE_6_1 = {
    "posterior": (1.0011, None),
    "HMC": (0.9932, 0.0789),
    "naive, q = 0.01": (71707, 5079),
    "friction, q = 0.01": (0.4203, 32.7348),
    "naive, q = 0.1, beta = 0.002": (1.0537, 0.0307),
    "friction, q = 0.1": (1.0596, 2.1496),
}


def normal_mean(small):
    """Table 6.1, from the second half of the draws: its settings, where they are given, and ours."""
    centre, precision = normal_posterior()
    draws = 60 if small else 500
    rows = [{"what": "posterior", "mean": centre, "sd": precision**-0.5}]

    def add(what, friction, bound, **options):
        options |= {"friction": friction, "gradient_clip_bound": bound}
        late = chain_of(normal_model(), draws, 1, {"mu": 0.0}, **options)[0][draws // 2 :]
        lost = bool(np.abs(late).max() > 1e100)
        mean, sd = (None, None) if lost else (float(late.mean()), float(late.std(ddof=1)))
        rows.append({"what": what, "mean": mean, "sd": sd})

    for name, q in (("q = 0.01", 5), ("q = 0.1", 50)):
        same = {"step_size": 1.0, "batch_size": q, "n_steps": N // q}
        add(f"naive, {name}", 0.0, math.inf, **same)
        add(f"friction, {name}", 0.005, 0.7, **same)
        add(f"friction, {name}, T = q", 0.005, 0.7, temperature=q / N, **same)
    add("naive, q = 0.1, beta = 0.002", 0.0, math.inf, step_size=0.002, batch_size=50, n_steps=10)
    ours = {"friction": 30.0, "bound": 2.0, "step_size": lambda t: 0.02, "n_steps": 10}
    add("ours, q = 0.1", batch_size=50, noise_estimate=11.0, **ours)
    add("ours, q = 1", batch_size=N, **ours)
    return {"rows": rows}


# -------------------------------------------------------------------------------- bias of the steps
KINDS_OF_BIAS = {  # records in a batch, whether noise_estimate includes their noise, whether each draw has a new momentum
    "all records": (N, False, True),
    "all, momentum kept": (N, False, False),
    "batches": (BATCH, False, True),
    "batches, B right": (BATCH, True, True),
}
FRICTION = 25.0


def bias(small):
    """Standard deviation of the draws over that of the posterior, calculated and measured."""
    centre, precision = normal_posterior()
    lengths = {0.06: 1500, 0.04: 1500, 0.02: 1500, 0.01: 3000, 0.005: 4500}
    rows = []
    for step_size, draws in {0.02: 90}.items() if small else lengths.items():
        kinds = {}
        for kind, (batch, right, refresh) in KINDS_OF_BIAS.items():
            variance = batch_variance(batch)
            estimate = step_size * variance / 2 if right else 0.0
            if estimate > FRICTION:
                continue
            exact = law(precision, step_size, FRICTION, estimate, variance, 10, refresh=refresh)
            chain, _ = chain_of(
                normal_model(), draws, 1, {"mu": centre}, step_size=lambda t: step_size, friction=FRICTION,
                noise_estimate=estimate, gradient_clip_bound=50.0, batch_size=batch, n_steps=10, refresh_momentum=refresh,
            )  # fmt: skip
            squares = ((chain - centre) ** 2).reshape(30, -1).mean(axis=1) * precision
            sd = math.sqrt(squares.mean())
            error = float(squares.std(ddof=1)) / math.sqrt(30) / (2 * sd)
            calculated = math.sqrt(exact[1, 1] * precision)
            kinds[kind] = {"calculated": calculated, "measured": sd, "error": error}
        length = step_size * math.sqrt(precision)
        row = {"step size": step_size, "in frequencies": length, "draws": draws, "kinds": kinds}
        rows.append(row)
    return {"rows": rows, "clipping": clipping_bias(90, [1.0]) if small else clipping_bias()}


def clipping_bias(draws=1500, bounds=(2.0, 1.0, 0.7, 0.35)):
    """The same model and a skewed one: waiting times, whose tail is clipped."""
    skewed = np.random.default_rng(3).exponential(2.0, N) - 1.0
    precision, rows = 1 + N / SD**2, []
    for name, data in (("normal", normal_data()), ("skewed", skewed)):
        centre, model = data.sum() / SD**2 / precision, mean_model(data)
        for bound in bounds:
            chain, _ = chain_of(
                model, draws, 1, {"mu": centre}, step_size=lambda t: 0.02, friction=FRICTION,
                gradient_clip_bound=bound, batch_size=N, n_steps=10,
            )  # fmt: skip
            z = (chain - centre) * math.sqrt(precision)
            clipped = float(np.mean(np.abs(data - centre) / SD**2 > bound))
            row = {"data": name, "bound": bound, "clipped": clipped}
            rows.append(row | {"mean": float(z.mean()), "sd": float(z.std())})
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


def energies(kind, steps, replicates):
    """Energy along paths, half the square of momentum and whitened position; shape (replicates, steps + 1)."""
    friction, estimate, batch = phase_kinds()[kind]
    centre, precision = normal_posterior()
    step = dp.DPSGHMC(
        budget=None, model=normal_model(), step_size=lambda t: PHASE_STEP, n_steps=steps, friction=friction,
        noise_estimate=estimate, gradient_clip_bound=math.inf, batch_size=batch, record_trajectories=True, reproducible=True,
    )  # fmt: skip
    found = []
    for i in range(replicates):
        rng = np.random.default_rng([0, i])
        step.set_rng(rng)
        step.stop_tuning()
        step.step({"mu": np.array(centre + rng.standard_normal() / math.sqrt(precision))})
        phases = step.trajectories[-1].phases
        squares = [(p.theta[0] - centre) ** 2 * precision + p.momentum[0] ** 2 for p in phases]
        found.append(np.array(squares) / 2)
    return np.array(found)


def expected_energy(kind, steps):
    """Mean energy after 0, 1, ... steps from equilibrium, by the recursion of second moments."""
    friction, estimate, batch = phase_kinds()[kind]
    _, precision = normal_posterior()
    once, added = recursion(precision, PHASE_STEP, friction, estimate, batch_variance(batch))
    second, found = np.diag([1, 1 / precision]), []
    for _ in range(steps + 1):
        found.append((second[0, 0] + precision * second[1, 1]) / 2)
        second = once @ second @ once.T + added
    return np.array(found)


def phase(small):
    """Energy along paths with and without friction."""
    steps, replicates = (300, 4) if small else (2000, 24)
    shown = sorted({int(i) for i in np.geomspace(1, steps, 40)} | {0})
    kinds = {}
    for kind, (friction, _, _) in phase_kinds().items():
        energy = energies(kind, steps, replicates)
        kinds[kind] = {
            "friction": friction,
            "mean energy": energy.mean(axis=0)[shown],
            "expected": expected_energy(kind, steps)[shown],
            "last quarter": float(energy[:, -steps // 4 :].mean()),
        }
    return {"shown": shown, "kinds": kinds}


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


def spent(step, draws, delta=DELTA):
    """Epsilon of so many draws, as they are charged."""
    schedule = step.schedule()
    return epsilon_of([access for t in range(1, draws + 1) for access in schedule(t)], delta)


def accounting(small):
    """Table 6.3, and other runs of the thesis."""
    step = thesis_step(3.0, 1.0, 0.7)
    by_delta = [
        {"delta": d, "published": pld, "published, moments": moments, "ours": spent(step, 200, d)}
        for d, (pld, moments) in PUBLISHED_DELTAS.items()
    ]
    if small:
        return {"by delta": by_delta}
    lengths = [
        {"gradients": 10 * t, "published": e, "ours": spent(step, t)}
        for t, e in PUBLISHED_DRAWS.items()
    ]
    runs = [
        {"beta": beta, "friction": c, "bound": b, "published": e, "ours": spent(thesis_step(beta, c, b), 1500)}
        for e, (beta, c, b) in PUBLISHED_RUNS.items()
    ]  # fmt: skip
    fixed = thesis_step(3.0, 1.0, 0.7, "substitute", batch_size=N // 100)
    turned = [  # a vector of norm at most L, reversed by one record, changes by 2 L
        (SampledGaussian(step.noise_multiplier(t) / 2, 0.01, "poisson", "add_remove"), 10)
        for t in range(1, 201)
    ]
    as_run = {
        "fixed batches, one record replaced": spent(fixed, 200),
        "clipping of the batch": epsilon_of(turned, DELTA),
    }
    return {"by delta": by_delta, "by length": lengths, "runs": runs, "as it was run": as_run}


# ------------------------------------------------------------------------------------------- radon
TABLE_6_2 = {
    "SGD": (0.731, 0.001), "DP SGD, epsilon 10.727": (0.711, 0.004), "HMC, normal prior": (0.731, 0.004), "HMC, flat prior": (0.732, 0.002),
    "DP SGHMC, normal prior, epsilon 9.789": (0.730, 0.003), "DP SGHMC, flat prior, epsilon 9.789": (0.726, 0.006),
    "naive SGHMC, normal prior": (0.716, 0.021), "naive SGHMC, flat prior": (0.722, 0.013),
}  # fmt: skip
CLASSES = (0, 1, 2, 3, 9)
CENTRES, SCALES = np.array([0.9, 0.6]), np.array([2.2, 1.0])


def read_radon(path: Path | None):
    """Design matrix and classes; without a file of records that are made up."""
    if path is None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(600, 2)) / 2
        y = (rng.random(600) < 0.3).astype(int) + (x[:, 0] > 0.5)
    else:
        with gzip.open(path, "rt") as file:
            data = np.genfromtxt(file, delimiter=",", names=True)
        x = (np.column_stack([data["log_radon"], data["log_uppm"]]) - CENTRES) / SCALES
        y = np.searchsorted(CLASSES, data["floor_measure"])
    return np.column_stack([np.ones(len(x)), x]), y


class Radon:
    """Four fifths of the records for training, one fifth for testing, the same split for every method."""

    def __init__(self, path, seed):
        x, y = read_radon(path)
        own, test = np.split(np.random.default_rng(seed).permutation(len(y)), [len(y) * 4 // 5])
        self.x, self.y, self.x_test, self.y_test = x[own], y[own], x[test], y[test]

    def model(self, prior="normal"):
        """Softmax regression."""
        with pm.Model() as model:
            if prior == "normal":
                theta = pm.Normal("theta", 0, 10, shape=(3, 5))
            else:
                theta = pm.Uniform("theta", -1000, 1000, shape=(3, 5), default_transform=None)
            pm.Categorical("y", logit_p=pt.dot(self.x, theta), observed=self.y)
        return model

    def judged(self, theta):
        """Accuracy and mean log-loss of the test records."""
        logp = log_softmax(self.x_test @ theta, axis=1)
        accuracy = float(np.mean(np.argmax(logp, axis=1) == self.y_test))
        return accuracy, -float(np.mean(logp[np.arange(len(self.y_test)), self.y_test]))

    def likeliest(self):
        """Posterior mode under the normal prior: the target of all methods."""
        each = np.arange(len(self.y)), self.y

        def loss(flat):
            logp = log_softmax(self.x @ flat.reshape(3, 5), axis=1)
            residual = np.exp(logp)
            residual[each] -= 1
            value = -logp[each].sum() + (flat**2).sum() / 200
            return value, (self.x.T @ residual).ravel() + flat / 100

        found = minimize(loss, np.zeros(15), jac=True, method="L-BFGS-B", options={"maxiter": 2000})
        return found.x.reshape(3, 5)

    def most_frequent(self):
        """Coefficients of the class frequencies, whatever the covariates."""
        shares = np.bincount(self.y, minlength=5).clip(0.5) / len(self.y)
        return np.outer([1, 0, 0], np.log(shares))


RADON_DRAWS, RADON_STEPS, RADON_PART = 300, 10, 0.05


def radon_step_size(epsilon, draws=RADON_DRAWS):
    """Longest steps for which the draws fit the budget, with friction 1 / (2 step size).

    The noise multiplier is then ``q / (step_size * clip bound)``; a public calculation.
    """

    def fits(k):
        access = SampledGaussian(1.01**k, RADON_PART, "poisson", "add_remove")
        return epsilon_of([(access, draws * RADON_STEPS)], DELTA) <= epsilon

    return RADON_PART / (1.01 ** bisect_left(range(1500), True, lo=1, key=fits) * (1 + 1e-9))


def radon(path: Path | None, small: bool):
    """Table 6.2: accuracy of the mean of the last quarter of the draws."""
    data = [Radon(path, seed) for seed in range(1 if small else 5)]
    rows = []

    def add(what, epsilon, results):
        accuracy, loss = np.transpose(results)
        sd = float(accuracy.std(ddof=1)) if len(accuracy) > 1 else 0.0
        row = {"what": what, "epsilon": epsilon, "accuracy": accuracy.mean(), "sd": sd}
        rows.append(row | {"log-loss": loss.mean()})

    def chains(prior="normal", draws=RADON_DRAWS, epsilon=None, **options):
        """Results of all splits, and the step of the last."""
        results = []
        for seed, d in enumerate(data):
            budget = epsilon and dp.PrivacyBudget(epsilon, DELTA, chains=1, adjacency="add_remove")
            start = {"theta": np.zeros((3, 5))}
            chain, step = chain_of(d.model(prior), draws, seed, start, budget=budget, **options)
            assert len(chain) == draws
            results.append(d.judged(chain[-(draws // 4) :].mean(axis=0)))
        return results, step

    add("most frequent class", None, [d.judged(d.most_frequent()) for d in data])
    add("posterior mode, not private", None, [d.judged(d.likeliest()) for d in data])
    for epsilon in (1.0,) if small else (0.03, 0.1, 0.3, 1.0, 3.0, 10.0):
        size = radon_step_size(epsilon)
        results, _ = chains(
            epsilon=epsilon, step_size=lambda t, size=size: size, n_steps=RADON_STEPS, gradient_clip_bound=1.0,
            friction=0.5 / size, sampling_probability=RADON_PART,
        )  # fmt: skip
        add("DPSGHMC, T = 1", epsilon, results)
    draws = 100 if small else 1500
    same = {"step_size": 1.7, "n_steps": 10, "sampling_probability": 0.01, "temperature": 0.01}
    with_friction = same | {"epsilon": math.inf, "friction": 0.15, "gradient_clip_bound": 1.0}
    for prior in ("normal", "flat"):
        results, step = chains(prior, draws, **with_friction)
        what = f"DPSGHMC, settings of the thesis, T = q = 0.01, {prior} prior"
        add(what, spent(step, draws), results)
    naive, _ = chains(draws=draws, friction=0.0, gradient_clip_bound=math.inf, **same)
    add("naive, same settings, normal prior", None, naive)
    return {"rows": rows}


# ------------------------------------------------------------------------------------------ tables
def number(value, digits=3):
    """Text of a number in a table."""
    if value is None:
        return ""
    return f"{value:.3g}" if abs(value) >= 1000 else f"{value:.{digits}f}"


def numbers(row, *keys, digits=3):
    return [number(row[key], digits) for key in keys]


def tables(found: Stored) -> list[str]:
    """The tables of the page, in its order."""
    phase, accounts, spread = found["phase"], found["accounting"], []
    energy = [
        [kind, number(each["friction"], 1), *(number(each[key][-1], 2) for key in ("mean energy", "expected"))]
        for kind, each in phase["kinds"].items()
    ]  # fmt: skip
    for row in found["bias"]["rows"]:
        shown = "{calculated:.3f} ({measured:.3f} +- {error:.3f})"
        kinds = [row["kinds"].get(kind) for kind in KINDS_OF_BIAS]
        cells = [shown.format(**kind) if kind else "" for kind in kinds]
        spread.append([f"{row['step size']:g}", number(row["in frequencies"], 2), *cells])
    clipping = [
        [row["data"], f"{row['bound']:g}", f"{row['clipped']:.0%}", *numbers(row, "mean", "sd", digits=2)]
        for row in found["bias"]["clipping"]
    ]  # fmt: skip
    by_delta = [
        [f"{row['delta']:g}", *numbers(row, "published", "published, moments", "ours")]
        for row in accounts["by delta"]
    ]
    other = [
        [f"3, 1, 0.7; {row['gradients']} gradients", *numbers(row, "published", "ours")]
        for row in accounts["by length"]
    ]
    for row in accounts["runs"]:
        settings = "{beta:g}, {friction:g}, {bound:g}; 15000 gradients".format(**row)
        other.append([settings, *numbers(row, "published", "ours")])
    for name, value in accounts["as it was run"].items():
        other.append([f"3, 1, 0.7; 2000 gradients; {name}", "0.763", number(value)])
    mean = []
    for row in found["normal mean"]["rows"]:
        published = map(number, TABLE_6_1.get(row["what"], (None, None)))
        mean.append(
            [row["what"], *(n or "> 1e100" for n in numbers(row, "mean", "sd")), *published]
        )
    accuracy = []
    for row in found["radon"]["rows"]:
        epsilon = "" if row["epsilon"] is None else f"{row['epsilon']:.3g}"
        accuracy.append([row["what"], epsilon, *numbers(row, "accuracy", "sd", "log-loss")])
    for name, published in TABLE_6_2.items():
        accuracy.append([f"thesis: {name}", "", *map(number, published), ""])
    off = "mean, in posterior sd off"
    made = [
        (["path", "friction", f"mean energy at step {phase['shown'][-1]}", "calculated"], energy),
        (["step size", "in posterior sd", *KINDS_OF_BIAS], spread),
        (["data", "clip bound", "records clipped", off, "sd, over the posterior's"], clipping),
        (["delta", "thesis, PLD", "thesis, moments", "ours, as charged"], by_delta),
        (["beta, friction, clip bound", "thesis", "ours"], other),
        (["sampler", "mean", "sd", "thesis: mean", "sd"], mean),
        (["method", "epsilon", "accuracy", "sd over splits", "log-loss"], accuracy),
    ]
    return [line for heads, rows in made for line in (*table(heads, rows, "---:"), "")]


PARTS = {"accounting": accounting, "phase": phase, "bias": bias, "normal mean": normal_mean}


def run(name: str, seed: int, options: Options) -> Stored:
    if name == "radon":
        return radon(options.data, options.small)
    return PARTS[name](options.small)


EXPERIMENT = Experiment(
    __file__, run, dict.fromkeys([*PARTS, "radon"], 0), tables, needs={"radon": "radon.csv.gz"},
    small=("accounting", "phase", "bias", "radon"),
)  # fmt: skip

if __name__ == "__main__":
    EXPERIMENT.main()
