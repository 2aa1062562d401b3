"""Models in which a record changes more than its own term: each entry point refuses them before anything is spent.

The table of models is in tests/model/test_model_table.py. Here are those that reviewers found through
the public interface, and what they released.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc.distributions.dist_math import check_parameters

import pymc_dp as dp

from pymc_dp.model import RecordLikelihood
from pymc_dp.model.graphs import compiling, exposed

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

RNG = np.random.default_rng(6)
TIMES = RNG.weibull(1.5, size=300) * 4
CENSORED = RNG.random(300) < 0.3
X = RNG.normal(size=300)


def survival(times):
    """PyMC's own idiom: observed deaths in the likelihood, censored people in a potential."""
    with pm.Model() as model:
        alpha, beta = pm.Exponential("alpha", 1.0), pm.Exponential("beta", 0.1)
        pm.Weibull("y", alpha, beta, observed=times[~CENSORED])
        pm.Potential("censored", -((times[CENSORED] / beta) ** alpha).sum())
    return model


def centred(x):
    with pm.Model() as model:
        x = pt.as_tensor(x)
        pm.Normal("y", pm.Normal("b") * (x - x.mean()), 1.0, observed=TIMES)
    return model


def switched_on_far_away(x):
    with pm.Model() as model:
        b, x = pm.Normal("b"), pm.Data("x", x)
        pm.Normal("y", b * x + pt.switch(b > 50, x.sum(), 0.0), 1.0, observed=TIMES)
    return model


def basis_of_the_data(x):
    with pm.Model() as model:
        gp = pm.gp.HSGP(m=[6], L=[4.0], cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        pm.Normal("y", gp.prior("f", x[:, None]), 1.0, observed=TIMES)
    return model


MODELS = {
    "survival": (survival, TIMES, "pm.Censored"),
    "centred": (centred, X, "depends on all of"),
    "switched on far away": (switched_on_far_away, X, "depends on all of the array 'x'"),
    "HSGP": (basis_of_the_data, X, "prior_linearized"),
}
DOORS = {
    "step": lambda model, budget: dp.DPPenalty(
        budget=budget, clip_bound=1.0, proposal=dp.RandomWalk(0.1), model=model
    ),
    "private start": lambda model, budget: dp.scores.private_start(
        dp.Simulator(model, covariates="public"), budget=budget
    ),
    "plan": lambda model, budget: dp.plan(
        step=dp.DPPenalty, budget=budget, model=model, covariates="public"
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_refused_before_anything_is_spent(door):
    make, data, cure = MODELS["switched on far away"]
    budget = dp.PrivacyBudget(4.0, 1e-6, chains=1)
    with pytest.raises(dp.UnsupportedModel, match=cure):
        DOORS[door](make(data), budget)
    assert budget.spent() == 0.0 and not budget.steps


@pytest.mark.parametrize("name", MODELS)
def test_refused_by_sample(name):
    make, data, cure = MODELS[name]
    with pytest.raises(dp.UnsupportedModel, match=cure) as refused:
        dp.sample(epsilon=4.0, delta=1e-6, model=make(data), covariates="public")
    assert refused.value.budget.spent() == 0.0


def acts_elsewhere(make, data):
    """Whether a record that changes moves the prior, or another record's term, somewhere."""
    row = int(np.flatnonzero(CENSORED)[0])
    changed = data.copy()
    changed[row] = 40.0
    one, other = (RecordLikelihood(make(d)) for d in (data, changed))
    for theta in (np.full(one.n_dim, 0.3), np.full(one.n_dim, 60.0)):
        if one.log_prior(theta) != other.log_prior(theta):
            return True
        moved = one.logp(theta) != other.logp(theta)
        if make is not survival:
            moved[row] = False
        if moved.any():
            return True
    return False


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] if n in ("survival", "HSGP") else [])
        for n in MODELS
    ],
)
def test_the_fault_is_found_without_the_checks(name, monkeypatch):
    """With the checks switched off, these models are accepted, and one record moves what is not charged."""
    make, data, _ = MODELS[name]
    monkeypatch.setattr(exposed, "check_priors", lambda *_: [])
    monkeypatch.setattr("pymc_dp.model.likelihood.prove_independence", lambda *_: [])
    assert acts_elsewhere(make, data)


