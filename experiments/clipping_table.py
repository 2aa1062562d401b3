"""Bias of a chain with clipped log-ratios: the table of ``docs/guarantees.md``.

Nothing is sampled. Records are the quantiles of a distribution and the one parameter is on a grid, so the chain of
:class:`~pymc_dp.DPPenalty` with clipped log-ratios is a matrix. Its stationary distribution is compared with the
posterior. The fraction of clipped records is that at proposals from the posterior.
"""

import numpy as np

from runner import Experiment, Options, Stored, table
from scipy import stats

from pymc_dp import Penalty

RULE = Penalty(2.0)
CLIPPED = (0.0, 0.02, 0.05, 0.1, 0.2)
#: Root mean square of a proposal; it has little effect.
LENGTH = 1.0
#: Of the grid, in posterior standard deviations; it is wide enough for the shifts.
SPACING, HALF_WIDTH = 0.2, 24


def normal(theta, y):
    """Mean of a normal distribution with variance 1."""
    return -((y - theta) ** 2) / 2


def exponential(theta, y):
    """Logarithm of a rate."""
    return theta - y * np.exp(theta)


def rare(theta, y):
    """Shift of the log-odds of an outcome with probability one in ten."""
    odds = theta + np.log(0.1 / 0.9)
    return y * odds - np.logaddexp(0, odds)


#: Number of records, log-likelihood, quantiles, and information of a record at 0.
ROWS = {
    "normal, 1000": (1000, normal, stats.norm.ppf, 1.0),
    "exponential, 1000": (1000, exponential, stats.expon.ppf, 1.0),
    "exponential, 4000": (4000, exponential, stats.expon.ppf, 1.0),
    "one in ten, 1000": (1000, rare, lambda u: (u > 0.9).astype(float), 0.09),
}


def stationary(law, quantiles, information, n, clipped):
    """Mean and standard deviation of the chain, in those of the posterior."""
    y = quantiles((np.arange(n) + 0.5) / n)
    steps = np.arange(-round(HALF_WIDTH / SPACING), round(HALF_WIDTH / SPACING) + 1)
    sd = 1 / np.sqrt(n * information)
    grid = SPACING * sd * steps
    logp = np.array([law(theta, y) for theta in grid])
    posterior = logp.sum(axis=1)
    posterior = np.exp(posterior - posterior.max())
    posterior /= posterior.sum()
    reach = round(4 * LENGTH / SPACING)
    moves = np.delete(np.arange(-reach, reach + 1), reach)
    weights = np.exp(-((moves * SPACING / LENGTH) ** 2) / 2)
    weights /= weights.sum()

    def proposals(k):
        """Of a place: new places, their probabilities, and changes of records' log-likelihoods per distance."""
        inside = (k + moves >= 0) & (k + moves < len(grid))
        to, distances = k + moves[inside], abs(moves[inside]) * SPACING * sd
        return to, weights[inside], distances, (logp[to] - logp[k]) / distances[:, None]

    bound = np.inf
    if clipped:
        sizes, parts = [], []
        for k in np.flatnonzero(posterior > 1e-3):
            _, weight, _, changes = proposals(k)
            sizes.append(np.abs(changes).ravel())
            parts.append(np.repeat(posterior[k] * weight, n))
        sizes, parts = np.concatenate(sizes), np.concatenate(parts)
        order = np.argsort(sizes)
        done = np.cumsum(parts[order]) / parts.sum()
        bound = sizes[order][np.searchsorted(done, 1 - clipped)]
    chain = np.zeros((len(grid), len(grid)))
    for k in range(len(grid)):
        to, weight, distances, changes = proposals(k)
        log_ratios = np.clip(changes, -bound, bound).sum(axis=1) * distances
        chain[k, to] = weight * [RULE.probability(float(x)) for x in log_ratios]
        chain[k, k] = 1 - chain[k].sum()
    system = np.vstack([chain.T - np.eye(len(grid)), np.ones(len(grid))])
    law_of_chain = np.linalg.lstsq(system, np.append(np.zeros(len(grid)), 1), rcond=None)[0]

    def moments(p):
        mean = p @ grid
        return mean, np.sqrt(p @ (grid - mean) ** 2)

    (mean, spread), (exact, exact_spread) = moments(law_of_chain), moments(posterior)
    return (mean - exact) / exact_spread, spread / exact_spread


def run(name: str, seed: int, options: Options) -> Stored:
    """Shift of the mean and ratio of standard deviations, by the fraction of clipped records."""
    n, *law = ROWS[name]
    cells = ["{:+.2f}, {:.2f}".format(*stationary(*law, n, c)) for c in CLIPPED]
    return {"cells": [cell.replace("-0.00,", "+0.00,") for cell in cells]}


def tables(stored: Stored) -> list[str]:
    rows = [[*name.split(", "), *found["cells"]] for name, found in stored.items()]
    return table(["records", "number", *(f"{c:.0%} clipped" for c in CLIPPED)], rows, "---:")


EXPERIMENT = Experiment(__file__, run, dict.fromkeys(ROWS, 0), tables, small=("one in ten, 1000",))

if __name__ == "__main__":
    EXPERIMENT.main()
