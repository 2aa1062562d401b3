"""Iterations that the experiments of Räisä (2021) may run: release accounting against decision accounting.

A table of ``docs/accounting.md``. Hyperparameters are those of the thesis and its code: number of records, noise
multiplier ``tau * sqrt(n)``, clip bound, proposal, delta = 0.1 / n. A decision's cost depends on the noise itself, not
only on its ratio to the sensitivity; both are taken at the mean distance of a proposal.
"""

import math

from benchmark_models import EXPERIMENTS, Experiment
from comparison_experiments import BATCH, GUIDED, HMC
from published_bounds import MinibatchRelease, moments
from runner import Experiment as Runner
from runner import Options, Stored, table
from scipy.special import gammaln

from pymc_dp import Penalty
from pymc_dp.privacy import Decision, Gaussian, SampledDecision, max_draws
from pymc_dp.steps import Lazy

EPSILONS = (1, 4)


def mean_norm(d: int) -> float:
    """Mean length of a standard normal vector in d dimensions."""
    return math.sqrt(2) * math.exp(gammaln((d + 1) / 2) - gammaln(d / 2))


#: Rows, and names in the author's program.
ROWS = {
    "flat banana, 2-d": "easy-2d", "flat banana, 10-d": "easy-10d", "tempered banana, 2-d": "tempered-2d",
    "tempered banana, 10-d": "tempered-10d", "Gauss, 30-d": "gauss-30d", "narrow banana, 2-d": "hard-2d",
    "correlated Gauss, 2-d": "hard-gauss-2d", "circle, 2-d": "circle",
}  # fmt: skip
BETTER = Lazy(Penalty(2.0), 0.5)


def accountings(e: Experiment) -> list[tuple[str, float, list, list, list]]:
    """Sampler, its noise, and the accesses of an iteration: released as published, decided, decided by the better rule."""
    rows = []
    root_n = math.sqrt(e.n_records)

    def add(sampler: str, tau: float, length: float, clip: float, before: tuple = ()) -> None:
        """A sampler with moves of a mean length; others of its accesses, and parts of them that are decided on."""
        sensitivity = 2 * e.temperature * clip * length
        noise = tau * root_n * sensitivity
        released = [(Gaussian(tau * root_n), 1), *((m, k) for m, k, _, _ in before)]
        same = [(Decision(Penalty(noise), sensitivity), 1), *((m, k) for m, _, k, _ in before)]
        better = [(Decision(BETTER, sensitivity), 1), *((m, k) for m, _, _, k in before)]
        rows.append((sampler, noise, released, same, better))

    add("penalty", e.tau, e.scale * mean_norm(e.n_dim), e.clip_bound)
    tau, sd, clip = GUIDED[e.name]
    add("penalty, one component", tau, sd * mean_norm(1), clip)
    tau, tau_g, steps, size, clip, _ = HMC[e.name]
    # Distance of a free flight; gradients of the end points are reused. A lazy iteration rejects without access to the
    # data, and so without gradients.
    gradients = (Gaussian(tau_g * root_n), steps + 1, steps, steps / 2)
    add("HMC", tau, steps * size * mean_norm(e.n_dim), clip, (gradients,))
    if e.name in BATCH:
        tau, sd, clip, m = BATCH[e.name]
        q = m / e.n_records
        scaled = e.n_records * e.temperature * clip * sd * mean_norm(e.n_dim) / m
        noise = math.sqrt(tau) * (2 * scaled + 3 * (m - 1) / m * scaled**2)
        sensitivity = 2 * scaled + 2 * (m - 1) / m * scaled**2
        same, better = ([(SampledDecision(r, sensitivity, q), 1)] for r in (Penalty(noise), BETTER))
        released = [(MinibatchRelease(math.sqrt(tau), q), 1)]
        rows.append(("minibatch penalty", noise, released, same, better))
    return rows


def run(name: str, seed: int, options: Options) -> Stored:
    """Cells of a row for each sampler."""
    e, found = EXPERIMENTS[ROWS[name]], {}
    for sampler, noise, released, same, better in accountings(e):
        # Theorem 3.5 converts as the moments accountant does; Gaussian releases are exact.
        how = moments if sampler.startswith("minibatch") else "gaussian"
        old = [max_draws(released, epsilon, e.delta, accountant=how) for epsilon in EPSILONS]
        new = [max_draws(same, epsilon, e.delta) for epsilon in EPSILONS]
        most = max_draws(better, EPSILONS[-1], e.delta) * BETTER.probability(0.0)
        gain = most / (old[-1] * Penalty(noise).probability(0.0))
        counts = [f"{k:,}".replace(",", " ") for k in old + new]
        found[sampler] = [f"{noise:.2f}", *counts, f"{gain:.2g} x"]
    return found


def tables(stored: Stored) -> list[str]:
    heads = ["noise", "released: 1", "4", "decided: 1", "4", "moves"]
    rows = [[name, s, *cells] for name, found in stored.items() for s, cells in found.items()]
    head, _, *lines = table(["experiment", "sampler", *heads], rows)
    return [head, "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |", *lines]


EXPERIMENT = Runner(__file__, run, dict.fromkeys(ROWS, 0), tables, small=("circle, 2-d",))

if __name__ == "__main__":
    EXPERIMENT.main()