def test_what_is_written_as_advised_is_accepted():
    def advised(times):
        with pm.Model() as model:
            alpha, beta = pm.Exponential("alpha", 1.0), pm.Exponential("beta", 0.1)
            upper = np.where(CENSORED, TIMES, TIMES.max())  # everybody's end of follow-up
            latent = pm.Weibull.dist(alpha, beta)
            pm.Censored("y", latent, lower=None, upper=upper, observed=times)
        return model

    assert RecordLikelihood(advised(TIMES)).n_records == 300


# Columns in which one record decides whether all entries are equal, or 0: PyTensor rewrites constants
# by their values, and the formula for the other records with them.
N = 7
EQUAL = {
    "counts of 0": (np.zeros(N, int), 2, lambda d: pm.Binomial("y", 5, logit_p=pm.Normal("a"), observed=d)),
    "counts of 0, probability beyond 1": (
        np.zeros(N, int), 2, lambda d: pm.Binomial("y", 5, pt.exp(pm.Normal("a")), observed=d)),
    "negative binomial": (
        np.zeros(N, int), 3,
        lambda d: pm.NegativeBinomial("y", mu=pt.exp(pm.Normal("a")), alpha=pm.Exponential("s", 1), observed=d)),
    "a column of 0": (np.zeros(N), 1.0, lambda d: pm.Normal("y", pt.exp(pm.Normal("a")) * d, 1.0, observed=X[:N])),
    "a column of 1": (np.ones(N), 0.0, lambda d: pm.Normal("y", pt.exp(pm.Normal("a")) ** d, 1.0, observed=X[:N])),
    "known standard errors": (np.full(N, 2.0), 3.0, lambda d: pm.Normal("y", pm.Normal("a"), d, observed=X[:N])),
    "a standard error that is negative": (
        np.full(N, 2.0), -3.0, lambda d: pm.Normal("y", pm.Normal("a"), d, observed=X[:N])),
    "a trial that is impossible": (
        np.full(N, 3), 1, lambda d: pm.Binomial("y", d, logit_p=pm.Normal("a"), observed=np.full(N, 2))),
    "groups": (np.zeros(N, int), 1, lambda d: pm.Normal("y", pt.exp(pm.Normal("a", shape=2))[d], 1.0, observed=X[:N])),
}  # fmt: skip


def terms_of(fill, data):
    with pm.Model() as model:
        fill(data)
    likelihood = RecordLikelihood(model)
    return np.array(
        [likelihood.logp(np.full(likelihood.n_dim, t)) for t in (0.3, 12.0, 40.0, 800.0, -800.0)]
    )


def moved_by_the_last(name):
    data, other, fill = EQUAL[name]
    changed = data.copy()
    changed[-1] = other
    one, two = terms_of(fill, data)[:, :-1], terms_of(fill, changed)[:, :-1]
    return not np.array_equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUAL)
def test_one_record_does_not_choose_the_formula_for_all(name):
    assert not moved_by_the_last(name)


@pytest.mark.slow
def test_the_formula_is_seen_to_change(monkeypatch):
    """Control: with private arrays as constants, one record's count makes others' terms infinite."""
    freeze = compiling.freeze
    monkeypatch.setattr("pymc_dp.model.compiled_model.freeze", lambda rows, *_: freeze(rows))
    assert any(map(moved_by_the_last, EQUAL))


def test_a_check_that_joins_records_is_refused_whether_it_holds_or_not():
    def joined(x):
        with pm.Model() as model:

            def logp(value, mu, x):
                positive = pt.all(x.sum() > 0.0)
                return check_parameters(-((value - mu * x) ** 2), positive, msg="sum > 0")

            pm.CustomDist("y", pm.Normal("mu"), x, logp=logp, observed=X)
        return model

    for x in (np.abs(X), -np.abs(X)):
        with pytest.raises(dp.UnsupportedModel, match="joins the data of several records"):
            RecordLikelihood(joined(x))
