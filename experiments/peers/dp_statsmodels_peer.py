"""dp-statsmodels (Ghenis 2025, https://github.com/MaxGhenis/dp-statsmodels): linear regression by noisy sufficient statistics.

    pip install git+https://github.com/MaxGhenis/dp-statsmodels@ce4a47b    # it is not on PyPI
    python dp_statsmodels_peer.py PROBLEM.npz RESULT.npz                   # see run_peers.py

Gaussian noise is added to X'X, X'y and y'y, which get 40, 40 and 20 per cent of epsilon and a third of delta each.
Standard errors are those of the regression and of the noise, to first order.

The sensitivities are those of *adding or removing* a record. Replacing one is removing one and adding another, so
a mechanism that is (e, d)-private for the former is (2 e, (1 + exp(e)) d)-private for the latter (Dwork and Roth 2014,
doi:10.1561/0400000042, theorem 2.2): it is run with half of epsilon, and delta over 1 + exp(epsilon / 2).

What a user chooses: one range for all covariates, and one for the outcome.
"""

import math
import sys
import time
import warnings

import dp_statsmodels.api as dpsm
import numpy as np


def posterior(x, y, epsilon, delta, bounds_x, bounds_y, seed):
    """Estimates and standard errors, the intercept first."""
    session = dpsm.Session(
        epsilon=epsilon, delta=delta, bounds_X=bounds_x, bounds_y=bounds_y, random_state=seed
    )
    found = session.OLS(y, x, epsilon=epsilon)
    return found.params, found.bse


def main() -> None:
    problem, result = sys.argv[1:]
    warnings.simplefilter("ignore")
    p = np.load(problem)
    epsilon = float(p["epsilon"])
    rng = np.random.default_rng([int(p["seed"]), 1])  # another one than the noise has
    largest = float(p["largest"])
    began = time.perf_counter()
    mean, sd = posterior(
        p["x"][:, 1:], p["y"], epsilon / 2, float(p["delta"]) / (1 + math.exp(epsilon / 2)), (-largest, largest),
        tuple(p["outcome"]), int(p["seed"]),
    )  # fmt: skip
    seconds = time.perf_counter() - began
    np.savez(result, draws=mean + sd * rng.standard_normal((2000, len(mean))), seconds=seconds)


if __name__ == "__main__":
    main()
