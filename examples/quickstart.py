"""Did veterans own their homes more often? A private logistic regression on census records.

Data: 214 144 men from the 1960 US census (package ``causaldata``, after Fetter 2013): home
ownership against veteran status, race and quarter of birth. We pretend that the records are
confidential, except for a pilot survey of 2 % of the men, which is public. The start of the chains and
the length of their moves are computed from the pilot, never from the confidential records.

Writes ``quickstart.png``: the private posteriors at epsilon = 1 and 4 beside the one without
privacy.
"""

import os

# One thread per chain: idle BLAS threads would use the cores of the other chains.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import matplotlib
import numpy as np
import pymc as pm

from causaldata import mortgages
from scipy.special import expit

import pymc_dp as dp

matplotlib.use("Agg")
import matplotlib.pyplot as plt

NAMES = ["intercept", "veteran", "nonwhite", "quarter of birth"]
#: Largest absolute value of each covariate, known without access to any record.
REACH = np.array([1.0, 0.5, 0.9, 1.0])


def load():
    """Covariates, shape (n, 4), centred by round public numbers, and home ownership, shape (n,)."""
    data = mortgages.load_pandas().data
    quarter = (data.qob - 2.5) / 1.5
    covariates = [np.ones(len(data)), data.vet_wwko - 0.5, data.nonwhite - 0.1, quarter]
    return np.column_stack(covariates).astype(float), data.home_ownership.to_numpy(dtype=np.int64)


def fit_public(X, y):
    """Maximum-likelihood estimate and standard errors by Newton's method; for the public pilot only."""
    beta = np.zeros(X.shape[1])
    for _ in range(20):
        p = expit(X @ beta)
        information = (X * (p * (1 - p))[:, None]).T @ X
        beta = beta + np.linalg.solve(information, X.T @ (y - p))
    return beta, np.sqrt(np.diag(np.linalg.inv(information)))


def private_posterior(X, y, epsilon, start, scale):
    """A PyMC model, a budget, a private step, and a result that may be published."""
    with pm.Model(coords={"coefficient": NAMES}):
        beta = pm.Normal("beta", 0, 2.5, dims="coefficient")
        pm.Bernoulli("owner", logit_p=X @ beta, observed=y)

        budget = dp.PrivacyBudget(epsilon=epsilon, delta=1e-6, chains=2)
        # One coefficient at a time. A move by m changes a record's log-likelihood by at most |x| m,
        # which is the clip bound times the distance in this metric: no record is ever clipped, so
        # the chain is exact.
        walk = dp.GuidedWalk(scale=scale, metric=1 / REACH)
        step = dp.DPPenalty(budget=budget, clip_bound=1.0, proposal=walk, laziness=0.5)
        print(
            f"epsilon = {epsilon:g} pays for about {budget.expected_draws():.0f} draws in each chain"
        )
    public = dp.sample(
        step=step,
        cores=2,
        initvals={"beta": start},
        progressbar=False,
        compute_convergence_checks=False,
    )
    print(budget.report(), "\n")
    return public


def exact_posterior(X, y):
    """Sample the posterior without privacy, by NUTS; equal men are counted first, which is faster."""
    kinds, which = np.unique(X, axis=0, return_inverse=True)
    owners = np.bincount(which, weights=y).astype(int)
    with pm.Model(coords={"coefficient": NAMES}):
        beta = pm.Normal("beta", 0, 2.5, dims="coefficient")
        pm.Binomial("owners", n=np.bincount(which), logit_p=kinds @ beta, observed=owners)
        return pm.sample(1000, tune=1000, chains=2, progressbar=False, random_seed=1)


def draw(results, start, n, path):
    """Draw the posteriors beside each other: means, 50 % and 90 % intervals."""
    figure, axes = plt.subplots(1, 4, figsize=(13, 3), layout="constrained", sharey=True)
    for i, (name, axis) in enumerate(zip(NAMES, axes, strict=True)):
        for height, (label, draws) in enumerate(results.items()):
            q = np.quantile(draws[:, i], [0.05, 0.25, 0.75, 0.95])
            colour = "black" if "NUTS" in label else f"C{height}"
            axis.plot(q[[0, 3]], [height, height], color=colour, linewidth=1.5)
            axis.plot(q[[1, 2]], [height, height], color=colour, linewidth=5, solid_capstyle="butt")
            axis.plot(
                draws[:, i].mean(), height, "o", color="white", markeredgecolor=colour, markersize=8
            )
        axis.axvline(start[i], color="grey", linestyle=":")
        axis.set(title=name, xlabel="log-odds", ylim=(-0.6, len(results) - 0.4))
    axes[0].set_yticks(range(len(results)), results)
    figure.suptitle(
        f"Home ownership of {n:,} men: private and exact posteriors (delta = 1e-6; dotted: public start)"
    )
    figure.savefig(path, dpi=110)


def main():
    """Run everything and draw the picture."""
    X, y = load()
    pilot = np.random.default_rng(1960).random(len(y)) < 0.02
    start, error = fit_public(X[pilot], y[pilot])
    X, y = X[~pilot], y[~pilot]
    # About 2.4 posterior standard deviations, the usual length of one-dimensional moves.
    scale = 2.4 * error * np.sqrt(pilot.sum() / len(y))

    runs = {f"epsilon = {e:g}": private_posterior(X, y, e, start, scale) for e in (1.0, 4.0)}
    runs["exact (NUTS)"] = exact_posterior(X, y)
    results = {}
    for label, idata in runs.items():
        draws = np.asarray(idata.posterior["beta"])
        draws = draws[:, draws.shape[1] // 4 :].reshape(
            -1, len(NAMES)
        )  # without the beginning of the chain
        results[label] = draws
        estimates = zip(NAMES, draws.mean(0), draws.std(0), strict=True)
        print(f"{label:>13}:", ",  ".join(f"{n} {m:.3f} +- {s:.3f}" for n, m, s in estimates))
    draw(results, start, len(y), "quickstart.png")
    print("wrote quickstart.png")


if __name__ == "__main__":
    main()
