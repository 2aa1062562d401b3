"""Did veterans own their homes more often? A private logistic regression on census records.

Data: 214 144 men of the 1960 US census (package ``causaldata``, after Fetter 2013): home ownership,
veteran status and race. We treat home ownership as confidential, and the covariates as public.

Prints the private posterior at epsilon = 1, what it cost, and the posterior without privacy. Writes
``quickstart.png``: the two beside each other.
"""

import os

# One thread per chain: idle BLAS threads would use the cores of the other chains.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import arviz as az
import matplotlib
import numpy as np
import pymc as pm

from causaldata import mortgages

import pymc_dp as dp

matplotlib.use("Agg")
import matplotlib.pyplot as plt

NAMES = ["intercept", "veteran", "nonwhite", "both"]


def load():
    """Covariates, shape (n, 4), centred by round public numbers, and home ownership, shape (n,)."""
    men = mortgages.load_pandas().data
    veteran, nonwhite = men.vet_wwko - 0.5, men.nonwhite - 0.1
    X = np.column_stack([np.ones(len(men)), veteran, nonwhite, veteran * nonwhite])
    return X, men.home_ownership.to_numpy()


def ownership(X, owner):
    """The model: a proportion of owners for each of the four groups."""
    with pm.Model(coords={"name": NAMES}) as model:
        beta = pm.Normal("beta", 0, 2.5, dims="name")
        pm.Bernoulli("owner", logit_p=X @ beta, observed=owner)
    return model


def without_privacy(X, owner):
    """The posterior by NUTS; equal men are counted first, which is faster."""
    groups, which = np.unique(X, axis=0, return_inverse=True)
    with pm.Model(coords={"name": NAMES}):
        beta = pm.Normal("beta", 0, 2.5, dims="name")
        owners = np.bincount(which, weights=owner).astype(int)
        pm.Binomial(
            "owners", n=np.bincount(which), logit_p=groups @ beta, observed=owners
        )
        return pm.sample(1000, tune=1000, chains=2, progressbar=False, random_seed=1)


def draw(results, n, path):
    """Draw the posteriors beside each other: means, 50 % and 90 % intervals."""
    figure, axes = plt.subplots(
        1, 4, figsize=(11, 2.4), layout="constrained", sharey=True
    )
    for i, (name, axis) in enumerate(zip(NAMES, axes, strict=True)):
        for height, (label, idata) in enumerate(results.items()):
            draws = np.asarray(idata.posterior["beta"])[..., i].ravel()
            low, left, right, high = np.quantile(draws, [0.05, 0.25, 0.75, 0.95])
            colour = f"C{height}"
            axis.plot([low, high], [height, height], color=colour, linewidth=1.5)
            axis.plot([left, right], [height, height], color=colour, linewidth=5)
            axis.plot(draws.mean(), height, "o", color="white", markeredgecolor=colour)
        axis.set(title=name, xlabel="log-odds", ylim=(-0.6, len(results) - 0.4))
    axes[0].set_yticks(range(len(results)), results)
    figure.suptitle(f"Home ownership of {n:,} men: means, 50% and 90% intervals")
    figure.savefig(path, dpi=130)


def main():
    """Run everything and draw the picture."""
    X, owner = load()
    private = dp.sample(
        epsilon=1.0,
        delta=1e-6,
        model=ownership(X, owner),
        covariates="public",
        progressbar=False,
    )
    print(az.summary(private, kind="stats", round_to=3)[["mean", "sd"]], "\n")
    print(dp.PrivacyReport.of(private), "\n")
    exact = without_privacy(X, owner)
    print(az.summary(exact, kind="stats", round_to=3)[["mean", "sd"]])
    draw(
        {"no privacy (NUTS)": exact, "epsilon = 1": private},
        len(owner),
        "quickstart.png",
    )
    print("wrote quickstart.png")


if __name__ == "__main__":
    main()
