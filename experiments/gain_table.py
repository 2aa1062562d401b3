"""Iterations that the experiments of Räisä (2021) may run: release accounting against decision accounting.

The table of ``docs/accounting.md``::

    python experiments/gain_table.py                  # some minutes
    python experiments/gain_table.py --print

Hyperparameters are those of the thesis and its code: number of records, noise multiplier ``tau *
sqrt(n)``, clip bound, proposal, delta = 0.1 / n. A decision's cost depends on the noise itself, not
only on its ratio to the sensitivity; both are taken at the mean distance of a proposal.
"""

import math

from dataclasses import dataclass

from published_bounds import MinibatchRelease
from runner import Experiment as Runner
from runner import Options, Stored
from scipy.special import gammaln

from pymc_dp import Penalty
from pymc_dp.privacy import (
    Decision,
    Gaussian,
    SampledDecision,
    max_draws,
)
from pymc_dp.steps import Lazy

EPSILONS = (1, 4)


def mean_norm(d: int) -> float:
    """Mean length of a standard normal vector in d dimensions."""
    return math.sqrt(2) * math.exp(gammaln((d + 1) / 2) - gammaln(d / 2))


@dataclass(frozen=True)
class Experiment:
    """One row of the thesis's hyperparameters; the likelihood is raised to the power ``n0 / n`` if n0 is given."""

    name: str
    d: int
    n: int
    n0: int | None
    penalty: tuple[float, float, float]  # tau, proposal sd, clip bound
    component: tuple[float, float, float]  # the same, one component at a time
    hmc: tuple[float, float, int, float, float]  # tau, tau_g, L, step size, clip bound
    minibatch: tuple[float, float, float, int] | None = None  # tau, sd, clip bound, batch size

    @property
    def temperature(self) -> float:
        """Power of the likelihood."""
        return 1.0 if self.n0 is None else self.n0 / self.n


EXPERIMENTS = [
    Experiment("flat banana", 2, 100_000, None, (0.1, 0.008, 2), (0.1, 0.008, 1.8), (0.1, 0.4, 10, 5e-4, 2), (0.7, 0.001, 1, 1000)),
    Experiment("flat banana", 10, 200_000, None, (0.1, 0.0015, 2), (0.1, 0.0015, 3), (0.05, 0.2, 10, 1.5e-4, 2.5), (0.6, 1e-4, 3, 1000)),
    Experiment("tempered banana", 2, 100_000, 1000, (0.2, 0.035, 5), (0.2, 0.04, 3.5), (0.2, 0.6, 10, 0.01, 2.5), (1.5, 0.025, 4, 1000)),
    Experiment("tempered banana", 10, 200_000, 1000, (0.18, 0.02, 3), (0.1, 0.04, 3), (0.08, 0.2, 10, 0.015, 2.5), (0.7, 0.02, 2, 1200)),
    Experiment("Gauss", 30, 200_000, None, (0.06, 8.4e-4, 3), (0.2, 8.4e-4, 3), (0.05, 0.1, 5, 2.5e-4, 2.5)),
    Experiment("narrow banana", 2, 150_000, None, (0.2, 0.0015, 5.5), (0.1, 0.0015, 8.5), (0.15, 0.25, 5, 4.5e-4, 5)),
    Experiment("correlated Gauss", 2, 200_000, None, (0.07, 1.5e-4, 50), (0.1, 2e-4, 45), (0.05, 0.2, 8, 7e-5, 30)),
    Experiment("circle", 2, 100_000, None, (4, 0.2, 0.002), (4, 0.3, 0.002), (0.6, 1.9, 40, 0.07, 0.001)),
]  # fmt: skip


BETTER = Lazy(Penalty(2.0), 0.5)


def accountings(e: Experiment) -> list[tuple[str, float, list, list, list]]:
    """Sampler, its noise, and the accesses of an iteration: released as published, decided, decided by the better rule."""
    rows = []
    root_n = math.sqrt(e.n)

    def decisions(sensitivity: float, noise: float) -> tuple[list, list]:
        same = Decision(Penalty(noise), sensitivity)
        return [(same, 1)], [(Decision(BETTER, sensitivity), 1)]

    for sampler, (tau, sd, clip), d in (
        ("penalty", e.penalty, e.d),
        ("penalty, one component", e.component, 1),
    ):
        sensitivity = 2 * e.temperature * clip * sd * mean_norm(d)
        noise = tau * root_n * sensitivity
        same, better = decisions(sensitivity, noise)
        rows.append((sampler, noise, [(Gaussian(tau * root_n), 1)], same, better))

    tau, tau_g, steps, size, clip = e.hmc
    # Distance of a free flight; gradients of the end points are reused.
    sensitivity = 2 * e.temperature * clip * steps * size * mean_norm(e.d)
    noise = tau * root_n * sensitivity
    same, better = decisions(sensitivity, noise)
    gradient = Gaussian(tau_g * root_n)
    published = [(Gaussian(tau * root_n), 1), (gradient, steps + 1)]
    # A lazy iteration rejects without access to the data, and so without gradients.
    rows.append(
        ("HMC", noise, published, [*same, (gradient, steps)], [*better, (gradient, steps / 2)])
    )

    if e.minibatch is not None:
        tau, sd, clip, m = e.minibatch
        q, scaled = m / e.n, e.n * e.temperature * clip * sd * mean_norm(e.d) / m
        noise = math.sqrt(tau) * (2 * scaled + 3 * (m - 1) / m * scaled**2)
        sensitivity = 2 * scaled + 2 * (m - 1) / m * scaled**2
        same = [(SampledDecision(Penalty(noise), sensitivity, q), 1)]
        better = [(SampledDecision(BETTER, sensitivity, q), 1)]
        released = [(MinibatchRelease(math.sqrt(tau), q), 1)]
        rows.append(("minibatch penalty", noise, released, same, better))
    return rows


def run(name: str, seed: int, options: Options) -> Stored:
    """Cells of a row for each sampler."""
    e = BY_NAME[name]
    delta, found = 0.1 / e.n, {}
    for sampler, noise, released, same, better in accountings(e):
        # Theorem 3.5 converts as the moments accountant does; Gaussian releases are exact.
        how = "moments" if sampler.startswith("minibatch") else "gaussian"
        old = [max_draws(released, epsilon, delta, accountant=how) for epsilon in EPSILONS]
        new = [max_draws(same, epsilon, delta) for epsilon in EPSILONS]
        most = max_draws(better, EPSILONS[-1], delta) * BETTER.probability(0.0)
        gain = most / (old[-1] * Penalty(noise).probability(0.0))
        counts = [f"{k:,}".replace(",", " ") for k in old + new]
        found[sampler] = [f"{noise:.2f}", *counts, f"{gain:.2g} x"]
    return found


def tables(stored: Stored) -> list[str]:
    """The table of the page."""
    lines = [
        "| experiment | sampler | noise | released: 1 | 4 | decided: 1 | 4 | moves |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, found in stored.items():
        lines += [f"| {name} | {s} | {' | '.join(cells)} |" for s, cells in found.items()]
    return lines


BY_NAME = {f"{e.name}, {e.d}-d": e for e in EXPERIMENTS}
EXPERIMENT = Runner(__file__, run, dict.fromkeys(BY_NAME, 0), tables, small=("circle, 2-d",))

if __name__ == "__main__":
    EXPERIMENT.main()
